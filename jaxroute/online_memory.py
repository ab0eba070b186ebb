"""The sessions of a live router, bounded in number and in age."""

from collections import OrderedDict
from collections.abc import Mapping

from jaxroute.load.messages import input_error, shown
from jaxroute.online_state import State


class Memory:
    """Sessions by their ids, the least recently routed first.

    >>> import numpy as np
    >>> memory, state = Memory(most=2, expire_after_s=60.0), State(np.zeros(1), np.zeros(1))
    >>> for arrival_s, name in enumerate("abc"):
    ...     memory.keep(name, state._replace(arrival_s=arrival_s))
    >>> list(memory.sessions), memory.find("c", now_s=61.5) is None, list(memory.sessions)
    (['b', 'c'], False, ['c'])

    Args:
      most: sessions at a time; one more puts out the first.
      expire_after_s: since a session's last turn arrived, after which it is forgotten.
    """

    def __init__(self, most: int, expire_after_s: float):
        if isinstance(most, bool) or not (isinstance(most, int) and most >= 1):
            raise input_error("OnlineRouter", "max_sessions", shown(most), "a whole number >= 1")
        if not (isinstance(expire_after_s, int | float) and expire_after_s > 0):
            raise input_error("OnlineRouter", "expire_after_s", shown(expire_after_s), "s > 0")
        self.most, self.expire_after_s = most, expire_after_s
        self.sessions: OrderedDict[str, State] = OrderedDict()

    def find(self, session_id: str, now_s: float) -> State | None:
        """A session's state, if it is remembered at that moment."""
        while self.sessions:
            first = next(iter(self.sessions))
            if now_s - self.sessions[first].arrival_s <= self.expire_after_s:
                break
            del self.sessions[first]
        return self.sessions.get(session_id)

    def keep(self, session_id: str, state: State) -> None:
        """Remembers the state of a session that was just routed."""
        self.sessions[session_id] = state
        self.sessions.move_to_end(session_id)
        if len(self.sessions) > self.most:
            self.sessions.popitem(last=False)

    def replace(self, sessions: Mapping[str, State]) -> None:
        """Remembers these instead, in their order; of too many the last."""
        self.sessions = OrderedDict(list(sessions.items())[-self.most :])
