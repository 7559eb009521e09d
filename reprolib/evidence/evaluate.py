"""Runs compared: which runs a study has, each arm's correctness, and one row of statistics a contrast.

    arms = Arms.of("dp_grpo", tier, "math")
    row = arms.compare("dp_grpo", "zero_advantage", "math")
    row.contrast.difference, row.contrast.low, row.contrast.high

Endpoints, draws and seeds are those that ``data/experiments`` fixed before the runs.
Source: DP-GRPO, Sections VII-D and VII-E.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from reprolib import runs
from reprolib.errors import ReproError
from reprolib.evidence import stats
from reprolib.evidence.stats import Contrast
from reprolib.runs import keeping
from reprolib.runs.experiments import Endpoints
from reprolib.runs.results import Run
from reprolib.runs.spec import RunSpec


@dataclass(frozen=True)
class Comparison:
    """Two arms on one evaluation set.

    Attributes:
        first, second: the arms; positive differences favour the first.
        evaluation, scorer: what was answered, and how it was scored.
        contrast: difference, interval and minimum detectable effect, in percentage points.
        per_seed: difference of each seed pair, in percentage points; seeds without a partner are left out.
        mcnemar: exact McNemar p of each seed pair, Holm-adjusted within the comparison.
        randomization: sign-randomisation p of the pooled difference.
        seed_interval: t interval of the seed differences; None with fewer than two.
    """

    first: str
    second: str
    evaluation: str
    scorer: str
    contrast: Contrast
    per_seed: tuple[float, ...]
    mcnemar: tuple[float, ...]
    randomization: float
    seed_interval: tuple[float, float] | None

    def row(self) -> dict[str, object]:
        """A flat record for tables."""
        c = self.contrast
        return {
            "contrast": f"{self.first} - {self.second}", "evaluation": self.evaluation, "scorer": self.scorer,
            "difference": c.difference, "low": c.low, "high": c.high, "MDE": c.mde,
            "per seed": " / ".join(f"{d:+.2f}" for d in self.per_seed),
            "largest Holm p": max(self.mcnemar), "randomisation p": self.randomization,
        }  # fmt: skip


@dataclass(frozen=True)
class Arms:
    """The finished runs of one or more studies, by arm.

    Attributes:
        runs: each arm's runs in the order of their seeds.
        endpoints: what was fixed before the runs.
    """

    runs: dict[str, list[Run]]
    endpoints: Endpoints

    @classmethod
    def of(cls, paper: str, tier: str, *studies: str) -> "Arms":
        """Run what is missing of these studies, then read all of it.

        Raises:
            ReproError: an unknown study or tier, or one that the tier leaves out.
        """
        specs = [spec for study in studies for spec in runs.grid(paper, tier, study)]
        if not specs:
            raise ReproError(f"tier {tier} of {paper} has no runs in {', '.join(studies)}")
        loaded = map(runs.load, runs.ensure_all(specs))  # arms that agree share a run
        return cls._grouped(paper, list(zip(specs, loaded, strict=True)))

    @classmethod
    def kept(cls, paper: str, tier: str, study: str) -> "Arms | None":
        """The runs of a long tier that the repository keeps; None if all of them still have to be made.

        Raises:
            ReproError: an unknown study or tier.
        """
        found = keeping.kept(paper, tier, study)
        return cls._grouped(paper, found) if found else None

    @classmethod
    def _grouped(cls, paper: str, pairs: Sequence[tuple[RunSpec, Run]]) -> "Arms":
        arms: dict[str, list[Run]] = {}
        for spec, run in pairs:
            arms.setdefault(spec.arm, []).append(run)
        for arm, found in arms.items():
            if len({run.spec.task for run in found}) > 1:
                raise ReproError(f"arm {arm!r} has runs on several tasks: read one study at a time")
        ordered = {arm: sorted(found, key=lambda run: run.spec.seed) for arm, found in arms.items()}
        return cls(ordered, runs.experiment(paper).endpoints)

    def correct(
        self, arm: str, evaluation: str, scorer: str = "strict", *, after: int | None = None,
        seeds: Sequence[int] | None = None,
    ) -> NDArray[np.int64]:  # fmt: skip
        """Correctness of an arm, [seeds, problems].

        Args:
            after: rounds after which it was scored; None for the last.
            seeds: which seeds; None for all that the arm has.

        Raises:
            ReproError: no such arm or no such seeds.
        """
        found = [r for r in self._arm(arm) if seeds is None or r.spec.seed in seeds]
        if not found:
            raise ReproError(
                f"arm {arm!r} has no seeds {seeds}: it has {[r.spec.seed for r in self._arm(arm)]}"
            )
        return np.stack([run.correct(evaluation, scorer, after=after) for run in found])

    def _arm(self, arm: str) -> list[Run]:
        if arm not in self.runs:
            raise ReproError(f"no arm {arm!r} here: expected one of {', '.join(self.runs)}")
        return self.runs[arm]

    def seeds(self, arm: str) -> list[int]:
        """The arm's seeds."""
        return [run.spec.seed for run in self._arm(arm)]

    def accuracy(self, arm: str, evaluation: str, scorer: str = "strict") -> float:
        """Accuracy in percent, the mean over seeds."""
        return 100 * float(self.correct(arm, evaluation, scorer).mean())

    def compare(
        self, first: str, second: str, evaluation: str, scorer: str = "strict", *,
        seeds: Sequence[int] | None = None, where: NDArray[np.bool_] | None = None,
        after: int | None = None,
    ) -> Comparison:  # fmt: skip
        """The paired contrast of two arms with every statistic that the paper gives.

        Args:
            seeds: compare these seeds only; None pairs the seeds that both arms have. An arm with one run,
                such as the base, is compared with every seed of the other.
            where: problems that take part, [problems]; None for all.
            after: rounds after which both were scored; None for the last of each.

        Raises:
            ReproError: an unknown arm or set, or no seed in common.
        """
        a_seeds, b_seeds = self._pair(first, second, seeds)
        a = self.correct(first, evaluation, scorer, after=after, seeds=a_seeds)
        b = self.correct(second, evaluation, scorer, after=after, seeds=b_seeds)
        if where is not None:
            a, b = a[:, where], b[:, where]
        wide = np.broadcast_to(b, a.shape) if len(b) == 1 else b
        pairs = list(zip(np.broadcast_to(a, wide.shape), wide, strict=True))
        per_seed = tuple(100 * float((x - y).mean()) for x, y in pairs)
        ends = self.endpoints
        return Comparison(
            first, second, evaluation, scorer,
            contrast=stats.paired_contrast(a, b, draws=ends.bootstrap_draws, seed=ends.statistics_seed),
            per_seed=per_seed,
            mcnemar=tuple(stats.holm([stats.mcnemar_exact(x, y) for x, y in pairs])),
            randomization=stats.sign_randomization(
                a, b, draws=ends.randomization_draws, seed=ends.statistics_seed
            ),
            seed_interval=stats.seed_t_interval(per_seed) if len(per_seed) > 1 else None,
        )  # fmt: skip

    def _pair(self, first: str, second: str, seeds: Sequence[int] | None) -> tuple[list[int], list[int]]:
        a, b = ([s for s in self.seeds(arm) if seeds is None or s in seeds] for arm in (first, second))
        if len(self.seeds(first)) == 1 or len(self.seeds(second)) == 1:
            return (a or self.seeds(first)), (b or self.seeds(second))
        common = [s for s in a if s in b]
        if not common:
            raise ReproError(f"{first} and {second} have no seed in common: {a} and {b}")
        return common, common


def table(comparisons: Sequence[Comparison]) -> pd.DataFrame:
    """One row a comparison."""
    return pd.DataFrame([comparison.row() for comparison in comparisons])
