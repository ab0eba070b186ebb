"""Every registered policy keeps the protocol."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import worlds
from bridge import engine_params, engine_sessions, engine_world, places_of

from jaxroute import catalogue, neighbours, policies
from jaxroute.policies import Policy, RouterParams
from jaxroute.simulate import evaluate

RNG = np.random.default_rng(8)
PLAIN = worlds.world(RNG)
WORLD = engine_world(PLAIN)
SESSIONS = engine_sessions([worlds.session(RNG, PLAIN, turns) for turns in (3, 12, 7, 9)])
PARAMS = engine_params(worlds.params(quality_floor=0.5))

POLICIES = {
    name: value
    for module in (policies, neighbours)
    for name, value in vars(module).items()
    if isinstance(value, policies.Policy)
}
CLASSES = {"router": RouterParams, **catalogue.RULES}


def test_every_policy_is_found_and_named_by_the_class_of_its_parameters():
    assert {name: each.policy for name, each in CLASSES.items()} == POLICIES


@pytest.mark.parametrize("name", CLASSES)
def test_a_policy_serves_every_turn_it_can(name):
    params = CLASSES[name]().replace(quality_floor=0.5)
    totals, trace = evaluate(params, SESSIONS, WORLD, trace=True)
    best = evaluate(PARAMS, SESSIONS, WORLD)
    np.testing.assert_array_equal(totals.turns, best.turns)
    decision = np.asarray(trace.decision)[np.asarray(SESSIONS.turns.valid)]
    assert decision.max() < len(PLAIN["model"])
    assert np.isfinite(np.stack(jax.tree.leaves(totals))).all()


@pytest.mark.parametrize("name", CLASSES)
def test_a_policys_state_keeps_its_shapes_and_dtypes(name):
    params = CLASSES[name]()
    state = POLICIES[name].init(params)
    for leaf in jax.tree.leaves(state):
        assert leaf.dtype == params.carbon_weight.dtype
        assert not jnp.asarray(leaf).weak_type


def test_ski_rental_moves_once_the_rents_reach_the_price_of_rebuilding():
    """Two deployments alike but for the grid: the other is cleaner from the second turn on.

    A turn prefills 100 tokens at 0.1 J and decodes 99 at 1 J, so that staying costs 109 J x 20
    g/kWh more; rebuilding 4,000 tokens there costs 400 J x 100 g/kWh: the 19th rent reaches it.
    """
    plain = worlds.world(np.random.default_rng(0), models=1, gpus=1, regions=2)
    alike = {"pre_j": 0.1, "dec_j": 1.0, "pre_s": 1e-5, "dec_s": 0.01, "max_context_tokens": 1e6}
    zero = ("pre_j_ctx", "pre_s_ctx", "dec_j_ctx", "dec_s_ctx", "host_w", "embodied_g_per_s")
    plain |= {name: np.full(2, value) for name, value in (alike | dict.fromkeys(zero, 0)).items()}
    plain |= {"pue": np.ones(2), "intensity_g_per_kwh": np.array([[99.0, 100.0], [120.0, 100.0]])}
    turns = 40
    later = np.arange(turns) > 0
    session = {
        "arrival_s": np.arange(turns) * 60.0,
        "hour": later.astype(int),
        "time_bin": np.zeros(turns, int),
        "home": np.zeros(turns, int),
        "prefix_tokens": np.where(later, 4000, 0),
        "new_tokens": np.where(later, 100, 3901),
        "output_tokens": np.full(turns, 100),
        "predicted_output_tokens": np.full(turns, 100.0),
        "quality": np.ones((turns, 1)),
        "noise": np.zeros((turns, 2)),
    }
    packed, world = engine_sessions([session]), engine_world(plain)
    neutral = engine_params(worlds.params())
    _, trace = evaluate(neutral, packed, world, policy=neighbours.ski_rental, trace=True)
    decision = np.asarray(trace.decision)[places_of(packed)[0]]
    np.testing.assert_array_equal(decision, np.arange(turns) >= 19)
    _, greedy = evaluate(neutral, packed, world, trace=True)
    assert (np.asarray(greedy.decision)[places_of(packed)[0]] == 0).all()


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class PatientParams(RouterParams):
    """Parameters of a policy of one's own: the router's, and one more."""

    patience: jax.Array = dataclasses.field(default_factory=lambda: np.float32(2))


def test_a_policy_of_ones_own_with_parameters_of_its_own():
    def decide(params, stayed, obs):
        here = jnp.maximum(obs.last, 0)
        stays = (obs.last >= 0) & obs.feasible[here] & (stayed < params.patience)
        best = policies.first_min(obs.score_g)
        return jnp.where(stays, here, best), jnp.where(stays, stayed + 1, 0)

    patient = Policy(init=lambda params: jnp.zeros_like(params.patience), decide=decide)
    impatient = evaluate(PatientParams(patience=np.float32(0)), SESSIONS, WORLD, policy=patient)
    np.testing.assert_array_equal(impatient.moves, evaluate(RouterParams(), SESSIONS, WORLD).moves)
    moves = jax.vmap(
        lambda p: evaluate(PatientParams(patience=p), SESSIONS, WORLD, policy=patient).moves.sum()
    )(np.float32([0, 1, 1000]))
    assert moves[2] <= moves[1] <= moves[0]


@pytest.mark.parametrize("choice", [-1, 1000, 0])
def test_an_infeasible_choice_is_never_billed_in_silence(choice):
    """Deployment 0 holds 8,192 tokens; -1 and 1000 do not exist."""
    blunder = Policy(init=lambda params: (), decide=lambda p, s, obs: (jnp.int32(choice), s))
    totals = evaluate(PARAMS, SESSIONS, WORLD, policy=blunder)
    possible = evaluate(PARAMS, SESSIONS, WORLD)
    assert np.isnan(totals.carbon_g).any()
    np.testing.assert_array_equal(totals.turns, possible.turns)
