"""Equations 2, 3 and 7, and the rungs of the ladder."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reprolib.errors import ReproError
from reprolib.learn import grpo
from reprolib.lm.generate import Completion, TransformersEngine
from reprolib.privacy.mechanism import EntropySource
from reprolib.tasks.datasets import Problem, Task
from tests import tiny

rewards = st.lists(st.sampled_from([0.0, 1.0]), min_size=2, max_size=12)


class AnswerIs:
    """Rewards a completion that contains the reference."""

    def extract(self, response, *, capped=False):
        return response

    def reward(self, response, reference, *, capped=False):
        return int(reference in response)


def task(**changes) -> Task:
    problems = tuple(
        Problem(id=str(i), question=f"{i}+1=", reference=str(i + 1), solution=str(i + 1)) for i in range(6)
    )
    given = {
        "name": "toy", "tier": "smoke", "train": problems, "evaluation": problems, "selection": (),
        "system": None, "verifier": AnswerIs(), "rescorer": None, "max_new_tokens": 5,
    }  # fmt: skip
    return Task(**given | changes)


def record_map(policy=None, toy=None, **changes) -> grpo.GroupPolicyGradient:
    policy = policy or tiny.with_adapter()
    given = {"group_size": 4, "temperature": 1.0, "kl_weight": 0.04} | changes
    return grpo.GroupPolicyGradient(policy, TransformersEngine(policy), toy or task(), **given)


@given(values=rewards)
def test_advantages_are_centred_and_scaled_by_the_sample_deviation(values):
    r = torch.tensor(values, dtype=torch.float64)
    a = grpo.advantages(r)
    assert float(a.sum().abs()) < 1e-9
    deviation = (((r - r.mean()) ** 2).sum() / (len(r) - 1)).sqrt()
    torch.testing.assert_close(a * (deviation + 1e-4), r - r.mean())


@given(values=rewards)
def test_advantages_read_nothing_but_the_group(values):
    r = torch.tensor(values)
    assert torch.equal(grpo.advantages(r), grpo.advantages(r.clone()))
    assert torch.equal(grpo.advantages(r.flip(0)), grpo.advantages(r).flip(0))


@pytest.mark.parametrize("reward", [0.0, 1.0])
def test_a_group_of_equal_rewards_has_advantages_of_exactly_zero(reward):
    for size in (2, 3, 7, 8):
        assert torch.equal(grpo.advantages(torch.full((size,), reward)), torch.zeros(size))


def test_a_group_of_one_is_refused():
    with pytest.raises(ReproError, match="group_size = 1"):
        grpo.advantages(torch.ones(1))
    with pytest.raises(ReproError, match="group_size = 1"):
        record_map(group_size=1)


@given(u=st.floats(-8, 0), v=st.floats(-8, 0))
def test_the_divergence_estimate_is_never_negative_and_zero_at_equality(u, v):
    u, v = torch.tensor(u, dtype=torch.float64), torch.tensor(v, dtype=torch.float64)
    assert float(grpo.kl(u, v)) >= -1e-12
    assert float(grpo.kl(u, u)) == 0


def test_the_divergence_estimate_is_unbiased_for_the_kl_divergence():
    p, q = torch.tensor([0.2, 0.3, 0.5]).double(), torch.tensor([0.6, 0.1, 0.3]).double()
    estimate = (p * grpo.kl(p.log(), q.log())).sum()
    torch.testing.assert_close(estimate, (p * (p / q).log()).sum())


def test_the_gradient_of_the_token_loss_is_that_of_the_policy_gradient():
    logp = torch.tensor([-1.0, -2.0], dtype=torch.float64, requires_grad=True)
    reference, advantage = torch.tensor([-1.5, -1.0]).double(), torch.tensor([0.7, -0.3]).double()
    loss = grpo.token_loss(logp, reference, advantage, kl_weight=0.04)
    torch.testing.assert_close(loss, -advantage + 0.04 * grpo.kl(logp, reference))
    (found,) = torch.autograd.grad(loss.sum(), logp)
    torch.testing.assert_close(found, -advantage + 0.04 * (1 - (reference - logp.detach()).exp()))


def test_the_ladder_goes_from_nothing_to_the_group_normalised_advantage():
    r, order = torch.tensor([1.0, 0.0, 0.0, 1.0]), torch.tensor([1, 2, 0, 3])
    assert torch.equal(grpo.ladder(r, "zero", order), torch.zeros(4))
    assert torch.equal(grpo.ladder(r, "positive", order), r)
    assert torch.equal(grpo.ladder(r, "full", order), grpo.advantages(r))
    shuffled = grpo.ladder(r, "shuffled", order)
    assert torch.equal(shuffled.sort().values, grpo.advantages(r).sort().values)
    assert not torch.equal(shuffled, grpo.advantages(r))


def test_shuffled_advantages_carry_no_information_about_correctness():
    policy = tiny.with_adapter()
    map_ = record_map(policy, advantage="shuffled", kl_weight=0.0)
    end = policy.tokenizer.eos_token_id
    right = Completion((*policy.tokenizer.encode("3"), end), capped=False)
    wrong = Completion((*policy.tokenizer.encode("7"), end), capped=False)
    entropy = EntropySource.research(0)
    problem = task().train[2]
    first = torch.tensor(
        [map_._advantages(problem, [right, wrong, wrong, wrong], entropy)[0] for _ in range(2000)]
    )
    assert abs(float(first.mean())) < 5 * float(first.std()) / 2000**0.5
    assert float((first > 0).double().mean()) == pytest.approx(0.25, abs=0.05)


@pytest.mark.parametrize(
    ("change", "message"),
    [({"kl_weight": -1.0}, "kl_weight = -1.0"), ({"advantage": "most"}, "advantage = 'most'")],
)
def test_parameters_out_of_range_are_refused(change, message):
    with pytest.raises(ReproError, match=message):
        record_map(**change)


def test_a_reward_that_is_neither_0_nor_1_is_refused_and_named():
    class Generous(AnswerIs):
        def reward(self, response, reference, *, capped=False):
            return 0.5

    policy = tiny.with_adapter()
    with pytest.raises(ReproError, match="problem 2: reward"):
        grpo.rewards(policy, task(verifier=Generous()), task().train[2], [Completion((5, 1), capped=False)])
