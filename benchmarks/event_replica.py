"""One replica: a queue, batch slots that decode as a fluid, and room for KV with LRU eviction.

With n sequences of C tokens of context together, m steps take `m (base_s(n) + c (C + n m/2))`
seconds, c the seconds of a token of context in a step. Every sequence gains one token a step, so
one counter of steps serves them all: who joins at counter x leaves at x + v. Likewise what a
sequence pays is the difference of sums kept for the whole batch, and an event costs O(log n).
"""

import math
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any, NamedTuple

from jaxroute.reference import Fleet, blocks, prefill

REMEMBERED_S = 3600.0
"""How long the age at an eviction is told to routers."""


class Sums(NamedTuple):
    """Over the steps of a replica since its batch was last empty, each as of one sequence."""

    steps: float = 0.0
    base_j: float = 0.0
    share_s: float = 0.0
    sequences: float = 0.0


@dataclass(slots=True, eq=False)
class Entry:
    """What a replica holds of one session.

    Attributes:
      replica: that holds it.
      tokens: in its room now; in full from admission on.
      pins: turns of the session that are being served, which keep it from eviction.
      coming: turns of the session that wait there.
      promised_tokens: that the last of these will leave.
      last_used_s: when a last token was generated.
    """

    replica: "Replica"
    tokens: float = 0.0
    pins: int = 0
    coming: int = 0
    promised_tokens: float = 0.0
    last_used_s: float = -math.inf

    @property
    def found_tokens(self) -> float:
        """What a turn that came here would find once it is admitted, without further evictions."""
        return self.promised_tokens if self.coming else self.tokens

    def idle_s(self, now_s: float) -> float:
        """Time since it was last in use."""
        return 0.0 if self.pins or self.coming else now_s - self.last_used_s


@dataclass(slots=True, eq=False)
class Turn:
    """A turn on its way; `joined` is the replica's `Sums` when its decoding began."""

    number: int
    entry: Entry
    arrival_s: float
    prefix_tokens: float
    prompt_tokens: float
    generated_tokens: float  # in steps: all of the output but the first token
    cached_tokens: float = 0.0
    start_s: float = math.nan
    prefill_s: float = 0.0
    prefilled_s: float = math.nan
    joined: Sums = Sums()

    @property
    def context_tokens(self) -> float:
        """Tokens whose KV it leaves behind."""
        return self.prompt_tokens + self.generated_tokens


class Machine(NamedTuple):
    """What the replicas of one deployment have in common.

    Attributes:
      deployment: its index.
      fleet: the profile of its prefill.
      slots: sequences at once.
      room_tokens: of KV.
      block_tokens: by which KV is evicted and shared.
      step_s, token_j: by the number of sequences, s of a step and J of one of its tokens, both at
        context 0.
      ctx_s: s of a step for each token of context.
    """

    deployment: int
    fleet: Fleet
    slots: int
    room_tokens: float
    block_tokens: float
    step_s: list[float]
    token_j: list[float]
    ctx_s: float


class Observers(NamedTuple):
    """Who is told what happens, each with the time last.

    Attributes:
      started: a turn's prefill began.
      finished: a turn is done; with its own `Sums`.
      evicted: a replica, tokens that an entry lost, and how long it had been unused.
      switched: a replica turned from idle to busy or back; when it did so before, and which it was.
    """

    started: Callable[[Turn, float], Any]
    finished: Callable[[Turn, Sums, float], Any]
    evicted: Callable[["Replica", float, float, float], Any]
    switched: Callable[["Replica", bool, float, float], Any]


