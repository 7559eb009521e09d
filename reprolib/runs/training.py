"""From a spec to a trainer and its scores: the one place where tasks, models and methods are put together."""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from reprolib.errors import ReproError
from reprolib.privacy.ledger import Ledger
from reprolib.privacy.plan import Plan
from reprolib.runs.spec import RunSpec

if TYPE_CHECKING:
    from torch import Tensor

    from reprolib.learn.records import PromptReader, RecordMap
    from reprolib.lm.generate import Engine
    from reprolib.lm.models import Policy
    from reprolib.privacy.mechanism import EntropySource
    from reprolib.tasks.datasets import Problem, Task

    Record = Problem | Sequence[Problem]  # a prompt, or a contributor's prompts

SELECTION = "selection"


class Trainer(Protocol):
    """What a run needs of a trainer; ``learn.trainer.Trainer`` is one."""

    @property
    def rounds_done(self) -> int:
        """Rounds whose update is released."""

    def step(self) -> "Tensor":
        """One round; returns the released update, which is public."""

    def state(self) -> dict[str, Any]:
        """All that a resumed run needs: tensors and plain values. Private: it never leaves the machine."""

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a state."""


@dataclass(frozen=True)
class Job:
    """A run in memory.

    Args:
        trainer: None for the untrained base.
        score: responses to an evaluation set, a row a problem, in the set's order. Columns: problem,
            response, tokens (their number), capped, strict and rescore (1, 0, or None without a rescorer).
        save_adapter: writes the adapter's weights to a directory.
    """

    trainer: Trainer | None
    score: Callable[[str], list[dict[str, Any]]]
    save_adapter: Callable[[Path], None]


def build(spec: RunSpec, plan: Plan | None, ledger: Ledger | None) -> Job:
    """Load task and model and make the trainer of the spec's method.

    Raises:
        ReproError: the task has fewer records than the spec's population.
    """
    from reprolib.learn.records import prompt_reader
    from reprolib.learn.trainer import Trainer as LearnTrainer
    from reprolib.lm import models
    from reprolib.privacy.mechanism import EntropySource
    from reprolib.tasks import datasets

    task = replace(datasets.load(spec.task, tier=spec.tier), max_new_tokens=spec.max_new_tokens)
    policy = models.load(spec.model, dtype=spec.dtype)
    sets = {name: _evaluation_set(spec, task, name) for name in spec.evaluation}
    problems = [*task.train, *(p for _, problems in sets.values() for p in problems)]
    prompt = prompt_reader(policy, task)
    prompts = [prompt(problem) for problem in problems]
    models.check_prompts(policy, prompts, spec.max_new_tokens, [problem.id for problem in problems])
    engine = _engine(spec, policy, longest=max(map(len, prompts)))
    trainer = None
    if plan is not None:
        policy = models.attach_lora(policy, seed=spec.seed)
        private = spec.entropy == "private"
        # the digest as seed: two research runs share neither coins nor noise, whatever their seed
        entropy = EntropySource.private() if private else EntropySource.research(int(spec.digest, 16))
        record_map = _record_map(spec, policy, engine, task, prompt, entropy)
        trainer = LearnTrainer[Any](
            policy, record_map, records(spec, task.train), plan, entropy,
            learning_rate=spec.learning_rate or 0.0, ledger=ledger,
        )  # fmt: skip
    return Job(
        trainer=trainer,
        score=lambda name: _score(spec, policy, engine, *sets[name], prompt),
        save_adapter=lambda folder: models.save_adapter(policy, folder),
    )


def _engine(spec: RunSpec, policy: "Policy", *, longest: int) -> "Engine":
    """The engine of the base model; ``longest`` is the number of tokens of the longest prompt."""
    if spec.engine == "transformers":
        from reprolib.lm.generate import TransformersEngine

        return TransformersEngine(policy)
    from reprolib.lm.models import export
    from reprolib.lm.vllm_engine import VllmEngine

    with tempfile.TemporaryDirectory() as scratch:
        export(policy, Path(scratch) / "base")
        return VllmEngine(
            Path(scratch) / "base", max_model_len=longest + spec.max_new_tokens + 1, dtype=spec.dtype
        )


def _record_map(
    spec: RunSpec,
    policy: "Policy",
    engine: "Engine",
    task: "Task",
    prompts: "PromptReader",
    entropy: "EntropySource",
) -> "RecordMap[Record]":
    from reprolib.learn import grpo, sft

    if spec.method == "gold_sft":
        return sft.Imitation(policy, task, sft.gold_targets(policy, task.train), prompts=prompts)
    if spec.method == "filtered_sft":
        targets = sft.filtered_targets(
            policy, engine, task, task.train, group_size=spec.group_size, temperature=spec.temperature,
            entropy=entropy, prompts=prompts,
        )  # fmt: skip
        return sft.Imitation(policy, task, targets, prompts=prompts)
    return grpo.GroupPolicyGradient(
        policy, engine, task, group_size=spec.group_size, temperature=spec.temperature,
        kl_weight=spec.kl_weight, advantage=spec.advantage, prompts=prompts,
    )  # fmt: skip


def records(spec: RunSpec, problems: "Sequence[Problem]") -> "list[Record | None]":
    """The record of each public slot: a problem, or all problems of a contributor; None for an absent canary.

    A population smaller than the training set takes its first records.

    Args:
        problems: the training set of the spec's task.

    Raises:
        ReproError: a problem without a contributor, or fewer records than the population.
    """
    found: list[Record] = list(problems)
    if spec.unit == "contributor":
        groups: dict[str, list[Problem]] = {}
        for problem in problems:
            if problem.contributor is None:
                raise ReproError(f"{problem.id} has no contributor: use the prompt as the unit")
            groups.setdefault(problem.contributor, []).append(problem)
        found = list(groups.values())
    if spec.population is None or len(found) < spec.population:
        raise ReproError(
            f"{spec.task} at tier {spec.tier} has {len(found)} records ({spec.unit}s), the run's population "
            f"is {spec.population}: lower it, or use more data"
        )
    found = found[: spec.population]
    slots: list[Record | None] = list(found)
    for canary in np.flatnonzero(~canaries_present(spec)):
        slots[len(found) - spec.canaries + canary] = None
    return slots


def canaries_present(spec: RunSpec) -> NDArray[np.bool_]:
    """Which canaries were present: a fair coin each, [canaries]. The canaries are the last slots.

    Source: DP-GRPO, Appendix B (canary diagnostic).
    """
    # a stream of its own: the seed alone also fixes the adapter's initial weights
    return np.random.default_rng([spec.seed, 1]).random(spec.canaries) < 0.5


def _evaluation_set(spec: RunSpec, own: "Task", name: str) -> "tuple[Task, tuple[Problem, ...]]":
    """The task that scores an evaluation set, and its problems."""
    from reprolib.tasks import datasets

    if name == SELECTION:
        return own, own.selection
    task = own if name == spec.task else datasets.load(name, tier=spec.tier)
    return task, task.evaluation


def _score(
    spec: RunSpec,
    policy: "Policy",
    engine: "Engine",
    task: "Task",
    problems: "Sequence[Problem]",
    prompts: "PromptReader",
) -> list[dict[str, Any]]:
    """One greedy response to each problem, scored by the task's verifier and rescorer."""
    from reprolib.lm.generate import Sampling

    engine.update(policy)
    greedy = Sampling(completions=1, max_new_tokens=spec.max_new_tokens, temperature=0.0)
    asked = [prompts(problem) for problem in problems]
    rows = []
    for problem, (found,) in zip(problems, engine.generate(asked, greedy, None), strict=True):
        text = policy.tokenizer.decode(list(found.tokens), skip_special_tokens=True)
        strict, rescore = (
            scorer and scorer.reward(text, problem.reference, capped=found.capped)
            for scorer in (task.verifier, task.rescorer)
        )
        rows.append({
            "problem": problem.id, "response": text, "tokens": len(found.tokens), "capped": found.capped,
            "strict": strict, "rescore": rescore,
        })  # fmt: skip
    return rows
