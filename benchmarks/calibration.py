"""Calibrate the noise of DP-GRPO's MATH configuration, beside dp-accounting's own search.

    python benchmarks/calibration.py [--repeats 3] [--peers dp-accounting opacus]

Prints one table, and writes benchmarks/results/calibration.json. Every figure is a median over alternating
runs in one process; the error is against the noise at which the library's accountant returns the target.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import dp_accounting
from dp_accounting.pld.pld_privacy_accountant import PLDAccountant
from opacus.accountants.utils import get_noise_multiplier

from reprolib.privacy import accounting

N, M, ROUNDS, TARGET, TOLERANCE = 6988, 128, 50, 8.0, 1e-9
DELTA = 1 / (10 * N)


def ours() -> float:
    return accounting.calibrate_noise_multiplier(
        sampling_rate=M / N, rounds=ROUNDS, target_epsilon=TARGET, delta=DELTA, tolerance=TOLERANCE
    )


def library() -> float:
    def event(sigma: float) -> dp_accounting.DpEvent:
        one = dp_accounting.PoissonSampledDpEvent(M / N, dp_accounting.GaussianDpEvent(sigma))
        return dp_accounting.SelfComposedDpEvent(one, ROUNDS)

    return dp_accounting.calibrate_dp_mechanism(PLDAccountant, event, TARGET, DELTA, tol=TOLERANCE)


def opacus() -> float:
    """Opacus searches to a tolerance in epsilon, with its PRV accountant; 0.01 is its default."""
    return get_noise_multiplier(
        target_epsilon=TARGET, target_delta=DELTA, sample_rate=M / N, steps=ROUNDS, accountant="prv"
    )


PEERS = {"dp-accounting": library, "opacus": opacus}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--peers", nargs="*", default=list(PEERS), choices=list(PEERS))
    options = parser.parse_args()
    runs = {"reprolib": ours, **{name: PEERS[name] for name in options.peers}}
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    values: dict[str, float] = {}
    ours()  # warm-up
    for _ in range(options.repeats):
        for name, run in runs.items():
            start = time.perf_counter()
            values[name] = run()
            seconds[name].append(time.perf_counter() - start)
    reference = values.get("dp-accounting", values["reprolib"])
    rows = [
        {
            "who": name,
            "seconds": statistics.median(times),
            "ratio": statistics.median(times) / statistics.median(seconds["reprolib"]),
            "noise_multiplier": values[name],
            "difference": values[name] - reference,
        }
        for name, times in seconds.items()
    ]
    print(f"{'who':<16}{'seconds':>9}{'ratio':>8}  {'noise multiplier':<20}{'difference':>12}")
    for row in rows:
        print(
            f"{row['who']:<16}{row['seconds']:>9.3f}{row['ratio']:>8.1f}  "
            f"{row['noise_multiplier']:<20.14f}{row['difference']:>12.1e}"
        )
    target = Path(__file__).parent / "results" / "calibration.json"
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
