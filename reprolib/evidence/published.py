"""The papers' tables, cell by cell, as the papers print them (``data/published/``).

One CSV file a table, one row a cell. Numbers keep their printed digits (``Decimal``), because the
number of digits says how far a recomputed value may be off.
"""

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path

import pandas as pd
import yaml

from reprolib.errors import ReproError
from reprolib.paths import root

PAPERS = {"dp_grpo": "DP-GRPO", "privdpo": "PrivDPO", "sage": "SAGE"}
COLUMNS = [
    "id", "section", "row", "column", "quantity", "unit", "value", "low", "high", "text",
]  # fmt: skip
_ID = re.compile(r"[a-z0-9_]+(\.[a-z0-9_]+){2,}")


def half_unit(number: Decimal) -> Decimal:
    """Half a unit in the last printed digit: the largest error that rounding can have made."""
    return Decimal((0, (5,), int(number.as_tuple().exponent) - 1))


@dataclass(frozen=True)
class Cell:
    """One cell of a published table: a number, an interval, or a text that the paper prints there."""

    id: str
    paper: str
    table: str
    section: str
    row: str
    column: str
    quantity: str
    unit: str
    value: Decimal | None
    low: Decimal | None
    high: Decimal | None
    text: str

    @property
    def where(self) -> str:
        """The cell's place in the paper."""
        return f"{self.section}, Table {self.table}, {self.row}, {self.column}"

    def part(self, name: str) -> Decimal:
        """``value``, ``low`` or ``high`` as printed.

        Raises:
            ReproError: the paper prints no such number in this cell.
        """
        number = {"value": self.value, "low": self.low, "high": self.high}.get(name)
        if number is None:
            raise ReproError(f"cell {self.id} has no {name!r} number: it prints {self.text!r}")
        return number


class Published:
    """The published cells of one or more papers, in the papers' order.

    Args:
        cells: the cells; ids must be unique.
        titles: the title of each table, by ``(paper, table)``.

    Raises:
        ReproError: an id occurs twice.
    """

    def __init__(self, cells: list[Cell], titles: dict[tuple[str, str], str]):
        self.cells = cells
        self.titles = titles
        if len(self._by_id) != len(cells):
            ids = [cell.id for cell in cells]
            raise ReproError(f"duplicate cell id: {next(i for i in ids if ids.count(i) > 1)}")

    @cached_property
    def _by_id(self) -> dict[str, Cell]:
        return {cell.id: cell for cell in self.cells}

    def __iter__(self) -> Iterator[Cell]:
        return iter(self.cells)

    def __len__(self) -> int:
        return len(self.cells)

    def __getitem__(self, cell_id: str) -> Cell:
        try:
            return self._by_id[cell_id]
        except KeyError:
            raise ReproError(f"no published cell {cell_id!r} in data/published") from None

    def number(self, reference: str) -> Decimal:
        """The number at ``cell.id`` or ``cell.id#low`` / ``cell.id#high``."""
        cell_id, _, part = reference.partition("#")
        return self[cell_id].part(part or "value")

    def rounding(self, reference: str) -> float:
        """Largest error that rounding can have made in that number; 0 for a count, which is exact."""
        cell = self[reference.partition("#")[0]]
        return 0.0 if cell.quantity == "count" else float(half_unit(self.number(reference)))

    def match(self, pattern: str) -> list[str]:
        """Ids (with the pattern's ``#part``) of the numeric cells that a shell-style pattern matches."""
        glob, hash_, part = pattern.partition("#")
        found = [c.id + hash_ + part for c in self if c.value is not None and fnmatchcase(c.id, glob)]
        if not found:
            raise ReproError(f"no published numeric cell matches {pattern!r}")
        return found

    def table(self, paper: str, table: str) -> pd.DataFrame:
        """One table, tidy: a row a cell, numbers as float, ``id`` as the index.

        Raises:
            ReproError: the paper has no such table.
        """
        if (paper, table) not in self.titles:
            known = ", ".join(t for p, t in self.titles if p == paper) or "none"
            raise ReproError(f"{paper} has no table {table!r}; its tables are: {known}")
        frame = pd.DataFrame(
            [vars(c) for c in self if (c.paper, c.table) == (paper, table)],
            columns=["id", "row", "column", "quantity", "unit", "value", "low", "high", "text"],
        ).set_index("id")
        return frame.astype(dict.fromkeys(("value", "low", "high"), "float64"))


def _number(text: str, place: str) -> Decimal | None:
    if not text:
        return None
    try:
        number = Decimal(text)
    except InvalidOperation:
        number = Decimal("nan")
    if not number.is_finite():
        raise ReproError(f"{place}: {text!r} is not a finite decimal number")
    return number


def _cell(row: dict[str, str], paper: str, table: str, prefix: str, place: str) -> Cell:
    numbers = {name: _number(row[name], f"{place}, {name}") for name in ("value", "low", "high")}
    if numbers["value"] is None and not row["text"]:
        raise ReproError(f"{place}: the cell is empty; give a value, or the text that the paper prints")
    if (numbers["low"] is None) != (numbers["high"] is None):
        raise ReproError(f"{place}: an interval needs both its low and its high end")
    if not _ID.fullmatch(row["id"]) or not row["id"].startswith(prefix):
        raise ReproError(f"{place}: id {row['id']!r} must be dotted lower-case and start with {prefix!r}")
    texts = {k: row[k] for k in ("id", "section", "row", "column", "quantity", "unit", "text")}
    return Cell(paper=paper, table=table, **texts, **numbers)  # type: ignore[arg-type]


def read_table(path: Path, paper: str, table: str, count: int) -> list[Cell]:
    """Read one CSV file of published cells.

    Args:
        path: the file; its header must be ``COLUMNS``.
        count: the number of cells that the paper's table has.

    Raises:
        ReproError: names the file and line of an empty cell, a malformed number or a wrong id.
    """
    try:
        with path.open(newline="", encoding="utf-8") as stream:
            reader = csv.DictReader(stream, restkey="_extra", restval=None)
            if reader.fieldnames != COLUMNS:
                raise ReproError(f"{path.name}: the header must be {','.join(COLUMNS)}")
            rows = list(reader)
    except OSError as error:
        raise ReproError(f"cannot read {path}: {error.strerror}") from None
    cells = []
    for line, row in enumerate(rows, start=2):
        place = f"{path.name} line {line}"
        if None in row.values() or "_extra" in row:
            raise ReproError(f"{place}: expected {len(COLUMNS)} fields, separated by commas")
        cells.append(_cell(row, paper, table, f"{paper}.{path.stem}.", place))
    if len(cells) != count:
        raise ReproError(f"{path.name}: {len(cells)} cells, but index.yml says that the table has {count}")
    return cells


def load(*papers: str, folder: Path | None = None) -> Published:
    """Load the published cells of the given papers (all three by default).

    Raises:
        ReproError: an unknown paper, or a malformed file (named, with its line).
    """
    folder = folder or root() / "data" / "published"
    if unknown := [p for p in papers if p not in PAPERS]:
        raise ReproError(f"unknown paper {unknown[0]!r}; expected one of {', '.join(PAPERS)}")
    cells: list[Cell] = []
    titles: dict[tuple[str, str], str] = {}
    for paper in papers or PAPERS:
        for entry in yaml.safe_load((folder / paper / "index.yml").read_text(encoding="utf-8")):
            titles[paper, entry["table"]] = entry["title"]
            if entry["cells"]:
                path = folder / paper / f"{entry['file']}.csv"
                cells += read_table(path, paper, entry["table"], entry["cells"])
    return Published(cells, titles)
