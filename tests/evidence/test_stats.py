import itertools
import math
import tracemalloc

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.power import TTestPower

from reprolib.errors import ReproError
from reprolib.evidence import published
from reprolib.evidence.stats import (
    holm,
    mcnemar_exact,
    minimum_detectable_effect,
    paired_contrast,
    seed_t_interval,
    sign_randomization,
)


def arms(problems, seeds=(4, 4), gain=0.3, seed=0):
    """Simulated correctness: problems differ in difficulty, arm a's log-odds are higher by ``gain``."""
    generator = np.random.default_rng(seed)
    ability = generator.normal(0, 2, problems)
    return [
        (generator.random((count, problems)) < 1 / (1 + np.exp(-ability - shift))).astype(int)
        for count, shift in zip(seeds, (gain, 0.0), strict=True)
    ]


def differences(a, b):
    return a.mean(axis=0) - b.mean(axis=0)


@st.composite
def pairs(draw, min_problems=2):
    n = draw(st.integers(min_problems, 12))
    shapes = (draw(st.integers(1, 4)), n), (draw(st.integers(1, 4)), n)
    return [draw(arrays(np.int64, shape, elements=st.integers(0, 1))) for shape in shapes]


# paired_contrast


def test_the_bootstrap_has_the_quantiles_of_the_exact_resampling_distribution():
    a, b = arms(9, seeds=(2, 3), seed=4)
    steps = np.rint(6 * differences(a, b)).astype(int)  # sixths, shifted to start at zero below
    once = np.bincount(steps + 6, minlength=13) / 9
    exact = np.array([1.0])
    for _ in range(9):
        exact = np.convolve(exact, once)
    cdf = np.cumsum(exact)
    draws = 200_000
    found = paired_contrast(a, b, draws=draws, seed=1)
    error = 5 * math.sqrt(0.025 * 0.975 / draws)
    for end, probability in ((found.low, 0.025), (found.high, 0.975)):
        total = round(end / 100 * 9 * 6) + 9 * 6
        assert cdf[total - 1] <= probability + error
        assert cdf[total] >= probability - error


@pytest.mark.parametrize("seeds", [(4, 4), (4, 2), (3, 1)])
def test_the_interval_is_that_of_scipy_bootstrap_within_monte_carlo_error(seeds):
    a, b = arms(400, seeds=seeds)
    draws = 20_000
    found = paired_contrast(a, b, draws=draws, seed=2)
    data = (100 * differences(a, b),)
    theirs = scipy.stats.bootstrap(data, np.mean, n_resamples=draws, method="percentile", rng=3)
    quantile_error = (
        found.standard_error
        * math.sqrt(0.025 * 0.975 / draws)
        / scipy.stats.norm.pdf(scipy.stats.norm.ppf(0.975))
    )
    interval = theirs.confidence_interval
    assert found.low == pytest.approx(interval.low, abs=5 * math.sqrt(2) * quantile_error)
    assert found.high == pytest.approx(interval.high, abs=5 * math.sqrt(2) * quantile_error)
    assert found.standard_error == pytest.approx(theirs.standard_error, rel=0.03)


def test_difference_and_standard_error_are_those_of_the_seed_averages_in_points():
    a, b = arms(300, seeds=(4, 2))
    found = paired_contrast(a, b, draws=100, seed=0)
    t_test = scipy.stats.ttest_rel(a.mean(axis=0), b.mean(axis=0))
    assert found.difference == pytest.approx(100 * (a.mean() - b.mean()))
    assert found.difference / found.standard_error == pytest.approx(t_test.statistic)
    assert (found.problems, found.seeds, found.draws) == (300, (4, 2), 100)


def test_the_interval_covers_the_true_difference_at_its_level():
    covered = 0
    for trial in range(400):
        generator = np.random.default_rng(trial)
        a, b = generator.random((2, 150)) < 0.6, generator.random((3, 150)) < 0.5
        found = paired_contrast(a, b, draws=1000, seed=trial)
        covered += found.low <= 10.0 <= found.high
    assert covered / 400 == pytest.approx(0.95, abs=0.04)


