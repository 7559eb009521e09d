"""Four randomisers of one preference bit: the coefficient of the DPO gradient along the preference axis.

For a triplet (x, y_w, y_l) the DPO gradient is -beta psi v, with v = grad log pi(y_w|x) - grad log pi(y_l|x)
and psi in [0, 1] the intensity of the annotated order. A randomiser returns the coefficient that takes the
place of psi. Only the preference bit is private; psi, v and the text are known to the adversary.

Convention: the neighbour (the other annotation of the same text) has axis -v and intensity 1 - psi. On the
*same* axis v its coefficient is psi - 1: minus the output at 1 - psi. Computed like that, 1 - (1 - psi)
differs from psi in its last bits, and those bits tell the annotation. So where the bit is real, fix the
order of the two responses by their public text, compute psi for that order, and pass the bit::

    coefficient = PrivDPO(epsilon).sample(psi, EntropySource.private(), agrees=annotation_is_that_order)

Every possible output is then computed from psi alone and selected afterwards, so both annotations have the
same support, bit for bit. Coins have 53 bits; the rarer outcome's probability is rounded up to a multiple of
2^-53, so the likelihood ratio of two outcomes exceeds the stated one by binary64 rounding at most.

Each call spends epsilon: a second epoch either composes or keeps the randomised bit (``robust_coefficient``).

Source: PrivDPO, Sections 4.2 to 4.4, Appendices B.1, B.2 and C.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from reprolib.errors import ReproError
from reprolib.privacy.mechanism import EntropySource

EPSILON_RANGE = (1e-6, 700.0)  # inside it every moment and ratio is a finite, normal binary64 number
PIECEWISE_CELLS = 2**24  # of [0, C], to which the Piecewise output is rounded


def flip_probability(epsilon: float) -> float:
    """Probability 1/(e^eps + 1) that randomised response flips the bit; ReproError out of range."""
    _check_epsilon(epsilon)
    return 1 / (math.exp(epsilon) + 1)


@dataclass(frozen=True)
class PreferenceRandomizer(ABC):
    """A local randomiser of one preference bit, acting on the coefficient psi of the DPO gradient.

    Args:
        epsilon: the nominal budget, in ``EPSILON_RANGE``; ``effective_epsilon`` is what one call spends.

    Raises:
        ReproError: epsilon is no number, NaN or out of range; in every method, an intensity that is not
            a float32 or float64 tensor, or has entries outside [0, 1].
    """

    epsilon: float

    def __post_init__(self) -> None:
        _check_epsilon(self.epsilon)

    def sample(self, intensity: Tensor, entropy: EntropySource, *, agrees: Tensor | None = None) -> Tensor:
        """Randomised coefficients on the given intensity's axis, of its shape, dtype and device.

        Args:
            intensity: psi, any shape; gradients stop here.
            entropy: where the coins come from.
            agrees: booleans of the same shape: is the private annotation the order that ``intensity``
                belongs to? None means that it is, everywhere.

        Source: PrivDPO, Algorithm 1, lines 4 to 7, without the division by psi, which may be 0.
        """
        psi = _checked(intensity)
        if agrees is None:
            agrees = torch.ones_like(psi, dtype=torch.bool)
        _check_bits("agrees", agrees, psi)
        return self._draw(psi, agrees, entropy).to(intensity.dtype)

    @abstractmethod
    def _draw(self, psi: Tensor, agrees: Tensor, entropy: EntropySource) -> Tensor:
        """Coefficients in binary64."""

    def bias(self, intensity: Tensor) -> Tensor:
        """Expected output minus psi, elementwise: zero. Source: PrivDPO, Lemma 4.1 and Appendix C."""
        return torch.zeros_like(_checked(intensity)).to(intensity.dtype)

    def variance(self, intensity: Tensor) -> Tensor:
        """Variance of the output given psi, elementwise."""
        return self._variance(_checked(intensity)).to(intensity.dtype)

    @abstractmethod
    def _variance(self, psi: Tensor) -> Tensor:
        """Variances in binary64."""

    def likelihood_ratio(self, intensity: Tensor | None = None) -> float:
        """Largest ratio of the probabilities (or densities) of one output under the two annotations.

        Args:
            intensity: the intensities, at least one, to take the worst case over; None for all of [0, 1].

        Source: PrivDPO, Definition 3.2 and Appendix B.1.
        """
        if intensity is None:
            return self._worst_ratio(0.0)
        psi = _checked(intensity)
        if not psi.numel():
            raise ReproError("intensity is empty: expected at least one entry, or None for all of [0, 1]")
        return self._worst_ratio(float(torch.minimum(psi, 1 - psi).min()))

    def _worst_ratio(self, edge_distance: float) -> float:
        """Worst ratio at intensities that are this far from 0 and 1, or further."""
        return math.exp(self.epsilon)

    @property
    def effective_epsilon(self) -> float:
        """Smallest epsilon for which the randomiser is preference-private: log ``likelihood_ratio()``."""
        return float(self.epsilon)


@dataclass(frozen=True)
class TwoOutcomeRandomizer(PreferenceRandomizer):
    """A randomiser with two outputs, of which the annotation and one coin select one."""

    def neighbour_outputs(self, intensity: Tensor) -> tuple[Tensor, Tensor]:
        """Upper and lower output, with the shape and dtype of ``intensity``.

        They are functions of it alone: both annotations have this support, bit for bit.
        """
        upper, lower = self._outputs(_checked(intensity))
        return upper.to(intensity.dtype), lower.to(intensity.dtype)

    @abstractmethod
    def _outputs(self, psi: Tensor) -> tuple[Tensor, Tensor]:
        """Upper and lower output in binary64."""

    def _flip(self, own: Tensor) -> Tensor:
        """Probability of the output on the other side, given the annotated order's own intensity."""
        return torch.full_like(own, flip_probability(self.epsilon))

    def _draw(self, psi: Tensor, agrees: Tensor, entropy: EntropySource) -> Tensor:
        flipped = _coins(entropy, psi) < self._flip(torch.where(agrees, psi, 1 - psi))
        upper, lower = self._outputs(psi)
        return torch.where(agrees ^ flipped, upper, lower)


