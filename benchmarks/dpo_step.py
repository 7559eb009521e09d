"""One training step on preference pairs: PrivDPO beside plain DPO, both beside TRL's trainer.

    python benchmarks/dpo_step.py [--repeats 5] [--pairs 16] [--prompt 96] [--response 32]

A step is the forward and backward pass of a batch and AdamW, at learning rate 0, so that every step starts
from the same weights. Reference log-probabilities are computed before, except where a line says otherwise.
TRL's batch is collated before, and its rows are randomised once, with ``loss_type="robust"``. The errors are
against a gradient in binary64 that reads each response by itself.
"""

import argparse
import os
import tempfile
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from typing import Any

import torch
import trl
from datasets import Dataset
from side_by_side import alternate, report
from torch import Tensor
from transformers import Qwen2Config, Qwen2ForCausalLM

from reprolib.learn import toy
from reprolib.learn.dpo import aligner
from reprolib.learn.preference_loss import DPO, Debiased, PairMethod, Randomized, debiased_loss
from reprolib.learn.preference_pairs import BETA, Pair, bits
from reprolib.learn.preference_records import PairGradients, trained_parameters
from reprolib.learn.preference_reference import Reference
from reprolib.lm.models import Policy, attach_lora
from reprolib.privacy.mechanism import EntropySource
from reprolib.privacy.preference import PrivDPO, flip_probability

EPSILON, VOCABULARY, REPEATS_MAX = 1.0, 8192, 10_000
DIGITS = "0123456789"
TRAINED = ("adapter", "all weights")


def rows(pairs: int, prompt: int, response: int) -> list[dict[str, str]]:
    """Prompts and responses of digits, one token each, of three quarters of the length or more."""
    generator = torch.Generator().manual_seed(1)

    def text(length: int) -> str:
        size = int(torch.randint(3 * length // 4, length + 1, (1,), generator=generator))
        return "".join(DIGITS[i] for i in torch.randint(10, (size,), generator=generator))

    return [
        {"prompt": text(prompt), "chosen": text(response), "rejected": text(response)} for _ in range(pairs)
    ]


def policy(trained: str) -> Policy:
    """Moved away from its base, which is the reference."""
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCABULARY, hidden_size=256, intermediate_size=688, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=1024, tie_word_embeddings=True,
    )  # fmt: skip
    model = Qwen2ForCausalLM(config).eval().requires_grad_(trained != "adapter")
    found = Policy(model, toy.tokenizer(), trained)
    return attach_lora(found, seed=0) if trained == "adapter" else found


def move(parameters: list[Any]) -> None:
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in parameters:
            parameter.add_(0.01 * torch.randn(parameter.shape, generator=generator))


class Peers:
    """Each method takes a step and returns the batch's mean gradient, [dimension]."""

    def __init__(self, trained: str, data: list[dict[str, str]], folder: str):
        self.trained, self.folder = trained, folder
        noisy = Dataset.from_list(data)
        self.trl_cached = self._trainer(noisy, precomputed=True)
        self.trl_default = self._trainer(noisy, precomputed=False) if trained == "adapter" else None
        tokens = self.trl_cached.train_dataset
        self.noisy = [
            Pair.ordered(
                id=str(i), prompt=row["prompt_ids"], responses=(row["chosen_ids"], row["rejected_ids"]),
                preferred=0, randomized=EPSILON,
            )
            for i, row in enumerate(tokens)
        ]  # fmt: skip
        self.annotated = [replace(p, randomized=None) for p in self.noisy]
        self.policy = policy(trained)
        self.reference = Reference.of(self.policy, self.noisy)
        move(trained_parameters(self.policy))

    def ours(self, method: PairMethod, pairs: list[Pair]) -> Callable[[], Tensor]:
        record_map = PairGradients(self.policy, method, reference=self.reference, batch_tokens=2**20)
        run = aligner(
            self.policy, record_map, pairs, EntropySource.private(), seed=0, epochs=REPEATS_MAX,
            batch_size=len(pairs), learning_rate=0.0, warmup_steps=0,
        )  # fmt: skip
        return run.step

    def _trainer(self, data: Any, *, precomputed: bool) -> Any:
        settings = trl.DPOConfig(
            output_dir=self.folder, use_cpu=True, bf16=False, report_to=[], gradient_checkpointing=False,
            beta=BETA, loss_type="robust", label_smoothing=flip_probability(EPSILON), disable_tqdm=True,
            per_device_train_batch_size=len(data), precompute_ref_log_probs=precomputed, max_length=None,
        )  # fmt: skip
        start = policy(self.trained)
        trainer = trl.DPOTrainer(
            model=start.model, args=settings, processing_class=start.tokenizer, train_dataset=data
        )
        move(self._trained(trainer))
        return trainer

    def _trained(self, trainer: Any) -> list[Any]:
        return [p for p in trainer.model.parameters() if p.requires_grad]

    def trl(self, trainer: Any) -> Callable[[], Tensor]:
        parameters = self._trained(trainer)
        optimizer = torch.optim.AdamW(parameters, lr=0.0)
        batch = trainer.data_collator(list(trainer.train_dataset))

        def step() -> Tensor:
            trainer.compute_loss(trainer.model, dict(batch)).backward()
            gradient = torch.cat([p.grad.flatten() for p in parameters])
            optimizer.step()
            optimizer.zero_grad()
            return gradient

        return step

    def oracle(self) -> Tensor:
        """The debiased loss, each response read by itself, in binary64."""
        model = self.policy.model.double()
        parameters, reference = trained_parameters(self.policy), self.reference(self.noisy)
        total = torch.zeros(sum(p.numel() for p in parameters), dtype=torch.float64)
        for pair, before, bit in zip(self.noisy, reference, bits(self.noisy), strict=True):
            found = torch.stack([_alone(model, pair.prompt, r) for r in (pair.first, pair.second)]) - before
            margin = found[0] - found[1] if bit else found[1] - found[0]
            loss = debiased_loss(margin, beta=BETA, epsilon=EPSILON)
            total += torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters)])
        model.float()
        return total / len(self.noisy)


