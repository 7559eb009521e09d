"""What a reader meets: every page of the built book, in a real browser, without a network."""

import json
import re
from pathlib import Path
from urllib.parse import urlparse

import pytest

from tests import edition
from tests.book.conftest import HTML, pages

CHAPTERS = [p for p in pages() if re.match(r"book/executed/\d\d_", p)]
CONTENT = [p for p in pages() if p.startswith("book/") or p in ("index.html", "search.html")]

TEACHING = [
    "book/lecturers.html",
    "book/glossary.html",
    "book/notation.html",
    "book/reference/generated/teaching.html",
]

CHECKED = [n for n in edition.CHAPTERS if n != edition.LEDGER]


def test_the_book_has_its_chapters_and_reference_pages():
    names = {Path(p).stem for p in pages()}
    assert {"index", "api", "equations", "statistics", "bibliography", "search"} <= names
    assert {Path(p).stem for p in TEACHING} <= names
    assert len(CHAPTERS) == len(edition.CHAPTERS)


@pytest.mark.parametrize("page", CONTENT)
def test_a_page_opens_without_errors_failed_or_external_requests_under_three_megabytes(browser, page):
    browser.driver.execute_cdp_cmd("Network.setCacheDisabled", {"cacheDisabled": True})
    browser.open(page)
    errors = [e["message"] for e in browser.logs() if e["level"] in ("SEVERE", "ERROR")]
    assert errors == []
    weight, hosts, failed = 0, set(), []
    for message in browser.requests():
        params = message["params"]
        if message["method"] == "Network.requestWillBeSent":
            url = urlparse(params["request"]["url"])
            if url.scheme in ("http", "https"):
                hosts.add(url.netloc)
        elif message["method"] == "Network.responseReceived" and params["response"]["status"] >= 400:
            failed.append(params["response"]["url"])
        elif message["method"] == "Network.loadingFailed" and not params.get("canceled"):
            failed.append(params.get("errorText"))
        elif message["method"] == "Network.loadingFinished":
            weight += params["encodedDataLength"]
    assert hosts <= {urlparse(browser.site).netloc}
    assert failed == []
    assert weight < 3_000_000


@pytest.mark.parametrize("page", [p for p in CHAPTERS if "40_" not in p])
def test_maths_is_rendered_and_none_is_left_as_source(browser, page):
    browser.open(page)
    assert browser.script("return document.querySelectorAll('article mjx-container').length") > 0
    sources = browser.script(
        "return [...document.querySelectorAll('article .math')]"
        ".filter(e => !e.querySelector('mjx-container')).length"
    )
    assert sources == 0
    text = browser.script(  # a response that a scorer reads may be source, in a table or as code
        "const a = document.querySelector('article').cloneNode(true);"
        "a.querySelectorAll('pre, code, script, table.data').forEach(e => e.remove());"
        "return a.textContent"
    )
    assert not re.search(r"\\(frac|mathcal|epsilon|sigma|begin)\b", text)
    assert browser.script("return document.querySelectorAll('mjx-merror').length") == 0


@pytest.mark.parametrize("page", CHAPTERS)
def test_every_figure_loads_and_has_alt_text_and_a_caption(browser, page):
    browser.open(page)
    images = browser.script(
        "return [...document.querySelectorAll('article img')].map(i => ({alt: i.alt, width: i.naturalWidth,"
        " caption: !!i.closest('figure, .cell_output')?.querySelector('figcaption')}))"
    )
    assert len(images) >= 1
    for image in images:
        assert len(image["alt"]) > 40
        assert image["width"] > 0
        assert image["caption"]


@pytest.mark.parametrize("width", [1300, 375])
@pytest.mark.parametrize(
    "page", [*CHAPTERS, *TEACHING, "book/index.html", "book/reference/generated/equations.html"]
)
def test_the_page_fits_its_window_and_wide_tables_scroll_inside(browser, page, width):
    browser.open(page, width=width)
    assert browser.script("return document.documentElement.scrollWidth <= window.innerWidth + 1")
    outside = browser.script(
        """const limit = document.querySelector('article').getBoundingClientRect().right + 2;
        return [...document.querySelectorAll('article table')].filter(t => {
          if (!t.checkVisibility() || t.getBoundingClientRect().right <= limit) return false;
          for (let e = t.parentElement; e && e.tagName !== 'ARTICLE'; e = e.parentElement)
            if (['auto', 'scroll'].includes(getComputedStyle(e).overflowX)) return false;
          return true;
        }).length"""
    )
    assert outside == 0


CONTRAST = """
const channel = v => (v /= 255) <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
const lum = c => { const f = c.map(channel);
  return .2126 * f[0] + .7152 * f[1] + .0722 * f[2] };
const rgb = s => (s.match(/[\\d.]+/g) || []).map(Number);
const back = e => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor);
  if (c.length && (c.length < 4 || c[3] > .99)) return c } return [255, 255, 255] };
return [...document.querySelectorAll(arguments[0])].filter(e => e.checkVisibility()).slice(0, 200).map(e => {
  const a = lum(rgb(getComputedStyle(e).color)), b = lum(back(e));
  return (Math.max(a, b) + .05) / (Math.min(a, b) + .05) });
"""


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("page", [*CHAPTERS, *TEACHING, "book/index.html"])
def test_text_tables_and_verdicts_have_contrast_in_both_themes(browser, page, theme):
    browser.open(page, theme=theme)
    for selector in ("article p", "table.data td", "table.privacy-card td", ".verdict", "table.data small"):
        ratios = browser.script(CONTRAST, selector)
        assert ratios or selector != "article p"
        assert all(ratio >= 4.5 for ratio in ratios), (selector, min(ratios))


