"""Budgets of the Poisson-subsampled Gaussian mechanism.

The reported accountant is the privacy-loss-distribution (PLD) accountant of dp-accounting, with
pessimistic connect-the-dots discretisation and the add-or-remove relation. Rényi DP (RDP) and
privacy random variables (PRV), both from opacus, are cross-checks.

    >>> epsilon(sampling_rate=128 / 6988, noise_multiplier=1.0023417361080647, rounds=50, delta=1 / 69880)
    1.0000000...

Source: DP-GRPO, Sections III-C and VI-C, Appendix A-F.
"""

import contextlib
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from dp_accounting.pld.privacy_loss_distribution import (
    PrivacyLossDistribution,
    from_gaussian_mechanism,
)
from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType
from dp_accounting.privacy_accountant import NeighboringRelation
from scipy import integrate, optimize, stats

from reprolib.errors import ReproError
from reprolib.privacy.losses import (
    DIRECTIONS,
    GRID,
    MIN_DELTA,
    NOISE_RANGE,
    check_parameters,
    composed,
    subsampled_gaussian,
)

Accountant = Literal["pld", "rdp", "prv"]
Direction = Literal["remove", "add"]

GRIDS = (1e-2, 1e-3, GRID)  # of a calibration, coarse to fine
PRV_ERROR = 1e-3  # of the PRV cross-check, in epsilon
ORDERS: list[float] = [1 + x / 10 for x in range(1, 100)] + list(range(11, 64)) + [128, 256, 512, 1024]


def composed_epsilon(*releases: PrivacyLossDistribution, delta: float) -> float:
    """Epsilon of the joint release of several mechanisms run on the same records.

    Source: DP-GRPO, Appendix A-E (releasing several runs composes their transcripts).
    """
    check_parameters(delta=delta)
    return float(reduce(lambda a, b: a.compose(b), releases).get_epsilon_for_delta(delta))


def epsilon(
    *,
    sampling_rate: float,
    noise_multiplier: float,
    rounds: int,
    delta: float,
    accountant: Accountant = "pld",
) -> float:
    """Smallest epsilon that the accountant certifies at this delta.

    Args:
        sampling_rate: probability q that a slot takes part in a round.
        noise_multiplier: noise standard deviation over the clipping norm, sigma.
        rounds: number of releases T.
        delta: failure probability.
        accountant: "pld" (reported), "rdp" or "prv" (cross-checks).

    Raises:
        ReproError: a parameter out of range, or an unknown accountant.
    """
    check_parameters(
        sampling_rate=sampling_rate, noise_multiplier=noise_multiplier, rounds=rounds, delta=delta
    )
    if accountant == "pld":
        run = subsampled_gaussian(
            sampling_rate=sampling_rate, noise_multiplier=noise_multiplier, rounds=rounds
        )
        return composed_epsilon(run, delta=delta)
    if accountant == "rdp":
        return rdp(
            sampling_rate=sampling_rate, noise_multiplier=noise_multiplier, rounds=rounds, delta=delta
        ).epsilon
    if accountant == "prv":
        accountant_prv = _prv(sampling_rate=sampling_rate, noise_multiplier=noise_multiplier, rounds=rounds)
        return float(accountant_prv.get_epsilon(delta, eps_error=PRV_ERROR))
    raise ReproError(f"accountant = {accountant!r}: expected 'pld', 'rdp' or 'prv'")


def delta(
    *,
    sampling_rate: float,
    noise_multiplier: float,
    rounds: int,
    epsilon: float,
    accountant: Accountant = "pld",
) -> float:
    """Smallest delta that the accountant certifies at this epsilon: the privacy profile.

    Args:
        accountant: "pld" (reported), "rdp" or "prv" (cross-checks).

    Raises:
        ReproError: a parameter out of range, or an unknown accountant.

    Source: DP-GRPO, Definition 2, equation 6.
    """
    mechanism: dict[str, Any] = {
        "sampling_rate": sampling_rate,
        "noise_multiplier": noise_multiplier,
        "rounds": rounds,
    }
    check_parameters(epsilon=epsilon, **mechanism)
    if accountant == "pld":
        return float(subsampled_gaussian(**mechanism).get_delta_for_epsilon(epsilon))
    if accountant == "rdp":
        # the conversion of Balle et al. (2020) solved for delta
        exponents = (
            (order - 1) * (renyi - epsilon + math.log1p(-1 / order)) - math.log(order)
            for order, renyi in _renyi_curve(ORDERS, **mechanism)
        )
        return min(1.0, math.exp(min(exponents)))
    if accountant == "prv":
        losses = _prv(**mechanism)._get_dprv(eps_error=PRV_ERROR, delta_error=MIN_DELTA)
        return min(1.0, float(losses.compute_delta_estimate(epsilon - PRV_ERROR)) + MIN_DELTA)
    raise ReproError(f"accountant = {accountant!r}: expected 'pld', 'rdp' or 'prv'")


