import hashlib
import json
import random
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reprolib.errors import ReproError
from reprolib.tasks.datasets import Problem, Task
from reprolib.tasks.drafts import drafts, vocabulary
from reprolib.tasks.procedural import SIZES, kind, micro_task, public_text

NAMES = tuple(SIZES)
MODEL = Path(__file__).resolve().parents[2] / "data/models/micro"


def every(task: Task) -> tuple[Problem, ...]:
    return task.train + task.evaluation + task.selection


def digest(task: Task) -> str:
    rows = [[p.id, p.question, p.reference, p.solution, p.contributor] for p in every(task)]
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


@pytest.mark.parametrize("name", NAMES)
def test_splits_have_the_papers_sizes(name: str) -> None:
    task = micro_task(name, tier="micro")
    assert (len(task.train), len(task.evaluation), len(task.selection)) == {
        "math": (6988, 4499, 500), "gsm8k": (6961, 1319, 0), "csqa": (6961, 1221, 0), "svamp": (0, 1000, 0)
    }[name]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_smoke_is_the_beginning_of_micro(name: str) -> None:
    small, full = micro_task(name, tier="smoke"), micro_task(name, tier="micro")
    assert small.train == full.train[:40]
    assert small.evaluation == full.evaluation[:30]
    assert small.selection == full.selection[:30]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("math", "8cdddcd64bf4d5a36c269caf750c3b1c9a759e04b381ede8e52faa93899bbff1"),
        ("gsm8k", "7ff399389308ed4362846c5b28a92f903f798695dc02a2380edeec813f55e9e7"),
        ("csqa", "55335b6cda88817635b046848bf58b8ec0be9e6275d600dbcacb69e34a2e6f49"),
        ("svamp", "a09543ce2c5a0e7ec134900187f88616eaf5bdc04cf7af1490f31c37cabf0ad2"),
    ],
)
def test_problems_are_the_same_on_every_machine(name: str, expected: str) -> None:
    assert digest(micro_task(name, tier="micro")) == expected


