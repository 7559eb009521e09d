import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from reprolib.errors import ReproError
from reprolib.privacy import accounting, canaries, tradeoff

DELTA = 1 / 69_880
CANARY_RUN = {"sampling_rate": 128 / 6988, "noise_multiplier": 0.612058477104, "rounds": 100}


def brute_force_delong(present, absent):
    wins = (present[:, None] > absent) + 0.5 * (present[:, None] == absent)
    variance = wins.mean(axis=1).var(ddof=1) / len(present) + wins.mean(axis=0).var(ddof=1) / len(absent)
    return wins.mean(), math.sqrt(variance)


def test_auc_and_its_interval_are_delongs():
    generator = np.random.default_rng(5)
    present, absent = generator.integers(0, 9, 60) + 1.0, generator.integers(0, 9, 90) + 0.0
    value, error = brute_force_delong(present, absent)
    found = tradeoff.auc(present, absent)
    assert found.value == pytest.approx(value)
    assert (found.low, found.high) == pytest.approx((value - 1.959964 * error, value + 1.959964 * error))


def test_perfect_separation_is_not_reported_as_certainty():
    found = tradeoff.auc([2.0, 3.0, 4.0], [0.0, 1.0, 1.5])
    assert found.value == found.high == 1.0
    assert found.low < 0.5  # three scores a side prove little


def test_tpr_interval_covers_the_true_rate_and_is_not_vacuous():
    generator, runs, fpr = np.random.default_rng(6), 300, 0.05
    truth = stats.norm.sf(stats.norm.isf(fpr) - 1.0)
    found = [
        tradeoff.tpr_at_fpr(generator.standard_normal(500) + 1, generator.standard_normal(500), fpr=fpr)
        for _ in range(runs)
    ]
    missed = sum(not e.low <= truth <= e.high for e in found)
    assert missed <= stats.binom.ppf(0.999, runs, 0.05)
    assert np.mean([e.high - e.low for e in found]) < 0.35
    assert np.mean([e.value for e in found]) == pytest.approx(truth, abs=0.02)


def test_at_a_false_positive_rate_too_small_for_the_sample_the_interval_says_so():
    found = tradeoff.tpr_at_fpr(np.ones(50), np.zeros(50), fpr=1e-3)
    assert found.value == 1.0
    assert found.low == 0.0


@given(f=st.floats(0, 1), epsilon=st.floats(0, 10), delta=st.floats(0, 0.5))
def test_certified_region_is_tight_in_both_directions(f, epsilon, delta):
    t = float(tradeoff.certified_tpr(f, epsilon=epsilon, delta=delta))
    remove = t <= math.exp(epsilon) * f + delta + 1e-9
    add = 1 - f <= math.exp(epsilon) * (1 - t) + delta + 1e-9 * math.exp(epsilon)
    assert remove
    assert add
    if f <= t < 1:  # one of the two holds with equality
        slack = min(math.exp(epsilon) * f + delta - t, 1 - math.exp(-epsilon) * (1 - delta - f) - t)
        assert slack == pytest.approx(0, abs=1e-9)


def neyman_pearson(fpr, q, sigma):
    """True-positive rate of the best test of one round, which thresholds the released number."""
    x = sigma * stats.norm.isf(fpr)
    return (1 - q) * fpr + q * stats.norm.sf((x - 1) / sigma)


@settings(max_examples=5, deadline=None)
@given(q=st.floats(0.01, 0.99), sigma=st.floats(0.4, 3))
def test_certified_curve_of_one_round_is_the_neyman_pearson_test(q, sigma):
    fpr = np.array([1e-4, 1e-3, 0.01, 0.1, 0.5, 0.9])
    curve = tradeoff.certified_curve(fpr, sampling_rate=q, noise_multiplier=sigma, rounds=1)
    best = neyman_pearson(fpr, q, sigma)
    assert (curve >= best - 1e-12).all()
    assert curve == pytest.approx(best, rel=2e-3)


def test_certified_curve_lies_below_the_region_of_the_budget_and_touches_it():
    fpr = np.geomspace(1e-7, 1, 400)
    epsilon = accounting.epsilon(delta=DELTA, **CANARY_RUN)
    curve = tradeoff.certified_curve(fpr, **CANARY_RUN)
    region = tradeoff.certified_tpr(fpr, epsilon=epsilon, delta=DELTA)
    assert (curve <= region + 1e-9).all()
    assert (region / curve).min() == pytest.approx(1, abs=0.02)
    assert (curve >= fpr - 1e-12).all()


def test_the_optimal_score_of_dirac_canaries_attains_the_certified_curve():
    run = {"sampling_rate": 0.1, "noise_multiplier": 0.7, "rounds": 20}
    generator, size = np.random.default_rng(7), 20_000
    present = np.arange(2 * size) < size
    releases = canaries.dirac_releases(present, generator=generator, **run)
    scores = canaries.log_likelihood_ratio(releases, sampling_rate=0.1, noise_multiplier=0.7)
    for threshold in (-0.5, 0.0, 1.0, 2.0, 4.0):
        caught = [int((scores[side] >= threshold).sum()) for side in (present, ~present)]
        (t_low, t_high), (f_low, f_high) = (
            stats.binomtest(k, size).proportion_ci(0.999, "exact") for k in caught
        )
        low, high = tradeoff.certified_curve([f_low, f_high], **run)
        assert t_low <= high
        assert t_high >= low


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: tradeoff.auc([1.0], [1.0, 2.0]), "at least 2 scores"),
        (lambda: tradeoff.tpr_at_fpr([1.0], [1.0], fpr=1.0), "fpr = 1.0"),
        (lambda: tradeoff.certified_tpr([1.5], epsilon=1, delta=0), "outside [0, 1]"),
    ],
)
def test_bad_input_is_refused_in_one_line(call, message):
    with pytest.raises(ReproError) as refused:
        call()
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)
