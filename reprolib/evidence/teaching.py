"""The page "Weeks, times and plans", from the exercises' own times and ``book/teaching.yml``."""

import json
from collections.abc import Iterable
from typing import Any
from urllib.parse import quote, urlparse

import yaml

from reprolib.errors import ReproError
from reprolib.evidence import exercises, notebooks
from reprolib.evidence.exercises import Exercise
from reprolib.paths import root
from reprolib.runs import experiments

LEDGER = "40"  # reads what the other chapters found, so it does not run alone
CLOUD_MIB, CLOUD_SECONDS = (
    1500,
    180,
)  # a free Binder session has about two gigabytes and one or two slow cores


def page() -> str:
    """The page, as MyST.

    Raises:
        ReproError: ``book/teaching.yml`` names an exercise or a chapter that does not exist.
    """
    plan = yaml.safe_load((root() / "book" / "teaching.yml").read_text(encoding="utf-8"))
    found = {e.label: e for number in notebooks.numbers() for e in exercises.read(number)}
    parts = [
        "# Weeks, times and plans\n",
        "Minutes of exercises are those that the exercises state, without their extensions.\n",
        "## Exercises by chapter\n", _by_chapter(found.values()),
        "## Exercises by week of a course\n", _table(("week", "chapters", "exercises", "minutes"), (
            (row["topic"], _chapters(row["chapters"]), *_exercises(row["exercises"], found))
            for row in plan["weeks"]
        )),
    ]  # fmt: skip
    for course in plan["plans"]:
        rows = [
            (str(index), session["what"], str(session["minutes"]), _chapters(session["chapters"]),
             *_exercises(session["exercises"], found))
            for index, session in enumerate(course["sessions"], 1)
        ]  # fmt: skip
        lecture = sum(session["minutes"] for session in course["sessions"])
        rows.append(
            ("", "**together**", f"**{lecture}**", "", "", f"**{sum(int(row[-1]) for row in rows)}**")
        )
        head = ("", "lecture", "minutes", "chapters", "exercises", "minutes of exercises")
        parts += [f"## {course['name']}\n", _table(head, rows)]
    parts += ["## Chapters that fit a small cloud notebook\n", _cloud()]
    return "\n".join(parts) + "\n"


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = list(head)
    lines = [f"| {' | '.join(head)} |", f"| {' | '.join('---' for _ in head)} |"]
    return "\n".join(lines + [f"| {' | '.join(row)} |" for row in rows]) + "\n"


def _link(number: str) -> str:
    return f"[{number}](../../executed/{notebooks.notebook(number).stem})"


def _chapters(numbers: Iterable[str]) -> str:
    return ", ".join(map(_link, numbers))


def _exercises(labels: Iterable[str], found: dict[str, Exercise]) -> tuple[str, str]:
    """Links to the exercises, and their minutes together."""
    labels = list(labels)
    if unknown := [label for label in labels if label not in found]:
        raise ReproError(f"book/teaching.yml names the exercise {unknown[0]!r}, which no chapter has")
    minutes = sum(found[label].minutes or 0 for label in labels)
    return ", ".join(f"{{ref}}`{found[label].title} <{label}>`" for label in labels), str(minutes)


def _by_chapter(found: Iterable[Exercise]) -> str:
    rows: dict[str, list[Exercise]] = {}
    for exercise in found:
        rows.setdefault(exercise.chapter, []).append(exercise)
    return _table(
        ("chapter", "exercises", "minutes", "to run, s", "trained runs"),
        (
            (
                _link(number),
                ", ".join(f"{{ref}}`{e.title} <{e.label}>` ({e.minutes})" for e in rows[number]),
                str(sum(e.minutes or 0 for e in rows[number])),
                f"{_made(number).get('seconds', 0):.0f}",
                "yes" if experiments.needed(number, "micro") else "no",
            )
            for number in sorted(rows)
        ),
    )


def _made(number: str) -> dict[str, Any]:
    """How the chapter was run last: seconds, memory; empty if it was not."""
    path = root() / "book" / "results" / f"{number}.json"
    if not path.is_file():
        return {}
    made: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["provenance"]
    return made


def fits_cloud(number: str) -> bool:
    """Whether a chapter trains no runs, stands alone, and was light when it was run last."""
    made = _made(number)
    light = made.get("peak_memory_mib", 0) <= CLOUD_MIB and made.get("seconds", 0) <= CLOUD_SECONDS
    return number != LEDGER and not experiments.needed(number, "micro") and light


def launch_link(number: str, repository: str, branch: str = "main") -> str:
    """The address at which Binder opens a chapter.

    Args:
        repository: address of the repository on GitHub or GitLab.

    Raises:
        ReproError: another kind of address.
    """
    parts = urlparse(repository)
    kind = {"github.com": "gh", "gitlab.com": "gl"}.get(parts.netloc)
    name = parts.path.strip("/").removesuffix(".git")
    if kind is None or name.count("/") != 1:
        raise ReproError(f"_config.yml, repository.url: {repository!r} is no repository on GitHub or GitLab")
    name = name if kind == "gh" else quote(name, safe="")
    path = quote(f"lab/tree/notebooks/{notebooks.notebook(number).name}", safe="")
    return f"https://mybinder.org/v2/{kind}/{name}/{quote(branch, safe='')}?urlpath={path}"


def _cloud() -> str:
    config = yaml.safe_load((root() / "_config.yml").read_text(encoding="utf-8"))
    repository = config.get("repository") or {}
    url, branch = repository.get("url") or "", repository.get("branch") or "main"
    numbers = [number for number in notebooks.numbers() if fits_cloud(number)]
    if url:
        links = ", ".join(f"{_link(n)} ([Binder]({launch_link(n, url, branch)}))" for n in numbers)
        note = "The links were made from the repository's address and have not been tried."
    else:
        links = _chapters(numbers)
        note = "There are no launch links yet: `_config.yml` names no repository (`repository.url`)."
    return (
        f"They train no runs, and took at most {CLOUD_MIB} MiB and {CLOUD_SECONDS} s when this book was "
        f"built: {links}.\n\n{note} `.binder/` holds what Binder needs; an image made from it has not "
        "been tried either. A hosted notebook with a Python of its own choice will not do, since the package "
        "needs Python 3.11.\n"
    )
