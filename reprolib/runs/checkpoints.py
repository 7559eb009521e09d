"""Checkpoints that are either whole or not used.

A file is a SHA-256 in hexadecimal, a line feed and the state. Checkpoints may hold generator states and
other private values: they stay in the run's directory and go when the run is finished.
"""

import hashlib
import io
import logging
from pathlib import Path
from typing import Any

from reprolib.paths import write_atomically

logger = logging.getLogger(__name__)
KEPT = 2


def save(folder: Path, rounds: int, state: dict[str, Any]) -> None:
    """Write the state after a number of rounds, whole or not at all, and drop all but the newest files.

    Args:
        state: tensors and plain values.
    """
    import torch

    buffer = io.BytesIO()
    torch.save(state, buffer)
    content = buffer.getvalue()
    checksum = hashlib.sha256(content).hexdigest().encode()
    write_atomically(folder / f"round-{rounds:06d}.pt", checksum + b"\n" + content)
    for old in _newest_first(folder)[KEPT:]:
        old.unlink()


def latest(folder: Path) -> tuple[int, dict[str, Any]] | None:
    """The newest whole checkpoint as (rounds, state); None to start from the beginning.

    A truncated or altered file is skipped, and a warning names it and what is used instead.
    """
    import torch

    files = _newest_first(folder)
    for path, older in zip(files, [*files, None][1:], strict=True):
        checksum, _, content = path.read_bytes().partition(b"\n")
        if hashlib.sha256(content).hexdigest().encode() == checksum:
            return int(path.stem.removeprefix("round-")), torch.load(io.BytesIO(content), weights_only=True)
        instead = f"using {older.name}" if older else "starting from the beginning"
        logger.warning("%s is damaged (its checksum differs): %s", path, instead)
    return None


def _newest_first(folder: Path) -> list[Path]:
    return sorted(folder.glob("round-*.pt"), reverse=True)
