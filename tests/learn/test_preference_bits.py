"""Bits that are randomised once: what they cost, and what they are refused for."""

import json
import math
from dataclasses import replace

import datasets
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reprolib.errors import ReproError
from reprolib.learn.preference_bits import RandomizedBits, privacy_card, randomize_rows, spent_epsilon
from reprolib.learn.preference_loss import DPO, SFT, Debiased, PrivSFT, Randomized
from reprolib.learn.preference_theory import GivenCoins
from reprolib.privacy.mechanism import EntropySource
from reprolib.privacy.preference import Duchi, PrivDPO, RandomizedResponse, flip_probability
from tests.learn.pairs import random_pairs

PAIRS = random_pairs(20)
ENTROPY = EntropySource.research(0)


def flipped(pairs):
    return [replace(p, first_preferred=not p.first_preferred) for p in pairs]


def draw(epsilon=1.0, pairs=PAIRS) -> RandomizedBits:
    return RandomizedBits.draw(pairs, epsilon=epsilon, entropy=ENTROPY)


@settings(deadline=None)
@given(st.lists(st.booleans(), min_size=20, max_size=20))
def test_a_flip_turns_the_bit_and_nothing_else(flips):
    noisy = RandomizedBits.draw(PAIRS, epsilon=1.0, entropy=GivenCoins(flips)).apply(PAIRS)
    for before, after, flip in zip(PAIRS, noisy, flips, strict=True):
        assert after == replace(before, first_preferred=before.first_preferred ^ flip, randomized=1.0)


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_bits_flip_with_probability_one_over_exp_epsilon_plus_one(epsilon):
    many = [replace(PAIRS[0], id=str(i)) for i in range(4000)]
    noisy = draw(epsilon, many).apply(many)
    share = np.mean([a.first_preferred != b.first_preferred for a, b in zip(many, noisy, strict=True)])
    q = flip_probability(epsilon)
    assert abs(share - q) < 5 * math.sqrt(q * (1 - q) / 4000)


def test_the_kept_bits_are_all_that_is_used_afterwards():
    """The neighbour's data set with the same kept bits is the same data set."""
    kept = draw()
    assert kept.apply(PAIRS) == kept.apply(flipped(PAIRS))


def test_kept_bits_come_back_from_their_file(tmp_path):
    kept = draw()
    kept.write(tmp_path / "bits.json")
    assert RandomizedBits.read(tmp_path / "bits.json", PAIRS, epsilon=1.0) == kept


def test_bits_of_another_epsilon_are_refused(tmp_path):
    draw().write(tmp_path / "bits.json")
    with pytest.raises(ReproError, match=r"bits\.json: randomised at epsilon 1, expected 2"):
        RandomizedBits.read(tmp_path / "bits.json", PAIRS, epsilon=2.0)


@pytest.mark.parametrize("pairs", [PAIRS[::-1], PAIRS[:-1], random_pairs(20, seed=1)])
def test_bits_of_another_data_set_are_refused(tmp_path, pairs):
    draw().write(tmp_path / "bits.json")
    with pytest.raises(ReproError, match=r"bits\.json: bits randomised for another data set"):
        RandomizedBits.read(tmp_path / "bits.json", pairs, epsilon=1.0)
    with pytest.raises(ReproError, match="drawn for another data set"):
        draw().apply(pairs)


@pytest.mark.parametrize(
    "change", [{"bits": "012"}, {"bits": 3}, {"epsilon": "1"}, {"epsilon": 0}, {"replayable": None}]
)
def test_a_damaged_file_is_named_and_never_drawn_anew(tmp_path, change):
    path = tmp_path / "bits.json"
    draw().write(path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ReproError, match=r"bits\.json: line 1: no readable randomised bits"):
        RandomizedBits.read(path, PAIRS, epsilon=1.0)


def test_a_missing_or_cut_file_is_named(tmp_path):
    path = tmp_path / "bits.json"
    with pytest.raises(ReproError, match=r"bits\.json: line 1: no readable"):
        RandomizedBits.read(path, PAIRS, epsilon=1.0)
    path.write_text('{"epsilon": 1.0')
    with pytest.raises(ReproError, match=r"bits\.json: line 1: no readable"):
        RandomizedBits.read(path, PAIRS, epsilon=1.0)


