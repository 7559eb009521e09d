"""The one training loop: sample, map records to vectors, clip, sum, noise, one AdamW step.

Every arm of every paper that trains by a privatised sum runs here; what differs is its record map.
Source: DP-GRPO, Algorithm 1.
"""

from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from reprolib.errors import ReproError
from reprolib.learn.records import RecordMap
from reprolib.lm.models import Policy, adapter_parameters
from reprolib.privacy.ledger import Ledger
from reprolib.privacy.mechanism import EntropySource, GaussianSum, PoissonSampler
from reprolib.privacy.plan import Plan

R = TypeVar("R")


class Trainer(Generic[R]):
    """Trains a policy's adapter on the records of public slots.

    Args:
        policy: model with a LoRA adapter.
        record_map: record -> vector.
        records: one record, or None for an absent one, for each of the plan's slots.
        plan: sampling, clip, noise, divisor and rounds.
        entropy: coins, rollouts and noise.
        learning_rate: of AdamW, without weight decay.
        ledger: where a round is written down before its noise is drawn; None without a record on disk.

    Raises:
        ReproError: the number of slots is not the plan's population.
    """

    def __init__(self, policy: Policy, record_map: RecordMap[R], records: Sequence[R | None], plan: Plan,
                 entropy: EntropySource, *, learning_rate: float, ledger: Ledger | None = None):  # fmt: skip
        if len(records) != plan.population:
            raise ReproError(f"{len(records)} slots: the plan has a population of {plan.population}")
        self.policy, self.record_map, self.records, self.plan = policy, record_map, records, plan
        self.entropy, self.ledger = entropy, ledger
        self.sampler = PoissonSampler(plan, entropy)
        self.sum = GaussianSum(plan, entropy, dimension=record_map.dimension)
        self.parameters = list(adapter_parameters(policy.model).values())
        self.optimizer = torch.optim.AdamW(self.parameters, lr=learning_rate, weight_decay=0.0)

    @property
    def rounds_done(self) -> int:
        """Rounds whose update is released."""
        return self.sum.released

    def step(self) -> Tensor:
        """One round; returns the released update, [dimension], which is public."""
        drawn = [record for slot in self.sampler.draw() if (record := self.records[slot]) is not None]
        if drawn:
            for rows in self.record_map.vectors(drawn, self.entropy):
                self.sum.add(rows)
        if self.ledger is not None:
            self.ledger.begin_round(self.rounds_done)
        update = self.sum.release()
        self._apply(update)
        return update

    def _apply(self, update: Tensor) -> None:
        """An AdamW step along the released update; one that is not finite is passed over.

        Source: DP-GRPO, Appendix A-G, (A2): the step reads released quantities only.
        """
        pieces = torch.split(update, [p.numel() for p in self.parameters])
        for parameter, piece in zip(self.parameters, pieces, strict=True):
            parameter.grad = piece.reshape(parameter.shape).to(parameter)
        if all(bool(p.grad.isfinite().all()) for p in self.parameters if p.grad is not None):
            self.optimizer.step()
        self.optimizer.zero_grad()

    def state(self) -> dict[str, Any]:
        """What a checkpoint needs; with a research source, generator states too. Never part of a release."""
        return {
            "weights": [p.detach().clone() for p in self.parameters],
            "optimizer": self.optimizer.state_dict(),
            "rounds_done": self.rounds_done,
            "entropy": self.entropy.state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from ``state()``."""
        with torch.no_grad():
            for parameter, saved in zip(self.parameters, state["weights"], strict=True):
                parameter.copy_(saved)
        self.optimizer.load_state_dict(state["optimizer"])
        self.sum.released = state["rounds_done"]
        self.entropy.restore(state["entropy"])
