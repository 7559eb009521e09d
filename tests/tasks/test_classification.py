import hashlib
import json
import os
import random
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reprolib.errors import ReproError
from reprolib.tasks import classification_data
from reprolib.tasks.classification import (
    NAMES,
    SIZES,
    Classification,
    Example,
    best_f1,
    exact_match,
    f1,
    load,
    normalised_answer,
    repeated,
)
from reprolib.tasks.classification_drafts import drafts
from reprolib.tasks.classification_files import questions, separated
from reprolib.tasks.classification_micro import kind, micro_task, public_examples, vocabulary
from reprolib.tasks.classification_prompts import PROMPTS, Template

MICRO = (
    ("sst2", "masked"), ("snli", "masked"), ("trec", "masked"), ("sst2", "causal"), ("snli", "causal"),
    ("trec", "causal"), ("squad", "causal"),
)  # fmt: skip
ANSWERS = st.text(alphabet="abc the an.,!-' \n", max_size=30)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty data folder, and what writes a file into it."""
    monkeypatch.setenv("REPROLIB_DATA", str(tmp_path))

    def write(name: str, text: str | bytes) -> Path:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


# templates


def test_a_template_puts_the_blank_before_a_field_into_the_fields_own_part():
    pieces = Template("{mask}: {question:110}").pieces({"question": "Who ?"})
    assert [(p.text, p.limit) for p in pieces] == [(None, None), (":", None), (" Who ?", 110)]


def test_cut_drops_the_last_character_and_lower_lowers_the_first_alone():
    template = Template("{premise:cut 240}? {mask}, {hypothesis:lower}")
    assert template.render({"premise": "A DOG RUNS.", "hypothesis": "The Dog moves."}) == (
        "A DOG RUNS? <mask>, the Dog moves."
    ).replace("? <mask>", "?<mask>")


@given(st.dictionaries(st.sampled_from(["a", "b"]), st.text(min_size=1).filter(str.strip), min_size=2))
def test_rendered_parts_are_the_formatted_template(fields):
    assert Template("x {a} y. {b}\nz:").render(fields) == "x {a} y. {b}\nz:".format(**fields)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{sentence:upper}", "'upper': expected cut, lower or a token cap"),
        ("{sentence:0}", "'0': expected cut, lower or a token cap"),
        ("{sentence", "expected fields as"),
    ],
)
def test_a_faulty_template_is_refused_when_it_is_made(text, message):
    with pytest.raises(ReproError, match=message):
        Template(text)


@pytest.mark.parametrize("fields", [{}, {"sentence": ""}, {"sentence": "  \n"}])
def test_an_empty_text_is_refused(fields):
    with pytest.raises(ReproError, match="field 'sentence' is missing or empty"):
        Template("{sentence} It was").render(fields)


def test_every_published_prompt_is_masked_just_where_the_style_is():
    for (_, style), (text, _, _) in PROMPTS.items():
        assert Template(text).masked == (style == "masked")


# the task


def task(**changes) -> Classification:
    example = Example(id="e", fields={"sentence": "fine"}, label="positive")
    given = {
        "name": "toy", "tier": "small", "style": "causal", "train": (example,), "dev": (), "evaluation": (),
        "template": Template("{sentence} It was"),
        "verbaliser": {"negative": " terrible", "positive": " great"},
    }  # fmt: skip
    return Classification(**given | changes)


def test_a_label_outside_the_verbaliser_is_refused_by_name():
    with pytest.raises(ReproError, match="example e: label 'positive' has no word: expected one of bad"):
        task(verbaliser={"bad": " terrible", "good": " great"})


def test_a_question_without_answer_is_refused():
    with pytest.raises(ReproError, match="example e: no answer"):
        task(verbaliser={})


def test_a_causal_task_refuses_a_template_with_a_mask_and_a_masked_one_without():
    with pytest.raises(ReproError, match=r"template without \{mask\}"):
        task(template=Template("{sentence} It was{mask}."))
    with pytest.raises(ReproError, match=r"template with \{mask\}"):
        task(style="masked")


def test_accuracy_counts_equal_labels_and_refuses_another_number_of_predictions():
    examples = [Example(id=str(i), fields={"sentence": "x"}, label="positive") for i in range(4)]
    assert task().score(examples, ["positive", "negative", "positive", "positive"]) == 0.75
    with pytest.raises(ReproError, match="3 predictions, 4 examples"):
        task().score(examples, ["positive"] * 3)
    with pytest.raises(ReproError, match="0 predictions, 0 examples"):
        task().score([], [])


# SQuAD's metric, by hand: lower case, punctuation, then articles, then blanks


@pytest.mark.parametrize(
    ("predicted", "answer", "expected"),
    [
        ("The Panthers!", "panthers", 1.0),
        ("a the an", "the", 0.0),  # nothing is left to share
        ("308 points", "308", 2 / 3),  # precision 1/2, recall 1
        ("red red key", "red key", 0.8),  # a repeated word counts as often as both have it: P 2/3, R 1
        ("anthem", "an them", 0.0),  # articles are whole words only
        ("U.S. army", "us army", 1.0),  # punctuation goes without a blank in its place
        ("blue cup", "red key", 0.0),
        ("", "key", 0.0),
    ],
)
def test_f1_of_hand_computed_answers(predicted, answer, expected):
    assert f1(predicted, answer) == pytest.approx(expected, abs=1e-15)


@given(ANSWERS, ANSWERS)
def test_f1_is_symmetric_between_0_and_1_and_1_just_for_equal_bags_of_words(a, b):
    value = f1(a, b)
    assert value == f1(b, a)
    assert 0 <= value <= 1
    words = [Counter(normalised_answer(text).split()) for text in (a, b)]
    assert (value == 1) == (words[0] == words[1] != Counter())


@given(ANSWERS)
def test_normalising_an_answer_again_changes_nothing_but_what_punctuation_hid(text):
    assert normalised_answer(normalised_answer(text)) == normalised_answer(text)


def test_the_best_of_several_answers_counts():
    assert best_f1("308 points", ["300", "308"]) == pytest.approx(2 / 3)
    assert exact_match("The 308.", ["300", "308"])
    assert not exact_match("308 points", ["300", "308"])


# micro


@pytest.mark.parametrize(("name", "style"), MICRO)
def test_a_class_has_512_training_and_512_selection_examples_and_questions_have_the_papers_sizes(name, style):
    found = micro_task(name, tier="micro", style=style)
    if name == "squad":
        assert (len(found.train), len(found.dev), len(found.evaluation)) == SIZES["squad", "causal"]
        return
    for rows in (found.train, found.dev):
        assert Counter(e.label for e in rows) == dict.fromkeys(found.labels, 512)
    assert len(found.evaluation) == 1000


@pytest.mark.parametrize("name", ["sst2", "snli", "trec", "squad"])
def test_no_text_stands_in_two_splits_or_in_public_text(name):
    found = micro_task(name, tier="micro", style="causal")
    every = (*found.train, *found.dev, *found.evaluation)
    assert repeated(every) == []
    texts = {tuple(e.fields.values()) for e in every}
    assert texts.isdisjoint(tuple(e.fields.values()) for e in public_examples(name, size=5000, seed=1))


@pytest.mark.parametrize("name", ["sst2", "snli", "trec", "squad"])
def test_public_text_takes_the_right_reading_as_often_as_its_draft_says(name):
    rng, expected, right = random.Random(0), 0.0, 0
    stream = drafts(name, "test")
    for _ in range(4000):
        draft = next(stream)
        expected += draft.share
        right += draft.read(rng) == draft.right
        assert draft.shortcut != draft.right
        assert (draft.shortcut is None) == (draft.share == 1)
    assert abs(right - expected) < 4 * (4000 * 0.25) ** 0.5


def test_the_answer_stands_once_in_the_tale_beside_the_word_that_the_question_is_about():
    beside = {
        "who bought it": "{} bought", "what was bought": "bought the {}", "where was it bought": "in {}",
        "who sold it": "from {}", "where was it made": "in {}", "who made it": "made by {}",
    }  # fmt: skip
    for example in micro_task("squad", tier="micro", style="causal").train:
        context, [answer] = example.fields["context"], example.answers
        assert context.count(answer) == 1
        assert beside[example.fields["question"]].format(answer) in context
        sold, made = context.split(" . ")
        where = {"where was it bought": sold, "where was it made": made}
        assert answer in where.get(example.fields["question"], context)


def test_a_sentence_is_positive_by_the_clause_that_has_the_verdict():
    good = {"brilliant", "charming", "clever", "fresh", "moving", "rich"}
    for example in micro_task("sst2", tier="micro", style="causal").train:
        words = example.fields["sentence"].split()
        negated = "not" in words or "never" in words
        assert ((words[-1] in good) != negated) == (example.label == "positive")


@pytest.mark.parametrize(("name", "style"), MICRO)
def test_the_vocabulary_covers_every_text_and_has_no_spare_word(name, style):
    known = set(vocabulary())
    found = micro_task(name, tier="micro", style=style)
    texts = [found.template.render(e.fields, mask=" ") for e in (*found.train, *found.evaluation)]
    texts += [*found.verbaliser.values(), *(a for e in found.train for a in e.answers), found.end]
    assert {word for text in texts for word in text.split()} <= known


def test_every_word_of_the_vocabulary_is_used():
    used = set()
    for name, style in MICRO:
        found = micro_task(name, tier="micro", style=style)
        for example in found.train:
            used |= set(found.template.render(example.fields, mask=" ").split())
        used |= {word for text in found.verbaliser.values() for word in text.split()}
    assert set(vocabulary()) == used


def test_texts_are_the_same_on_every_machine():
    rows = [
        [e.id, dict(e.fields), e.label, e.answers]
        for name in ("sst2", "snli", "trec", "squad")
        for e in micro_task(name, tier="micro", style="causal").train
    ]
    # the committed weights have read public text that avoids just these examples
    found = hashlib.sha256(json.dumps(rows).encode()).hexdigest()
    assert found == "80b6b561cc0293f57124031411eb10141e5d15d998a22d5db29a043e7f34c235"


def test_smoke_is_the_beginning_of_micro_and_a_kind_ends_the_id():
    few, full = (micro_task("trec", tier=tier, style="masked") for tier in ("smoke", "micro"))
    assert few.train == full.train[:24]
    assert {kind(e) for e in full.evaluation} == {"plain", "shortcut"}


# real data


@pytest.mark.parametrize(("name", "style"), [key for key in SIZES if key[1] == "masked"])
def test_published_splits_have_the_sizes_of_the_papers_runs(data, name, style):
    found = load(name, tier="paper", style=style, duplicates="keep")
    assert (len(found.train), len(found.dev), len(found.evaluation)) == SIZES[name, style]


def alphanumeric(text: str) -> str:
    return "".join(c for c in text if c.isalnum())


def test_the_few_shot_draw_gives_the_published_trec_rows_one_by_one(data):
    rows = [json.loads(line) for line in (data / "trec" / "TREC.train.jsonl").open(encoding="utf-8")]
    published = load("trec", tier="small", style="masked", duplicates="keep")
    for positions, examples in zip(
        classification_data.few_shot([row["coarse"] for row in rows]),
        (published.train, published.dev),
        strict=True,
    ):
        drawn = [(rows[i]["coarse"], alphanumeric(rows[i]["question"])) for i in positions]
        assert drawn == [(e.label, alphanumeric(e.fields["question"])) for e in examples]


def test_the_few_shot_draw_gives_the_published_labels_of_sst5_in_order(data):
    whole = (data / "sst5" / "stsa.fine.train.txt").read_text(encoding="utf-8").splitlines()
    labels = [classification_data.DATA["sst5"].codes[line[0]] for line in whole]
    published = load("sst5", tier="small", style="masked", duplicates="keep")
    train, dev = classification_data.few_shot(labels)
    assert [labels[i] for i in train] == [e.label for e in published.train]
    assert [labels[i] for i in dev] == [e.label for e in published.dev]


def test_published_training_splits_that_hold_a_text_twice_are_refused_unless_kept(data):
    with pytest.raises(ReproError, match=r"rte-train-931 repeats rte-train-697, 1 repeat.*group privacy"):
        load("rte", tier="small", style="causal")
    kept = {name: load(name, tier="small", style="causal", duplicates="keep").train for name in NAMES}
    assert {name: len(repeated(train)) for name, train in kept.items()} == {
        "sst2": 0, "sst5": 2, "trec": 17, "snli": 0, "mnli": 0, "rte": 1, "squad": 1
    }  # fmt: skip


def test_one_file_of_questions_is_divided_by_article(data):
    found = load("squad", tier="small", style="causal", duplicates="keep")
    titles = [{e.fields["title"] for e in rows} for rows in (found.train, found.dev, found.evaluation)]
    assert [len(t) for t in titles] == [24, 6, 18]
    assert len(set.union(*titles)) == 48
    assert all(a in e.fields["context"] for e in found.evaluation for a in e.answers)


def test_the_paper_tier_refuses_a_part_of_the_questions(data):
    with pytest.raises(ReproError, match=r"squad has \(575, 149, 466\) .*, the paper \(1000, 500, 1000\)"):
        load("squad", tier="paper", style="causal", duplicates="keep")


# files


def test_tab_separated_quotation_marks_are_text_and_csv_ones_are_not(folder):
    tsv = folder("a.tsv", 'sentence\tlabel\nsay "no\t0\n')
    assert [r.fields for r in separated(tsv, delimiter="\t")] == [{"sentence": 'say "no', "label": "0"}]
    table = folder("a.csv", '3,"a, ""b"""\n')
    [record] = separated(table, delimiter=",", columns=("label", "text"))
    assert record.fields == {"label": "3", "text": 'a, "b"'}
    assert record.place == f"{table}:1"


