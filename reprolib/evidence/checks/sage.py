"""Checks that only the SAGE paper needs.

Expectations over the Gaussian directions and the Gaussian privacy noise are computed exactly: every
integrand is a polynomial of degree at most five in each variable, so three Gauss-Hermite nodes suffice.
"""

import math

import numpy as np
from numpy.typing import NDArray
from scipy import optimize

from reprolib.evidence.checks import Outcome, check
from reprolib.evidence.published import Published

NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(3)
EXACT = 1e-9  # relative error that floating point is allowed


def _gaussian_grid(dimension: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Nodes (points x dimension) and probabilities of a product quadrature for N(0, I)."""
    grid = np.stack(np.meshgrid(*[NODES] * dimension, indexing="ij"), axis=-1).reshape(-1, dimension)
    weights = np.stack(np.meshgrid(*[WEIGHTS / WEIGHTS.sum()] * dimension, indexing="ij"), axis=-1)
    return grid, weights.reshape(-1, dimension).prod(axis=1)


def _update_terms(multiplier: float, *, gradient: NDArray[np.float64], directions: int, noise_std: float,
                  learning_rate: float = 0.1, smoothness: float = 2.0) -> tuple[float, float]:  # fmt: skip
    """Expected descent and update risk of one step, term by term (Section Method, eqs. 16, 17)."""
    dimension = gradient.size
    points, probability = _gaussian_grid(directions * (dimension + 1))
    z = points[:, : directions * dimension].reshape(-1, directions, dimension)
    noise = noise_std * points[:, directions * dimension :]
    released = z @ gradient / directions + noise  # no clipping, mu -> 0
    step = learning_rate * multiplier * np.einsum("nk,nkd->nd", released, z)
    descent = probability @ (step @ gradient)
    risk = probability @ (smoothness / 2 * (step**2).sum(axis=1))
    return float(descent), float(risk)


@check
def noise_floor(published: Published, *, signal: list[float], noise_std: float) -> Outcome:
    """The mean of ``|u + xi|^2 / K`` given u is ``|u|^2 / K + tau^2`` (Section Method, eq. 8)."""
    u = np.asarray(signal)
    points, probability = _gaussian_grid(u.size)
    observed = float(probability @ ((u + noise_std * points) ** 2).mean(axis=1))
    predicted = float((u**2).mean() + noise_std**2)
    detail = f"by quadrature {observed:.12g}, by eq. 8 {predicted:.12g}"
    return Outcome(math.isclose(observed, predicted, rel_tol=EXACT), detail=detail)


@check
def one_step_bound(published: Published, *, gradient: list[float], directions: int, noise_std: float,
                   multiplier: float) -> Outcome:  # fmt: skip
    """Eq. 17 holds with equality on the quadratic ``L |theta|^2 / 2`` for a multiplier fixed beforehand.

    The two constants that the paper leaves open follow from Gaussian moments: R_K = (d + K + 1) / K and
    N_K = K d tau^2. Clipping is inactive.
    """
    g, eta, smoothness = np.asarray(gradient), 0.1, 2.0
    descent, risk = _update_terms(multiplier, gradient=g, directions=directions, noise_std=noise_std,
                                  learning_rate=eta, smoothness=smoothness)  # fmt: skip
    energy, d = float(g @ g), g.size
    r_k, n_k = (d + directions + 1) / directions, directions * d * noise_std**2
    bound = -eta * multiplier * energy + smoothness * eta**2 * multiplier**2 / 2 * (r_k * energy + n_k)
    detail = f"expected change {risk - descent:.12g}, bound {bound:.12g} with R_K = {r_k:g}, N_K = {n_k:g}"
    return Outcome(math.isclose(risk - descent, bound, rel_tol=EXACT), detail=detail)


@check
def scaling_power(published: Published, *, term: str, multiplier: float = 0.5) -> Outcome:
    """The power of the multiplier with which the ``descent`` or the ``risk`` term of eq. 17 scales."""
    index = {"descent": 0, "risk": 1}[term]
    gradient = np.array([0.6, -0.2])
    scaled, full = (
        _update_terms(m, gradient=gradient, directions=2, noise_std=0.7)[index] for m in (multiplier, 1.0)
    )
    power = round(math.log(scaled / full) / math.log(multiplier), 9)
    return Outcome(power, detail=f"{term} {full:.6g} at 1, {scaled:.6g} at {multiplier:g}")


@check
def oracle_scale(published: Published, *, signal: float, direction_risk: float, noise_risk: float,
                 learning_rate: float, smoothness: float) -> Outcome:  # fmt: skip
    """The numerical minimiser of the bound of eq. 17 over the multiplier is eq. 18."""
    risk = smoothness * learning_rate * (direction_risk * signal + noise_risk)
    formula = signal / risk
    bound = np.poly1d([learning_rate * risk / 2, -learning_rate * signal, 0.0])  # eq. 17 in m
    found = optimize.minimize_scalar(bound).x
    detail = f"numerical minimiser {found:.8g}, eq. 18 {formula:.8g}"
    return Outcome(math.isclose(found, formula, rel_tol=1e-6), detail=detail)


@check
def scaled_error_reduction(published: Published, *, reliability: float, reference: float,
                           min_multiplier: float = 0.5) -> Outcome:  # fmt: skip
    """Expected relative reduction (%) of the error of eq. 20 at a reliability (lambda = 1).

    With m = clip(reliability / reference, min_multiplier, 1), eq. 14, and signal energy
    reliability / (1 - reliability) in units of tau^2, the error of the scaled vector is
    m^2 + (1 - m)^2 times that energy, and that of the unscaled vector is 1.
    """
    m = min(max(reliability / reference, min_multiplier), 1.0)
    energy = reliability / (1 - reliability)
    value = 100 * (1 - m**2 - (1 - m) ** 2 * energy)
    return Outcome(value, detail=f"m = {m:.4f}, signal energy {energy:.4f} tau^2, reduction {value:.2f} %")
