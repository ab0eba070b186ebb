"""A routing rule of one's own, compared with carbon_router.

    python examples/custom_policy.py

The rule: stay where the conversation is for `patience` turns, then go where it is cheapest.
"""

import dataclasses

import jax
import jax.numpy as jnp

import jaxroute as jr
from jaxroute.numerics import first_min
from jaxroute.policies import number

# A policy is two pure functions. `init` opens a session with any pytree of arrays ...


def init(params):
    return jnp.zeros_like(params.patience)


# ... and `decide` serves one turn: it sees an `Observation` and returns a deployment and the state.
# The deployment has to be one of `obs.feasible`; `obs.score_g` is infinite where it is not.


def decide(params, turns_here, obs):
    here = jnp.maximum(obs.last, 0)
    stays = (obs.last >= 0) & obs.feasible[here] & (turns_here < params.patience)
    choice = jnp.where(stays, here, first_min(obs.score_g))
    return choice, jnp.where(stays, turns_here + 1, 1)


# Its parameters are the router's (prices, filters, beliefs) and its own; the class names the rule.


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class PatientParams(jr.RouterParams):
    policy = jr.Policy(init, decide)
    patience: jax.Array = number(2)


def main() -> None:
    study = jr.load_study().with_policies(["carbon_router", "fair_carbon"])
    patient = PatientParams().replace(quality_floor=0.6)
    study = dataclasses.replace(
        study,
        policies={**study.policies, "patient": patient},
        retentions={"drop": study.retentions["drop"]},
    )
    columns = ["policy", "carbon_g", "saving_pct", "saving_lo_pct", "saving_hi_pct", "moves"]
    print(jr.compare(study)[columns].round(1).to_string(index=False))


if __name__ == "__main__":
    main()
