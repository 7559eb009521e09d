"""Starting, resuming and finishing a run: ``ensure`` is the one door to training."""

import fcntl
import importlib
import importlib.metadata
import io
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from reprolib.errors import ReproError
from reprolib.paths import TEMPORARY, root, sync, write_atomically
from reprolib.privacy.ledger import AnyPlan, Ledger
from reprolib.privacy.plan import Plan
from reprolib.runs import checkpoints, results, sources
from reprolib.runs.job import Job, Trainer
from reprolib.runs.spec import RunSpec, directory

logger = logging.getLogger(__name__)
Build = Callable[[RunSpec, AnyPlan | None, Ledger | None], Job]
CHECKPOINT_EVERY = 10
CHECKPOINTS = "checkpoints"
PACKAGES = ("numpy", "scipy", "dp-accounting", "torch", "transformers", "peft")


@dataclass(frozen=True)
class Spent:
    """Wall and processor time."""

    seconds: float = 0.0
    cpu_seconds: float = 0.0


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
            elif done and _rank() == 0:
                done(spec)
        waiting = busy
    return [directory(spec) for spec in specs]


def processes() -> int:
    """Processes that torchrun started for this run; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def _rank() -> int:
    return int(os.environ.get("RANK", "0"))


def _build(spec: RunSpec, plan: AnyPlan | None, ledger: Ledger | None) -> Job:
    # by name, so that a run's fingerprint holds the code of its own paper only
    job: Job = importlib.import_module(spec.builder).build(spec, plan, ledger)
    return job


def _attempt(spec: RunSpec, build: Build, every: int, *, wait: bool) -> bool:
    """Finish the run; False if another process has it and ``wait`` is false."""
    if processes() > 1:
        return _attempt_together(spec, build, every)
    where = directory(spec)
    if _finished(where):
        return True
    with _lock(where, wait=wait) as held:
        if held and not _finished(where):
            _run(spec, where, build, every)
    return held


def _attempt_together(spec: RunSpec, build: Build, every: int) -> bool:
    """As ``_attempt``, in every process of torchrun: the first one locks, writes and scores."""
    from reprolib.learn import ranks

    if not isinstance(spec.plan(), Plan | None):
        raise ReproError(
            f"{spec.name} is not accounted as a Poisson sample, and several processes share out nothing "
            "else: start it without torchrun (learn.sharded shards preference training)"
        )
    ranks.join()
    where = directory(spec)
    if ranks.rank() > 0:
        if ranks.from_first(None):
            _follow(spec, build, every)
        return True
    with _lock(where, wait=True):
        if ranks.from_first(not _finished(where)):
            _run(spec, where, build, every)
    return True


def _finished(where: Path) -> bool:
    """Whether the run is there; what a process that was killed at the very end left over is removed."""
    if results.state(where) != "finished":
        return False
    shutil.rmtree(where / CHECKPOINTS, ignore_errors=True)
    return True


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
    start, cpu = time.monotonic(), time.process_time()
    if results.state(where) == "stale":
        _move_aside(where)
    _sweep(where)
    made_by = sources.fingerprint(spec)
    content = {"spec": spec.model_dump(mode="json"), "sources": made_by}
    write_atomically(where / "spec.json", json.dumps(content, indent=1) + "\n")
    plan = spec.plan()
    ledger = Ledger(where / "ledger.jsonl", plan) if plan else None
    job = build(spec, plan, ledger)
    before = Spent()
    if job.trainer and ledger:
        before = _train(spec, where, job, job.trainer, ledger, every)
        _save_weights(job, where)
    else:
        _score(spec, where, job, 0)
    scored = pd.concat([_read_scores(where, after) for after in spec.scored_rounds], ignore_index=True)
    _write_parquet(scored, where / "predictions.parquet")
    spent = Spent(before.seconds + time.monotonic() - start, before.cpu_seconds + time.process_time() - cpu)
    facts = provenance(made_by, spent, results.checksums(where))
    write_atomically(where / "provenance.json", json.dumps(facts, indent=1) + "\n")
    shutil.rmtree(where / CHECKPOINTS, ignore_errors=True)


def _follow(spec: RunSpec, build: Build, every: int) -> None:
    """The part of a process that is not the first: its share of every round, and nothing on disk."""
    from reprolib.learn import ranks

    job = build(spec, spec.plan(), None)
    if job.trainer is None:
        return
    if (kept := ranks.from_first(None)) is not None:
        _restore(job.trainer, kept)
    while job.trainer.rounds_done < spec.last_round:
        job.trainer.step()
        if _due(spec, job.trainer.rounds_done, every):
            ranks.of_all(job.trainer.state().get("entropy"))


def _sweep(where: Path) -> None:
    """Remove what a crash left half-written; nobody else writes here while the lock is held."""
    for path in where.rglob(f"{TEMPORARY}*"):
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


def _save_weights(job: Job, where: Path) -> None:
    """The weights' folder, whole or not at all."""
    scratch = where / f"{TEMPORARY}adapter"
    job.save_adapter(scratch)
    shutil.rmtree(where / "adapter", ignore_errors=True)
    scratch.rename(where / "adapter")
    sync(where)


