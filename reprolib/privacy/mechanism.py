"""The privatised sum: sample, clip once a record, sum, add Gaussian noise once, divide by a public constant.

Guarantee: with a private ``EntropySource``, ``plan.rounds`` releases of one ``GaussianSum`` over batches
drawn by one ``PoissonSampler`` are (epsilon, delta)-DP for the plan's unit, epsilon = ``plan.epsilon()``,
under the assumptions A1 to A4 of DP-GRPO, Section VI-A::

    sampler = PoissonSampler(plan, EntropySource.private())
    total = GaussianSum(plan, EntropySource.private(), dimension=p)
    total.add(record_vectors(sampler.draw()))   # one row a record
    update = total.release()

Source: DP-GRPO, Algorithm 1, lines 2, 7 and 8; SAGE, Algorithm 1, lines 4 and 5.
"""

import os
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import special
from torch import Tensor

from reprolib.errors import ReproError
from reprolib.privacy.plan import Plan, PrivacyCard

STREAMS = ("coins", "noise", "rollouts")


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
        streams = zip(STREAMS, np.random.SeedSequence(seed).spawn(len(STREAMS)), strict=True)
        return cls({name: np.random.default_rng(stream) for name, stream in streams}, seed)

    @property
    def replayable(self) -> bool:
        """Whether somebody who knows the seed can draw the same noise again."""
        return self._generators is not None

    def coins(self, size: int) -> NDArray[np.float64]:
        """Independent uniform draws in [0, 1), for sampling records."""
        return self._uniform("coins", size)

    def rollouts(self, size: int) -> NDArray[np.float64]:
        """Independent uniform draws in [0, 1), for the randomness inside a record (its completions)."""
        return self._uniform("rollouts", size)

    def _uniform(self, stream: str, size: int) -> NDArray[np.float64]:
        if self._generators is not None:
            return self._generators[stream].random(size)
        return _system_uniform(size)

    def normal(self, size: int) -> NDArray[np.float64]:
        """Independent standard normal draws."""
        if self._generators is not None:
            return self._generators["noise"].standard_normal(size)
        # the half step keeps the argument inside (0, 1), where the quantile is finite
        return np.asarray(special.ndtri(_system_uniform(size) + 2.0**-54))

    def state(self) -> dict[str, Any]:
        """Generator states of a research source, for a checkpoint; empty for a private source."""
        return {name: g.bit_generator.state for name, g in (self._generators or {}).items()}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue a research source from ``state()``; a private source has nothing to restore."""
        for name, generator in (self._generators or {}).items():
            generator.bit_generator.state = state[name]

    def __repr__(self) -> str:
        return f"EntropySource.research({self._seed})" if self.replayable else "EntropySource.private()"


def _system_uniform(size: int) -> NDArray[np.float64]:
    """53-bit uniform draws in [0, 1) from the operating system."""
    bits = np.frombuffer(os.urandom(8 * size), dtype=np.uint64) >> np.uint64(11)
    return bits.astype(np.float64) * 2.0**-53


class PoissonSampler:
    """Draws each round's records: an independent coin with probability q for every public slot.

    Raises:
        ReproError: a plan that accounts for another sampling.
    """

    def __init__(self, plan: Plan, entropy: EntropySource):
        if type(plan) is not Plan:
            raise ReproError(
                f"a {type(plan).__name__} does not account for Poisson sampling: expected a Plan"
            )
        self.plan = plan
        self.entropy = entropy

    def draw(self) -> NDArray[np.intp]:
        """Slots that take part in this round, in increasing order; the set may be empty."""
        return np.flatnonzero(self.entropy.coins(self.plan.population) < self.plan.sampling_rate)


def clip(rows: Tensor, clip_norm: float) -> Tensor:
    """Scale each record's vector to norm at most ``clip_norm``; one with a non-finite entry becomes zero.

    Args:
        rows: record vectors, shape [records, dimension], of any floating dtype.
        clip_norm: C.

    Returns:
        g min(1, C / ||g||) row by row, in binary64. The factor is rounded down by a few units in the last
        place, so that the rounded result keeps the bound too.

    Source: DP-GRPO, equation 4; Appendix A-G, (A2): the rule for non-finite gradients is fixed and reads
    one record only, so no other record's fate depends on it.
    """
    rows = rows.detach().double()
    largest = rows.abs().amax(dim=1, keepdim=True) if rows.shape[1] else rows.new_zeros(len(rows), 1)
    finite = largest.isfinite()
    scale = torch.where(finite & (largest > 0), largest, 1.0)
    # dividing by the largest entry first keeps the squares inside binary64
    norm = scale * torch.linalg.vector_norm(rows / scale, dim=1, keepdim=True)
    shrink = clip_norm / norm * (1 - 8 * torch.finfo(torch.float64).eps)
    clipped = torch.where(norm <= clip_norm, rows, rows * shrink)
    return torch.where(finite, clipped, 0.0)


class GaussianSum:
    """Sums clipped record vectors, adds Gaussian noise once a round and divides by the public m.

    Args:
        plan: fixes the clipping norm, the noise, the divisor and the number of rounds.
        entropy: where the noise comes from. Public directions must not come from the same generator.
        dimension: length of a record's vector.

    Source: DP-GRPO, Algorithm 1, lines 7 and 8: (sum of clipped vectors + N(0, sigma^2 C^2 I)) / (q n).
    """

    def __init__(self, plan: Plan, entropy: EntropySource, *, dimension: int):
        self.plan = plan
        self.entropy = entropy
        self.dimension = dimension
        self.released = 0
        self._sum = torch.zeros(dimension, dtype=torch.float64)

    def add(self, rows: Tensor) -> None:
        """Clip record vectors and add them to the round's sum.

        Args:
            rows: shape [records, dimension]; one row is the whole vector of one record.

        Raises:
            ReproError: another shape.
        """
        if rows.dim() != 2 or rows.shape[1] != self.dimension:
            raise ReproError(
                f"record vectors of shape {tuple(rows.shape)}: expected [records, {self.dimension}]"
            )
        self._sum += clip(rows, self.plan.clip_norm).sum(0).cpu()

    def release(self) -> Tensor:
        """End the round: the noisy average, binary64, [dimension]. An empty round is released too.

        Raises:
            ReproError: the plan's rounds are already spent.
        """
        total = self._close()
        if self.plan.noise_multiplier:
            std = self.plan.noise_multiplier * self.plan.clip_norm
            total += std * torch.from_numpy(self.entropy.normal(self.dimension))
        return total / self.plan.expected_batch_size

    def _close(self) -> Tensor:
        """Count the round and start the next; the sum without noise, which must not leave this object."""
        if self.released >= self.plan.rounds:
            raise ReproError(
                f"the plan has {self.plan.rounds} rounds and all are released: make a plan with more rounds"
            )
        self.released += 1
        total, self._sum = self._sum, torch.zeros_like(self._sum)
        return total

    def card(self, **kwargs: Any) -> PrivacyCard:
        """The run's privacy card; it states no guarantee if the noise can be replayed."""
        return self.plan.card(replayable=self.entropy.replayable, **kwargs)
