"""Empirical audits: lower bounds on epsilon from membership scores, beside the certified upper bound.

A lower bound above the certified epsilon proves a broken mechanism. One below it proves nothing about the
accountant: an attack that is too weak, or too few canaries, also gives 0. So ask ``one_run_power`` first
what a correct audit of this size would return, fix the guesses there, then run the audit::

    power = one_run_power(canaries=1000, guesses=[(200, 0), (300, 300)], sampling_rate=q, ...)
    audit_one_run(scores, present, guesses=[(200, 0)], delta=delta)

Two rules keep the stated confidence. The numbers of guesses are fixed before the scores are seen, or every
pair of a list that was fixed pays its share of the error (Bonferroni). A threshold is never chosen on the
scores that it is judged on.

Source: Steinke, Nasr and Jagielski (2023), "Privacy auditing with one (1) training run", Theorem 3.1 and
Appendix D; DP-GRPO, Section IV (certified region), Section IX and Appendix B (canary diagnostic).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType
from numpy.typing import ArrayLike, NDArray
from scipy import optimize, special, stats
from statsmodels.stats.nonparametric import rank_compare_2indep
from statsmodels.stats.proportion import proportion_confint

from reprolib.errors import ReproError
from reprolib.privacy.losses import GRID, MIN_DELTA, check_parameters, composed

Tail = Literal["published", "exact"]
Score = Literal["likelihood-ratio", "sum"]
Guesses = tuple[int, int]  # how many most confident canaries are called present, least confident absent
Scores = NDArray[np.float64]

CURVE_POINTS = 4001  # supporting lines of the certified trade-off curve


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A rate and its two-sided confidence interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class OneRunAudit:
    """Lower bound on epsilon of one run, with the guesses that gave it."""

    epsilon: float
    guesses: Guesses
    correct: int
    canaries: int


@dataclass(frozen=True, kw_only=True)
class TwoSampleAudit:
    """Lower bound on epsilon from two samples, with the threshold and the rates' bounds behind it."""

    epsilon: float
    threshold: float
    true_positive_rate_low: float
    false_positive_rate_high: float


@dataclass(frozen=True, kw_only=True)
class OneRunPower:
    """What a correct audit returns when the guesses are fixed in advance.

    Attributes:
        guesses: numbers of present and absent guesses.
        accuracy: mean share of correct guesses.
        mean, standard_error: of the lower bound on epsilon, over the simulated runs.
        positive: share of the simulated runs whose lower bound is above 0.
    """

    guesses: Guesses
    accuracy: float
    mean: float
    standard_error: float
    positive: float


def one_run_tail(
    *, canaries: int, guesses: int, correct: int, epsilon: float, delta: float, tail: Tail = "published"
) -> float:
    """Probability bound for so many correct guesses, or more, if the run is (epsilon, delta)-DP.

    Why, in words. Let W be binomial(r, p) with p = e^eps / (1 + e^eps). Reveal the coins one by one: under
    pure DP the odds of a coin given the output and the coins before it are at most e^eps, so every guess is
    correct with probability at most p whatever happened before, and the number correct is at most W. For
    delta > 0, flipping the sign of a coin with its guesses and reordering canaries changes neither the
    guarantee nor the number correct, so the worst mechanism is symmetric: it has one probability c_k for
    every pattern with k correct guesses. DP reads c_{k+1} <= e^eps c_k + u_k, and the excesses, summed over
    the patterns of the other r - 1 guesses, cost r/m of it because a canary is guessed with probability r/m:
    (r/m) sum_k C(r-1, k) u_k <= delta. Laws with these excesses are mixtures of "W given W >= k"; weight pi_k
    costs pi_k k P[W = k] / P[W >= k] of the total m delta. For "at least v" spending all of it on k = v gains
    most, which is the "exact" tail, attained by a mechanism:

        beta + (1 - beta) min(1, (m delta / v) beta / P[W = v]),  beta = P[W >= v].

    The "published" tail of the paper lets m delta failures, twice, turn wrong guesses into correct ones:

        beta + 2 m delta max_i P[v - i <= W < v] / i.

    It is larger, hence safe, wherever an audit can reject (beta up to 0.8). Far below the mean of W, where
    no audit looks, it is too small by a little: failures may depend on W there.

    Args:
        canaries: m, included by independent fair coins.
        guesses: r, the guesses made, a number fixed in advance; the other canaries are abstained on.
        correct: v.
        epsilon, delta: the claim that is tested.
        tail: "published" or "exact".

    Raises:
        ReproError: counts out of order, epsilon below 0, delta outside [0, 1), an unknown tail.

    Source: Steinke, Nasr and Jagielski (2023), Theorem 3.1 and Appendix D; "exact" is derived here.
    """
    _check_counts(canaries, guesses, correct)
    _check_number("epsilon", epsilon, 0, math.inf)
    _check_number("delta", delta, 0, 1)
    if tail not in ("published", "exact"):
        raise ReproError(f"tail = {tail!r}: expected 'published' or 'exact'")
    return _tail(canaries, guesses, correct, epsilon, delta, tail)


