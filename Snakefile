# Which chapter must run again, and in which order. Each runs in a process of its own.
import sys
from pathlib import Path

from reprolib.evidence import notebooks

TIER = config.get("tier", "micro")
NUMBERS = notebooks.numbers()
LEDGER = "40"  # reads what the other chapters found
STEM = {n: notebooks.notebook(n).stem for n in NUMBERS}
DATA = [str(p) for p in sorted(Path("data").rglob("*")) if p.suffix in (".csv", ".yml")]
PAGES = [str(p) for p in sorted(Path("book").glob("*.md"))] + ["book/references.bib"]
PAGES += [str(p) for p in sorted(Path("book/_static").glob("*"))]
EXECUTED = [f"book/executed/{STEM[n]}.ipynb" for n in NUMBERS]
RESULTS = [f"book/results/{n}.json" for n in NUMBERS]
PACKAGE = [str(p) for p in sorted(Path("reprolib").rglob("*.py"))]


def chapter_inputs(number):
    files = [f"notebooks/{STEM[number]}.ipynb", *map(str, notebooks.sources(number)), *DATA]
    others = [r for r in RESULTS if r != f"book/results/{LEDGER}.json"]
    return files + (others if number == LEDGER else [])


rule book:
    input:
        "book/_build/html/index.html",


for number in NUMBERS:

    rule:
        name: f"chapter_{number}"
        input:
            chapter_inputs(number),
        output:
            notebook=f"book/executed/{STEM[number]}.ipynb",
            results=f"book/results/{number}.json",
        params:
            number=number,
            tier=TIER,
        log:
            f"book/results/{number}.log",
        shell:
            f"{sys.executable} -m reprolib.cli chapter {{params.number}} --tier {{params.tier}} "
            "--output {output.notebook} > {log} 2>&1 || (cat {log} >&2; exit 1)"


rule html:
    input:
        EXECUTED,
        RESULTS,
        PAGES,
        PACKAGE,
        "_config.yml",
        "_toc.yml",
    output:
        "book/_build/html/index.html",
    log:
        "book/results/html.log",
    shell:
        f"{sys.executable} -m reprolib.cli html > {{log}} 2>&1 || (tail -n 40 {{log}} >&2; exit 1)"
