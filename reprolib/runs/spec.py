"""What determines a training run, and the directory that holds it."""

import hashlib
import json
import math
import os
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from reprolib.errors import ReproError
from reprolib.paths import root
from reprolib.privacy.plan import Plan

Method = Literal["base", "grpo", "filtered_sft", "gold_sft"]
Advantage = Literal["full", "zero", "shuffled", "positive"]
Unit = Literal["prompt", "contributor"]
TRAINED = ("grpo", "filtered_sft", "gold_sft")
UNITS = {
    "prompt": "one prompt with its reference answer and all its completions",
    "contributor": "one contributor with all their prompts and completions",
}
NOISE = ("noise_multiplier", "target_epsilon")  # two ways to say one thing
_NEEDED = ("population", "expected_batch_size", "learning_rate")

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+-]*$")]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class RunSpec(BaseModel):
    """Everything that determines a training run; two equal specs name one directory.

    Args:
        paper, study, arm: where the run belongs. Study and arm are labels: two of them may share a run.
        task, tier, seed: the task of ``tasks.datasets.load``; the seed fixes the adapter's initial weights.
        model, dtype: a name of ``lm.models.load``, and the precision of its frozen weights; adapter, loss,
            clip and noise stay in float32 or wider.
        engine: what draws completions; "vllm" needs its own environment.
        method: "base" is the untrained model, scored only; the others train.
        advantage: of the GRPO loss: group-normalised, zero, of shuffled rewards, or 1 a correct completion.
        unit: the record that is clipped and protected: a prompt, or all prompts of a contributor.
        population, expected_batch_size, rounds: n, m and T of the plan.
        clip_norm: C; None for no clipping, which needs a run without noise.
        noise_multiplier, target_epsilon: sigma, 0 for a run without noise, or the budget that it is
            calibrated to. Exactly one of the two.
        delta: None means 1 / (10 n) (DP-GRPO, Section VII-A).
        group_size, temperature, max_new_tokens: completions a prompt, and how they are drawn.
        kl_weight, learning_rate: of the loss and of AdamW.
        entropy: "private" noise from the operating system, or "research" noise that the seed replays.
        evaluation: evaluation sets scored after training: a task, or "selection" for the task's own.
        score_at: rounds after which the sets are scored as well as after the last.
        canaries: the last so many slots are canaries, each present with probability 1/2; see
            ``training.canaries_present``.

    Raises:
        ReproError: a field that is unknown, missing or out of range, in one line.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    paper: Name
    study: Name
    arm: Name
    task: Name
    tier: Literal["smoke", "micro", "small", "paper"]
    seed: Annotated[int, Field(ge=0)]
    model: Annotated[str, Field(min_length=1)]
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    engine: Literal["transformers", "vllm"] = "transformers"
    method: Method
    advantage: Advantage = "full"
    unit: Unit = "prompt"
    population: Annotated[int, Field(ge=1)] | None = None
    expected_batch_size: Positive | None = None
    rounds: Annotated[int, Field(ge=0)] = 0
    clip_norm: Positive | None = None
    noise_multiplier: NotNegative | None = None
    target_epsilon: Positive | None = None
    delta: Annotated[float, Field(gt=0, lt=1)] | None = None
    group_size: Annotated[int, Field(ge=1)] = 8
    temperature: Positive = 0.7
    kl_weight: NotNegative = 0.0
    learning_rate: Positive | None = None
    max_new_tokens: Annotated[int, Field(ge=1)]
    entropy: Literal["private", "research"] = "private"
    evaluation: tuple[Name, ...]
    score_at: tuple[int, ...] = ()
    canaries: Annotated[int, Field(ge=0)] = 0

    def __init__(self, **fields: Any):
        try:
            super().__init__(**fields)
        except ValidationError as error:
            raise ReproError(_one_line(fields, error)) from None

    @model_validator(mode="after")
    def _consistent(self) -> "RunSpec":
        if not self.evaluation:
            raise ValueError("evaluation = (): expected at least one evaluation set")
        if self.method not in TRAINED:
            if self.rounds or self.noise_multiplier is not None or self.target_epsilon is not None:
                raise ValueError("method = 'base' trains nothing: leave out rounds and noise")
            return self
        if missing := [name for name in _NEEDED if getattr(self, name) is None]:
            raise ValueError(f"{missing[0]} is missing: method {self.method!r} needs it")
        if self.rounds < 1:
            raise ValueError("rounds = 0: expected at least 1")
        if (self.noise_multiplier is None) == (self.target_epsilon is None):
            raise ValueError("expected exactly one of noise_multiplier and target_epsilon")
        if self.clip_norm is None and self.private:
            raise ValueError("clip_norm is missing: noise needs a clipping norm")
        if self.expected_batch_size > self.population:  # type: ignore[operator]  # both are there
            raise ValueError(
                f"expected_batch_size = {self.expected_batch_size}: expected at most the population, "
                f"{self.population}"
            )
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
        if wrong := [r for r in self.score_at if not 1 <= r <= self.rounds]:
            raise ValueError(f"score_at = {wrong[0]}: expected rounds from 1 to {self.rounds}")
        return self

    @property
    def private(self) -> bool:
        """Whether noise is added."""
        return self.target_epsilon is not None or bool(self.noise_multiplier)

    @property
    def scored_rounds(self) -> tuple[int, ...]:
        """Rounds after which the evaluation sets are scored; the last is always among them."""
        return tuple(sorted({*self.score_at, self.rounds}))

    def changed(self, **changes: Any) -> "RunSpec":
        """The spec with other values, checked again; a noise or a budget given replaces the other.

        Raises:
            ReproError: as for ``RunSpec``.
        """
        fields = self.model_dump()
        if any(changes.get(name) is not None for name in NOISE):
            fields |= dict.fromkeys(NOISE)
        return RunSpec(**(fields | changes))

    def plan(self) -> Plan:
        """The plan of the run; a target epsilon is turned into its noise multiplier.

        Raises:
            ReproError: the base model has no plan; or a value out of the accountant's range.
        """
        if self.method not in TRAINED or self.population is None or self.expected_batch_size is None:
            raise ReproError(f"{self.arm}: the base model is not trained, so it has no plan")
        common: dict[str, Any] = {
            "unit": UNITS[self.unit],
            "population": self.population,
            "expected_batch_size": self.expected_batch_size,
            "rounds": self.rounds,
            "clip_norm": math.inf if self.clip_norm is None else self.clip_norm,
            "delta": self.delta or 1 / (10 * self.population),
        }
        if self.target_epsilon is not None:
            return Plan.calibrated(**common, target_epsilon=self.target_epsilon)
        return Plan(**common, noise_multiplier=self.noise_multiplier or 0.0)

    @property
    def name(self) -> str:
        """Name of the run's directory: method, task, seed and a hash of all that determines the run."""
        method = self.method if self.advantage == "full" else f"{self.method}-{self.advantage}"
        return f"{method}-{self.task}-seed{self.seed}-{self.digest[:10]}"

    @property
    def digest(self) -> str:
        """Hash of all that determines the run, in hexadecimal digits."""
        content = json.dumps(self.model_dump(exclude={"study", "arm"}), sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()


def runs_root() -> Path:
    """The folder of all runs: ``REPROLIB_RUNS``, else ``runs`` under the repository root."""
    return Path(os.environ.get("REPROLIB_RUNS") or root() / "runs")


def directory(spec: RunSpec) -> Path:
    """Where a run is, or will be: ``runs/<tier>/<paper>/<method>-<task>-seed<k>-<hash>``."""
    return runs_root() / spec.tier / spec.paper / spec.name


def _one_line(fields: dict[str, Any], error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    who = "-".join(str(fields[key]) for key in ("arm", "task") if key in fields) or "run"
    if not first["loc"]:
        return f"{who}: {first['msg'].removeprefix('Value error, ')}"
    name = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        return f"{who}: unknown field {name!r}; the fields are {', '.join(RunSpec.model_fields)}"
    if first["type"] == "missing":
        return f"{who}: {name} is missing"
    return f"{who}: {name} = {first['input']!r}: {first['msg'].replace('Input should be', 'expected')}"
