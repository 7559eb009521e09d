"""Membership scores of a released adapter: what an attacker with the weights and the public base computes.

    scores = gold_scores(policy, task, candidates)          # higher: more likely trained on
    scores = reward_scores(policy, engine, task, candidates, group_size=8, temperature=0.7, entropy=entropy)

Nothing here sees a gradient or a released update, only the final weights.
Source: DP-GRPO, Section IV (adversary) and Section IX (a membership attack on both models).
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from reprolib.learn.grpo import advantages, base_rollouts, rewards
from reprolib.learn.sft import gold_targets
from reprolib.lm.generate import Engine
from reprolib.lm.logprobs import by_completion, log_probabilities, pack
from reprolib.lm.models import Policy, base, encode
from reprolib.privacy.mechanism import EntropySource
from reprolib.tasks.datasets import Problem, Task

Tokens = Sequence[int]
BLOCK = 64  # groups a forward pass


@torch.no_grad()
def log_ratios(policy: Policy, groups: Sequence[tuple[Tokens, Sequence[Tokens]]]) -> list[Tensor]:
    """Log-probability of each completion under the policy minus that under its base.

    Args:
        policy: model with an adapter.
        groups: a prompt and its completions in tokens, each.

    Returns:
        A tensor [completions] for each group, summed over the completion's tokens, binary64.
    """
    found: list[Tensor] = []
    for start in range(0, len(groups), BLOCK):
        block = groups[start : start + BLOCK]
        packed = pack(block).to(policy.model.device)
        with base(policy):
            public = log_probabilities(policy.model, packed)
        tokens = (log_probabilities(policy.model, packed) - public).double()
        sums = by_completion(packed, tokens)
        found += [row[: len(completions)] for row, (_, completions) in zip(sums.cpu(), block, strict=True)]
    return found


def gold_scores(policy: Policy, task: Task, problems: Sequence[Problem]) -> NDArray[np.float64]:
    """Log-likelihood ratio of the gold solution, trained against base, [problems]."""
    gold = gold_targets(policy, problems)
    groups = [(encode(policy, task.messages(p)), gold[p.id]) for p in problems]
    return np.array([float(ratio.mean()) for ratio in log_ratios(policy, groups)])


def reward_scores(policy: Policy, engine: Engine, task: Task, problems: Sequence[Problem], *,
                  group_size: int, temperature: float,
                  entropy: EntropySource) -> NDArray[np.float64]:  # fmt: skip
    """Mean advantage-weighted log-ratio of the base's own completions, [problems].

    GRPO raises completions with a positive advantage and lowers the others: (1/G) sum_g A_g
    log(policy/base)(o_g) is what that did to this problem. A group whose rewards agree has the score 0.

    Args:
        engine: draws from the public base.
        group_size, temperature: of the draws, at least 2 completions a problem.
        entropy: the attacker's own randomness.
    """
    prompts = [encode(policy, task.messages(p)) for p in problems]
    drawn = base_rollouts(
        engine, task, prompts, group_size=group_size, temperature=temperature, entropy=entropy
    )
    ratios = log_ratios(
        policy, [(prompt, [c.tokens for c in group]) for prompt, group in zip(prompts, drawn, strict=True)]
    )
    weights = [
        advantages(torch.tensor(rewards(policy, task, problem, group), dtype=torch.float64))
        for problem, group in zip(problems, drawn, strict=True)
    ]
    return np.array([float((w * r).mean()) for w, r in zip(weights, ratios, strict=True)])
