"""Two processes of torchrun against one: the same update to rounding, noise once, a record in one place."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from reprolib.learn import ranks, ranks_check


@pytest.fixture(scope="module")
def found():
    return ranks_check.compare(processes=2)


@pytest.fixture
def rows(found):
    return {row["method"]: row for row in found.rows}


@pytest.mark.parametrize("method", list(ranks_check.METHODS))
def test_two_processes_end_where_one_does(rows, method):
    assert rows[method]["moved"] > 1e-3
    assert rows[method]["difference"] < 1e-9 * max(1.0, rows[method]["moved"])


def test_both_processes_hold_the_same_weights(rows):
    assert all(row["apart"] == 0 for row in rows.values())


def test_each_drawn_record_is_in_one_process_and_some_rounds_leave_one_without(rows):
    for row in rows.values():
        assert row["slots_together"] == row["slots_alone"]
        assert row["empty_shares"] > 0


def test_two_processes_add_the_noise_of_one(found):
    # the variance of so many normal draws has a standard error of sqrt(2 / draws); noise added twice gives 2
    assert abs(found.noise_variance - 1) < 5 * np.sqrt(2 / found.draws)


def test_without_torchrun_there_is_one_process_and_nothing_is_exchanged():
    assert (ranks.count(), ranks.rank()) == (1, 0)
    assert ranks.of_all("own") == ["own"]
    assert ranks.from_first("own") == "own"
    assert not torch.distributed.is_initialized()


def test_a_run_in_two_processes_is_written_and_reported_by_one(tmp_path, root):
    from tests.runs.specs import FIELDS

    content = {**FIELDS, "entropy": "research", "evaluation": ["selection"], "method": "gold_sft"}
    (tmp_path / "spec.json").write_text(json.dumps(content))
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
        "-m", "reprolib.cli", "run", str(tmp_path / "spec.json"),
    ]  # fmt: skip
    settings = os.environ | {
        "REPROLIB_RUNS": str(tmp_path / "runs"), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    done = subprocess.run(command, cwd=root, env=settings, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    (where,) = (tmp_path / "runs" / "smoke" / "dp_grpo").glob("gold_sft*")
    assert json.loads((where / "provenance.json").read_text())["processes"] == 2
    assert (where / "ledger.jsonl").read_text().count('"round"') == FIELDS["rounds"]
    assert done.stdout.count("finished:") == 1
