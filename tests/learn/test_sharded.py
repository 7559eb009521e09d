"""Two real processes under torchrun, started once for all facts of this file."""

import subprocess

import pytest

from reprolib.errors import ReproError
from reprolib.learn import sharded, sharded_check, toy
from reprolib.learn.preference_loss import DPO
from reprolib.learn.preference_records import PairGradients
from reprolib.learn.preference_reference import Reference
from reprolib.privacy.mechanism import EntropySource


@pytest.fixture(scope="module")
def rows():
    return sharded_check.compare(methods=("DPO", "PrivDPO", "Piecewise"))


def test_the_sharded_run_ends_where_one_process_does(rows):
    assert [row["method"] for row in rows] == ["DPO", "DPO", "PrivDPO", "PrivDPO", "Piecewise", "Piecewise"]
    for row in rows:
        assert row["rounds"] == 6, row
        assert row["moved"] > 0.1, row  # the steps were not empty
        assert row["difference"] < 1e-10, row


def test_coins_are_tossed_in_one_place(rows):
    """The processes had different coins: had each used its own, they would not end where one process does."""
    moved = {row["method"]: row["moved"] for row in rows if row["trained"] == "adapter"}
    assert moved["PrivDPO"] != pytest.approx(moved["DPO"], rel=1e-3)


def test_no_process_holds_much_more_than_its_share(rows):
    assert all(0.49 < row["held"] < 0.6 for row in rows)


def gradients(**changes) -> PairGradients:
    policy = toy.with_adapter()
    reference = Reference.of(policy, sharded_check.toy_pairs())
    return PairGradients(policy, DPO(), reference=reference, **changes)


def test_one_process_is_told_to_use_the_plain_loop(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with pytest.raises(ReproError, match=r"one process: start several .* or use dpo.aligner"):
        sharded.ShardedAligner(gradients(), sharded_check.toy_pairs(), EntropySource.research(0), seed=0)


def test_a_row_a_pair_cannot_be_sharded():
    with pytest.raises(ReproError, match="without per_record"):
        sharded.ShardedAligner(
            gradients(per_record=True), sharded_check.toy_pairs(), EntropySource.research(0), seed=0
        )


def test_processes_that_fail_say_why(monkeypatch):
    failed = subprocess.CompletedProcess([], 1, stdout="", stderr="Traceback\nValueError: no port\n")
    monkeypatch.setattr(subprocess, "run", lambda *args, **kwargs: failed)
    with pytest.raises(ReproError, match="the sharded run failed with exit status 1: ValueError: no port"):
        sharded_check.compare()
    with pytest.raises(ReproError, match="no method 'nobody': expected some of DPO, RR"):
        sharded_check.compare(methods=("nobody",))
