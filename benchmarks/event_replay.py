"""An exact, event-driven replay of a fleet under load: real queues, batch slots and LRU eviction.

    python benchmarks/event_replay.py --by-batch TABLE [--arrival-rate N] [--replicas N]
        [--policy NAME ...] [--hours 0-6]

All turns of the traffic in global time order, in float64, without JAX: what an approximation of the
load is judged by. A turn is routed when it arrives and waits, first come first served, for a slot
and for room for its KV at the one replica that its session is bound to; prefills run one at a time
and stall decoding (`benchmarks.event_replica`). The decision is DESIGN's (`event_router`), on
caches as they are and on waits of the quarter hour before.

Decided where the machine leaves it open: turns of one session that overlap share the larger of
their rooms, and the later one finds the tokens of the earlier as if that were done (as DESIGN
does); so does the router. Tokens beyond the prefix that a session still shares are let go at once.
A mean wait is of the turns whose prefill began in that quarter hour, 0 if none did.
"""

import argparse
import sys
import time
from collections.abc import Callable, Mapping
from heapq import heappop, heappush
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.baselines.python_loop import world_of
from benchmarks.event_capacity import Capacity, capacity_of, replicas_of
from benchmarks.event_population import Population, population
from benchmarks.event_replica import Entry, Observers, Replica, Sums, Turn
from benchmarks.event_router import Router, Session, Waits
from jaxroute.load.files import package_file
from jaxroute.reference import BINS_PER_DAY, NONE, decode, emissions, prefill
from jaxroute.study import load_study
from jaxroute.timeline import HOUR_S, QUARTER_S

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

__all__ = [
    "Capacity",
    "Outcome",
    "Population",
    "capacity_of",
    "population",
    "simulate",
    "summary",
    "utilisation",
]


class Outcome(NamedTuple):
    """What happened to the M measured turns, in order of arrival, and to the fleet meanwhile.

    A turn that was not served has decision and replica -1 and zeros.

    Attributes:
      arrival_s, row, copy, prefix_tokens: `[M]`, of the population.
      decision, replica: `[M]`, the deployment, and which of its replicas.
      wait_s: `[M]`, arrival to the start of its prefill.
      cached_tokens: `[M]`.
      prefill_s: `[M]`.
      decode_s: `[M]`, end of its prefill to its last token, stalls included.
      replica_s: `[M]`, its share of the replica's busy time.
      full_batch_s: `[M]`, what that would be in a full batch: `prefill_s + v step_s(B)/B`.
      generated_tokens: `[M]`, v, those that decoding steps generated: all but the first.
      batch: `[M]`, mean sequences in these steps; 0 without any.
      carbon_g: `[M]`.
      busy_s, idle_s: `[96, D]`, replica-seconds of the measured time by quarter hour of the day.
      evicted_from, evicted_tokens, evicted_age_s: `[E]`, of each entry that lost blocks in the
        measured time: its deployment, the tokens, and for how long it had been unused.
    """

    arrival_s: Floats
    row: Ints
    copy: Ints
    prefix_tokens: Floats
    decision: Ints
    replica: Ints
    wait_s: Floats
    cached_tokens: Floats
    prefill_s: Floats
    decode_s: Floats
    replica_s: Floats
    full_batch_s: Floats
    generated_tokens: Floats
    batch: Floats
    carbon_g: Floats
    busy_s: Floats
    idle_s: Floats
    evicted_from: Ints
    evicted_tokens: Floats
    evicted_age_s: Floats


_OF_TURNS = (
    *("wait_s", "cached_tokens", "prefill_s", "decode_s", "replica_s", "full_batch_s"),
    *("generated_tokens", "batch", "carbon_g"),
)
"""Attributes of an `Outcome` that are known as a turn goes its way."""


