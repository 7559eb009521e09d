"""What a grader may compare: plain values, their shape, and whether two of them agree."""

import math
from typing import Any

from reprolib.errors import ReproError

WITHIN = 0.01  # relative tolerance of a number; whole numbers, text and booleans must be equal


def plain(value: Any) -> Any:
    """A number, text or boolean, or a list of them, in place of its numpy, pandas or torch form.

    Raises:
        ReproError: another kind of value, which no grader can compare.
    """
    if hasattr(value, "tolist"):  # arrays and scalars of numpy, pandas and torch
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, bool | int | float | str):
        return value
    raise ReproError(
        f"an answer of type {type(value).__name__}: expected numbers, text, True or False, or a list"
    )


def kind(value: Any) -> str:
    """What kind of answer this is, in words that give nothing away."""
    value = plain(value)
    if isinstance(value, list):
        return "a list"
    return {bool: "True or False", str: "text"}.get(type(value), "a number")


def matches(given: Any, expected: Any) -> bool:
    """Whether a given answer is the expected one: numbers within one per cent, all else equal."""
    try:
        given, expected = plain(given), plain(expected)
    except ReproError:
        return False
    if isinstance(expected, list):
        return isinstance(given, list) and len(given) == len(expected) and all(map(matches, given, expected))
    if isinstance(expected, bool | str) or isinstance(given, bool | str | list):
        return type(given) is type(expected) and bool(given == expected)
    if isinstance(expected, int):
        return bool(given == expected)
    return math.isclose(given, expected, rel_tol=WITHIN, abs_tol=1e-9 if expected == 0 else 0.0)
