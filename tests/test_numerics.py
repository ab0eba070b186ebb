"""Each helper against what it is for."""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from jaxroute import residency
from jaxroute.numerics import as_table, division_rest, first_min, row_as


@given(st.integers(0, 131_072), st.floats(0, 4000, width=32), st.floats(0.5, 1e5, width=32))
def test_decayed_tokens_are_those_of_float64_beyond_a_thousandth(tokens, age_s, decay_s):
    exact = tokens * np.exp(-np.float64(age_s) / np.float64(decay_s)) + residency.EDGE_TOKENS
    got = float(_decayed(*np.float32([tokens, age_s, decay_s])))
    assert got == np.floor(exact) or abs(exact - np.rint(exact)) < 1e-3


def test_decayed_tokens_of_many_at_once():
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 131_072, 1_000_000).astype(np.float32)
    age = rng.exponential(200, tokens.size).astype(np.float32)
    decay = np.full(tokens.size, 600, np.float32)
    exact = tokens * np.exp(-age.astype(np.float64) / 600) + residency.EDGE_TOKENS
    wrong = np.asarray(_decayed(tokens, age, decay)) != np.floor(exact)
    assert np.abs(exact - np.rint(exact))[wrong].max(initial=0) < 1e-3
    plain = np.floor(tokens * np.exp(-age / decay) + np.float32(residency.EDGE_TOKENS))
    assert wrong.sum() < 0.1 * (plain != np.floor(exact)).sum()


_decayed = jax.jit(residency.decayed)


def test_without_decay_or_age_nothing_is_lost():
    tokens = np.arange(0, 2**24, 4099, dtype=np.float32)
    zero, inf = np.zeros_like(tokens), np.full_like(tokens, np.inf)
    np.testing.assert_array_equal(_decayed(tokens, np.full_like(tokens, 1e6), inf), tokens)
    np.testing.assert_array_equal(_decayed(tokens, zero, np.full_like(tokens, 600)), tokens)
    np.testing.assert_array_equal(_decayed(tokens, np.full_like(tokens, 1e6), zero + 600), 0)


def test_division_rest_recovers_what_rounding_left_out():
    a, b = np.random.default_rng(1).uniform(1, 1000, (2, 100_000)).astype(np.float32)
    rest = np.asarray(jax.jit(lambda a, b: division_rest(a, b, a / b))(a, b), np.float64)
    exact = np.float64(a) / b
    assert np.abs((np.float64(a / b) + rest) / exact - 1).max() < 1e-11


def test_first_min_takes_the_lowest_index():
    assert int(first_min(jnp.array([3.0, 1.0, 1.0]))) == 1
    assert int(first_min(jnp.array([jnp.inf, jnp.inf, 2.0]))) == 2


def test_a_row_of_a_table_keeps_dtypes_and_values():
    tree = {"a": jnp.arange(4.0), "n": jnp.array([7, 8, 9, 2**24 - 1], jnp.int32)}
    picked = row_as(tree, as_table(tree)[3])
    assert picked["n"].dtype == jnp.int32
    assert (float(picked["a"]), int(picked["n"])) == (3.0, 2**24 - 1)
