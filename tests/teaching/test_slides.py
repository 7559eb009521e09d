"""Slides from a built page: what is shown, what is left out, and that nothing is fetched."""

import re

import pytest
from bs4 import BeautifulSoup

from reprolib.errors import ReproError
from reprolib.evidence import slides

ROWS = "".join(f"<tr><td>row {i}</td></tr>" for i in range(20))
PAGE = f"""<html><body><article class="bd-article"><section id="top">
<h1>02 · Accounting<a class="headerlink" href="#top">#</a></h1>
<p>What it is about, see <a href="01.html">chapter 1</a>.</p>
<div class="admonition objectives"><p>After this chapter</p></div>
<div class="cell"><div class="cell_input">code</div><div class="cell_output"><div class="output text_html">
<table class="data parameters"><tr><td>tier</td></tr></table></div></div></div>
<section id="one"><h2>One<a class="headerlink" href="#one">#</a></h2><p>Prose that stays in the book.</p>
<div class="proof definition admonition"><p>Definition 1</p><section id="c"><p>inner</p></section></div>
<div class="cell"><div class="cell_input">secret_code()</div><div class="cell_output">
<div class="output text_html"><table class="data"><caption>Numbers</caption>
<thead><tr><th>n</th></tr></thead><tbody>{ROWS}</tbody></table></div>
</div></div>
<div class="cell"><div class="cell_output"><p>Seven of seven agree.</p></div></div>
<p>The formula is</p><div class="math">\\[x\\]</div>
<div class="cell"><div class="cell_output">
<figure><img alt="a picture" src="pic.svg"><figcaption>Fig. 1</figcaption></figure></div></div>
</section>
<section id="ex"><h2>Exercises</h2><div class="exercise">do it</div>
<div class="solution">the answer</div></section>
</section></article></body></html>"""


@pytest.fixture
def deck(tmp_path):
    (tmp_path / "pic.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    page = tmp_path / "02_accounting.html"
    page.write_text(PAGE)
    return BeautifulSoup(slides.deck("02", page), "html.parser")


def test_statements_tables_formulas_and_figures_each_get_a_slide(deck):
    shown = [s.select_one(".body").get_text(" ", strip=True) for s in deck.select("section.slide")]
    assert shown[0] == "What it is about, see chapter 1. After this chapter"
    assert shown[1] == "Definition 1 inner"
    assert [text.count("row") for text in shown[2:5]] == [10, 10, 3]  # with the line that counts them
    assert shown[4].endswith("Seven of seven agree.")
    assert shown[5] == "The formula is \\[x\\]"
    assert shown[6] == "Fig. 1"
    assert len(shown) == 8


def test_code_prose_parameters_and_solutions_stay_in_the_book(deck):
    text = deck.get_text()
    for absent in ("secret_code", "Prose that stays", "tier", "the answer", "do it"):
        assert absent not in text
    assert "The worst conversion (20 minutes)" in text


def test_a_deck_asks_nobody_for_anything(deck):
    assert deck.select("a") == []
    assert re.match("data:image/svg", deck.select_one("img")["src"])
    addresses = [t.get("src") or t.get("href") for t in deck.select("script[src], link[href]")]
    assert addresses
    assert all(a.startswith("_static/") for a in addresses)


def test_every_slide_has_its_heading(deck):
    assert [s.h2.get_text() for s in deck.select("section.slide")] == [
        "02 · Accounting", *["One"] * 6, "Exercises",
    ]  # fmt: skip


def test_a_privacy_card_is_never_cut(deck):
    card = BeautifulSoup(f'<table class="privacy-card"><tbody>{ROWS}</tbody></table>', "html.parser")
    assert len(list(slides._tables(card.table))) == 1


def test_a_page_that_is_not_built_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(slides, "root", lambda: tmp_path)
    with pytest.raises(ReproError, match="make book"):
        slides.build("02")
