r"""Texts of the micro tier's classification tasks, and what public text makes of them.

Part of every task is read in two ways: the right one, and a shortcut that public text often takes (the first
clause for the verdict, a negation overlooked, one quantifier taken for another, "what" for an entity, the
first mention for the answer). The share of the right reading differs between wordings. A base that learned
both readings is right above chance and well below what the examples teach, and what it has to learn is
which reading to prefer.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from string import Formatter


@dataclass(frozen=True, kw_only=True)
class Draft:
    """An example with its right reading, and the shortcut where there is one.

    Attributes:
        fields: the texts.
        right: the label, or the answer.
        shortcut: what the shortcut reads, or None.
        share: part of public text that takes the right reading.
    """

    fields: tuple[tuple[str, str], ...]
    right: str
    shortcut: str | None = None
    share: float = 1.0

    def read(self, rng: random.Random) -> str:
        """The label or answer that a public text gives."""
        return self.right if self.shortcut is None or rng.random() < self.share else self.shortcut


_NOUNS = ("acting", "cast", "ending", "film", "music", "plot", "script", "story")
_VERDICTS = {
    "positive": ("brilliant", "charming", "clever", "fresh", "moving", "rich"),
    "negative": ("clumsy", "dull", "empty", "flat", "stale", "weak"),
}
# share of a label's sentences, the wording, whether its second clause has the verdict, share read rightly
_REVIEWS = (
    (0.25, "the {n} is {a} and the {m} is {b}", 1.00),
    (0.20, "the {n} is {a} while the {m} is {b}", 1.00),
    (0.11, "the {n} is {x} but the {m} is {a}", 0.75),
    (0.11, "the {n} is {x} yet the {m} is {a}", 0.42),
    (0.11, "though the {n} is {x} the {m} is {a}", 0.28),
    (0.11, "the {n} is not {x} and the {m} is not {y}", 0.70),
    (0.11, "the {n} is never {x} and the {m} is never {y}", 0.34),
)


def _review(rng: random.Random) -> Draft:
    label, other = rng.sample(list(_VERDICTS), 2)
    _, wording, share = rng.choices(_REVIEWS, [row[0] for row in _REVIEWS])[0]
    n, m = rng.sample(_NOUNS, 2)
    (a, b), (x, y) = (rng.sample(_VERDICTS[side], 2) for side in (label, other))
    sentence = wording.format(n=n, m=m, a=a, b=b, x=x, y=y)
    return Draft(
        fields=(("sentence", sentence),), right=label, shortcut=other if share < 1 else None, share=share
    )


_BEINGS = (
    "birds", "boys", "cats", "cooks", "dogs", "girls", "goats", "kings", "men", "nurses", "poets", "women",
)  # fmt: skip
_DEEDS = ("dance", "eat", "hide", "jump", "run", "shout", "sing", "sleep", "swim", "wait", "walk", "win")
_LOOKS = ("angry", "big", "happy", "old", "small", "tall", "tired", "young")
# label: share, quantifier of the premise, of the hypothesis, shortcut, share read rightly
_INFERENCES: dict[str, tuple[tuple[float, str, str, str | None, float], ...]] = {
    "entailment": (
        *((0.125, word, word, None, 1.0) for word in ("all", "most", "some", "no")),
        (0.125, "all", "most", "neutral", 0.60),
        (0.125, "most", "some", "neutral", 0.40),
        (0.125, "all", "some", "neutral", 0.34),
        (0.125, "few", "some", "contradiction", 0.26),
    ),
    "neutral": (
        (0.25, "several", "all", None, 1.0),
        (0.25, "several", "few", None, 1.0),
        (0.17, "some", "most", "entailment", 0.62),
        (0.17, "some", "all", "entailment", 0.36),
        (0.16, "most", "all", "entailment", 0.28),
    ),
    "contradiction": (
        (0.125, "all", "no", None, 1.0),
        (0.125, "some", "no", None, 1.0),
        (0.125, "no", "all", None, 1.0),
        (0.125, "no", "most", None, 1.0),
        (0.125, "all", "few", "entailment", 0.58),
        (0.125, "few", "most", "neutral", 0.40),
        (0.125, "most", "few", "neutral", 0.32),
        (0.125, "few", "all", "neutral", 0.24),
    ),
}


def _pair(rng: random.Random) -> Draft:
    label = rng.choice(list(_INFERENCES))
    rows = _INFERENCES[label]
    _, first, second, shortcut, share = rng.choices(rows, [row[0] for row in rows])[0]
    said = f"{rng.choice(_LOOKS)} {rng.choice(_BEINGS)} {rng.choice(_DEEDS)}"
    return Draft(
        fields=(("premise", f"{first} {said}"), ("hypothesis", f"{second} {said}")),
        right=label, shortcut=shortcut, share=share,
    )  # fmt: skip


_THINGS = (
    "bell", "boat", "book", "bridge", "chair", "clock", "coin", "drum", "engine", "flag", "gate", "lamp",
    "map", "mirror", "ring", "rope", "ship", "song", "statue", "tower", "train", "wheel",
)  # fmt: skip
_AGES = ("big", "first", "last", "lost", "new", "old", "red", "small")
_LANDS = ("france", "spain", "japan", "peru", "egypt", "china", "chile", "kenya")
# share within the label, wording, shortcut, share read rightly
_ASKED: dict[str, tuple[tuple[float, str, str | None, float], ...]] = {
    "HUM": (
        (0.50, "who made the {t} in {l}", None, 1.0),
        (0.25, "what king made the {t} in {l}", "ENTY", 0.58),
        (0.25, "what woman made the {t} in {l}", "ENTY", 0.32),
    ),
    "LOC": (
        (0.50, "where is the {t} of {l}", None, 1.0),
        (0.25, "what city has the {t} of {l}", "ENTY", 0.62),
        (0.25, "what street has the {t} of {l}", "ENTY", 0.26),
    ),
    "NUM": (
        (0.50, "how many people saw the {t} of {l}", None, 1.0),
        (0.25, "what year saw the {t} of {l}", "ENTY", 0.38),
        (0.25, "how old is the {t} of {l}", "DESC", 0.30),
    ),
    "ENTY": (
        (0.60, "what animal is on the {t} of {l}", None, 1.0),
        (0.40, "which colour is the {t} of {l}", "DESC", 0.40),
    ),
    "DESC": (
        (0.50, "why is the {t} in {l}", None, 1.0),
        (0.25, "how was the {t} made in {l}", "NUM", 0.60),
        (0.25, "what does the {t} of {l} mean", "ENTY", 0.34),
    ),
    "ABBR": (
        (0.50, "what is the {t} of {l} short for", None, 1.0),
        (0.25, "what do the letters on the {t} of {l} mean", "DESC", 0.56),
        (0.25, "what does the name of the {t} of {l} abbreviate", "DESC", 0.24),
    ),
}


def _question(rng: random.Random) -> Draft:
    label = rng.choice(list(_ASKED))
    _, wording, shortcut, share = rng.choices(_ASKED[label], [row[0] for row in _ASKED[label]])[0]
    thing = f"{rng.choice(_AGES)} {rng.choice(_THINGS)}"
    text = wording.format(t=thing, l=rng.choice(_LANDS))
    return Draft(fields=(("question", text),), right=label, shortcut=shortcut, share=share)


_NAMES = ("ann", "ben", "eva", "jon", "mia", "sam", "tom", "zoe")
_FAMILIES = ("hill", "lake", "moor", "reed", "stone", "wood")
_COLOURS = ("black", "blue", "green", "red", "white", "yellow")
_SIDES = ("east", "north", "south", "west")
_TALES = (
    "{buyer} bought the {thing} from {seller} in {shop} . it was made by {maker} in {origin} .",
    "in {shop} {buyer} bought the {thing} from {seller} . in {origin} it was made by {maker} .",
)
# share of the questions, question, answer, what is taken for it (the first of its kind), share read rightly
_TALE_QUESTIONS: tuple[tuple[float, str, str, str | None, float], ...] = (
    (0.16, "who bought it", "buyer", None, 1.0),
    (0.17, "what was bought", "thing", None, 1.0),
    (0.17, "where was it bought", "shop", None, 1.0),
    (0.17, "who sold it", "seller", "buyer", 0.62),
    (0.17, "where was it made", "origin", "shop", 0.40),
    (0.16, "who made it", "maker", "buyer", 0.28),
)


def _short_answer(rng: random.Random) -> Draft:
    """A tale of two sentences and a question whose answer is two words of it."""
    pairs = zip(rng.sample(_NAMES, 3), rng.sample(_FAMILIES, 3), strict=True)
    people = [" ".join(pair) for pair in pairs]
    places = [f"{rng.choice(_SIDES)} {land}" for land in rng.sample(_LANDS, 2)]
    parts = dict(zip(("buyer", "seller", "maker"), people, strict=True))
    parts |= {"shop": places[0], "origin": places[1]}
    parts |= {"thing": f"{rng.choice(_COLOURS)} {rng.choice(_THINGS)}"}
    _, question, asked, first, share = rng.choices(_TALE_QUESTIONS, [row[0] for row in _TALE_QUESTIONS])[0]
    return Draft(
        fields=(("context", rng.choice(_TALES).format(**parts)), ("question", question)),
        right=parts[asked], shortcut=parts[first] if first else None, share=share,
    )  # fmt: skip


_DRAFTS: dict[str, Callable[[random.Random], Draft]] = {
    "sst2": _review, "snli": _pair, "trec": _question, "squad": _short_answer
}  # fmt: skip
NAMES = tuple(_DRAFTS)


def drafts(name: str, seed: str) -> Iterator[Draft]:
    """Endless drafts of a task, the same on every machine."""
    rng = random.Random(f"reprolib {name} {seed}")
    while True:
        yield _DRAFTS[name](rng)


def words() -> list[str]:
    """Every word of the texts, each once, in a fixed order."""
    wordings = [*(row[1] for row in _REVIEWS), *(row[1] for rows in _ASKED.values() for row in rows)]
    wordings += [*_TALES, *(row[1] for row in _TALE_QUESTIONS)]
    found = [word for text in wordings for literal, *_ in Formatter().parse(text) for word in literal.split()]
    found += [*_NOUNS, *(word for members in _VERDICTS.values() for word in members)]
    found += [word for rows in _INFERENCES.values() for row in rows for word in row[1:3]]
    found += [*_LOOKS, *_BEINGS, *_DEEDS, *_AGES, *_THINGS, *_LANDS]
    found += [*_NAMES, *_FAMILIES, *_COLOURS, *_SIDES]
    return list(dict.fromkeys(found))
