import math

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.pld.pld_privacy_accountant import PLDAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from reprolib.errors import ReproError
from reprolib.privacy import accounting, losses

MATH = {"sampling_rate": 128 / 6988, "rounds": 50, "delta": 1 / 69_880}
REFERENCE = 0.4842404738068581

# n, m, noise multiplier, T, PLD, RDP, order: DP-GRPO, Tables VI and VII
TABLE_VI = [
    (6988, 128, 1.0023417361080647, 50, 1.000, 1.463, 7.6),
    (6988, 128, 0.612058477104, 50, 4.235, 5.322, 3.2),
    (6988, 128, REFERENCE, 50, 8.000, 9.830, 2.3),
    (6988, 128, 0.519267738191411, 100, 8.000, 9.702, 2.3),
    (6988, 512, 0.7022244453430175, 50, 8.000, 9.323, 2.6),
    (6988, 128, 0.612058477104, 100, 5.038, 6.185, 3.0),
    (6961, 128, 0.5196564674377442, 100, 8.000, 9.701, 2.3),
]


def library_epsilon(q: float, sigma: float, rounds: int, delta: float) -> float:
    event = dp_event.SelfComposedDpEvent(
        dp_event.PoissonSampledDpEvent(q, dp_event.GaussianDpEvent(sigma)), rounds
    )
    return PLDAccountant().compose(event).get_epsilon(delta)


@pytest.mark.parametrize(("n", "m", "sigma", "rounds", "pld", "rdp", "order"), TABLE_VI)
def test_table_vi_is_recomputed_to_three_decimals(n, m, sigma, rounds, pld, rdp, order):
    budget = {"sampling_rate": m / n, "noise_multiplier": sigma, "rounds": rounds, "delta": 1 / (10 * n)}
    assert round(accounting.epsilon(**budget), 3) == pld
    renyi = accounting.rdp(**budget)
    assert (round(renyi.epsilon, 3), round(renyi.order, 1)) == (rdp, order)
    assert accounting.epsilon(accountant="prv", **budget) == pytest.approx(pld, abs=3e-3)


def test_jax_privacy_reference_value():
    budget = {"sampling_rate": 0.1, "noise_multiplier": 3.0, "rounds": 512, "delta": 1e-6}
    assert round(accounting.epsilon(**budget), 2) == 3.77


@pytest.mark.parametrize(
    ("q", "sigma", "rounds"),
    [(128 / 6988, REFERENCE, 50), (0.001, 0.6, 10), (0.3, 1.0, 100), (0.9, 5.0, 1000), (0.999, 2.0, 3)],
)
def test_epsilon_is_the_library_accountant_to_nine_digits(q, sigma, rounds):
    ours = accounting.epsilon(sampling_rate=q, noise_multiplier=sigma, rounds=rounds, delta=1e-5)
    assert ours == pytest.approx(library_epsilon(q, sigma, rounds, 1e-5), rel=1e-8)


@settings(max_examples=40, deadline=None)
@given(
    q=st.floats(0.01, 1.0),
    sigma=st.floats(0.3, 4.0),
    alpha=st.floats(0.0, 20.0),
)
def test_quadrature_and_closed_form_agree_in_both_directions(q, sigma, alpha):
    kwargs = {"sampling_rate": q, "noise_multiplier": sigma, "alpha": alpha}
    a = lambda x: (1 - q) * stats.norm.cdf(x / sigma) + q * stats.norm.cdf((x - 1) / sigma)  # noqa: E731
    b = lambda x: stats.norm.cdf(x / sigma)  # noqa: E731

    def cut(ratio):  # dA/dB exceeds the ratio to the right of this point
        inner = (ratio - (1 - q)) / q
        return 0.5 + sigma**2 * math.log(inner) if inner > 0 else -math.inf

    x = cut(alpha)
    remove = (1 - a(x)) - alpha * (1 - b(x))
    x = cut(1 / alpha) if alpha > 0 else math.inf
    add = b(x) - alpha * a(x)
    assert accounting.hockey_stick(direction="remove", **kwargs) == pytest.approx(remove, abs=1e-7)
    assert accounting.hockey_stick(direction="add", **kwargs) == pytest.approx(max(add, 0), abs=1e-7)


