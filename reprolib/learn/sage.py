"""SAGE: a released vector is scaled by how reliable it seems, next to how reliable it was at the start.

    controller = ShrinkageController.for_plan(plan, num_directions=64)
    update = AlongDirections(directions, learning_rate=1e-2, controller=controller)

The controller reads released vectors and the parameters of the mechanism, never a record, so its multiplier
is post-processing and costs no budget. The size n of the data set, by which Algorithm 1 divides, is another
matter: either it is public, as a ``Plan``'s slots are, or its release is charged (``epsilon_with_count``).

Source: SAGE, Method and Algorithm 1.
"""

import math
from dataclasses import replace
from typing import Any, Self

import numpy as np
from torch import Tensor

from reprolib.errors import ReproError
from reprolib.privacy.accounting import composed_epsilon
from reprolib.privacy.losses import check_parameters, laplace_count, subsampled_gaussian
from reprolib.privacy.mechanism import EntropySource
from reprolib.privacy.plan import Plan, PrivacyCard

PUBLIC_COUNT = "the number of slots, which is declared public"


class ShrinkageController:
    """Algorithm 1's controller: noise floor removed, energy tracked, anchored at the warm-up, bounded.

    Its memory is four numbers, whatever K and the number of rounds.

    Args:
        num_directions: K, the length of a released vector.
        noise_std: tau, the standard deviation of the noise in each coordinate of a released vector.
        beta: rate of the moving average; 1 tracks nothing (ablation "without EMA").
        warmup: W, the rounds without shrinkage whose mean energy is the reference.
        lam: weight of the noise in the reliability, lambda.
        floor: rho, the least energy.
        min_multiplier: lower bound of the multiplier.
        subtract_noise: False leaves the noise floor in (ablation "without noise correction").
        anchored: False compares with a reliability of 1, not the warm-up's (ablation "without anchor").

    Attributes:
        round: releases seen.
        energy: v, the tracked energy; in the warm-up, the mean so far.
        multiplier: m of the last release.

    Raises:
        ReproError: a setting out of range.

    Source: SAGE, Algorithm 1, lines 6 to 19; equations 6 and 9 to 14; Section Experiments for the defaults.
    """

    def __init__(self, num_directions: int, noise_std: float, *, beta: float = 0.03, warmup: int = 50,
                 lam: float = 1.0, floor: float = 1e-8, min_multiplier: float = 0.5,
                 subtract_noise: bool = True, anchored: bool = True):  # fmt: skip
        self.num_directions, self.noise_std, self.beta, self.warmup = num_directions, noise_std, beta, warmup
        self.lam, self.floor, self.min_multiplier = lam, floor, min_multiplier
        self.subtract_noise, self.anchored = subtract_noise, anchored
        _whole("num_directions", num_directions)
        _whole("warmup", warmup)
        _within("noise_std", noise_std, noise_std >= 0, "a finite number, at least 0")
        _within("beta", beta, 0 < beta <= 1, "a rate in (0, 1]")
        _within("lam", lam, lam > 0, "a finite number above 0")
        _within("floor", floor, floor > 0, "a finite number above 0")
        _within("min_multiplier", min_multiplier, 0 <= min_multiplier <= 1, "a number in [0, 1]")
        self.round, self.energy, self.reference, self.multiplier = 0, 0.0, 0.0, 1.0

    @classmethod
    def for_plan(cls, plan: Plan, *, num_directions: int, **settings: Any) -> Self:
        """The controller of a plan's releases.

        Args:
            settings: of the controller.

        Raises:
            ReproError: the warm-up is not shorter than the run, so that nothing would ever be shrunk.
        """
        made = cls(num_directions, plan.noise_std, **settings)
        if made.warmup >= plan.rounds:
            raise ReproError(
                f"warmup = {made.warmup} of {plan.rounds} rounds: nothing would be shrunk; expected fewer "
                "warm-up rounds than rounds"
            )
        return made

    def update(self, released: Tensor) -> float:
        """The multiplier m_t of this release.

        Args:
            released: the released vector, [K].

        Raises:
            ReproError: another shape, or an entry that is not finite.
        """
        observed = self._observed(released)
        corrected = self._corrected(observed)
        if self.round <= self.warmup:
            self.energy += (corrected - self.energy) / self.round
            self.reference = self.reliability
        else:
            self.energy = self._tracked(corrected)
            self.multiplier = self._scaled()
        return self.multiplier

    def _observed(self, released: Tensor) -> float:
        """Equation 6: the energy of a release, which is counted."""
        if released.shape != (self.num_directions,) or not bool(released.isfinite().all()):
            raise ReproError(
                f"a release of shape {tuple(released.shape)}: expected [{self.num_directions}], all finite"
            )
        self.round += 1
        return float(released.double().square().mean())

    @property
    def reliability(self) -> float:
        """The score phi = v / (v + lambda tau^2), equation 12."""
        energy = max(self.energy, self.floor)
        return energy / (energy + self.lam * self.noise_std**2)

    def _corrected(self, observed: float) -> float:
        """Equation 9: the energy of this release without the noise floor."""
        return max(observed - self.subtract_noise * self.noise_std**2, self.floor)

    def _tracked(self, corrected: float) -> float:
        """Equation 10: the moving average."""
        return (1 - self.beta) * self.energy + self.beta * corrected

    def _scaled(self) -> float:
        """Equation 14: reliability over the reference's, in [m_min, 1]."""
        ratio = self.reliability / (self.reference if self.anchored else 1.0)
        return min(max(ratio, self.min_multiplier), 1.0)

    def settings(self) -> dict[str, Any]:
        """What the controller was made with, by the arguments' names."""
        names = ("num_directions", "noise_std", "beta", "warmup", "lam", "floor", "min_multiplier")
        return {name: getattr(self, name) for name in (*names, "subtract_noise", "anchored")}

    def state(self) -> dict[str, Any]:
        """Four numbers and the settings they belong to, for a checkpoint; all of it is public."""
        return {
            "settings": self.settings(), "round": self.round, "energy": self.energy,
            "reference": self.reference, "multiplier": self.multiplier,
        }  # fmt: skip

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from ``state()``.

        Raises:
            ReproError: the state is of a controller with other settings; the first that differs is named.
        """
        for name, ours in self.settings().items():
            theirs = state["settings"].get(name)
            if theirs != ours:
                raise ReproError(
                    f"the checkpoint's controller has {name} = {theirs!r}, this one {ours!r}: continue with "
                    "the settings of the checkpoint"
                )
        self.round, self.energy = state["round"], state["energy"]
        self.reference, self.multiplier = state["reference"], state["multiplier"]


def _whole(name: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ReproError(f"{name} = {value!r}: expected a whole number, at least 1")


def _within(name: str, value: float, inside: bool, expected: str) -> None:
    if not (inside and math.isfinite(value)):
        raise ReproError(f"{name} = {value!r}: expected {expected}")


def released_count(count: int, *, scale: float, entropy: EntropySource) -> int:
    """The size of the data set with Laplace noise, at least 1; this spends budget.

    It is rounded to a whole number, so that the low bits of the floating-point noise are not released.

    Args:
        count: n.
        scale: psi; the release is (1/psi, 0)-DP.

    Source: SAGE, Algorithm 1, line 1.
    """
    check_parameters(scale=scale)
    first, second = np.log1p(-entropy.coins(2))  # the difference of two exponentials is a Laplace variable
    return max(1, round(count + scale * float(second - first)))


def epsilon_with_count(plan: Plan, *, scale: float) -> float:
    """Budget of a run together with the release of its data set's size; infinite without noise.

    The privacy-loss distributions of the two are composed, which is less than the sum of two budgets.

    Args:
        scale: psi of the Laplace release.

    Source: SAGE, Algorithm 1, lines 1 and 5.
    """
    count = laplace_count(scale=scale)
    if plan.noise_multiplier == 0:
        return math.inf
    run = subsampled_gaussian(
        sampling_rate=plan.sampling_rate, noise_multiplier=plan.noise_multiplier, rounds=plan.rounds
    )
    return composed_epsilon(run, count, delta=plan.delta)


def card(plan: Plan, *, count_scale: float | None = None, replayable: bool = False) -> PrivacyCard:
    """The privacy card of a run whose data set's size is public, or released with Laplace noise.

    Args:
        count_scale: psi of the release; None if the size is declared public.
        replayable: see ``Plan.card``.
    """
    if count_scale is None:
        return plan.card(replayable=replayable, not_covered=(PUBLIC_COUNT,))
    made = plan.card(replayable=replayable)
    second = None if made.second_epsilon is None else made.second_epsilon + 1 / count_scale
    return replace(
        made, epsilon=epsilon_with_count(plan, scale=count_scale), second_epsilon=second,
        accountant=f"PLD, with the size of the data released with Laplace noise of scale {count_scale:g}",
        second_accountant="RDP, plus the pure budget of the size",
    )  # fmt: skip
