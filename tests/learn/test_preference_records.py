"""The record map against a slow oracle: one sequence at a time, the loss by autograd."""

from dataclasses import replace

import pytest
import torch

from reprolib.errors import ReproError
from reprolib.learn.preference_loss import (
    DPO,
    SFT,
    Debiased,
    PrivSFT,
    Randomized,
    algorithm_1_loss,
    debiased_loss,
    dpo_loss,
)
from reprolib.learn.preference_pairs import Pair
from reprolib.learn.preference_records import PairGradients, gradient, preference_axis, trained_parameters
from reprolib.learn.preference_reference import Reference
from reprolib.learn.preference_theory import GivenCoins
from reprolib.lm.models import adapter_parameters, base
from reprolib.privacy.mechanism import EntropySource
from reprolib.privacy.preference import Duchi, PrivDPO
from tests import tiny
from tests.learn.pairs import random_pairs

BETA, EPSILON = 0.3, 1.0
PAIRS = random_pairs(5)
NOISY = [replace(p, randomized=EPSILON) for p in PAIRS]
FLIPS = (True, False, False, True, False)
ENTROPY = EntropySource.private()


def full(dtype=torch.float64):
    """A policy that trains all its weights, away from its reference."""
    policy = tiny.policy(dtype=dtype, seed=3)
    policy.model.requires_grad_(True)
    return policy


def adapted():
    return tiny.with_adapter(dtype=torch.float64)


@pytest.fixture(scope="module", params=[adapted, full])
def policy(request):
    return request.param()


@pytest.fixture(scope="module")
def reference():
    return Reference.of(tiny.policy(dtype=torch.float64), PAIRS)


def log_probability(policy, prompt, response) -> torch.Tensor:
    logits = policy.model(torch.tensor([[*prompt, *response]])).logits[0].log_softmax(-1)
    steps = torch.arange(len(prompt) - 1, len(prompt) + len(response) - 1)
    return logits[steps, torch.tensor(response)].sum()


def oracle(policy, reference, pair: Pair, loss) -> torch.Tensor:
    """Gradient of a loss of (log-ratio of the preferred, that of the other, log-probability of both)."""
    values = [log_probability(policy, pair.prompt, r) for r in (pair.first, pair.second)]
    ratios = [v - r for v, r in zip(values, reference([pair])[0], strict=True)]
    preferred, other = (0, 1) if pair.first_preferred else (1, 0)
    value = loss(ratios[preferred] - ratios[other], values[preferred], values[other])
    grads = torch.autograd.grad(value.sum(), trained_parameters(policy))
    return torch.cat([g.flatten() for g in grads])


def total(record_map, pairs, entropy=ENTROPY) -> torch.Tensor:
    return torch.cat(list(record_map.vectors(pairs, entropy))).sum(0)


def record_map(policy, method, reference, **kwargs) -> PairGradients:
    return PairGradients(policy, method, beta=BETA, reference=reference, **kwargs)


METHODS = {
    "dpo": (DPO(), PAIRS, lambda m, w, o: dpo_loss(m, beta=BETA)),
    "debiased": (Debiased(EPSILON), NOISY, lambda m, w, o: debiased_loss(m, beta=BETA, epsilon=EPSILON)),
    "dpo on randomised bits": (DPO(), NOISY, lambda m, w, o: dpo_loss(m, beta=BETA)),
    "sft": (SFT(), PAIRS, lambda m, w, o: -w),
    "private sft": (PrivSFT(), PAIRS, lambda m, w, o: -(w + o) / 2),
}


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("per_record", [False, True])
def test_a_methods_sum_is_the_gradient_of_its_loss(policy, reference, name, per_record):
    method, pairs, loss = METHODS[name]
    found = total(record_map(policy, method, reference, per_record=per_record), pairs)
    expected = torch.stack([oracle(policy, reference, p, loss) for p in pairs]).sum(0)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)


def test_privdpos_sum_is_the_gradient_of_algorithm_1(policy, reference):
    method = Randomized(PrivDPO(EPSILON))
    found = total(record_map(policy, method, reference, batch_tokens=1), PAIRS, GivenCoins(FLIPS))
    lengths = sorted(PAIRS, key=lambda p: len(p.prompt) + len(p.first) + len(p.second))
    expected = torch.zeros_like(found)
    for pair, flip in zip(lengths, FLIPS, strict=True):  # blocks of one pair, in the order of their lengths
        kept = torch.tensor([not flip])
        expected += oracle(
            policy, reference, pair,
            lambda m, w, o, kept=kept: algorithm_1_loss(m[None], kept, beta=BETA, epsilon=EPSILON),
        )  # fmt: skip
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("limit", [1, 40, 10**6])
def test_small_blocks_sum_to_the_same_gradient(policy, reference, limit):
    whole = total(record_map(policy, DPO(), reference), PAIRS)
    parts = total(record_map(policy, DPO(), reference, batch_tokens=limit), PAIRS)
    torch.testing.assert_close(parts, whole, rtol=1e-9, atol=1e-11)


