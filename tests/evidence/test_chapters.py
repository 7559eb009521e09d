import json
import re
import shutil
import subprocess
import sys

import nbformat
import papermill
import pytest

from reprolib import paths
from reprolib.errors import ReproError
from reprolib.evidence import notebooks
from reprolib.evidence.chapters import Chapter
from tests import edition


def test_this_edition_has_the_foundations_and_the_ledger():
    assert notebooks.numbers() == list(edition.CHAPTERS)


def test_markdown_and_notebook_agree_cell_by_cell():
    assert notebooks.unpaired() == []


def test_a_pair_that_differs_is_noticed(tmp_path, monkeypatch, root):
    (tmp_path / "notebooks").mkdir()
    for suffix in (".md", ".ipynb"):
        shutil.copy(root / "notebooks" / f"01_privacy_units{suffix}", tmp_path / "notebooks")
    monkeypatch.setattr(notebooks, "root", lambda: tmp_path)
    assert notebooks.unpaired() == []
    path = tmp_path / "notebooks" / "01_privacy_units.md"
    path.write_text(path.read_text().replace("# 01 ·", "# 01 : "))
    assert notebooks.unpaired() == ["01_privacy_units"]
    path.unlink()
    assert notebooks.unpaired() == ["01_privacy_units"]


@pytest.mark.parametrize("number", notebooks.numbers())
def test_every_notebook_is_committed_without_outputs_and_with_the_python3_kernel(number):
    book = nbformat.read(notebooks.notebook(number), as_version=4)
    assert book.metadata.kernelspec.name == "python3"
    assert all(not c.get("outputs") and c.get("execution_count") is None for c in book.cells)


@pytest.mark.parametrize("number", notebooks.numbers())
def test_every_parameter_has_a_plain_type_and_a_help_text(number):
    declared = notebooks.parameters(notebooks.notebook(number))
    assert "tier" in declared
    for item in declared.values():
        assert item.type in notebooks.TYPES
        assert len(item.help) > 10, item


@pytest.mark.parametrize("number", notebooks.numbers())
def test_every_chapter_has_objectives_a_card_the_papermill_line_and_exercises(number):
    text = notebooks.notebook(number).with_suffix(".md").read_text()
    for piece in (":class: objectives", "papermill notebooks/", ":::{exercise}", "class: dropdown"):
        assert piece in text, piece
    assert re.search(r"\.card\(|PrivacyCard\(|privacy_card\(", text)
    assert text.count(":::{exercise}") == text.count("minutes.)*")


@pytest.mark.parametrize("number", notebooks.numbers())
def test_every_figure_has_a_caption_a_name_and_an_alt_text(number):
    for cell in nbformat.read(notebooks.notebook(number), as_version=4).cells:
        if cell.cell_type == "code" and "figures.subplots" in cell.source:
            meta = cell.metadata["mystnb"]
            assert meta["figure"]["caption"]
            assert meta["figure"]["name"].startswith("fig-")
            assert len(meta["image"]["alt"]) > 40
            assert cell.source.rstrip().endswith("figures.show()")


ACCOUNTING = notebooks.notebook("02")


def test_parameters_are_typed_as_declared():
    given = {"tier": "smoke", "target_epsilon": "4"}
    assert notebooks.check_parameters(ACCOUNTING, given) == {"tier": "smoke", "target_epsilon": 4.0}
    assert notebooks.check_parameters(ACCOUNTING, {"target_epsilon": "1e-1"}) == {"target_epsilon": 0.1}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"taget_epsilon": 4.0}, "has no parameter 'taget_epsilon'"),
        ({"target_epsilon": "four"}, "target_epsilon = 'four': expected float"),
        ({"target_epsilon": True}, "expected float"),
        ({"tier": 3}, "tier = 3: expected str"),
        ({"tier": "huge"}, "unknown tier 'huge'"),
    ],
)
def test_a_bad_parameter_is_an_error_that_lists_the_valid_ones(given, message):
    with pytest.raises(ReproError, match=message) as caught:
        notebooks.check_parameters(ACCOUNTING, given)
    if "tier 'huge'" not in message:
        assert "target_epsilon: float = 8.0" in str(caught.value)
        assert "budget to which" in str(caught.value)


def test_an_unknown_chapter_lists_the_chapters():
    with pytest.raises(ReproError, match="no chapter '99': the chapters are 01, 02"):
        notebooks.notebook("99")
    with pytest.raises(ReproError, match="no chapter"):
        notebooks.notebook("../x")


@pytest.mark.parametrize("keep", [0, 100, -30])
def test_a_truncated_notebook_is_one_clear_line(tmp_path, keep):
    path = tmp_path / "01_x.ipynb"
    path.write_bytes(ACCOUNTING.read_bytes()[:keep])
    with pytest.raises(ReproError, match="is not a complete notebook"):
        notebooks.read(path)
    with pytest.raises(ReproError, match="cannot read"):
        notebooks.read(tmp_path / "missing.ipynb")


def test_bad_parameters_stop_before_anything_is_written(tmp_path):
    output = tmp_path / "deep" / "out.ipynb"
    with pytest.raises(ReproError):
        notebooks.execute("02", {"nobody": 1}, output)
    assert list(tmp_path.iterdir()) == []


