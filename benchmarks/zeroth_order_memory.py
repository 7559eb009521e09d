"""Peak memory of a step: inference alone, zeroth-order steps, and DP-AdamW on the same model and batch.

    python benchmarks/zeroth_order_memory.py [--examples 64] [--tokens 32] [--directions 2 8]

Each method runs in a process of its own. Its peak is the largest resident memory of the process less what it
held when the libraries had been imported: the model, the batch's activations and whatever a step adds. Every
weight is trained. DP-AdamW takes one record a backward pass, the least it can do with, so its peak does not
depend on their number and it is given two.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from side_by_side import report
from zeroth_order_step import Step, examples, forwards, language_model, plan, prompt_loss

from reprolib.learn.directions import Directions
from reprolib.learn.perturbation import Streamed, Swapped
from reprolib.learn.zeroth_order import LossGradient
from reprolib.privacy.mechanism import EntropySource, GaussianSum

HIDDEN, LAYERS, VOCABULARY = 256, 10, 4096  # the embedding is an eighth of the weights, as in RoBERTa-large
METHODS = ("inference", "DP-AggZO, streamed", "SAGE, streamed", "DP-AggZO, swapped", "DP-AdamW")


def resident(field: str) -> int:
    """Bytes of this process: VmRSS, now, or VmHWM, at most."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field + ":"))


def step(method: str, batch: list[list[int]], k: int) -> Callable[[], object]:
    model = language_model(hidden=HIDDEN, layers=LAYERS, vocabulary=VOCABULARY)
    loss, parameters = prompt_loss(model), list(model.parameters())
    if method == "inference":
        return forwards(loss, batch, 1)
    if method == "DP-AdamW":
        return adamw(loss, parameters, batch[:2])
    directions = Directions(parameters, num_directions=k, seed=0)
    perturbation = Streamed(directions, model) if "streamed" in method else Swapped(directions)
    return Step(loss, perturbation, batch, sage="SAGE" in method)


def adamw(loss, parameters: list[torch.Tensor], batch: list[list[int]]) -> Callable[[], object]:
    record_map = LossGradient(loss, parameters, batch_size=1)
    total = GaussianSum(plan(len(batch)), EntropySource.private(), dimension=record_map.dimension)
    optimizer = torch.optim.AdamW(parameters, lr=1e-5)

    def run() -> None:
        for rows in record_map.vectors(batch):
            total.add(rows)
        pieces = torch.split(total.release(), [p.numel() for p in parameters])
        for parameter, piece in zip(parameters, pieces, strict=True):
            parameter.grad = piece.reshape(parameter.shape).to(parameter)
        optimizer.step()
        optimizer.zero_grad()

    return run


def peak(method: str, count: int, tokens: int, k: int) -> int:
    """Bytes that a step of this process needs at most, the model among them."""
    torch.set_num_threads(1)
    language_model(hidden=16, layers=1)(torch.zeros(1, 2, dtype=torch.long))  # what is imported late
    before = resident("VmRSS")
    run = step(method, examples(count, tokens, VOCABULARY), k)
    run()
    run()  # AdamW has its moments from the second step on
    return resident("VmHWM") - before


def measured(method: str, count: int, tokens: int, k: int) -> int:
    """``peak`` in a process of its own, whose freed memory goes back to the system at once."""
    arguments = [
        sys.executable,
        __file__,
        "--only",
        method,
        "--examples",
        str(count),
        "--tokens",
        str(tokens),
    ]
    done = subprocess.run(
        [*arguments, "--directions", str(k)], check=True, capture_output=True, text=True,
        env=os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0"},
    )  # fmt: skip
    return int(done.stdout.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--examples", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--directions", type=int, nargs="*", default=[2, 8])
    parser.add_argument("--methods", nargs="*", default=METHODS, choices=METHODS)
    parser.add_argument("--only", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        print(peak(options.only, options.examples, options.tokens, options.directions[0]))
        return
    model = language_model(hidden=HIDDEN, layers=LAYERS, vocabulary=VOCABULARY)
    weights = 4 * sum(p.numel() for p in model.parameters())
    rows = [
        {"method": method, "K": k, "bytes": measured(method, options.examples, options.tokens, k)}
        for method in options.methods
        for k in (options.directions if "inference" not in method and "AdamW" not in method else [1])
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
