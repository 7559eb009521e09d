import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reprolib.errors import ReproError
from reprolib.lm import logprobs
from reprolib.lm.logprobs import length_blocks, log_probabilities, pack, packed_length
from tests import tiny

GROUPS = [
    ((4, 5, 6), ((7, 8, 1), (9,), (4, 4, 4, 4))),
    ((5,), ((6, 1),)),
    ((8, 9, 4, 5, 6), ((1,), (10, 11, 12))),
]


@pytest.fixture(scope="module")
def policy():
    return tiny.with_adapter(dtype=torch.float64)


def one_by_one(model, prompt, completion):
    logits = model(torch.tensor([[*prompt, *completion]])).logits[0].log_softmax(-1)
    return torch.stack([logits[len(prompt) - 1 + k, t] for k, t in enumerate(completion)])


def test_a_packed_group_has_the_log_probabilities_of_its_sequences_alone(policy):
    found = log_probabilities(policy.model, pack(GROUPS))
    for row, (prompt, completions) in zip(found, GROUPS, strict=True):
        expected = torch.cat([one_by_one(policy.model, prompt, c) for c in completions])
        torch.testing.assert_close(row[: len(expected)], expected, rtol=1e-10, atol=1e-12)
        assert torch.equal(row[len(expected) :], torch.zeros_like(row[len(expected) :]))


def test_chunks_of_the_head_change_neither_value_nor_gradient(policy, monkeypatch):
    packed = pack(GROUPS)
    weight = next(p for p in policy.model.parameters() if p.requires_grad)

    def both():
        value = log_probabilities(policy.model, packed)
        return value.detach(), torch.autograd.grad(value.square().sum(), weight)[0]

    whole = both()
    monkeypatch.setattr(logprobs, "HEAD_ENTRIES", 2 * len(policy.tokenizer))
    for a, b in zip(whole, both(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def test_the_packed_row_is_as_long_as_stated():
    packed = pack(GROUPS)
    assert packed.ids.shape[1] == max(packed_length(*g) for g in GROUPS)
    assert packed.valid.sum(1).tolist() == [sum(map(len, completions)) for _, completions in GROUPS]


@given(
    items=st.lists(st.tuples(st.integers(1, 60), st.integers(0, 4)), max_size=30), limit=st.integers(1, 400)
)
def test_blocks_hold_every_item_once_within_the_limit_and_with_little_padding(items, limit):
    lengths, rows = [n for n, _ in items], [r for _, r in items]
    found = list(length_blocks(lengths, limit, rows))
    assert sorted(i for block in found for i in block) == list(range(len(items)))
    for block in found:
        longest, height = max(lengths[i] for i in block), sum(rows[i] for i in block)
        assert len(block) == 1 or longest * height <= limit
        padding = longest * (height - rows[block[-1]]) - sum(lengths[i] * rows[i] for i in block[:-1])
        assert padding <= limit / 16


@pytest.mark.parametrize("group", [((), ((1,),)), ((4,), ()), ((4,), ((),))])
def test_an_empty_part_of_a_group_is_refused(group):
    with pytest.raises(ReproError, match="at least one token"):
        pack([group])
