"""What a run is to the code that executes it: a trainer that steps, and scores."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from reprolib.runs.spec import RunSpec

if TYPE_CHECKING:
    from torch import Tensor

    from reprolib.privacy.mechanism import EntropySource


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
            response, tokens (their number), capped, strict and rescore (1, 0, or None without a scorer), and
            value, a number such as a margin or a reward, where the set has one.
        save_adapter: writes the trained weights to a new directory.
        observe: what a round's metrics say of its release beside the norm; it reads public values only.
    """

    trainer: Trainer | None
    score: Callable[[str], list[dict[str, Any]]]
    save_adapter: Callable[[Path], None]
    observe: Callable[["Tensor"], dict[str, float]] = lambda released: {}


def entropy_source(spec: RunSpec) -> "EntropySource":
    """The randomness of a run: the operating system's, or replayable.

    A replayable run is seeded by its digest: two runs share neither coins nor noise, whatever their seed.
    Of several processes each draws rollouts of its own; coins and noise are the first one's.
    """
    from reprolib.learn import ranks
    from reprolib.privacy.mechanism import EntropySource

    if spec.entropy == "private":
        return EntropySource.private()
    return EntropySource.research(int(spec.digest, 16) + ranks.rank())
