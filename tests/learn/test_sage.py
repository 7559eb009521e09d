"""Algorithm 1's controller, the cost of releasing the data set's size, and the theory of one step."""

import inspect
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from reprolib.errors import ReproError
from reprolib.learn import sage, shrinkage
from reprolib.learn.directions import Directions
from reprolib.learn.sage import ShrinkageController
from reprolib.learn.zeroth_order import AlongDirections
from reprolib.privacy.mechanism import EntropySource
from reprolib.privacy.plan import Plan

FINITE = st.floats(-1e3, 1e3)
ALL = {
    "sage": ShrinkageController, "late floor": shrinkage.LateFloor, "precision": shrinkage.PrecisionWeighted,
    "james-stein": shrinkage.JamesStein, "smoothed": shrinkage.SmoothedJamesStein,
    "decay": lambda k, tau, **s: shrinkage.LinearDecay(k, tau, rounds=40, **s),
}  # fmt: skip


def releases(rounds, *, k=8, tau=0.5, signal=1.0, fade=1.0, seed=0):
    """Releases whose signal's root mean square falls from ``signal`` to ``fade`` times that."""
    generator = np.random.default_rng(seed)
    scale = signal * np.geomspace(1, fade, rounds)[:, None]
    drawn = generator.standard_normal((2, rounds, k))
    return torch.from_numpy(scale * drawn[0] + tau * drawn[1])


def listing(released, *, tau, beta, warmup, lam, floor, least):
    """Algorithm 1, lines 6 to 19, as they are printed, with its buffers."""
    buffer_q, buffer_tau, multipliers = [], [], []
    for t, s in enumerate(released.numpy(), start=1):
        q = max(np.linalg.norm(s) ** 2 / len(s) - tau**2, floor)
        if t <= warmup:
            buffer_q.append(q)
            buffer_tau.append(tau**2)
            multipliers.append(1.0)
            if t == warmup:
                v = np.mean(buffer_q)
                reference = v / (v + lam * np.mean(buffer_tau))
        else:
            v = (1 - beta) * v + beta * q
            multipliers.append(float(np.clip(v / (v + lam * tau**2) / reference, least, 1)))
    return multipliers


def plan(**changes) -> Plan:
    given = {
        "unit": "one example", "population": 1000, "expected_batch_size": 64, "rounds": 100, "clip_norm": 0.5,
        "noise_multiplier": 1.0, "delta": 1e-5,
    }  # fmt: skip
    return Plan(**given | changes)


# --- the controller


@pytest.mark.parametrize("beta", [0.03, 1.0])
@pytest.mark.parametrize("lam", [1.0, 3.0])
def test_the_controller_is_the_printed_algorithm(beta, lam):
    released = releases(250, fade=0.05)
    made = ShrinkageController(8, 0.5, beta=beta, warmup=20, lam=lam, floor=1e-3, min_multiplier=0.3)
    expected = listing(released, tau=0.5, beta=beta, warmup=20, lam=lam, floor=1e-3, least=0.3)
    assert [made.update(s) for s in released] == pytest.approx(expected, rel=1e-12)
    assert min(expected) == 0.3
    assert len(set(expected)) > 20


def test_defaults_are_the_papers():
    assert ShrinkageController(64, 0.1).settings() == {
        "num_directions": 64, "noise_std": 0.1, "beta": 0.03, "warmup": 50, "lam": 1.0, "floor": 1e-8,
        "min_multiplier": 0.5, "subtract_noise": True, "anchored": True,
    }  # fmt: skip


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.lists(FINITE, min_size=3, max_size=3), min_size=1, max_size=12), st.floats(0, 10), st.data()
)
def test_a_multiplier_never_amplifies_and_never_falls_below_its_bound(rows, tau, data):
    least = data.draw(st.floats(0, 1))
    made = ShrinkageController(3, tau, warmup=data.draw(st.integers(1, 5)), min_multiplier=least)
    for index, row in enumerate(rows):
        multiplier = made.update(torch.tensor(row, dtype=torch.float64))
        assert least <= multiplier <= 1
        assert index >= made.warmup or multiplier == 1


