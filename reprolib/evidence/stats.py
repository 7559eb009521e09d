"""Paired statistics of two arms that answered the same problems.

An arm's correctness is an array of 0 and 1 of shape [seeds, problems]. Problems are the clusters: they
are resampled or flipped whole, with each arm's seeds averaged inside.

    >>> gain = paired_contrast(dp_grpo, control, seed=0)    # percentage points
    >>> gain.difference, gain.low, gain.high, gain.mde
    >>> holm([mcnemar_exact(x, y) for x, y in zip(dp_grpo, control)])

Both resampling methods look at a problem only through its difference of seed means, which takes few distinct
values (nine for four seeds against four). How often each value turns up is all that they draw, and since the
values are whole numbers over a common denominator, sums and comparisons are exact.

Source: DP-GRPO, Section VII-E and Appendix C-C.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special, stats

from reprolib.errors import ReproError

Whole = NDArray[np.int64]
LEVEL = 0.95  # of a contrast's interval
CELLS = 2**19  # numbers held at a time while drawing: 4 MiB


@dataclass(frozen=True)
class Contrast:
    """Accuracy of arm a minus accuracy of arm b, in percentage points.

    Attributes:
        difference: mean over problems of the difference of seed means.
        low, high: ends of the 95 % problem-cluster bootstrap percentile interval.
        standard_error: of ``difference`` over problems (sample standard deviation / sqrt(problems)).
        mde: two-sided 80 %-power minimum detectable effect at that standard error.
        problems, draws: numbers of problems (the clusters) and of bootstrap draws.
        seeds: number of seeds of a and of b.
    """

    difference: float
    low: float
    high: float
    standard_error: float
    mde: float
    problems: int
    seeds: tuple[int, int]
    draws: int

    @property
    def resolved(self) -> bool:
        """Whether the interval excludes zero."""
        return self.low > 0 or self.high < 0


def _correctness(name: str, values: ArrayLike, axes: tuple[str, ...]) -> Whole:
    """The array as whole numbers, once it is known to hold 0 and 1 only and to have these axes."""
    expected = f"an array [{', '.join(axes)}] of 0 and 1"
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ReproError(f"{name} is not {expected}: {error}") from None
    if array.ndim != len(axes) or array.size == 0:
        raise ReproError(f"{name} has shape {array.shape}: expected {expected}, not empty")
    wrong = array[(array != 0) & (array != 1)]
    if wrong.size:
        raise ReproError(f"{name} contains {wrong[0]}: expected {expected}; score every answer first")
    return array.astype(np.int64)


def _whole(name: str, value: int, minimum: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < minimum:
        raise ReproError(f"{name} = {value!r}: expected a whole number, at least {minimum}")


def _number(name: str, value: float, low: float, high: float, expected: str) -> None:
    number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if not (number and low <= value < high):
        raise ReproError(f"{name} = {value!r}: expected {expected}")


def _vector(name: str, values: ArrayLike, minimum: int) -> NDArray[np.float64]:
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ReproError(f"{name} are not a list of numbers: {error}") from None
    if array.ndim != 1 or array.size < minimum:
        raise ReproError(f"{name} have shape {array.shape}: expected a list of at least {minimum}")
    return array


def _paired(a: ArrayLike, b: ArrayLike, axes: tuple[str, ...]) -> tuple[Whole, Whole]:
    """Both arms' correctness, once they are known to have the same number of problems."""
    first, second = _correctness("a", a, axes), _correctness("b", b, axes)
    if first.shape[-1] != second.shape[-1]:
        raise ReproError(
            f"a has {first.shape[-1]} problems and b has {second.shape[-1]}: "
            "expected the same problems, in the same order"
        )
    return first, second


def _problem_differences(a: ArrayLike, b: ArrayLike) -> tuple[Whole, tuple[int, int]]:
    """Differences of seed means times seeds of a times seeds of b, [problems]; and both numbers of seeds."""
    first, second = _paired(a, b, ("seeds", "problems"))
    seeds = (len(first), len(second))
    return seeds[1] * first.sum(axis=0) - seeds[0] * second.sum(axis=0), seeds


