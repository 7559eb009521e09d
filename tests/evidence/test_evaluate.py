"""Contrasts of arms, on runs whose answers are made up."""

from types import SimpleNamespace

import numpy as np
import pytest

from reprolib import runs
from reprolib.errors import ReproError
from reprolib.evidence import stats
from reprolib.evidence.evaluate import Arms, table


def run(arm, seed, rate, problems=400):
    """A run that solves the first ``rate`` of the problems, and a few more that depend on its seed."""
    solved = np.zeros(problems, dtype=np.int64)
    solved[: int(rate * problems)] = 1
    solved[-seed:] = 1
    spec = SimpleNamespace(arm=arm, seed=seed)
    return SimpleNamespace(spec=spec, correct=lambda evaluation, scorer, after=None: solved)


@pytest.fixture(scope="module")
def arms():
    endpoints = runs.experiment("dp_grpo").endpoints.model_copy(
        update={"bootstrap_draws": 2000, "randomization_draws": 2000}
    )
    found = {
        "base": [run("base", 1, 0.5)],
        "dp_grpo": [run("dp_grpo", s, 0.6) for s in (1, 2, 3, 4)],
        "control": [run("control", s, 0.5) for s in (1, 2, 3, 4)],
        "gold": [run("gold", s, 0.55) for s in (1, 2)],
    }
    return Arms(found, endpoints)


def test_a_contrast_pairs_the_seeds_that_both_arms_have(arms):
    found = arms.compare("dp_grpo", "gold", "math")
    assert found.contrast.seeds == (2, 2)
    assert found.per_seed == pytest.approx((5.0, 5.0))
    assert found.contrast.difference == pytest.approx(5.0)


def test_the_base_is_compared_with_every_seed(arms):
    found = arms.compare("dp_grpo", "base", "math")
    assert found.contrast.seeds == (4, 1)
    assert len(found.per_seed) == len(found.mcnemar) == 4


def test_the_row_holds_the_package_statistics(arms):
    found = arms.compare("dp_grpo", "control", "math")
    a, b = arms.correct("dp_grpo", "math"), arms.correct("control", "math")
    assert found.mcnemar == pytest.approx(
        stats.holm([stats.mcnemar_exact(x, y) for x, y in zip(a, b, strict=True)])
    )
    assert found.contrast == stats.paired_contrast(a, b, draws=2000, seed=arms.endpoints.statistics_seed)
    assert table([found]).loc[0, "difference"] == found.contrast.difference


def test_a_part_of_the_problems_is_compared_by_itself(arms):
    where = np.arange(400) >= 200
    found = arms.compare("dp_grpo", "control", "math", where=where)
    assert found.contrast.problems == 200
    assert found.contrast.difference == pytest.approx(20.0)


def test_chosen_seeds_are_compared_alone(arms):
    assert arms.compare("dp_grpo", "control", "math", seeds=(1, 2)).contrast.seeds == (2, 2)
    assert arms.compare("dp_grpo", "base", "math", seeds=(2,)).contrast.seeds == (1, 1)


def test_an_unknown_arm_or_a_pair_without_common_seeds_is_named(arms):
    with pytest.raises(ReproError, match="no arm 'sage'"):
        arms.compare("dp_grpo", "sage", "math")
    with pytest.raises(ReproError, match="no seed in common"):
        arms.compare("dp_grpo", "gold", "math", seeds=(3, 4))
