"""The exercises of a chapter: times, answers and solutions, read from its MyST source.

The shape is that of CONTRIBUTING.md, "An exercise". Everything that teaches from the exercises (student
edition, assignments, timetable) reads them here, so that no time and no answer is written twice.
"""

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import jupytext
import nbformat

from reprolib.errors import ReproError
from reprolib.evidence.notebooks import notebook

MAX_MINUTES = 45
ANSWER, IN_WORDS, EXTENSION = "*Answer.*", "*In words.*", "*Extension.*"
STATEMENT = re.compile(
    r"^(?P<fence>:{3,}|`{3,})\{exercise\}(?P<title>[^\n]*)\n:label: *(?P<label>\S+)\n"
    r"(?P<body>.*?)^(?P=fence) *$",
    re.MULTILINE | re.DOTALL,
)
OPEN = re.compile(r"^\s*(?P<fence>`{3,}|~{3,}|:{3,})\s*\{(?P<kind>[\w:-]+)\}\s*(?P<argument>.*)$")
CODE = re.compile(r"^\s*(?P<fence>`{3,}|~{3,})")
MINUTES = re.compile(r"^\*\((\d+) minutes\.\)\*", re.MULTILINE)
NAME = re.compile(r"`([A-Za-z_]\w*)`")


class Solutions:
    """Tells the lines of solutions from all others, one line at a time.

    A solution is a ``{solution}`` directive, or what stands between ``{solution-start}`` and
    ``{solution-end}``. A line inside a code fence is never read as a directive.
    """

    def __init__(self) -> None:
        self.inside = ""  # the label of the solution that is open
        self._closing = ""  # the fence that ends the present directive, where its end matters
        self._ends_solution = False
        self._code = ""

    def is_solution(self, line: str) -> bool:
        """Whether this line belongs to a solution, its directives included."""
        if self._code:
            self._code = "" if _closes(line, self._code) else self._code
            return bool(self.inside)
        if self._closing:  # the options of solution-start or solution-end, or the body of a solution
            if _closes(line, self._closing):
                self._closing = ""
                self.inside = "" if self._ends_solution else self.inside
                return True
            if self._ends_solution and self.inside:
                self._enter_code(line)
            return True
        if (found := OPEN.match(line)) and found["kind"] in ("solution", "solution-start", "solution-end"):
            self._ends_solution = found["kind"] != "solution-start"
            self._closing = found["fence"]
            if found["kind"] != "solution-end":
                self.inside = found["argument"].strip() or "without a label"
            return True
        self._enter_code(line)
        return bool(self.inside)

    def _enter_code(self, line: str) -> None:
        if found := CODE.match(line):
            self._code = found["fence"]


def _closes(line: str, fence: str) -> bool:
    text = line.strip()
    return len(text) >= len(fence) and set(text) == {fence[0]}


@dataclass(frozen=True)
class Exercise:
    """One exercise: ``text`` as the reader meets it, ``code`` the code cells of its solution."""

    chapter: str
    label: str
    title: str
    text: str
    code: tuple[str, ...]
    solution: str

    @property
    def minutes(self) -> int | None:
        """The time that the exercise states."""
        found = MINUTES.search(self.text)
        return int(found[1]) if found else None

    @property
    def answers(self) -> tuple[str, ...]:
        """The names that a grader checks, in the order of the exercise's *Answer.* paragraph."""
        return tuple(NAME.findall(self.part(ANSWER).partition(":")[0]))

    @property
    def question(self) -> str:
        """Name of the exercise where only an identifier will do."""
        return self.label.replace("-", "_")

    def part(self, heading: str) -> str:
        """The paragraph that starts with this heading; empty if there is none."""
        found = re.search(rf"^{re.escape(heading)}(.*?)(?=\n\s*\n|\Z)", self.text, re.MULTILINE | re.DOTALL)
        return found[1].strip() if found else ""

    def faults(self) -> list[str]:
        """What the exercise lacks of the shape that CONTRIBUTING.md describes."""
        found = [f"has no {part} part" for part in (IN_WORDS, EXTENSION) if not self.part(part)]
        if self.minutes is None:
            found.append("states no time: start it with *(20 minutes.)*")
        elif self.minutes > MAX_MINUTES:
            found.append(f"takes {self.minutes} minutes: {MAX_MINUTES} are the most")
        if not self.answers:
            found.append(f"names no answer: write {ANSWER} `name`: what it is")
        bound = set().union(*(assigned(code) for code in self.code))
        found += [
            f"has a solution that does not assign `{name}`" for name in self.answers if name not in bound
        ]
        return found


