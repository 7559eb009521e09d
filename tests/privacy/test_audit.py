import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize, sparse, special, stats

from reprolib.errors import ReproError
from reprolib.privacy import accounting, audit

DELTA = 1 / 69_880
CANARY_RUN = {"sampling_rate": 128 / 6988, "noise_multiplier": 0.612058477104, "rounds": 100}
TAILS = ["published", "exact"]


def worst_tail(canaries, guesses, correct, epsilon, delta):
    """Largest probability of ``correct`` right guesses under (epsilon, delta)-DP, by a linear program."""
    coins = list(itertools.product([0, 1], repeat=canaries))
    outputs = [
        (chosen, values)
        for chosen in itertools.combinations(range(canaries), guesses)
        for values in itertools.product([0, 1], repeat=guesses)
    ]
    pairs = [(a, b) for a in range(len(coins)) for b in range(len(coins))
             if sum(x != y for x, y in zip(coins[a], coins[b], strict=True)) == 1]  # fmt: skip
    n, cells = len(outputs), len(coins) * len(outputs)
    eye = sparse.identity(n)
    excess, totals = [], []  # M(t|a) - e^eps M(t|b) <= u(t), and the u of a pair add up to at most delta
    for p, (a, b) in enumerate(pairs):
        blocks = [None] * (len(coins) + len(pairs))
        blocks[a], blocks[b], blocks[len(coins) + p] = eye, -math.exp(epsilon) * eye, -eye
        excess.append([block if block is not None else sparse.csr_matrix((n, n)) for block in blocks])
        totals.append(np.concatenate([np.zeros(cells), np.kron(np.eye(len(pairs))[p], np.ones(n))]))
    right = np.array([
        sum(coin[i] == value for i, value in zip(chosen, values, strict=True)) >= correct
        for coin in coins for chosen, values in outputs
    ])  # fmt: skip
    objective = np.concatenate([right / -len(coins), np.zeros(len(pairs) * n)])
    each_sums_to_one = sparse.hstack(
        [
            sparse.kron(sparse.identity(len(coins)), np.ones((1, n))),
            sparse.csr_matrix((len(coins), len(pairs) * n)),
        ]
    )
    solved = optimize.linprog(
        objective,
        A_ub=sparse.vstack([sparse.bmat(excess), sparse.csr_matrix(np.array(totals))]).tocsr(),
        b_ub=np.concatenate([np.zeros(len(pairs) * n), np.full(len(pairs), delta)]),
        A_eq=each_sums_to_one.tocsr(),
        b_eq=np.ones(len(coins)),
    )
    return -solved.fun


COUNTS = st.integers(1, 60).flatmap(
    lambda r: st.tuples(st.integers(r, 4 * r), st.just(r), st.integers(0, r))
)  # canaries, guesses, correct


@given(counts=COUNTS, epsilon=st.floats(0, 8), tail=st.sampled_from(TAILS))
def test_without_delta_the_tail_is_the_binomial_of_randomised_response(counts, epsilon, tail):
    m, r, v = counts
    p = math.exp(epsilon) / (1 + math.exp(epsilon))
    direct = math.fsum(math.comb(r, k) * p**k * (1 - p) ** (r - k) for k in range(v, r + 1))
    ours = audit.one_run_tail(canaries=m, guesses=r, correct=v, epsilon=epsilon, delta=0, tail=tail)
    assert ours == pytest.approx(direct, rel=1e-9)


@pytest.mark.parametrize(("m", "r"), [(1, 1), (2, 1), (2, 2), (3, 2), (3, 3)])
@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 0.02), (1.0, 0.001), (math.log(9), 0.02), (0.5, 0.3)])
def test_the_exact_tail_is_that_of_the_worst_mechanism(m, r, epsilon, delta):
    for v in range(1, r + 1):
        ours = audit.one_run_tail(
            canaries=m, guesses=r, correct=v, epsilon=epsilon, delta=delta, tail="exact"
        )
        assert ours == pytest.approx(worst_tail(m, r, v, epsilon, delta), abs=1e-7)


@given(epsilon=st.floats(0, 5), delta=st.floats(0, 0.01))
def test_the_published_tail_of_one_and_two_guesses_is_the_formula_by_hand(epsilon, delta):
    p = special.expit(epsilon)
    one = audit.one_run_tail(canaries=1, guesses=1, correct=1, epsilon=epsilon, delta=delta)
    assert one == pytest.approx(p + 2 * delta * (1 - p), rel=1e-9)
    two = audit.one_run_tail(canaries=5, guesses=2, correct=2, epsilon=epsilon, delta=delta)
    gain = max(2 * p * (1 - p), (1 - p**2) / 2)
    assert two == pytest.approx(min(1.0, p**2 + 2 * 5 * delta * gain), rel=1e-9)


