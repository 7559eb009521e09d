"""Procedural tasks of the micro tier, and the public text that their base model has read.

    task = micro_task("math", tier="micro")         # private training problems, evaluation, selection
    text = public_text("math", size=1000, seed=1)   # [(question, response), ...], none of the task's problems

What the questions are, and why a base answers part of them wrongly, is in ``reprolib.tasks.drafts``.
"""

import random
from functools import cache
from itertools import islice

from reprolib.errors import ReproError
from reprolib.tasks.datasets import Problem, Task
from reprolib.tasks.drafts import Draft, drafts
from reprolib.tasks.rescoring import FinalLetter, FormatRobustMath
from reprolib.tasks.verifiers import BoxedMath, LetterAnswer, NumberAnswer

MAX_NEW_TOKENS, PER_CONTRIBUTOR = 16, 4
# training, evaluation and selection problems; DP-GRPO, Section VII-A and Appendix C-C
SIZES = {
    "math": (6_988, 4_499, 500),
    "gsm8k": (6_961, 1_319, 0),
    "csqa": (6_961, 1_221, 0),
    "svamp": (0, 1_000, 0),
}
_SMOKE = 40, 30, 30
_SCORERS = {
    "math": (BoxedMath, FormatRobustMath),
    "gsm8k": (NumberAnswer, None),
    "csqa": (LetterAnswer, FinalLetter),
    "svamp": (NumberAnswer, None),
}


@cache
def _problems(name: str) -> tuple[tuple[Problem, ...], frozenset[str]]:
    """All problems of a task in the order training, evaluation, selection, and their keys."""
    training, evaluation, selection = SIZES[name]
    total = training + evaluation + selection
    distinct: dict[str, Draft] = {}
    for draft in drafts(name, "task"):
        distinct.setdefault(draft.key, draft)
        if len(distinct) == total:
            break
    problems = tuple(
        Problem(
            id=f"{name}-{i:05d}-{draft.kind}",
            question=draft.question,
            reference=draft.reference,
            solution=draft.solution,
            contributor=f"contributor-{i // PER_CONTRIBUTOR:04d}" if i < training else None,
        )
        for i, draft in enumerate(distinct.values())
    )
    return problems, frozenset(distinct)


def micro_task(name: str, *, tier: str) -> Task:
    """The procedural stand-in for a benchmark, the same on every machine.

    Args:
        name: "math", "gsm8k", "csqa" or "svamp" (evaluation only).
        tier: "micro", with the paper's numbers of problems, or "smoke", with the first few of each split.

    Raises:
        ReproError: the name or the tier is not one of these.

    Source: DP-GRPO, Section VII-A and Appendix C-C (sizes, scorers). A contributor holds four training
    problems, a grouping of ours.
    """
    if name not in SIZES or tier not in ("micro", "smoke"):
        raise ReproError(
            f"no procedural task {name!r} at tier {tier!r}: expected {', '.join(SIZES)} at micro or smoke"
        )
    problems, _ = _problems(name)
    training, evaluation, _ = SIZES[name]
    starts = 0, training, training + evaluation
    sizes = SIZES[name] if tier == "micro" else _SMOKE
    train, evaluated, selected = (
        problems[start : start + min(size, full)]
        for start, size, full in zip(starts, sizes, SIZES[name], strict=True)
    )
    verifier, rescorer = _SCORERS[name]
    return Task(
        name=name,
        tier=tier,
        train=train,
        evaluation=evaluated,
        selection=selected,
        system=None,
        verifier=verifier(),
        rescorer=rescorer() if rescorer else None,
        max_new_tokens=MAX_NEW_TOKENS,
    )


def kind(problem: Problem) -> str:
    """The kind of a procedural problem, as its identifier ends."""
    return problem.id.rpartition("-")[2]


def public_text(name: str, *, size: int, seed: int) -> list[tuple[str, str]]:
    """Questions with one public answer each; no question is a problem of the task in another wording.

    Raises:
        ReproError: no such task, or a size that is not positive.
    """
    if name not in SIZES or size < 1:
        raise ReproError(f"{size} public texts of {name!r}: expected a positive number of {', '.join(SIZES)}")
    _, private = _problems(name)
    rng = random.Random(f"reprolib {name} replies {seed}")
    fresh = (d for d in drafts(name, f"public {seed}") if d.key not in private)
    return [(d.question, rng.choices(*zip(*d.replies, strict=True))[0]) for d in islice(fresh, size)]
