import csv
import shutil
from decimal import Decimal

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from reprolib.errors import ReproError
from reprolib.evidence import published
from reprolib.evidence.published import COLUMNS, half_unit

HEADER = ",".join(COLUMNS)
GOOD = "dp_grpo.t01.a.x,Section I,a,x,accuracy,%,51.5,,,"


@pytest.fixture(scope="module")
def cells():
    return published.load()


def write(folder, *rows, count=None):
    (folder / "dp_grpo").mkdir(exist_ok=True)
    index = [{"table": "I", "title": "a table", "file": "t01", "cells": count or len(rows)}]
    (folder / "dp_grpo" / "index.yml").write_text(yaml.safe_dump(index))
    (folder / "dp_grpo" / "t01.csv").write_text("\n".join([HEADER, *rows]) + "\n")
    return folder


def load(folder):
    return published.load("dp_grpo", folder=folder)


def test_every_table_of_the_three_papers_is_there(cells):
    roman = ["I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX", "X", "XI", "XII", "XIII", "XIV"]
    assert [t for p, t in cells.titles if p == "dp_grpo"] == roman
    assert [t for p, t in cells.titles if p == "privdpo"] == [str(i) for i in range(1, 10)]
    assert [t for p, t in cells.titles if p == "sage"] == [str(i) for i in range(1, 6)]


def test_every_table_but_the_missing_one_has_cells(cells):
    empty = [key for key in cells.titles if not any((c.paper, c.table) == key for c in cells)]
    assert empty == [("dp_grpo", "IX")]


@pytest.mark.parametrize(
    ("reference", "printed"),
    [
        ("dp_grpo.t02.control.math", "2.65"),
        ("dp_grpo.t02.control.math#low", "1.79"),
        ("dp_grpo.t06.eps1.pld", "1.000"),
        ("dp_grpo.t07.reference.sigma", "0.4842404738068581"),
        ("privdpo.t01.eps_0_5.rr.pythia.rm", "0.026"),
        ("sage.t01.eps_6.sage.avg", "80.78"),
    ],
)
def test_numbers_keep_their_printed_digits(cells, reference, printed):
    assert str(cells.number(reference)) == printed


def test_a_table_is_tidy_and_typed(cells):
    frame = cells.table("dp_grpo", "VI")
    assert len(frame) == 49
    assert frame["value"].dtype == "float64"
    assert frame.loc["dp_grpo.t06.reference.rdp", "value"] == 9.83


@given(digits=st.integers(0, 12), number=st.integers(-(10**6), 10**6))
def test_half_a_unit_is_the_largest_rounding_error(digits, number):
    printed = Decimal(number).scaleb(-digits)
    assert half_unit(printed) == Decimal(5).scaleb(-digits - 1)


def test_a_count_is_exact_and_a_measurement_is_not(cells):
    assert cells.rounding("dp_grpo.t06.eps1.n") == 0.0
    assert cells.rounding("dp_grpo.t06.eps1.pld") == 0.0005


def test_an_unknown_cell_part_table_or_pattern_is_named(cells):
    for call, message in [
        (lambda: cells["dp_grpo.t02.nobody.math"], "no published cell"),
        (lambda: cells.number("dp_grpo.t06.eps1.pld#low"), "has no 'low'"),
        (lambda: cells.table("sage", "7"), "its tables are: 1, 2"),
        (lambda: cells.match("sage.t09.*"), "no published numeric cell matches"),
        (lambda: published.load("nobody"), "unknown paper 'nobody'"),
    ]:
        with pytest.raises(ReproError, match=message):
            call()


def test_a_good_file_loads(tmp_path):
    assert len(load(write(tmp_path, GOOD))) == 1


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("dp_grpo.t01.a.x,S,a,x,accuracy,%,,,,", "line 2: the cell is empty"),
        ("dp_grpo.t01.a.x,S,a,x,accuracy,%,fifty,,,", "line 2, value: 'fifty' is not a finite"),
        ("dp_grpo.t01.a.x,S,a,x,accuracy,%,nan,,,", "is not a finite decimal"),
        ("dp_grpo.t01.a.x,S,a,x,accuracy,%,1,0,,", "needs both its low and its high"),
        ("dp_grpo.t02.a.x,S,a,x,accuracy,%,1,,,", "must be dotted lower-case and start with"),
        ("dp_grpo.t01.A.x,S,a,x,accuracy,%,1,,,", "must be dotted lower-case"),
        ("dp_grpo.t01.a.x,S,a,x,accuracy,%,1", "line 2: expected 10 fields"),
        ("dp_grpo.t01.a.x,S,a,x,accuracy,%,1,,,,9", "line 2: expected 10 fields"),
    ],
)
def test_a_malformed_row_is_named_with_file_and_line(tmp_path, row, message):
    with pytest.raises(ReproError, match=message) as caught:
        load(write(tmp_path, row))
    assert "t01.csv" in str(caught.value)


def test_a_missing_cell_is_noticed(tmp_path):
    with pytest.raises(ReproError, match=r"t01\.csv: 1 cells, but index.yml says that the table has 2"):
        load(write(tmp_path, GOOD, count=2))


def test_a_repeated_id_is_noticed(tmp_path):
    with pytest.raises(ReproError, match=r"duplicate cell id: dp_grpo\.t01\.a\.x"):
        load(write(tmp_path, GOOD, GOOD))


def test_another_header_is_refused(tmp_path):
    folder = write(tmp_path, GOOD)
    file = folder / "dp_grpo" / "t01.csv"
    file.write_text(file.read_text().replace("value", "val", 1))
    with pytest.raises(ReproError, match="the header must be"):
        load(folder)


def test_a_missing_file_is_one_clear_line(tmp_path):
    folder = write(tmp_path, GOOD)
    (folder / "dp_grpo" / "t01.csv").unlink()
    with pytest.raises(ReproError, match=r"cannot read .*t01\.csv"):
        load(folder)


def test_every_csv_is_named_in_its_index(root):
    for paper in published.PAPERS:
        folder = root / "data" / "published" / paper
        named = {e["file"] for e in yaml.safe_load((folder / "index.yml").read_text()) if e["cells"]}
        assert named == {p.stem for p in folder.glob("*.csv")}


def test_csv_files_survive_a_round_trip(root, tmp_path):
    source = root / "data" / "published" / "sage" / "t01.csv"
    copy = tmp_path / "t01.csv"
    shutil.copy(source, copy)
    rows = list(csv.DictReader(copy.open(newline="", encoding="utf-8")))
    assert all(set(row) == set(COLUMNS) for row in rows)
