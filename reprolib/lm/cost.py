"""What a model costs before it is loaded: parameters, operations and bytes, from its configuration.

    config = published("Qwen/Qwen2.5-32B-Instruct")
    size(config).total                                              # 32,763,876,352
    work = Work.of_pair(143, 45)                                    # tokens of a packed preference pair
    step_flops(config, work) * pairs / (148e12 * 0.4) / 3600        # hours of a GPU at 40 % of 148 TFLOP/s
    memory(config, gpus=8, tokens=233, context=233).total / 1e9     # gigabytes on each

Parameter counts are exact, and tested against the models of transformers; so are the activations of a layer.
Operations count matrix products only, a multiplication and an addition each. Nothing here reads a weight.

Source: PrivDPO, Sections 4.3, 5.1, 5.2 and 5.6; SAGE and DP-GRPO name the other models.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from transformers import GPTNeoXConfig, LlamaConfig, OPTConfig, Qwen2Config, RobertaConfig

from reprolib.errors import ReproError
from reprolib.lm.adapters import lora_config
from reprolib.lm.logprobs import HEAD_ENTRIES

Precision = Literal["mixed", "bf16", "fp32"]
Trained = Literal["all", "adapter"]
# bytes of a trained weight as it is stored, of its gradient and of its two AdamW moments; of a weight in use
BYTES: dict[Precision, tuple[int, int, int, int]] = {
    "mixed": (4, 4, 8, 2), "bf16": (2, 2, 4, 2), "fp32": (4, 4, 8, 4),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Size:
    """Parameters by place.

    Attributes:
        embedding: of tokens, positions and types.
        layers: their number.
        linear: weights of the matrix products of a layer.
        small: biases and norms of a layer.
        tail: what follows the layers, without a head that is the embedding.
        head: weights of the product with the vocabulary or the classes, wherever they are stored.
    """

    embedding: int
    layers: int
    linear: int
    small: int
    tail: int
    head: int

    @property
    def layer(self) -> int:
        """Parameters of a layer."""
        return self.linear + self.small

    @property
    def total(self) -> int:
        """All parameters, a tied head counted once: what ``num_parameters`` returns."""
        return self.embedding + self.layers * self.layer + self.tail


def size(config: Any) -> Size:
    """Parameters of a causal language model, or of RoBERTa as a sequence classifier.

    Args:
        config: a configuration of transformers.

    Raises:
        ReproError: another architecture than Qwen2, Llama, GPT-NeoX, OPT and RoBERTa.
    """
    found = _SIZES.get(config.model_type)
    if found is None:
        raise ReproError(f"no formula for a {config.model_type!r}: expected one of {', '.join(_SIZES)}")
    return found(config)


def attention_width(config: Any) -> tuple[int, int]:
    """Coordinates of all query heads, and of all key heads."""
    heads = config.num_attention_heads
    each = getattr(config, "head_dim", None) or config.hidden_size // heads
    return each * heads, each * (getattr(config, "num_key_value_heads", None) or heads)


def _gated(c: Any, biases: int) -> Size:
    """Root-mean-square norms, rotary positions, grouped keys, a gated unit: Qwen2 and Llama."""
    h, (q, kv) = c.hidden_size, attention_width(c)
    head = c.vocab_size * h
    return Size(
        embedding=head, layers=c.num_hidden_layers,
        linear=2 * h * q + 2 * h * kv + 3 * h * c.intermediate_size,
        small=2 * h + biases * (q + 2 * kv), tail=h + (0 if c.tie_word_embeddings else head), head=head,
    )  # fmt: skip


def _plain(c: Any, inner: int, *, positions: int, first: int, tail: int, head: int) -> Size:
    """Layer norms, biases everywhere, four square projections and two layers of the unit: the older ones.

    Args:
        positions: parameters of learned positions and types.
        first: of a norm after the embedding.
    """
    h = c.hidden_size
    return Size(
        embedding=c.vocab_size * h + positions + first, layers=c.num_hidden_layers,
        linear=4 * h * h + 2 * h * inner, small=9 * h + inner, tail=tail, head=head,
    )  # fmt: skip


def _gpt_neox(c: Any) -> Size:
    h, head = c.hidden_size, c.vocab_size * c.hidden_size
    tail = 2 * h + (0 if c.tie_word_embeddings else head)
    return _plain(c, c.intermediate_size, positions=0, first=0, tail=tail, head=head)


def _opt(c: Any) -> Size:
    h, e = c.hidden_size, c.word_embed_proj_dim
    if e != h:
        raise ReproError(f"an OPT model with embeddings of {e} and layers of {h}: no formula for that")
    positions = (c.max_position_embeddings + 2) * h  # two positions are kept for padding
    return _plain(c, c.ffn_dim, positions=positions, first=0, tail=2 * h, head=c.vocab_size * h)


def _roberta(c: Any) -> Size:
    h = c.hidden_size
    positions = (c.max_position_embeddings + c.type_vocab_size) * h
    head = h * h + h * c.num_labels
    tail = head + h + c.num_labels
    return _plain(c, c.intermediate_size, positions=positions, first=2 * h, tail=tail, head=head)


_SIZES: dict[str, Callable[[Any], Size]] = {
    "qwen2": lambda c: _gated(c, 1),
    "llama": lambda c: _gated(c, 0),
    "gpt_neox": _gpt_neox,
    "opt": _opt,
    "roberta": _roberta,
}


def _qwen(
    hidden: int, layers: int, inner: int, heads: int, kv: int, vocabulary: int, tied: bool
) -> Qwen2Config:
    return Qwen2Config(
        hidden_size=hidden, num_hidden_layers=layers, intermediate_size=inner, num_attention_heads=heads,
        num_key_value_heads=kv, vocab_size=vocabulary, tie_word_embeddings=tied,
    )  # fmt: skip


# the papers' models as their makers publish them
_PUBLISHED: dict[str, Callable[[], Any]] = {
    "Qwen/Qwen2.5-1.5B-Instruct": lambda: _qwen(1536, 28, 8960, 12, 2, 151936, True),
    "Qwen/Qwen2.5-3B-Instruct": lambda: _qwen(2048, 36, 11008, 16, 2, 151936, True),
    "Qwen/Qwen2.5-7B-Instruct": lambda: _qwen(3584, 28, 18944, 28, 4, 152064, False),
    "Qwen/Qwen2.5-14B-Instruct": lambda: _qwen(5120, 48, 13824, 40, 8, 152064, False),
    "Qwen/Qwen2.5-32B-Instruct": lambda: _qwen(5120, 64, 27648, 40, 8, 152064, False),
    "meta-llama/Llama-3.2-3B-Instruct": lambda: LlamaConfig(
        hidden_size=3072, num_hidden_layers=28, intermediate_size=8192, num_attention_heads=24,
        num_key_value_heads=8, vocab_size=128256, tie_word_embeddings=True,
    ),
    "EleutherAI/pythia-2.8b": lambda: GPTNeoXConfig(
        hidden_size=2560, num_hidden_layers=32, intermediate_size=10240, num_attention_heads=32,
        vocab_size=50304, tie_word_embeddings=False,
    ),
    "facebook/opt-1.3b": lambda: OPTConfig(
        hidden_size=2048, num_hidden_layers=24, ffn_dim=8192, num_attention_heads=32,
        word_embed_proj_dim=2048,
    ),
    "facebook/opt-6.7b": lambda: OPTConfig(
        hidden_size=4096, num_hidden_layers=32, ffn_dim=16384, num_attention_heads=32,
        word_embed_proj_dim=4096,
    ),
    "FacebookAI/roberta-large": lambda: RobertaConfig(
        hidden_size=1024, num_hidden_layers=24, intermediate_size=4096, num_attention_heads=16,
        vocab_size=50265, max_position_embeddings=514, type_vocab_size=1,
    ),
}  # fmt: skip


def published(name: str) -> Any:
    """The configuration of one of the papers' models, without a download.

    Raises:
        ReproError: no such model here.
    """
    if name not in _PUBLISHED:
        raise ReproError(f"no configuration of {name!r}: expected one of {', '.join(_PUBLISHED)}")
    return _PUBLISHED[name]()


def adapter_parameters(config: Any, *, rank: int = 4) -> int:
    """Parameters of a LoRA adapter on the seven projections of a Qwen2 or Llama model."""
    expected = set(lora_config(rank=rank, alpha=2 * rank).target_modules)
    h, (q, kv), inner = config.hidden_size, attention_width(config), config.intermediate_size
    ends = {"q_proj": h + q, "k_proj": h + kv, "v_proj": h + kv, "o_proj": q + h, "gate_proj": h + inner,
            "up_proj": h + inner, "down_proj": inner + h}  # fmt: skip
    return int(rank * config.num_hidden_layers * sum(ends[name] for name in expected))


# --- operations -----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Work:
    """What a forward pass reads.

    Attributes:
        tokens: positions that go through the layers.
        scored: positions that go through the head.
        attended: position pairs of which one sees the other.
    """

    tokens: int
    scored: int
    attended: float

    @classmethod
    def of_pair(cls, prompt: int, response: int, *, shared: bool = True) -> "Work":
        """A preference pair with two responses of a length.

        Args:
            prompt, response: tokens.
            shared: the prompt is read once for both responses, as here; else twice, as in most trainers.
        """
        alone = (prompt + response) ** 2 / 2
        both = 2 * alone - (prompt**2 / 2 if shared else 0)
        return cls(tokens=(1 if shared else 2) * prompt + 2 * response, scored=2 * response, attended=both)


def forward_flops(config: Any, work: Work) -> float:
    """Operations of a forward pass: two a weight and token, four a visible pair and coordinate of a head."""
    found, (q, _) = size(config), attention_width(config)
    products = 2 * found.layers * found.linear * work.tokens + 2 * found.head * work.scored
    return float(products + 4 * found.layers * q * work.attended)


def step_flops(config: Any, work: Work, *, trained: Trained = "all", recomputed: bool = False,
               reference: bool = True) -> float:  # fmt: skip
    """Operations of forward and backward pass.

    Args:
        trained: with an adapter, the backward pass does not compute the weights' gradients.
        recomputed: activations are computed again in the backward pass.
        reference: the reference's forward pass, before training or in each step: over one pass of the data it
            is the same.
    """
    backward = 2 if trained == "all" else 1
    return (1 + backward + recomputed + reference) * forward_flops(config, work)


def gpu_hours(flops: float, *, peak: float, utilisation: float) -> float:
    """Hours of one GPU.

    Args:
        flops: operations.
        peak: operations a second that the maker promises at this precision.
        utilisation: the share of it that is reached, in (0, 1].

    Raises:
        ReproError: a utilisation out of range.
    """
    if not 0 < utilisation <= 1:
        raise ReproError(f"utilisation = {utilisation!r}: expected a share in (0, 1]")
    return flops / (peak * utilisation) / 3600


# --- bytes ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes on each GPU, by what they hold. ``gathered`` is what FSDP puts together for the layer at work."""

    weights: float
    gradients: float
    moments: float
    gathered: float
    reference: float
    activations: float
    logits: float

    @property
    def total(self) -> float:
        """Their sum: a peak that does not count fragmentation and the library's own buffers."""
        return float(sum(vars(self).values()))


