"""The annotation in the last bits: an attack on Algorithm 1 computed as printed, and the same on our form.

Reading the preferred response first, and multiplying loss by weight, is other arithmetic for each annotation,
so the two gradients that should be one differ by rounding. Whoever knows the text and the model computes the
four possible gradients and looks which one was released. In canonical order there are two, and both
annotations have them.

Bits that are randomised once are out of reach: all that follows is a function of the randomised bit.

Source: ours; the form attacked is PrivDPO, Algorithm 1, lines 4 to 8.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from reprolib.learn.preference_loss import Randomized, algorithm_1_loss
from reprolib.learn.preference_pairs import BETA, Pair, side_by_side
from reprolib.learn.preference_records import PairGradients, trained_parameters
from reprolib.learn.preference_reference import Reference
from reprolib.learn.preference_theory import GivenCoins
from reprolib.lm.models import Policy
from reprolib.privacy.mechanism import EntropySource
from reprolib.privacy.preference import PrivDPO, flip_probability

Form = Literal["literal", "shared", "canonical"]


@dataclass(frozen=True)
class Release:
    """How one pair's PrivDPO gradient is computed.

    Args:
        policy, reference: public.
        epsilon, beta: public.
        form: ``literal``, Algorithm 1 as printed, on rows that hold the preferred response first, as
            training libraries lay them out; ``shared``, the same loss behind one forward pass in canonical
            order; ``canonical``, the form that is trained with here.
    """

    policy: Policy
    reference: Reference
    epsilon: float
    form: Form
    beta: float = BETA

    def gradient(self, pair: Pair, *, kept: bool) -> Tensor:
        """The gradient of a pair, for a coin that keeps or flips its bit, [dimension]."""
        if self.form == "canonical":
            method = Randomized(PrivDPO(self.epsilon))
            record_map = PairGradients(self.policy, method, beta=self.beta, reference=self.reference)
            return torch.cat(list(record_map.vectors([pair], GivenCoins([not kept]))))[0]
        margin = self._margin(pair)
        coin = torch.tensor([kept], device=margin.device)
        loss = algorithm_1_loss(margin, coin, beta=self.beta, epsilon=self.epsilon).sum()
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, trained_parameters(self.policy))])

    def _margin(self, pair: Pair) -> Tensor:
        """Log-ratio of the preferred response minus that of the other, [1]."""
        annotated = (0, 1) if pair.first_preferred else (1, 0)
        order = annotated if self.form == "literal" else (0, 1)
        responses = (pair.first, pair.second)
        found = side_by_side(self.policy.model, [(pair.prompt, [responses[i] for i in order])])
        ratios = found - self.reference([pair]).to(found)[:, order]
        preferred, other = (order.index(i) for i in annotated)
        return ratios[:, preferred] - ratios[:, other]

    def guess(self, pair: Pair, released: Tensor) -> tuple[bool, bool]:
        """An adversary's guess of the bit, from the text and a released gradient; the pair's bit is not read.

        Returns:
            The guess, and whether the last bits decided it: if exactly one annotation can release this very
            gradient, it is that one; else the annotation that releases something like it more often.
        """
        could: dict[bool, bool] = {}
        distance: dict[bool, float] = {}
        for bit in (True, False):
            kept, flipped = (self.gradient(_with_bit(pair, bit), kept=kept) for kept in (True, False))
            could[bit] = torch.equal(released, kept) or torch.equal(released, flipped)
            distance[bit] = float((released - kept).norm())
        if could[True] != could[False]:
            return could[True], True
        return distance[True] <= distance[False], False


@dataclass(frozen=True)
class AttackResult:
    """Shares of pairs.

    Args:
        correct: whose bit was guessed.
        by_rounding: where the last bits decided.
        without: expected ``correct`` of the best adversary against the ideal mechanism, e^eps/(e^eps + 1),
            which an annotation's prior of one half leaves him.
    """

    correct: float
    by_rounding: float
    without: float


def attack(release: Release, pairs: Sequence[Pair], entropy: EntropySource) -> AttackResult:
    """Release each pair's gradient once, with coins of ``entropy``, and guess its bit."""
    flips = entropy.coins(len(pairs)) < flip_probability(release.epsilon)
    guesses = [
        (pair, release.guess(pair, release.gradient(pair, kept=not flip)))
        for pair, flip in zip(pairs, flips, strict=True)
    ]
    return AttackResult(
        correct=sum(guess == pair.first_preferred for pair, (guess, _) in guesses) / len(pairs),
        by_rounding=sum(decided for _, (_, decided) in guesses) / len(pairs),
        without=1 - flip_probability(release.epsilon),
    )


def _with_bit(pair: Pair, bit: bool) -> Pair:
    return replace(pair, first_preferred=bit)
