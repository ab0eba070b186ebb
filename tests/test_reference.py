"""The oracle against the golden cases, and against corners worked out by hand."""

import math
from typing import Any

import numpy as np
import pytest
from golden_cases import Case, load, neutral

from jaxroute.reference import JOULES_PER_KWH, NEVER, TOTALS, replay

CASES = load()
SAME_NAME = (
    *("turns", "unserved", "moves", "returns", "rebuilt_tokens"),
    *("carbon_rebuild_g", "energy_kwh", "quality"),
)


def exactly(value: float) -> Any:
    return pytest.approx(value, rel=1e-9, abs=0)


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_golden_case(case: Case) -> None:
    for number, session in enumerate(case.sessions):
        result = replay(case.world, session, case.params)
        expect = {name: values[number] for name, values in case.expect.items()}
        totals = result.totals
        served = (totals[f"carbon_{part}_g"] for part in ("prefill", "decode", "embodied"))
        assert result.decision.tolist() == expect["decisions"]
        assert sum(served) == exactly(expect["carbon_g"])
        assert totals["carbon_embodied_g"] == exactly(expect["embodied_g"])
        assert totals["ttft_s"] == exactly(expect["ttft"])
        assert totals["e2e_s"] == exactly(expect["e2e"])
        for name in SAME_NAME:
            assert totals[name] == exactly(expect[name]), name
        assert result.margin.min() == exactly(expect["min_margin"])
        assert result.gate_margin.min() == exactly(expect["gate_margin"])


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_replaying_its_own_decisions_changes_nothing(case: Case) -> None:
    for session in case.sessions:
        free = replay(case.world, session, case.params)
        forced = replay(
            case.world, session, case.params, forced=(free.decision, free.cached_tokens)
        )
        for name, value in free._asdict().items():
            np.testing.assert_equal(getattr(forced, name), value, err_msg=name)


def fleet(**changes: Any) -> dict[str, Any]:
    """Deployments (model d, region d), d = 0 and 1: 1 kWh a prefilled token, all else free."""
    zero = (
        *("gpu", "pre_j_ctx", "pre_s", "pre_s_ctx", "ttft_floor_s", "dec_j", "dec_j_ctx"),
        *("dec_s", "dec_s_ctx", "host_w", "embodied_g_per_s"),
    )
    world = {
        **{name: np.zeros(2, int if name == "gpu" else float) for name in zero},
        "model": np.arange(2),
        "region": np.arange(2),
        "pre_j": np.full(2, JOULES_PER_KWH),
        "batch": np.ones(2),
        "params_b": np.array([7.0, 70.0]),
        "max_context_tokens": np.full(2, 1e6),
        "block_tokens": 1,
        "pue": np.ones(2),
        "wue_l_per_kwh": np.zeros(2),
        "ewif_l_per_kwh": np.zeros(2),
        "price_usd_per_kwh": np.zeros(2),
        "intensity_g_per_kwh": np.array([[1.0, 2.0], [3.0, 1.0], [6.0, 1.0]]),
        "rtt_s": np.zeros((1, 2)),
        "wait_s": np.zeros((1, 1)),
        "ttl_s": np.full((1, 1), np.inf),
        "decay_s": np.full((1, 1), np.inf),
        "drop_on_leave": 0,
    }
    return world | {name: np.asarray(value) for name, value in changes.items()}


def chat(new: list[int], output: list[int], **changes: Any) -> dict[str, Any]:
    """An append-only conversation, one turn a minute and an hour of the intensity table."""
    turns = len(new)
    lengths = np.add(new, output)
    session = {
        "arrival_s": 60.0 * np.arange(turns),
        "hour": np.arange(turns),
        "time_bin": np.zeros(turns, int),
        "prefix_tokens": np.cumsum(lengths) - lengths,
        "new_tokens": np.array(new),
        "output_tokens": np.array(output),
        "predicted_output_tokens": np.array(output),
        "home": np.zeros(turns, int),
        "quality": np.tile([0.7, 0.9], (turns, 1)),
        "noise": np.zeros((turns, 2)),
    }
    return session | {name: np.asarray(value) for name, value in changes.items()}


def policy(**changes: Any) -> dict[str, Any]:
    return neutral() | changes


