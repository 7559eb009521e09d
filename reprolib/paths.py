"""Where the repository's folders are, how files are written, and which of them a piece of code imports."""

import ast
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from reprolib.errors import ReproError

TEMPORARY = ".writing-"  # files and folders that are not whole yet; what a crash leaves of them is rubbish


def root() -> Path:
    """The repository root: ``REPROLIB_HOME``, else the checkout that holds this package.

    Raises:
        ReproError: the folder found has no ``data/claims``.
    """
    home = Path(os.environ.get("REPROLIB_HOME") or Path(__file__).resolve().parents[1])
    if not (home / "data" / "claims").is_dir():
        raise ReproError(f"no data/claims under {home}: set REPROLIB_HOME to a checkout of the repository")
    return home


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file so that a reader, and a machine that lost power, sees the old content or the new one.

    Raises:
        ReproError: the folder cannot be written or the disk is full; the old content stays.
    """
    data = content.encode() if isinstance(content, str) else content
    temporary = path.with_name(f"{TEMPORARY}{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync(path.parent)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise ReproError(
            f"cannot write {path}: {error.strerror or error}; what was there before is unchanged"
        ) from None


def sync(folder: Path) -> None:
    """Put the names in a folder on disk: a file that was renamed keeps its new name through a crash."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def imports(code: str | bytes) -> Iterator[Path]:
    """The package files that a piece of code imports itself."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
        else:
            continue
        for name in names:
            if name.split(".")[0] == "reprolib":
                stem = root().joinpath(*name.split("."))
                yield from (p for p in (stem.with_suffix(".py"), stem / "__init__.py") if p.is_file())


def reachable(files: Iterable[Path]) -> set[Path]:
    """These package files and those that they import, directly or not."""
    waiting, seen = list(files), set[Path]()
    while waiting:
        path = waiting.pop()
        if path not in seen:
            seen.add(path)
            waiting += imports(path.read_bytes())
    return seen
