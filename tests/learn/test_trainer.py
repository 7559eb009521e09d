"""The loop of Algorithm 1 with every arm's record map."""

import math

import pytest
import torch

from reprolib.errors import ReproError
from reprolib.learn import grpo, sft
from reprolib.learn.trainer import Trainer
from reprolib.lm.generate import TransformersEngine
from reprolib.lm.models import adapter_parameters, base
from reprolib.privacy.mechanism import EntropySource
from reprolib.privacy.plan import Plan
from tests import tiny
from tests.learn.test_grpo import task

ARMS = ["full", "zero", "shuffled", "positive", "filtered", "gold"]


def plan(**changes) -> Plan:
    base = {
        "unit": "one prompt", "population": 6, "expected_batch_size": 3, "rounds": 4, "clip_norm": 0.055,
        "noise_multiplier": 0.5, "delta": 1e-5,
    }  # fmt: skip
    return Plan(**base | changes)


def record_map(policy, arm, entropy, method="batched"):
    engine, toy = TransformersEngine(policy), task()
    if arm == "gold":
        return sft.Imitation(policy, toy, sft.gold_targets(policy, toy.train), method=method)
    if arm == "filtered":
        targets = sft.filtered_targets(
            policy, engine, toy, toy.train, group_size=8, temperature=1.0, entropy=entropy
        )
        return sft.Imitation(policy, toy, targets, method=method)
    return grpo.GroupPolicyGradient(
        policy, engine, toy, group_size=4, temperature=1.0, kl_weight=0.04, advantage=arm, method=method
    )


def trainer(arm="full", entropy=None, records=None, method="batched", **changes) -> Trainer:
    policy, entropy = tiny.with_adapter(scale=0.05), entropy or EntropySource.research(1)
    map_ = record_map(policy, arm, entropy, method)
    return Trainer(policy, map_, records or task().train, plan(**changes), entropy, learning_rate=1e-2)


def weights(run) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in adapter_parameters(run.policy.model).values()])


def finish(run) -> torch.Tensor:
    while run.rounds_done < run.plan.rounds:
        run.step()
    return weights(run)


@pytest.mark.parametrize("arm", ARMS)
def test_a_research_source_replays_a_run_bit_for_bit(arm):
    assert torch.equal(finish(trainer(arm)), finish(trainer(arm)))


def test_a_private_source_never_replays():
    assert not torch.equal(*(finish(trainer(entropy=EntropySource.private())) for _ in range(2)))


@pytest.mark.parametrize("arm", ARMS)
def test_changing_one_record_moves_the_round_by_at_most_clip_norm(arm):
    """Add or remove slot 2 with everything else, coins included, the same."""
    kwargs = {"expected_batch_size": 6, "noise_multiplier": 0.0, "rounds": 1}
    present = trainer(arm, **kwargs)
    sums = []
    for row_filter in (lambda i: True, lambda i: i != 2):
        rows = torch.cat(
            [
                torch.cat(list(present.record_map.vectors([p], EntropySource.research(int(p.id)))))
                for i, p in enumerate(task().train)
                if row_filter(i)
            ]
        )
        present.sum.add(rows)
        sums.append(present.sum._sum.clone())
        present.sum._sum.zero_()
    assert float((sums[0] - sums[1]).norm()) <= 0.055 * (1 + 1e-12)


def test_an_absent_record_is_never_read():
    class Poison:
        def __getattr__(self, name):
            raise AssertionError("an absent record was read")

    problems = list(task().train)
    problems[2] = None
    finish(trainer(records=problems, expected_batch_size=6))
    with pytest.raises((AssertionError, TypeError)):
        finish(trainer(records=[*problems[:2], Poison(), *problems[3:]], expected_batch_size=6))


def test_an_empty_round_still_steps_with_noise():
    run = trainer(records=[None] * 6)
    before = weights(run)
    run.step()
    assert not torch.equal(before, weights(run))
    assert run.rounds_done == 1


