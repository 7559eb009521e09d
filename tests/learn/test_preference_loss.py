"""Losses, and the weights that they amount to: one identity in three forms."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reprolib.errors import ReproError
from reprolib.learn.preference_loss import (
    DPO,
    SFT,
    Debiased,
    PrivSFT,
    Randomized,
    algorithm_1_loss,
    algorithm_1_weight,
    debiased_loss,
    dpo_loss,
    same_epsilon,
)
from reprolib.learn.preference_theory import GivenCoins
from reprolib.privacy.mechanism import EntropySource
from reprolib.privacy.preference import Duchi, Piecewise, PrivDPO, RandomizedResponse, flip_probability
from tests.learn.pairs import random_pairs

margins = st.floats(-20, 20).map(lambda x: torch.tensor([x], dtype=torch.float64, requires_grad=True))
betas = st.floats(0.01, 2)
epsilons = st.floats(0.01, 20)
ANNOTATED, NOISY = random_pairs(4), random_pairs(4, randomized=1.0)
ENTROPY = EntropySource.private()


def slope(loss, margin) -> torch.Tensor:
    return torch.autograd.grad(loss.sum(), margin)[0]


def intensity(margin, beta) -> torch.Tensor:
    return torch.sigmoid(-beta * margin.detach())


@settings(deadline=None)
@given(margins, betas)
def test_the_dpo_gradient_is_minus_beta_psi(margin, beta):
    torch.testing.assert_close(slope(dpo_loss(margin, beta=beta), margin), -beta * intensity(margin, beta))


@settings(deadline=None)
@given(margins, betas, epsilons, st.booleans())
def test_algorithm_1_has_the_gradient_of_the_coefficient_form(margin, beta, epsilon, kept):
    loss = algorithm_1_loss(margin, torch.tensor([kept]), beta=beta, epsilon=epsilon)
    psi, truth = intensity(margin, beta), torch.tensor([True])
    weights = Randomized(PrivDPO(epsilon)).weights(psi, truth, GivenCoins([not kept]), beta=beta)
    torch.testing.assert_close(slope(loss, margin), -weights[:, 0], rtol=1e-9, atol=1e-12)


@settings(deadline=None)
@given(margins, betas, epsilons, st.booleans())
def test_privdpo_is_randomised_response_then_the_debiased_loss(margin, beta, epsilon, kept):
    """A flipped bit turns the margin round; the loss of the noisy order then has PrivDPO's gradient."""
    noisy = margin if kept else -margin
    loss = debiased_loss(noisy, beta=beta, epsilon=epsilon)
    psi, truth = intensity(margin, beta), torch.tensor([True])
    weights = Randomized(PrivDPO(epsilon)).weights(psi, truth, GivenCoins([not kept]), beta=beta)
    torch.testing.assert_close(slope(loss, margin), -weights[:, 0], rtol=1e-9, atol=1e-12)


@settings(deadline=None)
@given(margins, betas, epsilons)
def test_the_debiased_loss_has_the_dpo_loss_as_its_mean_over_the_flip(margin, beta, epsilon):
    q = flip_probability(epsilon)
    kept, flipped = (debiased_loss(side * margin, beta=beta, epsilon=epsilon) for side in (1, -1))
    torch.testing.assert_close(
        (1 - q) * kept + q * flipped, dpo_loss(margin, beta=beta), rtol=1e-8, atol=1e-9
    )


@settings(deadline=None)
@given(st.floats(0.001, 1), epsilons)
def test_the_weight_of_algorithm_1_has_mean_one(psi, epsilon):
    """Lemma 4.1."""
    q = flip_probability(epsilon)
    up, down = algorithm_1_weight(
        torch.tensor([psi, psi], dtype=torch.float64), torch.tensor([True, False]), epsilon=epsilon
    )
    assert float((1 - q) * up + q * down) == pytest.approx(1, rel=1e-9)


