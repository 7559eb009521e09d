"""Training on preference pairs: shuffled epochs over a public order, and a sum that is private, or noised.

    reference = Reference.of(policy, pairs)
    record_map = PairGradients(policy, Randomized(PrivDPO(1.0)), reference=reference)
    run = aligner(policy, record_map, pairs, EntropySource.private(), seed=0)
    run.step()                                # run.rounds times

A local randomiser makes each pair's weights private before they are summed, so the sum takes no clip and no
noise. DP-SGD goes through the shared plan instead: ``reprolib.learn.trainer.Trainer`` with a Poisson sampler,
or ``single_pass``, the paper's setting, in which each triplet is used once.

Source: PrivDPO, Algorithm 1, Section 5.1 (hyperparameters) and Appendix D.1 (DP-SGD).
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from reprolib.errors import ReproError
from reprolib.learn.preference_pairs import Pair, check_pairs
from reprolib.learn.preference_records import PairGradients
from reprolib.learn.trainer import AdamStep, Loop, ReleasingSum
from reprolib.lm.models import Policy
from reprolib.privacy.ledger import Ledger
from reprolib.privacy.mechanism import EntropySource, GaussianSum
from reprolib.privacy.visits import DisjointBatches

# PrivDPO, Section 5.1, Hyperparameters
LEARNING_RATE, BATCH_SIZE, WARMUP_STEPS = 5e-7, 64, 150
WEIGHT_DECAY = 0.01  # AdamW as PyTorch sets it
TRIPLET = "one triplet: the prompt, both responses and the preference"


class ShuffledEpochs:
    """Disjoint batches of a public permutation, a new one each epoch; the last batch may be short.

    Args:
        population: number of public slots.
        batch_size: slots of a batch.
        epochs: passes over the slots.
        seed: of the permutations. It is public: the order says nothing about any annotation.

    Raises:
        ReproError: an argument below 1, a batch larger than the population, or a negative seed.

    Source: PrivDPO, Algorithm 1, line 1.
    """

    def __init__(self, population: int, *, batch_size: int, epochs: int = 1, seed: int):
        if not (1 <= batch_size <= population and epochs >= 1 and seed >= 0):
            raise ReproError(
                f"population {population}, batch_size {batch_size}, epochs {epochs}, seed {seed}: expected "
                "a batch of 1 to population slots, at least one epoch and no negative seed"
            )
        self.population, self.batch_size, self.epochs, self.seed = population, batch_size, epochs, seed
        self.batches = math.ceil(population / batch_size)
        self.drawn = 0

    @property
    def rounds(self) -> int:
        """Batches of all epochs."""
        return self.epochs * self.batches

    def draw(self) -> NDArray[np.intp]:
        """Slots of the next batch, in increasing order.

        Raises:
            ReproError: all epochs are drawn.
        """
        if self.drawn >= self.rounds:
            raise ReproError(f"all {self.rounds} batches are drawn: make a sampler with more epochs")
        epoch, batch = divmod(self.drawn, self.batches)
        self.drawn += 1
        order = np.random.default_rng([self.seed, epoch]).permutation(self.population)
        return np.sort(order[batch * self.batch_size : (batch + 1) * self.batch_size])


class LocalSum:
    """Adds up gradients that need no noise: their weights are private, or nothing is protected.

    Args:
        divisor: public constant, the batch size. A short last batch is divided by it too.
        rounds: number of releases.
        dimension: length of a vector.
    """

    def __init__(self, *, divisor: int, rounds: int, dimension: int):
        self.divisor, self.rounds, self.dimension = divisor, rounds, dimension
        self.released = 0
        self._sum = torch.zeros(dimension, dtype=torch.float64)

    def add(self, rows: Tensor) -> None:
        """Add rows, [any number, dimension].

        Raises:
            ReproError: another shape.
        """
        if rows.dim() != 2 or rows.shape[1] != self.dimension:
            raise ReproError(f"vectors of shape {tuple(rows.shape)}: expected [rows, {self.dimension}]")
        self._sum += rows.detach().double().sum(0).cpu()

    def release(self) -> Tensor:
        """End the round: the average, float64, [dimension].

        Raises:
            ReproError: all rounds are released.
        """
        if self.released >= self.rounds:
            raise ReproError(f"all {self.rounds} rounds are released: make a run with more epochs")
        self.released += 1
        total, self._sum = self._sum, torch.zeros_like(self._sum)
        return total / self.divisor


class EpochLoop(Loop[Pair]):
    """The loop over shuffled epochs: AdamW as PyTorch sets it, and a linear warm-up.

    Args:
        record_map, pairs: how and on what, one pair a slot.
        entropy: coins of the randomiser, and noise.
        sampler, total: batches, and what is released of them.
        learning_rate, warmup_steps: of ``AdamStep``.
        ledger: see ``Loop``.
    """

    def __init__(self, record_map: PairGradients, pairs: Sequence[Pair], entropy: EntropySource, *,
                 sampler: ShuffledEpochs, total: ReleasingSum, learning_rate: float, warmup_steps: int,
                 ledger: Ledger | None = None):  # fmt: skip
        update = AdamStep(
            record_map.parameters, learning_rate=learning_rate, weight_decay=WEIGHT_DECAY,
            warmup_steps=warmup_steps,
        )  # fmt: skip
        super().__init__(
            record_map.parameters, record_map, pairs, entropy, sampler=sampler, total=total, update=update,
            ledger=ledger,
        )  # fmt: skip
        self.epochs = sampler

    @property
    def rounds(self) -> int:
        """Batches of all epochs."""
        return self.epochs.rounds

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from ``state()``.

        A round that a crash cut short is drawn again with new coins, so its bits spend epsilon twice if the
        first update was seen; randomised bits that are kept do not.
        """
        super().restore(state)
        self.epochs.drawn = self.rounds_done


