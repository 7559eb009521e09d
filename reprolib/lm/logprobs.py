"""Token log-probabilities of the completions of prompt groups, the prompt of a group read once.

A group is one row: the prompt, then its completions side by side. A completion sees the prompt and itself,
and its positions go on from the prompt, so each log-probability is that of the prompt followed by this
completion alone.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from reprolib.errors import ReproError

HEAD_ENTRIES = 2**25  # logits held at once: tokens times vocabulary
PADDING = 1 / 16


@dataclass(frozen=True)
class Packed:
    """Groups as rows.

    Shapes, with N groups, T input positions and K completion tokens of the longest group: ``ids``,
    ``positions`` [N, T]; ``mask`` [N, 1, T, T], True where attention is allowed; ``sources``, ``targets``,
    ``members`` and ``valid`` [N, K]: the position that predicts a token, the token, the index of its
    completion, and whether it is a token at all.
    """

    ids: Tensor
    positions: Tensor
    mask: Tensor
    sources: Tensor
    targets: Tensor
    members: Tensor
    valid: Tensor

    def to(self, device: torch.device) -> "Packed":
        """The same rows on another device."""
        return Packed(**{name: tensor.to(device) for name, tensor in vars(self).items()})


def packed_length(prompt: Sequence[int], completions: Sequence[Sequence[int]]) -> int:
    """Input positions of a group's row: no position for a last token, which predicts nothing."""
    return len(prompt) + sum(len(c) - 1 for c in completions)


def length_blocks(
    lengths: Sequence[int], batch_tokens: int, rows: Sequence[int] | None = None
) -> Iterator[list[int]]:
    """Indices of items of similar length, in blocks of at most ``batch_tokens`` positions.

    A block is closed where padding would take more than ``PADDING`` of these: another pass costs less.

    Args:
        lengths: positions of an item's longest row.
        batch_tokens: positions of a block, padding included; an item that is longer is a block of its own.
        rows: rows of each item; one if None.
    """
    block: list[int] = []
    height = filled = 0
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        more, length = rows[index] if rows else 1, lengths[index]
        padding = height * length - filled
        if block and ((height + more) * length > batch_tokens or padding > PADDING * batch_tokens):
            yield block
            block, height, filled = [], 0, 0
        block.append(index)
        height, filled = height + more, filled + more * length
    if block:
        yield block


def pack(groups: Sequence[tuple[Sequence[int], Sequence[Sequence[int]]]]) -> Packed:
    """Rows of prompt groups, each a prompt and its completions in tokens.

    Raises:
        ReproError: an empty prompt, a group without completions, or an empty completion.
    """
    for prompt, completions in groups:
        if not prompt or not completions or not all(completions):
            raise ReproError("a group needs a prompt and completions, each of at least one token")
    rows = [_row(prompt, completions) for prompt, completions in groups]
    ids, positions, owner, sources, targets, members = (
        torch.nn.utils.rnn.pad_sequence([row[i] for row in rows], batch_first=True, padding_value=value)
        for i, value in enumerate((0, 0, -2, 0, 0, -1))
    )
    steps = torch.arange(ids.shape[1])
    causal = steps[:, None] >= steps[None, :]
    shares = (owner[:, None, :] == -1) | (owner[:, :, None] == owner[:, None, :])  # -1 is the prompt
    mask = (causal & shares)[:, None]
    return Packed(ids, positions, mask, sources, targets, members, members >= 0)


def _row(prompt: Sequence[int], completions: Sequence[Sequence[int]]) -> tuple[Tensor, ...]:
    """Input ids, positions, owners; then source, target and member of each completion token."""
    ids, positions, owner = list(prompt), list(range(len(prompt))), [-1] * len(prompt)
    sources: list[int] = []
    targets: list[int] = []
    members: list[int] = []
    for member, completion in enumerate(completions):
        start = len(ids)
        ids += completion[:-1]
        positions += range(len(prompt), len(prompt) + len(completion) - 1)
        owner += [member] * (len(completion) - 1)
        sources += [len(prompt) - 1, *range(start, len(ids))]
        targets += completion
        members += [member] * len(completion)
    return tuple(torch.tensor(x) for x in (ids, positions, owner, sources, targets, members))


def log_probabilities(model: Any, packed: Packed) -> Tensor:
    """Log-probability of each completion token, [N, K], float32 or wider; 0 where there is no token.

    Args:
        model: a causal language model of transformers, with or without a PEFT adapter.
        packed: the groups, on the model's device.
    """
    causal = model.get_base_model() if hasattr(model, "get_base_model") else model
    hidden = causal.base_model(
        input_ids=packed.ids, attention_mask=packed.mask, position_ids=packed.positions, use_cache=False
    ).last_hidden_state
    rows = torch.arange(len(hidden), device=hidden.device)[:, None].expand_as(packed.sources)
    picked = hidden[rows[packed.valid], packed.sources[packed.valid]]
    found = _chosen_log_probabilities(causal.get_output_embeddings(), picked, packed.targets[packed.valid])
    empty = torch.zeros(packed.valid.shape, dtype=found.dtype, device=found.device)
    return empty.masked_scatter(packed.valid, found)


def by_completion(packed: Packed, tokens: Tensor) -> Tensor:
    """Sums over the tokens of each completion, [N, completions of the largest group]; 0 where there is none.

    Args:
        packed: the groups.
        tokens: a value of each completion token, [N, K], 0 where there is no token.
    """
    # not scatter_add, whose order of addition, and so its last bits, vary on a GPU
    completions = range(int(packed.members.max()) + 1)
    return torch.stack([(tokens * (packed.members == g)).sum(1) for g in completions], dim=1)


def _chosen_log_probabilities(head: torch.nn.Module, hidden: Tensor, targets: Tensor) -> Tensor:
    """Logarithm of softmax(head(hidden))[target], in chunks that are computed again in the backward pass."""

    def chunk(h: Tensor, t: Tensor) -> Tensor:
        logits = head(h)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        found: Tensor = logits.gather(-1, t[:, None]).squeeze(-1) - logits.logsumexp(-1)
        return found

    vocabulary = int(head.weight.shape[0])  # type: ignore[index]
    size = max(1, HEAD_ENTRIES // vocabulary)
    if len(hidden) <= size:
        return chunk(hidden, targets)
    parts = zip(torch.split(hidden, size), torch.split(targets, size), strict=True)
    return torch.cat([checkpoint(chunk, h, t, use_reentrant=False) for h, t in parts])
