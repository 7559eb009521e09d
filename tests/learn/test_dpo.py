"""Training on pairs: the public order, the sum, and runs that reveal no more than their coins."""

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reprolib.errors import ReproError
from reprolib.learn.dpo import (
    LocalSum,
    ShuffledEpochs,
    aligner,
    single_pass,
    single_pass_plan,
)
from reprolib.learn.preference_bits import RandomizedBits
from reprolib.learn.preference_loss import DPO, SFT, Debiased, PrivSFT, Randomized
from reprolib.learn.preference_records import PairGradients
from reprolib.learn.preference_reference import Reference, reward_margins
from reprolib.learn.preference_theory import GivenCoins
from reprolib.learn.trainer import Trainer
from reprolib.lm.models import attach_lora
from reprolib.privacy.mechanism import EntropySource
from reprolib.privacy.plan import Plan
from reprolib.privacy.preference import Duchi, Piecewise, PrivDPO, RandomizedResponse
from reprolib.privacy.visits import DisjointBatches
from tests import tiny
from tests.learn.pairs import random_pairs

PAIRS = random_pairs(12)
MODES = ["adapter float32", "full float32", "full bfloat16"]


def fresh(mode="adapter float32"):
    dtype = getattr(torch, mode.split()[1])
    policy = tiny.policy(dtype=dtype)
    if mode.startswith("adapter"):
        return attach_lora(policy, rank=2, alpha=4, seed=0)
    policy.model.requires_grad_(True)
    return policy


def run(method, pairs=PAIRS, *, mode="adapter float32", entropy=None, epochs=1, batch_size=4, rate=1e-2):
    policy = fresh(mode)
    record_map = PairGradients(policy, method, reference=Reference.of(policy, pairs))
    return aligner(
        policy, record_map, pairs, entropy or EntropySource.research(1), seed=0, epochs=epochs,
        batch_size=batch_size, learning_rate=rate, warmup_steps=2,
    )  # fmt: skip


def weights(trainer) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in trainer.parameters])


def finish(trainer) -> torch.Tensor:
    while trainer.rounds_done < trainer.rounds:
        trainer.step()
    return weights(trainer)


def flip_bit(pairs, index):
    changed = list(pairs)
    changed[index] = replace(pairs[index], first_preferred=not pairs[index].first_preferred)
    return changed


# --- the public order -------------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.integers(1, 60), st.integers(1, 60), st.integers(1, 3), st.integers(0, 99))
def test_every_slot_is_drawn_once_an_epoch(population, batch_size, epochs, seed):
    sampler = ShuffledEpochs(population, batch_size=min(batch_size, population), epochs=epochs, seed=seed)
    drawn = [sampler.draw() for _ in range(sampler.rounds)]
    for epoch in range(epochs):
        batches = drawn[epoch * sampler.batches : (epoch + 1) * sampler.batches]
        assert sorted(np.concatenate(batches)) == list(range(population))
        assert {len(b) for b in batches[:-1]} <= {sampler.batch_size}
    with pytest.raises(ReproError, match="batches are drawn"):
        sampler.draw()


def test_epochs_are_shuffled_each_by_itself_and_replay_from_the_public_seed():
    first, second, other = (ShuffledEpochs(50, batch_size=10, epochs=2, seed=s) for s in (0, 0, 1))
    batches = [[s.draw().tolist() for _ in range(s.rounds)] for s in (first, second, other)]
    assert batches[0] == batches[1] != batches[2]
    assert batches[0][:5] != batches[0][5:]


@pytest.mark.parametrize("change", [{"batch_size": 0}, {"batch_size": 11}, {"epochs": 0}, {"seed": -1}])
def test_an_impossible_order_is_refused(change):
    with pytest.raises(ReproError, match="population 10"):
        ShuffledEpochs(10, **{"batch_size": 5, "seed": 0} | change)


# --- the sum ----------------------------------------------------------------------------------------------


def test_the_sum_is_divided_by_the_public_constant_and_starts_anew():
    total = LocalSum(divisor=4, rounds=2, dimension=3)
    total.add(torch.ones(2, 3))
    total.add(torch.ones(1, 3))
    assert total.release().tolist() == [0.75] * 3
    assert total.release().tolist() == [0.0] * 3
    with pytest.raises(ReproError, match="all 2 rounds are released"):
        total.release()
    with pytest.raises(ReproError, match=r"expected \[rows, 3\]"):
        total.add(torch.ones(3))


# --- runs -------------------------------------------------------------------------------------------------

RANDOMIZED = [Randomized(kind(1.0)) for kind in (PrivDPO, RandomizedResponse, Duchi, Piecewise)]


@pytest.mark.parametrize("method", [*RANDOMIZED, DPO(), SFT(), PrivSFT()], ids=str)
def test_a_research_source_replays_a_run_bit_for_bit(method):
    assert torch.equal(finish(run(method, epochs=2)), finish(run(method, epochs=2)))