def _due(spec: RunSpec, done: int, every: int) -> bool:
    return done % every == 0 or done == spec.last_round


def _train(spec: RunSpec, where: Path, job: Job, trainer: Trainer, ledger: Ledger, every: int) -> Spent:
    """Train to the last round; returns what earlier, interrupted processes took."""
    start, cpu = time.monotonic(), time.process_time()
    before, metrics = _resume(where, trainer, ledger)
    while trainer.rounds_done < spec.last_round:
        released = trainer.step()
        done = trainer.rounds_done
        metrics.append({"round": done, "released_norm": float(released.norm()), **job.observe(released)})
        if done in spec.scored_rounds:
            _score(spec, where, job, done)  # before the checkpoint, so that a checkpoint implies its scores
        if _due(spec, done, every):
            state = {
                "trainer": trainer.state(), "metrics": metrics,
                "seconds": before.seconds + time.monotonic() - start,
                "cpu_seconds": before.cpu_seconds + time.process_time() - cpu,
            }  # fmt: skip
            if processes() > 1:
                state["entropies"] = _entropies(trainer)
            checkpoints.save(where / CHECKPOINTS, done, state)
    write_atomically(where / "metrics.jsonl", "".join(json.dumps(line) + "\n" for line in metrics))
    return before


def _entropies(trainer: Trainer) -> list[Any]:
    from reprolib.learn import ranks

    return ranks.of_all(trainer.state().get("entropy"))


def _restore(trainer: Trainer, kept: dict[str, Any]) -> None:
    """Continue from a checkpoint; a process's generators go on where its own stood.

    Raises:
        ReproError: a replayable run that another number of processes began.
    """
    state, own = kept["trainer"], kept.get("entropies", [kept["trainer"].get("entropy")])
    if state.get("entropy") and len(own) != processes():
        raise ReproError(
            f"the checkpoint is of a replayable run in {len(own)} processes, this is one in {processes()}: "
            "resume it with as many, or delete the directory to start again"
        )
    if state.get("entropy"):
        state = state | {"entropy": own[_rank()]}
    trainer.restore(state)


def _resume(where: Path, trainer: Trainer, ledger: Ledger) -> tuple[Spent, list[dict[str, float]]]:
    kept = checkpoints.latest(where / CHECKPOINTS)
    if kept and ledger.spent < kept[0]:
        raise ReproError(
            f"{where}: the checkpoint has {kept[0]} rounds but the ledger only {ledger.spent}, so what was "
            "spent is unknown: restore ledger.jsonl, or delete the directory to start again"
        )
    state = kept[1] if kept else None
    if processes() > 1:
        from reprolib.learn import ranks

        ranks.from_first(state)
    if kept is None or state is None:
        return Spent(), []
    _restore(trainer, state)
    logger.warning("%s: resumed after round %d", where.name, kept[0])
    return Spent(state["seconds"], state["cpu_seconds"]), state["metrics"]


def _scores(where: Path, after: int) -> Path:
    return where / CHECKPOINTS / f"scores-{after:06d}.parquet"


def _read_scores(where: Path, after: int) -> pd.DataFrame:
    path = _scores(where, after)
    try:
        return pd.read_parquet(path)
    except (OSError, ValueError) as error:  # pyarrow's errors are among them
        raise ReproError(
            f"{path}: no readable scores ({error}): restore the file, or delete the directory to start again"
        ) from None


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
    buffer = io.BytesIO()
    frame.to_parquet(buffer, index=False)
    write_atomically(path, buffer.getvalue())


def provenance(made_by: str, spent: Spent, files: dict[str, str]) -> dict[str, Any]:
    """Where a result comes from: sources, commit, versions, hardware, time, memory and checksums.

    Args:
        made_by: fingerprint of the sources.
        spent: time, that of interrupted processes up to their last checkpoint included.
        files: SHA-256 of each file of the run.
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
        "processes": processes(),
        "seconds": round(spent.seconds, 2),
        "cpu_seconds": round(spent.cpu_seconds, 2),  # of the first process
        # of the process: an upper bound where one process makes several runs
        "peak_memory_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
        "peak_gpu_memory_mib": round(torch.cuda.max_memory_allocated() / 2**20, 1) if cuda else None,
        "files": files,
    }


def _commit() -> str | None:
    """The checkout's commit, marked if files differ from it; None outside a checkout."""
    command = ["git", "-C", str(root()), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return found.stdout.strip() or None