@dataclass(slots=True, eq=False)
class Replica:
    """A replica and its next event, at `next_s`: the end of a prefill, or of the next sequence.

    Attributes:
      machine, number: what it is, and its index in the fleet.
      tell: who is told.
      since_s: since when it has been busy, or idle.
      waiting, ready: turns without a slot, and admitted ones before their prefill, in order.
      prefilling: the turn that has the replica to itself.
      decoding: heap of the counter at which each sequence ends, its number and its turn.
      context_tokens: of the sequences that decode.
      clock_s: up to when decoding is accounted for, in `sums`.
      admitted: slots in use.
      pinned_tokens, kept_tokens: that must stay, and that may be evicted.
      unused: entries that may be evicted, least recently used first.
      evicted: when an entry last lost blocks, and its age then.
    """

    machine: Machine
    number: int
    tell: Observers
    since_s: float
    busy: bool = False
    next_s: float = math.inf
    waiting: deque[Turn] = field(default_factory=deque)
    ready: deque[Turn] = field(default_factory=deque)
    prefilling: Turn | None = None
    decoding: list[tuple[float, int, Turn]] = field(default_factory=list)
    context_tokens: float = 0.0
    clock_s: float = -math.inf
    sums: Sums = Sums()
    admitted: int = 0
    pinned_tokens: float = 0.0
    kept_tokens: float = 0.0
    unused: OrderedDict[Entry, None] = field(default_factory=OrderedDict)
    evicted: tuple[float, float] = (-math.inf, math.inf)

    def arrive(self, turn: Turn, now_s: float) -> None:
        """Puts a turn last in the queue."""
        self.waiting.append(turn)
        turn.entry.coming += 1
        turn.entry.promised_tokens = turn.context_tokens
        self._proceed(now_s)

    def happen(self) -> None:
        """The event at `next_s`."""
        now_s = self.next_s
        if self.prefilling is not None:
            turn, self.prefilling, self.clock_s = self.prefilling, None, now_s
            turn.prefilled_s, turn.joined = now_s, self.sums
            if turn.generated_tokens:
                self.context_tokens += turn.prompt_tokens
                end = self.sums.steps + turn.generated_tokens
                heappush(self.decoding, (end, turn.number, turn))
            else:
                self._finish(turn, now_s)
        else:
            steps = self._steps_left()
            self._step(steps, self._seconds(steps), now_s)
            _, _, turn = heappop(self.decoding)
            self.context_tokens -= turn.context_tokens
            self._finish(turn, now_s)
        self._proceed(now_s)

    def ttl_s(self, now_s: float) -> float:
        """Age of the entry that was last evicted from, infinite if that is over an hour ago."""
        when_s, age_s = self.evicted
        return age_s if now_s - when_s <= REMEMBERED_S else math.inf

    def trim(self, entry: Entry, tokens: float) -> None:
        """Lets go of what an entry holds beyond the prefix that its session still shares."""
        if entry.tokens > tokens and not entry.pins:
            self.kept_tokens -= entry.tokens - tokens
            entry.tokens = tokens

    def _proceed(self, now_s: float) -> None:
        """Admits whom it can, and sets about the next event."""
        while self.waiting and self.admitted < self.machine.slots and self._has_room():
            self._admit(self.waiting.popleft(), now_s)
        if self.prefilling is None:
            if self.ready:
                self._decode_until(now_s)
                turn = self.prefilling = self.ready.popleft()
                span = turn.cached_tokens, turn.prompt_tokens
                turn.start_s, turn.prefill_s = now_s, prefill(self.machine.fleet, *span)[1]
                self.next_s = now_s + turn.prefill_s
                self.tell.started(turn, now_s)
            elif self.decoding:
                self.next_s = self.clock_s + self._seconds(self._steps_left())
            else:
                self.next_s, self.sums, self.context_tokens = math.inf, Sums(), 0.0
        busy = self.next_s < math.inf
        if busy != self.busy:
            self.tell.switched(self, self.busy, self.since_s, now_s)
            self.busy, self.since_s = busy, now_s

    def _steps_left(self) -> float:
        """Until the next sequence ends."""
        return max(0.0, self.decoding[0][0] - self.sums.steps)

    def _seconds(self, steps: float) -> float:
        n, m = len(self.decoding), self.machine
        return steps * (m.step_s[n] + m.ctx_s * (self.context_tokens + n * steps / 2))

    def _decode_until(self, now_s: float) -> None:
        """Decodes up to now: the positive root of the quadratic in the steps."""
        if self.decoding:
            n, m, span_s = len(self.decoding), self.machine, now_s - self.clock_s
            base_s = m.step_s[n] + m.ctx_s * self.context_tokens
            root_s = math.sqrt(base_s * base_s + 2 * m.ctx_s * n * span_s)
            self._step(2 * span_s / (base_s + root_s), span_s, now_s)

    def _step(self, steps: float, span_s: float, now_s: float) -> None:
        n, was = len(self.decoding), self.sums
        self.sums = Sums(
            was.steps + steps,
            was.base_j + steps * self.machine.token_j[n],
            was.share_s + span_s / n,
            was.sequences + steps * n,
        )
        self.context_tokens += n * steps
        self.clock_s = now_s

    def _has_room(self) -> bool:
        """For the next turn; one larger than the whole room goes in when nothing else is pinned."""
        turn = self.waiting[0]
        own = turn.entry.tokens if turn.entry.pins else 0.0
        more = max(0.0, turn.context_tokens - own)
        return not self.pinned_tokens or self.pinned_tokens + more <= self.machine.room_tokens

    def _admit(self, turn: Turn, now_s: float) -> None:
        """Gives a turn a slot and its room; turns of a session that overlap share the larger."""
        entry = turn.entry
        usable = min(entry.tokens, turn.prefix_tokens, turn.prompt_tokens - 1)
        turn.cached_tokens = float(blocks(usable, self.machine.block_tokens))
        if entry.pins:
            self.pinned_tokens -= entry.tokens
            entry.tokens = max(entry.tokens, turn.context_tokens)
        else:
            self.unused.pop(entry, None)
            self.kept_tokens -= entry.tokens
            entry.tokens = turn.context_tokens
        self.pinned_tokens += entry.tokens
        entry.pins += 1
        entry.coming -= 1
        self.admitted += 1
        self.ready.append(turn)
        self._evict(now_s)

    def _finish(self, turn: Turn, now_s: float) -> None:
        entry = turn.entry
        own = Sums(*(now - then for now, then in zip(self.sums, turn.joined, strict=True)))
        self.admitted -= 1
        entry.pins -= 1
        entry.last_used_s = now_s
        if not entry.pins:
            self.pinned_tokens -= entry.tokens
            self.kept_tokens += entry.tokens
            self.unused[entry] = None
            self._evict(now_s)
        self.tell.finished(turn, own, now_s)

    def _evict(self, now_s: float) -> None:
        """Takes blocks from the tails of the least recently used until all fits."""
        excess = self.pinned_tokens + self.kept_tokens - self.machine.room_tokens
        while excess > 0 and self.unused:
            entry = next(iter(self.unused))
            size = self.machine.block_tokens
            lost = min(entry.tokens, size * math.ceil(excess / size))
            entry.tokens -= lost
            self.kept_tokens -= lost
            excess -= lost
            if not entry.tokens:
                del self.unused[entry]
            if lost:
                self.evicted = now_s, now_s - entry.last_used_s
                self.tell.evicted(self, lost, now_s - entry.last_used_s, now_s)
