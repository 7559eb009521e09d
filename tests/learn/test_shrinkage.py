"""Theory of a scaled update, the bias of the floor, and the estimators beside the paper's."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reprolib.errors import ReproError
from reprolib.learn import shrinkage, shrinkage_study
from reprolib.learn.sage import ShrinkageController
from reprolib.learn.shrinkage import JamesStein, LateFloor, OneStep, PrecisionWeighted, SmoothedJamesStein

# --- equations 8 and 16 to 18


@settings(max_examples=20, deadline=None)
@given(st.lists(st.floats(-5, 5), min_size=1, max_size=20), st.floats(0.01, 5), st.integers(0, 99))
def test_the_noise_adds_its_variance_to_the_mean_energy(signal, noise_std, seed):
    u, draws = np.array(signal), 20_000
    noise = noise_std * np.random.default_rng(seed).standard_normal((draws, len(u)))
    energies = ((u + noise) ** 2).mean(1)
    error = 5 * energies.std() / math.sqrt(draws)
    assert abs(energies.mean() - shrinkage.expected_energy(u, noise_std)) < error


CURVATURES, THETA = np.array([2.0, 1.0, 0.5]), np.array([0.5, -0.4, 1.0])


def one_step(curvatures, **changes) -> OneStep:
    gradient = curvatures * THETA
    given = {
        "signal": float(gradient @ gradient), "dimension": 3, "num_directions": 4, "noise_std": 0.3,
        "learning_rate": 0.1, "smoothness": float(curvatures.max()),
    }  # fmt: skip
    return OneStep(**given | changes)


def measured(curvatures, multiplier, step: OneStep, seed=0):
    return shrinkage.measured_change(
        curvatures, THETA, num_directions=step.num_directions, noise_std=step.noise_std,
        learning_rate=step.learning_rate, multiplier=multiplier, draws=60_000, seed=seed,
    )  # fmt: skip


@pytest.mark.parametrize("multiplier", [0.3, 1.0, 2.0])
@pytest.mark.parametrize(("directions", "noise_std"), [(1, 0.0), (1, 0.5), (16, 0.1)])
def test_the_bound_is_attained_where_all_curvatures_are_the_lipschitz_constant(
    multiplier, directions, noise_std
):
    equal = np.full(3, 2.0)
    step = one_step(equal, num_directions=directions, noise_std=noise_std)
    change, error = measured(equal, multiplier, step)
    assert change == pytest.approx(step.bound(multiplier), abs=4 * error)


@pytest.mark.parametrize("multiplier", [0.3, 1.0, 2.0])
def test_measured_descent_stays_below_the_bound(multiplier):
    step = one_step(CURVATURES)
    change, error = measured(CURVATURES, multiplier, step)
    assert change < step.bound(multiplier) - 4 * error


def test_the_oracle_multiplier_descends_most_on_a_problem_where_the_bound_is_exact():
    equal = np.full(3, 2.0)
    step = one_step(equal)
    best = step.oracle_multiplier()
    found = {m: measured(equal, m * best, step) for m in (0.6, 1.0, 1.4)}
    for m in (0.6, 1.4):
        assert found[1.0][0] + 3 * (found[1.0][1] + found[m][1]) < found[m][0]


def test_the_oracle_multiplier_falls_with_the_noise():
    multipliers = [one_step(CURVATURES, noise_std=tau).oracle_multiplier() for tau in (0.0, 0.1, 1.0, 10.0)]
    assert multipliers == sorted(multipliers, reverse=True)


# --- the bias of the floor


@pytest.mark.parametrize(("k", "ratio"), [(64, 7.8), (16, 7.8), (64, 20.0), (16, 20.0), (1, 3.0)])
def test_the_bias_by_quadrature_is_the_bias_by_simulation(k, ratio):
    estimate, error = shrinkage.simulated_energy_bias(k, ratio, draws=100_000, seed=1)
    assert estimate == pytest.approx(shrinkage.energy_bias(k, ratio), abs=4 * error)


def test_the_floor_adds_most_where_noise_dominates_and_directions_are_few():
    assert shrinkage.energy_bias(64, 7.8) == pytest.approx(0.22, abs=0.01)
    assert shrinkage.energy_bias(16, 7.8) == pytest.approx(0.74, abs=0.01)
    assert shrinkage.energy_bias(64, 20) > 1
    assert shrinkage.energy_bias(64, 0.5) < 1e-6
    assert shrinkage.energy_bias(64, 7.8, relative_floor=0.1) > shrinkage.energy_bias(64, 7.8)


@pytest.mark.parametrize(("k", "ratio"), [(0, 1.0), (4, 0.0), (4, math.inf)])
def test_a_bias_is_refused_for_a_ratio_out_of_range(k, ratio):
    with pytest.raises(ReproError, match="noise_to_signal"):
        shrinkage.energy_bias(k, ratio)


# --- other estimators


def tracked(controller, ratio, *, k, rounds=3000, seed=0):
    """Mean tracked energy over the true one, for a steady signal at this noise-to-signal ratio; tau is 1."""
    generator = np.random.default_rng(seed)
    energies = []
    for _ in range(rounds):
        controller.update(torch.from_numpy(1 / math.sqrt(ratio) + generator.standard_normal(k)))
        energies.append(controller.energy)
    return float(np.mean(energies[rounds // 2 :])) * ratio


def test_a_late_floor_removes_the_bias_that_the_early_floor_has():
    assert tracked(ShrinkageController(16, 1.0), 7.8, k=16) == pytest.approx(1.74, abs=0.12)
    assert tracked(LateFloor(16, 1.0), 7.8, k=16) == pytest.approx(1.0, abs=0.12)


def test_without_noise_the_floors_agree():
    early, late = ShrinkageController(4, 0.0, warmup=2), LateFloor(4, 0.0, warmup=2)
    for s in torch.randn(20, 4, generator=torch.Generator().manual_seed(0)):
        assert early.update(s) == late.update(s)


def test_more_directions_make_the_averaging_rate_of_the_precision_rule_faster():
    moves = []
    for k in (4, 64, 1024):
        made = PrecisionWeighted(k, 1.0, warmup=20)
        for _ in range(300):  # each release has the same energy, 1, once the floor is removed
            made.update(torch.full((k,), math.sqrt(2)))
        made.update(torch.full((k,), math.sqrt(3)))
        moves.append(made.energy - 1)
    assert moves == sorted(moves)
    assert moves[0] > 0
    assert moves[-1] < 1


def test_james_stein_is_the_positive_part_rule_and_beats_the_release_for_every_signal():
    made = JamesStein(10, 1.0)
    s = torch.full((10,), 2.0, dtype=torch.float64)
    assert made.update(s) == pytest.approx(1 - 8 / 40)
    assert made.update(0.1 * s) == 0
    assert made.update(0 * s) == 0
    for size in (0.0, 0.5, 2.0):
        u = np.full(10, size)
        releases = u + np.random.default_rng(0).standard_normal((4000, 10))
        shrunk = np.array([made.update(torch.from_numpy(row)) for row in releases])[:, None] * releases
        assert ((shrunk - u) ** 2).mean() < ((releases - u) ** 2).mean()


def test_the_smoothed_rule_shrinks_from_the_first_release_on():
    made = SmoothedJamesStein(4, 1.0)
    assert made.update(torch.full((4,), 2.0)) == pytest.approx(3 / 4)


def test_estimators_refuse_what_they_cannot_use():
    with pytest.raises(ReproError, match="at least 3"):
        JamesStein(2, 1.0)
    with pytest.raises(ReproError, match="drift"):
        PrecisionWeighted(4, 1.0, drift=0.0)


# --- the comparison


def test_shrinkage_lowers_the_vector_error_but_not_once_a_constant_is_free():
    """At a constant ratio a tuned constant is the oracle: what is left to gain by tracking is nothing."""
    table = shrinkage_study.vector_errors(num_directions=64, noise_to_signal=(7.8, 7.8), seeds=range(4))
    means = table.groupby("controller")[["reduction", "tracking"]].mean()
    assert means.loc["none", "reduction"] == 0
    assert means.loc["oracle", "reduction"] == pytest.approx(100 * 7.8 / 8.8, abs=1)
    assert (means["tracking"] < 0.1).all()
    assert means.loc["sage", "reduction"] > 0
    assert (means["reduction"] <= means.loc["oracle", "reduction"] + 0.5).all()


def test_every_controller_sees_the_same_seeds_and_the_best_rate_is_chosen_on_others():
    table = shrinkage_study.quadratic_utility(
        num_directions=8, noise_to_signal=3.0, learning_rates=(0.001, 0.1), seeds=range(4), rounds=80,
        controllers=("none", "sage"),
    )  # fmt: skip
    assert len(table) == 2 * 2 * 4
    again = shrinkage_study.quadratic_utility(
        num_directions=8,
        noise_to_signal=3.0,
        learning_rates=(0.1,),
        seeds=[2],
        rounds=80,
        controllers=("none",),
    )
    same = table[(table.controller == "none") & (table.learning_rate == 0.1) & (table.seed == 2)]
    assert same["loss"].to_list() == again["loss"].to_list()
    kept = shrinkage_study.held_out(table)
    assert set(kept["seed"]) == {2, 3}
    assert set(kept["learning_rate"]) == {0.1}
    assert kept["edge"].all()
    assert (kept["loss"] < 0.6).all()


def test_the_study_refuses_unknown_controllers_and_a_single_seed():
    with pytest.raises(ReproError, match="'adam'"):
        shrinkage_study.vector_errors(
            num_directions=4, noise_to_signal=(1, 1), seeds=[0], controllers=["adam"], rounds=60
        )
    table = shrinkage_study.quadratic_utility(
        num_directions=4,
        noise_to_signal=1.0,
        learning_rates=(0.1,),
        seeds=[0],
        rounds=2,
        controllers=["none"],
    )
    with pytest.raises(ReproError, match="at least two"):
        shrinkage_study.held_out(table)
