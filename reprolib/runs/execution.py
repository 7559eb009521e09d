"""Starting, resuming and finishing a run: ``ensure`` is the one door to training."""

import fcntl
import importlib
import importlib.metadata
import json
import logging
import os
import platform
import resource
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd

from reprolib.errors import ReproError
from reprolib.paths import root, write_atomically
from reprolib.privacy.ledger import AnyPlan, Ledger
from reprolib.runs import checkpoints, results, sources
from reprolib.runs.job import Job, Trainer
from reprolib.runs.spec import RunSpec, directory

logger = logging.getLogger(__name__)
Build = Callable[[RunSpec, AnyPlan | None, Ledger | None], Job]
CHECKPOINT_EVERY = 10
PACKAGES = ("numpy", "scipy", "dp-accounting", "torch", "transformers", "peft")


def ensure(spec: RunSpec, *, build: Build | None = None, checkpoint_every: int = CHECKPOINT_EVERY) -> Path:
    """The directory of the finished run, which is started or resumed if need be.

    Two processes may ask for one run: the second waits for the first. A directory that other sources made
    is moved to ``*.stale`` and the run is made again.

    Args:
        spec: what determines the run.
        build: makes task, model and trainer; for tests.
        checkpoint_every: rounds between checkpoints.

    Raises:
        ReproError: whatever makes the run impossible.
    """
    _attempt(spec, build or _build, checkpoint_every, wait=True)
    return directory(spec)


def ensure_all(
    specs: Sequence[RunSpec], *, build: Build | None = None, done: Callable[[RunSpec], None] | None = None
) -> list[Path]:
    """``ensure`` for each spec; what another process is running is left to the end, so that two share the work.

    Args:
        specs: the runs.
        build: see ``ensure``.
        done: called after each run.
    """  # noqa: E501
    waiting = list(specs)
    for wait in (False, True):
        busy = []
        for spec in waiting:
            if not _attempt(spec, build or _build, CHECKPOINT_EVERY, wait=wait):
                busy.append(spec)
            elif done:
                done(spec)
        waiting = busy
    return [directory(spec) for spec in specs]


def _build(spec: RunSpec, plan: AnyPlan | None, ledger: Ledger | None) -> Job:
    # by name, so that a run's fingerprint holds the code of its own paper only
    job: Job = importlib.import_module(spec.builder).build(spec, plan, ledger)
    return job


def _attempt(spec: RunSpec, build: Build, every: int, *, wait: bool) -> bool:
    """Finish the run; False if another process has it and ``wait`` is false."""
    where = directory(spec)
    if results.state(where) == "finished":
        return True
    with _lock(where, wait=wait) as held:
        if held and (state := results.state(where)) != "finished":
            if state == "stale":
                _move_aside(where)
            _run(spec, where, build, every)
    return held


@contextmanager
def _lock(where: Path, *, wait: bool) -> Iterator[bool]:
    """The exclusive right to a run directory; the operating system frees it when the process ends."""
    path = where.with_name(f".{where.name}.lock")  # beside the directory, which may be moved aside
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("w")
    except OSError as error:
        raise ReproError(f"cannot write {path}: {error.strerror}") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not wait:
                yield False
                return
            logger.warning("%s: another process is running it; waiting", where.name)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield True


def _move_aside(where: Path) -> None:
    count = len(list(where.parent.glob(f"{where.name}*.stale")))
    aside = where.with_name(f"{where.name}{f'.{count}' if count else ''}.stale")
    where.rename(aside)
    logger.warning("%s was made by other sources: moved to %s, running again", where.name, aside.name)


