"""The HTML book: generated pages, then Jupyter Book with warnings as errors."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

from reprolib.errors import ReproError
from reprolib.paths import root

# Files of the theme and of MathJax that no page of this book loads; together they are most of its weight.
UNUSED = (
    "_static/sphinx-mathjax-offline/mathjax/sre",
)


def build() -> Path:
    """Build the book from ``book/executed`` and return its index page.

    Raises:
        ReproError: Jupyter Book reported a warning or an error.
    """
    command = [
        sys.executable, "-m", "jupyter_book", "build", str(root()), "--path-output", str(root() / "book"),
        "-n", "-W", "--keep-going", "-q",
    ]  # fmt: skip
    done = subprocess.run(command, cwd=root(), capture_output=True, text=True, check=False)
    print(done.stdout, done.stderr, sep="\n")
    if done.returncode:
        warnings = [line for line in done.stderr.splitlines() if re.search("WARNING|ERROR", line)]
        raise ReproError(f"the book did not build: {(warnings or ['see above'])[0]}")
    pages = root() / "book" / "_build" / "html"
    for name in UNUSED:
        shutil.rmtree(pages / name, ignore_errors=True)
    return pages / "index.html"
