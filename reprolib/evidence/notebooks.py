"""Chapters as notebooks: finding, reading, checking, pairing and executing them.

A chapter is ``notebooks/NN_name.md`` paired with ``notebooks/NN_name.ipynb``. Its parameters are checked
against the cell tagged ``parameters`` before papermill runs.
"""

import ast
import hashlib
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jupytext
import nbformat
import papermill
import yaml
from papermill.exceptions import PapermillExecutionError

from reprolib.errors import ReproError
from reprolib.paths import imports, reachable, root, write_atomically

# a progress bar that no notebook of ours shows complains that it cannot be a widget
warnings.filterwarnings("ignore", message="IProgress not found")

TIERS = {
    "smoke": "tests only: shows that the chapter runs",
    "micro": "small models trained by this project on public procedural text",
    "small": "SmolLM2-135M on the papers' data sets",
    "paper": "the papers' own models and data, on a GPU host",
}
TYPES = {"str": str, "int": int, "float": float, "bool": bool}


def numbers() -> list[str]:
    """The numbers of the chapters that this edition has."""
    return sorted(path.name[:2] for path in (root() / "notebooks").glob("[0-9][0-9]_*.ipynb"))


def notebook(number: str) -> Path:
    """The notebook of a chapter.

    Raises:
        ReproError: no such chapter.
    """
    found = list((root() / "notebooks").glob(f"{number}_*.ipynb")) if number.isdigit() else []
    if len(found) != 1:
        raise ReproError(f"no chapter {number!r}: the chapters are {', '.join(numbers())}")
    return found[0]


@dataclass(frozen=True)
class Parameter:
    """One parameter of a chapter, as its tagged cell declares it."""

    name: str
    type: str
    default: Any
    help: str

    def __str__(self) -> str:
        return f"  {self.name}: {self.type} = {self.default!r}  {self.help}".rstrip()

    def parse(self, given: Any) -> Any:
        """The given value with the parameter's type; strings are read as YAML, as papermill does.

        Raises:
            ReproError: a value of another type.
        """
        value = yaml.safe_load(given) if isinstance(given, str) and self.type != "str" else given
        if self.type == "float" and isinstance(value, str):
            value = _float(value)  # YAML 1.1 reads 1e-5 as text
        if self.type == "float" and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if type(value) is not TYPES[self.type]:
            raise ReproError(f"parameter {self.name} = {given!r}: expected {self.type}")
        return value


