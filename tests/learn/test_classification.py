import copy
import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch.nn.functional import cross_entropy
from transformers import (
    OPTConfig,
    OPTForCausalLM,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaForMaskedLM,
)

from reprolib.errors import ReproError
from reprolib.learn.classification import (
    Encoded,
    collate,
    encode,
    evaluate,
    label_scores,
    load_classifier,
    losses,
    predict,
    word_tokens,
)
from reprolib.lm.models import Policy
from reprolib.tasks.classification import Classification, Example
from reprolib.tasks.classification_micro import micro_task
from reprolib.tasks.classification_prompts import Template
from tests.tiny import policy as tiny_policy

MODELS = Path(__file__).resolve().parents[2] / "data/models"
WORDS = ["good", "bad", "very", "film", "it", "was", ".", "red", "key", "not"]


def words_tokenizer(*, masked: bool) -> PreTrainedTokenizerFast:
    vocabulary = {w: i for i, w in enumerate(["<pad>", "<s>", "</s>", "<unk>", "<mask>", *WORDS])}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    single = "<s> $A </s>" if masked else "</s> $A"  # OPT starts a text with its end token
    inner.post_processor = processors.TemplateProcessing(
        single=single, special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", eos_token="</s>", unk_token="<unk>",
        **({"mask_token": "<mask>"} if masked else {}),
    )  # fmt: skip


def masked_policy() -> Policy:
    torch.manual_seed(0)
    config = RobertaConfig(
        vocab_size=15, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24,
        max_position_embeddings=17, type_vocab_size=1, pad_token_id=0, initializer_range=0.5,
    )  # fmt: skip
    return Policy(RobertaForMaskedLM(config).double().eval(), words_tokenizer(masked=True), "tiny-masked")


def causal_policy() -> Policy:
    torch.manual_seed(0)
    config = OPTConfig(
        vocab_size=15, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, ffn_dim=24,
        max_position_embeddings=16, word_embed_proj_dim=16, pad_token_id=0, eos_token_id=2, init_std=0.5,
    )  # fmt: skip
    return Policy(OPTForCausalLM(config).double().eval(), words_tokenizer(masked=False), "tiny-causal")


def task(style: str = "masked", **changes) -> Classification:
    given = {
        "name": "toy", "tier": "smoke", "style": style, "train": (), "dev": (), "evaluation": (),
        "template": Template("{sentence} it was{mask} ." if style == "masked" else "{sentence} it was"),
        "verbaliser": {"negative": " bad", "positive": " good"}, "end": " .", "max_new_tokens": 3,
    }  # fmt: skip
    return Classification(**given | changes)


def example(sentence: str = "very good film", label: str = "positive", name: str = "e") -> Example:
    return Example(id=name, fields={"sentence": sentence}, label=label)


SENTENCES = ("good film", "very very bad film", "film", "not very good . it was bad")
EXAMPLES = [
    example(text, label, str(i))
    for i, (text, label) in enumerate(zip(SENTENCES, ["positive", "negative"] * 2, strict=True))
]
QUESTION = Example(id="q", fields={"sentence": "red key"}, answers=("red key", "key"))


def test_a_masked_prompt_stands_between_the_tokenizers_own_start_and_end():
    policy = masked_policy()
    [row] = encode(policy, task(), [example("good film")])
    assert policy.tokenizer.decode(row.prompt) == "<s> good film it was <mask> . </s>"
    assert (row.mask, row.label, row.answer) == (5, 1, ())


def test_a_causal_prompt_keeps_the_start_and_no_end():
    policy = causal_policy()
    [row] = encode(policy, task("causal"), [example("good film", "negative")])
    assert policy.tokenizer.decode(row.prompt) == "</s> good film it was"
    assert (row.mask, row.label) == (-1, 0)


def test_a_fields_cap_and_the_prompts_cap_cut_from_the_right():
    policy = masked_policy()
    capped = task(template=Template("{sentence:2} it was{mask} ."), max_tokens=7)
    [row] = encode(policy, capped, [example("very good film")])
    assert policy.tokenizer.decode(row.prompt) == "<s> very good it was <mask> ."


def test_a_mask_lost_to_the_cap_and_a_second_mask_are_refused():
    with pytest.raises(ReproError, match="example e: 0 masks in its 4 tokens"):
        encode(masked_policy(), task(max_tokens=4), [example()])
    with pytest.raises(ReproError, match="example e: 2 masks"):
        encode(masked_policy(), task(), [example("good <mask>")])


@pytest.mark.parametrize(("make", "style"), [(masked_policy, "masked"), (causal_policy, "causal")])
def test_a_prompt_may_fill_the_context_and_not_exceed_it(make, style):
    policy = make()
    fixed = 6 if style == "masked" else 4  # causal: start, "it was" and the label's word
    longest = encode(policy, task(style), [example("very " * (16 - fixed))])
    assert label_scores(policy.model, collate(policy, task(style), longest)).isfinite().all()
    with pytest.raises(ReproError, match="example e: 17 tokens exceed the context of 16"):
        encode(policy, task(style), [example("very " * (17 - fixed))])


