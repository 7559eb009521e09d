"""A trainer that is small enough to follow by hand, put in through the seam of ``ensure``."""

import json
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from reprolib.runs import sources
from reprolib.runs.dp_grpo import GrpoSpec
from reprolib.runs.job import Job


class Counter:
    """Adds the round's number to one weight; stops like a killed process after ``die_after`` rounds."""

    def __init__(self, ledger, die_after=None):
        self.weight, self.rounds_done, self.ledger, self.die_after = torch.zeros(1), 0, ledger, die_after
        self.steps = 0

    def step(self):
        if self.steps == self.die_after:
            raise KeyboardInterrupt
        self.ledger.begin_round(self.rounds_done)
        self.rounds_done += 1
        self.steps += 1
        self.weight = self.weight + self.rounds_done
        return torch.tensor([float(self.rounds_done), 0.0])

    def state(self):
        return {"weight": self.weight, "rounds_done": self.rounds_done}

    def restore(self, state):
        self.weight, self.rounds_done = state["weight"], state["rounds_done"]


@dataclass
class Builds:
    """A build function that records what it made."""

    die_after: int | None = None
    made: list[GrpoSpec] = field(default_factory=list)
    trainers: list[Counter | None] = field(default_factory=list)

    def __call__(self, spec, plan, ledger):
        trainer = None if plan is None else Counter(ledger, self.die_after)
        self.made.append(spec)
        self.trainers.append(trainer)

        def score(name):
            weight = 0.0 if trainer is None else float(trainer.weight)
            return [
                {"problem": f"{name}-{i}", "response": f"{weight:g}", "tokens": 3, "capped": i == 2,
                 "strict": int(i < 2), "rescore": None if name == "gsm8k" else 1,
                 "value": None if name == "gsm8k" else i / 2}
                for i in range(3)
            ]  # fmt: skip

        def save_adapter(folder: Path):
            folder.mkdir()
            (folder / "weight.json").write_text(json.dumps(float(trainer.weight)))

        return Job(trainer, score, save_adapter, observe=lambda released: {"largest": float(released.max())})


@pytest.fixture
def builds():
    return Builds


@pytest.fixture
def runs_home(tmp_path, monkeypatch):
    monkeypatch.setenv("REPROLIB_RUNS", str(tmp_path / "runs"))
    return tmp_path / "runs"


@pytest.fixture
def other_sources(monkeypatch):
    """Pretend that the code changed."""
    return lambda: monkeypatch.setattr(sources, "fingerprint", lambda spec: "other")
