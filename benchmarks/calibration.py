"""Calibrate the noise of DP-GRPO's MATH configuration, beside dp-accounting's own search.

    python benchmarks/calibration.py [--repeats 3] [--peers dp-accounting opacus]

Prints one table, and writes benchmarks/results/calibration.json. Every figure is a median over alternating
runs in one process; the error is against the noise at which the library's accountant returns the target.
"""

import argparse

import dp_accounting
from dp_accounting.pld.pld_privacy_accountant import PLDAccountant
from opacus.accountants.utils import get_noise_multiplier
from side_by_side import alternate, report

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
    seconds, values = alternate(runs, options.repeats)
    reference = values.get("dp-accounting", values["reprolib"])
    rows = [
        {
            "who": name,
            "seconds": seconds[name],
            "ratio": seconds[name] / seconds["reprolib"],
            "noise_multiplier": f"{values[name]:.14f}",
            "difference": values[name] - reference,
        }
        for name in runs
    ]
    report("calibration", rows)


if __name__ == "__main__":
    main()
