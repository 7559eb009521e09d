r"""What a language model says about an example: scores of the labels, loss, predicted label or answer.

    policy = load_classifier("micro-masked")
    batch = collate(policy, task, encode(policy, task, task.train[:64]))
    losses(policy.model, batch)               # [64], what zeroth-order methods differentiate
    predict(policy, task, task.evaluation)    # labels, or answers for "squad"

A label's score is the log-probability of its word: at the mask for a masked model, after the prompt for a
causal one, there averaged over the word's tokens. The loss of a label is the cross-entropy over the labels'
scores alone, that of an answer the mean negative log-likelihood of its tokens.
Source: SAGE, equation 2 (the loss), Experimental Setup; the rules are those of MeZO's released code.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM

from reprolib.errors import ReproError
from reprolib.lm import models
from reprolib.lm.generate import Sampling, TransformersEngine
from reprolib.lm.logprobs import Packed, by_completion, log_probabilities, pack
from reprolib.lm.models import Policy
from reprolib.paths import root
from reprolib.tasks.classification import Classification, Example

OWN = ("micro-masked", "micro-causal")


def load_classifier(name: str, *, dtype: str = "float32", device: str = "auto") -> Policy:
    """A masked or a causal language model to be prompted; no chat template is needed.

    Args:
        name: "micro-masked", "micro-causal" (``data/models``), "smollm2-135m", a local directory, or a name
            on the model hub such as "FacebookAI/roberta-large" and "facebook/opt-1.3b".
        dtype: "float32", "bfloat16" or "float16".
        device: "auto" takes a GPU where there is one.

    Raises:
        ReproError: no such model, or an unreadable file.
    """
    if name == "smollm2-135m":
        return models.load(name, dtype=dtype, device=device)
    source = str(root() / "data" / "models" / name) if name in OWN else name
    return models.read(name, source, known=(*OWN, "smollm2-135m"), dtype=dtype, device=device, family=_family)


def _family(source: str) -> Any:
    """The class that reads a model: masked or causal, as its configuration says."""
    architectures = AutoConfig.from_pretrained(source).architectures or ()
    masked = any("MaskedLM" in architecture for architecture in architectures)
    return AutoModelForMaskedLM if masked else AutoModelForCausalLM


@dataclass(frozen=True)
class Encoded:
    """An example in tokens.

    Attributes:
        prompt: the tokens of the prompt.
        mask: the position of the mask; -1 for a causal model.
        label: the index of the label; -1 for a question.
        answer: the tokens of the first accepted answer and its end; none for a class.
    """

    prompt: tuple[int, ...]
    mask: int
    label: int
    answer: tuple[int, ...]


def encode(policy: Policy, task: Classification, examples: Sequence[Example]) -> list[Encoded]:
    """The examples' prompts, labels and answers in tokens.

    The parts of the template are tokenised apart, each cut to its cap, then the whole to the task's cap, from
    the right, as DP-AggZO's code does for RoBERTa.

    Raises:
        ReproError: an empty field, a label without a word, a mask lost to the cap, or a prompt that does not
            fit the model's context.
    """
    words = word_tokens(policy, task)
    start, end = _frame(policy.tokenizer) if examples else ([], [])
    found = []
    for example, body in zip(examples, _bodies(policy, task, examples), strict=True):
        prompt = [*start, *body, *(end if task.style == "masked" else ())][: task.max_tokens]
        answer = () if words else tuple(_tokens(policy, [f" {example.answers[0]}{task.end}"])[0])
        completion = max(map(len, words or (answer,))) if task.style == "causal" else 0
        _require_room(policy, task, example, len(prompt) + completion)
        mask = _mask_position(policy, example, prompt) if task.style == "masked" else -1
        label = task.label_index(example) if words else -1
        found.append(Encoded(tuple(prompt), mask, label, answer))
    return found


def _bodies(policy: Policy, task: Classification, examples: Sequence[Example]) -> list[list[int]]:
    """The tokens of the template's parts, joined, for each example."""
    bodies: list[list[int]] = [[] for _ in examples]
    # a template has the same parts for every example, so each part is tokenised for all examples at once
    for pieces in zip(*(task.template.pieces(example.fields) for example in examples), strict=True):
        if pieces[0].text is None:
            column = [[_mask_token(policy)]] * len(examples)
        else:
            column = _tokens(policy, [piece.text or "" for piece in pieces])
        for body, tokens in zip(bodies, column, strict=True):
            body += tokens[: pieces[0].limit]
    return bodies


