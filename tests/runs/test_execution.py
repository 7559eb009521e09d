import fcntl
import json
import logging
import multiprocessing
import os
import subprocess
import sys

import pandas as pd
import pytest

from reprolib import runs
from reprolib.errors import ReproError
from reprolib.privacy import ledger
from reprolib.runs import execution
from tests.runs.specs import base, spec

pytestmark = pytest.mark.usefixtures("runs_home")


def interrupted(the_spec, builds, *, after, every=2):
    with pytest.raises(KeyboardInterrupt):
        runs.ensure(the_spec, build=builds(die_after=after), checkpoint_every=every)


def test_a_finished_run_holds_what_the_design_says_and_nothing_private(builds):
    where = runs.ensure(spec(evaluation=("math", "gsm8k")), build=builds())
    assert sorted(p.name for p in where.iterdir()) == [
        "adapter", "ledger.jsonl", "metrics.jsonl", "predictions.parquet", "provenance.json", "spec.json",
    ]  # fmt: skip
    lines = [json.loads(line) for line in (where / "metrics.jsonl").read_text().splitlines()]
    assert lines == [{"round": r, "released_norm": float(r), "largest": float(r)} for r in range(1, 6)]
    assert list(pd.read_parquet(where / "predictions.parquet").columns) == [
        "evaluation", "seed", "round", "problem", "response", "tokens", "capped", "strict", "rescore",
        "value",
    ]  # fmt: skip


def test_provenance_says_where_a_result_comes_from(builds):
    facts = runs.load(runs.ensure(spec(), build=builds())).provenance
    assert facts["packages"]["torch"]
    assert facts["seconds"] >= 0
    assert facts["peak_memory_mib"] > 0
    assert {"sources", "commit", "machine", "gpu", "python"} <= set(facts)


def test_a_finished_run_is_not_run_again(builds):
    runs.ensure(spec(), build=builds())
    again = builds()
    runs.ensure(spec(), build=again)
    assert again.made == []


def test_the_base_is_scored_without_plan_ledger_or_adapter(builds):
    where = runs.ensure(base(), build=builds())
    assert not (where / "ledger.jsonl").exists()
    run = runs.load(where)
    assert run.epsilon() == 0
    assert run.correct("math").tolist() == [1, 1, 0]
    with pytest.raises(ReproError, match="no card"):
        run.card()


def test_a_killed_run_resumes_at_its_checkpoint_and_ends_as_if_it_had_not_been_killed(builds, caplog):
    interrupted(spec(), builds, after=3)
    where = runs.directory(spec())
    assert runs.state(where) == "unfinished"
    resumed = builds()
    runs.ensure(spec(), build=resumed, checkpoint_every=2)
    assert resumed.trainers[0].steps == 3
    assert json.loads((where / "adapter" / "weight.json").read_text()) == 1 + 2 + 3 + 4 + 5
    assert len((where / "metrics.jsonl").read_text().splitlines()) == 5
    assert "resumed after round 2" in caplog.text


def test_a_replayed_round_is_spent_twice(builds):
    interrupted(spec(), builds, after=3)
    where = runs.ensure(spec(), build=builds(), checkpoint_every=2)
    assert ledger.read(where / "ledger.jsonl").rounds == (0, 1, 2, 2, 3, 4)
    assert runs.load(where).epsilon() > spec().plan().epsilon()


def test_a_damaged_checkpoint_costs_rounds_but_not_the_run(builds, caplog):
    interrupted(spec(), builds, after=4)
    where = runs.directory(spec())
    newest = where / "checkpoints" / "round-000004.pt"
    newest.write_bytes(newest.read_bytes()[:-7])
    runs.ensure(spec(), build=builds(), checkpoint_every=2)
    assert "round-000004.pt is damaged" in caplog.text
    assert ledger.read(where / "ledger.jsonl").spent == 4 + 3
    assert json.loads((where / "adapter" / "weight.json").read_text()) == 15


def test_a_checkpoint_without_its_ledger_is_refused(builds):
    interrupted(spec(), builds, after=3)
    (runs.directory(spec()) / "ledger.jsonl").unlink()
    with pytest.raises(ReproError, match="checkpoint has 2 rounds but the ledger only 0"):
        runs.ensure(spec(), build=builds())


