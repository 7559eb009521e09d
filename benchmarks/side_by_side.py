"""What every benchmark shares: alternating runs in one process, one table, one JSON file."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import pandas as pd

T = TypeVar("T")


def alternate(runs: dict[str, Callable[[], T]], repeats: int) -> tuple[dict[str, float], dict[str, T]]:
    """Median seconds and last result of each run, in turns, after a warm-up of the first.

    Processor time, not wall time: other work on the machine does not count. Use one thread.
    """
    seconds: dict[str, list[float]] = {who: [] for who in runs}
    results: dict[str, T] = {}
    next(iter(runs.values()))()
    for _ in range(repeats):
        for who, run in runs.items():
            start = time.process_time()
            results[who] = run()
            seconds[who].append(time.process_time() - start)
    return {who: median(times) for who, times in seconds.items()}, results


def report(name: str, rows: list[dict[str, Any]]) -> None:
    """Print the rows as a table and write them to benchmarks/results/<name>.json."""
    print(pd.DataFrame(rows).to_string(index=False, float_format=lambda x: f"{x:.4g}"))
    target = Path(__file__).parent / "results" / f"{name}.json"
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
