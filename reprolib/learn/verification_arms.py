"""What makes the arms comparable: where the control starts and what moves it, and what imitation leaves out.

    control().first          # the first update of the control less the noise: 0
    imitation().mean         # a row against the mean over the record's targets: 0

Source: DP-GRPO, Section VII-C (the control and the supervised arms), Corollary 2 and Appendix A-G.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from reprolib.learn import grpo, sft, toy
from reprolib.learn.trainer import Trainer
from reprolib.learn.verification import groups, prompt_gradients
from reprolib.lm import models
from reprolib.lm.logprobs import log_probabilities, pack
from reprolib.privacy.mechanism import EntropySource
from reprolib.tasks.verifiers import Reward


@dataclass(frozen=True)
class Control:
    """The zero-advantage control: its start, its first round, and what moves it later.

    Args:
        adapter: largest entry of B when the adapter is new.
        first: difference between its first update and the noise alone.
        without_kl: norm of a later gradient with beta = 0.
        pull: relative decrease of the mean KL estimate after a small step along a later gradient.
    """

    adapter: float
    first: float
    without_kl: float
    pull: float


def control() -> Control:
    """Source: DP-GRPO, Section VII-C, the zero-advantage control."""
    fresh = toy.with_adapter(scale=0.0)
    b = [p for n, p in models.adapter_parameters(fresh.model).items() if "lora_B" in n]
    run, _ = toy.trainer("zero", entropy=EntropySource.research(9), policy=fresh, noise_multiplier=0.5)
    largest = max(float(p.detach().abs().max()) for p in b)
    noise = run.plan.noise_std * torch.from_numpy(EntropySource.research(9).normal(run.record_map.dimension))
    first = float((run.step() - noise).abs().max())
    moved = toy.with_adapter()
    silent = toy.record_map(moved, "zero", EntropySource.research(0), kl_weight=0.0)
    (rows,) = silent.vectors(toy.problems(), EntropySource.research(0))
    return Control(largest, first, float(rows.norm()), _pull())


def _pull(step: float = 1e-3) -> float:
    policy = toy.with_adapter(dtype=torch.float64)
    given = [replace(g, advantages=(0.0,) * 8) for g in groups()]
    before = _mean_kl(policy)
    gradient = prompt_gradients(policy, given).mean(0)
    parameters = list(models.adapter_parameters(policy.model).values())
    pieces = torch.split(gradient / gradient.norm(), [p.numel() for p in parameters])
    with torch.no_grad():
        for parameter, piece in zip(parameters, pieces, strict=True):
            parameter.sub_(step * piece.reshape(parameter.shape))
    return 1 - _mean_kl(policy) / before


@torch.no_grad()
def _mean_kl(policy: models.Policy) -> float:
    """Token-averaged KL estimate of each sequence, averaged over the sequences of the check's groups."""
    packed = pack([(group.prompt, [completion]) for group in groups() for completion in group.completions])
    logp = log_probabilities(policy.model, packed)
    with models.base(policy):
        reference = log_probabilities(policy.model, packed)
    divergence = grpo.kl(logp, reference) * packed.valid
    return float((divergence.sum(1) / packed.valid.sum(1)).mean())


@dataclass(frozen=True)
class ImitationMap:
    """The supervised record maps.

    Args:
        mean: relative difference between a record's row and the mean over its targets.
        without: norm of the row of a record that has no target, and whether the row is there.
        reads_reference: whether the loss depends on the base's log-probabilities.
        gold_targets: problems, and problems with a gold target.
        gold_draws: whether the gold arm drew rollout randomness or asked its verifier.
    """

    mean: float
    without: tuple[float, bool]
    reads_reference: bool
    gold_targets: tuple[int, int]
    gold_draws: bool


class _Asked:
    """A verifier that remembers being asked."""

    def __init__(self) -> None:
        self.asked = False

    def extract(self, response: str, *, capped: bool = False) -> str:
        self.asked = True
        return response

    def reward(self, response: str, reference: str, *, capped: bool = False) -> Reward:
        self.asked = True
        return 0


def imitation() -> ImitationMap:
    """Source: DP-GRPO, Section VII-C and A-E (filtered and gold DP-SFT); A-G (gold draws nothing)."""
    policy, problem = toy.with_adapter(dtype=torch.float64), toy.problems()[0]
    targets = [(5, 1), (6, 7, 1), (8, 4, 9, 1)]

    def row(kept: list[tuple[int, ...]]) -> Tensor:
        given = sft.Imitation(policy, toy.task(), {problem.id: kept})
        return torch.cat(list(given.vectors([problem], EntropySource.private())))

    together = row(list(targets))[0]
    apart = torch.stack([row([t])[0] for t in targets]).mean(0)
    empty = row([])
    logp, other = torch.tensor([-1.0, -2.0]), torch.tensor([-3.0, -0.1])
    loss = [sft.token_loss(logp, reference, torch.ones(2)) for reference in (logp, other)]
    gold = sft.gold_targets(policy, toy.problems())
    return ImitationMap(
        mean=float((together - apart).norm() / apart.norm()), without=(float(empty.norm()), len(empty) == 1),
        reads_reference=not torch.equal(*loss), gold_targets=(6, sum(bool(t) for t in gold.values())),
        gold_draws=_gold_draws(),
    )  # fmt: skip


def _gold_draws() -> bool:
    policy, verifier, entropy = toy.with_adapter(), _Asked(), EntropySource.research(2)
    task = replace(toy.task(), verifier=verifier)
    given = sft.Imitation(policy, task, sft.gold_targets(policy, task.train))
    before = entropy.state()["rollouts"]
    Trainer(policy, given, task.train, toy.plan(), entropy, learning_rate=1e-2).step()
    return verifier.asked or entropy.state()["rollouts"] != before