def test_problems_do_not_depend_on_hash_seed_or_global_generators() -> None:
    code = "import random; random.seed(5); from tests.tasks.test_procedural import *; "
    found = subprocess.run(
        [sys.executable, "-c", code + "print(digest(micro_task('csqa', tier='micro')))"],
        cwd=MODEL.parents[2],
        env={"PYTHONHASHSEED": "7", "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.strip() == digest(micro_task("csqa", tier="micro"))


@pytest.mark.parametrize("name", NAMES)
def test_no_question_stands_in_two_splits_or_twice_in_one(name: str) -> None:
    assert max(Counter(p.question for p in every(micro_task(name, tier="micro"))).values()) == 1


def test_no_expression_stands_in_two_splits_in_another_wording() -> None:
    expressions = [p.question.rstrip(".?").rsplit(" ", 1)[1] for p in every(micro_task("math", tier="micro"))]
    assert len(set(expressions)) == len(expressions)


def test_no_transfer_question_is_close_to_a_training_question() -> None:
    training = [set(p.question.split()) for p in micro_task("gsm8k", tier="micro").train]
    for problem in micro_task("svamp", tier="micro").evaluation[::50]:
        words = set(problem.question.split())
        assert max(len(words & other) / len(words | other) for other in training) < 0.8


@pytest.mark.parametrize("name", NAMES)
def test_public_text_holds_no_problem_of_the_task(name: str) -> None:
    questions = {p.question for p in every(micro_task(name, tier="micro"))}
    public = {question for question, _ in public_text(name, size=6_000, seed=1)}
    assert not questions & public


def test_public_text_holds_no_private_expression_in_another_wording() -> None:
    def expression(question: str) -> str:
        return question.rstrip(".?").rsplit(" ", 1)[1]

    private = {expression(p.question) for p in every(micro_task("math", tier="micro"))}
    assert not private & {expression(q) for q, _ in public_text("math", size=6_000, seed=1)}


@pytest.mark.parametrize("name", NAMES)
def test_every_gold_solution_earns_the_reward(name: str) -> None:
    task = micro_task(name, tier="micro")
    assert all(task.verifier.reward(p.solution, p.reference) == 1 for p in every(task))


def test_math_references_are_the_values_of_the_expressions() -> None:
    for problem in every(micro_task("math", tier="micro")):
        expression = problem.question.rstrip(".?").rsplit(" ", 1)[1]
        assert int(problem.reference) == eval(expression)


def test_four_training_problems_share_a_contributor() -> None:
    task = micro_task("math", tier="micro")
    counts = Counter(p.contributor for p in task.train)
    assert len(counts) == 1747
    assert set(counts.values()) == {4}
    assert {p.contributor for p in task.evaluation} == {None}


@pytest.mark.parametrize("name", NAMES)
@given(seed=st.integers(0, 10**6))
def test_weights_of_public_answers_sum_to_one(name: str, seed: int) -> None:
    draft = next(drafts(name, str(seed)))
    assert sum(weight for _, weight in draft.replies) == pytest.approx(1)
    assert all(weight > 0 for _, weight in draft.replies)


@given(seed=st.integers(0, 10**6))
def test_only_the_final_answer_scorer_reads_a_discussion(seed: int) -> None:
    draft, task = next(drafts("csqa", str(seed))), micro_task("csqa", tier="smoke")
    assert task.rescorer
    for reply, _ in draft.replies:
        letter = reply[-1]
        assert task.rescorer.extract(reply) == letter
        assert task.verifier.extract(reply) == (None if "/" in reply else letter)


@given(seed=st.integers(0, 10**6))
def test_only_the_format_robust_scorer_reads_an_unboxed_answer(seed: int) -> None:
    draft, task = next(drafts("math", str(seed))), micro_task("math", tier="smoke")
    assert task.rescorer
    for reply, _ in draft.replies:
        assert (task.verifier.extract(reply) is None) == ("boxed" not in reply)
        assert task.rescorer.extract(reply) is not None


@pytest.mark.parametrize("name", NAMES)
@given(seed=st.integers(0, 10**6))
def test_only_some_kinds_are_read_in_two_ways(name: str, seed: int) -> None:
    draft, task = next(drafts(name, str(seed))), micro_task(name, tier="smoke")
    scorer = task.rescorer or task.verifier
    right = sum(weight for reply, weight in draft.replies if scorer.reward(reply, draft.reference))
    read_one_way = draft.kind in ("plain", "join", "bags", "irrelevant", "clear")
    assert (right > 0.85) == read_one_way


def test_an_unknown_task_or_tier_is_named() -> None:
    with pytest.raises(ReproError, match="no procedural task 'mmlu' at tier 'micro'"):
        micro_task("mmlu", tier="micro")
    with pytest.raises(ReproError, match="tier 'paper'"):
        micro_task("math", tier="paper")
    with pytest.raises(ReproError, match="0 public texts"):
        public_text("math", size=0, seed=1)


def test_the_vocabulary_has_no_phrase_twice() -> None:
    assert len(set(vocabulary())) == len(vocabulary()) < 256


@cache
def base():  # type: ignore[no-untyped-def]
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

    from reprolib.lm.models import Policy

    model = AutoModelForCausalLM.from_pretrained(MODEL)
    # AutoTokenizer would build Qwen's own tokenizer, since it goes by the model's type
    return Policy(model.eval(), PreTrainedTokenizerFast.from_pretrained(MODEL), "micro")


def test_weights_are_small_float32_and_of_the_qwen2_architecture() -> None:
    model = base().model
    assert (MODEL / "model.safetensors").stat().st_size < 1_500_000
    assert {str(p.dtype) for p in model.parameters()} == {"torch.float32"}
    assert model.config.model_type == "qwen2"


@pytest.mark.parametrize("name", NAMES)
def test_questions_and_solutions_survive_the_tokenizer_and_are_short(name: str) -> None:
    tokenizer, task = base().tokenizer, micro_task(name, tier="micro")
    for texts, limit in (
        ([p.question for p in every(task)], 20),
        ([p.solution for p in every(task)], task.max_new_tokens - 1),
    ):
        ids = tokenizer(texts, add_special_tokens=False)["input_ids"]
        assert tokenizer.batch_decode(ids) == texts
        assert max(map(len, ids)) <= limit
        assert tokenizer.unk_token_id not in {token for row in ids for token in row}


@given(st.text(max_size=40))
def test_no_text_makes_the_tokenizer_fail(text: str) -> None:
    tokenizer = base().tokenizer
    assert all(0 <= token < len(tokenizer) for token in tokenizer(text)["input_ids"])


def test_the_chat_template_ends_with_the_assistants_turn() -> None:
    messages = [{"role": "system", "content": "5"}, {"role": "user", "content": "Find 1+2+3."}]
    text = base().tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == "<|user|>Find 1+2+3.<|assistant|>"


@cache
def sample_scores(name: str) -> dict[str, float]:
    """Shares of 400 evaluation problems: greedy answers of the base under both scorers."""
    from reprolib.lm.generate import Sampling, TransformersEngine

    task, policy = micro_task(name, tier="micro"), base()
    problems = random.Random(0).sample(task.evaluation, 400)
    prompts = [
        policy.tokenizer.apply_chat_template(task.messages(p), add_generation_prompt=True, return_dict=False)
        for p in problems
    ]
    greedy = Sampling(completions=1, max_new_tokens=task.max_new_tokens, temperature=0)
    found = TransformersEngine(policy).generate(prompts, greedy, None)
    replies = [policy.tokenizer.decode(c.tokens, skip_special_tokens=True) for (c,) in found]
    scorers = {"strict": task.verifier, "rescored": task.rescorer or task.verifier}
    shares = {
        key: sum(s.reward(r, p.reference) for r, p in zip(replies, problems, strict=True)) / 400
        for key, s in scorers.items()
    }
    return shares | {"unread": sum(task.verifier.extract(r) is None for r in replies) / 400}


@pytest.mark.parametrize("name", NAMES)
def test_the_model_cards_figures_are_found_again_on_a_sample(name: str) -> None:
    card = json.loads((MODEL / "card.json").read_text())["measured"][name]["all"]
    for key, share in sample_scores(name).items():
        # 4.5 standard errors of a share of 400 problems
        assert share == pytest.approx(card[key], abs=4.5 * (0.25 / 400) ** 0.5)


@pytest.mark.parametrize("name", ["math", "csqa"])
def test_the_base_leaves_right_answers_without_the_format(name: str) -> None:
    scores = sample_scores(name)
    assert scores["strict"] < scores["rescored"]
    assert scores["unread"] > 0.02


@pytest.mark.parametrize("name", NAMES)
def test_the_card_covers_every_kind_of_problem(name: str) -> None:
    kinds = json.loads((MODEL / "card.json").read_text())["measured"][name]
    assert set(kinds) - {"all"} == {kind(p) for p in micro_task(name, tier="micro").evaluation}


@pytest.mark.parametrize("name", ["math", "gsm8k"])
def test_groups_with_both_rewards_are_as_frequent_as_designed(name: str) -> None:
    mixed = json.loads((MODEL / "card.json").read_text())["measured"][name]["all"]["mixed"]
    assert 0.3 < mixed < 0.6
