import math
from itertools import pairwise

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from reprolib.errors import ReproError
from reprolib.privacy import accounting, losses
from reprolib.privacy.tuning import SHAPES, tuned_epsilon

MATH = {
    "sampling_rate": 128 / 6988,
    "noise_multiplier": 0.4842404738068581,
    "rounds": 50,
    "delta": 1 / 69_880,
}
WHOLE = [float(order) for order in range(2, 64)]


def test_without_a_pilot_the_budget_is_that_of_the_run():
    run = accounting.epsilon(**MATH)
    assert tuned_epsilon(**MATH, pilots=0) == run
    assert round(run, 3) == 8.0


def test_fixed_pilots_and_the_final_run_compose():
    one = losses.subsampled_gaussian(**{k: v for k, v in MATH.items() if k != "delta"})
    together = accounting.composed_epsilon(one, one, one, delta=MATH["delta"])
    assert tuned_epsilon(**MATH, pilots=2) == pytest.approx(together, rel=1e-6)


@pytest.mark.parametrize("trials", SHAPES)
@pytest.mark.parametrize("mean", [1, 4, 8.5])
def test_at_whole_orders_a_random_number_of_trials_costs_what_the_library_event_says(trials, mean):
    q, sigma, rounds = MATH["sampling_rate"], MATH["noise_multiplier"], MATH["rounds"]
    one = dp_event.SelfComposedDpEvent(
        dp_event.PoissonSampledDpEvent(q, dp_event.GaussianDpEvent(sigma)), rounds
    )
    event = dp_event.RepeatAndSelectDpEvent(one, mean, SHAPES[trials])
    library = RdpAccountant(WHOLE).compose(event).get_epsilon(MATH["delta"])
    ours = tuned_epsilon(**MATH, pilots=mean, trials=trials, accountant="rdp", orders=WHOLE)
    assert ours == pytest.approx(library, rel=1e-9)


def test_a_geometric_number_of_trials_follows_theorem_2():
    mean, orders = 4.0, np.array(accounting.ORDERS[:80])
    curve = dict(accounting._renyi_curve(list(orders), **{k: v for k, v in MATH.items() if k != "delta"}))
    renyi = np.array([curve[order] for order in orders])
    constant = min(2 * (1 - 1 / orders) * renyi + 2 * math.log(mean) / orders)
    best = renyi + constant + math.log(mean) / (orders - 1)
    converted = best + np.log1p(-1 / orders) - np.log(MATH["delta"] * orders) / (orders - 1)
    ours = tuned_epsilon(
        **MATH, pilots=mean, trials="geometric", accountant="rdp", orders=[float(x) for x in orders]
    )
    assert ours == pytest.approx(converted.min(), rel=1e-9)


def derivative(trials: str, mean: float, t: float) -> float:
    """Derivative of the generating function of the number of trials."""
    if trials == "poisson":
        return mean * math.exp(mean * (t - 1))
    if trials == "geometric":
        return mean / (mean - (mean - 1) * t) ** 2
    assert mean == pytest.approx(1.5 / math.log(2.5))  # the mean of a logarithmic law with gamma = 0.4
    return 0.6 / (1 - 0.6 * t) / math.log(2.5)


@pytest.mark.parametrize("trials", SHAPES)
@pytest.mark.parametrize("shift", [1.0, -1.0])
def test_the_best_of_a_random_number_of_gaussian_outputs_stays_within_the_budget(trials, shift):
    # the largest of K draws has density G'(F) f, so its divergence from the neighbour's is an integral
    mean, delta = 1.5 / math.log(2.5), 1e-3
    epsilon = tuned_epsilon(
        sampling_rate=1.0, noise_multiplier=1.0, rounds=1, delta=delta, pilots=mean, trials=trials,
        accountant="rdp",
    )  # fmt: skip

    def density(x: float, centre: float) -> float:
        return derivative(trials, mean, stats.norm.cdf(x - centre)) * stats.norm.pdf(x - centre)

    def excess(x: float, alpha: float) -> float:
        return max(density(x, shift) - alpha * density(x, 0.0), 0.0)

    grid = np.linspace(-9, 9, 37).tolist()
    at_the_budget, at_none = (
        sum(integrate.quad(excess, a, b, args=(alpha,))[0] for a, b in pairwise(grid))
        for alpha in (math.exp(epsilon), 1.0)
    )
    assert at_the_budget <= delta
    assert at_none > 100 * delta  # so that the bound above says something


@settings(max_examples=15, deadline=None)
@given(
    sigma=st.floats(0.6, 3), rounds=st.integers(1, 60), mean=st.floats(1, 20), more=st.floats(0.1, 5),
    trials=st.sampled_from(sorted(SHAPES)),
)  # fmt: skip
def test_a_choice_costs_at_least_the_run_and_more_with_more_trials(sigma, rounds, mean, more, trials):
    run = {"sampling_rate": 0.02, "noise_multiplier": sigma, "rounds": rounds, "delta": 1e-5}
    few, many = (
        tuned_epsilon(**run, pilots=m, trials=trials, accountant="rdp", orders=WHOLE)
        for m in (mean, mean + more)
    )
    alone = accounting.rdp(**run, orders=WHOLE).epsilon
    assert alone - 1e-9 <= few <= many + 1e-9


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pilots": -1}, "pilots = -1: expected a whole number, at least 0"),
        ({"pilots": 1.5}, "pilots = 1.5: expected a whole number"),
        ({"pilots": True}, "pilots = True"),
        ({"pilots": "4"}, "pilots = '4'"),
        ({"pilots": math.inf}, "pilots = inf"),
        ({"pilots": 0.5, "trials": "poisson", "accountant": "rdp"}, "a mean of at least 1"),
        ({"pilots": math.nan, "trials": "geometric", "accountant": "rdp"}, "a mean of at least 1"),
        ({"pilots": 4, "trials": "binomial"}, "trials = 'binomial': expected fixed, poisson"),
        ({"pilots": 4, "trials": "poisson"}, "pass accountant='rdp'"),
        ({"pilots": 4, "delta": 0.0}, "delta = 0.0"),
        ({"pilots": 4, "noise_multiplier": 0.0}, "noise_multiplier = 0.0"),
        ({"pilots": 4, "rounds": 0}, "rounds = 0"),
    ],
)
def test_bad_input_is_one_clear_line(changes, message):
    with pytest.raises(ReproError, match=message) as caught:
        tuned_epsilon(**{**MATH, **changes})
    assert "\n" not in str(caught.value)
