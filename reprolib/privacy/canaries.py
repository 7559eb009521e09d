"""Dirac canaries: what a run releases about them, the best score, and the power of an audit of them.

A Dirac canary's gradient is the clipping norm on a coordinate of its own. No record is easier to detect, so
the audit of such canaries shows what an audit of this size can show at all.

    power = one_run_power(canaries=1000, guesses=[(50, 0), (500, 500)], sampling_rate=q, ...)

Source: DP-GRPO, Section IX and Appendix B (canary diagnostic); Steinke, Nasr and Jagielski (2023).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from reprolib.errors import ReproError
from reprolib.privacy.audit import (
    Guesses,
    Scores,
    Tail,
    check_guesses,
    check_number,
    count_correct,
    one_run_epsilon,
)
from reprolib.privacy.losses import check_parameters

Score = Literal["likelihood-ratio", "sum"]


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
    pairs = [check_guesses(pair, canaries) for pair in guesses]
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


def _check_run(sampling_rate: float, noise_multiplier: float, rounds: int) -> None:
    """The accountants' ranges, except that a run without noise can be audited too."""
    check_parameters(sampling_rate=sampling_rate, rounds=rounds)
    check_number("noise_multiplier", noise_multiplier, 0, math.inf)
