from typing import Any

from reprolib.runs.dp_grpo import GrpoSpec

FIELDS: dict[str, Any] = {
    "paper": "dp_grpo", "study": "math", "arm": "dp_grpo", "task": "math", "tier": "smoke", "seed": 1,
    "model": "micro", "method": "grpo", "population": 40, "expected_batch_size": 4.0, "rounds": 5,
    "clip_norm": 0.5, "noise_multiplier": 1.1, "learning_rate": 1e-3, "max_new_tokens": 16,
    "evaluation": ("math",),
}  # fmt: skip


def spec(**changes: Any) -> GrpoSpec:
    return GrpoSpec(**{**FIELDS, **changes})


def base(**changes: Any) -> GrpoSpec:
    kept = ("paper", "study", "task", "tier", "seed", "model", "max_new_tokens", "evaluation")
    return GrpoSpec(**{**{k: FIELDS[k] for k in kept}, "arm": "base", "method": "base", **changes})


def dying(build: Any, after: int) -> Any:
    """A family's real build, killed in the middle of a run."""

    def once(the_spec: Any, plan: Any, book: Any) -> Any:
        job = build(the_spec, plan, book)
        step = job.trainer.step

        def once_more() -> Any:
            if job.trainer.rounds_done == after:
                raise KeyboardInterrupt
            return step()

        job.trainer.step = once_more
        return job

    return once
