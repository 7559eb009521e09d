"""A run beside its clean vector, and what is read off it."""

import math
from dataclasses import replace

import numpy as np
import pytest

from reprolib.errors import ReproError
from reprolib.learn import shrinkage_study, shrinkage_trace
from reprolib.learn.sage import ShrinkageController
from reprolib.learn.shrinkage import LinearDecay
from reprolib.privacy.mechanism import EntropySource
from reprolib.privacy.plan import Plan

PLAN = Plan(
    unit="one example", population=200, expected_batch_size=32, rounds=30, clip_norm=0.4,
    noise_multiplier=1.0, delta=1e-5,
)  # fmt: skip


def loop_of(controller=None, **changes):
    problem = shrinkage_study.Classes(200, seed=3)
    settings = {"num_directions": 8, "learning_rate": 0.1, "seed": 3, "controller": controller} | changes
    return problem, problem.loop(PLAN, **settings)


def watched(controller=None, **changes):
    return shrinkage_trace.watch(loop_of(controller, **changes)[1])


def shrinking(warmup=5):
    return ShrinkageController.for_plan(PLAN, num_directions=8, warmup=warmup)


def test_watching_a_run_changes_neither_its_releases_nor_its_weights():
    alone, loop = loop_of(shrinking())
    releases = [loop.step().numpy() for _ in range(PLAN.rounds)]
    seen, other = loop_of(shrinking())
    trace = shrinkage_trace.watch(other)
    np.testing.assert_array_equal(trace.released, releases)
    assert alone.model.weight.tolist() == seen.model.weight.tolist()
    assert other.rounds_done == PLAN.rounds


def test_a_watched_run_releases_its_clean_vector_plus_the_plans_noise():
    traces = [watched(seed=s, num_directions=32) for s in range(4)]
    noise = np.concatenate([t.released - t.clean for t in traces]) / PLAN.noise_std
    assert traces[0].noise_std == PLAN.noise_std
    assert (noise**2).mean() == pytest.approx(1, abs=5 * math.sqrt(2 / noise.size))
    assert traces[0].clean.shape == (PLAN.rounds, 32)
    assert (np.linalg.norm(traces[0].clean, axis=1) > 0).all()


def test_a_controller_changes_no_coin_no_noise_and_no_number_of_losses_of_a_run():
    (first, loop), (second, other) = loop_of(), loop_of(shrinking())
    plain, scaled = shrinkage_trace.watch(loop), shrinkage_trace.watch(other)
    assert all(np.array_equal(a, b) for a, b in zip(plain.coins, scaled.coins, strict=True))
    np.testing.assert_allclose(plain.released - plain.clean, scaled.released - scaled.clean, atol=1e-12)
    assert first.evaluations == second.evaluations == 2 * 8 * sum(map(len, plain.coins))
    assert scaled.multiplier.min() < 1
    assert (plain.multiplier == 1).all()
    assert np.isnan(plain.energy).all()


def test_a_loop_with_private_noise_cannot_be_watched():
    _, loop = loop_of()
    loop.entropy = EntropySource.private()
    with pytest.raises(ReproError, match="a loop with private noise: its clean vector is private too"):
        shrinkage_trace.watch(loop)


def test_a_loop_that_does_not_move_along_directions_cannot_be_watched():
    _, loop = loop_of()
    loop.update = object()
    with pytest.raises(ReproError, match="a loop of GaussianSum and object: expected"):
        shrinkage_trace.watch(loop)


def test_a_public_clipping_norm_is_passed_by_a_tenth_of_the_records():
    problem = shrinkage_study.Classes(400, seed=1)
    norm = problem.clip_norm(num_directions=8)
    (rows,) = problem.record_map(num_directions=8, seed=0)[0].vectors(range(400))
    assert int((rows.norm(dim=1) > norm).sum()) == 40


def test_the_ratio_from_the_releases_alone_is_the_true_one_where_the_floored_energy_is_not():
    _, released = shrinkage_trace.fading((7.8, 7.8), num_directions=64, rounds=20_000, seed=0)
    norms = np.linalg.norm(released, axis=1)
    assert shrinkage_trace.released_ratio(norms, num_directions=64, noise_std=1.0) == pytest.approx(
        7.8, rel=0.05
    )
    floored = np.maximum((released**2).mean(1) - 1, 1e-8).mean()
    assert 1 / floored < 0.9 * 7.8
    silent = np.full(10, 0.5)
    assert shrinkage_trace.released_ratio(silent, num_directions=64, noise_std=1.0) == math.inf


def test_where_noise_is_negligible_the_tracked_energy_is_the_clean_one_under_every_reading():
    clean, noisy = shrinkage_trace.fading((1.0, 1.0), num_directions=16, rounds=100, seed=0)
    clean *= np.linspace(1, 2, 100)[:, None]
    made = ShrinkageController(16, 1e-6, warmup=10, beta=1.0)
    trace = shrinkage_trace.controlled(made, clean, clean + 1e-6 * (noisy - clean))
    found = shrinkage_trace.diagnose(trace, smoothing=1)
    assert trace.noise_std == 1e-6
    assert found["reliability, late"] == pytest.approx(1)
    assert found["mean absolute error over mean energy, %"] == pytest.approx(0, abs=1e-3)
    assert found["correlation of tracked and clean"] == pytest.approx(1)
    readings = shrinkage_trace.calibration(trace, window=50)
    assert len(readings) == 6
    assert (readings.filter(like="/") < 1e-3).all(axis=None)
    assert readings["correlation"].min() == pytest.approx(1)


