"""A record's gradient: the LoRA gradient of its loss, exact, for many records at once or one at a time.

A record is a list of prompt groups: one group for the prompt as the unit, all groups of a contributor for
the contributor. Whatever happens inside a record, its vector is one row, and that row is clipped once.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, Protocol, TypeVar

import torch
from torch import Tensor

from reprolib.errors import ReproError
from reprolib.lm.logprobs import Packed, log_probabilities, pack, packed_length
from reprolib.lm.models import Policy, adapter_parameters, base, encode
from reprolib.privacy.mechanism import EntropySource
from reprolib.tasks.datasets import Problem, Task

R = TypeVar("R", contravariant=True)
PromptReader = Callable[[Problem], tuple[int, ...]]
TokenLoss = Callable[[Tensor, Tensor, Tensor], Tensor]
Method = Literal["batched", "single"]


class RecordMap(Protocol[R]):
    """What a method is: public weights and one record in, a vector out."""

    dimension: int

    def vectors(self, records: Sequence[R], entropy: EntropySource) -> Iterator[Tensor]:
        """The records' vectors, each exactly once, in blocks of shape [records, dimension]."""
        ...


@dataclass(frozen=True)
class Group:
    """A prompt with its completions, in tokens, and the advantage of each completion.

    ``counts`` says how many equal completions each one stands for; None: one.
    """

    prompt: tuple[int, ...]
    completions: tuple[tuple[int, ...], ...]
    advantages: tuple[float, ...]
    counts: tuple[int, ...] | None = None


def merged(group: Group) -> Group:
    """Equal completions as one with their mean advantage: as every token loss is affine in the advantage,
    the group's loss and gradient stay the same.
    """
    found: dict[tuple[int, ...], list[float]] = {}
    for completion, advantage in zip(group.completions, group.advantages, strict=True):
        found.setdefault(completion, []).append(advantage)
    means = tuple(sum(each) / len(each) for each in found.values())
    return Group(group.prompt, tuple(found), means, tuple(map(len, found.values())))


def prompt_reader(policy: Policy, task: Task) -> PromptReader:
    """The tokens of a problem's prompt, each read by the tokenizer once."""

    @cache
    def prompt(problem: Problem) -> tuple[int, ...]:
        return tuple(encode(policy, task.messages(problem)))

    return prompt


class GroupGradients:
    """Per-record LoRA gradients of the token-averaged loss of prompt groups.

    The loss of a group is (1/G) sum_g (1/L_g) sum_k token_loss; the loss of a record is the mean over its
    groups. A record without completions has the zero vector, and is kept.

    Args:
        policy: model with a LoRA adapter.
        token_loss: loss of each token from its log-probability, its log-probability under the base, and
            the advantage of its completion, all of shape [groups, tokens]; affine in the advantage.
        reference: whether the token loss reads the base's log-probabilities.
        method: ``batched``, all records of a block in one forward and backward pass; ``single``, one
            backward pass for each chunk of completions.
        batch_tokens: largest number of positions of a block (``batched``).
        chunk: completions of a backward pass (``single``); None for all of a group.

    Source: DP-GRPO, equation 7 and Algorithm 1, line 6.
    """

    def __init__(self, policy: Policy, token_loss: TokenLoss, *, reference: bool, method: Method = "batched",
                 batch_tokens: int = 4096, chunk: int | None = None):  # fmt: skip
        self.policy, self.token_loss, self.reference = policy, token_loss, reference
        self.method, self.batch_tokens, self.chunk = method, batch_tokens, chunk
        self.parameters = adapter_parameters(policy.model)
        self.dimension = sum(p.numel() for p in self.parameters.values())

    def __call__(self, records: Sequence[Sequence[Group]]) -> Iterator[Tensor]:
        """The records' gradients in blocks of rows, [records, dimension]; the order may differ."""
        yield from (rows for _, rows in self._placed(records))

    def in_order(self, records: Sequence[Sequence[Group]]) -> Tensor:
        """The records' gradients in the records' order, [records, dimension]."""
        blocks = list(self._placed(records))
        rows = torch.cat([rows for _, rows in blocks])
        places = torch.tensor([place for block, _ in blocks for place in block], device=rows.device)
        return torch.empty_like(rows).index_copy_(0, places, rows)

    def _placed(self, records: Sequence[Sequence[Group]]) -> Iterator[tuple[list[int], Tensor]]:
        """Blocks of rows with the places of their records."""
        if self.method == "single":
            yield from (([place], self._one(record)[None]) for place, record in enumerate(records))
            return
        smaller = [[merged(group) for group in record] for record in records]
        for block in self._blocks(smaller):
            yield block, self._many([smaller[place] for place in block])

    def _blocks(self, records: Sequence[Sequence[Group]]) -> Iterator[list[int]]:
        """Places of records of similar length, each block within ``batch_tokens`` positions."""
        block: list[int] = []
        rows = 0
        lengths = [_longest(record) for record in records]
        for place in sorted(range(len(records)), key=lengths.__getitem__):
            if block and (rows + len(records[place])) * lengths[place] > self.batch_tokens:
                yield block
                block, rows = [], 0
            block.append(place)
            rows += len(records[place])
        if block:
            yield block

    def _many(self, records: list[Sequence[Group]]) -> Tensor:
        groups, owner, share = _flatten(records)
        if not groups:
            return torch.zeros(len(records), self.dimension)
        with _taps(self.policy.model, self.parameters) as taps:
            losses = self._losses(groups)
        outputs = [output for _, output in taps.values()]
        upstream = torch.autograd.grad((losses * losses.new_tensor(share)).sum(), outputs)
        blocks = [
            torch.bmm(up.transpose(1, 2), inputs).flatten(1)
            for (inputs, _), up in zip(taps.values(), upstream, strict=True)
        ]
        by_group = torch.cat(blocks, dim=1)
        rows = by_group.new_zeros(len(records), self.dimension)
        return rows.index_add_(0, torch.tensor(owner, device=rows.device), by_group)

    def _one(self, record: Sequence[Group]) -> Tensor:
        """One record, one backward pass a chunk, accumulated in float32 or wider."""
        total = [
            torch.zeros_like(p, dtype=torch.promote_types(p.dtype, torch.float32))
            for p in self.parameters.values()
        ]
        for group, _, share in zip(*_flatten([record]), strict=True):
            for piece in _chunks(group, self.chunk):
                weight = share * len(piece.completions) / len(group.completions)
                loss = weight * self._losses([piece]).sum()
                torch._foreach_add_(total, list(torch.autograd.grad(loss, list(self.parameters.values()))))
        return torch.cat([t.flatten() for t in total])

    def _losses(self, groups: Sequence[Group]) -> Tensor:
        """Loss of each group, [groups]."""
        model = self.policy.model
        packed = pack([(g.prompt, g.completions) for g in groups]).to(model.device)
        reference = torch.zeros(())
        if self.reference:
            with torch.no_grad(), base(self.policy):
                reference = log_probabilities(model, packed)
        logp = log_probabilities(model, packed)
        advantages, weights = _token_table(groups, packed, logp.dtype)
        return (weights * self.token_loss(logp, reference, advantages)).sum(1)


