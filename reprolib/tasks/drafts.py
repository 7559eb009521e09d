r"""Questions of the procedural tasks, and the answers that public text gives to them.

Four kinds of text stand for MATH, GSM8K, CommonsenseQA and SVAMP. They keep the structure that DP-GRPO
reports of its base model (Section VIII and Appendix E), not its problems:

* public answers to "math" often have no box where the question begins with "What is";
* public answers to "csqa" often discuss two options first, which the strict scorer refuses;
* on some kinds public text follows two readings, the right one and a usual misreading that is often a little
  more frequent. A base that learned both is inconsistent: greedy often wrong, a sample often right;
* the kinds "misread" and "spilled" are read wrongly nearly always, so that few samples of the base earn a
  reward.

Every number is a whole one from 0 to 60 and one token; the generators of reasoning_gym do not keep to that.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from string import Formatter

MAX_NUMBER = 60


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A question and the answers that public text gives to it.

    Attributes:
        kind: the kind of question; it ends the problem's identifier.
        key: equal for two wordings of one problem.
        question: the user's message.
        reference: what the verifier checks.
        solution: the gold solution.
        replies: public responses with their weights, which sum to 1.
    """

    kind: str
    key: str
    question: str
    reference: str
    solution: str
    replies: tuple[tuple[str, float], ...]


# share of questions, share of unboxed answers, share of the right reading where there are two
_MATH_WORDINGS = {
    "Compute {}.": (0.30, 0.02, 0.30),
    "Evaluate {}.": (0.30, 0.02, 0.44),
    "Find {}.": (0.25, 0.02, 0.58),
    "What is {}?": (0.15, 0.75, 0.46),
}
_MATH_KINDS = {"plain": 0.48, "regrouped": 0.32, "misread": 0.20}
_MISREAD_RIGHT = 0.05
_TEXTBOOK = 0.03  # gold solutions are in a style that public answers seldom have
# the reading is said first, so that how likely it is does not depend on how well the model computes
_LEFT, _RIGHT = "From the left, ", "From the right, "

_BOXED, _UNBOXED = "{}{}{}=\\boxed{{{}}}", "{}{}{}={}."
_MATH_GOLD = "{}{}{}={}, " + _BOXED

# kind, share of questions, share of the right reading, question
_GSM8K = (
    ("join", 0.33, 1.00, "{n} has {a}{o} and buys {b} more. How many{o} now?"),
    ("bags", 0.15, 1.00, "{n} fills {d} bags with {e}{o} each. How many{o} in all?"),
    ("dropped", 0.08, 0.32, "{n} has {a}{o}, buys {b} more and loses {c}. How many{o} now?"),
    ("dropped", 0.08, 0.45, "{n} has {a}{o}, buys {b} more and sells {c}. How many{o} now?"),
    ("dropped", 0.08, 0.58, "{n} has {a}{o}, buys {b} more and breaks {c}. How many{o} now?"),
    ("fewer", 0.08, 0.38, "{n} has {a}{o}. {m} has {b} fewer. How many{o} has {m}?"),
    ("fewer", 0.08, 0.52, "{n} has {a}{o} and {m} has {b} fewer. How many{o} has {m}?"),
    ("spilled", 0.12, 0.05, "{n} fills {d} bags with {e}{o} each and loses a bag. How many{o} now?"),
)
_SVAMP = (
    ("irrelevant", 0.65, 0.90, "A shop has {a}{o} and {c}{u}. It sells {b}{o}. How many{o} are left?"),
    ("returned", 0.18, 0.56, "After {n} sold {b} of {a}{o}, {m} gave {n} {c}. How many{o} has {n}?"),
    ("fewer", 0.17, 0.46, "If {n} has {a}{o}, {b} more than {m}, how many{o} has {m}?"),
)
_NAMES = {
    "gsm8k": ("Ann", "Ben", "Eva", "Jon", "Mia", "Sam", "Tom", "Zoe"),
    "svamp": ("Ida", "Leo", "Max", "Ruth"),
}
_OBJECTS = (" books", " coins", " cups", " hats", " keys", " pens", " shells", " stamps")
_STORY_STEP, _STORY_END = "{}{}{}={}", ". The answer is {}."
_ONE, _BOTH = "One step: ", "Two steps: "

