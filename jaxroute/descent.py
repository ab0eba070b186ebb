"""Gradient descent of many starts at once, in the unit cube of a space of settings."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxroute import devices, space
from jaxroute.comparison import Report
from jaxroute.dataset import Dataset
from jaxroute.load.space import Range
from jaxroute.load.tuning import TuneConfig
from jaxroute.numerics import stack
from jaxroute.pieces import cut
from jaxroute.policies import RouterParams
from jaxroute.relaxed import soft_totals
from jaxroute.sessions import Sessions
from jaxroute.simulate import evaluate
from jaxroute.study import Study
from jaxroute.world import Retention, World, cast

PIECE_TURNS = 1024
"""Of each trace at a step: the slope of more is surer, and takes as much longer."""

DIGITS = 5
"""Significant digits of a tuned number: what is written is what was replayed."""

LEAST_RATE = 0.05
"""Of the learning rate at the last step, which it falls to along a cosine."""

DUAL_RATE = 5.0
"""How much the price of quality rises in a step, in shares of the baseline's carbon, for each unit
of quality that is lacking."""


class Box(NamedTuple):
    """The ends of F numbers, `[F]` each; of those in the logarithm, its logarithms."""

    low: Any
    high: Any
    log: Any

    @classmethod
    def of(cls, axes: Mapping[str, Range]) -> "Box":
        ends = [np.log([a.low, a.high]) if a.log else (a.low, a.high) for a in axes.values()]
        low, high = np.array(ends).T
        return cls(low, high, np.array([axis.log for axis in axes.values()]))

    def at(self, unit: Any) -> jax.Array:
        """The numbers at a point of the unit cube, `[F]`; differentiable."""
        value = self.low + (self.high - self.low) * unit
        return jnp.where(self.log, jnp.exp(jnp.where(self.log, value, 0)), value)


class Trace(NamedTuple):
    """A trace to descend on.

    Attributes:
      pieces: of its sessions, `[K, ...]` leaves.
      baseline_g: `[N]`, the baseline's carbon under each retention, of a piece in the mean.
    """

    pieces: Sessions
    baseline_g: Any


class Given(NamedTuple):
    """What is the same for every start: the policy, where its numbers may lie, and the replay."""

    base: RouterParams
    box: Box
    traces: tuple[Trace, ...]
    world: World
    retentions: Retention
    quality_price_g: Any
    latency_price_g_per_s: Any
    least_quality: Any


class Now(NamedTuple):
    """A step: the piece of each trace, `[]` each; how soft choices are, and how far to go."""

    pieces: tuple[Any, ...]
    temperature: Any
    rate: Any


class Climb(NamedTuple):
    """Where P starts are in the cube, `[P, F]`; the optimiser; each one's price of quality."""

    at: Any
    optimiser: Any
    price: Any


def field(params: RouterParams, name: str) -> Any:
    """A number of a policy by its name, such as `gate_weights[2]`."""
    key, _, element = name.rstrip("]").partition("[")
    value = getattr(params, key)
    return value[int(element)] if element else value


def with_fields(base: RouterParams, names: Sequence[str], values: jax.Array) -> RouterParams:
    """The policy with other numbers, `[F]`; differentiable, as `space.params_at` is not."""
    leaves = dict(vars(base))
    for name, value in zip(names, values, strict=True):
        key, _, element = name.rstrip("]").partition("[")
        leaves[key] = leaves[key].at[int(element)].set(value) if element else value
    return base.replace(**leaves)


