"""The student edition: the chapters and the HTML book without their solutions (``make student``)."""

import shutil
import tempfile
from pathlib import Path

import jupytext
import nbformat

from reprolib.errors import ReproError
from reprolib.evidence import notebooks, site
from reprolib.evidence.exercises import Solutions, require_ends
from reprolib.paths import root, write_atomically


def strip_text(text: str, name: str) -> str:
    """A chapter's MyST source without its solutions.

    Args:
        text: the source.
        name: the file's name, for the message.

    Raises:
        ReproError: a solution has no end; the message names the file and the line.
    """
    require_ends(text, name)
    reader = Solutions()
    kept = [line for line in text.splitlines() if not reader.is_solution(line)]
    return _squeeze(kept) + "\n"


def strip_cells(book: nbformat.NotebookNode, name: str) -> nbformat.NotebookNode:
    """A notebook without its solutions: their text, their code and the outputs of that code.

    Raises:
        ReproError: a solution has no end.
    """
    reader, cells = Solutions(), []
    for cell in book.cells:
        if cell.cell_type != "markdown":
            if not reader.inside:
                cells.append(cell)
            continue
        kept = [line for line in cell.source.splitlines() if not reader.is_solution(line)]
        if any(line.strip() for line in kept) or not cell.source.strip():
            cells.append(nbformat.from_dict({**cell, "source": _squeeze(kept)}))
    if reader.inside:
        raise ReproError(f"{name}: the solution {reader.inside!r} has no solution-end; add one")
    return nbformat.from_dict({**book, "cells": cells})


def _squeeze(lines: list[str]) -> str:
    """The lines without the runs of blank ones that a removed solution leaves."""
    kept: list[str] = []
    code = ""
    for line in lines:
        mark = line.lstrip()[:3]
        if mark in ("```", "~~~"):
            code = "" if code == mark else code or mark
        if line.strip() or code or (kept and kept[-1].strip()):
            kept.append(line)
    return "\n".join(kept).rstrip("\n")


def chapters(folder: Path) -> list[Path]:
    """Write every chapter without solutions, as ``.md`` and as ``.ipynb``, and return the files."""
    written = []
    for number in notebooks.numbers():
        source = notebooks.notebook(number).with_suffix(".md")
        text = strip_text(source.read_text(encoding="utf-8"), f"notebooks/{source.name}")
        book = jupytext.reads(text, fmt="md:myst")
        book.metadata.pop("jupytext", None)
        for suffix, content in ((".md", text), (".ipynb", nbformat.writes(book) + "\n")):
            path = folder / source.with_suffix(suffix).name
            write_atomically(path, content)
            written.append(path)
    return written


def build(folder: Path) -> Path:
    """Write the student edition into ``folder``: ``notebooks/`` and the book in ``html/``.

    The book is built from the executed chapters, so `make book` comes first; warnings are errors.

    Returns:
        The front page of the book.

    Raises:
        ReproError: a chapter was not executed, a solution has no end, or Jupyter Book complained.
    """
    executed = root() / "book" / "executed"
    for number in notebooks.numbers():
        name = notebooks.notebook(number).name
        if not (executed / name).is_file():
            raise ReproError(f"book/executed/{name} is missing: run `make book` first")
    chapters(folder / "notebooks")
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch) / "source"
        hidden = shutil.ignore_patterns(
            "_build", "results", "student", "assignments", "variants", ".*", "*.partial.ipynb"
        )
        shutil.copytree(root() / "book", source / "book", ignore=hidden)
        for name in ("_config.yml", "_toc.yml"):
            shutil.copy(root() / name, source)
        for path in (source / "book" / "executed").glob("*.ipynb"):
            book = strip_cells(notebooks.read(path), f"book/executed/{path.name}")
            write_atomically(path, nbformat.writes(book))
        site.render(source, Path(scratch) / "out")
        html = folder / "html"
        shutil.rmtree(html, ignore_errors=True)
        shutil.copytree(Path(scratch) / "out" / "_build" / "html", html)
    return html / "index.html"
