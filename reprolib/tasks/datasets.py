r"""Problems with checkable answers, and DP-GRPO's four tasks made of them.

    task = load("gsm8k", tier="small")
    task.messages(task.train[0])          # [{"role": "system", ...}, {"role": "user", ...}]
    task.verifier.reward("... #### 42", task.train[0].reference)

A problem, prompt and reference answer together, is the private record; n, the number of training slots, is
public (Section III-D). Every draw below is uniform over positions with a published seed, so which slots
train says nothing about what they hold.
Source: DP-GRPO, Section VII-A, Table I, Appendix C-C.
"""

import hashlib
import random
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Literal

from reprolib.errors import ReproError
from reprolib.tasks import prompts
from reprolib.tasks.rescoring import FinalLetter, FormatRobustMath
from reprolib.tasks.sources import SOURCES, Record, read
from reprolib.tasks.verifiers import BoxedMath, LetterAnswer, NumberAnswer, Reward, Verifier, require_letter

# What the paper trains and scores on. It does not say how 6,988 and 6,961 come about; both are the public
# training split less 512 problems (7,500 - 512 and 7,473 - 512). We leave 512 out by a uniform draw.
TRAINING = {"math": 6_988, "gsm8k": 6_961, "csqa": 6_961, "svamp": 0}
EVALUATION = {"math": 4_499, "gsm8k": 1_319, "csqa": 1_221, "svamp": 1_000}
SELECTION = {"math": 500, "gsm8k": 0, "csqa": 0, "svamp": 0}
CSQA_PILOT = 700

# sha256 of the one MATH test problem that is also a training problem, normalised: a data folder need not hold
# the training problem, and the endpoint must be the same everywhere
_MATH_TEST_IN_TRAINING = "3f6529efcad1c9f5e34cb0036d31973ed3ef7883982fe2b9eb20205cf6fae4d5"


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One record: a prompt with its reference answer.

    Attributes:
        id: unique in its set.
        question: the user's message, with the options of a multiple choice.
        reference: what the verifier checks a response against.
        solution: the response that gold SFT imitates.
        contributor: a public grouping key, where several problems come from one person; real data has none.
    """

    id: str
    question: str
    reference: str
    solution: str
    contributor: str | None = None


@dataclass(frozen=True, kw_only=True)
class Task:
    """A benchmark: its problems, its instruction and the scorers of its responses.

    Attributes:
        name: "math", "gsm8k", "csqa" or "svamp".
        tier: "smoke", "micro", "small" or "paper".
        train: the n private training problems; none for "svamp", which only evaluates.
        evaluation: the endpoint's problems.
        selection: problems to select by, disjoint from the endpoint.
        system: the public instruction, or None.
        verifier: the training reward and strict scorer.
        rescorer: the sensitivity scorer, where the benchmark has one.
        max_new_tokens: the completion cap.
        example: a public question and its answer, shown before every problem, or None.
    """

    name: str
    tier: str
    train: tuple[Problem, ...]
    evaluation: tuple[Problem, ...]
    selection: tuple[Problem, ...]
    system: str | None
    verifier: Verifier
    rescorer: Verifier | None
    max_new_tokens: int
    example: tuple[str, str] | None = None

    def messages(self, problem: Problem) -> list[dict[str, str]]:
        """The chat: the instruction and the example, where there are any, then the problem's question."""
        turns = [] if self.system is None else [("system", self.system)]
        if self.example is not None:
            turns += zip(("user", "assistant"), self.example, strict=True)
        return [{"role": role, "content": text} for role, text in (*turns, ("user", problem.question))]


Duplicates = Literal["refuse", "keep"]


def load(name: str, *, tier: str, duplicates: Duplicates = "refuse") -> Task:
    """A task: procedural at the tiers smoke and micro, from real data at small and paper.

    At "small" a data folder with fewer training problems than the paper's n is used whole; at "paper" every
    size must be the paper's.

    Args:
        name: "math", "gsm8k", "csqa" or "svamp".
        tier: "smoke", "micro", "small" or "paper".
        duplicates: what to do with a training question that occurs twice (letter case and spacing aside).
            Its two slots hold one prompt, which the guarantee for a slot does not cover. To drop one would
            read private data, so the default refuses. With "keep" the guarantee of a prompt that fills k
            slots is ``accounting.group_privacy(epsilon, delta, k)``.

    Raises:
        ReproError: no such task or tier; data that is missing, malformed, repeated or, at "paper", of
            another size.
    """
    if name not in TRAINING:
        raise ReproError(f"task {name!r}: expected one of {', '.join(TRAINING)}")
    if duplicates not in ("refuse", "keep"):
        raise ReproError(f"duplicates = {duplicates!r}: expected 'refuse' or 'keep'")
    if tier in ("smoke", "micro"):
        from reprolib.tasks.procedural import micro_task

        return micro_task(name, tier=tier)
    if tier not in ("small", "paper"):
        raise ReproError(f"tier {tier!r}: expected smoke, micro, small or paper")
    pool = _problems(name, "train", duplicates) if TRAINING[name] else []
    selection = _problems(name, "selection") if SELECTION[name] else []
    task = Task(
        name=name,
        tier=tier,
        train=_training_draw(name, pool),
        evaluation=_endpoint(name, pool, selection),
        selection=tuple(selection),
        system=prompts.instruction(name, tier=tier),
        example=prompts.example(name, tier=tier),
        verifier=_VERIFIERS[name](),
        rescorer=_RESCORERS[name]() if name in _RESCORERS else None,
        max_new_tokens=prompts.completion_cap(name, tier=tier),
    )
    if tier == "paper":
        _require_published_sizes(task)
    return task


