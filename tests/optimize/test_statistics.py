"""An interval covers, a gain that is none is not seen, and paraphrases do not count as several cases."""

import random

import numpy as np
import pytest

from optimize.statistics import interval, paired_gain, wilson


def test_an_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    generator = np.random.default_rng(7)
    covered = 0
    for seed in range(200):
        values = generator.binomial(1, 0.7, 80).astype(float).tolist()
        _, low, high = interval(values, [str(n) for n in range(80)], seed=seed)
        covered += low <= 0.7 <= high
    assert 0.88 <= covered / 200 <= 0.99


def test_paraphrases_make_an_interval_no_narrower() -> None:
    values = [float(random.Random(n).random() < 0.6) for n in range(40)]
    single = interval(values, [str(n) for n in range(40)])
    repeated = interval([v for v in values for _ in range(5)], [str(n) for n in range(40) for _ in range(5)])
    assert repeated[2] - repeated[1] == pytest.approx(single[2] - single[1], abs=0.03)


def test_a_gain_is_paired() -> None:
    """Hard and easy cases differ far more than the two sides do; pairing sees the small difference."""
    before = [0.1 * (n % 10) for n in range(100)]
    after = [value + 0.02 for value in before]
    gain, low, high = paired_gain(before, after, [str(n) for n in range(100)])
    assert low > 0
    assert (gain, high) == (0.02, 0.02)
    with pytest.raises(ValueError, match="same cases"):
        paired_gain(before, after[1:], [str(n) for n in range(100)])


def test_noise_is_rarely_a_gain() -> None:
    generator = np.random.default_rng(3)
    seen = 0
    for _ in range(300):
        before, after = generator.binomial(1, 0.7, (2, 60)).astype(float)
        seen += paired_gain(before.tolist(), after.tolist(), [str(n) for n in range(60)])[1] > 0
    assert seen / 300 <= 0.06


@pytest.mark.parametrize(("hits", "total"), [(0, 0), (0, 10), (10, 10), (3, 4)])
def test_a_share_lies_in_its_interval(hits: int, total: int) -> None:
    value, low, high = wilson(hits, total)
    assert 0 <= low <= value <= high <= 1


def test_the_interval_of_a_share_is_wilsons() -> None:
    """81 of 263, with the continuity correction left out (Newcombe, 1998, table I)."""
    assert wilson(81, 263) == [0.308, 0.255, 0.366]
