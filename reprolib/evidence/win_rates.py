"""Win rates of two arms: whose response to a prompt is better, and by how much more often than by chance.

    found = against(arms, "privdpo-0.5", "rr-0.5")       # the reward that the runs wrote down decides
    found.points, found.low, found.high                  # win rate minus 50 percentage points

The null of a win rate is 50 %: two equal policies win half of the time against one another. So an effect is
its difference from 50, and its interval is over prompts, with the seeds of a prompt averaged before.

Source: PrivDPO, Section 5.4.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats as scipy_stats

from reprolib.errors import ReproError
from reprolib.evidence import stats
from reprolib.evidence.evaluate import Arms
from reprolib.runs.results import Run
from reprolib.tasks.judge import Judge, win_rate
from reprolib.tasks.preferences import load_preferences

GENERATIONS = "generations"


@dataclass(frozen=True)
class WinContrast:
    """One arm against another.

    Attributes:
        points: win rate minus 50, in percentage points; a tie is half a win.
        low, high: its 95 % interval over prompts.
        mde: minimum detectable effect at that interval's standard error.
        ties: share of ties, in percent.
        prompts: how many have a verdict.
        per_meeting: the points of each pair of runs that met. Their spread says how far another training run
            may end from these, which the interval over prompts does not.
    """

    points: float
    low: float
    high: float
    mde: float
    ties: float
    prompts: int
    per_meeting: tuple[float, ...]

    @property
    def rate(self) -> float:
        """The win rate in percent."""
        return 50 + self.points

    def over_runs(self) -> tuple[float, float, float]:
        """Mean over the meetings and its 95 % t interval, runs being the unit; unbounded with one meeting."""
        if len(self.per_meeting) < 2:
            return self.per_meeting[0], -math.inf, math.inf
        return float(np.mean(self.per_meeting)), *stats.seed_t_interval(self.per_meeting)


def scores(first: Run, second: Run, judge: Judge | None = None) -> NDArray[np.float64]:
    """For each prompt 1, 1/2 or 0, from the first run's side; NaN where the judge named no side.

    Args:
        first, second: runs with responses to the same prompts.
        judge: None compares the rewards that the runs wrote down.

    Raises:
        ReproError: other prompts, or no rewards and no judge; what the judge raises.
    """
    ours, theirs = first.responses(GENERATIONS), second.responses(GENERATIONS)
    if list(ours["problem"]) != list(theirs["problem"]):
        raise ReproError(
            f"{first.directory.name} and {second.directory.name} answered other prompts: expected runs of "
            "one task and tier"
        )
    if judge is None:
        difference = first.values(GENERATIONS) - second.values(GENERATIONS)
        return np.asarray((np.sign(difference) + 1) / 2)
    data = load_preferences(first.spec.task, tier=first.spec.tier)
    asked = {record.id: record.messages for record in data.evaluation}
    found = win_rate(
        judge, [asked[name] for name in ours["problem"]], list(ours["response"]), list(theirs["response"])
    )
    worth = {"win": 1.0, "tie": 0.5, "loss": 0.0, "unread": np.nan}
    return np.array([worth[outcome] for outcome in found.outcomes])


def against(arms: Arms, first: str, second: str, judge: Judge | None = None) -> WinContrast:
    """The win rate of an arm against another, seed by seed; an arm with one run meets every run of the other.

    Raises:
        ReproError: an unknown arm, no seed in common, or as ``scores``.
    """
    mine, theirs = ({run.spec.seed: run for run in arms.runs.get(arm, [])} for arm in (first, second))
    if not mine or not theirs:
        raise ReproError(
            f"no arm {(second if mine else first)!r} here: expected one of {', '.join(arms.runs)}"
        )
    if 1 in (len(mine), len(theirs)):
        meetings = [(a, b) for a in mine.values() for b in theirs.values()]
    else:
        meetings = [(mine[seed], theirs[seed]) for seed in mine if seed in theirs]
    if not meetings:
        raise ReproError(f"{first} and {second} have no seed in common: {list(mine)} and {list(theirs)}")
    return _contrast(np.stack([scores(a, b, judge) for a, b in meetings]))


def pooled(contrasts: list[WinContrast]) -> WinContrast:
    """The mean over data sets, each with the same weight.

    Raises:
        ReproError: nothing to pool.
    """
    if not contrasts:
        raise ReproError("no win rates to pool: expected at least one")
    halves = np.array([(c.high - c.low) / 2 for c in contrasts])
    half = float(np.sqrt((halves**2).sum()) / len(contrasts))
    points = float(np.mean([c.points for c in contrasts]))
    return WinContrast(
        points=points, low=points - half, high=points + half,
        mde=float(np.sqrt(sum(c.mde**2 for c in contrasts)) / len(contrasts)),
        ties=float(np.mean([c.ties for c in contrasts])), prompts=sum(c.prompts for c in contrasts),
        per_meeting=tuple(points for c in contrasts for points in c.per_meeting),
    )  # fmt: skip


def _contrast(won: NDArray[np.float64]) -> WinContrast:
    """Of scores [meetings, prompts]."""
    read = ~np.isnan(won).any(axis=0)
    if read.sum() < 2:
        raise ReproError(f"{int(read.sum())} prompts have a verdict in every meeting: expected at least two")
    by_prompt = won[:, read].mean(axis=0) - 0.5
    low, high = (100 * x for x in stats.seed_t_interval(by_prompt))
    return WinContrast(
        points=100 * float(by_prompt.mean()), low=low, high=high,
        mde=stats.minimum_detectable_effect(100 * float(scipy_stats.sem(by_prompt))),
        ties=100 * float((won[:, read] == 0.5).mean()), prompts=int(read.sum()),
        per_meeting=tuple(100 * (won[:, read].mean(axis=1) - 0.5)),
    )  # fmt: skip
