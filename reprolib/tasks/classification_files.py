"""Files of data sets that are no JSON Lines: separated columns, and SQuAD's nested JSON.

A message names the file and line of a faulty record, never its text, which may be private.
"""

import csv
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from reprolib.errors import ReproError
from reprolib.tasks.sources import MAX_FILE, Record

_BOM = "\ufeff"


def separated(path: Path, *, delimiter: str, columns: tuple[str, ...] = ()) -> Iterator[Record]:
    """The records of a text file with one record a line.

    Args:
        path: a tab-separated file is split plainly, since its quotation marks are text; a comma-separated one
            is read as quoted CSV.
        delimiter: a tab or a comma.
        columns: names of the columns; taken from the first line where there are none.

    Raises:
        ReproError: the file is too long or not UTF-8, or a line has another number of columns; it names file
            and line.
    """
    lines = _lines(path)
    plain = ((number, line.split("\t")) for number, line in enumerate(lines, start=1))
    rows = plain if delimiter == "\t" else _quoted(lines, path)
    for number, row in rows:
        if not columns:
            columns = tuple(row)
        elif row not in ([], [""]):
            if len(row) != len(columns):
                raise ReproError(
                    f"{path}:{number}: {len(row)} columns: expected {len(columns)}, {', '.join(columns)}"
                )
            yield Record(f"{path}:{number}", dict(zip(columns, row, strict=True)))


def _quoted(lines: Iterable[str], path: Path) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader(lines, strict=True)
    try:
        for row in reader:
            yield reader.line_num, row
    except csv.Error:
        raise ReproError(f"{path}:{reader.line_num}: no CSV: expected quotation marks in pairs") from None


def _lines(path: Path) -> list[str]:
    if path.stat().st_size > MAX_FILE:
        raise ReproError(f"{path}: over {MAX_FILE:,} bytes: expected one record a line")
    data = path.read_bytes()
    try:
        text = data.decode("utf-8").removeprefix(_BOM)
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise ReproError(f"{path}:{line}: not UTF-8: save the file as UTF-8") from None
    return text.replace("\r\n", "\n").split("\n")  # a text may hold what splitlines takes for a line's end


def questions(path: Path) -> Iterator[Record]:
    """The questions of a file in SQuAD's JSON, a record each with title, context and answers.

    Raises:
        ReproError: the file is too long, no JSON, or its nesting is not SQuAD's.
    """
    if path.stat().st_size > MAX_FILE:
        raise ReproError(f"{path}: over {MAX_FILE:,} bytes: expected SQuAD's JSON")
    try:
        whole = json.loads(path.read_bytes().removeprefix(_BOM.encode()).decode("utf-8"))
    except json.JSONDecodeError as error:
        raise ReproError(f"{path}:{error.lineno}: not JSON, column {error.colno}: expected SQuAD's") from None
    except (ValueError, RecursionError):
        raise ReproError(f"{path}: no JSON in UTF-8: expected SQuAD's") from None
    top = Record(str(path), whole if isinstance(whole, dict) else {})
    for a, article in enumerate(top.table("data"), start=1):
        for p, paragraph in enumerate(article.table("paragraphs"), start=1):
            for q, question in enumerate(paragraph.table("qas"), start=1):
                place = f"{path}: article {a}, paragraph {p}, question {q}"
                yield Record(
                    place,
                    question.fields
                    | {"title": article.fields.get("title"), "context": paragraph.fields.get("context")},
                )