def layer_activations(config: Any, *, context: int, bytes_each: int = 2) -> int:
    """Bytes that autograd keeps for a token of a layer of a Qwen2 or Llama model, as transformers runs it.

    Args:
        context: positions of the row, which the attention mask spans.
        bytes_each: 2 or 4; in two bytes, norms keep a copy in four.
    """
    h, (q, _), inner = config.hidden_size, attention_width(config), config.intermediate_size
    copies = 4 * h if bytes_each == 2 else 0
    return int(
        bytes_each * (6 * h + 4 * q + 4 * inner + context) + copies + 4 * config.num_attention_heads + 8
    )


def memory(config: Any, *, gpus: int, tokens: int, context: int, trained: Trained = "all", rank: int = 4,
           precision: Precision = "mixed", sharded: bool = True, recomputed: bool = True,
           reference: Literal["cached", "resident"] = "cached",
           one_gradient: bool = False) -> Memory:  # fmt: skip
    """Peak bytes on each GPU of a training step with AdamW.

    Args:
        gpus: over which weights, gradients and moments are sharded.
        tokens: positions that one GPU reads at once.
        context: positions of the longest row.
        trained, rank: all weights, or an adapter of this rank.
        precision: "mixed", weights of four bytes that are used in two; "bf16", two bytes for everything.
        sharded: False where each GPU holds all of it.
        recomputed: only the layers' inputs are kept, and one layer at a time is computed again.
        reference: "cached", two numbers a pair; "resident", a second model beside the first.
        one_gradient: one example's own gradient beside the sum, for DP-SGD.

    Raises:
        ReproError: no GPU.
    """
    if gpus < 1:
        raise ReproError(f"gpus = {gpus}: expected at least one")
    found, shards = size(config), gpus if sharded else 1
    stored, gradient, moments, used = BYTES[precision]
    moving = found.total if trained == "all" else adapter_parameters(config, rank=rank)
    frozen = 0 if trained == "all" else found.total
    at_once = 2 * found.layer + found.total - found.layers * found.layer  # one more layer is fetched ahead
    kept = config.num_hidden_layers * config.hidden_size * used if recomputed else 0
    live = layer_activations(config, context=context, bytes_each=used)
    entries = min(max(HEAD_ENTRIES, config.vocab_size), tokens * config.vocab_size)
    return Memory(
        weights=(moving * stored + frozen * used) / shards,
        gradients=moving * gradient / shards + (moving * gradient if one_gradient else 0),
        moments=moving * moments / shards,
        gathered=at_once * used * (2 if trained == "all" else 1) if sharded else 0,
        reference=found.total * used / shards if reference == "resident" else 0,
        activations=tokens * (kept + live * (1 if recomputed else config.num_hidden_layers)),
        logits=12.0 * entries,  # logits, their exponentials and their gradients, in four bytes
    )  # fmt: skip
