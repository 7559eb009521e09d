"""The claims ledger: every number and comparative statement of the papers, with a computed verdict.

``data/claims/<paper>.yml`` holds rules that turn table cells into claims, and the claims of the text,
written by hand. A verdict is computed from the check's outcome and never typed.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from reprolib.errors import ReproError
from reprolib.evidence import checks
from reprolib.evidence.checks import MEASURED, Outcome
from reprolib.evidence.published import PAPERS, Cell, Published, half_unit
from reprolib.paths import root

Kind = Literal["derived", "exact", "mechanism", "effect", "absolute", "out-of-scope"]
Relation = Literal["equals", "at_most", "at_least", "holds"]
Status = Literal[
    "confirmed",
    "confirmed-direction",
    "not-resolved",
    "contradicted",
    "published-inconsistent",
    "awaits-paper-tier",
    "not-run",
    "out-of-scope",
]
MEANING: dict[Status, str] = {
    "confirmed": "recomputed here and equal to the published value within its printed digits",
    "confirmed-direction": "measured at a smaller tier: same sign, clear of zero; or inside a published null",
    "not-resolved": "measured at a smaller tier: the interval includes zero",
    "contradicted": "recomputed or measured here, and it disagrees",
    "published-inconsistent": "does not follow from the paper's own other numbers",
    "awaits-paper-tier": "only a run of the paper's model on the paper's data can tell",
    "not-run": "the chapter that checks it has not been run in this edition",
    "out-of-scope": "cannot be checked by anyone who only has the paper; the reason is given",
}


_REFERENCE = re.compile(rf"({'|'.join(PAPERS)})\.t\d\d\.")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Claim(_Strict):
    """One number or statement of a paper.

    ``published`` keeps its printed digits; ``tolerance`` defaults to half a unit of the last one.
    ``relation`` says how the recomputed value must stand to it: ``holds`` is for statements without a
    number. A claim has a ``check`` or a ``reason`` why it has none.
    """

    id: str = Field(pattern=r"^[a-z0-9_]+(\.[a-z0-9_]+)+$")
    paper: str
    where: str = Field(min_length=1)
    statement: str = Field(min_length=1)
    published: Decimal | None = None
    low: Decimal | None = None
    high: Decimal | None = None
    unit: str = ""
    kind: Kind
    relation: Relation = "equals"
    tolerance: Decimal | None = Field(default=None, ge=0)
    chapter: str | None = Field(default=None, pattern=r"^\d\d$")
    check: str | None = None
    args: dict[str, Any] = {}
    reason: str | None = None

    @field_validator("published", "low", "high", "tolerance", mode="before")
    @classmethod
    def _printed_digits(cls, value: Any) -> Any:
        if isinstance(value, float):
            raise ValueError("quote the number, so that its printed digits are kept")
        return value

    @model_validator(mode="after")
    def _complete(self) -> "Claim":
        if (self.kind == "out-of-scope") != (self.check is None):
            raise ValueError("a claim has a check, or kind out-of-scope with a reason")
        if self.check is None and not self.reason:
            raise ValueError("an out-of-scope claim gives its reason")
        if self.check is not None and self.chapter is None:
            raise ValueError("a claim with a check names the chapter that runs it")
        if self.check not in (None, MEASURED):
            checks.bind(str(self.check), self.args)
        if self.check is not None and self.relation != "holds" and self.published is None:
            raise ValueError("a claim without a published number needs 'relation: holds'")
        return self

    @property
    def slack(self) -> float:
        """How far a recomputed value may be off: the stated tolerance, else half a printed unit."""
        if self.tolerance is not None:
            return float(self.tolerance)
        return float(half_unit(self.published)) if self.published is not None else 0.0


class TableRule(_Strict):
    """Turns the cells of one table that match ``row`` and ``column`` patterns into claims.

    In ``args`` and ``statement``, ``{id}``, ``{prefix}``, ``{row_id}``, ``{column_id}``, ``{row}`` and
    ``{column}`` stand for the cell's id, its first two parts, its remaining parts but the last, its last
    part, and its printed row and column.
    """

    table: str
    cells: str = "*"  # a pattern on the cell id without its paper and table
    text: bool = False  # True: the rule is for cells without a number
    kind: Kind
    relation: Relation = "equals"
    tolerance: Decimal | None = None
    chapter: str | None = None
    check: str | None = None
    args: dict[str, Any] = {}
    reason: str | None = None
    statement: str = "{quantity} of {row}, {column}"

    def matches(self, cell: Cell) -> bool:
        """Whether the rule speaks of this cell."""
        tail = cell.id.split(".", 2)[2]
        return (
            cell.table == self.table and (cell.value is None) == self.text and fnmatchcase(tail, self.cells)
        )

    def claim(self, cell: Cell) -> Claim:
        """The claim that the rule makes of a cell."""
        paper, table, *tail = cell.id.split(".")
        names = {
            "id": cell.id, "row": cell.row, "column": cell.column, "quantity": cell.quantity,
            "prefix": f"{paper}.{table}", "row_id": ".".join(tail[:-1]), "column_id": tail[-1],
        }  # fmt: skip
        own = self.model_dump(exclude={"table", "cells", "text", "statement", "args"})
        return Claim(
            id=cell.id, paper=cell.paper, where=cell.where, unit=cell.unit,
            statement=self.statement.format(**names), args=_fill(self.args, names),
            published=cell.value, low=cell.low, high=cell.high, **own,
        )  # fmt: skip


def _fill(value: Any, names: dict[str, str]) -> Any:
    if isinstance(value, str):
        return value.format(**names)
    if isinstance(value, list):
        return [_fill(v, names) for v in value]
    return {k: _fill(v, names) for k, v in value.items()} if isinstance(value, dict) else value


class ClaimsFile(_Strict):
    """The content of ``data/claims/<paper>.yml``."""

    paper: str
    tables: list[TableRule]
    claims: list[dict[str, Any]]


def _explain(error: ValidationError) -> str:
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"])
    return (
        f"{place}: {first['msg'].removeprefix('Value error, ')}"
        if place
        else first["msg"].removeprefix("Value error, ")
    )


def _table_claims(file: ClaimsFile, published: Published, name: str) -> list[Claim]:
    claims = []
    for cell in published:
        if cell.paper != file.paper:
            continue
        rules = [rule for rule in file.tables if rule.matches(cell)]
        if len(rules) != 1:
            raise ReproError(
                f"{name}: cell {cell.id} is matched by {len(rules)} table rules; it needs exactly one"
            )
        try:
            claims.append(rules[0].claim(cell))
        except ValidationError as error:
            raise ReproError(f"{name}, cell {cell.id}: {_explain(error)}") from None
    return claims


def read(path: Path, published: Published) -> list[Claim]:
    """Read and validate one claims file.

    Raises:
        ReproError: names the entry with a duplicate id, an unknown check, a malformed number or a
            reference to a cell that does not exist; or the cell that no rule covers.
    """
    try:
        file = ClaimsFile.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ReproError(f"cannot read {path}: {error.strerror}") from None
    except yaml.YAMLError as error:
        raise ReproError(f"{path.name} is not valid YAML: {str(error).splitlines()[0]}") from None
    except ValidationError as error:
        raise ReproError(f"{path.name}: {_explain(error)}") from None
    claims = _table_claims(file, published, path.name)
    for entry in file.claims:
        try:
            claims.append(Claim(paper=file.paper, **entry))
        except ValidationError as error:
            raise ReproError(f"{path.name}, claim {entry.get('id')!r}: {_explain(error)}") from None
    seen: set[str] = set()
    for claim in claims:
        if claim.id in seen:
            raise ReproError(f"{path.name}: duplicate claim id {claim.id!r}")
        seen.add(claim.id)
        for reference in _references(claim.args):
            try:
                published.match(reference) if "*" in reference else published.number(reference)
            except ReproError as error:
                raise ReproError(f"{path.name}, claim {claim.id!r}: {error}") from None
    return claims


def _references(value: Any) -> list[str]:
    """The cell references in a check's arguments."""
    if isinstance(value, dict | list):
        parts = value.values() if isinstance(value, dict) else value
        return [reference for part in parts for reference in _references(part)]
    return [value] if isinstance(value, str) and _REFERENCE.match(value) and "{" not in value else []


