"""Equation 7 against the library that the paper's code is built on."""

import pytest

from reprolib.errors import ReproError
from reprolib.learn import verification_trl


def test_without_the_library_the_comparison_says_what_to_install(monkeypatch):
    monkeypatch.setattr(verification_trl, "find_spec", lambda name: None)
    with pytest.raises(ReproError, match="requirements-dev"):
        verification_trl.parity()


def test_loss_normalisation_and_kl_estimator_are_those_of_the_trl_trainer():
    pytest.importorskip("trl", reason="the comparison needs trl, a development requirement")
    found = verification_trl.parity()
    assert found.advantages < 1e-6
    assert found.loss < 1e-6
    assert found.gradient < 1e-5


def test_later_trl_differs_by_its_temperature_and_by_nothing_else():
    pytest.importorskip("trl", reason="the comparison needs trl, a development requirement")
    found = verification_trl.parity(temperature=0.7)
    assert found.gradient > 0.05
    assert found.scaled < 1e-5


def test_later_trl_differs_by_the_gradient_of_its_corrected_kl_and_not_by_its_value():
    pytest.importorskip("trl", reason="the comparison needs trl, a development requirement")
    found = verification_trl.parity(corrected_kl=True)
    assert found.loss < 1e-6
    assert found.gradient > 1e-5
