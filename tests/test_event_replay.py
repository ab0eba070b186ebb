"""The event-driven judge of the load model: held to the oracle, to queueing theory and to hand."""

import itertools
import math
import sys
from pathlib import Path

import numpy as np
import pytest
import worlds

from jaxroute import draws, reference
from jaxroute.dataset import Dataset
from jaxroute.reference import NONE
from jaxroute.timeline import DAY_S, QUARTER_S

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.event_replay import Capacity, Population, population, simulate, summary, utilisation
from benchmarks.event_router import Session

GATED = {"gate_strength": 2.0, "gate_bias": 0.3, "gate_weights": np.linspace(-0.5, 0.5, 8)}
PRICED = {
    "latency_price_g_per_s": 1e-3,
    "switch_price_g": 1e-4,
    "noise_price_g": 1e-5,
    "cache_knowledge": 0.7,
    "assumed_hit": 0.4,
}
SLOW = {"ttft_slo_s": 0.02, "quality_slack": 0.3}
FLOOR = {"quality_floor": 0.6}
POLICIES = [
    FLOOR | changes
    for changes in (
        {},
        GATED,
        PRICED | GATED,
        SLOW | PRICED,
        {"hysteresis": 0.3},
        {"always_stay": 1.0},
    )
]


def capacity(world, *, replicas=1, room=np.inf, points=(1, 128), dec_j=None, dec_s=None):
    """A fleet of this capacity; by default a step costs a sequence the same in every batch."""
    count = len(world["model"])
    base = {"dec_j": dec_j, "dec_s": dec_s}
    flat = {
        name: np.tile(world[name], (len(points), 1)) if given is None else np.array(given)
        for name, given in base.items()
    }
    full = {"replicas": replicas, "kv_capacity_tokens": room, "idle_w": 100.0}
    return Capacity(**{n: np.full(count, x) for n, x in full.items()}, batch_points=points, **flat)


def traffic(sessions, starts_s, *, end_s=DAY_S):
    """Each of the oracle's sessions once, from its start on."""
    columns = {name: np.concatenate([s[name] for s in sessions]) for name in sessions[0]}
    lengths = [len(s["hour"]) for s in sessions]
    columns["turn"] = np.concatenate([np.arange(length) for length in lengths])
    copy = np.repeat(np.arange(len(sessions)), lengths)
    at_s = np.asarray(starts_s, float)[copy] + columns["arrival_s"]
    order = np.argsort(at_s, kind="stable")
    return Population(columns, at_s[order], order, copy[order], 0.0, end_s)


def lone(outcome, session):
    """The places of a session's turns, in order."""
    return np.flatnonzero(outcome.copy == session)


def one_deployment(**changes):
    """A world of one deployment: 10 ms and 1 J a token of prefill, contexts free unless said."""
    world = worlds.world(np.random.default_rng(0), models=1, gpus=1, regions=1)
    one = {"pre_j": 1.0, "pre_s": 0.01, "pre_j_ctx": 0.0, "pre_s_ctx": 0.0, "dec_j": 2.0}
    one |= {"dec_s": 0.1, "dec_j_ctx": 0.0, "dec_s_ctx": 0.0, "host_w": 200.0, "batch": 2.0}
    one |= {"max_context_tokens": 131072.0, "embodied_g_per_s": 0.01} | changes
    return world | {name: np.full(1, value) for name, value in one.items()}


def session_of(new, output, *, prefix=None, gap_s=0.0):
    """A conversation with these tokens; each prefix is all that went before but for what is cut."""
    new, output = np.array(new, float), np.array(output, float)
    whole = np.cumsum(new + output) - new - output
    turns = len(new)
    return {
        "arrival_s": gap_s * np.arange(turns),
        "hour": np.zeros(turns, int),
        "time_bin": np.zeros(turns, int),
        "home": np.zeros(turns, int),
        "prefix_tokens": whole if prefix is None else np.array(prefix, float),
        "new_tokens": new,
        "output_tokens": output,
        "predicted_output_tokens": output,
        "quality": np.ones((turns, 1)),
        "noise": np.zeros((turns, 1)),
    }


