"""Predicted quality of an answer: a one-parameter logistic (Rasch) item response model.

A prompt has a difficulty, a model an ability, and the predicted quality is the probability of a
right answer. Everything here runs on the host in float64, when sessions are packed; the replay
only sees the resulting numbers.
"""

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpy.polynomial.hermite_e import hermegauss
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq
from scipy.special import expit

from jaxroute.errors import InputError
from jaxroute.load.files import package_file
from jaxroute.load.messages import input_error, known_names, shown

__all__ = ["IRT", "ability_of", "ar1", "bundled_irt", "expected_accuracy", "fit_irt", "predict"]

Floats = NDArray[np.float64]
Params = dict[str, jax.Array]

_POINTS = 100  # Gauss-Hermite nodes: as many as NumPy vouches for
_MAX_STEPS = 500
LARGEST_ABILITY = 20.0
"""Beyond it no share of right answers differs from 0 or 1."""

_GRADIENT_TOLERANCE = 1e-8  # of the mean log-likelihood per prompt


@dataclass(frozen=True, kw_only=True, eq=False)
class IRT:
    """A fitted item response model, `q = sigmoid(discrimination * (ability - difficulty))`."""

    ability: Floats  # [M], one per model, on the scale of the difficulty
    discrimination: float  # logits per unit of difficulty, > 0
    difficulty_mean: float = 0.0  # of the population of prompts
    difficulty_sd: float = 1.0  # of the population of prompts, >= 0


def bundled_irt(
    models: Sequence[str], own: Mapping[str, float] | None = None, *, trace: str = ""
) -> IRT:
    """The bundled fit, its abilities in the order of `models`.

    Fitted to the 1,521 math-l5 and crux prompts that all of its models answered (see
    `jaxroute/data/README.md`).

    Args:
      models: M names.
      own: abilities of the user's models, on the same scale (`ability_of`), which win.
      trace: for messages, what lacks predicted qualities of its own.

    Raises:
      InputError: for a model without an ability.
    """
    file = package_file("irt.json")
    fitted = json.loads(file.read_text())
    ability = {name: each["ability"] for name, each in fitted["models"].items()} | dict(own or {})
    for model in models:
        if model not in ability:
            mend = (
                f"{known_names(model, ability)}; or give quality_<model> of every model in the "
                "trace, or ability in its [[model]] table (jaxroute.quality.ability_of)"
            )
            expected = "a model with a fitted ability"
            raise input_error(trace or file.name, "", shown(model), expected, mend)
    return IRT(
        ability=np.array([ability[model] for model in models]),
        discrimination=fitted["discrimination"],
        difficulty_mean=fitted["difficulty_mean"],
        difficulty_sd=fitted["difficulty_sd"],
    )


def ability_of(accuracy: float) -> float:
    """The ability, on the scale of the bundled fit, of a model of some accuracy on its prompts.

    The root of `expected_accuracy(ability) = accuracy`: the share of right answers to prompts as
    hard as math-l5 and crux together. On other prompts, take the accuracy of a bundled model on
    them as well and add the difference of the two abilities to that model's own.

    Args:
      accuracy: above 0 and below 1.

    Raises:
      InputError: if it is not.

    >>> round(ability_of(0.31), 2), round(ability_of(0.65), 2)  # of qwen2.5-3b, of qwen2.5-32b
    (-0.61, 0.47)
    """
    if not 0.0 < accuracy < 1.0:
        raise InputError(f"accuracy: found {accuracy}, expected a share above 0 and below 1")
    fit = bundled_irt([])

    def excess(ability: float) -> float:
        alone = dataclasses.replace(fit, ability=np.array([ability]))
        return float(expected_accuracy(alone)[0]) - accuracy

    return float(brentq(excess, -LARGEST_ABILITY, LARGEST_ABILITY))


def predict(irt: IRT, difficulty: ArrayLike) -> Floats:
    """Probability that each model answers prompts of the given difficulty rightly.

    `q[..., m] = sigmoid(discrimination * (ability[m] - difficulty[...]))`

    Args:
      irt: the fitted model, M abilities.
      difficulty: any shape, on the scale of the abilities (no unit).

    Returns:
      q, shape `difficulty.shape + (M,)`, float64 in [0, 1].

    Source: G. Rasch, Probabilistic Models for Some Intelligence and Attainment Tests (1960), with
    one discrimination common to all prompts.

    >>> irt = IRT(ability=np.array([0.0, 1.0]), discrimination=2.0)
    >>> predict(irt, [0.0, 1.0]).round(3)
    array([[0.5  , 0.881],
           [0.119, 0.5  ]])
    """
    z = np.asarray(difficulty, dtype=np.float64)[..., None]
    return np.asarray(expit(irt.discrimination * (irt.ability - z)))


