"""What a method makes of a pair: losses for autograd, and the weights of the two responses they amount to.

The gradient of every method here is minus ``weights[0] grad log pi(first) + weights[1] grad log pi(second)``.
For the DPO family the weights are (beta c, -beta c): -beta c along the preference axis, with a coefficient c
that a method computes from the intensity psi of the canonical order and the bit. Several methods read a bit
that was randomised before: ``reprolib.learn.preference_bits``.

    Randomized(PrivDPO(1.0))      fresh coins at each visit; each visit spends epsilon
    Debiased(1.0)                 PrivDPO on bits that were randomised once
    DPO()                         not private on annotations; on randomised bits, DPO under RR

Source: PrivDPO, equation 3, Sections 4.2 to 4.5, Algorithm 1; the debiased loss is that of Chowdhury, Kini
and Natarajan (2024), "Provably robust DPO: aligning language models with noisy feedback".
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from reprolib.errors import ReproError
from reprolib.learn.preference_pairs import Pair
from reprolib.privacy.mechanism import EntropySource
from reprolib.privacy.preference import PreferenceRandomizer, flip_probability, robust_coefficient


class PairMethod(Protocol):
    """What a method makes of a pair.

    The two weights multiply the gradients of the two responses' log-probabilities.
    """

    @property
    def needs_reference(self) -> bool:
        """Whether the weights read the intensity."""

    @property
    def visit_epsilon(self) -> float:
        """What one visit of an annotated pair spends; a bit randomised before spends nothing more."""

    def check(self, pairs: Sequence[Pair]) -> None:
        """Refuse pairs whose bits are not what the method is made for.

        Raises:
            ReproError: naming the first such pair.
        """

    def weights(self, psi: Tensor, preferred: Tensor, entropy: EntropySource, *, beta: float) -> Tensor:
        """Weights of the two responses, float64, [pairs, 2].

        Args:
            psi: intensity of the canonical order, float64, [pairs].
            preferred: the bit, booleans, [pairs].
            entropy: where coins come from.
            beta: of DPO.
        """


def _axis(coefficient: Tensor, beta: float) -> Tensor:
    return torch.stack([beta * coefficient, -beta * coefficient], dim=1)


@dataclass(frozen=True)
class DPO:
    """Direct preference optimisation on the bits as they are. Source: PrivDPO, equation 3 and Section 4.2.

    On annotations it is not private. On bits that randomised response has flipped once, it is the paper's RR
    baseline (Section 4.4 and Appendix A), for any number of epochs.
    """

    needs_reference = True
    visit_epsilon = math.inf

    def check(self, pairs: Sequence[Pair]) -> None:
        """Any bits will do, but not annotations and randomised bits together."""
        same_epsilon(pairs)

    def weights(self, psi: Tensor, preferred: Tensor, entropy: EntropySource, *, beta: float) -> Tensor:
        """The coefficient is psi for a preferred ``first``, else psi - 1."""
        return _axis(torch.where(preferred, psi, psi - 1), beta)


@dataclass(frozen=True)
class Randomized:
    """DPO with a randomised coefficient, fresh at each visit: PrivDPO, RR, Duchi or Piecewise.

    Source: PrivDPO, Algorithm 1 (coefficient form), Section 4.4 (RR) and Appendix C.
    """

    randomizer: PreferenceRandomizer
    needs_reference = True

    @property
    def visit_epsilon(self) -> float:
        """The randomiser's effective epsilon."""
        return self.randomizer.effective_epsilon

    def check(self, pairs: Sequence[Pair]) -> None:
        """Annotations only: bits that are randomised already would be randomised twice."""
        _check_randomized(pairs, None, "annotations, or the methods DPO() and Debiased(epsilon)")

    def weights(self, psi: Tensor, preferred: Tensor, entropy: EntropySource, *, beta: float) -> Tensor:
        """The randomiser's outputs, whose support is the same for either bit."""
        return _axis(self.randomizer.sample(psi, entropy, agrees=preferred), beta)


@dataclass(frozen=True)
class Debiased:
    """The robust DPO loss on bits that were randomised once: PrivDPO, at epsilon for any number of epochs."""

    epsilon: float
    needs_reference = True
    visit_epsilon = 0.0

    def __post_init__(self) -> None:
        flip_probability(self.epsilon)  # refuses an epsilon out of range

    def check(self, pairs: Sequence[Pair]) -> None:
        """Only bits that were randomised at this epsilon: annotations would be trained on without privacy."""
        _check_randomized(pairs, self.epsilon, "RandomizedBits.draw at this epsilon, and its apply, first")

    def weights(self, psi: Tensor, preferred: Tensor, entropy: EntropySource, *, beta: float) -> Tensor:
        """Coefficients of ``robust_coefficient``; no coin is drawn."""
        return _axis(robust_coefficient(psi, preferred, self.epsilon), beta)


