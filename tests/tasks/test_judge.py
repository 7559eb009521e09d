import json
import logging
import math
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reprolib.errors import ReproError
from reprolib.tasks.judge import RewardJudge, RewardModel, WinRate, win_rate
from reprolib.tasks.preference_endpoint import CRITERIA, EndpointJudge
from reprolib.tasks.preference_micro import ideal_reward
from reprolib.tasks.preferences import NAMES, load_preferences

ASKED = [{"role": "user", "content": "Why?"}]
KEY = "sk-secret-123"


def length(_, response):
    return float(len(response))


# win rates


def test_a_win_rate_counts_the_outcomes_and_a_tie_is_half_a_win():
    won = win_rate(RewardJudge(length), [ASKED] * 4, ["aa", "b", "c", "ddd"], ["a", "bb", "d", "dd"])
    assert won.outcomes == ("win", "loss", "tie", "win")
    assert (won.wins, won.ties, won.losses, won.unread) == (2, 1, 1, 0)
    assert won.scores == (1.0, 0.0, 0.5, 1.0)
    assert won.rate == 0.625


@given(
    rewards=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=20),
    margin=st.integers(0, 2),
)
def test_swapping_the_sides_turns_the_win_rate_around(rewards, margin):
    a, b = (["x" * (1 + pair[side]) for pair in rewards] for side in (0, 1))
    judge = RewardJudge(length, margin=margin)
    ours, theirs = (win_rate(judge, [ASKED] * len(a), *sides) for sides in ((a, b), (b, a)))
    assert ours.rate == pytest.approx(1 - theirs.rate)
    assert (ours.wins, ours.ties, ours.losses) == (theirs.losses, theirs.ties, theirs.wins)


def test_a_prompt_without_a_verdict_is_in_no_rate_but_is_counted():
    won = WinRate(("win", "unread", "loss", "win"))
    assert won.unread == 1
    assert won.rate == pytest.approx(2 / 3)
    assert math.isnan(WinRate(("unread",)).rate)


def test_equal_responses_tie_without_asking_the_judge():
    class Refuses:
        def compare(self, prompt, first, second):
            raise AssertionError("asked")

    assert win_rate(Refuses(), [ASKED], ["No."], ["No. "]).outcomes == ("tie",)


def test_each_prompt_needs_one_response_of_each_side():
    for prompts, a, b in (([], [], []), ([ASKED], [], ["x"]), ([ASKED], ["x"], ["y", "z"])):
        with pytest.raises(ReproError, match="expected one of each side a prompt"):
            win_rate(RewardJudge(length), prompts, a, b)


def test_a_reward_that_is_no_number_is_refused():
    with pytest.raises(ReproError, match="NaN"):
        RewardJudge(lambda *_: math.nan).compare(ASKED, "a", "b")


@pytest.mark.parametrize("name", NAMES)
def test_the_rule_judge_prefers_the_response_of_higher_ideal_reward(name):
    reward = ideal_reward(name)
    judge = RewardJudge(reward)
    for pair in load_preferences(name, tier="smoke").evaluation:
        first, second = (reward(pair.messages, response) for response in pair.responses)
        assert judge.compare(pair.messages, *pair.responses) == ("win" if first > second else "loss")


# a reward model


@pytest.fixture(scope="module")
def classifier(root):
    import torch
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForSequenceClassification

    tokenizer = PreTrainedTokenizerFast.from_pretrained(root / "data" / "models" / "micro")
    config = Qwen2Config(
        vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, intermediate_size=16, max_position_embeddings=64, num_labels=1,
        pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    torch.manual_seed(0)
    return Qwen2ForSequenceClassification(config), tokenizer


def test_the_reward_model_scores_the_dialogue_with_its_response(classifier):
    import torch

    model, tokenizer = classifier
    reward = RewardModel(model, tokenizer)
    asked = load_preferences("hh", tier="smoke").train[0]
    text = f"<|user|>{asked.turns[0][1]}<|assistant|>{asked.responses[0]}<|end|>"
    expected = model(torch.tensor([tokenizer(text)["input_ids"]])).logits.item()
    assert reward(asked.messages, asked.responses[0]) == pytest.approx(expected)
    difference = expected - reward(asked.messages, asked.responses[1])
    assert difference != 0
    expected_outcome = "win" if difference > 0 else "loss"
    assert RewardJudge(reward).compare(asked.messages, *asked.responses) == expected_outcome


def test_a_dialogue_over_the_reward_models_context_is_refused(classifier):
    with pytest.raises(ReproError, match=r"of \d+ tokens exceeds the reward model's context of 64"):
        RewardModel(*classifier)(ASKED, "1+" * 60)


def test_a_classifier_of_several_labels_is_no_reward_model(classifier):
    from transformers import Qwen2ForSequenceClassification

    model, tokenizer = classifier
    config = type(model.config).from_dict(model.config.to_dict() | {"num_labels": 2})
    with pytest.raises(ReproError, match="2 labels: expected one number a dialogue"):
        RewardModel(Qwen2ForSequenceClassification(config), tokenizer)


def test_a_reward_model_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ReproError, match=r"reward model '.*nowhere' cannot be read"):
        RewardModel.load(str(tmp_path / "nowhere"))


