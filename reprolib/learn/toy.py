"""A random two-layer model, a task of six sums and every arm on it: what the checks and the tests run on.

    policy = with_adapter(dtype=torch.float64)
    arm = record_map(policy, "full", EntropySource.research(0))

Nothing is learned here. What is checked holds for any weights, so small random ones will do.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from reprolib.learn import grpo, sft
from reprolib.learn.records import Group, Method, RecordMap
from reprolib.learn.trainer import Trainer
from reprolib.lm.generate import TransformersEngine
from reprolib.lm.models import Policy, attach_lora
from reprolib.privacy.mechanism import EntropySource
from reprolib.privacy.plan import Plan
from reprolib.tasks.datasets import Problem, Task
from reprolib.tasks.verifiers import Reward

ARMS = ("full", "zero", "shuffled", "positive", "filtered", "gold")
WORDS = [str(d) for d in range(10)] + ["+", "=", " ", ".", "\\boxed{", "}", "The answer is", "?"]
TEMPLATE = (
    "{% for m in messages %}{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}<sep>{% endif %}"
)


def tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer of digits and a few words, with a chat template."""
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
    """A random two-layer Qwen2 without an adapter; PyTorch's global generator is left as it was."""
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
    """A policy whose adapter has moved away from the base; with ``scale=0`` it equals the base."""
    adapted = attach_lora(policy(dtype=dtype, seed=seed), rank=2, alpha=4, seed=seed)
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for parameter in adapted.model.parameters():
            if parameter.requires_grad:
                noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
                parameter.copy_(parameter + scale * noise.to(parameter))
    return adapted


class Contains:
    """Rewards a response that contains the reference; after the reference ``not x``, one without x."""

    def extract(self, response: str, *, capped: bool = False) -> str:
        """The whole response."""
        return response

    def reward(self, response: str, reference: str, *, capped: bool = False) -> Reward:
        """1 if the reference occurs in the response, or is turned round and does not."""
        wanted = reference.removeprefix("not ")
        return 1 if (wanted in response) == (wanted == reference) else 0


def problems(count: int = 6) -> tuple[Problem, ...]:
    """Sums with one digit as their answer; at most nine."""
    return tuple(
        Problem(id=str(i), question=f"{i}+1=", reference=str(i + 1), solution=str(i + 1))
        for i in range(count)
    )


def task(train: Sequence[Problem] | None = None) -> Task:
    """The sums as a task with short completions."""
    train = tuple(problems() if train is None else train)
    return Task(
        name="toy", tier="smoke", train=train, evaluation=train, selection=(), system=None,
        verifier=Contains(), rescorer=None, max_new_tokens=5,
    )  # fmt: skip


def record_map(policy: Policy, arm: str, entropy: EntropySource, *, train: Sequence[Problem] | None = None,
               method: Method = "batched", chunk: int | None = None,
               kl_weight: float = 0.04) -> RecordMap[Problem]:  # fmt: skip
    """The record map of an arm: a rung of the advantage ladder, or ``filtered`` or ``gold`` imitation."""
    engine, sums = TransformersEngine(policy), task(train)
    if arm == "gold":
        gold = sft.gold_targets(policy, sums.train)
        return sft.Imitation(policy, sums, gold, method=method, chunk=chunk)
    if arm == "filtered":
        kept = sft.filtered_targets(
            policy, engine, sums, sums.train, group_size=8, temperature=1.0, entropy=entropy
        )
        return sft.Imitation(policy, sums, kept, method=method, chunk=chunk)
    return grpo.GroupPolicyGradient(
        policy, engine, sums, group_size=8, temperature=1.0, kl_weight=kl_weight,
        advantage=arm, method=method, chunk=chunk,  # type: ignore[arg-type]
    )  # fmt: skip


def random_group(generator: torch.Generator, *, completions: int = 8,
                 advantages: Sequence[float] | None = None) -> Group:  # fmt: skip
    """A prompt of 2 to 6 tokens with completions of 1 to 5 tokens; random advantages if none are given."""

    def tokens(low: int, high: int) -> tuple[int, ...]:
        length = int(torch.randint(low, high, (1,), generator=generator))
        return tuple(torch.randint(2, 20, (length,), generator=generator).tolist())

    drawn = tuple(tokens(1, 6) for _ in range(completions))
    given = torch.randn(completions, generator=generator).tolist() if advantages is None else advantages
    return Group(tokens(2, 7), drawn, tuple(given))


def plan(**changes: Any) -> Plan:
    """All six slots in one round, without noise: what changes is named."""
    given: dict[str, Any] = {
        "unit": "one prompt with all its completions", "population": 6, "expected_batch_size": 6, "rounds": 1,
        "clip_norm": 0.055, "noise_multiplier": 0.0, "delta": 1e-5,
    }  # fmt: skip
    return Plan(**given | changes)


class Recorder:
    """A record map that keeps the rows it hands on."""

    def __init__(self, inner: RecordMap[Problem]):
        self.inner, self.dimension = inner, inner.dimension
        self.blocks: list[Tensor] = []

    @property
    def rows(self) -> Tensor:
        """The rows so far, [records, dimension]."""
        return torch.cat(self.blocks) if self.blocks else torch.zeros(0, self.dimension)

    def vectors(self, records: Sequence[Problem], entropy: EntropySource) -> Iterator[Tensor]:
        """The inner map's blocks, unchanged."""
        for rows in self.inner.vectors(records, entropy):
            self.blocks.append(rows.detach().clone())
            yield rows


def trainer(arm: str = "full", *, entropy: EntropySource, policy: Policy | None = None,
            train: Sequence[Problem | None] | None = None, method: Method = "batched",
            **changes: Any) -> tuple[Trainer[Problem], Recorder]:  # fmt: skip
    """A trainer of an arm on the sums, and the recorder of what its record map returned.

    Args:
        train: one sum, or None for an absent one, for each of the six slots.
        changes: of the plan.
    """
    policy = policy or with_adapter()
    slots: Sequence[Problem | None] = problems() if train is None else train
    present = [p for p in slots if p is not None]
    recorder = Recorder(record_map(policy, arm, entropy, train=present, method=method))
    return Trainer(policy, recorder, slots, plan(**changes), entropy, learning_rate=1e-2), recorder
