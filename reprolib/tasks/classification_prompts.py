r"""Prompt templates and verbalisers: how an example becomes a text, and a label a word.

    Template("{premise:cut 240}? {mask}, {hypothesis:lower}").pieces(fields)

A field may be changed: "cut" drops its last character, "lower" lowers its first one, a number is the most
tokens that it may take. A space before a field is read with it, as tokenizers of the GPT-2 kind have it.

SAGE prints no template. It follows DP-AggZO in data and evaluation, whose runs take those of MeZO: for
RoBERTa the templates and words of its few-shot script, for OPT those of its large-model code. TREC and SST-5
have none for a causal model: that of TREC is ours, SST-5 takes that of SST-2.
Source: SAGE, Experimental Setup ("Models and tasks"); MeZO's released code.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from string import Formatter
from typing import Literal

from reprolib.errors import ReproError

Style = Literal["masked", "causal"]
STYLES: tuple[Style, ...] = ("masked", "causal")
MASK = "mask"


@dataclass(frozen=True)
class Piece:
    """A part of a prompt that is tokenised on its own: its text, None for the mask, and its cap in tokens."""

    text: str | None
    limit: int | None = None


@dataclass(frozen=True)
class Template:
    """A prompt with named fields.

    Raises:
        ReproError: the text is no template, or an instruction on a field is unknown.
    """

    text: str

    def __post_init__(self) -> None:
        self.pieces(dict.fromkeys(self.fields, "x"))

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the fields, the mask left out."""
        return tuple(name for _, name, _ in self._parts() if name not in (None, MASK))

    @property
    def masked(self) -> bool:
        """Whether the template holds the mask."""
        return any(name == MASK for _, name, _ in self._parts())

    def pieces(self, fields: Mapping[str, str]) -> tuple[Piece, ...]:
        """The prompt in the parts that are tokenised apart.

        Raises:
            ReproError: a field is missing or empty.
        """
        found: list[Piece] = []
        for literal, name, changes in self._parts():
            bare = literal if name is None else literal.rstrip(" ")
            if bare:
                found.append(Piece(bare))
            if name == MASK:
                found.append(Piece(None))
            elif name is not None:
                text, limit = self._changed(name, changes, fields)
                found.append(Piece(literal[len(bare) :] + text, limit))
        return tuple(found)

    def render(self, fields: Mapping[str, str], *, mask: str = "<mask>") -> str:
        """The prompt as one string, to be read by people; caps in tokens do not count here."""
        return "".join(mask if piece.text is None else piece.text for piece in self.pieces(fields))

    def _parts(self) -> list[tuple[str, str | None, str]]:
        try:
            return [(text, name, changes or "") for text, name, changes, _ in Formatter().parse(self.text)]
        except ValueError as error:
            raise ReproError(f"template {self.text!r}: {error}: expected fields as {{name}}") from error

    def _changed(self, name: str, changes: str, fields: Mapping[str, str]) -> tuple[str, int | None]:
        text, limit = fields.get(name, ""), None
        if not text.strip():
            raise ReproError(f"template {self.text!r}: field {name!r} is missing or empty: expected text")
        for change in changes.split():
            if change == "cut":
                text = text[:-1]
            elif change == "lower":
                text = text[:1].lower() + text[1:]
            elif change.isdecimal() and int(change) > 0:
                limit = int(change)
            else:
                raise ReproError(f"template {self.text!r}: {change!r}: expected cut, lower or a token cap")
        return text, limit


_SENTIMENT = {"negative": " terrible", "positive": " great"}
_FIVE = {
    "very negative": " terrible", "negative": " bad", "neutral": " okay", "positive": " good",
    "very positive": " great",
}  # fmt: skip
_QUESTIONS = {
    "DESC": " Description", "ENTY": " Entity", "ABBR": " Expression", "HUM": " Human", "LOC": " Location",
    "NUM": " Number",
}  # fmt: skip
_ENTAILS = {"entailment": "Yes", "not_entailment": "No"}
_INFERS = {"entailment": "Yes", "neutral": "Maybe", "contradiction": "No"}
_PAIR = "{premise:cut 240}? {mask}, {hypothesis:lower}"
_SUPPOSE = 'Suppose {premise} Can we infer that "{hypothesis}"? Yes, No, or Maybe?\n'


def _spaced(words: Mapping[str, str]) -> dict[str, str]:
    return {label: f" {word}" for label, word in words.items()}


# template, verbaliser, and the cap of the whole prompt in tokens (None: the model's context)
PROMPTS: dict[tuple[str, Style], tuple[str, dict[str, str], int | None]] = {
    ("sst2", "masked"): ("{sentence} It was{mask}.", _SENTIMENT, 128),
    ("sst5", "masked"): ("{sentence:110} It was{mask}.", _FIVE, 128),
    ("trec", "masked"): ("{mask}: {question:110}", _QUESTIONS, 128),
    ("snli", "masked"): ("{premise:cut}? {mask}, {hypothesis:lower}", _spaced(_INFERS), 256),
    ("mnli", "masked"): (_PAIR, _spaced(_INFERS), 256),
    ("rte", "masked"): (_PAIR, _spaced(_ENTAILS), 256),
    ("sst2", "causal"): ("{sentence} It was", _SENTIMENT, None),
    ("sst5", "causal"): ("{sentence} It was", _FIVE, None),
    ("trec", "causal"): ("Question: {question}\nType:", _QUESTIONS, None),
    ("snli", "causal"): (_SUPPOSE, _INFERS, None),
    ("mnli", "causal"): (_SUPPOSE, _INFERS, None),
    ("rte", "causal"): (
        '{premise}\nDoes this mean that "{hypothesis}" is true? Yes or No?\n', _ENTAILS, None,
    ),
    ("squad", "causal"): ("Title: {title}\nContext: {context}\nQuestion: {question}\nAnswer:", {}, None),
}  # fmt: skip
