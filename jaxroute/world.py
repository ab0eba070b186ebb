"""The fleet and the grids it draws from: a pytree of numbers, and nothing else."""

import dataclasses
from typing import Any, Self

import jax
import numpy as np

Array = jax.Array
"""A leaf of a pytree; NumPy arrays serve as well and are what loading gives."""

TIME_BINS = 96
"""Quarter-hours of a UTC day: the time bin of a turn is one of them."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Retention:
    """How long a deployment keeps a conversation's KV cache. `(inf, inf, 0)` keeps it for ever.

    The first two broadcast to `[B, D]`: B time bins of a UTC day (a divisor of 96), D deployments.

    Attributes:
      ttl_s: `[B, D]`, s. A cache unused for longer than this is gone.
      decay_s: `[B, D]`, s. Resident tokens shrink as `exp(-idle / decay_s)`.
      drop_on_leave: `[]`, 0 or 1. A session's caches are dropped wherever it was not served last.
    """

    ttl_s: Array
    decay_s: Array
    drop_on_leave: Array

    @classmethod
    def of(
        cls, ttl_s: float = np.inf, decay_s: float = np.inf, *, drop_on_leave: bool = False
    ) -> Self:
        """One retention for every deployment and hour.

        >>> float(Retention.of(ttl_s=300.0).ttl_s[0, 0])
        300.0
        """
        if not (ttl_s > 0 and decay_s > 0):
            raise ValueError(f"ttl_s and decay_s must be > 0, got {ttl_s} and {decay_s}")
        leaves: dict[str, Any] = {
            "ttl_s": np.full((1, 1), ttl_s, np.float32),
            "decay_s": np.full((1, 1), decay_s, np.float32),
            "drop_on_leave": np.asarray(drop_on_leave, np.float32),
        }
        return cls(**leaves)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Fleet:
    """The D deployments, each one (model, GPU type, region) that the fleet runs.

    Coefficients are per replica, that is, of its whole tensor-parallel group, with the decode terms
    at context 0.

    Attributes:
      model, gpu, region: `[D]` int32, index of each deployment's model, GPU type and region.
      pre_j, pre_s: `[D]`, J and s to prefill a token.
      pre_j_ctx, pre_s_ctx: `[D]`, J and s more a token, for each token of context before it.
      ttft_floor_s: `[D]`, s, the least time to a first token; latency only, never carbon.
      dec_j: `[D]`, J to generate a token of one request, the batch already shared out.
      dec_s: `[D]`, s to generate a token of one sequence.
      dec_j_ctx, dec_s_ctx: `[D]`, J and s more a generated token, for each token of context.
      host_w: `[D]`, W, the host's power while the replica is busy.
      batch: `[D]`, sequences decoded together.
      embodied_g_per_s: `[D]`, gCO2e for a second of the replica.
      max_context_tokens: `[D]`, tokens of prompt and output together.
      params_b: `[D]`, parameters of the model in billions.
    """

    model: Array
    gpu: Array
    region: Array
    pre_j: Array
    pre_j_ctx: Array
    pre_s: Array
    pre_s_ctx: Array
    ttft_floor_s: Array
    dec_j: Array
    dec_j_ctx: Array
    dec_s: Array
    dec_s_ctx: Array
    host_w: Array
    batch: Array
    embodied_g_per_s: Array
    max_context_tokens: Array
    params_b: Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Belief:
    """What the router takes for true where it errs; the bill is always of the truth.

    The reported cache passes through the three faults in the order of their fields: the tokens on
    arrival, late or not; of these the ones usable for the prompt; rounded; and then missing or not.

    Attributes:
      fleet: the profiles it decides by, of the same deployments. Which of them can hold a prompt,
        and which it may use, it knows from the world's.
      intensity_g_per_kwh: `[H, R]`, its forecast of the world's.
      delayed: `[]`, 0 or 1. A report is of the tokens that were there when the session's previous
        turn arrived, before that was served; 0 at the first turn.
      rounded_to_tokens: `[]`, > 0. Reports are rounded down to multiples of it.
      missing: `[]` in [0, 1], chance that a deployment's report is missing at a turn
        (`Turn.report_draw` tells when): the router then assumes as if its `cache_knowledge` were 0.
    """

    fleet: Fleet
    intensity_g_per_kwh: Array
    delayed: Array
    rounded_to_tokens: Array
    missing: Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Congestion:
    """What load makes of the deployments, `[B, D]` each: `jaxroute.load_model` tells it.

    The first four stand in place of the fleet's fields for the bill and the clock, the waits of the
    world's, and caches live no longer than here, whatever its retention. Routers go on pricing by
    the fleet's own: they know a profile, at its batch, and not how full a replica is.

    Attributes:
      dec_j: J for a generated token of one request at context 0, at the batches that there are.
      dec_s, dec_s_ctx: s a generated token takes, and for each token of context more, with the
        prefills that decoding waits for.
      batch: sequences that share a replica's second of decoding.
      wait_s: s waited before prefill.
      seen_wait_s: s, the waits that routers see, `wait_knowledge` of which they believe.
      ttl_s: s that a cache lives unused for want of room.
    """

    dec_j: Array
    dec_s: Array
    dec_s_ctx: Array
    batch: Array
    wait_s: Array
    seen_wait_s: Array
    ttl_s: Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class World:
    """Everything about the fleet that a replay needs; every leaf is traced, so any may be swept.

    D deployments, R regions, C client regions, H hours, B time bins (any divisor of 96).

    Attributes:
      fleet: the deployments.
      block_tokens: `[]`, tokens of a KV block; only full blocks are reused (vLLM: 16).
      pue: `[R]`, power usage effectiveness of the data centre.
      wue_l_per_kwh: `[R]`, litres of water that the data centre uses for a kWh of IT energy.
      ewif_l_per_kwh: `[R]`, litres that generating a kWh at the meter takes; 0 leaves them out.
      price_usd_per_kwh: `[R]`, of a kWh at the meter; NaN where no price is known.
      intensity_g_per_kwh: `[H, R]`, gCO2e/kWh of each hour.
      rtt_s: `[C, R]`, s, round trip from a client region to a region.
      wait_s: `[B, D]` or broadcastable, s waited before prefill.
      retention: how long caches live.
      belief: what the router takes for true instead; None where it knows the truth.
      congestion: what load makes of the fleet; None where it is served as its profiles say.
    """

    fleet: Fleet
    block_tokens: Array
    pue: Array
    wue_l_per_kwh: Array
    ewif_l_per_kwh: Array
    price_usd_per_kwh: Array
    intensity_g_per_kwh: Array
    rtt_s: Array
    wait_s: Array
    retention: Retention
    belief: Belief | None = None
    congestion: Congestion | None = None

    def replace(self, **changes: object) -> Self:
        """A copy with some fields changed, as `dataclasses.replace`."""
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]


def cast(tree, dtype):
    """`tree` with every floating leaf as strongly typed `dtype`; integers and booleans stay.

    Dtypes are settled here once, at the door of the replay: inside it no promotion happens, and no
    weakly typed scalar enters a carry and costs a second compilation.

    >>> cast({"a": np.float64(0.5), "n": np.int32(3)}, np.float32)["a"].dtype
    dtype('float32')
    """

    def leaf(x):
        array = x if isinstance(x, jax.Array) else np.asarray(x)
        if not jax.dtypes.issubdtype(array.dtype, np.floating):
            return array
        return array.astype(dtype)

    return jax.tree.map(leaf, tree)
