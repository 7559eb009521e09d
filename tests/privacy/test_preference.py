import decimal
import math
from decimal import Decimal
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from reprolib.errors import ReproError
from reprolib.privacy.mechanism import EntropySource
from reprolib.privacy.preference import (
    Duchi,
    Piecewise,
    PrivDPO,
    RandomizedResponse,
    flip_probability,
    robust_coefficient,
)

RANDOMIZERS = (PrivDPO, RandomizedResponse, Duchi, Piecewise)
TWO_OUTCOMES = RANDOMIZERS[:3]
EPSILONS = (1e-6, 1e-3, 0.1, 0.5, 1.0, 2.0, 4.0, 20.0, 37.0, 200.0, 700.0)
INTENSITIES = (0.0, 5e-324, 1e-9, 0.1, 0.25, 0.5, 2 / 3, 1 - 2**-53, 1.0)
DTYPES = (torch.float32, torch.float64)
epsilons = st.floats(math.log(1e-6), math.log(700)).map(lambda x: min(max(math.exp(x), 1e-6), 700.0))
intensities = st.floats(0, 1)


@pytest.fixture(scope="module", autouse=True)
def digits():
    with decimal.localcontext(prec=350):  # 1 - psi/C cancels 304 of them at epsilon = 700
        yield


# --- the laws, as printed, in 350 digits: pieces (low, high, probability), an atom where low == high ------


def law(randomizer, psi):
    psi, grown = Decimal(psi), Decimal(randomizer.epsilon).exp()
    keep = grown / (grown + 1)
    if isinstance(randomizer, PrivDPO):
        up, down = psi + 1 / (grown - 1), psi - 1 - 1 / (grown - 1)
        return [(up, up, keep), (down, down, 1 - keep)]
    if isinstance(randomizer, RandomizedResponse):
        return [(psi, psi, keep), (psi - 1, psi - 1, 1 - keep)]
    if isinstance(randomizer, Duchi):
        size = (grown + 1) / (grown - 1)
        up = (grown - 1) / (2 * grown + 2) * psi + Decimal("0.5")
        return [(size, size, up), (-size, -size, 1 - up)]
    root = (Decimal(randomizer.epsilon) / 2).exp()
    size = (root + 1) / (root - 1)
    low = (size + 1) / 2 * psi - (size - 1) / 2
    high, far = low + size - 1, 1 / (root + 1)
    return [
        (-size, low, far * (low + size) / (size + 1)),
        (low, high, 1 - far),
        (high, size, far * (size - high) / (size + 1)),
    ]


def neighbour_law(randomizer, psi):
    return [(-high, -low, p) for low, high, p in law(randomizer, 1 - Decimal(psi))]


def moments(pieces):
    mean = sum(p * (a + b) / 2 for a, b, p in pieces)
    second = sum(p * (a * a + a * b + b * b) / 3 for a, b, p in pieces)
    return mean, second - mean * mean


def mass(pieces, low, high):
    if low == high:  # one atom, computed in two ways
        return sum(p for a, b, p in pieces if a == b and abs(a - low) < Decimal("1e-320"))
    middle = (low + high) / 2
    return sum(p / (b - a) for a, b, p in pieces if a < middle < b)


def worst_ratio(ours, theirs):
    atoms = ours[0][0] == ours[0][1]
    cuts = sorted({x for a, b, _ in ours + theirs for x in (a, b)})
    places = [(x, x) for x in cuts] if atoms else [c for c in pairwise(cuts) if c[1] - c[0] > 1e-300]
    ratios = [mass(ours, *place) / mass(theirs, *place) for place in places]
    return max(max(r, 1 / r) for r in ratios)


def tensor(value, dtype=torch.float64):
    return torch.tensor([value], dtype=dtype)


class ScriptedCoins(EntropySource):
    def __init__(self, *values):
        super().__init__(None)
        self.values = list(values)

    def coins(self, size):
        return np.full(size, self.values.pop(0))


