"""When two mathematical answers are the same: text, then exact numbers, then symbolic equality.

A rewarded answer is untrusted text from a model, and its reward enters a private record's gradient.
So the cost of an answer is bounded before anything symbolic is parsed, by ``within_limits``, which reads
the answer alone. What still runs too long is killed inside a worker process by its processor time, which,
unlike the wall clock, hardly depends on the load that other records make; a wall-clock limit stands
behind it. DP-GRPO, Appendix A-G, (A2), names that dependence as a gap of a wall-clock limit.
"""

import json
import logging
import os
import re
import signal
import sys
import unicodedata
from collections.abc import Callable
from fractions import Fraction
from itertools import accumulate

MAX_LENGTH, MAX_DEPTH, MAX_OPERATORS, MAX_PIECES = 1_000, 12, 150, 16
MAX_DIGIT_RUN, MAX_DIGITS = 60, 300
MAX_EXPONENT, MAX_GROUP_EXPONENT, MAX_FACTORIAL, MAX_BINOMIAL = 10_000, 10, 3_000, 200

_SYMBOLS = str.maketrans(
    {"−": "-", "–": "-", "π": "\\pi ", "∞": "\\infty ", "°": "^\\circ ", "×": "\\times ", "≤": "\\leq ",
     "≥": "\\geq ", "∪": "\\cup ", "·": "\\cdot "}
)  # fmt: skip
_UNIT = (
    r"(?:(?:square|cubic|sq)\.?\s+)?(?:[kcm]?m|kg|g|in|ft|mph|cents?|dollars?|degrees?|inch(?:es)?|units?|feet|"
    r"foot|miles?|hours?|minutes?|seconds?|meters?|years?|days?|percent)"
)
_NUMBER = r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)"
_TEXT = r"\\(?:text(?:bf|it|rm)?|mbox|mathrm|mathbf|operatorname)\s*\{([^{}]*)\}"
_REWRITES: list[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]] = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"√\s*(\d+)", r"\\sqrt{\1}"),
        (r"\\(?:left|right|[bB]igg?[lr]?)(?![a-zA-Z])\s*\.?|(?<!\\)\\!", ""),
        (r"(?<!\\)\\[,;: ]|~|\\q?quad(?![a-zA-Z])", " "),
        (r"\\?[$%]|(?<!\\)\\[()]", ""),
        (r"\*\*", "^"),
        (r"\\[dtc]frac(?![a-zA-Z])", r"\\frac"),
        (r"\\frac\s*(\d)\s*(\d)", r"\\frac{\1}{\2}"),
        (r"\\frac\s*(\d)\s*\{", r"\\frac{\1}{"),
        (r"\\sqrt\s*(\w)", r"\\sqrt{\1}"),
        (r"\\leqslant|\\le(?![a-zA-Z])", r"\\leq"),
        (r"\\geqslant|\\ge(?![a-zA-Z])", r"\\geq"),
        (r"\{,\}", ","),
        (r"(?<![\d.,(\[])([1-9]\d{0,2}(?:,\d{3})+)(?![\d,])", lambda m: m[1].replace(",", "")),
        (r"\\text\s*\{\s*(?:,\s*)?(?:and|or)\s*\}", " and "),
        (r"\^\s*\{?\s*\\circ\s*\}?\s*[CF]?|\\degree(?![a-zA-Z])", ""),
        (r"_\{(\w)\}", r"_\1"),
    )
]
_NAMED = re.compile(
    r"(?:[A-Za-z]+|[A-Za-z]\([a-z]\)|[A-Za-z]_\{?\w+\}?|\([a-z](?:,\s*[a-z])+\))\s*(?:=|\\in(?![a-z]))\s*"
)


def clean(answer: str) -> str:
    """The answer without spacing, sizes, currency, percent and degree signs, and thousands separators."""
    text = answer.translate(_SYMBOLS)
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    return " ".join(text.split()).rstrip(".").strip()


def within_limits(answer: str) -> bool:
    """Whether the answer is small enough to be parsed: a deterministic bound that reads nothing else.

    Bounds length, nesting, operators, digits, and everything whose value can be far larger than its text:
    exponents (the product of all numeric ones; towers are refused), factorials and binomials. Control,
    format and unassigned characters are refused too.
    """
    if len(answer) > MAX_LENGTH or any(unicodedata.category(c)[0] == "C" and c not in "\n\t" for c in answer):
        return False
    text = clean(answer)
    runs = [len(run) for run in re.findall(r"[0-9]+", text)]
    return (
        _depth(text) <= MAX_DEPTH
        and len(re.findall(r"[-+*/^=<>!&,_]|\\[A-Za-z]+", text)) <= MAX_OPERATORS
        and max(runs, default=0) <= MAX_DIGIT_RUN
        and sum(runs) <= MAX_DIGITS
        and _powers_are_small(text)
        and _counts_are_small(text)
    )


