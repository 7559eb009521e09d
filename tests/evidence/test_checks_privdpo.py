"""The checks that only the PrivDPO paper needs, against hand values and independent computations."""

import math
from decimal import Decimal

import numpy as np
import pytest
from scipy import integrate

from reprolib.evidence.checks import privdpo
from reprolib.evidence.published import Cell, Published

E = math.e


def cells(**numbers: str) -> Published:
    """Published cells ``privdpo.t01.<name with dots for double underscores>``."""
    made = [
        Cell(f"privdpo.t01.{name.replace('__', '.')}", "privdpo", "1", "S", "r", "c", "q", "",
             Decimal(value), None, None, "")
        for name, value in numbers.items()
    ]  # fmt: skip
    return Published(made, {("privdpo", "1"): "t"})


NONE = Published([], {})


def test_privdpo_outputs_at_epsilon_1_are_those_of_the_definition():
    (up, _, p), (down, _, q) = privdpo.privdpo_pieces(1.0, 0.3)
    assert (up, p) == pytest.approx((0.3 + 1 / (E - 1), E / (E + 1)))
    assert (down, q) == pytest.approx((0.3 - 1 - 1 / (E - 1), 1 / (E + 1)))


def test_duchi_at_log_3_answers_plus_or_minus_2():
    (up, _, p), (down, _, q) = privdpo.duchi_pieces(math.log(3), 0.4)
    assert (up, down) == pytest.approx((2, -2))
    assert (p, q) == pytest.approx((0.4 * 2 / 8 + 0.5, 0.5 - 0.4 * 2 / 8))


def test_piecewise_density_is_that_of_the_printed_formulas():
    epsilon, psi = 1.0, 0.25
    grown = math.exp(epsilon / 2)
    c = (grown + 1) / (grown - 1)
    low = (c + 1) / 2 * psi - (c - 1) / 2
    centre = privdpo.piecewise_pieces(epsilon, psi)[1]
    assert centre == pytest.approx((low, low + c - 1, grown / (grown + 1)))
    outer = 1 / (grown + 1) / (2 * c - (c - 1))
    for a, b, p in privdpo.piecewise_pieces(epsilon, psi)[::2]:
        assert p == pytest.approx(outer * (b - a))


@pytest.mark.parametrize("mechanism", sorted(privdpo.RANDOMISERS))
def test_every_distribution_sums_to_one(mechanism):
    for epsilon in (0.1, 1.0, 4.0):
        assert sum(p for _, _, p in privdpo.RANDOMISERS[mechanism](epsilon, 0.7)) == pytest.approx(1)


def test_moments_of_a_uniform_piece_match_quadrature():
    pieces = [(-1.0, 2.0, 0.6), (5.0, 5.0, 0.4)]
    first = integrate.quad(lambda x: x * 0.2, -1, 2)[0] + 5 * 0.4
    second = integrate.quad(lambda x: x * x * 0.2, -1, 2)[0] + 25 * 0.4
    assert privdpo.moments(pieces) == pytest.approx((first, second - first**2))


def test_piecewise_variance_is_the_one_of_its_authors():
    epsilon, psi = 0.5, 0.6
    g = math.exp(epsilon / 2)
    expected = psi**2 / (g - 1) + (g + 3) / (3 * (g - 1) ** 2)
    assert privdpo.moments(privdpo.piecewise_pieces(epsilon, psi))[1] == pytest.approx(expected)


def test_log_ratio_is_infinite_where_only_one_side_has_mass():
    assert privdpo.log_ratio([(0.0, 0.0, 1.0)], [(1.0, 1.0, 1.0)]) == math.inf
    assert privdpo.log_ratio([(0.0, 1.0, 1.0)], [(0.0, 2.0, 1.0)]) == math.inf


def test_log_ratio_of_overlapping_uniforms_is_that_of_their_densities():
    ours = [(0.0, 1.0, 0.8), (1.0, 2.0, 0.2)]
    theirs = [(0.0, 1.0, 0.2), (1.0, 2.0, 0.8)]
    assert privdpo.log_ratio(ours, theirs) == pytest.approx(math.log(4))


def test_privdpo_is_unbiased_and_rr_is_off_by_its_flip_probability():
    assert privdpo.randomiser_bias(NONE, mechanism="privdpo").value
    assert not privdpo.randomiser_bias(NONE, mechanism="rr").value
    assert privdpo.randomiser_bias(NONE, mechanism="rr", flip_probability=True).value