@pytest.mark.parametrize(
    ("context", "published"), [(500, 1.26), (2000, 2.04), (6000, 4.11), (20000, 11.4)]
)
def test_break_even_of_one_move(context: int, published: float) -> None:
    """Moving saves iff kappa_i/kappa_j > 1 + L/(q + r v), v decoded tokens at r prefilled ones.

    The second answer has 301 tokens, the first of which the prefill emits: v = 300. The first has
    one token, which leaves no KV: the prompt that follows repeats only the first prompt.
    """
    q, v, r = 100, 300, 6.1
    break_even = 1 + context / (q + r * v)
    assert break_even == pytest.approx(published, rel=4e-3)
    session = chat([context, q], [1, v + 1], prefix_tokens=[0, context])
    for factor, served in ((1 - 1e-9, 0), (1 + 1e-9, 1)):
        world = fleet(
            model=[0, 0],
            dec_j=np.full(2, r * JOULES_PER_KWH),
            intensity_g_per_kwh=[[1.0, 1.0], [break_even * factor, 1.0]],
        )
        result = replay(world, session, policy())
        assert result.decision.tolist() == [0, served]
        assert result.cached_tokens.tolist() == [0, context if served == 0 else 0]
        assert result.totals["rebuilt_tokens"] == (context if served == 1 else 0)


def test_one_turn_by_hand() -> None:
    world = fleet(
        pre_j=[10.0, 10.0],
        pre_j_ctx=[0.2, 0.2],
        pre_s=[0.01, 0.01],
        dec_j=[30.0, 30.0],
        dec_s=[0.5, 0.5],
        dec_s_ctx=[0.01, 0.01],
        host_w=[100.0, 100.0],
        batch=[4.0, 4.0],
        embodied_g_per_s=[2.0, 2.0],
        pue=[1.5, 1.5],
        wue_l_per_kwh=[0.6, 0.0],
        ewif_l_per_kwh=[2.0, 0.0],
        price_usd_per_kwh=[0.1, 0.0],
        rtt_s=[[0.25, 0.25]],
        ttft_floor_s=[3.0, 3.0],
        wait_s=[[0.75, 0.75]],
    )
    totals = replay(world, chat([100], [5]), policy()).totals
    prefill_s, decode_s = 0.01 * 100, 0.5 * 4 + 0.01 * 4 * (100 + 2)
    prefill_j, decode_j = 10 * 100 + 0.2 * 100 * 100 / 2, 30 * 4
    prefill_kwh = 1.5 * (prefill_j + 100 * prefill_s) / 3.6e6
    decode_kwh = 1.5 * (decode_j + 100 * decode_s / 4) / 3.6e6
    expect = dict.fromkeys(TOTALS, 0.0) | {
        "turns": 1,
        "quality": 0.7,
        "carbon_prefill_g": prefill_kwh,
        "carbon_decode_g": decode_kwh,
        "carbon_embodied_g": 2 * (prefill_s + decode_s / 4),
        "energy_kwh": prefill_kwh + decode_kwh,
        "water_l": (prefill_kwh + decode_kwh) * (0.6 / 1.5 + 2),
        "cost_usd": (prefill_kwh + decode_kwh) * 0.1,
        "ttft_s": 0.25 + 0.75 + 3,
        "e2e_s": 4 + decode_s,
    }
    assert totals == pytest.approx(expect, rel=1e-12)


def test_unserved_turn_keeps_the_last_deployment() -> None:
    """Turn 1 promises too long an answer; turn 2 moves away from 0, and turn 3 returns to it."""
    world = fleet(
        max_context_tokens=[1000.0, 1000.0],
        intensity_g_per_kwh=[[1.0, 2.0], [6.0, 1.0], [1.0, 10.0]],
    )
    session = chat(
        [100, 10, 10, 10],
        [1, 10, 1, 1],
        hour=[0, 0, 1, 2],
        predicted_output_tokens=[1, 5000, 1, 1],
    )
    result = replay(world, session, policy())
    assert result.decision.tolist() == [0, -1, 1, 0]
    assert result.margin[1] == NEVER
    assert result.cached_tokens.tolist() == [0, 0, 0, 100]
    names = ("turns", "unserved", "moves", "returns", "mask_fallbacks")
    assert [result.totals[name] for name in names] == [3, 1, 2, 1, 0]


