"""What a gateway tells a live router, checked: numbers, moments, and usage as OpenAI reports it."""

import math
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from jaxroute.load.messages import input_error, shown
from jaxroute.load.moments import LATEST_S
from jaxroute.online_names import Names, Places, place_of

Floats = NDArray[np.float64]

MOST_TOKENS = 1e9
"""No context is longer: a greater number is a mistake."""


class Usage(NamedTuple):
    """Tokens of a served turn; `cached_tokens` is None where the backend did not report them."""

    prompt_tokens: float
    output_tokens: float
    cached_tokens: float | None


def name(call: str, field: str, value: object) -> str:
    """A text.

    Raises:
      InputError: for anything else.
    """
    if not isinstance(value, str):
        raise input_error(call, field, shown(value), "a text")
    return value


def number(
    call: str, field: str, value: object, *, most: float = MOST_TOKENS, what: str = "tokens"
) -> float:
    """A number of at least 0 and at most `most`.

    Raises:
      InputError: for anything else.

    >>> number("route", "n", -3)
    Traceback (most recent call last):
    ...
    jaxroute.errors.InputError: route: n: found -3, expected tokens, a number from 0 to 1e+09
    """
    try:
        found = math.nan if isinstance(value, str) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        found = math.nan
    if isinstance(value, bool) or not 0 <= found <= most:
        bounds = f"a number from 0 to {most:g}"
        raise input_error(call, field, shown(value), f"{what}, {bounds}")
    return found


def moment(call: str, field: str, value: float | datetime | None) -> float:
    """Epoch seconds of a moment; of now, by the clock, for None.

    A datetime without an offset is taken as UTC.

    Raises:
      InputError: for anything that is none between 1970 and 2200.

    >>> moment("route", "now", datetime(1970, 1, 2)), moment("route", "now", 5)
    (86400.0, 5.0)
    """
    if value is None:
        return time.time()
    if isinstance(value, datetime):
        value = value.replace(tzinfo=value.tzinfo or UTC).timestamp()
    try:
        found = math.nan if isinstance(value, str) else float(value)
    except (TypeError, ValueError):
        found = math.nan
    if not 0 <= found < LATEST_S:
        expected = "a datetime, or seconds since 1970 (not milliseconds)"
        raise input_error(call, field, shown(value), expected)
    return found


def usage(given: object) -> Usage:
    """The tokens of an OpenAI-style usage object, a mapping or one with attributes.

    `prompt_tokens_details.cached_tokens` may be missing or None: vLLM omits it when it is zero and
    unless it is asked for, so that it is then unknown, not zero.

    Raises:
      InputError: for a number of tokens that is none, or more cached than the prompt has.

    >>> usage({"prompt_tokens": 9, "completion_tokens": 4, "prompt_tokens_details": None})
    Usage(prompt_tokens=9.0, output_tokens=4.0, cached_tokens=None)
    """
    prompt = number("observe", "usage.prompt_tokens", _field(given, "prompt_tokens"))
    output = number("observe", "usage.completion_tokens", _field(given, "completion_tokens"))
    cached = _field(_field(given, "prompt_tokens_details"), "cached_tokens")
    if cached is not None:
        where = "usage.prompt_tokens_details.cached_tokens"
        cached = number("observe", where, cached, most=prompt, what="tokens of the prompt")
    return Usage(prompt, output, cached)


def _field(of: object, name: str) -> Any:
    return of.get(name) if isinstance(of, Mapping) else getattr(of, name, None)


class Question(NamedTuple):
    """What `OnlineRouter.route` was asked, checked; None where it is for the session to say."""

    new_tokens: float
    prefix_tokens: float | None
    predicted_output_tokens: float
    home: int | None
    quality: Floats
    noise: Floats | None
    now_s: float


def question(
    names: Names,
    usual_quality: Floats,
    usual_output_tokens: float,
    *,
    new_tokens: float,
    prefix_tokens: float | None,
    predicted_output_tokens: float | None,
    home_region: str | None,
    quality: Mapping[str, float] | None,
    noise: ArrayLike | None,
    now: float | datetime | None,
) -> Question:
    """A question, from the arguments of `OnlineRouter.route` and what is usual without them.

    Raises:
      InputError: for a value that is none of its kind, or a model without a quality.
    """

    def tokens(field: str, value: float | None) -> float | None:
        return None if value is None else number("route", field, value)

    predicted = tokens("predicted_output_tokens", predicted_output_tokens)
    qualities = merged("route", usual_quality, quality, names.models)
    if np.isnan(qualities).any():
        missing = ", ".join(name for name, m in names.models.items() if np.isnan(qualities[m]))
        raise input_error("route", "quality", f"none of {missing}", "that of every model")
    return Question(
        new_tokens=max(number("route", "new_tokens", new_tokens), 1.0),
        prefix_tokens=tokens("prefix_tokens", prefix_tokens),
        predicted_output_tokens=usual_output_tokens if predicted is None else predicted,
        home=None
        if home_region is None
        else place_of("route", "home_region", home_region, names.homes),
        quality=qualities,
        noise=None if noise is None else uniform(noise, len(names.parts)),
        now_s=moment("route", "now", now),
    )


def merged(call: str, default: Floats, given: Mapping[str, float] | None, models: Places) -> Floats:
    """Predicted quality of each model, `[M]`: as given, else the default's.

    Raises:
      InputError: for an unknown model, or a quality outside [0, 1].
    """
    if given is None:
        return default
    if not isinstance(given, Mapping):
        raise input_error(call, "quality", shown(given), "numbers by the names of models")
    out = default.copy()
    for name, value in given.items():
        at = place_of(call, "quality", name, models)
        out[at] = number(call, f"quality of {name}", value, most=1.0, what="a share")
    return out


def uniform(given: ArrayLike, size: int) -> Floats:
    """A uniform draw for each deployment, `[D]`.

    Raises:
      InputError: for another shape, or a number outside [0, 1).
    """
    expected = f"{size} numbers in [0, 1)"
    try:
        drawn = np.asarray(given, np.float64)
    except (TypeError, ValueError):
        raise input_error("route", "noise", shown(given), expected) from None
    if drawn.shape != (size,):
        raise input_error("route", "noise", f"shape {drawn.shape}", expected)
    outside = ~((drawn >= 0) & (drawn < 1))
    if outside.any():
        raise input_error("route", "noise", shown(drawn[outside].item(0)), expected)
    return drawn
