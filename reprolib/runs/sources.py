"""Fingerprint of the code that a run's result depends on."""

import ast
import hashlib
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from reprolib.paths import root

EXECUTION = "reprolib.runs.execution"  # imports whatever trains and scores
ENGINES = {"vllm": "reprolib.lm.vllm_engine"}  # what only runs with this engine use


def files(module: str = EXECUTION) -> list[Path]:
    """The package files that a module imports, directly or not, itself included."""
    waiting, seen = list(_paths(module)), set[Path]()
    while waiting:
        path = waiting.pop()
        if path not in seen:
            seen.add(path)
            waiting += [p for name in _imported(ast.parse(path.read_bytes())) for p in _paths(name)]
    return sorted(seen)


def fingerprint(model: str, engine: str = "transformers") -> str:
    """Hash of the code that trains and scores, and of the model if the project keeps its weights.

    Comments, layout and docstrings do not count: they change no result. Nor do other engines.

    Args:
        model: name of the run's model.
        engine: what draws the run's completions.
    """
    return _fingerprint(root(), model, engine)


@lru_cache(maxsize=8)
def _fingerprint(home: Path, model: str, engine: str) -> str:
    # cached: a process goes on running the code that it started with
    # a model from elsewhere, by hub name or path, may be large: its name stands for it
    weights = [] if "/" in model else (home / "data" / "models" / model).rglob("*")
    kept = sorted(p for p in weights if p.suffix in (".json", ".safetensors") and p.name != "card.json")
    unused = {path for other, module in ENGINES.items() if other != engine for path in _paths(module)}
    digest = hashlib.sha256()
    for path in [*(p for p in files() if p not in unused), *kept]:
        digest.update(str(path.relative_to(home)).encode())
        digest.update(_code(path) if path.suffix == ".py" else path.read_bytes())
    return digest.hexdigest()[:16]


def _code(path: Path) -> bytes:
    tree = ast.parse(path.read_bytes())
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
            and ast.get_docstring(node) is not None
        ):
            node.body = node.body[1:]
    return ast.dump(tree).encode()


def _imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _paths(name: str) -> Iterator[Path]:
    if name.split(".")[0] == "reprolib":
        stem = root().joinpath(*name.split("."))
        yield from (p for p in (stem.with_suffix(".py"), stem / "__init__.py") if p.is_file())
