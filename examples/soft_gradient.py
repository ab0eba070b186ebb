"""Which way to turn the gate: `jax.grad` through the relaxed replay.

    python examples/soft_gradient.py

`evaluate` holds decisions fixed under a gradient. `soft_carbon` replays with soft choices, so that
the slope also tells what other decisions would save. Here a few steps by hand along the slope of
the gate's strength and bias; `jaxroute tune` does it for many numbers and starts at once.
"""

import jax
import jax.numpy as jnp
import numpy as np

import jaxroute as jr
from jaxroute.split import some

STEPS, RATE, TEMPERATURE = 8, 0.5, 0.05


def main() -> None:
    study = jr.load_study()
    dataset = study.datasets[0]
    long = some(dataset, (dataset.lengths > 10) & (np.arange(dataset.count) % 4 == 0))
    world = study.world.replace(retention=study.retentions["drop"])
    base = jr.presets["carbon_router"]

    def carbon_g(numbers: jax.Array) -> jax.Array:
        params = base.replace(gate_strength=jnp.exp(numbers[0]), gate_bias=numbers[1])
        return jr.soft_carbon(params, long.sessions, world, TEMPERATURE)

    slope = jax.jit(jax.value_and_grad(carbon_g))
    numbers = jnp.array([0.0, float(base.gate_bias)])
    print("step   strength    bias   soft carbon g")
    for step in range(STEPS):
        grams, uphill = slope(numbers)
        print(f"{step:4d} {jnp.exp(numbers[0]):10.3f} {numbers[1]:7.3f} {grams:15.2f}")
        numbers -= RATE * uphill / jnp.linalg.norm(uphill)

    tuned = base.replace(gate_strength=jnp.exp(numbers[0]), gate_bias=numbers[1])
    for name, params in (("carbon_router", base), ("after the steps", tuned)):
        hard = jr.evaluate(params, long.sessions, world).carbon_g.sum()
        print(f"{name}: {hard:.2f} g with hard choices")


if __name__ == "__main__":
    main()
