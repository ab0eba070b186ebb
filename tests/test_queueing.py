"""Replicas as queues against chains summed up in full, and caches' lifetimes worked by hand."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxroute.lifetime import AGES, EDGES_S, age_of, lifetime_s
from jaxroute.queueing import MOST_WAIT_S, Arrivals, backlog_s, steady
from jaxroute.world import TIME_BINS

STEPS_S = 0.02 + 0.0004 * np.arange(1, 9)
STEP_J = 4.0 + 0.5 * np.arange(1, 9)
CTX_S = 1e-6


def arrivals(per_s: float, **changes: float) -> Arrivals:
    plain = {"prefill_s": 0.05, "prefill_s2": 0.01, "generated": 100.0, "generated2": 25_000.0}
    values = {"per_s": per_s, **plain, "context": 500.0} | changes
    return Arrivals(**{name: jnp.full(1, value) for name, value in values.items()})


def found(given: Arrivals, slots: float = 8.0):
    table = [jnp.asarray(x, jnp.float32)[:, None] for x in (STEP_J / np.arange(1, 9), STEPS_S)]
    replica = steady(given, jnp.full(1, slots), *table, jnp.full(1, CTX_S))
    return {name: float(value[0]) for name, value in replica._asdict().items()}


def summed(per_s: float, slots: float) -> dict[str, float]:
    """The same by a chain of 4,000 states in float64, from its definition."""
    n = np.arange(1, 4001)
    together = np.minimum(n, slots)
    step_s = np.interp(together, np.arange(1, 9), STEPS_S)
    step_j = np.interp(together, np.arange(1, 9), STEP_J)
    whole_s = step_s + CTX_S * 500 * together
    rho_p = per_s * 0.05
    leaving = (1 - rho_p) * together / (whole_s * 100)
    log_weight = np.concatenate([[0.0], np.cumsum(np.log(per_s / leaving))])
    weight = np.exp(log_weight - log_weight.max())
    share = weight / weight.sum()
    tokens = share[1:] * leaving / (share[1:] * leaving).sum()
    waiting = (share[1:] * (n - together)).sum()
    for_slot_s = 25_000 / (2 * 100**2) * waiting / per_s
    return {
        "wait_s": for_slot_s + per_s * 0.01 / (2 * (1 - rho_p)),
        "utilisation": rho_p + per_s * 100 * whole_s[-1] / slots,
        "running": (share[1:] * together).sum() + rho_p,
        "batch": (tokens * together).sum(),
        "dec_j": (tokens * step_j / together).sum(),
        "dec_s": (tokens * step_s).sum() / (1 - rho_p),
        "share_s": (tokens * whole_s / together).sum(),
        "dec_s_ctx": (tokens * CTX_S * together).sum() / (1 - rho_p),
    }


@pytest.mark.parametrize("load", [0.01, 0.4, 0.8, 0.95])
@pytest.mark.parametrize("slots", [8.0, 3.0, 5.5, 1.0])
def test_the_steady_state_is_that_of_the_chain(load, slots):
    per_s = load / summed(1.0, slots)["utilisation"]
    expected = summed(per_s, slots)
    own = found(arrivals(per_s), slots)
    for name in own.keys() & expected.keys():
        assert own[name] == pytest.approx(expected[name], rel=2e-4), name
    share_s = own["dec_s"] + own["dec_s_ctx"] * 500
    assert share_s / own["sharers"] == pytest.approx(expected["share_s"], rel=2e-4)


def test_one_slot_and_exponential_outputs_are_the_queue_m_m_1():
    step_s = float(STEPS_S[0]) + CTX_S * 500
    per_s = 0.7 / (100 * step_s)
    own = found(arrivals(per_s, prefill_s=0.0, prefill_s2=0.0, generated2=20_000.0), 1.0)
    assert own["wait_s"] == pytest.approx(0.7 / 0.3 * 100 * step_s, rel=1e-3)
    assert own["batch"] == pytest.approx(1.0)


def test_a_replica_without_turns_decodes_alone_and_nothing_waits():
    own = found(arrivals(0.0))
    assert (own["wait_s"], own["utilisation"], own["batch"]) == (0, 0, 1)
    assert own["dec_j"] == pytest.approx(STEP_J[0])
    assert found(arrivals(0.0, generated=0.0, generated2=0.0))["wait_s"] == 0


def test_more_than_can_be_served_waits_as_long_as_is_told_and_overflows():
    own = found(arrivals(50.0))
    assert own["utilisation"] > 1
    assert own["batch"] == pytest.approx(8.0, abs=0.01)
    assert all(np.isfinite(value) for value in own.values())


def test_what_an_overloaded_quarter_hour_leaves_is_waited_for_after_it():
    busy = jnp.full((96, 1), 0.5).at[95].set(1.5).at[0].set(1.2)
    left = np.asarray(backlog_s(busy, 900.0))[:, 0]
    assert left[:3] == pytest.approx([540, 405, 90])  # 450 s of the evening, 180 s, less 450 s
    assert left[94:] == pytest.approx([0, 225])
    assert left[3:94].max() == 0
    assert np.asarray(backlog_s(busy * 0 + 1.1, 900.0)).max() == MOST_WAIT_S


def lives(left_per_s: np.ndarray, again: np.ndarray, room: float) -> np.ndarray:
    table = jnp.asarray(left_per_s, jnp.float32)
    return np.asarray(
        lifetime_s(table, jnp.asarray(again, jnp.float32), jnp.full_like(table, room))
    )


def test_steady_traffic_that_never_returns_lives_room_over_rate():
    got = lives(np.full((TIME_BINS, 1), 50.0), np.zeros((AGES, 1)), 1e5)
    assert got == pytest.approx(2000.0, rel=1e-5)


def test_what_is_taken_up_again_leaves_room():
    again = np.zeros((AGES, 1))
    again[int(age_of(jnp.float32(100.0)))] = 0.6
    got = lives(np.full((TIME_BINS, 1), 50.0), again, 1e5)
    place = int(age_of(jnp.float32(100.0)))
    middle_s = (EDGES_S[place] + EDGES_S[place + 1]) / 2
    assert got == pytest.approx(middle_s + (2000 - middle_s) / 0.4, rel=1e-4)


def test_a_day_that_does_not_fill_the_room_evicts_nothing():
    assert np.isinf(lives(np.full((TIME_BINS, 1), 1.0), np.zeros((AGES, 1)), 1e6)).all()


def test_a_burst_evicts_in_its_own_quarter_hour_and_quiet_hours_keep():
    left = np.full((TIME_BINS, 1), 0.01)
    left[40] = 1000.0
    got = lives(left, np.zeros((AGES, 1)), 1e5)[:, 0]
    assert got[40] == pytest.approx(100, rel=0.01)
    assert got[44:60] == pytest.approx(900 * np.arange(4, 20), rel=0.2)  # the burst fills it still
    assert np.isinf(lives(left, np.zeros((AGES, 1)), 1e6)).all()
