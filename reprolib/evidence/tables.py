"""Tables for the pages: scrollable where wide, our value beside the published one."""

import html
from collections.abc import Iterable
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
    label = html.escape(caption or "table")
    return HTML(f'<div class="table-scroll" tabindex="0" role="region" aria-label="{label}">{body}</div>')


def number(value: Any) -> str:
    """A recomputed value as text: short, but with the digits that matter."""
    if value is None or isinstance(value, bool):
        return {None: "", True: "holds", False: "fails"}[value]
    return f"{value:.10g}" if abs(value) >= 1e-4 or value == 0 else f"{value:.3e}"


def printed(verdict: Verdict) -> str:
    """What the paper prints: the number with its interval and unit, or nothing for a statement."""
    claim = verdict.claim
    if claim.published is None:
        return ""
    interval = "" if claim.low is None else f" [{claim.low}, {claim.high}]"
    return f"{claim.published}{interval} {claim.unit}".strip()


def verdicts(found: Iterable[Verdict], *, caption: str = "", detail: bool = True) -> HTML:
    """Claims with the published value, ours, the arithmetic and the verdict."""
    rows = []
    for verdict in found:
        value = number(verdict.outcome.value) if verdict.outcome else ""
        row = {
            "claim": verdict.claim.statement,
            "where": f"{PAPERS[verdict.claim.paper]}, {verdict.claim.where}",
            "published": printed(verdict),
            "here": value,
            "verdict": verdict.status,
        }
        if detail:
            note = verdict.claim.reason or ""
            arithmetic = verdict.outcome.detail if verdict.outcome else ""
            row["how"] = f"{arithmetic}. {note}".strip(". ") if arithmetic else note
        rows.append(row)
    return show(pd.DataFrame(rows), caption=caption)


def legend() -> HTML:
    """What each verdict means."""
    items = "".join(
        f'<dt><span class="verdict {status}">{status.replace("-", " ")}</span></dt>'
        f"<dd>{html.escape(text)}</dd>"
        for status, text in MEANING.items()
    )
    return HTML(f'<dl class="verdict-legend">{items}</dl>')
