r"""Sentence classification and short answers: examples, SAGE's seven data sets, their prompts and metrics.

    task = load("sst2", tier="small", style="causal")
    task.template.render(task.train[0].fields)      # "... It was"
    task.verbaliser                                 # {"negative": " terrible", "positive": " great"}
    task.score(task.evaluation, predictions)        # accuracy, or F1 for "squad"

An example, text and label together, is the private record; n is public.
Source: SAGE, Experimental Setup ("Models and tasks", "Training configurations"). It follows DP-AggZO's data:
512 examples a class drawn with seed 42 for RoBERTa, 1,000 training and 500 selection examples for OPT, and at
most 1,000 for evaluation.
"""

import re
import string
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from reprolib.errors import ReproError
from reprolib.tasks.classification_prompts import PROMPTS, STYLES, Style, Template
from reprolib.tasks.datasets import Duplicates, normalised

# training, selection and evaluation examples of DP-AggZO's runs; TREC has fewer than 512 abbreviations
SIZES: dict[tuple[str, Style], tuple[int, int, int]] = {
    ("sst2", "masked"): (1_024, 1_024, 872),
    ("sst5", "masked"): (2_560, 2_560, 1_000),
    ("trec", "masked"): (2_646, 2_243, 500),
    ("snli", "masked"): (1_536, 1_536, 1_000),
    ("mnli", "masked"): (1_536, 1_536, 1_000),
    ("rte", "masked"): (1_024, 1_024, 277),
    ("sst2", "causal"): (1_000, 500, 872),
    ("squad", "causal"): (1_000, 500, 1_000),
}
NAMES = ("sst2", "sst5", "trec", "snli", "mnli", "rte", "squad")
MODELS: dict[Style, tuple[str, ...]] = {
    "masked": ("FacebookAI/roberta-large",),
    "causal": ("facebook/opt-1.3b", "facebook/opt-6.7b"),
}


@dataclass(frozen=True, kw_only=True)
class Example:
    """One record.

    Attributes:
        id: unique in its task.
        fields: the texts by name, as templates name them.
        label: the class; None for a question.
        answers: the accepted answers of a question; none for a class.
    """

    id: str
    fields: Mapping[str, str]
    label: str | None = None
    answers: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Classification:
    """A data set with its prompt.

    Attributes:
        name: see ``NAMES``.
        tier: "smoke", "micro", "small" or "paper".
        style: the kind of model that reads it: "masked" or "causal".
        train: the n private training examples.
        dev: examples to select by.
        evaluation: the endpoint's examples.
        template: the prompt.
        verbaliser: each label's word, blanks included, in the order of the classes; empty for questions.
        end: what ends an answer.
        max_tokens: the prompt's cap in tokens; None for the model's context.
        max_new_tokens: the most tokens that an answer may have.

    Raises:
        ReproError: an example's label has no word, or an example has neither label nor answer.
    """

    name: str
    tier: str
    style: Style
    train: tuple[Example, ...]
    dev: tuple[Example, ...]
    evaluation: tuple[Example, ...]
    template: Template
    verbaliser: Mapping[str, str]
    end: str = "\n"
    max_tokens: int | None = None
    max_new_tokens: int = 50

    def __post_init__(self) -> None:
        if self.template.masked != (self.style == "masked"):
            with_or_without = "with" if self.style == "masked" else "without"
            raise ReproError(f"{self.name}: a {self.style} model needs a template {with_or_without} {{mask}}")
        for example in (*self.train, *self.dev, *self.evaluation):
            if self.verbaliser:
                self.label_index(example)
            elif not example.answers:
                raise ReproError(f"example {example.id}: no answer: expected at least one")

    @property
    def labels(self) -> tuple[str, ...]:
        """The classes, in the order of their scores."""
        return tuple(self.verbaliser)

    @property
    def metric(self) -> Literal["accuracy", "f1"]:
        """What ``score`` computes."""
        return "accuracy" if self.verbaliser else "f1"

    def label_index(self, example: Example) -> int:
        """The position of an example's label.

        Raises:
            ReproError: the verbaliser has no word for it.
        """
        if example.label not in self.verbaliser:
            raise ReproError(
                f"example {example.id}: label {example.label!r} has no word: expected one of "
                f"{', '.join(self.verbaliser)}"
            )
        return self.labels.index(example.label)

    def score(self, examples: Sequence[Example], predictions: Sequence[str]) -> float:
        """Accuracy of predicted labels, or mean F1 of predicted answers, from 0 to 1.

        Raises:
            ReproError: no example, or another number of predictions.
        """
        return sum(self.correctness(examples, predictions)) / len(examples)

    def correctness(self, examples: Sequence[Example], predictions: Sequence[str]) -> list[float]:
        """Each example's part in the score: 0 or 1 for a label, F1 for an answer.

        Raises:
            ReproError: no example, or another number of predictions.
        """
        if not examples or len(examples) != len(predictions):
            raise ReproError(
                f"{len(predictions)} predictions, {len(examples)} examples: expected one for each"
            )
        pairs = zip(examples, predictions, strict=True)
        if self.verbaliser:
            return [float(example.label == predicted) for example, predicted in pairs]
        return [best_f1(predicted, example.answers) for example, predicted in pairs]