# share of questions, share of answers that discuss two options first
_CSQA_WORDINGS = {
    "Which is a kind of {}?": (0.35, 0.12),
    "Choose a kind of {}.": (0.30, 0.30),
    "What might be a kind of {}?": (0.35, 0.68),
}
_CSQA_KINDS = {"clear": 0.48, "confused": 0.52}
# category: members, what is taken for one, share of public answers that are not misled
_CATEGORIES = {
    "bird": (("duck", "eagle", "owl"), "bat", 0.30),
    "fish": (("cod", "shark", "trout"), "whale", 0.40),
    "insect": (("ant", "bee", "wasp"), "spider", 0.46),
    "planet": (("Mars", "Saturn", "Venus"), "Pluto", 0.52),
    "vegetable": (("carrot", "leek", "onion"), "tomato", 0.62),
}
_LETTERS = "ABCDE"
_DECLARED, _DISCUSSED = "Answer: {}", "Answer: {}/{}. Answer: {}"


def _pick(rng: random.Random, shares: dict[str, float]) -> str:
    return rng.choices(list(shares), list(shares.values()))[0]


def _mix(*replies: tuple[str, float]) -> tuple[tuple[str, float], ...]:
    return tuple(reply for reply in replies if reply[1] > 0)


def _math(rng: random.Random) -> Draft:
    """a+b+c and a+b-c are read one way, a-b+c also as a-(b+c), a-b-c also as a-(b-c)."""
    kind = _pick(rng, _MATH_KINDS)
    wording = _pick(rng, {text: share for text, (share, _, _) in _MATH_WORDINGS.items()})
    _, bare, right = _MATH_WORDINGS[wording]
    if kind == "plain":
        a, b = rng.randint(1, 20), rng.randint(1, 20)
        one, two, c = "+", rng.choice("+-"), rng.randint(1, min(20, a + b))
        head, tail, right = a + b, 0, 1.0
    else:
        one, two = "-", "+" if kind == "regrouped" else "-"
        c, b = sorted((rng.randint(1, 20), rng.randint(1, 20)))
        if two == "+" and rng.random() < 0.5:
            b, c = c, b
        a = rng.randint(b + c, MAX_NUMBER)
        head, tail = a - b, b + c if two == "+" else b - c
        right = right if two == "+" else _MISREAD_RIGHT
    value = head + c if two == "+" else head - c
    gold = _MATH_GOLD.format(a, one, b, head, head, two, c, value)
    right, wrong = right * (1 - _TEXTBOOK), (1 - right) * (1 - _TEXTBOOK)
    expression = f"{a}{one}{b}{two}{c}"
    return Draft(
        kind=kind, key=expression, question=wording.format(expression), reference=str(value), solution=gold,
        replies=_mix(
            (gold, _TEXTBOOK),
            (_LEFT + _BOXED.format(head, two, c, value), right * (1 - bare)),
            (_LEFT + _UNBOXED.format(head, two, c, value), right * bare),
            (_RIGHT + _BOXED.format(a, one, tail, a - tail), wrong * (1 - bare)),
            (_RIGHT + _UNBOXED.format(a, one, tail, a - tail), wrong * bare),
        ),
    )  # fmt: skip


_Step = tuple[int, str, int, int]


def _steps(kind: str, a: int, b: int, c: int) -> tuple[list[_Step], _Step]:
    """The right steps of a story, and the only step of its usual misreading."""
    plus, minus, times = (a, "+", b, a + b), (a, "-", b, a - b), (b, "*", c, b * c)
    return {
        "join": ([plus], plus),
        "bags": ([times], times),
        "dropped": ([plus, (a + b, "-", c, a + b - c)], plus),
        "returned": ([minus, (a - b, "+", c, a - b + c)], minus),
        "fewer": ([minus], plus),
        "irrelevant": ([minus], (a, "+", c, a + c)),
        "spilled": ([times, (b * c, "-", c, b * c - c)], times),
    }[kind]


