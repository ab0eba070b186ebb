"""The rules beside the router's: each as its formula says, and compared by name."""

import dataclasses
import re

import jax
import numpy as np
import pandas as pd
import pytest
import worlds
from bridge import engine_sessions, engine_world, places_of
from traces import write_trace

import jaxroute as jr
from jaxroute import catalogue, comparison
from jaxroute.config import PolicyConfig, read_config
from jaxroute.load.files import package_file
from jaxroute.load.policy import RULE_CONFIGS
from jaxroute.policies import Policy, RouterParams

RNG = np.random.default_rng(5)
PLAIN = worlds.world(RNG) | {"ttl_s": np.full((1, 1), 250.0)}
WORLD = engine_world(PLAIN)
DRAWN = [worlds.session(RNG, PLAIN, turns) for turns in (30, 12, 17, 9, 21, 3) * 5]
SESSIONS = engine_sessions([each for each in DRAWN if each["new_tokens"].max() < 1000])
"""Those that the fleet can hold."""

CLEAR = 1e-4
"""Of a margin: nearer than that float32 may decide otherwise."""


def _seen(params):
    """By session and served turn, what the rule saw and chose, in float64."""
    _, told = jr.evaluate(params, SESSIONS, WORLD, trace=_kept)
    told = jax.tree.map(lambda x: np.asarray(x, None if x.dtype == bool else np.float64), told)
    for rows, turns in places_of(SESSIONS):
        each = [jax.tree.map(lambda x, at=at: x[at], told) for at in zip(rows, turns, strict=True)]
        yield [(obs, int(chosen)) for obs, chosen in each if chosen >= 0]


def _kept(params, record):
    return record.observation, record.trace.decision


def _settled_g(obs):
    """J as if the history were cached everywhere, and the history, in plain NumPy."""
    reusable = min(obs.prefix_tokens, obs.context_tokens, obs.prompt_tokens - 1)
    history = 16.0 * np.floor((reusable + 0.01) / 16)
    fleet, c = obs.site.fleet, obs.cached_tokens
    u, x = history - c, (history - c) * (history + c) / 2
    seconds = fleet.pre_s * u + fleet.pre_s_ctx * x
    joules = fleet.pre_j * u + fleet.pre_j_ctx * x + fleet.host_w * seconds
    rebuild_g = joules * obs.site.kappa_g_per_kwh / 3.6e6 + fleet.embodied_g_per_s * seconds
    return np.where(obs.feasible, obs.operational_g + obs.embodied_g - rebuild_g, np.inf), history


def test_the_session_price_is_its_formula():
    params = jr.preset("session_price", quality_floor=0.4).replace(
        idle_timeout_s=150.0, switch_margin=0.05, warmth_weight=0.4
    )
    verdicts = []
    for session in _seen(params):
        for obs, chosen in session:
            score_g, history = _settled_g(obs)
            best, here = int(score_g.argmin()), int(obs.last)
            if here < 0 or not obs.feasible[here] or obs.idle_s[here] > 150:
                assert chosen == best
                verdicts.append("free")
                continue
            mass = (
                0.45 * history / obs.prompt_tokens
                + 0.35 * min(history / 8192, 1)
                + 0.20 * min(obs.turn / 8, 1)
            )
            warmth = obs.cached_tokens[here] / history if history else 0
            price = 0.05 + 0.4 * mass * warmth + 0.04 * min(obs.moves / 8, 1)
            gain = 1 - score_g[best] / score_g[here]
            if abs(gain - price) > CLEAR:
                assert chosen == (best if gain > price else here)
                verdicts.append("left" if gain > price else "kept" if gain > 0 else "best")
    counts = pd.Series(verdicts).value_counts()
    assert (counts.loc[["free", "left", "kept"]] >= 5).all(), counts


def test_prefix_affinity_keeps_to_the_cached_unless_they_are_slow():
    params = jr.preset("prefix_affinity").replace(match_share=0.6, escape_ttft_s=0.05)
    verdicts = []
    for session in _seen(params):
        for obs, chosen in session:
            share = obs.cached_tokens / obs.prompt_tokens
            sticky, others = obs.feasible & (share >= 0.6), obs.feasible & (share < 0.6)
            among, verdict = obs.feasible, "none cached"
            if sticky.any():
                slower_s = obs.ttft_s[sticky].min() - obs.ttft_s[others].min(initial=np.inf)
                among, verdict = (sticky, "kept") if slower_s <= 0.05 else (among, "escaped")
            score_g = np.where(among, obs.operational_g + obs.embodied_g, np.inf)
            assert chosen == score_g.argmin()
            verdicts.append(verdict)
    counts = pd.Series(verdicts).value_counts()
    assert (counts.loc[["none cached", "kept", "escaped"]] >= 5).all(), counts


