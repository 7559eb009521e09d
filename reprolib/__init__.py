"""reprolib: the mechanisms, the evidence and the checks behind the book."""

__version__ = "0.1.0"
