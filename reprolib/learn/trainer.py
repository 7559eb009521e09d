"""The one training loop: sample, map records to vectors, clip, sum, noise, one AdamW step.

Every arm of every paper that trains by a privatised sum runs here; what differs is its record map.
Source: DP-GRPO, Algorithm 1.
"""

import copy
import warnings
from collections.abc import Sequence
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from reprolib.errors import ReproError
from reprolib.learn.ranks import sampler_and_sum
from reprolib.learn.records import RecordMap
from reprolib.lm.models import Policy, adapter_parameters
from reprolib.privacy.ledger import Ledger
from reprolib.privacy.mechanism import EntropySource
from reprolib.privacy.plan import Plan

R = TypeVar("R")


class Sampler(Protocol):
    """Which public slots a round takes."""

    def draw(self) -> NDArray[np.intp]:
        """Slots of the next round."""
        ...


class ReleasingSum(Protocol):
    """What turns vectors into a release: ``GaussianSum``, or a sum of what is private already."""

    released: int

    def add(self, rows: Tensor) -> None:
        """Add the vectors of a block of records, [records, dimension]."""
        ...

    def release(self) -> Tensor:
        """End the round: the update, [dimension]."""
        ...


class Update(Protocol):
    """How a released update moves the weights; it sees nothing else."""

    def apply(self, update: Tensor) -> None:
        """Move the weights along the update; one that is not finite moves nothing."""
        ...

    def state(self) -> dict[str, Any]:
        """For a checkpoint; the weights are kept by the loop."""
        ...

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from ``state()``."""
        ...


class AdamStep:
    """An AdamW step along the released update, with a linear warm-up.

    Args:
        parameters: the trained weights, in the order of the update.
        learning_rate: after the warm-up: step k of it has (k + 1)/(warmup_steps + 1) of the rate.
        weight_decay: of AdamW.
        warmup_steps: length of the warm-up.

    Source: DP-GRPO, Appendix A-G, (A2): the step reads released quantities only.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], *, learning_rate: float, weight_decay: float = 0.0,
                 warmup_steps: int = 0):  # fmt: skip
        self.parameters = list(parameters)
        self.optimizer = torch.optim.AdamW(self.parameters, lr=learning_rate, weight_decay=weight_decay)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda step: min(1.0, (step + 1) / (warmup_steps + 1))
        )

    def apply(self, update: Tensor) -> None:
        """One step; the schedule goes on even where the update is not finite and the weights stay.

        Args:
            update: [dimension].
        """
        pieces = torch.split(update, [p.numel() for p in self.parameters])
        for parameter, piece in zip(self.parameters, pieces, strict=True):
            parameter.grad = piece.reshape(parameter.shape).to(parameter)
        if all(bool(p.grad.isfinite().all()) for p in self.parameters if p.grad is not None):
            self.optimizer.step()
        self.optimizer.zero_grad()
        with warnings.catch_warnings():  # a first update that is not finite is no mistake of ours
            warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")
            self.schedule.step()

    def state(self) -> dict[str, Any]:
        """Moments and place in the schedule."""
        return {"optimizer": self.optimizer.state_dict(), "schedule": self.schedule.state_dict()}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from ``state()``."""
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])


class Loop(Generic[R]):
    """Draws records, maps them to vectors, releases their sum and applies it, round by round.

    Args:
        parameters: the trained weights.
        record_map: record -> vector.
        records: one record, or None for an absent one, for each public slot.
        entropy: coins, noise and whatever is random inside a record.
        sampler, total, update: how slots are drawn, what is released of them, and what it moves.
        ledger: where a round is written down before it is released; None without a record on disk.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], record_map: RecordMap[R],
                 records: Sequence[R | None], entropy: EntropySource, *, sampler: Sampler,
                 total: ReleasingSum, update: Update, ledger: Ledger | None = None):  # fmt: skip
        self.parameters, self.record_map, self.records = list(parameters), record_map, records
        self.entropy, self.ledger = entropy, ledger
        self.sampler, self.sum, self.update = sampler, total, update

    @property
    def rounds_done(self) -> int:
        """Rounds whose update is released."""
        return self.sum.released

    def step(self) -> Tensor:
        """One round; returns the released update, [dimension], which is public."""
        # with several processes these are this one's part of the round, which may be empty
        drawn = [record for slot in self.sampler.draw() if (record := self.records[slot]) is not None]
        if drawn:
            for rows in self.record_map.vectors(drawn, self.entropy):
                self.sum.add(rows)
        if self.ledger is not None:
            self.ledger.begin_round(self.rounds_done)
        update = self.sum.release()
        self.update.apply(update)
        return update

    def state(self) -> dict[str, Any]:
        """What a checkpoint needs; with a research source, generator states too. Never part of a release."""
        return {
            "weights": [p.detach().clone() for p in self.parameters],
            "update": copy.deepcopy(self.update.state()),
            "rounds_done": self.rounds_done,
            "entropy": self.entropy.state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from ``state()``."""
        with torch.no_grad():
            for parameter, saved in zip(self.parameters, state["weights"], strict=True):
                parameter.copy_(saved)
        self.update.restore(state["update"])
        self.sum.released = state["rounds_done"]
        self.entropy.restore(state["entropy"])


class Trainer(Loop[R]):
    """The loop of a plan: Poisson sampling, one Gaussian release a round, an AdamW step on an adapter.

    Args:
        policy: model with a LoRA adapter.
        record_map: record -> vector.
        records: one record, or None for an absent one, for each of the plan's slots.
        plan: sampling, clip, noise, divisor and rounds.
        entropy: coins, rollouts and noise.
        learning_rate: of AdamW, without weight decay.
        ledger: see ``Loop``.

    Raises:
        ReproError: the number of slots is not the plan's population.

    Source: DP-GRPO, Algorithm 1.
    """

    def __init__(self, policy: Policy, record_map: RecordMap[R], records: Sequence[R | None], plan: Plan,
                 entropy: EntropySource, *, learning_rate: float, ledger: Ledger | None = None):  # fmt: skip
        if len(records) != plan.population:
            raise ReproError(f"{len(records)} slots: the plan has a population of {plan.population}")
        self.policy, self.plan = policy, plan
        parameters = list(adapter_parameters(policy.model).values())
        sampler, total = sampler_and_sum(plan, entropy, dimension=record_map.dimension)
        super().__init__(
            parameters, record_map, records, entropy, sampler=sampler, total=total,
            update=AdamStep(parameters, learning_rate=learning_rate), ledger=ledger,
        )  # fmt: skip
