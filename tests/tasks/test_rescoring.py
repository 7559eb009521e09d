import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reprolib.errors import ReproError
from reprolib.tasks.rescoring import FinalLetter, FormatRobustMath
from reprolib.tasks.verifiers import BoxedMath
from tests.tasks.test_verifiers import HOSTILE, TEXTS, boxed, records


@pytest.fixture(scope="module")
def robust():
    return FormatRobustMath()


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("We add. The answer is 12.", "12"),
        ("Final answer: $x = 7$.", "7"),
        ("Answer: 3.5", "3.5"),
        ("The final answer is $\\frac{1}{2}$. I hope it is correct.", r"\frac{1}{2}"),
        ("Thus the area of triangle \\(ABC\\) is:\n\\[\n25.\n\\]", "25"),
        ("So x = 1.\nTherefore, the value of \\(y\\) is 9.", "9"),
        ("So we try.\n\nThe number of diagonals is \\(27\\).", "27"),
        ("We compute\n\n3 + 4 = 7", "7"),
        ("7", "7"),
        ("Hence \\[ a = b = 6 \\]", "6"),
        ("**The answer is 5**", "5"),
        ("I do not know what to do", None),
        ("", None),
        ("The answer is 4. Thus done with 5.", "4"),
        ("Therefore x is equal to 5 cm.", "5 cm"),
        ("The answer is $5!$.", "5!"),
        ("The answer is 5!", "5"),
    ],
)
def test_the_completed_final_statement_is_read_in_the_papers_order(robust, response, answer):
    assert robust.extract(response) == answer


@pytest.mark.parametrize(
    "response",
    [
        "The answer is 2 or 3.",
        "The answer is $2$ or $3$.",
        "Therefore $x = 2$ or $x = 3$.",
        "So x = 2 and x = 3.",
        r"Thus, \(x = 2 \text{ or } x = 3\).",
        "Hence the solutions are 2 and 3.",
    ],
)
def test_answers_joined_by_and_or_or_stay_whole(robust, response):
    assert robust.reward(response, "2, 3") == 1
    assert robust.reward(response, "3") == 0
    assert robust.reward(response, "2") == 0


def test_a_box_is_scored_as_the_strict_scorer_does(robust):
    text = boxed("4") + " The answer is 5."
    assert robust.extract(text) == BoxedMath().extract(text) == "4"
    assert robust.extract(text, capped=True) == "4"


def test_a_capped_response_gets_no_fallback(robust):
    assert robust.reward("The answer is 5.", "5") == 1
    assert robust.reward("The answer is 5.", "5", capped=True) == 0
    assert robust.extract("The answer is 5.", capped=True) is None


def test_a_final_letter_is_read_from_a_capped_response_too():
    assert FinalLetter().extract("Answer: B", capped=True) == "B"
    assert FinalLetter().reward("Answer: B", "B", capped=True) == 1


@settings(max_examples=200, deadline=None)
@given(text=TEXTS, capped=st.booleans())
def test_any_text_is_read_without_an_error_and_scored_0_or_1(text, capped):
    assert FormatRobustMath().reward(text, "42", capped=capped) in (0, 1)
    assert FinalLetter().extract(text) in (None, *"ABCDE")
    assert FinalLetter().reward(text, "C") in (0, 1)


@settings(max_examples=100, deadline=None)
@given(answer=st.integers(-(10**6), 10**6), before=st.sampled_from(["", "So 3 = 3.\n", "We get 4.\n\n"]))
def test_an_unboxed_integer_after_a_cue_is_credited(answer, before):
    for cue in ("The answer is ", "Therefore, the total is ", "Answer: ", "Hence $n = "):
        text = before + cue + str(answer) + ("$." if "$" in cue else ".")
        assert FormatRobustMath().reward(text, str(answer)) == 1
        assert FormatRobustMath().reward(text, str(answer + 1)) == 0


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("scorer", [FormatRobustMath(), FinalLetter()])
def test_a_hostile_response_is_searched_in_bounded_time(scorer, name):
    start = time.perf_counter()
    for cue in ("", "the answer is ", "so ", "Answer: "):
        scorer.extract(cue + HOSTILE[name])
    assert time.perf_counter() - start < 4


@pytest.mark.parametrize(
    "token", [" ", "\n", "$", "\\(", "answer ", "so ", "A ", "1,", "is ", "-", "option "]
)
def test_a_megabyte_of_one_token_costs_bounded_time(token):
    start = time.perf_counter()
    FormatRobustMath().extract(token * (10**6 // len(token)))
    FinalLetter().extract(token * (10**6 // len(token)))
    assert time.perf_counter() - start < 4


@pytest.mark.parametrize(
    ("response", "letter"),
    [
        ("Answer: B", "B"),
        ("Answer: A? No.\nAnswer: C", "C"),
        ("The answer is (D).", "D"),
        ("A is wrong. B is wrong. The correct answer is E) river.", "E"),
        ("The answer is B. bank", "B"),
        ("Therefore, C is the best answer.", "C"),
        ("I would choose **A**.", "A"),
        (r"\boxed{D}", "D"),
        ("The best option would be B because A is a noun.", "B"),
        ("Think.\n\n(C)", "C"),
        ("C. a park", "C"),
        ("The answer is A or B.", None),
        ("The answer is B, A or D", None),
        ("The answer is not B.", None),
        ("Answer: C\nThe answer is A and D.", None),
        ("The answer is C, a place where A dog sleeps", "C"),
        ("B seems good and C too", None),
        ("", None),
        ("None of them is right", None),
        ("Option A: a bank. Option B: a park.", None),
        ("The correct answer would be: **E. bank**", "E"),
    ],
)
def test_the_last_explicit_declaration_is_read_and_ambiguity_abstains(response, letter):
    assert FinalLetter().extract(response) == letter


@pytest.mark.parametrize("scorer", [FormatRobustMath(), FinalLetter()])
@pytest.mark.parametrize("bad", [None, 4, b"A"])
def test_what_is_not_text_is_refused(scorer, bad):
    with pytest.raises(ReproError, match="response is of type"):
        scorer.extract(bad)
    with pytest.raises(ReproError, match="reference is of type"):
        scorer.reward("Answer: A", bad)


def test_every_option_of_commonsenseqa_is_read_back_from_a_declaration(data):
    for row in records(data / "commonsenseqa" / "dev_rand_split.jsonl")[::5]:
        texts = {c["label"]: c["text"] for c in row["question"]["choices"]}
        gold = row["answerKey"]
        discussion = "\n".join(f"{label}. {text} is possible." for label, text in texts.items())
        for ending in (
            f"Answer: {gold}",
            f"The answer is {gold}. {texts[gold]}",
            f"So {gold} is the best choice.",
        ):
            assert FinalLetter().extract(f"{discussion}\n{ending}") == gold, ending


def test_800_real_math_responses_keep_their_score_when_their_box_is_taken_off(data, robust):
    box = re.compile(r"\\boxed\{((?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*)\}")
    rows = records(data / "generations_licensed" / "math_qwen_cot_100x8.jsonl")[::2]
    lost, gained = [], []
    for row in rows:
        bare = box.sub(r"\1", row["completion"])
        strict, fallback = (
            BoxedMath().reward(row["completion"], row["gold"]),
            robust.reward(bare, row["gold"]),
        )
        if strict != fallback:
            (lost if strict else gained).append((row["idx"], row["sample"]))
    assert gained == []
    # degenerate text follows the conclusion in these, so that no completed final statement is left
    assert set(lost) <= {(25, 1), (45, 5), (48, 3)}
