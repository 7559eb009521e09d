"""A graded assignment from a chapter: the handout, its public tests, and the tests that hold the answers.

Expected values come from running the chapter's own solutions. The grader is otter-grader (`make grading`);
only ``pack`` and ``grade`` need it.
"""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import nbformat
import papermill
from nbformat.v4 import new_code_cell, new_markdown_cell
from papermill.exceptions import PapermillExecutionError

from reprolib.errors import ReproError
from reprolib.evidence import exercises, grading, notebooks, student
from reprolib.evidence.exercises import Exercise
from reprolib.paths import root, write_atomically

START = """\
import os

os.environ["REPROLIB_RESULTS"] = "results"  # what the chapter finds stays beside this notebook
import otter

grader = otter.Notebook()"""
TEST = """\
from otter.test_files import test_case

from reprolib.evidence import grading

OK_FORMAT = False
name = "{name}"
points = {points}
"""
PUBLIC = '''

@test_case(points=0)
def test_{answer}_is_given({answer}):
    """The name is bound to {kind}."""
    assert grading.kind({answer}) == {kind!r}, "{answer} should be {kind}"
'''
HIDDEN = '''

@test_case(points=1, hidden=True)
def test_{answer}({answer}):
    """The answer is that of the chapter's solution."""
    assert grading.matches({answer}, {expected!r}), "{answer} is another value"
'''


def expected(number: str, tier: str = "micro") -> dict[str, dict[str, Any]]:
    """The answers of each exercise, found by running the chapter with its solutions.

    Returns:
        By exercise label, the value of each name that its *Answer.* paragraph lists.

    Raises:
        ReproError: a bad tier, an exercise without an answer, a cell that failed, or an answer that no
            grader can compare.
    """
    notebooks.check_tier(tier)
    wanted = {e.label: _complete(e).answers for e in exercises.read(number)}
    book = notebooks.read(notebooks.notebook(number))
    with tempfile.TemporaryDirectory() as scratch:
        found = Path(scratch) / "answers.json"
        book.cells.append(new_code_cell(_collect(wanted, found)))
        before, after = Path(scratch) / "before.ipynb", Path(scratch) / "after.ipynb"
        write_atomically(before, nbformat.writes(book))
        outside = os.environ.get("REPROLIB_RESULTS")
        os.environ["REPROLIB_RESULTS"] = scratch
        try:
            papermill.execute_notebook(
                str(before), str(after), parameters={"tier": tier}, cwd=str(root()), progress_bar=False,
                kernel_name="python3", log_output=False,
            )  # fmt: skip
        except PapermillExecutionError as error:
            raise ReproError(f"chapter {number}: {error.ename}: {error.evalue}") from None
        finally:
            os.environ.pop("REPROLIB_RESULTS")
            if outside is not None:
                os.environ["REPROLIB_RESULTS"] = outside
        answers: dict[str, dict[str, Any]] = json.loads(found.read_text(encoding="utf-8"))
        return answers


def _complete(exercise: Exercise) -> Exercise:
    if faults := exercise.faults():
        raise ReproError(f"chapter {exercise.chapter}, {exercise.label}: {faults[0]}")
    return exercise


def _collect(wanted: dict[str, tuple[str, ...]], path: Path) -> str:
    pairs = ", ".join(
        f"{label!r}: {{{', '.join(f'{name!r}: plain({name})' for name in names)}}}"
        for label, names in wanted.items()
    )
    return (
        "import json, pathlib\nfrom reprolib.evidence.grading import plain\n"
        f"_ = pathlib.Path({str(path)!r}).write_text(json.dumps({{{pairs}}}))"
    )


def handout(number: str, tier: str = "micro") -> nbformat.NotebookNode:
    """The chapter without solutions, with a cell for each answer, its check, and a place for words."""
    found = {e.label: e for e in exercises.read(number)}
    source = notebooks.notebook(number)
    book = student.strip_cells(notebooks.read(source), f"notebooks/{source.name}")
    cells = [new_markdown_cell(_instructions(list(found.values()))), new_code_cell(START)]
    for cell in book.cells:
        cells += _with_answers(cell.source, found) if cell.cell_type == "markdown" else [cell]
        if tier != "micro" and "parameters" in cell.metadata.get("tags", []):
            cells.append(new_code_cell(f"tier = {tier!r}"))
    made = nbformat.from_dict({**book, "cells": cells})
    made.metadata["otter"] = {"assignment_name": f"chapter-{number}"}
    for index, cell in enumerate(made.cells):
        cell["id"] = f"cell-{index}"
    return made


def _instructions(found: list[Exercise]) -> str:
    minutes = sum(e.minutes or 0 for e in found)
    return (
        f"**Assignment: {len(found)} exercises, {minutes} minutes without the extensions.** Run the chapter "
        "from the top, replace each `...` by your answer and run the check below it. A check says whether an "
        "answer has the right kind; its value is graded after you hand in. Numbers are right within one per "
        "cent. Write the part *In words* below its heading."
    )


