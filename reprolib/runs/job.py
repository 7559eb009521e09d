"""What a run is to the code that executes it: a trainer that steps, and scores."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor


class Trainer(Protocol):
    """What a run needs of a trainer; ``learn.trainer.Trainer`` is one."""

    @property
    def rounds_done(self) -> int:
        """Rounds whose update is released."""

    def step(self) -> "Tensor":
        """One round; returns the released update, which is public."""

    def state(self) -> dict[str, Any]:
        """All that a resumed run needs: tensors and plain values. Private: it never leaves the machine."""

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a state."""


@dataclass(frozen=True)
class Job:
    """A run in memory.

    Args:
        trainer: None for the untrained base.
        score: responses to an evaluation set, a row a problem, in the set's order. Columns: problem,
            response, tokens (their number), capped, strict and rescore (1, 0, or None without a rescorer).
        save_adapter: writes the adapter's weights to a directory.
    """

    trainer: Trainer | None
    score: Callable[[str], list[dict[str, Any]]]
    save_adapter: Callable[[Path], None]
