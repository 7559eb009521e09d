"""The reference model's log-probabilities: computed once, kept in a file, refused for another model or data.

    reference = Reference.of(policy, pairs)              # the policy as it is now is the reference
    reference.write(path)
    Reference.read(path, policy, pairs)                  # the same model, tokenizer and pairs, or an error

Source: PrivDPO, Sections 2.1 and 4.5 (the reference is the model after supervised fine-tuning).
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from reprolib.errors import ReproError
from reprolib.learn.preference_pairs import (
    BETA,
    Pair,
    bits,
    blocks,
    check_pairs,
    data_digest,
    response_log_probabilities,
)
from reprolib.lm.models import Policy
from reprolib.paths import write_atomically

BATCH_TOKENS = 8192  # positions of a forward pass without gradients
VALUES = "log_probabilities"
KEYS = ("model", "tokenizer", "data")


@dataclass(frozen=True)
class Reference:
    """Log-probabilities of both responses of known pairs under a frozen model.

    Args:
        keys: SHA-256 of the public tokens of each pair.
        values: float64, [pairs, 2], in canonical order.
        model, tokenizer: fingerprints of what computed them.
        data: digest of the pairs, in order.
    """

    keys: tuple[str, ...]
    values: Tensor
    model: str
    tokenizer: str
    data: str

    @classmethod
    def of(cls, policy: Policy, pairs: Sequence[Pair], *, batch_tokens: int = BATCH_TOKENS) -> "Reference":
        """The policy as it is now is the reference; for the base under an adapter, call inside ``base``.

        Raises:
            ReproError: a pair that the model cannot read.
        """
        check_pairs(policy, pairs)
        values = log_probabilities(policy, pairs, batch_tokens=batch_tokens)
        model, tokenizer, data = _fingerprints(policy, pairs)
        return cls(tuple(p.key for p in pairs), values, model, tokenizer, data)

    @cached_property
    def _rows(self) -> dict[str, int]:
        return {key: row for row, key in enumerate(self.keys)}

    def __call__(self, pairs: Sequence[Pair]) -> Tensor:
        """The pairs' log-probabilities, float64, [pairs, 2].

        Raises:
            ReproError: a pair that the reference was not computed for.
        """
        missing = next((p.id for p in pairs if p.key not in self._rows), None)
        if missing is not None:
            raise ReproError(
                f"pair {missing}: no reference log-probabilities for it: the reference was computed on other "
                "text or with another tokenizer, compute it for these pairs"
            )
        return self.values[[self._rows[p.key] for p in pairs]]

    def write(self, path: Path) -> None:
        """Write the values with what they belong to; the file is replaced as a whole."""
        metadata = {key: str(getattr(self, key)) for key in KEYS}
        write_atomically(path, save({VALUES: self.values.contiguous()}, metadata=metadata))

    @classmethod
    def read(cls, path: Path, policy: Policy, pairs: Sequence[Pair]) -> "Reference":
        """What ``write`` left.

        Args:
            path: the file.
            policy: the model that is to be the reference, as it was when the values were computed.
            pairs: the data set, in the same order.

        Raises:
            ReproError: no readable file, or one for another model, tokenizer or data set.
        """
        found, values = _read(path)
        here = dict(zip(KEYS, _fingerprints(policy, pairs), strict=True))
        for key, what in zip(KEYS, ("model weights", "tokenizer", "data set"), strict=True):
            if found.get(key) != here[key]:
                raise ReproError(f"{path}: reference of another {what}: delete the file to compute it again")
        return cls(tuple(p.key for p in pairs), values, **here)


@torch.no_grad()
def log_probabilities(policy: Policy, pairs: Sequence[Pair], *, batch_tokens: int = BATCH_TOKENS) -> Tensor:
    """Log-probabilities of both responses of any number of pairs, float64, [pairs, 2], on the CPU."""
    values = torch.empty(len(pairs), 2, dtype=torch.float64)
    for block in blocks(pairs, batch_tokens):
        found = response_log_probabilities(policy.model, [pairs[i] for i in block])
        values[block] = found.double().cpu()
    return values


def reward_margins(policy: Policy, pairs: Sequence[Pair], reference: Reference, *,
                   beta: float = BETA) -> Tensor:  # fmt: skip
    """Implicit reward of the preferred response minus that of the other, float64, [pairs].

    Their mean is the reward margin, the share above 0 the reward accuracy, and the mean of -log sigmoid the
    DPO objective. They read the annotations: those of training pairs are private.

    Source: PrivDPO, equation 2 and Section 5.1, Metrics.
    """
    ratios = log_probabilities(policy, pairs) - reference(pairs)
    difference = ratios[:, 0] - ratios[:, 1]
    return beta * torch.where(bits(pairs), difference, -difference)


def _fingerprints(policy: Policy, pairs: Sequence[Pair]) -> tuple[str, str, str]:
    """Digests of the weights that are in use, of the tokenizer's vocabulary, and of the public text."""
    vocabulary = sorted(policy.tokenizer.get_vocab().items())
    tokenizer = hashlib.sha256(repr(vocabulary).encode()).hexdigest()
    return _weights_digest(policy.model), tokenizer, data_digest(pairs)


def _weights_digest(model: Any) -> str:
    """The base has one digest, bare or under an adapter that is switched off."""
    off = any(getattr(m, "disable_adapters", False) is True for m in model.modules())
    digest = hashlib.sha256()
    for name, tensor in _named(model.state_dict().items(), without_adapter=off):
        content = tensor.detach().cpu().contiguous()
        digest.update(f"{name} {content.dtype} {tuple(content.shape)}".encode())
        digest.update(content.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _named(tensors: Iterable[tuple[str, Tensor]], *, without_adapter: bool) -> list[tuple[str, Tensor]]:
    """Tensors under the names of the bare model, in the order of the names."""
    return sorted(
        (name.removeprefix("base_model.model.").replace(".base_layer.", "."), tensor)
        for name, tensor in tensors
        if not (without_adapter and ".lora_" in name)
    )


def _read(path: Path) -> tuple[dict[str, str], Tensor]:
    try:
        with safe_open(path, framework="pt") as file:
            metadata, values = file.metadata() or {}, file.get_tensor(VALUES)
    except (OSError, SafetensorError) as error:
        raise ReproError(f"{path}: no readable reference ({error}): delete it to compute it again") from error
    if not values.isfinite().all():
        raise ReproError(f"{path}: a value is not finite: delete the file to compute it again")
    return metadata, values
