"""What may leave the machine of a finished run: its weights, what they cost in privacy, and nothing else.

    release.write(runs.load(folder), Path("out"))

An allow-list: weights and settings in PEFT's or transformers' own files, the privacy card, a model card with
the scores on public problems, licence notes and checksums. Rewards, completions, batch sizes, per-record
values, generator states, times and ledgers stay where they are. A run whose noise can be replayed, or that
added none, is written only on the explicit word that it is not private, and every page of it says so.
"""

import hashlib
import json
import tempfile
from pathlib import Path
from typing import Any

from reprolib.errors import ReproError
from reprolib.paths import TEMPORARY, root
from reprolib.runs.keeping import PRIVATE
from reprolib.runs.results import Run
from reprolib.runs.spec import runs_root

WEIGHTS = (  # of an adapter, or of a whole model with its tokenizer
    "adapter_config.json", "adapter_model.safetensors", "config.json", "generation_config.json",
    "model.safetensors", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
    "chat_template.jinja",
)  # fmt: skip
CARD, MODEL_CARD, LICENCES, SUMS = "privacy_card.json", "README.md", "LICENCES.md", "SHA256SUMS"
TEXT = (".json", ".md", ".jinja")


def write(run: Run, target: Path, *, not_private: bool = False) -> Path:
    """Write a release of a finished run to a new directory.

    Args:
        run: it is read only.
        target: must not exist yet.
        not_private: needed, and recorded, where the run's card states no guarantee.

    Raises:
        ReproError: an untrained run, one without a guarantee, an existing target, a file that the run did
            not write, or a path of this machine in what would be released.
    """
    card = run.card()
    if not card.guarantee and not not_private:
        raise ReproError(
            f"{run.directory.name} gives no guarantee (epsilon {card.epsilon_text}): it can only be released "
            "as not private, with --not-private"
        )
    if card.guarantee and not_private:
        raise ReproError(f"{run.directory.name} is private: release it without --not-private")
    if target.exists():
        raise ReproError(f"{target} exists: name a new directory")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=TEMPORARY) as scratch:
        folder = Path(scratch) / "release"
        folder.mkdir()
        for name, content in _weights(run).items():
            (folder / name).write_bytes(content)
        (folder / CARD).write_text(card.to_json() + "\n", encoding="utf-8")
        (folder / MODEL_CARD).write_text(_model_card(run), encoding="utf-8")
        (folder / LICENCES).write_text(_licences(run), encoding="utf-8")
        _refuse_paths(folder, run)
        (folder / SUMS).write_text(_sums(folder), encoding="utf-8")
        folder.replace(target)
    return target


def scores(run: Run) -> dict[str, dict[str, float]]:
    """Accuracy and number of problems of each public evaluation set after the last round."""
    rows = run.predictions[run.predictions["round"] == run.spec.last_round]
    found = {}
    for name, each in rows.groupby("evaluation"):
        if name not in PRIVATE and each["strict"].notna().all():
            found[str(name)] = {"accuracy": float(each["strict"].mean()), "problems": len(each)}
    return found


def _weights(run: Run) -> dict[str, bytes]:
    folder = run.directory / "adapter"
    names = [name for name in WEIGHTS if (folder / name).is_file()]
    if not {"adapter_model.safetensors", "model.safetensors"} & set(names):
        raise ReproError(f"{folder} holds no weights: restore it, or delete the run's directory to run again")
    return {name: run.read(f"adapter/{name}") for name in names}


def _model_card(run: Run) -> str:
    spec, card = run.spec, run.card()
    public: dict[str, Any] = spec.model_dump(mode="json", exclude_none=True, exclude={"entropy", "study"})
    public["model"] = Path(spec.model).name
    facts = {name: run.provenance.get(name) for name in ("commit", "sources", "packages")}
    state = (
        "" if card.guarantee else "**Not private.** Whoever has these weights may learn training records.\n\n"
    )
    lines = [f"| {label} | {text} |" for label, text in card.rows()]
    results = [
        f"| {name} | {100 * found['accuracy']:.2f} % | {found['problems']} |"
        for name, found in scores(run).items()
    ]
    return "\n".join([
        f"# {spec.paper}: {spec.variant} on {spec.task}", "",
        f"{state}Weights trained by `reprolib` from the base model `{Path(spec.model).name}`.", "",
        "## Privacy", "", "| | |", "| --- | --- |", *lines, "",
        "The card counts every round whose noise was drawn, those that a resumed run repeated included. It",
        "does not count the choice of settings by earlier runs.", "",
        "## Results on public problems", "",
        "| set | correct | problems |", "| --- | --- | --- |", *results, "",
        "## Settings", "", "```json", json.dumps(public, indent=1), "```", "",
        "## Made by", "", "```json", json.dumps(facts, indent=1), "```", "",
    ])  # fmt: skip


def _licences(run: Run) -> str:
    return "\n".join([
        "# Licences", "",
        f"- Base model `{Path(run.spec.model).name}`: its licence applies, also to weights made from it.",
        f"- Training data `{run.spec.task}`: its own licence applies; check that it allows derived weights.",
        "- `reprolib` and the cards in this directory: Apache-2.0.", "",
    ])  # fmt: skip


def _refuse_paths(folder: Path, run: Run) -> None:
    """No file may say where it was made."""
    places = (root(), runs_root().resolve(), Path.home(), run.directory.parent, Path(run.spec.model))
    here = {str(p) for p in places if p.is_absolute() and len(p.parts) > 1}
    for path in sorted(folder.iterdir()):
        if path.suffix in TEXT:
            text = path.read_text(encoding="utf-8")
            if found := sorted(p for p in here if p in text):
                raise ReproError(
                    f"{path.name} would name {found[0]}, a path of this machine: use the name of a model"
                )


def _sums(folder: Path) -> str:
    return "".join(
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(folder.iterdir())
    )
