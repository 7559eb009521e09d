import json
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reprolib.errors import ReproError
from reprolib.tasks import datasets as tasks
from reprolib.tasks.datasets import (
    EVALUATION,
    SELECTION,
    TRAINING,
    Problem,
    check_rewards,
    draw,
    load,
    normalised,
)
from reprolib.tasks.procedural import micro_task
from reprolib.tasks.sources import Source
from reprolib.tasks.verifiers import BoxedMath

MATH_DUPLICATE = (
    r"The points $(0,0)\,$, $(a,11)\,$, and $(b,37)\,$ are the vertices of an equilateral triangle. "
)
MATH_DUPLICATE += r"Find the value of $ab\,$."


def math(number, text="Find {}."):
    return {"problem": text.format(number), "solution": rf"It is \boxed{{{number}}}."}


def gsm8k(number):
    return {
        "question": f"How many is {number}?",
        "answer": f"2*{number}=<<2*{number}={number}>>\n#### 1,{number:03d}",
    }


def csqa(number):
    options = [{"label": letter, "text": f"{letter}{number}"} for letter in "ABCDE"]
    return {
        "id": f"q{number}",
        "answerKey": "C",
        "question": {"stem": f"Where {number}?", "choices": options},
    }


def svamp(number):
    return {
        "ID": f"chal-{number}",
        "Body": f"{number} hens. ",
        "Question": "How many?",
        "Answer": float(number),
    }


FILES = {
    "math": {
        "math/train_subset.jsonl": [math(n) for n in range(6)],
        "math/test.jsonl": [math(n) for n in (8, 4, 20, 21, 9)],
        "math/math500.jsonl": [math(20), math(21)],
    },
    "gsm8k": {
        "gsm8k/train.jsonl": [gsm8k(n) for n in range(6)],
        "gsm8k/test.jsonl": [gsm8k(n) for n in (7, 8)],
    },
    "csqa": {
        "commonsenseqa/train_rand_split.jsonl": [csqa(n) for n in range(710)],
        "commonsenseqa/dev_rand_split.jsonl": [csqa(n) for n in (801, 802)],
    },
    "svamp": {"svamp/SVAMP.json": [svamp(n) for n in (1, 2, 3)]},
}