# --- moments --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", RANDOMIZERS)
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_bias_and_variance_are_those_of_the_printed_law(kind, epsilon):
    randomizer = kind(epsilon)
    psi = torch.tensor(INTENSITIES, dtype=torch.float64)
    bias, variance = randomizer.bias(psi).tolist(), randomizer.variance(psi).tolist()
    for value, b, v in zip(INTENSITIES, bias, variance, strict=True):
        mean, spread = moments(law(randomizer, value))
        assert b == pytest.approx(float(mean - Decimal(value)), rel=1e-14, abs=1e-320)
        assert v == pytest.approx(float(spread), rel=1e-13, abs=0)


@settings(max_examples=60, deadline=None)
@given(epsilon=epsilons, psi=intensities)
@pytest.mark.parametrize("kind", RANDOMIZERS)
def test_variance_is_that_of_the_printed_law_everywhere(kind, epsilon, psi):
    spread = moments(law(kind(epsilon), psi))[1]
    assert float(kind(epsilon).variance(tensor(psi))) == pytest.approx(float(spread), rel=1e-12, abs=0)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
@pytest.mark.parametrize("psi", [0.0, 0.3, 1.0])
def test_piecewise_moments_are_the_integrals_of_its_density(epsilon, psi):
    pieces = [(float(a), float(b), float(p)) for a, b, p in law(Piecewise(epsilon), psi)]
    raw = [
        sum(integrate.quad(lambda x: x**k * p / (b - a), a, b)[0] for a, b, p in pieces if p > 0)  # noqa: B023
        for k in range(3)
    ]
    assert raw[0] == pytest.approx(1, abs=1e-12)
    assert float(Piecewise(epsilon).bias(tensor(psi))) == pytest.approx(raw[1] - psi, abs=1e-10)
    assert float(Piecewise(epsilon).variance(tensor(psi))) == pytest.approx(raw[2] - raw[1] ** 2, rel=1e-10)


@pytest.mark.parametrize("agrees", [True, False])
@pytest.mark.parametrize("psi", [0.0, 0.2, 0.85, 1.0])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
@pytest.mark.parametrize("kind", RANDOMIZERS)
def test_samples_have_the_stated_moments_for_both_annotations(kind, epsilon, psi, agrees):
    # a preference neighbour's coefficient is minus the output at 1 - psi
    randomizer, size = kind(epsilon), 50_000
    own, sign = (psi, 1) if agrees else (1 - psi, -1)
    expected_mean = sign * (own + float(randomizer.bias(tensor(own))))
    expected_variance = float(randomizer.variance(tensor(own)))
    draws = randomizer.sample(
        torch.full((size,), psi, dtype=torch.float64), EntropySource.research(11),
        agrees=torch.full((size,), agrees),
    )  # fmt: skip
    squares = (draws - expected_mean).square()
    mean_error, variance_error = (float(x.std()) / math.sqrt(size) for x in (draws, squares))
    assert abs(float(draws.mean()) - expected_mean) < 5 * mean_error + 1e-12
    # 1e-6: the Piecewise grid; and two equally likely outputs have squares without spread
    assert abs(float(squares.mean()) - expected_variance) < 5 * variance_error + 1e-6 * expected_variance


@pytest.mark.parametrize("agrees", [True, False])
@pytest.mark.parametrize(("epsilon", "psi"), [(0.1, 0.4), (1.0, 0.0), (1.0, 0.9), (4.0, 0.5), (8.0, 1.0)])
def test_piecewise_samples_follow_the_printed_density(epsilon, psi, agrees):
    pieces = (law if agrees else neighbour_law)(Piecewise(epsilon), psi)
    edges = np.array([float(x) for x in sorted({x for a, b, _ in pieces for x in (a, b)})])
    heights = np.array([float(mass(pieces, Decimal(a), Decimal(b)) or 0) for a, b in pairwise(edges)])
    cumulative = np.concatenate([[0], np.cumsum(heights * np.diff(edges))])
    draws = Piecewise(epsilon).sample(
        torch.full((20_000,), psi, dtype=torch.float64), EntropySource.research(5),
        agrees=torch.full((20_000,), agrees),
    )  # fmt: skip
    assert stats.kstest(draws.numpy(), lambda x: np.interp(x, edges, cumulative)).pvalue > 1e-3


