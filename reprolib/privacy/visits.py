"""Plans of runs that visit every slot once an epoch, in disjoint batches of a public order.

    LocalPlan(population=1000, batch_size=64, epochs=3, visit_epsilon=0.5).epsilon()    # fresh coins: 1.5
    LocalPlan(population=1000, batch_size=64, epochs=3, once_epsilon=1.0).epsilon()     # bits kept: 1.0

Nothing is amplified by sampling here. A round that a crash cut short and that is done again visits its slots
once more: ``after`` counts that from a ledger.

Source: PrivDPO, Propositions 3.2 and 3.3, and Appendix D.1.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from reprolib.errors import ReproError
from reprolib.privacy import accounting
from reprolib.privacy.accounting import Accountant
from reprolib.privacy.plan import Plan, PrivacyCard

UNIT = "the annotated preference of one pair (one bit)"
ADJACENCY = "the other preference, with the same prompt and responses"
NOT_COVERED = (
    "prompts and responses, which are taken to be public",
    "several pairs that one person annotated",
    "what the initial model or the choice of hyperparameters already says about the annotations",
)
DISJOINT = "disjoint batches of a public permutation: every slot is used once an epoch"


def most_visits(rounds: Sequence[int | None], *, batches: int) -> int:
    """How often the slot that was visited most was visited, at most.

    Args:
        rounds: the rounds begun, from 0, repetitions included; None, an unknown one, counts as a visit.
        batches: rounds of an epoch.
    """
    begun = Counter(r for r in rounds if r is not None)
    most: Counter[int] = Counter()
    for index, times in begun.items():
        most[index // batches] = max(most[index // batches], times)
    return most.total() + list(rounds).count(None)


@dataclass(frozen=True, kw_only=True)
class LocalPlan:
    """A run whose records are made private one by one, before anything is summed: one bit of each slot.

    Args:
        population: number of public slots.
        batch_size: slots of a round; the last round of an epoch may have fewer.
        epochs: passes over the slots.
        visit_epsilon: what a visit spends on its record; infinite where the bit is used as it is, 0 where
            none is read, or one that was randomised before.
        once_epsilon: what was spent on each record before the first round.
        visits: how often the slot that was visited most was visited; as many as epochs unless rounds were
            repeated.
        unit, adjacency: what is protected, in words.

    Raises:
        ReproError: a parameter out of range.
    """

    population: int
    batch_size: int
    epochs: int = 1
    visit_epsilon: float = 0.0
    once_epsilon: float = 0.0
    visits: int = -1
    unit: str = UNIT
    adjacency: str = ADJACENCY

    def __post_init__(self) -> None:
        if self.visits < 0:
            object.__setattr__(self, "visits", self.epochs)
        if not (1 <= self.batch_size <= self.population and self.epochs >= 1):
            raise ReproError(
                f"population {self.population}, batch_size {self.batch_size}, epochs {self.epochs}: "
                "expected a batch of 1 to population slots and at least one epoch"
            )
        for name in ("visit_epsilon", "once_epsilon"):
            if not getattr(self, name) >= 0:
                raise ReproError(f"{name} = {getattr(self, name)!r}: expected a number, at least 0")

    @property
    def batches(self) -> int:
        """Rounds of an epoch."""
        return math.ceil(self.population / self.batch_size)

    @property
    def rounds(self) -> int:
        """Rounds of all epochs."""
        return self.epochs * self.batches

    def epsilon(self, *, accountant: Accountant = "pld") -> float:
        """Budget of each record's bit, pure; both accountants agree on it.

        Source: PrivDPO, Propositions 3.2 (post-processing) and 3.3 (composition).
        """
        return self.once_epsilon + (self.visit_epsilon * self.visits if self.visits else 0.0)

    def after(self, rounds: Sequence[int | None]) -> Self:
        """The plan with the visits of the rounds that were begun."""
        return replace(self, visits=most_visits(rounds, batches=self.batches))

    def spent(self, rounds: Sequence[int | None], *, accountant: Accountant = "pld") -> float:
        """Budget after the rounds begun; what was spent before the first is in it."""
        return self.after(rounds).epsilon(accountant=accountant)

    def card(self, *, replayable: bool = False) -> PrivacyCard:
        """The privacy card.

        Args:
            replayable: whether any coin came from a research source: then nothing is guaranteed.
        """
        sampling = f"every slot once an epoch, in a public order; most visits of a slot: {self.visits}"
        once = self.visit_epsilon == 0
        return PrivacyCard(
            unit=self.unit, adjacency=self.adjacency, sampling_assumed=sampling, sampling_run=sampling,
            accountant="spent once, then post-processing" if once else "composition of fresh coins",
            epsilon=self.epsilon(), delta=0.0, replayable=replayable, not_covered=NOT_COVERED,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class DisjointBatches(Plan):
    """The Gaussian mechanism on disjoint batches: a record is in one release of every epoch.

    Args:
        visits: releases that the slot in most of them took part in; computed, unless rounds were repeated.

    Raises:
        ReproError: a parameter out of range, a batch size that is no whole number, or rounds that are not
            whole epochs.

    Source: PrivDPO, Appendix D.1: the analytic Gaussian mechanism, one pass, no amplification.
    """

    visits: int = field(default=-1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.expected_batch_size != int(self.expected_batch_size) or self.rounds % self.batches:
            raise ReproError(
                f"batches of {self.expected_batch_size:g} in {self.rounds} rounds: expected whole batches "
                f"and a multiple of {self.batches} rounds, one pass over {self.population} slots"
            )
        if self.visits < 0:
            object.__setattr__(self, "visits", self.rounds // self.batches)

    @classmethod
    def calibrated(
        cls, *, unit: str, population: int, expected_batch_size: float, rounds: int, clip_norm: float,
        delta: float, target_epsilon: float,
    ) -> "DisjointBatches":  # fmt: skip
        """The plan with the least noise of ``target_epsilon``; k visits need sqrt(k) times that of one."""
        sigma = accounting.gaussian_noise_multiplier(target_epsilon=target_epsilon, delta=delta)
        noiseless = cls(
            unit=unit, population=population, expected_batch_size=expected_batch_size, rounds=rounds,
            clip_norm=clip_norm, delta=delta, noise_multiplier=0.0,
        )  # fmt: skip
        return replace(noiseless, noise_multiplier=sigma * math.sqrt(noiseless.visits))

    @property
    def batches(self) -> int:
        """Rounds of an epoch."""
        return math.ceil(self.population / self.expected_batch_size)

    def epsilon(self, *, accountant: Accountant = "pld") -> float:
        """Budget of the visits; infinite without noise."""
        if self.noise_multiplier == 0:
            return math.inf
        return accounting.epsilon(
            sampling_rate=1.0, noise_multiplier=self.noise_multiplier, rounds=max(1, self.visits),
            delta=self.delta, accountant=accountant,
        )  # fmt: skip

    def after(self, rounds: Sequence[int | None]) -> Self:
        """The plan with the visits of the rounds that were begun."""
        return replace(self, visits=max(1, most_visits(rounds, batches=self.batches)))

    def card(self, *, replayable: bool = False, ran: str | None = None,
             not_covered: tuple[str, ...] = ()) -> PrivacyCard:  # fmt: skip
        """The privacy card, see ``Plan.card``."""
        card = super().card(replayable=replayable, not_covered=not_covered)
        return replace(card, sampling_assumed=DISJOINT, sampling_run=ran or DISJOINT)