def expected_accuracy(irt: IRT) -> Floats:
    """Mean quality of each model over the population of prompts.

    `E[q_m]` for difficulty ~ N(difficulty_mean, difficulty_sd²), by Gauss-Hermite quadrature.

    Args:
      irt: the fitted model, M abilities.

    Returns:
      [M] float64 in [0, 1].

    >>> expected_accuracy(IRT(ability=np.array([0.0, 1.0]), discrimination=2.0)).round(3)
    array([0.5  , 0.775])
    """
    nodes, weights = hermegauss(_POINTS)
    mean = weights @ predict(irt, irt.difficulty_mean + irt.difficulty_sd * nodes)
    return np.asarray(mean / weights.sum())


def fit_irt(scores: ArrayLike) -> IRT:
    """Fit abilities and discrimination by marginal maximum likelihood.

    Only differences of ability and difficulty matter, and only times the discrimination, so the
    scale is fixed by `difficulty ~ N(0, 1)`: zero is the mean difficulty of these prompts and one
    its standard deviation. With x the 0/1 answers to prompt t, maximise

    `sum_t log ∫ prod_m q_m(z)^x[t, m] * (1 - q_m(z))^(1 - x[t, m]) φ(z) dz`

    The integral is Gauss-Hermite quadrature with 100 nodes (good to 1e-5 up to a discrimination of
    4, to 1e-3 at 8, by comparison with a fine sum); the optimiser is L-BFGS in float64 from a
    fixed start. Prompts with equal answers are counted once with their number, so the cost depends
    on the number of answer patterns. The order of the prompts does not matter.

    Args:
      scores: [prompts, M] of 0 and 1, M >= 2, every prompt answered by every model.

    Returns:
      The fitted model, with difficulty_mean 0 and difficulty_sd 1.

    Raises:
      InputError: the scores are not a 0/1 table of at least two models, a model has all answers
        right or all wrong (no finite ability), or right answers do not go together across models
        (no common difficulty).
      RuntimeError: the optimiser did not converge.

    Source: R. D. Bock, M. Lieberman, Fitting a response model for n dichotomously scored items,
    Psychometrika 35 (1970) 179-197, with prompts in the place of persons.

    >>> rng = np.random.default_rng(0)
    >>> truth = IRT(ability=np.array([-0.5, 0.0, 0.8]), discrimination=1.5)
    >>> q = predict(truth, rng.standard_normal(20_000))
    >>> fitted = fit_irt(rng.random(q.shape) < q)
    >>> bool(np.all(abs(fitted.ability - truth.ability) < 0.1))
    True
    """
    answers = np.asarray(scores, dtype=np.float64)
    _check(answers)
    patterns, counts = np.unique(answers, axis=0, return_counts=True)
    nodes, weights = hermegauss(_POINTS)
    # optax's L-BFGS mixes integer types, which strict promotion refuses.
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        x = jnp.asarray(patterns)  # [patterns, M]
        share = jnp.asarray(counts / counts.sum())  # [patterns]
        z = jnp.asarray(nodes)  # [K]
        log_weight = jnp.asarray(np.log(weights / weights.sum()))  # [K]

        # The logit is intercept - slope * z. Its likelihood is even in the slope, because N(0, 1)
        # is symmetric, so the search needs no bound: the sign is dropped at the end.
        def loss(params: Params) -> jax.Array:
            logit = params["intercept"][:, None] - params["slope"] * z[None, :]  # [M, K]
            right, wrong = jax.nn.log_sigmoid(logit), jax.nn.log_sigmoid(-logit)
            log_joint = x @ right + (1.0 - x) @ wrong + log_weight[None, :]  # [patterns, K]
            return -share @ jax.nn.logsumexp(log_joint, axis=1)

        mean = answers.mean(axis=0)
        start = {"intercept": jnp.asarray(np.log(mean / (1.0 - mean))), "slope": jnp.asarray(1.0)}
        best = jax.tree.map(np.asarray, _minimise(loss, start))
    slope = abs(float(best["slope"]))
    if slope < 1e-3:
        raise InputError(
            f"scores: found a common discrimination of {slope:.1g}, expected > 0: right answers do "
            "not go together across models, so the prompts have no common difficulty"
        )
    return IRT(ability=best["intercept"] / slope, discrimination=slope)