def _blocks(draws: int, columns: int) -> Iterator[slice]:
    """Consecutive ranges of the draws, each of at most ``CELLS`` numbers at ``columns`` numbers a draw."""
    rows = max(1, CELLS // columns)
    for start in range(0, draws, rows):
        yield slice(start, min(start + rows, draws))


def _bootstrap_totals(differences: Whole, draws: int, generator: np.random.Generator) -> Whole:
    """Totals of ``draws`` resamples of the problems with replacement, [draws]."""
    values, counts = np.unique(differences, return_counts=True)
    if values @ counts < 0:  # so that the swapped contrast draws the same counts and mirrors the interval
        values, counts = values[::-1], counts[::-1]
    totals = np.empty(draws, dtype=np.int64)
    for block in _blocks(draws, len(values)):
        drawn = generator.multinomial(len(differences), counts / counts.sum(), block.stop - block.start)
        totals[block] = drawn @ values
    return totals


def paired_contrast(a: ArrayLike, b: ArrayLike, *, draws: int = 100_000, seed: int) -> Contrast:
    """Difference in accuracy of two arms with its 95 % problem-cluster bootstrap percentile interval.

    A resample takes n of the n problems independently and uniformly. Its mean depends only on how many of the
    taken problems have each distinct difference, and those counts are multinomial(n, observed shares) by
    definition. Drawing the counts is therefore the same bootstrap, not an approximation of it, and costs the
    number of distinct values instead of n.

    Args:
        a: correctness, 0 or 1, [seeds, problems]; a deterministic arm has one seed.
        b: likewise, for the same problems in the same order; the numbers of seeds may differ.
        draws: bootstrap draws, held at 8 bytes each.
        seed: of the draws. Swapping a and b negates the difference and mirrors the interval.

    Returns:
        The contrast, in percentage points.

    Raises:
        ReproError: entries other than 0 and 1, problems that differ in number, fewer than two problems,
            draws below 1, a negative seed.

    Source: DP-GRPO, Section VII-E; draws: Appendix C-C.
    """
    _whole("draws", draws, 1)
    _whole("seed", seed, 0)
    differences, seeds = _problem_differences(a, b)
    n = len(differences)
    if n < 2:
        raise ReproError(f"the arms share {n} problem: a bootstrap over problems needs at least two")
    to_points = 100 / (n * seeds[0] * seeds[1])
    totals = _bootstrap_totals(differences, draws, np.random.default_rng(seed))
    low, high = np.quantile(totals, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]) * to_points
    total, squares = int(differences.sum()), int(differences @ differences)
    standard_error = math.sqrt((n * squares - total**2) / (n - 1)) * to_points
    return Contrast(
        difference=total * to_points,
        low=float(low),
        high=float(high),
        standard_error=standard_error,
        mde=minimum_detectable_effect(standard_error, level=LEVEL),
        problems=n,
        seeds=seeds,
        draws=int(draws),
    )


def sign_randomization(a: ArrayLike, b: ArrayLike, *, draws: int = 1_000_000, seed: int) -> float:
    """Two-sided p-value of the pooled difference when each problem's difference gets a random sign.

    Of the k problems with the same absolute difference, the number that gets a plus sign is binomial(k, 1/2),
    and the total depends on the signs through those numbers alone: drawing them is the same test. Problems
    without a difference add nothing under either sign.

    Args:
        a: correctness, 0 or 1, [seeds, problems].
        b: likewise, for the same problems in the same order; the numbers of seeds may differ.
        draws: random sign patterns; memory does not grow with them.
        seed: of the draws.

    Returns:
        (1 + patterns whose total is at least as far from zero as the observed one) / (draws + 1). The
        observed pattern counts as a draw, so that p is never zero and the test keeps its level.

    Raises:
        ReproError: as ``paired_contrast``, except that one problem is enough.

    Source: DP-GRPO, Section VII-E; draws: Appendix C-C.
    """
    _whole("draws", draws, 1)
    _whole("seed", seed, 0)
    differences, _ = _problem_differences(a, b)
    sizes, counts = np.unique(np.abs(differences), return_counts=True)
    observed = abs(int(differences.sum()))
    generator = np.random.default_rng(seed)
    extreme = 0
    for block in _blocks(draws, 2):
        totals = np.full(block.stop - block.start, -(sizes @ counts))
        for size, count in zip(sizes, counts, strict=True):
            if size:
                totals += 2 * size * generator.binomial(count, 0.5, len(totals))
        extreme += int(np.count_nonzero(np.abs(totals) >= observed))
    return (1 + extreme) / (draws + 1)


