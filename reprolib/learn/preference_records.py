"""The record map of every preference method: weights of the two responses times their gradients.

For the preference-private methods a batch's sum is enough: one forward and one backward pass, as in ordinary
training. DP-SGD clips the triplet's gradient, so it needs a row a pair (``per_record``).

Source: PrivDPO, Section 4.2 (the axis), Algorithm 1, lines 3 to 9, and Appendix A (DP-SGD).
"""

from collections.abc import Iterator, Sequence

import torch
from peft import PeftModel
from torch import Tensor, nn

from reprolib.errors import ReproError
from reprolib.learn.preference_loss import PairMethod
from reprolib.learn.preference_pairs import (
    BETA,
    Pair,
    bits,
    blocks,
    intensity,
    response_log_probabilities,
)
from reprolib.learn.preference_reference import Reference
from reprolib.learn.records import Group, GroupGradients
from reprolib.lm.models import Policy, adapter_parameters
from reprolib.privacy.mechanism import EntropySource


def trained_parameters(policy: Policy) -> list[nn.Parameter]:
    """The adapter's weights where there is one, else all weights that require gradients.

    Raises:
        ReproError: nothing is trainable.
    """
    if isinstance(policy.model, PeftModel):
        return list(adapter_parameters(policy.model).values())
    found = [p for p in policy.model.parameters() if p.requires_grad]
    if not found:
        raise ReproError(
            "no trainable weights: attach an adapter, or call policy.model.requires_grad_(True) to train all"
        )
    return found


class PairGradients:
    """Gradients of preference pairs.

    Args:
        policy: model, with an adapter or with all weights trainable.
        method: gives the two weights of a pair.
        beta: of DPO.
        reference: log-probabilities of the reference; None for a method that does not read them.
        per_record: a row a pair; otherwise each block of pairs is one row, its sum, which may only be added
            up: it cannot be clipped.
        batch_tokens: largest number of positions of a forward pass.

    Raises:
        ReproError: nothing is trainable, or the method needs a reference and has none.
    """

    def __init__(self, policy: Policy, method: PairMethod, *, beta: float = BETA,
                 reference: Reference | None = None, per_record: bool = False,
                 batch_tokens: int = 4096):  # fmt: skip
        if not 0 < beta < float("inf"):
            raise ReproError(f"beta = {beta!r}: expected a finite number above 0")
        if method.needs_reference and reference is None:
            raise ReproError("the method reads a reference: expected Reference.of(policy, pairs)")
        self.policy, self.method, self.beta, self.reference = policy, method, beta, reference
        self.per_record, self.batch_tokens = per_record, batch_tokens
        self.parameters = trained_parameters(policy)
        self.dimension = sum(p.numel() for p in self.parameters)

    def vectors(self, records: Sequence[Pair], entropy: EntropySource) -> Iterator[Tensor]:
        """Gradients of the loss in the parameters' dtype: rows [pairs, dimension], or one row a block.

        Raises:
            ReproError: pairs whose bits are not what the method is made for, or unknown to the reference.
        """
        self.method.check(records)
        for block in blocks(records, self.batch_tokens):
            pairs = [records[i] for i in block]
            yield self._rows(pairs, entropy) if self.per_record else self._sum(pairs, entropy)[None]

    def weights(self, found: Tensor, pairs: Sequence[Pair], entropy: EntropySource) -> Tensor:
        """The method's weights of the two responses, [pairs, 2].

        Args:
            found: log-probabilities of the responses, [pairs, 2].
            pairs: their bits select among weights that are computed without them.
            entropy: where coins come from.
        """
        reference = found.detach() if self.reference is None else self.reference(pairs)
        psi = intensity(found, reference, beta=self.beta)
        return self.method.weights(psi, bits(pairs, found.device), entropy, beta=self.beta).to(found.dtype)

    def loss(self, pairs: Sequence[Pair], entropy: EntropySource) -> Tensor:
        """A scalar whose gradient is the sum of the pairs' gradients, for a loop that calls ``backward``."""
        found = response_log_probabilities(self.policy.model, pairs)
        return -(self.weights(found, pairs, entropy) * found).sum()

    def _sum(self, pairs: Sequence[Pair], entropy: EntropySource) -> Tensor:
        return _flat(torch.autograd.grad(self.loss(pairs, entropy), self.parameters))

    def _rows(self, pairs: Sequence[Pair], entropy: EntropySource) -> Tensor:
        with torch.no_grad():
            found = response_log_probabilities(self.policy.model, pairs)
            weights = self.weights(found, pairs, entropy)
        if isinstance(self.policy.model, PeftModel):
            return _adapter_rows(self.policy, pairs, weights)
        return torch.stack([gradient(self.policy, *row) for row in zip(pairs, weights, strict=True)])


def gradient(policy: Policy, pair: Pair, weights: Tensor) -> Tensor:
    """-sum_k weights[k] grad log pi(response k | prompt) of one pair, [dimension]."""
    (found,) = response_log_probabilities(policy.model, [pair])
    return _flat(torch.autograd.grad(-(weights * found).sum(), trained_parameters(policy)))


def preference_axis(policy: Policy, pair: Pair) -> Tensor:
    """The axis v = grad log pi(first | prompt) - grad log pi(second | prompt), [dimension].

    Source: PrivDPO, Section 4.2.
    """
    return -gradient(policy, pair, torch.tensor([1.0, -1.0], device=policy.model.device))


def _adapter_rows(policy: Policy, pairs: Sequence[Pair], weights: Tensor) -> Tensor:
    """Rows of a block in one backward pass, in any order.

    A group's loss is a mean over its two responses and their tokens: the scale undoes both.
    """
    scales = [(2 * len(p.first), 2 * len(p.second)) for p in pairs]
    groups = [
        [Group(p.prompt, (p.first, p.second), (a * float(w[0]), b * float(w[1])))]
        for p, (a, b), w in zip(pairs, scales, weights, strict=True)
    ]
    rows = GroupGradients(
        policy, lambda logp, reference, weight: -weight * logp, reference=False, batch_tokens=2**62
    )
    return torch.cat(list(rows(groups)))


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([t.flatten() for t in tensors])
