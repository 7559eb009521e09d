"""The rules of Algorithm 1 that the proof relies on, each tried on the toy trainer.

    release_difference()            # released update against the sum, noise and divisor of the plan
    non_finite_record().others      # what a record that is not finite does to the others: 0

Source: DP-GRPO, Algorithm 1, Appendix A-A (release and clip) and A-G (status of A1 to A3).
"""

import math
import random
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor

from reprolib.learn import toy
from reprolib.learn.records import RecordMap
from reprolib.learn.trainer import Trainer
from reprolib.lm import adapters, models
from reprolib.lm.generate import Sampling, TransformersEngine
from reprolib.privacy.mechanism import EntropySource, GaussianSum, clip
from reprolib.privacy.plan import Plan
from reprolib.tasks.datasets import Problem


def weights(run: Trainer[Problem]) -> Tensor:
    """The adapter as one vector, a copy."""
    return torch.cat([p.detach().flatten() for p in models.adapter_parameters(run.policy.model).values()])


@dataclass(frozen=True)
class Clipping:
    """Largest relative error against the formula, largest norm over C, and whether shorter rows are kept."""

    error: float
    largest: float
    untouched: bool


def clipping(rows: Tensor, *, clip_norm: float) -> Clipping:
    """Row by row against g min(1, C / ||g||). Source: DP-GRPO, equation 4."""
    norms = rows.double().norm(dim=1, keepdim=True)
    expected = rows.double() * (clip_norm / norms).clamp(max=1)
    found = clip(rows, clip_norm)
    short = norms[:, 0] < clip_norm
    return Clipping(
        error=float(((found - expected).norm(dim=1) / expected.norm(dim=1)).max()),
        largest=float(found.norm(dim=1).max()) / clip_norm,
        untouched=torch.equal(found[short], rows[short].double()),
    )


def largest_contribution(arm: str, *, clip_norm: float = 0.055) -> float:
    """Largest norm over C that a record of the arm adds to the sum, over all records of a round."""
    run, recorder = toy.trainer(arm, entropy=EntropySource.research(1), clip_norm=clip_norm)
    run.step()
    return float(clip(recorder.rows, clip_norm).norm(dim=1).max()) / clip_norm


def release_difference(arm: str = "full", *, seed: int = 4) -> float:
    """Relative difference between a released update and (sum of clipped rows + noise) / (q n), redone.

    Sampled at q = 1/2; coins and noise are drawn again from a source of the same seed. Source: Appendix A-A.
    """
    run, recorder = toy.trainer(
        arm, entropy=EntropySource.research(seed), expected_batch_size=3, noise_multiplier=0.5
    )
    update, again = run.step(), EntropySource.research(seed)
    if len(recorder.rows) != int((again.coins(6) < 0.5).sum()):
        return math.inf
    rows = recorder.rows.double()
    clipped = rows * (run.plan.clip_norm / rows.norm(dim=1, keepdim=True).clamp(min=1e-300)).clamp(max=1)
    noise = 0.5 * run.plan.clip_norm * torch.from_numpy(again.normal(run.record_map.dimension))
    return float((update - (clipped.sum(0) + noise) / 3).norm() / update.norm())


def divisors() -> list[float]:
    """Sum of the clipped rows over the released update, for 6, 3 and 1 records present: the public q n."""
    found = []
    for present in (6, 3, 1):
        slots = [p if i < present else None for i, p in enumerate(toy.problems())]
        run, recorder = toy.trainer("gold", entropy=EntropySource.research(1), train=slots)
        update = run.step()
        found.append(float(clip(recorder.rows, run.plan.clip_norm).sum(0).norm() / update.norm()))
    return found


def rows_kept(arm: str) -> tuple[int, int]:
    """Records drawn, and rows added, in a round where every group's rewards are equal."""
    train = [replace(p, reference="", solution="1") for p in toy.problems()]
    run, recorder = toy.trainer(arm, entropy=EntropySource.research(1), train=train)
    run.step()
    return len(train), len(recorder.rows)


@dataclass(frozen=True)
class Round:
    """A round that goes wrong: how far the weights moved, whether it counts, what it did to the others."""

    moved: float
    counted: bool
    others: float = 0.0


def empty_round() -> Round:
    """No record is present: noise is released and the step is taken all the same."""
    run, _ = toy.trainer(entropy=EntropySource.private(), train=[None] * 6, noise_multiplier=0.5)
    before = weights(run)
    run.step()
    return Round(float((weights(run) - before).norm()), run.rounds_done == 1)


class _Broken:
    """A record map whose first row of a block has one entry that is not a number."""

    def __init__(self, inner: RecordMap[Problem]):
        self.inner, self.dimension = inner, inner.dimension
        self.intact: list[Tensor] = []

    def vectors(self, records: Sequence[Problem], entropy: EntropySource) -> Iterator[Tensor]:
        for rows in self.inner.vectors(records, entropy):
            broken = rows.clone()
            broken[0, 0] = math.nan
            self.intact.append(rows[1:])
            yield broken


