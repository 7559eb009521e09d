"""The student edition: no solution survives, and nothing else is lost."""

import re

import jupytext
import nbformat
import pytest

from reprolib.errors import ReproError
from reprolib.evidence import exercises, notebooks, student
from tests.teaching.test_exercises import GOOD

SPAN = re.compile(
    r"^:::\{solution-start\}.*?^:::\{solution-end\}\n:::$|^:::\{solution\} .*?^:::$", re.MULTILINE | re.DOTALL
)


def lines(text):
    return [line for line in text.splitlines() if line.strip()]


@pytest.mark.parametrize("number", notebooks.numbers())
def test_a_stripped_chapter_is_the_chapter_less_its_solutions(number):
    path = exercises.path_of(number)
    text = path.read_text(encoding="utf-8")
    stripped = student.strip_text(text, path.name)
    assert lines(stripped) == lines(SPAN.sub("", text))
    assert len(SPAN.findall(text)) == len(exercises.read(number)) == stripped.count(":::{exercise}")
    assert "{solution" not in stripped


@pytest.mark.parametrize("number", notebooks.numbers())
def test_source_and_notebook_lose_the_same_cells(number):
    path = notebooks.notebook(number)
    text = path.with_suffix(".md").read_text(encoding="utf-8")
    from_text = jupytext.reads(student.strip_text(text, path.name), fmt="md:myst")
    from_cells = student.strip_cells(notebooks.read(path), path.name)
    code = [[c.source for c in book.cells if c.cell_type == "code"] for book in (from_text, from_cells)]
    prose = [
        "\n".join(c.source for c in book.cells if c.cell_type == "markdown")
        for book in (from_text, from_cells)
    ]
    assert code[0] == code[1]
    assert lines(prose[0]) == lines(prose[1])


@pytest.mark.parametrize("number", notebooks.numbers())
def test_no_code_of_a_solution_survives(number):
    left = [c.source for c in student.strip_cells(notebooks.read(notebooks.notebook(number)), number).cells]
    for exercise in exercises.read(number):
        assert not set(exercise.code) & set(left), exercise.label


def test_outputs_of_a_solution_go_with_it():
    book = jupytext.reads(GOOD, fmt="md:myst")
    cell = next(c for c in book.cells if c.cell_type == "code")
    cell.outputs = [nbformat.v4.new_output("stream", text="the answer is 1")]
    assert "the answer" not in nbformat.writes(student.strip_cells(book, "99_test.ipynb"))


def test_both_forms_and_fences_are_removed_and_code_that_names_them_is_kept():
    text = (
        "before\n\n````{solution} ex-a\n:class: dropdown\n\ninner\n```python\n:::\n```\n````\n\n"
        "```python\n:::{solution-start} not a directive\n```\n\nafter\n"
    )
    assert lines(student.strip_text(text, "x.md")) == [
        "before", "```python", ":::{solution-start} not a directive", "```", "after",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "broken",
    [GOOD.replace(":::{solution-end}\n:::\n", ""), GOOD.replace(":::{solution-end}\n:::\n", "") + GOOD],
)
def test_a_solution_without_an_end_is_named_with_file_and_line(broken):
    with pytest.raises(ReproError) as error:
        student.strip_text(broken, "notebooks/99_test.md")
    start = broken.splitlines().index(":::{solution-start} ex-a") + 1
    assert str(error.value).startswith(f"notebooks/99_test.md:{start}: ")
    assert "solution-end" in str(error.value)
    assert "\n" not in str(error.value)


def test_the_folder_holds_every_chapter_twice(tmp_path):
    written = student.chapters(tmp_path)
    assert {p.suffix for p in written} == {".md", ".ipynb"}
    assert len(written) == 2 * len(notebooks.numbers())
    for path in tmp_path.glob("*.ipynb"):
        nbformat.validate(nbformat.read(path, as_version=4))


def test_a_book_that_was_not_executed_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(student, "root", lambda: tmp_path)
    with pytest.raises(ReproError, match="make book"):
        student.build(tmp_path / "student")