def test_a_reward_model_is_read_from_a_directory(classifier, tmp_path):
    model, tokenizer = classifier
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    loaded = RewardModel.load(str(tmp_path))
    assert loaded(ASKED, "5") == loaded(ASKED, "5")
    assert math.isfinite(loaded(ASKED, "5"))


# an endpoint


class Endpoint:
    """A local server that answers as told: a text, or (status, headers, body)."""

    def __init__(self):
        self.requests = []
        self.answer = lambda question: "Verdict: A"
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                endpoint.requests.append((self.path, self.headers.get("Authorization"), body))
                answer = endpoint.answer(body["messages"][0]["content"])
                if isinstance(answer, str):
                    answer = 200, {}, json.dumps({"choices": [{"message": {"content": answer}}]})
                status, headers, text = answer
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server.server_port}/v1"


@pytest.fixture
def endpoint(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("REPROLIB_JUDGE_KEY", KEY)
    running = Endpoint()
    yield running
    running.server.shutdown()
    running.server.server_close()


@pytest.fixture
def make(endpoint, tmp_path):
    def judge(**changed):
        settings = {
            "url": endpoint.url,
            "model": "judge-1",
            "criterion": CRITERIA["hh"],
            "cache": tmp_path / "c",
        }
        return EndpointJudge(**(settings | {"wait": waited.append} | changed))

    waited = []
    judge.waited = waited
    return judge


def prefers(text):
    """A judge that finds one response better wherever it stands."""
    return lambda question: f"Sentence.\nVerdict: {'A' if text in question.split('<answer_b>')[0] else 'B'}"


def test_the_better_response_wins_wherever_it_stands(endpoint, make):
    endpoint.answer = prefers("good")
    assert make().compare(ASKED, "good", "bad") == "win"
    assert make().compare(ASKED, "bad", "good") == "loss"


@pytest.mark.parametrize("favourite", ["A", "B"])
def test_a_judge_that_favours_a_position_ties(endpoint, make, favourite):
    endpoint.answer = lambda question: f"Verdict: {favourite}"
    assert make().compare(ASKED, "good", "bad") == "tie"


def test_a_judge_that_wavers_between_a_side_and_a_tie_ties(endpoint, make):
    endpoint.answer = lambda question: (
        "Verdict: " + ("A" if question.index("good") < question.index("bad") else "tie")
    )
    assert make().compare(ASKED, "good", "bad") == "tie"


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        ("**Verdict: B**", "tie"),
        ("verdict: tie.", "tie"),
        ("Verdict: A\nOn second thought:\nVerdict: tie", "tie"),
        ("I cannot compare these.", "unread"),
        ("Verdict: a tie between both", "unread"),
        ("Verdict: C", "unread"),
        ("", "unread"),
    ],
)
def test_an_answer_without_a_clear_last_verdict_is_unread(endpoint, make, answer, outcome):
    endpoint.answer = lambda question: answer
    assert make().compare(ASKED, "good", "bad") == outcome


def test_a_request_holds_the_dialogue_both_orders_and_the_criterion(endpoint, make):
    dialogue = [{"role": "user", "content": "Hi {a}"}, {"role": "assistant", "content": "Yes?"}, *ASKED]
    make(criterion="shorter").compare(dialogue, "first {b}", "second")
    (path, key, one), (_, _, two) = endpoint.requests
    assert (path, key) == ("/v1/chat/completions", f"Bearer {KEY}")
    assert (one["model"], one["temperature"]) == ("judge-1", 0)
    shown, swapped = one["messages"][0]["content"], two["messages"][0]["content"]
    assert shown.index("first {b}") < shown.index("second")
    assert swapped.index("second") < swapped.index("first {b}")
    for text in (shown, swapped):
        assert all(part in text for part in ("user: Hi {a}", "assistant: Yes?", "user: Why?", "shorter"))


def test_an_answer_is_asked_for_once(endpoint, make):
    endpoint.answer = prefers("good")
    assert [make().compare(ASKED, "good", "bad") for _ in range(3)] == ["win"] * 3
    assert make().compare(ASKED, "bad", "good") == "loss"  # the same two questions
    assert len(endpoint.requests) == 2
    make(model="judge-2").compare(ASKED, "good", "bad")
    make(criterion=CRITERIA["tldr"]).compare(ASKED, "good", "bad")
    assert len(endpoint.requests) == 6


def test_a_comparison_that_was_cut_off_goes_on_from_the_answers_it_has(endpoint, make):
    endpoint.answer = lambda question: "Verdict: A" if len(endpoint.requests) < 2 else (500, {}, "")
    with pytest.raises(ReproError, match="answers so far are kept"):
        make(attempts=1).compare(ASKED, "good", "bad")
    endpoint.answer = prefers("good")
    assert make().compare(ASKED, "good", "bad") == "win"
    assert len(endpoint.requests) == 3


