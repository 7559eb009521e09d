"""The HTML book: generated pages, then Jupyter Book with warnings as errors."""

import importlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from reprolib.errors import ReproError
from reprolib.evidence import teaching
from reprolib.evidence.notebooks import notebook
from reprolib.evidence.published import PAPERS
from reprolib.paths import root, write_atomically

GENERATED = "book/reference/generated"
# Scripts that the theme puts on every page and no page needs: a live kernel from another host (declared
# twice, an error in the console), and a megabyte of icon paths that the icon fonts draw as well.
UNNEEDED = re.compile(
    r"<script[^>]*>[^<]*THEBE_JS_URL[^<]*</script>"
    r"|<script[^>]*sphinx-thebe\.js[^>]*></script>"
    r"|<script[^>]*fontawesome/[^>]*/js/all\.min\.js[^>]*></script>"
)

# Jupyter Book's own front page is a bare redirect: without title, and without the icon that a browser then
# asks for at the root of the site.
FRONT = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="refresh" content="0; url=book/index.html">
<link rel="icon" href="_static/favicon.svg" type="image/svg+xml">
<title>Private post-training, re-run</title>
</head>
<body><a href="book/index.html">Private post-training, re-run</a></body>
</html>
"""


def build() -> Path:
    """Build the book from ``book/executed`` and return its index page.

    Raises:
        ReproError: Jupyter Book reported a warning or an error.
    """
    write_atomically(root() / GENERATED / "equations.md", equations_page())
    write_atomically(root() / GENERATED / "statistics.md", statistics_page())
    write_atomically(root() / GENERATED / "teaching.md", teaching.page())
    return render(root(), root() / "book")


def render(source: Path, output: Path) -> Path:
    """Run Jupyter Book on ``source`` and return the front page, which lies under ``output/_build/html``.

    Raises:
        ReproError: Jupyter Book reported a warning or an error.
    """
    command = [
        str(Path(sys.executable).with_name("jupyter-book")), "build", str(source),
        "--path-output", str(output), "-n", "-W", "--keep-going", "-q",
    ]  # fmt: skip
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
    print(done.stdout, done.stderr, sep="\n")
    if done.returncode:
        # an incremental build repeats no warning: start anew, so that the next one reports it again
        shutil.rmtree(output / "_build", ignore_errors=True)
        warnings = [line for line in done.stderr.splitlines() if re.search("WARNING|ERROR", line)]
        raise ReproError(f"the book did not build: {(warnings or ['see above'])[0]}")
    pages = output / "_build" / "html"
    for page in pages.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        if UNNEEDED.search(text):
            write_atomically(page, UNNEEDED.sub("", text))
    write_atomically(pages / "index.html", FRONT)
    return pages / "index.html"


def equations_page() -> str:
    """Each equation with the function that implements it and the test that pins it.

    Raises:
        ReproError: an entry of ``data/equations.yml`` names a function or a test that does not exist.
    """
    entries = yaml.safe_load((root() / "data" / "equations.yml").read_text(encoding="utf-8"))
    lines = [
        "# From equation to test\n",
        "Where each definition, equation or algorithm of the papers is implemented, shown and tested.\n",
    ]
    for entry in entries:
        _require_function(entry["function"])
        _require_test(entry["test"])
        module, _, name = entry["test"].partition("::")
        stem = notebook(entry["chapter"]).stem
        lines += [
            f"{PAPERS[entry['paper']]}, {entry['statement']}",
            f": `{entry['function']}`, in chapter [{entry['chapter']}](../../executed/{stem}),",
            f"  pinned by `{name}` in `tests/{module}`\n",
        ]
    return "\n".join(lines) + "\n"


def _require_function(dotted: str) -> None:
    parts = dotted.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for name in parts[cut:]:
            found = getattr(found, name, None)
        if found is not None:
            return
    raise ReproError(f"data/equations.yml names {dotted}, which does not exist")


def _require_test(reference: str) -> None:
    path, _, name = reference.partition("::")
    file = root() / "tests" / path
    if not file.is_file() or f"def {name}(" not in file.read_text(encoding="utf-8"):
        raise ReproError(f"data/equations.yml names the test {reference}, which does not exist")


def statistics_page() -> str:
    """Time, memory, parameters and versions of each executed chapter."""
    lines = [
        "# Run statistics\n",
        "How the chapters of this build were executed.\n",
        "| chapter | tier | time (s) | peak memory (MiB) | claims checked | parameters | sources |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    versions: dict[str, str] = {}
    for path in sorted((root() / "book" / "results").glob("[0-9][0-9].json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        made = content["provenance"]
        versions |= {"python": made["python"], **made["packages"], "machine": made["machine"]}
        stem = notebook(content["chapter"]).stem
        parameters = ", ".join(f"`{k}={v}`" for k, v in content["parameters"].items())
        lines.append(
            f"| [{stem}](../../executed/{stem}) | {content['tier']} | {made['seconds']} | "
            f"{made['peak_memory_mib']} | {len(content['claims'])} | {parameters} | `{made['sources']}` |"
        )
    lines += ["\n## Versions\n", "| what | version |", "| --- | --- |"]
    lines += [f"| {name} | {version} |" for name, version in versions.items()]
    return "\n".join(lines) + "\n"
