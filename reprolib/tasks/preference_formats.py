r"""Pairs from the formats of the paper's three data sets, with the reason where a record holds no pair.

Which text is the prompt and whether a record is left out is decided from both responses alike, never from
which of them was preferred: a rule that asks the preferred one (as the usual reading of Anthropic-HH does,
which cuts at the last "Assistant:" of ``chosen``) would write the private bit into the public text. The one
exception is a tie, which is left out because it holds no bit: that a pair is there says that it was no tie.

Source: PrivDPO, Section 5.1 (data sets).
"""

import re
from collections.abc import Sequence
from itertools import takewhile
from typing import Any, Literal, get_args

from reprolib.tasks.preference_pair import Preference, Role, Turn, ordered
from reprolib.tasks.sources import Record

Dropped = Literal["equal responses", "empty response", "tie", "dialogues that differ"]
REASONS: tuple[Dropped, ...] = get_args(Dropped)

_MARKER = re.compile(r"(?:^|\n\n)(Human|Assistant):")
_ROLES: dict[str, Role] = {"Human": "user", "Assistant": "assistant"}


def transcripts(record: Record, name: str) -> Preference | Dropped:
    r"""Anthropic-HH: ``chosen`` and ``rejected`` are whole dialogues with one history and two endings.

    A turn begins with a blank line and "Human:" or "Assistant:". The prompt is what both dialogues share, up
    to the last "Assistant:" that both hold. Turns of one speaker that follow one another are one turn, as
    chat templates ask, and a turn without text is none.

    Raises:
        ReproError: a field is missing or no text, or a dialogue does not begin with "Human:".
    """
    parts = [_MARKER.split(record.text(field)) for field in ("chosen", "rejected")]
    for field, dialogue in zip(("chosen", "rejected"), parts, strict=True):
        if dialogue[0] or dialogue[1:2] != ["Human"]:
            raise record.error(
                f"field {field!r} does not begin with 'Human:': expected a dialogue, is a column swapped?"
            )
    shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(*parts, strict=False)))
    start = max((i for i in range(1, shared, 2) if parts[0][i] == "Assistant"), default=None)
    if start is None:
        raise record.error("no 'Assistant:' that both dialogues share: expected one history and two endings")
    endings = [_turns(dialogue[start:]) for dialogue in parts]
    prompt = _turns(parts[0][1:start])
    if (
        any(role == "user" for ending in endings for role, _ in ending)
        or not prompt
        or prompt[-1][0] != "user"
    ):
        return "dialogues that differ"
    preferred, other = ("\n\n".join(text for _, text in ending) for ending in endings)
    return _pair(name, prompt, preferred, other)


def _turns(parts: Sequence[str]) -> list[Turn]:
    """Speaker, text, speaker, text, ... as turns."""
    merged: list[Turn] = []
    for speaker, text in zip(parts[::2], parts[1::2], strict=True):
        role, text = _ROLES[speaker], text.strip()
        if text and merged and merged[-1][0] == role:
            merged[-1] = (role, f"{merged[-1][1]}\n\n{text}")
        elif text:
            merged.append((role, text))
    return merged


def prompted(record: Record, name: str) -> Preference | Dropped:
    """UltraFeedback and TL;DR: ``prompt``, ``chosen`` and ``rejected``, each a text or a list of messages.

    ``score_chosen`` and ``score_rejected``, of the record or of its ``metadata``, are compared where they are
    given. A response that is a list of messages may repeat the prompt.

    Raises:
        ReproError: a field is missing or of another type, a response repeats another prompt, or the rejected
            response has the higher score, as when the two columns are swapped.
    """
    prompt = _dialogue(record, "prompt", "user")
    preferred, other = (_last(record, field, prompt) for field in ("chosen", "rejected"))
    scores = _scores(record)
    if scores is not None and scores[0] < scores[1]:
        raise record.error(
            "score_rejected is above score_chosen: expected the preferred response in 'chosen', is a"
            " column swapped?"
        )
    if not prompt or prompt[-1][0] != "user":
        raise record.error("field 'prompt' does not end with the user's turn: expected a question last")
    pair = _pair(name, prompt, preferred, other)
    return "tie" if isinstance(pair, Preference) and scores is not None and scores[0] == scores[1] else pair


def _dialogue(record: Record, field: str, role: Role) -> list[Turn]:
    """A field's turns: a text is one turn of this role, empty text none."""
    value: Any = record.fields.get(field)
    if isinstance(value, str) and not value.strip():
        return []
    if not isinstance(value, list):
        return [(role, record.text(field))]
    turns: list[Turn] = []
    for message in record.table(field):
        speaker = message.text("role")
        if speaker not in get_args(Role):
            raise record.error(
                f"field {field!r}: a message of another role: expected {', '.join(get_args(Role))}"
            )
        content = message.fields.get("content")
        empty = isinstance(content, str) and not content.strip()
        turns.append((speaker, "" if empty else message.text("content")))  # type: ignore[arg-type]
    return turns


def _last(record: Record, field: str, prompt: list[Turn]) -> str:
    """The response of a field; a prompt before it has to be the record's."""
    *history, (role, text) = _dialogue(record, field, "assistant") or [("assistant", "")]
    if role != "assistant":
        raise record.error(
            f"field {field!r} ends with another turn than the assistant's: is a column swapped?"
        )
    if history and history != prompt:
        raise record.error(f"field {field!r} repeats another prompt than 'prompt': is a column swapped?")
    return text


def _scores(record: Record) -> tuple[float, float] | None:
    nested = record.fields.get("metadata")
    fields = nested if isinstance(nested, dict) else record.fields
    names = ("score_chosen", "score_rejected")
    if not any(name in fields for name in names):
        return None
    scores = [fields.get(name) for name in names]
    if not all(isinstance(s, int | float) and not isinstance(s, bool) and s == s for s in scores):
        raise record.error("score_chosen and score_rejected: expected two numbers")
    return float(scores[0]), float(scores[1])  # type: ignore[arg-type]


def judged(record: Record, name: str) -> Preference | Dropped:
    """TL;DR, a policy's summary against the author's: ``judge_preferred`` is "ours" or "reference".

    Raises:
        ReproError: a field is missing or no text, or the label is neither side.
    """
    sides = {"ours": _summary(record, "policy_summary"), "reference": _summary(record, "reference_summary")}
    label = record.text("judge_preferred")
    if label not in sides:
        raise record.error("field 'judge_preferred' names neither side: expected 'ours' or 'reference'")
    other = sides["reference" if label == "ours" else "ours"]
    return _pair(name, [("user", record.text("query"))], sides[label], other)


def _summary(record: Record, field: str) -> str:
    value = record.fields.get(field)
    return "" if isinstance(value, str) and not value.strip() else record.text(field)


def summaries(record: Record, name: str) -> Preference | Dropped:
    """TL;DR in either format."""
    return judged(record, name) if "judge_preferred" in record.fields else prompted(record, name)


def _pair(name: str, prompt: Sequence[Turn], preferred: str, other: str) -> Preference | Dropped:
    if preferred == other:
        return "equal responses"
    if not preferred or not other:
        return "empty response"
    return ordered(name, prompt, preferred=preferred, other=other)
