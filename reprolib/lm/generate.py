"""Rollouts: one protocol for every engine, and the engine on transformers.

    sampling = Sampling(completions=8, max_new_tokens=12, temperature=0.7)
    groups = TransformersEngine(policy).generate(prompts, sampling, entropy.rollouts)

The randomness of a rollout belongs to the record: it must be hidden and fresh (DP-GRPO, assumption A3).
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from peft import PeftModel
from torch import Tensor
from transformers import DynamicCache

from reprolib.errors import ReproError
from reprolib.lm.adapters import ADAPTER, PROJECTIONS
from reprolib.lm.models import Policy

Uniform = Callable[[int], NDArray[np.float64]]


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How completions are drawn.

    Args:
        completions: completions G of each prompt.
        max_new_tokens: cap on a completion's length.
        temperature: 0 for greedy decoding.

    Raises:
        ReproError: a value out of range.
    """

    completions: int
    max_new_tokens: int
    temperature: float

    def __post_init__(self) -> None:
        if self.completions < 1 or self.max_new_tokens < 1 or not self.temperature >= 0:
            raise ReproError(f"{self}: expected at least 1 completion of 1 token and a temperature >= 0")


@dataclass(frozen=True)
class Completion:
    """Sampled tokens, the end token included; ``capped``: the cap came first, there is no end token."""

    tokens: tuple[int, ...]
    capped: bool


class Engine(Protocol):
    """What draws completions for the current weights."""

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, uniform: Uniform | None
    ) -> list[list[Completion]]:
        """Completions of each prompt, in the prompts' order."""
        ...

    def update(self, policy: Policy | None) -> None:
        """Use the policy's adapter as it is now; None for the base alone."""
        ...


class TransformersEngine:
    """Sampling with a transformers model in this process.

    Prompts of similar length share a batch; a prompt is read once for all of its completions, and so is what
    they agree on; a finished completion leaves the batch. The adapter is merged into a copy of the base, so
    that a token costs no more than the base's; the policy's own weights are never touched.

    Args:
        policy: the base; its adapter, if it has one, counts from the first ``update`` on.
        batch_tokens: largest number of prompt and completion tokens in a batch.
    """

    def __init__(self, policy: Policy, *, batch_tokens: int = 65_536):
        self.tokenizer = policy.tokenizer
        self.batch_tokens = batch_tokens
        copied = copy.deepcopy(policy.model)
        self._model = copied.unload() if isinstance(copied, PeftModel) else copied
        self._base = {
            name: module.weight.detach().clone()
            for name, module in self._model.named_modules()
            if name.rpartition(".")[2] in PROJECTIONS
        }

    @torch.no_grad()
    def update(self, policy: Policy | None) -> None:
        """Use the policy's adapter as it is now; None for the base alone."""
        adapted = policy.model.base_model.model if policy and isinstance(policy.model, PeftModel) else None
        for name, base in self._base.items():
            delta = 0 if adapted is None else adapted.get_submodule(name).get_delta_weight(ADAPTER).to(base)
            self._model.get_submodule(name).weight.copy_(base + delta)

    @torch.inference_mode()
    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, uniform: Uniform | None
    ) -> list[list[Completion]]:
        """Completions of each prompt, in the prompts' order.

        Args:
            prompts: token ids.
            sampling: number, length and temperature.
            uniform: hidden uniform draws; each completion has its own, whatever else is in the batch.
                None for greedy decoding only.

        Raises:
            ReproError: an empty prompt, or a positive temperature without a source of randomness.
        """
        if not all(prompts):
            raise ReproError("a prompt is empty: expected at least one token")
        draws = _draws(len(prompts), sampling, uniform)
        found: list[list[Completion]] = [[] for _ in prompts]
        for batch in self._batches([len(p) for p in prompts], sampling):
            chosen = None if draws is None else draws[batch]
            completions = self._complete([prompts[i] for i in batch], sampling, chosen)
            for i, drawn in zip(batch, completions, strict=True):
                found[i] = drawn
        return found

    def _batches(self, lengths: Sequence[int], sampling: Sampling) -> Iterator[list[int]]:
        """Indices of prompts that share a batch, by length, with a third of padding at most."""
        batch: list[int] = []
        for i in sorted(range(len(lengths)), key=lengths.__getitem__):
            tokens = (len(batch) + 1) * sampling.completions * (lengths[i] + sampling.max_new_tokens)
            if batch and (tokens > self.batch_tokens or 2 * lengths[i] > 3 * lengths[batch[0]]):
                yield batch
                batch = []
            batch.append(i)
        if batch:
            yield batch

    def _complete(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, draws: Tensor | None
    ) -> list[list[Completion]]:
        """Completions of a batch of prompts; draws [prompts, G, cap]."""
        model, end = self._model, int(self.tokenizer.eos_token_id)
        copies, device = sampling.completions, model.device
        ids, mask = (t.to(device) for t in _padded(prompts))
        cache = DynamicCache(config=model.config)
        first = (mask.cumsum(1) - 1).clamp(min=0)
        hidden = model.base_model(ids, attention_mask=mask, position_ids=first, past_key_values=cache)
        # the head on rows, not on a slice of [prompts, tokens]: in bfloat16 that copies it for every prompt
        logits = model.get_output_embeddings()(hidden.last_hidden_state[:, -1])
        position = mask.sum(1, keepdim=True)
        uniform = None if draws is None else draws.flatten(0, 1).to(device)
        tokens = torch.full((len(mask) * copies, sampling.max_new_tokens), -1, device=device)
        alive = torch.arange(len(tokens), device=device)
        row = alive // copies  # completions that agree so far read one row of the cache
        for step in range(sampling.max_new_tokens):
            u = None if uniform is None else uniform[alive, step]
            chosen = choose(logits, row, sampling.temperature, u)
            tokens[alive, step] = chosen
            keep = chosen != end
            if not bool(keep.any()) or step + 1 == sampling.max_new_tokens:
                break
            alive, row, chosen = alive[keep], row[keep], chosen[keep]
            branches, row = torch.unique(row * logits.shape[1] + chosen, return_inverse=True)
            parent, token = branches // logits.shape[1], branches % logits.shape[1]
            if not torch.equal(parent, torch.arange(len(mask), device=device)):
                cache.batch_select_indices(parent)
                mask, position = mask[parent], position[parent]
            mask = torch.cat([mask, torch.ones_like(mask[:, :1])], dim=1)
            logits = model(
                token[:, None], attention_mask=mask, position_ids=position, past_key_values=cache
            ).logits[:, -1]
            position = position + 1
        completions = [_completion(row, end) for row in tokens.tolist()]
        return [completions[i : i + copies] for i in range(0, len(completions), copies)]


