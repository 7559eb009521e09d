r"""The chat that a problem becomes: a public instruction, a private question, a bound on the response.

The instruction is the system message and the same for every problem of a task, so that a prompt differs
from another in its record alone. Training and evaluation share it, and SVAMP takes GSM8K's.
Source: DP-GRPO, Section VII-A and Table I. The paper does not print its prompts: the wording is ours.
"""

from collections.abc import Sequence

from reprolib.errors import ReproError
from reprolib.tasks.verifiers import require_letter

# at the small tier a 135M-parameter model reads them: short, and no reasoning about options
_INSTRUCTIONS = {
    "math": {
        "paper": r"Solve the problem. Reason step by step, then write the final answer in \boxed{}.",
        "small": r"Solve the problem step by step. Write the final answer in \boxed{}.",
    },
    "gsm8k": {
        "paper": "Solve the problem. Reason step by step, then end with #### and the final number.",
        "small": "Solve the problem in short steps. End with #### and the final number.",
    },
    "csqa": {
        "paper": "Pick the best option. Reason briefly, then end with one line: Answer: <letter>",
        "small": "Pick the best option. Reply only with Answer: and its letter.",
    },
}
_INSTRUCTIONS["svamp"] = _INSTRUCTIONS["gsm8k"]

# without an answer to imitate, the 135M-parameter model declares a letter in almost no response
_CSQA_EXAMPLE = ("Where is milk kept cold?", ("oven", "refrigerator", "drawer", "shelf", "car"), "B")

# paper: Table I, and Appendix D-D for SVAMP; small: what a 135M-parameter model needs
_CAPS = {
    "paper": {"math": 1_024, "gsm8k": 512, "csqa": 512, "svamp": 512},
    "small": {"math": 256, "gsm8k": 128, "csqa": 8, "svamp": 48},
}


def instruction(name: str, *, tier: str) -> str:
    """The system message of a task.

    Args:
        name: "math", "gsm8k", "csqa" or "svamp".
        tier: "small" or "paper".

    Raises:
        ReproError: there is no such task or tier.
    """
    _require_known(name, tier)
    return _INSTRUCTIONS[name][tier]


def example(name: str, *, tier: str) -> tuple[str, str] | None:
    """A public question and its answer, shown before every problem; None where the instruction is enough.

    Raises:
        ReproError: there is no such task or tier.
    """
    _require_known(name, tier)
    if (name, tier) != ("csqa", "small"):
        return None
    stem, options, letter = _CSQA_EXAMPLE
    return multiple_choice(stem, options), declaration(letter)


def completion_cap(name: str, *, tier: str) -> int:
    """The most tokens that a response may have, the end token included.

    Raises:
        ReproError: there is no such task or tier.
    """
    _require_known(name, tier)
    return _CAPS[tier][name]


def multiple_choice(stem: str, options: Sequence[str]) -> str:
    """A question and its five options, one a line, lettered from A.

    Raises:
        ReproError: the options are not five.
    """
    if len(options) != 5:
        raise ReproError(f"{len(options)} options: expected five, lettered A to E")
    lines = (f"{letter}. {option}" for letter, option in zip("ABCDE", options, strict=True))
    return "\n".join((stem, *lines))


def declaration(letter: str) -> str:
    """The answer in the form that the strict scorer reads, which is the gold-SFT target as well.

    Source: DP-GRPO, Section VII-C ("Gold DP-SFT").

    Raises:
        ReproError: the letter is not one from A to E.
    """
    return f"Answer: {require_letter(letter)}"


def _require_known(name: str, tier: str) -> None:
    if name not in _INSTRUCTIONS:
        raise ReproError(f"task {name!r}: expected one of {', '.join(sorted(_INSTRUCTIONS))}")
    if tier not in _CAPS:
        raise ReproError(f"tier {tier!r}: expected small or paper, which read real data")
