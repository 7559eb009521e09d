"""Checks that only the PrivDPO paper needs.

The statements of Sections 3 and 4 and of Appendices B and C, evaluated in closed form. An output
distribution is a list of pieces ``(low, high, probability)``: an atom where ``low == high``, else
uniform on the interval. All four randomisers speak of the scalar that multiplies the preference axis:
``psi`` for a triplet, and minus the output at ``1 - psi`` for its preference neighbour.
"""

import math
from collections.abc import Callable, Iterator
from itertools import pairwise, product
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from reprolib.evidence.checks import Outcome, check
from reprolib.evidence.checks.common import beats
from reprolib.evidence.published import Published

Pieces = list[tuple[float, float, float]]
Array = NDArray[np.float64]

EPSILONS = (0.1, 0.5, 1.0, 2.0, 4.0)
INTENSITIES = tuple(k / 200 for k in range(1, 200))
DIGITS = 1e-9  # two numbers that differ by less are equal up to floating-point error
METRICS = {"rm": False, "ra": False, "loss": True}  # the value says whether lower is better


# --- the four randomisers -------------------------------------------------------------------------


def privdpo_pieces(epsilon: float, psi: float) -> Pieces:
    """M_unbias. Source: Section 4.3."""
    offset, keep = 1 / math.expm1(epsilon), 1 / (1 + math.exp(-epsilon))
    up, down = psi + offset, psi - 1 - offset
    return [(up, up, keep), (down, down, 1 - keep)]


def rr_pieces(epsilon: float, psi: float) -> Pieces:
    """Randomised response: a kept preference gives psi, a flipped one psi - 1. Source: Section 4.4."""
    keep = 1 / (1 + math.exp(-epsilon))
    return [(psi, psi, keep), (psi - 1, psi - 1, 1 - keep)]


def duchi_pieces(epsilon: float, psi: float) -> Pieces:
    """Duchi's mechanism. Source: Appendix C."""
    size = 1 / math.tanh(epsilon / 2)
    up = psi / (2 * size) + 0.5
    return [(size, size, up), (-size, -size, 1 - up)]


def piecewise_pieces(epsilon: float, psi: float) -> Pieces:
    """The Piecewise mechanism. Source: Appendix C."""
    edge = 1 / math.tanh(epsilon / 4)
    low = (edge + 1) / 2 * psi - (edge - 1) / 2
    high = low + edge - 1
    inside = 1 / (1 + math.exp(-epsilon / 2))
    density = (1 - inside) / (edge + 1)
    return [(-edge, low, (low + edge) * density), (low, high, inside), (high, edge, (edge - high) * density)]


RANDOMISERS: dict[str, Callable[[float, float], Pieces]] = {
    "privdpo": privdpo_pieces, "rr": rr_pieces, "duchi": duchi_pieces, "piecewise": piecewise_pieces,
}  # fmt: skip


def moments(pieces: Pieces) -> tuple[float, float]:
    """Mean and variance of an output distribution."""
    mean = sum(p * (a + b) / 2 for a, b, p in pieces)
    second = sum(p * (a * a + a * b + b * b) / 3 for a, b, p in pieces)
    return mean, second - mean * mean


def log_ratio(ours: Pieces, theirs: Pieces) -> float:
    """Largest absolute log-ratio of two output distributions; infinite if their supports differ."""
    worst = 0.0
    cuts = sorted({round(x, 12) for a, b, _ in ours + theirs for x in (a, b)})
    places = [(x, x) for x in cuts] + list(pairwise(cuts))
    for low, high in places:
        here, there = (_mass(pieces, low, high) for pieces in (ours, theirs))
        if here or there:
            worst = max(worst, abs(math.log(here / there)) if here and there else math.inf)
    return worst


def _mass(pieces: Pieces, low: float, high: float) -> float:
    """Probability of an atom (``low == high``), else the density on an interval between two cuts."""
    if low == high:
        return sum(p for a, b, p in pieces if a == b and abs(a - low) < DIGITS)
    middle = (low + high) / 2
    return sum(p / (b - a) for a, b, p in pieces if a < middle < b)


def _neighbour(mechanism: str, epsilon: float, psi: float) -> Pieces:
    return [(-b, -a, p) for a, b, p in RANDOMISERS[mechanism](epsilon, 1 - psi)]


