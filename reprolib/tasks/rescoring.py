r"""Sensitivity scorers: the same saved responses read by rules that forgive a missing format.

They change no reward and never read the reference before they have chosen an answer.
Source: DP-GRPO, Section VII-D; Appendix E-A (MATH) and E-B (CommonsenseQA).
"""

import re

from reprolib.tasks.equality import MAX_LENGTH
from reprolib.tasks.verifiers import BoxedMath, Reward, require_letter, require_text

# a final statement stands at the end; reading no further back bounds the cost of a megabyte
_TAIL, _SEGMENT = 6_000, 600

_SENTENCE_END = re.compile(r"(?<=[.!?])[*\s]*\s(?=\s*[A-Z\\$(*#])|\n\s*\n")
_STATEMENT = re.compile(
    r"\banswer\b[^.\n]{0,120}?(?:\bis\b|\bare\b|[:=])[:*\s]*|\banswer\b\s*[:*]*\s*\n+|\banswer\s+(?=[-\d$\\])",
    re.IGNORECASE,
)
_INFERENCE = re.compile(
    r"\b(?:therefore|thus|hence|so|consequently|in conclusion|it follows|this (?:gives|means|implies|yields)|"
    r"we (?:get|have|find|obtain|conclude))\b[\s,:]*",
    re.IGNORECASE,
)
_MATH_SPAN = re.compile(r"\$\$(.+?)\$\$|\$(.+?)\$|\\\[(.+?)\\\]|\\\((.+?)\\\)", re.DOTALL)
_JOINT = re.compile(r"[\s,;*]*(?:(?:,|;|\band\b|\bor\b)[\s*]*)(?:[A-Za-z]\s*=\s*)?")
_RELATION = re.compile(r"\\approx|(?<![<>!=\\])=(?!=)")
_VALUE = re.compile(
    r".*(?:\bequals?(?:\s+to)?|\bis(?!\s+equal)|\bare|\bwas|\bwere|\bgives|\bget|\bhave|\bobtain|:)(?=[\s*:])[:*\s]*",
    re.IGNORECASE | re.DOTALL,
)
_DISPLAY = re.compile(r"\$\$.+?\$\$|\\\[.+?\\\]", re.DOTALL)
_UNFINISHED = re.compile(r"(?:[:=]|\bis|\bare|\A)[\s*]*\Z")
_PROSE = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{3,}\s+[A-Za-z]{2,}")


class FormatRobustMath(BoxedMath):
    r"""The format-robust MATH scorer: the boxed answer, else the completed final statement.

    The fallback reads the last explicit answer statement, else the last inferential one ("therefore"),
    else the last nonempty line. A response that reached the token cap gets no fallback.

    Source: DP-GRPO, Appendix E-A.
    """

    def extract(self, response: str, *, capped: bool = False) -> str | None:
        """The boxed answer, else the final statement's expression, right-hand side or stated value.

        Args:
            response: the model's text.
            capped: whether generation stopped at the completion cap.

        Raises:
            ReproError: the response is not a string.
        """
        boxed = super().extract(response)
        if boxed is not None or capped:
            return boxed
        segment, after_cue = _final_segment(response[-_TAIL:])
        return _answer_in(segment, after_cue)

    def reward(self, response: str, reference: str, *, capped: bool = False) -> Reward:
        """1 if the extracted answer equals the reference under the strict scorer's check, else 0.

        Raises:
            ReproError: the response or the reference is not a string.
        """
        answer = self.extract(response, capped=capped)
        require_text("reference", reference)
        return 1 if answer is not None and self.equal(answer, reference) else 0


def _final_segment(text: str) -> tuple[str, bool]:
    """The text to read, and whether it begins after a cue such as "the answer is"."""
    for cue in (_STATEMENT, _INFERENCE):
        matches = list(cue.finditer(text))
        if matches:
            segment, rest = _statement_at(text[matches[-1].end() :])
            # "so" in mid-solution concludes nothing: prose must not follow an inferential statement
            if segment.strip() and (cue is _STATEMENT or not _PROSE.search(rest)):
                return segment, cue is _STATEMENT
    lines = [line for line in text.splitlines() if line.strip()]
    return (_SENTENCE_END.split(lines[-1][-_SEGMENT:])[-1] if lines else ""), False


def _statement_at(text: str) -> tuple[str, str]:
    """The sentence that opens the text, or the formula displayed after it, and what follows."""
    opened = re.match(r"[^\n]{0,300}?(?:\\\[|\$\$)", text)
    display = _DISPLAY.search(text, opened.start()) if opened else None
    if opened and display and display.start() < opened.end():
        return display[0], text[display.end() :]
    stop = _SENTENCE_END.search(text)
    ends = [m.start() for m in (stop, re.search(r"\n", text)) if m]
    end = min([*ends, len(text), _SEGMENT])
    if not _UNFINISHED.search(text[:end]):
        return text[:end], text[end:]
    following = text[end:].lstrip()
    display = _DISPLAY.match(following)
    segment = display[0] if display else following.split("\n")[0][:_SEGMENT]
    return segment, following[len(segment) :]


