"""The theorems of PrivDPO as functions of what the implementation releases.

    ours, theirs = (distribution(outcomes(record_map, data, epsilon=1.0)) for data in (pairs, neighbour))
    log_ratio(ours, theirs)                     # at most 1: Theorem 4.1

A distribution maps an output, the bytes of a released gradient say, to its probability. ``mixture``,
``transformed`` and ``composed`` are Propositions 3.1 to 3.3 as operations on distributions.

Source: PrivDPO, Sections 3 and 4.4, Appendices B.1 and B.2.
"""

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from reprolib.errors import ReproError
from reprolib.learn.preference_pairs import Pair
from reprolib.learn.preference_records import PairGradients
from reprolib.privacy.mechanism import EntropySource
from reprolib.privacy.preference import PrivDPO, flip_probability

K = TypeVar("K", bound=Hashable)
L = TypeVar("L", bound=Hashable)
Distribution = Mapping[K, float]

LARGEST_COIN = 1 - 2.0**-53


class GivenCoins(EntropySource):
    """Coins that flip or keep as told, in the order in which they are asked for. Nothing is random."""

    def __init__(self, flips: Sequence[bool]):
        super().__init__(generators={})
        self._flips = list(flips)

    def coins(self, size: int) -> NDArray[np.float64]:
        """The next coins: 0, below every flip probability, or the largest coin, above."""
        taken, self._flips = self._flips[:size], self._flips[size:]
        return np.where(np.asarray(taken, dtype=bool), 0.0, LARGEST_COIN)


@dataclass(frozen=True)
class Outcome:
    """One release of a batch: the update, [dimension], and its probability."""

    release: Tensor
    probability: float


def outcomes(record_map: PairGradients, pairs: Sequence[Pair], *, epsilon: float) -> list[Outcome]:
    """Every sum of gradients that a batch can release, by running the record map on all coins.

    Args:
        record_map: of a two-outcome randomiser whose flip probability does not depend on the intensity.
        pairs: a batch of n pairs; 2^n releases.
        epsilon: the randomiser's.
    """
    q, found = flip_probability(epsilon), []
    for flips in product((False, True), repeat=len(pairs)):
        release = torch.cat(list(record_map.vectors(pairs, GivenCoins(flips)))).sum(0)
        found.append(Outcome(release, math.prod(q if flip else 1 - q for flip in flips)))
    return found


def mean(found: Sequence[Outcome]) -> Tensor:
    """Expected release, float64, [dimension]. Lemma 4.1 says what it is for PrivDPO."""
    return torch.stack([o.probability * o.release.double() for o in found]).sum(0)


def exact_bytes(release: Tensor) -> bytes:
    """The release, bit for bit."""
    return release.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()


def distribution(
    found: Sequence[Outcome], observe: Callable[[Tensor], Hashable] = exact_bytes
) -> dict[Hashable, float]:
    """Probability of each observation of the release; releases that look alike are added up."""
    return _added((observe(o.release), o.probability) for o in found)


def log_ratio(ours: Distribution[K], theirs: Distribution[K]) -> float:
    """Largest absolute log-ratio of two distributions; infinite if one has an output that the other lacks.

    Source: PrivDPO, Definition 3.2: at most epsilon, for the two annotations of a pair.
    """
    if ours.keys() != theirs.keys():
        return math.inf
    return max(abs(math.log(ours[k] / theirs[k])) for k in ours)


def mixture(first: Distribution[K], second: Distribution[K], *, weight: float) -> dict[K, float]:
    """Run ``first`` with probability ``weight``, else ``second``. Source: PrivDPO, Proposition 3.1."""
    return _added(
        [(k, weight * p) for k, p in first.items()] + [(k, (1 - weight) * p) for k, p in second.items()]
    )


def transformed(ours: Distribution[K], observe: Callable[[K], L]) -> dict[L, float]:
    """What an observer who sees a function of the output sees. Source: PrivDPO, Proposition 3.2."""
    return _added((observe(k), p) for k, p in ours.items())


