"""The two ways to a record's gradient against a slow oracle: one sequence at a time, nothing shared."""

from functools import partial

import pytest
import torch

from reprolib.errors import ReproError
from reprolib.learn import grpo, sft
from reprolib.learn.records import Group, GroupGradients, merged
from reprolib.lm.models import adapter_parameters, attach_lora, base
from tests import tiny

BETA = 0.04
LOSS = partial(grpo.token_loss, kl_weight=BETA)


def random_group(generator, completions=8, advantages=None) -> Group:
    def tokens(low, high):
        length = int(torch.randint(low, high, (1,), generator=generator))
        return tuple(torch.randint(2, 20, (length,), generator=generator).tolist())

    drawn = tuple(tokens(1, 6) for _ in range(completions))
    given = advantages or torch.randn(completions, generator=generator).tolist()
    return Group(tokens(2, 7), drawn, tuple(given))


@pytest.fixture
def groups():
    generator = torch.Generator().manual_seed(5)
    return [random_group(generator) for _ in range(5)]


@pytest.fixture(scope="module")
def policy():
    return tiny.with_adapter(dtype=torch.float64)


def oracle(policy, group: Group, beta=BETA) -> torch.Tensor:
    """Equation 7 for one group, sequence by sequence, from the model's plain logits."""
    loss = torch.zeros((), dtype=torch.float64)
    for completion, advantage in zip(group.completions, group.advantages, strict=True):
        ids = torch.tensor([[*group.prompt, *completion]])
        with torch.no_grad(), base(policy):
            reference = policy.model(ids).logits.log_softmax(-1)
        logp = policy.model(ids).logits.log_softmax(-1)
        for k, token in enumerate(completion):
            at = len(group.prompt) + k - 1
            u, v = logp[0, at, token], reference[0, at, token]
            divergence = (v - u).exp() - (v - u) - 1
            term = (u - u.detach()).exp() * advantage - beta * divergence
            loss = loss - term / (len(completion) * len(group.completions))
    gradients = torch.autograd.grad(loss, list(adapter_parameters(policy.model).values()))
    return torch.cat([g.flatten() for g in gradients])


def rows(policy, records, **kwargs) -> torch.Tensor:
    """Vectors in the records' order."""
    gradients = GroupGradients(
        policy, kwargs.pop("loss", LOSS), reference=kwargs.pop("reference", True), **kwargs
    )
    return gradients.in_order(records)


@pytest.mark.parametrize("method", ["batched", "single"])
def test_each_way_gives_the_gradient_of_equation_7(policy, groups, method):
    found = rows(policy, [[g] for g in groups], method=method)
    for row, group in zip(found, groups, strict=True):
        torch.testing.assert_close(row, oracle(policy, group), rtol=1e-10, atol=1e-12)