@settings(max_examples=60, deadline=None)
@given(pair=pairs(), seed=st.integers(0, 2**32))
def test_swapping_the_arms_negates_the_difference_and_mirrors_the_interval(pair, seed):
    a, b = pair
    forward, backward = (paired_contrast(*x, draws=500, seed=seed) for x in ((a, b), (b, a)))
    assert backward.difference == pytest.approx(-forward.difference, abs=1e-12)
    assert backward.standard_error == forward.standard_error
    if abs(forward.difference) > 1e-9:
        assert (backward.low, backward.high) == pytest.approx((-forward.high, -forward.low), abs=1e-9)


def test_swapping_tied_arms_mirrors_the_interval_within_monte_carlo_error():
    a, b = np.array([[1, 0, 0, 0] * 30, [1, 0, 0, 0] * 30]), np.array([[0, 1, 1, 0] * 30, [0, 0, 0, 0] * 30])
    forward, backward = (paired_contrast(*x, seed=0) for x in ((a, b), (b, a)))
    assert forward.difference == backward.difference == 0.0
    assert not forward.resolved
    assert backward.low == pytest.approx(-forward.high, abs=0.06 * forward.standard_error)
    assert backward.high == pytest.approx(-forward.low, abs=0.06 * forward.standard_error)


@settings(max_examples=60, deadline=None)
@given(pair=pairs(), seed=st.integers(0, 1000))
def test_the_order_of_problems_and_of_seeds_does_not_matter(pair, seed):
    a, b = pair
    generator = np.random.default_rng(seed)
    order = generator.permutation(a.shape[1])
    shuffled = generator.permutation(a, axis=0)[:, order], generator.permutation(b, axis=0)[:, order]
    assert paired_contrast(a, b, draws=200, seed=1) == paired_contrast(*shuffled, draws=200, seed=1)
    assert sign_randomization(a, b, draws=200, seed=1) == sign_randomization(*shuffled, draws=200, seed=1)


@settings(max_examples=40, deadline=None)
@given(pair=pairs())
def test_repeating_an_arms_seeds_adds_no_evidence(pair):
    a, b = pair
    once, twice = (paired_contrast(x, b, draws=300, seed=0) for x in (a, np.vstack([a, a])))
    for name in ("difference", "low", "high", "standard_error", "mde"):
        assert getattr(twice, name) == pytest.approx(getattr(once, name), abs=1e-9)


@settings(max_examples=40, deadline=None)
@given(pair=pairs())
def test_the_interval_is_ordered_and_lies_among_the_problem_differences(pair):
    a, b = pair
    found = paired_contrast(a, b, draws=300, seed=0)
    each = 100 * differences(a, b)
    assert each.min() - 1e-9 <= found.low <= found.high <= each.max() + 1e-9


def test_an_effect_in_every_problem_is_resolved_and_identical_arms_are_not():
    ones, zeros = np.ones((2, 5)), np.zeros((1, 5))
    found = paired_contrast(ones, zeros, draws=50, seed=0)
    assert (found.difference, found.low, found.high, found.mde) == (100.0, 100.0, 100.0, 0.0)
    assert found.resolved
    assert not paired_contrast(ones, ones, draws=50, seed=0).resolved


def test_draws_replay_from_their_seed_and_change_with_it():
    a, b = arms(200)
    assert paired_contrast(a, b, draws=999, seed=5) == paired_contrast(a, b, draws=999, seed=5)
    assert paired_contrast(a, b, draws=999, seed=5) != paired_contrast(a, b, draws=999, seed=6)
    assert sign_randomization(a, b, draws=999, seed=5) == sign_randomization(a, b, draws=999, seed=5)


def test_booleans_are_correctness_too():
    a, b = arms(50)
    assert paired_contrast(a == 1, b == 1, draws=99, seed=0) == paired_contrast(a, b, draws=99, seed=0)


