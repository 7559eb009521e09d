"""Trade-off of a membership test: what the certified mechanism allows, and what an attack attains.

    certified_curve(fpr, sampling_rate=q, noise_multiplier=sigma, rounds=T)   # no attack lies above
    auc(present_scores, absent_scores)                                        # an attack, with its interval

Source: DP-GRPO, Section IV (every test of one presence bit), Definition 2.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType
from numpy.typing import ArrayLike
from scipy import stats
from statsmodels.stats.nonparametric import rank_compare_2indep
from statsmodels.stats.proportion import proportion_confint

from reprolib.errors import ReproError
from reprolib.privacy.audit import Scores, as_scores, check_number
from reprolib.privacy.losses import GRID, MIN_DELTA, check_parameters, composed

CURVE_POINTS = 4001  # supporting lines of the certified trade-off curve


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A rate and its two-sided confidence interval."""

    value: float
    low: float
    high: float


def auc(present: ArrayLike, absent: ArrayLike, *, confidence: float = 0.95) -> Estimate:
    """Probability that a present score exceeds an absent one, ties counted half.

    The interval is DeLong's: the variance of the placements, as statsmodels' Brunner-Munzel comparison
    computes it. Where that variance is 0 (perfect separation), Hoeffding's inequality for the same
    U-statistic takes its place, since a width of 0 would claim certainty.

    Raises:
        ReproError: fewer than two scores a sample, NaN scores or a confidence out of range.
    """
    inside, outside = as_scores("present", present, 2), as_scores("absent", absent, 2)
    check_number("confidence", confidence, 0.5, 1)
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
    inside, outside = as_scores("present", present, 1), np.sort(as_scores("absent", absent, 1))[::-1]
    check_number("fpr", fpr, 0, 1)
    check_number("confidence", confidence, 0.5, 1)
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
    check_number("epsilon", epsilon, 0, math.inf)
    check_number("delta", delta, 0, 1)
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

    Source: DP-GRPO, Definition 2, equation 6; Dong, Roth and Su (2022), duality.
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


def _rates(fpr: ArrayLike) -> Scores:
    rates = np.asarray(fpr, dtype=np.float64)
    if not ((rates >= 0) & (rates <= 1)).all():
        raise ReproError("fpr has an entry outside [0, 1]: expected false-positive rates")
    return rates
