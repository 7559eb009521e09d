"""Checks that only the DP-GRPO paper needs, against hand counts."""

import pytest

from reprolib.errors import ReproError
from reprolib.evidence import published
from reprolib.evidence.checks import dp_grpo

EMPTY = published.Published([], {})
HIDDEN, LAYERS, KEY_VALUE, INTERMEDIATE, VOCABULARY, RANK = 1536, 28, 256, 8960, 151936, 4


@pytest.fixture(scope="module")
def paper() -> published.Published:
    return published.load("dp_grpo")


def test_rounding_of_printed_text_numbers_is_carried_into_the_range():
    found = dp_grpo.text_formula(EMPTY, expression="a - b", printed={"a": "0.37", "b": "-0.65"})
    assert found.value == pytest.approx(1.02)
    assert (found.low, found.high) == pytest.approx((1.01, 1.03))


def test_printed_text_numbers_and_table_cells_can_be_mixed(paper):
    found = dp_grpo.text_formula(paper, expression="a - b", printed={"a": "77.9"}, b="dp_grpo.t13.base.mean")
    assert found.value == pytest.approx(77.9 - 82.0)


def test_an_unquoted_printed_number_is_refused_by_name():
    with pytest.raises(ReproError, match=r"'a'.*not a quoted decimal"):
        dp_grpo.text_formula(EMPTY, expression="a", printed={"a": "about one"})


def test_lora_coordinates_are_rank_times_the_sum_of_both_sides_of_every_projection():
    attention = 2 * (HIDDEN + HIDDEN) + 2 * (HIDDEN + KEY_VALUE)
    mlp = 3 * (HIDDEN + INTERMEDIATE)
    found = dp_grpo.architecture_size(EMPTY, quantity="coordinates")
    assert found.value == RANK * LAYERS * (attention + mlp)


def test_lora_has_two_tensors_a_projection():
    assert dp_grpo.architecture_size(EMPTY, quantity="tensors").value == 2 * 7 * LAYERS


def test_model_parameters_are_the_sum_of_its_layers_with_one_embedding():
    attention = 2 * HIDDEN * HIDDEN + 2 * HIDDEN * KEY_VALUE + HIDDEN + 2 * KEY_VALUE  # with q, k, v biases
    layer = attention + 3 * HIDDEN * INTERMEDIATE + 2 * HIDDEN
    total = VOCABULARY * HIDDEN + LAYERS * layer + HIDDEN
    assert dp_grpo.architecture_size(EMPTY, quantity="parameters").value == pytest.approx(total / 1e9)


def test_an_unknown_size_is_refused_with_the_known_ones():
    with pytest.raises(ReproError, match="parameters, coordinates, tensors"):
        dp_grpo.architecture_size(EMPTY, quantity="flops")


def test_opacus_grid_changes_no_budget_because_it_holds_every_minimising_order(paper):
    orders = [float(paper.number(c)) for c in paper.match("dp_grpo.t06.*.order")]
    assert all(any(abs(o - grid) < 1e-9 for grid in dp_grpo.OPACUS_ORDERS) for o in orders)
    assert dp_grpo.opacus_grid_gap(paper, sigma="dp_grpo.t07.*.sigma").value == 0


def test_opacus_grid_gap_is_positive_where_the_grid_lacks_the_minimising_order():
    def cell(name: str, number: str) -> published.Cell:
        return dp_grpo._printed(f"row.{name}", number)

    # a large noise multiplier makes order 128 or above the best, which Opacus's grid does not have
    rows = [cell("n", "10000"), cell("m", "100"), cell("rounds", "1"), cell("sigma", "20")]
    found = dp_grpo.opacus_grid_gap(published.Published(rows, {}), sigma="dp_grpo.text.row.sigma")
    assert found.value > 1e-3
