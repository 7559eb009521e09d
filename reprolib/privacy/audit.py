"""Empirical audits: lower bounds on epsilon from membership scores, beside the certified upper bound.

A lower bound above the certified epsilon proves a broken mechanism. One below it proves nothing about the
accountant: an attack that is too weak, or too few canaries, also gives 0. So ask ``canaries.one_run_power``
first what a correct audit of this size would return, fix the guesses there, then run the audit::

    power = one_run_power(canaries=1000, guesses=[(200, 0), (300, 300)], sampling_rate=q, ...)
    audit_one_run(scores, present, guesses=[(200, 0)], delta=delta)

Two rules keep the stated confidence. The numbers of guesses are fixed before the scores are seen, or every
pair of a list that was fixed pays its share of the error (Bonferroni). A threshold is never chosen on the
scores that it is judged on. Scores of one run's canaries are not independent: they belong to
``audit_one_run``, never to ``audit_two_samples``.

Source: Steinke, Nasr and Jagielski (2023), "Privacy auditing with one (1) training run", Appendix D;
DP-GRPO, Section IV (certified region), Section IX and Appendix B (canary diagnostic).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import optimize, special, stats
from statsmodels.stats.proportion import proportion_confint

from reprolib.errors import ReproError

Tail = Literal["published", "exact"]
Guesses = tuple[int, int]  # how many most confident canaries are called present, least confident absent
Scores = NDArray[np.float64]


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

    Source: Steinke, Nasr and Jagielski (2023), Appendix D; "exact" is derived here.
    """
    _check_counts(canaries, guesses, correct)
    check_number("epsilon", epsilon, 0, math.inf)
    check_number("delta", delta, 0, 1)
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
    check_number("confidence", confidence, 0.5, 1)
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

    Source: Steinke, Nasr and Jagielski (2023), Appendix D with r = v = m.
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
    ranked, coins = as_scores("scores", scores, 1), np.asarray(present)
    if coins.dtype != np.bool_ or coins.shape != ranked.shape:
        raise ReproError(
            f"present has shape {coins.shape} and dtype {coins.dtype}: expected {len(ranked)} booleans"
        )
    most, least = check_guesses(guesses, len(ranked))
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

    Source: Steinke, Nasr and Jagielski (2023), Appendix D.
    """
    if not guesses:
        raise ReproError("guesses is empty: expected at least one pair, fixed before the scores were seen")
    check_number("confidence", confidence, 0.5, 1)
    shared = 1 - (1 - confidence) / len(guesses)
    m = len(as_scores("scores", scores, 1))
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
    inside, outside = as_scores("present", present, 1), as_scores("absent", absent, 1)
    check_number("delta", delta, 0, 1)
    check_number("confidence", confidence, 0.5, 1)
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
    inside, outside = as_scores("present", present, 1), as_scores("absent", absent, 1)
    check_number("delta", delta, 0, 1)
    check_number("confidence", confidence, 0.5, 1)
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
    inside = generator.permutation(as_scores("present", present, 2))
    outside = generator.permutation(as_scores("absent", absent, 2))
    i, o = len(inside) // 2, len(outside) // 2
    threshold = choose_threshold(inside[:i], outside[:o], delta=delta, confidence=confidence)
    return audit_two_samples(inside[i:], outside[o:], threshold=threshold, delta=delta, confidence=confidence)


def as_scores(name: str, values: ArrayLike, minimum: int) -> Scores:
    """The scores as a vector without NaN; infinities rank like any other number."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or len(array) < minimum:
        raise ReproError(f"{name} has shape {array.shape}: expected a list of at least {minimum} scores")
    if np.isnan(array).any():
        raise ReproError(f"{name} has a NaN at {int(np.argmax(np.isnan(array)))}: score every canary")
    return array


def check_number(name: str, value: float, low: float, high: float) -> None:
    """Refuse a number outside [low, high), and NaN."""
    if not low <= value < high:
        raise ReproError(f"{name} = {value!r}: expected a number in [{low:g}, {high:g})")


def _check_counts(canaries: int, guesses: int, correct: int) -> None:
    if not 0 <= correct <= guesses <= canaries or guesses < 1:
        raise ReproError(
            f"{correct} correct of {guesses} guesses on {canaries} canaries: "
            "expected correct <= guesses <= canaries, and at least one guess"
        )


def check_guesses(guesses: Guesses, canaries: int) -> Guesses:
    """The numbers of present and absent guesses, once they are known to fit the canaries."""
    most, least = guesses
    if min(most, least) < 0 or not 1 <= most + least <= canaries:
        raise ReproError(
            f"guesses = ({most}, {least}): expected two numbers, at least 0, "
            f"that add up to between 1 and the {canaries} canaries"
        )
    return int(most), int(least)
