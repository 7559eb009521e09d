"""Rollouts with vLLM, which lives in an environment of its own (``make vllm``).

    engine = VllmEngine(model_directory, max_model_len=512)
    engine.update(policy)                                   # once a round, after the step
    groups = engine.generate(prompts, sampling, uniform)

Every completion is an unseeded request of one sequence (DP-GRPO, Appendix A-G, (A2); Appendix B). Kernels
need not be batch-invariant in floating point, so that a rollout may still depend on which prompts share its
batch: the gap that the paper leaves open is open here too.
"""

import os
import shutil
import tempfile
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from reprolib.errors import ReproError
from reprolib.lm.adapters import PROJECTIONS
from reprolib.lm.generate import Completion, Sampling, Uniform
from reprolib.lm.models import DTYPES, Policy, adapter_parameters, read_tokenizer, save_adapter

RESERVED_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # the ranks that vLLM reserves room for
PROBED = 20


class VllmEngine:
    """An inference engine in this process, with the adapter of the current round.

    Args:
        model_directory: base model and tokenizer, for example what ``models.export`` wrote.
        max_lora_rank: largest rank of an adapter.
        max_model_len: tokens of a prompt and its completion together.
        dtype: of weights and adapter inside the engine; an fp32 adapter is cast to it.
        seed: starts the sampling stream; None takes it from the operating system. vLLM's own default is a
            constant, with which every process draws the same "unseeded" completions.
        memory: share of the GPU's memory that the engine takes. On a CPU, set VLLM_CPU_KVCACHE_SPACE (GiB).

    Raises:
        ReproError: vLLM is not installed, or an argument is out of range.
    """

    def __init__(
        self,
        model_directory: str | Path,
        *,
        max_lora_rank: int = 4,
        max_model_len: int,
        dtype: str = "float32",
        seed: int | None = None,
        memory: float = 0.5,
    ):
        if dtype not in DTYPES:
            raise ReproError(f"dtype {dtype!r}: expected one of {', '.join(DTYPES)}")
        reserved = next((r for r in RESERVED_RANKS if r >= max_lora_rank), None)
        if reserved is None or max_lora_rank < 1:
            raise ReproError(f"max_lora_rank = {max_lora_rank}: expected 1 to {RESERVED_RANKS[-1]}")
        vllm = _vllm()
        self._params_class = vllm.SamplingParams
        self._lora_request = import_module("vllm.lora.request").LoRARequest
        self._max_model_len = max_model_len
        self._dtype = DTYPES[dtype]
        self._end = int(read_tokenizer(str(model_directory)).eos_token_id)
        self._llm = vllm.LLM(
            model=str(model_directory),
            dtype=dtype,
            max_model_len=max_model_len,
            seed=0,  # it is logged, and vLLM seeds every generator of the process with it
            enable_lora=True,
            max_lora_rank=reserved,
            max_loras=1,
            lora_target_modules=list(PROJECTIONS),  # the head's own path fails on a CPU
            enable_prefix_caching=True,
            enforce_eager=True,
            gpu_memory_utilization=memory,
            disable_log_stats=True,
        )
        torch.manual_seed(int.from_bytes(os.urandom(8), "little") if seed is None else seed)
        self._adapters = tempfile.TemporaryDirectory(prefix="adapters-")
        self._round = 0
        self._request: Any = None

    def update(self, policy: Policy | None) -> None:
        """Use the policy's adapter as it is now; None for the base alone.

        An adapter swapped in place keeps the prefix cache of its predecessor (vLLM issue 42125), so the old
        one is dropped, and the new one comes under an id and a name that no round had before.

        Raises:
            ReproError: the adapter does nothing inside the engine although its weights are not zero, or
                changes the base although B = 0.
        """
        self._drop()
        if policy is None:
            return
        self._round += 1
        directory = Path(self._adapters.name) / f"round-{self._round}"
        save_adapter(policy, directory)
        self._request = self._lora_request(directory.name, self._round, str(directory))
        self._llm.llm_engine.add_lora(self._request)
        self._assert_live(policy)

    def _drop(self) -> None:
        if self._request is not None:
            self._llm.llm_engine.remove_lora(self._request.lora_int_id)
            shutil.rmtree(self._request.lora_path)
            self._request = None

    def _assert_live(self, policy: Policy) -> None:
        """Adapters that reload to nothing are a known fault (vLLM issue 34186)."""
        weights = adapter_parameters(policy.model)
        zero = not any(bool(t.any()) for n, t in weights.items() if "lora_B" in n)
        shift = self._shift_from_base()
        if zero and shift > 32 * torch.finfo(self._dtype).eps:
            raise ReproError(f"an adapter with B = 0 shifts log-probabilities by {shift:.2g} in the engine")
        if not zero and shift == 0:
            raise ReproError("the adapter changes nothing in the engine: it was not loaded, or is too small")

    def _shift_from_base(self) -> float:
        """Largest difference of the probe's log-probabilities between adapter and base."""
        params = self._params(1, 0.0, logprobs=PROBED)
        probe = [{"prompt_token_ids": [self._end]}]
        tables = [
            self._llm.generate(probe, params, use_tqdm=False, lora_request=lora)[0].outputs[0].logprobs[0]
            for lora in (None, self._request)
        ]
        plain, adapted = ({token: entry.logprob for token, entry in table.items()} for table in tables)
        if plain.keys() != adapted.keys():
            return float("inf")
        return float(max(abs(plain[token] - adapted[token]) for token in plain))

    def _params(self, max_tokens: int, temperature: float, **options: Any) -> Any:
        # the end token is ours alone: a generation_config in the model's folder may name others
        return self._params_class(
            n=1,
            seed=None,
            temperature=temperature,
            max_tokens=max_tokens,
            ignore_eos=True,
            stop_token_ids=[self._end],
            detokenize=False,
            **options,
        )

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, uniform: Uniform | None
    ) -> list[list[Completion]]:
        """Completions of each prompt, in the prompts' order.

        Args:
            prompts: token ids.
            sampling: number, length and temperature.
            uniform: hidden uniform draws. vLLM cannot take them token by token: two of them restart the
                engine's sampling stream, which is PyTorch's global one (of whose seed a CPU reads 32 bits).
                None goes on with that stream.

        Raises:
            ReproError: an empty prompt, or one too long for ``max_model_len``.
        """
        self._check(prompts, sampling.max_new_tokens)
        if uniform is not None and sampling.temperature > 0:
            torch.manual_seed(_seed_from(uniform))
        requests = [{"prompt_token_ids": list(p)} for p in prompts for _ in range(sampling.completions)]
        params = self._params(sampling.max_new_tokens, sampling.temperature)
        answers = self._llm.generate(requests, params, use_tqdm=False, lora_request=self._request)
        completions = [self._completion(a.outputs[0].token_ids) for a in answers]
        size = sampling.completions
        return [completions[i : i + size] for i in range(0, len(completions), size)]

    def _check(self, prompts: Sequence[Sequence[int]], max_new_tokens: int) -> None:
        for index, prompt in enumerate(prompts):
            if not prompt:
                raise ReproError(f"prompt {index} is empty: expected at least one token")
            if len(prompt) + max_new_tokens > self._max_model_len:
                raise ReproError(
                    f"prompt {index}: {len(prompt)} tokens and {max_new_tokens} new ones exceed"
                    f" max_model_len = {self._max_model_len}: raise it or shorten the prompt"
                )

    def _completion(self, token_ids: Sequence[int]) -> Completion:
        tokens = tuple(int(t) for t in token_ids)
        return Completion(tokens, capped=tokens[-1] != self._end)

    def logprobs(
        self, prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]]
    ) -> list[NDArray[np.float64]]:
        """Log-probabilities of each completion's tokens at temperature 1, to compare with transformers.

        Raises:
            ReproError: an empty prompt, or a pair too long for ``max_model_len``.
        """
        texts = [[*p, *c] for p, c in zip(prompts, completions, strict=True)]
        self._check(prompts, 0)
        self._check(texts, 1)
        params = self._params(1, 0.0, prompt_logprobs=0)
        requests = [{"prompt_token_ids": text} for text in texts]
        answers = self._llm.generate(requests, params, use_tqdm=False, lora_request=self._request)
        return [
            np.array([a.prompt_logprobs[i][text[i]].logprob for i in range(len(prompt), len(text))])
            for a, prompt, text in zip(answers, prompts, texts, strict=True)
        ]


def _vllm() -> Any:
    # one process: the engine's sampling stream is then ours to restart from hidden randomness
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    try:
        return import_module("vllm")
    except ImportError as error:
        raise ReproError(f"vLLM cannot be imported ({error}): run `make vllm` and use .venv-vllm") from error


def _seed_from(uniform: Uniform) -> int:
    """64 bits of the hidden draws, as a seed."""
    high, low = (int(u * 2**32) for u in uniform(2))
    return high << 32 | low