@dataclass(frozen=True)
class PrivDPO(TwoOutcomeRandomizer):
    """psi + 1/(e^eps - 1) with probability e^eps/(e^eps + 1), else psi - 1 - 1/(e^eps - 1).

    Unbiased, variance e^eps/(e^eps - 1)^2 at every psi, likelihood ratio e^eps at every psi.

    Source: PrivDPO, Section 4.3 (M_unbias), Theorem 4.1, Appendices B.1 and B.2.
    """

    def _outputs(self, psi: Tensor) -> tuple[Tensor, Tensor]:
        offset = 1 / math.expm1(self.epsilon)
        return psi + offset, psi - 1 - offset

    def _variance(self, psi: Tensor) -> Tensor:
        return torch.full_like(psi, 0.25 / math.sinh(self.epsilon / 2) ** 2)


@dataclass(frozen=True)
class RandomizedResponse(TwoOutcomeRandomizer):
    """psi with probability e^eps/(e^eps + 1), else psi - 1: DPO on a flipped label, not debiased.

    Bias -1/(e^eps + 1), variance e^eps/(e^eps + 1)^2 and likelihood ratio e^eps, at every psi.

    Source: PrivDPO, Section 4.4 and Appendix A.
    """

    def _outputs(self, psi: Tensor) -> tuple[Tensor, Tensor]:
        return psi, psi - 1

    def bias(self, intensity: Tensor) -> Tensor:
        """Expected output minus psi, elementwise: -1/(e^eps + 1). Source: PrivDPO, Section 4.4."""
        return torch.full_like(_checked(intensity), -flip_probability(self.epsilon)).to(intensity.dtype)

    def _variance(self, psi: Tensor) -> Tensor:
        return torch.full_like(psi, 0.25 / math.cosh(self.epsilon / 2) ** 2)


@dataclass(frozen=True)
class Duchi(TwoOutcomeRandomizer):
    """C with probability (1 + psi/C)/2, else -C, where C = (e^eps + 1)/(e^eps - 1).

    Unbiased, variance C^2 - psi^2. It is built for inputs that move anywhere in [-1, 1], but a preference
    moves them by 1 only: the ratio is largest at psi = 0 and 1, where it is (e^eps + 1)/2, below e^eps.

    Source: PrivDPO, Appendix C; the worst ratio is derived here.
    """

    def _outputs(self, psi: Tensor) -> tuple[Tensor, Tensor]:
        size = torch.full_like(psi, 1 / math.tanh(self.epsilon / 2))
        return size, -size

    def _flip(self, own: Tensor) -> Tensor:
        # (1 - psi/C)/2 without the cancellation at large epsilon and psi near 1
        return flip_probability(self.epsilon) + math.tanh(self.epsilon / 2) * (1 - own) / 2

    def _variance(self, psi: Tensor) -> Tensor:
        return 1 / math.sinh(self.epsilon / 2) ** 2 + (1 - psi) * (1 + psi)

    def _worst_ratio(self, edge_distance: float) -> float:
        slope = math.tanh(self.epsilon / 2)
        return 1 + slope / (2 * flip_probability(self.epsilon) + slope * edge_distance)

    @property
    def effective_epsilon(self) -> float:
        """log((e^eps + 1)/2), about eps/2 for small and eps - log 2 for large epsilon."""
        return math.log1p(math.expm1(self.epsilon) / 2)


