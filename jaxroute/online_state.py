"""What a live router believes of a session, and how a turn changes it.

Pure functions: a state that goes in is never written to.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxroute.reference import NONE

Floats = NDArray[np.float64]


class State(NamedTuple):
    """What a session carries from turn to turn.

    Attributes:
      resident_tokens: `[D]`, as of `arrival_s`.
      last_used_s: `[D]`, epoch seconds at which each finished its last turn, 0 for never.
      last, before: the last deployment and the one before the last move, -1 for none.
      arrival_s: of the last turn.
      prompt_tokens, output_tokens: of the last turn; 0 before the first.
      turns, moves, returns: so far.
      home: row of the client's round trips, -1 where it is not known.
      awaited: the deployment that the last turn was sent to (-1: none) and when it should finish;
        None as soon as it is known what served it.
    """

    resident_tokens: Floats
    last_used_s: Floats
    last: int = NONE
    before: int = NONE
    arrival_s: float = 0.0
    prompt_tokens: float = 0.0
    output_tokens: float = 0.0
    turns: int = 0
    moves: int = 0
    returns: int = 0
    home: int = -1
    awaited: tuple[int, float] | None = None

    @property
    def context_tokens(self) -> float:
        """Tokens with KV that the last turn left: its last generated token has none."""
        return self.prompt_tokens + max(self.output_tokens - 1, 0)


def opening(deployments: int) -> State:
    """The state of a session before its first turn, on D deployments."""
    return State(np.zeros(deployments), np.zeros(deployments))


def served(
    state: State, deployment: int, prompt_tokens: float, output_tokens: float, finished_s: float
) -> State:
    """The session after its turn under way was served, by -1 for none of the fleet."""
    known = state._replace(prompt_tokens=prompt_tokens, output_tokens=output_tokens, awaited=None)
    if deployment == NONE:
        return known
    resident, last_used_s = state.resident_tokens.copy(), state.last_used_s.copy()
    resident[deployment] = known.context_tokens
    last_used_s[deployment] = max(finished_s, state.arrival_s)
    moved = state.last not in (NONE, deployment)
    return known._replace(
        resident_tokens=resident,
        last_used_s=last_used_s,
        last=deployment,
        before=state.last if moved else state.before,
        moves=state.moves + moved,
        returns=state.returns + (moved and deployment == state.before),
    )


def settled(state: State) -> State:
    """The session with its turn under way, if there is one, taken to have gone as expected."""
    if state.awaited is None:
        return state
    deployment, finish_s = state.awaited
    return served(state, deployment, state.prompt_tokens, state.output_tokens, finish_s)