def _float(text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        return text


def parameters(path: Path) -> dict[str, Parameter]:
    """The parameters that a notebook declares in its cell tagged ``parameters``.

    Raises:
        ReproError: the file is missing, truncated or no notebook; a parameter without a plain type.
    """
    read(path)
    found = {}
    for name, info in papermill.inspect_notebook(str(path)).items():
        try:
            default = ast.literal_eval(info["default"])
        except ValueError:
            raise ReproError(f"{path.name}: the default of {name} is no plain value") from None
        kind = type(default).__name__
        if kind not in TYPES:
            raise ReproError(f"{path.name}: parameter {name} has type {kind}; use {', '.join(TYPES)}")
        found[name] = Parameter(name, kind, default, info["help"])
    return found


def read(path: Path) -> nbformat.NotebookNode:
    """Read a notebook.

    Raises:
        ReproError: the file is missing, truncated or no notebook.
    """
    try:
        return nbformat.read(path, as_version=4)
    except OSError as error:
        raise ReproError(f"cannot read {path}: {error.strerror}") from None
    except Exception as error:  # nbformat raises several unrelated types
        raise ReproError(
            f"{path} is not a complete notebook ({type(error).__name__}): restore it, "
            f"or make it anew with `jupytext --to ipynb {path.with_suffix('.md').name}`"
        ) from None


def check_parameters(path: Path, given: dict[str, Any]) -> dict[str, Any]:
    """The given parameters with the declared types.

    Raises:
        ReproError: an unknown name, a wrong type or an unknown tier; the message lists the valid ones.
    """
    declared = parameters(path)
    listing = "\nvalid parameters:\n" + "\n".join(str(p) for p in declared.values())
    if unknown := [name for name in given if name not in declared]:
        raise ReproError(f"{path.stem} has no parameter {unknown[0]!r}{listing}")
    try:
        typed = {name: declared[name].parse(value) for name, value in given.items()}
    except ReproError as error:
        raise ReproError(f"{error}{listing}") from None
    check_tier(typed.get("tier", "micro"))
    return typed


def check_tier(tier: str) -> None:
    """Refuse an unknown tier.

    Raises:
        ReproError: names the known ones.
    """
    if tier not in TIERS:
        raise ReproError(f"unknown tier {tier!r}: expected one of {', '.join(TIERS)}")


def execute(number: str, given: dict[str, Any], output: Path) -> Path:
    """Run a chapter with checked parameters and write the executed notebook, whole or not at all.

    Raises:
        ReproError: bad parameters (before anything runs), a cell that failed, or no write permission.
    """
    path = notebook(number)
    typed = check_parameters(path, given)
    partial = output.with_suffix(".partial.ipynb")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        run_cells(path, partial, typed)
        _finish(partial, output)
    except OSError as error:
        raise ReproError(f"cannot write {error.filename or output}: {error.strerror}") from None
    except PapermillExecutionError as error:
        raise ReproError(
            f"chapter {number} failed in cell {error.exec_count}: {error.ename}: {error.evalue} "
            f"(the executed part is in {partial})"
        ) from None
    return output


def run_cells(source: Path, output: Path, given: dict[str, Any]) -> None:
    """Run a notebook in the repository's root with checked parameters; papermill's errors pass through."""
    papermill.execute_notebook(
        str(source), str(output), parameters=given, cwd=str(root()), progress_bar=False,
        kernel_name="python3", log_output=False,
    )  # fmt: skip


def _finish(partial: Path, output: Path) -> None:
    """Hide the injected cell, keep the tags that the book reads, and move the file into place."""
    executed = read(partial)
    for cell in executed.cells:
        if "injected-parameters" in cell.metadata.get("tags", []):
            cell.metadata["tags"].append("remove-cell")
    write_atomically(output, nbformat.writes(executed))
    partial.unlink()


def sources(number: str) -> list[Path]:
    """The ``reprolib`` files that a chapter imports, directly or not: what its result depends on."""
    code = "\n".join(c.source for c in read(notebook(number)).cells if c.cell_type == "code")
    lines = "\n".join(line for line in code.splitlines() if not line.lstrip().startswith(("%", "!")))
    found = reachable(imports(lines))
    by_name = {p for path in found if path.parent.name == "checks" for p in path.parent.glob("*.py")}
    return sorted(found | reachable(by_name))


def sources_hash(number: str) -> str:
    """Hash of the chapter's code cells and of the package sources that it imports."""
    digest = hashlib.sha256()
    for cell in read(notebook(number)).cells:
        if cell.cell_type == "code":
            digest.update(cell.source.encode())
    for path in sources(number):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def unpaired() -> list[str]:
    """Chapters whose ``.md`` and ``.ipynb`` differ in a cell's source, or that miss one of the two."""
    folder = root() / "notebooks"
    stems = sorted({p.stem for p in folder.glob("[0-9][0-9]_*.*") if p.suffix in (".md", ".ipynb")})
    bad = []
    for stem in stems:
        pair = [folder / f"{stem}.md", folder / f"{stem}.ipynb"]
        if not all(p.is_file() for p in pair):
            bad.append(stem)
            continue
        text, book = (jupytext.read(p) for p in pair)
        if [(c.cell_type, c.source) for c in text.cells] != [(c.cell_type, c.source) for c in book.cells]:
            bad.append(stem)
    return bad