def test_a_damaged_file_of_the_cache_is_named(endpoint, make, tmp_path):
    make().compare(ASKED, "good", "bad")
    for text in ("{", '{"answer": 3}', "[]", ""):
        for path in (tmp_path / "c").iterdir():
            path.write_text(text)
        with pytest.raises(ReproError, match=r"\.json: no answer of a judge.*delete the file"):
            make().compare(ASKED, "good", "bad")


def test_the_key_is_in_no_file_log_representation_or_message(endpoint, make, tmp_path, caplog):
    with caplog.at_level(logging.DEBUG):
        make().compare(ASKED, "good", "bad")
        endpoint.answer = lambda question: (401, {}, f"Incorrect API key provided: {KEY}")
        with pytest.raises(ReproError) as refused:
            make().compare(ASKED, "other", "bad")
    kept = [path.read_text() for path in (tmp_path / "c").iterdir()]
    assert len(kept) == 2
    assert not any(KEY in text for text in (*kept, caplog.text, repr(make()), str(refused.value)))


def test_transient_faults_are_tried_again_after_growing_waits(endpoint, make):
    faults = [(429, {"Retry-After": "7"}, ""), (503, {}, ""), (503, {"Retry-After": "tomorrow"}, "")]
    endpoint.answer = lambda question: faults.pop(0) if faults else prefers("good")(question)
    assert make().compare(ASKED, "good", "bad") == "win"
    assert make.waited == [7.0, 2.0, 4.0]


def test_waits_are_bounded_and_the_attempts_end(endpoint, make):
    endpoint.answer = lambda question: (503, {"Retry-After": "99999"}, "")
    with pytest.raises(ReproError, match=r"no answer in 3 attempts \(last: status 503\): run again later"):
        make(attempts=3).compare(ASKED, "good", "bad")
    assert make.waited == [60.0, 60.0]


@pytest.mark.parametrize("status", [400, 401, 403, 404])
def test_a_refusal_is_not_tried_again(endpoint, make, status):
    endpoint.answer = lambda question: (status, {}, "no")
    with pytest.raises(
        ReproError, match=f"refused the request with status {status}: check the url, the model"
    ):
        make().compare(ASKED, "good", "bad")
    assert len(endpoint.requests) == 1


def test_the_key_does_not_follow_a_redirect(endpoint, make):
    other = Endpoint()
    try:
        for status in (301, 302, 307, 308):
            endpoint.answer = lambda question, s=status: (
                s,
                {"Location": f"{other.url}/chat/completions"},
                "",
            )
            with pytest.raises(ReproError, match=f"status {status}"):
                make().compare(ASKED, "good", "bad")
        assert other.requests == []
    finally:
        other.server.shutdown()
        other.server.server_close()


def test_a_connection_that_fails_is_reported_with_its_kind(make):
    with pytest.raises(ReproError, match=r"127\.0\.0\.1:9 gave no answer in 2 attempts \(last: URLError\)"):
        make(url="http://127.0.0.1:9/v1", attempts=2).compare(ASKED, "good", "bad")


@pytest.mark.parametrize(
    "text", ["no JSON", "{}", '{"choices": []}', '{"choices": [{"message": {"content": null}}]}']
)
def test_an_answer_in_another_format_is_refused(endpoint, make, text):
    endpoint.answer = lambda question: (200, {}, text)
    with pytest.raises(ReproError, match=r"answered in another format: expected OpenAI's"):
        make().compare(ASKED, "good", "bad")


def test_without_a_key_only_a_local_endpoint_is_asked(endpoint, make, monkeypatch):
    monkeypatch.delenv("REPROLIB_JUDGE_KEY")
    with pytest.raises(
        ReproError, match=r"no key for the judge at api\.example\.org: set .* REPROLIB_JUDGE_KEY"
    ):
        make(url="https://api.example.org/v1")
    make().compare(ASKED, "good", "bad")
    assert endpoint.requests[0][1] is None


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"url": "http://api.example.org/v1"}, r"for api\.example\.org is not encrypted: expected https"),
        ({"url": "ftp://api.example.org"}, "expected https://host/path"),
        ({"url": "api.example.org/v1"}, "expected https://host/path"),
        ({"url": "https://me:word@api.example.org/v1"}, "without user name"),
        ({"attempts": 0}, "0 attempts"),
        ({"timeout": 0.0}, "expected at least one of a positive time"),
    ],
)
def test_settings_that_cannot_work_are_refused_before_a_request(make, changed, message):
    with pytest.raises(ReproError, match=message):
        make(**changed)


def test_a_key_with_a_line_break_is_refused_and_not_shown(make, monkeypatch):
    monkeypatch.setenv("REPROLIB_JUDGE_KEY", "sk-1\r\nX-Other: 2")
    with pytest.raises(ReproError, match="expected one word of ASCII characters") as caught:
        make()
    assert "sk-1" not in str(caught.value)


def test_every_data_set_has_a_criterion():
    assert set(CRITERIA) == set(NAMES)
