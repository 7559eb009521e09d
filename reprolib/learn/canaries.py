"""Dirac canaries in an ordinary run: the strongest records that the mechanism can meet, in the real loop.

    records = with_slots(problems, present)                 # the last slots hold canaries, absent ones None
    record_map = WithCanaries(inner, canaries=len(present), clip_norm=plan.clip_norm)
    trainer = Trainer(policy, record_map, records, plan, entropy, learning_rate=1e-3)
    releases = released(trainer)                            # [canaries, rounds], in units of C

Sampler, clip, noise and divisor are those of the trainer; only the record map knows of canaries.
Source: DP-GRPO, Algorithm 1 and Appendix B (canary diagnostic).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from reprolib.errors import ReproError
from reprolib.learn.records import RecordMap
from reprolib.learn.trainer import Trainer
from reprolib.privacy.mechanism import EntropySource

R = TypeVar("R")


@dataclass(frozen=True)
class Canary:
    """A record whose gradient is C on the coordinate of this index among the canaries."""

    index: int


def with_slots(records: Sequence[R | None], present: ArrayLike) -> "list[R | Canary | None]":
    """The public slots with canaries in the last of them.

    Args:
        records: one record, or None, for each slot; those of the last slots give way.
        present: whether each canary is there, booleans, [canaries].

    Raises:
        ReproError: more canaries than slots.
    """
    coins = np.asarray(present, dtype=bool)
    if len(coins) > len(records):
        raise ReproError(f"{len(coins)} canaries in {len(records)} slots: expected at most one a slot")
    kept: list[R | Canary | None] = list(records[: len(records) - len(coins)])
    return kept + [Canary(i) if there else None for i, there in enumerate(coins)]


class WithCanaries(Generic[R]):
    """A record map in which each canary owns a coordinate of the adapter.

    A canary's vector is C on its coordinate and 0 elsewhere. A record of the inner map has 0 on every
    canary's coordinate, whoever else is in the round, so each vector still reads one record only. The
    coordinates are spread evenly over the adapter.

    Args:
        inner: the record map of all other records.
        canaries: number of canaries, present or not.
        clip_norm: C of the plan.

    Raises:
        ReproError: more canaries than coordinates.
    """

    def __init__(self, inner: RecordMap[R], *, canaries: int, clip_norm: float):
        self.inner, self.dimension, self.clip_norm = inner, inner.dimension, clip_norm
        if not 1 <= canaries <= inner.dimension:
            raise ReproError(
                f"{canaries} canaries on an adapter of {inner.dimension} coordinates: expected one each"
            )
        self.coordinates = torch.arange(canaries) * inner.dimension // canaries

    def vectors(self, records: Sequence[R | Canary], entropy: EntropySource) -> Iterator[Tensor]:
        """The canaries' rows in binary64, then the inner map's blocks without the canaries' coordinates."""
        drawn = [r.index for r in records if isinstance(r, Canary)]
        others = [r for r in records if not isinstance(r, Canary)]
        if drawn:
            # binary64, so that no rounding takes the norm off C
            rows = torch.zeros(len(drawn), self.dimension, dtype=torch.float64)
            rows[torch.arange(len(drawn)), self.coordinates[drawn]] = self.clip_norm
            yield rows
        if others:
            for rows in self.inner.vectors(others, entropy):
                yield rows.index_fill(1, self.coordinates.to(rows.device), 0.0)


def released(trainer: "Trainer[R | Canary]") -> NDArray[np.float64]:
    """Run the rounds that are left, and keep what they release about the canaries.

    Args:
        trainer: its record map is ``WithCanaries``.

    Returns:
        Released average times m / C on each canary's coordinate, [canaries, rounds]: 1 for a canary that was
        sampled and 0 for one that was not, plus noise of deviation sigma.

    Raises:
        ReproError: another record map.
    """
    record_map, plan = trainer.record_map, trainer.plan
    if not isinstance(record_map, WithCanaries):
        raise ReproError("the trainer's record map has no canaries: wrap it in WithCanaries")
    scale = plan.expected_batch_size / record_map.clip_norm
    rounds = []
    while trainer.rounds_done < plan.rounds:
        rounds.append(trainer.step()[record_map.coordinates] * scale)
    return torch.stack(rounds, dim=1).numpy()