def test_the_price_of_primal_dual_follows_the_budget():
    params = jr.preset("primal_dual", quality_floor=0.3).replace(
        budget_g=0.01, price_step=0.05, window_turns=4.0, start_price=0.2
    )
    prices, checked = [], 0
    for session in _seen(params):
        price, mean_g = 0.2, 0.0
        for n, (obs, chosen) in enumerate(session, start=1):
            carbon_g = obs.operational_g + obs.embodied_g
            loss = np.where(obs.feasible, 1 - obs.site.quality + price * carbon_g / 0.01, np.inf)
            first, second = np.sort(loss)[:2]
            assert loss[chosen] - first < CLEAR
            if second - first > CLEAR:
                assert chosen == loss.argmin()
                checked += 1
            mean_g += (carbon_g[chosen] - mean_g) / min(n, 4)
            price = max(price + 0.05 * (mean_g / 0.01 - 1), 0.001)
            prices.append(price)
    assert checked > 0.5 * len(prices) > 100
    assert min(prices) == 0.001 and max(prices) > 0.25


def test_where_a_rule_is_the_routers_it_does_what_the_router_does():
    """A gate that nothing passes is none; a constant price of carbon is one of quality."""
    router = RouterParams().replace(quality_floor=0.3)
    blind = router.replace(cache_knowledge=0.0, quality_price_g=0.5)
    affinity = jr.preset("prefix_affinity", quality_floor=0.3).replace(match_share=1.0)
    budget = jr.preset("primal_dual", quality_floor=0.3).replace(
        start_price=0.2, budget_g=0.1, price_step=0.0
    )
    both = jax.vmap(lambda params: jr.evaluate(params, SESSIONS, WORLD))(jr.stack([router, blind]))
    for n, params in enumerate((affinity, budget)):
        found = jr.evaluate(params, SESSIONS, WORLD)
        for name in ("moves", "carbon_g", "quality"):
            same = np.asarray(getattr(both, name))[n]
            np.testing.assert_allclose(getattr(found, name), same, rtol=1e-5, err_msg=name)


OWN = ["my_budget", "prefix_affinity"]
STUDY = """
policies = ["my_budget", "carbon_router", "prefix_affinity", "carbon_router_fixed_region"]
[[datasets]]
path = "mine.csv"
[[retention]]
label = "keep"
[[retention]]
label = "drop"
drop_on_leave = true
[policy.my_budget]
preset = "primal_dual"
regions = ["DE", "SG"]
budget_g = 0.01
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("study")
    write_trace(made / "mine.csv", sessions=40, turns=8)
    (made / "study.toml").write_text(STUDY)
    return made


@pytest.fixture(scope="module")
def study(folder):
    return jr.load_study(folder / "study.toml")


@pytest.mark.slow  # compiles a program for each rule
def test_compare_takes_rules_by_name(study):
    """Every row is what `evaluate` gives of that policy, in the study's order."""
    outcome = comparison.run(study)
    rows = outcome.summary.set_index(["retention", "policy"])
    names = ["my_budget", "carbon_router", "prefix_affinity", "carbon_router_fixed_region"]
    names += ["fair_carbon", "hindsight_plan", "lower_bound"]
    for label, retention in study.retentions.items():
        assert list(rows.loc[label].index) == names
        world = study.world.replace(retention=retention)
        for name in ("my_budget", "carbon_router", "prefix_affinity"):
            params = study.policies[name]
            totals, trace = jr.evaluate(params, study.sessions, world, trace=True)
            row = rows.loc[(label, name)]
            assert row["carbon_g"] == pytest.approx(float(totals.carbon_g.sum()), rel=1e-5)
            assert row["moves"] == np.asarray(totals.moves).sum()
            decision = np.asarray(trace.decision)[np.asarray(study.sessions.turns.valid)]
            served = np.bincount(decision[decision >= 0], minlength=len(study.deployments))
            shares = outcome.shares.query(f"retention == {label!r} and policy == {name!r}")
            np.testing.assert_array_equal(shares["turns"], served)
            if name == "my_budget":
                assert set(shares.loc[shares["turns"] > 0, "region"]) <= {"DE", "SG"}
    attained = rows.loc["drop", "captured_of_plan_pct"]
    assert attained["hindsight_plan"] == 100


@pytest.fixture(scope="module")
def small(study):
    drop = {"drop": study.retentions["drop"]}
    return dataclasses.replace(study.with_policies(OWN), retentions=drop)