def _tail(canaries: int, guesses: int, correct: int, epsilon: float, delta: float, tail: Tail) -> float:
    """``one_run_tail`` without the checks."""
    if correct == 0:
        return 1.0
    w = stats.binom(guesses, special.expit(epsilon))
    beta = float(w.sf(correct - 1))
    if delta == 0 or beta == 1:
        return beta
    if tail == "exact":
        # ratios to P[W = v], so that the hazard survives where the probabilities underflow
        log_masses = w.logpmf(np.arange(correct, guesses + 1))
        inverse_hazard = float(np.exp(log_masses - log_masses[0]).sum())
        return beta + (1 - beta) * min(1.0, canaries * delta / correct * inverse_hazard)
    failures = np.arange(1, correct + 1)
    gain = float(np.max((w.sf(correct - failures - 1) - beta) / failures))
    return min(1.0, beta + 2 * canaries * delta * gain)


@lru_cache(maxsize=2**16)
def one_run_epsilon(
    *,
    canaries: int,
    guesses: int,
    correct: int,
    delta: float,
    confidence: float = 0.95,
    tail: Tail = "published",
) -> float:
    """Largest epsilon that the guesses refute: with this confidence the run is not (less, delta)-DP.

    Args:
        canaries, guesses, correct, delta, tail: as in ``one_run_tail``.
        confidence: in [0.5, 1).

    Returns:
        The lower bound, at least 0; 0 if not even perfect privacy is refuted.

    Raises:
        ReproError: an argument out of range.

    Source: Steinke, Nasr and Jagielski (2023), Appendix D.
    """
    _check_number("confidence", confidence, 0.5, 1)
    one_run_tail(
        canaries=canaries, guesses=guesses, correct=correct, epsilon=0.0, delta=delta, tail=tail
    )  # checks the rest

    def excess(epsilon: float) -> float:
        return _tail(canaries, guesses, correct, epsilon, delta, tail) - (1 - confidence)

    if excess(0.0) >= 0:
        return 0.0
    low, high = 0.0, 1.0
    while excess(high) < 0:
        low, high = high, 2 * high
    return float(optimize.brentq(excess, low, high, xtol=1e-9))


def largest_one_run_epsilon(
    *, canaries: int, delta: float, confidence: float = 0.95, tail: Tail = "published"
) -> float:
    """Lower bound of a perfect attack on every canary: no audit of this size can return more.

    Source: Steinke, Nasr and Jagielski (2023), Theorem 3.1 with r = v = m.
    """
    return one_run_epsilon(
        canaries=canaries, guesses=canaries, correct=canaries, delta=delta, confidence=confidence, tail=tail
    )


def count_correct(scores: ArrayLike, present: ArrayLike, *, guesses: Guesses) -> int:
    """Correct guesses when the highest scores are called present and the lowest absent.

    Args:
        scores: higher means more likely present, [canaries]; ties go by position, which no coin moves.
        present: the inclusion coins, booleans, [canaries].
        guesses: numbers of present and of absent guesses.

    Raises:
        ReproError: NaN scores, lengths that differ, or more guesses than canaries.
    """
    ranked, coins = _scores("scores", scores, 1), np.asarray(present)
    if coins.dtype != np.bool_ or coins.shape != ranked.shape:
        raise ReproError(
            f"present has shape {coins.shape} and dtype {coins.dtype}: expected {len(ranked)} booleans"
        )
    most, least = _check_guesses(guesses, len(ranked))
    order = np.argsort(ranked, kind="stable")
    called_present, called_absent = coins[order[len(order) - most :]], coins[order[:least]]
    return int(called_present.sum() + (~called_absent).sum())


