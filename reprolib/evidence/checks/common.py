"""Checks that recompute a number from other published numbers, with their rounding carried along."""

import math
import statistics
from collections.abc import Callable
from itertools import product
from typing import Any

from scipy import stats
from simpleeval import EvalWithCompoundTypes, InvalidExpression

from reprolib.errors import ReproError
from reprolib.evidence.checks import Outcome, check
from reprolib.evidence.published import Published

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "mean": lambda *x: statistics.fmean(x[0] if len(x) == 1 else x),
    "stdev": lambda *x: statistics.stdev(x[0] if len(x) == 1 else x),
    "sqrt": math.sqrt,
    "exp": math.exp,
    "log": math.log,
    "abs": abs,
    "min": min,
    "max": max,
    "sum": sum,
    "len": len,
    "sorted": sorted,
    "round": round,
    "zip": lambda *x: zip(*x, strict=True),
    "all": all,
    "any": any,
    "z": lambda p: float(stats.norm.ppf(p)),  # standard normal quantile
    "t": lambda p, df: float(stats.t.ppf(p, df)),  # Student quantile: t(probability, degrees of freedom)
}
MAX_CORNERS = 12  # inputs whose rounding is explored exhaustively (2**12 evaluations)


def _evaluate(expression: str, names: dict[str, Any]) -> Any:
    evaluator = EvalWithCompoundTypes(functions=FUNCTIONS, names={"True": True, "False": False, **names})
    return evaluator.eval(expression)


def _inputs(published: Published, variables: dict[str, Any]) -> dict[str, Any]:
    """Each variable as a literal number, one reference, or the list of references it stands for."""

    def expand(value: Any) -> list[Any]:
        return published.match(value) if isinstance(value, str) and "*" in value else [value]

    resolved: dict[str, Any] = {}
    for name, value in variables.items():
        if isinstance(value, list):
            resolved[name] = [reference for v in value for reference in expand(v)]
        else:
            resolved[name] = expand(value) if isinstance(value, str) and "*" in value else value
    return resolved


def _references(inputs: dict[str, Any]) -> list[str]:
    """Every cell reference once, in order of first use."""
    flat = [r for v in inputs.values() for r in (v if isinstance(v, list) else [v]) if isinstance(r, str)]
    return list(dict.fromkeys(flat))


def _substitute(inputs: dict[str, Any], numbers: dict[str, float]) -> dict[str, Any]:
    return {
        name: [numbers.get(r, r) for r in value] if isinstance(value, list) else numbers.get(value, value)
        for name, value in inputs.items()
    }


def _range(evaluate: Callable[[dict[str, float]], float], nominal: dict[str, float],
           slack: dict[str, float]) -> tuple[float, float]:  # fmt: skip
    """Smallest and largest value over the box of inputs that round to the printed ones."""
    centre = evaluate(nominal)
    if len(nominal) <= MAX_CORNERS:
        signs = product((-1.0, 1.0), repeat=len(nominal))
        corners = [
            evaluate({r: nominal[r] + s * slack[r] for r, s in zip(nominal, sign, strict=True)})
            for sign in signs
        ]
        return min(centre, *corners), max(centre, *corners)
    moved = sum(
        max(abs(evaluate(nominal | {r: nominal[r] + s * slack[r]}) - centre) for s in (-1.0, 1.0))
        for r in nominal
    )
    return centre - moved, centre + moved