@pytest.mark.parametrize("kind", TWO_OUTCOMES)
def test_two_outcome_samples_have_the_printed_frequencies(kind):
    randomizer, psi, size = kind(1.0), 0.3, 100_000
    upper, lower = (float(x) for x in randomizer.neighbour_outputs(tensor(psi)))
    draws = randomizer.sample(torch.full((size,), psi, dtype=torch.float64), EntropySource.research(2))
    (up, _, p), (down, _, _) = law(randomizer, psi)
    assert (upper, lower) == pytest.approx((float(up), float(down)), rel=1e-15)
    assert set(draws.tolist()) == {upper, lower}
    assert abs(float((draws == upper).double().mean()) - float(p)) < 5 * math.sqrt(0.25 / size)


# --- privacy --------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(epsilon=epsilons, psi=intensities)
@pytest.mark.parametrize("kind", RANDOMIZERS)
def test_ratio_is_that_of_the_two_annotations_laws(kind, epsilon, psi):
    randomizer = kind(epsilon)
    enumerated = worst_ratio(law(randomizer, psi), neighbour_law(randomizer, psi))
    assert randomizer.likelihood_ratio(tensor(psi)) == pytest.approx(float(enumerated), rel=1e-12)


@pytest.mark.parametrize("kind", RANDOMIZERS)
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_worst_case_ratio_is_the_largest_over_the_intensities(kind, epsilon):
    randomizer = kind(epsilon)
    grid = (*INTENSITIES, *(k / 10 for k in range(11)))
    enumerated = max(worst_ratio(law(randomizer, p), neighbour_law(randomizer, p)) for p in grid)
    assert randomizer.likelihood_ratio() == pytest.approx(float(enumerated), rel=1e-12)
    assert randomizer.likelihood_ratio(torch.tensor(grid, dtype=torch.float64)) == pytest.approx(
        float(enumerated), rel=1e-12
    )
    assert randomizer.effective_epsilon == pytest.approx(float(enumerated.ln()), rel=1e-12, abs=0)
    assert randomizer.effective_epsilon <= epsilon


def test_duchi_spends_less_than_its_nominal_epsilon_and_the_others_spend_all_of_it():
    assert Duchi(1.0).likelihood_ratio() == pytest.approx((math.e + 1) / 2)
    assert [kind(1.0).effective_epsilon for kind in RANDOMIZERS if kind is not Duchi] == [1.0] * 3


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", TWO_OUTCOMES)
@settings(max_examples=40, deadline=None)
@given(epsilon=epsilons, psi=intensities)
def test_both_annotations_have_the_same_support_bit_for_bit(kind, dtype, epsilon, psi):
    randomizer, canonical = kind(epsilon), tensor(psi, dtype)
    supports = [
        {
            randomizer.sample(canonical, ScriptedCoins(coin), agrees=torch.tensor([agrees])).numpy().tobytes()
            for coin in (0.0, 1 - 2**-53)
        }
        for agrees in (True, False)
    ]
    assert (
        supports[0] == supports[1] == {x.numpy().tobytes() for x in randomizer.neighbour_outputs(canonical)}
    )
    assert len(supports[0]) == 2


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", [PrivDPO, RandomizedResponse])
def test_outputs_that_are_computed_from_each_annotations_own_intensity_reveal_it(kind, dtype):
    # what the canonical order is for: minus the outputs at 1 - psi are equal to the others in exact
    # arithmetic only
    psi = torch.rand(1000, generator=torch.Generator().manual_seed(0), dtype=dtype)
    upper, lower = kind(4.0).neighbour_outputs(psi * 1e-3)
    other_upper, other_lower = kind(4.0).neighbour_outputs(1 - psi * 1e-3)
    assert torch.allclose(upper, -other_lower, atol=1e-6)
    assert torch.allclose(lower, -other_upper, atol=1e-6)
    assert (upper != -other_lower).float().mean() > 0.5


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("agrees", [True, False])
@pytest.mark.parametrize("epsilon", [1e-6, 0.3, 4.0, 60.0, 700.0])
def test_piecewise_outputs_lie_on_a_grid_that_does_not_depend_on_the_intensity(epsilon, agrees, dtype):
    psi = torch.rand(2000, generator=torch.Generator().manual_seed(1), dtype=dtype)
    draws = Piecewise(epsilon).sample(psi, EntropySource.private(), agrees=torch.full((2000,), agrees))
    step = 1 / math.tanh(epsilon / 4) / 2**24
    cells = torch.round(draws.double() / step)
    assert torch.equal((cells * step).to(dtype), draws)
    assert cells.abs().max() <= 2**24


