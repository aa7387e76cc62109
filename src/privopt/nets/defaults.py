"""Defaults of networks on the rows of a table: batch size, rounds, clip bound and step size, from public quantities alone.

The rule knows n rows, d inputs, the shape of the network, the noise that the accountant asks for and the kind of target. It never
sees a value of the data, so it costs nothing.

Derivation. Near its start a network is a linear model, score(x) ≈ score₀(x) + ∇score(x)·(θ − θ₀), with the gradient of its score
as the row. So the rule is that of linear models, with the length G of a typical gradient in the place of the length of a row.
G needs no data: inputs are scaled so that a typical row has length `mlp.LENGTH`, and G is measured on made-up rows of that
length.

- The averaged gradient carries noise s = zC/b on each coordinate. While noise dominates, Adam divides by √v ≈ s, so T rounds of
  rate κ/(G√T) shake the score of a typical row by κ. Descent takes κ/(G√T s), capped by the smoothness of the loss, 1/(LG²).
- Signal against noise is q = b√T/(z (d + 1)), which for full batches is nμ/(d + 1): the directions that matter are counted by
  inputs, not by weights. κ = q^(1/3), four times less for targets on [−1, 1], and 2 at most: beyond that the network leaves the
  neighbourhood that the argument is about, and its gradients outgrow the clip bound. Exponent and cuts are empirical.
- Noise is proportional to the clip bound; below the longest gradient the loss is no longer calibrated. C grows with √q from half
  of G × the largest residual to 1.2 times that, because G grows in training.
- Batches of 2048: smaller ones amplify no better, larger ones only take time. Amplification is without loss while z ≥ 1 or so,
  which asks for T ≈ 2(μn/b)² rounds; at least 300, and at most 30 passes over the data.
"""

import math
from dataclasses import dataclass
from typing import Any

from privopt.postprocess.release import average, last

BATCH = 2048
ROUNDS = 300
PASSES = 30
MOMENTUM = 0.9
METHODS = ("dp-adam", "dp-rmsprop", "dp-sgd", "dp-gd")


@dataclass(frozen=True)
class Target:
    """What the rule needs to know of a target and its loss."""

    outputs: int
    reach: float  # of useful scores
    largest: float  # residual that occurs
    curvature: float


def binary() -> Target:
    """Two classes, by the logistic loss of one score."""
    return Target(1, 1.0, 1.0, 0.25)


def multiclass(classes: int) -> Target:
    """More classes, by the cross-entropy of their scores."""
    return Target(classes, 1.0, math.sqrt(2), 0.5)


def amount(threshold: float) -> Target:
    """A number scaled to [−1, 1], by Huber's loss."""
    return Target(1, 0.25, threshold, 1.0)


def default_batch(method: str, size: int) -> int:
    """The expected number of rows of a round."""
    return size if method == "dp-gd" else min(size, BATCH)


def default_rounds(*, size: int, batch: int, alone: float) -> int:
    """Rounds enough to be stable, and for small batches enough to be amplified; `alone` is 1/μ."""
    if batch == size:
        return ROUNDS
    return round(max(ROUNDS, min(2 * (size / (alone * batch)) ** 2, PASSES * size / batch)))


@dataclass(frozen=True)
class Steps:
    """How to clip and how to step; `options` are the method's own."""

    clip_bound: float
    learning_rate: float
    options: dict[str, Any]


def default_steps(
    method: str,
    target: Target,
    *,
    inputs: int,
    parameters: int,
    batch: int,
    gradient_norm: float,
    rounds: int,
    noise_multiplier: float,
    clip_bound: float | None = None,
) -> Steps:
    """The rule of this module; `gradient_norm` is G."""
    quality = batch * math.sqrt(rounds) / (max(noise_multiplier, 1e-12) * (inputs + 1))
    shake = min(max(target.reach * quality ** (1 / 3), target.reach / 4), 2.0)
    longest = target.largest * gradient_norm
    if clip_bound is None:
        clip_bound = longest * min(max(math.sqrt(quality / target.outputs) / 6, 0.5), 1.2)
    noise = math.hypot(noise_multiplier * clip_bound, longest / 2 * math.sqrt(batch / parameters)) / batch
    rate = shake / (gradient_norm * math.sqrt(rounds))
    if method in ("dp-adam", "dp-rmsprop"):
        return Steps(clip_bound, rate, {"stability": 1e-3 * noise, "release": average("last half")})
    cap = 1 / (target.curvature * gradient_norm**2)
    if method == "dp-gd":
        return Steps(clip_bound, min(rate / noise, cap), {"release": last()})
    rolling = {"momentum_decay": MOMENTUM, "release": average("last half")}
    return Steps(clip_bound, min(rate / noise * (1 - MOMENTUM), cap), rolling)
