"""DP-(S)GD, DP-RMSProp and DP-Adam (Zhou, Chen, Hong, Wu, Banerjee) against references written from the paper's lines.

References know nothing of privopt but the order in which its generator is asked: rows first, then noise.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.linear_model import LogisticRegression, Ridge

from privopt.loop import run
from privopt.measure.measurement import Measurement
from privopt.measure.randomness import generator
from privopt.measure.samplers import fixed_size, full_batch, poisson
from privopt.methods.dp_adam import dp_adam
from privopt.methods.dp_gd import dp_gd
from privopt.methods.dp_rmsprop import dp_rmsprop
from privopt.methods.dp_sgd import dp_sgd
from privopt.perexample.design import Design, Frame
from privopt.perexample.grads import Vector
from privopt.perexample.linear_oracle import LinearOracle
from privopt.perexample.losses import Logistic, Multinomial, Squared
from privopt.postprocess.regularizers import nonconvex, ridge
from privopt.postprocess.updates import Schedule, step_decay
from privopt.recipe import Recipe
from tests.problems import linear_oracle, scaled_rows

X, Y = scaled_rows()
ROUNDS, RATE, CLIP, NOISE = 25, 0.3, 0.8, 1.3
Step = Callable[[Vector, int], Vector]


def private_gradients(theta: Vector, rows: Vector, expected: float, clip: float, noise: Vector) -> Vector:
    """Lines 3 to 5: one gradient per example, each clipped, their sum hidden, over the expected batch."""
    total = np.zeros_like(theta)
    for row in rows:
        gradient = (1 / (1 + math.exp(-(X[row] @ theta))) - Y[row]) * X[row]
        total += gradient * min(1.0, clip / math.sqrt(gradient @ gradient))
    return (total + noise) / expected


def descend(step: Step, *, clip: float, noise_multiplier: float, sampling: Any = None, seed: int = 5) -> Vector:
    """Algorithm 1, with a sampler of privopt's to draw the rows and a reference for everything else."""
    theta, rng = np.zeros(4), generator(seed)
    for round_ in range(ROUNDS):
        rows, expected = np.arange(60), 60.0
        if sampling is not None:
            rows, expected = sampling.draw(60, round_, rng), sampling.expected(60)
        noise = noise_multiplier * clip * rng.standard_normal(4)
        theta = theta + step(private_gradients(theta, rows, expected, clip, noise), round_)
    return theta


def reference_gd(rate: Schedule, momentum: float = 0.0) -> Step:
    velocity = np.zeros(4)

    def step(gradient: Vector, round_: int) -> Vector:
        nonlocal velocity
        velocity = momentum * velocity + gradient
        return -rate(round_) * velocity

    return step


def reference_rmsprop(rate: float, decay: float, stability: float, ceiling: float) -> Step:
    gradients: list[Vector] = []

    def step(gradient: Vector, round_: int) -> Vector:
        gradients.append(gradient)
        t = len(gradients)
        psi = np.sum([(1 - decay) * decay ** (t - j) * gradients[j - 1] ** 2 for j in range(1, t + 1)], axis=0)
        return -rate * gradient / (np.sqrt(np.minimum(psi, ceiling)) + stability)

    return step


def reference_adam(rate: float, first: float, second: float, stability: float, ceiling: float, corrected: bool) -> Step:
    gradients: list[Vector] = []

    def step(gradient: Vector, round_: int) -> Vector:
        gradients.append(gradient)
        t = len(gradients)
        phi = np.sum([(1 - first) * first ** (t - j) * gradients[j - 1] for j in range(1, t + 1)], axis=0)
        psi = np.sum([(1 - second) * second ** (t - j) * gradients[j - 1] ** 2 for j in range(1, t + 1)], axis=0)
        if corrected:
            phi, psi = phi / (1 - first**t), psi / (1 - second**t)
        return -rate * phi / (np.sqrt(np.minimum(psi, ceiling)) + stability)

    return step


def constant(round_: int) -> float:
    return RATE


