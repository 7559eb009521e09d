"""Does the sharded run move the weights as one process does? A random model, its steps made both ways.

    rows = compare(processes=2)             # starts the processes with torchrun and waits for them

Each process has coins of its own, so a run that tossed them in several places would end elsewhere.
"""

import sys
from collections.abc import Sequence
from typing import Any

import torch

from reprolib.errors import ReproError
from reprolib.learn import dpo, ranks, toy
from reprolib.learn.preference_loss import DPO, PairMethod, Randomized
from reprolib.learn.preference_pairs import Pair
from reprolib.learn.preference_records import PairGradients
from reprolib.learn.preference_reference import Reference
from reprolib.lm.models import Policy
from reprolib.privacy.mechanism import EntropySource
from reprolib.privacy.preference import Piecewise, PrivDPO, RandomizedResponse

METHODS: dict[str, PairMethod] = {
    "DPO": DPO(),
    "RR": Randomized(RandomizedResponse(1.0)),
    "PrivDPO": Randomized(PrivDPO(1.0)),
    "Piecewise": Randomized(Piecewise(1.0)),
}
PAIRS, SEED = 11, 7
SETTINGS: dict[str, Any] = {"seed": 1, "batch_size": 4, "epochs": 2, "learning_rate": 1e-2, "warmup_steps": 1}


def compare(*, processes: int = 2, methods: Sequence[str] = tuple(METHODS)) -> list[dict[str, Any]]:
    """A row a method and set of trained weights: how far the sharded run ends from the run of one process.

    Args:
        processes: how many; each runs one thread on the CPU, with gloo.
        methods: of ``METHODS``.

    Returns:
        Rows with method, trained, rounds, moved (the norm of the weights' way), difference (largest absolute
        one of any weight, binary64) and held (the largest share of the trained weights in one process).

    Raises:
        ReproError: an unknown method, or the processes failed; with the first error that they wrote.
    """
    if unknown := sorted(set(methods) - set(METHODS)):
        raise ReproError(f"no method {unknown[0]!r}: expected some of {', '.join(METHODS)}")
    rows: list[dict[str, Any]] = ranks.launch("reprolib.learn.sharded_check", *methods, processes=processes)
    return rows


def toy_pairs(count: int = PAIRS) -> list[Pair]:
    """Random prompts with two random responses and fair bits."""
    generator, pairs = torch.Generator().manual_seed(0), list[Pair]()
    while len(pairs) < count:
        group = toy.random_group(generator, completions=2)
        if group.completions[0] != group.completions[1]:
            bit = int(torch.randint(2, (1,), generator=generator))
            pairs.append(
                Pair.ordered(
                    id=str(len(pairs)), prompt=group.prompt, responses=group.completions, preferred=bit
                )
            )
    return pairs


def _policy(trained: str) -> Policy:
    if trained == "adapter":
        return toy.with_adapter(dtype=torch.float64)
    policy = toy.policy(dtype=torch.float64)
    policy.model.requires_grad_(True)
    return policy


def _row(name: str, trained: str, pairs: list[Pair]) -> dict[str, Any]:
    """Both runs of a method, in each process."""
    from reprolib.learn.sharded import ShardedAligner

    reference, rank = Reference.of(toy.policy(dtype=torch.float64), pairs), ranks.rank()
    alone = PairGradients(_policy(trained), METHODS[name], reference=reference)
    start = [p.detach().clone() for p in alone.parameters]
    one = dpo.aligner(alone.policy, alone, pairs, EntropySource.research(SEED), **SETTINGS)
    parts = PairGradients(_policy(trained), METHODS[name], reference=reference)
    many = ShardedAligner(parts, pairs, EntropySource.research(SEED + rank), **SETTINGS)
    for _ in range(one.rounds):
        one.step()
        many.step()
    ends = list(zip(start, alone.parameters, many.weights(), strict=True))
    held = sum(p.to_local().numel() for p in many.parameters)  # type: ignore[attr-defined]
    return {
        "method": name, "trained": trained, "rounds": one.rounds,
        "moved": float(torch.stack([(b - a).norm() for a, b, _ in ends]).norm()),
        "difference": max(float((b - c).abs().max()) for _, b, c in ends),
        "held": held / alone.dimension,
    }  # fmt: skip


def main(target: str, *methods: str) -> None:
    """What each process runs; the first writes the rows, with the largest of all processes."""
    pairs = toy_pairs()
    rows = [_row(name, trained, pairs) for name in methods for trained in ("all weights", "adapter")]
    everyone = ranks.of_all(rows)
    largest = [
        own[0] | {key: max(row[key] for row in own) for key in ("difference", "held")}
        for own in zip(*everyone, strict=True)
    ]
    ranks.report(target, largest)


if __name__ == "__main__":
    main(*sys.argv[1:])