def _all_close(pairs: Iterator[tuple[float, float]], what: str) -> Outcome:
    worst = max(abs(a - b) for a, b in pairs)
    grid = f"{len(EPSILONS)} budgets x {len(INTENSITIES)} intensities"
    return Outcome(worst < DIGITS, detail=f"largest deviation {worst:.1e} of {what}, over {grid}")


def _grid() -> Iterator[tuple[float, float]]:
    return product(EPSILONS, INTENSITIES)


@check
def randomiser_bias(published: Published, *, mechanism: str, flip_probability: bool = False) -> Outcome:
    """The mean output is psi, or psi - 1/(e^eps + 1) (``flip_probability``), whatever psi is.

    Source: Sections 4.3 and 4.4, Appendix C.
    """
    randomiser, shift = RANDOMISERS[mechanism], int(flip_probability)
    pairs = ((moments(randomiser(e, psi))[0] - psi, -shift / (math.exp(e) + 1)) for e, psi in _grid())
    return _all_close(pairs, "the bias from " + ("-1/(e^eps + 1)" if flip_probability else "0"))


@check
def randomiser_privacy(published: Published, *, mechanism: str, tight: bool = False) -> Outcome:
    """The output of a triplet and of its preference neighbour differ by at most e^eps (``tight``: exactly).

    Source: Definition 3.2, Theorem 4.1 and Appendix B.1; for the variants, Appendix C.
    """
    randomiser = RANDOMISERS[mechanism]
    worst = {
        e: max(log_ratio(randomiser(e, psi), _neighbour(mechanism, e, psi)) for psi in INTENSITIES)
        for e in EPSILONS
    }
    holds = all(w <= e + DIGITS and (not tight or w >= e - DIGITS) for e, w in worst.items())
    shown = ", ".join(f"{w:.4f} at eps {e:g}" for e, w in worst.items())
    return Outcome(holds, detail=f"largest log-likelihood ratio: {shown}")


@check
def keep_probabilities(published: Published) -> Outcome:
    """Both outputs have probability e^eps/(e^eps + 1) under one neighbour and 1/(e^eps + 1) under the other.

    Source: Equations 8 to 11.
    """

    def pairs() -> Iterator[tuple[float, float]]:
        for e, psi in _grid():
            ours, theirs = privdpo_pieces(e, psi), _neighbour("privdpo", e, psi)
            for value, _, p in ours:
                yield p + _mass(theirs, value, value), 1.0
            yield ours[0][2], math.exp(e) / (math.exp(e) + 1)

    return _all_close(pairs(), "the four probabilities")


@check
def randomiser_variance(published: Published) -> Outcome:
    """PrivDPO's scalar has variance e^eps/(e^eps - 1)^2. Source: Appendix B.2, before Equation 15."""
    pairs = ((moments(privdpo_pieces(e, s))[1], math.exp(e) / math.expm1(e) ** 2) for e, s in _grid())
    return _all_close(pairs, "the variance from e^eps/(e^eps - 1)^2")


@check
def noisier_than_privdpo(published: Published, *, mechanism: str) -> Outcome:
    """The mechanism has more variance than PrivDPO at every psi and eps. Source: Section 5.5, Appendix C."""
    ratios = {
        e: [moments(RANDOMISERS[mechanism](e, s))[1] / moments(privdpo_pieces(e, s))[1] for s in INTENSITIES]
        for e in EPSILONS
    }
    shown = ", ".join(f"{min(r):.2f} to {max(r):.2f} at eps {e:g}" for e, r in ratios.items())
    return Outcome(min(map(min, ratios.values())) > 1, detail=f"variance over PrivDPO's: {shown}")


# --- the random weight ----------------------------------------------------------------------------


def weights(epsilon: float, psi: float) -> list[tuple[float, float]]:
    """The two weights of line 6 of Algorithm 1, as printed, with their probabilities."""
    grown = math.exp(epsilon)
    up = 1 + (1 - (grown - 2) / (grown - 1)) / psi
    down = 1 - (1 + 1 / (grown - 1)) / psi
    return [(up, grown / (grown + 1)), (down, 1 / (grown + 1))]


@check
def weight_mean(published: Published) -> Outcome:
    """The random weight has mean 1 given psi. Source: Lemma 4.1."""
    return _all_close(((sum(w * p for w, p in weights(e, s)), 1.0) for e, s in _grid()), "E[w] from 1")


