"""Reading finished runs. Nothing here needs torch."""

import hashlib
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from reprolib.errors import ReproError
from reprolib.privacy import ledger
from reprolib.privacy.accounting import Accountant
from reprolib.privacy.plan import PrivacyCard
from reprolib.runs import sources
from reprolib.runs.spec import RunSpec, directory, family, runs_root

State = Literal["missing", "unfinished", "finished", "stale"]
SCORERS = ("strict", "rescore")


@dataclass(frozen=True)
class Run:
    """A finished run on disk.

    Args:
        directory: where it is.
        spec: what determined it.
        provenance: sources, commit, versions, hardware, time and memory.
    """

    directory: Path
    spec: RunSpec
    provenance: dict[str, Any]

    @cached_property
    def predictions(self) -> pd.DataFrame:
        """A row a response: evaluation, problem, seed, round and the columns of ``Job.score``."""
        return pd.read_parquet(io.BytesIO(self.read("predictions.parquet")))

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """A row a round: round, released_norm, and what the paper's runs observe of a release."""
        return pd.read_json(io.BytesIO(self.read("metrics.jsonl")), lines=True)

    @cached_property
    def ledger(self) -> ledger.Record | None:
        """What the run spent; None for the untrained base."""
        if not (self.directory / "ledger.jsonl").is_file():
            return None
        self.read("ledger.jsonl")
        return ledger.read(self.directory / "ledger.jsonl")

    def read(self, name: str) -> bytes:
        """A file of the run as it was when the run ended.

        Raises:
            ReproError: the file is gone, or is not the one that the run wrote.
        """
        path = self.directory / name
        try:
            content = path.read_bytes()
        except OSError as error:
            raise ReproError(f"cannot read {path}: {error.strerror}") from None
        expected = self.provenance.get("files", {}).get(name)
        if expected and hashlib.sha256(content).hexdigest() != expected:
            raise ReproError(
                f"{path} is not what the run wrote (its checksum differs): restore it, or delete the "
                "directory to run again"
            )
        return content

    def epsilon(self, *, accountant: Accountant = "pld") -> float:
        """Budget of the rounds spent, replayed ones included; infinite without noise, 0 for the base."""
        return self.ledger.epsilon(accountant=accountant) if self.ledger else 0.0

    def card(self) -> PrivacyCard:
        """The privacy card of what was spent; no guarantee if the noise can be replayed.

        Raises:
            ReproError: the base spends nothing and has no card.
        """
        if self.ledger is None:
            raise ReproError(f"{self.directory.name}: the base model is not trained, so it has no card")
        spent = self.ledger.plan.after(self.ledger.rounds)
        return spent.card(replayable=self.spec.entropy == "research")

    def responses(self, evaluation: str, *, after: int | None = None) -> pd.DataFrame:
        """The rows of one evaluation set, in the order of its problems.

        Args:
            after: rounds after which it was scored; None for the last.

        Raises:
            ReproError: a set that was not scored then.
        """
        after = self.spec.last_round if after is None else after
        rows = self.predictions
        found = rows[(rows["evaluation"] == evaluation) & (rows["round"] == after)]
        if found.empty:
            known = sorted({(str(e), int(r)) for e, r in zip(rows["evaluation"], rows["round"], strict=True)})
            raise ReproError(
                f"{self.directory.name} has no responses to {evaluation!r} after round {after}; "
                f"it has: {known}"
            )
        return found.reset_index(drop=True)

    def correct(
        self, evaluation: str, scorer: str = "strict", *, after: int | None = None
    ) -> NDArray[np.int64]:
        """1 for each problem answered correctly, else 0, in the order of the problems.

        Args:
            evaluation: the evaluation set.
            scorer: "strict", the reward's own, or "rescore", the sensitivity scorer.
            after: rounds after which it was scored; None for the last.

        Raises:
            ReproError: an unknown scorer, a set that was not scored, or one that has no rescorer.
        """
        if scorer not in SCORERS:
            raise ReproError(f"unknown scorer {scorer!r}: expected one of {', '.join(SCORERS)}")
        column = self.responses(evaluation, after=after)[scorer]
        if column.isna().any():
            raise ReproError(f"{evaluation} has no {scorer} scores: use another scorer, or its values")
        return column.to_numpy(dtype=np.int64)

    def values(self, evaluation: str, *, after: int | None = None) -> NDArray[np.float64]:
        """The number that each problem was given, such as a margin or a reward, in the order of the problems.

        Raises:
            ReproError: a set that was not scored then, or whose problems have no such number.
        """
        found = self.responses(evaluation, after=after)
        if "value" not in found or found["value"].isna().any():
            raise ReproError(f"{evaluation} has no values: use its scores")
        return found["value"].to_numpy(dtype=np.float64)


