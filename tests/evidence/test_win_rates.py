from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from reprolib.errors import ReproError
from reprolib.evidence import win_rates
from reprolib.evidence.evaluate import Arms
from reprolib.tasks.preferences import load_preferences

IDS = [p.id for p in load_preferences("hh", tier="smoke").evaluation[:4]]


class FakeRun(SimpleNamespace):
    """Rewards and responses of a run, without a run."""

    def responses(self, evaluation):
        assert evaluation == "generations"
        return pd.DataFrame({"problem": self.ids, "response": self.texts})

    def values(self, evaluation):
        return np.array(self.rewards, dtype=float)


def run(rewards, *, seed=0, ids=IDS, texts=None):
    return FakeRun(
        rewards=rewards, ids=ids, texts=texts or [str(r) for r in rewards],
        directory=SimpleNamespace(name="r"), spec=SimpleNamespace(seed=seed, task="hh", tier="smoke"),
    )  # fmt: skip


def arms(**runs):
    return Arms(runs, endpoints=None)


def test_equal_policies_win_half_and_the_effect_is_zero():
    found = win_rates.against(arms(a=[run([1, 2, 3, 4])], b=[run([1, 2, 3, 4])]), "a", "b")
    assert (found.points, found.rate, found.ties) == (0, 50, 100)


def test_a_tie_is_half_a_win_and_sides_mirror():
    both = arms(a=[run([2, 1, 1, 0])], b=[run([1, 1, 0, 1])])
    ours, theirs = win_rates.against(both, "a", "b"), win_rates.against(both, "b", "a")
    assert ours.points == 100 * ((1 + 0.5 + 1 + 0) / 4 - 0.5)
    assert theirs.points == -ours.points
    assert (theirs.low, theirs.high) == pytest.approx((-ours.high, -ours.low))
    assert ours.ties == 25


def test_seeds_of_a_prompt_are_one_observation():
    one = arms(a=[run([2, 1, 1, 0])], b=[run([1, 1, 0, 1])])
    many = arms(
        a=[run([2, 1, 1, 0], seed=s) for s in range(3)], b=[run([1, 1, 0, 1], seed=s) for s in range(3)]
    )
    first, second = win_rates.against(one, "a", "b"), win_rates.against(many, "a", "b")
    assert (first.low, first.high) == pytest.approx((second.low, second.high))
    assert (len(first.per_meeting), len(second.per_meeting), second.prompts) == (1, 3, 4)


def test_the_spread_of_runs_is_an_interval_of_its_own():
    both = arms(
        a=[run([2, 1, 1, 0], seed=0), run([2, 2, 2, 0], seed=1)],
        b=[run([1, 1, 0, 1], seed=s) for s in (0, 1)],
    )
    found = win_rates.against(both, "a", "b")
    assert found.per_meeting == (12.5, 25.0)
    value, low, high = found.over_runs()
    assert (value, (low + high) / 2) == pytest.approx((found.points, found.points))
    assert high - low == pytest.approx(2 * 12.706 * 6.25, rel=1e-4)  # t with one degree of freedom
    alone = win_rates.against(arms(a=both.runs["a"][:1], b=both.runs["b"]), "a", "b")
    assert len(alone.per_meeting) == 2
    assert win_rates.against(arms(a=both.runs["a"][:1], b=both.runs["b"][:1]), "a", "b").over_runs()[1:] == (
        float("-inf"), float("inf"),
    )  # fmt: skip


def test_seeds_meet_their_own_and_a_single_run_meets_all():
    good, bad = [9, 9, 9, 8], [0, 0, 0, 9]
    both = arms(
        a=[run(good, seed=0), run(bad, seed=1)], b=[run([1] * 4, seed=1), run([1] * 4, seed=2)],
        c=[run([1] * 4, seed=7)],
    )  # fmt: skip
    assert win_rates.against(both, "a", "b").rate == 25
    assert win_rates.against(both, "a", "c").rate == (100 + 25) / 2
    with pytest.raises(ReproError, match="no seed in common"):
        win_rates.against(arms(a=both.runs["a"], b=[run(good, seed=5), run(bad, seed=6)]), "a", "b")


class PrefersFirst:
    """A judge that leaves one prompt unread."""

    def __init__(self):
        self.asked = []

    def compare(self, prompt, first, second):
        self.asked.append(prompt)
        return "unread" if first == "2" else "win"


def test_a_judge_sees_the_prompts_and_what_it_cannot_read_counts_nowhere():
    judge = PrefersFirst()
    found = win_rates.against(arms(a=[run([1, 2, 3, 4])], b=[run([5, 6, 7, 4])]), "a", "b", judge)
    assert (found.prompts, found.ties) == (3, pytest.approx(100 / 3))  # the equal responses tie unasked
    assert [m[-1]["role"] for m in judge.asked] == ["user"] * 3


def test_pooling_weighs_data_sets_alike_and_narrows_the_interval():
    one = win_rates.against(arms(a=[run([2, 1, 1, 0])], b=[run([1, 1, 0, 1])]), "a", "b")
    four = win_rates.pooled([one] * 4)
    assert four.points == one.points
    assert four.high - four.low == pytest.approx((one.high - one.low) / 2)


def test_other_prompts_unknown_arms_and_nothing_are_refused():
    other = run([1, 1, 1, 1], ids=["x"] * 4)
    with pytest.raises(ReproError, match="answered other prompts"):
        win_rates.against(arms(a=[run([1, 2, 3, 4])], b=[other]), "a", "b")
    with pytest.raises(ReproError, match="no arm 'z' here: expected one of a"):
        win_rates.against(arms(a=[run([1, 2, 3, 4])]), "a", "z")
    with pytest.raises(ReproError, match="no win rates to pool"):
        win_rates.pooled([])
