"""Policies held against each other session by session, on what a comparison tells of both."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from jaxroute import bootstrap
from jaxroute.study import Study


def gains(study: Study, sessions: pd.DataFrame, pairs: Sequence[tuple[str, str]]) -> pd.DataFrame:
    """What one policy emits less than another, in % of the baseline's carbon.

    `100 sum(C_rival - C_policy) / sum(C_baseline)` with the paired bootstrap 95 % interval
    (`jaxroute.bootstrap.half_width`).

    Args:
      study: the study that was compared.
      sessions: as `jaxroute.stats.tables` has them, of the policies and the baseline.
      pairs: of a policy and its rival.

    Returns:
      One row a dataset, retention and pair: `policy`, `rival`, `gain_pct`, `gain_lo_pct`,
      `gain_hi_pct`.
    """
    rows: list[dict[str, Any]] = []
    for dataset in study.datasets:
        of_dataset = sessions[sessions["dataset"] == dataset.label]
        for retention in study.retentions:
            own = of_dataset[of_dataset["retention"] == retention]
            grams = {name: each.to_numpy() for name, each in own.groupby("policy")["carbon_g"]}
            gained = np.stack([grams[rival] - grams[policy] for policy, rival in pairs])
            base = grams[study.config.baseline]
            sums = bootstrap.sums(gained, base, dataset.hashes, study.config.seed)[0]
            half = 100 * bootstrap.half_width(sums)
            gain = 100 * gained.sum(-1) / base.sum()
            rows += [
                {
                    "dataset": dataset.label,
                    "retention": retention,
                    "policy": policy,
                    "rival": rival,
                    "gain_pct": gain[n],
                    "gain_lo_pct": gain[n] - half[n],
                    "gain_hi_pct": gain[n] + half[n],
                }
                for n, (policy, rival) in enumerate(pairs)
            ]
    return pd.DataFrame(rows)
