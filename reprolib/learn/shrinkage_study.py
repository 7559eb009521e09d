"""Controllers of the released vector compared at equal budget: error to the clean vector, and utility.

Every function returns one row a seed, the same seeds for every controller, so that contrasts are paired.
A shrunk update has a smaller step, so utility is compared with a learning rate tuned for each controller
on other seeds than those reported (``held_out``); otherwise shrinkage would win or lose as a learning rate.
``Classes`` is a problem of public records, whose runs may be watched.

Source: SAGE, equation 20 and Figure 3 (error); Tables 1 and 2 (utility), on problems small enough to repeat.
"""

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import pandas as pd
import torch
from scipy import optimize
from torch import Tensor, nn

from reprolib.errors import ReproError
from reprolib.learn.directions import Directions
from reprolib.learn.perturbation import Stacked
from reprolib.learn.sage import ShrinkageController
from reprolib.learn.shrinkage import (
    JamesStein,
    LateFloor,
    LinearDecay,
    PrecisionWeighted,
    SmoothedJamesStein,
    energy_bias,
)
from reprolib.learn.shrinkage_trace import Vectors, controlled, fading
from reprolib.learn.trainer import Loop
from reprolib.learn.zeroth_order import AlongDirections, FiniteDifferences
from reprolib.privacy.mechanism import EntropySource, GaussianSum, PoissonSampler
from reprolib.privacy.plan import Plan

Make = Callable[[int, float, int], ShrinkageController | None]  # from K, tau and the number of rounds

CONTROLLERS: dict[str, Make] = {
    "none": lambda k, tau, rounds: None,
    "sage": lambda k, tau, rounds: ShrinkageController(k, tau),
    "late floor": lambda k, tau, rounds: LateFloor(k, tau),
    "precision": lambda k, tau, rounds: PrecisionWeighted(k, tau),
    "james-stein": lambda k, tau, rounds: JamesStein(k, tau),
    "smoothed james-stein": lambda k, tau, rounds: SmoothedJamesStein(k, tau),
    "linear decay": lambda k, tau, rounds: LinearDecay(k, tau, rounds=rounds),
}


def _make(name: str, num_directions: int, noise_std: float, rounds: int) -> ShrinkageController | None:
    if name not in CONTROLLERS:
        raise ReproError(f"controller {name!r}: expected one of {', '.join(CONTROLLERS)}")
    return CONTROLLERS[name](num_directions, noise_std, rounds)


def seen_ratio(num_directions: int, noise_to_signal: float) -> float:
    """Noise over mean tracked energy, which the floor biases, where the true ratio is this one.

    Source: SAGE, equation 9; the bias is our finding.
    """
    return noise_to_signal / (1 + energy_bias(num_directions, noise_to_signal))


def true_ratio(num_directions: int, seen: float) -> float:
    """The true noise-to-signal ratio, from 0.05 to 8,000, behind a tracked one.

    Raises:
        ReproError: a ratio that no true one in the range gives, such as one above the ceiling of this K.
    """
    low, high = (seen_ratio(num_directions, ratio) for ratio in (0.05, 8000.0))
    if not low <= seen <= high:
        raise ReproError(
            f"a tracked ratio of {seen!r} at K = {num_directions}: expected one from {low:.3g} to {high:.3g}"
        )
    return float(optimize.brentq(lambda ratio: seen_ratio(num_directions, ratio) - seen, 0.05, 8000.0))


