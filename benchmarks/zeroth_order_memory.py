"""Peak memory of a step: inference alone, zeroth-order steps, and DP-AdamW on the same model and batch.

    python benchmarks/zeroth_order_memory.py [--examples 64] [--tokens 32] [--directions 2 8]

How it is measured is in ``reprolib.learn.step_memory``: a process a method, every weight trained.
"""

import argparse

from side_by_side import report

from reprolib.learn.step_memory import METHODS, Size, peak, random_model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--examples", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--directions", type=int, nargs="*", default=[2, 8])
    parser.add_argument("--methods", nargs="*", default=METHODS, choices=METHODS)
    options = parser.parse_args()
    size = Size(examples=options.examples, tokens=options.tokens)
    weights = 4 * sum(p.numel() for p in random_model(size).parameters())
    rows = [
        {"method": method, "K": k, "bytes": peak(method, num_directions=k, size=size)}
        for method in options.methods
        for k in (options.directions if method not in ("inference", "dp_adamw") else [1])
    ]
    inference = next(row["bytes"] for row in rows if row["method"] == "inference")
    report(
        "zeroth_order_memory",
        [
            {**row, "MiB": row["bytes"] / 2**20, "times weights": row["bytes"] / weights,
             "times inference": row["bytes"] / inference}
            for row in rows
        ],
    )  # fmt: skip


if __name__ == "__main__":
    main()