def _tokens(policy: Policy, texts: list[str]) -> list[list[int]]:
    found: list[list[int]] = policy.tokenizer(texts, add_special_tokens=False)["input_ids"]
    return found


def word_tokens(policy: Policy, task: Classification) -> tuple[tuple[int, ...], ...]:
    """The tokens of each label's word, in the order of the labels.

    Raises:
        ReproError: a word has no token, the same tokens as another, or, for a masked model, several tokens:
            one mask has room for one. A causal model takes words of any length.
    """
    found: dict[tuple[int, ...], str] = {}
    for label, word in task.verbaliser.items():
        tokens = tuple(policy.tokenizer.encode(word, add_special_tokens=False))
        if not tokens or policy.tokenizer.unk_token_id in tokens:
            raise ReproError(f"{task.name}: the tokenizer of {policy.name!r} has no token for {word!r}")
        if task.style == "masked" and len(tokens) > 1:
            raise ReproError(
                f"{task.name}: {word!r} is {len(tokens)} tokens for {policy.name!r}: a masked model needs"
                " words of one token: choose another word, or the style causal"
            )
        if tokens in found:
            raise ReproError(f"{task.name}: {found[tokens]!r} and {label!r} have the same word {word!r}")
        found[tokens] = label
    return tuple(found)


def _frame(tokenizer: Any) -> tuple[list[int], list[int]]:
    """The special tokens that the tokenizer puts before and after a text."""
    framed = tokenizer.encode("a", add_special_tokens=True)
    inner = tokenizer.encode("a", add_special_tokens=False)
    first = next(i for i in range(len(framed)) if framed[i : i + len(inner)] == inner)
    return framed[:first], framed[first + len(inner) :]


def _mask_token(policy: Policy) -> int:
    token = policy.tokenizer.mask_token_id
    if token is None:
        raise ReproError(f"model {policy.name!r} has no mask token: load the task in the style causal")
    return int(token)


def _mask_position(policy: Policy, example: Example, prompt: Sequence[int]) -> int:
    found = [i for i, token in enumerate(prompt) if token == _mask_token(policy)]
    if len(found) != 1:
        raise ReproError(
            f"example {example.id}: {len(found)} masks in its {len(prompt)} tokens: expected one: cap the"
            " field before the mask, and leave the mask token out of the texts"
        )
    return found[0]


def _require_room(policy: Policy, task: Classification, example: Example, length: int) -> None:
    config = policy.model.config
    # RoBERTa counts positions from the padding token's number on
    used = config.pad_token_id + 1 if config.model_type == "roberta" else 0
    context = config.max_position_embeddings - used
    if length > context:
        raise ReproError(
            f"example {example.id}: {length} tokens exceed the context of {context} of {policy.name!r}:"
            f" shorten the text, or set a cap in the template of {task.name}"
        )


@dataclass(frozen=True)
class MaskedBatch:
    """Prompts of a masked model.

    Shapes: ``ids`` and ``attention`` [N, T]; ``at``, the mask's position, and ``labels`` [N]; ``words``, the
    labels' tokens, [L].
    """

    ids: Tensor
    attention: Tensor
    at: Tensor
    words: Tensor
    labels: Tensor


@dataclass(frozen=True)
class CausalBatch:
    """Prompts of a causal model with the label's words, or with the answer; ``labels`` [N], -1 for an answer.

    ``lengths``: the tokens of each completion, [N, completions]; L completions for labels, one for an answer.
    """

    packed: Packed
    lengths: Tensor
    labels: Tensor


Batch = MaskedBatch | CausalBatch


