import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    GPTNeoXConfig,
    LlamaConfig,
    OPTConfig,
    Qwen2Config,
    Qwen2ForCausalLM,
    RobertaConfig,
)

from reprolib.errors import ReproError
from reprolib.lm import cost
from reprolib.lm.models import adapter_parameters, attach_lora
from tests import tiny

GATED = {
    "vocab_size": 37, "hidden_size": 24, "intermediate_size": 56, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2,
}  # fmt: skip
PLAIN = {"vocab_size": 37, "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4}
CONFIGS = {
    "qwen2 tied": Qwen2Config(**GATED, tie_word_embeddings=True),
    "qwen2": Qwen2Config(**GATED, tie_word_embeddings=False),
    "llama wide heads": LlamaConfig(**GATED, head_dim=10, tie_word_embeddings=True),
    "llama": LlamaConfig(**GATED, tie_word_embeddings=False),
    "gpt_neox": GPTNeoXConfig(**PLAIN, intermediate_size=80),
    "opt": OPTConfig(**PLAIN, ffn_dim=80, word_embed_proj_dim=24, max_position_embeddings=50),
    "roberta": RobertaConfig(**PLAIN, intermediate_size=80, max_position_embeddings=50, num_labels=5),
}


def on_meta(config):
    kind = AutoModelForSequenceClassification if config.model_type == "roberta" else AutoModelForCausalLM
    with torch.device("meta"):
        return kind.from_config(config)


@pytest.mark.parametrize("name", CONFIGS)
def test_the_formula_counts_what_the_model_has(name):
    assert cost.size(CONFIGS[name]).total == on_meta(CONFIGS[name]).num_parameters()


@pytest.mark.parametrize("name", CONFIGS)
def test_linear_weights_of_a_layer_are_those_of_its_products(name):
    model, found = on_meta(CONFIGS[name]), cost.size(CONFIGS[name])
    products = [
        module.weight.numel()
        for path, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and ".layer" in f".{path}"
    ]
    assert found.layers * found.linear == sum(products)


@pytest.mark.parametrize(
    ("name", "billions"),
    [("1.5B", 1.54), ("3B", 3.09), ("7B", 7.62), ("14B", 14.8), ("32B", 32.8)],
)
def test_published_configurations_have_the_size_that_their_makers_print(name, billions):
    config = cost.published(f"Qwen/Qwen2.5-{name}-Instruct")
    assert cost.size(config).total / 1e9 == pytest.approx(billions, rel=5e-3)


@pytest.mark.parametrize("name", cost._PUBLISHED)
def test_every_published_configuration_agrees_with_transformers(name):
    config = cost.published(name)
    config.num_hidden_layers = 2  # a layer is like another
    assert cost.size(config).total == on_meta(config).num_parameters()


def test_an_adapter_has_the_counted_parameters():
    policy = attach_lora(tiny.policy(), rank=3, alpha=6, seed=0)
    held = sum(p.numel() for p in adapter_parameters(policy.model).values())
    assert cost.adapter_parameters(policy.model.config, rank=3) == held


def saved_bytes(config, layers, *, rows, length, dtype):
    """Bytes of distinct storages that autograd keeps in a forward pass of the layers."""
    config.num_hidden_layers = layers
    model = Qwen2ForCausalLM(config).to(dtype).requires_grad_(True)
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept = []

    def keep(tensor):
        kept.append(tensor)
        return tensor

    mask = torch.ones(rows, 1, length, length).tril().bool()
    ids = torch.zeros(rows, length, dtype=torch.long)
    with saved_tensors_hooks(keep, lambda tensor: tensor):
        model.model(input_ids=ids, attention_mask=mask, use_cache=False)
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in kept}
    return sum(count for place, count in storages.items() if place not in weights)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("length", [8, 24])
def test_activations_of_a_layer_are_what_autograd_keeps(dtype, length):
    config = Qwen2Config(**GATED)
    one, two = (saved_bytes(config, n, rows=2, length=length, dtype=dtype) for n in (1, 2))
    expected = cost.layer_activations(config, context=length, bytes_each=dtype.itemsize)
    assert (two - one) / (2 * length) == expected