def _run(spec: RunSpec, where: Path, build: Build, every: int) -> None:
    start = time.monotonic()
    made_by = sources.fingerprint(spec)
    content = {"spec": spec.model_dump(mode="json"), "sources": made_by}
    write_atomically(where / "spec.json", json.dumps(content, indent=1) + "\n")
    plan = spec.plan()
    ledger = Ledger(where / "ledger.jsonl", plan) if plan else None
    job = build(spec, plan, ledger)
    before = 0.0
    if job.trainer and ledger:
        before = _train(spec, where, job, job.trainer, ledger, every)
        job.save_adapter(where / "adapter")
    else:
        _score(spec, where, job, 0)
    scored = [pd.read_parquet(_scores(where, after)) for after in spec.scored_rounds]
    _write_parquet(pd.concat(scored, ignore_index=True), where / "predictions.parquet")
    facts = provenance(made_by, seconds=before + time.monotonic() - start)
    write_atomically(where / "provenance.json", json.dumps(facts, indent=1) + "\n")
    shutil.rmtree(where / "checkpoints", ignore_errors=True)


def _train(spec: RunSpec, where: Path, job: Job, trainer: Trainer, ledger: Ledger, every: int) -> float:
    """Train to the last round; returns the seconds that earlier, interrupted processes took."""
    start = time.monotonic()
    before, metrics = _resume(where, trainer, ledger)
    while trainer.rounds_done < spec.last_round:
        released = trainer.step()
        done = trainer.rounds_done
        metrics.append({"round": done, "released_norm": float(released.norm()), **job.observe(released)})
        if done in spec.scored_rounds:
            _score(spec, where, job, done)  # before the checkpoint, so that a checkpoint implies its scores
        if done % every == 0 or done == spec.last_round:
            seconds = before + time.monotonic() - start
            state = {"trainer": trainer.state(), "metrics": metrics, "seconds": seconds}
            checkpoints.save(where / "checkpoints", done, state)
    write_atomically(where / "metrics.jsonl", "".join(json.dumps(line) + "\n" for line in metrics))
    return before


def _resume(where: Path, trainer: Trainer, ledger: Ledger) -> tuple[float, list[dict[str, float]]]:
    kept = checkpoints.latest(where / "checkpoints")
    if kept is None:
        return 0.0, []
    rounds, state = kept
    if ledger.spent < rounds:
        raise ReproError(
            f"{where}: the checkpoint has {rounds} rounds but the ledger only {ledger.spent}, so what was "
            "spent is unknown: restore ledger.jsonl, or delete the directory to start again"
        )
    trainer.restore(state["trainer"])
    logger.warning("%s: resumed after round %d", where.name, rounds)
    return state["seconds"], state["metrics"]


def _scores(where: Path, after: int) -> Path:
    return where / "checkpoints" / f"scores-{after:06d}.parquet"


def _score(spec: RunSpec, where: Path, job: Job, after: int) -> None:
    """Score every evaluation set now; responses to public problems are post-processing of the weights."""
    frames = [
        pd.DataFrame(
            {"evaluation": name, "seed": spec.seed, "round": after, **row} for row in job.score(name)
        )
        for name in spec.evaluation
    ]
    frame = pd.concat(frames, ignore_index=True)
    frame["value"] = frame["value"].astype("Float64") if "value" in frame else pd.NA
    types = {"strict": "Int8", "rescore": "Int8", "value": "Float64"}
    _write_parquet(frame.astype(types), _scores(where, after))


def _write_parquet(frame: pd.DataFrame, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    frame.to_parquet(temporary, index=False)
    temporary.replace(path)


def provenance(made_by: str, *, seconds: float) -> dict[str, Any]:
    """Where a result comes from: sources, commit, versions, hardware, time and memory.

    Args:
        made_by: fingerprint of the sources.
        seconds: wall time, that of interrupted processes up to their last checkpoint included.
    """
    import torch

    cuda = torch.cuda.is_available()
    return {
        "sources": made_by,
        "commit": _commit(),
        "python": platform.python_version(),
        "packages": {name: importlib.metadata.version(name) for name in PACKAGES},
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "gpu": torch.cuda.get_device_name(0) if cuda else None,
        "seconds": round(seconds, 2),
        # of the process: an upper bound where one process makes several runs
        "peak_memory_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
        "peak_gpu_memory_mib": round(torch.cuda.max_memory_allocated() / 2**20, 1) if cuda else None,
    }


def _commit() -> str | None:
    """The checkout's commit, marked if files differ from it; None outside a checkout."""
    command = ["git", "-C", str(root()), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return found.stdout.strip() or None
