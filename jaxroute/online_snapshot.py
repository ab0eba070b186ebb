"""The state of a live router as JSON: deployments and regions by name, checked when read."""

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from jaxroute.load.messages import input_error, shown
from jaxroute.load.moments import LATEST_S
from jaxroute.load.toml import Section, validate
from jaxroute.load.values import Finite, Name
from jaxroute.online_grid import Reading, Readings
from jaxroute.online_input import MOST_TOKENS
from jaxroute.online_names import Names, Places, place_of
from jaxroute.online_state import State, opening
from jaxroute.reference import NONE

Amount = Annotated[Finite, Field(ge=0, le=MOST_TOKENS)]
Moment = Annotated[Finite, Field(ge=0, lt=LATEST_S)]
Count = Annotated[int, Field(strict=True, ge=0)]


class Cache(Section):
    """What a deployment is believed to hold of a session."""

    resident_tokens: Amount
    last_used_s: Moment


class Awaited(Section):
    """Where a turn was sent, and when it should finish."""

    deployment: Name | None
    finish_s: Moment


class Session(Section):
    """A session, as `jaxroute.online_rule.State` documents it."""

    caches: dict[Name, Cache]
    last: Name | None
    before: Name | None
    arrival_s: Moment
    prompt_tokens: Amount
    output_tokens: Amount
    turns: Count
    moves: Count
    returns: Count
    home: Name | None
    awaited: Awaited | None


class Set(Section):
    """Intensity as set, g/kWh."""

    now: Amount
    next_hour: Amount | None


class Report(Section):
    """Sums over the served turns whose usage told the cached tokens."""

    turns: Count
    expected_tokens: Amount
    reported_tokens: Amount


class Snapshot(Section):
    """A router's sessions, least recently used first, readings by region, reports by deployment."""

    version: Literal[1]
    sessions: dict[str, Session]
    intensity: dict[Name, Set]
    reports: dict[Name, Report]


class Contents(NamedTuple):
    """What a snapshot is of; `reports` is `[D, 3]` in the order of `Report`."""

    sessions: Mapping[str, State]
    readings: Readings
    reports: NDArray[np.float64]


def written(contents: Contents, names: Names) -> dict[str, Any]:
    """Contents as values that JSON knows."""
    regions, deployments = list(names.regions), list(names.deployments)
    homes = [*names.homes, None]  # -1: not known
    return {
        "version": 1,
        "sessions": {
            name: _session(state, deployments) | {"home": homes[state.home]}
            for name, state in contents.sessions.items()
        },
        "intensity": {
            regions[region]: {"now": now, "next_hour": following}
            for region, (now, following) in contents.readings.items()
        },
        "reports": {
            deployments[d]: {
                "turns": int(turns),
                "expected_tokens": expected,
                "reported_tokens": told,
            }
            for d, (turns, expected, told) in enumerate(contents.reports.tolist())
            if turns
        },
    }


def _session(state: State, deployments: Sequence[str]) -> dict[str, Any]:
    def name(deployment: int) -> str | None:
        return None if deployment == NONE else deployments[deployment]

    ever = np.flatnonzero((state.resident_tokens > 0) | (state.last_used_s > 0))
    out = {field: getattr(state, field) for field in _PLAIN}
    return out | {
        "caches": {
            deployments[d]: {
                "resident_tokens": state.resident_tokens.item(d),
                "last_used_s": state.last_used_s.item(d),
            }
            for d in ever.tolist()
        },
        "last": name(state.last),
        "before": name(state.before),
        "awaited": state.awaited
        and {"deployment": name(state.awaited[0]), "finish_s": state.awaited[1]},
    }


_PLAIN = ("arrival_s", "prompt_tokens", "output_tokens", "turns", "moves", "returns")


def read(snapshot: Mapping[str, Any] | str, names: Names) -> Contents:
    """The contents of a snapshot, as values or as JSON.

    Raises:
      InputError: naming the key, what was found and what was expected; for a deployment or region
        that the router does not have.
    """
    if isinstance(snapshot, str):
        try:
            snapshot = json.loads(snapshot)
        except ValueError as error:
            raise input_error("snapshot", "", f"a syntax error ({error})", "JSON") from error
    if not isinstance(snapshot, Mapping):
        raise input_error("snapshot", "", shown(snapshot), "a snapshot of an OnlineRouter")
    given = validate(dict(snapshot), Snapshot, "snapshot")
    size = len(names.deployments)
    reports, sessions = np.zeros((size, len(Report.model_fields))), {}
    for name, report in given.reports.items():
        told = report.turns, report.expected_tokens, report.reported_tokens
        reports[_place("deployment", name, names.deployments)] = told
    for session_id, each in given.sessions.items():
        start = opening(size)
        for name, cache in each.caches.items():
            d = _place("deployment", name, names.deployments)
            start.resident_tokens[d] = cache.resident_tokens
            start.last_used_s[d] = cache.last_used_s
        sent = each.awaited
        sessions[session_id] = start._replace(
            **{field: getattr(each, field) for field in _PLAIN},
            last=_place("last", each.last, names.deployments),
            before=_place("before", each.before, names.deployments),
            home=_place("home", each.home, names.homes),
            awaited=None
            if sent is None
            else (_place("awaited", sent.deployment, names.deployments), sent.finish_s),
        )
    readings = {
        _place("region", name, names.regions): Reading(each.now, each.next_hour)
        for name, each in given.intensity.items()
    }
    return Contents(sessions, readings, reports)


def _place(field: str, name: str | None, known: Places) -> int:
    return NONE if name is None else place_of("snapshot", field, name, known)
