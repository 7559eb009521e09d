"""Fingerprint of the code that a run's result depends on."""

import ast
import hashlib
from functools import lru_cache
from pathlib import Path

from reprolib.paths import imports, reachable, root

EXECUTION = "reprolib.runs.execution"  # imports whatever trains and scores
ENGINES = {"vllm": "reprolib.lm.vllm_engine"}  # what only runs with this engine use


def files() -> list[Path]:
    """The package files that training and scoring import, directly or not."""
    return sorted(reachable(imports(f"import {EXECUTION}")))


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
    unused = {
        path for other, module in ENGINES.items() if other != engine for path in imports(f"import {module}")
    }
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
