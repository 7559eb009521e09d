"""Where the repository's folders are, whatever the working directory."""

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
