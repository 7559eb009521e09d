"""One DP-AggZO and one SAGE step, beside the published loop and beside the forward passes alone.

    python benchmarks/zeroth_order_step.py [--repeats 3] [--directions 16 64] [--examples 64] [--tokens 32]

``published loop`` is a replica of how such steps are usually written: seed again, add z to every tensor out
of place, three full passes of that a direction (+mu, -2 mu, +mu) and one more for the update. ``forwards
alone`` runs the same 2K forward passes of the same batch at unmoved weights. ``full`` trains every weight,
``lora`` an adapter. Clipping, noise and the update are part of a step. ``error`` is the largest difference of
the K-vectors from those of binary64, over their largest entry; the loop draws other directions.

The work beside the forward passes is 3K draws of d normals and their sums, whatever the batch: its share is
inversely proportional to the tokens of a batch.
"""

import argparse
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import torch
from side_by_side import alternate, report
from torch import Tensor, nn

from reprolib.learn.directions import Directions
from reprolib.learn.perturbation import Stacked, Streamed, Swapped
from reprolib.learn.step_memory import MU, Size, prompt_loss, random_batch, random_model
from reprolib.learn.step_memory import ZerothOrderStep as Step
from reprolib.lm.models import Policy, adapter_parameters, attach_lora

SMALL = Size(hidden=128, layers=4, vocabulary=512)


class Published:
    """The replica; the weights drift by its rounding, so it gets its own model."""

    def __init__(self, loss, parameters: list[Tensor], batch: list[list[int]], num_directions: int):
        self.loss, self.parameters, self.batch, self.k = loss, parameters, batch, num_directions

    def _move(self, seed: int, amount: float) -> None:
        torch.manual_seed(seed)
        for p in self.parameters:
            z = torch.normal(mean=0, std=1, size=p.data.size(), dtype=p.data.dtype)
            p.data = p.data + amount * z * MU

    @torch.no_grad()
    def __call__(self) -> Tensor:
        columns = []
        for k in range(self.k):
            self._move(k, 1)
            plus = self.loss(self.batch)
            self._move(k, -2)
            columns.append((plus - self.loss(self.batch)) / (2 * MU * self.k))
            self._move(k, 1)
        rows = torch.stack(columns, dim=1)
        norms = rows.norm(dim=1, keepdim=True).clamp(min=1.0)
        released = (rows / norms).sum(0) + torch.randn(self.k)
        for k in range(self.k):
            self._move(k, 0.0 * float(released[k]))
        return rows


def forwards(loss, batch: list[list[int]], count: int) -> Callable[[], Tensor]:
    @torch.no_grad()
    def run() -> Tensor:
        for _ in range(count):
            losses = loss(batch)
        return losses

    return run


def full(batch: list[list[int]], k: int) -> tuple[dict[str, Callable[[], Tensor]], Tensor]:
    model, twin, exact = random_model(SMALL), random_model(SMALL), random_model(SMALL).double()

    def directions(m: nn.Module, **options: bool) -> Directions:
        return Directions(list(m.parameters()), num_directions=k, seed=0, **options)

    loss = prompt_loss(model)
    runs = {
        "forwards alone": forwards(loss, batch, 2 * k),
        "reprolib, DP-AggZO, streamed": Step(loss, Streamed(directions(model), model), batch),
        "reprolib, DP-AggZO, swapped, kept": Step(loss, Swapped(directions(model, keep=True)), batch),
        "reprolib, SAGE, streamed": Step(loss, Streamed(directions(model), model), batch, sage=True),
        "published loop": Published(prompt_loss(twin), list(twin.parameters()), batch, k),
    }
    return runs, Step(prompt_loss(exact), Swapped(directions(exact)), batch)()


def lora(batch: list[list[int]], k: int) -> tuple[dict[str, Callable[[], Tensor]], Tensor]:
    def adapted(dtype: torch.dtype) -> tuple[nn.Module, list[Tensor]]:
        base = random_model(SMALL).requires_grad_(False).to(dtype)
        model = attach_lora(Policy(base, SimpleNamespace(eos_token_id=1), "lora"), seed=0).model
        return model, list(adapter_parameters(model).values())

    model, parameters = adapted(torch.float32)
    twin, moved = adapted(torch.float32)
    exact, exact_parameters = adapted(torch.float64)
    loss = prompt_loss(model)
    directions = Directions(parameters, num_directions=k, seed=0, keep=True)
    runs = {
        "forwards alone": forwards(loss, batch, 2 * k),
        "reprolib, DP-AggZO, stacked": Step(loss, Stacked(directions, model, copies=8), batch),
        "reprolib, DP-AggZO, swapped": Step(loss, Swapped(directions), batch),
        "reprolib, SAGE, stacked": Step(loss, Stacked(directions, model, copies=8), batch, sage=True),
        "published loop": Published(prompt_loss(twin), moved, batch, k),
    }
    return runs, Step(
        prompt_loss(exact), Swapped(Directions(exact_parameters, num_directions=k, seed=0)), batch
    )()


def measure(space: str, batch: list[list[int]], k: int, repeats: int) -> list[dict[str, object]]:
    runs, exact = {"full": full, "lora": lora}[space](batch, k)
    seconds, results = alternate(runs, repeats)
    passes = seconds["forwards alone"]
    ours = seconds[next(who for who in runs if "DP-AggZO" in who)]
    return [
        {
            "weights": space, "K": k, "examples": len(batch), "tokens": len(batch[0]), "who": who,
            "seconds": seconds[who], "times forwards": seconds[who] / passes,
            "times ours": seconds[who] / ours,
            "error": float((rows - exact).abs().max() / exact.abs().max()) if "reprolib" in who else None,
        }
        for who, rows in results.items()
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--directions", type=int, nargs="*", default=[16, 64])
    parser.add_argument("--examples", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--weights", nargs="*", default=["full", "lora"], choices=["full", "lora"])
    options = parser.parse_args()
    torch.set_num_threads(1)
    batch = random_batch(replace(SMALL, examples=options.examples, tokens=options.tokens))
    report(
        "zeroth_order_step",
        [
            row
            for k in options.directions
            for space in options.weights
            for row in measure(space, batch, k, options.repeats)
        ],
    )


if __name__ == "__main__":
    main()
