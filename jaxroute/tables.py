"""The tables of a turn, looked up by deployment for every setting at once."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxroute import distinct
from jaxroute.cold import Cold, prefilled, wait_g
from jaxroute.moments import Rates, Site, Uses
from jaxroute.policies import RouterParams


class Tables(NamedTuple):
    """A turn's tables, `[C D]` and `[C D G]`, looked up by deployment for every setting.

    Attributes:
      by, site: leaves `[C D]`.
      cold: its leaves by deployment `[C D G]`.
      group: `[1, P]`, of each setting, as a float.
      groups: G.
      amounts, limits, usable: where the groups are many, of `jaxroute.distinct`: leaves `[C D]`,
        `[C, P]`, and usable qualities `[C D A]`; else None.
      mask: `[1, P]`, of each setting, as a float; None for one set of masks.
      one: 1, but XLA does not know it.
    """

    by: Rates
    site: Site
    cold: Cold
    group: jax.Array
    groups: int
    amounts: Any
    limits: Any
    usable: Any
    mask: Any
    one: jax.Array

    def held(self, values: jax.Array) -> jax.Array:
        """`values`, computed once.

        XLA's CPU back end repeats what it takes for cheap in every kernel that reads it, but never
        a division.
        """
        return values / self.one

    def rates(self, deployment: jax.Array) -> Rates:
        """The rates at each setting's deployment; those that are not read cost nothing."""
        return jax.tree.map(lambda table: _at(table, deployment), self.by)

    def sites(self, deployment: jax.Array) -> Site:
        """The site at each setting's deployment; what is not read costs nothing."""
        return jax.tree.map(lambda table: _at(table, deployment), self.site)

    def scores(self, name: str, deployment: jax.Array) -> jax.Array:
        """A table of `cold` at each setting's deployment and for its group."""
        at = deployment if self.groups == 1 else deployment * self.groups + self.group
        return _at(getattr(self.cold, name), at)

    def score_g(
        self,
        params: RouterParams,
        uses: Uses,
        deployment: jax.Array,
        cached: jax.Array,
        prompt: jax.Array,
    ) -> jax.Array:
        """J at each setting's deployment less its offset and the price of switching, g."""
        if self.amounts is None:
            base_g = self.scores("base_g", deployment)
            return base_g + self.prefill_price_g(
                params, uses, deployment, cached, prompt, floored=True
            )
        at, place = jax.tree.map(lambda table: _at(table, deployment), self.amounts), deployment
        if self.mask is not None:
            sets = self.usable.shape[0] // self.amounts.decode_g.shape[0]
            place = deployment * sets + self.mask
        usable = _at(self.usable, place)
        return distinct.score_g(params, distinct.served(at, cached, prompt), self.limits, usable)

    def prefill_price_g(
        self,
        params: RouterParams,
        uses: Uses,
        deployment: jax.Array,
        cached: jax.Array,
        upto: jax.Array,
        *,
        floored: bool,
    ) -> jax.Array:
        """What a score charges for a prefill at each setting's deployment, g."""
        u, x = prefilled(cached, upto)
        if self.amounts is None:
            price_g = self.scores("u_g", deployment) * u + self.scores("x_g", deployment) * x
            if not uses.latency:
                return price_g
            return price_g + wait_g(params, self.rates(deployment), u, x, floored=floored)
        at = jax.tree.map(lambda table: _at(table, deployment), self.amounts)
        time_s = at.prefill_s_u * u + at.prefill_s_x * x
        carbon_g = at.prefill_g_u * u + at.prefill_g_x * x
        embodied_g = at.embodied_g_per_s * time_s
        price_g = params.carbon_weight * (carbon_g + params.embodied_weight * embodied_g)
        return price_g + params.latency_price_g_per_s * time_s if uses.latency else price_g


def _at(table: jax.Array, deployment: jax.Array) -> jax.Array:
    index = deployment.astype(jnp.int32)
    return table.at[index].get(mode="promise_in_bounds", wrap_negative_indices=False)
