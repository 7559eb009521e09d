"""Runs of the SAGE family on the micro tasks and models."""

import math

import numpy as np
import pytest

from reprolib import runs
from reprolib.errors import ReproError
from reprolib.runs import sage
from reprolib.runs.sage import SageSpec
from tests.runs.specs import dying

pytestmark = pytest.mark.usefixtures("runs_home")

FIELDS = {
    "paper": "sage", "study": "sst2", "arm": "x", "task": "sst2", "tier": "smoke", "seed": 0,
    "style": "masked", "model": "micro-masked", "method": "dp_aggzo", "num_directions": 3, "population": 20,
    "expected_batch_size": 4.0, "rounds": 4, "warmup": 2, "clip_norm": 1.0, "noise_multiplier": 1.0,
    "learning_rate": 1e-2, "evaluated": 8, "entropy": "research", "evaluation": ("evaluation",),
}  # fmt: skip
SCALED = ("sage", "late_floor", "precision", "james_stein", "smoothed_james_stein", "linear_decay")


def spec(**changes) -> SageSpec:
    return SageSpec(**FIELDS | changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"method": "mezo", "noise_multiplier": 0, "clip_norm": None},
        {"method": "dp_zo", "num_directions": 1}, {"method": "dpzero", "num_directions": 1}, {},
        {"method": "dp_adamw"},
        *({"shrinkage": name} for name in SCALED),
    ],
    ids=lambda changes: "-".join(str(v) for v in changes.values()) or "dp_aggzo",
)  # fmt: skip
def test_every_method_runs_and_its_ledger_has_its_rounds(changes):
    run = runs.load(runs.ensure(spec(**changes)))
    assert run.ledger.rounds == (0, 1, 2, 3)
    assert run.correct("evaluation").shape == (8,)
    assert not run.card().guarantee
    assert math.isinf(run.epsilon()) == (changes.get("method") == "mezo")


def test_shrinkage_costs_nothing_and_asks_the_model_nothing_more():
    plain, scaled = spec(), spec(shrinkage="sage")
    assert plain.plan() == scaled.plan()
    first, second = (runs.load(runs.ensure(s)) for s in (plain, scaled))
    assert first.epsilon() == second.epsilon()


def test_what_a_controller_observes_is_public_and_on_disk():
    run = runs.load(runs.ensure(spec(shrinkage="sage")))
    found = run.metrics
    assert list(found.columns) == ["round", "released_norm", "multiplier", "reliability", "energy"]
    assert (found["multiplier"][:2] == 1).all()  # the warm-up
    assert found["multiplier"].between(0.5, 1).all()


def test_the_budget_asked_for_is_the_budget_spent():
    run = runs.load(runs.ensure(spec(noise_multiplier=None, target_epsilon=6.0, entropy="private")))
    assert run.epsilon() == pytest.approx(6.0, rel=1e-3)
    assert run.card().guarantee


def test_a_killed_run_ends_where_the_uninterrupted_one_does():
    whole = runs.load(runs.ensure(spec(shrinkage="sage", score_at=(2,))))
    weights = (whole.directory / "adapter" / "model.safetensors").read_bytes()
    metrics = whole.metrics
    for path in [whole.directory]:
        path.rename(path.with_name("kept-aside"))
    with pytest.raises(KeyboardInterrupt):
        runs.ensure(spec(shrinkage="sage", score_at=(2,)), build=dying(sage.build, 3), checkpoint_every=2)
    again = runs.load(runs.ensure(spec(shrinkage="sage", score_at=(2,)), checkpoint_every=2))
    assert (again.directory / "adapter" / "model.safetensors").read_bytes() == weights
    assert again.metrics.equals(metrics)
    assert again.ledger.rounds == (0, 1, 2, 2, 3)  # the repeated round is counted again


def test_zero_shot_spends_nothing():
    changes = ("population", "expected_batch_size", "clip_norm", "noise_multiplier", "learning_rate")
    base = spec(method="base", rounds=0, num_directions=1, **dict.fromkeys(changes))
    run = runs.load(runs.ensure(base))
    assert run.epsilon() == 0
    assert base.plan() is None


def test_questions_have_an_f1_and_labels_have_none():
    run = runs.load(runs.ensure(spec(task="squad", style="causal", model="micro-causal")))
    assert ((run.values("evaluation") >= 0) & (run.values("evaluation") <= 1)).all()
    assert (run.correct("evaluation") <= run.values("evaluation")).all()
    with pytest.raises(ReproError, match="evaluation has no values"):
        runs.load(runs.ensure(spec())).values("evaluation")


def test_an_adapter_of_a_causal_model_is_trained_and_saved():
    run = runs.load(runs.ensure(spec(style="causal", model="micro-causal", train="adapter")))
    assert (run.directory / "adapter" / "adapter_model.safetensors").is_file()
    assert np.isfinite(run.metrics["released_norm"]).all()


def test_an_empty_round_is_a_round():
    run = runs.load(runs.ensure(spec(expected_batch_size=0.05, rounds=3, warmup=1)))
    assert run.ledger.rounds == (0, 1, 2)
    assert (run.metrics["released_norm"] > 0).all()  # noise alone


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_directions": 0}, "num_directions = 0"),
        ({"method": "dpzero"}, "method 'dpzero' has one"),
        ({"shrinkage": "sage", "warmup": 4}, "expected fewer rounds than the run's 4"),
        ({"method": "dp_adamw", "shrinkage": "sage"}, "only 'dp_aggzo' releases are scaled"),
        ({"method": "mezo"}, "method 'mezo' adds no noise"),
        ({"clip_norm": None}, "noise needs a clipping norm"),
        ({"noise_multiplier": None}, "expected exactly one of"),
        ({"expected_batch_size": 21.0}, "at most the population"),
        ({"rounds": 0}, "expected at least 1"),
        ({"evaluation": ("test",)}, "evaluation 'test'"),
        ({"target_epsilon": -1.0}, "target_epsilon"),
        ({"learning_rate": None}, "learning_rate is missing"),
        ({"score_at": (5,)}, "rounds from 1 to 4"),
    ],
)
def test_settings_that_make_no_run_are_named(changes, message):
    with pytest.raises(ReproError, match=message):
        spec(**changes)


def test_a_mu_that_the_weights_cannot_show_is_named_before_a_round_is_spent():
    blind = spec(scale=1e-12)
    with pytest.raises(ReproError, match="mu = 1e-12 moves"):
        runs.ensure(blind)
    assert runs.Run(runs.directory(blind), blind, {}).ledger.rounds == ()


def test_a_resumed_controller_with_other_settings_is_refused():
    from reprolib.learn.sage import ShrinkageController

    state = ShrinkageController(3, 0.5, warmup=2).state()
    for name, other in (("num_directions", (4, 0.5)), ("noise_std", (3, 0.6))):
        with pytest.raises(ReproError, match=f"has {name} ="):
            ShrinkageController(*other, warmup=2).restore(state)


def test_more_examples_than_there_are_is_an_error_that_says_how_many_there_are():
    with pytest.raises(ReproError, match="has 24 training examples"):
        runs.ensure(spec(population=49))
