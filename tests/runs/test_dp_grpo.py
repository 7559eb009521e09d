"""Real tasks, methods and mechanism on a random model: what the seam of the other tests leaves out."""

import pytest
from transformers import Qwen2Config, Qwen2ForCausalLM

from reprolib import runs
from reprolib.errors import ReproError
from reprolib.privacy import ledger
from reprolib.runs import dp_grpo
from reprolib.tasks import datasets
from tests import tiny
from tests.runs.specs import base, dying, spec

pytestmark = pytest.mark.usefixtures("runs_home")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model directory; its answers are noise, which is enough here."""
    folder = tmp_path_factory.mktemp("model")
    words = tiny.tokenizer()
    config = Qwen2Config(
        vocab_size=len(words), hidden_size=16, intermediate_size=24, num_hidden_layers=1,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256, tie_word_embeddings=True,
        eos_token_id=1, pad_token_id=0,
    )  # fmt: skip
    Qwen2ForCausalLM(config).save_pretrained(folder)
    words.save_pretrained(folder)
    return str(folder)


def small(model, **changes):
    fields = {
        "model": model, "arm": "x", "task": "csqa", "evaluation": ("csqa",), "expected_batch_size": 8.0,
        "group_size": 2, "kl_weight": 0.04, "max_new_tokens": 4, "entropy": "research",
    }  # fmt: skip
    return spec(**(fields | changes))


@pytest.mark.parametrize("method", ["grpo", "filtered_sft", "gold_sft"])
def test_a_killed_and_resumed_run_has_the_weights_of_one_that_was_not_killed(
    model, method, monkeypatch, tmp_path
):
    one = small(model, method=method)
    whole = runs.ensure(one)
    monkeypatch.setenv("REPROLIB_RUNS", str(tmp_path / "second"))
    with pytest.raises(KeyboardInterrupt):
        runs.ensure(one, build=dying(dp_grpo.build, 3), checkpoint_every=2)
    resumed = runs.ensure(one, checkpoint_every=2)
    weights = "adapter/adapter_model.safetensors"
    assert (whole / weights).read_bytes() == (resumed / weights).read_bytes()
    assert runs.load(whole).predictions.equals(runs.load(resumed).predictions)
    assert (whole / "metrics.jsonl").read_text() == (resumed / "metrics.jsonl").read_text()
    assert ledger.read(resumed / "ledger.jsonl").rounds == (0, 1, 2, 2, 3, 4)


def test_the_seed_fixes_the_initial_weights_of_every_method_alike(model):
    found = []
    for method in ("grpo", "gold_sft"):
        job = dp_grpo.build(small(model, method=method), small(model).plan(), None)
        found.append([p.detach().clone() for p in job.trainer.parameters])
    assert all((a == b).all() for a, b in zip(*found, strict=True))


def test_the_base_answers_every_problem_of_its_sets_in_order(model):
    one = base(model=model, task="gsm8k", evaluation=("gsm8k", "svamp"), max_new_tokens=4)
    run = runs.load(runs.ensure(one))
    for name in one.evaluation:
        problems = [p.id for p in datasets.load(name, tier="smoke").evaluation]
        assert run.responses(name)["problem"].tolist() == problems
        assert set(run.correct(name)) <= {0, 1}
    assert (run.predictions["tokens"] <= 4).all()


def test_the_cap_of_the_spec_holds_in_training_too(model):
    job = dp_grpo.build(small(model, max_new_tokens=3), small(model).plan(), None)
    assert job.trainer.record_map.sampling.max_new_tokens == 3


def test_a_population_that_the_task_does_not_have_is_refused(model):
    with pytest.raises(ReproError, match=r"csqa at tier smoke has 40 records \(prompts\).*population is 41"):
        runs.ensure(small(model, population=41))


def test_a_smaller_population_takes_the_first_records():
    problems = datasets.load("math", tier="smoke").train
    assert dp_grpo.records(spec(population=39), problems) == list(problems[:39])


def test_canaries_are_the_last_slots_and_absent_ones_are_empty():
    problems = datasets.load("math", tier="smoke").train
    one = spec(canaries=20, seed=3)
    slots = dp_grpo.records(one, problems)
    present = dp_grpo.canaries_present(one)
    assert slots[:20] == list(problems[:20])
    assert [slot is not None for slot in slots[20:]] == present.tolist()
    assert 0 < present.sum() < 20
    assert dp_grpo.records(one, problems) == slots
    assert len(slots) == one.population


def test_about_half_of_the_canaries_are_present_and_the_seed_decides_which():
    one, other = (dp_grpo.canaries_present(spec(population=7000, canaries=1000, seed=s)) for s in (1, 2))
    assert abs(one.mean() - 0.5) < 0.06
    assert 400 < (one != other).sum() < 600


def test_a_contributor_is_one_record_with_all_their_problems():
    problems = datasets.load("math", tier="smoke").train
    owners = list(dict.fromkeys(p.contributor for p in problems))
    groups = dp_grpo.records(spec(unit="contributor", population=len(owners)), problems)
    assert [p for group in groups for p in group] == sorted(
        problems, key=lambda p: owners.index(p.contributor)
    )
    assert all(len({p.contributor for p in group}) == 1 for group in groups)
    with pytest.raises(ReproError, match="contributors"):
        dp_grpo.records(spec(unit="contributor"), problems)
