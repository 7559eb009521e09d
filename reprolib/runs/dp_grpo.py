"""Runs of DP-GRPO and its controls: their settings, and how task, model and method are put together."""

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from reprolib.errors import ReproError
from reprolib.privacy.ledger import Ledger
from reprolib.privacy.plan import Plan
from reprolib.runs.job import Job, entropy_source
from reprolib.runs.spec import NotNegative, Positive, SampledSpec

if TYPE_CHECKING:
    from reprolib.learn.records import PromptReader, RecordMap
    from reprolib.lm.generate import Engine
    from reprolib.lm.models import Policy
    from reprolib.privacy.mechanism import EntropySource
    from reprolib.tasks.datasets import Problem, Task

    Record = Problem | Sequence[Problem]  # a prompt, or a contributor's prompts

Method = Literal["base", "grpo", "filtered_sft", "gold_sft"]
Advantage = Literal["full", "zero", "shuffled", "positive"]
Unit = Literal["prompt", "contributor"]
UNITS = {
    "prompt": "one prompt with its reference answer and all its completions",
    "contributor": "one contributor with all their prompts and completions",
}
SELECTION = "selection"


class GrpoSpec(SampledSpec):
    """A run of DP-GRPO or of one of its controls.

    Args:
        method: "base", "grpo", "filtered_sft" or "gold_sft".
        engine: what draws completions; "vllm" needs its own environment.
        advantage: of the GRPO loss: group-normalised, zero, of shuffled rewards, or 1 a correct completion.
        unit: the record that is clipped and protected: a prompt, or all prompts of a contributor.
        delta: None means 1 / (10 n) (DP-GRPO, Section VII-A).
        group_size, temperature, max_new_tokens: completions a prompt, and how they are drawn.
        kl_weight: of the loss.
        evaluation: a task of ``tasks.datasets.load``, or "selection" for the task's own.
        canaries: the last so many slots are canaries, each present with probability 1/2; see
            ``canaries_present``.
    """

    builder: ClassVar[str] = "reprolib.runs.dp_grpo"
    of_the_base: ClassVar[frozenset[str]] = frozenset(
        {"task", "model", "dtype", "engine", "method", "max_new_tokens", "evaluation"}
    )

    method: Method
    advantage: Advantage = "full"
    unit: Unit = "prompt"
    delta: Annotated[float, Field(gt=0, lt=1)] | None = None
    group_size: Annotated[int, Field(ge=1)] = 8
    temperature: Positive = 0.7
    kl_weight: NotNegative = 0.0
    max_new_tokens: Annotated[int, Field(ge=1)]
    canaries: Annotated[int, Field(ge=0)] = 0

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if not self.trained:
            return self
        if self.method == "grpo" and self.group_size < 2:
            raise ValueError(
                "group_size = 1: GRPO compares completions of one prompt, so expected at least 2"
            )
        if self.method != "grpo" and self.advantage != "full":
            raise ValueError(f"advantage = {self.advantage!r}: only method 'grpo' has an advantage")
        if self.canaries > self.population:  # type: ignore[operator]
            raise ValueError(
                f"canaries = {self.canaries}: expected at most the population, {self.population}"
            )
        return self

    @property
    def variant(self) -> str:
        """The method, and the rung of the ladder where it is not the full advantage."""
        return self.method if self.advantage == "full" else f"{self.method}-{self.advantage}"

    @property
    def record(self) -> str:
        """The unit in words."""
        return UNITS[self.unit]

    @property
    def plan_delta(self) -> float:
        """delta, 1 / (10 n) unless given."""
        return self.delta or 1 / (10 * (self.population or 1))


def build(spec: GrpoSpec, plan: Plan | None, ledger: Ledger | None) -> Job:
    """Load task and model and make the trainer of the spec's method.

    Raises:
        ReproError: the task has fewer records than the spec's population.
    """
    from reprolib.learn.records import prompt_reader
    from reprolib.learn.trainer import Trainer as LearnTrainer
    from reprolib.lm import models
    from reprolib.tasks import datasets

    task = replace(datasets.load(spec.task, tier=spec.tier), max_new_tokens=spec.max_new_tokens)
    policy = models.load(spec.model, dtype=spec.dtype)
    sets = {name: _evaluation_set(spec, task, name) for name in spec.evaluation}
    problems = [*task.train, *(p for _, problems in sets.values() for p in problems)]
    prompt = prompt_reader(policy, task, _prompts(spec.model, spec.task, spec.tier))
    prompts = [prompt(problem) for problem in problems]
    models.check_prompts(policy, prompts, spec.max_new_tokens, [problem.id for problem in problems])
    engine = _engine(spec, policy, longest=max(map(len, prompts)))
    trainer = None
    if plan is not None:
        policy = models.attach_lora(policy, seed=spec.seed)
        entropy = entropy_source(spec)
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


@lru_cache(maxsize=4)
def _prompts(model: str, task: str, tier: str) -> "dict[Problem, tuple[int, ...]]":
    """Prompts in tokens that the runs of a study share: one dictionary for each model and task."""
    return {}


def _engine(spec: GrpoSpec, policy: "Policy", *, longest: int) -> "Engine":
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
    spec: GrpoSpec,
    policy: "Policy",
    engine: "Engine",
    task: "Task",
    prompts: "PromptReader",
    entropy: "EntropySource",
) -> "RecordMap[Record]":
    from reprolib.learn import grpo, ranks, sft

    if spec.method == "gold_sft":
        return sft.Imitation(policy, task, sft.gold_targets(policy, task.train), prompts=prompts)
    if spec.method == "filtered_sft":
        # drawn in one place: a record has one target, whichever process reads it
        targets = None
        if ranks.rank() == 0:
            targets = sft.filtered_targets(
                policy, engine, task, task.train, group_size=spec.group_size, temperature=spec.temperature,
                entropy=entropy, prompts=prompts,
            )  # fmt: skip
        targets = ranks.from_first(targets)
        return sft.Imitation(policy, task, targets, prompts=prompts)
    return grpo.GroupPolicyGradient(
        policy, engine, task, group_size=spec.group_size, temperature=spec.temperature,
        kl_weight=spec.kl_weight, advantage=spec.advantage, prompts=prompts,
    )  # fmt: skip


def records(spec: GrpoSpec, problems: "Sequence[Problem]") -> "list[Record | None]":
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


def canaries_present(spec: GrpoSpec) -> NDArray[np.bool_]:
    """Which canaries were present: a fair coin each, [canaries]. The canaries are the last slots.

    Source: DP-GRPO, Appendix B (canary diagnostic).
    """
    # a stream of its own: the seed alone also fixes the adapter's initial weights
    return np.random.default_rng([spec.seed, 1]).random(spec.canaries) < 0.5


def _evaluation_set(spec: GrpoSpec, own: "Task", name: str) -> "tuple[Task, tuple[Problem, ...]]":
    """The task that scores an evaluation set, and its problems."""
    from reprolib.tasks import datasets

    if name == SELECTION:
        return own, own.selection
    task = own if name == spec.task else datasets.load(name, tier=spec.tier)
    return task, task.evaluation


def _score(
    spec: GrpoSpec,
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
