"""The interval of a ratio of sums."""

import numpy as np
import pytest
from scipy.stats import norm

from jaxroute import bootstrap, draws

HASHES = draws.name_hashes(str(n) for n in range(500))


def _bills(rng):
    baseline_g = rng.lognormal(0, 1, 500)
    return baseline_g * 0.8 * rng.lognormal(0, 0.1, 500), baseline_g


def test_order_and_split_of_sessions_change_nothing():
    rng = np.random.default_rng(0)
    policy_g, baseline_g = _bills(rng)
    whole = bootstrap.sums(policy_g, baseline_g, HASHES, 0)
    order = rng.permutation(500)
    shuffled = bootstrap.sums(policy_g[order], baseline_g[order], HASHES[order], 0)
    np.testing.assert_allclose(shuffled, whole, rtol=1e-12)
    group = rng.integers(3, size=500)
    parts = bootstrap.sums(policy_g, baseline_g, HASHES, 0, group=group, groups=3)
    np.testing.assert_allclose(parts.sum(0), whole[0], rtol=1e-12)
    alone = bootstrap.sums(policy_g[group == 1], baseline_g[group == 1], HASHES[group == 1], 0)
    np.testing.assert_allclose(parts[1], alone[0], rtol=1e-12)


def test_the_first_column_is_the_plain_sum():
    policy_g, baseline_g = _bills(np.random.default_rng(1))
    sums = bootstrap.sums(policy_g, baseline_g, HASHES, 0)[0, :, 0]
    products = policy_g**2, policy_g * baseline_g, baseline_g**2
    expected = [each.sum() for each in (policy_g, baseline_g, *products)]
    np.testing.assert_allclose(sums, expected, rtol=1e-12)


def test_with_light_tails_it_is_near_the_normal_interval():
    policy_g, baseline_g = _bills(np.random.default_rng(2))
    width = bootstrap.half_width(bootstrap.sums(policy_g, baseline_g, HASHES, 0))[0]
    ratio = policy_g.sum() / baseline_g.sum()
    error = np.sqrt(((policy_g - ratio * baseline_g) ** 2).sum()) / baseline_g.sum()
    assert width == pytest.approx(norm.ppf(0.975) * error, rel=0.1)


def test_a_policy_that_is_the_baseline_saves_nothing_for_sure():
    _, baseline_g = _bills(np.random.default_rng(3))
    for share in (1.0, 0.5, 0.0):
        sums = bootstrap.sums(share * baseline_g, baseline_g, HASHES, 0)
        assert bootstrap.half_width(sums)[0] == 0


@pytest.mark.parametrize("count", [0, 1, 4])
def test_a_handful_of_sessions_tells_nothing(count):
    policy_g, baseline_g = (each[:count] for each in _bills(np.random.default_rng(4)))
    sums = bootstrap.sums(policy_g, baseline_g, HASHES[:count], 0)
    assert np.isnan(bootstrap.half_width(sums)[0])


def test_pairs_narrow_it():
    rng = np.random.default_rng(5)
    policy_g, baseline_g = _bills(rng)
    shuffled = rng.permutation(policy_g)
    paired, apart = (
        bootstrap.half_width(bootstrap.sums(each, baseline_g, HASHES, 0))[0]
        for each in (policy_g, shuffled)
    )
    assert paired < apart / 3
