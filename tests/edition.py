"""The chapters of this edition, which the tests of notebooks and of pages share."""

FOUNDATIONS = ("01", "02", "03")
PAPERS = ("10", "11", "12", "13", "14", "15", "20", "21", "30")
LEDGER = "40"  # reads what the others found, and settles no claim of its own
CHAPTERS = (*FOUNDATIONS, *PAPERS, LEDGER, "41")