def checksums(where: Path) -> dict[str, str]:
    """SHA-256 of each file of a run, in hexadecimal; what is not part of its result is left out."""
    found = sorted(p for p in where.rglob("*") if p.is_file())
    names = {p: p.relative_to(where) for p in found}
    return {
        str(name): hashlib.sha256(path.read_bytes()).hexdigest()
        for path, name in names.items()
        if name.parts[0] not in ("checkpoints", "provenance.json") and not path.name.startswith(".")
    }


def state(where: Path) -> State:
    """Whether a run directory is missing, unfinished, finished, or made by other sources than today's."""
    if not (where / "spec.json").is_file():
        return "missing"
    made_by = _json(where / "spec.json").get("sources")
    spec = read_spec(where / "spec.json")
    if made_by != sources.fingerprint(spec):
        return "stale"
    return "finished" if (where / "provenance.json").is_file() else "unfinished"


def load(where: Path, *, stale: Literal["refuse", "allow"] = "refuse") -> Run:
    """Read a finished run.

    Args:
        where: the run's directory.
        stale: "allow" to read a run that other sources made.

    Raises:
        ReproError: no run there, one that is not finished, or a stale one.
    """
    if not (where / "provenance.json").is_file():
        raise ReproError(f"{where} holds no finished run: `reprolib run` starts or resumes it")
    if stale == "refuse" and state(where) == "stale":
        raise ReproError(
            f"{where} was made by other sources than today's: run it again with `reprolib run`, or load it "
            'with stale="allow"'
        )
    run = Run(where, read_spec(where / "spec.json"), _json(where / "provenance.json"))
    run.read("spec.json")
    return run


def directories(tier: str | None = None) -> Iterator[Path]:
    """Every run directory, those moved aside left out."""
    for path in sorted(runs_root().glob(f"{tier or '*'}/*/*/spec.json")):
        if path.parent == directory(read_spec(path)):
            yield path.parent


def best_learning_rate(pilots: Sequence[Run], evaluation: str = "selection") -> float:
    """The rate of the pilot that answers most selection problems; a tie goes to the smaller rate.

    Raises:
        ReproError: no pilots, or an untrained one.

    Source: DP-GRPO, Appendix C-D.
    """
    rates: list[Any] = [getattr(run.spec, "learning_rate", None) for run in pilots]
    if not rates or None in rates:
        raise ReproError(f"learning rates of the pilots: {rates}; expected trained runs")
    scores = [(run.correct(evaluation).mean(), -rate) for run, rate in zip(pilots, rates, strict=True)]
    return float(-max(scores)[1])


def read_spec(path: Path) -> RunSpec:
    """The spec in a file: the ``spec.json`` of a run, or one that holds a spec's fields alone.

    Raises:
        ReproError: no such file, or no spec in it; names the file.
    """
    content = _json(path)
    try:
        fields = content.get("spec", content)
        return family(fields.get("paper", "dp_grpo"))(**fields)
    except (TypeError, AttributeError, ReproError) as error:
        raise ReproError(f"{path}: not the spec of a run ({error})") from None


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ReproError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise ReproError(f"{path}: damaged JSON ({error}); delete the directory to run again") from None
    if not isinstance(content, dict):
        raise ReproError(f"{path}: expected a JSON object")
    return content
