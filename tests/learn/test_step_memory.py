import pytest
import torch

from reprolib.errors import ReproError
from reprolib.learn import step_memory
from reprolib.learn.step_memory import METHODS, Size, peak, random_batch, random_model, step

TINY = Size(hidden=16, layers=1, vocabulary=32, examples=4, tokens=6)
WIDE = Size(hidden=192, layers=4, vocabulary=512, examples=4, tokens=8)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_a_step_that_runs_twice(method):
    run = step(method, num_directions=3, size=TINY)
    run(), run()


def test_a_zeroth_order_step_asks_for_two_forward_passes_a_direction_without_a_graph(monkeypatch):
    calls = []
    real = step_memory.prompt_loss

    def counted(model):
        inner = real(model)

        def loss(batch):
            calls.append((len(batch), torch.is_grad_enabled()))
            return inner(batch)

        return loss

    monkeypatch.setattr(step_memory, "prompt_loss", counted)
    for method in ("dp_aggzo", "sage"):
        calls.clear()
        step(method, num_directions=3, size=TINY)()
        assert calls == [(4, False)] * 6


def test_a_backward_pass_needs_several_copies_of_the_weights_more_than_a_zeroth_order_step():
    weights = 4 * sum(p.numel() for p in random_model(WIDE).parameters())
    zeroth, first = (peak(m, num_directions=2, size=WIDE) for m in ("sage", "dp_adamw"))
    assert first - zeroth > 2 * weights


def test_the_global_generator_is_left_alone():
    before = torch.get_rng_state()
    random_model(TINY), random_batch(TINY)
    assert torch.equal(before, torch.get_rng_state())


def test_an_unknown_method_is_named():
    with pytest.raises(ReproError, match="method 'sgd': expected one of inference"):
        peak("sgd")


def test_a_process_that_fails_says_why():
    with pytest.raises(ReproError, match=r"measuring sage failed: .*num_directions = 0"):
        peak("sage", num_directions=0, size=TINY)
