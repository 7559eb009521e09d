r"""SAGE's data sets as they are published: their files, their codes for labels and the few-shot draw.

    train, dev, evaluation = splits("rte", tier="small", style="causal")

A folder in ``REPROLIB_DATA`` may hold the few-shot files themselves; by name, the draw is made again from the
whole training split: ``few_shot`` gives the published rows of TREC one by one, so the draw is the same.
Source: SAGE, Experimental Setup, after DP-AggZO; the draw is that of LM-BFF's ``generate_k_shot_data.py``.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from reprolib.errors import ReproError
from reprolib.tasks.classification import Example
from reprolib.tasks.classification_files import questions, separated
from reprolib.tasks.classification_prompts import Style
from reprolib.tasks.sources import Record, Source, json_lines, read

_PARTS = "train", "dev"
PER_CLASS, FEW_SHOT_SEED, TEST_CAP, TEST_SEED = 512, 42, 1_000, 42
OPT_TRAIN, OPT_DEV, OPT_SEED = 1_000, 500, 0


@dataclass(frozen=True, kw_only=True)
class Data:
    """How a data set is published.

    Attributes:
        few_shot: the published few-shot training and selection splits, where a folder may hold them.
        train: the whole training split.
        test: the split for evaluation.
        parse: what reads a file of it.
        texts: each field of the template, and its names in files and in the data set by name.
        label: the names of the label, in files and by name; empty for questions.
        codes: the label's codes in files; ``named_codes``: by name.
    """

    few_shot: tuple[Source, Source] | None
    train: Source
    test: Source
    parse: Callable[[Path], Iterator[Record]]
    texts: Mapping[str, tuple[str, ...]]
    label: tuple[str, ...]
    codes: Mapping[str, str]
    named_codes: Mapping[str, str]


_TSV = partial(separated, delimiter="\t")
_CSV = partial(separated, delimiter=",", columns=("label", "text"))
_ENTAILS = ("entailment", "not_entailment")
_INFERS = ("entailment", "neutral", "contradiction")
_PAIR = {"premise": ("sentence1", "premise"), "hypothesis": ("sentence2", "hypothesis")}


def _codes(*labels: str) -> dict[str, str]:
    return {str(code): label for code, label in enumerate(labels)}


def _data(folder: str, suffix: str, test: str, parse: Callable[[Path], Iterator[Record]],
          named: tuple[str, str | None, str], texts: Mapping[str, tuple[str, ...]], label: tuple[str, ...],
          codes: Mapping[str, str], named_codes: Mapping[str, str]) -> Data:  # fmt: skip
    name, configuration, test_split = named
    few = tuple(Source(files=(f"{folder}/{split}_k512_seed42.{suffix}",), named=()) for split in _PARTS)
    return Data(
        few_shot=(few[0], few[1]),
        train=Source(files=(f"{folder}/train.{suffix}",), named=((name, configuration, "train"),)),
        test=Source(files=(f"{folder}/{test}.{suffix}",), named=((name, configuration, test_split),)),
        parse=parse, texts=texts, label=label, codes=codes, named_codes=named_codes,
    )  # fmt: skip


_GLUE = "nyu-mll/glue"
_FIVE = _codes("very negative", "negative", "neutral", "positive", "very positive")
DATA = {
    "sst2": _data(
        "sst2", "tsv", "test_glue_dev_872", _TSV, (_GLUE, "sst2", "validation"), {"sentence": ("sentence",)},
        ("label",), _codes("negative", "positive"), _codes("negative", "positive"),
    ),
    "sst5": _data(
        "sst5", "csv", "test_1k", _CSV, ("SetFit/sst5", None, "test"), {"sentence": ("text",)}, ("label",),
        _FIVE, _FIVE,
    ),
    "trec": _data(
        "trec", "csv", "test_500", _CSV, ("CogComp/trec", None, "test"), {"question": ("text",)},
        ("label", "coarse_label"), _codes("DESC", "ENTY", "ABBR", "HUM", "LOC", "NUM"),
        _codes("ABBR", "ENTY", "DESC", "HUM", "LOC", "NUM"),
    ),
    "snli": _data(
        "snli", "jsonl", "test_1k", json_lines, ("stanfordnlp/snli", None, "validation"), _PAIR,
        ("gold_label", "label"), {label: label for label in _INFERS}, _codes(*_INFERS),
    ),
    "mnli": _data(
        "mnli", "jsonl", "test_matched_1k", json_lines, (_GLUE, "mnli", "validation_matched"), _PAIR,
        ("gold_label", "label"), {label: label for label in _INFERS}, _codes(*_INFERS),
    ),
    "rte": _data(
        "rte", "tsv", "test_glue_dev_277", _TSV, (_GLUE, "rte", "validation"), _PAIR, ("label",),
        {label: label for label in _ENTAILS}, _codes(*_ENTAILS),
    ),
    "squad": Data(
        few_shot=None,
        train=Source(
            files=("squad/train-v1.1.json", "squad/xquad.en.json"),
            named=(("rajpurkar/squad", None, "train"),),
        ),
        test=Source(
            files=("squad/dev-v1.1.json", "squad/xquad.en.json"),
            named=(("rajpurkar/squad", None, "validation"),),
        ),
        parse=questions, texts={name: (name,) for name in ("title", "context", "question")}, label=(),
        codes={}, named_codes={},
    ),
}  # fmt: skip


def few_shot(labels: Sequence[str], *, per_class: int = PER_CLASS,
             seed: int = FEW_SHOT_SEED) -> tuple[list[int], list[int]]:  # fmt: skip
    """Positions of the training and selection examples: ``per_class`` of each class in a seeded order, twice.

    A class with fewer gives all that it has. Classes come in the order in which they are met.
    """
    by_class: dict[str, list[int]] = {}
    for position in seeded_order(len(labels), seed=seed):
        by_class.setdefault(labels[position], []).append(position)
    train = [i for members in by_class.values() for i in members[:per_class]]
    return train, [i for members in by_class.values() for i in members[per_class : 2 * per_class]]


def seeded_order(size: int, *, seed: int) -> list[int]:
    """The positions 0 to ``size`` - 1 in the order of numpy's legacy generator, as the published draw."""
    return [int(i) for i in np.random.RandomState(seed).permutation(size)]


