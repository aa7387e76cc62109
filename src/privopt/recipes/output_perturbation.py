"""Output perturbation: gradient descent on all rows, without noise, whose end is hidden once.

Zhang, Zheng, Mou, Wang, Efficient Private ERM for Smooth Objectives, Algorithm 1.
Symbols: T -> steps, η -> learning_rate, L -> lipschitz, β -> smoothness (of the loss without ridge), μ -> the ridge's strength
"""

from privopt.measure.mechanisms import gamma_norm, gaussian
from privopt.measure.solutions import Sensitivity, stable_solution
from privopt.postprocess.regularizers import Regularizer, strong_convexity
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