def _with_answers(text: str, found: dict[str, Exercise]) -> list[nbformat.NotebookNode]:
    """The cells of a markdown text, each exercise followed by the cells that its answer goes into."""
    cells, rest = [], 0
    for match in exercises.STATEMENT.finditer(text):
        if before := text[rest : match.start()].strip():
            cells.append(new_markdown_cell(before))
        exercise = found[match["label"]]
        blanks = "\n".join(f"{name} = ..." for name in exercise.answers)
        cells += [
            new_markdown_cell(f"### Exercise: {exercise.title}\n\n{exercise.text}"),
            new_code_cell(blanks, metadata={"tags": ["answer", exercise.label]}),
            new_code_cell(f'grader.check("{exercise.question}")'),
            new_markdown_cell("**In words:** ", metadata={"tags": ["words", exercise.label]}),
        ]
        rest = match.end()
    after = text[rest:].strip()
    return [*cells, new_markdown_cell(after)] if after else cells


def tests(exercise: Exercise, values: dict[str, Any], *, hidden: bool) -> str:
    """The test file of one exercise; only the hidden cases hold its answers."""
    lines = TEST.format(name=exercise.question, points=len(exercise.answers) if hidden else 0)
    for answer in exercise.answers:
        lines += PUBLIC.format(answer=answer, kind=grading.kind(values[answer]))
        if hidden:
            lines += HIDDEN.format(answer=answer, expected=values[answer])
    return lines


def build(number: str, folder: Path, tier: str = "micro") -> Path:
    """Write ``handout/`` (for students) and ``grader/`` (for you), with its archive if otter is there.

    Returns:
        The handed-out notebook.

    Raises:
        ReproError: as ``expected``.
    """
    answers = expected(number, tier)
    for name in ("handout", "grader"):
        shutil.rmtree(folder / name, ignore_errors=True)
    for exercise in exercises.read(number):
        values = answers[exercise.label]
        for part, hidden in (("handout", False), ("grader", True)):
            path = folder / part / "tests" / f"{exercise.question}.py"
            write_atomically(path, tests(exercise, values, hidden=hidden))
    config = {"assignment_name": f"chapter-{number}", "show_hidden": False, "print_summary": False}
    write_atomically(folder / "grader" / "otter_config.json", json.dumps(config, indent=1) + "\n")
    path = folder / "handout" / notebooks.notebook(number).name
    write_atomically(path, nbformat.writes(handout(number, tier)) + "\n")
    if importlib.util.find_spec("otter"):
        pack(folder)
    return path


def pack(folder: Path) -> Path:
    """Make ``grader/autograder.zip``, which `otter run`, `otter grade` and Gradescope read.

    Raises:
        ReproError: otter-grader is missing or refuses.
    """
    require_otter()
    made = folder / "grader" / "autograder.zip"
    command = [sys.executable, "-m", "otter", "generate", "-t", "tests", "-o", made.name,
               "-c", "otter_config.json", "--no-requirements", "--no-environment"]  # fmt: skip
    done = subprocess.run(command, cwd=folder / "grader", capture_output=True, text=True, check=False)
    if done.returncode or not made.is_file():
        raise ReproError(f"otter generate failed: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
    return made


def require_otter() -> None:
    """Raise a ``ReproError`` unless otter-grader is installed."""
    if importlib.util.find_spec("otter") is None:
        raise ReproError("otter-grader is not installed: run `make grading`")


def grade(folder: Path, submissions: Iterable[Path]) -> list[dict[str, Any]]:
    """Run each submission and give its points: one row a submission, one column an exercise.

    A submission is executed as it is, with your rights: grade strangers' code in a container (`otter grade`).

    Raises:
        ReproError: otter-grader or the autograder is missing, or a submission belongs to no such assignment.
    """
    require_otter()
    pack_ = folder / "grader" / "autograder.zip"
    if not pack_.is_file():
        raise ReproError(f"{pack_} is missing: make it with `reprolib assignment`")
    return [_graded(pack_, path) for path in submissions]


def columns(folder: Path) -> list[str]:
    """The columns of ``grade``, in the order of the exercises."""
    tests = sorted((folder / "grader" / "tests").glob("*.py"))
    return ["submission", *(path.stem for path in tests), "points", "of"]


def _graded(autograder: Path, path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ReproError(f"no submission {path}")
    # a kernel that did not come up says nothing about the submission: it gets a second try, and never a zero
    cases = _cases(autograder, path) or _cases(autograder, path)
    if not cases:
        raise ReproError(f"{path.name} was not graded: the grader ran and reported no exercise")
    row: dict[str, Any] = {"submission": path.stem, "points": 0.0, "of": 0.0}
    for case in cases:
        row[case["name"]] = float(case["score"])
        row["points"] += case["score"]
        row["of"] += case["max_score"]
    return row


def _cases(autograder: Path, path: Path) -> list[dict[str, Any]]:
    """What otter reports of each exercise; empty if it gave up on the notebook as a whole."""
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-m", "otter", "run", "-a", str(autograder), "-o", scratch,
                   "--no-logo", str(path)]  # fmt: skip
        environment = {**os.environ, "REPROLIB_HOME": str(root())}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        results = Path(scratch) / "results.json"
        if done.returncode or not results.is_file():
            lines = done.stderr.strip().splitlines() or done.stdout.strip().splitlines() or ["no message"]
            raise ReproError(f"{path.name} was not graded: {lines[-1]}")
        cases = json.loads(results.read_text(encoding="utf-8"))["tests"]
    return [case for case in cases if case["name"].startswith("ex_")]
