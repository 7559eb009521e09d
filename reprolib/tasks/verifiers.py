r"""Deterministic verifiers r(x, y) in {0, 1}: a response's final answer against the reference answer.

    verifier = BoxedMath()
    verifier.reward(r"so the area is \boxed{\frac{1}{2}}", "0.5")   # 1

The verifier is public; the reference is part of the private record. A reward reads its own record only.
Source: DP-GRPO, Section VII-A (rewards) and Section VII-D (strict scoring).
"""

import atexit
import json
import os
import re
import select
import subprocess
import sys
import threading
from collections import deque
from fractions import Fraction
from pathlib import Path
from typing import Literal, Protocol

from reprolib.errors import ReproError
from reprolib.tasks import equality
from reprolib.tasks.equality import clean, number

Reward = Literal[0, 1]
_INTEGER = re.compile(r"[-+]?[0-9]{1,18}")


def require_text(name: str, value: object) -> str:
    """The value, if it is a string.

    Raises:
        ReproError: it is not.
    """
    if not isinstance(value, str):
        raise ReproError(f"{name} is of type {type(value).__name__}: expected a string of text")
    return value


class Verifier(Protocol):
    """Scores a response by its final answer.

    ``capped`` says that generation stopped at the completion cap. A strict scorer ignores it; the
    format-robust one then reads a box only.
    """

    def extract(self, response: str, *, capped: bool = False) -> str | None:
        """The final answer, or None."""
        ...

    def reward(self, response: str, reference: str, *, capped: bool = False) -> Reward:
        """1 if the final answer agrees with the reference, else 0."""
        ...


