"""LoRA adapters in PEFT: which weights are trained, and how they are kept in files.

Dropout is refused: PyTorch draws one mask stream for a whole batch, so a record's gradient would depend on
which other records share its batch (DP-GRPO, assumption A2). The paper trains with LoRA dropout 0.05; this
is a stated deviation.
Source: DP-GRPO, Section III-C (LoRA) and Appendix C-A (rank, alpha, modules).
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model_state_dict, set_peft_model_state_dict
from peft.tuners.lora import LoraLayer
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from reprolib.errors import ReproError
from reprolib.paths import write_atomically

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
ADAPTER = "default"
COMPARED = (  # settings of an adapter file that would change what it computes
    *("peft_type", "target_modules", "modules_to_save", "lora_dropout", "bias", "lora_bias"),
    *("use_rslora", "use_dora", "rank_pattern", "alpha_pattern", "layer_replication"),
)


def lora_config(*, rank: int = 4, alpha: int = 8) -> LoraConfig:
    """LoRA on the seven attention and MLP projections, without dropout. Source: DP-GRPO, Appendix C-A."""
    if rank < 1 or alpha <= 0:
        raise ReproError(f"LoRA rank {rank}, alpha {alpha}: expected positive values")
    return LoraConfig(
        r=rank, lora_alpha=alpha, lora_dropout=0.0, target_modules=list(PROJECTIONS), task_type="CAUSAL_LM"
    )


def adapter_parameters(model: Any) -> dict[str, nn.Parameter]:
    """The trainable LoRA weights A and B, in the model's order: the whole of what a private run releases.

    Raises:
        ReproError: anything else is trainable, an adapter sits on the embeddings or the vocabulary head,
            modules or weights are shared, dropout is active, or there is no adapter.
    """
    _refuse_dropout(model)
    if len(getattr(model, "peft_config", {ADAPTER: None})) != 1:
        raise ReproError(f"the model has {len(model.peft_config)} adapters: expected one")
    named = [(n, p) for n, p in model.named_parameters(remove_duplicate=False) if p.requires_grad]
    if not named:
        raise ReproError("no trainable weights: attach an adapter first, and leave the base(policy) context")
    for name, _ in named:
        _refuse_module(name)
    if len({id(p) for _, p in named}) != len(named):
        raise ReproError("adapter weights are shared by several modules: expected one pair A, B a projection")
    return dict(named)


def lora_layers(model: nn.Module) -> dict[str, Any]:
    """The adapted projections of a model by name, in the model's order."""
    return {name: module for name, module in model.named_modules() if isinstance(module, LoraLayer)}


def can_merge(layers: Mapping[str, Any]) -> bool:
    """Whether adding base and adapter loses nothing: all are in one precision, float32 or wider."""
    return all(
        type(layer.base_layer) is nn.Linear
        and layer.base_layer.weight.dtype == layer.lora_A[ADAPTER].weight.dtype
        and layer.base_layer.weight.dtype in (torch.float32, torch.float64)
        for layer in layers.values()
    )


@contextmanager
def as_linear(layers: Mapping[str, Any], *, adapter: bool) -> Iterator[None]:
    """Inside, each adapted projection is one linear map: the base's, or base plus adapter.

    One matrix product instead of three, and nothing of PEFT's switching. The merged weights are constants
    that ask for a gradient, so that gradients flow back to whatever reads a projection's output.

    Args:
        layers: of ``lora_layers``, which may be merged where ``adapter`` is set (``can_merge``).
        adapter: whether the adapter counts.
    """
    try:
        for layer in layers.values():
            forward = layer.base_layer.forward
            if adapter:
                weight = layer.base_layer.weight.detach() + layer.get_delta_weight(ADAPTER).detach()
                forward = partial(
                    nn.functional.linear, weight=weight.requires_grad_(), bias=layer.base_layer.bias
                )
            vars(layer)["forward"] = forward
        yield
    finally:
        for layer in layers.values():
            vars(layer).pop("forward", None)


