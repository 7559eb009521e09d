"""Private imitation: the same mechanism on the likelihood of a target instead of on rewards.

Source: DP-GRPO, Section VII-C (filtered and gold DP-SFT) and Corollary 2.
"""

from collections.abc import Iterator, Sequence

from torch import Tensor

from reprolib.learn.grpo import base_rollouts, problems_of, rewards
from reprolib.learn.records import Group, GroupGradients, Method, PromptReader, prompt_reader
from reprolib.lm.generate import Engine
from reprolib.lm.models import Policy
from reprolib.privacy.mechanism import EntropySource
from reprolib.tasks.datasets import Problem, Task


def token_loss(logp: Tensor, reference: Tensor, advantage: Tensor) -> Tensor:
    """Negative log-likelihood of each target token."""
    return -logp


class Imitation:
    """The record map of supervised fine-tuning: the token-averaged likelihood of a problem's targets.

    The likelihood is averaged over a target's tokens, then over the problem's targets, before the clip. A
    problem without a target has the zero vector, and stays in the round.

    Args:
        policy: model with a LoRA adapter.
        task: gives the prompts.
        targets: token sequences of each problem id.
        prompts: a problem's prompt in tokens, where several users share what was read.
        method, chunk: how gradients are computed; see ``GroupGradients``.
    """

    def __init__(self, policy: Policy, task: Task, targets: dict[str, list[tuple[int, ...]]], *,
                 prompts: PromptReader | None = None, method: Method = "batched",
                 chunk: int | None = None):  # fmt: skip
        self.targets, self.prompts = targets, prompts or prompt_reader(policy, task)
        self.gradients = GroupGradients(policy, token_loss, reference=False, method=method, chunk=chunk)
        self.dimension = self.gradients.dimension

    def vectors(
        self, records: Sequence[Problem | Sequence[Problem]], entropy: EntropySource
    ) -> Iterator[Tensor]:
        """The gradients of the records' likelihoods; no randomness inside a record."""
        yield from self.gradients([[self.group(p) for p in record] for record in problems_of(records)])

    def group(self, problem: Problem) -> Group:
        """The problem's prompt and targets."""
        targets = tuple(self.targets.get(problem.id, ()))
        return Group(self.prompts(problem), targets, (1.0,) * len(targets))


def gold_targets(policy: Policy, problems: Sequence[Problem]) -> dict[str, list[tuple[int, ...]]]:
    """The reference solution of each problem. Nothing is generated and no verifier is called."""
    end = policy.tokenizer.eos_token_id
    return {p.id: [(*policy.tokenizer.encode(p.solution, add_special_tokens=False), end)] for p in problems}


def filtered_targets(policy: Policy, engine: Engine, task: Task, problems: Sequence[Problem], *,
                     group_size: int, temperature: float, entropy: EntropySource,
                     prompts: PromptReader | None = None) -> dict[str, list[tuple[int, ...]]]:  # fmt: skip
    """The public base's own completions that the verifier accepts; a problem may have none.

    Args:
        policy: gives the tokenizer.
        engine: draws the targets, from the base alone.
        group_size: completions drawn for each problem.
        prompts: a problem's prompt in tokens, where several users share what was read.
    """
    prompts = prompts or prompt_reader(policy, task)
    drawn = base_rollouts(
        engine, task, [prompts(p) for p in problems], group_size=group_size, temperature=temperature,
        entropy=entropy,
    )  # fmt: skip
    return {
        problem.id: [c.tokens for c, r in zip(group, rewards(policy, task, problem, group), strict=True) if r]
        for problem, group in zip(problems, drawn, strict=True)
    }