def audit_one_run(
    scores: ArrayLike,
    present: ArrayLike,
    *,
    guesses: Sequence[Guesses],
    delta: float,
    confidence: float = 0.95,
    tail: Tail = "published",
) -> OneRunAudit:
    """Lower bound on epsilon from one run whose canaries were included by independent fair coins.

    Args:
        scores: [canaries], higher means more likely present.
        present: booleans, [canaries].
        guesses: pairs fixed before the scores were seen. Several pairs share the error 1 - confidence
            equally (Bonferroni), and the best one is returned.
        delta, confidence, tail: as in ``one_run_epsilon``.

    Raises:
        ReproError: no pair, or an argument out of range.

    Source: Steinke, Nasr and Jagielski (2023), Algorithm 1 and Appendix D.
    """
    if not guesses:
        raise ReproError("guesses is empty: expected at least one pair, fixed before the scores were seen")
    _check_number("confidence", confidence, 0.5, 1)
    shared = 1 - (1 - confidence) / len(guesses)
    m = len(_scores("scores", scores, 1))
    audits = []
    for pair in guesses:
        v = count_correct(scores, present, guesses=pair)
        bound = one_run_epsilon(
            canaries=m, guesses=sum(pair), correct=v, delta=delta, confidence=shared, tail=tail
        )
        audits.append(OneRunAudit(epsilon=bound, guesses=pair, correct=v, canaries=m))
    return max(audits, key=lambda audit: audit.epsilon)


def _rate_bounds(
    scores: Scores, others: Scores, thresholds: Scores, confidence: float
) -> tuple[Scores, Scores]:
    """Clopper-Pearson lower TPR and upper FPR of "score >= threshold"; both hold with this confidence."""
    above = len(scores) - np.searchsorted(np.sort(scores), thresholds)
    false = len(others) - np.searchsorted(np.sort(others), thresholds)
    # a two-sided interval at 1 - confidence leaves half of it in the tail that is used
    low = proportion_confint(above, len(scores), alpha=1 - confidence, method="beta")[0]
    high = proportion_confint(false, len(others), alpha=1 - confidence, method="beta")[1]
    return np.asarray(low, dtype=float), np.asarray(high, dtype=float)


def _refuted_epsilon(low: Scores, high: Scores, delta: float) -> Scores:
    """Epsilon that a TPR of at least ``low`` at an FPR of at most ``high`` refutes, either way round."""
    with np.errstate(divide="ignore", invalid="ignore"):
        forward = np.log(np.maximum(low - delta, 0)) - np.log(high)
        backward = np.log(np.maximum(1 - high - delta, 0)) - np.log(1 - low)
    return np.asarray(np.nan_to_num(np.maximum(np.maximum(forward, backward), 0.0), nan=0.0))


def audit_two_samples(
    present: ArrayLike, absent: ArrayLike, *, threshold: float, delta: float, confidence: float = 0.95
) -> TwoSampleAudit:
    """Lower bound on epsilon from scores of independent runs with and without the record.

    TPR <= e^eps FPR + delta and 1 - FPR <= e^eps (1 - TPR) + delta hold for every (eps, delta)-DP mechanism;
    the larger violation counts. Both read the same two Clopper-Pearson bounds, so neither costs extra.

    Args:
        present: scores with the record, [runs]; independent. Canaries of one run are independent only if
            their scores do not interfere.
        absent: scores without it, [runs].
        threshold: scores at or above it are called present; fixed on other data (``choose_threshold``).
        delta: of the claim, in [0, 1).
        confidence: in [0.5, 1).

    Raises:
        ReproError: no scores, NaN scores or an argument out of range.

    Source: DP-GRPO, Section IV (every test of one presence bit).
    """
    inside, outside = _scores("present", present, 1), _scores("absent", absent, 1)
    _check_number("delta", delta, 0, 1)
    _check_number("confidence", confidence, 0.5, 1)
    if math.isnan(threshold):
        raise ReproError("threshold is NaN: expected a number, chosen on other scores")
    low, high = _rate_bounds(inside, outside, np.array([threshold]), confidence)
    return TwoSampleAudit(
        epsilon=float(_refuted_epsilon(low, high, delta)[0]),
        threshold=float(threshold),
        true_positive_rate_low=float(low[0]),
        false_positive_rate_high=float(high[0]),
    )


