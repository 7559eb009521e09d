import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from reprolib.errors import ReproError
from reprolib.lm.generate import Sampling, TransformersEngine, choose
from tests import tiny

PROMPTS = [(4, 5, 6), (7, 8), (9, 4, 4), (5,), (6, 6)]


def sampling(**changes) -> Sampling:
    return Sampling(**{"completions": 4, "max_new_tokens": 6, "temperature": 0.7} | changes)


@pytest.fixture(scope="module")
def policy():
    return tiny.with_adapter()


def engine(policy, **kwargs) -> TransformersEngine:
    made = TransformersEngine(policy, **kwargs)
    made.update(policy)
    return made


def uniform(seed=0):
    return np.random.default_rng(seed).random


def test_greedy_completions_are_those_of_transformers_generate(policy):
    ours = engine(policy).generate(PROMPTS, sampling(completions=1, temperature=0.0), None)
    for prompt, (completion,) in zip(PROMPTS, ours, strict=True):
        theirs = policy.model.generate(
            input_ids=torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=6, do_sample=False,
        )  # fmt: skip
        assert theirs[0, len(prompt) :].tolist() == list(completion.tokens)


def test_completions_end_at_the_end_token_or_at_the_cap(policy):
    end = policy.tokenizer.eos_token_id
    drawn = engine(policy).generate(PROMPTS * 20, sampling(), uniform())
    flat = [c for group in drawn for c in group]
    assert {c.capped for c in flat} == {True, False}
    for c in flat:
        assert (end in c.tokens) != c.capped
        assert end not in c.tokens[:-1]
        assert len(c.tokens) == 6 if c.capped else 1 <= len(c.tokens) <= 6


def test_what_else_is_in_the_batch_does_not_change_a_completion(policy):
    draw = engine(policy).generate
    draws = np.random.default_rng(3).random((5, 4, 6))
    together = draw(PROMPTS, sampling(), lambda n: draws.ravel())
    for i, prompt in enumerate(PROMPTS):
        assert draw([prompt], sampling(), lambda n, i=i: draws[i].ravel()) == [together[i]]
    small = engine(policy, batch_tokens=1)
    assert small.generate(PROMPTS, sampling(), lambda n: draws.ravel()) == together


@pytest.mark.parametrize(("temperature", "rows"), [(1e-6, 2), (50.0, 16)])
def test_completions_that_agree_so_far_share_a_row_of_the_forward_pass(policy, temperature, rows):
    made, seen = engine(policy), []
    made._model.base_model.register_forward_hook(lambda _, __, output: seen.append(len(output[0])))
    asked = sampling(completions=8, max_new_tokens=4, temperature=temperature)
    made.generate([PROMPTS[0], PROMPTS[2]], asked, uniform())
    assert seen[0] == 2
    assert 2 <= max(seen) <= rows
    assert (max(seen) > 2) == (rows > 2)


def test_sampled_frequencies_are_the_softmax_at_the_temperature(policy):
    logits = policy.model(torch.tensor([[4, 5, 6]])).logits[0, -1].detach()
    drawn = engine(policy).generate([(4, 5, 6)], sampling(completions=20_000, max_new_tokens=1), uniform(1))
    counts = np.bincount([c.tokens[0] for c in drawn[0]], minlength=len(logits))
    expected = (logits.double() / 0.7).softmax(-1).numpy() * 20_000
    assert expected.min() > 5
    assert stats.chisquare(counts, expected).pvalue > 1e-4


@given(u=st.floats(0, 1, exclude_max=True), logits=st.lists(st.floats(-30, 30), min_size=1, max_size=8))
def test_a_token_is_chosen_where_the_cumulative_probability_passes_the_draw(u, logits):
    row = torch.tensor([logits], dtype=torch.float64)
    token = int(choose(row, torch.tensor([0]), 1.0, torch.tensor([u], dtype=torch.float64)))
    cumulative = row.softmax(-1).cumsum(-1)[0]
    assert float(cumulative[token]) >= u * float(cumulative[-1]) * (1 - 1e-12)
    assert token == 0 or float(cumulative[token - 1]) <= u * float(cumulative[-1])


def test_a_token_of_probability_zero_is_never_chosen():
    row = torch.tensor([[-torch.inf, 0.0, -torch.inf]])
    for u in (0.0, 0.5, 1 - 2**-53):
        assert int(choose(row, torch.tensor([0]), 1.0, torch.tensor([u], dtype=torch.float64))) == 1


@pytest.mark.parametrize("change", [{"completions": 0}, {"max_new_tokens": 0}, {"temperature": -1.0}])
def test_a_sampling_out_of_range_is_refused(change):
    with pytest.raises(ReproError, match="expected at least"):
        sampling(**change)


def test_an_empty_prompt_is_refused(policy):
    with pytest.raises(ReproError, match="empty"):
        engine(policy).generate([()], sampling(), uniform())


def test_sampling_without_hidden_randomness_is_refused(policy):
    with pytest.raises(ReproError, match="uniform draws"):
        engine(policy).generate(PROMPTS, sampling(), None)


def test_the_engine_draws_from_the_base_until_it_is_given_the_adapter():
    moved = tiny.with_adapter(scale=1.0)
    greedy = sampling(completions=1, temperature=0.0)
    plain = TransformersEngine(tiny.policy()).generate(PROMPTS, greedy, None)
    made = TransformersEngine(moved)
    before = made.generate(PROMPTS, greedy, None)
    made.update(moved)
    adapted = made.generate(PROMPTS, greedy, None)
    made.update(None)
    assert before == plain == made.generate(PROMPTS, greedy, None)
    assert adapted != plain


def test_merging_leaves_the_policy_bit_for_bit_as_it_was():
    moved = tiny.with_adapter()
    before = {n: w.clone() for n, w in moved.model.state_dict().items()}
    engine(moved).generate(PROMPTS, sampling(), uniform())
    assert all(torch.equal(w, before[n]) for n, w in moved.model.state_dict().items())
