"""Preference data: pairs of responses whose text is public and whose preferred side is private.

    data = load_preferences("hh", tier="small")
    data.train[0].messages                # the prompt, a dialogue of one or more turns
    data.dropped                          # {"equal responses": 2, "empty response": 8, ...}

The three names are the paper's data sets: Anthropic-HH, TL;DR summarization and UltraFeedback-Binarized. At
"smoke" and "micro" procedural pairs with a known reward stand for them (``reprolib.tasks.preference_micro``).
Source: PrivDPO, Section 5.1.
"""

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from reprolib.errors import ReproError
from reprolib.tasks.datasets import draw, normalised
from reprolib.tasks.preference_formats import Dropped, prompted, summaries, transcripts
from reprolib.tasks.preference_pair import Preference, Turn, ordered
from reprolib.tasks.sources import Record, Source, read

__all__ = ["NAMES", "PUBLISHED_SIZES", "Preference", "Preferences", "Turn", "load_preferences", "ordered"]

NAMES = ("hh", "tldr", "ultrafeedback")
EVALUATION_SHARE = 0.2  # where the folder holds one split only
OVERLAP = "prompt also evaluates"


@dataclass(frozen=True, kw_only=True)
class Preferences:
    """A data set of pairs.

    Attributes:
        name: "hh", "tldr" or "ultrafeedback".
        tier: "smoke", "micro", "small" or "paper".
        train: the training pairs; their order says nothing about the bits.
        evaluation: the pairs that are scored.
        dropped: how many records were left out, by reason; see ``preference_formats``.
    """

    name: str
    tier: str
    train: tuple[Preference, ...]
    evaluation: tuple[Preference, ...]
    dropped: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class _Corpus:
    """Where a data set is, and how a record is read.

    Attributes:
        train: files in the data folder, all of them read.
        evaluation: the same; none where the training files are split by us.
        named: data set by name, its training split and its test split.
        parse: a record as a pair, or the reason why it holds none.
    """

    train: tuple[str, ...]
    evaluation: tuple[str, ...]
    named: tuple[str, str, str]
    parse: Callable[[Record, str], "Preference | Dropped"]


_CORPORA = {
    "hh": _Corpus(
        ("hh_rlhf/harmless-base_test.jsonl.gz", "hh_rlhf/helpful-base_test.jsonl.gz"),
        (),
        ("Anthropic/hh-rlhf", "train", "test"),
        transcripts,
    ),
    "tldr": _Corpus(
        ("tldr/tldr_oai1b_vs_reference_judged.jsonl",),
        (),
        ("trl-lib/tldr-preference", "train", "validation"),
        summaries,
    ),
    "ultrafeedback": _Corpus(
        ("ultrafeedback/train_clean.jsonl",),
        ("ultrafeedback/eval_clean.jsonl",),
        ("HuggingFaceH4/ultrafeedback_binarized", "train_prefs", "test_prefs"),
        prompted,
    ),
}
# Section 5.1, in the paper's rounding. The first two are the training split (160,800 and 92,858 records), the
# third is nearest to training and test split together (61,135 and 2,000).
PUBLISHED_SIZES = {"hh": 161_000, "tldr": 92_000, "ultrafeedback": 64_000}
_ROUNDING = 1_000


def load_preferences(name: str, *, tier: str) -> Preferences:
    """A data set: procedural at "smoke" and "micro", from real data at "small" and "paper".

    At "small" the folder in ``REPROLIB_DATA`` is used whole. Where it holds one split, a fifth of the pairs,
    drawn over positions with a published seed, evaluates, and no training pair has an evaluation prompt.
    At "paper" the splits are the published ones and their size has to be the paper's.

    Args:
        name: "hh", "tldr" or "ultrafeedback".
        tier: "smoke", "micro", "small" or "paper".

    Raises:
        ReproError: no such data set or tier; data that is missing, malformed or, at "paper", of another size.
    """
    if name not in NAMES:
        raise ReproError(f"preference data {name!r}: expected one of {', '.join(NAMES)}")
    if tier in ("smoke", "micro"):
        from reprolib.tasks.preference_micro import micro_pairs

        train, evaluation = micro_pairs(name, tier=tier)
        return Preferences(name=name, tier=tier, train=train, evaluation=evaluation)
    if tier not in ("small", "paper"):
        raise ReproError(f"tier {tier!r}: expected smoke, micro, small or paper")
    dropped: Counter[str] = Counter()
    records = {part: _records(name, part) for part in ("train", "evaluation")}
    if tier == "paper":
        _require_published_size(name, {part: len(found) for part, found in records.items()})
    train, evaluation = (_pairs(name, part, found, dropped) for part, found in records.items())
    if not records["evaluation"]:
        train, evaluation = _split(name, train, dropped)
    for part, pairs in (("training", train), ("evaluation", evaluation)):
        if not pairs:
            raise ReproError(f"{name} leaves no {part} pair ({dict(dropped)} left out): give more records")
    return Preferences(name=name, tier=tier, train=train, evaluation=evaluation, dropped=dict(dropped))


def _records(name: str, part: str) -> list[Record]:
    """A part's records; none where the folder holds one split only."""
    corpus = _CORPORA[name]
    data_set, train, test = corpus.named
    named = ((data_set, None, train if part == "train" else test),)
    files = corpus.train if part == "train" else corpus.evaluation
    if not os.environ.get("REPROLIB_DATA"):
        return read(Source(files=files, named=named))
    return [record for file in files for record in read(Source(files=(file,), named=named))]


def _pairs(name: str, part: str, records: Sequence[Record], dropped: Counter[str]) -> tuple[Preference, ...]:
    """The pairs in order, named by position; records without a pair are counted by their reason."""
    parse = _CORPORA[name].parse
    found = [parse(record, f"{name}-{part}-{position}") for position, record in enumerate(records)]
    dropped.update(reason for reason in found if isinstance(reason, str))
    return tuple(pair for pair in found if isinstance(pair, Preference))


def _split(
    name: str, pairs: Sequence[Preference], dropped: Counter[str]
) -> tuple[tuple[Preference, ...], tuple[Preference, ...]]:
    """Training and evaluation pairs that share no prompt."""
    chosen = set(draw(len(pairs), round(EVALUATION_SHARE * len(pairs)), seed=f"{name} preference evaluation"))
    seen = {_prompt_key(pairs[i]) for i in chosen}
    rest = [pair for i, pair in enumerate(pairs) if i not in chosen]
    train = tuple(pair for pair in rest if _prompt_key(pair) not in seen)
    if len(train) < len(rest):
        dropped[OVERLAP] += len(rest) - len(train)
    return train, tuple(pairs[i] for i in sorted(chosen))


def _prompt_key(pair: Preference) -> tuple[Turn, ...]:
    return tuple((role, normalised(text)) for role, text in pair.turns)


def _require_published_size(name: str, sizes: Mapping[str, int]) -> None:
    found = sizes["train"] + (sizes["evaluation"] if name == "ultrafeedback" else 0)
    expected = PUBLISHED_SIZES[name]
    if abs(found - expected) > _ROUNDING or not sizes["evaluation"]:
        raise ReproError(
            f"{name} has {found:,} records, the paper about {expected:,}, and {sizes['evaluation']:,} to"
            " evaluate: unset REPROLIB_DATA to read the whole data set by name, or use the tier small"
        )