def load(published: Published, *papers: str, folder: Path | None = None) -> list[Claim]:
    """The claims of the given papers (all by default), tables first."""
    folder = folder or root() / "data" / "claims"
    return [claim for paper in papers or PAPERS for claim in read(folder / f"{paper}.yml", published)]


def by_name(published: Published, paper: str) -> dict[str, Claim]:
    """A paper's claims by their ids without the paper's name."""
    return {claim.id.removeprefix(f"{paper}."): claim for claim in load(published, paper)}


@dataclass(frozen=True)
class Verdict:
    """A claim, what was found, at which tier, and the status that follows."""

    claim: Claim
    status: Status
    outcome: Outcome | None
    tier: str | None

    def row(self) -> dict[str, Any]:
        """A flat record for tables and JSON."""
        claim, found = self.claim, self.outcome
        return {
            "id": claim.id, "paper": claim.paper, "kind": claim.kind, "status": self.status,
            "where": claim.where, "statement": claim.statement, "unit": claim.unit,
            "published": None if claim.published is None else str(claim.published),
            "published_low": None if claim.low is None else str(claim.low),
            "published_high": None if claim.high is None else str(claim.high),
            "value": found and found.value, "low": found and found.low, "high": found and found.high,
            "detail": found.detail if found else (claim.reason or ""),
            "chapter": claim.chapter, "tier": self.tier,
        }  # fmt: skip


