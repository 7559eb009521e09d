"""Where the control starts, what moves it, and what the supervised arms leave out."""

from reprolib.learn import verification_arms as arms


def test_the_first_update_of_the_control_is_noise_and_later_ones_pull_towards_the_base():
    found = arms.control()
    assert found.adapter == 0
    assert found.first < 1e-15
    assert found.without_kl == 0
    assert found.pull > 0


def test_imitation_averages_a_records_targets_and_reads_neither_base_nor_verifier():
    found = arms.imitation()
    assert found.mean < 1e-12
    assert found.without == (0.0, True)
    assert not found.reads_reference
    assert found.gold_targets == (6, 6)
    assert not found.gold_draws
