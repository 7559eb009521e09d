"""A chapter while it runs: its parameters, the claims that it checks, and the results file it writes."""

import hashlib
import html
import importlib.metadata
import json
import os
import platform
import resource
import time
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from reprolib.errors import ReproError
from reprolib.evidence import claims, published
from reprolib.evidence.checks import MEASURED, Outcome
from reprolib.evidence.notebooks import check_parameters, notebook, parameters, sources_hash
from reprolib.paths import root, write_atomically

PACKAGES = ("numpy", "scipy", "dp-accounting", "opacus", "torch", "transformers", "peft", "papermill")


# the pages beside the built chapter
WORDS = (
    '<p class="words">Words and symbols: <a href="../glossary.html">glossary</a>, '
    '<a href="../notation.html">notation</a>.</p>'
)


class Chapter:
    """A chapter while it runs: its effective parameters, its claims, and the file it writes at the end.

    Use::

        chapter = Chapter("02", tier=tier, target_epsilon=target_epsilon)
        ...
        chapter.measure("dp_grpo.s_vi_c.pld_default", value=0.1)
        chapter.finish()

    Results go to ``book/results/NN.json`` (or the folder in ``REPROLIB_RESULTS``). A run whose parameters,
    other than the tier, are not the defaults writes under ``variants/`` and never enters the ledger.

    Raises:
        ReproError: an unknown chapter or tier, or a parameter of the wrong type.
    """

    def __init__(self, number: str, **effective: Any):
        self.path = notebook(number)
        self.number = number
        self.parameters = check_parameters(self.path, effective)
        self.tier: str = self.parameters.get("tier", "micro")
        self.measured: dict[str, Outcome] = {}
        self.values: dict[str, Any] = {}
        self._start = time.monotonic()

    def _repr_html_(self) -> str:
        declared = parameters(self.path)
        lines = "".join(
            f"<tr><td><code>{name}</code></td><td>{html.escape(str(value))}</td>"
            f"<td>{html.escape(declared[name].help)}</td></tr>"
            for name, value in self.parameters.items()
        )
        return (
            '<table class="data parameters"><caption>Effective parameters</caption><thead><tr>'
            f"<th>name</th><th>value</th><th>meaning</th></tr></thead><tbody>{lines}</tbody></table>"
            f"{WORDS}"
        )

    @property
    def default(self) -> bool:
        """Whether every parameter but the tier has its default value."""
        declared = parameters(self.path)
        return all(declared[n].default == v for n, v in self.parameters.items() if n != "tier")

    @cached_property
    def published(self) -> published.Published:
        """The published cells of the three papers."""
        return published.load()

    @cached_property
    def claims(self) -> list[claims.Claim]:
        """The claims that this chapter checks."""
        return [c for c in claims.load(self.published) if c.chapter == self.number]

    def measure(self, claim_id: str, value: float | bool, *, low: float | None = None,
                high: float | None = None, detail: str = "") -> None:  # fmt: skip
        """Record what an experiment of this chapter found for a claim whose check is ``measured``.

        Raises:
            ReproError: the chapter has no such claim.
        """
        known = [c.id for c in self.claims if c.check == MEASURED]
        if claim_id not in known:
            raise ReproError(f"chapter {self.number} has no measured claim {claim_id!r}; it has: {known}")
        self.measured[claim_id] = Outcome(value, low, high, detail)

    def record(self, **values: Any) -> None:
        """Keep numbers beside the claims, for other pages."""
        self.values |= values

    @property
    def results(self) -> Path:
        """The file that ``finish`` writes."""
        folder = Path(os.environ.get("REPROLIB_RESULTS") or root() / "book" / "results")
        if self.default:
            return folder / f"{self.number}.json"
        key = json.dumps(self.parameters, sort_keys=True).encode()
        return folder / "variants" / f"{self.number}-{hashlib.sha256(key).hexdigest()[:8]}.json"

    def finish(self) -> "Summary":
        """Run the chapter's checks, write its results file and return the verdicts."""
        outcomes = claims.evaluate(self.claims, self.published) | self.measured
        seconds = time.monotonic() - self._start
        content = {
            "chapter": self.number,
            "tier": self.tier,
            "parameters": self.parameters,
            "claims": {key: asdict(outcome) for key, outcome in sorted(outcomes.items())},
            "values": self.values,
            "provenance": provenance(self.number, seconds),
        }
        write_atomically(self.results, json.dumps(content, indent=1, default=float) + "\n")
        verdicts = [claims.judge(c, outcomes.get(c.id), self.tier) for c in self.claims]
        return Summary(self, verdicts)


def provenance(number: str, seconds: float) -> dict[str, Any]:
    """What a reader needs to know about the run: versions, hardware, time, memory, sources."""
    return {
        "seconds": round(seconds, 2),
        "peak_memory_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
        "python": platform.python_version(),
        "packages": {name: importlib.metadata.version(name) for name in PACKAGES},
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "sources": sources_hash(number),
    }


@dataclass(frozen=True)
class Summary:
    """A chapter's verdicts, for the badge at its end."""

    chapter: Chapter
    verdicts: list[claims.Verdict]

    def counts(self) -> dict[str, int]:
        """Number of claims by status."""
        found: dict[str, int] = {}
        for verdict in self.verdicts:
            found[verdict.status] = found.get(verdict.status, 0) + 1
        return found

    def __str__(self) -> str:
        counts = ", ".join(f"{count} {status}" for status, count in sorted(self.counts().items()))
        return f"Chapter {self.chapter.number}, tier {self.chapter.tier}: {counts or 'no claims'}"

    def _repr_html_(self) -> str:
        badges = " ".join(
            f'<span class="verdict {status}">{count} {status.replace("-", " ")}</span>'
            for status, count in sorted(self.counts().items())
        )
        state = "" if self.chapter.default else " (changed parameters: outside the ledger)"
        return (
            f'<p class="chapter-verdicts"><strong>Chapter {self.chapter.number}, tier '
            f"{self.chapter.tier}{state}:</strong> {badges or 'no claims'}</p>"
        )
