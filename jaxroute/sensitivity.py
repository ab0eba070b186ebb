"""How much of the carbon hangs on each coefficient: elasticities, by reverse-mode gradients."""

import dataclasses

import jax
import numpy as np
import pandas as pd

from jaxroute import comparison, simulate
from jaxroute.numerics import stack
from jaxroute.policies import RouterParams
from jaxroute.replays import by_rule
from jaxroute.sessions import Sessions
from jaxroute.study import Study
from jaxroute.world import Array, Retention, World


def _one() -> Array:
    return dataclasses.field(default_factory=lambda: np.float32(1))  # type: ignore[return-value]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Scales:
    """Factors on groups of a world's coefficients, `[]` each; 1 leaves them as they are.

    Attributes:
      pue: on the overhead of every data centre.
      intensity: on the grid intensity of every hour and region.
      prefill_energy: on `pre_j` and `pre_j_ctx`.
      decode_energy: on `dec_j` and `dec_j_ctx`.
      host_power: on `host_w`.
      prefill_time: on `pre_s` and `pre_s_ctx`.
      decode_time: on `dec_s` and `dec_s_ctx`.
      embodied_rate: on `embodied_g_per_s`.
    """

    pue: Array = _one()
    intensity: Array = _one()
    prefill_energy: Array = _one()
    decode_energy: Array = _one()
    host_power: Array = _one()
    prefill_time: Array = _one()
    decode_time: Array = _one()
    embodied_rate: Array = _one()


FACTORS = tuple(field.name for field in dataclasses.fields(Scales))


def scaled(world: World, by: Scales) -> World:
    """The world with its coefficients multiplied.

    >>> import jaxroute as jr
    >>> world = jr.load_study().world
    >>> twice = scaled(world, Scales(pue=np.float32(2)))
    >>> bool((twice.pue == 2 * world.pue).all())
    True
    """
    fleet = world.fleet
    return world.replace(
        pue=world.pue * by.pue,
        intensity_g_per_kwh=world.intensity_g_per_kwh * by.intensity,
        fleet=dataclasses.replace(
            fleet,
            pre_j=fleet.pre_j * by.prefill_energy,
            pre_j_ctx=fleet.pre_j_ctx * by.prefill_energy,
            dec_j=fleet.dec_j * by.decode_energy,
            dec_j_ctx=fleet.dec_j_ctx * by.decode_energy,
            host_w=fleet.host_w * by.host_power,
            pre_s=fleet.pre_s * by.prefill_time,
            pre_s_ctx=fleet.pre_s_ctx * by.prefill_time,
            dec_s=fleet.dec_s * by.decode_time,
            dec_s_ctx=fleet.dec_s_ctx * by.decode_time,
            embodied_g_per_s=fleet.embodied_g_per_s * by.embodied_rate,
        ),
    )


@jax.jit
def _carbon_and_slopes(
    params: RouterParams, sessions: Sessions, world: World, retention: Retention
) -> tuple[jax.Array, Scales]:
    """Total carbon (g) of P settings and its gradient at scales of 1, `[P]` leaves."""

    def carbon_g(scales: Scales, setting: RouterParams) -> jax.Array:
        changed = scaled(world.replace(retention=retention), scales)
        return simulate.evaluate(setting, sessions, changed).carbon_g.sum()

    ones = jax.tree.map(lambda x: x.astype(world.pue.dtype), Scales())
    return jax.vmap(jax.value_and_grad(carbon_g), in_axes=(None, 0))(ones, params)


def sensitivity(study: Study) -> pd.DataFrame:
    """Elasticities of each policy's carbon: `d log(carbon) / d log(x)` at fixed decisions.

    By how many percent the carbon changes if `x` changes by one percent everywhere and every turn
    is served where it is served now: what a policy would then decide otherwise is not in it, since
    the least score is a step whose gradient is zero. Carbon is a sum of products of these factors,
    so that the elasticities are shares of the bill, and

    - `pue = intensity = prefill_energy + decode_energy + host_power`, the operational share;
    - `pue + embodied_rate = 1`;
    - `prefill_time + decode_time = host_power + embodied_rate`, the share paid by the second.

    Args:
      study: its datasets, retentions and policies.

    Returns:
      One row for each dataset, retention and policy: `carbon_g`, and an elasticity for each factor
      of `Scales`; NaN where nothing was emitted.

    >>> import jaxroute as jr
    >>> row = jr.sensitivity(jr.load_study().with_policies(["carbon_router"])).iloc[0]
    >>> bool(abs(row.pue - (row.prefill_energy + row.decode_energy + row.host_power)) < 1e-5)
    True
    """
    tables = []
    for data in study.datasets:
        settings = list(comparison.resolved(study, data).values())
        stacked = [(rows, stack(settings[n] for n in rows)) for rows in by_rule(settings)]
        for label, retention in study.retentions.items():
            sums = np.zeros((1 + len(FACTORS), len(study.policies)))
            for _, sessions in data.blocks():
                for rows, params in stacked:
                    found = _carbon_and_slopes(params, sessions, study.world, retention)
                    sums[:, rows] += np.stack(jax.tree.leaves(found)).astype(np.float64)
            with np.errstate(invalid="ignore"):
                shares = sums[1:] / sums[0]
            index = {"dataset": data.label, "retention": label, "policy": list(study.policies)}
            columns = {"carbon_g": sums[0]} | dict(zip(FACTORS, shares, strict=True))
            tables.append(pd.DataFrame(index | columns))
    return pd.concat(tables, ignore_index=True)
