"""The rules of Appendix A that the proof relies on, in every arm."""

import math

import pytest
import torch

from reprolib.learn import toy, verification
from reprolib.learn import verification_rules as rules
from reprolib.privacy.mechanism import EntropySource


def test_clipping_is_the_formula_and_leaves_shorter_vectors_alone():
    rows = verification.prompt_gradients()
    norms = rows.norm(dim=1)
    found = rules.clipping(rows, clip_norm=float(norms.median()) * 1.01)
    assert found.error < 1e-14
    assert found.largest <= 1
    assert found.untouched


@pytest.mark.parametrize("arm", toy.ARMS)
def test_a_record_adds_at_most_clip_norm_in_every_arm(arm):
    assert 0 < rules.largest_contribution(arm) <= 1


@pytest.mark.parametrize("arm", toy.ARMS)
def test_the_release_is_the_noisy_clipped_sum_over_the_public_size(arm):
    assert rules.release_difference(arm) < 1e-12


def test_the_divisor_does_not_follow_the_realised_batch():
    assert rules.divisors() == pytest.approx([6, 6, 6], rel=1e-12)


@pytest.mark.parametrize("arm", toy.ARMS)
def test_groups_of_constant_reward_are_kept(arm):
    drawn, kept = rules.rows_kept(arm)
    assert drawn == kept


def test_an_empty_round_is_a_round_like_any_other():
    found = rules.empty_round()
    assert found.moved > 0
    assert found.counted


def test_a_record_that_is_not_finite_counts_as_zero_and_leaves_the_others():
    found = rules.non_finite_record()
    assert 0 < found.moved < math.inf
    assert found.counted
    assert found.others < 1e-12


def test_an_update_that_is_not_finite_moves_nothing_and_is_spent():
    found = rules.non_finite_update()
    assert found.moved == 0
    assert found.counted


@pytest.mark.parametrize("source", [EntropySource.private(), EntropySource.research(1)])
def test_noise_is_gaussian_with_the_planned_deviation(source):
    found = rules.noise_law(toy.plan(noise_multiplier=0.5), source)
    assert found.deviation == pytest.approx(1, abs=0.01)
    assert found.fourth == pytest.approx(3, abs=0.1)


def test_coins_rollouts_and_noise_know_no_public_seed():
    state = torch.random.get_rng_state()
    found = rules.hidden_randomness()
    assert not found.private_repeats
    assert not found.reads_public
    assert not found.moves_public
    assert found.correlation < 5 / math.sqrt(20_000)
    assert found.saved == 0
    assert torch.equal(state, torch.random.get_rng_state())


def test_a_completion_is_a_request_of_its_own():
    differing, compared = rules.rollouts_apart()
    assert compared == 192
    assert differing == 0


def test_a_release_holds_the_adapter_and_nothing_else():
    found = rules.released_files()
    assert set(found) == {"adapter_config.json", "adapter_model.safetensors"}
    assert (
        found["adapter_model.safetensors"]
        == toy.record_map(toy.with_adapter(), "gold", EntropySource.private()).dimension
    )