RTE = "index\tsentence1\tsentence2\tlabel\n0\tA dog.\tA cat.\tentailment\n"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1\tA dog.\tentailment", r"\.tsv:3: 3 columns: expected 4, index, sentence1"),
        ("1\tA dog.\tA cat.\tmaybe", r"\.tsv:3: field 'label': expected one of entailment, not_entailment"),
        ("1\tA dog.\t \tentailment", r"\.tsv:3: field 'sentence2' is empty"),
        (b"1\tA d\xe9g.\tA cat.\tentailment", r"\.tsv:3: not UTF-8"),
    ],
)
def test_a_faulty_line_is_named_with_its_file_and_not_quoted(folder, line, message):
    line = line if isinstance(line, bytes) else line.encode()
    folder("rte/test_glue_dev_277.tsv", RTE.encode() + line + b"\n")
    with pytest.raises(ReproError, match=message) as caught:
        load("rte", tier="small", style="causal")
    assert "dog" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_open_quotation_mark_is_named_by_line(folder):
    folder("trec/test_500.csv", '0,"What is it ?"\n1,"Who\n')
    with pytest.raises(ReproError, match=r"test_500\.csv:\d+: no CSV: expected quotation marks in pairs"):
        load("trec", tier="small", style="causal")


def test_a_missing_file_says_where_it_was_looked_for(folder):
    with pytest.raises(ReproError, match=r"no snli/test_1k\.jsonl in REPROLIB_DATA = "):
        load("snli", tier="small", style="masked")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"data": [\n{]', r"xquad\.en\.json:2: not JSON, column 2"),
        ("[1]", r"xquad\.en\.json: field 'data': expected a list of records"),
        ('{"data": [{"title": "T", "paragraphs": [{"context": "C", "qas": [{"question": "Q"}]}]}]}',
         r"article 1, paragraph 1, question 1: field 'answers': expected a list"),
        ('{"data": [{"title": "T", "paragraphs": [{"context": "", "qas": [{"question": "Q"}]}]}]}',
         r"article 1, paragraph 1, question 1: field 'context' is empty"),
    ],
)  # fmt: skip
def test_faulty_question_files_name_the_question(folder, text, message):
    folder("squad/xquad.en.json", text)
    with pytest.raises(ReproError, match=message):
        load("squad", tier="small", style="causal")