@check
def weight_variance(published: Published) -> Outcome:
    """The random weight has variance e^eps/((e^eps - 1)^2 psi^2). Source: Appendix B.2."""

    def pairs() -> Iterator[tuple[float, float]]:
        for e, psi in _grid():
            variance = sum((w - 1) ** 2 * p for w, p in weights(e, psi))
            yield variance * psi**2, math.exp(e) / math.expm1(e) ** 2

    return _all_close(pairs(), "psi^2 Var(w) from e^eps/(e^eps - 1)^2")


@check
def weight_is_intensity(published: Published) -> Outcome:
    """The random weight times psi is M_unbias(psi): the same values, the same probabilities.

    Source: Section 4.3, rescaling of the objective.
    """

    def pairs() -> Iterator[tuple[float, float]]:
        for e, psi in _grid():
            for (w, p), (value, _, q) in zip(weights(e, psi), privdpo_pieces(e, psi), strict=True):
                yield psi * w, value
                yield p, q

    return _all_close(pairs(), "psi w from M_unbias(psi)")


@check
def output_order(published: Published) -> Outcome:
    """M_unbias answers above psi with probability over 1/2, else below psi - 1, and never psi itself.

    Source: Section 4.3.
    """
    holds = True
    for e, psi in _grid():
        (up, _, p), (down, _, q) = privdpo_pieces(e, psi)
        holds = holds and up > psi and down < psi - 1 and p > 0.5 > q
    shown = ", ".join(f"{1 / math.expm1(e):.3f} at eps {e:g}" for e in EPSILONS)
    return Outcome(holds, detail=f"offset from psi and from psi - 1: {shown}")


# --- concentration --------------------------------------------------------------------------------


@check
def deviation_bound(published: Published) -> Outcome:
    """The size of ``psi w - psi`` is at most 1 + 1/(e^eps - 1), and reaches it (Appendix B.2, eq. 16)."""
    pairs = ((max(abs(v - s) for v, _, _ in privdpo_pieces(e, s)), 1 + 1 / math.expm1(e)) for e, s in _grid())
    return _all_close(pairs, "max |psi w - psi| from 1 + 1/(e^eps - 1)")


def bernstein_width(variance: float, bound: float, gamma: float) -> float:
    """The deviation of Lemma B.1, sqrt(2 V log(2/gamma)) + M/3 log(2/gamma)."""
    tail = math.log(2 / gamma)
    return math.sqrt(2 * variance * tail) + bound / 3 * tail


@check
def bernstein_step(published: Published) -> Outcome:
    """The width of Lemma B.1 satisfies the inequality that its proof says it satisfies.

    Source: Appendix B.2, below Equation 12: t^2/2 / (V + M t/3) must be at least log(2/gamma).
    """
    ratios = []
    for variance, bound, gamma in product((0.0, 0.1, 1.0, 10.0), (0.1, 1.0, 10.0), (0.5, 0.05, 1e-3)):
        t = bernstein_width(variance, bound, gamma)
        ratios.append(t * t / 2 / (variance + bound * t / 3) / math.log(2 / gamma))
    detail = f"left side over right side: {min(ratios):.3f} to {max(ratios):.3f}; at least 1 is needed"
    return Outcome(min(ratios) >= 1, detail=f"{detail} (2M/3 in place of M/3 would do)")


def exceedance(m: int, flip: float, gamma: float) -> float:
    """Exact probability that a centred binomial sum of m terms exceeds the width of Lemma B.1.

    PrivDPO's deviation is the same variable, scaled: ``flip`` = 1/(e^eps + 1).
    """
    width = bernstein_width(m * flip * (1 - flip), max(flip, 1 - flip), gamma)
    binomial, mean = stats.binom(m, flip), m * flip
    upper = binomial.sf(math.floor(mean + width + DIGITS))
    lower = binomial.cdf(math.ceil(mean - width - DIGITS) - 1)
    return float(upper + lower)


def _tail(flips: list[float], what: str) -> Outcome:
    grid = product((1, 2, 5, 16, 64, 512), flips, (0.5, 0.1, 0.01, 1e-4))
    worst = max(exceedance(m, q, gamma) / gamma for m, q, gamma in grid)
    return Outcome(worst <= 1, detail=f"{what}: exact tail probability at most {worst:.3f} gamma")