def _longest(record: Sequence[Group]) -> int:
    return max((packed_length(g.prompt, g.completions) for g in record if g.completions), default=1)


def _flatten(records: Iterable[Sequence[Group]]) -> tuple[list[Group], list[int], list[float]]:
    """Groups that have completions, the index of their record, and their share in its mean."""
    groups, owner, share = [], [], []
    for index, record in enumerate(records):
        for group in record:
            if group.completions:
                groups.append(group)
                owner.append(index)
                share.append(1 / len(record))
    return groups, owner, share


def _chunks(group: Group, size: int | None) -> Iterator[Group]:
    step = size or len(group.completions)
    for start in range(0, len(group.completions), step):
        part = slice(start, start + step)
        yield Group(group.prompt, group.completions[part], group.advantages[part])


def _token_table(groups: Sequence[Group], packed: Packed, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Advantage and weight n_g / (G L_g) of each token, both [groups, tokens]; 0 where there is none."""
    device = packed.valid.device
    advantages, weights = (torch.zeros(packed.valid.shape, dtype=dtype, device=device) for _ in range(2))
    for row, group in enumerate(groups):
        lengths = torch.tensor([len(c) for c in group.completions], device=device)
        tokens = int(lengths.sum())
        each = torch.tensor(group.advantages, dtype=dtype, device=device)
        advantages[row, :tokens] = each.repeat_interleave(lengths)
        counts = torch.tensor(group.counts or (1,) * len(lengths), dtype=dtype, device=device)
        weights[row, :tokens] = (counts / (counts.sum() * lengths)).repeat_interleave(lengths)
    return advantages, weights


@contextmanager
def _taps(model: Any, parameters: dict[str, Any]) -> Iterator[dict[str, tuple[Tensor, Tensor]]]:
    """Inputs and outputs of the adapter's linear maps during one forward pass under grad.

    Raises:
        ReproError: a map was called twice, or not at all: its parameter's gradient would be incomplete.
    """
    taps: dict[str, tuple[Tensor, Tensor]] = {}

    def keep(name: str) -> Callable[[Any, Any, Tensor], None]:
        def hook(_: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            if not output.requires_grad:
                return
            if name in taps:
                raise ReproError(f"{name} is used twice in one forward pass: its gradients cannot be split")
            taps[name] = (inputs[0].detach(), output)

        return hook

    modules = {name: model.get_submodule(name.removesuffix(".weight")) for name in parameters}
    handles = [module.register_forward_hook(keep(name)) for name, module in modules.items()]
    try:
        yield taps
    finally:
        for handle in handles:
            handle.remove()
    missing = set(parameters) - set(taps)
    if missing:
        raise ReproError(f"{sorted(missing)[0]} was not used in the forward pass: its gradient is unknown")
    for name in parameters:  # the parameters' order is the vector's order
        taps[name] = taps.pop(name)
