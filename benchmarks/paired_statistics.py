"""Paired bootstrap and sign randomisation on 4,499 problems x 4 seeds, beside drawing problem by problem.

    python benchmarks/paired_statistics.py [--repeats 3]

Prints one table, and writes benchmarks/results/paired_statistics.json. Every time is a median over
alternating runs in one process. The difference of the results stands beside the Monte-Carlo error of that
difference (one standard deviation, of two independent runs).
"""

import argparse
import math
from collections.abc import Callable

import numpy as np
import scipy.stats
from side_by_side import alternate, report

from reprolib.evidence.stats import paired_contrast, sign_randomization

PROBLEMS, SEEDS, GAIN = 4499, 4, 0.06  # the gain, in log-odds, keeps p away from 0 and 1
BOOTSTRAP_DRAWS, SIGN_DRAWS, CHUNK = 100_000, 1_000_000, 2_000


def simulated() -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    ability = generator.normal(0, 3, PROBLEMS)
    odds = np.exp(-ability - np.array([[GAIN], [0.0]]))
    a, b = (generator.random((SEEDS, PROBLEMS)) < 1 / (1 + o) for o in odds)
    return a, b


A, B = simulated()
DIFFERENCES = A.mean(axis=0) - B.mean(axis=0)


def our_bootstrap() -> tuple[float, ...]:
    found = paired_contrast(A, B, draws=BOOTSTRAP_DRAWS, seed=1)
    return found.low, found.high


def scipy_bootstrap() -> tuple[float, ...]:
    data = (100 * DIFFERENCES,)
    found = scipy.stats.bootstrap(
        data, np.mean, n_resamples=BOOTSTRAP_DRAWS, method="percentile", batch=50, rng=2
    )
    return found.confidence_interval.low, found.confidence_interval.high


def our_signs() -> tuple[float, ...]:
    return (sign_randomization(A, B, draws=SIGN_DRAWS, seed=1),)


def numpy_signs() -> tuple[float, ...]:
    """Every problem gets its own sign; whole numbers, so that ties with the observed total are exact."""
    steps = np.rint(SEEDS * DIFFERENCES).astype(np.float32)
    generator, observed, extreme = np.random.default_rng(2), abs(steps.sum()), 0
    for _ in range(SIGN_DRAWS // CHUNK):
        plus = generator.integers(0, 2, (CHUNK, PROBLEMS), dtype=np.int8).astype(np.float32)
        extreme += np.count_nonzero(np.abs(2 * (plus @ steps) - steps.sum()) >= observed)
    return ((1 + extreme) / (SIGN_DRAWS + 1),)


def quantile_error() -> float:
    """Of the difference of two independent 2.5 % quantiles, in points."""
    density = scipy.stats.norm.pdf(scipy.stats.norm.ppf(0.025)) / (100 * scipy.stats.sem(DIFFERENCES))
    return math.sqrt(2 * 0.025 * 0.975 / BOOTSTRAP_DRAWS) / density


def share_error(p: float) -> float:
    return math.sqrt(2 * p * (1 - p) / SIGN_DRAWS)


Run = Callable[[], tuple[float, ...]]
CASES: dict[str, dict[str, Run]] = {
    "bootstrap": {"reprolib": our_bootstrap, "scipy.stats.bootstrap": scipy_bootstrap},
    "sign randomisation": {"reprolib": our_signs, "numpy, chunked": numpy_signs},
}


def measure(case: str, repeats: int) -> list[dict]:
    seconds, results = alternate(CASES[case], repeats)
    ours = results["reprolib"]
    error = quantile_error() if case == "bootstrap" else share_error(ours[0])
    return [
        {
            "case": case,
            "who": who,
            "seconds": seconds[who],
            "ratio": seconds[who] / seconds["reprolib"],
            "result": ", ".join(f"{x:.5f}" for x in result),
            "difference": max(abs(x - y) for x, y in zip(result, ours, strict=True)),
            "monte_carlo_error": error,
        }
        for who, result in results.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    report("paired_statistics", [row for case in CASES for row in measure(case, options.repeats)])


if __name__ == "__main__":
    main()
