"""Which settings no other one beats in every respect."""

import numpy as np
import pandas as pd
from numpy.typing import NDArray

OBJECTIVES = ("carbon_g", "mean_quality", "mean_e2e_s")
"""What the front is of, unless a sweep says otherwise."""

MORE_IS_BETTER = ("mean_quality", "turns", "saving_pct", "saving_lo_pct", "saving_hi_pct")
"""Columns to be maximised; all others are minimised."""


def front(costs: NDArray[np.floating]) -> NDArray[np.bool_]:
    """Whether each of P rows is dominated by none: no other is as good in all and better in one.

    Rows that are alike are on the front together; a row with NaN is not on it.

    Args:
      costs: `[P, K]`, all of them the better the lower.

    >>> front(np.array([[1.0, 2.0], [2.0, 1.0], [2.0, 2.0], [1.0, np.nan]])).tolist()
    [True, True, False, False]
    """
    known = ~np.isnan(costs).any(axis=1)
    distinct, which = np.unique(costs[known], axis=0, return_inverse=True)
    kept = np.empty((0, costs.shape[1]))
    best = np.zeros(len(distinct), bool)
    for n, row in enumerate(distinct):  # in order, so that no later row beats an earlier one
        best[n] = not (kept <= row).all(axis=1).any()
        if best[n]:
            kept = np.concatenate([kept, row[None]])
    found = np.zeros(len(costs), bool)
    found[known] = best[which.ravel()]
    return found


def costs(table: pd.DataFrame, objectives: tuple[str, ...]) -> NDArray[np.float64]:
    """Objectives of P rows as `front` takes them, `[P, K]`."""
    signs = np.array([-1.0 if name in MORE_IS_BETTER else 1.0 for name in objectives])
    return table[list(objectives)].to_numpy(np.float64) * signs


def flags(table: pd.DataFrame, objectives: tuple[str, ...]) -> NDArray[np.bool_]:
    """Whether each row is on the front of its dataset and retention."""
    found = costs(table, objectives)
    out = np.zeros(len(table), bool)
    for rows in table.groupby(["dataset", "retention"], sort=False).indices.values():
        out[rows] = front(found[rows])
    return out
