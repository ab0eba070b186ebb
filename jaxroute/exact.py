"""The cheapest plan of a session under any retention, by label setting: for small cases only.

NumPy float64, in the terms of `jaxroute.reference`; the oracle of `jaxroute.bounds`.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxroute import reference
from jaxroute.reference import NONE, Fleet, Values


class Exact(NamedTuple):
    """A plan of least carbon: a deployment for each turn `[T]`, -1 where unserved, and its gCO2e.

    Attributes:
      decision: `[T]`.
      carbon_g: of the session.
    """

    decision: NDArray[np.int64]
    carbon_g: float


class Labels(NamedTuple):
    """N ways to have served the turns so far, cheapest or not.

    Attributes:
      carbon_g: `[N]`.
      resident: `[N, D]`, tokens held as of the last turn; what they become until the next one
        depends on nothing but this, `used_s` and, under `drop_on_leave`, `last`.
      used_s: `[N, D]`, when a deployment finished last, s after the first arrival.
      last: `[N]`, the deployment that served last.
      plan: `[N, T]`.
    """

    carbon_g: NDArray[np.float64]
    resident: NDArray[np.float64]
    used_s: NDArray[np.float64]
    last: NDArray[np.int64]
    plan: NDArray[np.int64]


def exact_plan(world: Values, session: Values, params: Values) -> Exact:
    """The least carbon at which a session can be served, and a plan that does it.

    Turn by turn, every label is extended by every deployment that the context limit, the masks and
    the quality filter leave, with true costs; of the labels that a turn finds, the dominated are
    dropped (`undominated`). They are at most as many as there are vectors of last visits, or of
    ways to have made them, so that a session of 8 turns on 4 deployments takes milliseconds and
    one of 30 turns may not end.

    Args:
      world, session, params: as for `jaxroute.reference.replay`; of the parameters only the quality
        floor, the slack and the masks matter.
    """
    w, s, p = (reference._namespace(values) for values in (world, session, params))
    reference._tabulate(w, s, p)
    turns, deployments = s.kappa.shape
    timeless = bool(np.isinf(s.ttl_s).all() and np.isinf(s.decay_s).all())
    labels = Labels(
        carbon_g=np.zeros(1),
        resident=np.zeros((1, deployments)),
        used_s=np.zeros((1, deployments)),
        last=np.full(1, NONE),
        plan=np.full((1, turns), NONE),
    )
    for t in range(turns):
        k, n = s.prefix_tokens.item(t), max(1, s.new_tokens.item(t))
        labels = undominated(_arrive(labels, w, s, t), timeless=timeless)
        fits = k + n + s.predicted_output_tokens[t] <= w.max_context_tokens
        if fits.any():
            no_ttft = np.zeros(deployments)
            left, _ = reference.select(p, fits, w.allowed, s.quality[t], no_ttft)
            labels = _serve(labels, w, s, t, np.flatnonzero(left))
    best = int(labels.carbon_g.argmin())
    return Exact(labels.plan[best], labels.carbon_g.item(best))


def undominated(labels: Labels, *, timeless: bool) -> Labels:
    """The labels that may still be the start of a cheapest plan.

    On arrival, `resident` is what this prompt could use: a dead cache is 0 and never comes back,
    and no later prompt can use more than this one's prefix. Under `drop_on_leave` it is 0 but at
    `last`, so that `last` need not be compared.

    Label A dominates B if it is no dearer and any continuation costs no more after A than after B:

    - In general, if both hold the same tokens everywhere and, where they hold any, used them at the
      same moment. What is alive at any later turn is a function of these and of the continuation
      alone, so each continuation costs the same after both.
    - Where no cache ever ages (`timeless`), also if A holds at least as many tokens everywhere.
      By induction: if that is so at a turn, then serving it at d takes at least as many cached
      tokens after A, and cached tokens only ever save; afterwards d holds the prompt's context in
      both, every other deployment what it held, cut to one prefix, or nothing if leaving drops it,
      and an unserved turn cuts all alike. So it is so at the next turn.

    The second rule is false where caches age: after A the turn is prefilled sooner, ends sooner,
    and so the cache may have died by the next turn that after B is still alive.
    """
    cheapest_first = labels.carbon_g.argsort(kind="stable")
    labels = _taken(labels, cheapest_first)
    used_s = np.where((labels.resident > 0) & (not timeless), labels.used_s, 0)
    state = np.concatenate([labels.resident, used_s], axis=1)
    _, first = np.unique(state, axis=0, return_index=True)
    labels = _taken(labels, np.sort(first))
    if not timeless:
        return labels
    held = labels.resident
    holds_more = (held[None, :, :] >= held[:, None, :]).all(-1)
    return _taken(labels, np.flatnonzero(~np.tril(holds_more, -1).any(1)))


def _taken(labels: Labels, index: NDArray[np.int64]) -> Labels:
    return Labels._make(column[index] for column in labels)


def _arrive(labels: Labels, w: Any, s: Any, t: int) -> Labels:
    """The labels with what is left of the caches for the prompt of turn t."""
    arrival_s, previous_s = s.arrival_s.item(t), s.arrival_s.item(max(t - 1, 0))
    idle_s = np.maximum(0, arrival_s - labels.used_s)
    lapse_s = np.maximum(0, arrival_s - np.maximum(labels.used_s, previous_s))
    left = bool(w.drop_on_leave) & (w.index != labels.last[:, None])
    held = np.where((idle_s > s.ttl_s[t]) | left, 0, labels.resident)
    alive = reference.aged(held, np.exp(-lapse_s / s.decay_s[t]), [])
    return labels._replace(resident=np.minimum(alive, s.prefix_tokens[t]))


def _serve(labels: Labels, w: Any, s: Any, t: int, at: NDArray[np.int64]) -> Labels:
    """Every label extended by every deployment of `at` `[E]`: N E labels."""
    fleet = Fleet(*(column[at] for column in w.fleet))
    prompt = s.prefix_tokens.item(t) + max(1, s.new_tokens.item(t))
    output = s.output_tokens.item(t)
    cached = reference.blocks(np.minimum(labels.resident[:, at], prompt - 1), w.block_tokens)
    prefill_j, prefill_s = reference.prefill(fleet, cached, prompt)
    decode_j, decode_s = reference.decode(fleet, prompt, output)
    busy_s = prefill_s + decode_s / fleet.batch
    parts_g = reference.emissions(fleet, s.kappa[t, at], prefill_j + decode_j, busy_s)
    ttft_s = s.rtt_s[t, at] + s.wait_s[t, at] + np.maximum(fleet.ttft_floor_s, prefill_s)
    end_s = s.arrival_s.item(t) + ttft_s + decode_s

    count, choices = cached.shape
    made = _taken(labels, np.repeat(np.arange(count), choices))
    row, here = np.arange(count * choices), np.tile(at, count)
    made.resident[row, here] = prompt + max(output - 1, 0)
    made.used_s[row, here] = end_s.ravel()
    made.plan[:, t] = here
    return made._replace(carbon_g=made.carbon_g + sum(parts_g).ravel(), last=here)
