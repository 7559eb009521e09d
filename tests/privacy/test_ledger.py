import json
import math
import os
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reprolib.errors import ReproError
from reprolib.privacy import accounting, ledger
from reprolib.privacy.ledger import Ledger
from reprolib.privacy.mechanism import EntropySource, GaussianSum
from reprolib.privacy.plan import Plan


def plan(**changes) -> Plan:
    base = {
        "unit": "one prompt", "population": 200, "expected_batch_size": 20.0, "rounds": 3, "clip_norm": 0.7,
        "noise_multiplier": 1.5, "delta": 1e-5,
    }  # fmt: skip
    return Plan(**{**base, **changes})


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run" / "ledger.jsonl"


def test_a_round_is_on_disk_when_begin_round_returns(path):
    # another process reads the file while this one still runs, as after a kill
    book = Ledger(path, plan())
    book.begin_round(0)
    code = "import pathlib,sys; sys.stdout.write(pathlib.Path(sys.argv[1]).read_text())"
    seen = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True)
    assert json.loads(seen.stdout.splitlines()[-1]) == {"round": 0}


def test_a_round_is_synced_after_it_is_written(path, monkeypatch):
    book = Ledger(path, plan())
    synced = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_size))
    book.begin_round(0)
    assert synced == [path.stat().st_size]


def test_no_round_counts_when_the_disk_refuses_it(path, monkeypatch):
    book = Ledger(path, plan())

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ReproError, match=r"cannot write the ledger .*No space"):
        book.begin_round(0)


def test_a_replayed_round_counts_twice(path):
    book = Ledger(path, plan())
    for index in (0, 1):
        book.begin_round(index)
    resumed = Ledger(path, plan())
    resumed.begin_round(1)
    assert resumed.spent == ledger.read(path).spent == 3
    assert ledger.read(path).rounds == (0, 1, 1)


def test_epsilon_is_that_of_the_rounds_spent_and_may_exceed_the_plan(path):
    book = Ledger(path, plan())
    assert book.epsilon() == 0
    for count in range(1, 5):
        book.begin_round(min(count - 1, 2))
        same = {"sampling_rate": 0.1, "noise_multiplier": 1.5, "rounds": count, "delta": 1e-5}
        assert book.epsilon() == accounting.epsilon(**same)
        assert book.epsilon(accountant="rdp") == accounting.epsilon(**same, accountant="rdp")
    assert book.spent > book.plan.rounds
    assert book.epsilon() > plan().epsilon()


def test_a_run_without_noise_has_no_finite_epsilon(path):
    book = Ledger(path, plan(noise_multiplier=0.0, clip_norm=math.inf))
    book.begin_round(0)
    assert book.epsilon() == math.inf
    again = ledger.read(path)
    assert again.plan == book.plan
    json.loads(path.read_text().splitlines()[0], parse_constant=lambda name: pytest.fail(f"{name} in JSON"))


@settings(max_examples=60, deadline=None)
@given(cut=st.integers(0, 10_000), rounds=st.integers(0, 5))
def test_a_file_cut_anywhere_never_under_counts_the_rounds_whose_line_was_begun(
    tmp_path_factory, cut, rounds
):
    path = tmp_path_factory.mktemp("cut") / "ledger.jsonl"
    book = Ledger(path, plan())
    header = path.stat().st_size
    for index in range(rounds):
        book.begin_round(index)
    whole = path.read_bytes()
    cut = min(cut % (len(whole) + 1), len(whole))
    path.write_bytes(whole[:cut])
    begun = len([part for part in whole[header:cut].split(b"\n") if part])
    if cut >= header:
        assert ledger.read(path).spent == begun
    repaired = Ledger(path, plan())
    assert repaired.spent == ledger.read(path).spent == begun
    repaired.begin_round(begun)
    assert ledger.read(path).spent == begun + 1


def test_a_torn_last_line_of_arbitrary_bytes_counts_as_spent(path):
    Ledger(path, plan()).begin_round(0)
    path.write_bytes(path.read_bytes() + b"\x00\xff\x00")
    assert ledger.read(path).rounds == (0, None)
    assert Ledger(path, plan()).spent == 2
    assert path.read_bytes().endswith(b"}\n")


@pytest.mark.parametrize(
    "line", [b'{"round": "x"}', b'{"round": -1}', b"", b"[]", b"\xff", b'{"round": true}']
)
def test_a_damaged_line_in_the_middle_is_an_error_with_file_and_line(path, line):
    Ledger(path, plan()).begin_round(0)
    path.write_bytes(path.read_bytes() + line + b"\n" + b'{"round": 1}\n')
    for opening in (lambda: ledger.read(path), lambda: Ledger(path, plan())):
        with pytest.raises(ReproError, match=r"ledger\.jsonl, line 3: expected a round"):
            opening()


def test_a_ledger_without_a_plan_is_refused_with_its_line(path):
    path.parent.mkdir()
    path.write_text('{"round": 0}\n')
    with pytest.raises(ReproError, match=r"ledger\.jsonl, line 1: expected the plan"):
        Ledger(path, plan())
    with pytest.raises(ReproError, match="cannot read the ledger"):
        ledger.read(path.with_name("none.jsonl"))


def test_the_ledger_of_another_plan_is_refused_and_the_difference_named(path):
    Ledger(path, plan())
    with pytest.raises(ReproError, match=r"another plan \(noise_multiplier 1.5 there, 1.4 here\)"):
        Ledger(path, plan(noise_multiplier=1.4))


def test_a_negative_round_is_refused(path):
    with pytest.raises(ReproError, match="round -1: expected"):
        Ledger(path, plan()).begin_round(-1)


def test_a_plan_without_clipping_is_only_for_a_run_without_noise():
    with pytest.raises(ReproError, match="clip_norm = inf: expected a finite number"):
        plan(clip_norm=math.inf)
    free = plan(clip_norm=math.inf, noise_multiplier=0.0)
    assert free.noise_std == 0.0
    assert free.noise_norm(10) == 0.0
    card = free.card()
    assert not card.guarantee
    assert "none: no noise is added" in str(card)
    assert "Clip norm" not in str(card)
    assert json.loads(card.to_json())["clip_norm"] is None


def test_a_run_without_noise_and_clipping_releases_the_exact_average():
    free = plan(clip_norm=math.inf, noise_multiplier=0.0, expected_batch_size=2.0)
    total = GaussianSum(free, EntropySource.research(0), dimension=2)
    total.add(torch.tensor([[3e6, -1.0], [1e6, 5.0]]))
    assert torch.equal(total.release(), torch.tensor([2e6, 2.0], dtype=torch.float64))