def test_one_round_profile_is_the_hockey_stick_divergence():
    delta = accounting.delta(sampling_rate=0.2, noise_multiplier=0.8, rounds=1, epsilon=0.7)
    exact = max(
        accounting.hockey_stick(
            sampling_rate=0.2, noise_multiplier=0.8, alpha=math.exp(0.7), direction=direction
        )
        for direction in ("remove", "add")
    )
    assert exact <= delta <= exact * (1 + 1e-4)


@pytest.mark.parametrize(("epsilon", "delta"), [(16.0, 1 / 1_610_000), (1.0, 1e-5), (0.1, 1e-6)])
def test_profile_of_one_gaussian_release_is_the_closed_form(epsilon, delta):
    sigma = accounting.gaussian_noise_multiplier(target_epsilon=epsilon, delta=delta)
    closed = stats.norm.cdf(0.5 / sigma - epsilon * sigma) - math.exp(epsilon) * stats.norm.cdf(
        -0.5 / sigma - epsilon * sigma
    )
    assert closed == pytest.approx(delta, rel=1e-6)
    found = accounting.epsilon(sampling_rate=1.0, noise_multiplier=sigma, rounds=1, delta=delta)
    assert epsilon <= found + 1e-9
    assert found == pytest.approx(epsilon, abs=2e-4)


def test_privdpo_noise_is_published_to_two_digits():
    sigma = accounting.gaussian_noise_multiplier(target_epsilon=16, delta=1 / 1_610_000)
    assert round(sigma, 2) == 0.37


def test_t_rounds_without_sampling_are_one_gaussian_with_root_t_less_noise():
    many = accounting.epsilon(sampling_rate=1.0, noise_multiplier=4.0, rounds=16, delta=1e-5)
    one = accounting.epsilon(sampling_rate=1.0, noise_multiplier=1.0, rounds=1, delta=1e-5)
    assert many == pytest.approx(one, abs=1e-9)


@pytest.mark.parametrize(
    ("n", "m", "rounds", "target", "published"),
    [
        (6988, 128, 50, 1.0, 1.0023417361080647),
        (6988, 128, 50, 8.0, REFERENCE),
        (6988, 128, 100, 8.0, 0.519267738191411),
        (6961, 128, 100, 8.0, 0.5196564674377442),
        (6988, 128, 400, 8.0, 0.612058477104),
    ],
)
def test_published_noise_multipliers_are_found_to_eight_digits(n, m, rounds, target, published):
    found = accounting.calibrate_noise_multiplier(
        sampling_rate=m / n, rounds=rounds, target_epsilon=target, delta=1 / (10 * n)
    )
    assert found == pytest.approx(published, abs=5e-9)


def test_published_coverage_noise_is_safe_but_not_the_smallest():
    found = accounting.calibrate_noise_multiplier(
        sampling_rate=512 / 6988, rounds=50, target_epsilon=8.0, delta=1 / 69_880
    )
    assert 7e-7 < 0.7022244453430175 - found < 8e-7


@settings(max_examples=8, deadline=None)
@given(q=st.floats(0.01, 0.5), rounds=st.integers(1, 200), target=st.floats(0.3, 6.0))
def test_calibration_returns_the_smallest_certified_noise(q, rounds, target):
    kwargs = {"sampling_rate": q, "rounds": rounds, "delta": 1e-5}
    tolerance = 1e-6
    sigma = accounting.calibrate_noise_multiplier(target_epsilon=target, tolerance=tolerance, **kwargs)
    assert accounting.epsilon(noise_multiplier=sigma, **kwargs) <= target + 1e-9
    assert accounting.epsilon(noise_multiplier=sigma - 2 * tolerance, **kwargs) > target


