"""Where the repository's folders are, and how its files are written."""

import os
from pathlib import Path

from reprolib.errors import ReproError


def root() -> Path:
    """The repository root: ``REPROLIB_HOME``, else the checkout that holds this package.

    Raises:
        ReproError: the folder found has no ``data/claims``.
    """
    home = Path(os.environ.get("REPROLIB_HOME") or Path(__file__).resolve().parents[1])
    if not (home / "data" / "claims").is_dir():
        raise ReproError(f"no data/claims under {home}: set REPROLIB_HOME to a checkout of the repository")
    return home


def write_atomically(path: Path, text: str) -> None:
    """Write a file so that a reader sees the old content or the new, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
