"""Tables for the pages: scrollable where wide, our value beside the published one."""

import html
from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd
from IPython.display import HTML

from reprolib.evidence.claims import MEANING, Verdict
from reprolib.evidence.published import PAPERS


def show(frame: pd.DataFrame, *, caption: str = "", digits: int = 4, index: bool = False) -> HTML:
    """A data frame as a scrollable HTML table.

    Args:
        caption: a line above the table.
        digits: significant digits of floating-point columns.
        index: whether to print the index.
    """
    body = frame.to_html(
        index=index, border=0, classes="data", na_rep="", float_format=lambda x: f"{x:.{digits}g}"
    )
    title = f"<caption>{html.escape(caption)}</caption>" if caption else ""
    body = body.replace("<thead>", f"{title}<thead>", 1)
    return _scrollable(body, caption or "table")


def _scrollable(table: str, label: str) -> HTML:
    """A table in a region that scrolls by itself and can be reached by keyboard."""
    name = html.escape(label)
    return HTML(f'<div class="table-scroll" tabindex="0" role="region" aria-label="{name}">{table}</div>')


def number(value: Any, printed_digits: int = 0) -> str:
    """A recomputed value as text, with two digits more than the published one prints (at least five)."""
    if value is None or isinstance(value, bool):
        return {None: "", True: "holds", False: "fails"}[value]
    return f"{value:.{max(5, printed_digits + 2)}g}"


def printed(verdict: Verdict) -> str:
    """What the paper prints: the number with its interval and unit, or nothing for a statement."""
    claim = verdict.claim
    if claim.published is None:
        return ""
    interval = "" if claim.low is None else f" [{claim.low}, {claim.high}]"
    return f"{claim.published}{interval} {claim.unit}".strip()


HEADER = ("claim", "published", "here", "verdict", "checked in")


def verdict_row(verdict: Verdict, pages: Mapping[str, str] | None = None) -> str:
    """One claim as a table row: statement and place, what is printed, what was found, the verdict and why.

    Args:
        pages: the page of each chapter in this edition, to link to.
    """
    claim, found = verdict.claim, verdict.outcome
    why = ". ".join(text.rstrip(".") for text in (found.detail if found else "", claim.reason or "") if text)
    chapter = claim.chapter or ""
    if pages and chapter in pages:
        chapter = f'<a href="{pages[chapter]}">{chapter}</a>'
    place = f"{PAPERS[claim.paper]}, {claim.where}"
    status = verdict.status
    digits = len(claim.published.as_tuple().digits) if claim.published is not None else 0
    cells = (
        f"{html.escape(claim.statement)}<br><small>{html.escape(place)}</small>",
        html.escape(printed(verdict)),
        number(found.value, digits) if found else "",
        f'<span class="verdict {status}">{status.replace("-", " ")}</span>'
        + (f"<br><small>{html.escape(why)}</small>" if why else ""),
        f"{chapter}<br><small>{claim.kind}</small>",
    )
    data = f'data-paper="{claim.paper}" data-kind="{claim.kind}" data-status="{status}"'
    return f'<tr id="{claim.id}" {data}>' + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def verdicts(found: Iterable[Verdict], *, caption: str = "", pages: Mapping[str, str] | None = None) -> HTML:
    """Claims with the published value, ours, the verdict and the arithmetic behind it."""
    head = "".join(f'<th scope="col">{name}</th>' for name in HEADER)
    rows = "".join(verdict_row(verdict, pages) for verdict in found)
    title = f"<caption>{html.escape(caption)}</caption>" if caption else ""
    return _scrollable(
        f'<table class="data claims">{title}<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>',
        caption or "claims",
    )


def legend() -> HTML:
    """What each verdict means."""
    items = "".join(
        f'<dt><span class="verdict {status}">{status.replace("-", " ")}</span></dt>'
        f"<dd>{html.escape(text)}</dd>"
        for status, text in MEANING.items()
    )
    return HTML(f'<dl class="verdict-legend">{items}</dl>')
