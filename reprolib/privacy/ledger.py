"""The write-ahead ledger of a run: every draw of noise is on disk before it is made.

    >>> ledger = Ledger(folder / "ledger.jsonl", plan)    # doctest: +SKIP
    >>> ledger.begin_round(0)                             # doctest: +SKIP

The first line holds the plan's public parameters; each further line stands for the noise of one round. A
run that is killed and resumed repeats rounds, and each repetition adds a line: what was spent can be
over-counted, never under-counted, so ``spent`` may exceed ``plan.rounds``. A line that a crash cut short
counts too.

Source: DP-GRPO, Theorem 1 (the budget composes over releases) and Appendix C-E (resumed runs).
"""

import json
import math
import os
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from reprolib.errors import ReproError
from reprolib.paths import write_atomically
from reprolib.privacy.accounting import Accountant
from reprolib.privacy.plan import Plan
from reprolib.privacy.visits import DisjointBatches, LocalPlan

AnyPlan = Plan | LocalPlan
KINDS: dict[str, type[AnyPlan]] = {"poisson": Plan, "disjoint": DisjointBatches, "local": LocalPlan}
_TORN = {"round": None, "torn": True}


@dataclass(frozen=True)
class Record:
    """What a ledger file says.

    Args:
        plan: the plan in its first line.
        rounds: the round of every further line, in order; None for a line that a crash cut short.
    """

    plan: AnyPlan
    rounds: tuple[int | None, ...]

    @property
    def spent(self) -> int:
        """How often noise was drawn, or was about to be."""
        return len(self.rounds)

    def epsilon(self, *, accountant: Accountant = "pld") -> float:
        """Budget of the rounds spent, at the plan's delta; infinite without noise."""
        return self.plan.spent(self.rounds, accountant=accountant)


def read(path: Path) -> Record:
    """Read a ledger without changing it.

    Raises:
        ReproError: the file is missing, or a complete line is damaged; names file and line.
    """
    try:
        *lines, rest = path.read_bytes().split(b"\n")
    except OSError as error:
        raise ReproError(f"cannot read the ledger {path}: {error.strerror}") from None
    if not lines:
        raise ReproError(f"{path}, line 1: the plan is cut short; no round was begun, so delete the file")
    plan = _plan(path, lines[0])
    rounds = [_round(path, number, line) for number, line in enumerate(lines[1:], start=2)]
    return Record(plan, (*rounds, None) if rest else tuple(rounds))


class Ledger:
    """Opens or starts the ledger of a run; a last line that a crash cut short is completed, and counts.

    Args:
        path: the file, ``ledger.jsonl`` in the run's directory.
        plan: the run's plan.

    Raises:
        ReproError: the file belongs to another plan, or a complete line in it is damaged.
    """

    def __init__(self, path: Path, plan: AnyPlan):
        self.path = path
        header = json.dumps({"kind": _kind(plan), "plan": _public(plan)}).encode() + b"\n"
        # without a complete first line nothing was begun: the header is on disk before any round
        if not path.is_file() or b"\n" not in path.read_bytes():
            write_atomically(path, header)
        found = read(path)
        if found.plan != plan:
            raise ReproError(
                f"{path} belongs to another plan ({_difference(found.plan, plan)}): move it away"
            )
        content = path.read_bytes()
        if not content.endswith(b"\n"):
            whole = content[: content.rfind(b"\n") + 1]
            write_atomically(path, whole + json.dumps(_TORN).encode() + b"\n")
        self._record = read(path)

    @property
    def plan(self) -> AnyPlan:
        """The run's plan."""
        return self._record.plan

    @property
    def spent(self) -> int:
        """How often noise was drawn, or was about to be."""
        return self._record.spent

    def begin_round(self, index: int) -> None:
        """Put a round on disk; call it before the round's noise is drawn.

        Args:
            index: the round, from 0. A resumed run may repeat one.

        Raises:
            ReproError: a negative index, or the disk refused the line (draw no noise then).
        """
        if index < 0:
            raise ReproError(f"round {index}: expected a whole number, at least 0")
        try:
            before = self.path.stat().st_size
        except OSError as error:
            raise ReproError(f"the ledger {self.path} is gone ({error.strerror}): restore it") from None
        try:
            with self.path.open("ab") as file:
                file.write(json.dumps({"round": index}).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            with suppress(OSError):  # a part of a line would damage the next; no noise was drawn for it
                os.truncate(self.path, before)
            raise ReproError(f"cannot write the ledger {self.path}: {error.strerror}") from None
        self._record = replace(self._record, rounds=(*self._record.rounds, index))

    def epsilon(self, *, accountant: Accountant = "pld") -> float:
        """Budget of the rounds spent so far, see ``Record.epsilon``."""
        return self._record.epsilon(accountant=accountant)


def _kind(plan: AnyPlan) -> str:
    return next(name for name, kind in KINDS.items() if type(plan) is kind)


def _public(plan: AnyPlan) -> dict[str, Any]:
    # JSON has no infinity: clip norm or epsilon of a run without noise are null
    return {key: None if value == math.inf else value for key, value in asdict(plan).items()}


def _plan(path: Path, line: bytes) -> AnyPlan:
    try:
        content = json.loads(line)
        fields: dict[str, Any] = {
            key: math.inf if value is None else value for key, value in content["plan"].items()
        }
        return KINDS[content.get("kind", "poisson")](**fields)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ReproError(f"{path}, line 1: expected the plan of a run ({error})") from None


def _round(path: Path, number: int, line: bytes) -> int | None:
    try:
        entry = json.loads(line)
        index = entry["round"]
        valid = entry == _TORN or (type(index) is int and index >= 0 and entry == {"round": index})
    except (ValueError, TypeError, KeyError):
        valid = False
    if not valid:
        raise ReproError(
            f"{path}, line {number}: expected a round such as {{\"round\": 7}}; the ledger is damaged, so "
            "what the run spent is unknown: restore the file, or delete the run's directory"
        )  # fmt: skip
    return None if index is None else int(index)


def _difference(old: AnyPlan, new: AnyPlan) -> str:
    a, b = _public(old) | {"kind": _kind(old)}, _public(new) | {"kind": _kind(new)}
    return ", ".join(f"{key} {a[key]!r} there, {b.get(key)!r} here" for key in a if a[key] != b.get(key))
