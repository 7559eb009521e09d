"""DP-GRPO's record map: a prompt, its G completions, their rewards, one gradient.

Source: DP-GRPO, Section III-B (equations 2 and 3), Section V (equation 7), Algorithm 1, lines 4 to 6.
"""

from collections.abc import Iterator, Sequence
from functools import cache, partial
from typing import Literal

import torch
from torch import Tensor

from reprolib.errors import ReproError
from reprolib.learn.records import Group, GroupGradients, Method, PromptReader, prompt_reader
from reprolib.lm.generate import Completion, Engine, Sampling
from reprolib.lm.models import Policy
from reprolib.privacy.mechanism import EntropySource
from reprolib.tasks.datasets import Problem, Task, check_rewards
from reprolib.tasks.verifiers import Reward

C = 1e-4  # the constant c of equation 2
Advantage = Literal["full", "positive", "shuffled", "zero"]


def advantages(rewards: Tensor) -> Tensor:
    """Group-normalised advantages A_g = (r_g - mean) / (s + c), s with denominator G - 1.

    Args:
        rewards: the group's rewards, [G], G >= 2.

    Raises:
        ReproError: a single reward: its deviation is not defined.

    Source: DP-GRPO, equation 2; Appendix C-A.
    """
    if len(rewards) < 2:
        raise ReproError("group_size = 1: a group needs at least 2 completions for its deviation")
    return (rewards - rewards.mean()) / (rewards.std() + C)


def kl(logp: Tensor, reference: Tensor) -> Tensor:
    """Estimate of KL(policy || base) at each sampled token: e^d - d - 1 with d = reference - logp.

    Source: DP-GRPO, equation 3.
    """
    d = reference - logp
    return d.exp() - d - 1


def token_loss(logp: Tensor, reference: Tensor, advantage: Tensor, *, kl_weight: float) -> Tensor:
    """-[e^(u - sg(u)) A - beta K] at each token; the ratio is 1, its gradient is that of u = logp.

    Source: DP-GRPO, equation 7.
    """
    ratio = (logp - logp.detach()).exp()
    loss = -ratio * advantage
    return loss + kl_weight * kl(logp, reference) if kl_weight else loss


def ladder(rewards: Tensor, kind: Advantage, order: Tensor) -> Tensor:
    """Advantages of one rung: what of the reward is left, from nothing to everything.

    Args:
        rewards: 0 or 1, [G].
        kind: ``zero``, the control; ``shuffled``, the group's advantages in a random order, so that their
            distribution stays and correctness goes; ``positive``, the reward itself, 1 for each verified
            completion; ``full``, equation 2.
        order: a random permutation of the group.

    Source: DP-GRPO, Section VII-C (zero) and Section IX, Future work (the ladder).
    """
    if kind == "zero":
        return torch.zeros_like(rewards)
    if kind == "positive":
        return rewards
    return advantages(rewards[order] if kind == "shuffled" else rewards)


class GroupPolicyGradient:
    """The record map of DP-GRPO and of its controls.

    A record is a ``Problem``, or all problems of one contributor.

    Args:
        policy: model with a LoRA adapter; ``engine`` draws from the same weights.
        engine: draws the completions.
        task: gives prompts, verifier and the cap on a completion.
        group_size: completions G of a prompt.
        temperature: of the sampling.
        kl_weight: beta.
        advantage: rung of the ladder.
        prompts: a problem's prompt in tokens, where several users share what was read.
        method, chunk: how gradients are computed; see ``GroupGradients``.

    Raises:
        ReproError: G = 1, a negative beta, an unknown rung.
    """

    def __init__(self, policy: Policy, engine: Engine, task: Task, *, group_size: int, temperature: float,
                 kl_weight: float, advantage: Advantage = "full", prompts: PromptReader | None = None,
                 method: Method = "batched", chunk: int | None = None):  # fmt: skip
        if group_size < 2:
            raise ReproError(f"group_size = {group_size}: a group needs at least 2 completions")
        if kl_weight < 0:
            raise ReproError(f"kl_weight = {kl_weight}: expected at least 0")
        if advantage not in ("full", "positive", "shuffled", "zero"):
            raise ReproError(f"advantage = {advantage!r}: expected full, positive, shuffled or zero")
        self.policy, self.engine, self.task, self.advantage = policy, engine, task, advantage
        self.prompts = prompts or prompt_reader(policy, task)
        self.sampling = Sampling(
            completions=group_size, max_new_tokens=task.max_new_tokens, temperature=temperature
        )
        self.gradients = GroupGradients(
            policy, partial(token_loss, kl_weight=kl_weight), reference=kl_weight > 0, method=method,
            chunk=chunk,
        )  # fmt: skip
        self.dimension = self.gradients.dimension

    def vectors(
        self, records: Sequence[Problem | Sequence[Problem]], entropy: EntropySource
    ) -> Iterator[Tensor]:
        """Roll out, reward and differentiate: Algorithm 1, lines 4 to 6."""
        members = problems_of(records)
        problems = [p for record in members for p in record]
        groups = iter(self.groups(problems, entropy))
        yield from self.gradients([[next(groups) for _ in record] for record in members])

    def groups(self, problems: Sequence[Problem], entropy: EntropySource) -> list[Group]:
        """Each problem's completions from the current policy with their advantages."""
        prompts = [self.prompts(p) for p in problems]
        self.engine.update(self.policy)
        rollouts = self.engine.generate(prompts, self.sampling, entropy.rollouts)
        return [
            Group(prompt, tuple(c.tokens for c in drawn), self._advantages(problem, drawn, entropy))
            for problem, prompt, drawn in zip(problems, prompts, rollouts, strict=True)
        ]

    def _advantages(
        self, problem: Problem, drawn: Sequence[Completion], entropy: EntropySource
    ) -> tuple[float, ...]:
        found = torch.tensor([float(r) for r in rewards(self.policy, self.task, problem, drawn)])
        order = torch.from_numpy(entropy.rollouts(len(drawn)).argsort())
        return tuple(ladder(found, self.advantage, order).tolist())


def base_rollouts(engine: Engine, task: Task, prompts: Sequence[Sequence[int]], *, group_size: int,
                  temperature: float, entropy: EntropySource) -> list[list[Completion]]:  # fmt: skip
    """Completions of each prompt from the public base: the engine's adapter is switched off."""
    engine.update(None)
    sampling = Sampling(completions=group_size, max_new_tokens=task.max_new_tokens, temperature=temperature)
    return engine.generate(prompts, sampling, entropy.rollouts)


def problems_of(records: Sequence[Problem | Sequence[Problem]]) -> list[list[Problem]]:
    """The problems of each record: a prompt alone, or all prompts of a contributor."""
    return [[r] if isinstance(r, Problem) else list(r) for r in records]


def rewards(policy: Policy, task: Task, problem: Problem, drawn: Sequence[Completion]) -> tuple[Reward, ...]:
    """The verifier's reward of each completion, 0 or 1.

    Raises:
        ReproError: the verifier returned something else.
    """

    @cache  # a group often holds one completion several times
    def reward(tokens: tuple[int, ...]) -> Reward:
        text = policy.tokenizer.decode(tokens, skip_special_tokens=True)
        return task.verifier.reward(text, problem.reference)

    try:
        return check_rewards(reward(c.tokens) for c in drawn)
    except ReproError as error:
        raise ReproError(f"problem {problem.id}: {error}") from None
