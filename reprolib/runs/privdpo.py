"""Runs of PrivDPO and its competitors: their settings, and how pairs, model and method are put together."""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from reprolib.errors import ReproError
from reprolib.privacy.ledger import AnyPlan, Ledger
from reprolib.privacy.visits import DisjointBatches, LocalPlan
from reprolib.runs.job import Job, entropy_source
from reprolib.runs.spec import Positive, RunSpec, directory

if TYPE_CHECKING:
    from reprolib.learn.dpo import EpochLoop
    from reprolib.learn.preference_loss import PairMethod
    from reprolib.learn.preference_pairs import Pair
    from reprolib.learn.preference_reference import Reference
    from reprolib.lm.models import Policy
    from reprolib.privacy.mechanism import EntropySource
    from reprolib.privacy.preference import PreferenceRandomizer
    from reprolib.tasks.preferences import Preference

Method = Literal["base", "sft", "priv_sft", "dpo", "dp_sgd", "privdpo", "kept", "rr", "duchi", "piecewise"]
FRESH = ("privdpo", "duchi", "piecewise")  # new coins at each visit
KEPT = ("kept", "rr")  # bits randomised once, before the first round
OPEN = ("sft", "dpo")  # annotations used as they are
EVALUATIONS = ("pairs", "selection", "attack_pairs", "attack_training", "generations")
_NEEDED = ("population", "batch_size", "learning_rate")
_PRIORS: "dict[tuple[str, str, str], Reference]" = {}  # by model, its dtype, and a digest of the pairs
Count = Annotated[int, Field(ge=1)]


