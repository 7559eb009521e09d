"""Privacy-loss distributions of single mechanisms, discretised pessimistically on a grid.

Guarantee: connect-the-dots rounding can only raise the hockey-stick divergence at every epsilon, so every
number read from these distributions is an upper bound. The discretisation, the composition and the
distribution class are dp-accounting's.

Source: DP-GRPO, Definition 2 and Section VI-C.
"""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from dp_accounting.pld import pld_pmf, privacy_loss_mechanism
from dp_accounting.pld.privacy_loss_distribution import (
    PrivacyLossDistribution,
    from_gaussian_mechanism,
    from_laplace_mechanism,
)
from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType
from scipy import special

from reprolib.errors import ReproError

GRID = 1e-4  # discretisation interval of the reported PLD accountant (its default)
DIRECTIONS = (AdjacencyType.REMOVE, AdjacencyType.ADD)
NOISE_RANGE = (0.05, 1e4)  # noise multipliers that the accountants are asked about
MAX_POINTS = 2**23  # of a composed privacy-loss grid
MIN_DELTA = 1e-12  # below this the discarded tail mass of the PLD accountant is no longer negligible

RANGES: dict[str, tuple[Callable[[float], bool], str]] = {
    "sampling_rate": (lambda x: 0 < x <= 1, "a rate in (0, 1]"),
    "noise_multiplier": (
        lambda x: NOISE_RANGE[0] <= x <= NOISE_RANGE[1],
        f"a number in [{NOISE_RANGE[0]}, {NOISE_RANGE[1]:g}]",
    ),
    "rounds": (lambda x: x >= 1 and x == int(x), "a whole number, at least 1"),
    "k": (lambda x: x >= 1 and x == int(x), "a whole number, at least 1"),
    "delta": (lambda x: MIN_DELTA <= x < 1, f"a probability in [{MIN_DELTA}, 1)"),
    "epsilon": (lambda x: x >= 0, "a number, at least 0"),
    "target_epsilon": (lambda x: x > 0, "a number above 0"),
    "tolerance": (lambda x: x > 0, "a number above 0"),
    "alpha": (lambda x: x >= 0, "a number, at least 0"),
    "scale": (lambda x: x > 0, "a number above 0"),
}


def check_parameters(**values: Any) -> None:
    """Refuse parameters that no accountant can answer for.

    Args:
        values: parameters by name; the names and ranges are those of ``RANGES``.

    Raises:
        ReproError: a value that is no number, NaN, infinite or out of range; the message names the range.
    """
    for name, value in values.items():
        in_range, expected = RANGES[name]
        number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
        if not (number and math.isfinite(value) and in_range(value)):
            raise ReproError(f"{name} = {value!r}: expected {expected}")


@lru_cache(maxsize=64)
def subsampled_gaussian(
    *, sampling_rate: float, noise_multiplier: float, rounds: int, grid: float = GRID
) -> PrivacyLossDistribution:
    """Privacy-loss distribution of ``rounds`` Poisson-subsampled Gaussian releases.

    Args:
        grid: discretisation interval; the rounding is pessimistic at every grid.

    Source: DP-GRPO, Definition 2 and Section VI-C.
    """
    check_parameters(sampling_rate=sampling_rate, noise_multiplier=noise_multiplier, rounds=rounds)
    if sampling_rate == 1:  # T Gaussian releases are one, with sqrt(T) less noise
        _check_size(20 * math.sqrt(rounds) / noise_multiplier / grid)
        return from_gaussian_mechanism(
            noise_multiplier / math.sqrt(rounds), value_discretization_interval=grid
        )
    return PrivacyLossDistribution(
        *(composed(noise_multiplier, sampling_rate, int(rounds), d, grid) for d in DIRECTIONS)
    )


def laplace_count(*, scale: float) -> PrivacyLossDistribution:
    """Privacy-loss distribution of a count released with Laplace noise of this scale (sensitivity 1).

    Source: SAGE, Algorithm 1, line 1.
    """
    check_parameters(scale=scale)
    return from_laplace_mechanism(scale, value_discretization_interval=GRID)


class _VectorisedGaussianLoss(privacy_loss_mechanism.GaussianPrivacyLoss):
    """dp-accounting's subsampled Gaussian with its hockey-stick curve evaluated on whole arrays.

    The parent evaluates it point by point in Python, which takes most of an accountant's time; the curve,
    the grid, the discretisation and the composition are the library's, and a test compares the two.
    """

    def get_delta_for_epsilon(self, epsilon: Any) -> Any:
        """Closed form of the hockey-stick divergence at e**epsilon, for an array of epsilon."""
        eps = np.asarray(epsilon, dtype=float)
        q, sigma = self.sampling_prob, self._standard_deviation
        sign = 1.0 if self.adjacency_type == AdjacencyType.REMOVE else -1.0
        with np.errstate(divide="ignore", invalid="ignore"):
            # where the likelihood ratio crosses e**epsilon: sigma^2 log((e^{±eps} - (1 - q)) / q) + 1/2
            x = 0.5 + sigma**2 * np.log1p(np.expm1(sign * eps) / q)
        x = np.where(np.isnan(x), -np.inf, x)
        log_base = special.log_ndtr(-sign * x / sigma)
        log_shifted = special.log_ndtr(-sign * (x - 1) / sigma)
        log_mixture = np.logaddexp(math.log1p(-q) + log_base, math.log(q) + log_shifted)
        upper, lower = (log_mixture, log_base) if sign > 0 else (log_base, log_mixture)
        return np.clip(np.exp(upper) - np.exp(eps + lower), 0, 1)


def composed(
    noise_multiplier: float, sampling_rate: float, rounds: int, direction: AdjacencyType, grid: float
) -> pld_pmf.PLDPmf:
    """Privacy losses of the rounds in one direction: connect-the-dots, then self-composition.

    Raises:
        ReproError: the composed distribution would not fit into memory.
    """
    loss = _VectorisedGaussianLoss(noise_multiplier, sampling_prob=sampling_rate, adjacency_type=direction)
    bounds = loss.connect_dots_bounds()
    low, high = math.floor(bounds.epsilon_lower / grid), math.ceil(bounds.epsilon_upper / grid)
    deltas = loss.get_delta_for_epsilon(np.arange(low, high + 1) * grid)
    # dense, because the library composes its sparse form in a loop over the rounds
    one_round = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(grid, low, high, deltas).to_dense_pmf()
    probabilities = one_round._probs
    support = np.arange(len(probabilities))
    variance = float(probabilities @ support**2 - (probabilities @ support) ** 2)
    # width that dp-accounting's Chernoff bounds leave after truncation, at the best of its twenty orders
    size, spread = len(probabilities), max(variance, 0.0) * rounds
    order = min(max(size * math.sqrt(70 / (spread + 1e-9)), 1), 20)
    _check_size(spread * order / size + 70 * size / order)
    return one_round.self_compose(rounds)


def _check_size(points: float) -> None:
    """Refuse a composed loss whose grid would not fit into memory."""
    if points > MAX_POINTS:
        raise ReproError(
            "the privacy loss is too wide for the PLD accountant, its epsilon would be in the hundreds: "
            "use more noise or fewer rounds"
        )
