import copy
import json
from decimal import Decimal

import pytest
import yaml

from reprolib.errors import ReproError
from reprolib.evidence import checks, claims, published
from reprolib.evidence.checks import MEASURED, Outcome
from reprolib.evidence.claims import Claim
from reprolib.evidence.notebooks import numbers
from tests import edition


@pytest.fixture(scope="module")
def cells():
    return published.load()


@pytest.fixture(scope="module")
def everything(cells):
    return claims.load(cells)


def claim(**changes) -> Claim:
    base = {
        "id": "sage.s.x", "paper": "sage", "where": "Section 1", "statement": "Something.",
        "published": "1.50", "kind": "derived", "chapter": "41", "check": MEASURED,
    }  # fmt: skip
    return Claim(**{**base, **changes})


def test_every_table_cell_has_exactly_one_claim(cells, everything):
    ids = [c.id for c in everything]
    assert len(ids) == len(set(ids))
    assert {cell.id for cell in cells} <= set(ids)


def test_every_claim_has_a_check_that_exists_or_a_reason(everything):
    known = {MEASURED, *checks.registry()}
    for c in everything:
        assert c.check in known or (c.check is None and c.reason), c.id


def test_the_ledger_is_as_large_as_the_papers_are_full_of_numbers(everything):
    by_paper = {p: sum(c.paper == p for c in everything) for p in published.PAPERS}
    assert all(count > 300 for count in by_paper.values())
    assert sum(by_paper.values()) > 700


def test_every_claim_of_a_chapter_in_this_edition_is_settled_by_it(everything):
    """What a chapter must measure, it does: no claim of an existing chapter is left unrun."""
    if edition.tier() in (None, "smoke"):
        pytest.skip("no edition that settles claims is built: run `make book`")
    verdicts = claims.ledger(everything, edition.RESULTS)
    left = [v.claim.id for v in verdicts if v.status == "not-run" and v.claim.chapter in numbers()]
    assert left == []


def test_known_findings_stay_found(cells, everything):
    found = claims.evaluate([c for c in everything if c.kind == "derived"], cells)
    status = {c.id: claims.judge(c, found[c.id]).status for c in everything if c.id in found}
    for name in (
        "dp_grpo.s_viii_b.filtered_gsm8k_mde",
        "privdpo.s_5_3.margin_ratio",
        "privdpo.s_5_3.structured_beats_rr_duchi_ra",
        "sage.conclusion.consistently_improves",
    ):
        assert status[name] == "published-inconsistent", name
    assert status["dp_grpo.s_viii_a.t_interval_math_low"] == "confirmed"


def test_propositions_of_preference_privacy_are_executed(cells, everything):
    mine = [c for c in everything if c.paper == "privdpo" and c.where.startswith("Section 3.1")]
    found = claims.evaluate(mine, cells)
    assert len(found) >= 6
    assert all(outcome.value is True for outcome in found.values())


@pytest.mark.parametrize(
    ("change", "outcome", "tier", "status"),
    [
        ({}, Outcome(1.504), None, "confirmed"),
        ({}, Outcome(1.506), None, "published-inconsistent"),
        ({}, Outcome(1.52, 1.501, 1.54), None, "confirmed"),
        ({"tolerance": "0.1"}, Outcome(1.59), None, "confirmed"),
        ({"kind": "exact"}, Outcome(1.6), None, "contradicted"),
        ({"kind": "exact"}, None, None, "not-run"),
        ({"kind": "exact", "relation": "at_most"}, Outcome(1.0), None, "confirmed"),
        ({"kind": "exact", "relation": "at_most"}, Outcome(1.6), None, "contradicted"),
        ({"kind": "exact", "relation": "at_least"}, Outcome(9.0), None, "confirmed"),
        ({"kind": "exact", "relation": "at_least"}, Outcome(1.4), None, "contradicted"),
        ({"kind": "mechanism", "relation": "holds"}, Outcome(True), None, "confirmed"),
        ({"kind": "mechanism", "relation": "holds"}, Outcome(False), None, "contradicted"),
        ({"kind": "effect"}, Outcome(3.0, 1.0, 5.0), "micro", "confirmed-direction"),
        ({"kind": "effect"}, Outcome(-3.0, -5.0, -1.0), "micro", "contradicted"),
        ({"kind": "effect"}, Outcome(0.5, -1.0, 2.0), "micro", "not-resolved"),
        ({"kind": "effect"}, Outcome(0.5), "micro", "not-resolved"),
        (
            {"kind": "effect", "low": "-1", "high": "4"},
            Outcome(0.5, -1.0, 2.0),
            "micro",
            "confirmed-direction",
        ),
        (
            {"kind": "effect", "low": "-1", "high": "4"},
            Outcome(1.5, 1.0, 2.0),
            "micro",
            "confirmed-direction",
        ),
        ({"kind": "effect", "low": "-1", "high": "4"}, Outcome(6.0, 5.0, 7.0), "micro", "contradicted"),
        ({"kind": "effect", "low": "-1", "high": "4"}, Outcome(0.5), "micro", "not-resolved"),
        ({"kind": "effect", "relation": "holds"}, Outcome(True), "micro", "confirmed-direction"),
        ({"kind": "effect", "relation": "holds"}, Outcome(False), "micro", "contradicted"),
        ({"kind": "effect", "relation": "holds"}, Outcome(2.0, 1.0, 3.0), "micro", "confirmed-direction"),
        ({"kind": "effect", "relation": "holds"}, Outcome(1.0, -1.0, 3.0), "micro", "not-resolved"),
        ({"kind": "effect", "relation": "holds"}, Outcome(-2.0, -3.0, -1.0), "micro", "contradicted"),
        ({"kind": "effect", "relation": "holds"}, Outcome(2.0, 1.0, 3.0), "paper", "confirmed"),
        ({"kind": "effect", "relation": "holds"}, Outcome(1.0, -1.0, 3.0), "paper", "not-resolved"),
        ({"kind": "effect"}, Outcome(1.5, 1.0, 2.0), "paper", "confirmed"),
        ({"kind": "absolute"}, Outcome(1.5), "micro", "awaits-paper-tier"),
        ({"kind": "absolute"}, None, None, "awaits-paper-tier"),
        ({"kind": "absolute"}, Outcome(1.5), "paper", "confirmed"),
        ({"kind": "absolute"}, Outcome(2.5), "paper", "contradicted"),
        ({"kind": "out-of-scope", "check": None, "reason": "why"}, None, None, "out-of-scope"),
    ],
)
def test_the_verdict_follows_from_kind_outcome_and_tier(change, outcome, tier, status):
    assert claims.judge(claim(**change), outcome, tier).status == status


