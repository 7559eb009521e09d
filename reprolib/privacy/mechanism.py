"""The privatised sum: sample, clip once a record, sum, add Gaussian noise once, divide by a public constant.

Guarantee: with a private ``EntropySource``, ``plan.rounds`` releases of one ``GaussianSum`` over batches
drawn by one ``PoissonSampler`` are (epsilon, delta)-DP for the plan's unit, epsilon = ``plan.epsilon()``,
under the assumptions A1 to A4 of DP-GRPO, Section VI-A::

    sampler = PoissonSampler(plan, EntropySource.private())
    total = GaussianSum(plan, EntropySource.private(), like=parameters)
    for slot in sampler.draw():
        total.add(record_vector(slot))
    update = total.release()

Source: DP-GRPO, Algorithm 1, lines 2, 7 and 8; SAGE, Algorithm 1, lines 4 and 5.
"""

import math
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import special
from torch import Tensor

from reprolib.errors import ReproError
from reprolib.privacy.plan import Plan, PrivacyCard


class EntropySource:
    """Where coins and noise come from: the operating system, or a seed for research.

    Use ``EntropySource.private()`` or ``EntropySource.research(seed)``. A private source keeps no state,
    so there is none that could be written beside a release. Runs that used a research source can be
    replayed, and their epsilon is printed as "not a guarantee".
    """

    def __init__(self, generators: dict[str, np.random.Generator] | None, seed: int | None = None):
        self._generators = generators
        self._seed = seed

    @classmethod
    def private(cls) -> "EntropySource":
        """Every draw is read from the operating system's generator."""
        return cls(None)

    @classmethod
    def research(cls, seed: int) -> "EntropySource":
        """Replayable draws; coins and noise come from two independent streams of the seed.

        Raises:
            ReproError: a negative seed.
        """
        if seed < 0:
            raise ReproError(f"seed = {seed}: expected a whole number, at least 0")
        coins, noise = np.random.SeedSequence(seed).spawn(2)
        return cls({"coins": np.random.default_rng(coins), "noise": np.random.default_rng(noise)}, seed)

    @property
    def replayable(self) -> bool:
        """Whether somebody who knows the seed can draw the same noise again."""
        return self._generators is not None

    def coins(self, size: int) -> NDArray[np.float64]:
        """Independent uniform draws in [0, 1)."""
        if self._generators is not None:
            return self._generators["coins"].random(size)
        return _system_uniform(size)

    def normal(self, size: int) -> NDArray[np.float64]:
        """Independent standard normal draws."""
        if self._generators is not None:
            return self._generators["noise"].standard_normal(size)
        # the half step keeps the argument inside (0, 1), where the quantile is finite
        return np.asarray(special.ndtri(_system_uniform(size) + 2.0**-54))

    def __repr__(self) -> str:
        return f"EntropySource.research({self._seed})" if self.replayable else "EntropySource.private()"


def _system_uniform(size: int) -> NDArray[np.float64]:
    """53-bit uniform draws in [0, 1) from the operating system."""
    bits = np.frombuffer(os.urandom(8 * size), dtype=np.uint64) >> np.uint64(11)
    return bits.astype(np.float64) * 2.0**-53


class PoissonSampler:
    """Draws each round's records: an independent coin with probability q for every public slot."""

    def __init__(self, plan: Plan, entropy: EntropySource):
        self.plan = plan
        self.entropy = entropy

    def draw(self) -> NDArray[np.intp]:
        """Slots that take part in this round, in increasing order; the set may be empty."""
        return np.flatnonzero(self.entropy.coins(self.plan.population) < self.plan.sampling_rate)


def clip(vector: Sequence[Tensor], clip_norm: float) -> list[Tensor]:
    """Scale a record's vector to norm at most ``clip_norm``; a vector with a non-finite entry becomes zero.

    Args:
        vector: the record's vector in pieces, for example one a parameter tensor.
        clip_norm: C. The norm is taken over all pieces.

    Returns:
        The pieces in binary64, g min(1, C / ||g||). The factor is rounded down by a few units in the
        last place, so that the rounded result keeps the bound too.

    Source: DP-GRPO, equation 4; Appendix A-G, (A2): the rule for non-finite gradients is fixed and reads
    one record only, so no other record's fate depends on it.
    """
    pieces = [piece.detach().double() for piece in vector]
    largest = max((float(piece.abs().max()) for piece in pieces if piece.numel()), default=0.0)
    if not math.isfinite(largest):
        return [torch.zeros_like(piece) for piece in pieces]
    if largest == 0.0:
        return pieces
    # dividing by the largest entry first keeps the squares inside binary64
    norm = largest * math.sqrt(sum(float((piece / largest).square().sum()) for piece in pieces))
    if norm <= clip_norm:
        return pieces
    factor = clip_norm / norm * (1 - 8 * torch.finfo(torch.float64).eps)
    return [piece * factor for piece in pieces]


class GaussianSum:
    """Sums clipped record vectors, adds Gaussian noise once a round and divides by the public m.

    Args:
        plan: fixes the clipping norm, the noise, the divisor and the number of rounds.
        entropy: where the noise comes from. Public directions must not come from the same generator.
        like: tensors whose shapes and dtypes the released average takes.

    Source: DP-GRPO, Algorithm 1, lines 7 and 8: (sum of clipped vectors + N(0, sigma^2 C^2 I)) / (q n).
    """

    def __init__(self, plan: Plan, entropy: EntropySource, *, like: Sequence[Tensor]):
        self.plan = plan
        self.entropy = entropy
        self.released = 0
        self._like = list(like)
        self._sum = self._zeros()

    def _zeros(self) -> list[Tensor]:
        return [torch.zeros(t.shape, dtype=torch.float64) for t in self._like]

    def add(self, vector: Sequence[Tensor]) -> None:
        """Clip one record's vector and add it to the round's sum.

        Raises:
            ReproError: the pieces' shapes are not those of ``like``.
        """
        shapes, expected = [tuple(t.shape) for t in vector], [tuple(t.shape) for t in self._like]
        if shapes != expected:
            raise ReproError(f"record vector of shapes {shapes}: expected {expected}")
        for total, piece in zip(self._sum, clip(vector, self.plan.clip_norm), strict=True):
            total += piece.cpu()

    def release(self) -> list[Tensor]:
        """End the round: the noisy average, in the dtypes of ``like``. An empty round is released too.

        Raises:
            ReproError: the plan's rounds are already spent.
        """
        if self.released >= self.plan.rounds:
            raise ReproError(
                f"the plan has {self.plan.rounds} rounds and all are released: make a plan with more rounds"
            )
        self.released += 1
        std = self.plan.noise_multiplier * self.plan.clip_norm
        average = []
        for total, like in zip(self._sum, self._like, strict=True):
            if std:
                noise = torch.from_numpy(self.entropy.normal(total.numel())).reshape(total.shape)
                total = total + std * noise
            average.append((total / self.plan.expected_batch_size).to(like))
        self._sum = self._zeros()
        return average

    def card(self, **kwargs: Any) -> PrivacyCard:
        """The run's privacy card; it states no guarantee if the noise can be replayed."""
        return self.plan.card(replayable=self.entropy.replayable, **kwargs)
