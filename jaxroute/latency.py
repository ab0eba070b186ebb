"""Quantiles of latency without keeping every turn: histograms of equal width in the logarithm."""

import dataclasses
import math
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from jaxroute.world import Array

LOW_S, HIGH_S = 1e-3, 1e5
"""From the first bin to the last; what is below and above has a bin each."""

RATIO = 1.01
"""Of a bin's ends: no quantile is further than this from the turn it stands for."""

PERCENTS = (50, 95, 99)
"""Quantiles that tables tell."""

WIDTH = math.log(RATIO)

INNER = math.ceil(math.log(HIGH_S / LOW_S) / WIDTH)

BINS = INNER + 2
"""Below `LOW_S`, the inner ones, and above them."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Latency:
    """Served turns by how long they took, `[BINS]` each: floats, in float32 exact up to 2**24.

    Attributes:
      ttft: by the time to the first token.
      e2e: by the time to the last.
    """

    ttft: Array
    e2e: Array


FIELDS = tuple(field.name for field in dataclasses.fields(Latency))


def tallied(
    histograms: jax.Array, served: jax.Array, ttft_s: jax.Array, e2e_s: jax.Array
) -> jax.Array:
    """`histograms` `[2 BINS]`, of TTFT and then of E2E, and the turns `[R]` that were served.

    NaN, of a policy that chose what is not feasible, is counted nowhere.
    """
    seconds = jnp.stack([ttft_s, e2e_s])
    place = jnp.clip(jnp.floor(jnp.log(seconds / LOW_S) / WIDTH) + 1, 0, BINS - 1)
    place = place + jnp.array([[0], [BINS]], place.dtype)
    place = jnp.where(served[None] & ~jnp.isnan(place), place, 2 * BINS).astype(jnp.int32)
    return histograms.at[place.ravel()].add(1, mode="drop")


def quantile(histogram: NDArray[np.floating], q: float) -> NDArray[np.float64]:
    """The time, s, within which a share `q` of the turns was served.

    Interpolated in the logarithm within the bin that holds the turn of rank `q N`, so that it is
    within 1 % of that turn's; at most `LOW_S` is told as `LOW_S`, and more than `HIGH_S` as
    infinity.

    Args:
      histogram: `[..., BINS]`, a leaf of `Latency`.
      q: in (0, 1].

    Returns:
      `[...]`, NaN where there are no turns.

    >>> float(quantile(np.eye(BINS)[1], 1.0).round(6))
    0.00101
    """
    counts = np.asarray(histogram, np.float64)
    reached = np.cumsum(counts, axis=-1)
    rank = q * reached[..., -1:]
    place = np.argmax(reached >= rank, axis=-1)[..., None]
    inside = np.take_along_axis(counts, place, -1)
    before = np.take_along_axis(reached, place, -1) - inside
    with np.errstate(invalid="ignore", divide="ignore"):
        share = (rank - before) / inside
    seconds = LOW_S * np.exp(WIDTH * (place - 1 + share))
    seconds = np.where(place == 0, LOW_S, np.where(place == BINS - 1, np.inf, seconds))
    return np.where(rank > 0, seconds, np.nan)[..., 0]


def share_above(histogram: NDArray[np.floating], limit_s: float) -> NDArray[np.float64]:
    """The share of turns, 0 to 1, that took longer than a limit.

    Turns of the bin that the limit lies in are taken as spread evenly over it in the logarithm;
    those of the first bin as of `LOW_S`, and of the last as endless.

    Args:
      histogram: `[..., BINS]`, a leaf of `Latency`.
      limit_s: s, at least 0.

    Returns:
      `[...]`, NaN where there are no turns.

    >>> float(share_above(np.ones(BINS), np.inf))
    0.0
    """
    counts = np.asarray(histogram, np.float64)
    with np.errstate(divide="ignore"):
        place = np.log(limit_s / LOW_S) / WIDTH + 1
    above = np.clip(np.arange(1, BINS + 1) - place, 0, 1)
    above[0], above[-1] = limit_s < LOW_S, limit_s < np.inf
    with np.errstate(invalid="ignore"):
        return (counts * above).sum(axis=-1) / counts.sum(axis=-1)


def columns(
    histograms: Mapping[str, NDArray[np.floating]], limits: Mapping[str, float]
) -> dict[str, NDArray[np.float64]]:
    """What a table tells of each leaf of `Latency`, `[..., BINS]`: quantiles and violations.

    `<leaf>_p50_s`, `_p95_s`, `_p99_s`, and `<leaf>_slo_violations_pct`, the share in % above the
    limit `<leaf>_s`, NaN where that is infinite; `[...]` each.
    """
    quantiles = {
        f"{name}_p{percent}_s": quantile(histogram, percent / 100)
        for name, histogram in histograms.items()
        for percent in PERCENTS
    }
    violations = {
        f"{name}_slo_violations_pct": 100 * share_above(histogram, limits[f"{name}_s"])
        if np.isfinite(limits[f"{name}_s"])
        else np.full(np.shape(histogram)[:-1], np.nan)
        for name, histogram in histograms.items()
    }
    return quantiles | violations