def load(name: str, *, tier: str, style: Style, duplicates: Duplicates = "refuse") -> Classification:
    """A task: procedural at the tiers smoke and micro, from real data at small and paper.

    Args:
        name: see ``NAMES``; at smoke and micro "sst2", "snli", "trec" and "squad".
        tier: "smoke", "micro", "small" or "paper". At "small" the few-shot splits serve both styles, and a
            small file of questions is divided; at "paper" the sizes must be the paper's.
        style: "masked" (RoBERTa) or "causal" (OPT, SmolLM2); "squad" is causal only.
        duplicates: what to do with a training example whose text occurs twice (letter case and spacing
            aside), as in the published splits of RTE, SST-5 and TREC: two slots hold one private text, which
            the guarantee for a slot does not cover. With "keep" the guarantee of a text in k slots is
            ``accounting.group_privacy(epsilon, delta, k)``.

    Raises:
        ReproError: no such task, tier or style; data that is missing, malformed, repeated or, at "paper", of
            another size.
    """
    _require_known(name, tier, style, duplicates)
    if tier in ("smoke", "micro"):
        from reprolib.tasks.classification_micro import micro_task

        return micro_task(name, tier=tier, style=style)
    from reprolib.tasks.classification_data import splits

    train, dev, evaluation = splits(name, tier=tier, style=style)
    if duplicates == "refuse":
        _refuse_repeats(train)
    template, words, cap = PROMPTS[name, style]
    task = Classification(
        name=name, tier=tier, style=style, train=train, dev=dev, evaluation=evaluation,
        template=Template(template), verbaliser=words, max_tokens=cap,
    )  # fmt: skip
    if tier == "paper":
        _require_published_sizes(task)
    return task


def _require_known(name: str, tier: str, style: str, duplicates: str) -> None:
    if name not in NAMES:
        raise ReproError(f"task {name!r}: expected one of {', '.join(NAMES)}")
    if tier not in ("smoke", "micro", "small", "paper"):
        raise ReproError(f"tier {tier!r}: expected smoke, micro, small or paper")
    if style not in STYLES or (name, style) not in PROMPTS:
        raise ReproError(f"{name} in style {style!r}: expected masked or causal (squad: causal)")
    if tier == "paper" and (name, style) not in SIZES:
        raise ReproError(f"{name} in style {style!r}: the paper has no such run: use the tier small")
    if duplicates not in ("refuse", "keep"):
        raise ReproError(f"duplicates = {duplicates!r}: expected 'refuse' or 'keep'")


def _require_published_sizes(task: Classification) -> None:
    found, expected = (len(task.train), len(task.dev), len(task.evaluation)), SIZES[task.name, task.style]
    if found != expected:
        raise ReproError(
            f"{task.name} has {found} training, selection and evaluation examples, the paper {expected}: "
            "give the whole data set, or use the tier small"
        )


def repeated(examples: Iterable[Example]) -> list[tuple[str, str]]:
    """Pairs of ids, first and later, of examples with the same texts but for letter case and spacing."""
    first: dict[tuple[str, ...], str] = {}
    keys = ((tuple(normalised(text) for text in e.fields.values()), e.id) for e in examples)
    return [(first[key], name) for key, name in keys if first.setdefault(key, name) != name]


def _refuse_repeats(train: Sequence[Example]) -> None:
    pairs = repeated(train)
    if pairs:
        raise ReproError(
            f"training example {pairs[0][1]} repeats {pairs[0][0]}, {len(pairs)} repeat in all: load with "
            "duplicates='keep' and state group privacy"
        )


def normalised_answer(text: str) -> str:
    """An answer as SQuAD's metric compares it: lower case, no punctuation, no article, single blanks.

    Source: SAGE, Table 2 ("SQuAD"), after the evaluation script of SQuAD v1.1.
    """
    bare = "".join(c for c in text.lower() if c not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", bare).split())


def f1(predicted: str, answer: str) -> float:
    """Harmonic mean of precision and recall over the words of two normalised answers; 0 if none is shared."""
    ours, theirs = (normalised_answer(text).split() for text in (predicted, answer))
    shared = sum((Counter(ours) & Counter(theirs)).values())
    return 2 * shared / (len(ours) + len(theirs)) if shared else 0.0


def best_f1(predicted: str, answers: Iterable[str]) -> float:
    """F1 against the accepted answer that fits best."""
    return max(f1(predicted, answer) for answer in answers)


def exact_match(predicted: str, answers: Iterable[str]) -> bool:
    """Whether a normalised answer equals an accepted one."""
    return normalised_answer(predicted) in map(normalised_answer, answers)
