"""What the vLLM engine does, as JSON: run by test_vllm_engine.py in the environment of vLLM.

PYTHONPATH=. .venv-vllm/bin/python tests/lm/vllm_checks.py [MODEL_DIRECTORY] [--dtype D] [--throughput N]

Without a directory it makes a random model of the paper's architecture and checks all; of a real model it
checks adapters and log-probabilities, on sentences: where a model has no opinion, rounding chooses its token.
With --throughput it compares tokens per second with transformers' generate instead.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from contextlib import nullcontext
from pathlib import Path

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from reprolib.errors import ReproError
from reprolib.lm import vllm_engine
from reprolib.lm.generate import Sampling, TransformersEngine
from reprolib.lm.models import (
    Policy,
    adapter_parameters,
    attach_lora,
    base,
    encode,
    export,
    load,
    save_adapter,
)
from tests import tiny

VOCABULARY, WORDS = 40_000, len(tiny.tokenizer())
CONTEXT, CACHE_BLOCK = 512, 128  # tokens; blocks of the prefix cache on a CPU
GREEDY = Sampling(completions=1, max_new_tokens=16, temperature=0.0)
SAMPLED = Sampling(completions=8, max_new_tokens=16, temperature=0.7)
QUESTIONS = (
    "What is the capital of France? Answer in one short sentence.",
    "List the first five even numbers.",
)
STORY = "On Monday the baker baked twelve loaves of bread and sold ten of them before noon. " * 16
RANDOM_SCALE, REAL_SCALE = 0.3, 0.1  # of B: it moves each model's opinion and keeps it one


def random_model(directory: Path) -> None:
    """A random Qwen2 whose folder asks for other sampling and another end token: neither may be taken.

    Its vocabulary is padded to the size of real ones, because vLLM treats the head of a small one in
    another way. The first coordinate, to which no layer of the base adds, separates words from padding.
    """
    words = tiny.tokenizer()
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCABULARY, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=CONTEXT,
        tie_word_embeddings=True, eos_token_id=1, initializer_range=0.3,
    )  # fmt: skip
    policy = Policy(Qwen2ForCausalLM(config).eval(), words, "random")
    embedding = policy.model.get_input_embeddings().weight.data
    embedding[len(words) :] = 0
    embedding[:, 0] = -30
    embedding[: len(words), 0] = 30
    for layer in policy.model.model.layers:
        layer.self_attn.o_proj.weight.data[0] = 0
        layer.mlp.down_proj.weight.data[0] = 0
    policy.model.generation_config.update(do_sample=True, top_k=1, eos_token_id=[1, 5])
    export(policy, directory)


def move(policy: Policy, scale: float, seed: int) -> None:
    """Give the adapter's B weights of the seed; scale 0 puts it back to zero."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in adapter_parameters(policy.model).items():
        if "lora_B" in name:
            parameter.data.normal_(0, 1, generator=generator).mul_(scale)


def reference_logprobs(policy: Policy, prompts, completions) -> list[np.ndarray]:
    """The same log-probabilities by transformers, one sequence at a time."""
    found = []
    for prompt, completion in zip(prompts, completions, strict=True):
        with torch.no_grad():
            logits = policy.model(torch.tensor([[*prompt, *completion]])).logits[0].float()
        rows = logits.log_softmax(-1)[len(prompt) - 1 : -1]
        found.append(rows[torch.arange(len(completion)), torch.tensor(completion)].double().numpy())
    return found


def stream(seed: int):
    return np.random.default_rng(seed).random