@check
def bernstein_lemma(published: Published) -> Outcome:
    """The tail bound of Lemma B.1 itself, on centred binomial sums. Source: Lemma B.1."""
    return _tail([0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.95, 0.999], "centred binomial sums")


@check
def theorem_4_2(published: Published) -> Outcome:
    """The bound of Theorem 4.2 holds for the exact tail of PrivDPO, where all u.v_i are equal."""
    return _tail([1 / (math.exp(e) + 1) for e in EPSILONS], "PrivDPO, equal projections")


@check
def theorem_4_2_forms(published: Published) -> Outcome:
    """The last term of Theorem 4.2 in the statement and in the proof.

    Statement: beta/m times e^eps/(e^eps - 1) x/3. Proof: beta (1 + 1/(e^eps - 1)) x/(3 m). x cancels.
    """
    beta, m = 0.1, 64
    ratios = [
        (beta / m * math.exp(e) / math.expm1(e) / 3) / (beta * (1 + 1 / math.expm1(e)) / (3 * m))
        for e in EPSILONS
    ]
    worst = max(abs(r - 1) for r in ratios)
    unscaled = f"without beta/m before it, it would be {m / beta:g} times as large at beta {beta}, m {m}"
    return Outcome(worst < DIGITS, detail=f"largest relative difference {worst:.1e}; {unscaled}")


@check
def deviation_order(published: Published, *, largest_epsilon: float, factor: float) -> Outcome:
    """Theorem 4.2 is at most ``factor`` log(2/gamma) times beta G/((e^eps - 1) sqrt(m)) for m of 64 or more.

    Source: Section 4.4, below Theorem 4.2.
    """

    def ratio(e: float, m: int, gamma: float) -> float:
        variance = m * math.exp(e) / math.expm1(e) ** 2
        width = bernstein_width(variance, 1 + 1 / math.expm1(e), gamma) / m
        return width * math.expm1(e) * math.sqrt(m) / math.log(2 / gamma)

    def largest(epsilons: list[float]) -> float:
        return max(ratio(e, m, g) for e, m, g in product(epsilons, (64, 1024), (0.5, 0.05, 1e-3)))

    worst = largest([e for e in EPSILONS if e <= largest_epsilon])
    beyond = ", ".join(f"{largest([e]):.1f} at eps {e:g}" for e in (4.0, 8.0, 16.0))
    return Outcome(worst <= factor, detail=f"at most {worst:.2f} up to eps {largest_epsilon:g}; {beyond}")


@check
def norm_bound(published: Published, *, factor: float) -> Outcome:
    """Equation 6 bounds the norm of the deviation, up to ``factor``, also where the axes are orthonormal.

    The deviation is (beta/m) sum x_t v_t with independent centred x_t of one variance, so its mean square
    has the trace of sum v_t v_t^T where the square of Equation 6 has the largest eigenvalue.
    """
    sizes = (1, 16, 64, 1024)
    spectra = [np.linalg.eigvalsh(np.eye(m)) for m in sizes]
    ratios = [math.sqrt(spectrum.sum() / spectrum[-1]) for spectrum in spectra]
    shown = ", ".join(f"{ratio:.1f} at m = {m}" for m, ratio in zip(sizes, ratios, strict=True))
    return Outcome(max(ratios) <= factor, detail=f"deviation over Equation 6, orthonormal axes: {shown}")


@check
def mean_axis_norm(published: Published) -> Outcome:
    """The norm of mean v is at most the square root of the largest eigenvalue of the mean of v v^T.

    Source: Section 4.4, the bias term of RR. Random axes of three shapes; equality for equal axes.
    """
    generator = np.random.default_rng(0)
    ratios = []
    for rows, columns in ((1, 5), (8, 3), (64, 20)):
        for shift in (0.0, 1.0, 10.0):
            axes = generator.standard_normal((rows, columns)) + shift
            top = np.linalg.eigvalsh(axes.T @ axes / rows)[-1]
            ratios.append(float(np.linalg.norm(axes.mean(axis=0)) / math.sqrt(top)))
    return Outcome(max(ratios) <= 1 + DIGITS, detail=f"ratio {min(ratios):.3f} to {max(ratios):.3f}")


# --- properties of preference privacy ---------------------------------------------------------------


