"""Defaults: rounds, clip bound, step size and release, from public quantities alone.

The rule knows n rows, f coefficients per output, the noise that the accountant asks for, the length R of a typical row and
the loss. It never sees a value of the data, so it costs nothing; and no data set is named in it.

Derivation. T rounds of step η on full batches: the averaged gradient carries noise s = zC/n on each coordinate, with
z = √T/μ where μ is what (ε, δ) buys. T rounds move a coordinate by η√T s = (ηT)C/(nμ): T cancels, so more rounds cost time, not
privacy. What matters is the *displacement by noise* that we allow, κ/R; a row of length R then sees its score shaken by κ.

- Along directions whose curvature L is small, LηT ≪ 1, descent gains |g|²ηT and noise costs κ²/8 in all. If the signal is spread
  over all f directions, the best κ is proportional to q = nμ/f; along directions with LηT ≫ 1, averaging the tail keeps the
  noise from growing with κ at all. The effective dimension lies somewhere between 1 and f: κ = q^(1/3), cut to [1/4, 4], is a
  hedge between the two. The exponent is empirical; a model of pure noise then loses no more than κ²/8.
- The data's own sampling noise acts like privacy noise: 1/q² becomes 1/q² + f/n, which stops overfitting as ε grows.
- Adam and RMSProp divide by √v ≈ s while noise dominates, so a learning rate of κ/(R√T) displaces by κ/R; once the gradient
  dominates, √v exceeds s and the step limits itself. Descent takes κ/(R√T s), capped by the smoothness of the loss, 1/(LR²).
- Noise is proportional to the clip bound, bias falls with it: C is the gradient of a typical row at θ = 0, and grows with √q
  towards the largest possible one, where nothing is clipped. Below it, the clipped loss would no longer be calibrated.
- Batches of expected size b < n: nμ becomes b√T/z (the same for full batches), and s gains the sampling noise of a batch.
  Sampling amplifies without loss only while z ≥ 1 or so, which asks for T ≈ 2(μn/b)² rounds.

The mean of the last half of the iterates is released, which averages out most of the noise that the last one still carries;
except for plain descent, which is still on its way and releases the last.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from privopt.perexample.losses import Huber, Logistic, Loss, Multinomial
from privopt.postprocess.release import average, last

INTERCEPT = 0.5  # the constant feature, in units of a typical row: the intercept learns at the pace of a strong column
MOMENTUM = 0.9


@dataclass(frozen=True)
class Shape:
    """What the rule needs to know of a loss; targets of a regression lie in [−1, 1]."""

    reach: float  # of useful scores
    residual: float  # of a typical example before training
    largest: float  # residual that occurs


def shape(loss: Loss) -> Shape:
    """The numbers of this loss."""
    match loss:
        case Logistic():
            return Shape(1.0, 0.5, 1.0)
        case Multinomial():
            return Shape(1.0, math.sqrt(0.5), math.sqrt(2))
        case Huber(threshold=threshold):
            return Shape(0.25, min(0.2, threshold), threshold)
        case _:  # squared
            return Shape(0.25, 0.2, 1.0)


def worst_at_zero(loss: Loss) -> float:
    """The largest loss of an example whose scores are all 0."""
    scores = np.zeros(1 if loss.outputs == 1 else (1, loss.outputs))
    return float(loss.values(scores, np.ones(1))[0])


def default_rounds(method: str, *, size: int, batch: float, alone: float) -> int:
    """Rounds enough to be stable, and for small batches enough to be amplified; `alone` is 1/μ."""
    if batch == size:
        return 400 if method == "dp-gd" else 200
    return round(max(200.0, min(2 * (size / (alone * batch)) ** 2, 30 * size / batch)))


@dataclass(frozen=True)
class Steps:
    """How to clip and how to step; `options` are the method's own."""

    clip_bound: float
    learning_rate: float
    options: dict[str, Any]


def default_steps(
    method: str,
    loss: Loss,
    *,
    size: int,
    batch: float,
    width: int,
    row_norm: float,
    rounds: int,
    noise_multiplier: float,
    clip_bound: float | None = None,
    learning_rate: float | None = None,
) -> Steps:
    """The rule of this module; `width` counts coefficients per output, `row_norm` is a typical row's, both with intercept.

    A clip bound or learning rate that is given is taken as it is.
    """
    kind = shape(loss)
    quality = batch * math.sqrt(rounds) / (max(noise_multiplier, 1e-12) * width)
    limited = 1 / math.sqrt(1 / quality**2 + width / min(size, batch * rounds))
    shake = kind.reach * min(max(limited ** (1 / 3), 0.25), 4.0)
    if clip_bound is None:
        growth = max(1.0, math.sqrt(quality / loss.outputs) / 3)
        clip_bound = row_norm * min(kind.residual * growth, kind.largest)
    noise = noise_multiplier * clip_bound / batch
    if batch < size:
        noise = math.hypot(noise, kind.residual * row_norm / math.sqrt(batch * width))
    rate = shake / (row_norm * math.sqrt(rounds))
    if method in ("dp-adam", "dp-rmsprop"):
        return Steps(clip_bound, learning_rate or rate, {"stability": 1e-3 * noise, "release": average("last half")})
    cap = 1 / (loss.curvature * row_norm**2)
    descent = rate / max(noise, 1e-300)
    if method == "dp-gd":
        return Steps(clip_bound, learning_rate or min(descent, cap), {"release": last()})
    rolling = {"momentum_decay": MOMENTUM, "release": average("last half")}
    return Steps(clip_bound, learning_rate or min(descent * (1 - MOMENTUM), cap), rolling)
