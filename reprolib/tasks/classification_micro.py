r"""Classification tasks of the micro tier, and the public text that their base models have read.

    task = micro_task("snli", tier="micro", style="masked")
    text = public_examples("snli", size=1000, seed=1)      # as public text reads them, none the task's

"sst2", "snli" and "trec" have the 2, 3 and 6 classes of their namesakes; "squad" asks for two words of a
tale. What the texts are, and why a base misreads some, is in ``reprolib.tasks.classification_drafts``.
"""

import random
from collections.abc import Iterator
from functools import cache
from itertools import islice
from string import Formatter

from reprolib.errors import ReproError
from reprolib.tasks.classification import Classification, Example
from reprolib.tasks.classification_drafts import NAMES, Draft, drafts, words
from reprolib.tasks.classification_prompts import Style, Template

PER_CLASS, EVALUATION = 512, 1_000
QUESTIONS = 1_000, 500, 1_000
_SMOKE = 24, 12, 24
END = " ."
_WORDS = {
    "sst2": {"negative": " terrible", "positive": " great"},
    "snli": {"entailment": " yes", "neutral": " maybe", "contradiction": " no"},
    "trec": {
        "DESC": " description", "ENTY": " entity", "ABBR": " expression", "HUM": " human",
        "LOC": " location", "NUM": " number",
    },
    "squad": {},
}  # fmt: skip
_TEMPLATES: dict[tuple[str, Style], str] = {
    ("sst2", "masked"): "{sentence} . it was{mask} .",
    ("sst2", "causal"): "{sentence} . it was",
    ("snli", "masked"): "{premise} ?{mask} , {hypothesis}",
    ("snli", "causal"): "suppose {premise} . can we infer {hypothesis} ?",
    ("trec", "masked"): "{mask} : {question}",
    ("trec", "causal"): "{question} ? type :",
    ("squad", "causal"): "{context} {question} ?",
}


@cache
def _examples(name: str) -> tuple[tuple[Example, ...], ...]:
    """Training, selection and evaluation examples; no text stands in two of them."""
    fresh = _distinct(drafts(name, "task"))
    if name == "squad":
        chosen = [list(islice(fresh, size)) for size in QUESTIONS]
    else:
        chosen = [_balanced(name, fresh), _balanced(name, fresh), list(islice(fresh, EVALUATION))]
    return tuple(
        tuple(_example(name, f"{name}-{split}-{i:05d}", draft, draft.right) for i, draft in enumerate(rows))
        for split, rows in zip(("train", "dev", "evaluation"), chosen, strict=True)
    )


def _distinct(found: Iterator[Draft]) -> Iterator[Draft]:
    seen = set()
    for draft in found:
        if draft.fields not in seen:
            seen.add(draft.fields)
            yield draft


def _balanced(name: str, fresh: Iterator[Draft]) -> list[Draft]:
    """The next drafts that give each class its number, in the order in which they came."""
    room = dict.fromkeys(_WORDS[name], PER_CLASS)
    found: list[Draft] = []
    while any(room.values()):
        draft = next(fresh)
        if room[draft.right]:
            room[draft.right] -= 1
            found.append(draft)
    return found


def _example(name: str, identifier: str, draft: Draft, reading: str) -> Example:
    identifier += "-plain" if draft.shortcut is None else "-shortcut"
    if name == "squad":
        return Example(id=identifier, fields=dict(draft.fields), answers=(reading,))
    return Example(id=identifier, fields=dict(draft.fields), label=reading)


def micro_task(name: str, *, tier: str, style: Style) -> Classification:
    """The procedural stand-in for a data set, the same on every machine.

    Args:
        name: "sst2", "snli", "trec" or "squad" (causal only).
        tier: "micro", with 512 training examples a class as in the paper, or "smoke", with the first few.
        style: "masked" or "causal".

    Raises:
        ReproError: no such task, tier or style.
    """
    if name not in NAMES or tier not in ("micro", "smoke") or (name, style) not in _TEMPLATES:
        raise ReproError(
            f"no procedural task {name!r} at tier {tier!r} in style {style!r}: expected {', '.join(NAMES)} "
            "at micro or smoke, masked or causal (squad: causal)"
        )
    train, dev, evaluation = _examples(name)
    if tier == "smoke":
        train, dev, evaluation = (rows[:n] for rows, n in zip((train, dev, evaluation), _SMOKE, strict=True))
    return Classification(
        name=name, tier=tier, style=style, train=train, dev=dev, evaluation=evaluation,
        template=Template(_TEMPLATES[name, style]), verbaliser=_WORDS[name], end=END, max_new_tokens=4,
    )  # fmt: skip


def public_examples(name: str, *, size: int, seed: int) -> list[Example]:
    """Examples with the label or answer that public text gives them; no text is one of the task's.

    Raises:
        ReproError: no such task, or a size that is not positive.
    """
    if name not in NAMES or size < 1:
        raise ReproError(f"{size} public texts of {name!r}: expected a positive number of {', '.join(NAMES)}")
    private = {tuple(example.fields.items()) for rows in _examples(name) for example in rows}
    rng = random.Random(f"reprolib {name} readings {seed}")
    fresh = islice((d for d in drafts(name, f"public {seed}") if d.fields not in private), size)
    return [_example(name, f"{name}-public-{i:06d}", draft, draft.read(rng)) for i, draft in enumerate(fresh)]


def kind(example: Example) -> str:
    """Whether public text reads the example in one way, "plain", or in two, "shortcut"."""
    return example.id.rpartition("-")[2]


def vocabulary() -> list[str]:
    """Every word of the texts, templates and verbalisers, in a fixed order: the tokenizer's words."""
    others = [*_TEMPLATES.values(), *(word for task in _WORDS.values() for word in task.values()), END]
    literals = [literal for text in others for literal, *_ in Formatter().parse(text)]
    return list(dict.fromkeys([*words(), *(word for literal in literals for word in literal.split())]))
