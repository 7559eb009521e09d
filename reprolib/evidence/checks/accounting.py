"""Checks that recompute a privacy budget from the mechanism's published parameters.

Every parameter may be a number or a reference to a published cell. ``delta`` defaults to 1/(10 n),
the convention of DP-GRPO, Section VI-C.
"""

from functools import cache
from typing import Any

from reprolib.evidence.checks import Outcome, check
from reprolib.evidence.published import Published
from reprolib.privacy import accounting


def _number(published: Published, value: Any) -> float:
    return float(published.number(value)) if isinstance(value, str) else float(value)


def _configuration(published: Published, n: Any, m: Any, rounds: Any, delta: Any) -> dict[str, Any]:
    size = _number(published, n)
    return {
        "sampling_rate": _number(published, m) / size,
        "rounds": int(_number(published, rounds)),
        "delta": 1 / (10 * size) if delta is None else _number(published, delta),
    }


_epsilon = cache(accounting.epsilon)
_calibrate = cache(accounting.calibrate_noise_multiplier)


def _shown(configuration: dict[str, Any]) -> str:
    return ", ".join(f"{key} = {value:.10g}" for key, value in configuration.items())


@check
def composed_epsilon(published: Published, *, n: Any, m: Any, noise_multiplier: Any, rounds: Any,
                     delta: Any = None, accountant: str = "pld") -> Outcome:  # fmt: skip
    """Epsilon of ``rounds`` subsampled Gaussian releases with sampling rate m/n."""
    configuration = _configuration(published, n, m, rounds, delta)
    configuration["noise_multiplier"] = _number(published, noise_multiplier)
    value = _epsilon(accountant=accountant, **configuration)
    return Outcome(value, detail=f"{accountant.upper()} epsilon at {_shown(configuration)} = {value:.6f}")


@check
def rdp_order(published: Published, *, n: Any, m: Any, noise_multiplier: Any, rounds: Any,
              delta: Any = None) -> Outcome:  # fmt: skip
    """The Rényi order that minimises the RDP epsilon on the paper's order grid."""
    configuration = _configuration(published, n, m, rounds, delta)
    configuration["noise_multiplier"] = _number(published, noise_multiplier)
    value = accounting.rdp(**configuration).order
    return Outcome(value, detail=f"minimising order at {_shown(configuration)} = {value}")


@check
def calibrated_noise_multiplier(published: Published, *, n: Any, m: Any, rounds: Any,
                                target_epsilon: Any, delta: Any = None) -> Outcome:  # fmt: skip
    """Smallest noise multiplier at which the PLD accountant returns the target epsilon."""
    configuration = _configuration(published, n, m, rounds, delta)
    target = _number(published, target_epsilon)
    value = _calibrate(target_epsilon=target, **configuration)
    return Outcome(
        value, detail=f"PLD bisection to epsilon {target:g} at {_shown(configuration)} = {value:.12g}"
    )


@check
def gaussian_release_sigma(published: Published, *, epsilon: Any, delta: Any) -> Outcome:
    """Noise multiplier of one Gaussian release by the analytic formula of Balle and Wang."""
    target, failure = _number(published, epsilon), _number(published, delta)
    value = accounting.gaussian_noise_multiplier(target_epsilon=target, delta=failure)
    return Outcome(
        value, detail=f"analytic Gaussian at epsilon {target:g}, delta {failure:.6g} = {value:.6f}"
    )
