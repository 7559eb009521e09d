import json
import re
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reprolib.errors import ReproError
from reprolib.tasks import sources
from reprolib.tasks.sources import Record, Source, json_array, json_lines, read

SOURCE = Source(files=("kind/a.jsonl", "kind/b.jsonl"), named=(("no/such", None, "train"),))


@pytest.fixture
def file(tmp_path):
    def written(content: bytes, name: str = "a.jsonl"):
        path = tmp_path / name
        path.write_bytes(content)
        return path

    return written


def test_blank_lines_and_a_byte_order_mark_hold_no_record_and_keep_the_line_numbers(file):
    path = file(b'\xef\xbb\xbf{"x": 1}\r\n\n   \n{"x": 2}')
    assert [(r.place, r.fields["x"]) for r in json_lines(path)] == [(f"{path}:1", 1), (f"{path}:4", 2)]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"x": 1', "not JSON at column 8: expected one record"),
        (b'{"x": 1} {"x": 2}', "not JSON at column 10"),
        (b'{"x": "caf\xe9"}', "byte 11 is not UTF-8"),
        (b'\xef\xbb\xbf{"x": 1}', "not JSON at column 1"),
        (b"[1, 2]", "a JSON list: expected a record"),
        (b"null", "a JSON NoneType: expected a record"),
        (b"[" * 100_000, "too many digits or levels"),
        (b'{"x": ' + b"1" * 10_000 + b"}", "too many digits or levels"),
        (b'{"x": "' + b"y" * sources.MAX_LINE + b'"}', "a line over 1,000,000 bytes"),
    ],
)
def test_a_faulty_line_is_named_with_its_file_and_not_quoted(file, line, message):
    path = file(b'{"x": 0}\n' + line + b"\n")
    with pytest.raises(ReproError) as caught:
        list(json_lines(path))
    text = str(caught.value)
    assert text.startswith(f"{path}:2: ")
    assert message in text
    assert "\n" not in text
    assert "caf" not in text.removeprefix(str(path))


def test_a_line_at_the_limit_is_read(file):
    record = b'{"x": "' + b"y" * (sources.MAX_LINE - 10) + b'"}\n'
    assert len(record) == sources.MAX_LINE
    assert len(list(json_lines(file(record)))) == 1


def records_or_message(reader, path):
    try:
        return list(reader(path))
    except ReproError as error:
        return str(error)


@settings(max_examples=200, deadline=None)
@given(
    content=st.one_of(
        st.binary(max_size=60),
        st.lists(
            st.sampled_from([b"{", b"}", b'"', b":", b"\n", b"\r", b"1", b",", b"\xff", b"[", b"\\u"])
        ).map(b"".join),
    )
)
def test_any_bytes_are_records_or_one_line_of_error(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("bytes") / "a.jsonl"
    path.write_bytes(content)
    for reader in (json_lines, json_array):
        outcome = records_or_message(reader, path)
        if isinstance(outcome, str):
            assert outcome.startswith(str(path))
            assert "\n" not in outcome
        else:
            assert all(isinstance(record.fields, dict) for record in outcome)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)


@given(rows=st.lists(st.dictionaries(st.text(max_size=3), VALUES, max_size=3), max_size=5))
def test_written_records_are_read_back(tmp_path_factory, rows):
    folder = tmp_path_factory.mktemp("rows")
    (folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (folder / "a.json").write_text(json.dumps(rows), encoding="utf-8")
    assert [r.fields for r in json_lines(folder / "a.jsonl")] == rows
    assert [r.fields for r in json_array(folder / "a.json")] == rows


def test_a_faulty_record_of_an_array_is_named_by_its_number(file):
    path = file(b'[{"x": 1}, 2]', "a.json")
    with pytest.raises(ReproError, match=re.escape(f"{path}: record 2: a JSON int")):
        list(json_array(path))
    with pytest.raises(ReproError, match="a JSON dict: expected an array"):
        list(json_array(file(b'{"x": 1}', "b.json")))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (5, "'x' is of type int: expected a string"),
        (None, "'x' is of type NoneType"),
        (["a"], "'x' is of type list"),
        (" \n\t", "'x' is empty"),
        ("a\ud800", "'x' holds half a surrogate pair"),
    ],
)
def test_a_field_that_is_no_text_is_named_with_its_place(value, message):
    with pytest.raises(ReproError, match=f"^f:7: field {message}"):
        Record("f:7", {"x": value}).text("x")
    with pytest.raises(ReproError, match=r"^f:7: no field 'y'"):
        Record("f:7", {"x": value}).text("y")


def test_a_table_is_the_same_as_a_list_of_records_and_as_a_record_of_lists():
    by_row = Record("f:1", {"t": [{"a": 1, "b": 2}, {"a": 3, "b": 4}]})
    by_column = Record("f:1", {"t": {"a": [1, 3], "b": [2, 4]}})
    assert by_row.table("t") == by_column.table("t")
    for bad in (None, "ab", [1], {"a": [1], "b": []}, {"a": 1}, {}):
        with pytest.raises(ReproError, match="expected a list of records"):
            Record("f:1", {"t": bad}).table("t")


def test_the_first_file_that_exists_is_read(tmp_path, monkeypatch):
    monkeypatch.setenv("REPROLIB_DATA", str(tmp_path))
    (tmp_path / "kind").mkdir()
    with pytest.raises(
        ReproError, match=r"no kind/a\.jsonl or kind/b\.jsonl in REPROLIB_DATA = .*: set REPROLIB_DATA"
    ):
        read(SOURCE)
    for name in ("b", "a"):
        (tmp_path / "kind" / f"{name}.jsonl").write_text(json.dumps({"name": name}))
        assert [r.fields["name"] for r in read(SOURCE)] == [name]
    (tmp_path / "kind" / "a.jsonl").write_text("\n")
    with pytest.raises(ReproError, match=r"kind/a\.jsonl has no records"):
        read(SOURCE)


def test_a_data_set_that_cannot_be_reached_says_how_to_give_a_folder(monkeypatch):
    datasets = pytest.importorskip("datasets")

    def offline(*_, **__):
        raise ConnectionError("no route")

    monkeypatch.delenv("REPROLIB_DATA", raising=False)
    monkeypatch.setattr(datasets, "load_dataset", offline)
    with pytest.raises(ReproError, match=r"no/such cannot be read \(ConnectionError\).*set REPROLIB_DATA"):
        read(SOURCE)


def test_without_the_package_that_reads_by_name_a_folder_is_asked_for(monkeypatch):
    monkeypatch.delenv("REPROLIB_DATA", raising=False)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ReproError, match=r"no package 'datasets'.*set REPROLIB_DATA"):
        read(SOURCE)
