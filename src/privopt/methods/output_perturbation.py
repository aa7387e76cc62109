"""Output perturbation: gradient descent on all rows, without noise, whose end is hidden once.

Zhang, Zheng, Mou, Wang, Efficient Private ERM for Smooth Objectives, Algorithm 1.
Symbols: T -> steps, η -> learning_rate, L -> lipschitz, β -> smoothness (of the loss without ridge), μ -> the ridge's strength
"""

from functools import lru_cache
from itertools import product
from typing import Any, NamedTuple

from privopt.measure.mechanisms import gamma_norm, gaussian
from privopt.measure.solutions import Sensitivity, stable_solution
from privopt.methods.method import ALL_EXAMPLES, Method, one_of
from privopt.methods.problem import Problem
from privopt.methods.rules import Arguments
from privopt.postprocess.regularizers import Regularizer, ridge, strong_convexity
from privopt.postprocess.updates import sgd
from privopt.recipe import Recipe, always


def output_perturbation(
    *,
    steps: int,
    noise_multiplier: float,
    lipschitz: float,
    smoothness: float,
    learning_rate: float | None = None,
    regularizer: Regularizer | None = None,
    sensitivity: Sensitivity = "tight",
    pure: bool = False,
) -> Recipe:
    """w_T + z after T steps w ← w − η(∇F(w) + μw); z is Gaussian, or of Gamma length if `pure`.

    The step is the paper's by default: 1/β, with a ridge term 1/(β + 2μ).

    **Guarantee** One release of the end, which one example moves by at most Δ (`stable_solution`): Gaussian(z), or 1/z-DP. The
    oracle has to promise `lipschitz` and `smoothness`; a regulariser has to be a ridge on every parameter.

    >>> output_perturbation(steps=300, noise_multiplier=2.0, lipschitz=1.0, smoothness=0.25).planned_event()
    GaussianDpEvent(noise_multiplier=2.0)
    >>> output_perturbation(steps=300, noise_multiplier=2.0, lipschitz=1.0, smoothness=0.25, pure=True).planned_event()
    PureDpEvent(epsilon=0.5)
    """
    convexity = strong_convexity(regularizer)
    step = 1 / (smoothness + 2 * convexity) if learning_rate is None else learning_rate
    noise = gamma_norm(noise_multiplier) if pure else gaussian(noise_multiplier)  # lines 4 to 8
    end = stable_solution(steps, step, lipschitz, smoothness, noise, convexity, sensitivity)  # lines 1 to 3
    return Recipe(1, always(end), update=sgd(1.0))  # w₀ − (w₀ − w_T + z)


RADIUS = 15.0  # ‖ŵ‖, for rows of length 1 and scores of reach 1
MOST = 400  # steps: what more of them would gain is small beside the time that they take
WORTH = 1e-4  # of the bound: what one more step has to gain
STEPS = (0.5, 0.75, 0.95)  # of the longest that are stable; the paper's are 0.5 of it


def radius(problem: Problem) -> float:
    """How long useful parameters are, at most."""
    return RADIUS * problem.loss.reach / problem.row_norm


def defaults(problem: Problem, noise_multiplier: float) -> Arguments:
    """As many steps as the bound on the excess risk asks for; a ridge is on the intercept, too.

    One example moves the end of T steps η by Δ ≤ ηTL/n (`privopt.measure.solutions`): more steps come closer to the optimum
    and need more noise. The number of steps minimises what is known of both, from public numbers:

        F(w_T) − F(ŵ) ≤ (β′D²/2) max{1/(1 + 2Th), (1 − h)^{2T}},  h = ηβ′,  β′ = β + μ;  with a ridge also
                      ≤ (β′D²/2) (1 − ημ)^{2T}
        E F(w_T + z) − F(w_T) ≤ (tR² + μd)σ²/2,  σ² the variance of z along any direction, t the trace of the loss's curvature

    The first is the rate of Drori and Teboulle (proven for h ≤ 1, their conjecture above; no guarantee rests on it). The second
    holds because a row x sees its scores shaken by xᵀz alone, so no factor d appears as in the paper's (β/2)E‖z‖². D bounds ‖ŵ‖,
    which nobody knows: 15 over the length of a row, and the rule depends on it weakly.
    """
    choices, convexity = problem.chosen, problem.ridge
    sensitivity: Sensitivity = choices.options.get("sensitivity", "tight")
    lipschitz = problem.loss.steepness * problem.row_norm
    known = _Known(
        noise=problem.single_release_noise,
        size=problem.size,
        dimension=problem.dimension,
        outputs=problem.loss.outputs,
        lipschitz=lipschitz,
        smoothness=problem.smoothness,
        convexity=convexity,
        longest=radius(problem),
        sensitivity=sensitivity,
        pure=problem.pure,
    )
    steps, step = _least_excess(known, choices.rounds, choices.rate)
    return {
        "steps": steps,
        "lipschitz": lipschitz,
        "smoothness": problem.smoothness,
        "learning_rate": step,
        "regularizer": ridge(convexity) if convexity else None,
        "sensitivity": sensitivity,
        "pure": problem.pure,
    }