def test_bits_are_not_randomised_twice_by_mistake():
    with pytest.raises(ReproError, match="randomised already"):
        draw(pairs=draw().apply(PAIRS))
    with pytest.raises(ReproError, match="no pairs"):
        draw(pairs=[])


@pytest.mark.parametrize("epsilon", [0, -1, math.nan, 1e-9])
def test_an_epsilon_out_of_range_is_refused(epsilon):
    with pytest.raises(ReproError, match="expected a number in"):
        draw(epsilon)


@pytest.mark.parametrize("epochs", [1, 2, 10])
def test_fresh_coins_compose_and_kept_bits_do_not(epochs):
    noisy = draw().apply(PAIRS)
    assert spent_epsilon(Randomized(PrivDPO(1.0)), PAIRS, epochs=epochs) == epochs
    assert spent_epsilon(Randomized(RandomizedResponse(1.0)), PAIRS, epochs=epochs) == epochs
    for method in (Debiased(1.0), DPO(), SFT()):
        assert spent_epsilon(method, noisy, epochs=epochs) == 1.0


def test_duchi_is_charged_what_it_spends():
    spent = spent_epsilon(Randomized(Duchi(1.0)), PAIRS, epochs=3)
    assert spent == pytest.approx(3 * math.log((math.e + 1) / 2))


def test_annotations_as_they_are_have_no_budget_and_private_sft_needs_none():
    assert spent_epsilon(DPO(), PAIRS, epochs=1) == math.inf
    assert spent_epsilon(SFT(), PAIRS, epochs=1) == math.inf
    assert spent_epsilon(PrivSFT(), PAIRS, epochs=5) == 0


def test_a_budget_is_not_stated_for_pairs_that_the_method_refuses():
    with pytest.raises(ReproError, match="is an annotation"):
        spent_epsilon(Debiased(1.0), PAIRS, epochs=1)
    with pytest.raises(ReproError, match="epochs 0: expected"):
        spent_epsilon(DPO(), PAIRS, epochs=0)


def test_the_card_is_a_guarantee_only_for_hidden_coins():
    noisy = draw().apply(PAIRS)
    card = privacy_card(Debiased(1.0), noisy, epochs=10, replayable=False)
    assert card.guarantee
    assert (card.epsilon, card.delta) == (1.0, 0.0)
    assert not privacy_card(Debiased(1.0), noisy, epochs=10, replayable=True).guarantee
    assert not privacy_card(DPO(), PAIRS, epochs=1, replayable=False).guarantee


def test_rows_of_a_data_set_are_swapped_by_the_coins_and_otherwise_kept():
    rows = datasets.Dataset.from_list([{"prompt": str(i), "chosen": "a", "rejected": "b"} for i in range(4)])
    noisy = randomize_rows(rows, epsilon=1.0, entropy=GivenCoins([True, False, False, True]))
    assert noisy["chosen"][:] == ["b", "a", "a", "b"]
    assert noisy["rejected"][:] == ["a", "b", "b", "a"]
    assert noisy["prompt"][:] == rows["prompt"][:]


def test_rows_are_never_randomised_from_a_cache(tmp_path):
    """Two calls are two draws, also for a data set on disk, whose maps the library would keep."""
    datasets.Dataset.from_list([{"chosen": "a", "rejected": "b"}] * 64).save_to_disk(tmp_path / "rows")
    files = sorted(tmp_path.rglob("*"))
    rows = datasets.load_from_disk(tmp_path / "rows")
    first, second = (randomize_rows(rows, epsilon=0.01, entropy=ENTROPY)["chosen"][:] for _ in range(2))
    assert first != second
    assert sorted(tmp_path.rglob("*")) == files


def test_rows_without_the_two_columns_are_refused():
    rows = datasets.Dataset.from_list([{"chosen": "a", "other": "b"}])
    with pytest.raises(ReproError, match="no column 'rejected'"):
        randomize_rows(rows, epsilon=1.0, entropy=ENTROPY)