def test_duchi_spends_log_of_half_e_to_the_epsilon_plus_one_on_preference_neighbours():
    assert privdpo.randomiser_privacy(NONE, mechanism="duchi").value
    tight = privdpo.randomiser_privacy(NONE, mechanism="duchi", tight=True)
    assert not tight.value
    ours = privdpo.duchi_pieces(1.0, 1e-6)
    neighbour = [(-b, -a, p) for a, b, p in privdpo.duchi_pieces(1.0, 1 - 1e-6)]
    assert privdpo.log_ratio(ours, neighbour) == pytest.approx(math.log((E + 1) / 2), abs=1e-5)


@pytest.mark.parametrize("mechanism", ["privdpo", "rr", "piecewise"])
def test_the_other_randomisers_spend_their_epsilon_exactly(mechanism):
    assert privdpo.randomiser_privacy(NONE, mechanism=mechanism, tight=True).value


def test_a_randomiser_with_too_small_an_offset_fails_privacy(monkeypatch):
    def careless(epsilon, psi):
        (up, _, p), (down, _, q) = privdpo.privdpo_pieces(epsilon, psi)
        return [(up, up, p), (down + 0.1, down + 0.1, q)]

    monkeypatch.setitem(privdpo.RANDOMISERS, "privdpo", careless)
    assert not privdpo.randomiser_privacy(NONE, mechanism="privdpo").value


def test_keep_probabilities_hold():
    assert privdpo.keep_probabilities(NONE).value


def test_privdpo_variance_matches_a_simulation_of_the_weight():
    generator = np.random.default_rng(0)
    up, down = (w for w, _ in privdpo.weights(0.5, 0.4))
    draws = np.where(generator.random(400_000) <= math.exp(0.5) / (math.exp(0.5) + 1), up, down)
    assert draws.mean() == pytest.approx(1, abs=0.03)
    assert (0.4 * draws).var() == pytest.approx(math.exp(0.5) / (math.exp(0.5) - 1) ** 2, rel=0.01)
    assert privdpo.randomiser_variance(NONE).value
    assert privdpo.weight_variance(NONE).value


def test_weight_checks_fail_for_a_weight_without_the_minus_two(monkeypatch):
    assert privdpo.weight_mean(NONE).value
    assert privdpo.weight_is_intensity(NONE).value

    def wrong(epsilon, psi):
        grown = math.exp(epsilon)
        return [(1 + 1 / psi, grown / (grown + 1)), (1 - 1 / psi, 1 / (grown + 1))]

    monkeypatch.setattr(privdpo, "weights", wrong)
    assert not privdpo.weight_mean(NONE).value
    assert not privdpo.weight_is_intensity(NONE).value
    assert not privdpo.weight_variance(NONE).value


def test_duchi_variance_is_more_than_four_times_that_of_privdpo():
    assert privdpo.noisier_than_privdpo(NONE, mechanism="duchi").value
    assert privdpo.noisier_than_privdpo(NONE, mechanism="piecewise").value
    # coth(eps/2)^2 = 1 + 4 e^eps/(e^eps - 1)^2, so Duchi has 1 - psi^2 more than four times as much
    duchi = privdpo.moments(privdpo.duchi_pieces(0.5, 0.2))[1]
    assert duchi == pytest.approx(1 - 0.04 + 4 * math.exp(0.5) / (math.exp(0.5) - 1) ** 2)


def test_rr_has_less_variance_than_privdpo():
    assert not privdpo.noisier_than_privdpo(NONE, mechanism="rr").value


def test_outputs_lie_outside_the_two_intensities():
    assert privdpo.output_order(NONE).value


def test_deviation_bound_at_log_2_is_2():
    assert privdpo.deviation_bound(NONE).value
    assert max(abs(v - 0.5) for v, _, _ in privdpo.privdpo_pieces(math.log(2), 0.5)) == pytest.approx(2)


def test_the_step_in_the_proof_of_lemma_b_1_falls_short():
    # V = 0, M = 3, gamma = 2/e: t = 1, and t^2/2 / (M t/3) = 1/2 where log(2/gamma) = 1 is needed
    assert privdpo.bernstein_width(0.0, 3.0, 2 / E) == pytest.approx(1)
    assert not privdpo.bernstein_step(NONE).value


def test_lemma_b_1_and_theorem_4_2_hold_on_exact_tails():
    assert privdpo.bernstein_lemma(NONE).value
    assert privdpo.theorem_4_2(NONE).value