def collate(policy: Policy, task: Classification, rows: Sequence[Encoded]) -> Batch:
    """Encoded examples as one batch on the model's device.

    Raises:
        ReproError: no row, or a model of another style than the task's.
    """
    device = policy.model.device
    if not rows:
        raise ReproError("an empty batch: expected at least one example")
    labels = torch.tensor([row.label for row in rows], device=device)
    words = word_tokens(policy, task)
    if task.style == "masked":
        pad = torch.nn.utils.rnn.pad_sequence
        ids = [torch.tensor(row.prompt) for row in rows]
        return MaskedBatch(
            ids=pad(ids, batch_first=True, padding_value=policy.tokenizer.pad_token_id).to(device),
            attention=pad([torch.ones_like(i) for i in ids], batch_first=True).to(device),
            at=torch.tensor([row.mask for row in rows], device=device),
            words=torch.tensor([token for (token,) in words], device=device),
            labels=labels,
        )
    completions = [words or (row.answer,) for row in rows]
    packed = pack([(row.prompt, group) for row, group in zip(rows, completions, strict=True)])
    lengths = torch.tensor([[len(tokens) for tokens in group] for group in completions], device=device)
    return CausalBatch(packed.to(device), lengths, labels)


def label_scores(model: Any, batch: Batch) -> Tensor:
    """Score of each label, [N, L], in float32 or wider; an answer's mean log-probability a token, [N, 1]."""
    if isinstance(batch, CausalBatch):
        return by_completion(batch.packed, log_probabilities(model, batch.packed)) / batch.lengths
    masked = model.get_base_model() if hasattr(model, "get_base_model") else model
    hidden = masked.base_model(input_ids=batch.ids, attention_mask=batch.attention).last_hidden_state
    logits = masked.lm_head(hidden[torch.arange(len(hidden), device=hidden.device), batch.at])
    wide = torch.promote_types(logits.dtype, torch.float32)
    scores: Tensor = logits.to(wide).log_softmax(-1)[:, batch.words]
    return scores


def losses(model: Any, batch: Batch) -> Tensor:
    """Loss of each example, [N]: cross-entropy over the labels' scores, or an answer's mean over tokens."""
    scores = label_scores(model, batch)
    if isinstance(batch, CausalBatch) and (batch.labels < 0).all():
        return -scores[:, 0]
    return cross_entropy(scores, batch.labels, reduction="none")


@torch.no_grad()
def predict(policy: Policy, task: Classification, examples: Sequence[Example], *,
            batch_size: int = 64) -> list[str]:  # fmt: skip
    """The label with the highest score, or the greedy answer, of each example in order.

    Raises:
        ReproError: as ``encode`` and ``collate``.
    """
    rows = encode(policy, task, examples)
    if not task.verbaliser:
        return _answers(policy, task, rows)
    found = [""] * len(rows)
    for part in _batches(rows, batch_size):
        best = label_scores(policy.model, collate(policy, task, [rows[i] for i in part])).argmax(1)
        for i, label in zip(part, best.tolist(), strict=True):
            found[i] = task.labels[label]
    return found


def _batches(rows: Sequence[Encoded], size: int) -> Iterator[list[int]]:
    """Positions of rows of similar length."""
    order = sorted(range(len(rows)), key=lambda i: len(rows[i].prompt))
    yield from (order[i : i + size] for i in range(0, len(order), size))


def _answers(policy: Policy, task: Classification, rows: Sequence[Encoded]) -> list[str]:
    """Greedy answers, cut where the answer's end begins."""
    tokenizer = policy.tokenizer
    ending = tokenizer.encode(task.end, add_special_tokens=False)[-1]
    stopping = Policy(policy.model, SimpleNamespace(eos_token_id=ending), policy.name)
    sampling = Sampling(completions=1, max_new_tokens=task.max_new_tokens, temperature=0)
    groups = TransformersEngine(stopping).generate([row.prompt for row in rows], sampling, None)
    texts = (tokenizer.decode(c.tokens, skip_special_tokens=True) for (c,) in groups)
    return [text.split(task.end.strip(" "))[0].strip() for text in texts]


def evaluate(policy: Policy, task: Classification, examples: Sequence[Example]) -> float:
    """Accuracy or mean F1 of the model on the examples, from 0 to 1."""
    return task.score(examples, predict(policy, task, examples))
