"""Controllers of the released vector compared at equal budget: error to the clean vector, and utility.

Every function returns one row a seed, the same seeds for every controller, so that contrasts are paired.
A shrunk update has a smaller step, so utility is compared with a learning rate tuned for each controller
on other seeds than those reported (``held_out``); otherwise shrinkage would win or lose as a learning rate.

Source: SAGE, equation 20 and Figure 3 (error); Tables 1 and 2 (utility), on problems small enough to repeat.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from reprolib.errors import ReproError
from reprolib.learn.directions import Directions
from reprolib.learn.perturbation import Stacked
from reprolib.learn.sage import ShrinkageController
from reprolib.learn.shrinkage import JamesStein, LateFloor, LinearDecay, PrecisionWeighted, SmoothedJamesStein
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
        generator = np.random.default_rng(seed)
        signal = generator.standard_normal((rounds, num_directions))
        signal *= np.sqrt(num_directions / ratios[:, None]) / np.linalg.norm(signal, axis=1, keepdims=True)
        released = signal + generator.standard_normal(signal.shape)
        for name in (*controllers, "oracle"):
            multipliers, energies = _follow(name, released, 1 / ratios)
            reduction, tracking = _reductions(signal[warmup:], released[warmup:], multipliers[warmup:])
            rows.append({
                "controller": name, "num_directions": num_directions, "start": noise_to_signal[0],
                "end": noise_to_signal[1], "seed": seed, "reduction": reduction, "tracking": tracking,
                "energy_ratio": float((energies * ratios)[warmup:].mean()),
            })  # fmt: skip
    return pd.DataFrame(rows)


def _reductions(signal: NDArray[np.float64], released: NDArray[np.float64],
                multipliers: NDArray[np.float64]) -> tuple[float, float]:  # fmt: skip
    """Percent by which the multipliers lower the squared error, without and with a free constant."""

    def errors(x: NDArray[np.float64]) -> NDArray[np.float64]:
        constant = (x * signal).sum() / (x**2).sum()
        return np.array([((scale * x - signal) ** 2).sum() for scale in (1.0, constant)])

    plain, rescaled = 100 * (1 - errors(multipliers[:, None] * released) / errors(released))
    return float(plain), float(rescaled)


def _follow(
    name: str, released: NDArray[np.float64], energy: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Multipliers and tracked energies along the releases; tau is 1."""
    if name == "oracle":
        return energy / (energy + 1), energy
    controller = _make(name, released.shape[1], 1.0, len(released))
    if controller is None:
        return np.ones(len(released)), np.full(len(released), math.nan)
    found = [(controller.update(row), controller.energy) for row in torch.from_numpy(released)]
    multipliers, energies = np.array(found).T
    return multipliers, energies if controller.energy else np.full(len(released), math.nan)


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


def _descend(controller: ShrinkageController | None, curvatures: NDArray[np.float64],
             theta: NDArray[np.float64], num_directions: int, noise_std: float, learning_rate: float,
             rounds: int, seed: int) -> NDArray[np.float64]:  # fmt: skip
    """Exact directional derivatives, Gaussian directions, Gaussian noise. Source: SAGE, Algorithm 1."""
    generator = np.random.default_rng(seed)
    for _ in range(rounds):
        z = generator.standard_normal((num_directions, len(theta)))
        released = z @ (curvatures * theta) / num_directions
        released += noise_std * generator.standard_normal(num_directions)
        multiplier = 1.0 if controller is None else controller.update(torch.from_numpy(released))
        theta = theta - learning_rate * multiplier * released @ z
    return theta


def logistic_utility(plan: Plan, *, num_directions: int, learning_rates: Sequence[float],
                     seeds: Iterable[int], dimension: int = 20, separation: float = 2.0,
                     controllers: Sequence[str] = tuple(CONTROLLERS)) -> pd.DataFrame:  # fmt: skip
    """Test loss of a logistic regression of two Gaussian classes, trained by the package's own mechanism.

    Args:
        plan: one slot a training example.
        separation: distance of the classes' means, in standard deviations.

    Returns:
        Columns controller, num_directions, learning_rate, seed; ``loss``, the mean test loss in nats over
        2,000 examples; ``accuracy``.
    """
    rows = []
    for seed in seeds:
        problem = _Logistic(plan.population, dimension, separation, seed)
        for name in controllers:
            for rate in learning_rates:
                found = problem.train(name, plan, num_directions, rate)
                rows.append({
                    "controller": name, "num_directions": num_directions, "learning_rate": rate,
                    "seed": seed, **found,
                })  # fmt: skip
    return pd.DataFrame(rows)


class _Logistic:
    """Two Gaussian classes with means at +-separation / 2 along a random direction."""

    def __init__(self, count: int, dimension: int, separation: float, seed: int):
        generator = torch.Generator().manual_seed(seed)
        axis = nn.functional.normalize(torch.randn(dimension, generator=generator), dim=0)
        self.labels = torch.randint(2, (count + 2000,), generator=generator) * 2.0 - 1
        noise = torch.randn(len(self.labels), dimension, generator=generator)
        self.inputs = noise + self.labels[:, None] * axis * separation / 2
        self.count, self.seed = count, seed

    def train(self, name: str, plan: Plan, num_directions: int, learning_rate: float) -> dict[str, Any]:
        """Train from zero and score on the examples that were not slots."""
        model = nn.Linear(self.inputs.shape[1], 1, bias=False)
        nn.init.zeros_(model.weight)
        entropy = EntropySource.research(self.seed)
        sampler, total = PoissonSampler(plan, entropy), GaussianSum(plan, entropy, dimension=num_directions)
        directions = Directions([model.weight], num_directions=num_directions, seed=self.seed, keep=True)
        record_map: FiniteDifferences[int] = FiniteDifferences(
            lambda rows: self._losses(model, rows), Stacked(directions, model, copies=2 * num_directions)
        )
        controller = _make(name, num_directions, plan.noise_std, plan.rounds)
        update = AlongDirections(directions, learning_rate=learning_rate, controller=controller)
        for _ in range(plan.rounds):
            for block in record_map.vectors(sampler.draw().tolist()):
                total.add(block)
            update.apply(total.release())
        held_out = range(self.count, len(self.labels))
        with torch.no_grad():
            losses = self._losses(model, held_out)
        return {"loss": float(losses.mean()), "accuracy": float((losses < math.log(2)).float().mean())}

    def _losses(self, model: nn.Linear, rows: Sequence[int]) -> Tensor:
        index = torch.tensor(rows)
        margins = self.labels[index] * model(self.inputs[index])[:, 0]
        return nn.functional.softplus(-margins)


def held_out(table: pd.DataFrame, *, value: str = "loss") -> pd.DataFrame:
    """Choose each controller's learning rate on half of the seeds and keep its rows of the other half.

    Args:
        table: of ``quadratic_utility`` or ``logistic_utility``, at least two seeds.
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