def test_an_answer_longer_than_predicted_is_billed_in_full() -> None:
    world = fleet(max_context_tokens=[200.0, 200.0], dec_j=[3.6e6, 3.6e6])
    totals = replay(world, chat([100], [501], predicted_output_tokens=[1]), policy()).totals
    assert totals["carbon_decode_g"] == exactly(500)


def test_forced_decisions_carry_residency_and_bill_the_given_cache() -> None:
    session = chat([100, 100, 100], [1, 1, 1], hour=[0, 0, 0])
    result = replay(fleet(), session, policy(), forced=([1, 0, 1], [0, 0, 64]))
    assert result.decision.tolist() == [1, 0, 1]
    assert result.cached_tokens.tolist() == [0, 0, 64]
    prompts = 2 * 100, 1 * 201, 2 * (302 - 64)
    assert result.totals["carbon_prefill_g"] == exactly(sum(prompts))
    assert result.totals["rebuilt_tokens"] == 100 + (201 - 64)
    assert (result.totals["moves"], result.totals["returns"]) == (2, 1)


def test_masks_that_would_leave_none_are_dropped_and_counted() -> None:
    session = chat([100, 1], [1, 1], hour=[0, 0])
    for masks in (
        {"region_allowed": np.zeros(2)},
        {"gpu_allowed": np.zeros(1)},
        {"model_allowed": np.array([1.0, 0.0]), "region_allowed": np.array([0.0, 1.0])},
    ):
        result = replay(fleet(), session, policy(**masks))
        assert result.decision.tolist() == [0, 0]
        assert result.totals["mask_fallbacks"] == 2
    allowed = replay(fleet(), session, policy(region_allowed=np.array([0.0, 1.0])))
    assert allowed.decision.tolist() == [1, 1]
    assert allowed.totals["mask_fallbacks"] == 0


def test_quality_and_latency_filters_fall_back_on_the_best() -> None:
    session = chat([100], [1])
    unreachable = replay(fleet(), session, policy(quality_floor=0.95))
    assert (unreachable.decision[0], unreachable.totals["quality_fallbacks"]) == (1, 1)
    reached = replay(fleet(), session, policy(quality_floor=0.9))
    assert (reached.decision[0], reached.totals["quality_fallbacks"]) == (1, 0)
    assert replay(fleet(), session, policy(quality_slack=0.1)).decision[0] == 1

    world = fleet(rtt_s=[[0.2, 0.1]])
    for slo_s, decision, fallbacks in ((0.05, 1, 1), (0.1, 1, 0), (0.2, 0, 0)):
        result = replay(world, session, policy(ttft_slo_s=slo_s))
        assert (result.decision[0], result.totals["ttft_fallbacks"]) == (decision, fallbacks)


def test_a_turn_without_new_tokens_counts_one() -> None:
    assert replay(fleet(), chat([0], [1]), policy()).totals["carbon_prefill_g"] == exactly(1)


def test_a_tie_goes_to_the_lowest_index_unless_noise_breaks_it() -> None:
    world = fleet(intensity_g_per_kwh=[[1.0, 1.0]])
    session = chat([100], [1], noise=[[0.5, 0.25]])
    tied = replay(world, session, policy())
    assert (tied.decision[0], tied.margin[0]) == (0, 0)
    assert replay(world, session, policy(noise_price_g=1.0)).decision[0] == 1


@pytest.mark.parametrize(
    ("price", "decision"),
    [("size_price_g_per_b", 0), ("intensity_price", 0), ("rtt_price_g_per_s", 1),
     ("quality_price_g", 1), ("latency_price_g_per_s", 1)],
)  # fmt: skip
def test_one_price_alone_decides(price: str, decision: int) -> None:
    params = policy(carbon_weight=0.0, **{price: 1.0})
    assert replay(fleet(rtt_s=[[0.2, 0.1]]), chat([100], [1]), params).decision[0] == decision


def test_retention_depends_on_the_time_of_day() -> None:
    """Caches live for 30 s in the first half of the day and for 90 s in the second."""
    world = fleet(ttl_s=[[30.0], [90.0]])
    for time_bin, cached, edge_s in ((47, 0, 30), (48, 100, 30)):
        session = chat([100, 1], [1, 1], hour=[0, 0], time_bin=[0, time_bin])
        result = replay(world, session, policy())
        assert result.cached_tokens.tolist() == [0, cached]
        assert result.ttl_edge_s.tolist() == [NEVER, edge_s]