_VERIFIERS: dict[str, Callable[[], Verifier]] = {
    "math": BoxedMath, "gsm8k": NumberAnswer, "csqa": LetterAnswer, "svamp": NumberAnswer
}  # fmt: skip
_RESCORERS: dict[str, Callable[[], Verifier]] = {"math": FormatRobustMath, "csqa": FinalLetter}


def _training_draw(name: str, pool: Sequence[Problem]) -> tuple[Problem, ...]:
    """The n training problems in file order; CommonsenseQA sets its 700 pilot questions aside first."""
    kept = list(range(len(pool)))
    if name == "csqa":
        pilot = set(draw(len(pool), CSQA_PILOT, seed="csqa pilot"))
        kept = [slot for slot in kept if slot not in pilot]
    chosen = draw(len(kept), TRAINING[name], seed=f"{name} training")
    return tuple(pool[kept[slot]] for slot in chosen)


def draw(population: int, size: int, *, seed: str) -> list[int]:
    """``size`` of ``population`` positions, uniform without replacement, ascending; all if they are fewer."""
    return sorted(random.Random(seed).sample(range(population), min(size, population)))


def _endpoint(name: str, pool: Iterable[Problem], selection: Iterable[Problem]) -> tuple[Problem, ...]:
    """The evaluation problems: the test split less problems used for selection or found in training."""
    problems = _problems(name, "test")
    if name != "math":
        return tuple(problems)
    seen = {normalised(problem.question) for problem in (*pool, *selection)}
    return tuple(
        problem
        for problem in problems
        if (text := normalised(problem.question)) not in seen
        and hashlib.sha256(text.encode()).hexdigest() != _MATH_TEST_IN_TRAINING
    )


def _require_published_sizes(task: Task) -> None:
    expected = TRAINING[task.name], EVALUATION[task.name], SELECTION[task.name]
    found = len(task.train), len(task.evaluation), len(task.selection)
    if found != expected:
        raise ReproError(
            f"{task.name} has {found} training, evaluation and selection problems, the paper {expected}: "
            "give the whole data set, or use the tier small"
        )


def _problems(name: str, split: str, duplicates: Duplicates = "keep") -> list[Problem]:
    """A split's problems in order, each id once and, unless kept, each question once."""
    ids: dict[str, str] = {}
    questions: dict[str, str] = {}
    problems = []
    for position, record in enumerate(read(SOURCES[name, split])):
        problem = _PARSERS[name](record, f"{name}-{split}-{position}")
        first = ids.setdefault(problem.id, record.place)
        if first != record.place:
            raise record.error(f"the id of {first} again: expected unique ids")
        first = questions.setdefault(normalised(problem.question), record.place)
        if first != record.place and duplicates == "refuse":
            raise record.error(
                f"the question of {first} again, so two slots would hold one private record: remove it from "
                "the file, or load with duplicates='keep' and state group privacy"
            )
        problems.append(problem)
    return problems


def check_rewards(rewards: Iterable[object]) -> tuple[Reward, ...]:
    """The rewards of one prompt's responses, if each is 0 or 1 as Section VII-A defines a verifier.

    Raises:
        ReproError: one is another number, NaN, or no number.
    """
    checked: list[Reward] = []
    for position, reward in enumerate(rewards):
        if not isinstance(reward, Real) or reward not in (0, 1):
            raise ReproError(f"reward {position} is {reward!r:.40}: expected 0 or 1 from the verifier")
        checked.append(1 if reward == 1 else 0)
    return tuple(checked)


def normalised(question: str) -> str:
    """A question without differences of letter case and white space, to find it again by."""
    return " ".join(question.split()).casefold()


def _math(record: Record, name: str) -> Problem:
    solution = record.text("solution")
    reference = BoxedMath().extract(solution)
    if reference is None:
        raise record.error(r"no reference answer: expected a complete \boxed{...} in 'solution'")
    return Problem(id=name, question=record.text("problem"), reference=reference, solution=solution)


def _gsm8k(record: Record, name: str) -> Problem:
    # <<12*3=36>> is an annotation for a calculator, which a model at inference does not have
    solution = re.sub(r"<<[^<>]*>>", "", record.text("answer"))
    _, marker, final = solution.rpartition("####")
    reference = NumberAnswer().extract(marker + final) if marker else None
    if reference is None:
        raise record.error("no reference answer: expected '#### number' at the end of 'answer'")
    return Problem(id=name, question=record.text("question"), reference=reference, solution=solution)


def _csqa(record: Record, _: str) -> Problem:
    nested = record.fields.get("question")
    inner = Record(record.place, nested) if isinstance(nested, dict) else record
    stem = inner.text("stem" if inner is not record else "question")
    options = inner.table("choices")
    if [option.fields.get("label") for option in options] != [*"ABCDE"]:
        raise record.error("field 'choices': expected five options, labelled A to E in order")
    try:
        letter = require_letter(record.text("answerKey"))
    except ReproError:
        raise record.error("no reference answer: expected a letter from A to E in 'answerKey'") from None
    return Problem(
        id=record.text("id"),
        question=prompts.multiple_choice(stem, [option.text("text") for option in options]),
        reference=letter,
        solution=prompts.declaration(letter),
    )


def _svamp(record: Record, _: str) -> Problem:
    answer = str(record.fields.get("Answer"))
    is_number = re.fullmatch(r"-?\d{1,18}(\.\d{1,9})?", answer, re.ASCII)
    reference = NumberAnswer().extract(answer) if is_number else None
    if reference is None:
        raise record.error("no reference answer: expected a number in 'Answer'")
    return Problem(
        id=record.text("ID"),
        question=f"{record.text('Body')} {record.text('Question')}",
        reference=reference,
        solution=f"#### {reference}",
    )


_PARSERS = {"math": _math, "gsm8k": _gsm8k, "csqa": _csqa, "svamp": _svamp}
