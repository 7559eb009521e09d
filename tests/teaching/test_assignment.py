"""An assignment made from a small chapter, and graded where the grader is installed."""

import importlib.util
import json
import re

import jupytext
import nbformat
import numpy as np
import pytest
import torch

from reprolib.errors import ReproError
from reprolib.evidence import assignment, exercises, grading, notebooks
from tests.teaching.test_exercises import GOOD, HEAD

NEEDS_OTTER = pytest.mark.skipif(
    importlib.util.find_spec("otter") is None, reason="otter-grader is not installed: make grading"
)
CHAPTER = HEAD + (
    "# 99 · A chapter\n\n```{code-cell} ipython3\n:tags: [parameters]\n\n"
    'tier: str = "micro"  # the tier\n```\n\n'
    "```{code-cell} ipython3\nimport math\n```\n\n" + GOOD.replace("x, y = 1, 2", "x, y = math.pi, [1, 2]")
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A chapter of one exercise, and the assignment made from it."""
    folder = tmp_path_factory.mktemp("teaching")
    path = folder / "99_test.md"
    path.write_text(CHAPTER)
    book = jupytext.reads(CHAPTER, fmt="md:myst")
    book.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(book, path.with_suffix(".ipynb"))
    with pytest.MonkeyPatch.context() as patch:
        for module in (exercises, notebooks):
            patch.setattr(module, "notebook", lambda number: path.with_suffix(".ipynb"))
        assignment.build("99", folder / "out", "smoke")
    return folder


@pytest.fixture
def made(folder):
    return folder / "out"


def submission(made, name, answers):
    """A handed-in notebook whose answer cell holds this code."""
    book = nbformat.read(made / "handout" / "99_test.ipynb", as_version=4)
    (cell,) = [c for c in book.cells if "answer" in c.metadata.get("tags", [])]
    cell.source = answers
    nbformat.write(book, made / f"{name}.ipynb")
    return made / f"{name}.ipynb"


def test_expected_values_are_what_the_solution_computes(made):
    hidden = (made / "grader" / "tests" / "ex_a.py").read_text()
    assert re.findall(r"matches\((\w), (.*?)\), ", hidden) == [("x", repr(np.pi.real)), ("y", "[1, 2]")]


def test_a_handout_has_a_cell_and_a_check_for_every_answer_and_no_solution(made):
    book = nbformat.read(made / "handout" / "99_test.ipynb", as_version=4)
    nbformat.validate(book)
    sources = [c.source for c in book.cells]
    (index,) = [i for i, c in enumerate(book.cells) if "answer" in c.metadata.get("tags", [])]
    assert sources[index] == "x = ...\ny = ..."
    assert sources[index + 1] == 'grader.check("ex_a")'
    assert "words" in book.cells[index + 2].metadata.tags
    assert sources[index - 1].startswith("### Exercise: A title")
    assert "tier = 'smoke'" in sources
    assert not any("math.pi" in source or "{solution" in source for source in sources)


def test_only_the_graders_tests_hold_the_answers(made):
    public = (made / "handout" / "tests" / "ex_a.py").read_text()
    hidden = (made / "grader" / "tests" / "ex_a.py").read_text()
    assert "3.14159" in hidden
    assert hidden.count("hidden=True") == 2
    assert "matches" not in public
    assert "3.14159" not in public
    for text in (public, hidden):
        compile(text, "ex_a.py", "exec")
    assert not list((made / "handout").rglob("*.zip"))


@pytest.mark.parametrize("number", ["02", "03"])
def test_a_handout_of_a_chapter_keeps_its_cells_and_asks_every_answer(number):
    book = assignment.handout(number)
    asked = [
        name for c in book.cells if "answer" in c.metadata.get("tags", []) for name in c.source.split("\n")
    ]
    assert asked == [f"{name} = ..." for e in exercises.read(number) for name in e.answers]
    code = {c.source for c in notebooks.read(notebooks.notebook(number)).cells if c.cell_type == "code"}
    solved = {code for e in exercises.read(number) for code in e.code}
    assert code - solved <= {c.source for c in book.cells}
    assert not solved & {c.source for c in book.cells}


@NEEDS_OTTER
def test_right_wrong_and_missing_answers_earn_their_points(made):
    right = submission(made, "right", "import math\nx = 3.14\ny = (1, 2)")
    wrong = submission(made, "wrong", "x = 3.2\ny = [1, 2]")
    missing = submission(made, "missing", "x = ...\nraise SystemError")
    rows = assignment.grade(made, [right, wrong, missing])
    assert [(row["submission"], row["ex_a"], row["points"], row["of"]) for row in rows] == [
        ("right", 2, 2, 2), ("wrong", 1, 1, 2), ("missing", 0, 0, 2),
    ]  # fmt: skip
    assert assignment.columns(made) == ["submission", "ex_a", "points", "of"]


@NEEDS_OTTER
def test_a_submission_of_another_assignment_is_refused(made):
    path = submission(made, "other", "x = 1")
    content = json.loads(path.read_text())
    content["metadata"]["otter"]["assignment_name"] = "chapter-01"
    path.write_text(json.dumps(content))
    with pytest.raises(ReproError, match=r"other\.ipynb was not graded"):
        assignment.grade(made, [path])


def test_without_the_grader_the_message_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ReproError, match="make grading"):
        assignment.grade(tmp_path, [])


def test_an_exercise_out_of_shape_makes_no_assignment(tmp_path, monkeypatch):
    path = tmp_path / "99_test.md"
    path.write_text(CHAPTER.replace("*In words.*", "Words"))
    monkeypatch.setattr(exercises, "notebook", lambda number: path)
    with pytest.raises(ReproError, match=r"ex-a: has no \*In words"):
        assignment.expected("99", "smoke")


@pytest.mark.parametrize(
    ("given", "expected", "right"),
    [
        (1.009, 1.0, True), (1.011, 1.0, False), (np.float32(2.5), 2.5, True), (torch.tensor(3.0), 3.0, True),
        (4.0, 4, True), (4.01, 4, False), (True, True, True), (1, True, False), (True, 1, False),
        ("a", "a", True), ("a", "b", False), ([1.0, 2.0], [1.0, 2.001], True), ([1.0], [1.0, 2.0], False),
        (np.ones(2), [1, 1], True), (None, 1.0, False), (..., 1.0, False), ({}, 1.0, False),
        (0.0, 1e-252, False), (1e-252, 1e-252, True),
        (0.0, 0.0, True), (float("nan"), 1.0, False), ([1.0], 1.0, False), (3, 3.0, True),
    ],
)  # fmt: skip
def test_an_answer_is_right_within_one_per_cent_or_if_equal(given, expected, right):
    assert grading.matches(given, expected) is right


def test_the_kind_of_an_answer_gives_no_value_away():
    assert [grading.kind(v) for v in (0.5, 3, True, "a", [1, 2], np.ones(3))] == [
        "a number", "a number", "True or False", "text", "a list", "a list",
    ]  # fmt: skip
    with pytest.raises(ReproError, match="expected numbers"):
        grading.kind(None)