@given(counts=COUNTS, epsilon=st.floats(0, 8), delta=st.floats(0, 0.1))
def test_the_published_tail_covers_the_worst_mechanism_wherever_an_audit_can_reject(counts, epsilon, delta):
    m, r, v = counts
    arguments = {"canaries": m, "guesses": r, "correct": v, "epsilon": epsilon, "delta": delta}
    published = audit.one_run_tail(tail="published", **arguments)
    if published <= 0.5:  # the least confidence that is accepted
        assert published >= audit.one_run_tail(tail="exact", **arguments) - 1e-12


def test_far_below_the_mean_a_mechanism_exceeds_the_published_tail():
    # the reason for the restriction above; 3 canaries, 2 correct at 90 % accuracy
    arguments = {"canaries": 3, "guesses": 3, "correct": 2, "epsilon": math.log(9), "delta": 0.02}
    attained = worst_tail(3, 3, 2, math.log(9), 0.02)
    assert attained > audit.one_run_tail(tail="published", **arguments) + 1e-4


@given(counts=COUNTS, delta=st.floats(0, 0.01), tail=st.sampled_from(TAILS))
def test_the_bound_grows_with_correct_guesses_and_falls_with_guesses_and_delta(counts, delta, tail):
    m, r, v = counts

    def bound(guesses=r, correct=v, failure=delta):
        return audit.one_run_epsilon(
            canaries=m, guesses=guesses, correct=correct, delta=failure, tail=tail
        )  # fmt: skip

    if v < r:
        assert bound(correct=v + 1) >= bound() - 1e-8
    if r < m:
        assert bound(guesses=r + 1) <= bound() + 1e-8
    assert bound(failure=2 * delta) <= bound() + 1e-8


@given(counts=COUNTS, delta=st.floats(0, 0.001), tail=st.sampled_from(TAILS))
def test_at_the_bound_the_tail_is_the_error(counts, delta, tail):
    m, r, v = counts
    bound = audit.one_run_epsilon(canaries=m, guesses=r, correct=v, delta=delta, confidence=0.9, tail=tail)
    at = audit.one_run_tail(canaries=m, guesses=r, correct=v, epsilon=bound, delta=delta, tail=tail)
    assert at == pytest.approx(0.1, abs=1e-6) if bound else at >= 0.1 - 1e-9


@pytest.mark.parametrize("canaries", [10, 1000, 20_000])
def test_a_perfect_attack_without_delta_shows_the_logit_of_the_root_of_the_error(canaries):
    largest = audit.largest_one_run_epsilon(canaries=canaries, delta=0)
    assert largest == pytest.approx(special.logit(0.05 ** (1 / canaries)), abs=1e-6)


def test_a_perfect_attack_on_as_many_canaries_as_the_paper_barely_exceeds_its_budget():
    nominal = accounting.epsilon(delta=DELTA, **CANARY_RUN)
    assert nominal < audit.largest_one_run_epsilon(canaries=1000, delta=DELTA) < nominal + 1


def randomised_response(generator, canaries, epsilon):
    present = generator.random(canaries) < 0.5
    return present, present ^ (generator.random(canaries) < 1 / (1 + math.exp(epsilon)))


@pytest.mark.parametrize("guesses", [[(100, 100)], [(20, 0), (100, 100), (250, 250)]])
def test_the_bound_on_randomised_response_exceeds_its_epsilon_in_at_most_five_percent_of_runs(guesses):
    generator, runs = np.random.default_rng(0), 1000
    exceeded = 0
    for _ in range(runs):
        present, answers = randomised_response(generator, 500, 1.0)
        found = audit.audit_one_run(answers.astype(float), present, guesses=guesses, delta=0)
        exceeded += found.epsilon > 1.0
    assert exceeded <= stats.binom.ppf(0.999, runs, 0.05)
    assert exceeded >= 1  # the test is not so slack that it could never reject


def test_choosing_the_best_of_many_guesses_without_paying_breaks_the_confidence():
    generator, runs = np.random.default_rng(1), 120
    choices = [(k, 0) for k in range(5, 250, 10)]
    unpaid = paid = 0
    for _ in range(runs):
        present = generator.random(500) < 0.5
        scores = generator.standard_normal(500)  # no leak at all: epsilon 0
        unpaid += any(audit.audit_one_run(scores, present, guesses=[c], delta=0).epsilon > 0 for c in choices)
        paid += audit.audit_one_run(scores, present, guesses=choices, delta=0).epsilon > 0
    assert unpaid > stats.binom.ppf(0.999, runs, 0.05) >= paid