def _depth(text: str) -> int:
    return max(accumulate((c in "([{") - (c in ")]}") for c in text), default=0)


def _powers_are_small(text: str) -> bool:
    letters = re.search(r"[A-Za-z]", re.sub(r"\\[A-Za-z]+", "", text))
    product = 1
    for match in re.finditer(r"\^", text):
        exponent, end = _operand(text, match.end())
        if "^" in exponent or "!" in exponent or text[end:].lstrip()[:1] == "^":
            return False
        size = max((int(run) for run in re.findall(r"[0-9]+", exponent)), default=1)
        base = text[: match.start()].rstrip()[-1:]
        if base in ")]}" and letters and size > MAX_GROUP_EXPONENT:
            return False
        # x^10 + ... + x is cheap whatever the product of its exponents
        product = max(product, size) if base.isalpha() else product * max(size, 1)
        if product > MAX_EXPONENT:
            return False
    return True


def _operand(text: str, start: int) -> tuple[str, int]:
    """The exponent at ``start`` and its end: a group, a command with its groups, or a sign and a token."""
    head = re.compile(r"\s*[-+]?\s*(\\[A-Za-z]+\s*|\d+|[A-Za-z])?").match(text, start)
    assert head
    end, opening = head.end(), "([{" if head[1] is None else "[{" if head[1][0] == "\\" else ""
    while opening and end < len(text) and text[end] in opening:
        depth, opening = 0, "[{" if head[1] else ""
        while end < len(text):
            depth += (text[end] in "([{") - (text[end] in ")]}")
            end += 1
            if depth == 0:
                break
    return text[start:end], end


def _counts_are_small(text: str) -> bool:
    if re.search(r"[)}\]!]\s*!", text):
        return False
    if any(int(n) > MAX_FACTORIAL for n in re.findall(r"([0-9]+)\s*!", text)):
        return False
    heavy = re.search(r"\\(?:[dt]?binom|choose|sum|prod|int|lim|exp)(?![a-z])", text)
    return not heavy or all(int(n) <= MAX_BINOMIAL for n in re.findall(r"[0-9]+", text))


def number(text: str) -> Fraction | None:
    """The exact value of an integer, decimal, fraction or mixed number; None for anything else."""
    text = (
        re.sub(r"^([-+]?)\s*\{?\s*", r"\1", text.strip()).rstrip("} ") if "frac" not in text else text.strip()
    )
    if len(text) > 2 * MAX_DIGIT_RUN + 20:
        return None
    if re.fullmatch(_NUMBER, text, re.ASCII):
        return Fraction(text)
    parts = re.fullmatch(
        rf"([-+]?)\s*(?:(\d+)\s*)?\\frac\s*\{{\s*({_NUMBER})\s*\}}\s*\{{\s*({_NUMBER})\s*\}}", text, re.ASCII
    ) or re.fullmatch(rf"([-+]?)(?:(\d+)\s+)?({_NUMBER})\s*/\s*({_NUMBER})", text, re.ASCII)
    if not parts or Fraction(parts[4]) == 0:
        return None
    value = int(parts[2] or 0) + Fraction(parts[3]) / Fraction(parts[4])
    return -value if parts[1] == "-" else value


def _bare(piece: str) -> str:
    """One answer without its name (x =), its units and its text wrappers."""
    piece = piece.strip().rstrip(".")
    named = _NAMED.match(piece)
    if named and piece.count("=") <= 1:
        piece = piece[named.end() :]
    with_unit = re.fullmatch(rf"(.*\S)\s*{_TEXT}(?:\s*\^\s*\{{?\d\}}?)?", piece)
    if with_unit and not re.search(r"[-+*/=^(]$", with_unit[1]):
        piece = with_unit[1]
    piece = re.sub(_TEXT, r"\1", piece).strip()
    worded = re.fullmatch(
        rf"({_NUMBER}|.*[\d}}])(?:\s*{_UNIT}|\s+[A-Za-z]{{3,}}[A-Za-z ]*)(?:\s*\^\s*\{{?\d\}}?)?", piece
    )
    piece = worded[1] if worded and "\\begin" not in piece else piece
    return re.sub(r"^\(([A-Z])\)$", r"\1", piece.strip())