def replace_one_epsilon(*, sampling_rate: float, noise_multiplier: float, rounds: int, delta: float) -> float:
    """Epsilon when one record is replaced by another, accounted directly instead of by Corollary 1.

    Source: DP-GRPO, Appendix A-E.
    """
    check_parameters(
        sampling_rate=sampling_rate, noise_multiplier=noise_multiplier, rounds=rounds, delta=delta
    )
    one_round = from_gaussian_mechanism(
        noise_multiplier, sampling_prob=sampling_rate, value_discretization_interval=GRID,
        neighboring_relation=NeighboringRelation.REPLACE_ONE,
    )  # fmt: skip
    return float(one_round.self_compose(int(rounds)).get_epsilon_for_delta(delta))


@dataclass(frozen=True)
class RenyiBudget:
    """An RDP budget and the order that attains it."""

    epsilon: float
    order: float


def rdp(
    *,
    sampling_rate: float,
    noise_multiplier: float,
    rounds: int,
    delta: float,
    orders: list[float] | None = None,
) -> RenyiBudget:
    """Rényi-DP budget: exact moments at integer orders, a convergent series at the others.

    Args:
        orders: the grid over which the conversion is minimised; the paper's by default.

    Source: DP-GRPO, Appendix A-F.
    """
    from opacus.accountants.analysis import rdp as opacus_rdp

    check_parameters(
        sampling_rate=sampling_rate, noise_multiplier=noise_multiplier, rounds=rounds, delta=delta
    )
    curve = _renyi_curve(
        orders or ORDERS, sampling_rate=sampling_rate, noise_multiplier=noise_multiplier, rounds=rounds
    )
    with warnings.catch_warnings():  # the order that is returned says whether the grid was too short
        warnings.filterwarnings("ignore", message="Optimal order is the")
        found, order = opacus_rdp.get_privacy_spent(
            orders=[o for o, _ in curve], rdp=[r for _, r in curve], delta=delta
        )
    return RenyiBudget(float(found), float(order))


def _renyi_curve(
    orders: list[float], *, sampling_rate: float, noise_multiplier: float, rounds: int
) -> list[tuple[float, float]]:
    """Rényi divergence of the rounds at each order where the series stays inside binary64."""
    from opacus.accountants.analysis.rdp import compute_rdp

    curve = []
    with np.errstate(all="ignore"):
        for order in orders:
            with contextlib.suppress(OverflowError, ValueError):
                renyi = float(
                    compute_rdp(
                        q=sampling_rate,
                        noise_multiplier=noise_multiplier,
                        steps=int(rounds),
                        orders=float(order),
                    )
                )
                if math.isfinite(renyi):
                    curve.append((float(order), renyi))
    return curve


def _prv(*, sampling_rate: float, noise_multiplier: float, rounds: int) -> Any:
    """Opacus' accountant by privacy random variables, charged with the rounds."""
    from opacus.accountants import PRVAccountant

    accountant = PRVAccountant()
    accountant.history = [(noise_multiplier, sampling_rate, int(rounds))]
    return accountant


def hockey_stick(
    *, sampling_rate: float, noise_multiplier: float, alpha: float, direction: Direction
) -> float:
    """Hockey-stick divergence of one round, by quadrature.

    ``remove`` is H_alpha(A || B) and ``add`` is H_alpha(B || A), with
    A = (1-q) N(0, sigma^2) + q N(1, sigma^2) and B = N(0, sigma^2).

    Source: DP-GRPO, Definition 2, equations 5 and 6.
    """
    check_parameters(sampling_rate=sampling_rate, noise_multiplier=noise_multiplier, alpha=alpha)
    if direction not in ("remove", "add"):
        raise ReproError(f"direction = {direction!r}: expected 'remove' or 'add'")
    q, sigma = sampling_rate, noise_multiplier

    def excess(x: float) -> float:
        b = stats.norm.pdf(x, 0, sigma)
        a = (1 - q) * b + q * stats.norm.pdf(x, 1, sigma)
        upper, lower = (a, b) if direction == "remove" else (b, a)
        return max(float(upper - alpha * lower), 0.0)

    reach = 12 * sigma
    kinks = sorted({-reach, 0.0, 0.5, 1.0, 1 + reach, *_kink(q, sigma, alpha, direction)})
    parts = [integrate.quad(excess, a, b, limit=200)[0] for a, b in pairwise(kinks)]
    return float(sum(parts))


def _kink(q: float, sigma: float, alpha: float, direction: Direction) -> list[float]:
    """Where the integrand of the hockey-stick divergence leaves zero, if it does."""
    ratio = alpha if direction == "remove" else (1 / alpha if alpha > 0 else math.inf)
    if ratio <= 1 - q or math.isinf(ratio):
        return []
    x = 0.5 + sigma**2 * math.log((ratio - (1 - q)) / q)
    return [x] if -12 * sigma < x < 1 + 12 * sigma else []