def descend(
    study: Study, base: RouterParams, config: TuneConfig, report: Report
) -> tuple[pd.DataFrame, np.ndarray, pd.DataFrame]:
    """Descends from every start.

    Args:
      study: the sessions to learn from, the retentions and the baseline.
      base: the policy.
      config: what is tuned, and how.
      report: told of each step.

    Returns:
      Where the starts end, a row a start and a column a field; their objective by soft choices at
      the last temperature, `[P]`; and the loss, a row a step and start: `step`, `start`,
      `temperature`, `loss`.
    """
    over, seed, names = _mesh(config.starts), study.config.seed, tuple(config.space)
    given = _given(study, base, config)
    shared = devices.everywhere(given, over)
    first = np.array([field(base, name) for name in names], np.float64)
    starts = _starts(config, first, seed).astype(np.float32)
    climbs = jax.device_put(_begin(starts), NamedSharding(over, P(devices.AXIS)))
    step = _stepper(over, names)
    heats = np.geomspace(*config.temperature, config.steps, dtype=np.float32)
    rates = optax.cosine_decay_schedule(config.learning_rate, config.steps, alpha=LEAST_RATE)
    order = [_order(len(each.pieces.turns.valid), config.steps, seed) for each in given.traces]
    losses = []
    for n in range(config.steps):
        report("tune" if n else "tune: compile", n / config.steps)
        pieces = tuple(each[n] for each in order)
        now = Now(pieces, heats[n], np.asarray(rates(n), np.float32))
        climbs, loss = step(shared, devices.everywhere(now, over), climbs)
        losses.append(np.asarray(loss))
    units = np.asarray(climbs.at)
    ends = rounded(pd.DataFrame(np.asarray(jax.vmap(given.box.at)(units)), columns=list(names)))
    report("tune: soft choices", 1.0)
    soft = _softly(given, ends.to_numpy(np.float32), names, config.temperature[1])
    number, start = (each.ravel() for each in np.indices((config.steps, config.starts)))
    table = {"step": number, "start": start, "temperature": heats[number]}
    return ends, soft, pd.DataFrame(table | {"loss": np.concatenate(losses)})


def rounded(values: pd.DataFrame) -> pd.DataFrame:
    """Numbers of `DIGITS` significant digits."""
    return values.map(lambda value: float(f"{value:.{DIGITS}g}"))


def _softly(given: Given, numbers: np.ndarray, names: tuple[str, ...], heat: float) -> np.ndarray:
    """The objective of P settings `[P, F]` by soft choices, on all pieces of all traces: `[P]`."""
    means = []
    for trace in given.traces:
        alone = jax.device_put(given._replace(traces=(trace,)))
        each = [
            _soft(alone, numbers, n, np.asarray(heat, numbers.dtype), names=names)
            for n in range(len(trace.pieces.turns.valid))
        ]
        means.append(np.mean(each, axis=0, dtype=np.float64))
    return np.mean(means, axis=0)


@functools.partial(jax.jit, static_argnames="names")
def _soft(
    given: Given, numbers: jax.Array, n: jax.Array, heat: jax.Array, *, names: tuple[str, ...]
) -> jax.Array:
    piece = jax.tree.map(lambda leaf: leaf[n], given.traces[0].pieces)

    def of(values: jax.Array) -> jax.Array:
        return objective(given, with_fields(given.base, names, values), [piece], heat)[0]

    return jax.vmap(of)(numbers)


@functools.cache
def _stepper(over: Mesh, names: tuple[str, ...]) -> Callable[..., tuple[Climb, jax.Array]]:
    """`_step`, its starts shared out over devices: one compilation serves all of them."""
    starts, whole = P(devices.AXIS), P()
    step = functools.partial(_step, names=names)
    shared = jax.shard_map(
        step, mesh=over, in_specs=(whole, whole, starts), out_specs=starts, check_vma=False
    )
    return jax.jit(shared)


def _step(
    given: Given, now: Now, climb: Climb, *, names: tuple[str, ...]
) -> tuple[Climb, jax.Array]:
    """One step of Adam of every start, and the loss before it, `[P]`."""
    pieces = [
        jax.tree.map(lambda leaf, n=n: leaf[n], each.pieces)
        for each, n in zip(given.traces, now.pieces, strict=True)
    ]

    def loss(at: jax.Array, price: jax.Array) -> tuple[jax.Array, jax.Array]:
        params = with_fields(given.base, names, given.box.at(at))
        ratio, quality = objective(given, params, pieces, now.temperature)
        return ratio + price * (given.least_quality - quality), quality

    slopes = jax.vmap(jax.value_and_grad(loss, has_aux=True))
    (losses, quality), slope = slopes(climb.at, climb.price)
    with jax.numpy_dtype_promotion("standard"):  # as optax takes it
        direction, optimiser = jax.vmap(optax.scale_by_adam().update)(slope, climb.optimiser)
    lacks = given.least_quality - quality
    left = Climb(
        at=jnp.clip(climb.at - now.rate * direction, 0, 1),
        optimiser=optimiser,
        price=jnp.maximum(climb.price + DUAL_RATE * lacks, 0),
    )
    return left, losses