def assigned(code: str) -> set[str]:
    """The names that a cell binds at its top level (in a condition or a loop as well)."""
    found: set[str] = set()
    for node in _top_level(ast.parse(_without_magics(code)).body):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.For):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)}
    return found


def _top_level(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        yield node
        if not isinstance(node, ast.FunctionDef | ast.ClassDef):
            for field in ("body", "orelse", "finalbody"):
                yield from _top_level(getattr(node, field, []))


def _without_magics(code: str) -> str:
    return "\n".join("" if line.lstrip().startswith(("%", "!")) else line for line in code.splitlines())


def read(number: str) -> list[Exercise]:
    """The exercises of a chapter, in its order.

    Raises:
        ReproError: no such chapter, a solution that does not end, or one for an exercise that does not exist.
    """
    path = notebook(number).with_suffix(".md")
    text = path.read_text(encoding="utf-8")
    require_ends(text, f"notebooks/{path.name}")
    cells = jupytext.reads(text, fmt="md:myst").cells
    exercises = dict(_statements(cells))
    bodies = _bodies(cells)
    if unknown := sorted(set(bodies) - set(exercises)):
        raise ReproError(
            f"notebooks/{path.name}: a solution names {unknown[0]!r}, and no exercise has that label"
        )
    return [
        Exercise(number, label, title, body, *bodies.get(label, ((), "")))
        for label, (title, body) in exercises.items()
    ]


def require_ends(text: str, name: str) -> None:
    """Refuse a chapter with a solution that is never closed.

    Raises:
        ReproError: names the file and the line of the solution's start.
    """
    reader, start = Solutions(), 0
    for number, line in enumerate(text.splitlines(), 1):
        before = reader.inside
        reader.is_solution(line)
        if (found := OPEN.match(line)) and found["kind"] == "solution-start" and not reader._code:
            if before:
                raise ReproError(f"{name}:{start}: the solution {before!r} has no solution-end; add one")
            start = number
        elif reader.inside and not before:
            start = number
    if reader.inside:
        raise ReproError(f"{name}:{start}: the solution {reader.inside!r} has no solution-end; add one")


def _statements(cells: list[nbformat.NotebookNode]) -> Iterator[tuple[str, tuple[str, str]]]:
    for cell in cells:
        if cell.cell_type != "markdown":
            continue
        for found in STATEMENT.finditer(cell.source):
            yield found["label"], (found["title"].strip(), found["body"].strip())


def _bodies(cells: list[nbformat.NotebookNode]) -> dict[str, tuple[tuple[str, ...], str]]:
    """Code cells and prose of each solution, by label."""
    reader, code, prose = Solutions(), dict[str, list[str]](), dict[str, list[str]]()
    for cell in cells:
        if cell.cell_type == "code":
            if reader.inside:
                code.setdefault(reader.inside, []).append(cell.source)
            continue
        for line in cell.source.splitlines():
            label = reader.inside
            if reader.is_solution(line):
                prose.setdefault(reader.inside or label, []).append(line)
    return {label: (tuple(code.get(label, [])), "\n".join(lines)) for label, lines in prose.items()}


def path_of(number: str) -> Path:
    """The MyST source of a chapter."""
    return notebook(number).with_suffix(".md")