class SymbolicWorker:
    """One process for symbolic comparisons, started at the first one and replaced when it had to be killed.

    Args:
        cpu_seconds: processor time of one comparison; beyond it the process dies.
        wall_seconds: clock time of one comparison, the last resort; DP-GRPO uses 10 s and no processor limit.

    Raises:
        ReproError: a limit is not positive.
    """

    def __init__(self, *, cpu_seconds: float = 5.0, wall_seconds: float = 60.0):
        if not (cpu_seconds > 0 and wall_seconds > 0):
            raise ReproError(f"limits of {cpu_seconds} s and {wall_seconds} s: expected positive seconds")
        self.cpu_seconds, self.wall_seconds = cpu_seconds, wall_seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0
        self._lock = threading.Lock()

    def equal(self, answer: str, reference: str) -> bool | None:
        """Whether two cleaned answers are equal; None if the comparison was killed.

        Raises:
            ReproError: the process cannot be started.
        """
        request = json.dumps([answer, reference, self.cpu_seconds]).encode() + b"\n"
        with self._lock:
            try:
                process = self._running()
                assert process.stdin
                process.stdin.write(request)
                reply = self._read(process, self.wall_seconds)
            except BaseException:
                # an interrupted comparison must not leave its reply for the next one
                self._stop()
                raise
            if reply not in (b"true\n", b"false\n"):
                self._stop()
                return None
            return reply == b"true\n"

    def close(self) -> None:
        """End the process; the next comparison starts another."""
        with self._lock:
            self._stop()

    def _running(self) -> subprocess.Popen[bytes]:
        # a forked child must not share its parent's pipes
        if self._process and self._owner == os.getpid() and self._process.poll() is None:
            return self._process
        root = str(Path(__file__).resolve().parents[2])
        paths = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
        self._owner, self._process = os.getpid(), subprocess.Popen(
            [sys.executable, "-m", "reprolib.tasks.equality"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0,
            # a fixed hash seed fixes the order in which the algebra walks its sets
            env={**os.environ, "PYTHONPATH": paths, "PYTHONHASHSEED": "0"},
        )  # fmt: skip
        if self._read(self._process, 120) != b"ready\n":
            self._stop()
            raise ReproError(
                "the symbolic comparison did not start: install math-verify, as requirements.txt pins it"
            )
        return self._process

    @staticmethod
    def _read(process: subprocess.Popen[bytes], seconds: float) -> bytes:
        assert process.stdout
        ready, _, _ = select.select([process.stdout], [], [], seconds)
        return process.stdout.readline() if ready else b""

    def _stop(self) -> None:
        if self._process and self._owner == os.getpid():
            self._process.kill()
            self._process.communicate()
        self._process = None


_SHARED = SymbolicWorker()
atexit.register(_SHARED.close)


class MathEquality:
    """Compares an extracted answer with the reference; what cannot be decided in bounded work is unequal.

    Attributes:
        trips: comparisons that were killed. Private telemetry: it depends on private completions.
        refused: answers beyond the deterministic work limit, which were never parsed. Private as well.
    """

    def __init__(self, worker: SymbolicWorker | None = None):
        self.trips = 0
        self.refused = 0
        self._worker = worker or _SHARED

    def equal(self, answer: str, reference: str) -> bool:
        """Whether the two answers are the equality.same; two equal strings always are."""
        left, right = answer.strip(), reference.strip()
        if left == right:
            return True
        if _INTEGER.fullmatch(left) and _INTEGER.fullmatch(right):
            return int(left) == int(right)
        if not (equality.within_limits(answer) and equality.within_limits(reference)):
            self.refused += 1
            return False
        left, right = clean(answer), clean(reference)
        try:
            return equality.same(left, right, equality.plain_leaf)
        except equality.Undecided:
            verdict = self._worker.equal(left, right)
            self.trips += verdict is None
            return bool(verdict)


class BoxedMath(MathEquality):
    r"""The strict MATH scorer: the last complete \boxed{...}, compared by symbolic equality.

    Source: DP-GRPO, Section VII-D; a response without a boxed answer is incorrect.
    """

    def extract(self, response: str, *, capped: bool = False) -> str | None:
        r"""The content of the last complete \boxed{...}, or \fbox{...}; None if there is none or it is empty.

        Raises:
            ReproError: the response is not a string.
        """
        open_groups: list[tuple[int, bool]] = []
        last, content = -1, ""
        text = require_text("response", response)
        for match in re.finditer(r"\\(?:boxed|fbox)\s*\{|\\[{}]|[{}]", text):
            token = match[0]
            if token == "}" and open_groups:
                start, is_box = open_groups.pop()
                if is_box and start > last:
                    last, content = start, text[start : match.start()]
            elif token[-1] == "{" and token != r"\{":
                open_groups.append((match.end(), token != "{"))
        return content.strip() or None

    def reward(self, response: str, reference: str, *, capped: bool = False) -> Reward:
        """1 if the boxed answer equals the reference, else 0.

        Raises:
            ReproError: an argument is not a string.
        """
        answer = self.extract(response)
        require_text("reference", reference)
        return 1 if answer is not None and self.equal(answer, reference) else 0


_DIGITS = r"(?:\d{1,3}(?:,\d{3})+(?![\d,]*\d{4})|\d+)(?:\.\d+)?|\.\d+"
_FINAL_NUMBER = re.compile(rf"(?:(?<![\w)\]}}.])-\s?)?\$?\s?(?:{_DIGITS})(?:/(?:{_DIGITS}))?", re.ASCII)


class NumberAnswer:
    r"""The GSM8K and SVAMP scorer: the final number.

    Source: DP-GRPO, Section VII-D. A number after the last '####' or in the last complete \boxed{...} is
    taken before the response's last number.
    """

    def extract(self, response: str, *, capped: bool = False) -> str | None:
        """The final number without currency, separators and needless zeros ("$1,250.00" gives "1250").

        Raises:
            ReproError: the response is not a string.
        """
        text = require_text("response", response).replace("−", "-").replace("{,}", ",").replace(r"\$", "$")
        marked = text.rpartition("####")[2] if "####" in text else ""
        first = _FINAL_NUMBER.search(marked)
        if first:
            return _canonical(first[0])
        boxed = BoxedMath().extract(text)
        value = number(clean(boxed)) if boxed and len(boxed) <= equality.MAX_LENGTH else None
        if value is not None:
            return _decimal(value)
        place = boxed if boxed and re.search(r"[0-9]", boxed) else text
        last = deque(_FINAL_NUMBER.finditer(place), maxlen=1)
        return _canonical(last[0][0]) if last else None

    def reward(self, response: str, reference: str, *, capped: bool = False) -> Reward:
        """1 if the final number has the reference's value, else 0.

        Args:
            response: the model's text.
            reference: a number, or a GSM8K solution that ends in '#### number'.

        Raises:
            ReproError: an argument is not a string, or the reference holds no number.
        """
        expected = self.extract(require_text("reference", reference))
        if expected is None:
            raise ReproError("the reference holds no number: expected for example '42' or '#### 42'")
        return 1 if self.extract(response) == expected else 0


def _canonical(text: str) -> str | None:
    value = text.translate(str.maketrans("", "", ",$ \n\t\r\f\v"))
    if max(map(len, re.findall(r"\d+", value))) > equality.MAX_DIGIT_RUN:
        return None
    exact = number(value)
    return None if exact is None else _decimal(exact)


def _decimal(value: Fraction) -> str:
    """An integer or a terminating decimal as such, any other value as a fraction."""
    twos_and_fives = 10 ** value.denominator.bit_length()
    if value.denominator == 1 or twos_and_fives % value.denominator:
        return str(value)
    digits = f"{abs(value) * twos_and_fives}".zfill(len(str(twos_and_fives)))
    places = len(str(twos_and_fives)) - 1
    return f"{'-' if value < 0 else ''}{digits[:-places]}.{digits[-places:].rstrip('0')}"


_DECLARATION = re.compile(r"answer\**\s{0,9}:[\s*]{0,9}\(?([A-E])\b(?!')", re.IGNORECASE)
_MORE = re.compile(r"[).*]{0,4}\s{0,9}(?:or|and|/|,|&)\s{0,9}[(*]{0,4}([A-E])\b(?!')")


class LetterAnswer:
    """The strict CommonsenseQA scorer: one option letter from 'Answer: <letter>'.

    Source: DP-GRPO, Section VII-A; the format is declared in the prompt. Capital letters A to E are read.
    """

    def extract(self, response: str, *, capped: bool = False) -> str | None:
        """The letter that every declaration names; None without a declaration or if two of them conflict.

        Raises:
            ReproError: the response is not a string.
        """
        letters: set[str] = set()
        text = require_text("response", response)
        for match in _DECLARATION.finditer(text):
            rest = text[match.end() : match.end() + 40]
            if not match[1].isupper() or (
                match[1] == "A" and re.match(r"\s+(?!because|since|as\b|is\b|or\b|and\b)[a-z]", rest)
            ):
                continue
            also = _MORE.match(rest)
            letters.update((match[1], also[1]) if also else match[1])
        return letters.pop() if len(letters) == 1 else None

    def reward(self, response: str, reference: str, *, capped: bool = False) -> Reward:
        """1 if the declared letter is the reference, else 0.

        Raises:
            ReproError: an argument is not a string, or the reference is not a letter from A to E.
        """
        return 1 if self.extract(response) == require_letter(reference) else 0


def require_letter(reference: object) -> str:
    """The reference's option letter.

    Raises:
        ReproError: it is not a letter from A to E.
    """
    letter = require_text("reference", reference).strip()
    if letter not in ("A", "B", "C", "D", "E"):
        raise ReproError(f"reference = {letter[:20]!r}: expected one option letter from A to E")
    return letter
