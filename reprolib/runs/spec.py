"""What determines a training run, and the directory that holds it."""

import hashlib
import importlib
import json
import math
import os
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from reprolib.errors import ReproError
from reprolib.paths import root
from reprolib.privacy.ledger import AnyPlan
from reprolib.privacy.plan import Plan

NOISE = ("noise_multiplier", "target_epsilon")  # two ways to say one thing

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+-]*$")]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
FAMILIES = {  # imported by name: see ``sources.fingerprint``
    "dp_grpo": ("reprolib.runs.dp_grpo", "GrpoSpec"),
    "privdpo": ("reprolib.runs.privdpo", "PrivdpoSpec"),
    "sage": ("reprolib.runs.sage", "SageSpec"),
}


class RunSpec(BaseModel, ABC):
    """What every run has, whatever its paper; two equal specs name one directory.

    A paper's own class adds its settings, names the module that builds its runs, and computes the plan. Study
    and arm are labels: two of them may share a run.

    Args:
        paper, study, arm: where the run belongs.
        task, tier, seed: of the paper's own tasks; the seed fixes initial weights and public orders.
        model, dtype: a name of ``lm.models.load``, and the precision of its weights; clip and noise stay in
            float32 or wider.
        method: "base" is the untrained model, scored only; the others train.
        entropy: "private" randomness from the operating system, or "research", which the seed replays.
        evaluation: names of evaluation sets, scored after training.
        score_at: rounds after which the sets are scored as well as after the last.

    Raises:
        ReproError: a field that is unknown, missing or out of range, in one line.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    builder: ClassVar[str]  # module whose ``build`` makes the run
    of_the_base: ClassVar[frozenset[str]]  # settings that an untrained model has

    paper: Name
    study: Name
    arm: Name
    task: Name
    tier: Literal["smoke", "micro", "small", "paper"]
    seed: Annotated[int, Field(ge=0)]
    model: Annotated[str, Field(min_length=1)]
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    engine: Literal["transformers", "vllm"] = "transformers"
    method: str
    entropy: Literal["private", "research"] = "private"
    evaluation: tuple[Name, ...]
    score_at: tuple[int, ...] = ()

    def __init__(self, **fields: Any):
        try:
            super().__init__(**fields)
        except ValidationError as error:
            raise ReproError(_one_line(type(self), fields, error)) from None

    @model_validator(mode="after")
    def _scored(self) -> Self:
        if not self.evaluation:
            raise ValueError("evaluation = (): expected at least one evaluation set")
        return self

    @property
    def trained(self) -> bool:
        """Whether the run trains anything."""
        return self.method != "base"

    @property
    @abstractmethod
    def last_round(self) -> int:
        """Rounds of the whole run; 0 for an untrained model."""

    @property
    def scored_rounds(self) -> tuple[int, ...]:
        """Rounds after which the evaluation sets are scored; the last is always among them."""
        return tuple(sorted({*self.score_at, self.last_round}))

    @abstractmethod
    def plan(self) -> AnyPlan | None:
        """What the run is allowed to spend; None for an untrained model.

        Raises:
            ReproError: a value out of the accountant's range.
        """

    def changed(self, **changes: Any) -> Self:
        """The spec with other values, checked again; a noise or a budget given replaces the other.

        Raises:
            ReproError: as for ``RunSpec``.
        """
        fields = self.model_dump()
        if any(changes.get(name) is not None for name in NOISE):
            fields |= {name: None for name in NOISE if name in fields}
        return type(self)(**(fields | changes))

    @property
    def name(self) -> str:
        """Name of the run's directory: method, task, seed and a hash of all that determines the run."""
        return f"{self.variant}-{self.task}-seed{self.seed}-{self.digest[:10]}"

    @property
    def variant(self) -> str:
        """The method as it stands in a directory's name."""
        return self.method

    @property
    def digest(self) -> str:
        """Hash of all that determines the run, in hexadecimal digits."""
        content = json.dumps(self.model_dump(exclude={"study", "arm"}), sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()


class SampledSpec(RunSpec):
    """A run that a ``Plan`` accounts for: Poisson-sampled records, one Gaussian release a round.

    Args:
        population, expected_batch_size, rounds: n, m and T of the plan.
        clip_norm: C; None for no clipping, which needs a run without noise.
        noise_multiplier, target_epsilon: sigma, 0 for a run without noise, or the budget that it is
            calibrated to. Exactly one of the two.
        learning_rate: of the optimizer.

    Raises:
        ReproError: as for ``RunSpec``.
    """

    population: Annotated[int, Field(ge=1)] | None = None
    expected_batch_size: Positive | None = None
    rounds: Annotated[int, Field(ge=0)] = 0
    clip_norm: Positive | None = None
    noise_multiplier: NotNegative | None = None
    target_epsilon: Positive | None = None
    learning_rate: Positive | None = None

    @model_validator(mode="after")
    def _planned(self) -> Self:
        if not self.trained:
            if self.rounds or self.noise_multiplier is not None or self.target_epsilon is not None:
                raise ValueError("method = 'base' trains nothing: leave out rounds and noise")
            return self
        needed = ("population", "expected_batch_size", "learning_rate")
        if missing := [name for name in needed if getattr(self, name) is None]:
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
        if wrong := [r for r in self.score_at if not 1 <= r <= self.rounds]:
            raise ValueError(f"score_at = {wrong[0]}: expected rounds from 1 to {self.rounds}")
        return self

    @property
    def private(self) -> bool:
        """Whether noise is added."""
        return self.target_epsilon is not None or bool(self.noise_multiplier)

    @property
    def last_round(self) -> int:
        """T of the plan."""
        return self.rounds

    @property
    @abstractmethod
    def record(self) -> str:
        """What the plan protects, in words."""

    @property
    @abstractmethod
    def plan_delta(self) -> float:
        """Delta of the plan."""

    def plan(self) -> Plan | None:
        """The plan of the run; a target epsilon is turned into its noise multiplier.

        Raises:
            ReproError: a value out of the accountant's range.
        """
        if not self.trained or self.population is None or self.expected_batch_size is None:
            return None
        common: dict[str, Any] = {
            "unit": self.record, "population": self.population, "rounds": self.rounds,
            "expected_batch_size": self.expected_batch_size, "delta": self.plan_delta,
            "clip_norm": math.inf if self.clip_norm is None else self.clip_norm,
        }  # fmt: skip
        if self.target_epsilon is not None:
            return Plan.calibrated(**common, target_epsilon=self.target_epsilon)
        return Plan(**common, noise_multiplier=self.noise_multiplier or 0.0)


def family(paper: str) -> type[RunSpec]:
    """The spec class of a paper, which lives in the module of ``reprolib.runs`` that has the paper's name.

    Raises:
        ReproError: a paper without runs.
    """
    if paper not in FAMILIES:
        raise ReproError(f"no runs of {paper!r}: expected one of {', '.join(FAMILIES)}")
    module, name = FAMILIES[paper]
    found: type[RunSpec] = getattr(importlib.import_module(module), name)
    return found


def runs_root() -> Path:
    """The folder of all runs: ``REPROLIB_RUNS``, else ``runs`` under the repository root."""
    return Path(os.environ.get("REPROLIB_RUNS") or root() / "runs")


def directory(spec: RunSpec) -> Path:
    """Where a run is, or will be: ``runs/<tier>/<paper>/<method>-<task>-seed<k>-<hash>``."""
    return runs_root() / spec.tier / spec.paper / spec.name


def _one_line(model: type[RunSpec], fields: dict[str, Any], error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    who = "-".join(str(fields[key]) for key in ("arm", "task") if key in fields) or "run"
    if not first["loc"]:
        return f"{who}: {first['msg'].removeprefix('Value error, ')}"
    name = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        return f"{who}: unknown field {name!r}; the fields are {', '.join(model.model_fields)}"
    if first["type"] == "missing":
        return f"{who}: {name} is missing"
    return f"{who}: {name} = {first['input']!r}: {first['msg'].replace('Input should be', 'expected')}"
