"""Runs of SAGE and its baselines: their settings, and how task, model and method are put together."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from reprolib.errors import ReproError
from reprolib.privacy.ledger import AnyPlan, Ledger
from reprolib.privacy.plan import Plan
from reprolib.runs.job import Job, entropy_source
from reprolib.runs.spec import Positive, SampledSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor, nn

    from reprolib.learn.classification import Encoded
    from reprolib.learn.sage import ShrinkageController
    from reprolib.learn.trainer import Loop
    from reprolib.learn.zeroth_order import Loss
    from reprolib.lm.models import Policy
    from reprolib.privacy.mechanism import EntropySource
    from reprolib.tasks.classification import Classification, Example

Method = Literal["base", "mezo", "dp_zo", "dpzero", "dp_aggzo", "dp_adamw"]
Shrinkage = Literal[
    "none", "sage", "late_floor", "precision", "james_stein", "smoothed_james_stein", "linear_decay"
]
SINGLE = ("dp_zo", "dpzero")  # one direction a round
EVALUATIONS = ("evaluation", "dev")
HELD = 50_000_000  # numbers of a round's directions that are held in memory rather than drawn again
Count = Annotated[int, Field(ge=1)]


class SageSpec(SampledSpec):
    """A run of DP-AggZO, of SAGE, which scales its releases, or of a baseline, on a classification task.

    Args:
        task: a name of ``tasks.classification.load``.
        style: the kind of model that reads it, "masked" or "causal".
        method: "base" is zero-shot; "mezo" adds no noise; "dp_zo" and "dpzero" have one direction;
            "dp_aggzo" has K; "dp_adamw" backpropagates.
        shrinkage: what scales a release: nothing, SAGE, another estimator of ``learn.shrinkage``, or a decay
            that reads nothing.
        num_directions: K.
        scale: mu.
        clip_norm: of the K-vector or of the gradient.
        delta: of the plan.
        learning_rate: of the step along the directions, or of AdamW.
        beta, warmup, lam, floor, min_multiplier, subtract_noise, anchored: of ``ShrinkageController``.
        train: all weights, or a LoRA adapter.
        evaluated: as many evaluation and selection examples; None for all.
        evaluation: "evaluation" or "dev". ``strict`` is 1 for the right label or answer; ``value`` is the F1
            of an answer.
    """

    builder: ClassVar[str] = "reprolib.runs.sage"
    of_the_base: ClassVar[frozenset[str]] = frozenset(
        {"task", "model", "dtype", "style", "method", "evaluation", "evaluated"}
    )

    method: Method
    shrinkage: Shrinkage = "none"
    style: Literal["masked", "causal"]
    num_directions: Count = 1
    scale: Positive = 1e-3
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    beta: Annotated[float, Field(gt=0, le=1)] = 0.03
    warmup: Count = 50
    lam: Positive = 1.0
    floor: Positive = 1e-8
    min_multiplier: Annotated[float, Field(ge=0, le=1)] = 0.5
    subtract_noise: bool = True
    anchored: bool = True
    train: Literal["adapter", "full"] = "full"
    evaluated: Count | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if wrong := [name for name in self.evaluation if name not in EVALUATIONS]:
            raise ValueError(f"evaluation {wrong[0]!r}: expected one of {', '.join(EVALUATIONS)}")
        if not self.trained:
            return self
        if self.private and self.method == "mezo":
            raise ValueError("method 'mezo' adds no noise: use 'dp_aggzo'")
        if self.method in SINGLE and self.num_directions != 1:
            raise ValueError(f"num_directions = {self.num_directions}: method {self.method!r} has one")
        if self.shrinkage != "none" and self.method != "dp_aggzo":
            raise ValueError(f"shrinkage = {self.shrinkage!r}: only 'dp_aggzo' releases are scaled")
        if self.shrinkage != "none" and self.warmup >= self.rounds:
            raise ValueError(f"warmup = {self.warmup}: expected fewer rounds than the run's {self.rounds}")
        return self

    @property
    def variant(self) -> str:
        """The method, or what scales its releases."""
        return self.method if self.shrinkage == "none" else self.shrinkage

    @property
    def record(self) -> str:
        """One example."""
        return "one labelled example"

    @property
    def plan_delta(self) -> float:
        """Delta."""
        return self.delta


def build(spec: SageSpec, plan: AnyPlan | None, ledger: Ledger | None) -> Job:
    """Load task and model and make the loop of the spec's method.

    Raises:
        ReproError: the task has fewer training examples than the spec's population.
    """
    from reprolib.learn.classification import encode, load_classifier
    from reprolib.lm import models
    from reprolib.tasks import classification

    task = classification.load(spec.task, tier=spec.tier, style=spec.style)
    policy = load_classifier(spec.model, dtype=spec.dtype)
    sets = {"evaluation": task.evaluation[: spec.evaluated], "dev": task.dev[: spec.evaluated]}
    loop, controller = None, None
    if isinstance(plan, Plan):
        if len(task.train) < plan.population:
            raise ReproError(
                f"{spec.task} at tier {spec.tier} has {len(task.train)} training examples, the run's "
                f"population is {plan.population}: lower it, or use more data"
            )
        policy.model.requires_grad_(spec.train == "full")
        policy = policy if spec.train == "full" else models.attach_lora(policy, seed=spec.seed)
        entropy = entropy_source(spec)
        controller = _controller(spec, plan)
        rows = encode(policy, task, task.train[: plan.population])
        loop = _loop(spec, policy, task, rows, plan, entropy, controller, ledger)

    def observe(released: "Tensor") -> dict[str, float]:
        if controller is None:
            return {}
        names = ("multiplier", "reliability", "energy")
        return {name: float(getattr(controller, name)) for name in names}

    def save(folder: Path) -> None:
        if spec.train == "adapter":
            models.save_adapter(policy, folder)
        else:
            policy.model.save_pretrained(folder)
            policy.tokenizer.save_pretrained(folder)

    return Job(
        trainer=loop, score=lambda name: _score(policy, task, sets[name]), save_adapter=save, observe=observe
    )


def _controller(spec: SageSpec, plan: Plan) -> "ShrinkageController | None":
    from reprolib.learn import shrinkage
    from reprolib.learn.sage import ShrinkageController

    if spec.shrinkage == "none":
        return None
    kinds: dict[str, type[ShrinkageController]] = {
        "sage": ShrinkageController, "late_floor": shrinkage.LateFloor,
        "precision": shrinkage.PrecisionWeighted, "james_stein": shrinkage.JamesStein,
        "smoothed_james_stein": shrinkage.SmoothedJamesStein, "linear_decay": shrinkage.LinearDecay,
    }  # fmt: skip
    names = ("beta", "warmup", "lam", "floor", "min_multiplier", "subtract_noise", "anchored")
    settings = {name: getattr(spec, name) for name in names}
    settings |= {"rounds": plan.rounds} if spec.shrinkage == "linear_decay" else {}
    return kinds[spec.shrinkage].for_plan(plan, num_directions=spec.num_directions, **settings)


def _loop(
    spec: SageSpec, policy: "Policy", task: "Classification", rows: "list[Encoded]", plan: Plan,
    entropy: "EntropySource", controller: "ShrinkageController | None", ledger: Ledger | None,
) -> "Loop[Encoded]":  # fmt: skip
    from reprolib.learn import zeroth_order
    from reprolib.learn.classification import collate, losses
    from reprolib.learn.ranks import sampler_and_sum
    from reprolib.learn.records import RecordMap
    from reprolib.learn.trainer import AdamStep, Loop, Update
    from reprolib.lm.models import adapter_parameters

    def loss(batch: "Sequence[Encoded]") -> "Tensor":
        return losses(policy.model, collate(policy, task, batch))

    adapted = spec.train == "adapter"
    parameters = list((adapter_parameters(policy.model) if adapted else _named(policy)).values())
    rate = spec.learning_rate or 0.0
    record_map: RecordMap[Encoded]
    update: Update
    if spec.method == "dp_adamw":
        record_map = zeroth_order.LossGradient(loss, parameters, batch_size=1 if adapted else 16)
        update = AdamStep(parameters, learning_rate=rate)
    else:
        record_map = differences = _differences(spec, policy, loss, parameters)
        update = zeroth_order.AlongDirections(
            differences.directions, learning_rate=rate, controller=controller
        )
    sampler, total = sampler_and_sum(plan, entropy, dimension=record_map.dimension)
    return Loop(
        parameters, record_map, rows, entropy, sampler=sampler, total=total, update=update, ledger=ledger
    )


def _named(policy: "Policy") -> "dict[str, nn.Parameter]":
    return {name: p for name, p in policy.model.named_parameters() if p.requires_grad}


def _differences(
    spec: SageSpec, policy: "Policy", loss: "Loss[Encoded]", parameters: "list[nn.Parameter]"
) -> Any:
    """The record map of a zeroth-order method; the directions are public and have the run's seed."""
    from reprolib.learn.perturbation import Stacked, Streamed, Vectorised
    from reprolib.learn.zeroth_order import FiniteDifferences, for_method

    numbers = sum(p.numel() for p in parameters) * spec.num_directions
    directions = for_method(
        spec.method.replace("_", "-"), parameters, seed=spec.seed, num_directions=spec.num_directions,
        keep=numbers <= HELD,
    )  # fmt: skip
    if spec.train == "adapter":
        stacked = Stacked(directions, policy.model, copies=8)
        return FiniteDifferences(loss, stacked, scale=spec.scale, length=lambda row: len(row.prompt))
    if numbers <= HELD:
        return FiniteDifferences(loss, Vectorised(directions, policy.model), scale=spec.scale)
    return FiniteDifferences(loss, Streamed(directions, policy.model), scale=spec.scale)


def _score(policy: "Policy", task: "Classification", examples: "Sequence[Example]") -> list[dict[str, Any]]:
    """The predicted label or answer of each example."""
    from reprolib.learn.classification import predict
    from reprolib.tasks.classification import exact_match

    found = predict(policy, task, examples)
    rows = []
    for example, answer, right in zip(examples, found, task.correctness(examples, found), strict=True):
        strict = right == 1 if task.verbaliser else exact_match(answer, example.answers)
        rows.append({
            "problem": example.id, "response": answer, "tokens": len(answer.split()), "capped": False,
            "strict": int(strict), "rescore": None, "value": None if task.verbaliser else right,
        })  # fmt: skip
    return rows