def calibrate_noise_multiplier(
    *, sampling_rate: float, rounds: int, target_epsilon: float, delta: float, tolerance: float = 1e-9
) -> float:
    """Smallest noise multiplier, to ``tolerance``, at which the PLD accountant certifies the target.

    The root is bracketed on a coarse discretisation grid and settled by secant steps on ever finer
    ones. The value returned certifies the target on the reported grid, in both directions.

    Args:
        tolerance: how far above the smallest such noise multiplier the result may lie, or as near as the
            accountant's rounding lets the root be told, where that is coarser.

    Raises:
        ReproError: a parameter out of range, or no noise multiplier in ``NOISE_RANGE`` reaches the target.

    Source: DP-GRPO, Section VI-C.
    """
    check_parameters(
        sampling_rate=sampling_rate, rounds=rounds, target_epsilon=target_epsilon, delta=delta,
        tolerance=tolerance,
    )  # fmt: skip

    def gap(sigma: float, grid: float, direction: AdjacencyType) -> float:
        try:
            losses = composed(sigma, min(sampling_rate, 1 - 1e-12), int(rounds), direction, grid)
        except ReproError:
            return math.inf
        return float(losses.get_epsilon_for_delta(delta)) - target_epsilon

    sigma = _bracketed_root(lambda x: max(gap(x, GRIDS[0], d) for d in DIRECTIONS), target_epsilon)
    binding, other = sorted(DIRECTIONS, key=lambda d: -gap(sigma, GRIDS[0], d))
    step = 1e-3 * sigma
    slope = (gap(sigma + step, GRIDS[0], binding) - gap(sigma, GRIDS[0], binding)) / step
    for grid in GRIDS:
        accuracy = tolerance if grid == GRID else 1e-3 * grid
        sigma, slope = _settle(lambda x: gap(x, grid, binding), sigma, slope, accuracy)  # noqa: B023
    if gap(sigma, GRID, other) > 0:
        sigma, _ = _settle(lambda x: gap(x, GRID, other), sigma, slope, tolerance)
    return sigma


def _bracketed_root(gap: Callable[[float], float], target: float) -> float:
    """Noise multiplier at which a decreasing gap changes sign, to four digits."""
    low, high = NOISE_RANGE
    upper = 1.0
    while gap(upper) > 0:
        upper *= 2
        if upper > high:
            raise ReproError(
                f"no noise multiplier up to {high:g} gives epsilon {target:g}: raise it, or delta"
            )
    lower = upper / 2
    while gap(lower) <= 0:
        lower, upper = lower / 2, lower
        if lower < low:
            raise ReproError(f"epsilon {target:g} needs less noise than the multiplier {low:g}: lower it")
    return float(optimize.brentq(gap, lower, upper, xtol=1e-4 * lower))


def _settle(
    gap: Callable[[float], float], sigma: float, slope: float, tolerance: float
) -> tuple[float, float]:
    """Secant steps towards the root of a decreasing gap, ending on its non-positive side.

    Returns:
        The point, at most ``tolerance`` beyond the root, and the last slope. Where the gap's own rounding is
        coarser than that, as at a tiny delta, the distance allowed doubles until a point is found.
    """
    value = gap(sigma)
    for attempt in range(25):
        reach = tolerance * 2 ** max(0, attempt - 8)
        if value <= 0 and value / slope <= reach:
            return sigma, slope
        # a coarse grid's slope may be far off: no step leaves [sigma / 2, 2 sigma]
        moved = min(max(sigma - value / slope + reach / 4, sigma / 2), 2 * sigma)
        new = gap(moved)
        if abs(moved - sigma) > 100 * reach and (new - value) / (moved - sigma) < 0:
            slope = (new - value) / (moved - sigma)
        sigma, value = moved, new
    raise ReproError(f"the calibration did not settle to {tolerance:g}: ask for a larger tolerance")


def gaussian_noise_multiplier(*, target_epsilon: float, delta: float) -> float:
    """Smallest noise multiplier of one Gaussian release without subsampling (analytic formula).

    Source: PrivDPO, Appendix D.1, after Balle and Wang (2018), Theorem 8.
    """
    check_parameters(target_epsilon=target_epsilon, delta=delta)

    def gap(sigma: float) -> float:
        a, b = 1 / (2 * sigma), target_epsilon * sigma
        return float(stats.norm.cdf(a - b) - np.exp(target_epsilon + stats.norm.logcdf(-a - b)) - delta)

    low, high = 1e-3, NOISE_RANGE[1]
    if gap(high) > 0 or gap(low) < 0:
        raise ReproError(f"no noise multiplier in [{low:g}, {high:g}] gives epsilon {target_epsilon:g}")
    return float(optimize.brentq(gap, low, high, xtol=1e-14, rtol=1e-14))


def group_privacy(epsilon: float, delta: float, k: int) -> tuple[float, float]:
    """Guarantee for k records together: (k epsilon, delta (1 + e^eps + ... + e^{(k-1) eps})).

    The sum is at most k e^{(k-1) eps} delta, the form in which the paper states it.

    Source: DP-GRPO, Proposition 1 and its proof.
    """
    check_parameters(epsilon=epsilon, k=k)
    if not 0 <= delta <= 1:
        raise ReproError(f"delta = {delta!r}: expected a probability in [0, 1]")
    exponents = epsilon * np.arange(k)
    factor = math.inf if exponents[-1] > 700 else float(np.exp(exponents).sum())
    return k * epsilon, min(1.0, delta * factor) if delta else 0.0