Splits = tuple[tuple[Example, ...], tuple[Example, ...], tuple[Example, ...]]


def splits(name: str, *, tier: str, style: Style) -> Splits:
    """Training, selection and evaluation examples of a data set.

    Args:
        name: a key of ``DATA``.
        tier: "paper" takes OPT's 1,000 and 500 for the causal style; "small" the few-shot draw for both, and
            half and an eighth of the articles where one file of questions is all there is.
        style: "masked" or "causal".

    Raises:
        ReproError: data that is missing or malformed; it names file and line.
    """
    data = DATA[name]
    evaluation = _read(data, data.test, name, "test")
    if name == "squad" and _one_file():
        return _by_article(evaluation)
    if len(evaluation) > TEST_CAP:
        seed = OPT_SEED if (tier, style) == ("paper", "causal") or name == "squad" else TEST_SEED
        evaluation = [evaluation[i] for i in seeded_order(len(evaluation), seed=seed)[:TEST_CAP]]
    if data.few_shot is not None and _present(data.few_shot[0]) and (tier, style) != ("paper", "causal"):
        train, dev = (
            _read(data, source, name, part) for source, part in zip(data.few_shot, _PARTS, strict=True)
        )
        return tuple(train), tuple(dev), tuple(evaluation)
    pool = _read(data, data.train, name, "train")
    if name == "squad" or (tier, style) == ("paper", "causal"):
        order = seeded_order(len(pool), seed=OPT_SEED)
        chosen = order[:OPT_TRAIN], order[OPT_TRAIN : OPT_TRAIN + OPT_DEV]
    else:
        chosen = few_shot([example.label or "" for example in pool])
    train, dev = ([pool[i] for i in positions] for positions in chosen)
    return tuple(train), tuple(dev), tuple(evaluation)


def _read(data: Data, source: Source, name: str, split: str) -> list[Example]:
    """A split's examples in order; rows on which the annotators did not agree are left out, as published."""
    found = []
    for position, record in enumerate(_records(data, source)):
        fields = {field: record.text(_present_name(record, names)) for field, names in data.texts.items()}
        identifier = f"{name}-{split}-{position}"
        if not data.label:
            found.append(Example(id=identifier, fields=fields, answers=_answers(record)))
            continue
        label = _label(data, record)
        if label is not None:
            found.append(Example(id=identifier, fields=fields, label=label))
    return found


def _records(data: Data, source: Source) -> list[Record]:
    folder = os.environ.get("REPROLIB_DATA")
    found = (
        [Path(folder) / file for file in source.files if (Path(folder) / file).is_file()] if folder else []
    )
    if not found:
        return read(source)  # by name, or the error that says what is missing
    records = list(data.parse(found[0]))
    if not records:
        raise ReproError(f"{found[0]} has no records: restore it")
    return records


def _present_name(record: Record, names: Sequence[str]) -> str:
    return next((name for name in names if name in record.fields), names[0])


def _label(data: Data, record: Record) -> str | None:
    """The record's label; None where the data set by name says that there is none (-1).

    Raises:
        ReproError: another value than the codes.
    """
    field = _present_name(record, data.label)
    value = record.fields.get(field)
    # numbers are codes of data sets by name, which number the labels in their own way
    codes = data.named_codes if isinstance(value, int) else data.codes
    if value == -1:
        return None
    if str(value) not in codes:
        raise record.error(f"field {field!r}: expected one of {', '.join(codes)}")
    return codes[str(value)]


def _answers(record: Record) -> tuple[str, ...]:
    answers = tuple(dict.fromkeys(answer.text("text") for answer in record.table("answers")))
    if not answers:
        raise record.error("field 'answers' is empty: expected at least one answer")
    return answers


def _present(source: Source) -> list[Path]:
    """The source's files that the data folder holds."""
    folder = os.environ.get("REPROLIB_DATA")
    paths = [Path(folder) / file for file in source.files] if folder else []
    return [path for path in paths if path.is_file()]


def _one_file() -> bool:
    """Whether the data folder has the same file for training questions and for evaluation."""
    whole = [source.files[0] for source in (DATA["squad"].train, DATA["squad"].test)]
    return bool(_present(DATA["squad"].train)) and not _present(Source(files=tuple(whole), named=()))


def _by_article(examples: Sequence[Example]) -> Splits:
    """Half of the articles to train on, an eighth to select by, the rest to evaluate on: none is in two."""
    titles = list(dict.fromkeys(example.fields["title"] for example in examples))
    order = [titles[i] for i in seeded_order(len(titles), seed=OPT_SEED)]
    half, more = len(order) // 2, len(order) // 2 + len(order) // 8
    parts = (set(order[:half]), set(order[half:more]), set(order[more:]))
    train, dev, evaluation = (tuple(e for e in examples if e.fields["title"] in part) for part in parts)
    return train, dev, evaluation
