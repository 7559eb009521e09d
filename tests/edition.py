"""The chapters of this edition and the tier it was built at, which tests of notebooks and of pages share."""

import json
from pathlib import Path

FOUNDATIONS = ("01", "02", "03")
PAPERS = ("10", "11", "12", "13", "14", "15", "20", "21", "22", "23", "24", "30", "31", "32", "33")
LEDGER = "40"  # reads what the others found, and settles no claim of its own
CHAPTERS = (*FOUNDATIONS, *PAPERS, LEDGER, "41", "42")
RESULTS = Path(__file__).resolve().parents[1] / "book" / "results"


def tier() -> str | None:
    """The tier of the built edition; None where none is built, or only a part of it."""
    files = [RESULTS / f"{number}.json" for number in CHAPTERS]
    found = {json.loads(file.read_text())["tier"] if file.is_file() else None for file in files}
    return found.pop() if len(found) == 1 else None