@pytest.mark.parametrize("target", [0.1, 0.49999999764, 2.0])
@pytest.mark.parametrize("delta", [3.115e-9, 1e-12])
def test_calibration_settles_where_the_accountants_rounding_exceeds_the_tolerance(target, delta):
    kwargs = {"sampling_rate": 128 / 6988, "rounds": 50, "delta": delta}
    sigma = accounting.calibrate_noise_multiplier(target_epsilon=target, **kwargs)
    assert 0.999 * target < accounting.epsilon(noise_multiplier=sigma, **kwargs) <= target


def test_rdp_moment_is_the_quadrature():
    q, sigma, alpha = 128 / 6988, REFERENCE, 2.3

    def integrand(x):
        ratio = np.logaddexp(math.log1p(-q), math.log(q) + (2 * x - 1) / (2 * sigma**2))
        return math.exp(alpha * ratio + stats.norm.logpdf(x, 0, sigma))

    moment = integrate.quad(integrand, -8, 10, points=[0, 1, alpha], limit=400)[0]
    renyi = 50 * math.log(moment) / (alpha - 1)
    converted = renyi + math.log1p(-1 / alpha) - math.log(MATH["delta"] * alpha) / (alpha - 1)
    ours = accounting.rdp(noise_multiplier=REFERENCE, orders=[alpha], **MATH)
    assert ours.epsilon == pytest.approx(converted, rel=1e-9)


def test_rdp_survives_orders_whose_series_overflows():
    assert math.isfinite(accounting.rdp(noise_multiplier=0.3, **MATH).epsilon)


@pytest.mark.parametrize(("n", "m", "sigma", "rounds", "pld", "rdp", "order"), TABLE_VI[:3])
def test_pld_is_at_most_rdp(n, m, sigma, rounds, pld, rdp, order):
    assert pld <= rdp


def test_two_runs_together_cost_less_than_the_sum_and_more_than_one():
    run = losses.subsampled_gaussian(sampling_rate=MATH["sampling_rate"], noise_multiplier=1.0, rounds=50)
    one = accounting.composed_epsilon(run, delta=1e-5)
    two = accounting.composed_epsilon(run, run, delta=1e-5)
    assert one < two < 2 * one
    twice_as_long = accounting.epsilon(
        sampling_rate=MATH["sampling_rate"], noise_multiplier=1.0, rounds=100, delta=1e-5
    )
    assert two == pytest.approx(twice_as_long, abs=1e-6)


def test_a_laplace_count_alone_costs_one_over_its_scale():
    for scale in (0.5, 2.0, 10.0):
        alone = accounting.composed_epsilon(losses.laplace_count(scale=scale), delta=1e-12)
        assert alone == pytest.approx(1 / scale, abs=2e-4)


def test_a_released_count_raises_the_budget_by_at_most_its_own():
    run = losses.subsampled_gaussian(sampling_rate=0.05, noise_multiplier=1.0, rounds=20)
    without = accounting.composed_epsilon(run, delta=1e-5)
    with_count = accounting.composed_epsilon(run, losses.laplace_count(scale=4.0), delta=1e-5)
    assert without < with_count <= without + 0.25 + 1e-3


def test_group_privacy_of_two_is_corollary_1():
    epsilon, delta = 1.3, 1e-6
    assert accounting.group_privacy(epsilon, delta, 2) == pytest.approx(
        (2 * epsilon, (1 + math.exp(epsilon)) * delta)
    )


@given(epsilon=st.floats(0.01, 10), delta=st.floats(0, 1e-3), k=st.integers(1, 50))
def test_group_privacy_is_at_most_the_printed_bound(epsilon, delta, k):
    grouped, failure = accounting.group_privacy(epsilon, delta, k)
    assert grouped == pytest.approx(k * epsilon)
    assert failure <= min(1.0, k * math.exp(min(700, (k - 1) * epsilon)) * delta) * (1 + 1e-9)