def _refuse_module(name: str) -> None:
    """Only the adapter of a projection may be trained: `...q_proj.lora_A.default.weight`."""
    parts = name.split(".")
    if "modules_to_save" in parts:
        raise ReproError(f"{name} is trained in full: expected no modules_to_save")
    if parts[-4:-3] and parts[-4] in PROJECTIONS and parts[-3] in ("lora_A", "lora_B"):
        return
    raise ReproError(f"{name} is trainable: expected only LoRA weights of {', '.join(PROJECTIONS)}")


def _refuse_dropout(model: nn.Module) -> None:
    for name, module in model.named_modules():
        rate = module.p if isinstance(module, nn.Dropout) else getattr(module, "attention_dropout", 0)
        if isinstance(rate, float) and rate > 0 and (module.training or "lora_dropout" in name):
            raise ReproError(
                f"{name} drops out at rate {rate}: expected 0, as masks couple the records of a batch"
            )


def trainable_count(model: Any) -> tuple[int, int]:
    """Trainable coordinates p, and the number of tensors that hold them."""
    tensors = adapter_parameters(model).values()
    return sum(t.numel() for t in tensors), len(tensors)


def write(model: Any, directory: Path) -> None:
    """Write the adapter in PEFT's format, each file replaced as a whole. See ``models.save_adapter``."""
    adapter_parameters(model)
    weights = get_peft_model_state_dict(model, adapter_name=ADAPTER, save_embedding_layers=False)
    settings = model.peft_config[ADAPTER].to_dict() | {"inference_mode": True}
    # sorted, so that equal adapters are equal bytes: PEFT keeps the modules in a set
    text = json.dumps(settings, indent=2, sort_keys=True, default=sorted)
    write_atomically(directory / CONFIG, text + "\n")
    write_atomically(directory / WEIGHTS, save({n: t.contiguous().cpu() for n, t in weights.items()}))


def read(directory: Path) -> tuple[LoraConfig, dict[str, Tensor]]:
    """Settings and weights that ``write`` left in a directory.

    Raises:
        ReproError: a missing or damaged file, or settings other than ours; it names the file.
    """
    return _read_config(directory / CONFIG), _read_weights(directory / WEIGHTS)


def fill(model: Any, config: LoraConfig, weights: dict[str, Tensor]) -> None:
    """Put weights that were read into a model's adapter, bit for bit.

    Raises:
        ReproError: rank, alpha or a tensor's name or shape differs.
    """
    present = get_peft_model_state_dict(model, adapter_name=ADAPTER, save_embedding_layers=False)
    here = model.peft_config[ADAPTER]
    if (here.r, here.lora_alpha) != (config.r, config.lora_alpha):
        raise ReproError(
            f"an adapter of rank {config.r}, alpha {config.lora_alpha}: expected {here.r}, {here.lora_alpha}"
        )
    differing = {n: tuple(t.shape) for n, t in present.items()}.items() ^ {
        n: tuple(t.shape) for n, t in weights.items()
    }.items()
    if differing:
        name, shape = sorted(differing)[0]
        raise ReproError(f"the adapter belongs to another base model: {name} of shape {shape} fits only one")
    set_peft_model_state_dict(model, weights, adapter_name=ADAPTER)


def _read_weights(path: Path) -> dict[str, Tensor]:
    try:
        weights = load_file(path)
    except (OSError, SafetensorError) as error:
        raise ReproError(f"{path}: no readable adapter ({error}): restore it or run again") from error
    broken = [name for name, tensor in weights.items() if not tensor.isfinite().all()]
    if broken:
        raise ReproError(f"{path}: {broken[0]} holds a value that is not finite: restore it or run again")
    return weights


def _read_config(path: Path) -> LoraConfig:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        config = lora_config(rank=int(found["r"]), alpha=int(found["lora_alpha"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ReproError(
            f"{path}: no readable adapter settings ({error!r}): restore it or run again"
        ) from error
    expected = config.to_dict()
    for key in COMPARED:
        ours, theirs = expected[key], found.get(key, expected[key])
        if ours != (set(theirs) if isinstance(ours, set) else theirs):
            raise ReproError(f"{path}: {key} = {theirs!r}, expected {ours!r}")
    return config