def ar1(innovations: ArrayLike, first: ArrayLike, autocorrelation: float) -> Floats:
    """Standardised difficulty along sessions: a stationary AR(1), restarted at every session.

    `z_0 = ε_0`, `z_t = rho z_{t-1} + sqrt(1 - rho²) ε_t`

    Every z_t has mean 0 and variance 1, and z_t, z_{t+s} in one session have correlation rho^s. The
    difficulty is `irt.difficulty_mean + irt.difficulty_sd * z`, applied by the caller.

    Computed by doubling, in log2(longest session) passes over the array: after pass k each element
    holds the terms of its last 2^k innovations. A session's result depends on no other session,
    to the last bit.

    Args:
      innovations: ε, [N] standard normal, the turns of each session in order.
      first: [N] bool, True at the first turn of each session.
      autocorrelation: rho in [-1, 1].

    Returns:
      z, [N] float64, dimensionless.

    Raises:
      InputError: shapes differ, row 0 starts no session, or rho is outside [-1, 1].

    Source: AR(1) difficulty is an assumption of this package, made for want of a trace with graded
    multi-turn answers; so rho is a setting to vary, not a measured number.

    >>> ar1([1.0, 0.0, 0.0, 2.0], [True, False, False, True], 0.5)
    array([1.  , 0.5 , 0.25, 2.  ])
    """
    eps = np.asarray(innovations, dtype=np.float64)
    starts = np.asarray(first, dtype=bool)
    if eps.ndim != 1 or eps.shape != starts.shape:
        raise InputError(
            f"first: found shape {starts.shape} beside innovations of {eps.shape}, "
            "expected two flat arrays of one length"
        )
    if not -1.0 <= autocorrelation <= 1.0:
        raise InputError(f"autocorrelation: found {autocorrelation}, expected -1 to 1")
    if eps.size == 0:
        return eps.copy()
    if not starts[0]:
        raise InputError("first: found False at row 0, expected True: a session starts there")
    row = np.arange(eps.size)
    turn = row - np.maximum.accumulate(np.where(starts, row, 0))
    z = np.where(starts, eps, np.sqrt(1.0 - autocorrelation**2) * eps)
    lag, factor, longest = 1, float(autocorrelation), turn.max()
    while lag <= longest and factor != 0.0:
        z[lag:] += np.where(turn[lag:] >= lag, factor * z[:-lag], 0.0)
        lag, factor = 2 * lag, factor * factor
    return z


def _check(scores: Floats) -> None:
    """Raise InputError unless the scores identify a one-parameter model."""
    if scores.ndim != 2 or scores.shape[0] == 0 or scores.shape[1] < 2:
        raise InputError(
            f"scores: found shape {scores.shape}, expected [prompts, models] with 2 or more models"
        )
    other = scores[(scores != 0.0) & (scores != 1.0)]
    if other.size:
        raise InputError(f"scores: found {other[0]}, expected only 0 and 1")
    mean = scores.mean(axis=0)
    for m in np.flatnonzero((mean == 0.0) | (mean == 1.0)):
        raise InputError(
            f"scores: found {mean[m]:.0%} right answers in column {m}, "
            "expected some right and some wrong: its ability has no finite estimate"
        )


def _minimise(loss: Callable[[Params], jax.Array], params: Params) -> Params:
    """L-BFGS until the gradient vanishes."""
    solver = optax.lbfgs()
    value_and_grad = optax.value_and_grad_from_state(loss)

    @jax.jit
    def step(params: Params, state: optax.OptState) -> tuple[Params, optax.OptState, jax.Array]:
        value, grad = value_and_grad(params, state=state)
        updates, state = solver.update(grad, state, params, value=value, grad=grad, value_fn=loss)
        return optax.apply_updates(params, updates), state, optax.tree.norm(grad)

    state = solver.init(params)
    for _ in range(_MAX_STEPS):
        new_params, state, norm = step(params, state)
        if norm < _GRADIENT_TOLERANCE:  # the norm at `params`, not at `new_params`
            return params
        params = new_params
    raise RuntimeError(f"fit_irt: gradient norm {norm:.1e} after {_MAX_STEPS} L-BFGS steps")