def test_only_the_length_of_a_release_matters():
    """The multiplier does not change where the update points: rotating every release changes nothing."""
    released = releases(60, fade=0.1)
    rotation = torch.linalg.qr(
        torch.randn(8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    )
    a, b = (ShrinkageController(8, 0.5, warmup=10) for _ in range(2))
    for s in released:
        assert a.update(s) == pytest.approx(b.update(rotation.Q @ s), rel=1e-12)


def test_a_fading_signal_is_shrunk_and_a_steady_one_is_not():
    fading, steady = ShrinkageController(64, 0.5), ShrinkageController(64, 0.5)
    faded = [fading.update(s) for s in releases(400, k=64, fade=0.1)]
    kept = [steady.update(s) for s in releases(400, k=64)]
    assert np.mean(faded[-50:]) < 0.6
    assert np.mean(kept) > 0.97


@pytest.mark.parametrize("name", ALL)
def test_the_multiplier_is_a_function_of_the_releases_alone(name):
    """Post-processing by construction: equal releases give equal multipliers whatever else happened."""
    assert list(inspect.signature(ShrinkageController.update).parameters) == ["self", "released"]
    first, second = (ALL[name](8, 0.5, warmup=10) for _ in range(2))
    a = [first.update(s) for s in releases(40, fade=0.1)]
    torch.manual_seed(123)
    torch.randn(5)
    assert [second.update(s.clone()) for s in releases(40, fade=0.1)] == a


@pytest.mark.parametrize("name", ALL)
def test_the_memory_is_a_few_numbers_whatever_the_rounds_and_directions(name):
    sizes = set()
    for k, rounds in ((4, 5), (400, 300)):
        made = ALL[name](k, 0.5, warmup=100)
        for s in releases(rounds, k=k):
            made.update(s)
        state = made.state()
        assert all(isinstance(v, int | float) for key, v in state.items() if key != "settings")
        sizes.add(len(state))
    assert len(sizes) == 1


@pytest.mark.parametrize("cut", [3, 10, 25])
@pytest.mark.parametrize("name", ALL)
def test_a_restored_controller_continues_as_the_uninterrupted_one(name, cut):
    released = releases(40, fade=0.1)
    whole, first, second = (ALL[name](8, 0.5, warmup=10) for _ in range(3))
    expected = [whole.update(s) for s in released]
    for s in released[:cut]:
        first.update(s)
    second.restore(first.state())
    assert [second.update(s) for s in released[cut:]] == expected[cut:]


@pytest.mark.parametrize(
    ("k", "tau", "options", "named"),
    [(9, 0.5, {}, "num_directions = 8"), (8, 0.4, {}, "noise_std = 0.5"), (8, 0.5, {"beta": 0.1}, "beta")],
)
def test_a_state_of_another_k_or_noise_is_refused(k, tau, options, named):
    state = ShrinkageController(8, 0.5).state()
    with pytest.raises(ReproError, match=named):
        ShrinkageController(k, tau, **options).restore(state)


def test_a_run_with_a_controller_does_not_continue_one_without():
    plain, scaled = (
        AlongDirections(Directions([torch.zeros(3)], num_directions=2, seed=0), learning_rate=1, controller=c)
        for c in (None, ShrinkageController(2, 0.5))
    )
    for one, other in ((plain, scaled), (scaled, plain)):
        with pytest.raises(ReproError, match="controller"):
            one.restore(other.state())


def test_the_shrunk_update_is_the_multiplier_times_the_plain_one():
    moved = []
    for controller in (None, ShrinkageController(2, 1.0, warmup=1, min_multiplier=0.25)):
        theta = torch.zeros(50, dtype=torch.float64)
        update = AlongDirections(
            Directions([theta], num_directions=2, seed=0), learning_rate=0.1, controller=controller
        )
        update.apply(torch.tensor([5.0, -5.0]))
        first = theta.clone()
        update.apply(torch.tensor([0.1, 0.1]))
        update.apply(torch.tensor([0.1, 0.1]))
        moved.append((first, theta - first, update.multiplier))
    (first, plain, one), (same, shrunk, multiplier) = moved
    assert one == 1
    assert multiplier < 1
    assert torch.equal(first, same)
    assert float(shrunk.norm()) < float(plain.norm())


# --- ablations


def test_without_noise_correction_the_energy_keeps_the_noise_floor():
    with_, without = (ShrinkageController(64, 0.5, subtract_noise=s, beta=0.2) for s in (True, False))
    for s in releases(300, k=64, signal=1.0):
        with_.update(s), without.update(s)
    assert without.energy - with_.energy == pytest.approx(0.25, rel=1e-9)


def test_without_the_anchor_the_multiplier_is_the_reliability():
    made = ShrinkageController(8, 0.5, anchored=False, warmup=5, min_multiplier=0.0)
    for s in releases(30):
        multiplier = made.update(s)
    assert multiplier == made.reliability < 1


# --- budget


def test_releasing_the_size_costs_less_than_the_sum_of_both_budgets_and_more_than_the_run():
    p = plan()
    run, together = p.epsilon(), sage.epsilon_with_count(p, scale=10.0)
    assert run < together < run + 1 / 10


def test_a_noiseless_run_has_no_budget_with_or_without_the_size():
    assert sage.epsilon_with_count(plan(noise_multiplier=0.0), scale=10.0) == math.inf


def test_the_card_says_whether_the_size_is_public_or_charged():
    public, charged = sage.card(plan()), sage.card(plan(), count_scale=10.0)
    assert public.epsilon == plan().epsilon()
    assert sage.PUBLIC_COUNT in public.not_covered
    assert charged.epsilon == sage.epsilon_with_count(plan(), scale=10.0)
    assert "Laplace noise of scale 10" in str(charged)
    assert charged.second_epsilon == pytest.approx(public.second_epsilon + 0.1)
    assert sage.PUBLIC_COUNT not in charged.not_covered
    assert not sage.card(plan(), count_scale=10.0, replayable=True).guarantee


def test_the_released_size_has_laplace_noise_of_the_stated_scale():
    entropy = EntropySource.research(0)
    noise = np.array([sage.released_count(10_000, scale=30.0, entropy=entropy) - 10_000 for _ in range(4000)])
    assert stats.kstest(noise, stats.laplace(scale=30).cdf).pvalue > 0.01


def test_the_released_size_is_at_least_one():
    entropy = EntropySource.research(0)
    assert {sage.released_count(0, scale=0.5, entropy=entropy) for _ in range(50)} >= {1}
    assert min(sage.released_count(0, scale=50.0, entropy=entropy) for _ in range(50)) == 1


# --- bad input


def test_a_warm_up_as_long_as_the_run_is_refused():
    with pytest.raises(ReproError, match="warmup = 50 of 50 rounds"):
        ShrinkageController.for_plan(plan(rounds=50), num_directions=4)
    made = ShrinkageController.for_plan(plan(rounds=51), num_directions=4)
    assert made.noise_std == plan().noise_std


@pytest.mark.parametrize(
    "changes",
    [
        {"num_directions": 0}, {"num_directions": 2.0}, {"noise_std": -1.0}, {"noise_std": math.nan},
        {"beta": 0.0}, {"beta": 1.5}, {"warmup": 0}, {"lam": 0.0}, {"floor": 0.0}, {"min_multiplier": 1.1},
    ],
)  # fmt: skip
def test_settings_out_of_range_are_named(changes):
    name, value = next(iter(changes.items()))
    given = {"num_directions": 8, "noise_std": 0.5} | changes
    with pytest.raises(ReproError, match=f"{name} = {value}"):
        ShrinkageController(given.pop("num_directions"), given.pop("noise_std"), **given)


@pytest.mark.parametrize(
    "released", [torch.zeros(7), torch.tensor([math.nan] + [0.0] * 7), torch.zeros(1, 8)]
)
def test_a_release_of_another_shape_or_not_finite_is_refused(released):
    with pytest.raises(ReproError, match="expected"):
        ShrinkageController(8, 0.5).update(released)
