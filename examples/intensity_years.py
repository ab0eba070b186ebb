"""Many years of grid intensity in one call: `vmap` over worlds.

    python examples/intensity_years.py

`evaluate` composes with `vmap` over anything in a `World`. Here a stack of made-up years: the
bundled typical days as they are, on a grid whose swing over a day is larger or smaller, and with
every region at its own yearly mean, so that the hour no longer matters.
"""

import jax
import jax.numpy as jnp

import jaxroute as jr


def years(intensity_g_per_kwh: jax.Array, swings: jax.Array) -> jax.Array:
    """The hours `[H, R]` with their distance from each region's mean scaled, `[Y, H, R]`."""
    mean = intensity_g_per_kwh.mean(axis=0, keepdims=True)
    scaled = mean[None] + swings[:, None, None] * (intensity_g_per_kwh - mean)[None]
    return jnp.maximum(scaled, 0)


def main() -> None:
    study = jr.load_study()
    sessions = study.sessions
    world = study.world.replace(retention=study.retentions["drop"])
    swings = jnp.array([0.0, 0.5, 1.0, 1.5])
    stack = years(jnp.asarray(world.intensity_g_per_kwh), swings)

    # One compiled program, vmapped twice: over the years and, inside, over two routers.
    routers = jr.stack(jr.presets[name] for name in ("carbon_router", "fair_carbon"))

    @jax.jit
    def carbon_g(routers, stack):
        def one(router, year):
            changed = world.replace(intensity_g_per_kwh=year)
            return jr.evaluate(router, sessions, changed).carbon_g.sum()

        return jax.vmap(lambda year: jax.vmap(lambda router: one(router, year))(routers))(stack)

    print("swing   carbon_router g   fair_carbon g   saving %")
    for swing, (router, fair) in zip(swings, carbon_g(routers, stack), strict=True):
        saving = 100 * (1 - router / fair)
        print(f"{swing:5.1f} {router:17.1f} {fair:15.1f} {saving:10.1f}")


if __name__ == "__main__":
    main()