class _Known(NamedTuple):
    """The public numbers that the bound is made of."""

    noise: float
    size: int
    dimension: int
    outputs: int
    lipschitz: float
    smoothness: float
    convexity: float
    longest: float
    sensitivity: Sensitivity
    pure: bool

    def excess(self, choice: tuple[int, float]) -> float:
        """The bound for a number of steps and their size."""
        (steps, step), both, convexity = choice, self.smoothness + self.convexity, self.convexity
        left = max(1 / (1 + 2 * steps * step * both), (1 - step * both) ** (2 * steps))
        left = min(left, (1 - step * convexity) ** (2 * steps)) if convexity else left
        trace = self.smoothness * min(self.outputs, 2)  # of diag(p) − ppᵀ: at most 1, twice the largest eigenvalue
        end = stable_solution(steps, step, self.lipschitz, self.smoothness, gaussian(0.0), convexity, self.sensitivity)
        spread = (self.noise * end.bound(self.size)) ** 2 * (self.dimension + 1 if self.pure else 1)
        return (both * self.longest**2 * left + (trace + convexity * self.dimension) * spread) / 2 * (1 + WORTH * steps)


@lru_cache(maxsize=16)  # calibration asks for the same problem many times
def _least_excess(known: _Known, rounds: int | None, rate: float | None) -> tuple[int, float]:
    """The number of steps, and their size."""
    numbers = [rounds] if rounds else range(1, MOST + 1)
    shares = STEPS if known.sensitivity == "tight" else STEPS[:1]
    sizes = [share * 2 / (known.smoothness + 2 * known.convexity) for share in shares]
    return min(product(numbers, [rate] if rate else sizes), key=known.excess)


def row_limit(problem: Problem) -> float:
    """How long a row may be: one that is longer is cut to it."""
    return problem.row_norm


def remarks(problem: Problem, arguments: Arguments) -> dict[str, Any]:
    """What one example can do to the solution."""
    measurement: Any = output_perturbation(noise_multiplier=1.0, **_without_noise(arguments)).measurements[0]
    return {
        "gradient steps, without noise": arguments["steps"],
        "longest row": problem.row_norm,
        "one example moves the solution by": measurement.bound(problem.size),
        **({"ridge": "on the intercept, too"} if problem.ridge else {}),
    }


def _without_noise(arguments: Arguments) -> Arguments:
    return {name: value for name, value in arguments.items() if name != "noise_multiplier"}


METHOD = Method(
    "output-perturbation",
    output_perturbation,
    defaults,
    paper="Zhang, Zheng, Mou, Wang: Efficient Private ERM for Smooth Objectives",
    summary="gradient descent without noise, whose end is hidden once",
    options={"sensitivity": one_of("tight", "paper")},
    needs="a convex loss with bounded gradients: logistic, multinomial or Huber",
    guarantee="(ε, δ)-DP, or ε-DP with δ = 0",
    models=("linear",),
    pure=True,
    convex=True,
    bounded=True,
    refuses={
        "batch_size": ALL_EXAMPLES.format(name="output-perturbation", instead="bassily-sgd"),
        "clip_bound": "output-perturbation cuts rows, not gradients: leave clip_bound out; bounds=… says how long a row may be.",
    },
    row_limit=row_limit,
    remarks=remarks,
)
