"""Slides of a chapter, from its built page: statements, formulas, figures, tables and findings.

The page is the source because there every directive, reference and citation is resolved already; a
converter of notebooks would show them as text. A deck is one HTML file that needs no network: figures are
inside it, and MathJax lies beside it.
"""

import base64
import html
import mimetypes
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

from bs4 import BeautifulSoup, Tag

from reprolib.errors import ReproError
from reprolib.evidence import exercises, notebooks
from reprolib.paths import root, write_atomically

DECKS = ("02", "10", "21", "31")
LEFT_OUT = ("Exercises", "What was checked")
STATEMENTS = {
    "definition",
    "proposition",
    "theorem",
    "lemma",
    "corollary",
    "assumption",
    "algorithm",
    "remark",
}
ROWS = 9  # of a table on one slide
ASSETS = ("slides.css", "slides.js")

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<link rel="icon" href="_static/favicon.svg" type="image/svg+xml">
<link rel="stylesheet" href="_static/slides.css">
<script>window.MathJax = {{options: {{processHtmlClass: "math", ignoreHtmlClass: "deck"}}}};</script>
<script defer src="_static/mathjax/tex-chtml.js"></script>
<script defer src="_static/slides.js"></script>
</head>
<body class="deck">
{slides}
<footer><span class="deck-title">{title}</span><output id="place" aria-live="polite"></output></footer>
</body>
</html>
"""


def build(number: str) -> Path:
    """Write the deck of a chapter into ``book/_build/slides`` and return the file.

    Raises:
        ReproError: no such chapter, or its page is not built.
    """
    stem = notebooks.notebook(number).stem
    pages = root() / "book" / "_build" / "html"
    page = pages / "book" / "executed" / f"{stem}.html"
    if not page.is_file():
        raise ReproError(f"{page.relative_to(root())} is missing: run `make book` first")
    folder = root() / "book" / "_build" / "slides"
    assets = folder / "_static"
    assets.mkdir(parents=True, exist_ok=True)
    for name in (*ASSETS, "favicon.svg"):
        shutil.copy(root() / "book" / "_static" / name, assets)
    if not (assets / "mathjax").is_dir():
        shutil.copytree(pages / "_static" / "mathjax", assets / "mathjax")
    target = folder / f"{stem}.html"
    write_atomically(target, deck(number, page))
    return target


def deck(number: str, page: Path) -> str:
    """The deck of one built page, as HTML."""
    article = BeautifulSoup(page.read_text(encoding="utf-8"), "html.parser").select_one("article.bd-article")
    if article is None:
        raise ReproError(f"{page.name} is no page of the book")
    for figure in article.select("img"):
        _embed(figure, page)
    for junk in article.select(
        "script, a.headerlink, button, details, .cell_input, .solution, .privacy-explorer"
    ):
        junk.decompose()
    for link in article.select("a"):
        link.unwrap()  # a deck is one file: there is nowhere to go
    for tag in article.select("[id]"):
        del tag["id"]
    top = article.find("section")
    assert isinstance(top, Tag)
    title = _text(top.find("h1"))
    slides = [_slide(title, part, "title") for part in _opening(top)]
    for section in top.find_all("section"):
        heading = _text(section.find(["h2", "h3"]))
        if not heading or heading in LEFT_OUT:  # the body of a statement is a section without a heading
            continue
        slides += [_slide(heading, part) for part in _parts(section)]
    slides.append(_slide("Exercises", _exercises(number)))
    return PAGE.format(title=html.escape(title), slides="\n".join(slides))


def _text(tag: object) -> str:
    return re.sub(r"\s*#$", "", tag.get_text()).strip() if isinstance(tag, Tag) else ""


def _slide(title: str, body: str, kind: str = "") -> str:
    return (
        f'<section class="slide {kind}"><h2>{html.escape(title)}</h2><div class="body">{body}</div></section>'
    )


def _opening(top: Tag) -> Iterator[str]:
    objectives = top.select_one(".objectives")
    lead = top.find("p", recursive=False)
    yield f"{lead or ''}{objectives or ''}"
    for card in top.select(":scope > .cell table.privacy-card"):
        yield str(card)


def _parts(section: Tag) -> Iterator[str]:
    """What one section shows, a slide each; a finding stands below what it is about."""
    waiting = ""
    before: Tag | None = None
    for child in section.find_all(recursive=False):
        classes = set(child.get("class") or [])
        if "cell" in classes:
            for kind, shown in _outputs(child):
                if kind == "finding" and waiting and "finding" not in waiting:
                    waiting += f'<div class="finding">{shown}</div>'
                    continue
                if waiting:
                    yield waiting
                waiting = f'<div class="finding">{shown}</div>' if kind == "finding" else shown
                if kind == "table" and "<caption" not in shown:  # the text before it says what it is
                    waiting = _lead(before) + waiting
        elif "proof" in classes and classes & STATEMENTS:
            if waiting:
                yield waiting
            waiting = str(child)
        elif "math" in classes:
            if waiting and "math" not in waiting[:40]:
                yield waiting
                waiting = ""
            waiting += _lead(before) + str(child)
        elif "pst-scrollable-table-container" in classes or child.name == "table":
            if waiting:
                yield waiting
            waiting = ""
            yield from _tables(child)
        before = child
    if waiting:
        yield waiting


def _lead(before: Tag | None) -> str:
    return str(before) if before is not None and before.name == "p" else ""


def _outputs(cell: Tag) -> Iterator[tuple[str, str]]:
    """Figures, tables and findings of a cell, in their order."""
    for output in cell.select(".cell_output"):
        for part in output.find_all(recursive=False):
            if part.name == "figure" or part.find("img"):
                yield "figure", str(part)
            elif part.find("table"):
                if part.select_one("table.parameters"):
                    continue
                for table in _tables(part):
                    yield "table", table
            elif part.name == "p" or part.select_one("p"):
                yield "finding", str(part)


def _tables(part: Tag) -> Iterator[str]:
    """A table with at most ``ROWS`` rows to a slide, its caption and head repeated."""
    table = part if part.name == "table" else part.find("table")
    assert isinstance(table, Tag)
    rows = [] if "privacy-card" in (table.get("class") or []) else table.select("tbody > tr")
    if not rows:  # a card is read as a whole
        yield str(table)
    for start in range(0, len(rows), ROWS):
        copy = BeautifulSoup(str(table), "html.parser")
        for index, row in enumerate(copy.select("tbody > tr")):
            if not start <= index < start + ROWS:
                row.decompose()
        if len(rows) > ROWS:
            last = min(start + ROWS, len(rows))
            note = f'<p class="rows">rows {start + 1} to {last} of {len(rows)}</p>'
            yield f"{copy}{note}"
        else:
            yield str(copy)


def _exercises(number: str) -> str:
    items = "".join(f"<li>{html.escape(e.title)} ({e.minutes} minutes)</li>" for e in exercises.read(number))
    return f"<ul>{items}</ul>"


def _embed(image: Tag, page: Path) -> None:
    """Put an image's bytes in the place of its address."""
    path = page.parent / unquote(str(image["src"]))
    if path.is_file():
        kind = mimetypes.guess_type(path.name)[0] or "image/png"
        image["src"] = f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"
    for name in ("style", "width", "height"):
        if name in image.attrs:
            del image[name]
