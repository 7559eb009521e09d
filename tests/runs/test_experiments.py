import math
import shutil

import pytest
import yaml

from reprolib import runs
from reprolib.errors import ReproError
from reprolib.evidence import claims, published
from reprolib.privacy import accounting
from reprolib.runs import experiments

TIERS = ("smoke", "micro", "small", "paper")


def at(tier, study, arm):
    return [s for s in runs.grid("dp_grpo", tier, study) if s.arm == arm]


@pytest.fixture
def edited(tmp_path, monkeypatch, root):
    """The experiment file with a change, in a folder of its own."""
    source = root / "data" / "experiments" / "dp_grpo.yml"

    def edit(*keys, value):
        content = yaml.safe_load(source.read_text())
        node = content
        for key in keys[:-1]:
            node = node[key]
        node[keys[-1]] = value
        folder = tmp_path / "data" / "experiments"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "dp_grpo.yml").write_text(yaml.safe_dump(content, sort_keys=False))
        monkeypatch.setattr(experiments, "root", lambda: tmp_path)

    return edit


@pytest.mark.parametrize("tier", TIERS)
def test_every_study_of_a_tier_makes_valid_and_distinct_runs(tier):
    specs = runs.grid("dp_grpo", tier)
    assert len({(s.study, s.arm, s.seed) for s in specs}) == len(specs)
    for study in runs.studies("dp_grpo", tier):
        assert runs.grid("dp_grpo", tier, study)


CONFIGURATIONS = {  # row of the published mechanism table -> an arm that runs it
    "reference": ("math", "dp_grpo"),
    "eps4_23": ("design", "budget_4.23"),
    "eps1": ("design", "budget_1"),
    "coverage": ("design", "rollouts_2x512"),
    "sft_100": ("design", "filtered_100"),
    "canary": ("audit", "audit_private"),
    "gsm8k_csqa": ("csqa", "gold_sft"),
}


@pytest.mark.parametrize("tier", ["micro", "paper"])
@pytest.mark.parametrize(("row", "place"), CONFIGURATIONS.items())
def test_mechanism_parameters_are_those_that_the_paper_prints_to_the_last_digit(tier, row, place):
    cells = published.load("dp_grpo")
    spec = at(tier, *place)[0]
    for column, value in (
        ("n", spec.population), ("m", spec.expected_batch_size), ("rounds", spec.rounds),
        ("sigma", spec.noise_multiplier),
    ):  # fmt: skip
        assert float(cells.number(f"dp_grpo.t07.{row}.{column}")) == value


@pytest.mark.parametrize(
    ("study", "arm", "target"),
    [
        ("math", "dp_grpo", 8),
        ("gsm8k", "dp_grpo", 8),
        ("design", "rollouts_2x512", 8),
        ("design", "filtered_100", 8),
        ("design", "budget_1", 1),
    ],
)
def test_the_budget_of_each_configuration_is_the_one_that_the_paper_states(study, arm, target):
    plan = at("paper", study, arm)[0].plan()
    assert plan.epsilon() == pytest.approx(target, abs=1e-3)
    assert plan.delta == 1 / (10 * plan.population)


def test_arms_of_a_task_share_all_that_fixes_the_budget():
    for task in ("math", "gsm8k", "csqa"):
        private = [s for s in runs.grid("dp_grpo", "paper", task) if s.method != "base" and s.private]
        assert (
            len({(s.population, s.expected_batch_size, s.rounds, s.noise_multiplier) for s in private}) == 1
        )
        assert all(s.entropy == "private" for s in private)


def test_the_control_differs_from_dp_grpo_in_the_advantage_alone():
    for tier in TIERS:
        for study in set(runs.studies("dp_grpo", tier)) & {"math", "gsm8k", "csqa"}:
            pairs = zip(at(tier, study, "dp_grpo"), at(tier, study, "zero_advantage"), strict=True)
            for treated, control in pairs:
                assert treated.changed(arm="x", advantage="zero") == control.changed(arm="x")


def test_seeds_are_four_for_dp_grpo_and_control_on_the_mathematical_tasks_and_two_elsewhere():
    for study, count in (("math", 4), ("gsm8k", 4), ("csqa", 2)):
        assert [s.seed for s in at("paper", study, "dp_grpo")] == list(range(1, count + 1))
        assert len(at("paper", study, "zero_advantage")) == count
        assert len(at("paper", study, "gold_sft")) == len(at("paper", study, "filtered_sft")) == 2


def test_gsm8k_runs_are_scored_on_svamp_too_and_pilots_on_the_selection_set_alone():
    assert {s.evaluation for s in runs.grid("dp_grpo", "micro", "gsm8k")} == {("gsm8k", "svamp")}
    assert {s.evaluation for s in runs.grid("dp_grpo", "micro", "pilots")} == {("selection",)}


def test_a_pilot_of_each_rate_and_the_rate_in_its_name():
    rates = {s.learning_rate for s in runs.grid("dp_grpo", "paper", "pilots")}
    assert rates == {5e-6, 2e-5, 8e-5, 3e-4}
    assert next(s.arm for s in runs.grid("dp_grpo", "paper", "pilots")) == "filtered_pilot-5e-06"
    assert len(runs.grid("dp_grpo", "micro", "pilots")) == 8


def test_the_ladder_differs_in_the_advantage_alone():
    rungs = [s for s in runs.grid("dp_grpo", "micro", "ladder") if s.seed == 1]
    assert {s.advantage for s in rungs} == {"zero", "shuffled", "positive", "full"}
    assert len({s.changed(arm="x", advantage="full") for s in rungs}) == 1