@pytest.mark.parametrize("kind", TWO_OUTCOMES)
def test_the_rarer_outcome_is_never_rounded_away(kind):
    # its probability, e^-700 here, is below what a coin of 53 bits can show; it gets 2^-53
    randomizer, psi = kind(700.0), tensor(1.0)
    upper, lower = randomizer.neighbour_outputs(psi)
    assert torch.equal(randomizer.sample(psi, ScriptedCoins(0.0)), lower)
    assert torch.equal(randomizer.sample(psi, ScriptedCoins(2.0**-53)), upper)


# --- the identity ---------------------------------------------------------------------------------


@settings(deadline=None)
@given(epsilon=epsilons, psi=intensities)
def test_privdpo_is_randomised_response_followed_by_the_robust_loss(epsilon, psi):
    upper, lower = PrivDPO(epsilon).neighbour_outputs(tensor(psi))
    for kept, output in ((True, upper), (False, lower)):
        robust = robust_coefficient(tensor(psi), torch.tensor([kept]), epsilon)
        assert float(robust) == pytest.approx(float(output), rel=1e-14, abs=1e-320)


@given(odds=st.fractions(min_value="1.001", max_value=1000), psi=st.fractions(min_value=0, max_value=1))
def test_the_identity_is_exact_in_rational_arithmetic(odds, psi):
    q = 1 / (odds + 1)
    for kept, output in ((True, psi + 1 / (odds - 1)), (False, psi - 1 - 1 / (odds - 1))):
        noisy = psi if kept else psi - 1
        assert (noisy - q * (2 * psi - 1)) / (1 - 2 * q) == output
        computed = robust_coefficient(tensor(float(psi)), torch.tensor([kept]), math.log(odds))
        assert float(computed) == pytest.approx(float(output), rel=1e-9)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
def test_robust_coefficient_is_the_slope_of_the_robust_dpo_loss(epsilon):
    margin = torch.linspace(-3, 3, 13, dtype=torch.float64, requires_grad=True)
    q = 1 / (math.exp(epsilon) + 1)
    for kept in (True, False):
        label = margin if kept else -margin
        losses = -torch.nn.functional.logsigmoid(label), -torch.nn.functional.logsigmoid(-label)
        loss = ((1 - q) * losses[0] - q * losses[1]) / (1 - 2 * q)
        slope = torch.autograd.grad(loss.sum(), margin)[0]
        bits = torch.full(margin.shape, kept)
        assert torch.allclose(-slope, robust_coefficient(torch.sigmoid(-margin), bits, epsilon), atol=1e-12)


def test_a_bit_that_is_randomised_once_gives_the_same_law_as_a_fresh_one():
    psi, epsilon = torch.full((100_000,), 0.3, dtype=torch.float64), 1.0
    kept = torch.from_numpy(EntropySource.research(4).coins(100_000)) >= flip_probability(epsilon)
    fresh = PrivDPO(epsilon).sample(psi, EntropySource.research(4))
    assert torch.allclose(robust_coefficient(psi, kept, epsilon), fresh, rtol=1e-14)


