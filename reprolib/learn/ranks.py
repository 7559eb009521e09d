"""Several processes, one mechanism: records are shared out, coins and noise are drawn once.

    torchrun --nproc-per-node 2 -m reprolib.cli run dp_grpo --tier micro

The first process tosses the coins of a round and hands each process its part of the records. Each clips its
records' vectors and adds them up; the sums are added on the first process, which adds the noise and hands
the release to all. So no coin and no noise is drawn twice, and the law is that of one process whatever
their number. What a process holds between rounds is the public release.

Source: DP-GRPO, Algorithm 1, lines 2, 7 and 8; SAGE, Algorithm 1, lines 4 and 5.
"""

import json
import os
import subprocess
import sys
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, distributed

from reprolib.errors import ReproError
from reprolib.paths import write_atomically
from reprolib.privacy.mechanism import EntropySource, GaussianSum, PoissonSampler
from reprolib.privacy.plan import Plan

PATIENCE = timedelta(days=2)  # the others wait while the first process scores


def count() -> int:
    """Processes that torchrun started; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def rank() -> int:
    """Number of this process, from 0."""
    return int(os.environ.get("RANK", "0"))


def join() -> None:
    """Meet the other processes; a GPU each where there are GPUs. Sums and messages go through the CPU."""
    if count() > 1 and not distributed.is_initialized():
        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
        distributed.init_process_group("gloo", timeout=PATIENCE)


def from_first(value: Any) -> Any:
    """The first process's value, in every process."""
    if count() == 1:
        return value
    join()
    held = [value]
    distributed.broadcast_object_list(held, src=0)
    return held[0]


def of_all(value: Any) -> list[Any]:
    """The values of all processes, in every process."""
    if count() == 1:
        return [value]
    join()
    held: list[Any] = [None] * count()
    distributed.all_gather_object(held, value)
    return held


class SharedSampler(PoissonSampler):
    """One Poisson draw a round, made by the first process; each takes every ``count``-th slot of it."""

    def draw(self) -> NDArray[np.intp]:
        """Slots of this process, in increasing order; together the processes have each drawn slot once."""
        slots: NDArray[np.intp] = from_first(super().draw() if rank() == 0 else None)
        return slots[rank() :: count()]


class SharedSum(GaussianSum):
    """A ``GaussianSum`` over the records of all processes: their sums are added, the noise is added once."""

    def release(self) -> Tensor:
        """End the round in every process: the same noisy average, binary64, [dimension]."""
        distributed.reduce(self._sum, dst=0)
        update = super().release() if rank() == 0 else self._without_noise()
        distributed.broadcast(update, src=0)
        return update

    def _without_noise(self) -> Tensor:
        self._close()
        return torch.empty_like(self._sum)


def sampler_and_sum(
    plan: Plan, entropy: EntropySource, *, dimension: int
) -> tuple[PoissonSampler, GaussianSum]:
    """What draws the records of a plan and what releases them, for as many processes as there are.

    Args:
        dimension: length of a record's vector.
    """
    join()
    if count() == 1:
        return PoissonSampler(plan, entropy), GaussianSum(plan, entropy, dimension=dimension)
    return SharedSampler(plan, entropy), SharedSum(plan, entropy, dimension=dimension)


def launch(module: str, *arguments: str, processes: int) -> Any:
    """Run a module's ``__main__`` in processes of torchrun, on CPUs; what its first process reported.

    Args:
        module: it gets the file to report to, and then the arguments.
        processes: how many; each runs one thread.

    Raises:
        ReproError: a process failed, or none reported; with the first error that they wrote.
    """
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "report.json"
        command = [
            sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}",
            "-m", module, str(target), *arguments,
        ]  # fmt: skip
        # loopback: the machine's name need not resolve
        settings = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "CUDA_VISIBLE_DEVICES": ""}
        done = subprocess.run(
            command, env=os.environ | settings, capture_output=True, text=True, check=False, timeout=300
        )
        if done.returncode or not target.is_file():
            lines = done.stderr.strip().splitlines() or ["no output"]
            told = [line for line in lines if "Error" in line]  # torchrun writes a frame around it
            raise ReproError(
                f"the sharded run failed with exit status {done.returncode}: {(told or lines)[0]}"
            )
        return json.loads(target.read_text(encoding="utf-8"))


def report(target: str, content: Any) -> None:
    """What ``launch`` returns, from the first process; the end of every process."""
    if rank() == 0:
        write_atomically(Path(target), json.dumps(content) + "\n")
    if distributed.is_initialized():
        distributed.destroy_process_group()
