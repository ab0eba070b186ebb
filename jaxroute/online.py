"""A router for a live gateway: the rule of the replay, one query at a time."""

import threading
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from jaxroute import (
    online_grid,
    online_input,
    online_rule,
    online_snapshot,
    online_state,
    online_study,
)
from jaxroute.config import read_config
from jaxroute.load.messages import input_error, shown
from jaxroute.online_decision import CacheReport, Decision, decision_of
from jaxroute.online_input import Question, moment, number
from jaxroute.online_memory import Memory
from jaxroute.online_names import names_of, place_of
from jaxroute.online_rule import Query, Site, decide, rule_of
from jaxroute.policies import RouterParams
from jaxroute.reference import NONE, blocks
from jaxroute.study import Study
from jaxroute.world import World


class OnlineRouter:
    """Decides where each turn of many live conversations is served; safe to use from threads.

    The same rule as the replay's (`jaxroute.policies.router`), on what is known when a turn
    arrives. `route` decides; `observe` tells afterwards what served the turn and how many tokens it
    had. Without an observation the decision is taken to have been followed, and the output to have
    been as predicted. A session's turns follow one another: its next turn settles the last one.

    A session is forgotten a while after its last turn arrived, or when more are open and it is the
    least recently used. Its next turn then is a first one, for which `prefix_tokens` must be given:
    the router no longer knows how long the context is.

    >>> from jaxroute import OnlineRouter
    >>> router = OnlineRouter.load(policy="carbon_router", retention="drop")
    >>> router.set_intensity("US-CISO", 231.0, next_hour_g_per_kwh=190.0)
    >>> first = router.route("chat-1", 420, home_region="US-CISO", now=1_700_000_000)
    >>> first.deployment, first.why
    ('qwen2.5-32b-instruct|B200-180GB-SXM|US-CISO', 'no gate: first turn')
    >>> usage = {"prompt_tokens": 420, "completion_tokens": 180}
    >>> router.observe("chat-1", first.deployment, usage, finished_at=1_700_000_004)
    >>> second = router.route("chat-1", 35, now=1_700_000_060)
    >>> second.why, second.expected_carbon_g < first.expected_carbon_g
    ('no gate: best is here', True)

    Args:
      params: the policy.
      world: the fleet, its grid and its retention. Where it has a belief, that has the profiles and
        the intensity to decide by; the faults of its reports are not imitated.
      deployments: `[D]`, (model, GPU type, region) of each.
      homes: `[C]`, names of the client regions.
      quality: predicted of each model, in [0, 1], where a query does not say.
      predicted_output_tokens: likewise.
      intensity_from: when the first hour of the world's intensity begins. Outside the table its
        values of the same day and hour of another year serve (`jaxroute.online_grid.row_at`).
      expire_after_s: how long a session is remembered after its last turn arrived; the caches die
        by the world's retention, whatever this is.
      max_sessions: open at a time.
      seed: of the noise that only `noise_price_g` asks for, where a query brings none; a snapshot
        does not hold how much of it was drawn.
    """

    def __init__(
        self,
        params: RouterParams,
        world: World,
        deployments: Sequence[tuple[str, str, str]],
        *,
        homes: Sequence[str],
        quality: Mapping[str, float] | None = None,
        predicted_output_tokens: float = 256.0,
        intensity_from: float | datetime = 0.0,
        expire_after_s: float = 86_400.0,
        max_sessions: int = 10_000,
        seed: int = 0,
    ):
        self._rule = rule_of(params, world)
        self._names = names = names_of(world, deployments, homes)
        self._memory = Memory(max_sessions, expire_after_s)
        self._predicted = number("OnlineRouter", "predicted_output_tokens", predicted_output_tokens)
        unknown = np.full(len(names.models), np.nan)
        self._quality = online_input.merged("OnlineRouter", unknown, quality, names.models)
        start_s = moment("OnlineRouter", "intensity_from", intensity_from)
        self._grid = online_grid.grid_of(world, start_s)
        rtt_s = np.asarray(world.rtt_s, np.float64)
        rtt_s = np.concatenate([rtt_s, rtt_s.mean(0, keepdims=True)])  # -1: no known home
        self._rtt_s = rtt_s[:, self._rule.region]

        self._lock = threading.Lock()
        self._rng = np.random.default_rng(seed)
        self._readings: online_grid.Readings = {}
        self._reports = np.zeros((len(names.deployments), 3))
        self._site: tuple[tuple[int, int], Site] | None = None

    @classmethod
    def load(
        cls,
        path: str | Path | None = None,
        *,
        policy: str | RouterParams,
        retention: str | None = None,
        **options: Any,
    ) -> Self:
        """A router for a study file, such as `jaxroute tune` writes. No trace is read.

        Args:
          path: a TOML file; without it the default study.
          policy, retention, options: as for `from_study`.

        Raises:
          InputError: as `jaxroute.load_study`; for an unknown policy or retention.
        """
        bare = online_study.without_traces(read_config(path))
        return cls.from_study(bare, policy=policy, retention=retention, **options)

    @classmethod
    def from_study(
        cls,
        of: Study,
        *,
        policy: str | RouterParams,
        retention: str | None = None,
        **options: Any,
    ) -> Self:
        """A router for the fleet, the grid and a policy of a study.

        These are read anew from what its file names, so that the grid's table covers a year, not
        only the days of a trace. Without a quality, models have the mean of the bundled IRT.

        Args:
          of: the study. What it says of prompts beyond every context limit is of traces: such a
            turn is unserved, and it is for the gateway to cut it.
          policy: a preset, a `[policy.…]` table of the study, or parameters: those with a fixed
            axis depend on a dataset, and `jaxroute.comparison.resolved` gives them.
          retention: label; the study's first by default.
          options: as the constructor has them.

        Raises:
          InputError: for an unknown policy or retention, or a policy with a fixed axis by name.
        """
        return cls(**online_study.arguments(of, policy, retention) | options)

    def __len__(self) -> int:
        """Open sessions."""
        return len(self._memory.sessions)

    def route(
        self,
        session_id: str,
        new_tokens: float,
        *,
        prefix_tokens: float | None = None,
        home_region: str | None = None,
        predicted_output_tokens: float | None = None,
        quality: Mapping[str, float] | None = None,
        now: float | datetime | None = None,
        noise: ArrayLike | None = None,
    ) -> Decision:
        """Decides where a turn is served, and takes it to be under way there.

        Args:
          session_id: of the conversation.
          new_tokens: n, that this turn adds; 0 counts as 1.
          prefix_tokens: k, leading tokens of the prompt that equal the context so far; by default
            the whole of it, the last turn's prompt and output.
          home_region: where the client is; by default where it was, at first the mean of all.
          predicted_output_tokens: of the answer.
          quality: predicted of models by name, in [0, 1]; others as by default.
          now: when the turn arrives, epoch seconds or a datetime (UTC unless it has an offset); by
            default the clock's. A time before the session's last turn counts as that.
          noise: `[D]`, uniform on [0, 1), for a policy with a price on it
            (`jaxroute.draws.noise` gives that of a replay).

        Raises:
          InputError: (a ValueError) naming the field, what was found and what was expected.
        """
        session_id = online_input.name("route", "session_id", session_id)
        question = online_input.question(
            self._names,
            self._quality,
            self._predicted,
            new_tokens=new_tokens,
            prefix_tokens=prefix_tokens,
            predicted_output_tokens=predicted_output_tokens,
            home_region=home_region,
            quality=quality,
            noise=noise,
            now=now,
        )
        with self._lock:
            return self._answer(session_id, question)

    def _answer(self, session_id: str, question: Question) -> Decision:
        """`route`, of one thread at a time."""
        new, prefix, predicted, home, qualities, noise, now_s = question
        size = len(self._names.parts)
        state = self._memory.find(session_id, now_s) or online_state.opening(size)
        state = online_state.settled(state)
        home = state.home if home is None else home
        if prefix is None:
            prefix = state.prompt_tokens + state.output_tokens
        drawn: Any = noise
        if noise is None:
            drawn = self._rng.random(size) if self._rule.params.noise_price_g else 0.0
        now_s = max(now_s, state.arrival_s)
        query = Query(now_s, prefix, new, predicted, self._rtt_s[home], qualities, drawn)
        choice = decide(self._rule, self._site_at(now_s), state, query)
        after = online_rule.sent(state._replace(home=home), query, choice)
        self._memory.keep(session_id, after)
        d = choice.deployment
        parts = None if d == NONE else self._names.parts[d]
        return decision_of(self._rule, state, query, choice, parts)

    def observe(
        self,
        session_id: str,
        deployment: str | None,
        usage: object,
        *,
        finished_at: float | datetime | None = None,
    ) -> None:
        """Tells what became of the session's turn under way.

        What served it now holds its prompt and output (but for the last token), whether or not it
        was the one decided for, and however much it had found cached. So a reported number of
        cached tokens changes no belief on this session; it tells how far the retention can be
        trusted, and `cache_reports` adds it up.

        Args:
          session_id: of the conversation.
          deployment: `Decision.deployment` of what served it; None for none of the fleet.
          usage: as OpenAI reports it, a mapping or an object: `prompt_tokens`, `completion_tokens`,
            and perhaps `prompt_tokens_details.cached_tokens`; where that is missing or None, it is
            not known, and not taken for 0.
          finished_at: when the last token was there, as `now` of `route`; by default the clock's.

        Raises:
          InputError: (a ValueError) for an unknown session, or one without a turn under way, or as
            for `route`.
        """
        session_id = online_input.name("observe", "session_id", session_id)
        prompt, output, cached = online_input.usage(usage)
        d = NONE
        if deployment is not None:
            d = place_of("observe", "deployment", deployment, self._names.deployments)
        finished_s = moment("observe", "finished_at", finished_at)
        with self._lock:
            state = self._memory.sessions.get(session_id)
            if state is None:
                expected = f"one of the {len(self):,} open sessions"
                mend = "it was never routed, or is forgotten"
                raise input_error("observe", "session_id", shown(session_id), expected, mend)
            if state.awaited is None:
                found = f"session {session_id!r}, whose turn was observed before"
                raise input_error("observe", "session_id", found, "a turn under way")
            if cached is not None and d != NONE:
                most = min(state.resident_tokens.item(d), state.prompt_tokens - 1)
                expected_tokens = blocks(most, self._rule.block_tokens)
                self._reports[d] += 1, expected_tokens, cached
            after = online_state.served(state, d, prompt, output, finished_s)
            self._memory.sessions[session_id] = after

    def set_intensity(
        self,
        region: str | Mapping[str, float],
        g_per_kwh: float | None = None,
        *,
        next_hour_g_per_kwh: float | Mapping[str, float] | None = None,
    ) -> None:
        """Sets grid intensity from now on, in place of the table's by the clock.

        Args:
          region: of the fleet; or the intensity of several by their names.
          g_per_kwh: gCO2e/kWh of the one region; None goes back to the table.
          next_hour_g_per_kwh: a forecast, of the one region or of several, for the gate's feature
            `intensity_trend`; by default intensity changes as the table's does.

        Raises:
          InputError: for an unknown region, or a number that is no intensity.
        """
        now: Mapping[str, Any] = region if isinstance(region, Mapping) else {region: g_per_kwh}
        following = next_hour_g_per_kwh
        if not isinstance(following, Mapping):
            following = {} if following is None else dict.fromkeys(now, following)
        with self._lock:
            regions = self._names.regions
            self._readings = online_grid.updated(self._readings, now, following, regions)
            self._site = None

    def cache_reports(self) -> dict[str, CacheReport]:
        """How reports of cached tokens compare with the retention's, by deployment.

        Fewer reported than expected: caches die sooner than the retention says, or requests of a
        session reach other replicas. More: they live longer, or sessions share a prefix.
        """
        with self._lock:
            sums = self._reports.tolist()
        rows = zip(self._names.deployments, sums, strict=True)
        return {name: CacheReport(int(n), *tokens) for name, (n, *tokens) in rows if n}

    def snapshot(self) -> dict[str, Any]:
        """All that the router has learnt since it was made, as values that JSON knows."""
        with self._lock:
            sessions, readings = dict(self._memory.sessions), self._readings
            contents = online_snapshot.Contents(sessions, readings, self._reports.copy())
        return online_snapshot.written(contents, self._names)

    def restore(self, snapshot: Mapping[str, Any] | str) -> None:
        """Takes over what `snapshot` gave, as values or as JSON, in place of what it has learnt.

        Raises:
          InputError: for a snapshot that is none, or is of another fleet.
        """
        contents = online_snapshot.read(snapshot, self._names)
        with self._lock:
            self._memory.replace(contents.sessions)
            self._readings, self._reports = contents.readings, contents.reports
            self._site = None

    def _site_at(self, now_s: float) -> Site:
        """The deployments at a moment; the last one is kept, since it holds for a while."""
        key = online_grid.key_at(self._grid, now_s)
        if self._site is None or self._site[0] != key:
            self._site = key, online_grid.site(self._grid, key, self._readings)
        return self._site[1]
