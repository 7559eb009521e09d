"""Procedural pairs whose annotator is known: Bradley-Terry bits of a reward that is written down.

    reward = ideal_reward("hh")
    reward(pair.messages, pair.responses[0])      # the annotator's reward, of any text
    sum(bayes_accuracy(pair, reward) for pair in pairs) / len(pairs)

A question comes from ``reprolib.tasks.drafts``; the responses are two of the answers that public text gives
to it, each as likely as another, so that the micro base has read both and prefers one for reasons that are
not the annotator's. The annotator prefers the first with probability sigmoid(r(first) - r(second)) (Bradley
and Terry, the model behind DPO; PrivDPO, Section 2.1.2). Seeds are public, and so are the bits here: a micro
"annotation" protects nobody.
"""

import math
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations, islice

from reprolib.errors import ReproError
from reprolib.tasks.drafts import Draft, drafts, vocabulary
from reprolib.tasks.preference_pair import Preference, Turn, ordered
from reprolib.tasks.rescoring import FinalLetter, FormatRobustMath
from reprolib.tasks.verifiers import BoxedMath, LetterAnswer, NumberAnswer, Verifier

# training and evaluation pairs: 50 batches of 64, and a standard error of a share below 2 points
SIZES = {"micro": (3_200, 800), "smoke": (96, 48)}
_TASKS = ("math", "gsm8k", "csqa")
# the strict scorer, and the one that reads an answer in any form
_SCORERS: dict[str, tuple[Verifier, Verifier]] = {
    "math": (BoxedMath(), FormatRobustMath()),
    "gsm8k": (NumberAnswer(), NumberAnswer()),
    "csqa": (LetterAnswer(), FinalLetter()),
}


@dataclass(frozen=True, kw_only=True)
class Features:
    """What the annotator looks at; all of it can be seen in the question and the response.

    Attributes:
        correct: the answer is right, in whatever form it is given.
        readable: the strict scorer finds one answer: boxed, and no second option beside it.
        worked: as many equations as the reference solution writes.
        brief: no more words than the reference solution.
    """

    correct: bool
    readable: bool
    worked: bool
    brief: bool


# Reward of each feature, after what the paper's judge looks for (Section 5.4): helpfulness and harmlessness;
# precision and conciseness; instruction following, truthfulness and help, for which an answer first says how
# it goes about it. So the best style is not the same everywhere, and the base prefers another than "hh" does.
WEIGHTS: dict[str, dict[str, float]] = {
    "hh": {"correct": 1.25, "readable": 0.75, "worked": 0.5, "brief": 0.25},
    "tldr": {"correct": 1.0, "readable": 0.25, "worked": 0.25, "brief": 1.25},
    "ultrafeedback": {"correct": 1.5, "readable": 1.25, "worked": 0.25, "brief": -0.5},
}


@dataclass(frozen=True)
class IdealReward:
    """The annotator's reward of any response to one of the data set's questions.

    Attributes:
        weights: the reward of each feature; a response without an answer has none of them.
        problems: by question, the task it belongs to and its draft.
    """

    weights: Mapping[str, float]
    problems: Mapping[str, tuple[str, Draft]]

    def __call__(self, messages: Sequence[Mapping[str, str]], response: str) -> float:
        """The reward.

        Raises:
            ReproError: the last message is no question of this data set.
        """
        features = vars(self.features(messages, response))
        return sum(weight for name, weight in self.weights.items() if features[name])

    def features(self, messages: Sequence[Mapping[str, str]], response: str) -> Features:
        """What of the response earns a reward; errors as for the reward."""
        found = self.problems.get(messages[-1]["content"]) if messages else None
        if found is None:
            raise ReproError(
                "the ideal reward knows the questions of its own data set only: expected one of"
                f" {len(self.problems):,} micro questions as the last message"
            )
        return _features(*found, response)


