"""Runs of the PrivDPO family on real pairs and the micro model."""

import math

import numpy as np
import pytest

from reprolib import runs
from reprolib.errors import ReproError
from reprolib.privacy.visits import DisjointBatches, LocalPlan
from reprolib.runs import privdpo
from reprolib.runs.privdpo import EVALUATIONS, FRESH, KEPT, PrivdpoSpec
from tests.runs.specs import dying

pytestmark = pytest.mark.usefixtures("runs_home")

FIELDS = {
    "paper": "privdpo", "study": "hh", "arm": "x", "task": "hh", "tier": "smoke", "seed": 0, "model": "micro",
    "population": 24, "batch_size": 8, "learning_rate": 1e-3, "evaluated": 6, "entropy": "research",
    "evaluation": ("pairs",),
}  # fmt: skip


def spec(method: str, **changes) -> PrivdpoSpec:
    needs = {"epsilon": 1.0} if method in (*FRESH, *KEPT, "dp_sgd") else {}
    needs |= {"clip_norm": 1.0} if method == "dp_sgd" else {}
    return PrivdpoSpec(**FIELDS | {"method": method} | needs | changes)


def base(**changes) -> PrivdpoSpec:
    return PrivdpoSpec(**FIELDS | {"method": "base", "batch_size": None, "learning_rate": None} | changes)


@pytest.mark.parametrize(
    ("method", "epsilon"),
    [
        ("priv_sft", 0),
        ("privdpo", 1),
        ("kept", 1),
        ("rr", 1),
        ("piecewise", 1),
        ("dpo", math.inf),
        ("sft", math.inf),
    ],
)
def test_one_pass_spends_what_the_method_says(method, epsilon):
    run = runs.load(runs.ensure(spec(method)))
    assert run.epsilon() == epsilon
    assert run.ledger.rounds == (0, 1, 2)
    assert not run.card().guarantee  # the coins can be replayed
    assert isinstance(run.ledger.plan, LocalPlan)


def test_three_passes_cost_fresh_coins_three_times_and_kept_bits_once():
    assert spec("privdpo", epochs=3).plan().epsilon() == 3
    assert spec("kept", epochs=3).plan().epsilon() == 1


def test_hidden_coins_make_the_card_a_guarantee():
    card = runs.load(runs.ensure(spec("kept", entropy="private"))).card()
    assert card.guarantee
    assert (card.epsilon, card.delta) == (1.0, 0.0)


def test_dp_sgd_accounts_for_one_gaussian_release_a_pass():
    run = runs.load(runs.ensure(spec("dp_sgd", epsilon=16.0)))
    assert isinstance(run.ledger.plan, DisjointBatches)
    assert run.epsilon() == pytest.approx(16.0, rel=1e-3)
    assert run.ledger.plan.delta == 1 / 240


@pytest.mark.parametrize(("method", "visits"), [("privdpo", 2), ("kept", 1)])
def test_a_killed_run_ends_where_the_whole_one_does_and_a_repeated_round_is_a_visit_more(method, visits):
    whole = runs.load(runs.ensure(spec(method)))
    weights = (whole.directory / "adapter" / "model.safetensors").read_bytes()
    margins = whole.values("pairs")
    whole.directory.rename(whole.directory.with_name("kept-aside"))
    with pytest.raises(KeyboardInterrupt):
        runs.ensure(spec(method), build=dying(privdpo.build, 2), checkpoint_every=10)
    again = runs.load(runs.ensure(spec(method)))
    assert (again.directory / "adapter" / "model.safetensors").read_bytes() == weights
    assert (again.values("pairs") == margins).all()
    assert again.ledger.rounds == (0, 1, 0, 1, 2)
    assert again.epsilon() == visits


def test_kept_bits_are_drawn_once_and_those_of_another_epsilon_are_refused(tmp_path):
    one = spec("kept")
    path = runs.directory(one) / "bits.json"
    runs.ensure(one)
    first = path.read_text()
    other = spec("kept", epsilon=2.0)
    runs.directory(other).mkdir(parents=True)
    (runs.directory(other) / "bits.json").write_text(first)
    with pytest.raises(ReproError, match="randomised at epsilon 1, expected 2"):
        runs.ensure(other)
    assert path.read_text() == first