def write(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(rows) if path.suffix == ".json" else "".join(json.dumps(row) + "\n" for row in rows)
    path.write_text(text, encoding="utf-8")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for file, rows in (item for files in FILES.values() for item in files.items()):
        write(tmp_path / file, rows)
    monkeypatch.setenv("REPROLIB_DATA", str(tmp_path))
    return tmp_path


@pytest.fixture
def real(data, monkeypatch):
    monkeypatch.setenv("REPROLIB_DATA", str(data))
    return data


def ids(problems):
    return [problem.id for problem in problems]


def test_a_record_becomes_a_question_a_reference_and_a_gold_target(folder):
    (problem, *_) = load("gsm8k", tier="small").evaluation
    assert problem == Problem(
        id="gsm8k-test-0", question="How many is 7?", reference="1007", solution="2*7=\n#### 1,007"
    )
    (problem, *_) = load("csqa", tier="small").evaluation
    assert problem.question == "Where 801?\nA. A801\nB. B801\nC. C801\nD. D801\nE. E801"
    assert (problem.id, problem.reference, problem.solution) == ("q801", "C", "Answer: C")
    (problem, *_) = load("svamp", tier="small").evaluation
    assert (problem.id, problem.question, problem.reference) == ("chal-1", "1 hens. How many?", "1")
    (problem, *_) = load("math", tier="small").evaluation
    assert (problem.question, problem.reference) == ("Find 8.", "8")


def test_the_math_reference_is_the_last_complete_box(folder):
    row = {"problem": "Find it.", "solution": r"\boxed{1} then \boxed{\frac{1}{2}} and \boxed{3"}
    write(folder / "math/test.jsonl", [row])
    assert load("math", tier="small").evaluation[0].reference == r"\frac{1}{2}"


@pytest.mark.parametrize("name", TRAINING)
def test_the_chat_is_the_public_instruction_and_the_question_and_the_gold_target_is_rewarded(folder, name):
    task = load(name, tier="small")
    for problem in (*task.train, *task.evaluation, *task.selection):
        system, *shown, user = task.messages(problem)
        assert system == {"role": "system", "content": task.system}
        assert user == {"role": "user", "content": problem.question}
        assert tuple(turn["content"] for turn in shown) == (task.example or ())
        assert task.verifier.reward(problem.solution, problem.reference) == 1
        assert task.verifier.reward(problem.solution + " capped", problem.reference, capped=True) == 1
    assert (task.rescorer is not None) == (name in ("math", "csqa"))


def test_the_math_endpoint_leaves_out_selection_and_training_problems_and_the_known_duplicate(folder):
    duplicate = math(1, MATH_DUPLICATE.replace("{", "{{").replace("}", "}}"))
    write(folder / "math/test.jsonl", [*FILES["math"]["math/test.jsonl"], duplicate, math(9, " FIND  {}.\n")])
    write(folder / "math/math500.jsonl", [math(20, "find  {}."), math(21)])
    task = load("math", tier="small", duplicates="keep")
    assert [problem.reference for problem in task.evaluation] == ["8", "9", "9"]
    assert [problem.id for problem in task.evaluation] == ["math-test-0", "math-test-4", "math-test-6"]
    assert [problem.reference for problem in task.selection] == ["20", "21"]


def test_a_training_question_twice_is_refused_with_both_places_unless_kept(folder):
    path = folder / "gsm8k/train.jsonl"
    again = gsm8k(1) | {"question": " how many IS\n1?"}
    write(path, [gsm8k(0), gsm8k(1), gsm8k(2), again])
    with pytest.raises(ReproError, match=rf"^{path}:4: the question of {path}:2 again.*group privacy"):
        load("gsm8k", tier="small")
    assert len(load("gsm8k", tier="small", duplicates="keep").train) == 4


def test_an_id_twice_is_refused_in_every_set(folder):
    for file in FILES["csqa"]:
        write(folder / file, [csqa(1), csqa(2) | {"id": "q1"}])
        with pytest.raises(ReproError, match=rf"{file}:2: the id of .*:1 again"):
            load("csqa", tier="small", duplicates="keep")
        write(folder / file, FILES["csqa"][file])


def test_the_gsm8k_reference_is_the_number_after_the_last_mark(folder):
    write(folder / "gsm8k/test.jsonl", [{"question": "Q?", "answer": "#### 5 is half.\n#### 10 "}])
    assert load("gsm8k", tier="small").evaluation[0].reference == "10"


MATH_TRAIN, CSQA_TRAIN, CSQA_DEV = (
    "math/train_subset.jsonl", "commonsenseqa/train_rand_split.jsonl", "commonsenseqa/dev_rand_split.jsonl"
)  # fmt: skip
FAULTS = [
    ("math", MATH_TRAIN, {"problem": "Find.", "solution": r"It is \boxed{1"}, "no reference answer"),
    ("math", MATH_TRAIN, {"problem": "Find.", "solution": r"\boxed{ }"}, "no reference answer"),
    ("math", "math/test.jsonl", {"problem": " ", "solution": r"\boxed{1}"}, "field 'problem' is empty"),
    ("math", "math/math500.jsonl", {"problem": "Find."}, "no field 'solution'"),
    ("gsm8k", "gsm8k/train.jsonl", {"question": "Q?", "answer": "It is 42."}, "no reference answer"),
    ("gsm8k", "gsm8k/train.jsonl", {"question": "Q?", "answer": "#### none"}, "no reference answer"),
    ("gsm8k", "gsm8k/test.jsonl", {"question": "", "answer": "#### 42"}, "field 'question' is empty"),
    ("gsm8k", "gsm8k/test.jsonl", {"question": "Q?", "answer": 42}, "field 'answer' is of type int"),
    ("csqa", CSQA_TRAIN, csqa(1) | {"answerKey": "F"}, "no reference answer"),
    ("csqa", CSQA_TRAIN, csqa(1) | {"answerKey": ""}, "no reference answer"),
    ("csqa", CSQA_DEV, csqa(1) | {"question": {"stem": "S"}}, "field 'choices'"),
    ("csqa", CSQA_DEV, csqa(1) | {"question": "S"}, "field 'choices'"),
    ("csqa", CSQA_DEV, csqa(1) | {"id": 5}, "field 'id' is of type int"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "file", "row", "message"), FAULTS)
def test_a_faulty_record_is_refused_with_its_file_and_line(folder, name, file, row, message):
    first = FILES[name][file][0]
    write(folder / file, [first, row])
    with pytest.raises(ReproError, match=rf"^{folder / file}:2: {message}"):
        load(name, tier="small")


@pytest.mark.parametrize("order", ["ABCD", "ABCDEF", "BACDE", "AACDE"])
def test_options_are_five_and_lettered_in_order(folder, order):
    options = [{"label": letter, "text": "x"} for letter in order]
    row = csqa(1) | {"question": {"stem": "S", "choices": options}}
    write(folder / "commonsenseqa/dev_rand_split.jsonl", [row])
    with pytest.raises(ReproError, match=r":1: field 'choices': expected five options"):
        load("csqa", tier="small")


@pytest.mark.parametrize(
    "answer", [None, True, "", "x", float("inf"), float("nan"), [1], "1e999999999", "1/0", 1e30]
)
def test_a_svamp_answer_that_is_no_number_is_refused(folder, answer):
    write(folder / "svamp/SVAMP.json", [svamp(1), svamp(2) | {"Answer": answer}])
    with pytest.raises(ReproError, match=r"SVAMP\.json: record 2: no reference answer: expected a number"):
        load("svamp", tier="small")


@pytest.mark.parametrize(
    ("answer", "reference"), [(51.0, "51"), ("51.0", "51"), (-7, "-7"), (2.5, "2.5"), ("08", "8")]
)
def test_a_svamp_answer_is_read_as_the_verifier_reads_it(folder, answer, reference):
    write(folder / "svamp/SVAMP.json", [svamp(1) | {"Answer": answer}])
    assert load("svamp", tier="small").evaluation[0].reference == reference


def test_a_missing_file_says_how_to_set_the_data_folder(folder):
    (folder / "gsm8k/test.jsonl").unlink()
    with pytest.raises(
        ReproError, match=r"no gsm8k/test\.jsonl in REPROLIB_DATA = .*set REPROLIB_DATA to a folder"
    ):
        load("gsm8k", tier="small")


def test_the_paper_tier_refuses_other_sizes_than_the_papers(folder):
    for name in TRAINING:
        with pytest.raises(ReproError, match=f"^{name} has .* the paper .*use the tier small"):
            load(name, tier="paper")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "mmlu", "tier": "small"}, "expected one of math, gsm8k, csqa, svamp"),
        ({"name": "math", "tier": "large"}, "expected smoke, micro, small or paper"),
        ({"name": "math", "tier": "small", "duplicates": "drop"}, "expected 'refuse' or 'keep'"),
    ],
)
def test_an_unknown_task_tier_or_rule_is_refused(arguments, message):
    with pytest.raises(ReproError, match=message):
        load(**arguments)