def test_search_finds_a_term(browser):
    browser.open("search.html?q=calibration")
    browser.wait("return document.querySelectorAll('#search-results li').length > 0")
    links = "[...document.querySelectorAll('#search-results li a')]"
    titles = browser.script(f"return {links}.map(a => a.innerText)")
    assert any("Accounting" in title for title in titles)


def test_the_index_reads_without_scripts(browser):
    driver = browser.driver
    driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        driver.get(browser.site + "book/index.html")
        text = driver.find_element("tag name", "article").text
        links = [a.get_attribute("href") for a in driver.find_elements("css selector", "nav a")]
    finally:
        driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
    assert "preference bit" in text
    assert any("02_accounting" in (link or "") for link in links)


def test_solutions_are_folded_and_open_on_click(browser):
    browser.open("book/executed/01_privacy_units.html")
    height = "document.querySelector('.solution.dropdown').getBoundingClientRect().height"
    assert browser.script(f"return {height}") < 80
    browser.script("document.querySelector('.solution.dropdown .toggle-button').click()")
    browser.wait(f"return {height} > 100")


def test_internal_links_lead_somewhere():
    broken = []
    for page in CONTENT:
        text = (HTML / page).read_text(encoding="utf-8")
        for target in re.findall(r'<a[^>]+href="([^"#:]+\.html)', text):
            if not (HTML / page).parent.joinpath(target).resolve().is_file():
                broken.append((page, target))
    assert broken == []


def test_no_page_names_a_path_of_the_machine_that_built_it(root):
    home = str(root)
    for page in pages():
        text = (HTML / page).read_text(encoding="utf-8")
        assert home not in text, page
        assert f"{Path.home()}/" not in text, page
        assert "Traceback (most recent" not in text, page


LEDGER = "book/executed/40_claims_ledger.html"
ROWS = "[...document.querySelectorAll('.ledger tbody tr')]"


def shown(browser) -> int:
    return browser.script(f"return {ROWS}.filter(r => !r.hidden).length")


def choose(browser, name: str, value: str) -> None:
    browser.script(
        "const e = document.querySelector(`.ledger [data-filter=${arguments[0]}]`); e.value = arguments[1];"
        " e.dispatchEvent(new Event('input', {bubbles: true}))",
        name,
        value,
    )


def test_the_ledger_filters_by_paper_kind_status_and_words(browser, root):
    browser.open(LEDGER)
    everything = shown(browser)
    assert everything > 700
    choose(browser, "paper", "sage")
    sage = shown(browser)
    choose(browser, "kind", "derived")
    derived = shown(browser)
    choose(browser, "status", "not-run" if edition.tier() == "smoke" else "confirmed")
    confirmed = shown(browser)
    choose(browser, "words", "average")
    assert everything > sage > derived >= confirmed > shown(browser) > 0
    assert "of" in browser.script("return document.querySelector('[data-count]').textContent")


def test_each_ledger_row_with_a_chapter_links_to_it(browser):
    browser.open(LEDGER)
    missing = browser.script(
        f"return {ROWS}.map(r => r.cells[4]).filter(c => !c.querySelector('a') && "
        f"{CHECKED}.includes(c.firstChild?.textContent?.trim())).length"
    )
    assert missing == 0
    links = ".ledger td a[href*='02_accounting']"
    assert browser.script("return document.querySelectorAll(arguments[0]).length", links) > 10


EXPLORER = "book/executed/02_accounting.html"


def test_the_explorer_agrees_with_the_accountant(browser):
    cases = json.loads((Path(__file__).parent / "explorer_cases.json").read_text())
    browser.open(EXPLORER)
    browser.wait("return !!window.privacyExplorer")
    for case in cases:
        found = browser.script(
            "return window.privacyExplorer.epsilon(...arguments)",
            *(case[k] for k in ("sampling_rate", "noise_multiplier", "rounds", "delta")),
        )
        assert found == pytest.approx(case["epsilon"], rel=5e-3, abs=1e-3), case
        assert found >= case["epsilon"] * (1 - 2e-4) - 1e-4, case


def test_the_explorer_is_built_once_and_shows_the_published_budget(browser):
    browser.open(EXPLORER)
    browser.wait("return document.querySelectorAll('.privacy-explorer output').length > 0")
    assert browser.script("return document.querySelectorAll('.privacy-explorer').length") == 1
    assert browser.script("return document.querySelectorAll('.privacy-explorer svg').length") == 1
    browser.wait("return /8\\.000/.test(document.querySelector('.privacy-explorer').innerText)")


def test_the_explorer_works_by_keyboard_and_names_bad_input(browser):
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    browser.open(EXPLORER)
    browser.wait("return document.querySelectorAll('.privacy-explorer input').length >= 8")
    box = browser.driver.find_element(By.CSS_SELECTOR, ".privacy-explorer")
    before = box.text
    slider = box.find_element(By.CSS_SELECTOR, "input[type=range]")
    slider.send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    browser.wait("return document.querySelector('.privacy-explorer').innerText !== " + json.dumps(before))
    number = box.find_element(By.CSS_SELECTOR, "input:not([type=range])")
    number.clear()
    number.send_keys("2")
    browser.wait("return /must be a number from/.test(document.querySelector('.privacy-explorer').innerText)")


def test_every_input_of_the_explorer_and_the_ledger_has_a_label(browser):
    for page, scope in ((EXPLORER, ".privacy-explorer"), (LEDGER, ".ledger")):
        browser.open(page)
        browser.wait(f"return document.querySelectorAll('{scope} input').length > 0")
        bare = browser.script(
            "return [...document.querySelectorAll(arguments[0] + ' input, ' + arguments[0] + ' select')]"
            ".filter(e => !e.labels?.length && !e.getAttribute('aria-label')"
            " && !e.getAttribute('aria-labelledby')).length",
            scope,
        )
        assert bare == 0