def test_memory_does_not_grow_with_problems_times_draws():
    a, b = arms(3000, seeds=(3, 2))
    for function, draws, held in ((paired_contrast, 100_000, 8), (sign_randomization, 2**20, 0)):
        tracemalloc.start()
        function(a, b, draws=draws, seed=0)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 3 * held * draws + 14 * 2**20


# sign_randomization


def test_sign_randomization_is_the_enumeration_of_all_sign_patterns_within_monte_carlo_error():
    a, b = arms(11, seeds=(2, 3), gain=1.0, seed=1)
    steps = np.rint(6 * differences(a, b)).astype(int)
    totals = [abs(int(np.dot(signs, steps))) for signs in itertools.product((-1, 1), repeat=11)]
    exact = np.mean(np.array(totals) >= abs(steps.sum()))
    draws = 200_000
    assert 0.01 < exact < 0.5
    found = sign_randomization(a, b, draws=draws, seed=0)
    assert found == pytest.approx(exact, abs=5 * math.sqrt(exact * (1 - exact) / draws))


def test_sign_randomization_is_scipys_exact_paired_permutation_test_within_monte_carlo_error():
    a, b = arms(10, seeds=(3, 1), gain=1.0, seed=8)
    theirs = scipy.stats.permutation_test(
        (3 * a.mean(axis=0), 3 * b.mean(axis=0)), lambda x, y, axis: np.mean(x - y, axis=axis),
        permutation_type="samples", n_resamples=np.inf, vectorized=True,
    )  # fmt: skip
    draws = 200_000
    error = 5 * math.sqrt(theirs.pvalue * (1 - theirs.pvalue) / draws)
    assert 0.01 < theirs.pvalue < 0.9
    assert sign_randomization(a, b, draws=draws, seed=0) == pytest.approx(theirs.pvalue, abs=error)


@pytest.mark.parametrize("gain", [0.02, 0.05, 0.08])
def test_at_full_size_sign_randomization_has_the_convolved_distribution_of_the_total(gain):
    a, b = arms(4499, gain=gain, seed=6)
    steps = np.rint(4 * differences(a, b)).astype(int)
    exact = np.array([1.0])
    for step in np.abs(steps[steps != 0]):
        kernel = np.zeros(2 * step + 1)
        kernel[[0, -1]] = 0.5
        exact = np.convolve(exact, kernel)
    totals = np.arange(len(exact)) - (len(exact) - 1) // 2
    p = exact[np.abs(totals) >= abs(steps.sum())].sum()
    draws = 100_000
    error = 5 * math.sqrt(p * (1 - p) / draws) + 1 / draws
    assert sign_randomization(a, b, draws=draws, seed=0) == pytest.approx(p, abs=error)


def test_with_one_seed_each_sign_randomization_is_the_exact_mcnemar_test():
    a, b = arms(60, seeds=(1, 1), gain=0.5, seed=5)
    p = mcnemar_exact(a[0], b[0])
    draws = 200_000
    assert 0.01 < p < 0.5
    found = sign_randomization(a, b, draws=draws, seed=0)
    assert found == pytest.approx(p, abs=5 * math.sqrt(p / draws))


@settings(max_examples=60, deadline=None)
@given(pair=pairs(min_problems=1), draws=st.integers(1, 300), seed=st.integers(0, 100))
def test_a_randomization_p_lies_in_zero_to_one_and_does_not_know_which_arm_is_which(pair, draws, seed):
    a, b = pair
    p = sign_randomization(a, b, draws=draws, seed=seed)
    assert 1 / (draws + 1) <= p <= 1
    assert sign_randomization(b, a, draws=draws, seed=seed) == p


def test_the_observed_pattern_counts_as_a_draw():
    assert sign_randomization(np.ones((1, 500)), np.zeros((1, 500)), draws=99, seed=0) == 1 / 100


def test_arms_that_never_differ_have_p_one():
    same = np.ones((2, 7))
    assert sign_randomization(same, same, draws=50, seed=0) == 1.0
    assert mcnemar_exact(same[0], same[1]) == 1.0