@check
def formula(published: Published, *, expression: str, **variables: Any) -> Outcome:
    """Evaluate an expression over published cells.

    Args:
        expression: arithmetic or a comparison, for example ``(a - b) / c`` or ``min(seeds) > 0``.
            Functions: those of ``FUNCTIONS``; comprehensions are allowed.
        variables: a number, a reference (``cell.id``, ``cell.id#low``), a list of references, or a
            pattern with ``*`` for all numeric cells that it matches.

    Returns:
        The value with the range that the rounding of the inputs allows; True or False for a comparison.

    Raises:
        ReproError: an unknown cell, or an expression that cannot be evaluated.
    """
    inputs = _inputs(published, variables)
    references = _references(inputs)
    exact = {r: published.number(r) for r in references}
    nominal = {r: float(n) for r, n in exact.items()}
    slack = {r: published.rounding(r) for r in references}

    def evaluate(numbers: dict[str, float]) -> Any:
        try:
            return _evaluate(expression, _substitute(inputs, numbers))
        except (InvalidExpression, ArithmeticError, ValueError, TypeError, SyntaxError) as error:
            raise ReproError(f"cannot evaluate {expression!r}: {error}") from None

    value = evaluate(nominal)
    shown = ", ".join(f"{k} = {_show(v, exact)}" for k, v in inputs.items())
    detail = f"{expression}; {shown}" if shown else expression
    if isinstance(value, bool):
        return Outcome(value, detail=detail)
    low, high = _range(evaluate, nominal, slack)
    return Outcome(float(value), low, high, detail)


def _show(value: Any, exact: dict[str, Any]) -> str:
    if isinstance(value, list):
        numbers = [str(exact.get(r, r)) for r in value]
        return f"[{', '.join(numbers[:8])}{', …' if len(numbers) > 8 else ''}]"
    return str(exact.get(value, value))


@check
def same_as(published: Published, *, cell: str) -> Outcome:
    """A number in the text restates one in a table: the value of that cell, to its printed digits."""
    return formula(published, expression="x", x=cell)


@check
def mde(published: Published, *, cell: str) -> Outcome:
    """Minimum detectable effect (80 % power, two-sided 5 %) implied by a 95 % interval.

    Source: DP-GRPO, Section VII-E: (z(0.975) + z(0.8)) times the standard error.
    """
    expression = "(z(0.975) + z(0.8)) * (high - low) / (2 * z(0.975))"
    return formula(published, expression=expression, low=f"{cell}#low", high=f"{cell}#high")


@check
def excludes_zero(published: Published, *, cell: str, positive: bool = True) -> Outcome:
    """A published interval lies wholly above (below) zero."""
    expression = "low > 0" if positive else "high < 0"
    return formula(published, expression=expression, low=f"{cell}#low", high=f"{cell}#high")


@check
def includes_zero(published: Published, *, cell: str) -> Outcome:
    """A published interval includes zero, so the effect is not resolved."""
    return formula(published, expression="low <= 0 and high >= 0", low=f"{cell}#low", high=f"{cell}#high")


@check
def seed_interval(published: Published, *, seeds: list[str] | str, end: str) -> Outcome:
    """Seed-level Student interval of the mean of per-seed differences.

    Args:
        seeds: the cells of the per-seed differences.
        end: ``low`` or ``high``.

    Source: DP-GRPO, Section VII-E.
    """
    sign = {"low": "-", "high": "+"}[end]
    expression = f"mean(d) {sign} t(0.975, len(d) - 1) * stdev(d) / sqrt(len(d))"
    return formula(published, expression=expression, d=seeds)


@check
def beats(published: Published, *, winner: str, losers: list[str], lower_is_better: bool = False,
          strict: bool = True) -> Outcome:  # fmt: skip
    """The winner is better than every loser, cell by cell.

    Args:
        winner: a pattern; its cells in table order are compared with those of each loser.
        losers: patterns that match as many cells each.
        lower_is_better: True for a loss.
        strict: False accepts ties.
    """
    ours = published.match(winner)
    worse: list[str] = []
    total = 0
    for pattern in losers:
        theirs = published.match(pattern)
        if len(theirs) != len(ours):
            raise ReproError(f"{winner!r} matches {len(ours)} cells but {pattern!r} {len(theirs)}")
        for a, b in zip(ours, theirs, strict=True):
            total += 1
            gain = published.number(a) - published.number(b)
            gain = -gain if lower_is_better else gain
            if gain < 0 or (strict and gain == 0):
                worse.append(f"{a} = {published.number(a)} against {b} = {published.number(b)}")
    detail = f"{total - len(worse)} of {total} comparisons hold"
    return Outcome(not worse, detail=detail + (f"; not: {'; '.join(worse)}" if worse else ""))
