"""Peak memory of one training step of each method, on a random model: a process of its own measures each.

    peak("sage", num_directions=8)            # bytes: model, activations and whatever the step adds

A step's peak is the largest resident memory of a process less what it held when the libraries had been
imported. Every weight is trained. DP-AdamW takes one record a backward pass, the least it can do with, so its
peak does not depend on their number and it is given two.

Source: SAGE, Computation and Memory Efficiency, and Table 5.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import Qwen2Config, Qwen2ForCausalLM

from reprolib.errors import ReproError
from reprolib.learn.directions import Directions
from reprolib.learn.perturbation import Perturbation, Streamed, Swapped
from reprolib.learn.sage import ShrinkageController
from reprolib.learn.trainer import AdamStep
from reprolib.learn.zeroth_order import AlongDirections, FiniteDifferences, LossGradient
from reprolib.privacy.mechanism import EntropySource, GaussianSum
from reprolib.privacy.plan import Plan

METHODS = ("inference", "dp_aggzo", "sage", "dp_aggzo_swapped", "dp_adamw")
MU = 1e-3
Batch = Sequence[Sequence[int]]


@dataclass(frozen=True)
class Size:
    """A random Qwen2 and a batch; the embedding is an eighth of the weights, as in RoBERTa-large."""

    hidden: int = 256
    layers: int = 10
    vocabulary: int = 4096
    examples: int = 64
    tokens: int = 32


def random_model(size: Size) -> Qwen2ForCausalLM:
    """The model; PyTorch's global generator is left as it was."""
    config = Qwen2Config(
        vocab_size=size.vocabulary, hidden_size=size.hidden, intermediate_size=size.hidden * 11 // 4,
        num_attention_heads=4, num_hidden_layers=size.layers, num_key_value_heads=4,
        max_position_embeddings=128, tie_word_embeddings=True,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Qwen2ForCausalLM(config).eval()


def random_batch(size: Size) -> list[list[int]]:
    """Token ids, [examples, tokens]."""
    generator = torch.Generator().manual_seed(1)
    ids: list[list[int]] = torch.randint(
        0, size.vocabulary, (size.examples, size.tokens), generator=generator
    ).tolist()
    return ids


def prompt_loss(model: nn.Module) -> Callable[[Batch], Tensor]:
    """Cross-entropy of the last token, as with a verbaliser: one position is projected."""

    def loss(batch: Batch) -> Tensor:
        ids = torch.tensor(batch)
        logits = model(ids[:, :-1], logits_to_keep=1, use_cache=False).logits[:, -1]
        return nn.functional.cross_entropy(logits, ids[:, -1], reduction="none")

    return loss


def step_plan(examples: int) -> Plan:
    """A plan for steps that are measured, not trained."""
    return Plan(
        unit="one example", population=examples, expected_batch_size=examples, rounds=10**6, clip_norm=1.0,
        noise_multiplier=1.0, delta=1e-5,
    )  # fmt: skip


class ZerothOrderStep:
    """A DP-AggZO or SAGE step: differences, clip, noise and update; its result is the records' K-vectors."""

    def __init__(self, loss: Callable[[Batch], Tensor], perturbation: Perturbation, batch: Batch, *,
                 sage: bool = False):  # fmt: skip
        self.batch, directions = batch, perturbation.directions
        plan = step_plan(len(batch))
        controller = ShrinkageController.for_plan(plan, num_directions=directions.num_directions)
        self.record_map = FiniteDifferences(loss, perturbation, scale=MU)
        self.update = AlongDirections(
            directions, learning_rate=0.0, controller=controller if sage else None
        )  # a rate of zero does the same work and leaves every contender the same weights
        self.sum = GaussianSum(plan, EntropySource.private(), dimension=directions.num_directions)

    def __call__(self) -> Tensor:
        """One step; the records' K-vectors, [records, K]."""
        self.update.directions.round = 0
        rows = torch.cat(list(self.record_map.vectors(self.batch)))
        self.sum.add(rows)
        self.update.apply(self.sum.release())
        return rows


def step(method: str, *, num_directions: int, size: Size) -> Callable[[], object]:
    """A step of a method of ``METHODS``."""
    model, batch = random_model(size), random_batch(size)
    loss, parameters = prompt_loss(model), list(model.parameters())
    if method == "inference":
        return lambda: torch.no_grad()(loss)(batch)
    if method == "dp_adamw":
        return _adamw(loss, parameters, batch[:2])
    directions = Directions(parameters, num_directions=num_directions, seed=0)
    swapped = method == "dp_aggzo_swapped"
    perturbation: Perturbation = Swapped(directions) if swapped else Streamed(directions, model)
    return ZerothOrderStep(loss, perturbation, batch, sage=method == "sage")


def _adamw(
    loss: Callable[[Batch], Tensor], parameters: list[nn.Parameter], batch: Batch
) -> Callable[[], None]:
    record_map = LossGradient(loss, parameters, batch_size=1)
    total = GaussianSum(step_plan(len(batch)), EntropySource.private(), dimension=record_map.dimension)
    update = AdamStep(parameters, learning_rate=1e-5)

    def run() -> None:
        for rows in record_map.vectors(batch):
            total.add(rows)
        update.apply(total.release())

    return run


def peak(method: str, *, num_directions: int = 1, size: Size | None = None) -> int:
    """Bytes that a step needs at most, the model among them, measured in a process of its own.

    Args:
        method: one of ``METHODS``.
        num_directions: K; not used by inference and DP-AdamW.
        size: of model and batch.

    Raises:
        ReproError: an unknown method, no /proc on this system, or a process that fails.
    """
    if method not in METHODS:
        raise ReproError(f"method {method!r}: expected one of {', '.join(METHODS)}")
    if not Path("/proc/self/status").is_file():
        raise ReproError("peak memory is read from /proc/self/status: run this on Linux")
    given = json.dumps({"method": method, "k": num_directions, "size": asdict(size or Size())})
    # freed memory goes back to the system at once, so that resident memory is memory in use
    environment = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", __name__, given], capture_output=True, text=True, check=False,
        env=os.environ | environment,
    )  # fmt: skip
    if done.returncode:
        raise ReproError(f"measuring {method} failed: {done.stderr.strip().splitlines()[-1]}")
    return int(done.stdout.split()[-1])


def _resident(field: str) -> int:
    """Bytes of this process: VmRSS, now, or VmHWM, at most."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field + ":"))


def _measure(method: str, num_directions: int, size: Size) -> int:
    torch.set_num_threads(1)
    random_model(Size(hidden=16, layers=1))(torch.zeros(1, 2, dtype=torch.long))  # what is imported late
    before = _resident("VmRSS")
    run = step(method, num_directions=num_directions, size=size)
    run()
    run()  # AdamW has its moments from the second step on
    return _resident("VmHWM") - before


if __name__ == "__main__":
    content = json.loads(sys.argv[1])
    print(_measure(content["method"], content["k"], Size(**content["size"])))