def test_without_sampling_noise_and_clipping_a_step_is_that_of_the_flat_mean():
    """Appendix B, non-private equivalence: every sequence has the same weight 1/(nG)."""
    policy, entropy = tiny.with_adapter(dtype=torch.float64), EntropySource.research(1)
    map_ = record_map(policy, "full", entropy)
    p = plan(expected_batch_size=6, noise_multiplier=0.0, clip_norm=math.inf, rounds=1)
    run = Trainer(policy, map_, task().train, p, EntropySource.research(1), learning_rate=1e-2)
    groups = map_.groups(task().train, EntropySource.research(1))
    update = run.step()
    loss = torch.zeros((), dtype=torch.float64)
    twin = tiny.with_adapter(dtype=torch.float64)
    for group in groups:
        for completion, advantage in zip(group.completions, group.advantages, strict=True):
            loss = loss + sequence_loss(twin, group.prompt, completion, advantage) / (6 * 4)
    flat = torch.autograd.grad(loss, list(adapter_parameters(twin.model).values()))
    assert float((torch.cat([g.flatten() for g in flat]) - update).abs().max()) < 1e-12


def sequence_loss(policy, prompt, completion, advantage):
    ids = torch.tensor([[*prompt, *completion]])
    at = torch.arange(len(prompt) - 1, len(prompt) + len(completion) - 1)
    targets = torch.tensor(completion)
    with torch.no_grad(), base(policy):
        reference = policy.model(ids).logits[0].log_softmax(-1)[at, targets]
    logp = policy.model(ids).logits[0].log_softmax(-1)[at, targets]
    return grpo.token_loss(logp, reference, torch.tensor(advantage).double(), kl_weight=0.04).mean()


def test_a_record_whose_gradient_is_not_finite_counts_as_zero_and_the_others_stay():
    class Broken:
        def __init__(self, inner):
            self.inner, self.dimension = inner, inner.dimension

        def vectors(self, records, entropy):
            for rows in self.inner.vectors(records, entropy):
                rows = rows.clone()
                rows[0, 0] = math.nan
                yield rows

    run = trainer("gold", noise_multiplier=0.0, expected_batch_size=6)
    run.record_map = Broken(run.record_map)
    update = run.step()
    assert update.isfinite().all()
    assert float(update.norm()) > 0


def test_an_update_that_is_not_finite_is_passed_over_and_the_round_counts():
    run = trainer()
    before = weights(run)
    run.update.apply(torch.full((run.record_map.dimension,), math.nan, dtype=torch.float64))
    assert torch.equal(before, weights(run))


@pytest.mark.parametrize("arm", ARMS)
def test_both_gradient_methods_train_to_the_same_weights(arm):
    a, b = (trainer(arm, method=method) for method in ("batched", "single"))
    a.step(), b.step()
    torch.testing.assert_close(weights(a), weights(b), rtol=1e-3, atol=1e-5)


def test_a_restored_run_ends_where_the_uninterrupted_one_does():
    whole = finish(trainer())
    first = trainer()
    first.step()
    first.step()
    second = trainer()
    second.restore(first.state())
    assert torch.equal(finish(second), whole)


def test_slots_must_match_the_population():
    with pytest.raises(ReproError, match="5 slots"):
        trainer(records=task().train[:5])


def test_gold_imitation_generates_nothing_and_calls_no_verifier():
    class Forbidden:
        def __getattr__(self, name):
            raise AssertionError(f"{name} was asked for")

    policy = tiny.with_adapter()
    toy = task(verifier=Forbidden())
    map_ = sft.Imitation(policy, toy, sft.gold_targets(policy, toy.train))
    assert sum(map(len, map_.vectors(toy.train, EntropySource.private()))) == 6


def test_filtered_targets_come_from_the_base_and_pass_the_verifier():
    moved, fresh = tiny.with_adapter(scale=1.0), tiny.with_adapter(scale=0.0)
    found = [
        sft.filtered_targets(
            p, TransformersEngine(p), task(), task().train, group_size=8, temperature=1.0,
            entropy=EntropySource.research(2),
        )
        for p in (moved, fresh)
    ]  # fmt: skip
    assert found[0] == found[1]
    kept = [(p, t) for p in task().train for t in found[0][p.id]]
    assert kept
    assert all(p.reference in moved.tokenizer.decode(t, skip_special_tokens=True) for p, t in kept)


def test_a_contributor_is_clipped_once_for_all_prompts():
    policy = tiny.with_adapter()
    map_ = record_map(policy, "gold", EntropySource.research(0))
    people = [tuple(task().train[i : i + 3]) for i in (0, 3)]
    p = plan(unit="one contributor", population=2, expected_batch_size=2, noise_multiplier=0.0, rounds=1)
    run = Trainer(policy, map_, people, p, EntropySource.research(0), learning_rate=1e-2)
    update = run.step()
    assert float(update.norm()) * 2 <= 2 * 0.055 * (1 + 1e-12)
    assert float(update.norm()) > 0