def test_a_masked_model_refuses_a_word_of_two_tokens_and_a_causal_one_takes_it():
    words = {"negative": " bad", "positive": " very good"}
    with pytest.raises(ReproError, match="' very good' is 2 tokens for 'tiny-masked'"):
        word_tokens(masked_policy(), task(verbaliser=words))
    assert word_tokens(causal_policy(), task("causal", verbaliser=words)) == ((6,), (7, 5))


def test_unknown_and_repeated_words_are_refused():
    with pytest.raises(ReproError, match="no token for ' great'"):
        word_tokens(masked_policy(), task(verbaliser={"a": " bad", "b": " great"}))
    with pytest.raises(ReproError, match="'a' and 'b' have the same word ' bad'"):
        word_tokens(masked_policy(), task(verbaliser={"a": " bad", "b": " bad"}))


def test_a_model_without_mask_token_is_refused_for_a_masked_task():
    with pytest.raises(ReproError, match="'tiny-causal' has no mask token"):
        encode(causal_policy(), task(), [example()])


def test_a_masked_score_is_the_whole_models_log_probability_at_the_mask():
    policy = masked_policy()
    [row] = encode(policy, task(), [example()])
    whole = policy.model(torch.tensor([row.prompt])).logits[0, row.mask].log_softmax(-1)
    found = label_scores(policy.model, collate(policy, task(), [row]))
    torch.testing.assert_close(found[0], whole[[6, 5]])


def test_a_causal_score_is_the_mean_log_probability_of_the_words_tokens_after_the_prompt():
    policy = causal_policy()
    words = {"negative": " bad", "positive": " very good"}
    long = task("causal", verbaliser=words)
    [row] = encode(policy, long, [example()])
    found = label_scores(policy.model, collate(policy, long, [row]))[0]
    for score, word in zip(found, ([6], [7, 5]), strict=True):
        logits = policy.model(torch.tensor([[*row.prompt, *word]])).logits[0].log_softmax(-1)
        last = len(row.prompt) - 1
        torch.testing.assert_close(score, sum(logits[last + i, w] for i, w in enumerate(word)) / len(word))


@pytest.mark.parametrize(("make", "style"), [(masked_policy, "masked"), (causal_policy, "causal")])
def test_an_examples_loss_does_not_depend_on_the_batch_it_is_in(make, style):
    policy = make()
    rows = encode(policy, task(style), EXAMPLES)
    together = losses(policy.model, collate(policy, task(style), rows))
    alone = torch.cat([losses(policy.model, collate(policy, task(style), [row])) for row in rows])
    torch.testing.assert_close(together, alone, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("make", "style"), [(masked_policy, "masked"), (causal_policy, "causal")])
def test_the_loss_is_the_cross_entropy_over_the_verbalisers_words_alone(make, style):
    policy = make()
    batch = collate(policy, task(style), encode(policy, task(style), EXAMPLES))
    scores = label_scores(policy.model, batch)
    assert scores.shape == (4, 2)
    by_hand = scores.logsumexp(1) - scores[torch.arange(4), torch.tensor([1, 0, 1, 0])]
    torch.testing.assert_close(losses(policy.model, batch), by_hand)
    torch.testing.assert_close(by_hand, cross_entropy(scores, batch.labels, reduction="none"))


def test_the_loss_of_an_answer_is_its_mean_negative_log_likelihood_with_the_end():
    policy = causal_policy()
    asked = task("causal", verbaliser={}, template=Template("{sentence} was"))
    [row] = encode(policy, asked, [QUESTION])
    assert policy.tokenizer.decode(row.answer) == "red key ."
    whole = torch.tensor([[*row.prompt, *row.answer]])
    logits = policy.model(whole).logits[0, len(row.prompt) - 1 : -1]
    found = losses(policy.model, collate(policy, asked, [row]))
    torch.testing.assert_close(found[0], cross_entropy(logits, torch.tensor(row.answer)))


def test_a_loss_that_is_nan_for_one_example_stays_with_this_example():
    policy = masked_policy()
    with torch.no_grad():
        policy.model.roberta.embeddings.word_embeddings.weight[WORDS.index("not") + 5] = float("nan")
    policy.model.lm_head.decoder.weight = torch.nn.Parameter(torch.ones(15, 16, dtype=torch.float64))
    found = losses(policy.model, collate(policy, task(), encode(policy, task(), EXAMPLES)))
    assert found.isnan().tolist() == [False, False, False, True]


def test_an_empty_batch_is_refused():
    with pytest.raises(ReproError, match="an empty batch"):
        collate(masked_policy(), task(), [])
    assert encode(masked_policy(), task(), []) == []