def crowd(seed=0, *, room=3000.0, replicas=2, count=60, watch=None):
    """A random crowd on few replicas with little room."""
    rng = np.random.default_rng(seed)
    world = worlds.world(rng) | {"batch": np.full(12, 4.0)}
    sessions = [worlds.session(rng, world, int(rng.integers(1, 12))) for _ in range(count)]
    for session in sessions:
        session["arrival_s"] = session["arrival_s"] / 50
    people = traffic(sessions, rng.uniform(0, 600, count))
    of = capacity(world, replicas=replicas, room=room)
    return simulate(world, of, worlds.params(**GATED), people, watch=watch), people, of, world


@pytest.mark.parametrize("changes", POLICIES)
def test_a_lone_session_is_billed_as_by_the_oracle(changes):
    rng = np.random.default_rng(1)
    world = worlds.world(rng) | {"batch": np.ones(12)}
    session = worlds.session(rng, world, 12)
    session["arrival_s"] = 2000.0 * np.arange(12)
    session["prefix_tokens"] = session["prefix_tokens"] * np.where(rng.random(12) < 0.3, 0.5, 1.0)
    params = worlds.params(**changes)
    got = simulate(world, capacity(world), params, traffic([session], [0.0]))
    before = dict.fromkeys(reference.TOTALS, 0.0)
    for t in range(12):
        head = {name: values[: t + 1] for name, values in session.items()}
        oracle = reference.replay(world, head, params)
        bill = {name: oracle.totals[name] - before[name] for name in before}
        before = oracle.totals
        d = got.decision[t]
        assert (d, got.cached_tokens[t]) == (oracle.decision[t], oracle.cached_tokens[t])
        carbon_g = sum(bill[f"carbon_{part}_g"] for part in ("prefill", "decode", "embodied"))
        assert got.carbon_g[t] == pytest.approx(carbon_g, rel=1e-9, abs=1e-12)
        assert got.wait_s[t] == 0
        if d != NONE:
            rtt_s = world["rtt_s"][session["home"][t], world["region"][d]]
            ttft_s = rtt_s + max(world["ttft_floor_s"][d], got.prefill_s[t])
            assert ttft_s == pytest.approx(bill["ttft_s"], rel=1e-9)
            decode_s = bill["e2e_s"] - bill["ttft_s"]
            assert got.decode_s[t] == pytest.approx(decode_s, rel=1e-6, abs=1e-7)
            assert got.replica_s[t] == pytest.approx(got.prefill_s[t] + decode_s, rel=1e-9)
            assert got.full_batch_s[t] == pytest.approx(got.replica_s[t], rel=1e-9)


@pytest.mark.parametrize("changes", POLICIES)
def test_in_a_boundless_fleet_a_crowd_decides_as_the_oracle(changes):
    """Turns that overlap or wait too: no wait reaches a decision, and nothing is evicted."""
    rng = np.random.default_rng(2)
    world = worlds.world(rng) | {"batch": np.ones(12)}
    world["pre_j_ctx"] = 300 * world["pre_j_ctx"]  # so that it matters which tokens are spared
    sessions = [worlds.session(rng, world, int(rng.integers(1, 15))) for _ in range(40)]
    for session in sessions:
        session["arrival_s"] = session["arrival_s"] / 50
    params, people = worlds.params(**changes), traffic(sessions, rng.uniform(0, 60, 40))
    fleet = capacity(world)
    got = simulate(world, fleet, params, people, wait_knowledge=0.0)
    assert got.wait_s.max() > 20
    moves = 0
    for n, session in enumerate(sessions):
        oracle, at = reference.replay(world, session, params), lone(got, n)
        np.testing.assert_array_equal(got.decision[at], oracle.decision)
        np.testing.assert_array_equal(got.cached_tokens[at], oracle.cached_tokens)
        moves += oracle.totals["moves"]
    assert moves > 0
    assert (got.decision == NONE).any()
    assert not len(got.evicted_age_s)