def test_guesses_follow_the_ends_of_the_ranking():
    scores = [0.3, -2.0, 5.0, 0.1, -math.inf, math.inf]
    present = np.array([True, True, False, False, False, True])
    assert audit.count_correct(scores, present, guesses=(1, 0)) == 1
    assert audit.count_correct(scores, present, guesses=(2, 0)) == 1
    assert audit.count_correct(scores, present, guesses=(0, 2)) == 1
    assert audit.count_correct(scores, present, guesses=(3, 3)) == 4


def test_two_sample_bound_is_the_log_ratio_of_clopper_pearson_bounds():
    present, absent = np.repeat([1.0, 0.0], [80, 20]), np.repeat([1.0, 0.0], [10, 190])
    low = stats.binomtest(80, 100, alternative="greater").proportion_ci(0.975, "exact").low
    high = stats.binomtest(10, 200, alternative="less").proportion_ci(0.975, "exact").high
    found = audit.audit_two_samples(present, absent, threshold=0.5, delta=1e-3)
    assert found.epsilon == pytest.approx(math.log((low - 1e-3) / high), rel=1e-9)
    assert (found.true_positive_rate_low, found.false_positive_rate_high) == pytest.approx((low, high))
    mirrored = audit.audit_two_samples(-absent, -present, threshold=-0.5, delta=1e-3)
    assert mirrored.epsilon == pytest.approx(found.epsilon, rel=1e-9)  # the other direction, the same bound


def test_two_sample_bound_on_randomised_response_keeps_its_confidence_and_approaches_epsilon():
    generator, runs = np.random.default_rng(3), 400
    p = special.expit(1.0)
    bounds = np.array([
        audit.split_audit(
            generator.random(1000) < p, generator.random(1000) >= p, delta=0, generator=generator
        ).epsilon
        for _ in range(runs)
    ])  # fmt: skip
    assert (bounds > 1.0).sum() <= stats.binom.ppf(0.999, runs, 0.05)
    assert 0.75 < bounds.mean() < 1.0


def test_a_threshold_chosen_and_judged_on_the_same_scores_breaks_the_confidence():
    generator, runs = np.random.default_rng(4), 200  # at confidence 0.5, where an error is common
    claim, same, split = {"delta": 0, "confidence": 0.5}, 0, 0
    for _ in range(runs):
        present, absent = generator.standard_normal((2, 400))
        threshold = audit.choose_threshold(present, absent, **claim)
        same += audit.audit_two_samples(present, absent, threshold=threshold, **claim).epsilon > 0
        split += audit.split_audit(present, absent, generator=generator, **claim).epsilon > 0
    assert same > stats.binom.ppf(0.999, runs, 0.5) >= split


ONE_RUN = {"canaries": 10, "guesses": 5, "correct": 3, "epsilon": 1.0, "delta": 0.0}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: audit.one_run_tail(**{**ONE_RUN, "correct": 6}), "6 correct of 5 guesses"),
        (lambda: audit.one_run_tail(**{**ONE_RUN, "guesses": 11}), "expected correct <= guesses"),
        (lambda: audit.one_run_tail(**{**ONE_RUN, "epsilon": -1.0}), "epsilon = -1.0"),
        (lambda: audit.one_run_tail(**{**ONE_RUN, "delta": math.nan}), "delta = nan"),
        (lambda: audit.one_run_tail(**ONE_RUN, tail="best"), "tail = 'best'"),
        (lambda: audit.largest_one_run_epsilon(canaries=5, delta=0, confidence=0.2), "confidence = 0.2"),
        (lambda: audit.audit_one_run([1.0], [True], guesses=[], delta=0), "guesses is empty"),
        (lambda: audit.count_correct([1.0, 2.0], [True], guesses=(1, 0)), "expected 2 booleans"),
        (lambda: audit.count_correct([1.0], [1], guesses=(1, 0)), "expected 1 booleans"),
        (lambda: audit.count_correct([1.0, math.nan], [True, False], guesses=(1, 0)), "NaN at 1"),
        (lambda: audit.count_correct([1.0], [True], guesses=(1, 1)), "guesses = (1, 1)"),
        (lambda: audit.audit_two_samples([], [1.0], threshold=0, delta=0), "present has shape (0,)"),
        (lambda: audit.audit_two_samples([1.0], [1.0], threshold=math.nan, delta=0), "threshold is NaN"),
    ],
)
def test_bad_input_is_refused_in_one_line(call, message):
    with pytest.raises(ReproError) as refused:
        call()
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)
