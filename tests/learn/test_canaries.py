"""Dirac canaries through the real trainer."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from reprolib.errors import ReproError
from reprolib.learn import toy
from reprolib.learn.canaries import Canary, WithCanaries, released, with_slots
from reprolib.learn.trainer import Trainer
from reprolib.privacy import accounting, audit, canaries
from reprolib.privacy.mechanism import EntropySource, PoissonSampler, clip
from reprolib.privacy.plan import Plan

C = 0.055
ALL = np.ones(4, dtype=bool)


def wrapped(arm="gold", count=4):
    return WithCanaries(
        toy.record_map(toy.with_adapter(), arm, EntropySource.research(0)), canaries=count, clip_norm=C
    )


def rows(record_map, records):
    return torch.cat([b.double() for b in record_map.vectors(records, EntropySource.research(1))])


def trainer(present, entropy=None, *, ordinary=6, **changes):
    """A few sums, then canaries, in the real loop."""
    slots = with_slots([*toy.problems(ordinary), *[None] * len(present)], present)
    plan = toy.plan(**{"population": len(slots), "expected_batch_size": len(slots) / 2, **changes})
    policy = toy.with_adapter()
    inner = toy.record_map(policy, "gold", EntropySource.research(0))
    return Trainer(
        policy, WithCanaries(inner, canaries=len(present), clip_norm=plan.clip_norm), slots, plan,
        entropy or EntropySource.research(7), learning_rate=1e-2,
    )  # fmt: skip


def test_the_last_slots_hold_the_present_canaries():
    assert with_slots(["a", "b", "c", "d"], [True, False]) == ["a", "b", Canary(0), None]


def test_a_canary_is_the_clipping_norm_on_a_coordinate_of_its_own_and_passes_the_clip_unchanged():
    record_map = wrapped()
    found = rows(record_map, [Canary(i) for i in range(4)])
    assert len(set(record_map.coordinates.tolist())) == 4
    assert torch.equal(
        found[torch.arange(4), record_map.coordinates], torch.full((4,), C, dtype=torch.float64)
    )
    assert torch.count_nonzero(found) == 4
    assert torch.equal(clip(found, C), found)


@pytest.mark.parametrize("arm", ["gold", "full"])
def test_other_records_keep_their_vectors_except_for_zeros_on_the_canaries_coordinates(arm):
    record_map, problems = wrapped(arm), list(toy.problems(3))
    alone = rows(record_map.inner, problems)
    beside = rows(record_map, [Canary(1), *problems, Canary(3)])[2:]
    alone[:, record_map.coordinates] = 0
    assert torch.equal(beside, alone)
    assert torch.count_nonzero(beside) > 0


@settings(max_examples=20, deadline=None)
@given(extra=st.integers(0, 3))
def test_adding_one_canary_moves_the_sum_by_exactly_clip_norm(extra):
    record_map, problems = wrapped(), list(toy.problems(2))
    others = [Canary(i) for i in range(4) if i != extra]
    before = clip(rows(record_map, [*problems, *others]), C).sum(0)
    after = clip(rows(record_map, [*problems, *others, Canary(extra)]), C).sum(0)
    assert float((after - before).norm()) == pytest.approx(C, rel=1e-12)


def test_without_noise_a_release_is_the_sampling_coin_of_a_present_canary():
    present = np.array([True, False, True, True])
    run = trainer(present, rounds=5)
    found = released(run)
    replayed = PoissonSampler(run.plan, EntropySource.research(7))
    coins = np.zeros((4, 5))
    for t in range(5):
        drawn = replayed.draw()
        coins[drawn[drawn >= 6] - 6, t] = 1
    assert found == pytest.approx(coins * present[:, None], abs=1e-12)
    assert 0 < found.sum() < present.sum() * 5


def test_absent_canaries_release_noise_of_the_plan_and_nothing_else():
    found = released(trainer(np.zeros(200, dtype=bool), noise_multiplier=0.7, rounds=20))
    assert stats.kstest(found.ravel() / 0.7, "norm").pvalue > 1e-3


def test_present_canaries_release_the_law_that_the_power_simulation_draws():
    present = np.ones(200, dtype=bool)
    found = released(trainer(present, noise_multiplier=0.7, rounds=20))
    simulated = canaries.dirac_releases(
        present, sampling_rate=0.5, noise_multiplier=0.7, rounds=20, generator=np.random.default_rng(0)
    )
    assert stats.ks_2samp(found.ravel(), simulated.ravel()).pvalue > 1e-3


@pytest.mark.parametrize("noise_share", [1.0, 0.1])
def test_a_tenth_of_the_claimed_noise_is_caught_through_the_trainer_and_the_claimed_noise_is_not(noise_share):
    claim = Plan(unit="a canary", population=506, expected_batch_size=50, rounds=20, clip_norm=C,
                 noise_multiplier=2.0, delta=1e-5)  # fmt: skip
    present = np.random.default_rng(3).random(500) < 0.5
    run = trainer(present, noise_multiplier=noise_share * 2.0, expected_batch_size=50, rounds=20, delta=1e-5)
    scores = canaries.log_likelihood_ratio(
        released(run), sampling_rate=claim.sampling_rate, noise_multiplier=noise_share * 2.0
    )
    bound = audit.audit_one_run(scores, present, guesses=[(100, 0)], delta=claim.delta).epsilon
    claimed = accounting.epsilon(
        sampling_rate=claim.sampling_rate, noise_multiplier=2.0, rounds=20, delta=1e-5
    )
    assert (bound > claimed) == (noise_share < 1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: with_slots(["a"], [True, True]), "2 canaries in 1 slots"),
        (lambda: wrapped(count=0), "0 canaries on an adapter"),
        (lambda: wrapped(count=10**6), "1000000 canaries on an adapter"),
        (
            lambda: released(toy.trainer("gold", entropy=EntropySource.research(0))[0]),
            "wrap it in WithCanaries",
        ),
    ],
)
def test_bad_input_is_refused_in_one_line(call, message):
    with pytest.raises(ReproError) as refused:
        call()
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)
