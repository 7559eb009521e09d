"""Cached reference log-probabilities, and the margins that are computed from them."""

from dataclasses import replace

import pytest
import torch

from reprolib.errors import ReproError
from reprolib.learn.preference_reference import Reference, log_probabilities, reward_margins
from reprolib.lm.models import attach_lora, base
from tests import tiny
from tests.learn.pairs import random_pairs

PAIRS = random_pairs(8)


@pytest.fixture(scope="module")
def policy():
    return tiny.with_adapter(dtype=torch.float64)


@pytest.fixture
def cached(policy, tmp_path):
    path = tmp_path / "reference.safetensors"
    Reference.of(policy, PAIRS).write(path)
    return path


def test_small_blocks_give_the_same_values_in_the_order_of_the_pairs(policy):
    whole = log_probabilities(policy, PAIRS)
    torch.testing.assert_close(
        log_probabilities(policy, PAIRS, batch_tokens=1), whole, rtol=1e-12, atol=1e-12
    )
    torch.testing.assert_close(log_probabilities(policy, PAIRS[::-1]), whole.flip(0), rtol=1e-12, atol=1e-12)


def test_values_come_back_bit_for_bit(policy, cached):
    assert torch.equal(Reference.read(cached, policy, PAIRS)(PAIRS), Reference.of(policy, PAIRS)(PAIRS))


def test_a_pair_is_found_whichever_its_annotation(policy):
    reference = Reference.of(policy, PAIRS)
    flipped = [replace(p, first_preferred=not p.first_preferred) for p in PAIRS]
    assert torch.equal(reference(flipped[2:4]), reference(PAIRS)[2:4])


def test_another_pair_is_refused(policy):
    with pytest.raises(ReproError, match="pair 3: no reference log-probabilities"):
        Reference.of(policy, PAIRS[:3])(PAIRS)


def test_a_cache_for_other_weights_is_refused(cached):
    with pytest.raises(ReproError, match=r"reference\.safetensors: reference of another model weights"):
        Reference.read(cached, tiny.with_adapter(dtype=torch.float64, seed=1), PAIRS)


def test_a_cache_for_a_policy_that_was_trained_on_is_refused(cached):
    moved = tiny.with_adapter(dtype=torch.float64)
    parameter = next(p for p in moved.model.parameters() if p.requires_grad)
    with torch.no_grad():
        parameter.flatten()[0] += 1e-9
    with pytest.raises(ReproError, match="another model weights"):
        Reference.read(cached, moved, PAIRS)


def test_a_cache_for_another_tokenizer_is_refused(policy, cached):
    other = tiny.tokenizer()
    other.add_tokens(["new"])
    with pytest.raises(ReproError, match="reference of another tokenizer"):
        Reference.read(cached, replace(policy, tokenizer=other), PAIRS)


@pytest.mark.parametrize("pairs", [PAIRS[::-1], PAIRS[:-1], random_pairs(8, seed=1)])
def test_a_cache_for_another_data_set_is_refused(policy, cached, pairs):
    with pytest.raises(ReproError, match="reference of another data set"):
        Reference.read(cached, policy, pairs)


def test_a_missing_or_damaged_file_is_named(policy, tmp_path):
    path = tmp_path / "reference.safetensors"
    with pytest.raises(ReproError, match=r"reference\.safetensors: no readable reference"):
        Reference.read(path, policy, PAIRS)
    path.write_bytes(b"not a tensor")
    with pytest.raises(ReproError, match=r"reference\.safetensors: no readable reference"):
        Reference.read(path, policy, PAIRS)


def test_the_base_is_one_model_bare_or_under_an_adapter_that_is_off(tmp_path):
    bare = tiny.policy(dtype=torch.float64)
    path = tmp_path / "base.safetensors"
    Reference.of(bare, PAIRS).write(path)
    adapted = tiny.with_adapter(dtype=torch.float64)
    with base(adapted):
        inside = Reference.read(path, adapted, PAIRS)
        torch.testing.assert_close(inside(PAIRS), log_probabilities(adapted, PAIRS), rtol=1e-12, atol=1e-12)
    with pytest.raises(ReproError, match="another model weights"):
        Reference.read(path, adapted, PAIRS)


def test_a_pair_that_the_model_cannot_read_has_no_reference(policy):
    with pytest.raises(ReproError, match="the context holds 64"):
        Reference.of(policy, [replace(PAIRS[0], prompt=(2,) * 70)])


def test_margins_are_zero_at_the_reference_and_change_sign_with_the_annotation():
    policy = attach_lora(tiny.policy(dtype=torch.float64), rank=2, alpha=4, seed=0)
    reference = Reference.of(policy, PAIRS)
    assert float(reward_margins(policy, PAIRS, reference).abs().max()) < 1e-12
    moved = tiny.with_adapter(dtype=torch.float64)
    margins = reward_margins(moved, PAIRS, reference, beta=0.1)
    flipped = [replace(p, first_preferred=not p.first_preferred) for p in PAIRS]
    assert float(margins.abs().min()) > 1e-3
    assert torch.equal(reward_margins(moved, flipped, reference, beta=0.1), -margins)
    torch.testing.assert_close(reward_margins(moved, PAIRS, reference, beta=0.2), 2 * margins)
