import pytest

from reprolib.errors import ReproError
from reprolib.tasks.prompts import completion_cap, declaration, example, instruction, multiple_choice
from reprolib.tasks.verifiers import BoxedMath, LetterAnswer, NumberAnswer

OPTIONS = ["bank", "library", "department store", "mall", "new york"]


def test_completion_caps_of_the_paper_tier_are_those_of_table_1():
    caps = {name: completion_cap(name, tier="paper") for name in ("math", "gsm8k", "csqa", "svamp")}
    assert caps == {"math": 1_024, "gsm8k": 512, "csqa": 512, "svamp": 512}


@pytest.mark.parametrize("tier", ["small", "paper"])
def test_svamp_is_asked_as_gsm8k_is(tier):
    assert instruction("svamp", tier=tier) == instruction("gsm8k", tier=tier)


@pytest.mark.parametrize("tier", ["small", "paper"])
@pytest.mark.parametrize(
    ("name", "marker", "verifier", "answer"),
    [
        ("math", r"\boxed{", BoxedMath(), "4}"),
        ("gsm8k", "####", NumberAnswer(), " 4"),
        ("csqa", "Answer:", LetterAnswer(), " C"),
    ],
)
def test_the_instruction_names_the_mark_that_the_strict_scorer_reads(tier, name, marker, verifier, answer):
    text = instruction(name, tier=tier)
    assert text.count(marker) == 1
    assert verifier.extract(f"We reason. {marker}{answer}") == answer.strip(" }")


@pytest.mark.parametrize("name", ["math", "gsm8k", "csqa", "svamp"])
def test_the_small_tier_asks_in_fewer_words_and_for_fewer_tokens(name):
    assert len(instruction(name, tier="small")) < len(instruction(name, tier="paper"))
    assert completion_cap(name, tier="small") < completion_cap(name, tier="paper")


def test_options_are_lettered_in_their_order():
    lines = multiple_choice("Where?", OPTIONS).splitlines()
    assert lines == ["Where?", "A. bank", "B. library", "C. department store", "D. mall", "E. new york"]
    for options in (OPTIONS[:4], [*OPTIONS, "none"]):
        with pytest.raises(ReproError, match=f"{len(options)} options: expected five"):
            multiple_choice("Where?", options)


@pytest.mark.parametrize("letter", "ABCDE")
def test_a_declaration_is_rewarded_for_its_letter_alone(letter):
    for reference in "ABCDE":
        assert LetterAnswer().reward(declaration(letter), reference) == (letter == reference)


def test_an_unknown_letter_task_or_tier_is_refused():
    with pytest.raises(ReproError, match="option letter"):
        declaration("F")
    for call in (instruction, completion_cap, example):
        with pytest.raises(ReproError, match="expected one of csqa, gsm8k, math, svamp"):
            call("mmlu", tier="paper")
        with pytest.raises(ReproError, match="expected small or paper"):
            call("math", tier="micro")


def test_the_small_model_is_shown_an_answer_that_the_strict_scorer_reads():
    question, answer = example("csqa", tier="small")
    assert LetterAnswer().extract(answer) in "ABCDE"
    assert question.count("\n") == 5
    assert example("csqa", tier="paper") is None