@pytest.mark.parametrize("name", TRAINING)
def test_the_micro_tiers_need_no_data(name, monkeypatch, tmp_path):
    monkeypatch.setenv("REPROLIB_DATA", str(tmp_path / "missing"))
    task, procedural = load(name, tier="smoke"), micro_task(name, tier="smoke")
    assert (task.name, task.tier) == (name, "smoke")
    assert (task.train, task.evaluation) == (procedural.train, procedural.evaluation)


@given(population=st.integers(0, 60), size=st.integers(0, 60), seed=st.text(max_size=4))
def test_a_draw_is_distinct_ascending_positions_that_its_seed_fixes(population, size, seed):
    drawn = draw(population, size, seed=seed)
    assert drawn == sorted(set(drawn)) == draw(population, size, seed=seed)
    assert len(drawn) == min(size, population)
    assert set(drawn) <= set(range(population))


def test_every_position_is_drawn_equally_often():
    counts = np.zeros(10)
    for seed in range(4_000):
        counts[draw(10, 3, seed=str(seed))] += 1
    # 4,000 draws of probability 0.3 have standard deviation 29: five of them on each side
    assert np.abs(counts - 1_200).max() < 145


def test_which_slots_train_does_not_depend_on_what_they_hold(folder, monkeypatch):
    monkeypatch.setitem(TRAINING, "csqa", 5)
    before = ids(load("csqa", tier="small").train)
    rows = [csqa(n) | {"answerKey": "A"} for n in range(710)]
    write(folder / "commonsenseqa/train_rand_split.jsonl", rows)
    assert ids(load("csqa", tier="small").train) == before
    assert len(before) == 5


