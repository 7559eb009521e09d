"""PrivDPO by means of a randomised data set and TRL's trainer as it is."""

import pytest
import torch

from reprolib.errors import ReproError
from reprolib.learn import preference_trl
from reprolib.learn.preference_loss import debiased_loss
from reprolib.privacy.preference import flip_probability


def test_without_the_library_the_comparison_says_what_to_install(monkeypatch):
    monkeypatch.setattr(preference_trl, "installed", lambda: False)
    with pytest.raises(ReproError, match="requirements-dev"):
        preference_trl.parity()


@pytest.mark.parametrize(("epsilon", "seed"), [(1.0, 0), (0.2, 3)])
def test_the_unmodified_trainer_on_rows_randomised_once_has_our_loss_and_gradient(epsilon, seed):
    pytest.importorskip("trl", reason="the comparison needs trl, a development requirement")
    found = preference_trl.parity(epsilon=epsilon, seed=seed)
    assert 0 < found.flipped < found.rows
    assert found.loss_difference < 1e-6
    assert found.gradient_difference < 1e-5


def test_the_comparison_is_not_empty_another_epsilon_has_another_gradient(monkeypatch):
    pytest.importorskip("trl", reason="the comparison needs trl, a development requirement")
    monkeypatch.setattr(preference_trl, "flip_probability", lambda epsilon: flip_probability(2 * epsilon))
    found = preference_trl.parity()
    assert found.gradient_difference > 0.05
    assert found.loss_difference > 1e-3


def test_the_debiased_loss_is_the_librarys_formula():
    """``robust`` of TRL 1.16: ((1 - q) l(+) - q l(-)) / (1 - 2q)."""
    margin, q = torch.linspace(-8, 8, 101, dtype=torch.float64), flip_probability(1.0)
    plus, minus = (-torch.nn.functional.logsigmoid(s * 0.1 * margin) for s in (1, -1))
    expected = ((1 - q) * plus - q * minus) / (1 - 2 * q)
    torch.testing.assert_close(debiased_loss(margin, beta=0.1, epsilon=1.0), expected)