def test_replacing_costs_more_than_removing_and_less_than_corollary_1():
    budget = {**MATH, "noise_multiplier": 1.0023417361080647}
    removing, replacing = accounting.epsilon(**budget), accounting.replace_one_epsilon(**budget)
    assert removing < replacing < 2 * removing


@settings(max_examples=15, deadline=None)
@given(sigma=st.floats(0.6, 3.0), rounds=st.integers(1, 40))
def test_more_noise_or_fewer_rounds_never_cost_more(sigma, rounds):
    kwargs = {"sampling_rate": 0.05, "delta": 1e-5}
    here = accounting.epsilon(noise_multiplier=sigma, rounds=rounds, **kwargs)
    assert accounting.epsilon(noise_multiplier=sigma * 1.1, rounds=rounds, **kwargs) <= here + 1e-9
    assert accounting.epsilon(noise_multiplier=sigma, rounds=rounds + 1, **kwargs) >= here - 1e-9


GOOD = {"sampling_rate": 0.1, "noise_multiplier": 1.0, "rounds": 10, "delta": 1e-5}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("sampling_rate", 0.0), ("sampling_rate", 1.1), ("sampling_rate", math.nan),
        ("noise_multiplier", 0.0), ("noise_multiplier", -1.0), ("noise_multiplier", math.inf),
        ("noise_multiplier", math.nan), ("rounds", 0), ("rounds", 1.5), ("rounds", math.nan),
        ("rounds", math.inf), ("delta", 0.0), ("delta", 1.0), ("delta", math.nan), ("delta", 1e-300),
        ("rounds", "50"), ("delta", None),
    ],
)  # fmt: skip
def test_a_parameter_out_of_range_is_named_with_its_range(name, value):
    with pytest.raises(ReproError, match=rf"{name} = .*expected"):
        accounting.epsilon(**{**GOOD, name: value})


@pytest.mark.parametrize("target", [0.0, -1.0, math.nan, math.inf])
def test_a_target_epsilon_out_of_range_is_refused(target):
    with pytest.raises(ReproError, match=r"epsilon = .*expected"):
        accounting.calibrate_noise_multiplier(sampling_rate=0.1, rounds=10, target_epsilon=target, delta=1e-5)


def test_a_target_that_no_noise_in_range_reaches_is_refused():
    with pytest.raises(ReproError, match="less noise than"):
        accounting.calibrate_noise_multiplier(sampling_rate=0.001, rounds=1, target_epsilon=1e6, delta=0.5)
    with pytest.raises(ReproError, match="no noise multiplier"):
        accounting.calibrate_noise_multiplier(
            sampling_rate=1.0, rounds=10**9, target_epsilon=1e-6, delta=1e-10
        )


@pytest.mark.parametrize("call", ["epsilon", "delta"])
def test_an_unknown_accountant_is_refused(call):
    kwargs = dict(GOOD)
    if call == "delta":
        kwargs["epsilon"] = kwargs.pop("delta")
    with pytest.raises(ReproError, match="accountant = 'zcdp'"):
        getattr(accounting, call)(**kwargs, accountant="zcdp")


def test_an_unknown_direction_is_refused():
    with pytest.raises(ReproError, match="direction"):
        accounting.hockey_stick(sampling_rate=0.1, noise_multiplier=1.0, alpha=1.0, direction="up")


@pytest.mark.parametrize("accountant", ["pld", "rdp", "prv"])
def test_delta_undoes_epsilon_for_every_accountant(accountant):
    mechanism = {"sampling_rate": 0.05, "noise_multiplier": 1.1, "rounds": 40}
    found = accounting.epsilon(**mechanism, delta=1e-5, accountant=accountant)
    back = accounting.delta(**mechanism, epsilon=found, accountant=accountant)
    assert back == pytest.approx(1e-5, rel=0.05)
    assert accounting.delta(**mechanism, epsilon=found, accountant="pld") <= 1e-5 * (1 + 1e-9)
