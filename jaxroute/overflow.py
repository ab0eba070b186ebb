"""Prompts longer than any context: what is left of them when they are cut."""

import numpy as np
from numpy.typing import NDArray


def truncate(
    prefix: NDArray[np.int64],
    new: NDArray[np.int64],
    predicted: NDArray[np.float64],
    first: NDArray[np.bool_],
    limit: float,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    """Cuts the prompts that overflow the longest context, oldest tokens first.

    A prompt of L > limit - o tokens keeps its last `floor(limit - o)`, all of them new: what is
    cached begins where the conversation does, and the cut prompt no longer. Nor does the next turn
    find a prefix, as the cache then holds a cut prompt. Where not one token fits, the turn stays
    as it is, unserved.

    Args:
      prefix, new: `[N]`, tokens of each prompt, which are kept and which are new.
      predicted: `[N]`, output tokens o, for which room is left.
      first: `[N]`, whether a turn opens its session.
      limit: tokens of the longest context that some deployment holds.

    Returns:
      `prefix` and `new` afterwards, and which turns were cut.

    >>> columns = np.array([0, 60, 90]), np.array([50, 20, 20]), np.full(3, 30.0)
    >>> [x.tolist() for x in truncate(*columns, np.array([True, False, False]), 100.0)]
    [[0, 0, 0], [50, 70, 70], [False, True, True]]
    """
    prompt, room = prefix + new, np.floor(limit - predicted).astype(np.int64)
    cut = (prompt > room) & (room >= 1)
    follows = np.append(False, cut[:-1]) & ~first
    lost = cut | follows
    return np.where(lost, 0, prefix), np.where(lost, np.where(cut, room, prompt), new), cut
