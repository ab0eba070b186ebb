"""The decision of DESIGN section 2 for one turn at a time, on the caches that there really are.

The terms are those of `jaxroute.reference`. What a turn costs where nothing is cached is worked out
once for all copies of its session; a cache then takes off the price of what it spares.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.event_replica import Entry
from jaxroute import reference
from jaxroute.reference import (
    NONE,
    SLACK_TOKENS,
    SMALLEST_INTENSITY,
    Fleet,
    blocks,
    decode,
    emissions,
    gate,
    prefill,
    select,
)
from jaxroute.timeline import QUARTER_S

Floats = NDArray[np.float64]


@dataclass(slots=True, eq=False)
class Session:
    """What one copy of a session has done so far; `entries` by deployment."""

    last: int = NONE
    before: int = NONE
    moves: int = 0
    returns: int = 0
    entries: dict[int, Entry] = field(default_factory=dict)

    def went(self, deployment: int) -> None:
        """Notes where a turn was served."""
        if self.last not in (NONE, deployment):
            self.moves += 1
            self.returns += deployment == self.before
            self.before = self.last
        self.last = deployment


class Cold(NamedTuple):
    """A turn with nothing cached but what is assumed of it: `[D]`, and tokens."""

    score_g: Floats  # infinite where it cannot go, unless that hangs on the caches
    ttft_s: Floats
    prefill_s: Floats
    fits: NDArray[np.bool_]
    assumed_tokens: float


class Waits:
    """Mean wait of each deployment in the quarter hour before the present one."""

    def __init__(self, deployments: int, knowledge: float) -> None:
        self.quarter, self.knowledge = -np.inf, knowledge
        self.sums, self.told_s = np.zeros((2, deployments)), np.zeros(deployments)

    def note(self, deployment: int, wait_s: float, now_s: float) -> None:
        """That a turn's wait is over."""
        self.told(now_s)
        self.sums[:, deployment] += wait_s, 1

    def told(self, now_s: float) -> Floats:
        """What a policy knows of the waits, `[D]`, s."""
        quarter = now_s // QUARTER_S
        if quarter != self.quarter:
            mean = self.knowledge * self.sums[0] / np.maximum(self.sums[1], 1)
            self.told_s = mean if quarter == self.quarter + 1 else np.zeros_like(mean)
            self.quarter, self.sums = quarter, np.zeros_like(self.sums)
        return self.told_s


