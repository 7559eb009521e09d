import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from reprolib.errors import ReproError
from reprolib.privacy import accounting, audit, canaries

DELTA = 1 / 69_880
CANARY_RUN = {"sampling_rate": 128 / 6988, "noise_multiplier": 0.612058477104, "rounds": 100}


@pytest.mark.parametrize("noise_share", [1.0, 0.1])
def test_a_tenth_of_the_noise_is_caught_and_the_claimed_noise_is_not(noise_share):
    claim = {"sampling_rate": 128 / 6988, "noise_multiplier": 1.0023417361080647, "rounds": 50}
    claimed = accounting.epsilon(delta=DELTA, **claim)
    run = {**claim, "noise_multiplier": noise_share * claim["noise_multiplier"]}
    generator = np.random.default_rng(2)
    present = generator.random(2000) < 0.5
    releases = canaries.dirac_releases(present, generator=generator, **run)
    scores = canaries.log_likelihood_ratio(
        releases, sampling_rate=run["sampling_rate"], noise_multiplier=run["noise_multiplier"]
    )
    bound = audit.audit_one_run(scores, present, guesses=[(200, 0)], delta=DELTA).epsilon
    assert (bound > claimed) == (noise_share < 1)


@given(x=st.floats(-3, 4), q=st.floats(0.01, 1.0), sigma=st.floats(0.3, 3))
def test_likelihood_ratio_is_that_of_the_mixture_and_the_noise(x, q, sigma):
    present = (1 - q) * stats.norm.pdf(x, 0, sigma) + q * stats.norm.pdf(x, 1, sigma)
    expected = math.log(present) - stats.norm.logpdf(x, 0, sigma)
    ours = canaries.log_likelihood_ratio([[x], [x]], sampling_rate=q, noise_multiplier=sigma)
    assert ours == pytest.approx([expected] * 2, rel=1e-6, abs=1e-9)


def test_without_noise_a_sampled_canary_proves_itself_and_the_audit_is_powerful():
    q, rounds = CANARY_RUN["sampling_rate"], CANARY_RUN["rounds"]
    generator = np.random.default_rng(8)
    present = np.ones(4000, dtype=bool)
    releases = canaries.dirac_releases(
        present, sampling_rate=q, noise_multiplier=0, rounds=rounds, generator=generator
    )
    scores = canaries.log_likelihood_ratio(releases, sampling_rate=q, noise_multiplier=0)
    never = int((scores < math.inf).sum())
    assert abs(never - 4000 * (1 - q) ** rounds) < 4 * math.sqrt(4000 * 0.157 * 0.843)
    assert np.allclose(scores[scores < math.inf], rounds * math.log1p(-q))
    power = canaries.one_run_power(
        canaries=1000, guesses=[(300, 0)], sampling_rate=q, noise_multiplier=0, rounds=rounds, delta=DELTA,
        repetitions=5, generator=generator,
    )  # fmt: skip
    assert power[0].positive == power[0].accuracy == 1.0
    assert power[0].mean > 4


def test_a_correct_mechanism_is_not_refuted_and_more_canaries_show_more():
    generator = np.random.default_rng(9)
    means = [
        canaries.one_run_power(
            canaries=m, guesses=[(m // 20, 0)], delta=DELTA, repetitions=20, generator=generator, **CANARY_RUN
        )[0].mean
        for m in (200, 1000, 4000)
    ]
    assert means[0] < means[1] < means[2] < accounting.epsilon(delta=DELTA, **CANARY_RUN)


def test_the_likelihood_ratio_beats_the_sum_over_rounds():
    generator = np.random.default_rng(10)
    mean = {
        score: canaries.one_run_power(
            canaries=1000, guesses=[(100, 0)], delta=DELTA, repetitions=30, generator=generator, score=score,
            **CANARY_RUN,
        )[0].mean
        for score in ("likelihood-ratio", "sum")
    }  # fmt: skip
    assert mean["likelihood-ratio"] > 2 * mean["sum"]


RUN = {"canaries": 10, "guesses": [(1, 0)], "delta": 0.0, "repetitions": 1, **CANARY_RUN}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: canaries.one_run_power(**RUN, score="loss", generator=np.random.default_rng()),
            "score = 'loss'",
        ),
        (
            lambda: canaries.one_run_power(
                **{**RUN, "noise_multiplier": -1.0}, generator=np.random.default_rng()
            ),
            "noise_multiplier = -1.0",
        ),
    ],
)
def test_bad_input_is_refused_in_one_line(call, message):
    with pytest.raises(ReproError) as refused:
        call()
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)
