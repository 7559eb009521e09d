"""What theory says about shrinking a released vector, and estimators beside the paper's.

The floor of equation 9 acts on every release. Where noise dominates, a release's corrected energy is often
negative, the floor lifts it, and the moving average inherits the lift: ``energy_bias``. The estimators here
have the controller's protocol, cost the same (nothing) and read the same releases:

- ``LateFloor`` averages first and floors afterwards;
- ``PrecisionWeighted`` weighs a release by its precision, whose variance falls as 1/K;
- ``JamesStein`` shrinks each release alone, by the positive-part rule;
- ``SmoothedJamesStein`` is that rule on the averaged energy: the reliability itself, without an anchor;
- ``LinearDecay`` looks at nothing: a control, for what any falling scale would gain.

Source: SAGE, equations 6 to 18.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import integrate, stats
from torch import Tensor

from reprolib.errors import ReproError
from reprolib.learn.sage import ShrinkageController


def expected_energy(signal: NDArray[np.float64], noise_std: float) -> float:
    """Mean of ``|s|^2 / K`` over the noise of a release s = u + xi. Source: SAGE, equation 8."""
    return float((signal**2).mean()) + noise_std**2


def energy_bias(num_directions: int, noise_to_signal: float, *, relative_floor: float = 0.0) -> float:
    """How far the mean corrected energy lies above the signal's energy, relative to it.

    ``K |s|^2 / (K tau^2)`` is a noncentral chi-square variable X with K degrees of freedom; the bias is
    E (K + K floor - X)^+ tau^2 / K, an integral of its distribution function.

    Args:
        num_directions: K.
        noise_to_signal: ``K tau^2 / |u|^2``, above 0.
        relative_floor: rho / tau^2.

    Raises:
        ReproError: K < 1, or a ratio that is not above 0.

    Source: SAGE, equation 9; the bias is our finding.
    """
    _check_ratio(num_directions, noise_to_signal)
    law = stats.ncx2(num_directions, num_directions / noise_to_signal)
    lifted = integrate.quad(law.cdf, 0, num_directions * (1 + relative_floor), limit=200)[0]
    return float(lifted / num_directions * noise_to_signal)


def simulated_energy_bias(num_directions: int, noise_to_signal: float, *, draws: int, seed: int,
                          relative_floor: float = 0.0) -> tuple[float, float]:  # fmt: skip
    """``energy_bias`` by simulation: the estimate and its standard error."""
    _check_ratio(num_directions, noise_to_signal)
    signal = 1 / math.sqrt(noise_to_signal)  # of each coordinate, in units of tau
    releases = signal + np.random.default_rng(seed).standard_normal((draws, num_directions))
    corrected = np.maximum((releases**2).mean(1) - 1, relative_floor)
    relative = corrected * noise_to_signal - 1
    return float(relative.mean()), float(stats.sem(relative))


def _check_ratio(num_directions: int, noise_to_signal: float) -> None:
    if num_directions < 1 or not (noise_to_signal > 0 and math.isfinite(noise_to_signal)):
        raise ReproError(
            f"num_directions = {num_directions!r}, noise_to_signal = {noise_to_signal!r}: expected at least "
            "1, and a finite number above 0"
        )


def direction_risk(dimension: int, num_directions: int) -> float:
    """R_K: ``E|G|^2 / |g|^2`` of the clean estimate G = (1/K) sum_k (z_k . g) z_k, z_k normal in R^d.

    Source: SAGE, after equation 17, which leaves it open; from Gaussian fourth moments.
    """
    return (dimension + num_directions + 1) / num_directions


def noise_risk(dimension: int, num_directions: int, noise_std: float) -> float:
    """N_K: ``E|N|^2`` of the update noise N = sum_k xi_k z_k. Source: SAGE, after equation 17."""
    return num_directions * dimension * noise_std**2


@dataclass(frozen=True, kw_only=True)
class OneStep:
    """One step from a point with a known gradient: theta <- theta - eta m (G + N).

    Args:
        signal: S = ``|g|^2``.
        dimension: d.
        num_directions: K.
        noise_std: tau.
        learning_rate: eta.
        smoothness: Lipschitz constant L of the gradient.

    Source: SAGE, equations 16 to 18.
    """

    signal: float
    dimension: int
    num_directions: int
    noise_std: float
    learning_rate: float
    smoothness: float

    @property
    def risk(self) -> float:
        """R_K S + N_K, the mean square of the unscaled update over eta^2."""
        return direction_risk(self.dimension, self.num_directions) * self.signal + noise_risk(
            self.dimension, self.num_directions, self.noise_std
        )

    def bound(self, multiplier: float) -> float:
        """Upper bound of the mean change of the loss, equation 17."""
        scaled = self.learning_rate * multiplier
        return -scaled * self.signal + self.smoothness * scaled**2 / 2 * self.risk

    def oracle_multiplier(self) -> float:
        """The multiplier with the least bound, equation 18."""
        return self.signal / (self.smoothness * self.learning_rate * self.risk)


def measured_change(curvatures: NDArray[np.float64], theta: NDArray[np.float64], *, num_directions: int,
                    noise_std: float, learning_rate: float, multiplier: float, draws: int,
                    seed: int) -> tuple[float, float]:  # fmt: skip
    """Mean change of the loss sum_i h_i theta_i^2 / 2 in one step, and its standard error, by simulation.

    Args:
        curvatures: h, [d]; the Lipschitz constant is the largest.
        theta: the point, [d].

    Source: SAGE, equation 16.
    """
    generator = np.random.default_rng(seed)
    gradient, d = curvatures * theta, len(theta)
    changes = []
    for block in np.array_split(np.arange(draws), max(1, draws * num_directions * d // 2**20)):
        z = generator.standard_normal((len(block), num_directions, d))
        noise = noise_std * generator.standard_normal((len(block), num_directions))
        released = z @ gradient / num_directions + noise
        step = learning_rate * multiplier * np.einsum("nk,nkd->nd", released, z)
        changes.append(-step @ gradient + (curvatures * step**2).sum(1) / 2)
    change = np.concatenate(changes)
    return float(change.mean()), float(stats.sem(change))


class LateFloor(ShrinkageController):
    """SAGE with the floor applied to the average, whose noise has cancelled, not to each release."""

    def _corrected(self, observed: float) -> float:
        return observed - self.subtract_noise * self.noise_std**2


class PrecisionWeighted(LateFloor):
    """``LateFloor`` whose averaging rate follows the precision of a release.

    The corrected energy of a release has variance (2 tau^4 + 4 tau^2 v) / K. The rate is the gain of the
    scalar Kalman filter for an energy that drifts: many directions count fast, few or noisy ones slowly.

    Args:
        drift: standard deviation of the energy's relative change in one round.
        settings: of ``ShrinkageController``; beta is not used.
    """

    def __init__(self, num_directions: int, noise_std: float, *, drift: float = 0.05, **settings: Any):
        super().__init__(num_directions, noise_std, **settings)
        if not 0 < drift < math.inf:
            raise ReproError(f"drift = {drift!r}: expected a finite number above 0")
        self.drift, self.uncertainty = drift, 0.0

    def _variance(self) -> float:
        tau2, energy = self.noise_std**2, max(self.energy, self.floor)
        return (2 * tau2**2 + 4 * tau2 * energy) / self.num_directions

    def _tracked(self, corrected: float) -> float:
        variance = self._variance()
        if self.round == self.warmup + 1:  # the warm-up was a plain mean
            self.uncertainty = variance / self.warmup
        predicted = self.uncertainty + (self.drift * max(self.energy, self.floor)) ** 2
        gain = predicted / (predicted + variance) if predicted > 0 else 1.0
        self.uncertainty = (1 - gain) * predicted
        return self.energy + gain * (corrected - self.energy)

    def settings(self) -> dict[str, Any]:
        """See ``ShrinkageController.settings``."""
        return super().settings() | {"drift": self.drift}

    def state(self) -> dict[str, Any]:
        """See ``ShrinkageController.state``; one number more."""
        return super().state() | {"uncertainty": self.uncertainty}

    def restore(self, state: dict[str, Any]) -> None:
        """See ``ShrinkageController.restore``."""
        super().restore(state)
        self.uncertainty = state["uncertainty"]


class JamesStein(ShrinkageController):
    """The positive-part James-Stein rule on each release alone: ``m = max(0, 1 - (K - 2) tau^2 / |s|^2)``.

    Its squared error to u is below that of s itself for every u. No warm-up, no memory. It needs K >= 3.
    """

    def __init__(self, num_directions: int, noise_std: float, **settings: Any):
        super().__init__(num_directions, noise_std, **settings)
        if num_directions < 3:
            raise ReproError(f"num_directions = {num_directions}: the James-Stein rule needs at least 3")

    def update(self, released: Tensor) -> float:
        """See ``ShrinkageController.update``."""
        observed = self._observed(released)
        noise = (1 - 2 / self.num_directions) * self.noise_std**2
        self.multiplier = max(0.0, 1 - noise / observed) if observed > 0 else 0.0
        return self.multiplier


class SmoothedJamesStein(LateFloor):
    """The James-Stein rule on the averaged energy: m = v / (v + tau^2), against zero, without an anchor.

    In the warm-up v is the mean so far, and shrinkage starts at once.
    """

    def update(self, released: Tensor) -> float:
        """See ``ShrinkageController.update``."""
        super().update(released)
        self.multiplier = self.reliability
        return self.multiplier


class LinearDecay(ShrinkageController):
    """A control: m falls from 1 to 0 over the rounds and reads nothing of a release.

    Args:
        rounds: T.
        settings: of ``ShrinkageController``; none is used.
    """

    def __init__(self, num_directions: int, noise_std: float, *, rounds: int, **settings: Any):
        super().__init__(num_directions, noise_std, **settings)
        self.rounds = rounds

    def settings(self) -> dict[str, Any]:
        """See ``ShrinkageController.settings``."""
        return super().settings() | {"rounds": self.rounds}

    def update(self, released: Tensor) -> float:
        """See ``ShrinkageController.update``."""
        self._observed(released)
        self.multiplier = max(0.0, 1 - (self.round - 1) / self.rounds)
        return self.multiplier
