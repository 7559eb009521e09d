"""Real training processes, killed by SIGKILL at fifty moments: by the clock, and inside what they write."""

import errno
import json
import multiprocessing
import os
import resource
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file

from reprolib import runs
from reprolib.errors import ReproError
from reprolib.paths import TEMPORARY
from reprolib.privacy import ledger, mechanism
from reprolib.runs import checkpoints, execution
from tests.runs.specs import spec

FORK = multiprocessing.get_context("fork")  # the packages are imported once
EVERY = 3
HOOKS = ("fsync", "rename", "replace", "truncate")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Weights of a run of the real trainer that nothing interrupts, and the seconds of such a process."""
    home = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REPROLIB_RUNS", str(home))
        where = runs.ensure(wanted(), checkpoint_every=EVERY)
        start = time.monotonic()  # of a second one: data and tokens that are cached now are in every fork
        assert not killed(wanted(seed=2), home / "drawn")
        return weights(where), time.monotonic() - start


def wanted(**changes):
    return spec(
        **{"method": "gold_sft", "rounds": 12, "score_at": (4,), "entropy": "research",
           "evaluation": ("selection",), **changes}
    )  # fmt: skip


def weights(where):
    return load_file(where / "adapter" / "adapter_model.safetensors")


def train(the_spec, drawn, hook=None):
    """The whole of a training process; ``drawn`` gets a byte for each draw of noise.

    Args:
        hook: (function of ``os``, call at which it dies, whether before or after).
    """
    normal, log = mechanism.EntropySource.normal, os.open(drawn, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def counted(self, size):
        os.write(log, b".")
        return normal(self, size)

    mechanism.EntropySource.normal = counted
    if hook:
        die_at(*hook)
    runs.ensure(the_spec, checkpoint_every=EVERY)


def die_at(name, call, after):
    inner, calls = getattr(os, name), iter(range(10**6))

    def dying(*args, **kwargs):
        last = next(calls) == call
        if last and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        found = inner(*args, **kwargs)
        if last:
            os.kill(os.getpid(), signal.SIGKILL)
        return found

    setattr(os, name, dying)


def killed(the_spec, drawn, *, seconds=None, hook=None):
    """Start a training process and let it be killed; False if it ended by itself before."""
    process = FORK.Process(target=train, args=(the_spec, drawn, hook))
    process.start()
    process.join(seconds)
    if process.is_alive():
        process.kill()
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL)
    return process.exitcode != 0


def begun(where):
    """Rounds in the ledger; 0 before there is one."""
    path = where / "ledger.jsonl"
    return ledger.read(path).spent if path.is_file() and b"\n" in path.read_bytes() else 0


def noise_draws(drawn):
    return drawn.stat().st_size if drawn.is_file() else 0


def check_end(where, drawn, whole):
    """The run ended as if nothing had happened, and the ledger holds every draw of noise."""
    run, end = runs.load(where), weights(where)
    assert all(np.array_equal(end[name], whole[name]) for name in whole)
    assert run.ledger.spent >= noise_draws(drawn)
    assert {r for r in run.ledger.rounds if r is not None} == set(range(12))
    assert run.ledger.epsilon() > run.spec.plan().epsilon() or run.ledger.spent == 12
    assert set(run.predictions["round"]) == {4, 12}
    assert not (where / "checkpoints").exists()
    assert not list(where.rglob(f"{TEMPORARY}*"))


def test_a_run_killed_at_thirty_random_moments_ends_as_if_it_had_not_been(runs_home, tmp_path, trained):
    whole, seconds = trained
    generator, deaths, rest = np.random.default_rng(6), 0, 0
    while deaths < 30:
        # a new run now and then, as a long run of deaths would see its first rounds only
        home = runs_home / str(rest)
        os.environ["REPROLIB_RUNS"], drawn = str(home), tmp_path / f"drawn-{rest}"
        where = runs.directory(wanted())
        if killed(wanted(), drawn, seconds=float(generator.uniform(0, 1.1 * seconds))):
            deaths += 1
        else:
            rest += 1
        assert begun(where) >= noise_draws(drawn)
    assert not killed(wanted(), drawn)
    check_end(where, drawn, whole)
    for finished in runs_home.glob("*/smoke/dp_grpo/*/provenance.json"):
        check_end(finished.parent, tmp_path / f"drawn-{finished.parts[-5]}", whole)


@pytest.mark.parametrize(
    ("name", "call", "after"),
    # fsync: the spec, its folder, the ledger's header, its folder, then each round; a file and its folder a
    # checkpoint and a score; rename and replace: whatever is put in its place
    [("fsync", call, after) for call in (0, 2, 4, 5, 7, 9, 14, 17) for after in (False, True)]
    + [("rename", 0, after) for after in (False, True)]
    + [("replace", call, after) for call in (1,) for after in (False, True)],
)
def test_a_run_killed_inside_a_write_resumes(runs_home, tmp_path, trained, monkeypatch, name, call, after):
    drawn, where = tmp_path / "drawn", runs.directory(wanted())
    assert killed(wanted(), drawn, hook=(name, call, after)), "the moment was never reached"
    assert begun(where) >= noise_draws(drawn)
    assert not killed(wanted(), drawn)
    check_end(where, drawn, trained[0])


def test_a_private_run_that_is_killed_repeats_rounds_with_fresh_noise_and_says_so(runs_home, tmp_path):
    private, drawn = wanted(entropy="private"), tmp_path / "drawn"
    assert killed(private, drawn, hook=("fsync", 12, False))
    run = runs.load(runs.ensure(private, checkpoint_every=EVERY))
    assert run.ledger.spent > 12
    assert run.epsilon() > private.plan().epsilon()
    assert run.card().guarantee


def test_a_full_disk_is_one_clear_line_and_the_run_goes_on_when_there_is_room(
    runs_home, tmp_path, monkeypatch, trained
):
    fsync, calls = os.fsync, iter(range(10**6))

    def full(descriptor):
        if next(calls) > 10:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ReproError, match=r"cannot write .*No space left on device"):
        runs.ensure(wanted(), checkpoint_every=EVERY)
    monkeypatch.setattr(os, "fsync", fsync)
    where = runs.ensure(wanted(), checkpoint_every=EVERY)
    check_end(where, tmp_path / "none", trained[0])


def test_a_checkpoint_too_large_for_the_disk_leaves_the_one_before(tmp_path):
    import torch

    checkpoints.save(tmp_path, 10, {"weight": torch.zeros(10)})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limits[1]))  # a real refusal, in the middle of the file
    try:
        with pytest.raises(ReproError, match=r"cannot write .*round-000020.pt: File too large"):
            checkpoints.save(tmp_path, 20, {"weight": torch.zeros(10_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [p.name for p in tmp_path.iterdir()] == ["round-000010.pt"]
    assert checkpoints.latest(tmp_path)[0] == 10


def test_a_round_that_the_disk_refused_leaves_a_ledger_that_can_be_read(tmp_path):
    book = ledger.Ledger(tmp_path / "ledger.jsonl", spec().plan())
    book.begin_round(0)
    size = book.path.stat().st_size
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 4, limits[1]))
    try:
        with pytest.raises(ReproError, match=r"cannot write the ledger .*File too large"):
            book.begin_round(1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert book.spent == 1
    book.begin_round(1)
    assert ledger.read(book.path).rounds == (0, 1)


def everything(where):
    run = runs.load(where)
    return run.predictions, run.metrics, run.ledger


@pytest.mark.parametrize("name", ["spec.json", "predictions.parquet", "metrics.jsonl", "ledger.jsonl"])
def test_a_flipped_byte_in_a_finished_run_is_found_on_reading(builds, runs_home, name):
    where = runs.ensure(spec(), build=builds())
    content = bytearray((where / name).read_bytes())
    seed = content.find(b'"seed": 1')
    content[seed + 8 if seed > 0 else len(content) // 2] ^= 2
    (where / name).write_bytes(content)
    with pytest.raises(ReproError, match=rf"{name} is not what the run wrote"):
        everything(where)


def test_scores_that_were_lost_before_the_end_are_named(builds, runs_home):
    with pytest.raises(KeyboardInterrupt):
        runs.ensure(spec(score_at=(2,)), build=builds(die_after=4), checkpoint_every=2)
    where = runs.directory(spec(score_at=(2,)))
    (where / "checkpoints" / "scores-000002.parquet").unlink()
    with pytest.raises(ReproError, match=r"scores-000002.parquet: no readable scores"):
        runs.ensure(spec(score_at=(2,)), build=builds(), checkpoint_every=2)


def test_what_a_process_killed_after_its_last_write_left_is_removed(builds, runs_home):
    where = runs.ensure(spec(), build=builds())
    checkpoints.save(where / execution.CHECKPOINTS, 5, {"private": 1})
    runs.ensure(spec(), build=builds())
    assert not (where / "checkpoints").exists()


def test_a_directory_whose_weights_were_written_but_not_recorded_writes_them_again(builds, runs_home):
    with pytest.raises(KeyboardInterrupt):
        runs.ensure(spec(), build=builds(die_after=4), checkpoint_every=2)
    where = runs.directory(spec())
    (where / "adapter").mkdir()
    (where / "adapter" / "weight.json").write_text("old")
    runs.ensure(spec(), build=builds(), checkpoint_every=2)
    assert json.loads((where / "adapter" / "weight.json").read_text()) == 15


def test_the_parts_of_a_ledger_line_that_a_crash_left_count(runs_home, builds):
    with pytest.raises(KeyboardInterrupt):
        runs.ensure(spec(), build=builds(die_after=3), checkpoint_every=2)
    path = Path(runs.directory(spec())) / "ledger.jsonl"
    path.write_bytes(path.read_bytes() + b'{"rou')
    run = runs.load(runs.ensure(spec(), build=builds(), checkpoint_every=2))
    assert run.ledger.rounds == (0, 1, 2, None, 2, 3, 4)
