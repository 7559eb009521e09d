"""The shape of an exercise (CONTRIBUTING.md, "An exercise") in every chapter."""

import pytest

from reprolib.errors import ReproError
from reprolib.evidence import exercises, notebooks, student

CHAPTERS = notebooks.numbers()

GOOD = """\
:::{exercise} A title
:label: ex-a

*(20 minutes.)* A question?

*Answer.* `x`, `y`: two numbers.

*In words.* Why?

*Extension.* More.
:::

:::{solution-start} ex-a
:class: dropdown
:::

```{code-cell} ipython3
x, y = 1, 2  # :::{solution-end}
```

Prose.

:::{solution-end}
:::
"""
HEAD = "---\njupytext:\n  text_representation:\n    extension: .md\n    format_name: myst\n---\n\n"


@pytest.fixture
def chapter(tmp_path, monkeypatch):
    """Reads a chapter that consists of the given text."""

    def read(text):
        path = tmp_path / "99_test.md"
        path.write_text(HEAD + text)
        monkeypatch.setattr(exercises, "notebook", lambda number: path.with_suffix(".ipynb"))
        return exercises.read("99")

    return read


@pytest.mark.parametrize("number", CHAPTERS)
def test_every_exercise_has_a_time_an_answer_a_question_in_words_and_an_extension(number):
    found = exercises.read(number)
    assert found
    assert {e.label: e.faults() for e in found if e.faults()} == {}


@pytest.mark.parametrize("number", CHAPTERS)
def test_no_cell_outside_the_solution_assigns_an_answer(number):
    path = notebooks.notebook(number)
    answers = [name for e in exercises.read(number) for name in e.answers]
    assert len(answers) == len(set(answers))
    left = student.strip_cells(notebooks.read(path), path.name).cells
    bound = set().union(*(exercises.assigned(c.source) for c in left if c.cell_type == "code"))
    assert bound & set(answers) == set()


def test_labels_are_unique_in_the_book():
    labels = [e.label for n in notebooks.numbers() for e in exercises.read(n)]
    assert len(labels) == len(set(labels))


def test_an_exercise_in_the_shape_has_no_fault(chapter):
    (exercise,) = chapter(GOOD)
    assert exercise.faults() == []
    assert (exercise.minutes, exercise.answers, exercise.question) == (20, ("x", "y"), "ex_a")
    assert exercise.title == "A title"


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("*(20 minutes.)*", "*(50 minutes.)*", "takes 50 minutes"),
        ("*(20 minutes.)*", "", "states no time"),
        ("*Answer.*", "Answer", "names no answer"),
        ("*In words.*", "Words", "no *In words.*"),
        ("*Extension.*", "More", "no *Extension.*"),
        ("x, y = 1, 2", "x = 1", "does not assign `y`"),
    ],
)
def test_each_missing_part_is_a_fault(chapter, old, new, fault):
    (exercise,) = chapter(GOOD.replace(old, new))
    assert any(fault in found for found in exercise.faults())


def test_a_solution_for_no_exercise_is_refused(chapter):
    with pytest.raises(ReproError, match="'ex-b'"):
        chapter(GOOD.replace("{solution-start} ex-a", "{solution-start} ex-b"))


def test_names_bound_in_branches_count_and_those_inside_functions_do_not():
    code = "if a:\n    b = 1\nelse:\n    (c, d) = 1, 2\ndef f():\n    e = 1\n%magic\nfor g in h:\n    pass"
    assert exercises.assigned(code) == {"b", "c", "d", "f", "g"}
