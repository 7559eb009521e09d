import re

import jupytext
import matplotlib
import pytest

from reprolib.evidence import notebooks

TEXT = notebooks.notebook("42").with_suffix(".md").read_text()
SOLUTIONS = re.compile(r":::\{solution-start\} (\S+)\n(.*?):::\{solution-end\}\n:::", re.DOTALL)
LABELS = re.findall(r":::\{exercise\}.*\n:label: (\S+)", TEXT)


def cells(text):
    """Sources of the code cells of a chapter, or of a part of one."""
    head = TEXT[: TEXT.index("# 42")]
    found = jupytext.reads(text if text.startswith("---") else head + text, fmt="md:myst").cells
    return [
        c.source.replace('tier: str = "micro"', 'tier: str = "smoke"') for c in found if c.cell_type == "code"
    ]


def run(sources, names):
    for source in sources:
        exec(compile(source, "chapter 42", "exec"), names)
    return names


@pytest.fixture(scope="module")
def student(tmp_path_factory):
    """What a student has: every cell outside the solutions, run."""
    matplotlib.use("Agg")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REPROLIB_RESULTS", str(tmp_path_factory.mktemp("results")))
        yield run(cells(SOLUTIONS.sub("", TEXT)), {"__name__": "chapter_42"})


def test_every_exercise_has_one_solution():
    assert [label for label, _ in SOLUTIONS.findall(TEXT)] == LABELS
    assert 8 <= len(LABELS) <= 12


def test_the_chapter_without_its_solutions_runs_and_gives_no_answer_away(student):
    assert "answer_" not in " ".join(student)
    assert not re.search(r"answer_\w+ *=|\bnote\(\"", SOLUTIONS.sub("", TEXT))


@pytest.mark.parametrize(("label", "solution"), SOLUTIONS.findall(TEXT), ids=LABELS)
def test_each_solution_runs_without_the_others_and_checks_its_answer(student, label, solution):
    answer = "answer_" + label.replace("-", "_")
    student["found"].clear()  # `note` writes there whoever calls it
    names = run(cells(solution), dict(student))
    assert isinstance(names[answer], int | float)
    assert re.search(rf"^assert .*\b{answer}\b", solution, re.MULTILINE)


def test_every_row_of_the_table_is_measured_in_a_solution(student):
    noted = {key for _, solution in SOLUTIONS.findall(TEXT) for key in re.findall(r'note\("(\w+)"', solution)}
    assert noted == set(student["ROWS"])


def test_every_test_that_the_chapter_names_exists(root):
    named = re.findall(r"`(tests/\S+?\.py)::(test_\w+)`", TEXT)
    assert len(named) > 5
    for file, name in named:
        assert re.search(rf"^def {name}\(", (root / file).read_text(), re.MULTILINE), name
