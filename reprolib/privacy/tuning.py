"""What it costs to choose hyperparameters on the private records.

A pilot is scored on public problems, so the choice reads released weights only and is free. The pilot's
training is not: it read the records. Two ways to charge it::

    run = {"sampling_rate": 128 / 6988, "noise_multiplier": 0.48424, "rounds": 50, "delta": 1 / 69880}
    tuned_epsilon(**run, pilots=4)                                          # 4 pilots, then the final run
    tuned_epsilon(**run, pilots=4, trials="poisson", accountant="rdp")      # the best of Poisson(4) runs

The first composes every run. The second draws the number of runs at random, hides it and all runs but the
best, and releases that one; each run's hyperparameters are drawn from the grid.

Source: DP-GRPO, Section IV, limit (ii), and Appendix C-D; Papernot and Steinke (2022), arXiv 2110.03620.
"""

import math
from typing import Literal, get_args

import numpy as np
from dp_accounting.rdp import rdp_privacy_accountant

from reprolib.errors import ReproError
from reprolib.privacy import accounting
from reprolib.privacy.accounting import Accountant
from reprolib.privacy.losses import check_parameters

Trials = Literal["fixed", "poisson", "geometric", "logarithmic"]
SHAPES = {"poisson": math.inf, "geometric": 1.0, "logarithmic": 0.0}  # of the truncated negative binomial


def tuned_epsilon(
    *, sampling_rate: float, noise_multiplier: float, rounds: int, delta: float, pilots: float,
    trials: Trials = "fixed", accountant: Accountant = "pld", orders: list[float] | None = None,
) -> float:  # fmt: skip
    """Budget of a release whose hyperparameters were chosen by pilots of the same plan.

    Args:
        sampling_rate: probability q that a slot takes part in a round.
        noise_multiplier: noise standard deviation over the clipping norm, sigma.
        rounds: number of releases T of one run.
        delta: failure probability.
        pilots: "fixed": number of pilots before the final run, 0 or more; otherwise the mean number of runs
            of which the best is released, at least 1.
        trials: "fixed", or the law of the number of runs. A Poisson law may draw no run: nothing is released.
        accountant: of "fixed"; the other laws have bounds by Rényi divergence only, "rdp".
        orders: Rényi orders of the random laws; those of ``accounting`` by default.

    Raises:
        ReproError: a parameter out of range, an unknown law, or an accountant that cannot bound it.

    Source: Papernot and Steinke (2022), Theorem 2 (negative binomial) and Theorem 6 (Poisson).
    """
    if trials not in get_args(Trials):
        raise ReproError(f"trials = {trials!r}: expected {', '.join(get_args(Trials))}")
    run = {"sampling_rate": sampling_rate, "noise_multiplier": noise_multiplier, "delta": delta}
    check_parameters(rounds=rounds, **run)
    _check_pilots(pilots, trials)
    if trials == "fixed":
        return accounting.epsilon(**run, rounds=rounds * (int(pilots) + 1), accountant=accountant)
    if accountant != "rdp":
        raise ReproError(
            f"accountant = {accountant!r}: a {trials} number of trials is bounded by Rényi divergence only; "
            "pass accountant='rdp'"
        )
    curve = accounting._renyi_curve(
        orders or accounting.ORDERS, sampling_rate=sampling_rate, noise_multiplier=noise_multiplier,
        rounds=rounds,
    )  # fmt: skip
    # dp-accounting's own event would bring its own moments, which are too large at fractional orders
    at, divergences = np.array(curve).T
    best = rdp_privacy_accountant._compute_rdp_repeat_and_select(at, divergences, pilots, SHAPES[trials])
    return float(rdp_privacy_accountant.compute_epsilon(at, best, delta)[0])


def _check_pilots(pilots: float, trials: Trials) -> None:
    """Refuse a number of pilots that is none, or a mean below one run."""
    fixed = trials == "fixed"
    number = isinstance(pilots, int | float | np.number) and not isinstance(pilots, bool)
    in_range = number and math.isfinite(pilots) and pilots >= (0 if fixed else 1)
    if not in_range or (fixed and pilots != int(pilots)):
        expected = "a whole number, at least 0" if fixed else "a mean of at least 1"
        raise ReproError(f"pilots = {pilots!r}: expected {expected}")