def mcnemar_exact(a: ArrayLike, b: ArrayLike) -> float:
    """Two-sided exact McNemar p-value of one seed pair.

    Args:
        a: correctness of one run, 0 or 1, [problems].
        b: correctness of the other, for the same problems in the same order.

    Returns:
        Binomial(n, 1/2) probability of a split of the n discordant problems at least as uneven as the
        observed one; 1 without discordant problems.

    Raises:
        ReproError: entries other than 0 and 1, or problems that differ in number.

    Source: DP-GRPO, Section VII-E.
    """
    first, second = _paired(a, b, ("problems",))
    only_a, only_b = int(np.sum(first > second)), int(np.sum(second > first))
    if only_a + only_b == 0:
        return 1.0
    return float(stats.binomtest(only_a, only_a + only_b, 0.5).pvalue)


def holm(pvalues: ArrayLike) -> NDArray[np.float64]:
    """Holm-adjusted p-values of one family, [tests], in the order given.

    Args:
        pvalues: the family's raw p-values, [tests].

    Raises:
        ReproError: an empty family, or a value that is not in [0, 1].

    Source: DP-GRPO, Section VII-E (family-wise adjustment).
    """
    raw = _vector("pvalues", pvalues, 1)
    wrong = raw[~((raw >= 0) & (raw <= 1))]
    if wrong.size:
        raise ReproError(f"pvalues contain {wrong[0]}: expected probabilities in [0, 1]")
    order = np.argsort(raw)
    stepped = np.maximum.accumulate(raw[order] * np.arange(len(raw), 0, -1))
    return np.minimum(stepped, 1.0)[np.argsort(order)]


def seed_t_interval(differences: ArrayLike, *, level: float = LEVEL) -> tuple[float, float]:
    """Student interval of the mean of per-seed differences, in their unit.

    Args:
        differences: one difference a seed pair, [seeds]; at least two.
        level: coverage, in [0, 1).

    Raises:
        ReproError: fewer than two seeds, a value that is not finite, or a level out of range.

    Source: DP-GRPO, Section VII-E; Section VIII-A gives two of them.
    """
    _number("level", level, 0, 1, "a coverage in [0, 1)")
    values = _vector("differences", differences, 2)
    if not np.isfinite(values).all():
        raise ReproError(f"differences contain {values[~np.isfinite(values)][0]}: expected finite numbers")
    half = float(stats.t.ppf((1 + level) / 2, len(values) - 1) * stats.sem(values))
    mean = float(values.mean())
    return mean - half, mean + half


def minimum_detectable_effect(standard_error: float, *, power: float = 0.8, level: float = LEVEL,
                              degrees_of_freedom: float | None = None) -> float:  # fmt: skip
    """Effect that a two-sided test of this standard error finds with this power, in the same unit.

    A normal test needs z((1 + level) / 2) + z(power) standard errors. With an error estimated from a handful
    of runs the statistic is noncentral t, and more are needed. Rejections with the wrong sign are left out.

    Args:
        standard_error: of the estimate, at least 0.
        power, level: probability of a rejection, in [0.5, 1); 1 - size of the test, in [0, 1).
        degrees_of_freedom: number of runs or pairs less 1, at least 1; None for the normal test.

    Raises:
        ReproError: an argument out of range.

    Source: DP-GRPO, Section VII-E (normal).
    """
    _number("standard_error", standard_error, 0, math.inf, "a finite number, at least 0")
    _number("power", power, 0.5, 1, "a power in [0.5, 1)")
    _number("level", level, 0, 1, "a level in [0, 1)")
    tail = (1 + level) / 2
    if degrees_of_freedom is None:
        return float((stats.norm.ppf(tail) + stats.norm.ppf(power)) * standard_error)
    _number("degrees_of_freedom", degrees_of_freedom, 1, math.inf, "a finite number, at least 1")
    critical = stats.t.ppf(tail, degrees_of_freedom)
    return float(special.nctdtrinc(degrees_of_freedom, 1 - power, critical) * standard_error)