def test_a_private_source_never_replays():
    method = Randomized(PrivDPO(1.0))
    assert not torch.equal(*(finish(run(method, entropy=EntropySource.private())) for _ in range(2)))


@pytest.mark.parametrize("mode", MODES)
def test_neighbours_whose_coins_give_one_output_have_bit_identical_weights_after_the_step(mode):
    """The side channel closed: one bit is turned, its coin is turned, and the whole run is the same."""
    method = Randomized(PrivDPO(1.0))
    for index in (0, 5, 11):
        flips = [False, True, False, False] * 3
        ours = run(method, mode=mode, entropy=GivenCoins(flips))
        slots = coin_order(ours)
        turned = [flip ^ (slot == index) for flip, slot in zip(flips, slots, strict=True)]
        theirs = run(method, flip_bit(PAIRS, index), mode=mode, entropy=GivenCoins(turned))
        before, after = weights(ours), finish(ours)
        assert torch.equal(after, finish(theirs))
        assert not torch.equal(before, after)


def coin_order(trainer) -> list[int]:
    """Slots in the order in which the record map asks for their coins: batches, sorted by length."""
    sampler = ShuffledEpochs(len(PAIRS), batch_size=4, seed=0)
    batches = [sampler.draw().tolist() for _ in range(sampler.rounds)]
    length = [len(p.prompt) + len(p.first) + len(p.second) for p in PAIRS]
    return [slot for batch in batches for slot in sorted(batch, key=length.__getitem__)]


@pytest.mark.parametrize("mode", MODES)
def test_a_turned_bit_with_the_same_coins_moves_the_weights(mode):
    """The test above is not empty: the bit does reach the weights."""
    method, flips = Randomized(PrivDPO(1.0)), [False] * 12
    ours = run(method, mode=mode, entropy=GivenCoins(flips))
    theirs = run(method, flip_bit(PAIRS, 5), mode=mode, entropy=GivenCoins(flips))
    assert not torch.equal(finish(ours), finish(theirs))


def test_kept_bits_make_the_whole_run_a_function_of_themselves():
    kept = RandomizedBits.draw(PAIRS, epsilon=1.0, entropy=EntropySource.research(2))
    ours, theirs = (kept.apply(pairs) for pairs in (PAIRS, flip_bit(PAIRS, 3)))
    final = [finish(run(Debiased(1.0), p, epochs=3, entropy=EntropySource.private())) for p in (ours, theirs)]
    assert torch.equal(*final)


def test_a_resumed_run_goes_on_where_it_stopped():
    method = Randomized(PrivDPO(1.0))
    whole = run(method, epochs=2)
    for _ in range(2):
        whole.step()
    state = copy.deepcopy(whole.state())  # as a checkpoint on disk would be
    resumed = run(method, epochs=2, entropy=EntropySource.research(7))
    resumed.restore(state)
    assert resumed.rounds_done == 2
    assert torch.equal(finish(whole), finish(resumed))


def test_the_learning_rate_rises_linearly_and_stays():
    trainer = run(DPO(), epochs=2)
    rates = []
    for _ in range(5):
        rates.append(trainer.update.optimizer.param_groups[0]["lr"])
        trainer.step()
    assert rates == pytest.approx([1e-2 / 3, 2e-2 / 3, 1e-2, 1e-2, 1e-2])


def test_the_optimiser_is_adamw_as_pytorch_sets_it():
    parameter = torch.nn.Parameter(torch.zeros(1))
    ours, theirs = run(DPO()).update.optimizer.defaults, torch.optim.AdamW([parameter]).defaults
    assert {k: v for k, v in ours.items() if k != "lr"} == {k: v for k, v in theirs.items() if k != "lr"}


@pytest.mark.parametrize("mode", ["adapter float32", "full float32"])
@pytest.mark.parametrize("method", [DPO(), Randomized(PrivDPO(4.0))], ids=str)
def test_training_raises_the_reward_margin(mode, method):
    """Bits that follow a public feature, the response's length, can be learned."""
    drawn = [p for p in random_pairs(60, seed=2) if len(p.first) != len(p.second)]
    pairs = [replace(p, first_preferred=len(p.first) > len(p.second)) for p in drawn]
    trainer = run(method, pairs, mode=mode, epochs=20, batch_size=16, rate=1e-2)
    reference = trainer.record_map.reference
    finish(trainer)
    margins = reward_margins(trainer.record_map.policy, pairs, reference)
    assert float(margins.mean()) > 0.03
    assert float((margins > 0).double().mean()) > 0.8


def test_bad_pairs_are_refused_before_the_first_round():
    with pytest.raises(ReproError, match="is an annotation"):
        run(Debiased(1.0))
    policy = fresh()
    record_map = PairGradients(policy, DPO(), reference=Reference.of(policy, PAIRS))
    long = [replace(PAIRS[0], prompt=(2,) * 80), *PAIRS[1:]]
    with pytest.raises(ReproError, match="the context holds 64"):
        aligner(policy, record_map, long, EntropySource.private(), seed=0, batch_size=4)


