from dataclasses import replace

import pandas as pd
import pytest

from reprolib import runs
from reprolib.errors import ReproError
from reprolib.runs import keeping
from tests.runs.specs import spec
from tests.runs.test_privdpo import spec as private_pairs

pytestmark = pytest.mark.usefixtures("runs_home")


def in_tier(run, tier):
    """The run under another tier's name, so that a test need not train a large one."""
    return replace(run, spec=run.spec.model_copy(update={"tier": tier}))


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setattr(keeping, "root", lambda: tmp_path)
    return tmp_path


def test_a_kept_run_has_scores_ledger_and_provenance_but_no_text_and_no_weights(home, builds):
    run = runs.load(runs.ensure(spec(tier="small"), build=builds()))
    where = keeping.keep(run)
    assert where == home / "data" / "results" / "small" / "dp_grpo" / run.spec.name
    assert {p.name for p in where.iterdir()} == {*keeping.FILES, "predictions.parquet", "provenance.json"}
    again = runs.load(where)
    assert again.correct("math").tolist() == run.correct("math").tolist()
    assert again.epsilon() == run.epsilon()
    assert "response" not in pd.read_parquet(where / "predictions.parquet")


def test_scores_of_training_records_are_not_kept_for_their_signs_are_the_annotations(home):
    names = ("pairs", "attack_training")
    run = runs.load(runs.ensure(private_pairs("privdpo", tier="smoke", evaluation=names)))
    assert set(run.predictions["evaluation"]) == set(names)
    kept = pd.read_parquet(keeping.keep(in_tier(run, "micro")) / "predictions.parquet")
    assert set(kept["evaluation"]) == {"pairs"}
    assert len(kept) == len(run.values("pairs"))


def test_keeping_again_replaces(home, builds):
    run = runs.load(runs.ensure(spec(tier="small"), build=builds()))
    (keeping.keep(run) / "spec.json").write_text("{}")
    assert runs.load(keeping.keep(run)).spec == run.spec


def test_what_a_study_still_has_to_make_is_left_out(home, builds, monkeypatch):
    both = [spec(tier="small"), spec(tier="small", seed=2)]
    monkeypatch.setattr(keeping, "grid", lambda *_: both)
    assert keeping.kept("dp_grpo", "small", "math") == []
    for one, number in zip(both, (1, 2), strict=True):
        keeping.keep(runs.load(runs.ensure(one, build=builds())))
        assert [run.spec for _, run in keeping.kept("dp_grpo", "small", "math")] == both[:number]


def test_a_smoke_run_is_refused(home, builds):
    with pytest.raises(ReproError, match="smoke run"):
        keeping.keep(runs.load(runs.ensure(spec(tier="smoke"), build=builds())))