@pytest.mark.parametrize("seed", range(3))
def test_a_crowd_keeps_the_books_and_the_rules(seed):
    """Room, slots and order hold after every event, and busy time is just what turns are billed."""
    last_s, seen = [-math.inf], {"full": 0, "queued": 0, "overlap": 0}

    def watch(now_s, fleet):
        assert now_s >= last_s[0]
        last_s[0] = now_s
        for replica in itertools.chain(*fleet):
            room, pinned = replica.machine.room_tokens, replica.pinned_tokens
            assert 0 <= replica.admitted <= replica.machine.slots
            assert replica.admitted == (
                len(replica.ready) + len(replica.decoding) + (replica.prefilling is not None)
            )
            assert sum(entry.tokens for entry in replica.unused) == replica.kept_tokens
            assert all(entry.pins == 0 for entry in replica.unused)
            served = [*replica.ready, *(turn for _, _, turn in replica.decoding)]
            served += [replica.prefilling] if replica.prefilling else []
            entries = {turn.entry for turn in served}
            assert sum(entry.tokens for entry in entries) == pinned
            assert all(turn.entry.tokens >= turn.context_tokens for turn in served)
            seen["overlap"] += len(served) > len(entries)
            if pinned + replica.kept_tokens > room:
                assert len(entries) == 1
                assert replica.kept_tokens == 0
                seen["full"] += 1
            seen["queued"] += len(replica.waiting)

    got, people, of, world = crowd(seed, watch=watch)
    assert min(seen.values()) > 0
    assert len(got.evicted_age_s) > 0
    assert (got.evicted_age_s >= 0).all()

    for turn in np.flatnonzero(got.generated_tokens)[::20]:
        f = reference.Fleet(*(world[name][got.decision[turn]] for name in reference.Fleet._fields))
        row = {name: values[people.row[turn]] for name, values in people.columns.items()}
        prompt = row["prefix_tokens"] + max(1, row["new_tokens"])
        decode_s = reference.decode(f, prompt, row["output_tokens"])[1] / 4
        full_s = reference.prefill(f, got.cached_tokens[turn], prompt)[1] + decode_s
        assert got.full_batch_s[turn] == pytest.approx(full_s, rel=1e-12)

    served = got.decision != NONE
    assert len(got.arrival_s) == len(people.row)
    assert summary(got, of)["unserved"] == np.sum(~served) > 0
    output = people.columns["output_tokens"][people.row]
    np.testing.assert_array_equal(got.generated_tokens, np.where(served, output - 1, 0).clip(0))
    assert (got.prefill_s[served] > 0).all()
    assert (got.carbon_g[~served] == 0).all()
    np.testing.assert_allclose(
        got.busy_s.sum(axis=0),
        np.bincount(got.decision[served], got.replica_s[served], minlength=12),
        rtol=1e-9,
    )
    load = utilisation(got, of)
    assert load.sum() * 2 * QUARTER_S == pytest.approx(got.full_batch_s.sum())
    assert summary(got, of)["peak load"] == load[0].max() > load[1].max()
    np.testing.assert_allclose(got.busy_s + got.idle_s, 2 * QUARTER_S, rtol=1e-12)

    for where in set(zip(got.decision[served], got.replica[served], strict=True)):
        here = (got.decision == where[0]) & (got.replica == where[1])
        start_s = (got.arrival_s + got.wait_s)[here]
        end_s = start_s + got.prefill_s[here]
        assert (start_s[1:] >= end_s[:-1] - 1e-9).all()  # in order of arrival, one at a time


def test_a_session_stays_at_one_replica_and_replicas_share_alike():
    got = crowd(replicas=4, count=200)[0]
    homes = {}
    for copy, d, replica in zip(got.copy, got.decision, got.replica, strict=True):
        assert homes.setdefault((copy, d), replica) == replica
    counts = np.bincount([replica for replica in homes.values() if replica != NONE])
    assert len(counts) == 4
    assert counts.min() > 0.7 * counts.mean()


def queued(world, lengths, output, rate, count, rng):
    """Poisson arrivals of sessions of one turn, of these prompts at random."""
    sessions = [session_of([length], [output]) for length in lengths]
    columns = traffic(sessions, np.zeros(len(lengths))).columns
    at_s, row = np.cumsum(rng.exponential(1 / rate, count)), rng.integers(len(lengths), size=count)
    people = Population(columns, at_s, row, np.arange(count), 0.0, 1e7)
    return simulate(world, capacity(world), worlds.params(), people)


