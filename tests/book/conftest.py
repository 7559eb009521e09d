"""A real browser over the built book, served from this machine."""

import functools
import http.server
import json
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

HTML = Path(__file__).resolve().parents[2] / "book" / "_build" / "html"
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chromium-browser")
DRIVER = shutil.which("chromedriver")
FLAGS = [
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-extensions",
    "--disable-default-apps",
]  # fmt: skip


def pages() -> list[str]:
    """Every page of the built book."""
    return sorted(str(p.relative_to(HTML)) for p in HTML.rglob("*.html") if "_static" not in p.parts)


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


@pytest.fixture(scope="session")
def site() -> Iterator[str]:
    if not (HTML / "index.html").is_file():
        pytest.skip("the book is not built: run `make book`")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(HTML)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/"
    server.shutdown()


class Browser:
    """A page at a time: what it logged, what it asked for, and how it looks."""

    def __init__(self, driver, site: str):
        self.driver = driver
        self.site = site
        self.script = driver.execute_script

    def open(self, page: str, *, width: int = 1300, theme: str = "light") -> None:
        self.driver.set_window_size(width, 1000)
        self.driver.get("about:blank")
        self.logs(), self.requests()
        self.driver.get(self.site + page)
        self.wait("return document.readyState === 'complete'")
        self.wait("return !window.MathJax?.startup || !!window.MathJax.startup.document?.state?.()")
        self.script("document.documentElement.dataset.theme = arguments[0]", theme)

    def wait(self, script: str, seconds: float = 20.0) -> None:
        end = time.monotonic() + seconds
        while not self.script(script):
            assert time.monotonic() < end, f"still false after {seconds} s: {script}"
            time.sleep(0.05)

    def logs(self) -> list[dict]:
        return self.driver.get_log("browser")

    def requests(self) -> list[dict]:
        """Responses and failures since the last call."""
        found = []
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] in (
                "Network.responseReceived", "Network.loadingFailed", "Network.requestWillBeSent",
                "Network.loadingFinished",
            ):  # fmt: skip
                found.append(message)
        return found


@pytest.fixture(scope="session")
def browser(site) -> Iterator[Browser]:
    import os

    if not (CHROMIUM and DRIVER):
        assert not os.environ.get("CI"), "CI must have Chromium and its driver"
        pytest.skip("no Chromium with chromedriver on this machine")
    from selenium import webdriver
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service

    options = Options()
    options.binary_location = CHROMIUM
    profile = tempfile.mkdtemp()
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    driver.set_page_load_timeout(60)
    yield Browser(driver, site)
    driver.quit()
    shutil.rmtree(profile, ignore_errors=True)
