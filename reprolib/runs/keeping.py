"""Results of the tiers too long to run at every build, kept in the repository with their provenance."""

import json
import shutil
import tempfile
from pathlib import Path

from reprolib.errors import ReproError
from reprolib.paths import TEMPORARY, root
from reprolib.runs.experiments import grid
from reprolib.runs.results import Run, checksums, load
from reprolib.runs.spec import RunSpec

# the sign of such a value, beside the released weights, is a training annotation, whatever epsilon says
PRIVATE = ("attack_training",)
FILES = ("spec.json", "ledger.jsonl", "metrics.jsonl")


def directory(spec: RunSpec) -> Path:
    """Where a kept run is: ``data/results/<tier>/<paper>/<name of the run>``."""
    return root() / "data" / "results" / spec.tier / spec.paper / spec.name


def keep(run: Run) -> Path:
    """Copy what pages read of a finished run: spec, ledger, released norms, scores and provenance.

    Weights stay behind, and so does the text of responses: only its scores and lengths are kept. Scores of
    training records stay behind too: no mechanism made them private.

    Raises:
        ReproError: a run of the smoke tier.
    """
    if run.spec.tier == "smoke":
        raise ReproError(f"{run.spec.name}: a smoke run only shows that the code runs; it is not kept")
    where = directory(run.spec)
    where.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=where.parent, prefix=TEMPORARY) as scratch:
        target = Path(scratch) / "run"
        target.mkdir()
        for name in FILES:
            if (run.directory / name).is_file():  # the base has no ledger
                (target / name).write_bytes(run.read(name))
        public = run.predictions[~run.predictions["evaluation"].isin(PRIVATE)].drop(columns="response")
        public.to_parquet(target / "predictions.parquet", index=False)
        facts = run.provenance | {"files": checksums(target)}
        (target / "provenance.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
        shutil.rmtree(where, ignore_errors=True)
        target.replace(where)
    return where


def kept(paper: str, tier: str, study: str) -> list[tuple[RunSpec, Run]]:
    """The runs of a study that are kept, each with its spec; those that still have to be made are left out.

    Raises:
        ReproError: an unknown paper, tier or study, or a damaged file.
    """
    return [
        (spec, load(directory(spec), stale="allow"))
        for spec in grid(paper, tier, study)
        if (directory(spec) / "provenance.json").is_file()
    ]
