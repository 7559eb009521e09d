import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reprolib.errors import ReproError
from reprolib.learn import memorisation
from reprolib.learn.memorisation import (
    advantage,
    guesses,
    neighbour_runs,
    posterior_bound,
    release_guesses,
)
from reprolib.learn.preference_loss import DPO, Randomized
from reprolib.learn.preference_records import trained_parameters
from reprolib.privacy.mechanism import EntropySource
from reprolib.privacy.preference import Duchi, PrivDPO
from tests import tiny
from tests.learn.pairs import random_pairs


def hits(rate, *shape, seed=0):
    return (np.random.default_rng(seed).random(shape) < rate).astype(int)


def test_the_prior_itself_has_no_advantage():
    train, test = hits(0.7, 1, 50), hits(0.6, 1, 40, seed=1)
    found = advantage(train, test, prior_train=train[0], prior_test=test[0])
    assert (found.value, found.standard_error) == (0, 0)


def test_the_advantage_is_the_difference_of_differences():
    train, test = [[1, 1, 0, 1]], [[1, 0, 0, 0]]
    found = advantage(train, test, prior_train=[1, 0, 0, 0], prior_test=[0, 0, 1, 0])
    assert found.value == 100 * ((0.75 - 0.25) - (0.25 - 0.25))
    assert advantage(train, test).value == 100 * (0.75 - 0.25)


def test_what_is_as_right_on_held_out_pairs_is_no_memory():
    found = [advantage(hits(0.8, 3, 400, seed=s), hits(0.8, 3, 400, seed=s + 1000)) for s in range(200)]
    inside = np.mean([f.low <= 0 <= f.high for f in found])
    assert 0.9 < inside < 0.99


def test_seeds_of_one_pair_are_one_observation():
    train, test = hits(0.8, 1, 100), hits(0.6, 1, 100, seed=1)
    once, copied = advantage(train, test), advantage(np.repeat(train, 5, 0), np.repeat(test, 5, 0))
    assert math.isclose(copied.standard_error, once.standard_error)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([0, 1], [[0, 1]]), r"train has shape \(2,\): expected 0 and 1, \[seeds, pairs\]"),
        (([[0, 1]], [[0.5, 1]]), "test has shape"),
        (([[0]], [[0, 1]]), "at least two pairs"),
    ],
)
def test_other_arrays_are_refused(arguments, message):
    with pytest.raises(ReproError, match=message):
        advantage(*arguments)
    with pytest.raises(ReproError, match="one prior alone"):
        advantage([[0, 1]], [[0, 1]], prior_train=[0, 1])
    with pytest.raises(ReproError, match=r"the prior on train has shape \(1, 1\)"):
        advantage([[0, 1]], [[0, 1]], prior_train=[0], prior_test=[0, 1])
    with pytest.raises(ReproError, match="the prior on train has 3 pairs, the policy 2"):
        advantage([[0, 1]], [[0, 1]], prior_train=[0, 1, 1], prior_test=[0, 1])


def test_one_policy_over_another_is_the_difference_of_their_advantages():
    a, b, c, d = (hits(0.6, 3, 60, seed=s) for s in range(4))
    both = advantage(a, b, prior_train=c, prior_test=d)
    assert both.value == pytest.approx(advantage(a, b).value - advantage(c, d).value)


@given(st.floats(0, 20), st.floats(0.01, 0.99))
def test_the_posterior_odds_are_at_most_exp_epsilon_times_the_prior_odds(epsilon, prior):
    bound = posterior_bound(epsilon, prior=prior)
    assert prior - 1e-12 <= bound <= 1
    assert bound / (1 - bound + 1e-300) == pytest.approx(math.exp(epsilon) * prior / (1 - prior), rel=1e-4)


def test_the_bound_at_an_even_prior_is_that_of_randomised_response():
    assert posterior_bound(0) == 0.5
    assert posterior_bound(1.0) == pytest.approx(math.e / (1 + math.e))
    with pytest.raises(ReproError, match="expected at least 0"):
        posterior_bound(-1.0)


PAIRS = random_pairs(4)


def adapted():
    return tiny.with_adapter(dtype=torch.float64)


def shadow_runs(method, *, runs, learning_rate=1e-2):
    return neighbour_runs(
        adapted(), method, PAIRS, runs=runs, seed=0, entropy=EntropySource.research(0),
        learning_rate=learning_rate, batch_size=2,
    )  # fmt: skip


def test_without_coins_the_final_margin_tells_every_annotation():
    bits, margins = shadow_runs(DPO(), runs=24)
    assert (guesses(margins, bits) == bits).mean() > 0.9


def test_with_coins_no_attack_beats_the_bound():
    bits, margins = shadow_runs(Randomized(PrivDPO(0.5)), runs=80)
    right = (guesses(margins, bits) == bits).mean(1)
    bound, error = posterior_bound(0.5), right.std() / math.sqrt(len(right))
    assert 0.5 < right.mean() < bound + 3 * error


def test_runs_start_alike_and_leave_the_policy_as_it_was():
    policy = adapted()
    before = [p.detach().clone() for p in trained_parameters(policy)]
    settings = {"runs": 1, "seed": 3, "learning_rate": 1e-2, "batch_size": 2}
    found = [
        neighbour_runs(policy, DPO(), PAIRS, entropy=EntropySource.research(0), **settings) for _ in "ab"
    ]
    assert np.array_equal(found[0][1], found[1][1])
    assert all(torch.equal(a, b) for a, b in zip(before, trained_parameters(policy), strict=True))


@pytest.mark.parametrize("mechanism", [PrivDPO, Duchi])
def test_the_solved_release_attains_the_bound_of_the_effective_epsilon(mechanism):
    method = mechanism(1.0)
    bits, found = release_guesses(
        adapted(), Randomized(method), PAIRS, runs=150, seed=1, entropy=EntropySource.research(1)
    )
    right, psi = float((found == bits).mean()), torch.tensor([0.5], dtype=torch.float64)
    expected = posterior_bound(math.log(method.likelihood_ratio(psi)))
    assert right == pytest.approx(expected, abs=4 * math.sqrt(0.25 / bits.size))
    assert expected <= posterior_bound(1.0) + 1e-12


def test_the_solved_release_of_dpo_is_the_annotation():
    bits, found = release_guesses(adapted(), DPO(), PAIRS, runs=10, seed=1, entropy=EntropySource.research(1))
    assert np.array_equal(bits, found)


def test_annotations_of_the_given_pairs_are_not_read():
    turned = [replace(p, first_preferred=not p.first_preferred) for p in PAIRS]
    bits = memorisation.worlds(PAIRS, runs=3, seed=0)
    assert memorisation.annotated(PAIRS, bits[0]) == memorisation.annotated(turned, bits[0])


def test_too_few_runs_for_a_fit_are_refused():
    with pytest.raises(ReproError, match="more runs than pairs"):
        guesses(np.zeros((5, 4)), np.zeros((5, 4), dtype=bool))
