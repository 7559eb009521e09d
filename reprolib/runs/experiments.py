"""Experiment files: the studies of a paper at every tier, fixed before they run.

``data/experiments/<paper>.yml`` builds each run from layers, the later over the earlier: ``common``, the
task, the arm, the arm's entry in the study; each layer is followed by what the tier changes in it, and the
tier's ``always`` comes last.
"""

from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from reprolib.errors import ReproError
from reprolib.paths import root
from reprolib.runs.spec import NOISE, RunSpec, family

Layer = dict[str, Any]
LABELS = {"paper", "study", "arm", "tier", "seed"}


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Entry(_Strict):
    """An arm of a study.

    Args:
        seeds: initialisation seeds, a run each.
        like: the arm whose settings it takes; its own name if not given.
        over: for example ``{learning_rate: [1.0e-4, 1.0e-3]}``: an arm for each value, the value in its name.
        set: what differs.
    """

    seeds: Annotated[tuple[int, ...], Field(min_length=1)]
    like: str | None = None
    over: dict[str, tuple[Any, ...]] = {}
    set: Layer = {}


class Study(_Strict):
    """Arms that are compared with one another, on one task or, without ``task``, on the arms' own."""

    task: str | None = None
    arms: dict[str, Entry]


class Tier(_Strict):
    """What a tier changes.

    Args:
        common, tasks, arms, studies: laid over the layer of the same name; in a study, over its arms.
        always: laid over everything.
        seeds: at most so many seeds an arm; None for all.
        leave_out: studies that the tier does not run.
    """

    common: Layer = {}
    tasks: dict[str, Layer] = {}
    arms: dict[str, Layer] = {}
    studies: dict[str, dict[str, Layer]] = {}
    always: Layer = {}
    seeds: Annotated[int, Field(ge=1)] | None = None
    leave_out: tuple[str, ...] = ()


class Endpoints(_Strict):
    """What is compared and how, fixed before the runs (DP-GRPO, Sections VII-D and VII-E)."""

    primary: tuple[str, str]
    comparators: tuple[str, ...]
    scorer: str
    sensitivity: dict[str, str]
    alpha: float
    power: float
    bootstrap_draws: int
    randomization_draws: int
    statistics_seed: int


class Audit(_Strict):
    """The canary audit (DP-GRPO, Appendix B and Table VII)."""

    canaries: int
    population: int
    expected_batch_size: float
    rounds: int
    noise_multiplier: float
    clip_norm: float
    confidence: float


class Experiment(_Strict):
    """An experiment file."""

    paper: str
    endpoints: Endpoints
    audit: Audit | None = None
    chapters: dict[str, tuple[str, ...]]
    common: Layer
    tasks: dict[str, Layer]
    arms: dict[str, Layer]
    studies: dict[str, Study]
    tiers: dict[str, Tier]


def path(paper: str) -> Path:
    """The experiment file of a paper."""
    return root() / "data" / "experiments" / f"{paper}.yml"


def experiment(paper: str) -> Experiment:
    """Read the experiment file of a paper.

    Raises:
        ReproError: no such file, or a key that is unknown, missing or of a wrong type; names file and key.
    """
    file = path(paper)
    if not file.is_file():
        known = sorted(p.stem for p in file.parent.glob("*.yml"))
        raise ReproError(f"no experiments of {paper!r}: expected one of {', '.join(known)}")
    return _read(file, file.stat().st_mtime_ns)


@lru_cache(maxsize=8)
def _read(file: Path, changed: int) -> Experiment:
    try:
        found = Experiment(**(yaml.load(file.read_text(encoding="utf-8"), Loader=_Loader) or {}))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        raise ReproError(f"{file}{line}: {getattr(error, 'problem', error)}") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"]))
        raise ReproError(f"{file}: {key}: {first['msg']}") from None
    _check(file, found)
    return found