# mcnemar_exact


@settings(max_examples=200, deadline=None)
@given(both=st.integers(0, 30), only_a=st.integers(0, 60), only_b=st.integers(0, 60),
       neither=st.integers(1, 30))  # fmt: skip
def test_mcnemar_is_that_of_statsmodels(both, only_a, only_b, neither):
    a = np.repeat([1, 1, 0, 0], [both, only_a, only_b, neither])
    b = np.repeat([1, 0, 1, 0], [both, only_a, only_b, neither])
    theirs = mcnemar([[both, only_a], [only_b, neither]], exact=True).pvalue
    assert mcnemar_exact(a, b) == pytest.approx(theirs, rel=1e-9)
    assert mcnemar_exact(b, a) == mcnemar_exact(a, b)


def test_mcnemar_counts_coin_sequences():
    a, b = np.array([1] * 7 + [0] * 2), np.array([0] * 7 + [1] * 2)
    uneven = [sum(coins) for coins in itertools.product((0, 1), repeat=9) if abs(2 * sum(coins) - 9) >= 5]
    assert mcnemar_exact(a, b) == pytest.approx(len(uneven) / 2**9)


# holm

PVALUES = st.lists(st.floats(0, 1), min_size=1, max_size=6)


@given(raw=PVALUES)
def test_holm_is_the_closed_bonferroni_test(raw):
    families = [f for k in range(1, len(raw) + 1) for f in itertools.combinations(range(len(raw)), k)]
    bonferroni = {f: min(1.0, len(f) * min(raw[i] for i in f)) for f in families}
    closed = [max(p for f, p in bonferroni.items() if i in f) for i in range(len(raw))]
    assert holm(raw) == pytest.approx(closed, rel=1e-12)


@settings(max_examples=30, deadline=None)
@given(raw=PVALUES)
def test_holm_is_that_of_statsmodels(raw):
    assert holm(raw) == pytest.approx(multipletests(raw, method="holm")[1], rel=1e-12)


@given(raw=PVALUES, seed=st.integers(0, 100))
def test_holm_keeps_the_order_and_never_lowers_a_p_value(raw, seed):
    adjusted = holm(raw)
    order = np.argsort(raw, kind="stable")
    assert (np.diff(adjusted[order]) >= 0).all()
    assert (adjusted >= np.array(raw)).all()
    assert (adjusted <= 1).all()
    shuffle = np.random.default_rng(seed).permutation(len(raw))
    assert np.array_equal(holm(np.array(raw)[shuffle]), adjusted[shuffle])


def test_holm_of_one_test_changes_nothing():
    assert holm([0.04]).tolist() == [0.04]


# seed_t_interval and minimum_detectable_effect


@given(values=st.lists(st.floats(-50, 50), min_size=2, max_size=8), level=st.floats(0.5, 0.999))
def test_the_seed_interval_is_scipys_student_interval(values, level):
    spread = scipy.stats.sem(values)
    found = seed_t_interval(values, level=level)
    if spread > 1e-9:
        theirs = scipy.stats.t.interval(level, len(values) - 1, loc=np.mean(values), scale=spread)
        assert found == pytest.approx(theirs, rel=1e-6, abs=1e-9)
    assert found[0] <= found[1]


def test_seeds_that_agree_have_an_interval_of_no_width():
    assert seed_t_interval([1.5, 1.5, 1.5]) == (1.5, 1.5)


@pytest.fixture(scope="module")
def paper():
    return published.load("dp_grpo")


