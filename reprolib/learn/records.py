"""A record's gradient: the LoRA gradient of its loss, exact, for many records at once or one at a time.

A record is a list of prompt groups: one group for the prompt as the unit, all groups of a contributor for
the contributor. Whatever happens inside a record, its vector is one row, and that row is clipped once.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

import torch
from torch import Tensor

from reprolib.errors import ReproError
from reprolib.lm.adapters import ADAPTER, adapter_parameters, as_linear, can_merge, lora_layers
from reprolib.lm.logprobs import Packed, length_blocks, log_probabilities, pack, packed_length
from reprolib.lm.models import Policy, encode
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


def prompt_reader(
    policy: Policy, task: Task, known: dict[Problem, tuple[int, ...]] | None = None
) -> PromptReader:
    """The tokens of a problem's prompt, each read by the tokenizer once.

    Args:
        known: prompts read before, by the same tokenizer for the same task; what is read now is added.
    """
    read = {} if known is None else known

    def prompt(problem: Problem) -> tuple[int, ...]:
        if problem not in read:
            read[problem] = tuple(encode(policy, task.messages(problem)))
        return read[problem]

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
        self.parameters, self.layers = adapter_parameters(policy.model), lora_layers(policy.model)
        self.merge = can_merge(self.layers)
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
        lengths = [_longest(record) for record in smaller]
        for block in length_blocks(lengths, self.batch_tokens, list(map(len, smaller))):
            yield block, self._many([smaller[place] for place in block])

    def _many(self, records: list[Sequence[Group]]) -> Tensor:
        groups, owner, share = _flatten(records)
        if not groups:
            return torch.zeros(len(records), self.dimension)
        with _taps(self.layers) as taps:
            losses = self._losses(groups, merge=self.merge)
        outputs = [output for _, output in taps.values()]
        upstream = torch.autograd.grad((losses * losses.new_tensor(share)).sum(), outputs)
        blocks: dict[str, Tensor] = {}
        for (name, (inputs, _)), up in zip(taps.items(), upstream, strict=True):
            blocks |= _factors(name, self.layers[name], inputs, up)
        by_group = torch.cat([blocks[name].flatten(1) for name in self.parameters], dim=1)
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
                loss = weight * self._losses([piece], merge=False).sum()
                torch._foreach_add_(total, list(torch.autograd.grad(loss, list(self.parameters.values()))))
        return torch.cat([t.flatten() for t in total])

    def _losses(self, groups: Sequence[Group], *, merge: bool) -> Tensor:
        """Loss of each group, [groups]; with ``merge`` no gradient reaches the adapter's own weights."""
        model = self.policy.model
        packed = pack([(g.prompt, g.completions) for g in groups]).to(model.device)
        reference = torch.zeros(())
        if self.reference:
            with torch.no_grad(), as_linear(self.layers, adapter=False):
                reference = log_probabilities(model, packed)
        with as_linear(self.layers, adapter=True) if merge else nullcontext():
            logp = log_probabilities(model, packed)
        advantages, weights = _token_table(groups, packed)
        return (weights.to(logp) * self.token_loss(logp, reference, advantages.to(logp))).sum(1)


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


def _token_table(groups: Sequence[Group], packed: Packed) -> tuple[Tensor, Tensor]:
    """Advantage and weight n_g / (G L_g) of each token, binary64, both [groups, tokens]; 0 for no token."""
    advantages: list[list[float]] = []
    weights: list[list[float]] = []
    for group in groups:
        counts = group.counts or (1,) * len(group.completions)
        lengths = list(map(len, group.completions))
        each = [count / (sum(counts) * length) for count, length in zip(counts, lengths, strict=True)]
        for rows, values in ((advantages, group.advantages), (weights, each)):
            row = [value for value, length in zip(values, lengths, strict=True) for _ in range(length)]
            rows.append(row + [0.0] * (packed.valid.shape[1] - len(row)))
    return torch.tensor(advantages, dtype=torch.float64), torch.tensor(weights, dtype=torch.float64)


def _factors(name: str, layer: Any, inputs: Tensor, upstream: Tensor) -> dict[str, Tensor]:
    """Gradients of a projection's A and B by row, from its inputs x and the gradient g at its output.

    The output is W x + s B A x, so they are s sum_t (B^T g_t) x_t^T and s sum_t g_t (A x_t)^T.
    """
    first, second = layer.lora_A[ADAPTER].weight.detach(), layer.lora_B[ADAPTER].weight.detach()
    scaling, x, g = layer.scaling[ADAPTER], inputs.to(first), upstream.to(second)
    return {
        f"{name}.lora_A.{ADAPTER}.weight": scaling * torch.bmm((g @ second).transpose(1, 2), x),
        f"{name}.lora_B.{ADAPTER}.weight": scaling * torch.bmm(g.transpose(1, 2), x @ first.T),
    }


@contextmanager
def _taps(layers: Mapping[str, Any]) -> Iterator[dict[str, tuple[Tensor, Tensor]]]:
    """Inputs and outputs of the adapted projections during one forward pass under grad.

    Raises:
        ReproError: a projection was called twice, or not at all: its gradient would be incomplete.
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

    handles = [module.register_forward_hook(keep(name)) for name, module in layers.items()]
    try:
        yield taps
    finally:
        for handle in handles:
            handle.remove()
    missing = set(layers) - set(taps)
    if missing:
        raise ReproError(f"{sorted(missing)[0]} was not used in the forward pass: its gradient is unknown")