@pytest.mark.parametrize(("psi", "epsilon"), [(0.0, 1.0), (1e-38, 1e-6)])
def test_a_weight_that_overflows_is_refused(psi, epsilon):
    with pytest.raises(ReproError, match="use the coefficient form"):
        algorithm_1_weight(torch.tensor([psi]), torch.tensor([True]), epsilon=epsilon)


@settings(deadline=None)
@given(st.floats(0, 1), betas, st.floats(1e-6, 700), st.booleans())
def test_kept_bits_give_the_very_weights_of_fresh_ones_when_the_coin_is_the_same(psi, beta, epsilon, bit):
    psi = torch.tensor([psi], dtype=torch.float64)
    for flip in (False, True):
        bits = torch.tensor([bit])
        fresh = Randomized(PrivDPO(epsilon)).weights(psi, bits, GivenCoins([flip]), beta=beta)
        kept = Debiased(epsilon).weights(psi, bits ^ flip, ENTROPY, beta=beta)
        torch.testing.assert_close(kept, fresh, rtol=1e-9, atol=1e-12)


@settings(deadline=None)
@given(st.floats(0, 1), betas, epsilons, st.booleans())
def test_randomised_response_at_a_visit_is_dpo_on_a_flipped_bit(psi, beta, epsilon, flip):
    psi, bits = torch.tensor([psi], dtype=torch.float64), torch.tensor([True])
    fresh = Randomized(RandomizedResponse(epsilon)).weights(psi, bits, GivenCoins([flip]), beta=beta)
    assert torch.equal(fresh, DPO().weights(psi, bits ^ flip, ENTROPY, beta=beta))


@pytest.mark.parametrize("randomizer", [PrivDPO, RandomizedResponse, Duchi, Piecewise])
def test_every_randomiser_pulls_the_two_responses_apart_by_the_same_weight(randomizer):
    psi = torch.rand(50, dtype=torch.float64)
    found = Randomized(randomizer(1.0)).weights(psi, psi > 0.5, ENTROPY, beta=0.1)
    assert torch.equal(found[:, 0], -found[:, 1])
    assert float(found.abs().min()) > 0


def test_supervised_fine_tuning_weights_the_preferred_response_and_its_private_form_both():
    bits, psi = torch.tensor([True, False]), torch.full((2,), 0.5, dtype=torch.float64)
    assert SFT().weights(psi, bits, ENTROPY, beta=0.1).tolist() == [[1, 0], [0, 1]]
    for annotation in (bits, ~bits):
        assert PrivSFT().weights(psi, annotation, ENTROPY, beta=0.1).tolist() == [[0.5, 0.5], [0.5, 0.5]]


def test_a_debiased_loss_on_annotations_is_refused():
    """It would be training without privacy under a private name."""
    with pytest.raises(ReproError, match="pair 0: its bit is an annotation, expected randomised at 1"):
        Debiased(1.0).check(ANNOTATED)


def test_a_debiased_loss_at_another_epsilon_is_refused():
    with pytest.raises(ReproError, match="was randomised at 1, expected randomised at 2"):
        Debiased(2.0).check(NOISY)


def test_bits_that_are_randomised_already_are_not_randomised_again():
    with pytest.raises(ReproError, match="was randomised at 1, expected an annotation"):
        Randomized(PrivDPO(1.0)).check(NOISY)


@pytest.mark.parametrize("method", [DPO(), SFT()])
def test_annotations_and_randomised_bits_together_are_refused(method):
    method.check(ANNOTATED)
    method.check(NOISY)
    with pytest.raises(ReproError, match="one data set"):
        method.check([*ANNOTATED, *NOISY])
    assert same_epsilon(NOISY) == 1.0


@pytest.mark.parametrize("epsilon", [0, -1, math.nan, 1e-7, 1e3])
def test_an_epsilon_out_of_range_is_refused(epsilon):
    for make in (Debiased, lambda e: Randomized(PrivDPO(e))):
        with pytest.raises(ReproError, match="expected a number in"):
            make(epsilon)
    with pytest.raises(ReproError, match="expected a number in"):
        debiased_loss(torch.zeros(1), beta=0.1, epsilon=epsilon)
