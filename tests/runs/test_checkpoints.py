import os

import pytest
import torch

from reprolib.runs import checkpoints


def state(value):
    return {"weight": torch.full((3,), float(value)), "note": "x", "big": 2**120}


def test_the_newest_checkpoint_comes_back_bit_for_bit(tmp_path):
    for rounds in (10, 20, 30):
        checkpoints.save(tmp_path, rounds, state(rounds))
    rounds, found = checkpoints.latest(tmp_path)
    assert rounds == 30
    assert torch.equal(found["weight"], state(30)["weight"])
    assert found["big"] == 2**120
    assert sorted(p.name for p in tmp_path.iterdir()) == ["round-000020.pt", "round-000030.pt"]


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty", "checksum"])
def test_a_damaged_checkpoint_falls_back_to_the_one_before(tmp_path, caplog, damage):
    for rounds in (10, 20):
        checkpoints.save(tmp_path, rounds, state(rounds))
    path = tmp_path / "round-000020.pt"
    content = bytearray(path.read_bytes())
    if damage == "flipped":
        content[len(content) // 2] ^= 1
    if damage == "checksum":
        content[5] ^= 1
    path.write_bytes({"truncated": content[: len(content) // 2], "empty": b""}.get(damage, content))
    assert checkpoints.latest(tmp_path)[0] == 10
    assert "round-000020.pt is damaged" in caplog.text
    assert "using round-000010.pt" in caplog.text


def test_without_a_whole_checkpoint_a_run_starts_from_the_beginning(tmp_path, caplog):
    assert checkpoints.latest(tmp_path) is None
    checkpoints.save(tmp_path, 10, state(10))
    (tmp_path / "round-000010.pt").write_bytes(b"\x00" * 100)
    assert checkpoints.latest(tmp_path) is None
    assert "starting from the beginning" in caplog.text


def test_a_checkpoint_cut_while_it_was_written_is_never_under_its_final_name(tmp_path, monkeypatch):
    checkpoints.save(tmp_path, 10, state(10))

    def killed(descriptor):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", killed)
    with pytest.raises(KeyboardInterrupt):
        checkpoints.save(tmp_path, 20, state(20))
    assert not (tmp_path / "round-000020.pt").exists()
    assert checkpoints.latest(tmp_path)[0] == 10
