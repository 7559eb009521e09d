# Which study and which chapter must run again, and in which order. Each runs in a process of its own.
# On a cluster, one job a run, before `make book` with the same tier:
#     snakemake --executor slurm --jobs 100 --config tier=paper -- runs
import sys
from pathlib import Path

from reprolib.evidence import notebooks
from reprolib.runs import experiments, sources, spec

TIER = config.get("tier", "micro")
NUMBERS = notebooks.numbers()
LEDGER = "40"  # reads what the other chapters found
STEM = {n: notebooks.notebook(n).stem for n in NUMBERS}
EQUATIONS = "data/equations.yml"  # a page of its own; no chapter reads it
DATA = [
    str(p)
    for p in sorted(Path("data").rglob("*"))
    if (p.suffix in (".csv", ".yml") and str(p) != EQUATIONS) or p.name == "provenance.json"
]
PAGES = [EQUATIONS] + [str(p) for p in sorted(Path("book").glob("*.md"))] + ["book/references.bib", "book/teaching.yml"]
PAGES += [str(p) for p in sorted(Path("book/_static").glob("*"))]
EXECUTED = [f"book/executed/{STEM[n]}.ipynb" for n in NUMBERS]
RESULTS = [f"book/results/{n}.json" for n in NUMBERS]
PACKAGE = [str(p) for p in sorted(Path("reprolib").rglob("*.py"))]
# a marker, and not a file of a run: Snakemake deletes outputs before it makes them again
RUNS = f"{spec.runs_root()}/{TIER}"
WEIGHTS = [str(p) for p in sorted(Path("data/models").rglob("*.safetensors"))]
TRAINING = {p: [*map(str, sources.files(spec.family(p).builder)), *WEIGHTS] for p in spec.FAMILIES}
STUDIES = sorted({pair for n in NUMBERS for pair in experiments.needed(n, TIER)})


def chapter_inputs(number):
    files = [f"notebooks/{STEM[number]}.ipynb", *map(str, notebooks.sources(number)), *DATA]
    files += [f"{RUNS}/{paper}/{study}.done" for paper, study in experiments.needed(number, TIER)]
    others = [r for r in RESULTS if r != f"book/results/{LEDGER}.json"]
    return files + (others if number == LEDGER else [])


rule book:
    input:
        "book/_build/html/index.html",


for paper, study in STUDIES:

    rule:
        name: f"study_{paper}_{study}"
        input:
            TRAINING[paper],
            f"data/experiments/{paper}.yml",
        output:
            touch(f"{RUNS}/{paper}/{study}.done"),
        params:
            which=f"{paper} --tier {TIER} --study {study}",
        log:
            f"{RUNS}/{paper}/{study}.log",
        shell:
            f"{sys.executable} -m reprolib.cli run {{params.which}} > {{log}} 2>&1 "
            "|| (tail -n 40 {log} >&2; exit 1)"


def run_markers(wildcards):
    papers = sorted(p.stem for p in Path("data/experiments").glob("*.yml"))
    return [f"{RUNS}/{p}/.done/{name}" for p in papers for name in {s.name for s in experiments.grid(p, TIER)}]


rule runs:
    input:
        run_markers,


rule one_run:
    input:
        lambda wildcards: TRAINING[wildcards.paper],
        "data/experiments/{paper}.yml",
    output:
        touch(f"{RUNS}/{{paper}}/.done/{{name}}"),
    log:
        f"{RUNS}/{{paper}}/.done/{{name}}.log",
    params:
        tier=TIER,
    shell:
        f"{sys.executable} -m reprolib.cli run {{wildcards.paper}} --tier {{params.tier}} "
        "--name {wildcards.name} > {log} 2>&1 || (tail -n 40 {log} >&2; exit 1)"


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