@pytest.mark.parametrize("rewards", [[0, 1], [True, False], [1.0, 0.0], np.array([1, 0, 1]), []])
def test_rewards_of_0_and_1_pass_as_integers(rewards):
    checked = check_rewards(rewards)
    assert checked == tuple(int(reward) for reward in rewards)
    assert all(type(reward) is int for reward in checked)


@pytest.mark.parametrize("bad", [0.5, 2, -1, float("nan"), float("inf"), "1", None, 1j, complex(1)])
def test_any_other_reward_is_refused_with_its_position(bad):
    with pytest.raises(ReproError, match=r"reward 1 is .*: expected 0 or 1"):
        check_rewards([1, bad])


def by_name(folder):
    """The rows of the files in the layout of the data sets by name, read by the real library."""
    datasets = pytest.importorskip("datasets")
    layout = {
        ("EleutherAI/hendrycks_math", "train"): FILES["math"]["math/train_subset.jsonl"],
        ("EleutherAI/hendrycks_math", "test"): FILES["math"]["math/test.jsonl"],
        ("HuggingFaceH4/MATH-500", "test"): FILES["math"]["math/math500.jsonl"],
        ("openai/gsm8k", "train"): FILES["gsm8k"]["gsm8k/train.jsonl"],
        ("openai/gsm8k", "test"): FILES["gsm8k"]["gsm8k/test.jsonl"],
        ("tau/commonsense_qa", "train"): FILES["csqa"]["commonsenseqa/train_rand_split.jsonl"],
        ("tau/commonsense_qa", "validation"): FILES["csqa"]["commonsenseqa/dev_rand_split.jsonl"],
        ("ChilleD/SVAMP", "train"): FILES["svamp"]["svamp/SVAMP.json"][:2],
        ("ChilleD/SVAMP", "test"): FILES["svamp"]["svamp/SVAMP.json"][2:],
    }
    loaded, real_load = [], datasets.load_dataset

    def load_dataset(name, configuration, *, split):
        loaded.append((name, configuration, split))
        rows = layout[name, split]
        if name == "EleutherAI/hendrycks_math":  # one configuration a subject
            rows = [row for n, row in enumerate(rows) if tasks_subject(n) == configuration]
        if name == "tau/commonsense_qa":
            rows = [flat(row) for row in rows]
        if name == "ChilleD/SVAMP":
            rows = [row | {"Answer": str(row["Answer"])} for row in rows]
        path = folder / f"{name.replace('/', '-')}-{configuration}-{split}.jsonl"
        write(path, rows)
        if not rows:
            return []
        return real_load("json", data_files=str(path), split="train", cache_dir=str(folder / "cache"))

    return loaded, load_dataset


