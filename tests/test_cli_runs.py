import json

import pytest
from typer.testing import CliRunner

from reprolib import cli, runs
from reprolib.errors import ReproError
from reprolib.runs import dp_grpo
from tests.runs.conftest import Builds
from tests.runs.specs import base, spec

WIDE = {"COLUMNS": "220"}


@pytest.fixture
def trained(tmp_path, monkeypatch):
    """A folder for runs, and a build function that trains nothing real."""
    monkeypatch.setenv("REPROLIB_RUNS", str(tmp_path / "runs"))
    monkeypatch.setattr(cli.console, "width", 220)
    made = Builds()
    monkeypatch.setattr(dp_grpo, "build", made)
    return made


def call(*arguments):
    result = CliRunner().invoke(cli.app, list(arguments), env=WIDE)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.output


def rows(output):
    return [[cell.strip() for cell in line.split("│")[1:-1]] for line in output.splitlines() if "│" in line]


def test_a_dry_run_lists_the_runs_with_noise_budget_and_state_and_trains_nothing(trained):
    table = rows(call("run", "dp_grpo", "--tier", "paper", "--study", "math", "--dry-run"))
    specs = runs.grid("dp_grpo", "paper", "math")
    assert [(row[0], row[1]) for row in table] == [(s.arm, s.name) for s in specs]
    by_arm = {s.arm: row for s, row in zip(specs, table, strict=True)}
    assert by_arm["dp_grpo"][2:] == ["50", "0.48424", "8", "missing"]
    assert by_arm["nonprivate"][2:] == ["50", "0", "not private", "missing"]
    assert by_arm["base"][2:] == ["0", "", "", "missing"]
    assert trained.made == []


def test_run_makes_the_chosen_runs_and_no_others(trained):
    out = call("run", "dp_grpo", "--tier", "smoke", "--study", "math", "--arm", "dp_grpo", "--seed", "2")
    assert [(s.arm, s.seed) for s in trained.made] == [("dp_grpo", 2)]
    assert f"finished: {trained.made[0].name}" in out


def test_one_run_is_chosen_by_the_name_of_its_directory(trained):
    wanted = runs.grid("dp_grpo", "smoke", "csqa")[-1]
    call("run", "dp_grpo", "--tier", "smoke", "--name", wanted.name)
    assert trained.made == [wanted]


def test_one_run_is_chosen_by_its_spec_file(trained, tmp_path):
    bare = tmp_path / "mine.json"
    bare.write_text(spec(rounds=3).model_dump_json())
    call("run", str(bare))
    call("run", str(runs.directory(spec(rounds=3)) / "spec.json"))
    assert trained.made == [spec(rounds=3)]


def test_runs_shows_state_rounds_spent_and_epsilon(trained, monkeypatch):
    specs = [
        base(),
        spec(),
        spec(noise_multiplier=0, clip_norm=None, task="gsm8k"),
        spec(entropy="research", task="csqa"),
    ]
    for one in specs:
        runs.ensure(one)
    trained.die_after = 3
    with pytest.raises(KeyboardInterrupt):
        runs.ensure(spec(seed=9))
    table = {row[1].rpartition("-")[0]: row[2:] for row in rows(call("runs"))}
    epsilon = runs.load(runs.directory(spec())).epsilon()
    assert table["base-math-seed1"] == ["finished", "", ""]
    assert table["grpo-math-seed1"] == ["finished", "5 of 5", f"{epsilon:.4g}"]
    assert table["grpo-gsm8k-seed1"] == ["finished", "5 of 5", "not private"]
    assert table["grpo-csqa-seed1"] == ["finished", "5 of 5", f"{epsilon:.4g} (replayable)"]
    assert table["grpo-math-seed9"][:2] == ["unfinished", "3 of 5"]
    monkeypatch.setattr(runs.sources, "fingerprint", lambda spec: "other")
    assert {row[2] for row in rows(call("runs", "--tier", "smoke"))} == {"stale"}
    assert rows(call("runs", "--tier", "paper")) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "dp_grop"), "no experiments of 'dp_grop'"),
        (("run", "dp_grpo", "--tier", "big"), "no tier 'big'"),
        (("run", "dp_grpo", "--study", "maths"), "no study 'maths'"),
        (("run", "dp_grpo", "--arm", "ppo", "--seed", "9"), "no run with arm 'ppo', seed 9"),
        (("run", "none.json"), "cannot read none.json"),
    ],
)
def test_a_mistake_on_the_command_line_is_one_line(trained, arguments, message):
    with pytest.raises(ReproError, match=message) as caught:
        call(*arguments)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_no_spec_is_named(trained, tmp_path):
    (tmp_path / "bad.json").write_text(json.dumps({"arm": "x"}))
    with pytest.raises(ReproError, match=r"bad\.json: not the spec of a run \(x: paper is missing"):
        call("run", str(tmp_path / "bad.json"))


def test_keep_copies_finished_runs_and_refuses_when_there_are_none(trained, tmp_path, monkeypatch):
    from reprolib.runs import keeping

    monkeypatch.setattr(keeping, "root", lambda: tmp_path)
    one = spec(tier="small")
    monkeypatch.setattr(runs, "grid", lambda *_: [one])
    with pytest.raises(ReproError, match="no finished run at tier small"):
        call("keep", "dp_grpo")
    runs.ensure(one)
    assert one.name in call("keep", "dp_grpo")
    assert keeping.directory(one).is_dir()