def choose_threshold(
    present: ArrayLike, absent: ArrayLike, *, delta: float, confidence: float = 0.95
) -> float:
    """Score at which the two-sample bound of these scores is largest. Judge it on other scores.

    Raises:
        ReproError: no scores, NaN scores or an argument out of range.
    """
    inside, outside = _scores("present", present, 1), _scores("absent", absent, 1)
    _check_number("delta", delta, 0, 1)
    _check_number("confidence", confidence, 0.5, 1)
    thresholds = np.unique(np.concatenate([inside, outside]))
    bounds = _refuted_epsilon(*_rate_bounds(inside, outside, thresholds, confidence), delta)
    return float(thresholds[np.argmax(bounds)])


def split_audit(
    present: ArrayLike,
    absent: ArrayLike,
    *,
    delta: float,
    confidence: float = 0.95,
    generator: np.random.Generator,
) -> TwoSampleAudit:
    """Two-sample audit that chooses its threshold on a random half and is judged on the other half.

    Raises:
        ReproError: fewer than two scores a sample, NaN scores or an argument out of range.
    """
    inside = generator.permutation(_scores("present", present, 2))
    outside = generator.permutation(_scores("absent", absent, 2))
    i, o = len(inside) // 2, len(outside) // 2
    threshold = choose_threshold(inside[:i], outside[:o], delta=delta, confidence=confidence)
    return audit_two_samples(inside[i:], outside[o:], threshold=threshold, delta=delta, confidence=confidence)