def agrees(claim: Claim, outcome: Outcome) -> bool:
    """Whether the outcome is compatible with what is printed, rounding on both sides included."""
    if claim.relation == "holds" or claim.published is None:
        return bool(outcome.value)
    target, slack = float(claim.published), claim.slack * (1 + 1e-9) + 1e-12
    low = outcome.value if outcome.low is None else outcome.low
    high = outcome.value if outcome.high is None else outcome.high
    if claim.relation == "at_most":
        return low <= target + slack
    if claim.relation == "at_least":
        return high >= target - slack
    return low <= target + slack and high >= target - slack


def judge(claim: Claim, outcome: Outcome | None, tier: str | None = None) -> Verdict:
    """The verdict on one claim.

    Args:
        claim: the claim.
        outcome: what its check returned, or what its chapter measured; None if nothing is there.
        tier: the tier of a measured outcome.
    """
    return Verdict(claim, _status(claim, outcome, tier), outcome, tier)


def _status(claim: Claim, outcome: Outcome | None, tier: str | None) -> Status:
    if claim.kind == "out-of-scope":
        return "out-of-scope"
    if claim.kind == "absolute" and tier != "paper":
        return "awaits-paper-tier"
    if outcome is None:
        return "not-run"
    if claim.kind == "effect" and (tier != "paper" or claim.relation == "holds"):
        found = _effect_status(claim, outcome)
        return "confirmed" if (tier, found) == ("paper", "confirmed-direction") else found
    if agrees(claim, outcome):
        return "confirmed"
    return "published-inconsistent" if claim.kind == "derived" else "contradicted"


def _effect_status(claim: Claim, outcome: Outcome) -> Status:
    """Direction only: a smaller tier cannot confirm the paper's magnitude.

    A statement that holds or not is measured by a truth value, or by an effect that is positive where it
    holds, with its interval.
    """
    stated = claim.relation == "holds"
    if outcome.low is None or outcome.high is None:
        return ("confirmed-direction" if outcome.value else "contradicted") if stated else "not-resolved"
    if claim.low is not None and claim.high is not None and claim.low <= 0 <= claim.high:
        # the paper resolves no effect: ours agrees if it could lie where the paper's could
        meet = outcome.low <= float(claim.high) and outcome.high >= float(claim.low)
        return "confirmed-direction" if meet else "contradicted"
    if outcome.low <= 0 <= outcome.high:
        return "not-resolved"
    same = (outcome.low > 0) == (stated or float(claim.published or 0) > 0)
    return "confirmed-direction" if same else "contradicted"


def evaluate(claims: Iterable[Claim], published: Published) -> dict[str, Outcome]:
    """Run the pure checks of these claims; measured ones and those without a check are passed over."""
    return {
        claim.id: checks.run(claim.check, published, claim.args)
        for claim in claims
        if claim.check not in (None, MEASURED)
    }


def ledger(claims: Iterable[Claim], results: Path) -> list[Verdict]:
    """Verdicts from what the chapters wrote into ``results`` (``<chapter>.json``).

    Raises:
        ReproError: a results file that is not what a chapter writes.
    """
    chapters: dict[str, dict[str, Any]] = {}
    for path in sorted(results.glob("[0-9][0-9].json")):
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            if content["tier"] != "smoke":
                chapters[path.stem] = content
        except (json.JSONDecodeError, KeyError, TypeError):
            raise ReproError(
                f"{path} is not a chapter's results file: remove it and run `make book`"
            ) from None
    verdicts = []
    for claim in claims:
        chapter = chapters.get(claim.chapter or "", {})
        found = chapter.get("claims", {}).get(claim.id)
        verdicts.append(judge(claim, Outcome(**found) if found else None, chapter.get("tier")))
    return verdicts
