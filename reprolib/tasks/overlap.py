"""Questions of one set that are nearly questions of another, by the Jaccard similarity of their words.

Source: DP-GRPO, Appendix D-D, which compares SVAMP with GSM8K's training questions at 0.8. It does not say
what a token is: here, a maximal run of letters and digits, letter case aside.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from reprolib.errors import ReproError


class Match(NamedTuple):
    """Positions of two similar questions, and their similarity from 0 to 1."""

    first: int
    second: int
    similarity: float


def words(text: str) -> frozenset[str]:
    """The distinct words and numbers of a text."""
    return frozenset(re.findall(r"[^\W_]+", text.casefold()))


def jaccard(first: frozenset[str], second: frozenset[str]) -> float:
    """Shared elements over all elements; 0 for two empty sets."""
    shared = len(first & second)
    return shared / (len(first) + len(second) - shared) if shared else 0.0


def near_duplicates(first: Sequence[str], second: Sequence[str], *, threshold: float = 0.8) -> list[Match]:
    """Every pair of questions with a similarity of at least the threshold, in the order of ``first``.

    A question of a words shares at least threshold * a of them with any that is so similar to it, hence one
    of every a - ceil(threshold * a) + 1. So only questions that hold one of its rarest words are compared.

    Args:
        first: questions.
        second: questions, not of the same set: each would match itself.
        threshold: above 0, at most 1.

    Raises:
        ReproError: the threshold is outside that range.
    """
    if not 0 < threshold <= 1:
        raise ReproError(f"threshold = {threshold}: expected a similarity above 0 and at most 1")
    others = [words(text) for text in second]
    count = Counter(word for other in others for word in other)
    holders = defaultdict(list)
    for position, other in enumerate(others):
        for word in other:
            holders[word].append(position)
    matches = []
    for position, text in enumerate(first):
        own = words(text)
        # rounding must not raise the number of shared words that is asked for
        needed = math.ceil(threshold * len(own) - 1e-9)
        rarest = sorted(own, key=lambda word: (count[word], word))[: len(own) - needed + 1]
        for candidate in sorted({holder for word in rarest for holder in holders.get(word, ())}):
            similarity = jaccard(own, others[candidate])
            if similarity >= threshold:
                matches.append(Match(position, candidate, similarity))
    return matches
