"""Numbers, tables, figures and verdicts: what the papers print and what was found here."""
