"""The last bits of Algorithm 1, computed as printed, tell the annotation; canonical order does not."""

from dataclasses import replace

import pytest
import torch

from reprolib.learn.preference_reference import Reference
from reprolib.learn.preference_rounding import Release, attack
from reprolib.privacy.mechanism import EntropySource
from tests import tiny
from tests.learn.pairs import random_pairs

PAIRS = random_pairs(40)


def release(form, dtype=torch.float32, epsilon=0.5) -> Release:
    reference = Reference.of(tiny.policy(dtype=dtype), PAIRS)
    policy = tiny.policy(dtype=dtype, seed=3)
    policy.model.requires_grad_(True)
    return Release(policy, reference, epsilon, form)


@pytest.mark.parametrize("form", ["literal", "shared"])
def test_the_two_gradients_that_should_be_one_differ_by_rounding_alone(form):
    literal = release(form)
    differ = 0
    for pair in PAIRS:
        turned = replace(pair, first_preferred=not pair.first_preferred)
        for kept in (True, False):
            ours, theirs = literal.gradient(pair, kept=kept), literal.gradient(turned, kept=not kept)
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
            differ += not torch.equal(ours, theirs)
    assert differ > len(PAIRS)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_in_canonical_order_the_supports_are_bit_identical(dtype):
    canonical = release("canonical", dtype)
    for pair in PAIRS[:12]:
        turned = replace(pair, first_preferred=not pair.first_preferred)
        for kept in (True, False):
            assert torch.equal(canonical.gradient(pair, kept=kept), canonical.gradient(turned, kept=not kept))


@pytest.mark.parametrize("form", ["literal", "shared"])
def test_all_forms_are_one_mechanism_up_to_rounding(form):
    literal, canonical = release(form), release("canonical")
    for pair in PAIRS[:12]:
        for kept in (True, False):
            torch.testing.assert_close(
                literal.gradient(pair, kept=kept), canonical.gradient(pair, kept=kept), rtol=1e-3, atol=1e-5
            )


@pytest.mark.parametrize("form", ["literal", "shared"])
def test_the_literal_form_gives_bits_away_that_epsilon_says_it_hides(form):
    """One forward pass in canonical order does not help: the weight and the loss round by themselves."""
    found = attack(release(form), PAIRS, EntropySource.research(0))
    assert found.by_rounding > 0.5
    assert found.correct > found.without + 0.2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_in_canonical_order_rounding_decides_nothing(dtype):
    found = attack(release("canonical", dtype), PAIRS, EntropySource.research(0))
    assert found.by_rounding == 0
    assert found.correct == pytest.approx(found.without, abs=0.25)
