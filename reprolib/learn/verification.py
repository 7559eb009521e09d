"""The verification suite of DP-GRPO: a short function a check, each returning what it measured.

    sensitivity(prompt_gradients()).excess          # at most one unit in the last place
    trainer_isolation("full").identical             # True
    chunk_identity()[2].gradient                    # about 1e-16

The checks run the package's own record maps and trainer on the model of ``reprolib.learn.toy``; they hold
for any weights. The chapter prints the numbers and ``tests/learn/test_verification.py`` bounds them.
Source: DP-GRPO, Appendix B; Appendix A-A and A-G for the rules that Appendix B does not test.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from reprolib.learn import grpo, toy
from reprolib.learn.records import Group, GroupGradients, Method
from reprolib.lm.models import Policy, adapter_parameters, base
from reprolib.privacy.mechanism import EntropySource, PoissonSampler, clip
from reprolib.privacy.plan import Plan

KL_WEIGHT = 0.04
LOSS = partial(grpo.token_loss, kl_weight=KL_WEIGHT)
CHUNKS = (1, 2, 4, 8)
Rule = Callable[[Tensor, float], Tensor]


def groups(count: int = 5, *, seed: int = 5) -> list[Group]:
    """Random prompt groups of eight completions, in tokens of the toy model."""
    generator = torch.Generator().manual_seed(seed)
    return [toy.random_group(generator) for _ in range(count)]


def prompt_gradients(policy: Policy | None = None, given: Sequence[Group] | None = None, *,
                     method: Method = "single", chunk: int | None = None) -> Tensor:  # fmt: skip
    """Gradient of each group, [groups, dimension], each computed by itself; five groups by default."""
    policy = policy or toy.with_adapter(dtype=torch.float64)
    gradients = GroupGradients(policy, LOSS, reference=True, method=method, chunk=chunk)
    return torch.cat([torch.cat(list(gradients([[group]]))) for group in given or groups()])


@dataclass(frozen=True)
class Sensitivity:
    """||f(D') - f(D)|| / C of each trial; in the last one the added gradient is about 1e12 long."""

    ratios: tuple[float, ...]

    @property
    def excess(self) -> float:
        """Largest ratio, less one."""
        return max(self.ratios) - 1


def sensitivity(rows: Tensor, *, clip_norm: float = 0.7, trials: int = 21, rule: Rule = clip,
                seed: int = 0) -> Sensitivity:  # fmt: skip
    """Move of the clipped sum when one record is added: random ones, then an enormous one.

    Args:
        rows: gradients of the base data set, [records, dimension]; their dtype is that of the additions.
        rule: turns the rows and C into what is summed; another one than ``clip`` shows what breaks.

    Source: DP-GRPO, Appendix B, Global add/remove sensitivity.
    """
    generator = torch.Generator().manual_seed(seed)
    before, ratios = rule(rows, clip_norm).sum(0), []
    for trial in range(trials):
        scale = 1e12 if trial + 1 == trials else 10 ** float(torch.randn(1, generator=generator))
        extra = scale * torch.randn(1, rows.shape[1], generator=generator, dtype=torch.float64)
        after = rule(torch.cat([rows, extra.to(rows)]), clip_norm).sum(0)
        ratios.append(math.sqrt(math.fsum((after - before).double().square().tolist())) / clip_norm)
    return Sensitivity(tuple(ratios))


def flat_loss(policy: Policy, given: Sequence[Group], *, temperature: float = 1.0) -> Tensor:
    """Equation 7 averaged over all sequences alike, each read by itself: no groups, no packing.

    Args:
        temperature: divides the logits first; 1 is equation 7, another value is what later TRL does.
    """

    def chosen(ids: Tensor, at: Tensor, targets: Tensor) -> Tensor:
        logp: Tensor = (policy.model(ids).logits[0] / temperature).log_softmax(-1)[at, targets]
        return logp

    losses = []
    for group in given:
        for completion, advantage in zip(group.completions, group.advantages, strict=True):
            ids = torch.tensor([[*group.prompt, *completion]])
            at = torch.arange(len(group.prompt) - 1, ids.shape[1] - 1)
            targets = torch.tensor(completion)
            with torch.no_grad(), base(policy):
                reference = chosen(ids, at, targets)
            logp = chosen(ids, at, targets)
            losses.append(LOSS(logp, reference, torch.tensor(advantage).to(logp)).mean())
    return torch.stack(losses).mean()


def non_private_difference() -> float:
    """Largest parameter difference between an SGD step of the trainer's update and of the flat mean's.

    All slots are drawn, nothing is clipped, no noise is added. Source: Appendix B, Non-private equivalence.
    """
    policy = toy.with_adapter(dtype=torch.float64)
    parameters = list(adapter_parameters(policy.model).values())
    start = torch.cat([p.detach().flatten() for p in parameters])
    drawn = toy.record_map(policy, "full", EntropySource.research(1))
    assert isinstance(drawn, grpo.GroupPolicyGradient)
    rollouts = drawn.groups(toy.problems(), EntropySource.research(1))
    flat = torch.cat([g.flatten() for g in torch.autograd.grad(flat_loss(policy, rollouts), parameters)])
    run, _ = toy.trainer(entropy=EntropySource.research(1), policy=policy, clip_norm=math.inf)
    return float(((start - run.step()) - (start - flat)).abs().max())


@dataclass(frozen=True)
class Inclusion:
    """How often each slot was drawn, and how the slots' draws correlate, [slots, slots]."""

    frequencies: NDArray[np.float64]
    correlation: NDArray[np.float64]
    expected: float

    @property
    def frequency_error(self) -> float:
        """Largest distance of a frequency from the sampling rate."""
        return float(np.abs(self.frequencies - self.expected).max())

    @property
    def largest_correlation(self) -> float:
        """Largest correlation, in size, between two slots."""
        return float(np.abs(self.correlation - np.eye(len(self.correlation))).max())


def poisson(plan: Plan, entropy: EntropySource, *, draws: int = 20_000) -> Inclusion:
    """Inclusion of every slot over many rounds. Source: Appendix B, Poisson frequency and independence."""
    sampler = PoissonSampler(plan, entropy)
    drawn = np.zeros((draws, plan.population))
    for row in drawn:
        row[sampler.draw()] = 1
    return Inclusion(drawn.mean(0), np.corrcoef(drawn.T), plan.sampling_rate)


@dataclass(frozen=True)
class Isolation:
    """Relative change of the other records' gradients, the largest, and how far the changed one moved."""

    others: float
    moved: float

    @property
    def identical(self) -> bool:
        """Whether every other gradient stayed bit for bit."""
        return self.others == 0


def group_isolation(policy: Policy | None = None) -> Isolation:
    """Gradient of group i before and after group j's rewards are turned round and j is evaluated."""
    policy = policy or toy.with_adapter(dtype=torch.float64)
    i, j = groups(2)
    turned = replace(j, advantages=tuple(-a for a in j.advantages))
    first, old, new, again = (prompt_gradients(policy, [g])[0] for g in (i, j, turned, i))
    return Isolation(float((first - again).norm() / first.norm()), float((new - old).norm()))


def trainer_isolation(arm: str, *, method: Method = "single", changed: int = 2) -> Isolation:
    """The same through sampling, rollouts, verifier and record map: one problem's answer is changed.

    Its reference is turned round, and so each of its rewards; its solution, the target of gold imitation,
    becomes another digit. Rows are paired by distance, since a batch may order them differently.
    """
    before = list(toy.problems())
    after = [*before]
    after[changed] = replace(before[changed], reference=f"not {before[changed].reference}", solution="9")
    rows = []
    for train in (before, after):
        run, recorder = toy.trainer(arm, entropy=EntropySource.research(1), train=train, method=method)
        run.step()
        rows.append(recorder.rows.double())
    moves = _nearest(*rows)
    farthest = moves.argmax()
    relative = moves / rows[0].norm(dim=1).clamp(min=1e-300)
    return Isolation(float(relative[torch.arange(len(moves)) != farthest].max()), float(moves[farthest]))


def _nearest(rows: Tensor, others: Tensor) -> Tensor:
    """Distance of each row to the nearest of the others; exactly 0 for an equal one."""
    return torch.stack([(others - row).norm(dim=1).min() for row in rows])


def batch_effect(*, dtype: torch.dtype = torch.float32) -> float:
    """Largest relative change of a record's gradient when the other records leave its batch.

    Exact arithmetic has none. Rounding has: a row's sums are split by the width of its batch.
    """
    policy, given = toy.with_adapter(dtype=dtype), groups()
    gradients = GroupGradients(policy, LOSS, reference=True)
    together = torch.cat(list(gradients([[g] for g in given])))
    alone = prompt_gradients(policy, given, method="batched")
    alone, together = alone.double(), together.double()
    return float((_nearest(alone, together) / alone.norm(dim=1)).max())


@dataclass(frozen=True)
class ZeroAdvantage:
    """All-correct and all-wrong groups: their advantages, their gradients, and those at the base."""

    largest_advantage: float
    finite: bool
    identical: bool
    norm: float
    norm_at_base: float


def zero_advantage(policy: Policy | None = None) -> ZeroAdvantage:
    """Groups of constant reward. Source: Appendix B, Zero-advantage groups; Section VII-C (at the base)."""
    policy = policy or toy.with_adapter(dtype=torch.float64)
    (group,) = groups(1)
    constant = [grpo.advantages(torch.full((8,), reward)) for reward in (1.0, 0.0)]
    same = [replace(group, advantages=tuple(a.tolist())) for a in constant]
    correct, wrong = prompt_gradients(policy, same)
    finite = bool(torch.stack([correct, wrong]).isfinite().all()) and bool(flat_loss(policy, same).isfinite())
    fresh = toy.with_adapter(dtype=torch.float64, scale=0.0)
    return ZeroAdvantage(
        largest_advantage=float(torch.stack(constant).abs().max()), finite=finite,
        identical=torch.equal(correct, wrong), norm=float(correct.norm()),
        norm_at_base=float(prompt_gradients(fresh, same[:1]).norm()),
    )  # fmt: skip


@dataclass(frozen=True)
class ChunkDifference:
    """Chunked against whole: relative difference of the loss and of the gradient, and its largest entry."""

    loss: float
    gradient: float
    entry: float


def chunk_identity(policy: Policy | None = None) -> dict[int, ChunkDifference]:
    """One prompt's loss and gradient from chunks of completions. Source: Appendix B, chunked backward."""
    policy = policy or toy.with_adapter(dtype=torch.float64)
    (group,) = groups(1)
    (whole,), value = prompt_gradients(policy, [group]), _chunked_loss(policy, group, None)
    found = {}
    for size in CHUNKS:
        (part,) = prompt_gradients(policy, [group], chunk=size)
        gap = (part - whole).double()
        loss = abs(_chunked_loss(policy, group, size) / value - 1)
        found[size] = ChunkDifference(loss, float(gap.norm() / whole.double().norm()), float(gap.abs().max()))
    return found


def _chunked_loss(policy: Policy, group: Group, size: int | None) -> float:
    gradients = GroupGradients(policy, LOSS, reference=True)
    step, total = size or len(group.completions), 0.0
    for start in range(0, len(group.completions), step):
        part = slice(start, start + step)
        piece = Group(group.prompt, group.completions[part], group.advantages[part])
        share = len(piece.completions) / len(group.completions)
        total += share * gradients._losses([piece], merge=False).item()
    return total


@dataclass(frozen=True)
class Preflight:
    """A low-precision base: what of the suite still holds, and what does not.

    Args:
        excess: of the sensitivity over C, at each clipping norm.
        isolation: between two groups.
        constant: groups of constant reward.
        chunks: chunked against whole.
        flips: records that are clipped in one precision and not in binary64, at each clipping norm.
        records: number of records compared.
    """

    excess: dict[float, float]
    isolation: Isolation
    constant: ZeroAdvantage
    chunks: dict[int, ChunkDifference]
    flips: dict[float, int]
    records: int


def preflight(dtype: torch.dtype, *, clip_norms: Sequence[float], records: int = 30) -> Preflight:
    """The suite with a base in fp16 or bf16 and the adapter in fp32. Source: Appendix B, fp16 preflight.

    Each flip is counted with C at a quantile of the records' norms, where decisions are close: the norms of
    a toy model are not the paper's.
    """
    policy = toy.with_adapter(dtype=dtype)
    rows = prompt_gradients(policy)
    many = groups(records, seed=6)
    low = prompt_gradients(policy, many).double().norm(dim=1)
    twin = replace(policy, model=toy.with_adapter(dtype=dtype).model.double())
    exact = prompt_gradients(twin, many).norm(dim=1)
    thresholds = [float(exact.quantile(q)) for q in (0.25, 0.5, 0.75)]
    return Preflight(
        excess={c: sensitivity(rows, clip_norm=c).excess for c in clip_norms},
        isolation=group_isolation(policy), constant=zero_advantage(policy), chunks=chunk_identity(policy),
        flips={c: int(((low > c) != (exact > c)).sum()) for c in thresholds}, records=records,
    )  # fmt: skip