def test_rows_are_the_pairs_own_gradients_each_once(policy, reference):
    rows = torch.cat(list(record_map(policy, DPO(), reference, per_record=True).vectors(PAIRS, ENTROPY)))
    alone = torch.stack([total(record_map(policy, DPO(), reference), [p]) for p in PAIRS])
    assert rows.shape == alone.shape
    nearest = torch.cdist(rows, alone).argmin(1)
    assert sorted(nearest.tolist()) == list(range(len(PAIRS)))
    torch.testing.assert_close(rows, alone[nearest], rtol=1e-9, atol=1e-11)


def test_every_gradient_lies_on_the_preference_axis(policy, reference):
    """Section 4.2, with the coefficient psi, and psi - 1 for the other annotation: they differ by -beta v."""
    for pair in PAIRS:
        axis = preference_axis(policy, pair)
        ours, theirs = (
            total(record_map(policy, DPO(), reference), [replace(pair, first_preferred=bit)])
            for bit in (True, False)
        )
        torch.testing.assert_close(ours - theirs, -BETA * axis, rtol=1e-9, atol=1e-11)
        for side in (ours, theirs):
            cosine = torch.dot(side, axis) / (side.norm() * axis.norm())
            assert float(cosine.abs()) == pytest.approx(1, abs=1e-12)


def test_private_sft_has_one_gradient_for_both_annotations(policy):
    for pair in PAIRS:
        ours, theirs = (
            total(PairGradients(policy, PrivSFT()), [replace(pair, first_preferred=bit)])
            for bit in (True, False)
        )
        assert torch.equal(ours, theirs)


def test_the_adapter_is_what_is_trained_where_there_is_one():
    policy = adapted()
    expected = sum(p.numel() for p in adapter_parameters(policy.model).values())
    assert PairGradients(policy, SFT()).dimension == expected
    policy = full()
    assert PairGradients(policy, SFT()).dimension == sum(p.numel() for p in policy.model.parameters())


def test_nothing_to_train_is_refused():
    frozen = tiny.policy()
    frozen.model.requires_grad_(False)
    with pytest.raises(ReproError, match="attach an adapter"):
        PairGradients(frozen, SFT())
    policy = adapted()
    with base(policy), pytest.raises(ReproError, match="no trainable weights"):
        PairGradients(policy, SFT())


def test_a_method_that_reads_a_reference_is_refused_without_one():
    with pytest.raises(ReproError, match=r"expected Reference\.of"):
        PairGradients(adapted(), DPO())


@pytest.mark.parametrize("beta", [0, -1, float("nan"), float("inf")])
def test_beta_out_of_range_is_refused(beta):
    with pytest.raises(ReproError, match="beta"):
        PairGradients(adapted(), SFT(), beta=beta)


def test_pairs_that_the_method_refuses_have_no_gradient(reference):
    with pytest.raises(ReproError, match="is an annotation"):
        total(record_map(adapted(), Debiased(EPSILON), reference), PAIRS)


def test_a_pair_unknown_to_the_reference_has_no_gradient(reference):
    with pytest.raises(ReproError, match="no reference log-probabilities"):
        total(record_map(adapted(), Randomized(Duchi(1.0)), reference), random_pairs(1, seed=9))


def test_weights_of_any_dtype_follow_the_model(reference):
    policy = full(torch.bfloat16)
    found = list(record_map(policy, DPO(), reference).vectors(PAIRS, ENTROPY))
    assert {row.dtype for row in found} == {torch.bfloat16}
    assert all(bool(row.isfinite().all()) for row in found)


def test_one_pairs_gradient_is_linear_in_its_weights(policy):
    weights = torch.tensor([0.3, -0.7], dtype=torch.float64)
    parts = [gradient(policy, PAIRS[0], torch.eye(2, dtype=torch.float64)[k]) for k in (0, 1)]
    expected = weights[0] * parts[0] + weights[1] * parts[1]
    torch.testing.assert_close(gradient(policy, PAIRS[0], weights), expected, rtol=1e-9, atol=1e-11)