def test_a_cell_that_fails_names_the_cell_and_leaves_no_finished_notebook(tmp_path, monkeypatch):
    monkeypatch.setenv("REPROLIB_RESULTS", str(tmp_path / "results"))
    output = tmp_path / "out.ipynb"
    with pytest.raises(ReproError, match=r"chapter 02 failed in cell \d+: ReproError"):
        notebooks.execute("02", {"tier": "smoke", "target_epsilon": -1.0}, output)
    assert not output.exists()
    assert not (tmp_path / "results").exists()


def test_no_write_permission_is_one_clear_line(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(ReproError, match="cannot write"):
        notebooks.execute("40", {"tier": "smoke"}, blocked / "out.ipynb")


@pytest.mark.parametrize("number", notebooks.numbers())
def test_every_chapter_of_the_built_edition_ran_to_its_end(number, root):
    """`make test TIER=smoke` builds all of them at the smallest sizes first."""
    if edition.tier() is None:
        pytest.skip("the book is not built: run `make book`")
    executed = nbformat.read(
        root / "book" / "executed" / notebooks.notebook(number).name, as_version=nbformat.NO_CONVERT
    )
    cells = [c for c in executed.cells if c.cell_type == "code"]
    assert all(c.execution_count for c in cells if c.source.strip())
    assert not any(o.output_type == "error" for c in cells for o in c.outputs)
    result = json.loads((edition.RESULTS / f"{number}.json").read_text())
    assert result["parameters"]["tier"] == result["tier"]
    assert result["provenance"]["packages"]["dp-accounting"] == "0.6.0"


def test_papermill_alone_derives_the_chapter_at_another_budget(tmp_path, monkeypatch, root):
    monkeypatch.setenv("REPROLIB_RESULTS", str(tmp_path))
    papermill.execute_notebook(
        str(ACCOUNTING),
        str(tmp_path / "out.ipynb"),
        parameters={"tier": "smoke", "target_epsilon": 4.0},
        progress_bar=False,
        cwd=str(tmp_path),
    )
    (variant,) = (tmp_path / "variants").glob("02-*.json")
    result = json.loads(variant.read_text())
    assert result["parameters"] == {"tier": "smoke", "target_epsilon": 4.0}
    assert 3.999 < result["values"]["epsilon"] <= 4.0
    assert not (tmp_path / "02.json").exists()


def test_a_chapter_records_only_claims_that_it_has_to_measure(monkeypatch, tmp_path):
    monkeypatch.setenv("REPROLIB_RESULTS", str(tmp_path))
    chapter = Chapter("03", tier="micro")
    with pytest.raises(ReproError, match="has no measured claim"):
        chapter.measure("dp_grpo.nobody", True)
    chapter.measure("dp_grpo.s_vi_b.lemma_1", True, detail="seen")
    assert chapter.measured["dp_grpo.s_vi_b.lemma_1"].detail == "seen"


def test_changed_parameters_stay_out_of_the_ledger_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("REPROLIB_RESULTS", str(tmp_path))
    assert Chapter("03", tier="small", seed=3).results == tmp_path / "03.json"
    changed = Chapter("03", tier="small", seed=4)
    assert changed.results.parent == tmp_path / "variants"
    assert "outside the ledger" in changed.finish()._repr_html_()


def test_sources_of_a_chapter_are_the_modules_it_imports_and_no_others(root):
    names = {str(p.relative_to(root)) for p in notebooks.sources("02")}
    assert "reprolib/privacy/accounting.py" in names
    assert "reprolib/evidence/checks/sage.py" in names
    assert "reprolib/cli.py" not in names
    assert "reprolib/privacy/mechanism.py" not in names


def test_sources_hash_changes_with_a_source(monkeypatch, root):
    before = notebooks.sources_hash("02")
    monkeypatch.setattr(notebooks, "sources", lambda number: [])
    assert notebooks.sources_hash("02") != before


def test_an_interrupted_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "x.json"
    paths.write_atomically(path, "old")

    def fail(self, target):
        raise OSError("disk full")

    monkeypatch.setattr("pathlib.Path.replace", fail)
    with pytest.raises(ReproError, match=r"cannot write .*disk full"):
        paths.write_atomically(path, "new")
    assert path.read_text() == "old"


def test_command_line_prints_one_line_and_status_2():
    for arguments, message in [
        (["chapter", "99"], "no chapter '99'"),
        (["chapter", "02", "-p", "nobody=1"], "has no parameter 'nobody'"),
        (["chapter", "02", "-p", "nobody"], "expected NAME=VALUE"),
        (["chapter", "02", "--tier", "huge"], "unknown tier 'huge'"),
        (["claims", "--status", "perhaps"], "unknown status 'perhaps'"),
        (["claims", "--paper", "nobody"], "unknown paper 'nobody'"),
    ]:
        done = subprocess.run(
            [sys.executable, "-m", "reprolib.cli", *arguments], capture_output=True, text=True, check=False
        )
        assert done.returncode == 2, arguments
        assert message in done.stderr
        assert "Traceback" not in done.stderr


def test_doctor_lists_tiers_and_what_is_missing():
    done = subprocess.run(
        [sys.executable, "-m", "reprolib.cli", "doctor"], capture_output=True, text=True, check=True
    )
    for word in ("tier micro", "tier small", "tier paper", "GPU", "vLLM", "cores"):
        assert word in done.stdout


def test_claims_json_has_a_record_for_every_claim():
    done = subprocess.run(
        [sys.executable, "-m", "reprolib.cli", "claims", "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    records = json.loads(done.stdout)
    assert len(records) > 700
    assert {"id", "status", "published", "value", "where"} <= set(records[0])