# --- DP-SGD on the triplet --------------------------------------------------------------------------------


def dpsgd(pairs, plan, **kwargs):
    policy = fresh()
    record_map = PairGradients(policy, DPO(), reference=Reference.of(policy, PAIRS), per_record=True)
    return single_pass(policy, record_map, pairs, plan, EntropySource.research(1), seed=0, **kwargs)


def noiseless(kind=DisjointBatches, **changes) -> Plan:
    given = {
        "unit": "one triplet", "population": 12, "expected_batch_size": 4, "rounds": 3, "clip_norm": 0.01,
        "noise_multiplier": 0.0, "delta": 1e-3,
    }  # fmt: skip
    return kind(**given | changes)


@pytest.mark.parametrize("index", [0, 7])
def test_another_triplet_in_a_slot_moves_one_update_by_at_most_twice_the_clip_norm(index):
    policy = fresh()
    others = random_pairs(12, seed=5)
    record_map = PairGradients(policy, DPO(), reference=Reference.of(policy, PAIRS + others), per_record=True)
    updates = []
    for pairs in (PAIRS, [others[i] if i == index else p for i, p in enumerate(PAIRS)]):
        trainer = single_pass(
            policy, record_map, pairs, noiseless(), EntropySource.research(1), seed=0, learning_rate=0.0
        )
        updates.append(torch.stack([trainer.step() for _ in range(3)]))
    moved = (updates[0] - updates[1]).norm(dim=1)
    assert int((moved > 0).sum()) == 1
    assert float(moved.max()) <= 2 * 0.01 / 4 + 1e-12


def test_a_triplets_absence_moves_one_update_by_at_most_the_clip_norm():
    updates = []
    for pairs in (PAIRS, [None if i == 7 else p for i, p in enumerate(PAIRS)]):
        trainer = dpsgd(PAIRS, noiseless(), learning_rate=0.0)
        trainer.records = pairs
        updates.append(torch.stack([trainer.step() for _ in range(3)]))
    moved = (updates[0] - updates[1]).norm(dim=1)
    assert int((moved > 0).sum()) == 1
    assert float(moved.max()) <= 0.01 / 4 + 1e-12


def test_the_single_pass_adds_the_plans_noise_once_a_round():
    plan = noiseless(noise_multiplier=2.0)
    noisy, plain = dpsgd(PAIRS, plan), dpsgd(PAIRS, noiseless())
    difference = noisy.step() - plain.step()
    assert float(difference.std()) == pytest.approx(plan.noise_std, rel=0.1)


@pytest.mark.parametrize(("target", "delta"), [(16.0, 1e-6), (1.0, 1e-5)])
def test_the_single_pass_card_states_the_budget_that_the_noise_was_made_for(target, delta):
    plan = single_pass_plan(1000, target_epsilon=target, delta=delta)
    card = plan.card()
    assert card.guarantee
    assert card.epsilon == pytest.approx(target, rel=1e-3)
    assert not plan.card(replayable=True).guarantee


def test_the_papers_noise_is_that_of_one_gaussian_release():
    """Appendix D.1: epsilon 16, delta 1/(10 n), about 161k examples, sigma 0.37."""
    n = 161_000
    plan = single_pass_plan(n, target_epsilon=16.0, delta=1 / (10 * n))
    assert round(plan.noise_multiplier, 2) == 0.37


def test_dpsgd_needs_rows_and_a_slot_a_pair():
    policy = fresh()
    summed = PairGradients(policy, DPO(), reference=Reference.of(policy, PAIRS))
    with pytest.raises(ReproError, match="per_record=True"):
        single_pass(policy, summed, PAIRS, noiseless(), EntropySource.private(), seed=0)
    with pytest.raises(ReproError, match="11 pairs: the plan has a population of 12"):
        dpsgd(PAIRS[:11], noiseless())


def test_a_plan_of_poisson_sampling_is_not_run_as_a_single_pass():
    with pytest.raises(ReproError, match="use single_pass_plan"):
        dpsgd(PAIRS, noiseless(Plan))


@settings(max_examples=5, deadline=None)
@given(st.integers(0, 99))
def test_subsampled_dpsgd_runs_in_the_one_trainer_of_all_methods(seed):
    policy = fresh()
    record_map = PairGradients(policy, DPO(), reference=Reference.of(policy, PAIRS), per_record=True)
    plan = noiseless(Plan, noise_multiplier=1.0, clip_norm=0.5)
    trainer = Trainer(policy, record_map, PAIRS, plan, EntropySource.research(seed), learning_rate=1e-2)
    updates = torch.stack([trainer.step() for _ in range(plan.rounds)])
    assert bool(updates.isfinite().all())
    assert math.isfinite(plan.epsilon())
