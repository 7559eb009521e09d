"""The checks of Appendix B, bounded; and each shown to notice the fault that it is there for."""

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reprolib.learn import toy, verification
from reprolib.privacy.mechanism import EntropySource, clip

ULP = torch.finfo(torch.float64).eps


def test_adding_one_prompt_moves_the_sum_by_at_most_clip_norm():
    found = verification.sensitivity(verification.prompt_gradients())
    assert len(found.ratios) == 21
    assert found.excess <= ULP
    assert max(found.ratios) > 0.99


@settings(max_examples=25)
@given(seed=st.integers(0, 2**31), clip_norm=st.floats(1e-3, 1e3))
def test_sensitivity_is_bounded_for_any_rows_and_any_clip_norm(seed, clip_norm):
    rows = torch.randn(5, 30, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    assert verification.sensitivity(rows, clip_norm=clip_norm, seed=seed).excess <= ULP


def test_sensitivity_notices_normalisation_across_the_batch():
    def whitened(rows, clip_norm):
        return clip(rows / rows.norm(dim=1).mean(), clip_norm)

    assert verification.sensitivity(verification.prompt_gradients(), rule=whitened).excess > 0.1


def test_without_privacy_a_step_is_that_of_the_flat_mean():
    assert verification.non_private_difference() <= 1e-12


def test_flat_loss_differs_at_another_temperature():
    policy, groups = toy.with_adapter(dtype=torch.float64), verification.groups(1)
    losses = [verification.flat_loss(policy, groups, temperature=t).item() for t in (1.0, 0.7)]
    assert abs(losses[0] - losses[1]) > 1e-6


@pytest.mark.parametrize("source", [EntropySource.private, partial(EntropySource.research, 0)])
def test_inclusions_have_the_planned_frequency_and_are_independent(source):
    found = verification.poisson(toy.plan(expected_batch_size=1.2), source())
    assert found.frequency_error < 0.012
    assert found.largest_correlation < 0.035


def test_a_prompt_gradient_is_bit_identical_whatever_another_prompts_rewards():
    found = verification.group_isolation()
    assert found.identical
    assert found.moved > 0


@pytest.mark.parametrize("arm", toy.ARMS)
def test_isolation_holds_through_the_trainer_in_every_arm(arm):
    apart = verification.trainer_isolation(arm)
    assert apart.identical
    assert (apart.moved > 0) == (arm != "zero")  # the control reads no reward at all
    batched = verification.trainer_isolation(arm, method="batched")
    # filtered targets change in number, and with them the width of the batch
    assert batched.others < 1e-5 if arm == "filtered" else batched.identical


def test_a_record_leaves_no_more_than_rounding_in_the_batch_that_it_left():
    assert verification.batch_effect(dtype=torch.float64) < 1e-13
    assert verification.batch_effect() < 1e-5


def test_groups_of_constant_reward_have_the_same_finite_gradient_which_is_that_of_the_kl_term():
    found = verification.zero_advantage()
    assert found.largest_advantage == 0
    assert found.finite
    assert found.identical
    assert found.norm > 0
    assert found.norm_at_base == 0


def test_chunks_of_completions_change_nothing():
    found = verification.chunk_identity()
    assert set(found) == {1, 2, 4, 8}
    for gap in found.values():
        assert gap.loss <= 1e-6
        assert gap.gradient <= 1e-10
        assert gap.entry <= 1e-12


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_low_precision_base_keeps_sensitivity_and_isolation_but_not_the_chunk_identity(dtype):
    found = verification.preflight(dtype, clip_norms=(0.02768, 0.05536, 0.11072), records=6)
    assert max(found.excess.values()) <= 1.2e-7
    assert found.isolation.identical
    assert found.constant.largest_advantage == 0
    assert found.constant.identical
    assert 1e-10 < found.chunks[2].gradient < 0.1
    assert all(0 <= flips <= found.records for flips in found.flips.values())