def test_an_error_of_a_calibration_is_that_of_a_known_offset():
    """A statistic that is too high by a constant has equal mean absolute and root mean square errors."""
    clean, _ = shrinkage_trace.fading((1.0, 4.0), num_directions=16, rounds=110, seed=0)
    trace = shrinkage_trace.controlled(ShrinkageController(16, 1e-9, warmup=10), clean, clean)
    energy = (clean**2).mean(1)
    readings = shrinkage_trace.calibration(replace(trace, energy=energy + 0.1)).set_index("reading")
    row = readings.loc["tracked, every round"]
    assert row["absolute / mean"] == pytest.approx(10 / energy[10:].mean())
    assert row["square / mean"] == pytest.approx(row["absolute / mean"])
    assert row["square / largest"] == pytest.approx(10 / energy[10:].max())
    with pytest.raises(ReproError, match="100 rounds after the warm-up: a reading of 101"):
        shrinkage_trace.calibration(trace, window=101)


def test_a_fading_signal_has_the_ratios_asked_for():
    clean, _ = shrinkage_trace.fading((2.0, 8.0), num_directions=16, rounds=3, seed=0)
    np.testing.assert_allclose(1 / (clean**2).mean(1), [2, 4, 8])


def test_a_diagnosis_reports_the_error_reduction_of_equation_20_and_the_fall_it_was_given():
    clean, released = shrinkage_trace.fading((1.0, 20.0), num_directions=64, rounds=300, seed=0)
    trace = shrinkage_trace.controlled(ShrinkageController(64, 1.0), clean, released)
    found = shrinkage_trace.diagnose(trace)
    table = shrinkage_study.vector_errors(
        num_directions=64, noise_to_signal=(1.0, 20.0), seeds=[0], controllers=["sage"]
    ).set_index("controller")
    assert found["error reduction after warm-up, %"] == pytest.approx(table.loc["sage", "reduction"])
    energies = np.geomspace(1, 1 / 20, 300)
    assert found["log fall of the clean energy"] == pytest.approx(
        math.log(energies[:50].mean() / energies[240:].mean())
    )
    assert 0 < found["fall of reliability"] < 0.5
    assert found["tracked over clean energy, late"] > 1
    assert found["share of log energy between fifths"] > 0.9


def made_up(clean, multiplier):
    """A trace of these clean vectors whose tracked energy rises and whose noise is 1 everywhere."""
    controller = ShrinkageController(clean.shape[1], 1.0, warmup=5)
    rising = np.linspace(1, 2, len(clean))
    return shrinkage_trace.Trace(controller, 1.0, clean, clean + 1, multiplier, rising)


def test_a_stationary_energy_has_no_variance_between_fifths_on_average():
    clean = np.random.default_rng(0).standard_normal((400, 60, 8))
    name = "share of log energy between fifths"
    shares = [shrinkage_trace.diagnose(made_up(c, np.ones(60)))[name] for c in clean]
    assert np.mean(shares) == pytest.approx(0, abs=4 * np.std(shares) / 20)


def test_a_multiplier_that_jumps_to_a_fixed_value_does_not_fall_gradually():
    clean = np.random.default_rng(0).standard_normal((60, 8))
    name = "fall of the multiplier less its largest step"
    fixed = shrinkage_trace.diagnose(made_up(clean, np.r_[np.ones(10), np.full(50, 0.5)]))[name]
    falling = shrinkage_trace.diagnose(made_up(clean, np.linspace(1, 0.5, 60)))[name]
    assert fixed == pytest.approx(0)
    assert falling > 0.4


def test_a_rule_that_tracks_nothing_has_no_energy():
    clean, released = shrinkage_trace.fading((1.0, 1.0), num_directions=4, rounds=5, seed=0)
    trace = shrinkage_trace.controlled(LinearDecay(4, 1.0, rounds=5), clean, released)
    assert np.isnan(trace.energy).all()
    np.testing.assert_allclose(trace.multiplier, [1, 0.8, 0.6, 0.4, 0.2])


def test_a_diagnosis_needs_a_controller_and_rounds_after_its_warm_up():
    for controller in (None, ShrinkageController(8, PLAN.noise_std, warmup=30)):
        with pytest.raises(ReproError, match="a run of 30 rounds: expected a controller"):
            shrinkage_trace.diagnose(watched(controller))


@pytest.mark.parametrize(("k", "ratio"), [(16, 1.0), (64, 11.0), (64, 100.0)])
def test_a_tracked_ratio_leads_back_to_the_true_one(k, ratio):
    seen = shrinkage_study.seen_ratio(k, ratio)
    assert seen < ratio
    assert shrinkage_study.true_ratio(k, seen) == pytest.approx(ratio, rel=1e-6)


def test_no_tracked_ratio_is_above_the_ceiling_of_its_directions():
    """Without signal the floored energy is the positive part of a nearly normal variable: sqrt(pi K)."""
    assert shrinkage_study.seen_ratio(256, 1e5) == pytest.approx(math.sqrt(math.pi * 256), rel=0.01)
    with pytest.raises(ReproError, match="a tracked ratio of 15 at K = 64: expected one from"):
        shrinkage_study.true_ratio(64, 15)