def non_finite_record() -> Round:
    """A row that is not finite counts as zero; ``others`` is the relative error of the remaining sum."""
    run, recorder = toy.trainer("gold", entropy=EntropySource.research(1))
    broken = _Broken(recorder)
    run.record_map, before = broken, weights(run)
    update = run.step()
    expected = clip(torch.cat(broken.intact), run.plan.clip_norm).sum(0) / run.plan.expected_batch_size
    error = float((update - expected).norm() / expected.norm())
    return Round(float((weights(run) - before).norm()), run.rounds_done == 1, error)


def non_finite_update() -> Round:
    """A released update that is not finite: the weights stay and the round is spent."""
    run, _ = toy.trainer("gold", entropy=EntropySource.research(1), noise_multiplier=0.5)
    before, released = weights(run), run.sum.release

    def spoiled() -> Tensor:
        update = released()
        update[0] = math.nan
        return update

    run.sum.release = spoiled  # type: ignore[method-assign]
    run.step()
    return Round(float((weights(run) - before).norm()), run.rounds_done == 1)


@dataclass(frozen=True)
class NoiseLaw:
    """Measured over planned standard deviation, and the fourth moment over its square (3 for a Gaussian)."""

    deviation: float
    fourth: float


def noise_law(plan: Plan, entropy: EntropySource, *, dimension: int = 200_000) -> NoiseLaw:
    """Noise of a round without records."""
    z = GaussianSum(plan, entropy, dimension=dimension).release() / plan.noise_std
    return NoiseLaw(float(z.std()), float((z**4).mean()))


@dataclass(frozen=True)
class Hidden:
    """What somebody who knows every public seed learns of the coins, rollouts and noise.

    Args:
        private_repeats: a private source drew the same twice after the same public seeds were set.
        reads_public: a research source drew otherwise after other public seeds were set.
        moves_public: drawing moved a public generator.
        correlation: largest correlation, in size, between the three streams of one research source.
        saved: generator states of a private source that a checkpoint would hold.
    """

    private_repeats: bool
    reads_public: bool
    moves_public: bool
    correlation: float
    saved: int


def hidden_randomness(*, draws: int = 20_000) -> Hidden:
    """Public seeds (torch, NumPy, Python, the adapter's) against coins, rollouts and noise. Source: A3."""

    def drawn(source: EntropySource, public: int) -> NDArray[np.float64]:
        torch.manual_seed(public)
        np.random.seed(public)
        random.seed(public)
        return np.stack([source.coins(draws), source.rollouts(draws), source.normal(draws)])

    with torch.random.fork_rng():
        private = [drawn(EntropySource.private(), 0) for _ in range(2)]
        research = [drawn(EntropySource.research(7), public) for public in (0, 1)]
        after = (torch.rand(1).item(), np.random.random(), random.random())
        drawn(EntropySource.research(7), 1)
        again = (torch.rand(1).item(), np.random.random(), random.random())
    correlation = np.corrcoef(research[0]) - np.eye(3)
    return Hidden(
        private_repeats=bool((private[0] == private[1]).all(axis=1).any()),
        reads_public=not np.array_equal(research[0], research[1]),
        moves_public=after != again or after != _public(1),
        correlation=float(np.abs(correlation).max()), saved=len(EntropySource.private().state()),
    )  # fmt: skip


def _public(seed: int) -> tuple[float, float, float]:
    """The first draw of each public generator after its seed."""
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.rand(1, generator=generator).item(), np.random.RandomState(seed).random_sample(),
        random.Random(seed).random(),
    )  # fmt: skip


def rollouts_apart(*, prompts: int = 6, completions: int = 32) -> tuple[int, int]:
    """Completions that differ when their prompt is asked alone, and the number compared.

    Each completion has its own hidden draws, the same both times. Source: Appendix B, Poisson frequency
    (the rollout-generation regression) and Appendix A-G, (A2).
    """
    policy = toy.with_adapter()
    engine, problems = TransformersEngine(policy), toy.problems(prompts)
    engine.update(policy)
    sampling = Sampling(completions=completions, max_new_tokens=5, temperature=0.7)
    asked = [models.encode(policy, toy.task().messages(p)) * (1 + i % 2) for i, p in enumerate(problems)]
    draws = EntropySource.private().rollouts(prompts * completions * 5).reshape(prompts, -1)
    together = engine.generate(asked, sampling, lambda n: draws.ravel())
    alone = [
        engine.generate([ids], sampling, lambda n, own=own: own)[0]  # type: ignore[misc]
        for ids, own in zip(asked, draws, strict=True)
    ]
    pairs = [pair for a, b in zip(together, alone, strict=True) for pair in zip(a, b, strict=True)]
    return sum(a != b for a, b in pairs), len(pairs)


def released_files() -> dict[str, int]:
    """Files of a released adapter, each with the number of trained coordinates in it.

    A private run's release is this directory and nothing else: no optimizer, no generator state.
    """
    policy = toy.with_adapter()
    with tempfile.TemporaryDirectory() as folder:
        models.save_adapter(policy, Path(folder))
        return {
            p.name: sum(t.numel() for t in load_file(p).values()) if p.name == adapters.WEIGHTS else 0
            for p in sorted(Path(folder).iterdir())
        }
