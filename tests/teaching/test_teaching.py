"""Weeks, times, plans, words and symbols."""

import inspect
import re

import pytest
import yaml

from reprolib.errors import ReproError
from reprolib.evidence import exercises, notebooks, teaching
from reprolib.evidence.chapters import Chapter
from reprolib.learn import grpo, preference_pairs, preference_records, sage, zeroth_order
from reprolib.privacy import accounting, losses, plan, preference
from reprolib.tasks import verifiers

IN_CODE = {
    "Plan": plan.Plan, "accounting": accounting, "losses": losses, "grpo": grpo,
    "preference_records": preference_records,
    "verifiers": verifiers,
    "preference_pairs": preference_pairs, "PrivDPO": preference.PrivDPO,
    "GroupPolicyGradient": grpo.GroupPolicyGradient, "ShrinkageController": sage.ShrinkageController,
    "FiniteDifferences": zeroth_order.FiniteDifferences,
}  # fmt: skip


def has(owner, name):
    """Whether a class or module has this attribute, field, documented attribute or argument."""
    if hasattr(owner, name) or name in getattr(owner, "__dataclass_fields__", {}):
        return True
    return inspect.isclass(owner) and (
        name in inspect.signature(owner).parameters or f"        {name}: " in (owner.__doc__ or "")
    )


def test_the_minutes_of_a_week_are_the_sum_of_its_exercises(root):
    plan = yaml.safe_load((root / "book" / "teaching.yml").read_text())
    found = {e.label: e.minutes for n in notebooks.numbers() for e in exercises.read(n)}
    text = teaching.page()
    for week in plan["weeks"]:
        (row,) = [line for line in text.splitlines() if line.startswith(f"| {week['topic']} |")]
        assert row.endswith(f"| {sum(found[label] for label in week['exercises'])} |")


def test_the_page_lists_every_exercise_of_every_chapter():
    text = teaching.page().partition("## Exercises by week")[0]
    for number in notebooks.numbers():
        for exercise in exercises.read(number):
            assert f"<{exercise.label}>` ({exercise.minutes})" in text


def test_an_unknown_exercise_is_named(root, tmp_path, monkeypatch):
    (tmp_path / "book").mkdir()
    (tmp_path / "book" / "teaching.yml").write_text(
        "weeks: [{topic: a, chapters: [], exercises: [ex-none]}]\nplans: []"
    )
    monkeypatch.setattr(teaching, "root", lambda: tmp_path)
    with pytest.raises(ReproError, match="ex-none"):
        teaching.page()


def test_chapters_with_trained_runs_and_the_ledger_are_not_for_the_cloud():
    fitting = {n for n in notebooks.numbers() if teaching.fits_cloud(n)}
    assert {"01", "02", "03"} <= fitting
    assert fitting & {"10", "12", "13", "14", "15", "22", "23", "32", "33", "40"} == set()


def test_a_launch_link_names_repository_branch_and_notebook():
    link = teaching.launch_link("02", "https://github.com/someone/book.git", "v1")
    assert (
        link
        == "https://mybinder.org/v2/gh/someone/book/v1?urlpath=lab%2Ftree%2Fnotebooks%2F02_accounting.ipynb"
    )
    with pytest.raises(ReproError, match=r"repository\.url"):
        teaching.launch_link("02", "https://example.org/book")


def test_without_a_repository_no_launch_link_is_shown(root):
    url = yaml.safe_load((root / "_config.yml").read_text())["repository"]["url"]
    assert ("mybinder.org" in teaching.page()) is bool(url)


def test_each_name_in_the_notation_table_exists_in_the_code(root):
    rows = [
        line.split(" | ")
        for line in (root / "book" / "notation.md").read_text().splitlines()
        if line[:3] == "| $"
    ]
    assert len(rows) > 20
    for row in rows:
        assert len(row) == 5, row
        for name in re.findall(r"`([A-Za-z_.]+)`", row[2]):
            owner, _, rest = name.partition(".")
            target = IN_CODE.get(owner)
            for part in filter(None, rest.split(".")):
                assert target is not None, name
                assert has(target, part), name
                target = getattr(target, part, None)


def test_the_glossary_is_in_the_order_of_the_alphabet(root):
    body = (root / "book" / "glossary.md").read_text().partition(":::{glossary}")[2]
    terms = [line for line in body.splitlines() if re.match(r"[A-Za-zé]", line)]
    assert len(terms) > 35
    assert terms == sorted(terms, key=lambda t: t.lower().replace("é", "e"))


def test_every_chapter_links_the_glossary_and_the_notation(root):
    for number in notebooks.numbers():
        assert "Chapter(" in notebooks.notebook(number).with_suffix(".md").read_text()
    shown = Chapter("02", tier="smoke")._repr_html_()
    for page in ("glossary", "notation"):
        assert f'href="../{page}.html"' in shown
        assert (root / "book" / f"{page}.md").is_file()
