"""Which of two responses is better: the judges of win rates.

    won = win_rate(RewardJudge(ideal_reward("hh")), prompts, ours, theirs)
    won.rate, won.wins, won.ties, won.losses

``RewardJudge`` compares a reward: the known one of the micro tier, or a reward model's. An endpoint that
speaks OpenAI's protocol is in ``reprolib.tasks.preference_endpoint``.
Source: PrivDPO, Section 5.4 (responses of two policies to one prompt, a judge model, criteria by data set).
The paper does not say what it does with ties; here a tie is half a win.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from reprolib.errors import ReproError

Messages = Sequence[Mapping[str, str]]
Outcome = Literal["win", "tie", "loss", "unread"]
Reward = Callable[[Messages, str], float]


class Judge(Protocol):
    """What compares two responses to one prompt."""

    def compare(self, prompt: Messages, first: str, second: str) -> Outcome:
        """The outcome for ``first``; "unread" where the judge's answer names no side."""
        ...


@dataclass(frozen=True)
class WinRate:
    """The outcomes of one policy against another, a prompt each, in the prompts' order."""

    outcomes: tuple[Outcome, ...]

    @property
    def wins(self) -> int:
        """Prompts whose first response is better."""
        return self.outcomes.count("win")

    @property
    def ties(self) -> int:
        """Prompts whose responses are equally good, or whose judge contradicted itself when they swapped."""
        return self.outcomes.count("tie")

    @property
    def losses(self) -> int:
        """Prompts whose second response is better."""
        return self.outcomes.count("loss")

    @property
    def unread(self) -> int:
        """Prompts without a verdict; they are in no rate."""
        return self.outcomes.count("unread")

    @property
    def scores(self) -> tuple[float, ...]:
        """1, 1/2 or 0 for each prompt that has a verdict: what an interval is computed from."""
        worth = {"win": 1.0, "tie": 0.5, "loss": 0.0}
        return tuple(worth[outcome] for outcome in self.outcomes if outcome in worth)

    @property
    def rate(self) -> float:
        """Mean score, a share of 1; NaN where no prompt has a verdict."""
        return sum(self.scores) / len(self.scores) if self.scores else float("nan")


def win_rate(judge: Judge, prompts: Sequence[Messages], a: Sequence[str], b: Sequence[str]) -> WinRate:
    """The outcomes of responses ``a`` against ``b``; equal responses tie, and no judge is asked.

    Raises:
        ReproError: no prompt, or not one response of each side for each prompt; what the judge raises.
    """
    if not prompts or not len(prompts) == len(a) == len(b):
        raise ReproError(
            f"{len(prompts)} prompts with {len(a)} and {len(b)} responses: expected one of each side a prompt"
        )
    return WinRate(
        tuple(
            "tie" if first.strip() == second.strip() else judge.compare(prompt, first, second)
            for prompt, first, second in zip(prompts, a, b, strict=True)
        )
    )


@dataclass(frozen=True)
class RewardJudge:
    """Compares the rewards of the two responses.

    Attributes:
        reward: of a prompt and a response.
        margin: a difference up to this is a tie.
    """

    reward: Reward
    margin: float = 0.0

    def compare(self, prompt: Messages, first: str, second: str) -> Outcome:
        """The outcome for ``first``.

        Raises:
            ReproError: a reward that is NaN; what the reward raises.
        """
        difference = self.reward(prompt, first) - self.reward(prompt, second)
        if difference != difference:
            raise ReproError("the rewards of two responses have no difference (NaN): expected finite rewards")
        return "tie" if abs(difference) <= self.margin else "win" if difference > 0 else "loss"


class RewardModel:
    """The reward of a model that puts one number on a dialogue: a transformers sequence classifier.

    Args:
        model: a sequence classifier with one label.
        tokenizer: its tokenizer, with a chat template.

    Raises:
        ReproError: more than one label, or no chat template.
    """

    def __init__(self, model: Any, tokenizer: Any):
        if model.config.num_labels != 1:
            raise ReproError(
                f"the reward model has {model.config.num_labels} labels: expected one number a dialogue"
            )
        if not tokenizer.chat_template:
            raise ReproError("the reward model's tokenizer has no chat template: use one made for dialogues")
        self._model, self._tokenizer = model.eval(), tokenizer

    @classmethod
    def load(cls, name: str) -> "RewardModel":
        """A model by hub name or directory, on a GPU where there is one.

        Raises:
            ReproError: it cannot be read, or is no reward model.
        """
        import torch
        from transformers import AutoModelForSequenceClassification, AutoTokenizer

        try:
            tokenizer = AutoTokenizer.from_pretrained(name)
            model = AutoModelForSequenceClassification.from_pretrained(name)
        except (OSError, ValueError) as error:
            reason = str(error).strip().splitlines()[0]
            raise ReproError(
                f"reward model {name!r} cannot be read ({reason}): expected a directory or a hub name of a"
                " sequence classifier, downloaded or in the cache"
            ) from error
        return cls(model.to("cuda" if torch.cuda.is_available() else "cpu"), tokenizer)

    def __call__(self, messages: Messages, response: str) -> float:
        """The reward of the dialogue with this response.

        Raises:
            ReproError: the dialogue is longer than the model's context.
        """
        import torch

        dialogue = [*(dict(message) for message in messages), {"role": "assistant", "content": response}]
        ids = self._tokenizer.apply_chat_template(dialogue, return_dict=False)
        context = getattr(self._model.config, "max_position_embeddings", len(ids))
        if len(ids) > context:
            raise ReproError(
                f"a dialogue of {len(ids)} tokens exceeds the reward model's context of"
                f" {context}: use one with a longer context"
            )
        with torch.inference_mode():
            return float(self._model(torch.tensor([ids], device=self._model.device)).logits[0, 0])