def composed(ours: Distribution[K], then: Callable[[K], Distribution[L]]) -> dict[tuple[K, L], float]:
    """Both outputs, the second mechanism chosen by the first output. Source: PrivDPO, Proposition 3.3."""
    return _added(((k, x), p * q) for k, p in ours.items() for x, q in then(k).items())


def _added(parts: Iterable[tuple[K, float]]) -> dict[K, float]:
    total: dict[K, float] = {}
    for key, probability in parts:
        total[key] = total.get(key, 0.0) + probability
    return total


def error_bound(
    projections: Tensor, *, beta: float, epsilon: float, gamma: float, printed: bool = False
) -> float:
    """Bound on the deviation of a batch's gradient along a direction, with probability 1 - gamma.

    With L = log(2/gamma), V the variance of the sum and M the largest term, Bernstein's inequality asks for
    t^2/2 >= (V + M t/3) L, whose root is ML/3 + sqrt((ML/3)^2 + 2VL), at most sqrt(2VL) + 2ML/3. The paper
    prints sqrt(2VL) + ML/3, which is below the root, so its proof does not give it.

    Args:
        projections: u . v of each pair of the batch, [m].
        beta, epsilon: of DPO and of the bit.
        gamma: failure probability.
        printed: the constant as printed.

    Raises:
        ReproError: no projection, or gamma outside (0, 1).

    Source: PrivDPO, Theorem 4.2, Lemma B.1 and Appendix B.2.
    """
    if not (len(projections) and 0 < gamma < 1):
        raise ReproError(
            f"{len(projections)} projections, gamma = {gamma!r}: expected some, and one in (0, 1)"
        )
    grown, tail = math.expm1(epsilon), math.log(2 / gamma)
    variance = math.exp(epsilon) / grown**2 * float(projections.double().square().sum())
    largest = (1 + 1 / grown) * float(projections.abs().max())
    share = 1 / 3 if printed else 2 / 3
    return beta / len(projections) * (math.sqrt(2 * variance * tail) + share * largest * tail)


def simulated_deviations(projections: Tensor, intensities: Tensor, *, beta: float, epsilon: float, draws: int,
                         entropy: EntropySource) -> Tensor:  # fmt: skip
    """Deviations ``|u . (g - g*)|`` of PrivDPO's batch gradient from DPO's, float64, [draws].

    Args:
        projections: u . v of each pair, [m].
        intensities: psi of each pair, [m].
        beta, epsilon: of DPO and of the bit.
        draws: batches.
        entropy: where coins come from.

    Source: PrivDPO, Theorem 4.2.
    """
    psi = intensities.double().expand(draws, -1)
    errors = PrivDPO(epsilon).sample(psi, entropy) - psi
    return (beta / len(projections) * errors @ projections.double()).abs()


@dataclass(frozen=True)
class Spectrum:
    """Eigenvalues of the uncentred covariance of preference axes.

    Args:
        values: float64, in decreasing order, [axes]; the remaining ones, up to the dimension, are 0.
        dimension: d, the number of trained parameters.
    """

    values: Tensor
    dimension: int

    def share(self, components: int) -> float:
        """Share of the trace in the largest eigenvalues."""
        return float(self.values[:components].sum() / self.values.sum())

    @property
    def largest_over_dimension(self) -> float:
        """The ratio lambda_max / d."""
        return float(self.values[0]) / self.dimension

    @property
    def effective_rank(self) -> float:
        """Trace over the largest eigenvalue: by what the square of equation 6 falls short of the mean."""
        return float(self.values.sum() / self.values[0])


def axis_spectrum(axes: Tensor) -> Spectrum:
    """Spectrum of (1/n) sum v v^T, from the Gram matrix of the axes, which has the same eigenvalues.

    Args:
        axes: one a row, [n, dimension].

    Raises:
        ReproError: no axis.

    Source: PrivDPO, Section 4.4, below equation 7.
    """
    if axes.dim() != 2 or not len(axes):
        raise ReproError(f"axes of shape {tuple(axes.shape)}: expected [axes, dimension], at least one")
    rows = axes.double()
    values = torch.linalg.eigvalsh(rows @ rows.T / len(rows)).flip(0).clamp(min=0)
    return Spectrum(values, axes.shape[1])