def _split(text: str) -> list[str]:
    """Cut at commas, semicolons, 'and' and 'or' that stand outside every bracket."""
    pieces, depth, start = [], 0, 0
    for match in re.finditer(r"[(\[{]|[)\]}]|[,;]|\b(?:and|or)\b", text):
        token = match[0]
        if token in "([{":
            depth += 1
        elif token in ")]}":
            depth -= 1
        elif depth == 0:
            pieces.append(text[start : match.start()])
            start = match.end()
    return [piece.strip() for piece in [*pieces, text[start:]] if piece.strip()]


def _parts(text: str) -> tuple[str, list[str]]:
    """An answer's kind and members: its brackets for a tuple or interval, "" for a collection."""
    body = re.fullmatch(r"\\\{(.*)\\\}", text)
    if body:
        text = body[1]
    pieces = [_bare(piece) or piece for piece in _split(text)]
    if len(pieces) == 1 and _is_enclosed(pieces[0]):
        members = _split(pieces[0][1:-1])
        if len(members) > 1:
            return pieces[0][0] + pieces[0][-1], members
    return "", [sign for piece in pieces for sign in _both_signs(piece)]


def _is_enclosed(text: str) -> bool:
    """Whether the first bracket closes at the end, as it does not in a union of intervals."""
    levels = accumulate((c in "([") - (c in ")]") for c in text[:-1])
    return text[:1] in ("(", "[") and text[-1:] in (")", "]") and min(levels, default=0) > 0


def _both_signs(piece: str) -> list[str]:
    if piece.count("\\pm") != 1:
        return [piece]
    return [piece.replace("\\pm", "+").lstrip("+ "), piece.replace("\\pm", "-")]


Leaf = Callable[[str, str], bool]


class Undecided(Exception):  # noqa: N818 not an error: it says that only a symbolic comparison can tell
    """Text and exact numbers cannot decide whether two answers are equal."""


def plain_leaf(a: str, b: str) -> bool:
    """Equality of two single answers by text and by exact numbers.

    Raises:
        Undecided: neither decides.
    """
    x_text, y_text = ("".join(side.split()) for side in (a, b))
    if x_text == y_text or (_is_words(a) and x_text.casefold() == y_text.casefold()):
        return True
    x, y = number(a), number(b)
    if x is not None and y is not None:
        return x == y
    if not a or not b or _is_words(a) or _is_words(b):
        return False
    bases = [re.search(r"_\{?(\d+)\}?$", side) for side in (a, b)]
    if bases[0] and bases[1] and bases[0][1] != bases[1][1]:
        return False
    raise Undecided


def _is_words(text: str) -> bool:
    """A word or a phrase, whose letters a symbolic parser would multiply."""
    return re.fullmatch(r"[^\W\d_]{3,}[\w' -]*|[A-Z]", text) is not None


def same(a: str, b: str, leaf: Leaf) -> bool:
    """Whether two cleaned answers agree: tuples and intervals in order, several answers in any order."""
    kind, left = _parts(a)
    other, right = _parts(b)
    if kind != other or len(left) != len(right) or len(left) > MAX_PIECES:
        return False
    if kind:
        return all(same(x, y, leaf) for x, y in zip(left, right, strict=True))
    if len(left) <= 1:
        return bool(left) and leaf(left[0], right[0])
    # equality is transitive, so the first free partner is as good as any
    for x in left:
        partner = next((i for i, y in enumerate(right) if same(x, y, leaf)), None)
        if partner is None:
            return False
        right.pop(partner)
    return True


def symbolic_leaf(a: str, b: str) -> bool:
    """Equality of two single answers, by computer algebra where text and exact numbers do not decide."""
    from math_verify import LatexExtractionConfig, parse, verify  # type: ignore[import-untyped]

    try:
        return plain_leaf(a, b)
    except Undecided:
        left, right = (parse(f"${side}$", [LatexExtractionConfig()], parsing_timeout=None) for side in (a, b))
        return bool(left and right) and bool(verify(right, left, timeout_seconds=None))


def serve() -> None:
    """The worker's loop: a line [answer, reference, processor seconds] in, a line true or false out."""
    logging.disable(logging.CRITICAL)
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    symbolic_leaf("x+1", "1+x")
    print("ready", file=replies, flush=True)
    for line in sys.stdin:
        a, b, seconds = json.loads(line)
        # the default action of SIGPROF ends the process, also inside a long big-integer operation
        signal.setitimer(signal.ITIMER_PROF, seconds)
        try:
            equal = same(a, b, symbolic_leaf)
        except Exception:
            equal = False
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps(equal), file=replies, flush=True)


if __name__ == "__main__":
    serve()