@pytest.mark.parametrize(
    ("benchmark", "problems", "interval", "deviation"),
    [("math", 4499, (2.08, 3.22), 0.36), ("gsm8k", 1319, (2.10, 4.38), 0.72)],
)
def test_the_published_seed_intervals_follow_from_the_per_seed_differences(
    paper, benchmark, problems, interval, deviation
):
    printed = [float(paper.number(f"dp_grpo.t11.{benchmark}.control.seed{k}")) for k in range(1, 5)]
    # one problem is worth more than the last printed digit, so the printed difference names a whole number
    counts = [round(p / 100 * problems) for p in printed]
    exact = [100 * c / problems for c in counts]
    assert [round(x, 2) for x in exact] == printed
    assert tuple(round(x, 2) for x in seed_t_interval(exact)) == interval
    assert np.std(exact, ddof=1) == pytest.approx(deviation, abs=0.005)


def test_the_published_svamp_seed_interval_follows_from_table_xiii(paper):
    base = float(paper.number("dp_grpo.t13.base.mean"))
    gains = [float(paper.number(f"dp_grpo.t13.dp_grpo.seed{k}")) - base for k in range(1, 5)]
    assert tuple(round(x, 2) for x in seed_t_interval(gains)) == (0.50, 1.90)


def test_every_published_mde_of_table_xii_follows_from_its_interval(paper):
    cells = paper.match("dp_grpo.t12.*.mde")
    assert len(cells) == 8
    slack = 0.005 + 0.005 * 2.8016 / 1.96  # of the printed MDE and of both printed ends
    for cell in cells:
        change = cell.removesuffix("mde") + "change"
        width = float(paper.number(f"{change}#high") - paper.number(f"{change}#low"))
        expected = pytest.approx(float(paper.number(cell)), abs=slack)
        assert minimum_detectable_effect(width / 2 / 1.959964) == expected


@given(se=st.floats(1e-3, 1e3), power=st.floats(0.5, 0.99), level=st.floats(0.9, 0.999))
def test_a_normal_test_rejects_an_effect_of_the_mde_with_the_power_asked_for(se, power, level):
    effect = minimum_detectable_effect(se, power=power, level=level)
    critical = scipy.stats.norm.isf((1 - level) / 2)
    assert scipy.stats.norm.sf(critical - effect / se) == pytest.approx(power, abs=1e-9)


@pytest.mark.parametrize("power", [0.8, 0.9])
@pytest.mark.parametrize("pairs", [3, 4, 6, 8, 12, 30, 200])
def test_an_mde_over_a_handful_of_seeds_is_that_of_the_students_test_of_statsmodels(pairs, power):
    effect = minimum_detectable_effect(1 / math.sqrt(pairs), power=power, degrees_of_freedom=pairs - 1)
    theirs = TTestPower().power(effect, nobs=pairs, alpha=0.05, alternative="two-sided")
    assert theirs == pytest.approx(power, abs=1e-5)


@given(freedom=st.integers(1, 60), power=st.floats(0.5, 0.95), level=st.floats(0.9, 0.99))
def test_a_students_test_rejects_an_effect_of_the_mde_with_the_power_asked_for(freedom, power, level):
    effect = minimum_detectable_effect(1.0, power=power, level=level, degrees_of_freedom=freedom)
    critical = scipy.stats.t.isf((1 - level) / 2, freedom)
    assert scipy.stats.nct.sf(critical, freedom, effect) == pytest.approx(power, abs=1e-5)


def test_few_seeds_detect_less_than_a_normal_test_says_and_many_detect_as_much():
    few, more, many = (minimum_detectable_effect(1.0, degrees_of_freedom=n) for n in (2, 5, 2000))
    normal = minimum_detectable_effect(1.0)
    assert few > 2 * normal
    assert few > more > many > normal
    assert many == pytest.approx(normal, rel=2e-3)


def test_a_contrasts_mde_is_2_80_standard_errors():
    found = paired_contrast(*arms(100), draws=10, seed=0)
    assert found.mde == pytest.approx(2.8015852 * found.standard_error)


# bad input

GOOD = np.array([[0, 1, 1], [1, 0, 1]])


