"""DP-GRPO's loss against the trainer that the paper's code is built on, where that library is installed.

    parity().gradient                      # relative difference: rounding of float32
    parity(temperature=0.7).gradient       # what later versions of the library changed

The paper names TRL 0.15.2, made for an older transformers than ours. Its loss is equation 7. Later versions
differ from it in two ways, both of which can be undone by settings: they divide the logits by the sampling
temperature in the loss too, and they multiply the KL estimate by the ratio, whose value is 1 and whose
gradient is not. ``parity`` undoes both unless asked not to.

Source: DP-GRPO, Appendix C-A.
"""

import os
import tempfile
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from reprolib.errors import ReproError
from reprolib.learn import grpo, toy
from reprolib.learn.records import Group
from reprolib.learn.verification import KL_WEIGHT, flat_loss, prompt_gradients
from reprolib.lm.models import Policy, adapter_parameters

PROMPTS = ("1+1=", "23+1=")
GROUP_SIZE = 8


def installed() -> bool:
    """Whether TRL can be imported; it is needed for nothing else."""
    return find_spec("trl") is not None


@dataclass(frozen=True)
class Parity:
    """TRL's trainer against ours on the same completions.

    Args:
        advantages: largest difference.
        loss: difference of the loss.
        gradient: relative difference of the gradient of equation 7.
        scaled: the same with our logits divided by the temperature first.
    """

    advantages: float
    loss: float
    gradient: float
    scaled: float


def parity(*, temperature: float = 1.0, corrected_kl: bool = False) -> Parity:
    """Let TRL's trainer roll out, normalise and differentiate two prompts, and redo it.

    Args:
        temperature: of the sampling, and in later TRL of the loss.
        corrected_kl: multiply the KL estimate by the ratio, the default of later TRL.

    Raises:
        ReproError: TRL is not installed.
    """
    if not installed():
        raise ReproError("the comparison with TRL needs it: pip install -r requirements-dev.txt")
    with tempfile.TemporaryDirectory() as folder, open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
        trainer = _trainer(folder, temperature, corrected_kl)
        inputs = trainer._generate_and_score_completions(
            [{"prompt": p} for p in PROMPTS for _ in range(GROUP_SIZE)]
        )
        loss = trainer.compute_loss(trainer.model, inputs)
    theirs = _flat(torch.autograd.grad(loss, _trained(trainer.model)))
    policy = toy.with_adapter(dtype=torch.float64)
    groups = _groups(policy, inputs)
    gradient = prompt_gradients(policy, groups).mean(0)
    tempered = flat_loss(policy, groups, temperature=temperature)
    scaled = _flat(torch.autograd.grad(tempered, list(adapter_parameters(policy.model).values())))
    found = torch.tensor([a for g in groups for a in g.advantages])
    return Parity(
        advantages=float((found - inputs["advantages"]).abs().max()),
        loss=abs(loss.item() - flat_loss(policy, groups).item()),
        gradient=float((gradient - theirs).norm() / theirs.norm()),
        scaled=float((scaled - theirs).norm() / theirs.norm()),
    )


def _trainer(folder: str, temperature: float, corrected_kl: bool) -> Any:
    """Built on a new adapter, so that its reference is the base; then the adapter is moved."""
    trl, data = import_module("trl"), import_module("datasets")
    size = len(PROMPTS) * GROUP_SIZE
    settings = trl.GRPOConfig(
        output_dir=folder, use_cpu=True, bf16=False, report_to=[], gradient_checkpointing=False,
        per_device_train_batch_size=size, num_generations=GROUP_SIZE, num_iterations=1, loss_type="grpo",
        beta=KL_WEIGHT, temperature=temperature, max_completion_length=5, disable_tqdm=True,
        use_bias_correction_kl=corrected_kl,
    )  # fmt: skip
    fresh = toy.with_adapter(dtype=torch.float64, scale=0.0)
    trainer = trl.GRPOTrainer(
        model=fresh.model, reward_funcs=_reward, args=settings, processing_class=fresh.tokenizer,
        train_dataset=data.Dataset.from_list([{"prompt": p} for p in PROMPTS]),
    )  # fmt: skip
    trainer.model.eval()
    moved = adapter_parameters(toy.with_adapter(dtype=torch.float64).model).values()
    with torch.no_grad():
        for parameter, value in zip(_trained(trainer.model), moved, strict=True):
            parameter.copy_(value)
    return trainer


def _trained(model: Any) -> list[Tensor]:
    return [p for p in model.parameters() if p.requires_grad]


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([t.flatten() for t in tensors])


def _reward(completions: Sequence[str], **_: Any) -> list[float]:
    """Any public function of a completion will do: whether its text is of odd length."""
    return [float(len(c) % 2) for c in completions]


def _groups(policy: Policy, inputs: dict[str, Tensor]) -> list[Group]:
    """TRL's padded batch as groups, with our advantages from the completions' own rewards."""
    prompts = _unpadded(inputs["prompt_ids"], inputs["prompt_mask"])
    completions = _unpadded(inputs["completion_ids"], inputs["completion_mask"])
    groups = []
    for start in range(0, len(prompts), GROUP_SIZE):
        drawn = completions[start : start + GROUP_SIZE]
        rewards = torch.tensor(_reward([policy.tokenizer.decode(c, skip_special_tokens=True) for c in drawn]))
        groups.append(Group(prompts[start], tuple(drawn), tuple(grpo.advantages(rewards).tolist())))
    return groups


def _unpadded(ids: Tensor, mask: Tensor) -> list[tuple[int, ...]]:
    return [tuple(row[keep.bool()].tolist()) for row, keep in zip(ids, mask, strict=True)]
