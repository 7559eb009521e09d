"""Preference pairs in tokens, and what a model and its reference say about the two responses.

    pair = encode_pair(policy, preference)         # a record of reprolib.tasks.preferences
    reference = Reference.of(policy, [pair])       # reprolib.learn.preference_reference; before training
    intensity(response_log_probabilities(policy.model, [pair]), reference([pair]), beta=0.1)

The two responses lie in an order fixed by their public tokens, and the annotation is one bit beside them.
So prompt, responses, packing, batches and log-probabilities are the same whichever response was preferred.

Source: PrivDPO, Sections 2.1 and 4.2; the order is ours, see ``reprolib.privacy.preference``.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from reprolib.errors import ReproError
from reprolib.lm.logprobs import by_completion, length_blocks, log_probabilities, pack, packed_length
from reprolib.lm.models import Policy, encode
from reprolib.tasks.preference_pair import Preference

BETA = 0.1  # PrivDPO, Section 5.1, Hyperparameters


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A prompt, two responses in canonical order, and the private bit.

    Args:
        id: for error messages.
        prompt, first, second: tokens; ``first`` is smaller than ``second``, as tuples compare.
        first_preferred: was ``first`` annotated as the preferred response? Private unless ``randomized``.
        randomized: the epsilon at which randomised response has flipped the bit; None, the annotation itself.

    Raises:
        ReproError: an empty prompt or response, equal responses, another order, or a bit that is no bool.
    """

    id: str
    prompt: tuple[int, ...]
    first: tuple[int, ...]
    second: tuple[int, ...]
    first_preferred: bool = field(repr=False)  # so that no message or log prints it
    randomized: float | None = None

    def __post_init__(self) -> None:
        for name in ("prompt", "first", "second"):
            if not getattr(self, name):
                raise ReproError(f"pair {self.id}: {name} is empty, expected at least one token")
        if self.first == self.second:
            raise ReproError(f"pair {self.id}: the two responses are equal, so no preference between them")
        if self.first > self.second:
            raise ReproError(f"pair {self.id}: responses out of canonical order, use Pair.ordered")
        if not isinstance(self.first_preferred, bool):
            raise ReproError(f"pair {self.id}: first_preferred is no bool: expected True or False, no tie")

    @classmethod
    def ordered(cls, *, id: str, prompt: Sequence[int], responses: Sequence[Sequence[int]],
                preferred: int, randomized: float | None = None) -> "Pair":  # fmt: skip
        """The pair in canonical order.

        Args:
            id: for error messages.
            prompt: tokens.
            responses: the two responses in tokens, in any order.
            preferred: 0 or 1, the index of the preferred one; it is private unless ``randomized``.
            randomized: see ``Pair``.
        """
        if len(responses) != 2:
            raise ReproError(f"pair {id}: {len(responses)} responses, expected two")
        if isinstance(preferred, bool) or preferred not in (0, 1):
            raise ReproError(f"pair {id}: the label names neither side: expected 0 or 1, no tie")
        a, b = (tuple(int(t) for t in r) for r in responses)
        first, second = sorted((a, b))
        return cls(
            id=id, prompt=tuple(prompt), first=first, second=second,
            first_preferred=(preferred == 0) == (a < b), randomized=randomized,
        )  # fmt: skip

    @cached_property
    def key(self) -> str:
        """SHA-256 of the public tokens. The bit stays out: a digest over it would confirm a guess."""
        return _digest([self.prompt, self.first, self.second])


def encode_pair(policy: Policy, preference: Preference) -> Pair:
    """A pair from text: the chat up to the response, and both responses, each closed by an end token.

    Raises:
        ReproError: responses that differ in text but not in tokens.
    """
    end = policy.tokenizer.eos_token_id
    responses = [
        (*policy.tokenizer.encode(text, add_special_tokens=False), end) for text in preference.responses
    ]
    return Pair.ordered(
        id=preference.id, prompt=encode(policy, preference.messages), responses=responses,
        preferred=0 if preference.first_preferred else 1,
    )  # fmt: skip


def check_pairs(policy: Policy, pairs: Sequence[Pair]) -> None:
    """Refuse pairs that the model cannot read.

    Raises:
        ReproError: naming the first pair that exceeds the context or has a token outside the vocabulary.
    """
    config = policy.model.config
    for pair in pairs:
        tokens = len(pair.prompt) + max(len(pair.first), len(pair.second))
        if tokens > config.max_position_embeddings:
            raise ReproError(
                f"pair {pair.id}: prompt and response have {tokens} tokens, the context holds "
                f"{config.max_position_embeddings}: leave the pair out or shorten its prompt"
            )
        if max(*pair.prompt, *pair.first, *pair.second) >= config.vocab_size:
            raise ReproError(
                f"pair {pair.id}: a token is outside the vocabulary of {config.vocab_size}: "
                "encode the pair with this model's tokenizer"
            )


def blocks(pairs: Sequence[Pair], batch_tokens: int) -> Iterator[list[int]]:
    """Indices of pairs of similar length, each block within ``batch_tokens`` positions."""
    return length_blocks([packed_length(p.prompt, (p.first, p.second)) for p in pairs], batch_tokens)


def response_log_probabilities(model: Any, pairs: Sequence[Pair]) -> Tensor:
    """Log-probabilities log pi(response | prompt), [pairs, 2], float32 or wider; the prompt is read once.

    Source: PrivDPO, Section 2.1.1.
    """
    return side_by_side(model, [(p.prompt, (p.first, p.second)) for p in pairs])


def side_by_side(model: Any, groups: Sequence[tuple[Sequence[int], Sequence[Sequence[int]]]]) -> Tensor:
    """The same for prompts with two responses in any order, [groups, 2]."""
    packed = pack(groups).to(model.device)
    return by_completion(packed, log_probabilities(model, packed))


def intensity(log_probabilities: Tensor, reference: Tensor, *, beta: float) -> Tensor:
    """Preference intensity psi of the canonical order, [pairs], float64: how much ``second`` is preferred.

    Args:
        log_probabilities, reference: of policy and reference, [pairs, 2].
        beta: of DPO.

    Source: PrivDPO, Section 4.3.
    """
    ratios = (log_probabilities.detach() - reference.to(log_probabilities.device)).double()
    return torch.sigmoid(beta * (ratios[:, 1] - ratios[:, 0]))


def bits(pairs: Sequence[Pair], device: torch.device | None = None) -> Tensor:
    """Whether ``first`` is preferred, booleans, [pairs]. Private, unless the pairs are randomised."""
    return torch.tensor([p.first_preferred for p in pairs], device=device)


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def data_digest(pairs: Sequence[Pair]) -> str:
    """SHA-256 of a data set's public part, in its order."""
    return _digest([p.key for p in pairs])
