"""jaxroute: carbon-aware LLM routing of multi-turn conversations, evaluated in batches with JAX.

A conversation's KV cache lives only where its earlier turns were served. jaxroute replays real
traces against a fleet of (model, GPU type, region) deployments and says how much carbon each
routing policy would have emitted.
"""

from numpy import linspace

from jaxroute.ablation import ablate
from jaxroute.bounds import Plan, free_context_bound, hindsight_plan, planned
from jaxroute.capacities import capacity
from jaxroute.catalogue import preset, presets
from jaxroute.comparison import compare
from jaxroute.errors import InputError
from jaxroute.explanation import Explanation, explain
from jaxroute.latency import Latency
from jaxroute.learned_gate import LearnedGate, fit_gate
from jaxroute.matching import match
from jaxroute.neighbours import ski_rental
from jaxroute.numerics import stack
from jaxroute.online import Decision, OnlineRouter
from jaxroute.policies import Observation, Policy, RouterParams, router
from jaxroute.relaxed import SoftTotals, soft_carbon, soft_totals
from jaxroute.search import Search, search
from jaxroute.sensitivity import sensitivity
from jaxroute.sessions import Sessions, Turn
from jaxroute.simulate import Totals, Trace, evaluate
from jaxroute.study import Study, load_study
from jaxroute.sweeping import sweep
from jaxroute.tuning import Tuning, tune
from jaxroute.world import Fleet, Retention, World

__version__ = "0.1.0"

RESULTS_VERSION = 2
"""Changes whenever the same study gives other numbers; written into every run."""

__all__ = [
    "RESULTS_VERSION",
    "Decision",
    "Explanation",
    "Fleet",
    "InputError",
    "Latency",
    "LearnedGate",
    "Observation",
    "OnlineRouter",
    "Plan",
    "Policy",
    "Retention",
    "RouterParams",
    "Search",
    "Sessions",
    "SoftTotals",
    "Study",
    "Totals",
    "Trace",
    "Tuning",
    "Turn",
    "World",
    "ablate",
    "capacity",
    "compare",
    "evaluate",
    "explain",
    "fit_gate",
    "free_context_bound",
    "hindsight_plan",
    "linspace",
    "load_study",
    "match",
    "planned",
    "preset",
    "presets",
    "router",
    "search",
    "sensitivity",
    "ski_rental",
    "soft_carbon",
    "soft_totals",
    "stack",
    "sweep",
    "tune",
]