def test_printed_digits_decide_the_tolerance():
    assert claim(published="1.5").slack == 0.05
    assert claim(published="1.500").slack == 0.0005


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"published": 1.5}, "quote the number"),
        ({"published": "one"}, "published"),
        ({"check": None}, "has a check, or kind out-of-scope"),
        ({"kind": "out-of-scope", "check": None}, "gives its reason"),
        ({"chapter": None}, "names the chapter"),
        ({"published": None}, "relation: holds"),
        ({"check": "guess"}, "unknown check"),
        ({"check": "mde"}, "missing a required"),
        ({"colour": "red"}, "colour"),
        ({"kind": "hunch"}, "kind"),
        ({"id": "No Id"}, "id"),
        ({"tolerance": "-1"}, "tolerance"),
    ],
)
def test_a_malformed_claim_is_refused(change, message):
    with pytest.raises((ValueError, ReproError), match=message):
        claim(**change)


@pytest.fixture
def sage_file(root):
    return yaml.safe_load((root / "data" / "claims" / "sage.yml").read_text())


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda f: f["claims"].append(copy.deepcopy(f["claims"][0])), "duplicate claim id"),
        (lambda f: f["claims"][0].update(check="guess", kind="exact", chapter="41"), "unknown check 'guess'"),
        (lambda f: f["claims"][0].update(published="1,5"), "published"),
        (lambda f: f["tables"].pop(0), "is matched by 0 table rules"),
        (lambda f: f["tables"].append(copy.deepcopy(f["tables"][0])), "is matched by 2 table rules"),
        (
            lambda f: f["claims"][0].update(
                kind="derived",
                chapter="41",
                published="1",
                check="same_as",
                args={"cell": "sage.t01.nobody.x"},
            ),
            "no published cell",
        ),
        (lambda f: f.update(surprise=1), "surprise"),
    ],
)
def test_a_broken_claims_file_is_one_clear_line(tmp_path, sage_file, cells, edit, message):
    edit(sage_file)
    (tmp_path / "sage.yml").write_text(yaml.safe_dump(sage_file))
    with pytest.raises(ReproError, match=message) as caught:
        claims.load(cells, "sage", folder=tmp_path)
    assert "sage.yml" in str(caught.value)


def test_a_claims_file_that_is_no_yaml_is_one_clear_line(tmp_path, cells):
    (tmp_path / "sage.yml").write_text("paper: [")
    with pytest.raises(ReproError, match="not valid YAML"):
        claims.load(cells, "sage", folder=tmp_path)
    with pytest.raises(ReproError, match="cannot read"):
        claims.load(cells, "dp_grpo", folder=tmp_path)


def results(tier):
    outcome = {"value": 3.0, "low": 1.0, "high": 5.0, "detail": ""}
    return json.dumps({"chapter": "41", "tier": tier, "claims": {"sage.s.x": outcome}})


def test_smoke_results_never_enter_the_ledger(tmp_path):
    effect = claim(kind="effect", published="1.50")
    (tmp_path / "41.json").write_text(results("micro"))
    assert claims.ledger([effect], tmp_path)[0].status == "confirmed-direction"
    (tmp_path / "41.json").write_text(results("smoke"))
    assert claims.ledger([effect], tmp_path)[0].status == "not-run"


def test_a_variant_run_never_enters_the_ledger(tmp_path):
    (tmp_path / "variants").mkdir()
    (tmp_path / "variants" / "41-abc.json").write_text(results("micro"))
    assert claims.ledger([claim(kind="effect")], tmp_path)[0].status == "not-run"


@pytest.mark.parametrize("content", ["", "{", "[]", '{"chapter": "41"}'])
def test_a_broken_results_file_is_named(tmp_path, content):
    (tmp_path / "41.json").write_text(content)
    with pytest.raises(ReproError, match=r"41\.json is not a chapter's results file"):
        claims.ledger([claim()], tmp_path)


def test_a_verdict_row_is_flat_and_keeps_printed_digits():
    row = claims.judge(claim(published="1.50"), Outcome(1.5, detail="how")).row()
    assert row["published"] == "1.50"
    assert row["detail"] == "how"
    assert json.dumps(row)


def test_a_tolerance_wider_than_the_printed_digits_has_a_reason(everything):
    wide = [
        c for c in everything if c.tolerance is not None and c.tolerance > published.half_unit(c.published)
    ]
    assert [c.id for c in wide if not c.reason] == []


def test_published_claims_of_table_cells_are_the_printed_ones(cells, everything):
    by_id = {c.id: c for c in everything}
    assert all(by_id[cell.id].published == cell.value for cell in cells)
    assert by_id["dp_grpo.t02.control.math"].low == Decimal("1.79")
