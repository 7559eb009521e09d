import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reprolib.errors import ReproError
from reprolib.privacy.mechanism import EntropySource, GaussianSum, PoissonSampler, clip
from reprolib.privacy.plan import Plan


def plan(**changes) -> Plan:
    base = {
        "unit": "one record", "population": 6, "expected_batch_size": 1.2, "rounds": 3, "clip_norm": 0.7,
        "noise_multiplier": 1.5, "delta": 1e-5,
    }  # fmt: skip
    return Plan(**{**base, **changes})


@given(
    values=st.lists(st.floats(-1e300, 1e300), min_size=1, max_size=12),
    clip_norm=st.floats(1e-6, 1e6),
)
def test_clipped_norm_never_exceeds_clip_norm(values, clip_norm):
    row = torch.tensor([values], dtype=torch.float64)
    largest = max(abs(v) for v in values) or 1.0
    clipped = clip(row, clip_norm)
    assert math.fsum((float(x) / clip_norm) ** 2 for x in clipped[0]) <= 1.0
    if largest * math.sqrt(len(values)) <= clip_norm:
        assert torch.equal(clipped, row)


def test_clipped_norm_never_exceeds_clip_norm_in_a_long_vector():
    row = torch.randn(1, 2_000_000, generator=torch.Generator().manual_seed(0))
    assert math.fsum((x / 0.055) ** 2 for x in clip(row, 0.055)[0].tolist()) <= 1.0


@given(values=st.lists(st.lists(st.floats(-1e9, 1e9), min_size=3, max_size=3), min_size=2, max_size=5))
def test_a_record_is_clipped_as_if_it_were_alone(values):
    rows = torch.tensor(values, dtype=torch.float64)
    alone = torch.cat([clip(row[None], 0.7) for row in rows])
    assert torch.equal(clip(rows, 0.7), alone)


@given(scale=st.floats(1.0, 1e12))
def test_clipping_keeps_the_direction(scale):
    row = torch.tensor([[3.0, -4.0]], dtype=torch.float64) * scale
    assert torch.allclose(clip(row, 1.0)[0], torch.tensor([0.6, -0.8], dtype=torch.float64))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_record_with_a_non_finite_entry_becomes_zero_and_leaves_the_others_alone(bad):
    total = GaussianSum(plan(noise_multiplier=0.0), EntropySource.private(), dimension=2)
    total.add(torch.tensor([[0.1, 0.2], [bad, 0.3]]))
    assert torch.allclose(total.release(), torch.tensor([0.1, 0.2]).double() / 1.2)


def test_adding_one_prompt_moves_the_sum_by_at_most_clip_norm():
    generator = torch.Generator().manual_seed(0)
    silent = plan(noise_multiplier=0.0, expected_batch_size=1, population=1)
    ratios = []
    for trial in range(21):
        scale = 1e12 if trial == 20 else 10 ** float(torch.randn(1, generator=generator))
        base = [torch.randn(50, generator=generator, dtype=torch.float64) for _ in range(5)]
        extra = scale * torch.randn(50, generator=generator, dtype=torch.float64)
        sums = []
        for records in (base, [*base, extra]):
            total = GaussianSum(silent, EntropySource.private(), dimension=50)
            total.add(torch.stack(records))
            sums.append(total.release())
        ratios.append(float((sums[1] - sums[0]).norm()) / silent.clip_norm)
    assert max(ratios) <= 1 + 1e-10
    assert max(ratios) > 0.99


def test_the_divisor_is_the_public_batch_size_whatever_was_drawn():
    for records in (0, 1, 5):
        total = GaussianSum(plan(noise_multiplier=0.0), EntropySource.private(), dimension=1)
        total.add(torch.full((records, 1), 0.5))
        assert float(total.release()) == pytest.approx(0.5 * records / 1.2)


def test_noise_variance_is_that_of_the_plan():
    p = plan(rounds=1)
    for source in (EntropySource.private(), EntropySource.research(1)):
        noise = GaussianSum(p, source, dimension=200_000).release()
        assert float(noise.std()) == pytest.approx(p.noise_std, rel=0.01)
        assert abs(float(noise.mean())) < 5 * p.noise_std / math.sqrt(200_000)
        fourth = float(((noise / p.noise_std) ** 4).mean())
        assert fourth == pytest.approx(3.0, rel=0.05)


def test_an_empty_round_is_released_with_noise():
    total = GaussianSum(plan(), EntropySource.private(), dimension=4)
    assert float(total.release().abs().min()) > 0


def test_rounds_do_not_leak_into_one_another():
    total = GaussianSum(plan(noise_multiplier=0.0), EntropySource.private(), dimension=1)
    total.add(torch.tensor([[0.6]]))
    total.release()
    assert float(total.release()) == 0.0


def test_no_round_beyond_the_plan_is_released():
    total = GaussianSum(plan(rounds=2), EntropySource.private(), dimension=1)
    total.release()
    total.release()
    with pytest.raises(ReproError, match="2 rounds and all are released"):
        total.release()


