"""Fingerprint of the code that a run's result depends on."""

import ast
import hashlib
from functools import lru_cache
from pathlib import Path

from reprolib.paths import imports, reachable, root
from reprolib.runs.spec import RunSpec

EXECUTION = "reprolib.runs.execution"  # what every run imports, whatever it trains
ENGINES = {"vllm": "reprolib.lm.vllm_engine"}  # what only runs with this engine use


def files(builder: str) -> list[Path]:
    """The package files that training and scoring import, directly or not.

    Args:
        builder: the module that builds the paper's runs.
    """
    return sorted(reachable(imports(f"import {EXECUTION}, {builder}")))


def fingerprint(spec: RunSpec) -> str:
    """Hash of the code that trains and scores a run, and of the model if the project keeps its weights.

    Comments, layout and docstrings do not count: they change no result. Nor do other papers and engines.
    """
    return _fingerprint(root(), spec.builder, spec.model, spec.engine)


@lru_cache(maxsize=32)
def _fingerprint(home: Path, builder: str, model: str, engine: str) -> str:
    # cached: a process goes on running the code that it started with
    # a model from elsewhere, by hub name or path, may be large: its name stands for it
    weights = [] if "/" in model else (home / "data" / "models" / model).rglob("*")
    kept = sorted(p for p in weights if p.suffix in (".json", ".safetensors") and p.name != "card.json")
    unused = {
        path for other, module in ENGINES.items() if other != engine for path in imports(f"import {module}")
    }
    digest = hashlib.sha256()
    for path in [*(p for p in files(builder) if p not in unused), *kept]:
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