class Router:
    """One policy on the turns of a sample.

    Args:
      world, params: as `jaxroute.reference.replay` takes them; retention and waits are the fleet's.
      columns: of the sample's turns, `jaxroute.reference.replay`'s of one session, and `turn`.
    """

    def __init__(
        self, world: Mapping[str, Any], params: Mapping[str, Any], columns: Mapping[str, Any]
    ) -> None:
        if world.get("belief"):
            raise ValueError("the router's belief is not simulated: world without `belief`")
        w, s, p = map(reference._namespace, (world, columns, params))
        reference._tabulate(w, s, p)
        self.w, self.s, self.p = w, s, p
        self.prompt = s.prefix_tokens + np.maximum(1, s.new_tokens)
        context = self.prompt + np.maximum(s.output_tokens - 1, 0)
        previous = np.where(columns["turn"] == 0, 0.0, np.roll(context, 1))
        self.kept = np.minimum(s.prefix_tokens, previous)
        self.turn = np.asarray(columns["turn"])
        self.fleets = [Fleet(*row) for row in np.transpose(w.fleet).tolist()]
        self.gated = p.gate_strength > 0 or p.hysteresis > 0 or p.always_stay > 0
        self.by_caches = p.ttft_slo_s < math.inf
        self.colds: dict[int, Cold | None] = {}

    def decide(self, row: int, session: Session, now_s: float, wait_s: Floats) -> int:
        """The deployment of a turn, or `NONE` if its context fits nowhere."""
        if row not in self.colds:
            self.colds[row] = self._cold(row)
        cold, p, last = self.colds[row], self.p, session.last
        if cold is None:
            return NONE
        score, ttft_s = cold.score_g.copy(), cold.ttft_s
        if p.latency_price_g_per_s:
            score += p.latency_price_g_per_s * wait_s
        if p.switch_price_g and last != NONE:
            score += p.switch_price_g * (self.w.index != last)
        if self.by_caches:
            ttft_s = ttft_s + wait_s
        if p.cache_knowledge:
            self._credit(row, cold, session, score, ttft_s)
        if self.by_caches:
            feasible = select(p, cold.fits, self.w.allowed, self.s.quality[row], ttft_s)[0]
            score = np.where(feasible, score, np.inf)
        j = int(score.argmin())
        if self.gated and last not in (NONE, j) and score[last] < math.inf:
            return last if self._stays(row, session, now_s, j, score) else j
        return j

    def _cold(self, row: int) -> Cold | None:
        w, s, p, prompt = self.w, self.s, self.p, self.prompt.item(row)
        fits = prompt + s.predicted_output_tokens[row] <= w.max_context_tokens
        if not fits.any():
            return None
        full = blocks(min(self.kept.item(row), prompt - 1), w.block_tokens)
        assumed = float((1 - p.cache_knowledge) * p.assumed_hit * full)
        prefill_j, prefill_s = prefill(w.fleet, assumed, prompt)
        decode_j, decode_s = decode(w.fleet, prompt, s.predicted_output_tokens.item(row))
        busy_s = prefill_s + decode_s / w.batch
        operational_g, embodied_g = emissions(w.fleet, s.kappa[row], prefill_j + decode_j, busy_s)
        ttft_s = s.rtt_s[row] + np.maximum(w.ttft_floor_s, prefill_s)
        score = p.carbon_weight * (operational_g + p.embodied_weight * embodied_g)
        score += p.latency_price_g_per_s * (ttft_s + decode_s) + s.standing_g[row]
        if not self.by_caches:
            feasible = select(p, fits, w.allowed, s.quality[row], ttft_s)[0]
            score = np.where(feasible, score, np.inf)
        return Cold(score, ttft_s, prefill_s, fits, assumed)

    def _credit(
        self, row: int, cold: Cold, session: Session, score: Floats, ttft_s: Floats
    ) -> None:
        """Takes what its caches spare a turn off `score`, and off `ttft_s` where that matters."""
        p, s = self.p, self.s
        most = min(s.prefix_tokens.item(row), self.prompt.item(row) - 1)
        for d, entry in session.entries.items():
            usable = blocks(min(entry.found_tokens, most), self.w.block_tokens)
            if not usable:
                continue
            f, assumed = self.fleets[d], cold.assumed_tokens
            spared_j, spared_s = prefill(f, assumed, assumed + p.cache_knowledge * usable)
            gone_g, gone_embodied_g = emissions(f, s.kappa.item(row, d), spared_j, spared_s)
            score[d] -= p.carbon_weight * (gone_g + p.embodied_weight * gone_embodied_g)
            was_s, floor_s = cold.prefill_s.item(d), f.ttft_floor_s
            sooner_s = max(floor_s, was_s) - max(floor_s, was_s - spared_s)
            score[d] -= p.latency_price_g_per_s * sooner_s
            if self.by_caches:
                ttft_s[d] -= sooner_s

    def _stays(self, row: int, session: Session, now_s: float, j: int, score: Floats) -> bool:
        """Whether the gate keeps the session at its last deployment i although j scores lower."""
        w, s, p, i = self.w, self.s, self.p, session.last
        entry, gap_s = session.entries[i], p.expected_gap_s
        k, prompt, predicted = (
            s.prefix_tokens[row],
            self.prompt[row],
            s.predicted_output_tokens[row],
        )
        ttl_s = entry.replica.ttl_s(now_s)
        hit = (1 - p.cache_knowledge) * p.assumed_hit
        left = min(p.cache_knowledge * entry.found_tokens + hit * self.kept[row], k)
        stay = prompt + max(predicted - 1, 0)
        left = 0.0 if entry.idle_s(now_s) + gap_s > ttl_s else np.floor(left + SLACK_TOKENS)
        stay = 0.0 if gap_s > ttl_s else np.floor(stay + SLACK_TOKENS)
        c0, c1 = blocks(np.minimum((left, stay), prompt + predicted), w.block_tokens)
        rebuild_j, rebuild_s = prefill(self.fleets[i], c0, c1)
        rebuilt_g = emissions(self.fleets[i], s.kappa[row, i], rebuild_j, rebuild_s)
        return_g = p.carbon_weight * (rebuilt_g[0] + p.embodied_weight * rebuilt_g[1])
        return_g += p.latency_price_g_per_s * rebuild_s
        hours = [s.hour[row], min(s.hour[row] + 1, len(w.intensity_g_per_kwh) - 1)]
        intensity = w.intensity_g_per_kwh[hours][:, w.region[[i, j]]]
        now, later = np.log(np.maximum(intensity, SMALLEST_INTENSITY))
        features = (
            w.model[i] != w.model[j],
            w.region[i] != w.region[j],
            (later[0] - later[1]) - (now[0] - now[1]),
            math.log1p(self.turn[row]),
            math.log1p(k / (prompt - k)),
            session.returns / max(session.moves, 1),
            s.quality[row, i] - s.quality[row, j],
        )
        return bool(gate(p, score.item(i), score.item(j), return_g, features)[0])
