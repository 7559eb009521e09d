"""One plan from which sampler, clip, noise, divisor, ledger and accountant all come.

    >>> plan = Plan.calibrated(unit="one prompt with all its completions", population=6988,
    ...                        expected_batch_size=128, rounds=50, clip_norm=0.05536, delta=1 / 69880,
    ...                        target_epsilon=8.0)
    >>> round(plan.noise_multiplier, 6)
    0.48424

Because the parts share the plan, the mechanism that runs is the mechanism that is accounted for.
Source: DP-GRPO, Algorithm 1 and Section VI-C.
"""

import html
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any, Self

from reprolib.errors import ReproError
from reprolib.privacy import accounting
from reprolib.privacy.accounting import Accountant
from reprolib.privacy.losses import check_parameters

_calibrated_noise = cache(accounting.calibrate_noise_multiplier)  # the runs of a study ask for the same
ADJACENCY = "add or remove one record"
SAMPLING = "Poisson: an independent coin for every slot in every round"
NOT_COVERED = (
    "what the public base model already knew",
    "tuning runs on the same records",
    "floating-point execution of a real-valued mechanism",
)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A run of the Poisson-subsampled Gaussian mechanism.

    Args:
        unit: the record whose presence is protected, in words.
        population: number of public slots n.
        expected_batch_size: expected records a round m; also the public divisor of the sum.
        rounds: number of releases T.
        clip_norm: largest L2 norm C of one record's vector; ``math.inf``, no clipping, only without noise.
        noise_multiplier: noise standard deviation over ``clip_norm``, sigma; 0 for a run without noise.
        delta: failure probability of the guarantee.

    Raises:
        ReproError: a parameter out of range.
    """

    unit: str
    population: int
    expected_batch_size: float
    rounds: int
    clip_norm: float
    noise_multiplier: float
    delta: float

    def __post_init__(self) -> None:
        if not (isinstance(self.population, int) and self.population >= 1):
            raise ReproError(
                f"population = {self.population!r}: expected a whole number of slots, at least 1"
            )
        if not 0 < self.expected_batch_size <= self.population:
            raise ReproError(
                f"expected_batch_size = {self.expected_batch_size!r}: expected more than 0 and at most "
                f"the population, {self.population}"
            )
        if not (self.clip_norm > 0 and (math.isfinite(self.clip_norm) or self.noise_multiplier == 0)):
            raise ReproError(
                f"clip_norm = {self.clip_norm!r}: expected a finite number above 0 (infinity, no clipping, "
                "is for a run without noise)"
            )
        if self.noise_multiplier != 0:
            check_parameters(noise_multiplier=self.noise_multiplier)
        check_parameters(rounds=self.rounds, delta=self.delta)

    @classmethod
    def calibrated(
        cls, *, unit: str, population: int, expected_batch_size: float, rounds: int, clip_norm: float,
        delta: float, target_epsilon: float,
    ) -> "Plan":  # fmt: skip
        """The plan with the least noise that the PLD accountant certifies at ``target_epsilon``."""
        noiseless = cls(
            unit=unit, population=population, expected_batch_size=expected_batch_size, rounds=rounds,
            clip_norm=clip_norm, noise_multiplier=0.0, delta=delta,
        )  # fmt: skip
        sigma = _calibrated_noise(
            sampling_rate=noiseless.sampling_rate, rounds=rounds, target_epsilon=target_epsilon, delta=delta
        )
        return cls(**{**asdict(noiseless), "noise_multiplier": sigma})

    @property
    def sampling_rate(self) -> float:
        """Probability q = m / n that a slot takes part in a round."""
        return self.expected_batch_size / self.population

    @property
    def noise_std(self) -> float:
        """Standard deviation of each coordinate of the released average, sigma C / m; 0 without noise."""
        if self.noise_multiplier == 0:
            return 0.0  # also where C is infinite
        return self.noise_multiplier * self.clip_norm / self.expected_batch_size

    def noise_norm(self, dimension: int) -> float:
        """Expected norm of the noise in the released average, sigma C sqrt(p) / m (Appendix C-A)."""
        return self.noise_std * math.sqrt(dimension)

    def epsilon(self, *, accountant: Accountant = "pld") -> float:
        """Budget of the whole run; infinite without noise."""
        if self.noise_multiplier == 0:
            return math.inf
        return accounting.epsilon(
            sampling_rate=self.sampling_rate, noise_multiplier=self.noise_multiplier, rounds=self.rounds,
            delta=self.delta, accountant=accountant,
        )  # fmt: skip

    def after(self, rounds: Sequence[int | None]) -> Self:
        """The plan of the rounds that were begun, repetitions included; of one round where there is none."""
        return replace(self, rounds=max(1, len(rounds)))

    def spent(self, rounds: Sequence[int | None], *, accountant: Accountant = "pld") -> float:
        """Budget after the rounds begun: 0 before the first, infinite without noise."""
        return self.after(rounds).epsilon(accountant=accountant) if rounds else 0.0

    def card(self, *, replayable: bool = False, ran: str | None = None,
             not_covered: tuple[str, ...] = ()) -> "PrivacyCard":  # fmt: skip
        """The privacy card of a run of this plan.

        Args:
            replayable: True if the noise came from a research source: the card then refuses to state
                a guarantee.
            ran: the sampling that was run, if it is not what the plan assumes.
            not_covered: further limits of the guarantee, beside those of every run.
        """
        return PrivacyCard(
            unit=self.unit, adjacency=ADJACENCY, sampling_assumed=SAMPLING, sampling_run=ran or SAMPLING,
            clip_norm=self.clip_norm if math.isfinite(self.clip_norm) else None,
            noise_multiplier=self.noise_multiplier, accountant="PLD",
            epsilon=self.epsilon(), delta=self.delta, second_accountant="RDP",
            second_epsilon=self.epsilon(accountant="rdp"), replayable=replayable,
            not_covered=NOT_COVERED + not_covered,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class PrivacyCard:
    """What a run or a mechanism protects, at what cost, and what it leaves open.

    ``epsilon`` is a guarantee only if the noise was hidden, fresh and as accounted: ``guarantee`` says so.
    """

    unit: str
    adjacency: str
    sampling_assumed: str = "none: every record is used once"
    sampling_run: str = "none: every record is used once"
    clip_norm: float | None = None
    noise_multiplier: float | None = None
    accountant: str
    epsilon: float
    delta: float
    second_accountant: str | None = None
    second_epsilon: float | None = None
    replayable: bool = False
    not_covered: tuple[str, ...] = ()

    @property
    def guarantee(self) -> bool:
        """Whether epsilon may be called a guarantee."""
        return (
            not self.replayable and math.isfinite(self.epsilon) and self.sampling_run == self.sampling_assumed
        )

    @property
    def epsilon_text(self) -> str:
        """Epsilon as it may be printed."""
        if not math.isfinite(self.epsilon):
            return "none: no noise is added (not a guarantee)"
        if self.replayable:
            return f"{self.epsilon:.4g} (not a guarantee: the noise can be replayed)"
        if not self.guarantee:
            return f"{self.epsilon:.4g} (not a guarantee: another sampling was run)"
        return f"{self.epsilon:.4g}"

    def rows(self) -> list[tuple[str, str]]:
        """The card's lines, label and text."""
        lines = [
            ("Unit", self.unit),
            ("Neighbours", self.adjacency),
            ("Sampling assumed", self.sampling_assumed),
            ("Sampling run", self.sampling_run),
            ("Clip norm", None if self.clip_norm is None else f"{self.clip_norm:.6g}"),
            ("Noise multiplier", None if self.noise_multiplier is None else f"{self.noise_multiplier:.6g}"),
            ("Epsilon", f"{self.epsilon_text} ({self.accountant})"),
            ("Delta", "0 (pure)" if self.delta == 0 else f"{self.delta:.4g}"),
            (
                "Second accountant",
                None
                if self.second_epsilon is None
                else f"{self.second_epsilon:.4g} ({self.second_accountant})",
            ),
            ("Not covered", "; ".join(self.not_covered)),
        ]
        return [(label, text) for label, text in lines if text]

    def to_json(self) -> str:
        """The card as JSON, with ``guarantee`` and ``epsilon_text`` spelled out."""
        content: dict[str, Any] = asdict(self) | {
            "guarantee": self.guarantee,
            "epsilon_text": self.epsilon_text,
        }
        if not math.isfinite(self.epsilon):
            content["epsilon"] = None
        return json.dumps(content, indent=2)

    def __str__(self) -> str:
        return "\n".join(f"{label + ':':<19}{text}" for label, text in self.rows())

    def _repr_html_(self) -> str:
        lines = "".join(
            f'<tr><th scope="row">{html.escape(label)}</th><td>{html.escape(text)}</td></tr>'
            for label, text in self.rows()
        )
        state = "guarantee" if self.guarantee else "no-guarantee"
        return (
            f'<table class="privacy-card {state}"><caption>Privacy card</caption>'
            f"<tbody>{lines}</tbody></table>"
        )