@pytest.mark.parametrize(
    ("batch", "lengths", "output", "load"), [(2, (20, 180), 1, 0.7), (1, (50,), 6, 0.6)]
)
def test_waits_are_those_of_pollaczek_and_khinchine(batch, lengths, output, load):
    """M/G/1 of prefills that differ, and with one slot M/D/1 of prefill and decoding together."""
    world = one_deployment(batch=batch)
    service_s = 0.01 * np.array(lengths) + 0.1 * (output - 1)
    rate = load / service_s.mean()
    expected_s = rate * (service_s**2).mean() / (2 * (1 - load))
    got = queued(world, lengths, output, rate, 12_000, np.random.default_rng(3))
    parts_s = got.wait_s.reshape(20, -1).mean(axis=1)
    error_s = parts_s.std(ddof=1) / math.sqrt(20)
    assert error_s < 0.08 * expected_s
    assert abs(got.wait_s.mean() - expected_s) < 3 * error_s
    began_s = got.arrival_s + got.wait_s
    done_s = began_s + got.prefill_s + got.decode_s
    assert (began_s[1:] >= done_s[:-1] - 1e-6).all()


@pytest.mark.parametrize(
    ("ctx_s", "second_s", "done_s", "shares_s"),
    [
        # First: prefill to 1, 5 steps of 0.1. Second: prefill, 5 steps of 0.125 together, 5 left.
        (0.0, 1.5, (2.625, 3.125), (1 + 0.5 + 0.3125, 0.5 + 0.3125 + 0.5)),
        # Steps take 1 ms more a token of context: 5 x (0.1 + 0.1025), 5 x (0.125 + 0.16) for
        # contexts of 105 and 50 that grow to 110 and 55, then 5 x (0.1 + 0.0575).
        (0.001, 2.0125, (3.9375, 4.725), (1 + 1.0125 + 0.7125, 0.5 + 0.7125 + 0.7875)),
    ],
)
def test_two_sequences_in_one_batch(ctx_s, second_s, done_s, shares_s):
    """A prefill stalls the other's decoding, and each pays its half of the steps they share."""
    world = one_deployment(dec_s_ctx=2 * ctx_s, dec_j_ctx=0.01)
    fleet = capacity(world, points=(1, 2), dec_j=[[2.0], [1.2]], dec_s=[[0.1], [0.125]])
    sessions = [session_of([100], [11]), session_of([50], [11])]
    got = simulate(world, fleet, worlds.params(), traffic(sessions, [0.0, second_s]))
    prefill_s = np.array([1.0, 0.5])
    np.testing.assert_allclose(got.prefill_s, prefill_s, rtol=1e-12)
    np.testing.assert_allclose(got.wait_s, 0)
    end_s = got.arrival_s + got.prefill_s + got.decode_s
    np.testing.assert_allclose(end_s, done_s, rtol=1e-12)
    np.testing.assert_allclose(got.replica_s, shares_s, rtol=1e-12)
    np.testing.assert_allclose(got.batch, 1.5, rtol=1e-12)
    np.testing.assert_allclose(got.busy_s[0, 0], done_s[1], rtol=1e-12)
    gpu_j = [100 + 5 * 2 + 5 * 1.2 + 0.01 * 10 * 105, 50 + 5 * 1.2 + 5 * 2 + 0.01 * 10 * 55]
    kappa = world["pue"][0] * world["intensity_g_per_kwh"][0, 0]
    carbon_g = (np.array(gpu_j) + 200 * got.replica_s) * kappa / 3.6e6 + 0.01 * got.replica_s
    np.testing.assert_allclose(got.carbon_g, carbon_g, rtol=1e-12)


def test_the_least_recently_used_lose_blocks_from_their_tails():
    """Room for 100: X leaves 48 tokens, then Y 48; Z's 20 cost X a block, X's return costs Y."""
    world = one_deployment(batch=2)
    x = session_of([40, 2], [9, 8], gap_s=300.0)
    y, z = session_of([40], [9]), session_of([13], [8])
    people = traffic([x, y, z], [0.0, 100.0, 200.0])
    got = simulate(world, capacity(world, room=100.0), worlds.params(), people)
    # X comes back with a prefix of 49: of its 48 tokens 32 are left. It needs 51 + 7 = 58, and Z's
    # 20 and Y's 48 are kept: 26 too many, so that Y loses two blocks, unused since it ended.
    np.testing.assert_array_equal(got.cached_tokens, [0, 0, 0, 32])
    np.testing.assert_array_equal(got.evicted_tokens, [16, 32])
    ends_s = got.arrival_s + got.prefill_s + got.decode_s
    np.testing.assert_allclose(got.evicted_age_s, [200 - ends_s[0], 300 - ends_s[1]], rtol=1e-12)