def bit_mechanisms(epsilon: float, count: int, seed: int, outputs: int = 4) -> list[Array]:
    """Mechanisms on one bit, as rows P(output given bit), each ``epsilon``-private; the first is RR itself.

    A private mechanism on one bit is randomised response followed by a random map of its answer.
    """
    generator = np.random.default_rng(seed)
    keep = 1 / (1 + math.exp(-epsilon))
    answer = np.array([[keep, 1 - keep], [1 - keep, keep]])
    exact = np.eye(2, outputs)
    maps = [exact] + [generator.dirichlet(np.full(outputs, 0.3), size=2) for _ in range(count - 1)]
    return [answer @ m for m in maps]


def worst_log_ratio(mechanism: Array) -> float:
    """Largest absolute log-ratio of the two rows, over outputs that have a probability above 0."""
    seen = mechanism[:, (mechanism > 0).any(axis=0)]
    return float(np.abs(np.log(seen[0] / seen[1])).max())


def _within(values: list[float], bound: float, what: str) -> Outcome:
    worst = max(values)
    return Outcome(worst <= bound + DIGITS, detail=f"{what}: largest {worst:.6f}, bound {bound:g}")


@check
def convexity(published: Published, *, epsilon: float) -> Outcome:
    """A random choice between two private mechanisms is as private. Source: Proposition 3.1."""
    pairs = zip(bit_mechanisms(epsilon, 100, 1), bit_mechanisms(epsilon, 100, 2), strict=True)
    mixed = [worst_log_ratio(q * a + (1 - q) * b) for a, b in pairs for q in (0.1, 0.5, 0.9)]
    return _within(mixed, epsilon, "log-ratio of 300 mixtures")


@check
def transformation(published: Published, *, epsilon: float) -> Outcome:
    """A randomised map of the output leaves the guarantee as it is. Source: Proposition 3.2."""
    generator = np.random.default_rng(3)
    mapped = [
        worst_log_ratio(m @ generator.dirichlet(np.full(3, 0.3), size=4))
        for m in bit_mechanisms(epsilon, 300, 1)
    ]
    return _within(mapped, epsilon, "log-ratio of 300 processed mechanisms")


@check
def composition(published: Published, *, first: float, second: float) -> Outcome:
    """An adaptive pair is private with the sum of the two budgets, and needs it. Source: Proposition 3.3."""
    seconds = bit_mechanisms(second, 400, 2)
    joint = [
        worst_log_ratio(np.concatenate([a[:, [r]] * seconds[(4 * i + r) % 400] for r in range(4)], axis=1))
        for i, a in enumerate(bit_mechanisms(first, 100, 1))
    ]
    twice = [a[:, [r]] * seconds[0] for a in bit_mechanisms(first, 1, 1) for r in range(4)]
    reached = worst_log_ratio(np.concatenate(twice, axis=1))
    found = _within([*joint, reached], first + second, "log-ratio of 100 adaptive pairs")
    return Outcome(bool(found.value) and reached > first + second - DIGITS, detail=found.detail)


@check
def posterior(published: Published, *, epsilon: float) -> Outcome:
    """Posterior odds and the posterior move by a factor of at most e^eps. Source: Proposition 3.4."""
    moves = []
    for mechanism in bit_mechanisms(epsilon, 200, 1):
        seen = mechanism[:, (mechanism > 0).any(axis=0)]
        for prior in (0.01, 0.3, 0.5, 0.9):
            after = prior * seen[1] / (prior * seen[1] + (1 - prior) * seen[0])
            odds = np.log(after / (1 - after)) - math.log(prior / (1 - prior))
            moves += [float(np.abs(odds).max()), float(np.abs(np.log(after / prior)).max())]
    return _within(moves, epsilon, "log-change of odds and of belief")


