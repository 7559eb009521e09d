import json
import math

import pytest

from reprolib import runs
from reprolib.errors import ReproError
from tests.runs.specs import spec

pytestmark = pytest.mark.usefixtures("runs_home")


@pytest.fixture
def run(builds):
    return runs.load(runs.ensure(spec(evaluation=("math", "gsm8k"), score_at=(2,)), build=builds()))


def test_correct_answers_come_in_the_order_of_the_problems(run):
    assert run.correct("math").tolist() == [1, 1, 0]
    assert run.correct("math", "rescore").tolist() == [1, 1, 1]
    assert run.correct("math", after=2).tolist() == [1, 1, 0]
    assert run.responses("math")["problem"].tolist() == ["math-0", "math-1", "math-2"]


def test_asking_for_what_was_not_scored_says_what_was(run):
    with pytest.raises(ReproError, match=r"no responses to 'svamp' after round 5; it has: .*'gsm8k', 2"):
        run.correct("svamp")
    with pytest.raises(ReproError, match="after round 3"):
        run.correct("math", after=3)
    with pytest.raises(ReproError, match="unknown scorer 'robust': expected one of strict, rescore"):
        run.correct("math", "robust")
    with pytest.raises(ReproError, match="gsm8k has no rescore scores"):
        run.correct("gsm8k", "rescore")


def test_numbers_come_in_the_order_of_the_problems(run):
    assert run.values("math").tolist() == [0.0, 0.5, 1.0]
    assert run.values("math", after=2).tolist() == [0.0, 0.5, 1.0]
    with pytest.raises(ReproError, match="gsm8k has no values"):
        run.values("gsm8k")


def test_what_is_observed_of_a_release_is_a_row_a_round(run):
    assert run.metrics["round"].tolist() == [1, 2, 3, 4, 5]
    assert run.metrics["largest"].tolist() == run.metrics["released_norm"].tolist()


def test_the_card_is_a_guarantee_only_with_hidden_noise(builds):
    private = runs.load(runs.ensure(spec(), build=builds()))
    replayable = runs.load(runs.ensure(spec(entropy="research"), build=builds()))
    assert private.card().guarantee
    assert private.card().epsilon == private.epsilon()
    assert not replayable.card().guarantee


def test_a_run_without_noise_says_so(builds):
    run = runs.load(runs.ensure(spec(noise_multiplier=0, clip_norm=None), build=builds()))
    assert run.epsilon() == math.inf
    assert "none: no noise is added" in str(run.card())


@pytest.mark.parametrize("name", ["spec.json", "provenance.json"])
def test_a_damaged_file_is_named(run, name):
    (run.directory / name).write_text("{")
    with pytest.raises(ReproError, match=f"{name}: damaged JSON"):
        runs.load(run.directory)


def test_a_spec_that_is_no_run_is_named(run):
    (run.directory / "spec.json").write_text(json.dumps({"spec": {"arm": "x"}, "sources": "y"}))
    with pytest.raises(ReproError, match=r"spec\.json: not the spec of a run"):
        runs.load(run.directory)


def test_an_unfinished_directory_is_not_loaded(run):
    (run.directory / "provenance.json").unlink()
    assert runs.state(run.directory) == "unfinished"
    with pytest.raises(ReproError, match="holds no finished run: `reprolib run`"):
        runs.load(run.directory)
    assert runs.state(run.directory.with_name("none")) == "missing"


@pytest.mark.parametrize(
    ("scores", "rate"),
    [({1e-5: 2, 1e-4: 3, 1e-3: 1}, 1e-4), ({1e-3: 3, 1e-5: 3, 1e-4: 2}, 1e-5), ({5e-6: 0}, 5e-6)],
)
def test_the_best_pilot_wins_and_a_tie_goes_to_the_smaller_rate(builds, scores, rate):
    pilots = []
    for learning_rate, right in scores.items():
        where = runs.ensure(spec(learning_rate=learning_rate, evaluation=("selection",)), build=builds())
        run = runs.load(where)
        run.predictions["strict"] = [int(i < right) for i in range(3)]
        pilots.append(run)
    assert runs.best_learning_rate(pilots) == rate


def test_a_choice_without_pilots_is_refused():
    with pytest.raises(ReproError, match="expected trained runs"):
        runs.best_learning_rate([])
