"""Which process of how many this is. Asking needs no torch, so that a finished run is read without it."""

import os


def count() -> int:
    """Processes that torchrun started; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def rank() -> int:
    """Number of this process, from 0."""
    return int(os.environ.get("RANK", "0"))