@dataclass(frozen=True)
class SFT:
    """Likelihood of the preferred response; private only on randomised bits. Source: PrivDPO, Section 4.5."""

    needs_reference = False
    visit_epsilon = math.inf

    def check(self, pairs: Sequence[Pair]) -> None:
        """Any bits will do, but not annotations and randomised bits together."""
        same_epsilon(pairs)

    def weights(self, psi: Tensor, preferred: Tensor, entropy: EntropySource, *, beta: float) -> Tensor:
        """1 for the preferred response, 0 for the other."""
        return torch.stack([preferred, ~preferred], dim=1).double()


@dataclass(frozen=True)
class PrivSFT:
    """Likelihood of both responses alike; it reads no bit and spends nothing. Source: Section 4.5."""

    needs_reference = False
    visit_epsilon = 0.0

    def check(self, pairs: Sequence[Pair]) -> None:
        """Any bits will do: none is read."""

    def weights(self, psi: Tensor, preferred: Tensor, entropy: EntropySource, *, beta: float) -> Tensor:
        """One half each."""
        return torch.full((len(preferred), 2), 0.5, dtype=torch.float64, device=preferred.device)


def same_epsilon(pairs: Sequence[Pair]) -> float | None:
    """The epsilon at which the bits of a data set were randomised; None for annotations.

    Raises:
        ReproError: pairs of several kinds.
    """
    found = {p.randomized for p in pairs}
    if len(found) > 1:
        raise ReproError(
            f"bits randomised at epsilon {sorted(map(str, found))} together (None: not randomised): "
            "expected one data set, randomised as a whole or not at all"
        )
    return next(iter(found), None)


def _check_randomized(pairs: Sequence[Pair], epsilon: float | None, remedy: str) -> None:
    for pair in pairs:
        if pair.randomized != epsilon:
            here = "is an annotation" if pair.randomized is None else f"was randomised at {pair.randomized:g}"
            wanted = "an annotation" if epsilon is None else f"randomised at {epsilon:g}"
            raise ReproError(f"pair {pair.id}: its bit {here}, expected {wanted}: use {remedy}")


# --- losses, for autograd -------------------------------------------------------------------------------


def dpo_loss(margin: Tensor, *, beta: float) -> Tensor:
    """-log sigmoid(beta margin), elementwise.

    Args:
        margin: log-ratio of the preferred response to the reference, minus that of the other one.
        beta: of DPO.

    Source: PrivDPO, equation 3.
    """
    return -logsigmoid(beta * margin)


def algorithm_1_weight(psi: Tensor, kept: Tensor, *, epsilon: float) -> Tensor:
    """The random weight of the DPO loss, in the precision of psi, as printed.

    Args:
        psi: intensity of the annotated order, any shape.
        kept: booleans of its shape: did the coin, at most e^eps/(e^eps + 1), choose the first case?
        epsilon: the budget.

    Raises:
        ReproError: epsilon out of range, or a weight that is not finite: psi is too small for its precision.

    Source: PrivDPO, Algorithm 1, line 6.
    """
    flip_probability(epsilon)
    up = 1 + (1 - (math.exp(epsilon) - 2) / math.expm1(epsilon)) / psi
    down = 1 - (1 + 1 / math.expm1(epsilon)) / psi
    weight = torch.where(kept, up, down)
    if not weight.isfinite().all():
        raise ReproError(
            f"a weight of Algorithm 1 overflows at epsilon {epsilon:g} and psi {float(psi.min()):g}: "
            "use the coefficient form, which does not divide by psi"
        )
    return weight


def algorithm_1_loss(margin: Tensor, kept: Tensor, *, beta: float, epsilon: float) -> Tensor:
    """The rescaled DPO loss, elementwise, computed literally: its last bits tell the annotation.

    For comparison only: see ``reprolib.learn.preference_rounding``.

    Args:
        margin: as for ``dpo_loss``, of the annotated order.
        kept: as for ``algorithm_1_weight``.
        beta, epsilon: of DPO and of the bit.

    Source: PrivDPO, Algorithm 1, lines 4 to 7.
    """
    psi = torch.sigmoid(-beta * margin).detach()
    return algorithm_1_weight(psi, kept, epsilon=epsilon) * dpo_loss(margin, beta=beta)


def debiased_loss(margin: Tensor, *, beta: float, epsilon: float) -> Tensor:
    """((1 - q) loss(noisy order) - q loss(other order))/(1 - 2q), elementwise, with q = 1/(e^eps + 1).

    Args:
        margin: as for ``dpo_loss``, of the order that the randomised bit names.
        beta, epsilon: of DPO and of the bit.

    Source: Chowdhury, Kini and Natarajan (2024), "Provably robust DPO"; with this q, PrivDPO, Section 4.3.
    """
    q = flip_probability(epsilon)
    noisy, other = dpo_loss(margin, beta=beta), dpo_loss(-margin, beta=beta)
    return ((1 - q) * noisy - q * other) / math.tanh(epsilon / 2)
