"""What a fleet can serve at a time: replicas, room for caches, and what decoding costs by batch."""

import dataclasses

import jax

from jaxroute.world import Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Capacity:
    """The capacity of D deployments; N is the largest batch of any.

    Attributes:
      replicas: `[D]`, infinite for a fleet that load does not touch.
      slots: `[D]`, sequences that a replica serves at a time: the batch of its profile.
      kv_capacity_tokens: `[D]`, room for KV on a replica.
      idle_w: `[D]`, W of a replica that serves nothing; 0 leaves idle power out.
      dec_j: `[N, D]`, J for a generated token of one request at context 0, at batches 1 to N.
      dec_s: `[N, D]`, s that a decode step takes at context 0, at the same.
    """

    replicas: Array
    slots: Array
    kv_capacity_tokens: Array
    idle_w: Array
    dec_j: Array
    dec_s: Array
