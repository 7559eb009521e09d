import pytest
from hypothesis import given
from hypothesis import strategies as st

from reprolib.errors import ReproError
from reprolib.tasks.datasets import normalised
from reprolib.tasks.overlap import jaccard, near_duplicates, words
from reprolib.tasks.sources import SOURCES, read

TEXTS = st.lists(st.lists(st.sampled_from("abcdefghij"), max_size=12).map(" ".join), max_size=8)


@given(first=TEXTS, second=TEXTS, threshold=st.sampled_from([0.1, 0.3, 0.5, 0.7, 0.75, 0.8, 0.9, 1.0]))
def test_the_index_finds_what_comparing_every_pair_finds(first, second, threshold):
    every = [
        (i, j, jaccard(words(a), words(b)))
        for i, a in enumerate(first)
        for j, b in enumerate(second)
        if jaccard(words(a), words(b)) >= threshold
    ]
    assert [tuple(match) for match in near_duplicates(first, second, threshold=threshold)] == every


@given(first=st.frozensets(st.integers(0, 9)), second=st.frozensets(st.integers(0, 9)))
def test_jaccard_is_symmetric_between_0_and_1_and_1_for_equal_sets(first, second):
    assert jaccard(first, second) == jaccard(second, first)
    assert 0 <= jaccard(first, second) <= 1
    assert (jaccard(first, second) == 1) == (first == second and bool(first))


def test_a_pair_at_the_threshold_counts_and_one_below_it_does_not():
    assert [m.similarity for m in near_duplicates(["a b c d e"], ["e d c b"])] == [0.8]
    assert near_duplicates(["a b c d e f"], ["a b c d e g"]) == []
    assert near_duplicates(["a b c d e f"], ["A, b: c; D (e)"]) != []


def test_a_threshold_whose_product_is_rounded_up_misses_no_pair():
    assert 0.28 * 25 > 7
    letters = "a b c d e f g h i j k l m n o p q r s t u v w x y"
    assert [m.similarity for m in near_duplicates([letters], [letters[: 2 * 7]], threshold=0.28)] == [0.28]


@pytest.mark.parametrize("threshold", [0.0, -0.5, 1.01, float("nan")])
def test_a_threshold_that_is_no_similarity_is_refused(threshold):
    with pytest.raises(ReproError, match="above 0 and at most 1"):
        near_duplicates(["a"], ["a"], threshold=threshold)


@pytest.fixture
def questions(data, monkeypatch):
    monkeypatch.setenv("REPROLIB_DATA", str(data))
    gsm8k = [record.text("question") for record in read(SOURCES["gsm8k", "train"])]
    svamp = [f"{r.text('Body')} {r.text('Question')}" for r in read(SOURCES["svamp", "test"])]
    return svamp, gsm8k


def test_no_svamp_problem_matches_a_gsm8k_training_question_exactly_or_at_0_8(questions):
    svamp, gsm8k = questions
    assert (len(svamp), len(gsm8k)) == (1_000, 7_473)
    assert near_duplicates(svamp, gsm8k, threshold=0.8) == []
    assert {normalised(q) for q in svamp} & {normalised(q) for q in gsm8k} == set()
    planted = gsm8k[100].replace(".", " !").upper()
    assert [match.second for match in near_duplicates([*svamp, planted], gsm8k)] == [100]