def test_merged_and_separate_weights_give_one_gradient(policy, groups):
    gradients = GroupGradients(policy, LOSS, reference=True)
    assert gradients.merge
    merged_rows = gradients.in_order([[g] for g in groups])
    gradients.merge = False
    separate = gradients.in_order([[g] for g in groups])
    torch.testing.assert_close(merged_rows, separate, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_in_half_precision_both_ways_agree_to_its_rounding(groups, dtype):
    policy = tiny.with_adapter(dtype=dtype)
    batched, single = (rows(policy, [[g] for g in groups], method=m) for m in ("batched", "single"))
    assert batched.dtype == single.dtype == torch.float32
    assert float((batched - single).norm() / single.norm()) < 20 * torch.finfo(dtype).eps


def test_a_batch_gives_the_sum_of_its_records_alone(policy, groups):
    together = torch.cat(list(GroupGradients(policy, LOSS, reference=True)([[g] for g in groups])))
    alone = rows(policy, [[g] for g in groups])
    torch.testing.assert_close(together.sum(0), alone.sum(0), rtol=1e-10, atol=1e-12)


def test_equal_completions_give_the_gradient_that_each_of_them_gives_alone(policy, groups):
    once = groups[0]
    drawn = once.completions[:3] + once.completions[:2] + once.completions[:2] + once.completions[:1]
    group = Group(once.prompt, drawn, once.advantages)
    assert (len(merged(group).completions), sum(merged(group).counts)) == (len(set(drawn)), len(drawn))
    torch.testing.assert_close(rows(policy, [[group]])[0], oracle(policy, group), rtol=1e-10, atol=1e-12)


def test_vectors_come_in_the_records_order_however_they_share_blocks(policy, groups):
    together = rows(policy, [[g] for g in groups], batch_tokens=64)
    for row, group in zip(together, groups, strict=True):
        torch.testing.assert_close(row, oracle(policy, group), rtol=1e-10, atol=1e-12)


def test_small_blocks_give_every_record_once(policy, groups):
    small = list(GroupGradients(policy, LOSS, reference=True, batch_tokens=64)([[g] for g in groups]))
    assert len(small) > 1
    assert sum(map(len, small)) == len(groups)
    torch.testing.assert_close(
        torch.cat(small).sum(0), rows(policy, [[g] for g in groups]).sum(0), rtol=1e-10, atol=1e-12
    )


@pytest.mark.parametrize("chunk", [1, 2, 4, 8])
def test_chunks_of_completions_accumulate_to_the_same_gradient(policy, groups, chunk):
    whole = rows(policy, [[g] for g in groups], method="single")
    parts = rows(policy, [[g] for g in groups], method="single", chunk=chunk)
    torch.testing.assert_close(parts, whole, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("method", ["batched", "single"])
def test_a_contributor_is_the_mean_of_its_prompts(policy, groups, method):
    together = rows(policy, [groups[:3]], method=method)[0]
    alone = rows(policy, [[g] for g in groups[:3]], method=method)
    torch.testing.assert_close(together, alone.mean(0), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("method", ["batched", "single"])
def test_changing_the_rewards_of_one_prompt_leaves_another_bit_identical(policy, groups, method):
    changed = [
        groups[0],
        *(Group(g.prompt, g.completions, tuple(1 - a for a in g.advantages)) for g in groups[1:]),
    ]
    same_length = Group(groups[0].prompt, groups[0].completions, groups[0].advantages)

    def first(batch):
        blocks = GroupGradients(policy, LOSS, reference=True, method=method)([[g] for g in batch])
        vectors = torch.cat(list(blocks))
        alone = rows(policy, [[same_length]], method=method)[0]
        return vectors[int((vectors - alone).abs().sum(1).argmin())]

    assert torch.equal(first(groups), first(changed))


def test_constant_rewards_leave_only_the_same_kl_gradient(policy, groups):
    g = groups[0]
    vectors = []
    for reward in (0.0, 1.0):
        advantages = grpo.advantages(torch.full((8,), reward))
        assert torch.equal(advantages, torch.zeros(8))
        vectors.append(rows(policy, [[Group(g.prompt, g.completions, tuple(advantages.tolist()))]])[0])
    assert torch.equal(*vectors)
    assert vectors[0].isfinite().all()
    assert float(vectors[0].norm()) > 0


def test_at_the_base_constant_rewards_have_no_gradient_at_all(groups):
    fresh = attach_lora(tiny.policy(dtype=torch.float64), rank=2, alpha=4, seed=0)
    g = groups[0]
    vector = rows(fresh, [[Group(g.prompt, g.completions, (0.0,) * 8)]])
    assert float(vector.abs().max()) < 1e-12


@pytest.mark.parametrize("method", ["batched", "single"])
def test_a_record_without_completions_is_the_zero_vector_and_stays(policy, groups, method):
    empty = Group(groups[0].prompt, (), ())
    found = list(GroupGradients(policy, LOSS, reference=True, method=method)([[empty], [groups[1]]]))
    norms = sorted(float(row.norm()) for block in found for row in block)
    assert len(norms) == 2
    assert norms[0] == 0 < norms[1]


def test_supervised_loss_is_the_policy_loss_with_advantage_one(policy, groups):
    targets = [Group(g.prompt, g.completions, (1.0,) * 8) for g in groups]
    likelihood = rows(policy, [[g] for g in targets], loss=sft.token_loss, reference=False)
    reinforced = rows(
        policy, [[g] for g in targets], loss=partial(grpo.token_loss, kl_weight=0), reference=False
    )
    torch.testing.assert_close(likelihood, reinforced, rtol=1e-10, atol=1e-12)


def test_an_adapter_map_used_twice_in_a_forward_pass_is_refused(groups):
    shared = tiny.with_adapter()
    layers = shared.model.get_base_model().model.layers
    mlp, once = layers[0].mlp, layers[0].mlp.forward
    mlp.forward = lambda x: once(once(x))
    with pytest.raises(ReproError, match="twice"):
        rows(shared, [[groups[0]]])


def test_vectors_follow_the_order_of_the_adapter_parameters(policy, groups):
    names = adapter_parameters(policy.model)
    row = rows(policy, [[groups[0]]])[0]
    expected = oracle(policy, groups[0])
    offset = 0
    for parameter in names.values():
        part = slice(offset, offset + parameter.numel())
        torch.testing.assert_close(row[part], expected[part], rtol=1e-10, atol=1e-12)
        offset += parameter.numel()
    assert offset == len(row)
