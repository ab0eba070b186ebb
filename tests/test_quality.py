"""The fitted quality model, and difficulty along sessions."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxroute
from jaxroute.errors import InputError
from jaxroute.quality import IRT, ar1, expected_accuracy, fit_irt, predict

TRUTH = IRT(ability=np.array([-0.6, 0.0, 0.1, 0.5, 1.2]), discrimination=2.4)
BUNDLED = json.loads((Path(jaxroute.__file__).parent / "data/irt.json").read_text())


def simulate(irt: IRT, prompts: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    difficulty = irt.difficulty_mean + irt.difficulty_sd * rng.standard_normal(prompts)
    q = predict(irt, difficulty)
    return (rng.random(q.shape) < q).astype(np.int8)


def log_likelihood(ability: np.ndarray, discrimination: float, scores: np.ndarray) -> float:
    """The marginal likelihood by a fine Riemann sum: shares no code with fit_irt."""
    z = np.linspace(-8.0, 8.0, 4001)
    density = np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi) * (z[1] - z[0])
    q = 1.0 / (1.0 + np.exp(-discrimination * (ability[:, None] - z)))
    patterns, counts = np.unique(scores, axis=0, return_counts=True)
    given_z = np.prod(np.where(patterns[:, :, None] == 1, q, 1.0 - q), axis=1)
    return float(counts @ np.log(given_z @ density))


def test_predict_is_the_formula() -> None:
    difficulty = np.array([[0.0, -1.0, 2.0]])
    q = predict(TRUTH, difficulty)
    assert q.shape == (1, 3, 5) and q.dtype == np.float64
    logit = np.log(q[0, 2] / (1.0 - q[0, 2]))
    np.testing.assert_allclose(logit, 2.4 * (TRUTH.ability - 2.0), rtol=1e-12)
    np.testing.assert_array_equal(predict(TRUTH, 1e6), 0.0)  # no overflow warning either


def test_expected_accuracy_is_the_mean_over_the_population() -> None:
    irt = IRT(ability=TRUTH.ability, discrimination=2.4, difficulty_mean=0.3, difficulty_sd=1.7)
    z = np.linspace(-8.0, 8.0, 4001)
    density = np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi) * (z[1] - z[0])
    mean = density @ predict(irt, 0.3 + 1.7 * z)
    np.testing.assert_allclose(expected_accuracy(irt), mean, atol=1e-5)


def test_fit_recovers_known_parameters() -> None:
    fitted = fit_irt(simulate(TRUTH, 200_000, seed=1))
    np.testing.assert_allclose(fitted.ability, TRUTH.ability, atol=0.015)
    np.testing.assert_allclose(fitted.discrimination, 2.4, atol=0.03)
    assert (fitted.difficulty_mean, fitted.difficulty_sd) == (0.0, 1.0)


def test_fit_absorbs_the_scale_of_the_population() -> None:
    scaled = IRT(ability=TRUTH.ability, discrimination=1.2, difficulty_mean=0.2, difficulty_sd=2.0)
    fitted = fit_irt(simulate(scaled, 200_000, seed=2))
    np.testing.assert_allclose(fitted.ability, (TRUTH.ability - 0.2) / 2.0, atol=0.015)
    np.testing.assert_allclose(fitted.discrimination, 2.4, atol=0.03)


def test_fit_is_the_maximum_of_an_independent_likelihood() -> None:
    scores = simulate(TRUTH, 1_500, seed=3)
    fitted = fit_irt(scores)
    theta = np.append(fitted.ability, fitted.discrimination)
    best = log_likelihood(theta[:5], theta[5], scores)
    for i in range(6):
        for step in (-1e-3, 1e-3):
            moved = theta + step * np.eye(6)[i]
            assert log_likelihood(moved[:5], moved[5], scores) < best


@pytest.mark.slow  # fits again and again
def test_fit_ignores_order_and_repeats_itself() -> None:
    scores = simulate(TRUTH, 1_500, seed=4)
    fitted, again = fit_irt(scores), fit_irt(scores[::-1])
    np.testing.assert_array_equal(fitted.ability, again.ability)
    assert fitted.discrimination == again.discrimination
    columns = fit_irt(scores[:, ::-1])
    np.testing.assert_allclose(columns.ability[::-1], fitted.ability, atol=1e-6)


def test_fit_works_under_strict_promotion_and_leaves_precision_alone() -> None:
    before = jnp.ones(1).dtype
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        fitted = fit_irt(simulate(TRUTH, 1_500, seed=5))
    assert fitted.ability.dtype == np.float64
    assert jnp.ones(1).dtype == before


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        (np.zeros((4, 1)), "2 or more models"),
        (np.zeros((0, 3)), "2 or more models"),
        (np.array([[0, 1], [1, 2]]), "only 0 and 1"),
        (np.array([[0, np.nan], [1, 1]]), "only 0 and 1"),
        (np.array([[0, 1], [1, 1]]), "in column 1"),
        (np.array([[0, 1], [1, 0]] * 50), "do not go together"),
    ],
)
def test_fit_refuses_what_it_cannot_identify(scores: np.ndarray, message: str) -> None:
    with pytest.raises(InputError, match=message):
        fit_irt(scores)


def test_bundled_fit_explains_the_observed_accuracy() -> None:
    rows = list(BUNDLED["models"].values())
    irt = IRT(
        ability=np.array([row["ability"] for row in rows]),
        discrimination=BUNDLED["discrimination"],
        difficulty_mean=BUNDLED["difficulty_mean"],
        difficulty_sd=BUNDLED["difficulty_sd"],
    )
    expected = np.array([row["expected_accuracy"] for row in rows])
    observed = np.array([row["observed_accuracy"] for row in rows])
    np.testing.assert_allclose(expected_accuracy(irt), expected, atol=2e-5)
    np.testing.assert_allclose(expected, observed, atol=0.003)


def loop_ar1(eps: np.ndarray, first: np.ndarray, rho: float) -> np.ndarray:
    z = np.empty(len(eps))
    for t in range(len(eps)):
        z[t] = eps[t] if first[t] else rho * z[t - 1] + np.sqrt(1 - rho**2) * eps[t]
    return z


@pytest.mark.parametrize("rho", [-1.0, -0.4, 0.0, 0.5, 0.99, 1.0])
def test_ar1_is_the_recursion(rho: float) -> None:
    rng = np.random.default_rng(0)
    first = rng.random(3_000) < 0.01
    first[0] = True
    eps = rng.standard_normal(3_000)
    np.testing.assert_allclose(ar1(eps, first, rho), loop_ar1(eps, first, rho), atol=1e-12)


def test_ar1_is_stationary_and_sessions_are_independent() -> None:
    rho, sessions, turns = 0.5, 100_000, 8
    first = np.tile(np.arange(turns) == 0, sessions)
    eps = np.random.default_rng(1).standard_normal(sessions * turns)
    z = ar1(eps, first, rho).reshape(sessions, turns)
    np.testing.assert_allclose(z.mean(axis=0), 0.0, atol=0.015)
    np.testing.assert_allclose(z.var(axis=0), 1.0, atol=0.02)  # at every turn, the first too
    for lag in (1, 2, 3):
        together = np.mean(z[:, lag:] * z[:, :-lag])
        np.testing.assert_allclose(together, rho**lag, atol=0.01)
    np.testing.assert_allclose(np.mean(z[1:, 0] * z[:-1, -1]), 0.0, atol=0.015)


def test_ar1_does_not_depend_on_the_other_sessions() -> None:
    rng = np.random.default_rng(2)
    sessions = [rng.standard_normal(n) for n in (1, 7, 300, 2, 33)]

    def run(order: list[int]) -> dict[int, bytes]:
        eps = [sessions[i] for i in order]
        first = np.concatenate([np.arange(len(e)) == 0 for e in eps])
        z = ar1(np.concatenate(eps), first, 0.7)
        ends = np.cumsum([len(e) for e in eps])[:-1]
        return {i: part.tobytes() for i, part in zip(order, np.split(z, ends), strict=True)}

    together = run([0, 1, 2, 3, 4])
    assert run([4, 2, 0, 3, 1]) == together
    assert run([1]) == {1: together[1]}  # a shorter longest session: fewer passes, same bits


def test_ar1_refuses_bad_input() -> None:
    assert ar1([], [], 0.5).shape == (0,)
    with pytest.raises(InputError, match="one length"):
        ar1([0.0, 1.0], [True], 0.5)
    with pytest.raises(InputError, match="row 0"):
        ar1([0.0, 1.0], [False, True], 0.5)
    with pytest.raises(InputError, match="autocorrelation"):
        ar1([0.0], [True], 1.01)
