"""Checks: functions that recompute a published number or test a published statement.

A check takes the published cells and keyword arguments (from ``data/claims/*.yml``) and returns an
``Outcome``. It is pure: the same arguments give the same outcome, so a verdict can be computed
anywhere. What an experiment measured is not a check; chapters record it (``measured``).
"""

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from reprolib.errors import ReproError
from reprolib.evidence.published import Published

MEASURED = "measured"  # the value comes from the chapter that ran the experiment
MODULES = ("common", "accounting", "dp_grpo", "privdpo", "sage")


@dataclass(frozen=True)
class Outcome:
    """What a check found.

    Args:
        value: the recomputed number, or True/False for a statement.
        low: smallest value that the rounding of the inputs allows (or an interval's low end).
        high: largest such value.
        detail: the arithmetic, for the reader of the ledger.
    """

    value: float | bool
    low: float | None = None
    high: float | None = None
    detail: str = ""


Check = Callable[..., Outcome]
_REGISTRY: dict[str, Check] = {}


def check(function: Check) -> Check:
    """Register a function ``(published, *, ...) -> Outcome`` under its own name."""
    if function.__name__ in _REGISTRY and _REGISTRY[function.__name__] is not function:
        raise ReproError(f"two checks are named {function.__name__!r}")
    _REGISTRY[function.__name__] = function
    return function


def registry() -> dict[str, Check]:
    """Every check by name."""
    for module in MODULES:
        importlib.import_module(f"{__name__}.{module}")
    return _REGISTRY


def bind(name: str, args: dict[str, Any]) -> Check:
    """The check of that name, once its arguments have been seen to fit.

    Raises:
        ReproError: an unknown check, or arguments that it does not take.
    """
    checks = registry()
    if name not in checks:
        raise ReproError(f"unknown check {name!r}; known checks: {MEASURED}, {', '.join(sorted(checks))}")
    try:
        inspect.signature(checks[name]).bind(None, **args)
    except TypeError as error:
        raise ReproError(f"check {name!r}: {error}; it takes {inspect.signature(checks[name])}") from None
    return checks[name]


def run(name: str, published: Published, args: dict[str, Any]) -> Outcome:
    """Run one check."""
    return bind(name, args)(published, **args)