def test_a_turn_waits_for_room_and_one_that_is_too_large_for_the_room_to_be_free():
    """Room for 100: 60 + 60 do not fit at once, and 150 only alone, and the 10 queue behind."""
    world = one_deployment(batch=8)
    sessions = [session_of([50], [11]), session_of([50], [11]), session_of([150, 1], [1, 1])]
    sessions[2]["arrival_s"][1] = 100.0
    sessions.append(session_of([10], [1]))
    people = traffic(sessions, [0.0, 0.1, 0.2, 0.3])
    got = simulate(world, capacity(world, room=100.0), worlds.params(), people)
    alone_s = 0.5 + 10 * 0.1
    start_s = [0, alone_s, 2 * alone_s, 2 * alone_s + 1.5]
    np.testing.assert_allclose((got.arrival_s + got.wait_s)[:4], start_s, atol=1e-12)
    # The second costs the first two blocks, the third all that is left of both, and itself four
    # blocks of 150 once it is done: 86 stay. Back again it finds 80, and the 10 go.
    assert got.evicted_tokens.tolist() == [32, 28, 60, 64, 10, 64]
    assert got.cached_tokens.tolist() == [0, 0, 0, 0, 80]


def test_gate_and_waits_hear_what_the_replica_went_through():
    """The router is told the last evicted age for an hour, and waits of the quarter hour before."""
    told = []

    def watch(now_s, fleet):
        told.append((now_s, fleet[0][0].ttl_s(now_s), fleet[0][0].ttl_s(now_s + 4000)))

    world = one_deployment(batch=2)
    sessions = [session_of([60], [1]), session_of([60], [1])]
    people = traffic(sessions, [0.0, 50.6])
    simulate(world, capacity(world, room=100.0), worlds.params(), people, watch=watch)
    assert told[0][1] == math.inf
    assert told[-1][1:] == (pytest.approx(50.0), math.inf)


@pytest.mark.parametrize(
    ("new", "output", "gap_s", "room", "served"),
    [
        ([10, 10], [9, 9], 60.0, 1000.0, 0),  # it would rebuild a block on its return
        ([10, 10], [9, 9], 60.0, 130.0, 1),  # which would be gone before
        ([40, 1], [9, 1], 30.0, 1000.0, 1),  # no more blocks than it has there already
        ([40, 1], [9, 1], 30.0, 150.0, 0),  # but these will be gone, and those it makes not yet
    ],
)
def test_the_gate_is_told_how_long_caches_live(new, output, gap_s, room, served):
    """A strong gate holds a session at what was cleaner an hour ago while that spares a rebuild.

    With little room the second of two others costs the first its blocks, 49 s after it ended.
    """
    world = worlds.world(np.random.default_rng(0), models=1, gpus=1, regions=2)
    world |= {name: np.full(2, world[name][0]) for name in ("pre_j", "dec_j", "pre_s", "dec_s")}
    world |= {"intensity_g_per_kwh": np.array([[100.0, 9e3], [9e3, 100.0]])}
    first, second = (session_of([60], [1]) for _ in range(2))
    session = session_of(new, output, gap_s=99.0)
    session["hour"] = np.array([0, 1])
    for each in (first, second, session):
        each["noise"] = np.zeros((len(each["hour"]), 2))
    people = traffic([first, second, session], [0.0, 50.0, 1.0])
    params = worlds.params(gate_strength=1e9, expected_gap_s=gap_s)
    got = simulate(world, capacity(world, room=room), params, people)
    assert len(got.evicted_age_s) == (room < 1000)
    assert got.decision[lone(got, 2)].tolist() == [0, served]


