"""Clipped per-prompt LoRA gradients of a DP-GRPO round, beside what else could compute them.

    python benchmarks/per_record_gradient.py [--repeats 5] [--prompts 64] [--tokens 8]

Peers: one ordinary backward pass of the same batch, which gives no per-prompt gradient at all; opacus'
per-sample gradients, in its usual layout and in ours; one backward pass a prompt. The errors are against
one backward pass a prompt in binary64. Prompts of 14 tokens with 8 completions each.
"""

import argparse
import warnings
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

import torch
from opacus import GradSampleModule
from side_by_side import alternate, report
from torch import Tensor
from transformers import Qwen2Config, Qwen2ForCausalLM

from reprolib.learn import grpo
from reprolib.learn.records import Group, GroupGradients
from reprolib.lm.models import Policy, adapter_parameters, attach_lora
from reprolib.privacy.mechanism import clip

CLIP_NORM, KL_WEIGHT, PROMPT, COMPLETIONS, VOCABULARY = 0.05536, 0.04, 14, 8, 160
SIZES = {"micro": (64, 128, 3), "wide": (256, 688, 4)}  # hidden, intermediate, layers


def policy(size: str) -> Policy:
    hidden, intermediate, layers = SIZES[size]
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCABULARY, hidden_size=hidden, intermediate_size=intermediate, num_hidden_layers=layers,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128, tie_word_embeddings=True,
    )  # fmt: skip
    model = Qwen2ForCausalLM(config).eval().requires_grad_(False)
    adapted = attach_lora(Policy(model, SimpleNamespace(eos_token_id=1), size), seed=0)
    with torch.no_grad():
        for parameter in adapter_parameters(adapted.model).values():
            parameter.add_(0.02 * torch.randn_like(parameter))
    return adapted


def records(prompts: int, tokens: int) -> list[list[Group]]:
    draw = partial(torch.randint, 4, VOCABULARY, generator=torch.Generator().manual_seed(1))
    groups = []
    for _ in range(prompts):
        completions = tuple(tuple(draw((tokens,)).tolist()) for _ in range(COMPLETIONS))
        rewards = (draw((COMPLETIONS,)) % 2).float()
        groups.append(
            Group(tuple(draw((PROMPT,)).tolist()), completions, tuple(grpo.advantages(rewards).tolist()))
        )
    return [[g] for g in groups]


class Peers:
    """Each method returns the clipped gradients, [prompts, dimension]; ``ordinary`` only their sum."""

    def __init__(self, size: str, prompts: int, tokens: int):
        self.policy, self.records = policy(size), records(prompts, tokens)
        loss = partial(grpo.token_loss, kl_weight=KL_WEIGHT)
        self.batched = GroupGradients(self.policy, loss, reference=True)
        self.single = GroupGradients(self.policy, loss, reference=True, method="single")
        self.parameters = list(adapter_parameters(self.policy.model).values())

    def ours(self) -> Tensor:
        return clip(torch.cat(list(self.batched(self.records))), CLIP_NORM)

    def one_by_one(self) -> Tensor:
        return clip(torch.cat(list(self.single(self.records))), CLIP_NORM)

    def ordinary(self) -> Tensor:
        groups = [group for record in self.records for group in record]
        gradients = torch.autograd.grad(self.batched._losses(groups).sum(), self.parameters)
        return torch.cat([g.flatten() for g in gradients])[None]

    def opacus_packed(self) -> Tensor:
        return clip(self._opacus([group for record in self.records for group in record]), CLIP_NORM)

    def opacus_sequences(self) -> Tensor:
        """Opacus as it is used: a row a completion, the prompt read again for each, then a mean a prompt."""
        alone = [
            Group(group.prompt, (completion,), (advantage,))
            for (group,) in self.records
            for completion, advantage in zip(group.completions, group.advantages, strict=True)
        ]
        rows = self._opacus(alone)
        return clip(rows.unflatten(0, (-1, COMPLETIONS)).mean(1), CLIP_NORM)

    def _opacus(self, groups: list[Group]) -> Tensor:
        """Per-row gradients, [groups, dimension]."""
        self.policy.model.train()  # opacus records nothing in evaluation mode; nothing here drops out
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            wrapped = GradSampleModule(self.policy.model, strict=False, loss_reduction="sum")
            self.batched._losses(groups).sum().backward()
        rows = torch.cat([p.grad_sample.flatten(1) for p in self.parameters], dim=1)
        wrapped.remove_hooks()
        self.policy.model.eval()
        for parameter in self.parameters:
            parameter.grad = parameter.grad_sample = None
        return rows


def measure(size: str, prompts: int, tokens: int, repeats: int) -> list[dict[str, object]]:
    peers = Peers(size, prompts, tokens)
    runs: dict[str, Callable[[], Tensor]] = {
        "reprolib, batched": peers.ours,
        "ordinary backward (no per-prompt gradient)": peers.ordinary,
        "opacus, a row a completion": peers.opacus_sequences,
        "opacus, our packed rows": peers.opacus_packed,
        "one backward a prompt": peers.one_by_one,
    }
    seconds, results = alternate(runs, repeats)
    peers.policy.model.double()
    exact = peers.one_by_one()
    ours = seconds["reprolib, batched"]
    return [
        {
            "size": size, "who": who, "seconds": seconds[who], "times ours": seconds[who] / ours,
            "largest error / C": float((rows - exact).abs().max()) / CLIP_NORM if len(rows) > 1 else None,
        }
        for who, rows in results.items()
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=8)
    options = parser.parse_args()
    torch.set_num_threads(1)
    report(
        "per_record_gradient",
        [row for size in SIZES for row in measure(size, options.prompts, options.tokens, options.repeats)],
    )


if __name__ == "__main__":
    main()
