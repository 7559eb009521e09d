"""Training runs as directories on disk.

    >>> specs = runs.grid("dp_grpo", "micro", "math")             # doctest: +SKIP
    >>> found = [runs.load(path) for path in runs.ensure_all(specs)]  # doctest: +SKIP

A directory ``runs/<tier>/<paper>/<method>-<task>-seed<k>-<hash>`` holds ``spec.json``, ``ledger.jsonl``,
``metrics.jsonl`` (released quantities only), ``predictions.parquet``, ``adapter/`` and ``provenance.json``,
which is written last. Rewards, completions on training prompts, batch sizes and the time of a round are
private and are written nowhere.
"""

from reprolib.runs.execution import ensure, ensure_all
from reprolib.runs.experiments import experiment, grid, studies
from reprolib.runs.results import Run, best_learning_rate, directories, load, read_spec, state
from reprolib.runs.spec import RunSpec, directory

__all__ = [
    "Run", "RunSpec", "best_learning_rate", "directories", "directory", "ensure", "ensure_all", "experiment",
    "grid", "load", "read_spec", "state", "studies",
]  # fmt: skip