def vector_errors(*, num_directions: int, noise_to_signal: tuple[float, float], seeds: Iterable[int],
                  rounds: int = 300, warmup: int = 50,
                  controllers: Sequence[str] = tuple(CONTROLLERS)) -> pd.DataFrame:  # fmt: skip
    """Error of the scaled release to the clean vector after the warm-up, for a signal that fades.

    The noise-to-signal ratio goes from the first to the second value, geometrically; tau is 1. ``oracle`` is
    m = q / (q + tau^2) for the true energy q: the best multiplier that does not see the noise.

    Returns:
        Columns controller, num_directions, start, end, seed; ``reduction``, by how many percent the squared
        error falls (equation 20); ``tracking``, the same after the best constant has been given to both
        sides, as a tuned learning rate would: what is gained by following the signal, not by a smaller step;
        ``energy_ratio``, the mean of tracked over true energy, NaN where none is tracked.
    """
    ratios = np.geomspace(*noise_to_signal, rounds)
    rows = []
    for seed in seeds:
        clean, released = fading(noise_to_signal, num_directions=num_directions, rounds=rounds, seed=seed)
        for name in (*controllers, "oracle"):
            multipliers, energies = _scales(name, clean, released, 1 / ratios)
            reduction, tracking = _reductions(clean[warmup:], released[warmup:], multipliers[warmup:])
            rows.append({
                "controller": name, "num_directions": num_directions, "start": noise_to_signal[0],
                "end": noise_to_signal[1], "seed": seed, "reduction": reduction, "tracking": tracking,
                "energy_ratio": float((energies * ratios)[warmup:].mean()),
            })  # fmt: skip
    return pd.DataFrame(rows)


def _reductions(clean: Vectors, released: Vectors, multipliers: Vectors) -> tuple[float, float]:
    """Percent by which the multipliers lower the squared error, without and with a free constant."""

    def errors(x: Vectors) -> Vectors:
        constant = (x * clean).sum() / (x**2).sum()
        return np.array([((scale * x - clean) ** 2).sum() for scale in (1.0, constant)])

    plain, rescaled = 100 * (1 - errors(multipliers[:, None] * released) / errors(released))
    return float(plain), float(rescaled)


def _scales(name: str, clean: Vectors, released: Vectors, energy: Vectors) -> tuple[Vectors, Vectors]:
    """Multipliers and tracked energies along the releases; tau is 1."""
    if name == "oracle":
        return energy / (energy + 1), energy
    controller = _make(name, released.shape[1], 1.0, len(released))
    if controller is None:
        return np.ones(len(released)), np.full(len(released), math.nan)
    trace = controlled(controller, clean, released)
    return trace.multiplier, trace.energy


def quadratic_utility(*, num_directions: int, noise_to_signal: float, learning_rates: Sequence[float],
                      seeds: Iterable[int], dimension: int = 20, rounds: int = 300,
                      controllers: Sequence[str] = tuple(CONTROLLERS)) -> pd.DataFrame:  # fmt: skip
    """Loss left after training on a quadratic with curvatures from 0.1 to 1, without clipping.

    Args:
        noise_to_signal: K tau^2 over the mean |u|^2 at the start.

    Returns:
        Columns controller, num_directions, noise_to_signal, learning_rate, seed; ``loss``, the last loss over
        the first.
    """
    curvatures = np.geomspace(0.1, 1, dimension)
    start = np.ones(dimension)
    noise_std = math.sqrt(noise_to_signal * float((curvatures**2).sum())) / num_directions
    rows = []
    for seed in seeds:
        for name in controllers:
            for rate in learning_rates:
                controller = _make(name, num_directions, noise_std, rounds)
                theta = _descend(controller, curvatures, start, num_directions, noise_std, rate, rounds, seed)
                loss = float((curvatures * theta**2).sum() / (curvatures * start**2).sum())
                rows.append({
                    "controller": name, "num_directions": num_directions, "noise_to_signal": noise_to_signal,
                    "learning_rate": rate, "seed": seed, "loss": loss,
                })  # fmt: skip
    return pd.DataFrame(rows)


def _descend(controller: ShrinkageController | None, curvatures: Vectors,
             theta: Vectors, num_directions: int, noise_std: float, learning_rate: float,
             rounds: int, seed: int) -> Vectors:  # fmt: skip
    """Exact directional derivatives, Gaussian directions, Gaussian noise. Source: SAGE, Algorithm 1."""
    generator = np.random.default_rng(seed)
    for _ in range(rounds):
        z = generator.standard_normal((num_directions, len(theta)))
        released = z @ (curvatures * theta) / num_directions
        released += noise_std * generator.standard_normal(num_directions)
        multiplier = 1.0 if controller is None else controller.update(torch.from_numpy(released))
        theta = theta - learning_rate * multiplier * released @ z
    return theta