def test_whole_question_files_are_drawn_from_with_no_question_in_both_parts(folder):
    answers = [{"text": "c", "answer_start": 2}]
    asked = [{"id": str(i), "question": f"Q{i}", "answers": answers} for i in range(1600)]
    article = {"title": "T", "paragraphs": [{"context": "C c", "qas": asked}]}
    for name in ("train", "dev"):
        folder(f"squad/{name}-v1.1.json", json.dumps({"data": [article]}))
    found = load("squad", tier="paper", style="causal")
    drawn = [e.id for e in (*found.train, *found.dev)]
    assert len(set(drawn)) == 1500
    assert len(list(questions(Path(os.environ["REPROLIB_DATA"]) / "squad/dev-v1.1.json"))) == 1600


@given(st.lists(st.sampled_from("abc"), max_size=60), st.integers(1, 8), st.integers(0, 5))
def test_the_few_shot_draw_is_balanced_seeded_and_never_takes_a_row_twice(labels, per_class, seed):
    train, dev = classification_data.few_shot(labels, per_class=per_class, seed=seed)
    assert (train, dev) == classification_data.few_shot(labels, per_class=per_class, seed=seed)
    assert len({*train, *dev}) == len(train) + len(dev)
    counts = Counter(labels)
    assert Counter(labels[i] for i in train) == {k: min(per_class, n) for k, n in counts.items()}
    expected = {k: min(per_class, n - per_class) for k, n in counts.items() if n > per_class}
    assert Counter(labels[i] for i in dev) == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("sst3", "micro", "masked"), "task 'sst3': expected one of sst2"),
        (("sst2", "huge", "masked"), "tier 'huge': expected smoke"),
        (("sst2", "micro", "encoder"), "style 'encoder': expected masked or causal"),
        (("squad", "small", "masked"), "squad in style 'masked'"),
        (("rte", "micro", "masked"), "no procedural task 'rte'"),
        (("rte", "paper", "causal"), "the paper has no such run"),
    ],
)
def test_unknown_names_are_refused_with_what_is_known(arguments, message):
    name, tier, style = arguments
    with pytest.raises(ReproError, match=message):
        load(name, tier=tier, style=style)