def objective(
    given: Given, params: RouterParams, pieces: Sequence[Sessions], temperature: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """What `jaxroute.tune` minimises, of a piece of each trace, and the mean quality: `[]` each."""

    def under(retention: Retention) -> tuple[list[jax.Array], list[jax.Array]]:
        world, grams, quality = given.world.replace(retention=retention), [], []
        for piece in pieces:
            sums = jax.tree.map(jnp.sum, soft_totals(params, piece, world, temperature))
            grams.append(
                sums.carbon_g
                + given.quality_price_g * (sums.turns - sums.quality)
                + given.latency_price_g_per_s * sums.e2e_s
            )
            quality.append(sums.quality / jnp.maximum(sums.turns, 1))
        return grams, quality

    grams, quality = jax.lax.map(under, given.retentions)
    ratios = [g / each.baseline_g for g, each in zip(grams, given.traces, strict=True)]
    return jnp.stack(ratios).mean(), jnp.stack(quality).mean()


def _given(study: Study, base: RouterParams, config: TuneConfig) -> Given:
    world, dtype = study.world, study.world.fleet.pre_j.dtype
    noise = bool(base.noise_price_g > 0) or "noise_price_g" in config.space
    fair = study.with_policies([study.config.baseline]).policies[study.config.baseline]
    traces = []
    for dataset in study.datasets:
        pieces, sessions = _pieces(dataset, noise), jax.device_put(dataset.sessions)
        grams = [
            np.asarray(evaluate(fair, sessions, world.replace(retention=each)).carbon_g)
            for each in study.retentions.values()
        ]
        count = len(pieces.turns.valid)
        traces.append(Trace(pieces, np.array([np.sum(g, dtype=np.float64) / count for g in grams])))
    given = Given(
        base=base,
        box=Box.of(config.space),
        traces=tuple(traces),
        world=world,
        retentions=stack(study.retentions.values()),
        quality_price_g=np.float64(config.quality_price_g),
        latency_price_g_per_s=np.float64(config.latency_price_g_per_s),
        least_quality=np.float64(config.least_quality or 0),
    )
    return cast(given, dtype)


def _pieces(dataset: Dataset, noise: bool) -> Sessions:
    """The sessions in pieces of about `PIECE_TURNS`, `[K, ...]` leaves."""
    longest = int(dataset.lengths.max())
    pieces = cut(dataset.lengths, turns=max(PIECE_TURNS, longest))
    packed = list(dataset.packed(pieces, range(len(pieces)), noise=noise))
    return stack(packed)


def _mesh(starts: int) -> Mesh:
    """As many devices as can share the starts evenly."""
    most = min(len(jax.local_devices()), starts)
    return devices.mesh(next(n for n in range(most, 0, -1) if starts % n == 0))


def _starts(config: TuneConfig, first: np.ndarray, seed: int) -> np.ndarray:
    """The starts in the cube, `[P, F]`: the policy as it is, then Sobol points."""
    box = Box.of(config.space)
    value = np.where(box.log, np.log(np.maximum(first, 1e-30)), first)
    own = np.clip((value - box.low) / (box.high - box.low), 0, 1)
    drawn = space.unit("sobol", config.starts, len(first), seed)
    return np.concatenate([own[None], drawn])[: config.starts]


def _begin(at: np.ndarray) -> Climb:
    moments = jax.vmap(optax.scale_by_adam().init)(jnp.asarray(at))
    return Climb(at, moments, np.zeros(len(at), at.dtype))


def _order(pieces: int, steps: int, seed: int) -> np.ndarray:
    """Which piece each step takes: all of them in a new order, again and again."""
    rng = np.random.default_rng([seed, pieces])
    rounds = [rng.permutation(pieces) for _ in range(-(-steps // pieces))]
    return np.concatenate(rounds)[:steps].astype(np.int32)