def tasks_subject(position):
    return "algebra" if position % 2 == 0 else "precalculus"


def flat(row):
    options = row["question"]["choices"]
    choices = {key: [option[key] for option in options] for key in ("label", "text")}
    return {
        "id": row["id"],
        "answerKey": row["answerKey"],
        "question": row["question"]["stem"],
        "choices": choices,
    }


def test_data_sets_by_name_give_the_problems_that_the_folder_gives(folder, monkeypatch):
    datasets = pytest.importorskip("datasets")
    expected = {name: load(name, tier="small") for name in TRAINING}
    loaded, load_dataset = by_name(folder)
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.delenv("REPROLIB_DATA")
    for name, split in product(("gsm8k", "csqa", "svamp"), ("train", "evaluation")):
        assert getattr(load(name, tier="small"), split) == getattr(expected[name], split)
    found = load("math", tier="small")
    # by name, subjects follow one another, so the order and the numbers differ from the file's
    for split in ("train", "evaluation", "selection"):
        problems = [
            {(p.question, p.reference) for p in getattr(task, split)} for task in (found, expected["math"])
        ]
        assert problems[0] == problems[1]
    assert {call[1] for call in loaded if call[0] == "EleutherAI/hendrycks_math"} >= {
        "algebra",
        "precalculus",
    }
    assert len({call[1] for call in loaded if call[0] == "EleutherAI/hendrycks_math"}) == 7


def test_every_split_has_a_file_and_a_name():
    splits = {(name, "train") for name in TRAINING if TRAINING[name]}
    splits |= {(name, "test") for name in TRAINING} | {("math", "selection")}
    assert set(tasks.SOURCES) == splits
    assert all(isinstance(s, Source) and s.files and s.named for s in tasks.SOURCES.values())


@pytest.mark.parametrize("name", ["gsm8k", "csqa", "svamp"])
def test_the_real_data_gives_the_papers_sizes(real, name):
    task = load(name, tier="paper")
    sizes = len(task.train), len(task.evaluation), len(task.selection)
    assert sizes == (TRAINING[name], EVALUATION[name], SELECTION[name])
    questions = [normalised(problem.question) for problem in (*task.train, *task.evaluation)]
    assert len(set(questions)) == len(questions)


def test_the_math_endpoint_has_the_papers_4499_problems_and_none_of_the_500_selection_problems(real):
    task = load("math", tier="small")
    assert (len(task.evaluation), len(task.selection)) == (4_499, 500)
    sets = [{normalised(p.question) for p in part} for part in (task.train, task.evaluation, task.selection)]
    assert sum(map(len, sets)) == len(set.union(*sets)) == len(task.train) + 4_499 + 500
    left_out = {normalised(p.question) for p in tasks._problems("math", "test")} - sets[1] - sets[2]
    assert left_out == {normalised(MATH_DUPLICATE)}


def test_the_training_sizes_are_the_training_splits_less_512(real):
    split = tasks._problems("gsm8k", "train")
    assert len(split) - TRAINING["gsm8k"] == 7_500 - TRAINING["math"] == 512


def test_the_csqa_pilot_and_training_questions_are_disjoint(real):
    pool = tasks._problems("csqa", "train")
    pilot = {pool[slot].id for slot in draw(len(pool), tasks.CSQA_PILOT, seed="csqa pilot")}
    train = set(ids(load("csqa", tier="paper").train))
    assert (len(pool), len(pilot), len(train), len(pilot & train)) == (9_741, 700, 6_961, 0)


def test_every_real_gold_target_is_rewarded(real):
    for name in ("gsm8k", "csqa"):
        task = load(name, tier="paper")
        assert all(task.verifier.reward(p.solution, p.reference) for p in task.train)
        assert not any("<<" in p.solution for p in task.train)
    task = load("math", tier="small")
    assert all(BoxedMath().reward(p.solution, p.reference) for p in task.train)