def test_every_evaluation_gives_a_row_a_pair_and_a_margin_says_which_side_it_prefers():
    run = runs.load(runs.ensure(spec("dpo", evaluation=EVALUATIONS)))
    for name in ("pairs", "attack_pairs", "attack_training"):
        assert len(run.values(name)) == 6
        assert (run.correct(name) == (run.values(name) > 0)).all()
    # with the base as reference the attack's score is the reward margin over beta
    assert run.values("attack_pairs") == pytest.approx(run.values("pairs") / 0.1, rel=1e-6)
    assert np.isfinite(run.values("generations")).all()


def test_the_base_has_no_margin_over_itself_and_its_attack_is_its_own_likelihood():
    run = runs.load(runs.ensure(base(evaluation=("pairs", "attack_pairs"))))
    assert (run.values("pairs") == 0).all()
    assert (run.values("attack_pairs") != 0).any()


def test_an_adapter_and_a_reference_after_a_pass_of_private_fine_tuning_run_too():
    run = runs.load(runs.ensure(spec("privdpo", train="adapter", reference="priv_sft")))
    assert (run.directory / "adapter" / "adapter_model.safetensors").is_file()
    assert np.isfinite(run.values("pairs")).all()


def test_a_private_method_does_not_start_from_a_model_that_read_the_preferences():
    for method in ("privdpo", "kept", "rr", "priv_sft", "dp_sgd"):
        with pytest.raises(ReproError, match="would look private"):
            spec(method, reference="sft")


@pytest.mark.parametrize(
    ("method", "changes", "message"),
    [
        ("privdpo", {"epsilon": None}, "needs one"),
        ("privdpo", {"epsilon": 0.0}, "epsilon"),
        ("dpo", {"epsilon": 1.0}, "has none"),
        ("dp_sgd", {"clip_norm": None}, "'dp_sgd' needs one"),
        ("privdpo", {"clip_norm": 1.0}, "no other method has one"),
        ("privdpo", {"batch_size": 25}, "at most the population"),
        ("privdpo", {"learning_rate": None}, "learning_rate is missing"),
        ("privdpo", {"score_at": (4,)}, "rounds from 1 to 3"),
        ("privdpo", {"evaluation": ("math",)}, "evaluation 'math'"),
        ("privdpo", {"population": None}, "population is missing"),
    ],
)
def test_settings_that_make_no_run_are_named(method, changes, message):
    with pytest.raises(ReproError, match=message):
        spec(method, **changes)


def test_an_epsilon_whose_weights_overflow_is_refused_before_anything_is_written():
    tiny = spec("privdpo", epsilon=1e-320)
    with pytest.raises(ReproError, match="epsilon"):
        runs.ensure(tiny)
    assert not (runs.directory(tiny) / "ledger.jsonl").exists()


def test_more_pairs_than_there_are_is_an_error_that_says_how_many_there_are():
    with pytest.raises(ReproError, match="has 96 training pairs of at most"):
        runs.ensure(spec("privdpo", population=97))


def test_two_research_runs_of_one_spec_agree_and_of_another_epsilon_draw_other_coins():
    first = runs.load(runs.ensure(spec("kept")))
    bits = (first.directory / "bits.json").read_text()
    other = runs.load(runs.ensure(spec("kept", epsilon=1.5)))
    assert (other.directory / "bits.json").read_text().split('"bits"')[1] != bits.split('"bits"')[1]


@pytest.mark.parametrize("method", KEPT)
def test_bits_that_are_lost_after_a_round_are_not_drawn_a_second_time(method):
    one = spec(method, entropy="private")
    with pytest.raises(KeyboardInterrupt):
        runs.ensure(one, build=dying(privdpo.build, 2), checkpoint_every=1)
    (runs.directory(one) / "bits.json").unlink()
    with pytest.raises(ReproError, match="spend epsilon 1 again"):
        runs.ensure(one)
    assert not (runs.directory(one) / "bits.json").exists()