DECAYING = step_decay(RATE, factor=0.1, every=10)

# each line: a recipe with its own parameters, and the reference with the paper's
PAIRS: dict[str, tuple[Callable[..., Recipe], dict[str, Any], Callable[[], Step]]] = {
    "gd": (dp_gd, {"learning_rate": RATE}, lambda: reference_gd(constant)),
    "sgd": (dp_sgd, {"learning_rate": RATE}, lambda: reference_gd(constant)),
    "sgd, decaying": (dp_sgd, {"learning_rate": DECAYING}, lambda: reference_gd(lambda t: RATE * 0.1 ** (t // 10))),
    "momentum": (dp_sgd, {"learning_rate": RATE, "momentum_decay": 0.9}, lambda: reference_gd(constant, 0.9)),
    "rmsprop": (dp_rmsprop, {"learning_rate": 0.01}, lambda: reference_rmsprop(0.01, 0.99, 1e-8, math.inf)),
    "rmsprop, ceiling": (
        dp_rmsprop,
        {"learning_rate": 0.01, "decay": 0.9, "stability": 1e-3, "ceiling": 1e-3},
        lambda: reference_rmsprop(0.01, 0.9, 1e-3, 1e-3),
    ),
    "adam": (dp_adam, {"learning_rate": 0.01}, lambda: reference_adam(0.01, 0.9, 0.999, 1e-8, math.inf, True)),
    "adam, ceiling": (
        dp_adam,
        {"learning_rate": 0.01, "second_decay": 0.9, "stability": 1e-3, "ceiling": 1e-3, "bias_correction": False},
        lambda: reference_adam(0.01, 0.9, 0.9, 1e-3, 1e-3, False),
    ),
}


def trained(recipe: Recipe, seed: int = 5) -> Vector:
    return run(recipe, linear_oracle(X, Y), np.zeros(4), rng=generator(seed)).parameters


@pytest.mark.parametrize("name", PAIRS)
def test_without_noise_or_clipping_a_recipe_is_its_non_private_counterpart(name: str) -> None:
    recipe, options, reference = PAIRS[name]
    parameters = trained(recipe(rounds=ROUNDS, noise_multiplier=0.0, clip_bound=1e6, **options))
    np.testing.assert_allclose(parameters, descend(reference(), clip=1e6, noise_multiplier=0.0), rtol=1e-9)


@pytest.mark.parametrize("name", PAIRS)
def test_with_noise_and_clipping_a_recipe_is_the_paper_s_algorithm(name: str) -> None:
    recipe, options, reference = PAIRS[name]
    parameters = trained(recipe(rounds=ROUNDS, noise_multiplier=NOISE, clip_bound=CLIP, **options))
    np.testing.assert_allclose(parameters, descend(reference(), clip=CLIP, noise_multiplier=NOISE), rtol=1e-8)


@pytest.mark.parametrize("sampling", [poisson(0.2), fixed_size(12, 60)], ids=str)
@pytest.mark.parametrize("name", [name for name in PAIRS if name != "gd"])
def test_on_batches_a_recipe_is_the_paper_s_algorithm_over_the_expected_batch(name: str, sampling: poisson | fixed_size) -> None:
    recipe, options, reference = PAIRS[name]
    parameters = trained(recipe(rounds=ROUNDS, noise_multiplier=NOISE, clip_bound=CLIP, sampling=sampling, **options))
    expected = descend(reference(), clip=CLIP, noise_multiplier=NOISE, sampling=sampling)
    np.testing.assert_allclose(parameters, expected, rtol=1e-8)


def test_clipping_matters_here() -> None:
    """Else the tests above would show less than they say."""
    loose, tight = (dp_sgd(rounds=ROUNDS, noise_multiplier=0.0, clip_bound=c, learning_rate=RATE) for c in (1e6, CLIP))
    assert np.abs(trained(loose) - trained(tight)).max() > 0.05


# ---------------------------------------------------------------- scikit-learn's optimum


def optimum(matrix: Any, targets: Vector, loss: Any, strength: float, *, momentum: float = 0.95, rate: float = 0.15) -> Any:
    """Where dp_sgd without noise and clipping ends, as slopes and intercepts; intercepts are not penalised."""
    frame = Frame(intercept=1.0)
    model = LinearOracle(Design(matrix, frame), targets, loss)
    mask = np.ones((loss.outputs, matrix.shape[1] + 1))
    mask[:, -1] = 0.0
    recipe = dp_sgd(
        rounds=1500,
        noise_multiplier=0.0,
        clip_bound=1e9,
        learning_rate=rate,
        momentum_decay=momentum,
        regularizer=ridge(strength, mask.ravel()),
    )
    parameters = run(recipe, model, np.zeros(model.dimension)).parameters
    return frame.unfold(parameters.reshape(loss.outputs, -1))


@pytest.mark.parametrize("store", [np.asarray, sp.csr_array], ids=["dense", "csr"])
def test_without_noise_or_clipping_dp_sgd_ends_at_scikit_learn_s_logistic_regression(store: Callable[[Vector], Any]) -> None:
    slopes, constants = optimum(store(X), Y, Logistic(), strength=1 / (0.5 * len(X)))
    model = LogisticRegression(C=0.5, tol=1e-10, max_iter=5000).fit(X, Y)
    np.testing.assert_allclose(slopes, model.coef_, atol=1e-5)
    np.testing.assert_allclose(constants, model.intercept_, atol=1e-5)


def test_without_noise_or_clipping_dp_sgd_ends_at_scikit_learn_s_multinomial_regression() -> None:
    classes = np.digitize(X @ [1.0, -1.0, 0.0, 0.5], [-1.0, 1.0]).astype(float)
    slopes, constants = optimum(X, classes, Multinomial(3), strength=1 / (0.5 * len(X)))
    model = LogisticRegression(C=0.5, tol=1e-10, max_iter=5000).fit(X, classes)
    np.testing.assert_allclose(slopes, model.coef_, atol=1e-5)
    np.testing.assert_allclose(constants - constants.mean(), model.intercept_ - model.intercept_.mean(), atol=1e-5)


@pytest.mark.parametrize("store", [np.asarray, sp.csr_array], ids=["dense", "csr"])
def test_without_noise_or_clipping_dp_sgd_ends_at_scikit_learn_s_ridge(store: Callable[[Vector], Any]) -> None:
    targets = X @ [0.5, -1.0, 0.2, 0.0] + 3.0 + 0.1 * np.random.default_rng(2).standard_normal(60)
    slopes, constants = optimum(store(X), targets, Squared(), strength=2.0 / len(X))
    model = Ridge(alpha=2.0).fit(X, targets)
    np.testing.assert_allclose(slopes[0], model.coef_, atol=1e-6)
    np.testing.assert_allclose(constants[0], model.intercept_, atol=1e-6)


def test_a_regulariser_is_added_after_the_noise_and_is_not_clipped() -> None:
    """θ' = −η α r(θ), without data: clip bound 0 silences the examples and nothing else."""
    for kind, derivative in ((ridge(0.5), lambda w: 0.5 * w), (nonconvex(0.5), lambda w: 0.5 * 2 * w / (1 + w**2) ** 2)):
        recipe = dp_sgd(rounds=10, noise_multiplier=2.0, clip_bound=0.0, learning_rate=0.1, regularizer=kind)
        start = np.array([3.0, -100.0, 0.1, 0.0])
        theta = start.copy()
        for _ in range(10):
            theta = theta - 0.1 * derivative(theta)  # type: ignore[no-untyped-call]
        np.testing.assert_allclose(run(recipe, linear_oracle(X, Y), start).parameters, theta, rtol=1e-12)


def test_full_batch_is_the_default_sampling() -> None:
    plain = dp_sgd(rounds=3, noise_multiplier=1.0, clip_bound=1.0, learning_rate=0.1)
    measurement = plain.measurement(0)
    assert isinstance(measurement, Measurement)
    assert measurement.sampler == full_batch()
