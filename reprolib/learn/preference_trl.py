"""PrivDPO with tools that exist: randomise the data set once, then TRL's trainer as it is.

    noisy = randomize_rows(data, epsilon=1.0, entropy=EntropySource.private())
    settings = trl.DPOConfig(..., loss_type="robust", label_smoothing=flip_probability(1.0))
    trl.DPOTrainer(model, args=settings, train_dataset=noisy, peft_config=..., ...).train()

``parity`` runs that on a tiny model and compares loss and gradient with ``Debiased(epsilon)``.

Source: PrivDPO, Algorithm 1; the loss is that of Chowdhury, Kini and Natarajan (2024), "Provably robust DPO".
"""

import os
import tempfile
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from reprolib.errors import ReproError
from reprolib.learn import toy
from reprolib.learn.preference_bits import randomize_rows
from reprolib.learn.preference_loss import Debiased, debiased_loss
from reprolib.learn.preference_pairs import BETA, Pair, bits
from reprolib.learn.preference_records import PairGradients
from reprolib.learn.preference_reference import Reference, log_probabilities
from reprolib.learn.verification_trl import installed
from reprolib.lm.adapters import lora_config
from reprolib.lm.models import Policy, adapter_parameters, base
from reprolib.privacy.mechanism import EntropySource
from reprolib.privacy.preference import flip_probability

ROWS = (
    ("1+1=", "The answer is 2.", "3?"),
    ("23+1=", "\\boxed{24}", "The answer is 25"),
    ("4+5=", "9", "The answer is \\boxed{8}."),
    ("7+2=", "9.", "9?"),
    ("6+6=", "12", "66"),
    ("8+1=", "The answer is 9", "81"),
)


@dataclass(frozen=True)
class Parity:
    """TRL's trainer against ours on the same randomised rows.

    Args:
        loss: TRL's mean loss.
        loss_difference: from ours.
        gradient_difference: relative, of the adapter's gradient.
        flipped: rows that were swapped, of ``rows``.
        rows: rows of the data set.
    """

    loss: float
    loss_difference: float
    gradient_difference: float
    flipped: int
    rows: int


def parity(*, epsilon: float = 1.0, beta: float = BETA, seed: int = 0) -> Parity:
    """Randomise ``ROWS`` once, let TRL's unmodified trainer differentiate them, and redo it.

    Args:
        epsilon: of the randomised bits.
        beta: of DPO.
        seed: of a research source.

    Raises:
        ReproError: TRL is not installed.
    """
    if not installed():
        raise ReproError("the comparison with TRL needs it: pip install -r requirements-dev.txt")
    rows = [dict(zip(("prompt", "chosen", "rejected"), row, strict=True)) for row in ROWS]
    with (
        tempfile.TemporaryDirectory() as folder, open(os.devnull, "w") as nowhere,
        redirect_stdout(nowhere), redirect_stderr(nowhere),
    ):  # fmt: skip
        data = import_module("datasets").Dataset.from_list(rows)
        noisy = randomize_rows(data, epsilon=epsilon, entropy=EntropySource.research(seed))
        trainer = _trainer(folder, noisy, epsilon, beta)
        loss = trainer.compute_loss(trainer.model, trainer.data_collator(list(trainer.train_dataset)))
        theirs = _flat(torch.autograd.grad(loss, _trained(trainer.model)))
        pairs = _pairs(trainer.train_dataset, epsilon)
    ours, gradient = _ours(pairs, epsilon, beta)
    return Parity(
        loss=loss.item(),
        loss_difference=abs(loss.item() - ours),
        gradient_difference=float((gradient - theirs).norm() / theirs.norm()),
        flipped=sum(before["chosen"] != after for before, after in zip(rows, noisy["chosen"], strict=True)),
        rows=len(rows),
    )


def _trainer(folder: str, rows: Any, epsilon: float, beta: float) -> Any:
    """TRL's trainer as its manual has it, with a PEFT adapter, which is then moved away from the base."""
    trl = import_module("trl")
    settings = trl.DPOConfig(
        output_dir=folder, use_cpu=True, bf16=False, report_to=[], gradient_checkpointing=False, beta=beta,
        loss_type="robust", label_smoothing=flip_probability(epsilon), disable_tqdm=True,
        per_device_train_batch_size=len(rows),
    )  # fmt: skip
    fresh = toy.policy(dtype=torch.float64)
    trainer = trl.DPOTrainer(
        model=fresh.model, args=settings, processing_class=fresh.tokenizer, train_dataset=rows,
        peft_config=lora_config(rank=2, alpha=4),
    )  # fmt: skip
    trainer.model.eval()
    moved = adapter_parameters(_moved().model).values()
    with torch.no_grad():
        for parameter, value in zip(_trained(trainer.model), moved, strict=True):
            parameter.copy_(value)
    return trainer


def _moved() -> Policy:
    return toy.with_adapter(dtype=torch.float64)


def _pairs(rows: Any, epsilon: float) -> list[Pair]:
    """TRL's tokenised rows: which response it calls chosen is the randomised bit."""
    return [
        Pair.ordered(
            id=str(i), prompt=row["prompt_ids"], responses=(row["chosen_ids"], row["rejected_ids"]),
            preferred=0, randomized=epsilon,
        )
        for i, row in enumerate(rows)
    ]  # fmt: skip


def _ours(pairs: Sequence[Pair], epsilon: float, beta: float) -> tuple[float, Tensor]:
    policy = _moved()
    with base(policy):
        reference = Reference.of(policy, pairs)
    ratios = log_probabilities(policy, pairs) - reference(pairs)
    margin = torch.where(bits(pairs), ratios[:, 0] - ratios[:, 1], ratios[:, 1] - ratios[:, 0])
    loss = debiased_loss(margin, beta=beta, epsilon=epsilon).mean()
    record_map = PairGradients(policy, Debiased(epsilon), beta=beta, reference=reference)
    rows = record_map.vectors(pairs, EntropySource.private())
    return loss.item(), torch.cat(list(rows)).sum(0) / len(pairs)


def _trained(model: Any) -> list[Tensor]:
    return [p for p in model.parameters() if p.requires_grad]


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([t.flatten() for t in tensors])