def counted_flops(config, prompt, response):
    """Operations of a forward pass that torch counts, with a dense mask, the prompt read once."""
    from torch.utils.flop_counter import FlopCounterMode

    from reprolib.learn.preference_pairs import side_by_side

    model = Qwen2ForCausalLM(config).eval()
    pair = ([1] * prompt, ([2] * response, [3] * response))
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        side_by_side(model, [pair])
    return counter.get_total_flops()


def test_operations_are_those_that_torch_counts():
    config = Qwen2Config(**GATED, attn_implementation="eager")
    prompt, response = 40, 9
    counted = counted_flops(config, prompt, response)
    # a last token predicts nothing and is not read; torch multiplies out what the mask hides
    positions = prompt + 2 * (response - 1)
    dense = cost.Work(tokens=positions, scored=2 * response, attended=positions**2)
    assert counted == pytest.approx(cost.forward_flops(config, dense), rel=1e-2)
    ours = cost.forward_flops(config, cost.Work.of_pair(prompt, response))
    assert 0.7 < ours / counted < 1.1


def test_a_shared_prompt_is_read_once():
    once, twice = (cost.Work.of_pair(143, 45, shared=shared) for shared in (True, False))
    assert (once.tokens, twice.tokens) == (233, 376)
    assert twice.attended == 188**2
    assert twice.attended - once.attended == 143**2 / 2


def test_training_all_weights_takes_three_passes_and_an_adapter_two():
    config, work = CONFIGS["qwen2"], cost.Work.of_pair(40, 9)
    forward = cost.forward_flops(config, work)
    assert cost.step_flops(config, work, reference=False) == 3 * forward
    assert cost.step_flops(config, work, trained="adapter", reference=False) == 2 * forward
    assert cost.step_flops(config, work, recomputed=True) == 5 * forward


def test_shards_divide_weights_gradients_and_moments_and_nothing_else():
    config = cost.published("Qwen/Qwen2.5-7B-Instruct")
    one, eight = (cost.memory(config, gpus=n, tokens=2000, context=500) for n in (1, 8))
    for name in ("weights", "gradients", "moments"):
        assert getattr(one, name) == 8 * getattr(eight, name)
    assert (one.activations, one.logits, one.gathered) == (eight.activations, eight.logits, eight.gathered)
    assert one.weights + one.gradients + one.moments == 16 * cost.size(config).total


def test_an_adapter_keeps_the_base_in_two_bytes_and_little_else():
    config = cost.published("Qwen/Qwen2.5-7B-Instruct")
    found = cost.memory(config, gpus=1, tokens=100, context=100, trained="adapter")
    adapter = cost.adapter_parameters(config)
    assert found.weights == 2 * cost.size(config).total + 4 * adapter
    assert found.moments == 8 * adapter


def test_a_resident_reference_costs_a_model_and_a_cached_one_nothing():
    config = cost.published("Qwen/Qwen2.5-3B-Instruct")
    cached, resident = (
        cost.memory(config, gpus=8, tokens=100, context=100, reference=kind)
        for kind in ("cached", "resident")
    )
    assert resident.total - cached.total == 2 * cost.size(config).total / 8


def test_without_shards_a_gpu_holds_everything_and_one_more_gradient():
    config = cost.published("Qwen/Qwen2.5-3B-Instruct")
    found = cost.memory(config, gpus=8, tokens=1, context=1, sharded=False, one_gradient=True)
    assert found.weights + found.gradients + found.moments == 20 * cost.size(config).total
    assert found.gathered == 0


def test_hours_are_operations_over_what_the_gpu_reaches():
    assert cost.gpu_hours(3600e12, peak=2e12, utilisation=0.5) == 1
    with pytest.raises(ReproError, match=r"utilisation = 0: expected a share in \(0, 1\]"):
        cost.gpu_hours(1.0, peak=1.0, utilisation=0)


def test_what_has_no_formula_is_refused():
    with pytest.raises(ReproError, match=r"no configuration of 'gpt-5'"):
        cost.published("gpt-5")
    with pytest.raises(ReproError, match=r"no formula for a 'mamba'"):
        cost.size(type("C", (), {"model_type": "mamba"}))
    with pytest.raises(ReproError, match=r"embeddings of 512 and layers of 1024"):
        cost.size(OPTConfig(word_embed_proj_dim=512, hidden_size=1024))
    with pytest.raises(ReproError, match=r"gpus = 0"):
        cost.memory(CONFIGS["qwen2"], gpus=0, tokens=1, context=1)