def simulate(
    world: Mapping[str, Any],
    capacity: Capacity,
    params: Mapping[str, Any],
    population: Population,
    *,
    wait_knowledge: float = 1.0,
    watch: Callable[[float, list[list[Replica]]], Any] | None = None,
) -> Outcome:
    """Replays the traffic on the fleet until the last turn that arrived is done.

    Args:
      world: as `jaxroute.reference.replay` takes it; its retention and waits are those that come
        about here instead, and it has no belief.
      capacity: of the fleet.
      params: of a policy, as `jaxroute.reference.replay` takes them.
      population: the traffic.
      wait_knowledge: share of the last quarter hour's mean waits that the policy takes them for.
      watch: called with the time and the replicas of each deployment after every event.
    """
    router = Router(world, params, population.columns)
    w, s, fleets = router.w, router.s, router.fleets
    turns, begin_s, end_s = len(population.row), population.begin_s, population.end_s
    columns = {name: np.zeros(turns) for name in _OF_TURNS}
    decision, replica_of = np.full((2, turns), NONE)
    clock = np.zeros((2, BINS_PER_DAY, len(fleets)))  # idle, busy
    waits, evictions = Waits(len(fleets), wait_knowledge), []

    def started(turn: Turn, now_s: float) -> None:
        columns["wait_s"][turn.number] = now_s - turn.arrival_s
        waits.note(turn.entry.replica.machine.deployment, now_s - turn.arrival_s, now_s)

    def finished(turn: Turn, own: Sums, now_s: float) -> None:
        at, d = turn.number, turn.entry.replica.machine.deployment
        row, f, v, cached = population.row[at], fleets[d], turn.generated_tokens, turn.cached_tokens
        prefill_j, prefill_s = prefill(f, cached, turn.prompt_tokens)
        decode_j = own.base_j + f.dec_j_ctx * v * (turn.prompt_tokens + v / 2)
        replica_s = prefill_s + own.share_s
        columns["cached_tokens"][at], columns["prefill_s"][at] = cached, prefill_s
        columns["decode_s"][at], columns["replica_s"][at] = now_s - turn.prefilled_s, replica_s
        full_s = prefill_s + decode(f, turn.prompt_tokens, v + 1)[1] / f.batch
        columns["full_batch_s"][at], columns["generated_tokens"][at] = full_s, v
        columns["batch"][at] = own.sequences / v if v else 0.0
        bill = emissions(f, s.kappa.item(row, d), prefill_j + decode_j, replica_s)
        columns["carbon_g"][at] = sum(bill)

    def evicted(replica: Replica, tokens: float, age_s: float, now_s: float) -> None:
        if begin_s <= now_s < end_s:
            evictions.append((replica.machine.deployment, tokens, age_s))

    def switched(replica: Replica, was_busy: bool, since_s: float, now_s: float) -> None:
        since_s, now_s = max(since_s, begin_s), min(now_s, end_s)
        while since_s < now_s:
            quarter = int(since_s // QUARTER_S)
            until_s = min(now_s, (quarter + 1) * QUARTER_S)
            place = quarter % BINS_PER_DAY, replica.machine.deployment
            clock[int(was_busy), *place] += until_s - since_s
            since_s = until_s

    tell = Observers(started, finished, evicted, switched)
    fleet = replicas_of(w, capacity, fleets, tell, begin_s)
    flat = [replica for group in fleet for replica in group]
    events: list[tuple[float, int]] = []
    sessions: dict[int, Session] = {}

    def expect(replica: Replica) -> None:
        if replica.next_s < np.inf:
            heappush(events, (replica.next_s, replica.number))

    def run_until(now_s: float) -> None:
        while events and events[0][0] <= now_s:
            due_s, number = heappop(events)
            if flat[number].next_s == due_s:  # else it was put off
                flat[number].happen()
                expect(flat[number])
                if watch is not None:
                    watch(due_s, fleet)

    traffic = (population.arrival_s, population.row, population.copy)
    for at, (now_s, row, copy) in enumerate(zip(*(x.tolist() for x in traffic), strict=True)):
        run_until(now_s)
        session = sessions.setdefault(copy, Session())
        d = router.decide(row, session, now_s, waits.told(now_s))
        prefix = s.prefix_tokens.item(row)
        for entry in session.entries.values():
            entry.replica.trim(entry, prefix)
        if d == NONE:
            continue
        session.went(d)
        if d not in session.entries:
            session.entries[d] = Entry(fleet[d][hash((copy, d)) % len(fleet[d])])
        entry = session.entries[d]
        replica, was_s = entry.replica, entry.replica.next_s
        decision[at], replica_of[at] = d, replica.number - fleet[d][0].number
        generated = max(s.output_tokens.item(row) - 1, 0.0)
        replica.arrive(Turn(at, entry, now_s, prefix, router.prompt.item(row), generated), now_s)
        if replica.next_s != was_s:
            expect(replica)
        if watch is not None:
            watch(now_s, fleet)
    run_until(np.finfo(float).max)
    for replica in flat:
        switched(replica, replica.busy, replica.since_s, np.inf)

    inside = population.arrival_s >= begin_s
    origin, tokens, age_s = np.array(evictions).reshape(-1, 3).T
    return Outcome(
        arrival_s=population.arrival_s[inside],
        row=population.row[inside],
        copy=population.copy[inside],
        prefix_tokens=s.prefix_tokens[population.row[inside]],
        decision=decision[inside],
        replica=replica_of[inside],
        **{name: column[inside] for name, column in columns.items()},
        busy_s=clock[1],
        idle_s=clock[0],
        evicted_from=origin.astype(np.int64),
        evicted_tokens=tokens,
        evicted_age_s=age_s,
    )


def utilisation(outcome: Outcome, capacity: Capacity) -> Floats:
    """`full_batch_s` of arrivals over replica-seconds, `[96, D]`, by quarter hour of the day."""
    served = outcome.decision != NONE
    quarter = (outcome.arrival_s[served] // QUARTER_S).astype(int) % BINS_PER_DAY
    load_s = np.zeros_like(outcome.busy_s)
    np.add.at(load_s, (quarter, outcome.decision[served]), outcome.full_batch_s[served])
    return load_s / (QUARTER_S * capacity.replicas)


def summary(outcome: Outcome, capacity: Capacity) -> dict[str, float]:
    """Means over the served turns, and of the fleet."""
    served = outcome.decision != NONE
    names = ("decision", "prefix_tokens", *_OF_TURNS)
    of = {name: getattr(outcome, name)[served] for name in names}
    turns, ages_s = int(served.sum()), outcome.evicted_age_s
    early_s, median_s = np.quantile(ages_s, (0.1, 0.5)) if len(ages_s) else (np.inf, np.inf)
    there_s = np.sum(outcome.busy_s + outcome.idle_s, axis=0)
    loads = utilisation(outcome, capacity)
    return {
        "turns": turns,
        "unserved": len(served) - turns,
        "carbon mg": 1e3 * of["carbon_g"].mean(),
        "idle J": (outcome.idle_s * capacity.idle_w).sum() / turns,
        "wait s": of["wait_s"].mean(),
        "p95 s": np.quantile(of["wait_s"], 0.95),
        "hit": of["cached_tokens"].sum() / of["prefix_tokens"].sum(),
        "batch": np.average(of["batch"], weights=of["generated_tokens"]),
        "top share": np.bincount(of["decision"]).max() / turns,
        "top load": loads.mean(axis=0, where=loads.any(axis=1, keepdims=True)).max(),
        "peak load": loads.max(),
        "top busy": (outcome.busy_s.sum(axis=0) / there_s).max(),
        "evictions": len(ages_s),
        "age p10 s": early_s,
        "age p50 s": median_s,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arrival-rate", type=float, default=2000.0, help="sessions an hour")
    parser.add_argument("--replicas", type=int, default=2, help="of each deployment")
    parser.add_argument("--policy", action="append", help="a preset; may be repeated")
    parser.add_argument("--hours", default="0-24", help="measured, of the UTC day")
    parser.add_argument("--warm-up", type=float, default=2.0, help="hours before them")
    parser.add_argument(
        "--by-batch", type=Path, default=package_file("profiles_by_batch.csv"), help="table"
    )
    options = parser.parse_args()
    study = load_study()
    begin_s, end_s = (HOUR_S * float(hour) for hour in options.hours.split("-"))
    seed, warm_up_s = study.config.seed, HOUR_S * options.warm_up
    traffic = population(study.datasets[0], options.arrival_rate, seed, begin_s, end_s, warm_up_s)
    world = world_of(study.world)
    capacity = capacity_of(study, options.replicas, options.by_batch)
    print(
        f"{options.arrival_rate:,g} sessions an hour, {options.replicas} replicas a deployment, "
        f"{options.hours} h UTC; {len(traffic.row):,} turns with the warm-up"
    )
    for n, name in enumerate(options.policy or ("fair_carbon", "carbon_router")):
        began = time.perf_counter()
        outcome = simulate(world, capacity, vars(study.policies[name]), traffic)
        took_s = time.perf_counter() - began
        found = summary(outcome, capacity) | {"us/turn": 1e6 * took_s / len(traffic.row)}
        if not n:
            print(f"{'':<24}" + "".join(f"{head:>11}" for head in found))
        print(f"{name:<24}" + "".join(f"{value:>11,.4g}" for value in found.values()), flush=True)


if __name__ == "__main__":
    main()