def test_checkpoints_go_when_the_run_is_finished(builds):
    interrupted(spec(), builds, after=3)
    where = runs.directory(spec())
    assert (where / "checkpoints").is_dir()
    runs.ensure(spec(), build=builds())
    assert not (where / "checkpoints").exists()


def test_scores_at_earlier_rounds_are_those_of_the_weights_then_also_after_a_resume(builds):
    early = spec(score_at=(1, 3))
    interrupted(early, builds, after=4)
    run = runs.load(runs.ensure(early, build=builds(), checkpoint_every=2))
    for after, weight in ((1, "1"), (3, "6"), (5, "15")):
        assert set(run.responses("math", after=after)["response"]) == {weight}
    assert set(run.responses("math")["response"]) == {"15"}


def test_a_run_of_other_sources_is_refused_on_reading_and_made_again_on_ensure(builds, other_sources, caplog):
    where = runs.ensure(spec(), build=builds())
    other_sources()
    assert runs.state(where) == "stale"
    with pytest.raises(ReproError, match=r'other sources than today.*stale="allow"'):
        runs.load(where)
    assert runs.load(where, stale="allow").spec == spec()
    again = builds()
    assert runs.ensure(spec(), build=again) == where
    assert again.made == [spec()]
    aside = where.with_name(f"{where.name}.stale")
    assert (aside / "provenance.json").is_file()
    assert [r.getMessage() for r in caplog.records if "made by other sources" in r.getMessage()]
    assert list(runs.directories()) == [where]


def test_an_unfinished_run_of_other_sources_is_not_resumed(builds, other_sources):
    interrupted(spec(), builds, after=3)
    other_sources()
    fresh = builds()
    runs.ensure(spec(), build=fresh, checkpoint_every=2)
    assert fresh.trainers[0].steps == 5


def test_two_stale_directories_do_not_overwrite_each_other(builds, monkeypatch):
    for version in "abc":
        monkeypatch.setattr(execution.sources, "fingerprint", lambda spec, version=version: version)
        where = runs.ensure(spec(), build=builds())
    assert len(list(where.parent.glob("*.stale"))) == 2


class Slow:
    """Builds and waits, so that the other process finds the lock taken."""

    def __init__(self, builds, log, event):
        self.builds, self.log, self.event = builds, log, event

    def __call__(self, the_spec, plan, book):
        with self.log.open("a") as file:
            file.write(f"{os.getpid()}\n")
        self.event.wait(1)
        return self.builds(the_spec, plan, book)


def test_two_processes_that_want_one_run_make_it_once(builds, tmp_path):
    context = multiprocessing.get_context("fork")
    log, never = tmp_path / "log", context.Event()
    arguments = {"build": Slow(builds(), log, never)}
    workers = [context.Process(target=runs.ensure, args=(spec(),), kwargs=arguments) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0, 0]
    assert len(log.read_text().split()) == 1
    assert ledger.read(runs.directory(spec()) / "ledger.jsonl").spent == 5


def test_what_another_process_runs_is_left_to_the_end(builds, caplog):
    caplog.set_level(logging.WARNING)
    first, second = spec(seed=1), spec(seed=2)
    order = []
    taken = runs.directory(first)
    taken.parent.mkdir(parents=True)
    holder = taken.with_name(f".{taken.name}.lock").open("w")
    fcntl.flock(holder, fcntl.LOCK_EX)

    def done(the_spec):
        order.append(the_spec.seed)
        holder.close()  # the other process ends

    assert runs.ensure_all([first, second], build=builds(), done=done) == [taken, runs.directory(second)]
    assert order == [2, 1]


def test_a_folder_that_cannot_be_written_is_one_clear_line(builds, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("REPROLIB_RUNS", str(tmp_path / "file"))
    with pytest.raises(ReproError, match=r"cannot write .*Not a directory"):
        runs.ensure(spec(), build=builds())


def test_reading_a_run_does_not_import_torch(builds, root):
    where = runs.ensure(spec(), build=builds())
    code = (
        "import sys; from pathlib import Path; from reprolib import runs\n"
        "run = runs.load(Path(sys.argv[1])); run.correct('math'); run.epsilon()\n"
        "sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, where], check=True, cwd=root)
