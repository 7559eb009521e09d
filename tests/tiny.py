"""A random two-layer Qwen2 with a word tokenizer, for tests that need a model but no knowledge."""

import torch
from reprolib.lm.models import Policy, attach_lora
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

WORDS = [str(d) for d in range(10)] + ["+", "=", " ", ".", "\\boxed{", "}", "The answer is", "?"]
TEMPLATE = (
    "{% for m in messages %}{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}<sep>{% endif %}"
)


def tokenizer() -> PreTrainedTokenizerFast:
    vocabulary = {w: i for i, w in enumerate(["<pad>", "<eos>", "<unk>", "<sep>", *WORDS])}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Split(Regex(r"\\boxed\{|The answer is|."), behavior="isolated")
    inner.decoder = decoders.Fuse()
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=inner, eos_token="<eos>", pad_token="<pad>", unk_token="<unk>",
        additional_special_tokens=["<sep>"],
    )  # fmt: skip
    wrapped.chat_template = TEMPLATE
    return wrapped


def policy(*, dtype: torch.dtype = torch.float32, seed: int = 0) -> Policy:
    """A base without an adapter."""
    words = tokenizer()
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        config = Qwen2Config(
            vocab_size=len(words), hidden_size=16, intermediate_size=24, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
            tie_word_embeddings=True, eos_token_id=1, pad_token_id=0,
        )  # fmt: skip
        model = Qwen2ForCausalLM(config)
        use_plain_norms(model)
    return Policy(model.to(dtype).eval(), words, "tiny")


def use_plain_norms(model: torch.nn.Module) -> None:
    """Norms in the model's own precision: those of transformers compute in float32 whatever it is."""
    for name, module in list(model.named_modules()):
        if type(module).__name__ == "Qwen2RMSNorm":
            plain = torch.nn.RMSNorm(module.weight.shape[0], eps=module.variance_epsilon)
            model.get_submodule(name.rpartition(".")[0]).register_module(name.rpartition(".")[2], plain)


def with_adapter(*, dtype: torch.dtype = torch.float32, scale: float = 0.3, seed: int = 0) -> Policy:
    """A policy whose adapter has moved away from the base."""
    adapted = attach_lora(policy(dtype=dtype, seed=seed), rank=2, alpha=4, seed=seed)
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for parameter in adapted.model.parameters():
            if parameter.requires_grad:
                noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
                parameter.copy_(parameter + scale * noise.to(parameter))
    return adapted