def _features(task: str, draft: Draft, response: str) -> Features:
    strict, lenient = _SCORERS[task]
    if lenient.extract(response) is None:
        return Features(correct=False, readable=False, worked=False, brief=False)
    return Features(
        correct=bool(lenient.reward(response, draft.reference)),
        readable=strict.extract(response) is not None,
        worked=response.count("=") == draft.solution.count("="),
        brief=len(response.split()) <= len(draft.solution.split()),
    )


def bayes_accuracy(pair: Preference, reward: IdealReward) -> float:
    """Probability that the bit agrees with the better reward: no predictor is right more often."""
    first, second = (reward(pair.messages, response) for response in pair.responses)
    return 1 / (1 + math.exp(-abs(first - second)))


@cache
def _covered_text() -> re.Pattern[str]:
    """A text that the micro tokenizer splits into its phrases, the longest first, and nothing else."""
    return re.compile("|".join(re.escape(phrase) for phrase in sorted(vocabulary(), key=len, reverse=True)))


def _is_covered(text: str) -> bool:
    return "".join(_covered_text().findall(text)) == text


_Rewarded = tuple[str, float]


def _questions(name: str) -> Iterator[tuple[str, Draft, tuple[_Rewarded, _Rewarded]]]:
    """Endless questions, each once, with two of their answers that differ in the ideal reward, and it."""
    rng = random.Random(f"reprolib preference pairs {name}")
    streams = {task: drafts(task, f"preferences {name}") for task in _TASKS}
    seen: set[str] = set()
    while True:
        task = rng.choice(_TASKS)
        draft = next(streams[task])
        texts = list(dict.fromkeys(text for text, _ in draft.replies))
        if draft.key in seen or not all(map(_is_covered, (draft.question, *texts))):
            continue
        seen.add(draft.key)
        rewarded = [(text, _weighted(name, task, draft, text)) for text in texts]
        pairs = [(a, b) for a, b in combinations(rewarded, 2) if a[1] != b[1]]
        if not pairs:
            continue
        yield task, draft, rng.choice(pairs)


def _weighted(name: str, task: str, draft: Draft, response: str) -> float:
    features = vars(_features(task, draft, response))
    return sum(weight for feature, weight in WEIGHTS[name].items() if features[feature])


@cache
def _data(name: str) -> tuple[tuple[Preference, ...], IdealReward]:
    """All pairs, training first, and the reward that their bits follow."""
    total = sum(SIZES["micro"])
    rng = random.Random(f"reprolib preference bits {name}")
    pairs: list[Preference] = []
    problems: dict[str, tuple[str, Draft]] = {}
    for position, (task, draft, ((first, high), (second, low))) in enumerate(islice(_questions(name), total)):
        problems[draft.question] = task, draft
        wins = rng.random() < 1 / (1 + math.exp(low - high))
        turns: tuple[Turn, ...] = (("user", draft.question),)
        preferred, other = (first, second) if wins else (second, first)
        pairs.append(
            ordered(f"{name}-{position:04d}-{task}-{draft.kind}", turns, preferred=preferred, other=other)
        )
    return tuple(pairs), IdealReward(WEIGHTS[name], problems)


def micro_pairs(name: str, *, tier: str) -> tuple[tuple[Preference, ...], tuple[Preference, ...]]:
    """Training and evaluation pairs, the same on every machine.

    Args:
        name: "hh", "tldr" or "ultrafeedback": which rewards the annotator gives (``WEIGHTS``).
        tier: "micro", or "smoke" with the first few of each split.

    Raises:
        ReproError: no such data set or tier.
    """
    _check(name)
    if tier not in SIZES:
        raise ReproError(f"no procedural pairs at tier {tier!r}: expected {' or '.join(SIZES)}")
    pairs, _ = _data(name)
    train, evaluation = SIZES[tier]
    start = SIZES["micro"][0]
    return pairs[:train], pairs[start : start + evaluation]


def ideal_reward(name: str) -> IdealReward:
    """The reward that the bits of the micro data set follow.

    Raises:
        ReproError: no such data set.
    """
    _check(name)
    return _data(name)[1]


def _check(name: str) -> None:
    if name not in WEIGHTS:
        raise ReproError(f"no procedural pairs {name!r}: expected one of {', '.join(WEIGHTS)}")
