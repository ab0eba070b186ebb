"""Optuna searches the gate of `carbon_router` for less carbon at more quality.

Run with `pip install "jaxroute[optuna]"`. The trials stay in `found.study`, which is Optuna's own:
with `storage="sqlite:///trials.db"` a second call goes on with them, and
`optuna.visualization.plot_pareto_front(found.study)` draws them.
"""

import dataclasses

import numpy as np

import jaxroute as jr
from jaxroute.split import some

study = jr.load_study()
(sharegpt,) = study.datasets
study = dataclasses.replace(
    study,
    datasets=(some(sharegpt, np.arange(sharegpt.count) % 10 == 0),),  # a tenth, to be quick
    retentions={"drop": study.retentions["drop"]},
)
found = jr.search(
    study,
    {
        "gate_strength": {"low": 0.05, "high": 5.0, "log": True},
        "gate_bias": {"low": -4.0, "high": 4.0},
        "quality_price_g": {"low": 1e-3, "high": 1.0, "log": True},
    },
    objectives=("carbon_g", "mean_quality"),
    trials=256,
)
columns = ["part", "trial", "carbon_g", "mean_quality", "saving_pct", "saving_lo_pct"]
scores = found.scores.sort_values(["part", "carbon_g"])[[*columns, "saving_hi_pct"]]
print(f"{len(found.best)} of {len(found.trials)} trials are beaten by none:")
print(scores.groupby("part").head(5).to_string(index=False, float_format="{:.3f}".format))
cheapest = found.best.loc[found.best["carbon_g"].idxmin(), "trial"]
print(f"[policy.searched]\n{found.policies[cheapest]}")