def _answer_in(segment: str, after_cue: bool) -> str | None:
    """The answer of one statement: formulas joined by "and" or "or" stay together."""
    segment = segment.strip().strip("*").strip()
    spans = list(_MATH_SPAN.finditer(segment))
    if spans:
        stated_after = re.match(r"[^,;]*?\bis\s+([^A-Za-z]*\d.*)", segment[spans[-1].end() :], re.DOTALL)
        if stated_after:
            return _tidy(stated_after[1])
        return _tidy(_joined(segment, spans), ends=".,;:")  # "!" inside a formula is a factorial
    sides = _RELATION.split(segment)
    if len(sides) > 2 and re.search(r"\b(?:and|or)\b|,", segment):
        return _tidy(" and ".join(_right_sides(segment)))
    if len(sides) > 1:
        return _tidy(sides[-1])
    value = _VALUE.match(segment)
    stated = segment[value.end() :] if value else segment
    return _tidy(stated) if value or after_cue or not _PROSE.search(stated) else None


def _right_sides(segment: str) -> list[str]:
    return [_RELATION.split(piece)[-1] for piece in re.split(r",\s*(?:and|or)\b|\band\b|\bor\b|,", segment)]


def _joined(segment: str, spans: list[re.Match[str]]) -> str:
    """The last formula's right-hand side, with those before it that "and", "or" or a comma ties to it."""
    parts = [_right_side(spans[-1])]
    for before, after in zip(reversed(spans[:-1]), reversed(spans[1:]), strict=True):
        if not _JOINT.fullmatch(segment[before.end() : after.start()]):
            break
        parts.insert(0, _right_side(before))
    return " and ".join(parts)


def _right_side(span: re.Match[str]) -> str:
    formula = next(group for group in span.groups() if group is not None)
    if re.search(r",|\\text\s*\{\s*(?:and|or)", formula) and formula.count("=") > 1:
        return " and ".join(_right_sides(re.sub(r"\\text\s*\{\s*(and|or)\s*\}", r" \1 ", formula)))
    return _RELATION.split(formula)[-1]


def _tidy(answer: str, ends: str = ".,;:!") -> str | None:
    answer = re.sub(r"\*\*|\\boxed", "", answer).strip().rstrip(ends).strip()
    return answer if answer and len(answer) <= MAX_LENGTH else None


_LETTER = re.compile(r"(?<![\w'\\])([A-E])(?![\w'])")
_CHOICE = re.compile(
    r"\b(?:answer|choice|option)\b(?:\s+(?!not\b)\w+){0,6}?\s*(?:\bis\b|\bwould be\b|\bmust be\b|:)|"
    r"\banswer\**\s*:|\bI\s+(?:would\s+)?(?:choose|pick|select|go with)\b|\\boxed\s*\{",
    re.IGNORECASE,
)
_VERDICT = re.compile(
    r"[*(]{0,3}\b([A-E])\b[)*.:]{0,3}[^.\n]{0,80}\bis\s+(?:therefore\s+|thus\s+)?the\s+"
    r"(?:\w+\s+){0,2}(?:answer|choice|option)\b(?!\s*(?:is|:))"
)
_ALONE = re.compile(r"[\s*#(\[]{0,6}([A-E])(?:[\s*)\].]{0,6}|[).:]\**\s+\S[^\n]{0,200})")
_NEGATED = re.compile(r"\b(?:not|neither|none|unclear|cannot|either)\b|n't\b", re.IGNORECASE)


class FinalLetter:
    """The CommonsenseQA final-answer rescore: the last explicit declaration, whatever was discussed before.

    It abstains when the declaration names several options, denies one, or when there is none.

    Source: DP-GRPO, Appendix E-B.
    """

    def extract(self, response: str, *, capped: bool = False) -> str | None:
        """The letter of the last declaration, or None.

        Raises:
            ReproError: the response is not a string.
        """
        text = require_text("response", response)[-_TAIL:]
        declarations = [(m.end(), _clause(text, m.end())) for m in _CHOICE.finditer(text)]
        declarations += [(m.end(), m[0]) for m in _VERDICT.finditer(text)]
        named = [(end, clause) for end, clause in declarations if _letters(clause) or _NEGATED.search(clause)]
        if named:
            clause = max(named)[1]
            letters = _letters(clause)
            return letters.pop() if len(letters) == 1 and not _NEGATED.search(clause) else None
        lines = [line for line in text.splitlines() if line.strip()]
        alone = _ALONE.fullmatch(lines[-1]) if lines else None
        return alone[1] if alone else None

    def reward(self, response: str, reference: str, *, capped: bool = False) -> Reward:
        """1 if the declared letter is the reference, else 0.

        Raises:
            ReproError: an argument is not a string, or the reference is not a letter from A to E.
        """
        return 1 if self.extract(response) == require_letter(reference) else 0


def _clause(text: str, start: int) -> str:
    """From a declaration's cue to the end of its sentence or line; "B." alone does not end it."""
    rest = text[start : start + 300].lstrip(" *\n\t")
    return re.split(r"\n|(?<!\b[A-E])[.!?](?=\s|$)|\}|\b(?:because|since)\b", rest, maxsplit=1)[0]


def _letters(clause: str) -> set[str]:
    """Option letters in a clause; an "A" that opens a phrase inside it is the article."""
    found = set()
    for match in _LETTER.finditer(clause):
        article = (
            match[1] == "A"
            and match.start() > 0
            and re.match(r"\s+(?!or\b|and\b)[a-z]", clause[match.end() :])
        )
        if not article:
            found.add(match[1])
    return found
