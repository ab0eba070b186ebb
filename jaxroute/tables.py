"""The tables of a turn, looked up by deployment for every setting at once."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxroute.cold import Cold, prefill_g, prefilled, wait_g
from jaxroute.moments import Rates, Site, Uses
from jaxroute.policies import RouterParams


class Tables(NamedTuple):
    """A turn's tables, `[C D]` and `[C D G]`, looked up by deployment for every setting.

    Attributes:
      by, site: leaves `[C D]`.
      cold: its leaves by deployment `[C D G]`.
      group: `[1, P]`, of each setting, as a float.
      groups: G.
      one: 1, but XLA does not know it.
    """

    by: Rates
    site: Site
    cold: Cold
    group: jax.Array
    groups: int
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
        rate = self.rates(deployment)
        if self.cold.u_g is None:
            u_g, x_g = prefill_g(params, rate, self.sites(deployment).g_per_kwh)
        else:
            u_g, x_g = self.scores("u_g", deployment), self.scores("x_g", deployment)
        price_g = u_g * u + x_g * x
        return price_g + wait_g(params, rate, u, x, floored=floored) if uses.latency else price_g


def _at(table: jax.Array, deployment: jax.Array) -> jax.Array:
    index = deployment.astype(jnp.int32)
    return table.at[index].get(mode="promise_in_bounds", wrap_negative_indices=False)