def held_out(table: pd.DataFrame, *, value: str = "loss") -> pd.DataFrame:
    """Choose each controller's learning rate on half of the seeds and keep its rows of the other half.

    Args:
        table: of ``quadratic_utility``, at least two seeds.
        value: the column whose mean is made small.

    Returns:
        Rows of the table, one a controller and held-out seed; ``edge`` says that the chosen rate is the
        smallest or largest of the grid, which should then be wider.

    Raises:
        ReproError: a single seed.
    """
    seeds = sorted(table["seed"].unique())
    if len(seeds) < 2:
        raise ReproError("tuning and reporting need different seeds: give at least two")
    tuning = table[table["seed"].isin(seeds[: len(seeds) // 2])]
    means = tuning.groupby(["controller", "learning_rate"], sort=False)[value].mean()
    best = means.groupby(level=0, sort=False).idxmin()
    reported = table[table["seed"].isin(seeds[len(seeds) // 2 :])]
    chosen = pd.Series(dict(best.tolist())).reindex(reported["controller"]).to_numpy()
    kept = reported[reported["learning_rate"] == chosen].reset_index(drop=True)
    ends = (table["learning_rate"].min(), table["learning_rate"].max())
    return kept.assign(edge=kept["learning_rate"].isin(ends))


class Classes:
    """Two Gaussian classes, told apart by a logistic regression that starts at zero; a slot is its number.

    Args:
        size: n, the slots.
        seed: of the examples.
        separation: distance of the classes' means, in standard deviations.

    Attributes:
        evaluations: losses of one record at one point so far.
    """

    def __init__(self, size: int, *, seed: int, separation: float = 6.0, dimension: int = 20):
        generator = torch.Generator().manual_seed(seed)
        axis = nn.functional.normalize(torch.randn(dimension, generator=generator), dim=0)
        self.labels = torch.randint(2, (size,), generator=generator) * 2.0 - 1
        self.inputs = torch.randn(size, dimension, generator=generator)
        self.inputs += self.labels[:, None] * axis * separation / 2
        self.model = nn.Linear(dimension, 1, bias=False)
        nn.init.zeros_(self.model.weight)
        self.evaluations = 0

    def loss(self, rows: Sequence[int]) -> Tensor:
        """Logistic losses in nats, [n]."""
        self.evaluations += len(rows)
        index = torch.as_tensor(rows)
        return nn.functional.softplus(-self.labels[index] * self.model(self.inputs[index])[:, 0])

    def record_map(self, *, num_directions: int, seed: int) -> tuple[FiniteDifferences[int], Directions]:
        """Finite differences along the directions of this seed, and the directions."""
        directions = Directions([self.model.weight], num_directions=num_directions, seed=seed, keep=True)
        perturbed = Stacked(directions, self.model, copies=2 * num_directions)
        return FiniteDifferences(self.loss, perturbed), directions

    def clip_norm(self, *, num_directions: int, quantile: float = 0.9) -> float:
        """A clipping norm from public records: this quantile of the norms of their K-vectors at the start."""
        record_map, _ = self.record_map(num_directions=num_directions, seed=0)
        vectors = torch.cat(list(record_map.vectors(range(len(self.labels)))))
        return float(vectors.norm(dim=1).quantile(quantile))

    def loop(self, plan: Plan, *, num_directions: int, learning_rate: float, seed: int,
             controller: ShrinkageController | None = None) -> Loop[int]:  # fmt: skip
        """DP-AggZO on these classes; the seed gives directions, coins and noise, so there is no guarantee."""
        source = EntropySource.research(seed)
        record_map, directions = self.record_map(num_directions=num_directions, seed=seed)
        return Loop(
            list(self.model.parameters()), record_map, range(len(self.labels)), source,
            sampler=PoissonSampler(plan, source), total=GaussianSum(plan, source, dimension=num_directions),
            update=AlongDirections(directions, learning_rate=learning_rate, controller=controller),
        )  # fmt: skip