def test_exceedance_of_one_coin_is_zero_or_all():
    assert privdpo.exceedance(1, 0.5, 0.01) == 0  # the width exceeds 1/2
    # ten fair coins at gamma 1: width sqrt(5 log 2) + log(2)/6 = 1.977..., so 0-3 and 7-10 count
    assert privdpo.exceedance(10, 0.5, 1.0) == pytest.approx(2 * (1 + 10 + 45 + 120) / 1024)


def test_both_printed_forms_of_the_last_term_agree():
    assert privdpo.theorem_4_2_forms(NONE).value


def test_the_order_holds_at_small_budgets_and_fails_at_large_ones():
    assert privdpo.deviation_order(NONE, largest_epsilon=1, factor=3).value
    assert not privdpo.deviation_order(NONE, largest_epsilon=4, factor=3).value


def test_the_norm_grows_with_the_root_of_the_rank():
    found = privdpo.norm_bound(NONE, factor=10)
    assert not found.value
    assert "8.0 at m = 64" in found.detail


def test_the_mean_axis_is_within_the_largest_eigenvalue():
    assert privdpo.mean_axis_norm(NONE).value


def test_bit_mechanisms_are_private_and_the_first_is_randomised_response():
    made = privdpo.bit_mechanisms(0.5, 20, 1)
    assert all(m.sum(axis=1) == pytest.approx(1) for m in made)
    assert privdpo.worst_log_ratio(made[0]) == pytest.approx(0.5)
    assert max(privdpo.worst_log_ratio(m) for m in made) <= 0.5 + 1e-12


def test_privacy_properties_hold():
    assert privdpo.convexity(NONE, epsilon=0.5).value
    assert privdpo.transformation(NONE, epsilon=0.5).value
    assert privdpo.composition(NONE, first=0.5, second=1.0).value
    assert privdpo.posterior(NONE, epsilon=0.5).value


def test_one_pass_costs_epsilon_and_two_passes_need_twice_as_much():
    assert privdpo.one_pass(NONE, epsilon=0.5).value
    twice = privdpo.one_pass(NONE, epsilon=0.5, passes=2)
    assert twice.value
    assert float(twice.detail.split("largest ")[1].split(",")[0]) > 0.5


def test_outperforms_reverses_the_order_for_the_loss_and_refuses_ties():
    good = {"a__x__rm": "0.2", "a__x__ra": "60", "a__x__loss": "0.60"}
    bad = {"b__x__rm": "0.1", "b__x__ra": "55", "b__x__loss": "0.65"}
    arguments = {"winner": "privdpo.t01.a.*.{metric}", "losers": ["privdpo.t01.b.*.{metric}"]}
    assert privdpo.outperforms(cells(**good, **bad), **arguments).value
    tied = bad | {"b__x__loss": "0.60"}
    assert not privdpo.outperforms(cells(**good, **tied), **arguments).value


def test_typical_ratio_counts_ratios_inside_the_range():
    published = cells(a__x="4", a__y="6", a__z="9", b__x="2", b__y="2", b__z="2")
    arguments = {"winner": "privdpo.t01.a.*", "losers": ["privdpo.t01.b.*"], "low": 2, "high": 3}
    found = privdpo.typical_ratio(published, **arguments)
    assert found.value
    assert "2 of 3 in [2, 3], 1 above, smallest 2.00, median 3.00, largest 4.50" in found.detail


def test_most_at_least_needs_more_than_half():
    published = cells(a__x="58.0", a__y="57.5", a__z="40.0")
    arguments = {"cells": ["privdpo.t01.a.*"], "threshold": 58}
    assert not privdpo.most_at_least(published, **arguments).value
    assert privdpo.most_at_least(published, nearly=0.5, **arguments).value


def test_clear_of_seed_spread_refuses_a_gain_of_half_a_deviation():
    arguments = {"winner": "privdpo.t01.a.*", "losers": ["privdpo.t01.b.*"], "spread": 1}
    assert privdpo.clear_of_seed_spread(cells(a__x="60", b__x="59"), **arguments).value
    assert not privdpo.clear_of_seed_spread(cells(a__x="60", b__x="59.7"), **arguments).value
    losses = cells(a__x="0.60", b__x="0.61")
    assert privdpo.clear_of_seed_spread(losses, lower_is_better=True, **arguments).value
