"""Write explorer_cases.json: epsilons of the PLD accountant for the test of the book's explorer.

The accountant runs on the grid of the reported budgets, and on a finer one where epsilon is small:
there the reported grid overstates it. Run: ``python tests/book/make_explorer_cases.py``.
"""

import json
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

from reprolib.privacy import accounting, losses  # noqa: E402

# sampling rate, noise multiplier, rounds, delta
CASES = [
    (128 / 6988, 0.4842404738068581, 50, 1 / 69880),
    (128 / 6988, 1.0023417361080647, 50, 1 / 69880),
    (0.1, 3.0, 512, 1e-6),
    (0.1, 1.0, 512, 1e-5),
    (0.01, 1.0, 1000, 1e-5),
    (0.01, 0.7, 1, 1e-5),
    (0.01, 1.1, 10000, 1e-5),
    (0.02, 0.5, 20, 1e-3),
    (0.001, 0.8, 1000, 1e-4),
    (0.001, 0.6, 300, 1e-6),
    (0.0001, 0.3, 10000, 1e-5),
    (0.0001, 0.3, 1, 1e-10),
    (0.0001, 1.0, 10000, 1e-6),
    (0.005, 2.0, 2000, 1e-7),
    (0.05, 5.0, 5000, 1e-8),
    (0.2, 5.0, 16, 1e-5),
    (0.25, 20.0, 10, 1e-2),
    (0.5, 1.5, 100, 1e-8),
    (0.5, 0.6, 10, 1e-6),
    (0.9, 10.0, 200, 1e-5),
    (0.999, 0.5, 10, 1e-6),
    (1.0, 1.0, 1, 1e-5),
    (1.0, 20.0, 1, 1e-10),
    (1.0, 2.0, 64, 1e-6),
    (1.0, 10.0, 5000, 1e-5),
]
FINE, FINE_BELOW = 1e-6, 0.1  # grid for the cases whose epsilon is small


def reference(sampling_rate: float, noise_multiplier: float, rounds: int, delta: float) -> float:
    """Epsilon of the PLD accountant, on a finer grid where the reported one is too coarse."""
    mechanism = {
        "sampling_rate": sampling_rate, "noise_multiplier": noise_multiplier, "rounds": rounds,
    }  # fmt: skip
    epsilon = accounting.epsilon(**mechanism, delta=delta)
    if epsilon >= FINE_BELOW:
        return epsilon
    return float(losses.subsampled_gaussian(**mechanism, grid=FINE).get_epsilon_for_delta(delta))


def main() -> None:
    """Write the cases next to this script."""
    names = ("sampling_rate", "noise_multiplier", "rounds", "delta")
    cases = [dict(zip(names, case, strict=True)) | {"epsilon": reference(*case)} for case in CASES]
    (HERE / "explorer_cases.json").write_text(json.dumps(cases, indent=1) + "\n")


if __name__ == "__main__":
    main()
