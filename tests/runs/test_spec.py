import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reprolib.errors import ReproError
from reprolib.paths import root
from reprolib.runs.dp_grpo import GrpoSpec
from reprolib.runs.spec import directory
from tests.runs.specs import FIELDS, base, spec


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"target_epsilon": 0, "noise_multiplier": None},
            r"target_epsilon = 0: expected greater than 0",
        ),
        ({"target_epsilon": -1.0, "noise_multiplier": None}, r"target_epsilon = -1.0: expected"),
        ({"target_epsilon": 8.0}, "exactly one of noise_multiplier and target_epsilon"),
        ({"noise_multiplier": None}, "exactly one of noise_multiplier and target_epsilon"),
        ({"noise_multiplier": math.nan}, "noise_multiplier = nan"),
        ({"group_size": 1}, "group_size = 1: GRPO .*at least 2"),
        ({"expected_batch_size": 41}, r"expected_batch_size = 41.0: expected at most the population, 40"),
        ({"population": 0}, "population = 0: expected"),
        ({"population": None}, "population is missing"),
        ({"rounds": 0}, "rounds = 0: expected at least 1"),
        ({"clip_norm": None}, "noise needs a clipping norm"),
        ({"clip_norm": math.inf}, "clip_norm = inf"),
        ({"learning_rate": None}, "learning_rate is missing"),
        ({"delta": 1.0}, "delta = 1.0: expected"),
        ({"method": "ppo"}, "method = 'ppo': expected 'base', 'grpo'"),
        ({"advantage": "both"}, "advantage = 'both'"),
        ({"method": "gold_sft", "advantage": "zero"}, "only method 'grpo' has an advantage"),
        ({"tier": "huge"}, "tier = 'huge': expected 'smoke', 'micro', 'small' or 'paper'"),
        ({"unit": "token"}, "unit = 'token'"),
        ({"entropy": "seeded"}, "entropy = 'seeded'"),
        ({"score_at": (6,)}, r"score_at = 6: expected rounds from 1 to 5"),
        ({"canaries": 41}, "canaries = 41: expected at most the population, 40"),
        ({"evaluation": ()}, "at least one evaluation set"),
        ({"arm": "../x"}, r"arm = '../x'"),
        ({"seed": -1}, "seed = -1"),
        ({"epsilon": 8}, "unknown field 'epsilon'; the fields are paper, study, arm"),
    ],
)
def test_a_bad_spec_is_refused_in_one_line_that_names_the_run_and_the_field(changes, message):
    with pytest.raises(ReproError, match=message) as caught:
        spec(**changes)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(f"{changes.get('arm', 'dp_grpo')}-math: ")


def test_a_missing_field_is_named():
    with pytest.raises(ReproError, match="model is missing"):
        GrpoSpec(**{k: v for k, v in FIELDS.items() if k != "model"})


def test_the_untrained_base_takes_no_rounds_and_no_noise_and_has_no_plan():
    with pytest.raises(ReproError, match="trains nothing"):
        base(rounds=3)
    assert base().plan() is None
    assert base().scored_rounds == (0,)


def test_delta_is_a_tenth_of_one_over_the_population_unless_given():
    assert spec().plan().delta == 1 / 400
    assert spec(delta=1e-6).plan().delta == 1e-6


def test_a_budget_becomes_the_noise_that_spends_it():
    plan = spec(noise_multiplier=None, target_epsilon=2.0).plan()
    assert 2 - 1e-6 < plan.epsilon() <= 2


def test_no_clipping_is_an_infinite_norm_and_no_guarantee():
    plan = spec(clip_norm=None, noise_multiplier=0).plan()
    assert plan.clip_norm == math.inf
    assert not plan.card().guarantee


def test_the_unit_of_the_plan_is_that_of_the_spec():
    assert spec().plan().unit.startswith("one prompt")
    assert spec(unit="contributor").plan().unit.startswith("one contributor")


def test_changing_the_budget_replaces_the_noise_and_is_checked_again():
    changed = spec().changed(target_epsilon=4.0)
    assert (changed.noise_multiplier, changed.target_epsilon) == (None, 4.0)
    assert changed.changed(noise_multiplier=0.0).target_epsilon is None
    with pytest.raises(ReproError, match="group_size"):
        spec().changed(group_size=1)


@given(
    field=st.sampled_from([
        ("seed", 2), ("rounds", 6), ("clip_norm", 0.51), ("noise_multiplier", 1.2), ("learning_rate", 2e-3),
        ("group_size", 4), ("temperature", 1.0), ("kl_weight", 0.04), ("advantage", "zero"),
        ("entropy", "research"), ("unit", "contributor"), ("score_at", (2,)), ("canaries", 3),
        ("model", "other"), ("delta", 1e-4), ("max_new_tokens", 8), ("evaluation", ("math", "selection")),
    ])
)  # fmt: skip
def test_whatever_changes_a_result_changes_the_directory(field):
    name, value = field
    assert spec(**{name: value}).name != spec().name


def test_two_studies_share_a_run_that_is_the_same():
    assert directory(spec(study="design")) == directory(spec())


def test_the_directory_is_under_the_repository_unless_an_environment_variable_moves_it(monkeypatch, tmp_path):
    monkeypatch.delenv("REPROLIB_RUNS", raising=False)
    where = directory(spec())
    assert where.parent == root() / "runs" / "smoke" / "dp_grpo"
    assert where.name.startswith("grpo-math-seed1-")
    monkeypatch.setenv("REPROLIB_RUNS", str(tmp_path))
    assert directory(spec()) == tmp_path / "smoke" / "dp_grpo" / where.name
