"""The engine of its own environment, driven by vllm_checks.py in a process for each model."""

import json
import os
import subprocess

import numpy as np
import pytest
from scipy import stats

from reprolib.errors import ReproError
from reprolib.lm import models
from reprolib.lm.vllm_engine import VllmEngine

TOLERANCE = 1e-4  # of a log-probability in binary32; the largest seen was 3.6e-5


def checked(root, out, *arguments):
    """What vllm_checks.py found."""
    python = root / ".venv-vllm" / "bin" / "python"
    if not (root / ".venv-vllm" / ".installed").exists():
        if os.environ.get("CI"):
            pytest.fail("the rollout engine is not installed: `make vllm` comes before the tests")
        pytest.skip("the rollout engine is not installed: make vllm")
    with (out / "stdout").open("w") as stdout, (out / "stderr").open("w") as stderr:
        code = subprocess.run(
            [python, "tests/lm/vllm_checks.py", *arguments], cwd=root, stdout=stdout, stderr=stderr,
            env=os.environ | {"PYTHONPATH": str(root)}, check=False,
        ).returncode  # fmt: skip
    assert code == 0, (out / "stderr").read_text()[-3000:]
    return json.loads((out / "stdout").read_text().splitlines()[-1])


@pytest.fixture(scope="module")
def found(root, tmp_path_factory):
    """All checks of a random model."""
    return checked(root, tmp_path_factory.mktemp("random"))


@pytest.fixture(scope="module", params=["random", "smollm2-135m"])
def states(request, root, tmp_path_factory):
    """The engine under every adapter, on the random model and on a real one."""
    if request.param == "random":
        return request.getfixturevalue("found")["states"]
    out = tmp_path_factory.mktemp("real")
    models.export(models.load(request.param), out / "base")
    return checked(root, out, out / "base")["states"]


def test_greedy_completions_are_those_of_transformers_under_every_adapter(states):
    for name, state in states.items():
        assert state["greedy"] == state["transformers"], name


def test_log_probabilities_agree_with_transformers_under_every_adapter(states):
    for name, state in states.items():
        assert state["difference"] < TOLERANCE, name


def test_an_adapter_with_zero_b_equals_the_base(states):
    zero, base = states["zero"], states["base"]
    assert np.abs(np.array(zero["logprobs"]) - base["logprobs"]).max() < 1e-6
    assert zero["greedy"] == base["greedy"]


@pytest.mark.parametrize("before", ["base", "second"])
def test_an_adapter_changes_the_engine(states, before):
    first, other = states["first"], states[before]
    assert np.median(np.abs(np.array(first["logprobs"]) - other["logprobs"])) > 100 * TOLERANCE
    assert first["greedy"] != other["greedy"]


def test_a_new_adapter_reads_nothing_of_the_old_ones_prefix_cache(states):
    """Each state sends the same long prompt twice: the second is served from the cache, the first is not."""
    for name, state in states.items():
        first, second = state["cached"]
        assert first == 0, name
        assert second >= 128, name


def test_weights_that_come_back_give_the_same_completions(states):
    first, again = states["first"], states["again"]
    assert first["greedy"] == again["greedy"]
    assert first["logprobs"] == again["logprobs"]


def test_completions_of_a_group_differ_when_sampled_and_are_equal_when_greedy(found):
    sampling = found["sampling"]
    for group in sampling["greedy"]:
        assert len(group) == 4
        assert all(completion == group[0] for completion in group)
    for group in sampling["sampled"][0]:
        assert len({tuple(completion) for completion in group}) > 4


def test_the_hidden_draws_decide_the_completions_and_without_them_the_stream_goes_on(found):
    sampling = found["sampling"]
    first, second = sampling["same_uniform"]
    assert first == second
    assert first != sampling["other_uniform"]
    assert sampling["sampled"][0] != sampling["sampled"][1]


def test_completions_end_at_the_end_token_or_at_the_cap(found):
    end, completions = found["sampling"]["end"], found["sampling"]["completions"]
    assert {capped for _, capped in completions} == {True, False}
    for tokens, capped in completions:
        assert (end in tokens) != capped
        assert end not in tokens[:-1]
        assert len(tokens) == 16 if capped else 1 <= len(tokens) <= 16


def test_samples_follow_the_softmax_at_the_temperature(found):
    """The model's folder asks for top_k = 1; that must not be taken."""
    counts, expected = (np.array(found["frequencies"][k]) for k in ("counts", "expected"))
    common = expected >= 5
    draws = found["frequencies"]["draws"]
    observed = [*counts[common], draws - counts[common].sum()]
    wanted = [*expected[common], draws - expected[common].sum()]
    assert sum(common) >= 5
    assert stats.chisquare(observed, wanted).pvalue > 1e-3


def test_an_empty_or_too_long_prompt_is_named(found):
    errors = found["errors"]
    assert errors["empty"] == "prompt 1 is empty: expected at least one token"
    assert "497 tokens and 16 new ones exceed max_model_len = 512" in errors["long"]
    assert errors["fits"] is None


def test_an_adapter_lost_or_invented_on_its_way_to_the_engine_is_noticed(found):
    assert "changes nothing in the engine" in found["errors"]["nothing"]
    assert "B = 0 shifts log-probabilities" in found["errors"]["zero"]


def test_without_vllm_the_message_says_how_to_install_it(monkeypatch, tmp_path):
    def missing(name):
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr("reprolib.lm.vllm_engine.import_module", missing)
    with pytest.raises(ReproError, match="make vllm"):
        VllmEngine(tmp_path, max_model_len=8)


@pytest.mark.parametrize("change", [{"dtype": "int8"}, {"max_lora_rank": 0}, {"max_lora_rank": 513}])
def test_arguments_out_of_range_are_refused_before_anything_loads(change, tmp_path):
    with pytest.raises(ReproError, match="expected"):
        VllmEngine(tmp_path, **({"max_model_len": 8} | change))