@pytest.mark.parametrize(
    ("knowledge", "later_s", "to"), [(1.0, 950.0, 1), (0.0, 950.0, 0), (1.0, 1900.0, 0)]
)
def test_a_router_that_knows_of_waits_avoids_them(knowledge, later_s, to):
    """Two alike but for the round trip: 60 prefills of 10 s at the nearer, and one later."""
    world = worlds.world(np.random.default_rng(0), models=1, gpus=1, regions=2)
    world |= {"pre_s": np.full(2, 0.01), "pre_s_ctx": np.zeros(2), "rtt_s": np.array([[0.1, 0.2]])}
    sessions = [session_of([1000], [1]) for _ in range(61)]
    for session in sessions:
        session["noise"] = np.zeros((1, 2))
    people = traffic(sessions, [*np.arange(60.0), later_s])
    params = worlds.params(carbon_weight=0.0, latency_price_g_per_s=1.0)
    got = simulate(world, capacity(world), params, people, wait_knowledge=knowledge)
    assert (got.decision[:60] == 0).all()
    assert got.decision[60] == to


def made_up_dataset(lengths, gap_s):
    turns, count = int(sum(lengths)), len(lengths)
    rng = np.random.default_rng(0)
    first = np.cumsum(lengths) - lengths
    gaps = np.full(turns, gap_s)
    gaps[first] = 0.0
    columns = {name: np.zeros(turns, int) for name in ("hour", "home", "prefix_tokens")}
    columns |= {"gap_s": gaps, "time_bin": np.repeat(rng.integers(96, size=count), lengths)}
    return Dataset(
        label="",
        path="",
        sha256="",
        session_ids=np.arange(count).astype(str).astype(object),
        hashes=draws.name_hashes(map(str, range(count))),
        lengths=np.array(lengths),
        columns=columns,
        synthetic_times=True,
        truncated=0,
        notes=(),
        seed=0,
        deployments=("a", "b"),
        report_draws=False,
        dtype=np.float32,
    )


def test_copies_of_the_sample_make_the_load_on_a_day_that_wraps():
    """k = 2.5 of each of 40 sessions; a day holds every turn of every copy exactly once."""
    lengths = np.array([1, 3, 7, 40] * 10)
    dataset = made_up_dataset(lengths, 3600.0)
    got = population(dataset, 2.5 * 40 / 24, 1, 0.0, DAY_S, 0.0)
    times = np.bincount(got.row, minlength=lengths.sum())
    first = np.cumsum(lengths) - lengths
    assert (times == np.repeat(times[first], lengths)).all()
    assert sorted(times[first]) == [2] * 20 + [3] * 20
    assert (np.diff(got.arrival_s) >= 0).all()
    assert got.arrival_s[0] >= 0
    assert got.arrival_s[-1] < DAY_S

    begins = got.columns["turn"][got.row] == 0
    home_s = QUARTER_S * (dataset.columns["time_bin"][got.row] + 0.5)
    away_s = (got.arrival_s - home_s + DAY_S / 2) % DAY_S - DAY_S / 2
    assert np.abs(away_s[begins]).max() < 1800 + 450
    assert np.abs(away_s[begins]).max() > 1800
    for copy in set(got.copy):
        np.testing.assert_allclose(np.diff(got.arrival_s[got.copy == copy]), 3600.0)

    part = population(dataset, 2.5 * 40 / 24, 1, 2 * 3600.0, 3 * 3600.0, 3 * 3600.0)
    assert part.arrival_s.min() >= -3600.0
    measured = part.arrival_s >= part.begin_s
    inside = (got.arrival_s >= part.begin_s) & (got.arrival_s < part.end_s)
    np.testing.assert_allclose(part.arrival_s[measured], got.arrival_s[inside])
    np.testing.assert_array_equal(part.row[measured], got.row[inside])
    with pytest.raises(ValueError, match="0 <= begin_s"):
        population(dataset, 1.0, 1, 0.0, DAY_S + 1, 0.0)


def test_what_is_not_simulated_is_refused():
    world = one_deployment(batch=4)
    people = traffic([session_of([1], [1])], [0.0])
    with pytest.raises(ValueError, match="batch_points must go from 1 to 4"):
        simulate(world, capacity(world, points=(1, 2)), worlds.params(), people)
    with pytest.raises(ValueError, match="belief"):
        belief = {"belief": {"missing": 0.5}}
        simulate(world | belief, capacity(world), worlds.params(), people)


def test_moves_and_returns_are_counted_as_the_oracle_does():
    session = Session()
    for deployment in (3, 3, 5, 3, 4, 3):
        session.went(deployment)
    assert (session.moves, session.returns, session.before) == (4, 2, 4)