@dataclass(frozen=True)
class Piecewise(PreferenceRandomizer):
    """Uniform near psi with probability e^(eps/2)/(e^(eps/2) + 1), else uniform on the rest of [-C, C].

    C = (e^(eps/2) + 1)/(e^(eps/2) - 1); the near part is [l, l + C - 1] with l = (C + 1)/2 psi - (C - 1)/2.
    Unbiased, variance psi^2/(e^(eps/2) - 1) + (e^(eps/2) + 3)/(3 (e^(eps/2) - 1)^2). The density is e^eps
    times higher near than far, and the near parts of psi and psi - 1 are never the same interval: the
    likelihood ratio is e^eps at every psi.

    ``sample`` rounds to the nearest multiple of C / ``PIECEWISE_CELLS``. Ideal outputs that are rounded to a
    public grid are as private, whereas unrounded binary64 outputs lie on a grid that moves with psi. Moments
    are those of the ideal mechanism; rounding moves the output by at most C / 2^25. Coins of 53 bits give
    a cell's probability to a relative 2^-26 or so, in either direction.

    Source: PrivDPO, Appendix C; the worst ratio is derived here.
    """

    def _draw(self, psi: Tensor, agrees: Tensor, entropy: EntropySource) -> Tensor:
        half = self.epsilon / 2
        bound, width, rest = 1 / math.tanh(half / 2), 2 / math.expm1(half), -2 / math.expm1(-half)
        value = torch.where(agrees, psi, psi - 1)
        far = _coins(entropy, psi) < 1 / (math.exp(half) + 1)
        position = _coins(entropy, psi)
        near_output = rest / 2 * value - width / 2 + width * position
        # the two far parts laid end to end, rest long; the first one ends at l
        walk = rest * position
        far_output = torch.where(walk < rest / 2 * (1 + value), walk - bound, walk - 1)
        step = bound / PIECEWISE_CELLS
        output = torch.where(far, far_output, near_output)
        return (output / step).round().clamp(-PIECEWISE_CELLS, PIECEWISE_CELLS) * step

    def _variance(self, psi: Tensor) -> Tensor:
        grown = math.expm1(self.epsilon / 2)
        return psi.square() / grown + (1 / 3 + 4 / (3 * grown)) / grown


def robust_coefficient(intensity: Tensor, kept: Tensor, epsilon: float) -> Tensor:
    """PrivDPO's coefficient as randomised response on the bit, then the robust (debiased) DPO loss.

    With flip probability q = 1/(e^eps + 1), the robust loss of a noisy label is
    ((1 - q) loss(label) - q loss(other label))/(1 - 2q). The labels' coefficients on one axis are psi and
    psi - 1, so a kept label gives psi + q/(1 - 2q) and a flipped one psi - (1 - q)/(1 - 2q): the two outputs
    of ``PrivDPO``. With x the output of randomised response, both are (x - q (2 psi - 1))/(1 - 2q).

    ``kept`` may be drawn once and used in every epoch, with the current psi: epsilon is then spent once.

    Args:
        intensity: psi of the annotated order, any shape. For a canonical order, psi is that order's and
            ``kept`` says whether the *randomised* bit is that order.
        kept: booleans of the same shape: did randomised response keep the annotation?
        epsilon: the budget of the bit.

    Raises:
        ReproError: as for ``PreferenceRandomizer``, or ``kept`` is no boolean tensor of that shape.

    Source: derived from PrivDPO, Section 4.3; the loss is that of Chowdhury, Kini and Natarajan (2024),
    "Provably robust DPO: aligning language models with noisy feedback".
    """
    psi, q = _checked(intensity), flip_probability(epsilon)
    _check_bits("kept", kept, psi)
    label, other = torch.where(kept, psi, psi - 1), torch.where(kept, psi - 1, psi)
    return (((1 - q) * label - q * other) / math.tanh(epsilon / 2)).to(intensity.dtype)


def _coins(entropy: EntropySource, like: Tensor) -> Tensor:
    """Uniform draws in [0, 1), one an entry."""
    return torch.from_numpy(entropy.coins(like.numel())).reshape(like.shape).to(like.device)


def _check_epsilon(epsilon: float) -> None:
    low, high = EPSILON_RANGE
    number = isinstance(epsilon, int | float) and not isinstance(epsilon, bool)
    if not (number and low <= epsilon <= high):
        raise ReproError(f"epsilon = {epsilon!r}: expected a number in [{low:g}, {high:g}]")


def _checked(intensity: Tensor) -> Tensor:
    """The intensity in binary64, detached."""
    kind = intensity.dtype if isinstance(intensity, Tensor) else type(intensity).__name__
    if kind not in (torch.float32, torch.float64):
        raise ReproError(f"intensity is {kind}: expected a float32 or float64 tensor, convert it")
    outside = int((~((intensity >= 0) & (intensity <= 1))).sum())
    if outside:
        raise ReproError(
            f"intensity has {outside} entries that are NaN or outside [0, 1]: expected values of a sigmoid"
        )
    return intensity.detach().double()


def _check_bits(name: str, bits: Tensor, like: Tensor) -> None:
    if not isinstance(bits, Tensor) or bits.dtype != torch.bool or bits.shape != like.shape:
        raise ReproError(f"{name}: expected a boolean tensor of the intensity's shape {tuple(like.shape)}")
