"""A logistic chance fitted to yes and no, and how well chances tell the two apart."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd
from numpy.typing import NDArray
from scipy.special import expit
from scipy.stats import rankdata

Floats = NDArray[np.float64]

L2 = 1e-3
"""Weight of the penalty on standardised weights, beside a mean loss: holds those of features that
say nothing, or the same, at 0."""

STEPS = 60
"""Of L-BFGS with a line search, far more than nine numbers need."""

BINS = 10
"""Of a reliability table, equal parts of [0, 1]."""


class Logistic(NamedTuple):
    """`p = sigmoid(bias + weights . features)`, of features as they are.

    Attributes:
      bias, weights: `[]` and `[F]`.
      mean, sd: `[F]`, of the features it was fitted to.
      losses: `[STEPS]`, mean loss and penalty before each step.
    """

    bias: float
    weights: Floats
    mean: Floats
    sd: Floats
    losses: Floats


def fit(features: Floats, yes: NDArray[np.bool_]) -> Logistic:
    """The chance of yes, by maximum likelihood with a small penalty.

    `mean(log(1 + exp(z)) - y z) + L2 |w|^2`, `z = b + w . (x - mean) / sd`, which is convex: full
    batches from 0, by L-BFGS, draw nothing and end at the one minimum. A feature that does not vary
    gets no weight.

    Args:
      features: `[N, F]`.
      yes: `[N]`, of both kinds.

    >>> x = np.linspace(-3, 3, 601)[:, None]
    >>> found = fit(x, np.arange(601) % 7 < 3)  # says nothing of x
    >>> round(float(expit(found.bias)), 2), abs(found.weights[0]) < 0.02
    (0.43, np.True_)
    """
    mean, sd = features.mean(0), features.std(0)
    varies = sd > 1e-9 * (np.abs(mean) + 1)
    scale = np.where(varies, sd, 1)
    standard = np.where(varies, (features - mean) / scale, 0)
    given = jnp.asarray(standard, jnp.float32), jnp.asarray(yes, jnp.float32)
    (bias, weights), losses = jax.device_get(_minimise(*given))
    raw = np.where(varies, weights / scale, 0).astype(np.float64)
    return Logistic(
        bias=float(bias - raw @ mean),
        weights=raw,
        mean=mean,
        sd=np.where(varies, sd, 0),
        losses=np.asarray(losses, np.float64),
    )


@jax.jit
def _minimise(standard: jax.Array, yes: jax.Array) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
    optimiser = optax.lbfgs()

    def loss(found: tuple[jax.Array, jax.Array]) -> jax.Array:
        bias, weights = found
        z = bias + standard @ weights
        return optax.sigmoid_binary_cross_entropy(z, yes).mean() + L2 * (weights**2).sum()

    def step(carry, _):
        found, state = carry
        value, slope = optax.value_and_grad_from_state(loss)(found, state=state)
        updates, state = optimiser.update(
            slope, state, found, value=value, grad=slope, value_fn=loss
        )
        return (optax.apply_updates(found, updates), state), value

    dtype = standard.dtype
    begin = jnp.zeros((), dtype), jnp.zeros(standard.shape[1], dtype)
    (found, _), losses = jax.lax.scan(step, (begin, optimiser.init(begin)), length=STEPS)
    return found, losses


def chance(bias: float, weights: Floats, features: Floats) -> Floats:
    """`sigmoid(bias + weights . features)` of features `[N, F]`."""
    return expit(bias + features @ weights)


def auc(chances: Floats, yes: NDArray[np.bool_]) -> float:
    """Chance that a yes has the greater chance than a no, ties half (Mann and Whitney, 1947).

    NaN where there is no yes, or no no.

    >>> auc(np.array([0.1, 0.4, 0.4, 0.8]), np.array([False, False, True, True]))
    0.875
    """
    positive, negative = int(yes.sum()), int((~yes).sum())
    if not positive or not negative:
        return float("nan")
    ranks = rankdata(chances)[yes].sum()
    return float((ranks - positive * (positive + 1) / 2) / (positive * negative))


def reliability(chances: Floats, yes: NDArray[np.bool_]) -> pd.DataFrame:
    """Whether what is given a chance of p happens in a share p of cases.

    Returns:
      One row a bin that has any: `low`, `high`, `count`, `mean_chance`, `observed_share`.

    >>> reliability(np.array([0.31, 0.39, 0.9]), np.array([True, False, True]))
       low  high  count  mean_chance  observed_share
    0  0.3   0.4      2         0.35             0.5
    1  0.9   1.0      1         0.90             1.0
    """
    place = np.minimum((chances * BINS).astype(int), BINS - 1)
    count = np.bincount(place, minlength=BINS)
    some = np.flatnonzero(count)
    return pd.DataFrame(
        {
            "low": some / BINS,
            "high": (some + 1) / BINS,
            "count": count[some],
            "mean_chance": np.bincount(place, chances, BINS)[some] / count[some],
            "observed_share": np.bincount(place, yes, BINS)[some] / count[some],
        }
    )
