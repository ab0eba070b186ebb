"""What tables tell of load: columns of a summary, rows of a day, what policies swing between."""

from typing import Any

import jax
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from jaxroute import load_model
from jaxroute.footprint import J_PER_KWH
from jaxroute.lifetime import BIN_S
from jaxroute.load_model import Settled
from jaxroute.loading import Loading
from jaxroute.world import TIME_BINS

Floats = NDArray[np.float64]


def columns(loading: Loading) -> dict[str, NDArray]:
    """What a summary tells of load, `[N, P]` each.

    `carbon_idle_g` (`idle_g`), beside the carbon of turns and not in it; `mean_wait_s` over served
    turns; `hit_ratio_pct`, of prompt tokens that could have been cached those that were;
    `mean_batch` over decoded tokens; `peak_utilisation` of the fullest deployment in its fullest
    quarter of an hour, 1 being all that it can serve; `overflow_pct`, of the turns those beyond
    that; `rounds`, and `settled`, 1 where the last of them changed the load by less than the
    tolerance, else 0.
    """
    settled = loading.settled
    loads, replica = settled.loads, settled.conditions.replica
    turns, busy = np.float64(loads.turns), np.float64(replica.utilisation)
    generated = np.float64(loads.generated)
    own = replica.batch if loading.by_batch else loading.capacity.slots
    batch = np.broadcast_to(own, generated.shape)
    over = turns * np.where(busy > 1, 1 - 1 / np.maximum(busy, 1), 0)

    def share(part: Any, whole: Any) -> Floats:
        with np.errstate(invalid="ignore", divide="ignore"):
            return part.sum(axis=(-2, -1)) / whole.sum(axis=(-2, -1))

    return {
        "carbon_idle_g": idle_g(loading),
        "mean_wait_s": share(turns * replica.wait_s, turns),
        "hit_ratio_pct": 100 * share(np.float64(loads.cached), np.float64(loads.prefix)),
        "mean_batch": share(batch * generated, generated),
        "peak_utilisation": busy.max(axis=(-2, -1)),
        "overflow_pct": 100 * share(over, turns),
        "rounds": np.asarray(settled.rounds),
        "settled": (np.asarray(settled.change) < load_model.TOLERANCE).astype(int),
    }


def idle_g(loading: Loading) -> Floats:
    """gCO2e of replicas' idle power that falls to the sample, `[N, P]`.

    Idle is what is provisioned and neither prefills nor decodes, `900 replicas - busy` seconds of
    each quarter of an hour; a day's is shared among its sessions, of which the sample is a part.
    """
    working_s = busy_s(loading.settled, loading.copies[:, None, None, None])
    provisioned_s = BIN_S * np.asarray(loading.capacity.replicas, np.float64)
    power_w = np.asarray(loading.capacity.idle_w, np.float64)
    with np.errstate(invalid="ignore"):  # of an endless fleet, whose idle power is left out
        idle_j = np.where(power_w > 0, np.maximum(provisioned_s - working_s, 0) * power_w, 0)
    day_g = (idle_j * loading.kappa_g_per_kwh).sum(axis=(-2, -1)) / J_PER_KWH
    return day_g / loading.copies[:, None]


def busy_s(settled: Settled, copies: Floats | float) -> Floats:
    """Replica seconds of a day that prefill or decode, `[..., TIME_BINS, D]` as its leaves.

    `copies`, which broadcasts, is of how many sessions a day each of the sample stands for.
    """
    loads, replica = settled.loads, settled.conditions.replica
    decode_s = replica.dec_s * np.float64(loads.generated) + replica.dec_s_ctx * loads.attended
    return np.asarray(copies * (loads.prefill_s + decode_s / replica.sharers), np.float64)


def by_bin(
    loading: Loading, deployments: pd.DataFrame, level: int, setting: int
) -> dict[str, NDArray]:
    """Columns of one setting's load, a row for each time bin and deployment that serves turns.

    `time_utc`, when the quarter of an hour begins; the deployment and its `replicas`; `turns` of
    the sample behind the row, few of which tell little, not whole where loads did not settle;
    `turns_per_s` that these stand for; `utilisation`, of what full batches could serve;
    `busy_pct`, of the time that something is prefilled or decoded, the rest being idle;
    `wait_s`, `batch`, `cache_ttl_s`, how long caches live unused.
    """
    there = jax.tree.map(lambda x: x[level, setting], loading.settled)
    turns, replica = there.loads.turns, there.conditions.replica
    replicas = np.asarray(loading.capacity.replicas, np.float64)
    at, d = np.nonzero(turns > 0)
    times = [f"{15 * n // 60:02}:{15 * n % 60:02}" for n in range(TIME_BINS)]
    return {
        "time_utc": np.array(times, object)[at],
        **{name: deployments[name].to_numpy(object)[d] for name in ("model", "gpu", "region")},
        "replicas": replicas[d],
        "turns": np.round(turns[at, d].astype(np.float64), 6),
        "turns_per_s": loading.copies[level] * turns[at, d] / BIN_S,
        "utilisation": replica.utilisation[at, d],
        "busy_pct": 100 * busy_s(there, loading.copies[level])[at, d] / (BIN_S * replicas[d]),
        "wait_s": replica.wait_s[at, d],
        "batch": replica.batch[at, d],
        "cache_ttl_s": there.conditions.ttl_s[at, d],
    }


def swings(loading: Loading, deployments: pd.DataFrame, level: int, setting: int) -> pd.DataFrame:
    """The two states that a setting swings between, a row a deployment; none if it settled.

    Shares of the turns in the last replay and in the one before; `moved_pct`, the turns that were
    served elsewhere in their quarter of an hour; `change_pct` and `swing_pct` of the load
    (`jaxroute.load_model.Settled`).
    """
    there = jax.tree.map(lambda x: x[level, setting], loading.settled)
    if there.change < load_model.TOLERANCE:
        return pd.DataFrame()
    last, before = (
        100 * np.float64(each.turns) / max(each.turns.sum(), 1)
        for each in (there.response, there.before)
    )
    table = deployments[["model", "gpu", "region"]].assign(
        share_before_pct=before.sum(axis=0),
        share_pct=last.sum(axis=0),
        moved_pct=np.abs(last - before).sum() / 2,
        change_pct=100 * float(there.change),
        swing_pct=100 * float(there.swing),
    )
    return table[(last.sum(axis=0) > 0) | (before.sum(axis=0) > 0)]
