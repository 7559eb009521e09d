import math
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from reprolib.errors import ReproError
from reprolib.evidence import checks, published
from reprolib.evidence.checks.common import formula
from reprolib.evidence.published import Cell, Published


def cell(name, value, low=None, high=None, quantity="accuracy") -> Cell:
    number = lambda x: None if x is None else Decimal(x)  # noqa: E731
    return Cell(
        id=f"p.t.{name}", paper="p", table="t", section="S", row=name, column="x", quantity=quantity, unit="",
        value=number(value), low=number(low), high=number(high), text="",
    )  # fmt: skip


CELLS = Published(
    [
        cell("a", "2.5"), cell("b", "1.25"), cell("c", "3", quantity="count"),
        cell("e", "-0.57", "-1.19", "0.06"), cell("g", "2.65", "1.79", "3.51"),
        *(cell(f"s.{i}", v) for i, v in enumerate(["2.31", "3.16", "2.62", "2.51"])),
    ],
    {},
)  # fmt: skip


def test_rounding_of_the_inputs_bounds_the_result():
    found = formula(CELLS, expression="a - b", a="p.t.a", b="p.t.b")
    assert found.value == pytest.approx(1.25)
    assert (found.low, found.high) == pytest.approx((1.25 - 0.055, 1.25 + 0.055))


def test_a_count_carries_no_rounding():
    found = formula(CELLS, expression="2 * c", c="p.t.c")
    assert (found.low, found.value, found.high) == (6, 6, 6)


def test_the_arithmetic_is_shown():
    assert formula(CELLS, expression="a / b", a="p.t.a", b="p.t.b").detail == "a / b; a = 2.5, b = 1.25"


@given(shift=st.floats(-0.05, 0.05), other=st.floats(-0.005, 0.005))
def test_no_unrounded_input_leaves_the_range(shift, other):
    found = formula(CELLS, expression="a / b", a="p.t.a", b="p.t.b")
    assert found.low - 1e-12 <= (2.5 + shift) / (1.25 + other) <= found.high + 1e-12


def test_many_inputs_still_have_a_range_that_holds():
    many = Published([cell(f"m.{i}", "1.0") for i in range(20)], {})
    found = formula(many, expression="sum(x)", x="p.t.m.*")
    assert (found.low, found.high) == pytest.approx((19.0, 21.0))


def test_a_comparison_is_true_or_false():
    assert formula(CELLS, expression="min(s) > 0", s="p.t.s.*").value is True
    assert formula(CELLS, expression="t(0.975, 3) < 3", x=1).value is False


def test_lists_may_mix_numbers_and_references():
    assert formula(CELLS, expression="sum(x)", x=["p.t.a", 0.5]).value == 3.0


@pytest.mark.parametrize(
    "expression",
    ["a +", "open('x')", "__import__('os')", "a / 0", "nothing", "a.__class__", "[1, 2] > 1", "9**9**9"],
)
def test_a_bad_or_hostile_expression_is_an_error(expression):
    with pytest.raises(ReproError, match="cannot evaluate"):
        formula(CELLS, expression=expression, a="p.t.a")


def test_mde_of_a_known_interval():
    factor = stats.norm.ppf(0.975) + stats.norm.ppf(0.8)
    expected = factor * (0.06 + 1.19) / (2 * stats.norm.ppf(0.975))
    assert checks.run("mde", CELLS, {"cell": "p.t.e"}).value == pytest.approx(expected)


def test_seed_interval_is_students():
    seeds = [2.31, 3.16, 2.62, 2.51]
    low, high = stats.t.interval(0.95, 3, loc=sum(seeds) / 4, scale=stats.sem(seeds))
    args = {"seeds": "p.t.s.*"}
    assert checks.run("seed_interval", CELLS, {**args, "end": "low"}).value == pytest.approx(low)
    assert checks.run("seed_interval", CELLS, {**args, "end": "high"}).value == pytest.approx(high)


def test_an_interval_excludes_or_includes_zero():
    assert checks.run("excludes_zero", CELLS, {"cell": "p.t.g"}).value
    assert not checks.run("excludes_zero", CELLS, {"cell": "p.t.g", "positive": False}).value
    assert checks.run("includes_zero", CELLS, {"cell": "p.t.e"}).value
    assert not checks.run("includes_zero", CELLS, {"cell": "p.t.g"}).value


def test_beats_names_the_cells_that_do_not():
    found = checks.run("beats", CELLS, {"winner": "p.t.a", "losers": ["p.t.b", "p.t.c"]})
    assert not found.value
    assert "1 of 2 comparisons hold" in found.detail
    assert "p.t.a = 2.5 against p.t.c = 3" in found.detail


def test_beats_of_a_loss_prefers_the_smaller():
    args = {"winner": "p.t.b", "losers": ["p.t.a"], "lower_is_better": True}
    assert checks.run("beats", CELLS, args).value


def test_a_tie_is_no_win_unless_ties_are_accepted():
    args = {"winner": "p.t.a", "losers": ["p.t.a"]}
    assert not checks.run("beats", CELLS, args).value
    assert checks.run("beats", CELLS, {**args, "strict": False}).value


def test_patterns_of_different_length_are_refused():
    with pytest.raises(ReproError, match="matches 1 cells but"):
        checks.run("beats", CELLS, {"winner": "p.t.a", "losers": ["p.t.s.*"]})


def test_an_unknown_check_lists_the_known_ones():
    with pytest.raises(ReproError, match=r"unknown check 'guess'; known checks: measured, .*formula"):
        checks.bind("guess", {})


def test_arguments_that_a_check_does_not_take_are_refused():
    with pytest.raises(ReproError, match="check 'mde'"):
        checks.bind("mde", {"cells": "x"})


def test_every_check_has_a_docstring_with_its_meaning():
    for name, function in checks.registry().items():
        assert function.__doc__, name
        assert len(function.__doc__) > 20, name


def test_every_check_in_the_registry_is_used_by_a_claim(root):
    text = "\n".join(p.read_text() for p in (root / "data" / "claims").glob("*.yml"))
    unused = [name for name in checks.registry() if name not in text]
    assert unused == []


def test_real_cells_evaluate():
    cells = published.load("dp_grpo")
    gain = checks.run("formula", cells, {"expression": "a - b", "a": "dp_grpo.t03.dp_grpo.strict",
                                         "b": "dp_grpo.t03.base.strict"})  # fmt: skip
    assert math.isclose(gain.value, 2.51, abs_tol=1e-9)
