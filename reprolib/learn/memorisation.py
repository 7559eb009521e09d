"""What training says about the preferences it used: the paper's attack, and two that know more.

    found = advantage(train, test, prior_train=p, prior_test=q)          # 0 or 1, [seeds, pairs] each
    bits, margins = neighbour_runs(policy, Randomized(PrivDPO(1.0)), pairs, runs=200, seed=0, ...)
    (guesses(margins, bits) == bits).mean(), posterior_bound(1.0)

The paper's attacker looks at the two responses of a pair. The second one also trains the model many times,
knows every other annotation, and compares the final margin with what either answer would have given. The
third sees the released update and solves it for each pair's coefficient. No attacker, whatever it knows but
the coins, may be right more often than ``posterior_bound``.

Source: PrivDPO, Proposition 3.4, Section 5.5 and Appendix D.3; the two stronger attacks are ours.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from reprolib.errors import ReproError
from reprolib.learn import dpo
from reprolib.learn.preference_loss import PairMethod
from reprolib.learn.preference_pairs import Pair
from reprolib.learn.preference_records import PairGradients, preference_axis
from reprolib.learn.preference_reference import Reference, log_probabilities
from reprolib.lm.models import Policy
from reprolib.privacy.mechanism import EntropySource

FOLDS = 10


@dataclass(frozen=True)
class Advantage:
    """A memorization advantage in percentage points, with its interval and standard error over pairs."""

    value: float
    low: float
    high: float
    standard_error: float


def advantage(train: ArrayLike, test: ArrayLike, *, prior_train: ArrayLike | None = None,
              prior_test: ArrayLike | None = None, level: float = 0.95) -> Advantage:  # fmt: skip
    """How much more often the attack is right on training pairs than on held-out ones, beyond the prior.

    (A(policy, train) - A(prior, train)) - (A(policy, test) - A(prior, test)), where A is the share of pairs
    whose preference is guessed. Pairs are independent, seeds of a pair are not: they are averaged first.

    Args:
        train, test: was the attack on the policy right, 0 or 1, [seeds, pairs] each.
        prior_train, prior_test: the same for the prior, or for another policy, [pairs] or [seeds, pairs];
            None leaves it out.
        level: coverage of the interval.

    Raises:
        ReproError: arrays of other shapes, other entries, fewer than two pairs, or one prior alone.

    Source: PrivDPO, Section 5.5.
    """
    if (prior_train is None) != (prior_test is None):
        raise ReproError("one prior alone: expected it on training and on held-out pairs, or on neither")
    gains = [_gain("train", train, prior_train), _gain("test", test, prior_test)]
    value = float(gains[0].mean() - gains[1].mean())
    error = math.sqrt(sum(g.var(ddof=1) / len(g) for g in gains))
    half = float(stats.norm.ppf((1 + level) / 2)) * error
    return Advantage(100 * value, 100 * (value - half), 100 * (value + half), 100 * error)


def _gain(name: str, right: ArrayLike, prior: ArrayLike | None) -> NDArray[np.float64]:
    """Seed mean of the policy's hits, minus that of the prior's, [pairs]."""
    found = _hits(name, np.asarray(right, dtype=np.float64))
    if prior is None:
        return found
    before = _hits(f"the prior on {name}", np.atleast_2d(np.asarray(prior, dtype=np.float64)))
    if before.shape != found.shape:
        raise ReproError(
            f"the prior on {name} has {len(before)} pairs, the policy {len(found)}: expected the same"
        )
    return found - before


def _hits(name: str, right: NDArray[np.float64]) -> NDArray[np.float64]:
    if right.ndim != 2 or right.shape[1] < 2 or not np.isin(right, (0, 1)).all():
        raise ReproError(
            f"{name} has shape {right.shape}: expected 0 and 1, [seeds, pairs], at least two pairs"
        )
    return np.asarray(right.mean(0))


def posterior_bound(epsilon: float, *, prior: float = 0.5) -> float:
    """Largest posterior that any observer of an epsilon-private release can hold for an annotation.

    With prior 1/2 it bounds the share of right guesses too: e^eps/(1 + e^eps).

    Raises:
        ReproError: a negative epsilon, or a prior outside (0, 1).

    Source: PrivDPO, Proposition 3.4.
    """
    if not (epsilon >= 0 and 0 < prior < 1):
        raise ReproError(f"epsilon {epsilon!r}, prior {prior!r}: expected at least 0, and inside (0, 1)")
    return 1 / (1 + math.exp(-epsilon) * (1 - prior) / prior)


def worlds(pairs: Sequence[Pair], *, runs: int, seed: int) -> NDArray[np.bool_]:
    """Fair annotations of every pair in several runs, [runs, pairs]: whether ``first`` is preferred."""
    return np.random.default_rng(seed).random((runs, len(pairs))) < 0.5


def annotated(pairs: Sequence[Pair], bits: Sequence[bool] | NDArray[np.bool_]) -> list[Pair]:
    """The pairs with these annotations."""
    return [replace(p, first_preferred=bool(b)) for p, b in zip(pairs, bits, strict=True)]


def neighbour_runs(policy: Policy, method: PairMethod, pairs: Sequence[Pair], *, runs: int, seed: int,
                   entropy: EntropySource, learning_rate: float,
                   batch_size: int) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:  # fmt: skip
    """Training repeated under every kind of annotation: what an attacker with shadow runs knows.

    Args:
        policy: where each run starts; its weights are the same afterwards.
        method: on annotations.
        pairs: all training pairs; their own annotations are not used.
        runs: how often; one pass each, in a public order that is the same in all.
        seed: of the annotations.
        entropy: the method's coins, which the attacker does not know.
        learning_rate, batch_size: of the runs, without warm-up.

    Returns:
        Annotations and final margins (log-ratio of ``first`` minus that of ``second``), [runs, pairs].
    """
    reference, bits = Reference.of(policy, pairs), worlds(pairs, runs=runs, seed=seed)
    gradients = PairGradients(policy, method, reference=reference)
    start = [p.detach().clone() for p in gradients.parameters]
    margins = np.empty(bits.shape)
    for run, chosen in enumerate(bits):
        loop = dpo.aligner(
            policy, gradients, annotated(pairs, chosen), entropy, seed=0, batch_size=batch_size,
            learning_rate=learning_rate, warmup_steps=0,
        )  # fmt: skip
        while loop.rounds_done < loop.rounds:
            loop.step()
        ratios = (log_probabilities(policy, pairs) - reference(pairs)).numpy()
        margins[run] = ratios[:, 0] - ratios[:, 1]
        with torch.no_grad():
            for parameter, saved in zip(gradients.parameters, start, strict=True):
                parameter.copy_(saved)
    return bits, margins


def guesses(
    margins: NDArray[np.float64], bits: NDArray[np.bool_], *, folds: int = FOLDS
) -> NDArray[np.bool_]:
    """Which annotation of each pair makes its margin likelier, every other annotation of the run known.

    The margin's law given all annotations is modelled as normal, its mean linear in them and its variance
    common, fitted on the other runs. The likelihood ratio is then a threshold: the middle of both means.

    Args:
        margins, bits: of ``neighbour_runs``, [runs, pairs].
        folds: a run is guessed by a model that was fitted without its fold.

    Raises:
        ReproError: other shapes, or too few runs for a fit.
    """
    runs, pairs = bits.shape
    if margins.shape != bits.shape or runs - math.ceil(runs / folds) < pairs + 2:
        raise ReproError(
            f"{margins.shape} margins, {bits.shape} annotations: expected one each, and more runs than pairs"
        )
    signs = 2.0 * bits - 1
    design = np.column_stack([np.ones(runs), signs])
    found = np.empty_like(bits)
    for fold in range(folds):
        held = np.arange(runs) % folds == fold
        fit = np.linalg.lstsq(design[~held], margins[~held], rcond=None)[0]
        own = np.diagonal(fit[1:])
        middle = design[held] @ fit - own * signs[held]
        found[held] = own * (margins[held] - middle) > 0
    return found


def release_guesses(policy: Policy, method: PairMethod, pairs: Sequence[Pair], *, runs: int, seed: int,
                    entropy: EntropySource) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:  # fmt: skip
    """Guesses from the first round's release, solved for the coefficient of each pair's axis.

    The first round starts at the reference, where every intensity is 1/2 and the coefficients of the two
    annotations lie on either side of 0.

    Args:
        policy: at the reference.
        method, pairs, runs, seed, entropy: as for ``neighbour_runs``; all pairs are one batch.

    Returns:
        Annotations and guesses, [runs, pairs].
    """
    reference, bits = Reference.of(policy, pairs), worlds(pairs, runs=runs, seed=seed)
    gradients = PairGradients(policy, method, reference=reference, batch_tokens=2**62)
    axes = torch.stack([preference_axis(policy, pair) for pair in pairs], dim=1).double()
    solve = torch.linalg.pinv(axes)
    found = np.empty_like(bits)
    for run, chosen in enumerate(bits):
        release = sum(rows.double().sum(0) for rows in gradients.vectors(annotated(pairs, chosen), entropy))
        found[run] = (-(solve @ release) > 0).numpy()
    return bits, found
