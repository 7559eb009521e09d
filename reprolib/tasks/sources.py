"""Records of public data sets, each with its place: files under REPROLIB_DATA, else data sets by name.

A message names the place of a faulty record and its field, never its text, which may be private.
"""

import codecs
import gzip
import json
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reprolib.errors import ReproError

MAX_LINE, MAX_FILE = 1_000_000, 256_000_000


@dataclass(frozen=True)
class Record:
    """One record as it was read.

    Attributes:
        place: the file and line, or the data set and row.
        fields: its fields by name.
    """

    place: str
    fields: dict[str, Any]

    def error(self, problem: str) -> ReproError:
        """The error to raise for this record: its place, then what is wrong."""
        return ReproError(f"{self.place}: {problem}")

    def text(self, field: str) -> str:
        """A field's text without the white space around it.

        Raises:
            ReproError: the field is missing, no string, empty, or no valid Unicode.
        """
        if field not in self.fields:
            raise self.error(f"no field {field!r}: expected a string")
        value = self.fields[field]
        if not isinstance(value, str):
            raise self.error(f"field {field!r} is of type {type(value).__name__}: expected a string")
        if not value.strip():
            raise self.error(f"field {field!r} is empty: expected text")
        if any("\ud800" <= character <= "\udfff" for character in value):
            raise self.error(f"field {field!r} holds half a surrogate pair: expected valid Unicode")
        return value.strip()

    def table(self, field: str) -> list["Record"]:
        """The rows of a nested table, written as a list of records or as a record of lists.

        Raises:
            ReproError: the field is missing, or neither.
        """
        value: Any = self.fields.get(field)
        columns = [*value.values()] if isinstance(value, dict) else []
        if columns and all(isinstance(c, list) and len(c) == len(columns[0]) for c in columns):
            value = [dict(zip(value, row, strict=True)) for row in zip(*columns, strict=True)]
        if not isinstance(value, list) or not all(isinstance(row, dict) for row in value):
            raise self.error(f"field {field!r}: expected a list of records")
        return [Record(self.place, row) for row in value]


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where a split is found.

    Attributes:
        files: paths in the data folder; the first that exists is read.
        named: data set, configuration and split by name; their rows follow one another.
    """

    files: tuple[str, ...]
    named: tuple[tuple[str, str | None, str], ...]


_MATH_SUBJECTS = (
    "algebra", "counting_and_probability", "geometry", "intermediate_algebra", "number_theory", "prealgebra",
    "precalculus",
)  # fmt: skip
_MATH_NAME, _SVAMP_NAME = "EleutherAI/hendrycks_math", "ChilleD/SVAMP"
SOURCES = {
    ("math", "train"): Source(
        files=("math/train.jsonl", "math/train_subset.jsonl"),
        named=tuple((_MATH_NAME, subject, "train") for subject in _MATH_SUBJECTS),
    ),
    ("math", "test"): Source(
        files=("math/test.jsonl",), named=tuple((_MATH_NAME, subject, "test") for subject in _MATH_SUBJECTS)
    ),
    ("math", "selection"): Source(
        files=("math/math500.jsonl",), named=(("HuggingFaceH4/MATH-500", None, "test"),)
    ),
    ("gsm8k", "train"): Source(files=("gsm8k/train.jsonl",), named=(("openai/gsm8k", "main", "train"),)),
    ("gsm8k", "test"): Source(files=("gsm8k/test.jsonl",), named=(("openai/gsm8k", "main", "test"),)),
    ("csqa", "train"): Source(
        files=("commonsenseqa/train_rand_split.jsonl",), named=(("tau/commonsense_qa", None, "train"),)
    ),
    ("csqa", "test"): Source(
        files=("commonsenseqa/dev_rand_split.jsonl",), named=(("tau/commonsense_qa", None, "validation"),)
    ),
    ("svamp", "test"): Source(
        files=("svamp/SVAMP.json",), named=((_SVAMP_NAME, None, "train"), (_SVAMP_NAME, None, "test"))
    ),
}


def read(source: Source) -> list[Record]:
    """A split's records, in order: from the folder in ``REPROLIB_DATA``, or by name where it is unset.

    Raises:
        ReproError: the folder or its file is missing, the data set cannot be read, or a record is no record.
    """
    folder = os.environ.get("REPROLIB_DATA")
    records = list(_from_folder(Path(folder), source) if folder else _by_name(source))
    if not records:
        raise ReproError(f"{source.files[0] if folder else source.named[0][0]} has no records")
    return records


def _from_folder(folder: Path, source: Source) -> Iterator[Record]:
    found = [folder / file for file in source.files if (folder / file).is_file()]
    if not found:
        raise ReproError(
            f"no {' or '.join(source.files)} in REPROLIB_DATA = {folder}: set REPROLIB_DATA to a folder as "
            "data/README.md describes it, or unset it to read data sets by name"
        )
    return json_array(found[0]) if found[0].suffix == ".json" else json_lines(found[0])


def json_lines(path: Path) -> Iterator[Record]:
    """The records of a JSON Lines file, plain or ``.gz``; blank lines and a byte order mark are passed over.

    Raises:
        ReproError: a line is too long, not UTF-8 or not a JSON object, or the compressed file is damaged.
    """
    for number, line in enumerate(_lines(path), start=1):
        place = f"{path}:{number}"
        if len(line) > MAX_LINE:
            raise ReproError(f"{place}: a line over {MAX_LINE:,} bytes: expected one JSON record a line")
        if number == 1:
            line = line.removeprefix(codecs.BOM_UTF8)
        if line.strip():
            yield _record(_parsed(line.rstrip(), place), place)


def _lines(path: Path) -> Iterator[bytes]:
    number = 0
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        try:
            for line in iter(lambda: file.readline(MAX_LINE + 1), b""):
                number += 1
                yield line
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise ReproError(
                f"{path}:{number + 1}: a damaged compressed file ({type(error).__name__}): fetch it again"
            ) from None


def json_array(path: Path) -> Iterator[Record]:
    """The records of a file that is one JSON array; a record's place is its number from 1.

    Raises:
        ReproError: the file is too long, not UTF-8, not JSON, or not an array of objects.
    """
    if path.stat().st_size > MAX_FILE:
        raise ReproError(f"{path}: over {MAX_FILE:,} bytes: expected one JSON array of records")
    rows = _parsed(path.read_bytes().removeprefix(codecs.BOM_UTF8), str(path))
    if not isinstance(rows, list):
        raise ReproError(f"{path}: a JSON {type(rows).__name__}: expected an array of records")
    for number, row in enumerate(rows, start=1):
        place = f"{path}: record {number}"
        yield _record(row, place)


def _parsed(data: bytes, place: str) -> Any:
    # "from None": the exceptions of the parser carry the record's text
    try:
        return json.loads(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ReproError(f"{place}: byte {error.start + 1} is not UTF-8: save the file as UTF-8") from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}" if error.lineno > 1 else f"column {error.colno}"
        raise ReproError(f"{place}: not JSON at {where}: expected one record, {{...}}") from None
    except (ValueError, RecursionError):
        raise ReproError(f"{place}: JSON with too many digits or levels: expected a flat record") from None


def _record(value: Any, place: str) -> Record:
    if not isinstance(value, dict):
        raise ReproError(f"{place}: a JSON {type(value).__name__}: expected a record, {{...}}")
    return Record(place, value)


def _by_name(source: Source) -> Iterator[Record]:
    otherwise = "set REPROLIB_DATA to a folder as data/README.md describes it"
    try:
        from datasets import load_dataset  # type: ignore[import-untyped]
    except ImportError as error:
        raise ReproError(f"no package 'datasets' to read data by name: install it, or {otherwise}") from error
    for name, configuration, split in source.named:
        try:
            rows = load_dataset(name, configuration, split=split)
        except Exception as error:  # whatever the hub, its cache and the network raise
            raise ReproError(
                f"the data set {name} cannot be read ({type(error).__name__}): go online, or {otherwise}"
            ) from error
        for number, row in enumerate(rows):
            yield Record(f"{name}, split {split}, row {number}", dict(row))