def test_edge_tokens_is_the_distance_from_the_next_whole_token() -> None:
    world = fleet(decay_s=np.full((1, 1), 60 / math.log(2)))
    result = replay(world, chat([101, 1], [1, 1], hour=[0, 0]), policy())
    assert result.cached_tokens.tolist() == [0, 50]
    assert result.edge_tokens.tolist() == [NEVER, pytest.approx(0.49)]
    kept = replay(fleet(), chat([101, 1], [1, 1], hour=[0, 0]), policy())
    assert kept.edge_tokens.tolist() == [NEVER, NEVER]


def test_gate_weighs_the_excess_against_the_return() -> None:
    """At turn 1 kappa is (3, 1), 100 of the 200 prompt tokens are cached at 0, and none at 1.

    J = (300, 200); a return would rebuild the 100 tokens that staying adds: R = 300.
    """
    session = chat([100, 100], [1, 1], prefix_tokens=[0, 100])
    for p_back, decision in ((0.33, 1), (0.34, 0)):
        bias = math.log(p_back / (1 - p_back))
        result = replay(fleet(), session, policy(gate_strength=1.0, gate_bias=bias))
        assert result.decision.tolist() == [0, decision]
        assert result.gate_margin[1] == exactly(abs(100 - p_back * 300) / 300)
    for hysteresis, decision in ((0.33, 1), (0.34, 0)):
        result = replay(fleet(), session, policy(hysteresis=hysteresis))
        assert result.decision.tolist() == [0, decision]
    assert replay(fleet(), session, policy(always_stay=1.0)).decision.tolist() == [0, 0]


def test_gate_knows_what_would_be_kept() -> None:
    """At p_back 1 and strength 0.5, staying needs J_i - J_j < R/2, and J_j = 200.

    Kept on leaving: J_i = 300, R = 300. Dropped on leaving: R = 600, the whole next prompt.
    Expired by the next turn on either path: R = 0.
    """
    session = chat([100, 100], [1, 1], prefix_tokens=[0, 100])
    params = policy(gate_strength=0.5, gate_bias=np.inf, expected_gap_s=61.0)
    for change, threshold_g in (({}, 150), ({"drop_on_leave": 1}, 300), ({"ttl_s": [[60.0]]}, 0)):
        result = replay(fleet(**change), session, params)
        assert result.decision.tolist() == [0, 0 if threshold_g > 100 else 1]
        assert result.gate_margin[1] == exactly(min(abs(100 - threshold_g), 100) / 300)


@pytest.mark.parametrize(
    ("number", "feature"),
    list(enumerate([1 / 3, 1, 1, math.log(2), math.log1p(1), math.log1p(1), 0, -0.2])),
)
def test_gate_features(number: int, feature: float) -> None:
    """A weight on one feature does what the same bias would."""
    session = chat([100, 100], [1, 1], prefix_tokens=[0, 100])
    weighted = policy(gate_strength=1.0, gate_weights=0.5 * np.eye(8)[number])
    biased = policy(gate_strength=1.0, gate_bias=0.5 * feature)
    by_weight, by_bias = (replay(fleet(), session, params) for params in (weighted, biased))
    assert by_weight.gate_margin[1] == pytest.approx(by_bias.gate_margin[1], rel=1e-12)


def test_gate_features_at_the_end_of_the_table_and_after_a_return() -> None:
    """No next hour is no change; of two moves before turn 3 one was a return."""
    session = chat([100, 100, 100, 100], [1, 1, 1, 1], hour=[0, 1, 2, 2])
    forced = ([0, 1, 0, 0], [0, 0, 0, 0])
    for number, feature in ((3, 0.0), (6, 0.5)):
        weighted = policy(gate_strength=0.1, gate_weights=3 * np.eye(8)[number])
        biased = policy(gate_strength=0.1, gate_bias=3 * feature)
        by_weight, by_bias = (
            replay(fleet(), session, params, forced=forced).gate_margin[3]
            for params in (weighted, biased)
        )
        assert by_weight == pytest.approx(by_bias, rel=1e-12)
        assert by_weight < NEVER