class _Loader(yaml.SafeLoader):
    """YAML in which a key may not occur twice: the first value would be lost without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value]
        for key, _ in node.value:
            if keys.count(key.value) > 1:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key.value!r} occurs twice", key.start_mark
                )
        return super().construct_mapping(node, deep)


def _layers(found: Experiment) -> dict[str, Layer]:
    """Every layer of a file, by its place in the file."""
    layers = {"common": found.common}
    layers |= {f"tasks.{name}": layer for name, layer in found.tasks.items()}
    layers |= {f"arms.{name}": layer for name, layer in found.arms.items()}
    for study, content in found.studies.items():
        for arm, entry in content.arms.items():
            layers |= {f"studies.{study}.arms.{arm}.set": entry.set}
            layers |= {f"studies.{study}.arms.{arm}.over": dict(entry.over)}
    for tier, change in found.tiers.items():
        layers |= {f"tiers.{tier}.common": change.common, f"tiers.{tier}.always": change.always}
        layers |= {f"tiers.{tier}.tasks.{name}": layer for name, layer in change.tasks.items()}
        layers |= {f"tiers.{tier}.arms.{name}": layer for name, layer in change.arms.items()}
        for study, arms in change.studies.items():
            layers |= {f"tiers.{tier}.studies.{study}.{arm}": layer for arm, layer in arms.items()}
    return layers


def _check(file: Path, found: Experiment) -> None:
    """Refuse unknown fields in a layer and names that refer to nothing."""
    settable = set(family(found.paper).model_fields) - LABELS
    for place, layer in _layers(found).items():
        if unknown := sorted(set(layer) - settable):
            raise ReproError(
                f"{file}: {place}.{unknown[0]}: unknown key; it may set {', '.join(sorted(settable))}"
            )
    recipes, studies = set(found.arms), set(found.studies)
    refers = [(f"chapters.{n}", name, studies) for n, names in found.chapters.items() for name in names]
    for study, content in found.studies.items():
        refers += [(f"studies.{study}.arms.{a}", e.like or a, recipes) for a, e in content.arms.items()]
    for tier, change in found.tiers.items():
        refers += [(f"tiers.{tier}.tasks", name, set(found.tasks)) for name in change.tasks]
        refers += [(f"tiers.{tier}.arms", name, recipes) for name in change.arms]
        refers += [(f"tiers.{tier}.leave_out", name, studies) for name in change.leave_out]
        for study, arms in change.studies.items():
            refers += [(f"tiers.{tier}.studies", study, studies)]
            known = set(found.studies[study].arms) if study in studies else set()
            refers += [(f"tiers.{tier}.studies.{study}", arm, known) for arm in arms]
    for place, name, known in refers:
        if name not in known:
            raise ReproError(f"{file}: {place}: unknown name {name!r}; expected one of {sorted(known)}")


def studies(paper: str, tier: str) -> list[str]:
    """The studies of a paper that a tier runs.

    Raises:
        ReproError: a tier that the file does not know.
    """
    found = experiment(paper)
    if tier not in found.tiers:
        raise ReproError(f"{paper} has no tier {tier!r}: expected one of {', '.join(found.tiers)}")
    return [name for name in found.studies if name not in found.tiers[tier].leave_out]


def needed(chapter: str, tier: str) -> list[tuple[str, str]]:
    """The studies that a chapter reads at a tier, as (paper, study)."""
    papers = sorted(file.stem for file in path("*").parent.glob("*.yml"))
    return [
        (paper, study)
        for paper in papers
        for study in experiment(paper).chapters.get(chapter, ())
        if study in studies(paper, tier)
    ]


def grid(paper: str, tier: str, study: str | None = None) -> list[RunSpec]:
    """The runs of a paper at a tier, or those of one study.

    Args:
        paper: name of the experiment file.
        tier: smoke, micro, small or paper.
        study: None for all that the tier runs.

    Raises:
        ReproError: an unknown paper, tier or study, or settings that make no run; names file and key.
    """
    found, known = experiment(paper), studies(paper, tier)
    if study is not None and study not in known:
        raise ReproError(f"{paper} at tier {tier} has no study {study!r}: expected one of {', '.join(known)}")
    specs = []
    for name in known if study is None else [study]:
        for arm, entry in found.studies[name].arms.items():
            specs += _specs(found, tier, name, arm, entry)
    return specs


def _specs(found: Experiment, tier: str, study: str, arm: str, entry: Entry) -> list[RunSpec]:
    change = found.tiers[tier]
    over = entry.over | {
        k: v for k, v in change.studies.get(study, {}).get(arm, {}).items() if k in entry.over
    }
    variants = [(arm, Layer())]
    for field, values in over.items():
        variants = [(f"{n}-{value:g}", {**s, field: value}) for n, s in variants for value in values]
    specs = []
    for name, chosen in variants:
        fields = _fields(found, tier, study, arm, entry) | chosen
        for seed in entry.seeds[: change.seeds]:
            identity = {"paper": found.paper, "study": study, "arm": name, "tier": tier, "seed": seed}
            try:
                specs.append(family(found.paper)(**identity, **fields))
            except ReproError as error:
                raise ReproError(f"{path(found.paper)}: studies.{study}.arms.{arm}: {error}") from None
    return specs


def _fields(found: Experiment, tier: str, study: str, arm: str, entry: Entry) -> Layer:
    change, recipe = found.tiers[tier], entry.like or arm
    in_tier = {k: v for k, v in change.studies.get(study, {}).get(arm, {}).items() if k not in entry.over}
    task = entry.set.get("task", found.studies[study].task)
    if task not in found.tasks:
        raise ReproError(
            f"{path(found.paper)}: studies.{study}.arms.{arm}: task = {task!r}; expected one of "
            f"{', '.join(found.tasks)}, given by the study or the arm"
        )
    fields: Layer = {"task": task}
    for layer in (
        found.common, change.common, found.tasks[task], change.tasks.get(task, {}), found.arms[recipe],
        change.arms.get(recipe, {}), entry.set, in_tier, change.always,
    ):  # fmt: skip
        if any(name in layer for name in NOISE):  # a noise or a budget replaces the other
            fields = {key: value for key, value in fields.items() if key not in NOISE}
        fields |= layer
    if fields.get("method") == "base":
        known = family(found.paper).of_the_base
        fields = {key: value for key, value in fields.items() if key in known}
    return fields