@pytest.mark.parametrize("function", [paired_contrast, sign_randomization])
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"a": GOOD[:, :2]}, "a has 2 problems and b has 3: expected the same problems"),
        ({"b": [[0, 1, 2]]}, r"b contains 2\.0: expected an array \[seeds, problems\] of 0 and 1"),
        ({"a": [[0.5, 1, 0]]}, r"a contains 0\.5"),
        ({"a": [[math.nan, 1, 0]]}, "a contains nan.*score every answer first"),
        ({"b": np.zeros((0, 3))}, r"b has shape \(0, 3\).*not empty"),
        ({"a": np.zeros((2, 0)), "b": np.zeros((2, 0))}, "not empty"),
        ({"a": GOOD[0]}, r"a has shape \(3,\): expected an array \[seeds, problems\]"),
        ({"a": [[0, 1, 1], [1]]}, "a is not an array"),
        ({"a": [["yes", "no", "no"]]}, "a is not an array"),
        ({"draws": 0}, "draws = 0: expected a whole number, at least 1"),
        ({"draws": 10.0}, r"draws = 10\.0: expected a whole number"),
        ({"draws": True}, "draws = True"),
        ({"seed": -1}, "seed = -1: expected a whole number, at least 0"),
        ({"seed": None}, "seed = None"),
    ],
)
def test_resampling_refuses_bad_input_and_says_what_was_expected(function, changes, message):
    arguments = {"a": GOOD, "b": GOOD, "draws": 10, "seed": 0, **changes}
    with pytest.raises(ReproError, match=message):
        function(arguments.pop("a"), arguments.pop("b"), **arguments)


def test_a_bootstrap_over_one_problem_is_refused():
    with pytest.raises(ReproError, match=r"1 problem: .* at least two"):
        paired_contrast([[1]], [[0]], seed=0)


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        ([0, 1], [0, 1, 1], "a has 2 problems and b has 3"),
        ([0, 1], [0, -1], r"b contains -1\.0"),
        ([0, math.nan], [0, 1], "a contains nan"),
        ([], [], "not empty"),
        (GOOD, GOOD, r"expected an array \[problems\]"),
    ],
)
def test_mcnemar_refuses_bad_input(a, b, message):
    with pytest.raises(ReproError, match=message):
        mcnemar_exact(a, b)


@pytest.mark.parametrize(
    ("pvalues", "message"),
    [
        ([0.1, 1.01], r"contain 1\.01: expected probabilities"), ([-0.1], r"contain -0\.1"),
        ([math.nan, 0.5], "contain nan"), ([], "at least 1"), ([[0.1]], "expected a list"),
        (["low"], "not a list of numbers"),
    ],
)  # fmt: skip
def test_holm_refuses_what_is_no_family_of_p_values(pvalues, message):
    with pytest.raises(ReproError, match=message):
        holm(pvalues)


@pytest.mark.parametrize(
    ("values", "level", "message"),
    [
        ([1.0], 0.95, "at least 2"), ([], 0.95, "at least 2"), ([1.0, math.nan], 0.95, "contain nan"),
        ([1.0, math.inf], 0.95, "contain inf"), ([1.0, 2.0], 1.0, r"level = 1\.0"),
        ([1.0, 2.0], 95, "level = 95: expected a coverage"),
    ],
)  # fmt: skip
def test_a_seed_interval_needs_two_finite_differences_and_a_level(values, level, message):
    with pytest.raises(ReproError, match=message):
        seed_t_interval(values, level=level)


@pytest.mark.parametrize(
    "changes",
    [
        {"standard_error": -1.0}, {"standard_error": math.nan}, {"standard_error": math.inf},
        {"power": 80}, {"power": 0.2}, {"level": 1.0}, {"level": math.nan},
        {"degrees_of_freedom": 0}, {"degrees_of_freedom": math.nan},
    ],
)  # fmt: skip
def test_a_detectable_effect_out_of_range_is_refused_with_the_range(changes):
    arguments = {"standard_error": 1.0, **changes}
    name = next(iter(changes))
    with pytest.raises(ReproError, match=f"{name} = .*expected"):
        minimum_detectable_effect(arguments.pop("standard_error"), **arguments)