# --- tensors and bad input ------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0), (2, 3)])
@pytest.mark.parametrize("kind", RANDOMIZERS)
def test_shape_and_dtype_are_kept_and_gradients_stopped(kind, shape, dtype):
    psi = torch.full(shape, 0.25, dtype=dtype, requires_grad=True)
    randomizer = kind(1.0)
    made = [randomizer.sample(psi, EntropySource.private()), randomizer.bias(psi), randomizer.variance(psi)]
    made += [robust_coefficient(psi, torch.ones(shape, dtype=torch.bool), 1.0)]
    made += randomizer.neighbour_outputs(psi) if kind is not Piecewise else []
    assert all(x.shape == shape and x.dtype == dtype and not x.requires_grad for x in made)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("kind", RANDOMIZERS)
def test_everything_is_finite_at_every_epsilon_and_at_the_ends(kind, epsilon, dtype):
    psi, randomizer = torch.tensor([0.0, 1.0], dtype=dtype).repeat(50), kind(epsilon)
    made = [randomizer.sample(psi, EntropySource.private()), randomizer.bias(psi), randomizer.variance(psi)]
    assert all(torch.isfinite(x).all() for x in made)
    assert math.isfinite(randomizer.likelihood_ratio())


def test_the_same_seed_replays_and_private_draws_do_not():
    psi = torch.full((200,), 0.5)
    for kind in RANDOMIZERS:
        a, b = (kind(1.0).sample(psi, EntropySource.research(3)) for _ in range(2))
        assert torch.equal(a, b)
        a, b = (kind(1.0).sample(psi, EntropySource.private()) for _ in range(2))
        assert not torch.equal(a, b)


@pytest.mark.parametrize("kind", RANDOMIZERS)
@pytest.mark.parametrize("epsilon", [0.0, -1.0, 1e-7, 701.0, math.nan, math.inf, True, "1", None])
def test_an_epsilon_out_of_range_is_refused(kind, epsilon):
    with pytest.raises(ReproError, match=r"epsilon = .*expected a number"):
        kind(epsilon)
    with pytest.raises(ReproError, match=r"epsilon = .*expected a number"):
        robust_coefficient(tensor(0.5), torch.tensor([True]), epsilon)
    with pytest.raises(ReproError, match=r"epsilon = .*expected a number"):
        flip_probability(epsilon)


@pytest.mark.parametrize("kind", RANDOMIZERS)
@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (tensor(-1e-9), "1 entries that are NaN or outside"),
        (tensor(1 + 1e-9), "1 entries that are NaN or outside"),
        (torch.tensor([0.5, math.nan, math.inf]), "2 entries that are NaN or outside"),
        (torch.tensor([1]), "torch.int64: expected a float32 or float64 tensor"),
        (torch.tensor([0.5], dtype=torch.bfloat16), "torch.bfloat16: expected"),
        (0.5, "float: expected a float32 or float64 tensor"),
    ],
)
def test_an_intensity_out_of_range_is_refused_by_every_method(kind, bad, message):
    randomizer = kind(1.0)
    methods = [randomizer.bias, randomizer.variance, randomizer.likelihood_ratio]
    methods += [lambda x: randomizer.sample(x, EntropySource.private())]
    methods += [lambda x: robust_coefficient(x, torch.tensor([True]), 1.0)]
    methods += [randomizer.neighbour_outputs] if kind is not Piecewise else []
    for method in methods:
        with pytest.raises(ReproError, match=message):
            method(bad)


@pytest.mark.parametrize("bad", [torch.tensor([1.0]), torch.tensor([True, False]), True])
def test_bits_of_another_type_or_shape_are_refused(bad):
    with pytest.raises(ReproError, match="agrees: expected a boolean tensor"):
        PrivDPO(1.0).sample(tensor(0.5), EntropySource.private(), agrees=bad)
    with pytest.raises(ReproError, match="kept: expected a boolean tensor"):
        robust_coefficient(tensor(0.5), bad, 1.0)


def test_a_ratio_over_no_intensities_is_refused():
    with pytest.raises(ReproError, match="intensity is empty"):
        Duchi(1.0).likelihood_ratio(torch.zeros(0))