@pytest.mark.slow  # compiles gradients, and searches
def test_elasticities_and_savings_at_equal_quality_are_told_of_them(small):
    told = jr.sensitivity(small).set_index("policy")
    assert list(told.index) == [*OWN, "fair_carbon"]
    np.testing.assert_allclose(told["pue"] + told["embodied_rate"], 1, rtol=1e-5)

    matched = jr.match(small).set_index("policy")
    assert (matched["status"] == "matched").all()
    away = (matched["mean_quality"] - matched["baseline_quality"]).abs()
    assert (away <= 0.002).all()
    assert matched.loc["my_budget", "knob"] == "quality_floor"


@pytest.mark.slow  # compiles programs of their own
def test_a_session_is_explained_turn_by_turn(small):
    """What its rule decides has no gate; the bill is that of `evaluate`."""
    session = jr.explain(small, "3", policies=["my_budget"])
    turns = session.turns
    world = small.world.replace(retention=small.retentions["drop"])
    totals, _ = jr.evaluate(small.policies["my_budget"], small.sessions, world, trace=True)
    assert turns["carbon_g"].sum() == pytest.approx(float(totals.carbon_g[3]), rel=1e-5)
    assert set(turns["verdict"]) == {"own rule: first turn", "own rule: stays", "own rule: moves"}
    np.testing.assert_array_equal(turns["verdict"] == "own rule: moves", turns["moves"] == 1)
    assert turns["gain_g"].isna().all()
    assert session.notes[-1].startswith("my_budget: rules of other systems")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class FirstParams(RouterParams):
    """Of a rule that takes the first deployment there is."""

    policy = Policy(
        init=lambda params: (), decide=lambda params, state, obs: (obs.feasible.argmax(), state)
    )


@pytest.mark.slow  # compiles programs of their own
def test_a_rule_of_ones_own_needs_no_registry(study):
    policies = {"first": FirstParams(), "fair_carbon": study.policies["fair_carbon"]}
    keep = {"keep": study.retentions["keep"]}
    alone = dataclasses.replace(study, policies=policies, fixed={}, retentions=keep)
    outcome = comparison.run(alone)
    served = outcome.shares.query("policy == 'first' and turns > 0")
    assert served["model"].tolist() == [study.config.fleet.models[0]]
    assert len(outcome.summary) == 4


MISTAKES = {
    '[policy.mine]\npreset = "prefix_affinity"\nmatch_shar = 1': (
        "policy.mine.match_shar: found an unknown key, expected an allowed one; "
        "did you mean 'match_share'?"
    ),
    '[policy.mine]\npreset = "prefix_affinity"\nmatch_share = 2': (
        "policy.mine.match_share: found 2, expected a number <= 1"
    ),
    '[policy.mine]\npreset = "primal_dual"\nbudget_g = 0': (
        "policy.mine.budget_g: found 0, expected a number > 0"
    ),
    '[policy.mine]\npreset = "carbon_router"\nmatch_share = 0.5': (
        "policy.mine.match_share: found an unknown key"
    ),
    '[policy.prefix_affinity]\npreset = "carbon_router"': (
        "policy.prefix_affinity: found a preset's name"
    ),
    'policies = ["prefix_afinity"]': (
        "policies[0]: found 'prefix_afinity', expected a policy; did you mean 'prefix_affinity'?"
    ),
    '[sweep]\npolicy = "mine"\nspace = { hysteresis = [0, 1] }\n'
    '[policy.mine]\npreset = "primal_dual"': (
        "sweep.policy: found 'mine', a rule beside the router's, expected a policy of the router's"
    ),
    'baseline = "ski_rental"\n[sweep]\nspace = { hysteresis = [0, 1] }': (
        "baseline: found 'ski_rental', a rule beside the router's, expected a policy of the"
    ),
}


@pytest.mark.parametrize("text", MISTAKES)
def test_mistakes(tmp_path, text):
    path = tmp_path / "study.toml"
    path.write_text(text)
    with pytest.raises(jr.InputError) as caught:
        read_config(path)
    found = str(caught.value)
    assert len(found.splitlines()) == 1
    assert found.startswith(f"{path}: {MISTAKES[text]}")


def test_the_keys_of_a_rule_are_the_fields_of_its_parameters():
    own = set(PolicyConfig.model_fields)
    router = {field.name for field in dataclasses.fields(RouterParams)}
    assert list(RULE_CONFIGS) == list(catalogue.RULES)
    text = package_file("default.toml").read_text()
    for name, keys in RULE_CONFIGS.items():
        fields = {field.name for field in dataclasses.fields(catalogue.RULES[name])}
        assert set(keys.model_fields) - own == fields - router
        for key in fields - router:
            default = float(getattr(catalogue.RULES[name](), key))
            shown = re.search(rf"# {key} = (\S+)", text)
            assert float(shown.group(1)) == pytest.approx(default)
