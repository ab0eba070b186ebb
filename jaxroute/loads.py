"""What a replay asks of each deployment and quarter of an hour: sums over its turns."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxroute import footprint
from jaxroute.lifetime import AGES, age_of
from jaxroute.policies import RouterParams
from jaxroute.sessions import Sessions
from jaxroute.simulate import Record
from jaxroute.world import TIME_BINS, Array, Fleet, World


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Loads:
    """Sums over the turns that arrive in a time bin of a UTC day and are served at a deployment.

    `[TIME_BINS, D]` each, but for the last.

    Attributes:
      turns: how many.
      prefill_s, prefill_s2: s of prefill, and their squares.
      generated, generated2: tokens decoded, `v = max(o - 1, 0)`, and their squares.
      attended: tokens of context behind each decoded token, `v (L + v / 2)`.
      left: tokens whose KV the turns leave behind, `L + v`.
      prefix, cached: tokens of the prompts that could have been cached, and that were.
      again: `[AGES, D]`, tokens left by earlier turns that a later one took up again, by their age.
    """

    turns: Array
    prefill_s: Array
    prefill_s2: Array
    generated: Array
    generated2: Array
    attended: Array
    left: Array
    prefix: Array
    cached: Array
    again: Array


def busy_s(loads: Loads, fleet: Fleet) -> jax.Array:
    """Replica seconds of each time bin and deployment, at the batch of the profile: its load."""

    def at_bin(prefill_s: jax.Array, generated: jax.Array, attended: jax.Array) -> jax.Array:
        decode_s = fleet.dec_s * generated + fleet.dec_s_ctx * attended
        return prefill_s + decode_s / fleet.batch

    return jax.vmap(at_bin)(loads.prefill_s, loads.generated, loads.attended)


CELLS = tuple(field.name for field in dataclasses.fields(Loads))[:-1]


def nothing(world: World) -> Loads:
    """The loads of no turns."""
    deployments, dtype = world.fleet.pre_j.shape[0], world.fleet.pre_j.dtype
    empty = jnp.zeros((TIME_BINS, deployments), dtype)
    return Loads(**dict.fromkeys(CELLS, empty), again=jnp.zeros((AGES, deployments), dtype))


class Served(NamedTuple):
    """What is kept of a turn's replay: where it was served, and which cache it found there.

    Attributes:
      decision: int32, -1 where it was not served.
      cached_tokens: of the prompt.
      age: int32, how long ago that cache was used (`jaxroute.lifetime.age_of`).
      left_tokens: all of the session's that had been left there, evicted since or not where that
        was by the previous turn; otherwise those still there.
    """

    decision: Array
    cached_tokens: Array
    age: Array
    left_tokens: Array


def served(_: RouterParams, record: Record) -> Served:
    """What `loads` needs of a turn, for `jaxroute.simulate.evaluate` to keep."""
    d = jnp.maximum(record.trace.decision, 0)
    return Served(
        decision=record.trace.decision,
        cached_tokens=record.trace.cached_tokens,
        age=age_of(record.observation.idle_s[d]),
        left_tokens=jnp.where(
            d == record.observation.last,
            record.observation.context_tokens,
            record.truth.alive_tokens[d],
        ),
    )


def loads(sessions: Sessions, there: Served, world: World) -> Loads:
    """The loads of a replay.

    Args:
      sessions: packed, `[R, T]` leaves.
      there: what `served` kept, `[R, T]` leaves.
      world: of the replay.
    """
    turns, deployments = sessions.turns, world.fleet.pre_j.shape[0]
    d = there.decision
    new, output = jnp.maximum(turns.new_tokens, 1), turns.output_tokens
    prompt, generated = turns.prefix_tokens + new, jnp.maximum(output - 1, 0)
    fleet = jax.tree.map(lambda x: x[jnp.maximum(d, 0)], world.fleet)
    _, prefill_s = footprint.prefill(fleet, there.cached_tokens, prompt)
    amounts = {
        "turns": jnp.ones_like(prompt),
        "prefill_s": prefill_s,
        "prefill_s2": prefill_s**2,
        "generated": generated,
        "generated2": generated**2,
        "attended": generated * (prompt + generated / 2),
        "left": prompt + generated,
        "prefix": turns.prefix_tokens,
        "cached": there.cached_tokens,
    }
    rows = jnp.stack([amounts[name] for name in CELLS], axis=-1)
    nowhere = TIME_BINS * deployments
    cell = jnp.where(d >= 0, turns.time_bin * deployments + d, nowhere)
    sums = jnp.zeros((nowhere, len(CELLS)), rows.dtype).at[cell].add(rows, mode="drop")
    table = sums.reshape(TIME_BINS, deployments, -1)
    ages = jnp.zeros((AGES, deployments), rows.dtype)
    again = ages.at[jnp.where(d >= 0, there.age, AGES), d].add(there.left_tokens, mode="drop")
    return Loads(**{name: table[..., n] for n, name in enumerate(CELLS)}, again=again)