class Checks:
    """The checks share one engine."""

    def __init__(self, directory: Path, dtype: str, *, real: bool):
        self.engine = vllm_engine.VllmEngine(directory, max_model_len=CONTEXT, dtype=dtype)
        self.policy = attach_lora(load(str(directory), dtype=dtype, device="cpu"), seed=0)
        self.reference = TransformersEngine(self.policy)
        self.scale = REAL_SCALE if real else RANDOM_SCALE
        if real:
            long = encode(self.policy, [{"role": "user", "content": f"{STORY} {QUESTIONS[1]}"}])
            short = [encode(self.policy, [{"role": "user", "content": question}]) for question in QUESTIONS]
            self.prompts = [long, *short, long]
            self.texts = [self.policy.tokenizer.encode(f" The answer is {i}, of course.") for i in range(4)]
        else:
            words = np.random.default_rng(0).integers(4, 14, 3 * CACHE_BLOCK).tolist()
            self.prompts = [words[:300], words[:5], words[100:107], words[:300]]
            self.texts = [words[i : i + 6] for i in range(4)]

    def state(self, policy: Policy | None) -> dict:
        """The engine with the adapter of a policy, beside transformers with the same one."""
        engine, texts = self.engine, self.texts
        for each in (engine, self.reference):
            each.update(policy)
        cached = []
        for _ in range(2):
            request = [{"prompt_token_ids": self.prompts[0]}]
            params = engine._params(1, 0.0)
            answer = engine._llm.generate(request, params, use_tqdm=False, lora_request=engine._request)
            cached.append(answer[0].num_cached_tokens)
        ours = engine.logprobs(self.prompts, texts)
        with nullcontext() if policy else base(self.policy):
            theirs = reference_logprobs(self.policy, self.prompts, texts)
        return {
            "cached": cached,
            "greedy": [list(g[0].tokens) for g in engine.generate(self.prompts, GREEDY, None)],
            "transformers": [list(g[0].tokens) for g in self.reference.generate(self.prompts, GREEDY, None)],
            "logprobs": [row.tolist() for row in ours],
            "difference": max(float(np.abs(a - b).max()) for a, b in zip(ours, theirs, strict=True)),
        }

    def states(self) -> dict:
        found = {}
        for name, scale, seed in [("zero", 0, 1), ("first", 1, 1), ("second", 1, 2), ("again", 1, 1)]:
            move(self.policy, scale * self.scale, seed)
            found[name] = self.state(self.policy)
        return found | {"base": self.state(None)}

    def sampling(self) -> dict:
        def tokens(sampling, uniform):
            return [
                [list(c.tokens) for c in g] for g in self.engine.generate(self.prompts, sampling, uniform)
            ]

        greedy = Sampling(completions=4, max_new_tokens=16, temperature=0.0)
        many = Sampling(completions=50, max_new_tokens=16, temperature=0.7)
        drawn = [c for g in self.engine.generate(self.prompts[1:3], many, stream(4)) for c in g]
        return {
            "greedy": tokens(greedy, None),
            "sampled": [tokens(SAMPLED, None), tokens(SAMPLED, None)],
            "same_uniform": [tokens(SAMPLED, stream(1)), tokens(SAMPLED, stream(1))],
            "other_uniform": tokens(SAMPLED, stream(2)),
            "completions": [[list(c.tokens), c.capped] for c in drawn],
            "end": self.engine._end,
        }

    def frequencies(self) -> dict:
        """First tokens drawn at temperature 0.7, beside the softmax that they should follow."""
        prompt, draws = self.prompts[1], 1000
        self.engine.update(None)
        one = Sampling(completions=draws, max_new_tokens=1, temperature=0.7)
        counts = Counter(c.tokens[0] for c in self.engine.generate([prompt], one, stream(5))[0])
        with torch.no_grad(), base(self.policy):
            logits = self.policy.model(torch.tensor([prompt])).logits[0, -1].double()
        return {
            "counts": [counts[token] for token in range(WORDS)],
            "expected": ((logits / 0.7).softmax(-1)[:WORDS] * draws).tolist(),
            "draws": draws,
        }

    def errors(self) -> dict:
        def message(call, *args):
            try:
                call(*args)
            except ReproError as error:
                return str(error)

        generate = self.engine.generate
        found = {
            "empty": message(generate, [[4], []], GREEDY, None),
            "long": message(generate, [[4] * (CONTEXT - 15)], GREEDY, None),
            "fits": message(generate, [[4] * (CONTEXT - 16)], GREEDY, None),
        }
        found["nothing"] = message(self._update_with_another_file, 0.3, 0)
        found["zero"] = message(self._update_with_another_file, 0, 0.3)
        return found

    def _update_with_another_file(self, scale: float, saved_scale: float) -> None:
        """An update whose file is not the policy's: what a lost or a stale adapter looks like."""

        def save(policy, directory):
            move(policy, saved_scale, 1)
            save_adapter(policy, directory)
            move(policy, scale, 1)

        vllm_engine.save_adapter = save
        try:
            self.engine.update(self.policy)
        finally:
            vllm_engine.save_adapter = save_adapter


def throughput(directory: Path, dtype: str, count: int) -> dict:
    """Tokens per second of one greedy completion of up to 64 tokens for each of several prompts.

    Transformers comes first: a CPU engine pins the threads of its process, which slows all else in it.
    """
    policy = load(str(directory), dtype=dtype, device="cpu")
    questions = [f"Tell me about the number {i} in two sentences." for i in range(count)]
    prompts = [encode(policy, [{"role": "user", "content": q}]) for q in questions]
    sampling = Sampling(completions=1, max_new_tokens=64, temperature=0.0)
    found = {"transformers": rate(lambda chosen: transformers_tokens(policy, chosen), prompts)}
    engine = vllm_engine.VllmEngine(directory, max_model_len=CONTEXT, dtype=dtype)

    def engine_tokens(chosen):
        return sum(len(group[0].tokens) for group in engine.generate(chosen, sampling, None))

    return found | {"vllm": rate(engine_tokens, prompts), "dtype": dtype, "prompts": count}


def rate(tokens, prompts) -> dict:
    """Tokens per second, and what the threads were; one prompt first, to warm up."""
    tokens(prompts[:1])
    start = time.perf_counter()
    total = tokens(prompts)
    seconds = time.perf_counter() - start
    cores = sorted(os.sched_getaffinity(0))
    return {
        "tokens_per_s": total / seconds,
        "tokens": total,
        "threads": torch.get_num_threads(),
        "cores": cores,
    }


def transformers_tokens(policy: Policy, prompts) -> int:
    """Tokens that transformers' generate makes for one padded batch."""
    width, end = max(map(len, prompts)), policy.tokenizer.eos_token_id
    ids = torch.tensor([[end] * (width - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
    with torch.inference_mode():
        rows = policy.model.generate(
            input_ids=ids, attention_mask=mask, max_new_tokens=64, do_sample=False, pad_token_id=end
        )[:, width:].tolist()
    return sum(row.index(end) + 1 if end in row else len(row) for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path, nargs="?")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--throughput", type=int, metavar="PROMPTS", default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        directory = options.directory or Path(scratch) / "model"
        if options.directory is None:
            random_model(directory)
        if options.throughput:
            found = throughput(directory, options.dtype, options.throughput)
        else:
            checks = Checks(directory, options.dtype, real=options.directory is not None)
            parts = [checks.states]
            if options.directory is None:
                parts += [checks.sampling, checks.frequencies, checks.errors]
            found = {part.__name__: part() for part in parts}
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