def test_the_audit_block_and_the_audit_runs_agree():
    found = runs.experiment("dp_grpo").audit
    spec = at("paper", "audit", "audit_private")[0]
    for name in ("canaries", "population", "expected_batch_size", "rounds", "noise_multiplier", "clip_norm"):
        assert getattr(spec, name) == getattr(found, name)
    budget = accounting.epsilon(
        sampling_rate=found.expected_batch_size / found.population, noise_multiplier=found.noise_multiplier,
        rounds=found.rounds, delta=1 / (10 * found.population),
    )  # fmt: skip
    assert budget == pytest.approx(5.038, abs=1e-3)


def test_a_chapter_needs_the_studies_that_its_tier_runs():
    every = [("dp_grpo", study) for study in ("math", "gsm8k", "csqa", "ratio")]
    assert experiments.needed("12", "micro") == every
    assert experiments.needed("12", "small") == [("dp_grpo", "csqa")]
    assert ("dp_grpo", "design") in experiments.needed("14", "paper")
    assert experiments.needed("02", "micro") == []


def test_the_ratio_study_has_the_papers_noise_over_clip_on_the_micro_model():
    from reprolib.lm import adapters, models

    here, _ = adapters.trainable_count(models.attach_lora(models.load("micro"), seed=1).model)
    there = float(claims.by_name(published.load(), "dp_grpo")["app_c_a.coordinates"].published)
    usual = runs.grid("dp_grpo", "micro", "math")[1]
    for spec in runs.grid("dp_grpo", "micro", "ratio"):
        assert spec.noise_multiplier == pytest.approx(
            usual.noise_multiplier * math.sqrt(there / here), abs=1e-5
        )


def test_smoke_runs_are_tiny():
    for spec in runs.grid("dp_grpo", "smoke"):
        assert spec.rounds <= 2
        assert spec.population in (None, 40)
        assert spec.seed <= 2


@pytest.mark.parametrize(
    ("keys", "value", "message"),
    [
        (("study",), {}, r"dp_grpo\.yml: study: Extra inputs"),
        (("common", "learning_rat"), 1, r"dp_grpo\.yml: common\.learning_rat: unknown key"),
        (("common", "seed"), 1, r"common\.seed: unknown key"),
        (("arms", "dp_grpo", "epsilon"), 8, r"arms\.dp_grpo\.epsilon: unknown key"),
        (("studies", "math", "arms", "dp_grpo", "sedes"), [1], r"studies\.math\.arms\.dp_grpo\.sedes: Extra"),
        (("studies", "math", "arms", "dp_grpo", "seeds"), [], r"studies\.math\.arms\.dp_grpo\.seeds"),
        (("studies", "design", "arms", "clip_half", "set", "clip"), 1, r"clip_half\.set\.clip: unknown key"),
        (("studies", "design", "arms", "clip_half", "like"), "grpo", r"clip_half: unknown name 'grpo'"),
        (("tiers", "micro", "studies", "desing"), {}, r"tiers\.micro\.studies: unknown name 'desing'"),
        (("tiers", "micro", "studies", "design", "clip"), {}, r"micro\.studies\.design: unknown name 'clip'"),
        (("tiers", "small", "leave_out"), ["maths"], r"tiers\.small\.leave_out: unknown name 'maths'"),
        (("chapters", "12"), ["mat"], r"chapters\.12: unknown name 'mat'"),
        (("endpoints", "alpha"), "x", r"endpoints\.alpha: "),
    ],
)
def test_a_mistake_in_the_file_is_named_with_file_and_key(edited, keys, value, message):
    edited(*keys, value=value)
    with pytest.raises(ReproError, match=message):
        runs.grid("dp_grpo", "micro")


def test_settings_that_make_no_run_are_named_with_file_and_arm(edited):
    edited("arms", "dp_grpo", "group_size", value=1)
    with pytest.raises(ReproError, match=r"dp_grpo\.yml: studies\.math\.arms\.dp_grpo: .*group_size = 1"):
        runs.grid("dp_grpo", "micro")
    edited("studies", "design", "arms", "clip_half", "set", value={})
    with pytest.raises(ReproError, match=r"clip_half: task = None; expected one of math, gsm8k, csqa"):
        runs.grid("dp_grpo", "micro", "design")


def test_a_key_that_occurs_twice_is_an_error_with_its_line(tmp_path, monkeypatch, root):
    folder = tmp_path / "data" / "experiments"
    folder.mkdir(parents=True)
    shutil.copy(root / "data" / "experiments" / "dp_grpo.yml", folder)
    with (folder / "dp_grpo.yml").open("a") as file:
        file.write("paper: again\n")
    monkeypatch.setattr(experiments, "root", lambda: tmp_path)
    with pytest.raises(ReproError, match=r"dp_grpo\.yml, line \d+: the key 'paper' occurs twice"):
        runs.grid("dp_grpo", "micro")


def test_unknown_papers_tiers_and_studies_are_refused_with_the_known_ones():
    with pytest.raises(ReproError, match=r"no experiments of 'sagee': expected one of .*dp_grpo"):
        runs.grid("sagee", "micro")
    with pytest.raises(ReproError, match="no tier 'big': expected one of smoke, micro, small, paper"):
        runs.grid("dp_grpo", "big")
    with pytest.raises(ReproError, match="tier small has no study 'design': expected one of csqa"):
        runs.grid("dp_grpo", "small", "design")