def auc(present: ArrayLike, absent: ArrayLike, *, confidence: float = 0.95) -> Estimate:
    """Probability that a present score exceeds an absent one, ties counted half.

    The interval is DeLong's: the variance of the placements, as statsmodels' Brunner-Munzel comparison
    computes it. Where that variance is 0 (perfect separation), Hoeffding's inequality for the same
    U-statistic takes its place, since a width of 0 would claim certainty.

    Raises:
        ReproError: fewer than two scores a sample, NaN scores or a confidence out of range.
    """
    inside, outside = _scores("present", present, 2), _scores("absent", absent, 2)
    _check_number("confidence", confidence, 0.5, 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        compared = rank_compare_2indep(inside, outside, use_t=False)
        value = float(compared.prob1)
        low, high = compared.conf_int(alpha=1 - confidence)
    if not high > low:
        half = math.sqrt(math.log(2 / (1 - confidence)) / (2 * min(len(inside), len(outside))))
        low, high = value - half, value + half
    return Estimate(value=value, low=max(0.0, float(low)), high=min(1.0, float(high)))


def tpr_at_fpr(present: ArrayLike, absent: ArrayLike, *, fpr: float, confidence: float = 0.95) -> Estimate:
    """Largest true-positive rate of a threshold whose false-positive rate is at most ``fpr``.

    The interval assumes no distribution. The FPR of "above the k-th largest absent score" is beta(k, n-k+1);
    one k makes it at most ``fpr`` and another at least, each with a quarter of the error, and the
    Clopper-Pearson bounds of the TPR at these two thresholds take the other half.

    Raises:
        ReproError: no scores, NaN scores, fpr outside [0, 1) or a confidence out of range.
    """
    inside, outside = _scores("present", present, 1), np.sort(_scores("absent", absent, 1))[::-1]
    _check_number("fpr", fpr, 0, 1)
    _check_number("confidence", confidence, 0.5, 1)
    n, error = len(outside), (1 - confidence) / 4
    k = np.arange(1, n + 1)
    below = int(np.count_nonzero(stats.beta.ppf(1 - error, k, n - k + 1) <= fpr))
    above = n - int(np.count_nonzero(stats.beta.ppf(error, k, n - k + 1) >= fpr))
    low, high = 0.0, 1.0
    if below:
        caught = int(np.count_nonzero(inside > outside[below - 1]))
        low = float(proportion_confint(caught, len(inside), alpha=2 * error, method="beta")[0])
    if above < n:
        caught = int(np.count_nonzero(inside >= outside[above]))
        high = float(proportion_confint(caught, len(inside), alpha=2 * error, method="beta")[1])
    value = float(np.mean(inside > outside[math.floor(fpr * n)]))
    return Estimate(value=value, low=min(low, value), high=max(high, value))


def certified_tpr(fpr: ArrayLike, *, epsilon: float, delta: float) -> Scores:
    """Largest true-positive rate that (epsilon, delta)-DP allows at these false-positive rates.

    The smaller of e^eps f + delta (removing the record) and 1 - e^-eps (1 - delta - f) (adding it).

    Source: DP-GRPO, Section IV, "Protected event".
    """
    rates = _rates(fpr)
    _check_number("epsilon", epsilon, 0, math.inf)
    _check_number("delta", delta, 0, 1)
    with np.errstate(over="ignore"):
        removing = np.where(rates > 0, math.exp(min(epsilon, 700)) * rates, 0.0) + delta
    adding = 1 - math.exp(-epsilon) * (1 - delta - rates)
    return np.asarray(np.clip(np.minimum(removing, adding), 0, 1))


def certified_curve(fpr: ArrayLike, *, sampling_rate: float, noise_multiplier: float, rounds: int) -> Scores:
    """Largest true-positive rate of any attack on the subsampled Gaussian at these false-positive rates.

    Every epsilon, negative ones included, gives the line e^eps f + delta(eps) above the curve, with
    delta(eps) from the reported accountant; their lower envelope is the trade-off curve. Discretisation and
    finitely many lines only raise it.

    Args:
        fpr: any shape, in [0, 1].
        sampling_rate, noise_multiplier, rounds: of the run.

    Returns:
        True-positive rates, of the shape of ``fpr``.

    Raises:
        ReproError: a parameter out of range.

    Source: DP-GRPO, Definition 2, equation 6; Dong, Roth and Su (2022), Proposition 2.12.
    """
    check_parameters(sampling_rate=sampling_rate, noise_multiplier=noise_multiplier, rounds=rounds)
    rates = _rates(fpr)
    slopes, heights = _supporting_lines(sampling_rate, noise_multiplier, int(rounds))
    envelope = [float(np.min(slopes * rate + heights)) for rate in rates.ravel()]
    return np.asarray(np.clip(np.reshape(envelope, rates.shape), 0, 1))


@lru_cache(maxsize=16)
def _supporting_lines(sampling_rate: float, noise_multiplier: float, rounds: int) -> tuple[Scores, Scores]:
    """Slopes e^eps and heights delta(eps) of the lines whose lower envelope is the trade-off curve."""
    # dp-accounting's subsampled loss needs a rate below 1; this one is within its rounding
    losses = composed(noise_multiplier, min(sampling_rate, 1 - 1e-12), rounds, AdjacencyType.REMOVE, GRID)
    reach = max(1.0, float(losses.get_epsilon_for_delta(MIN_DELTA)))
    epsilons = np.linspace(-reach, reach, CURVE_POINTS)
    return np.exp(epsilons), np.asarray(losses.get_delta_for_epsilon(epsilons))


def dirac_releases(
    present: ArrayLike,
    *,
    sampling_rate: float,
    noise_multiplier: float,
    rounds: int,
    generator: np.random.Generator,
) -> Scores:
    """Released sums of a run's Dirac canaries, in units of the clipping norm, [canaries, rounds].

    Each canary's gradient is the clipping norm on a coordinate of its own, so a present one adds 1 in every
    round that samples it, and noise of standard deviation sigma is added always. The released average times
    m / C is this number. No attack sees more: the two laws of a row are the accountant's dominating pair.

    Args:
        present: booleans, [canaries].
        noise_multiplier: sigma, at least 0; 0 is a run without noise.

    Raises:
        ReproError: a parameter out of range.

    Source: DP-GRPO, Algorithm 1, lines 2, 7 and 8.
    """
    _check_run(sampling_rate, noise_multiplier, rounds)
    coins = np.asarray(present, dtype=bool)
    shape = (len(coins), int(rounds))
    sampled = (generator.random(shape) < sampling_rate) & coins[:, None]
    return np.asarray(sampled + noise_multiplier * generator.standard_normal(shape))


def log_likelihood_ratio(releases: ArrayLike, *, sampling_rate: float, noise_multiplier: float) -> Scores:
    """Optimal membership score: log density of the releases if present minus if absent, [canaries].

    A round contributes log((1 - q) + q exp((x - 1/2) / sigma^2)), averaged over its sampling coin. Without
    noise a released 1 proves presence (infinity).

    Args:
        releases: [canaries, rounds], in units of the clipping norm.

    Raises:
        ReproError: a parameter out of range.

    Source: Neyman-Pearson; DP-GRPO, Definition 2 (the pair A and B).
    """
    _check_run(sampling_rate, noise_multiplier, 1)
    x = np.asarray(releases, dtype=np.float64)
    log_absent = math.log1p(-sampling_rate) if sampling_rate < 1 else -math.inf
    with np.errstate(divide="ignore"):
        shift = (x - 0.5) / np.float64(noise_multiplier) ** 2
    return np.asarray(np.logaddexp(log_absent, math.log(sampling_rate) + shift).sum(axis=-1))


def one_run_power(
    *,
    canaries: int,
    guesses: Sequence[Guesses],
    sampling_rate: float,
    noise_multiplier: float,
    rounds: int,
    delta: float,
    confidence: float = 0.95,
    tail: Tail = "published",
    score: Score = "likelihood-ratio",
    repetitions: int = 100,
    generator: np.random.Generator,
) -> list[OneRunPower]:
    """What the one-run audit of Dirac canaries returns, for each pair of guesses fixed alone in advance.

    The runs are simulated, so the best pair may be read off here and used on the real run without a price.

    Args:
        canaries: m, each included by a fair coin.
        score: "likelihood-ratio" (no score does better) or "sum", the total over the rounds.
        repetitions: simulated runs.

    Raises:
        ReproError: a parameter out of range.
    """
    pairs = [_check_guesses(pair, canaries) for pair in guesses]
    if score not in ("likelihood-ratio", "sum"):
        raise ReproError(f"score = {score!r}: expected 'likelihood-ratio' or 'sum'")
    run = {"sampling_rate": sampling_rate, "noise_multiplier": noise_multiplier}
    correct = np.empty((repetitions, len(pairs)), dtype=int)
    for row in correct:
        present = generator.random(canaries) < 0.5
        releases = dirac_releases(present, rounds=rounds, generator=generator, **run)
        scores = releases.sum(axis=1) if score == "sum" else log_likelihood_ratio(releases, **run)
        row[:] = [count_correct(scores, present, guesses=pair) for pair in pairs]
    return [
        _power(pair, counts, canaries, delta, confidence, tail)
        for pair, counts in zip(pairs, correct.T, strict=True)
    ]


def _power(
    pair: Guesses, counts: NDArray[np.int_], canaries: int, delta: float, confidence: float, tail: Tail
) -> OneRunPower:
    """Summary of the bounds of simulated runs with these numbers of correct guesses."""
    m, r = canaries, sum(pair)
    bounds = [
        one_run_epsilon(canaries=m, guesses=r, correct=v, delta=delta, confidence=confidence, tail=tail)
        for v in counts.tolist()
    ]
    return OneRunPower(
        guesses=pair,
        accuracy=float(counts.mean() / r),
        mean=float(np.mean(bounds)),
        standard_error=float(stats.sem(bounds)) if len(bounds) > 1 else math.inf,
        positive=float(np.mean(np.array(bounds) > 0)),
    )


def _scores(name: str, values: ArrayLike, minimum: int) -> Scores:
    """The scores as a vector without NaN; infinities rank like any other number."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or len(array) < minimum:
        raise ReproError(f"{name} has shape {array.shape}: expected a list of at least {minimum} scores")
    if np.isnan(array).any():
        raise ReproError(f"{name} has a NaN at {int(np.argmax(np.isnan(array)))}: score every canary")
    return array


def _rates(fpr: ArrayLike) -> Scores:
    rates = np.asarray(fpr, dtype=np.float64)
    if not ((rates >= 0) & (rates <= 1)).all():
        raise ReproError("fpr has an entry outside [0, 1]: expected false-positive rates")
    return rates


def _check_number(name: str, value: float, low: float, high: float) -> None:
    if not low <= value < high:
        raise ReproError(f"{name} = {value!r}: expected a number in [{low:g}, {high:g})")


def _check_counts(canaries: int, guesses: int, correct: int) -> None:
    if not 0 <= correct <= guesses <= canaries or guesses < 1:
        raise ReproError(
            f"{correct} correct of {guesses} guesses on {canaries} canaries: "
            "expected correct <= guesses <= canaries, and at least one guess"
        )


def _check_guesses(guesses: Guesses, canaries: int) -> Guesses:
    most, least = guesses
    if min(most, least) < 0 or not 1 <= most + least <= canaries:
        raise ReproError(
            f"guesses = ({most}, {least}): expected two numbers, at least 0, "
            f"that add up to between 1 and the {canaries} canaries"
        )
    return int(most), int(least)


def _check_run(sampling_rate: float, noise_multiplier: float, rounds: int) -> None:
    """The accountants' ranges, except that a run without noise can be audited too."""
    check_parameters(sampling_rate=sampling_rate, rounds=rounds)
    _check_number("noise_multiplier", noise_multiplier, 0, math.inf)
