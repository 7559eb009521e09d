"""One annotated pair: a prompt, two responses in an order that their public text fixes, and the private bit.

    pair = ordered("hh-train-7", turns, preferred="Yes.", other="No.")
    pair.responses                        # ("No.", "Yes."), whichever was preferred
    pair.first_preferred                  # False: all that the annotation adds to the public text

The order matters: had the preferred response stood first, everything computed from the pair, down to the
rounding of a gradient, could tell the annotation (``reprolib.privacy.preference``).
Source: PrivDPO, Sections 2.1.2 and 3 (the neighbour of a triplet is the triplet with its responses swapped).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from reprolib.errors import ReproError

Role = Literal["system", "user", "assistant"]
Turn = tuple[Role, str]


@dataclass(frozen=True, kw_only=True)
class Preference:
    """One record. Everything but ``first_preferred`` is public.

    Attributes:
        id: unique in its set.
        turns: the dialogue up to the answer, (role, text) each; the last turn is the user's.
        responses: two distinct answers, in ascending order of their text.
        first_preferred: the private bit, whether the annotator preferred ``responses[0]``.

    Raises:
        ReproError: naming the record: the dialogue does not end with the user, a text is empty, the responses
            are equal or in another order, or the bit is neither True nor False.
    """

    id: str
    turns: tuple[Turn, ...]
    responses: tuple[str, str]
    first_preferred: bool = field(repr=False)  # so that no message or log prints it

    def __post_init__(self) -> None:
        fault = _fault(self.turns, self.responses)
        if fault is None and not isinstance(self.first_preferred, bool):
            fault = (
                f"first_preferred is of type {type(self.first_preferred).__name__}: expected True or False"
            )
        if fault is not None:
            raise ReproError(f"pair {self.id}: {fault}")

    @property
    def messages(self) -> list[dict[str, str]]:
        """The prompt as chat templates take it."""
        return [{"role": role, "content": text} for role, text in self.turns]

    @property
    def preferred(self) -> str:
        """The response that the annotator preferred: private."""
        return self.responses[0 if self.first_preferred else 1]

    @property
    def rejected(self) -> str:
        """The other response: private."""
        return self.responses[1 if self.first_preferred else 0]


def _fault(turns: Sequence[Turn], responses: tuple[str, str]) -> str | None:
    if not turns or turns[-1][0] != "user":
        return "the prompt ends with another turn than the user's: expected a question last"
    if any(role not in get_args(Role) for role, _ in turns):
        return f"a turn of another role: expected {', '.join(get_args(Role))}"
    if len(responses) != 2 or not all(text.strip() for text in (*responses, *(text for _, text in turns))):
        return "an empty text: expected text in every turn and in both responses"
    if responses[0] == responses[1]:
        return "the two responses are equal: there is nothing to prefer, leave the pair out"
    if responses[0] > responses[1]:
        return "the responses are not in the order of their text: make the pair with ordered(...)"
    return None


def ordered(name: str, turns: Sequence[Turn], *, preferred: str, other: str) -> Preference:
    """The pair in its canonical order, with the bit that says which response was preferred.

    Raises:
        ReproError: as for ``Preference``.
    """
    first, second = sorted((preferred, other))
    return Preference(
        id=name, turns=tuple(turns), responses=(first, second), first_preferred=preferred == first
    )
