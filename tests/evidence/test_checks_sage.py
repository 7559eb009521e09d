"""Checks of the SAGE paper, against hand-computed values and an independent simulation."""

import numpy as np
import pytest

from reprolib.evidence.checks import sage
from reprolib.evidence.published import Published

NONE = Published([], {})


def test_quadrature_gives_gaussian_moments() -> None:
    points, probability = sage._gaussian_grid(2)
    assert probability.sum() == pytest.approx(1)
    assert probability @ points[:, 0] ** 4 == pytest.approx(3)
    assert probability @ (points[:, 0] ** 2 * points[:, 1] ** 2) == pytest.approx(1)


def test_noise_floor_adds_the_noise_variance_once() -> None:
    outcome = sage.noise_floor(NONE, signal=[3.0, 4.0], noise_std=2.0)
    assert outcome.value is True
    assert outcome.detail == "by quadrature 16.5, by eq. 8 16.5"  # (9 + 16) / 2 + 4


def test_update_terms_agree_with_a_simulation() -> None:
    g, k, tau, eta, smoothness, m = np.array([0.6, -0.2]), 3, 0.7, 0.1, 2.0, 0.8
    rng = np.random.default_rng(20260725)
    total = np.zeros(2)
    for _ in range(20):
        z = rng.standard_normal((50_000, k, 2))
        s = (z * g).sum(axis=2) / k + tau * rng.standard_normal((50_000, k))
        step = eta * m * (s[:, :, None] * z).sum(axis=1)
        total += [(step * g).sum(axis=1).mean(), (smoothness / 2 * (step**2).sum(axis=1)).mean()]
    terms = sage._update_terms(
        m, gradient=g, directions=k, noise_std=tau, learning_rate=eta, smoothness=smoothness
    )
    assert terms == pytest.approx(total / 20, rel=0.01)


def test_one_step_bound_constants_are_those_of_one_direction_in_one_dimension() -> None:
    # d = K = 1: E[(g z + xi)^2 z^2] = 3 g^2 + tau^2, so R_K = 3 and N_K = tau^2.
    outcome = sage.one_step_bound(NONE, gradient=[2.0], directions=1, noise_std=0.5, multiplier=1.0)
    assert outcome.value is True
    assert outcome.detail.endswith("R_K = 3, N_K = 0.25")
    assert float(outcome.detail.split()[2].rstrip(",")) == pytest.approx(-0.4 + 0.01 * (12 + 0.25))


@pytest.mark.parametrize(("term", "power"), [("descent", 1.0), ("risk", 2.0)])
def test_descent_scales_linearly_and_risk_quadratically(term: str, power: float) -> None:
    assert sage.scaling_power(NONE, term=term, multiplier=0.3).value == power


def test_oracle_scale_is_found_by_the_numerical_minimiser() -> None:
    outcome = sage.oracle_scale(
        NONE, signal=2.0, direction_risk=3.0, noise_risk=4.0, learning_rate=0.1, smoothness=2.0
    )
    assert outcome.value is True
    assert outcome.detail == "numerical minimiser 1, eq. 18 1"  # 2 / (2 * 0.1 * (6 + 4))


def test_scaled_error_reduction_is_zero_at_the_reference() -> None:
    assert sage.scaled_error_reduction(NONE, reliability=0.2, reference=0.2).value == pytest.approx(0)


def test_scaled_error_reduction_with_the_floor_active() -> None:
    # m = 0.5, energy = 1/9: 1 - 1/4 - 1/36 = 13/18
    outcome = sage.scaled_error_reduction(NONE, reliability=0.1, reference=0.4)
    assert outcome.value == pytest.approx(1300 / 18)


def test_scaled_error_reduction_agrees_with_a_simulation() -> None:
    u = np.full(64, 0.5)  # energy 0.25, reliability 0.2 at tau = 1; m = 0.2 / 0.25 = 0.8
    rng = np.random.default_rng(7)
    s = u + rng.standard_normal((20_000, 64))
    before, after = ((s - u) ** 2).mean(), ((0.8 * s - u) ** 2).mean()
    found = sage.scaled_error_reduction(NONE, reliability=0.2, reference=0.25).value
    assert found == pytest.approx(100 * (1 - after / before), abs=0.2)
