"""Do several processes move the weights as one does? Small random models, their rounds made both ways.

    found = compare(processes=2)                # starts the processes with torchrun and waits for them

Processes other than the first have coins and noise of another seed: a run that used them would end
elsewhere.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from reprolib.learn import ranks, sft, toy
from reprolib.learn.directions import Directions
from reprolib.learn.perturbation import Swapped
from reprolib.learn.trainer import Loop, Trainer
from reprolib.learn.zeroth_order import AlongDirections, FiniteDifferences
from reprolib.privacy.mechanism import EntropySource, GaussianSum, PoissonSampler
from reprolib.privacy.plan import Plan

METHODS = ("first order", "zeroth order")
SEED, ROUNDS, SLOTS = 5, 12, 6
COORDINATES, RELEASES = 200, 100


@dataclass(frozen=True)
class Comparison:
    """What several processes did beside one.

    Args:
        rows: a row a method with method, moved (norm of the weights' way), difference (largest of any weight
            to the run of one process, binary64), apart (largest between processes), slots_alone,
            slots_together (records drawn in all rounds) and empty_shares (how often a process had none).
        noise_variance: variance of the released noise over the plan's.
        draws: from how many draws.
    """

    rows: list[dict[str, Any]]
    noise_variance: float
    draws: int = COORDINATES * RELEASES


def compare(*, processes: int = 2) -> Comparison:
    """How far a run in several processes ends from the run of one, and how much noise it adds.

    Raises:
        ReproError: the processes failed; with the first error that they wrote.
    """
    return Comparison(**ranks.launch("reprolib.learn.ranks_check", processes=processes))


def _plan(noise_multiplier: float = 0.5) -> Plan:
    return Plan(unit="one record", population=SLOTS, expected_batch_size=2.0, rounds=ROUNDS, clip_norm=0.5,
                noise_multiplier=noise_multiplier, delta=1e-3)  # fmt: skip


def _first_order(entropy: EntropySource) -> Loop[Any]:
    policy = toy.with_adapter(dtype=torch.float64)
    records = list(toy.task().train[:SLOTS])
    record_map = sft.Imitation(policy, toy.task(), sft.gold_targets(policy, records))
    return Trainer(policy, record_map, records, _plan(), entropy, learning_rate=1e-2)


def _zeroth_order(entropy: EntropySource) -> Loop[Any]:
    weights = nn.Parameter(torch.ones(7, dtype=torch.float64))
    points = list(torch.randn(SLOTS, 7, generator=torch.Generator().manual_seed(1), dtype=torch.float64))

    def loss(batch: Sequence[Tensor]) -> Tensor:
        return (torch.stack(list(batch)) - weights).square().sum(1)

    directions = Directions([weights], num_directions=3, seed=2, distribution="gaussian")
    record_map = FiniteDifferences(loss, Swapped(directions))
    sampler, total = ranks.sampler_and_sum(_plan(), entropy, dimension=record_map.dimension)
    update = AlongDirections(directions, learning_rate=0.1)
    return Loop([weights], record_map, points, entropy, sampler=sampler, total=total, update=update)


def _alone(make: Any, entropy: EntropySource) -> Loop[Any]:
    """The same loop with the sampler and the sum of one process."""
    loop: Loop[Any] = make(entropy)
    loop.sampler = PoissonSampler(_plan(), entropy)
    loop.sum = GaussianSum(_plan(), entropy, dimension=loop.record_map.dimension)
    return loop


def _count(loop: Loop[Any]) -> list[int]:
    """Records of each round, as the loop draws them from now on."""
    draw, sizes = loop.sampler.draw, list[int]()

    def counted() -> Any:
        slots = draw()
        sizes.append(len(slots))
        return slots

    loop.sampler.draw = counted  # type: ignore[method-assign]
    return sizes


def _row(name: str, make: Any) -> dict[str, Any]:
    """Both runs of a method, in each process."""
    one = _alone(make, EntropySource.research(SEED))
    many = make(EntropySource.research(SEED + ranks.rank()))
    start = torch.cat([p.detach().flatten() for p in one.parameters])
    alone, shares = _count(one), _count(many)
    for _ in range(ROUNDS):
        one.step()
        many.step()
    ends = [torch.cat([p.detach().flatten() for p in loop.parameters]) for loop in (one, many)]
    everyone = ranks.of_all((ends[1], shares))
    return {
        "method": name,
        "moved": float((ends[0] - start).norm()),
        "difference": float((ends[0] - ends[1]).abs().max()),
        "apart": max(float((end - ends[1]).abs().max()) for end, _ in everyone),
        "slots_alone": sum(alone),
        "slots_together": sum(sum(sizes) for _, sizes in everyone),
        "empty_shares": sum(sizes.count(0) for _, sizes in everyone),
    }


def _noise() -> float:
    plan = Plan(unit="one record", population=SLOTS, expected_batch_size=2.0, rounds=RELEASES, clip_norm=0.5,
                noise_multiplier=1.5, delta=1e-3)  # fmt: skip
    entropy = EntropySource.research(SEED + ranks.rank())
    _, total = ranks.sampler_and_sum(plan, entropy, dimension=COORDINATES)
    drawn = torch.cat([total.release() for _ in range(RELEASES)])
    return float(np.mean((drawn.numpy() / plan.noise_std) ** 2))


def main(target: str) -> None:
    """What each process runs; the first writes what it found."""
    rows = [_row(*each) for each in zip(METHODS, (_first_order, _zeroth_order), strict=True)]
    ranks.report(target, {"rows": rows, "noise_variance": _noise()})


if __name__ == "__main__":
    main(*sys.argv[1:])