def _padded(prompts: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Token ids and attention mask of prompts, padded on the left, both [prompts, longest]."""
    longest = max(map(len, prompts))
    gaps = [longest - len(p) for p in prompts]
    ids = torch.tensor([[0] * gap + list(p) for gap, p in zip(gaps, prompts, strict=True)])
    mask = torch.tensor([[0] * gap + [1] * len(p) for gap, p in zip(gaps, prompts, strict=True)])
    return ids, mask


def choose(logits: Tensor, row: Tensor, temperature: float, uniform: Tensor | None) -> Tensor:
    """The next token of each completion: the likeliest at temperature 0, else the inverse CDF at ``uniform``.

    Args:
        logits: shape [rows, vocabulary].
        row: the row of logits that each completion reads, [completions].
        temperature: divides the logits; 0 is greedy.
        uniform: shape [completions], binary64 in [0, 1).
    """
    if temperature == 0 or uniform is None:
        return logits.argmax(-1)[row]
    cumulative = (logits.double() / temperature).softmax(-1).cumsum(-1)[row]
    below = cumulative <= uniform[:, None] * cumulative[:, -1:]
    return below.sum(-1).clamp(max=logits.shape[1] - 1)


def _draws(prompts: int, sampling: Sampling, uniform: Uniform | None) -> Tensor | None:
    if sampling.temperature == 0:
        return None
    if uniform is None:
        raise ReproError(f"temperature {sampling.temperature} needs a source of uniform draws")
    shape = (prompts, sampling.completions, sampling.max_new_tokens)
    return torch.from_numpy(uniform(int(np.prod(shape)))).reshape(shape)


def _completion(row: list[int], end: int) -> Completion:
    if end in row:
        return Completion(tuple(row[: row.index(end) + 1]), capped=False)
    return Completion(tuple(t for t in row if t >= 0), capped=True)
