import hashlib
import json
import subprocess
import sys

import pytest

from reprolib import runs
from reprolib.errors import ReproError
from reprolib.runs import release
from tests.runs.specs import base, spec

ADAPTER = {"adapter_config.json", "adapter_model.safetensors"}
PAGES = {release.CARD, release.MODEL_CARD, release.LICENCES, release.SUMS}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A private run of the real trainer on the micro model."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REPROLIB_RUNS", str(tmp_path_factory.mktemp("runs")))
        wanted = spec(method="gold_sft", evaluation=("selection",), score_at=(2,))
        return runs.load(runs.ensure(wanted))


@pytest.fixture(scope="module")
def released(trained, tmp_path_factory):
    return release.write(trained, tmp_path_factory.mktemp("out") / "adapter")


def test_a_release_holds_weights_cards_licences_and_checksums_and_nothing_else(released):
    assert {p.name for p in released.iterdir()} == ADAPTER | PAGES
    for line in (released / release.SUMS).read_text().splitlines():
        checksum, name = line.split("  ")
        assert hashlib.sha256((released / name).read_bytes()).hexdigest() == checksum


def test_no_file_of_a_release_holds_private_values_or_a_path(released, trained, root):
    secret = {
        "reward",
        "response",
        "completion_text",
        "batch_sizes",
        "norms",
        "generator",
        "seconds",
        "ledger.jsonl",
    }
    texts = {p.name: p.read_text() for p in released.iterdir() if p.suffix in release.TEXT}
    for name, text in texts.items():
        assert not {word for word in secret if f'"{word}"' in text}, name
        assert str(root) not in text
        assert str(trained.directory.parent) not in text
    answers = set(trained.predictions["response"]) - {""}
    assert answers
    assert not [a for a in answers if len(a) > 8 and any(a in text for text in texts.values())]


def test_the_card_counts_what_the_ledger_does(released, trained):
    card = json.loads((released / release.CARD).read_text())
    assert card["guarantee"]
    assert card["epsilon"] == pytest.approx(trained.epsilon())


def test_the_adapter_loads_through_peft_in_a_fresh_process_and_answers_as_recorded(released, trained, root):
    code = """
import sys
from pathlib import Path
from peft import PeftModel
from dataclasses import replace
from reprolib import runs
from reprolib.lm import models
from reprolib.lm.generate import TransformersEngine
from reprolib.learn.records import prompt_reader
from reprolib.runs import dp_grpo
from reprolib.tasks import datasets
spec = runs.read_spec(Path(sys.argv[1]))
base = models.load(spec.model)
policy = replace(base, model=PeftModel.from_pretrained(base.model, sys.argv[2]).eval())
task = replace(datasets.load(spec.task, tier=spec.tier), max_new_tokens=spec.max_new_tokens)
engine, prompts = TransformersEngine(policy), prompt_reader(policy, task)
rows = dp_grpo._score(spec, policy, engine, task, task.selection, prompts)
print(sum(row["strict"] for row in rows) / len(rows))
"""
    where = trained.directory / "spec.json"
    command = [sys.executable, "-c", code, where, released]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    recorded = release.scores(trained)["selection"]["accuracy"]
    assert float(done.stdout.split()[-1]) == recorded
    assert f"{100 * recorded:.2f} %" in (released / release.MODEL_CARD).read_text()


def test_a_run_with_replayable_noise_is_released_only_as_not_private(builds, runs_home, tmp_path):
    wanted = spec(entropy="research", method="gold_sft", evaluation=("selection",))
    run = runs.load(runs.ensure(wanted))
    with pytest.raises(ReproError, match=r"not a guarantee: the noise can be replayed.*--not-private"):
        release.write(run, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    where = release.write(run, tmp_path / "out", not_private=True)
    assert "**Not private.**" in (where / release.MODEL_CARD).read_text()
    assert not json.loads((where / release.CARD).read_text())["guarantee"]


def test_a_private_run_is_not_called_otherwise(trained, tmp_path):
    with pytest.raises(ReproError, match="is private: release it without"):
        release.write(trained, tmp_path / "out", not_private=True)


def test_the_base_an_unfinished_run_and_an_old_target_are_refused(builds, runs_home, trained, tmp_path):
    with pytest.raises(ReproError, match="not trained, so it has no card"):
        release.write(runs.load(runs.ensure(base(), build=builds())), tmp_path / "out")
    with pytest.raises(KeyboardInterrupt):
        runs.ensure(spec(), build=builds(die_after=2))
    with pytest.raises(ReproError, match="holds no finished run"):
        runs.load(runs.directory(spec()))
    with pytest.raises(ReproError, match="exists: name a new directory"):
        release.write(trained, tmp_path)


def test_weights_that_changed_since_the_run_are_not_released(trained, tmp_path, monkeypatch):
    path = trained.directory / "adapter" / "adapter_model.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    try:
        with pytest.raises(ReproError, match="is not what the run wrote"):
            release.write(trained, tmp_path / "out")
    finally:
        path.write_bytes(content)
    assert not (tmp_path / "out").exists()


def test_a_path_of_this_machine_is_never_released(trained, tmp_path, monkeypatch):
    monkeypatch.setattr(release, "_licences", lambda run: str(run.directory))
    with pytest.raises(ReproError, match="a path of this machine"):
        release.write(trained, tmp_path / "out")
