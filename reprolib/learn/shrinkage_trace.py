"""A run seen from inside: what is released beside the clean vector that a private run never shows.

    trace = watch(loop)                       # a new loop along directions, of public records
    diagnose(trace)                           # what Figures 1 and 3 report, of one run
    released_ratio(norms, ...)                # what can be said without the clean vector
    calibration(trace)                        # Figure 3a, under several readings of "50 steps"

``fading`` and ``controlled`` make the trace of a signal whose energy is prescribed.

Source: SAGE, Figures 1 and 3, equation 20.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from reprolib.errors import ReproError
from reprolib.learn.sage import ShrinkageController
from reprolib.learn.trainer import Loop, Sampler
from reprolib.learn.zeroth_order import AlongDirections
from reprolib.privacy.mechanism import GaussianSum

Vectors = NDArray[np.float64]


@dataclass(frozen=True)
class Trace:
    """A run seen from inside.

    Attributes:
        controller: what scaled the releases; None for nothing.
        noise_std: tau.
        clean, released: the averaged vector without and with the noise, [rounds, K].
        multiplier, energy: m and the tracked energy after each release, [rounds]; NaN where none is tracked.
        coins: the slots drawn, a round each.
    """

    controller: ShrinkageController | None
    noise_std: float
    clean: Vectors
    released: Vectors
    multiplier: Vectors
    energy: Vectors
    coins: Sequence[NDArray[np.intp]] = ()


class _Watched(GaussianSum):
    """The same sum, whose clean average is kept before the noise is added."""

    clean: Tensor

    def release(self) -> Tensor:
        self.clean = self._sum / self.plan.expected_batch_size
        return super().release()


class _Noted:
    """The same sampler, whose draws are kept."""

    def __init__(self, sampler: Sampler):
        self.sampler, self.drawn = sampler, list[NDArray[np.intp]]()

    def draw(self) -> NDArray[np.intp]:
        self.drawn.append(self.sampler.draw())
        return self.drawn[-1]


def watch(loop: Loop[Any]) -> Trace:
    """Run a new loop to its end and keep, beside each release, the same average without noise.

    Coins, noise and weights are those of the loop run alone. Its records must be public.

    Raises:
        ReproError: private noise, beside which a clean vector must not be shown; a loop that releases no
            Gaussian sum or does not move along directions.

    Source: SAGE, Figures 1 and 3.
    """
    total, update = loop.sum, loop.update
    if not loop.entropy.replayable:
        raise ReproError(
            "a loop with private noise: its clean vector is private too; watch one with a research source"
        )
    if not isinstance(total, GaussianSum) or not isinstance(update, AlongDirections):
        raise ReproError(
            f"a loop of {type(total).__name__} and {type(update).__name__}: expected a Gaussian sum that "
            "moves the weights along directions"
        )
    controller = update.controller if isinstance(update.controller, ShrinkageController) else None
    loop.sum = watched = _Watched(total.plan, total.entropy, dimension=total.dimension)
    loop.sampler = noted = _Noted(loop.sampler)
    rows = []
    for _ in range(total.plan.rounds):
        step = loop.step().numpy()
        rows.append(
            (watched.clean.numpy(), step, update.multiplier, controller.energy if controller else math.nan)
        )
    clean, released, multiplier, energy = (np.array(column) for column in zip(*rows, strict=True))
    return Trace(controller, total.plan.noise_std, clean, released, multiplier, energy, noted.drawn)


def released_ratio(norms: ArrayLike, *, num_directions: int, noise_std: float) -> float:
    """Noise over signal of a run, from its releases alone: tau^2 over the mean of |s|^2 / K - tau^2.

    The mean over rounds is taken before anything is bounded, so the signal's energy is not biased.

    Args:
        norms: of the released vectors, [rounds].
        num_directions: K.
        noise_std: tau.

    Returns:
        The ratio; infinite where no energy is left for the signal.

    Source: SAGE, equation 8 and Figure 1.
    """
    signal = float(np.mean(np.square(norms))) / num_directions - noise_std**2
    return noise_std**2 / signal if signal > 0 else math.inf


def moving_mean(values: Vectors, window: int) -> Vectors:
    """Mean of the last ``window`` values, of fewer at the start."""
    return pd.Series(values).rolling(window, min_periods=1).mean().to_numpy()


def _parts(trace: Trace) -> tuple[ShrinkageController, Vectors, Vectors]:
    """The controller, the clean energy and the corrected energy without a floor, each [rounds]."""
    made, rounds = trace.controller, len(trace.clean)
    if made is None or made.warmup >= rounds:
        raise ReproError(f"a run of {rounds} rounds: expected a controller whose warm-up is shorter")
    return made, (trace.clean**2).mean(1), (trace.released**2).mean(1) - trace.noise_std**2


def diagnose(trace: Trace, *, smoothing: int = 15) -> dict[str, float]:
    """What Figures 1 and 3 of SAGE report, of one run; "late" is the last fifth of the rounds.

    Args:
        trace: of a run with a controller, a warm-up and rounds after it.
        smoothing: rounds over which the clean energy is averaged; the controller averages its own.

    Raises:
        ReproError: a run without a controller, or no round after its warm-up.
    """
    made, clean, _ = _parts(trace)
    rounds, warmup, noise = len(clean), made.warmup, trace.noise_std**2
    late = rounds - max(2, rounds // 5)
    seen, true = trace.energy[warmup:], moving_mean(clean, smoothing)[warmup:]
    at_warmup, at_end = (v / (v + noise) for v in (trace.energy[warmup - 1], trace.energy[late:].mean()))
    fall = 1 - trace.multiplier[late:].mean()
    found = {
        "true noise over signal, median": np.median(noise / clean[warmup:]),
        "tracked noise over signal, median": np.median(noise / seen),
        "reliability at the end of warm-up": at_warmup,
        "reliability, late": at_end,
        "fall of reliability": at_warmup - at_end,
        "share of log energy between fifths": _between(np.log(clean[clean > 0])),
        "log fall of the clean energy": np.log(clean[:warmup].mean() / clean[late:].mean()),
        "correlation of tracked and clean": np.corrcoef(true, seen)[0, 1],
        "tracked over clean energy, late": trace.energy[late:].mean() / clean[late:].mean(),
        "mean absolute error over mean energy, %": 100 * abs(seen - true).mean() / true.mean(),
        "root mean square error over mean energy, %": 100 * _rms(seen - true) / true.mean(),
        "fall of the multiplier less its largest step": fall - abs(np.diff(trace.multiplier)).max(),
        "error reduction after warm-up, %": _error_reduction(trace, warmup),
        "error reduction, last fifth, %": _error_reduction(trace, late),
        "rounds at the lower bound, %": 100 * (trace.multiplier[warmup:] <= made.min_multiplier).mean(),
    }
    return {name: float(value) for name, value in found.items()}


def _between(values: Vectors) -> float:
    """Share of the variance that lies between fifths of a series; of a stationary one 0 on average."""
    parts = min(5, len(values) // 2)
    stretches = np.array_split(values, parts)
    within = sum(((part - part.mean()) ** 2).sum() for part in stretches) / (len(values) - parts)
    return float(1 - within / values.var(ddof=1))


def _rms(values: Vectors) -> float:
    return math.sqrt((values**2).mean())


def _error_reduction(trace: Trace, start: int) -> float:
    """Percent by which scaling lowers the squared error to the clean vector from this round on."""
    clean, released, scale = trace.clean[start:], trace.released[start:], trace.multiplier[start:, None]
    return float(100 * (1 - ((scale * released - clean) ** 2).sum() / ((released - clean) ** 2).sum()))


def calibration(trace: Trace, *, window: int = 50) -> pd.DataFrame:
    """How well the corrected statistic follows the clean energy, under several readings of Figure 3a.

    The paper gives errors of "50-step trajectories", and neither the smoothing nor the normaliser.

    Args:
        trace: of at least ``window`` rounds after the warm-up.
        window: steps of a mean, a bin count, or a stretch of the run, as the reading has it.

    Returns:
        A row a reading: mean absolute and root mean square error in percent of the mean and of the largest
        clean energy, and the correlation.

    Raises:
        ReproError: as ``diagnose``, or fewer rounds after the warm-up.

    Source: SAGE, Figure 3a.
    """
    made, clean, corrected = _parts(trace)
    after = len(clean) - made.warmup
    if after < window:
        raise ReproError(f"{after} rounds after the warm-up: a reading of {window} steps needs as many")
    start, tracked, bounded = made.warmup, trace.energy, partial(np.maximum, made.floor)

    def smooth(values: Vectors) -> Vectors:
        return moving_mean(values, window)[start:]

    def points(values: Vectors) -> Vectors:
        """Means of stretches of nearly one length."""
        return np.array([part.mean() for part in np.array_split(values[start:], window)])

    early = slice(start, start + window)
    readings = {
        "tracked, every round": (tracked[start:], clean[start:]),
        f"tracked, first {window} rounds": (tracked[early], clean[early]),
        f"means over {window} rounds, floor first": (smooth(bounded(corrected)), smooth(clean)),
        f"means over {window} rounds, floor last": (bounded(smooth(corrected)), smooth(clean)),
        f"tracked, at {window} points": (points(tracked), points(clean)),
        f"means at {window} points, floor last": (bounded(points(corrected)), points(clean)),
    }
    rows = []
    for name, (seen, true) in readings.items():
        mae, rmse = 100 * abs(seen - true).mean(), 100 * _rms(seen - true)
        rows.append({
            "reading": name, "absolute / mean": mae / true.mean(), "square / mean": rmse / true.mean(),
            "absolute / largest": mae / true.max(), "square / largest": rmse / true.max(),
            "correlation": np.corrcoef(seen, true)[0, 1],
        })  # fmt: skip
    return pd.DataFrame(rows)


def fading(noise_to_signal: tuple[float, float], *, num_directions: int, rounds: int,
           seed: int | Sequence[int]) -> tuple[Vectors, Vectors]:  # fmt: skip
    """Clean and released vectors, [rounds, K], of a ratio that moves geometrically; tau is 1."""
    generator = np.random.default_rng(seed)
    ratios = np.geomspace(*noise_to_signal, rounds)[:, None]
    clean = generator.standard_normal((rounds, num_directions))
    clean *= np.sqrt(num_directions / ratios) / np.linalg.norm(clean, axis=1, keepdims=True)
    return clean, clean + generator.standard_normal(clean.shape)


def controlled(controller: ShrinkageController, clean: Vectors, released: Vectors) -> Trace:
    """What a new controller does with these releases."""
    found = [(controller.update(row), controller.energy) for row in torch.from_numpy(released)]
    multiplier, energy = np.array(found).T
    energy = energy if energy.any() else energy + math.nan  # a rule that tracks nothing
    return Trace(controller, controller.noise_std, clean, released, multiplier, energy)