def test_a_record_of_another_shape_is_refused_before_it_is_added():
    total = GaussianSum(plan(), EntropySource.private(), dimension=5)
    with pytest.raises(ReproError, match="expected"):
        total.add(torch.zeros(1, 4))
    with pytest.raises(ReproError, match="expected"):
        total.add(torch.zeros(5))


def test_poisson_inclusion_has_the_paper_frequency_and_independence():
    sampler = PoissonSampler(plan(rounds=20_000), EntropySource.research(0))
    drawn = np.zeros((20_000, 6))
    for row in drawn:
        row[sampler.draw()] = 1
    assert np.abs(drawn.mean(0) - 0.2).max() < 0.012
    correlation = np.corrcoef(drawn.T) - np.eye(6)
    assert np.abs(correlation).max() < 0.035


def test_batch_sizes_vary_and_may_be_zero():
    sampler = PoissonSampler(plan(), EntropySource.private())
    sizes = {len(sampler.draw()) for _ in range(500)}
    assert 0 in sizes
    assert len(sizes) > 3


def test_research_draws_replay_and_private_draws_do_not():
    for name in ("coins", "normal", "rollouts"):
        a, b = (getattr(EntropySource.research(7), name)(100) for _ in range(2))
        assert np.array_equal(a, b)
        a, b = (getattr(EntropySource.private(), name)(100) for _ in range(2))
        assert not np.array_equal(a, b)


def test_noise_does_not_depend_on_how_many_coins_were_drawn():
    a, b = EntropySource.research(3), EntropySource.research(3)
    a.coins(1000)
    assert np.array_equal(a.normal(10), b.normal(10))


def test_a_restored_research_source_goes_on_where_it_was():
    source, other = EntropySource.research(3), EntropySource.research(3)
    source.coins(7), source.normal(5), source.rollouts(2)
    other.restore(source.state())
    for name in ("coins", "normal", "rollouts"):
        assert np.array_equal(getattr(source, name)(9), getattr(other, name)(9))


def test_a_private_source_has_no_state_to_write_down():
    assert EntropySource.private().state() == {}


def test_noise_is_independent_of_public_generators():
    torch.manual_seed(0)
    np.random.seed(0)
    first = EntropySource.private().normal(1000)
    torch.manual_seed(0)
    np.random.seed(0)
    second = EntropySource.private().normal(1000)
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.2


@settings(max_examples=20)
@given(size=st.integers(0, 500))
def test_private_draws_are_finite_and_in_range(size):
    source = EntropySource.private()
    coins, noise = source.coins(size), source.normal(size)
    assert coins.shape == noise.shape == (size,)
    assert ((coins >= 0) & (coins < 1)).all()
    assert np.isfinite(noise).all()


def test_a_negative_seed_is_refused():
    with pytest.raises(ReproError, match="seed = -1"):
        EntropySource.research(-1)


def test_a_replayable_run_refuses_to_state_a_guarantee():
    noisy = GaussianSum(plan(), EntropySource.research(1), dimension=1)
    card = noisy.card()
    assert not card.guarantee
    assert "not a guarantee" in card.epsilon_text
    assert "not a guarantee" in str(card)
    assert "not a guarantee" in card._repr_html_()
    assert json.loads(card.to_json())["guarantee"] is False


def test_a_private_run_states_its_epsilon():
    p = plan()
    card = GaussianSum(p, EntropySource.private(), dimension=1).card()
    assert card.guarantee
    assert card.epsilon_text == f"{p.epsilon():.4g}"


def test_a_run_with_another_sampling_is_no_guarantee():
    card = plan().card(ran="fixed-size shuffled batches")
    assert not card.guarantee
    assert "another sampling" in card.epsilon_text


def test_a_run_without_noise_has_no_budget():
    p = plan(noise_multiplier=0.0)
    assert p.epsilon() == math.inf
    card = p.card()
    assert not card.guarantee
    assert json.loads(card.to_json())["epsilon"] is None


def test_calibrated_plan_meets_its_target_with_both_accountants_on_the_card():
    p = Plan.calibrated(
        unit="one prompt", population=6988, expected_batch_size=128, rounds=50, clip_norm=0.05536,
        delta=1 / 69_880, target_epsilon=8.0,
    )  # fmt: skip
    assert 8 - 1e-6 < p.epsilon() <= 8
    assert p.card().second_epsilon == pytest.approx(9.83, abs=1e-3)
    assert p.noise_norm(4_616_192) == pytest.approx(0.45, abs=5e-3)


def test_card_escapes_what_it_prints():
    assert "<script>" not in plan(unit="<script>").card()._repr_html_()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("population", 0), ("population", 2.5), ("expected_batch_size", 0), ("expected_batch_size", 7),
        ("expected_batch_size", math.nan), ("clip_norm", 0.0), ("clip_norm", math.inf), ("rounds", 0),
        ("noise_multiplier", -1.0), ("noise_multiplier", math.nan), ("delta", 0.0),
    ],
)  # fmt: skip
def test_a_plan_out_of_range_is_refused_with_the_range(name, value):
    with pytest.raises(ReproError, match=f"{name} = .*expected"):
        plan(**{name: value})