class PrivdpoSpec(RunSpec):
    """A run of PrivDPO or of one of its competitors, on the pairs of a preference data set.

    Args:
        task: "hh", "tldr" or "ultrafeedback".
        method: "privdpo", "duchi" and "piecewise" draw fresh coins at each visit; "kept" randomises each bit
            once and uses the debiased loss, "rr" does so and uses plain DPO; "dp_sgd" is the Gaussian
            mechanism on triplets; "priv_sft" reads no bit; "sft" and "dpo" are not private.
        reference: where alignment starts and what it is measured against: the base model, or the base after
            an epoch of PrivSFT, or of SFT (the paper's non-private DPO).
        epsilon: of a visit, for fresh coins; of the one draw, for kept bits; of the run, for "dp_sgd".
        delta, clip_norm: of "dp_sgd"; delta None means 1 / (10 n).
        population, batch_size, epochs: pairs, pairs of a round, passes.
        learning_rate, warmup_steps, beta: of AdamW and of the loss; the reference's epoch takes the same.
        train: all weights, or a LoRA adapter.
        max_tokens: longer pairs are left out by their public text.
        evaluated: held-out pairs that are scored, and training pairs of the attack.
        evaluation: "pairs" gives each held-out pair's reward margin over the reference, "selection" that of
            pairs that are neither trained on nor held out, to choose settings by; "attack_pairs" and
            "attack_training" the margin of the log-ratio to the base model, of the base its own
            log-likelihood's; "generations" a response to each held-out prompt, with its known reward if there
            is one. ``strict`` says whether a margin is above 0.
        temperature, max_new_tokens: of the generations.
    """

    builder: ClassVar[str] = "reprolib.runs.privdpo"
    of_the_base: ClassVar[frozenset[str]] = frozenset({
        "task", "model", "dtype", "method", "evaluation", "evaluated", "population", "max_tokens", "beta",
        "temperature", "max_new_tokens",
    })  # fmt: skip

    method: Method
    reference: Literal["base", "priv_sft", "sft"] = "base"
    epsilon: Positive | None = None
    delta: Annotated[float, Field(gt=0, lt=1)] | None = None
    clip_norm: Positive | None = None
    population: Count | None = None
    batch_size: Count | None = None
    epochs: Count = 1
    learning_rate: Positive | None = None
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    beta: Positive = 0.1
    train: Literal["adapter", "full"] = "full"
    max_tokens: Count | None = None
    evaluated: Count = 500
    temperature: Annotated[float, Field(ge=0)] = 0.7
    max_new_tokens: Count = 16

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if wrong := [name for name in self.evaluation if name not in EVALUATIONS]:
            raise ValueError(f"evaluation {wrong[0]!r}: expected one of {', '.join(EVALUATIONS)}")
        if self.population is None:
            raise ValueError("population is missing: it says which pairs are trained on")
        if not self.trained:
            return self
        if missing := [name for name in _NEEDED if getattr(self, name) is None]:
            raise ValueError(f"{missing[0]} is missing: method {self.method!r} needs it")
        private = self.method in (*FRESH, *KEPT, "dp_sgd")
        if private == (self.epsilon is None):
            raise ValueError(
                f"epsilon = {self.epsilon}: method {self.method!r} {'needs one' if private else 'has none'}"
            )
        if self.reference == "sft" and self.method not in OPEN:
            raise ValueError(
                f"reference = 'sft' reads the preferences, and method {self.method!r} would look private: "
                "use 'priv_sft'"
            )
        if (self.method == "dp_sgd") == (self.clip_norm is None):
            raise ValueError(f"clip_norm = {self.clip_norm}: 'dp_sgd' needs one, no other method has one")
        if self.batch_size > self.population:  # type: ignore[operator]  # both are there
            raise ValueError(
                f"batch_size = {self.batch_size}: expected at most the population, {self.population}"
            )
        return self._scored_in_time()

    @property
    def last_round(self) -> int:
        """Batches of all epochs."""
        if not self.trained:
            return 0
        n, m = self._sizes()
        return self.epochs * -(-n // m)

    @property
    def variant(self) -> str:
        """The method, and its epsilon if it has one."""
        return self.method if self.epsilon is None else f"{self.method}-eps{self.epsilon:g}"

    def plan(self) -> AnyPlan | None:
        """What the run may spend on a preference; infinite where annotations are used as they are.

        Raises:
            ReproError: an epsilon that the randomiser refuses.
        """
        if not self.trained:
            return None
        n, m = self._sizes()
        if self.method == "dp_sgd":
            from reprolib.learn.dpo import TRIPLET

            return DisjointBatches.calibrated(
                unit=TRIPLET, population=n, expected_batch_size=m, rounds=self.last_round,
                clip_norm=self.clip_norm or 0.0, delta=self.delta or 1 / (10 * n),
                target_epsilon=self.epsilon or 0.0,
            )  # fmt: skip
        visit = float("inf") if self.method in OPEN else 0.0
        if self.method in FRESH:
            visit = self.randomizer().effective_epsilon
        once = self.epsilon if self.method in KEPT else None
        return LocalPlan(
            population=n, batch_size=m, epochs=self.epochs, visit_epsilon=visit, once_epsilon=once or 0.0
        )

    def randomizer(self) -> "PreferenceRandomizer":
        """The randomiser of a method with fresh coins.

        Raises:
            ReproError: an epsilon out of its range.
        """
        from reprolib.privacy.preference import Duchi, Piecewise, PrivDPO

        epsilon = self.epsilon or 0.0
        if self.method == "privdpo":
            return PrivDPO(epsilon)
        return Duchi(epsilon) if self.method == "duchi" else Piecewise(epsilon)

    def _sizes(self) -> tuple[int, int]:
        return self.population or 1, self.batch_size or 1


def build(spec: PrivdpoSpec, plan: AnyPlan | None, ledger: Ledger | None) -> Job:
    """Load pairs and model, make the reference, and make the trainer of the spec's method.

    Raises:
        ReproError: the data set has fewer pairs than the spec's population, or fewer held-out ones than are
            evaluated.
    """
    from reprolib.learn.preference_reference import Reference
    from reprolib.lm import models

    policy = models.load(spec.model, dtype=spec.dtype)
    train, selection, held_out, prompts = _pairs(spec, policy)
    shown = train[: spec.evaluated]
    scored = [*train, *selection, *held_out]
    reference = prior = _prior(spec, policy, scored)
    entropy = entropy_source(spec)
    trainer = None
    if plan is not None:
        policy.model.requires_grad_(spec.train == "full")
        policy = policy if spec.train == "full" else models.attach_lora(policy, seed=spec.seed)
        if spec.reference != "base":
            _make_reference(spec, policy, train)
            reference = Reference.of(policy, scored)
        trainer = _trainer(spec, policy, reference, train, plan, entropy, ledger)
    scores = {
        "pairs": lambda: _margins(spec, policy, held_out, reference),
        "selection": lambda: _margins(spec, policy, selection, reference),
        "attack_pairs": lambda: _attack(spec, policy, held_out, prior),
        "attack_training": lambda: _attack(spec, policy, shown, prior),
        "generations": lambda: _generations(spec, policy, prompts, held_out),
    }

    def save(folder: Path) -> None:
        (models.export if spec.train == "full" else models.save_adapter)(policy, folder)

    return Job(trainer=trainer, score=lambda name: scores[name](), save_adapter=save)


def _pairs(
    spec: PrivdpoSpec, policy: "Policy"
) -> "tuple[list[Pair], list[Pair], list[Pair], list[Preference]]":
    """Training, selection and held-out pairs, and the held-out records; what is too long is left out."""
    from reprolib.learn.preference_pairs import encode_pair
    from reprolib.tasks.preferences import load_preferences

    data = load_preferences(spec.task, tier=spec.tier)
    limit = min(spec.max_tokens or 10**9, policy.model.config.max_position_embeddings)
    known = _encoded(spec.model, spec.task, spec.tier)

    def first(records: "Sequence[Preference]", count: int) -> "list[tuple[Preference, Pair]]":
        found: list[tuple[Preference, Pair]] = []
        for record in records:
            pair = known.get(record) or known.setdefault(record, encode_pair(policy, record))
            if len(pair.prompt) + max(len(pair.first), len(pair.second)) <= limit:
                found.append((record, pair))
            if len(found) == count:
                break
        return found

    population, selected = spec.population or 0, "selection" in spec.evaluation
    pool = [pair for _, pair in first(data.train, population + selected * spec.evaluated)]
    held_out = first(data.evaluation, spec.evaluated)
    if len(pool) < population + selected or not held_out:
        raise ReproError(
            f"{spec.task} at tier {spec.tier} has {len(pool)} training pairs of at most {limit} tokens, the "
            f"run trains on {population}{' and selects by others' if selected else ''}: lower it, or use more"
            " data"
        )
    train, selection = pool[:population], pool[population:]
    return train, selection, [pair for _, pair in held_out], [record for record, _ in held_out]


@lru_cache(maxsize=1)
def _encoded(model: str, task: str, tier: str) -> "dict[Preference, Pair]":
    """Pairs in tokens that the runs of a study share: one dictionary for each model and data set."""
    return {}


def _prior(spec: PrivdpoSpec, policy: "Policy", pairs: "list[Pair]") -> "Reference":
    """The base as the reference of these pairs, which the runs of a study share."""
    from reprolib.learn.preference_pairs import data_digest
    from reprolib.learn.preference_reference import Reference

    key = (spec.model, spec.dtype, data_digest(pairs))
    if key not in _PRIORS:
        _PRIORS.clear()  # one data set in memory
        _PRIORS[key] = Reference.of(policy, pairs)
    return _PRIORS[key]


def _make_reference(spec: PrivdpoSpec, policy: "Policy", train: "list[Pair]") -> None:
    """One epoch of supervised training; it draws no coin, so a resumed run makes the same one again."""
    from reprolib.learn import dpo
    from reprolib.learn.preference_loss import SFT, PrivSFT
    from reprolib.learn.preference_records import PairGradients
    from reprolib.privacy.mechanism import EntropySource

    method = SFT() if spec.reference == "sft" else PrivSFT()
    loop = dpo.aligner(
        policy, PairGradients(policy, method), train, EntropySource.research(0), seed=spec.seed,
        batch_size=spec.batch_size or 1, learning_rate=spec.learning_rate or 0.0,
        warmup_steps=spec.warmup_steps,
    )  # fmt: skip
    while loop.rounds_done < loop.rounds:
        loop.step()


def _trainer(
    spec: PrivdpoSpec, policy: "Policy", reference: "Reference", train: "list[Pair]", plan: AnyPlan,
    entropy: "EntropySource", ledger: Ledger | None,
) -> "EpochLoop":  # fmt: skip
    from reprolib.learn import dpo
    from reprolib.learn.preference_records import PairGradients

    settings: dict[str, Any] = {
        "seed": spec.seed, "learning_rate": spec.learning_rate, "warmup_steps": spec.warmup_steps,
        "ledger": ledger,
    }  # fmt: skip
    gradients = PairGradients(
        policy, _method(spec), beta=spec.beta, reference=reference,
        per_record=isinstance(plan, DisjointBatches),
    )  # fmt: skip
    if isinstance(plan, DisjointBatches):
        return dpo.single_pass(policy, gradients, train, plan, entropy, **settings)
    if spec.method in KEPT:
        train = _kept_bits(spec, train, entropy, ledger)
    return dpo.aligner(
        policy, gradients, train, entropy, epochs=spec.epochs, batch_size=spec.batch_size or 1, **settings
    )


def _kept_bits(
    spec: PrivdpoSpec, train: "list[Pair]", entropy: "EntropySource", ledger: Ledger | None
) -> "list[Pair]":
    """The pairs with bits randomised once; a resumed run reads what was drawn, and spends nothing again.

    Raises:
        ReproError: rounds were trained on bits whose file is gone: the plan has one draw, not two.
    """
    from reprolib.learn.preference_bits import RandomizedBits

    path, epsilon = directory(spec) / "bits.json", spec.epsilon or 0.0
    if not path.is_file():
        if ledger and ledger.spent:
            raise ReproError(
                f"{path} is gone, and {ledger.spent} rounds were begun on its bits: a new draw would spend "
                f"epsilon {epsilon:g} again; restore the file, or delete the directory to start again"
            )
        RandomizedBits.draw(train, epsilon=epsilon, entropy=entropy).write(path)
    return list(RandomizedBits.read(path, train, epsilon=epsilon).apply(train))


def _method(spec: PrivdpoSpec) -> "PairMethod":
    from reprolib.learn.preference_loss import DPO, SFT, Debiased, PrivSFT, Randomized

    if spec.method in FRESH:
        return Randomized(spec.randomizer())
    if spec.method == "kept":
        return Debiased(spec.epsilon or 0.0)
    if spec.method == "sft":
        return SFT()
    return PrivSFT() if spec.method == "priv_sft" else DPO()


def _rows(pairs: "Sequence[Pair]", margins: Sequence[float]) -> list[dict[str, Any]]:
    return [
        {"problem": pair.id, "response": "", "tokens": 0, "capped": False, "strict": int(margin > 0),
         "rescore": None, "value": margin}
        for pair, margin in zip(pairs, margins, strict=True)
    ]  # fmt: skip


def _margins(
    spec: PrivdpoSpec, policy: "Policy", pairs: "list[Pair]", reference: "Reference"
) -> list[dict[str, Any]]:
    from reprolib.learn.preference_reference import reward_margins

    if not spec.trained:  # the base is its own reference
        return _rows(pairs, [0.0] * len(pairs))
    return _rows(pairs, reward_margins(policy, pairs, reference, beta=spec.beta).tolist())


def _attack(
    spec: PrivdpoSpec, policy: "Policy", pairs: "list[Pair]", prior: "Reference"
) -> list[dict[str, Any]]:
    """The preferred response's score over the other's. Source: PrivDPO, Appendix D.3."""
    import torch

    from reprolib.learn.preference_pairs import bits
    from reprolib.learn.preference_reference import log_probabilities

    scores = log_probabilities(policy, pairs) - prior(pairs) if spec.trained else prior(pairs)
    difference = scores[:, 0] - scores[:, 1]
    return _rows(pairs, torch.where(bits(pairs), difference, -difference).tolist())


def _generations(
    spec: PrivdpoSpec, policy: "Policy", records: "list[Preference]", pairs: "list[Pair]"
) -> list[dict[str, Any]]:
    """A response to the prompt of each held-out record; the draws are the same for every run of a seed."""
    import numpy as np

    from reprolib.lm.generate import Sampling, TransformersEngine
    from reprolib.tasks.preference_micro import ideal_reward

    engine = TransformersEngine(policy)
    engine.update(policy)
    sampling = Sampling(completions=1, max_new_tokens=spec.max_new_tokens, temperature=spec.temperature)
    uniform = np.random.default_rng([spec.seed, 2]).random if spec.temperature else None
    asked = [pair.prompt for pair in pairs]
    reward = ideal_reward(spec.task) if spec.tier in ("smoke", "micro") else None
    rows = []
    for record, (found,) in zip(records, engine.generate(asked, sampling, uniform), strict=True):
        text = policy.tokenizer.decode(list(found.tokens), skip_special_tokens=True)
        rows.append({
            "problem": record.id, "response": text, "tokens": len(found.tokens), "capped": found.capped,
            "strict": None, "rescore": None, "value": reward(record.messages, text) if reward else None,
        })  # fmt: skip
    return rows