def aligner(policy: Policy, record_map: PairGradients, pairs: Sequence[Pair], entropy: EntropySource, *,
            seed: int, epochs: int = 1, batch_size: int = BATCH_SIZE, learning_rate: float = LEARNING_RATE,
            warmup_steps: int = WARMUP_STEPS, ledger: Ledger | None = None) -> EpochLoop:  # fmt: skip
    """A run of a preference-private method, of supervised fine-tuning, or of DPO.

    Args:
        policy, record_map, pairs: what is trained, how, and on what.
        entropy: coins of the randomiser.
        seed: of the public order.
        epochs, batch_size, learning_rate, warmup_steps: as in the paper unless given.

    Raises:
        ReproError: a pair that the model cannot read, or whose bit is not what the method is made for.

    Source: PrivDPO, Algorithm 1 and Section 5.1.
    """
    check_pairs(policy, pairs)
    record_map.method.check(pairs)
    sampler = ShuffledEpochs(len(pairs), batch_size=batch_size, epochs=epochs, seed=seed)
    total = LocalSum(divisor=batch_size, rounds=sampler.rounds, dimension=record_map.dimension)
    return EpochLoop(
        record_map, pairs, entropy, sampler=sampler, total=total, learning_rate=learning_rate,
        warmup_steps=warmup_steps, ledger=ledger,
    )  # fmt: skip


def single_pass_plan(population: int, *, target_epsilon: float, delta: float, clip_norm: float = 1.0,
                     batch_size: int = BATCH_SIZE) -> DisjointBatches:  # fmt: skip
    """DP-SGD on triplets in one pass: each is in one batch, so one Gaussian release is all it takes part in.

    Args:
        population: number of public slots.
        target_epsilon, delta: the budget.
        clip_norm, batch_size: as in the paper unless given.

    Source: PrivDPO, Appendix D.1: the analytic Gaussian mechanism without composition or amplification.
    """
    return DisjointBatches.calibrated(
        unit=TRIPLET, population=population, expected_batch_size=batch_size, clip_norm=clip_norm,
        rounds=math.ceil(population / batch_size), delta=delta, target_epsilon=target_epsilon,
    )  # fmt: skip


def single_pass(policy: Policy, record_map: PairGradients, pairs: Sequence[Pair], plan: DisjointBatches,
                entropy: EntropySource, *, seed: int, learning_rate: float = LEARNING_RATE,
                warmup_steps: int = WARMUP_STEPS, ledger: Ledger | None = None) -> EpochLoop:  # fmt: skip
    """A run of DP-SGD on triplets as the paper sets it up.

    Args:
        policy, record_map, pairs: what is trained, how (``per_record``), and on what.
        plan: from ``single_pass_plan``.
        entropy: the noise.
        seed: of the public order.
        learning_rate, warmup_steps: as in the paper unless given.

    Raises:
        ReproError: a record map without rows, a plan of another sampling, or another number of pairs than
            the plan's population.
    """
    if not record_map.per_record:
        raise ReproError("DP-SGD clips each pair's gradient: expected PairGradients(..., per_record=True)")
    if not isinstance(plan, DisjointBatches):
        raise ReproError(
            "the plan is of Poisson sampling, and disjoint batches are run: use single_pass_plan"
        )
    if len(pairs) != plan.population:
        raise ReproError(f"{len(pairs)} pairs: the plan has a population of {plan.population}")
    check_pairs(policy, pairs)
    sampler = ShuffledEpochs(
        len(pairs), batch_size=int(plan.expected_batch_size), epochs=plan.rounds // plan.batches, seed=seed
    )
    return EpochLoop(
        record_map, pairs, entropy, sampler=sampler,
        total=GaussianSum(plan, entropy, dimension=record_map.dimension), learning_rate=learning_rate,
        warmup_steps=warmup_steps, ledger=ledger,
    )  # fmt: skip