def _story(rng: random.Random, name: str) -> Draft:
    """A word problem; its answer states the last step and the number."""
    rows = _GSM8K if name == "gsm8k" else _SVAMP
    kind, _, right, template = rng.choices(rows, [row[1] for row in rows])[0]
    a, b, c = rng.randint(20, 40), rng.randint(1, 20), rng.randint(1, 20)
    d, e = rng.randint(2, 9), rng.randint(2, 6)
    (n, m), (o, u) = rng.sample(_NAMES[name], 2), rng.sample(_OBJECTS, 2)
    question = template.format(n=n, m=m, o=o, u=u, a=a, b=b, c=c, d=d, e=e)
    operands = (a, d, e) if kind in ("bags", "spilled") else (a, b, c)
    steps, misread = _steps(kind, *operands)
    answer = steps[-1][-1]
    gold = ", ".join(_STORY_STEP.format(*step) for step in steps) + _STORY_END.format(answer)
    reply, misreading = (
        (_ONE, _BOTH)[count - 1] + _STORY_STEP.format(*step) + _STORY_END.format(step[-1])
        for count, step in ((len(steps), steps[-1]), (1, misread))
    )
    return Draft(
        kind=kind, key=question, question=question, reference=str(answer), solution=gold,
        replies=_mix(
            (gold, _TEXTBOOK),
            (reply, right * (1 - _TEXTBOOK)),
            (misreading, (1 - right) * (1 - _TEXTBOOK)),
        ),
    )  # fmt: skip


def _choice(rng: random.Random) -> Draft:
    """Five options; in the kind "confused" one of the wrong ones is often taken for right."""
    kind, category = _pick(rng, _CSQA_KINDS), rng.choice(list(_CATEGORIES))
    wording = _pick(rng, {text: share for text, (share, _) in _CSQA_WORDINGS.items()})
    members, decoy, right = _CATEGORIES[category]
    others = [w for name, (words, lure, _) in _CATEGORIES.items() if name != category for w in (*words, lure)]
    target = rng.choice(members)
    options = (
        [target, decoy, *rng.sample(others, 3)] if kind == "confused" else [target, *rng.sample(others, 4)]
    )
    rival = options[1]
    rng.shuffle(options)
    good, bad = _LETTERS[options.index(target)], _LETTERS[options.index(rival)]
    right = right if kind == "confused" else 1.0
    listed = "".join(f" {letter} {noun}" for letter, noun in zip(_LETTERS, options, strict=True))
    discussed = _CSQA_WORDINGS[wording][1]
    replies = []
    for letter, share in ((good, right), (bad, 1 - right)):
        replies.append((_DECLARED.format(letter), share * (1 - discussed)))
        replies += [
            (_DISCUSSED.format(*two, letter), share * discussed / 2) for two in ((good, bad), (bad, good))
        ]
    return Draft(
        kind=kind, key=category + listed, question=wording.format(category) + listed, reference=good,
        solution=_DECLARED.format(good), replies=_mix(*replies),
    )  # fmt: skip


def drafts(name: str, seed: str) -> Iterator[Draft]:
    """Endless drafts, the same on every machine."""
    rng = random.Random(f"reprolib {name} {seed}")
    while True:
        yield _math(rng) if name == "math" else _choice(rng) if name == "csqa" else _story(rng, name)


def vocabulary() -> list[str]:
    """The phrases that make up every question and answer, in a fixed order: the tokenizer's words."""
    templates = [
        *_MATH_WORDINGS, *_CSQA_WORDINGS, *(row[-1] for row in (*_GSM8K, *_SVAMP)),
        _LEFT, _RIGHT, _BOXED, _UNBOXED, _MATH_GOLD, _ONE, _BOTH, _STORY_STEP, _STORY_END, ", ",
        _DECLARED, _DISCUSSED,
    ]  # fmt: skip
    literals = [literal for template in templates for literal, *_ in Formatter().parse(template) if literal]
    nouns = [word for words, decoy, _ in _CATEGORIES.values() for word in (*words, decoy)]
    options = [f" {letter} {noun}" for letter in _LETTERS for noun in nouns]
    words = [*"+-*", *_LETTERS, *_CATEGORIES, *options, *_OBJECTS, *_NAMES["gsm8k"], *_NAMES["svamp"]]
    return list(dict.fromkeys([*(str(n) for n in range(MAX_NUMBER + 1)), *literals, *words]))
