"""Pairs in tokens: what is public does not depend on the annotation, and bad pairs are refused."""

from dataclasses import replace

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from reprolib.errors import ReproError
from reprolib.learn import preference_pairs as pairs_module
from reprolib.learn.preference_pairs import (
    Pair,
    blocks,
    check_pairs,
    data_digest,
    encode_pair,
    intensity,
    response_log_probabilities,
)
from reprolib.lm.logprobs import packed_length
from reprolib.tasks.preference_pair import ordered
from tests import tiny
from tests.learn.pairs import random_pairs

tokens = st.lists(st.integers(2, 20), min_size=1, max_size=6)
PUBLIC = ("id", "prompt", "first", "second", "randomized", "key")


@pytest.fixture(scope="module")
def policy():
    return tiny.with_adapter(dtype=torch.float64)


def pair(**changes) -> Pair:
    given = {"id": "7", "prompt": (2, 3), "first": (4,), "second": (5, 6), "first_preferred": True}
    return Pair(**given | changes)


def public(p: Pair) -> list:
    return [getattr(p, name) for name in PUBLIC]


@settings(deadline=None)
@given(prompt=tokens, a=tokens, b=tokens, side=st.integers(0, 1))
def test_the_order_of_arrival_changes_nothing_and_the_bit_follows_its_response(prompt, a, b, side):
    assume(a != b)
    one = Pair.ordered(id="0", prompt=prompt, responses=(a, b), preferred=side)
    other = Pair.ordered(id="0", prompt=prompt, responses=(b, a), preferred=1 - side)
    assert one == other
    assert (one.first if one.first_preferred else one.second) == tuple((a, b)[side])


@settings(deadline=None)
@given(prompt=tokens, a=tokens, b=tokens)
def test_the_two_annotations_of_a_text_agree_in_everything_public(prompt, a, b):
    assume(a != b)
    left, right = (Pair.ordered(id="0", prompt=prompt, responses=(a, b), preferred=k) for k in (0, 1))
    assert public(left) == public(right)
    assert data_digest([left]) == data_digest([right])
    assert left.first_preferred != right.first_preferred


def test_a_printed_pair_does_not_show_its_bit():
    assert repr(pair()) == repr(pair(first_preferred=False))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prompt": ()}, "prompt is empty"),
        ({"first": ()}, "first is empty"),
        ({"second": ()}, "second is empty"),
        ({"second": (4,)}, "equal"),
        ({"second": (3,)}, "canonical order"),
        ({"first_preferred": None}, "no tie"),
        ({"first_preferred": 1}, "True or False"),
    ],
)
def test_a_pair_that_is_none_is_refused_by_its_id(changes, message):
    with pytest.raises(ReproError, match=f"pair 7: .*{message}"):
        pair(**changes)


@pytest.mark.parametrize("label", [2, -1, 0.5, None, True, "chosen"])
def test_a_label_that_names_neither_side_is_refused(label):
    with pytest.raises(ReproError, match="pair 7: the label names neither side"):
        Pair.ordered(id="7", prompt=(2,), responses=((3,), (4,)), preferred=label)


def test_three_responses_are_refused():
    with pytest.raises(ReproError, match="3 responses, expected two"):
        Pair.ordered(id="7", prompt=(2,), responses=((3,), (4,), (5,)), preferred=0)


@pytest.mark.parametrize("preferred", ["2", "3"])
def test_text_is_encoded_with_the_chat_template_and_an_end_token(policy, preferred):
    other = "5" if preferred == "2" else "2"
    found = encode_pair(policy, ordered("7", [("user", "1+1=")], preferred=preferred, other=other))
    responses = [found.first, found.second]
    assert policy.tokenizer.decode(list(found.prompt)).replace(" ", "") == "1+1=<sep>"
    assert {policy.tokenizer.decode(r[:-1]) for r in responses} == {preferred, other}
    assert {r[-1] for r in responses} == {policy.tokenizer.eos_token_id}
    chosen = responses[0 if found.first_preferred else 1]
    assert policy.tokenizer.decode(chosen[:-1]) == preferred


def test_texts_that_the_tokenizer_cannot_tell_apart_are_refused(policy):
    with pytest.raises(ReproError, match="pair 7: the two responses are equal"):
        encode_pair(policy, ordered("7", [("user", "1+1=")], preferred="x", other="y"))


def test_a_pair_beyond_the_context_is_refused(policy):
    fits = pair(prompt=(2,) * 60, second=(5,) * 4)
    check_pairs(policy, [fits])
    with pytest.raises(ReproError, match="pair 7: prompt and response have 65 tokens, the context holds 64"):
        check_pairs(policy, [replace(fits, second=(5,) * 5)])


def test_a_token_of_another_tokenizer_is_refused(policy):
    with pytest.raises(ReproError, match="outside the vocabulary of 22"):
        check_pairs(policy, [pair(second=(5, 22))])


def test_log_probabilities_are_those_of_each_response_read_alone(policy):
    batch = random_pairs()
    found = response_log_probabilities(policy.model, batch)
    for row, p in zip(found, batch, strict=True):
        for value, response in zip(row, (p.first, p.second), strict=True):
            logits = policy.model(torch.tensor([[*p.prompt, *response]])).logits[0].log_softmax(-1)
            steps = range(len(p.prompt) - 1, len(p.prompt) + len(response) - 1)
            alone = sum(logits[at, token] for at, token in zip(steps, response, strict=True))
            torch.testing.assert_close(value, alone, rtol=1e-10, atol=1e-10)


@settings(deadline=None)
@given(lengths=st.lists(st.integers(1, 30), min_size=1, max_size=30), limit=st.integers(1, 200))
def test_blocks_hold_every_pair_once_within_the_limit_or_alone(lengths, limit):
    batch = [pair(prompt=(2,) * n) for n in lengths]
    found = list(blocks(batch, limit))
    assert sorted(i for block in found for i in block) == list(range(len(batch)))
    for block in found:
        longest = max(packed_length(batch[i].prompt, (batch[i].first, batch[i].second)) for i in block)
        assert len(block) == 1 or len(block) * longest <= limit


def test_a_policy_at_its_reference_is_of_intensity_one_half():
    values = torch.randn(5, 2, dtype=torch.float64)
    assert torch.equal(intensity(values, values, beta=0.1), torch.full((5,), 0.5, dtype=torch.float64))


@settings(deadline=None)
@given(st.floats(-50, 50), st.floats(-50, 50), st.floats(0.01, 2))
def test_the_intensity_is_how_much_the_second_response_is_preferred(gain, other, beta):
    found = torch.tensor([[gain, other]], dtype=torch.float64)
    psi = intensity(found, torch.zeros(1, 2), beta=beta)
    swapped = intensity(found.flip(1), torch.zeros(1, 2), beta=beta)
    expected = 1 / (1 + torch.tensor(beta * (gain - other), dtype=torch.float64).exp())
    torch.testing.assert_close(psi, expected[None])
    torch.testing.assert_close(psi + swapped, torch.ones(1, dtype=torch.float64))


def test_the_digest_of_a_data_set_depends_on_its_text_and_its_order():
    batch = random_pairs()
    digests = {data_digest(batch), data_digest(batch[::-1]), data_digest(batch[:-1])}
    assert len(digests) == 3
    assert pairs_module.data_digest([replace(p, id="x") for p in batch]) in digests