def _alone(model: Any, prompt: tuple[int, ...], response: tuple[int, ...]) -> Tensor:
    logits = model(torch.tensor([[*prompt, *response]])).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
    return logits.gather(1, torch.tensor(response)[:, None]).sum()


def measure(trained: str, data: list[dict[str, str]], repeats: int, folder: str) -> list[dict[str, object]]:
    peers = Peers(trained, data, folder)
    runs = {
        "reprolib, PrivDPO (fresh coins)": peers.ours(Randomized(PrivDPO(EPSILON)), peers.annotated),
        "reprolib, PrivDPO (bits kept)": peers.ours(Debiased(EPSILON), peers.noisy),
        "reprolib, plain DPO": peers.ours(DPO(), peers.annotated),
        "TRL, robust, reference precomputed": peers.trl(peers.trl_cached),
    }
    if peers.trl_default is not None:
        runs["TRL, robust, as it comes"] = peers.trl(peers.trl_default)
    seconds, results = alternate(runs, repeats)
    exact, ours = peers.oracle(), seconds["reprolib, PrivDPO (fresh coins)"]
    return [
        {
            "trained": trained, "who": who, "seconds": seconds[who], "times ours": seconds[who] / ours,
            "relative error": float((gradient.double() - exact).norm() / exact.norm())
            if "TRL" in who or "kept" in who else None,
        }
        for who, gradient in results.items()
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--pairs", type=int, default=16)
    parser.add_argument("--prompt", type=int, default=96)
    parser.add_argument("--response", type=int, default=32)
    parser.add_argument("--trained", choices=TRAINED, nargs="*", default=TRAINED)
    options = parser.parse_args()
    torch.set_num_threads(1)
    data, table = rows(options.pairs, options.prompt, options.response), []
    for trained in options.trained:
        with (
            tempfile.TemporaryDirectory() as folder, open(os.devnull, "w") as nowhere,
            redirect_stdout(nowhere), redirect_stderr(nowhere),
        ):  # fmt: skip
            table += measure(trained, data, options.repeats, folder)
    report("dpo_step", table)


if __name__ == "__main__":
    main()