@check
def one_pass(published: Published, *, epsilon: float, passes: int = 1) -> Outcome:
    """The transcript of ``passes`` adaptive passes over 3 bits is private with passes times epsilon.

    Each release is an epsilon-private mechanism of one bit, chosen by the whole transcript before it.
    Source: Definition 3.3 and the text below it; Section 4.4, remark on several epochs.
    """
    bits, outputs = 3, 2
    kernels = bit_mechanisms(epsilon, 50, 1, outputs)

    def probability(data: tuple[int, ...], transcript: tuple[int, ...]) -> float:
        result = 1.0
        for step, output in enumerate(transcript):
            index = sum((output_ + 1) * 3**k for k, output_ in enumerate(transcript[:step])) % 50
            result *= kernels[index][data[step % bits], output]
        return result

    worst = 0.0
    for data in product((0, 1), repeat=bits):
        for k, transcript in product(range(bits), product(range(outputs), repeat=bits * passes)):
            other = tuple(1 - b if i == k else b for i, b in enumerate(data))
            ratio = probability(data, transcript) / probability(other, transcript)
            worst = max(worst, abs(math.log(ratio)))
    return _within([worst], passes * epsilon, f"log-ratio of {outputs ** (bits * passes)} transcripts")


# --- tables -----------------------------------------------------------------------------------------


@check
def outperforms(published: Published, *, winner: str, losers: list[str]) -> Outcome:
    """Strictly better than every loser in reward margin, reward accuracy and loss, cell by cell.

    In ``winner`` and ``losers``, ``{metric}`` stands for the last part of the cell id.
    """
    found = {
        metric: beats(
            published, winner=winner.format(metric=metric),
            losers=[pattern.format(metric=metric) for pattern in losers], lower_is_better=lower,
        )
        for metric, lower in METRICS.items()
    }  # fmt: skip
    detail = "; ".join(f"{metric}: {outcome.detail}" for metric, outcome in found.items())
    return Outcome(all(outcome.value for outcome in found.values()), detail=detail)


def _pairs(published: Published, winner: str, losers: list[str]) -> list[tuple[float, float]]:
    ours = published.match(winner)
    return [
        (float(published.number(a)), float(published.number(b)))
        for pattern in losers
        for a, b in zip(ours, published.match(pattern), strict=True)
    ]


@check
def typical_ratio(published: Published, *, winner: str, losers: list[str], low: float,
                  high: float) -> Outcome:  # fmt: skip
    """More than half of the ratios winner over loser lie between ``low`` and ``high``, ends included."""
    by_loser = {pattern: [a / b for a, b in _pairs(published, winner, [pattern])] for pattern in losers}
    ratios = [r for found in by_loser.values() for r in found]

    def shown(found: list[float]) -> str:
        inside, above = sum(low <= r <= high for r in found), sum(r > high for r in found)
        counts = f"{inside} of {len(found)} in [{low:g}, {high:g}], {above} above"
        return f"{counts}, smallest {min(found):.2f}, median {np.median(found):.2f}, largest {max(found):.2f}"

    parts = [f"all: {shown(ratios)}"] + [f"{pattern}: {shown(found)}" for pattern, found in by_loser.items()]
    inside = sum(low <= r <= high for r in ratios)
    return Outcome(inside > len(ratios) / 2, detail="; ".join(parts))


@check
def most_at_least(published: Published, *, cells: list[str], threshold: float,
                  nearly: float = 0.0) -> Outcome:  # fmt: skip
    """More than half of the cells are at least ``threshold``, or short of it by at most ``nearly``."""
    numbers = [float(published.number(c)) for pattern in cells for c in published.match(pattern)]
    strict = sum(x >= threshold for x in numbers)
    loose = sum(x >= threshold - nearly - DIGITS for x in numbers)
    detail = f"{strict} of {len(numbers)} cells are at least {threshold:g}"
    if nearly:
        detail += f", {loose} at least {threshold - nearly:g}"
    return Outcome(loose > len(numbers) / 2, detail=f"{detail}; smallest {min(numbers):g}")


@check
def clear_of_seed_spread(published: Published, *, winner: str, losers: list[str], spread: Any,
                         lower_is_better: bool = False) -> Outcome:  # fmt: skip
    """Every gain exceeds one seed-to-seed standard deviation, ``spread`` per cent of the winner's value.

    One deviation of a single run is a lenient reading of "significantly". Source: Section 5.3.
    """
    sign = -1 if lower_is_better else 1
    gains = [(sign * (a - b), float(spread) / 100 * a) for a, b in _pairs(published, winner, losers)]
    inside = sum(gain <= deviation for gain, deviation in gains)
    smallest = min(gain / deviation for gain, deviation in gains)
    detail = f"{inside} of {len(gains)} gains are within one standard deviation"
    return Outcome(inside == 0, detail=f"{detail}; smallest gain is {smallest:.2f} of them")
