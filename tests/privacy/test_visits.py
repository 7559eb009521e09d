import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reprolib.errors import ReproError
from reprolib.privacy import ledger
from reprolib.privacy.accounting import epsilon, gaussian_noise_multiplier
from reprolib.privacy.ledger import Ledger
from reprolib.privacy.mechanism import EntropySource, PoissonSampler
from reprolib.privacy.plan import Plan
from reprolib.privacy.visits import DisjointBatches, LocalPlan, most_visits

TRIPLETS = {
    "unit": "one triplet",
    "population": 12,
    "expected_batch_size": 4,
    "clip_norm": 1.0,
    "delta": 1e-5,
}


def local(**changes) -> LocalPlan:
    return LocalPlan(**{"population": 10, "batch_size": 4, "epochs": 3, "visit_epsilon": 0.5} | changes)


@given(st.lists(st.one_of(st.none(), st.integers(0, 8))), st.permutations(range(12)))
def test_no_slot_was_visited_more_often_than_is_counted(rounds, order):
    """Each slot is in one batch of each of three epochs, whichever; an unknown round may hold any slot."""
    counted = most_visits(rounds, batches=3)
    visits = Counter(rounds)
    for slot in order:
        batch_of = [(slot * k) % 3 for k in (1, 2, 4)]
        own = sum(visits[3 * e + batch_of[e]] for e in range(3)) + visits[None]
        assert own <= counted


def test_fresh_coins_compose_over_epochs_and_kept_bits_do_not():
    assert local().epsilon() == 1.5
    assert local(visit_epsilon=0.0, once_epsilon=1.0).epsilon() == 1.0


def test_bits_used_as_they_are_give_no_guarantee_and_unread_bits_cost_nothing():
    assert local(visit_epsilon=math.inf).epsilon() == math.inf
    assert not local(visit_epsilon=math.inf).card().guarantee
    assert local(visit_epsilon=0.0).epsilon() == 0.0


def test_a_replayed_round_with_fresh_coins_is_a_visit_more(tmp_path):
    book = Ledger(tmp_path / "ledger.jsonl", local())
    for index in (0, 1, 2, 2, 3):
        book.begin_round(index)
    # two epochs begun: the slots of round 2 were visited twice in the first, and may be in round 3 too
    assert book.epsilon() == 0.5 * 3
    assert ledger.read(book.path).epsilon() == book.epsilon()


def test_a_replayed_round_on_kept_bits_costs_nothing(tmp_path):
    book = Ledger(tmp_path / "ledger.jsonl", local(visit_epsilon=0.0, once_epsilon=1.0))
    assert book.epsilon() == 1.0  # spent before the first round
    for index in (0, 0, 0):
        book.begin_round(index)
    assert book.epsilon() == 1.0


def test_a_local_plan_comes_back_from_its_ledger(tmp_path):
    for i, plan in enumerate([local(), local(visit_epsilon=math.inf), DisjointBatches(**TRIPLETS, rounds=6,
                              noise_multiplier=2.0)]):  # fmt: skip
        Ledger(tmp_path / f"{i}.jsonl", plan)
        found = ledger.read(tmp_path / f"{i}.jsonl").plan
        assert (type(found), found) == (type(plan), plan)


def test_a_ledger_of_another_kind_of_plan_is_refused(tmp_path):
    Ledger(tmp_path / "ledger.jsonl", DisjointBatches(**TRIPLETS, rounds=3, noise_multiplier=1.0))
    with pytest.raises(ReproError, match="'disjoint' there, 'poisson' here"):
        Ledger(tmp_path / "ledger.jsonl", Plan(**TRIPLETS, rounds=3, noise_multiplier=1.0))


@pytest.mark.parametrize("epochs", [1, 4])
def test_disjoint_batches_cost_one_gaussian_release_an_epoch(epochs):
    plan = DisjointBatches.calibrated(**TRIPLETS, rounds=3 * epochs, target_epsilon=2.0)
    assert plan.noise_multiplier == gaussian_noise_multiplier(target_epsilon=2.0, delta=1e-5) * epochs**0.5
    assert plan.epsilon() == pytest.approx(2.0, rel=1e-3)


def test_poisson_sampling_would_be_cheaper_so_its_budget_is_not_claimed():
    plan = DisjointBatches(**TRIPLETS, rounds=3, noise_multiplier=1.0)
    unamplified = epsilon(sampling_rate=1.0, noise_multiplier=1.0, rounds=1, delta=1e-5)
    assert plan.epsilon() == unamplified
    assert plan.after([0, 1, 1, 2]).epsilon() > unamplified
    assert plan.after([]).epsilon() == unamplified


def test_a_plan_of_disjoint_batches_is_not_sampled_by_coins():
    plan = DisjointBatches(**TRIPLETS, rounds=3, noise_multiplier=1.0)
    with pytest.raises(ReproError, match="DisjointBatches does not account for Poisson sampling"):
        PoissonSampler(plan, EntropySource.private())


@pytest.mark.parametrize("change", [{"rounds": 4}, {"expected_batch_size": 4.5, "rounds": 3}])
def test_disjoint_batches_are_whole_and_come_in_whole_epochs(change):
    with pytest.raises(ReproError, match="expected whole batches and a multiple of 3 rounds"):
        DisjointBatches(**{**TRIPLETS, "noise_multiplier": 1.0, **change})


@pytest.mark.parametrize(
    "change",
    [
        {"batch_size": 11},
        {"batch_size": 0},
        {"epochs": 0},
        {"visit_epsilon": -1.0},
        {"once_epsilon": math.nan},
    ],
)
def test_a_local_plan_out_of_range_is_refused(change):
    with pytest.raises(ReproError, match="expected"):
        local(**change)
