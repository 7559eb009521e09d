"""The slides in a real browser: nothing is cut, no formula is left as source, no other host is asked."""

import functools
import http.server
import threading

import pytest

from reprolib.evidence import notebooks, slides
from tests.book.conftest import HTML, Browser, Quiet


@pytest.fixture(scope="module")
def decks():
    if not (HTML / "index.html").is_file():
        pytest.skip("the book is not built: run `make book`")
    for number in slides.DECKS:
        slides.build(number)
    folder = HTML.parent / "slides"
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder))
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/"
    server.shutdown()


@pytest.mark.parametrize("number", slides.DECKS)
def test_every_slide_fits_its_window_and_asks_no_other_host(browser, decks, number):
    deck = Browser(browser.driver, decks)
    deck.open(f"{notebooks.notebook(number).stem}.html")
    deck.wait("return [...document.querySelectorAll('.math')].every(e => e.querySelector('mjx-container'))")
    count = deck.script("return document.querySelectorAll('section.slide').length")
    assert count > 15
    for index in range(1, count + 1):
        deck.script("location.hash = '#' + arguments[0]", str(index))
        deck.wait(f"return document.getElementById('place').textContent === '{index} / {count}'")
        zoom, down, right, text = deck.script(
            "const b = document.querySelector('.slide.now .body');"
            "return [+b.style.zoom, b.scrollHeight - b.clientHeight, b.scrollWidth - b.clientWidth,"
            " b.textContent.trim()]"
        )
        assert zoom >= 0.6, index
        assert down <= 1, index
        assert right <= 1, index
        assert text, index
    asked = {
        m["params"]["request"]["url"] for m in deck.requests() if m["method"] == "Network.requestWillBeSent"
    }
    assert {url for url in asked if not url.startswith((decks, "data:"))} == set()
    assert [e["message"] for e in deck.logs() if e["level"] in ("SEVERE", "ERROR")] == []


def test_the_arrow_keys_turn_the_slides(browser, decks):
    deck = Browser(browser.driver, decks)
    deck.open(f"{notebooks.notebook('02').stem}.html")
    for key, place in (("ArrowRight", "2"), ("ArrowRight", "3"), ("ArrowLeft", "2"), ("Home", "1")):
        deck.script("dispatchEvent(new KeyboardEvent('keydown', {key: arguments[0]}))", key)
        deck.wait(f"return document.getElementById('place').textContent.startsWith('{place} /')")