@pytest.mark.parametrize(("make", "style"), [(masked_policy, "masked"), (causal_policy, "causal")])
@pytest.mark.parametrize("size", [1, 3, 64])
def test_predictions_are_the_best_scores_in_the_examples_order(make, style, size):
    policy = make()
    rows = encode(policy, task(style), EXAMPLES)
    best = label_scores(policy.model, collate(policy, task(style), rows)).argmax(1)
    expected = [task(style).labels[i] for i in best.tolist()]
    assert predict(policy, task(style), EXAMPLES, batch_size=size) == expected


ANY_MASKED = masked_policy()


@settings(max_examples=20, deadline=None)
@given(st.lists(st.sampled_from(WORDS), min_size=1, max_size=8))
def test_scores_never_exceed_0_and_sum_to_at_most_1(sentence):
    rows = encode(ANY_MASKED, task(), [example(" ".join(sentence))])
    scores = label_scores(ANY_MASKED.model, collate(ANY_MASKED, task(), rows))
    assert (scores <= 0).all()
    assert scores.exp().sum() <= 1


def test_losses_differentiate_in_every_weight_that_the_prompt_touches():
    policy = masked_policy()
    losses(policy.model, collate(policy, task(), encode(policy, task(), EXAMPLES))).sum().backward()
    assert all(p.grad is not None for p in policy.model.parameters())


def test_a_toy_without_chat_template_is_scored_as_well():
    policy = tiny_policy()
    rows = [Encoded(prompt=(4, 5), mask=-1, label=0, answer=(6,))]
    digits = task("causal", verbaliser={"a": "1", "b": "2"})
    assert label_scores(policy.model, collate(policy, digits, rows)).shape == (1, 2)


# the models of the micro tier


@pytest.mark.parametrize("style", ["masked", "causal"])
def test_the_micro_tokenizers_know_every_word_and_give_an_answer_back(style):
    policy = load_classifier(f"micro-{style}", device="cpu")
    for name in ("sst2", "snli", "trec", *(["squad"] if style == "causal" else [])):
        smoke = micro_task(name, tier="smoke", style=style)
        for row, given_ in zip(encode(policy, smoke, smoke.train), smoke.train, strict=True):
            assert policy.tokenizer.unk_token_id not in (*row.prompt, *row.answer)
            if name == "squad":
                assert policy.tokenizer.decode(row.answer) == given_.answers[0] + " ."


CASES = [
    *(("masked", name) for name in ("sst2", "snli", "trec")),
    *(("causal", name) for name in ("sst2", "snli", "trec", "squad")),
]


@pytest.mark.parametrize(("style", "name"), CASES)
def test_the_card_of_a_micro_model_says_what_it_scores(style, name):
    policy = load_classifier(f"micro-{style}", device="cpu")
    found = micro_task(name, tier="micro", style=style)
    card = json.loads((MODELS / f"micro-{style}" / "card.json").read_text())["measured"][name]
    assert evaluate(policy, found, found.evaluation) == pytest.approx(card["zero_shot"], abs=0.01)


@pytest.mark.parametrize(("style", "name"), CASES)
def test_a_micro_model_starts_above_chance_and_well_below_its_ceiling(style, name):
    card = json.loads((MODELS / f"micro-{style}" / "card.json").read_text())["measured"][name]
    assert card["chance"] + 0.1 < card["zero_shot"] < card["fine_tuned"] - 0.1
    assert card["fine_tuned"] > (0.8 if name == "squad" else 0.9)


def test_a_few_steps_of_ordinary_fine_tuning_raise_the_score():
    policy = load_classifier("micro-masked", device="cpu")
    found = micro_task("sst2", tier="micro", style="masked")
    rows = encode(policy, found, found.train)
    model = copy.deepcopy(policy.model).requires_grad_(True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for start in range(0, 640, 64):
        optimizer.zero_grad()
        losses(model, collate(policy, found, rows[start : start + 64])).mean().backward()
        optimizer.step()
    tuned = evaluate(Policy(model, policy.tokenizer, "tuned"), found, found.evaluation)
    assert tuned > evaluate(policy, found, found.evaluation) + 0.05


def test_a_greedy_answer_ends_before_its_end_word():
    policy = load_classifier("micro-causal", device="cpu")
    found = micro_task("squad", tier="smoke", style="causal")
    answers = predict(policy, found, found.evaluation)
    assert all(answer and "." not in answer for answer in answers)
    assert sum(len(answer.split()) == 2 for answer in answers) >= 20


def test_a_model_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ReproError, match=r"cannot be read .*: expected micro-masked, micro-causal"):
        load_classifier(str(tmp_path / "none"))
    with pytest.raises(ReproError, match="dtype 'int8': expected one of float32"):
        load_classifier("micro-masked", dtype="int8")
