"""Membership scores from the final weights."""

import math

import numpy as np
import pytest
import torch

from reprolib.learn import membership, sft, toy
from reprolib.learn.grpo import advantages, rewards
from reprolib.learn.trainer import Trainer
from reprolib.lm.generate import Sampling, TransformersEngine
from reprolib.lm.models import base, encode
from reprolib.privacy import tradeoff
from reprolib.privacy.mechanism import EntropySource

SUMS = toy.problems()


def sequence_log_probability(policy, prompt, completion):
    """One sequence through the plain forward pass, token by token."""
    ids = torch.tensor([[*prompt, *completion]])
    with torch.no_grad():
        logits = policy.model(ids).logits[0].double().log_softmax(-1)
    return math.fsum(float(logits[len(prompt) - 1 + k, token]) for k, token in enumerate(completion))


def test_log_ratios_are_those_of_each_sequence_alone():
    policy = toy.with_adapter(dtype=torch.float64)
    groups = [([5, 6, 7], [[8, 9, 1], [4]]), ([3], [[2, 2], [7, 1], [9]])]
    for (prompt, completions), found in zip(groups, membership.log_ratios(policy, groups), strict=True):
        expected = []
        for completion in completions:
            trained = sequence_log_probability(policy, prompt, completion)
            with base(policy):
                expected.append(trained - sequence_log_probability(policy, prompt, completion))
        assert found.tolist() == pytest.approx(expected, abs=1e-9)


def test_scores_of_an_untrained_adapter_are_zero():
    policy = toy.with_adapter(scale=0)
    scores = membership.reward_scores(
        policy, TransformersEngine(policy), toy.task(), SUMS, group_size=4, temperature=1.0,
        entropy=EntropySource.research(0),
    )  # fmt: skip
    assert np.array_equal(scores, np.zeros(len(SUMS)))
    assert np.array_equal(membership.gold_scores(policy, toy.task(), SUMS), np.zeros(len(SUMS)))


def test_the_gold_score_is_the_log_ratio_of_the_gold_tokens():
    policy = toy.with_adapter()
    scores = membership.gold_scores(policy, toy.task(), SUMS)
    prompt = encode(policy, toy.task().messages(SUMS[2]))
    ((expected,),) = membership.log_ratios(policy, [(prompt, sft.gold_targets(policy, SUMS)["2"])])
    assert scores[2] == pytest.approx(float(expected), abs=1e-5)


def test_the_reward_score_weighs_each_completion_of_the_base_by_its_advantage():
    policy, task, sampling = toy.with_adapter(), toy.task(), Sampling(
        completions=6, max_new_tokens=5, temperature=1.0
    )  # fmt: skip
    engine = TransformersEngine(policy)
    scores = membership.reward_scores(
        policy, engine, task, SUMS, group_size=6, temperature=1.0, entropy=EntropySource.research(3)
    )
    prompts = [encode(policy, task.messages(p)) for p in SUMS]
    engine.update(None)
    drawn = engine.generate(prompts, sampling, EntropySource.research(3).rollouts)
    mixed = 0
    for i, problem in enumerate(SUMS):
        found = torch.tensor(rewards(policy, task, problem, drawn[i]), dtype=torch.float64)
        (ratio,) = membership.log_ratios(policy, [(prompts[i], [c.tokens for c in drawn[i]])])
        assert scores[i] == pytest.approx(float((advantages(found) * ratio).mean()), abs=1e-5)
        mixed += 0 < found.sum() < len(found)
    assert mixed  # otherwise every score is 0 and nothing was weighed


def test_an_overfit_model_gives_its_records_away():
    """Random targets can only be memorised, so members stand out from their likes."""
    generator, sums = np.random.default_rng(0), toy.problems(8)
    policy = toy.with_adapter(scale=0)
    words = len(policy.tokenizer)
    targets = {p.id: [tuple(generator.integers(4, words, 4).tolist())] for p in sums}
    slots = [p if i % 2 else None for i, p in enumerate(sums)]
    plan = toy.plan(population=8, expected_batch_size=8, rounds=150, clip_norm=math.inf)
    trainer = Trainer(policy, sft.Imitation(policy, toy.task(sums), targets), slots, plan,
                      EntropySource.research(0), learning_rate=2e-2)  # fmt: skip
    while trainer.rounds_done < plan.rounds:
        trainer.step()
    groups = [(encode(policy, toy.task(sums).messages(p)), targets[p.id]) for p in sums]
    scores = np.array([float(r) for (r,) in membership.log_ratios(policy, groups)])
    assert tradeoff.auc(scores[1::2], scores[::2]).value == 1.0
