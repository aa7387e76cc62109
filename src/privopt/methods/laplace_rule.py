"""The default rule of SAGD: that of RMSProp, for Laplace noise after a clip in l1.

Laplace noise of multiplier z after a clip to l1 norm C₁ has the variance of Gaussian noise of multiplier √2 z C₁/C₂ after a
clip to l2 norm C₂: the rule is asked for that. Of the l1 and l2 norms of a row it is publicly known only that their ratio lies
between 1 and √f, for f columns: f^¼, the middle of it, is C₁/C₂; times √2 for several classes, whose residuals are vectors too.

Without δ the noise of a round grows with the number T of rounds, and not with its root: what all rounds together displace grows
with √T, and few rounds are better. The running mean v starts from 0, so it is too small until it has forgotten that: it is one
over ten rounds or so.
"""

import math

from privopt.methods.problem import Problem
from privopt.methods.rules import Arguments, default_steps

ROUNDS, PURE_ROUNDS = 200, 20
DECAY = 0.9


def laplace_steps(problem: Problem, noise_multiplier: float, rounds: int, batch: float, *, noisy: int | None = None) -> Arguments:
    """Clip bound, learning rate, decay, stability and release of so many rounds, of which `noisy` have noise, if not all."""
    noisy = noisy or rounds
    wider = problem.width**0.25 * (math.sqrt(2) if problem.loss.outputs > 1 else 1.0)
    free = problem.choosing(learning_rate=None)
    found = default_steps("adaptive", free, math.sqrt(2) * wider * noise_multiplier, noisy, batch=batch, longer=wider)
    rate = found["learning_rate"] * math.sqrt(noisy / rounds)  # the rule shares it out among √rounds
    return {**found, "clip_bound": wider * found["clip_bound"], "learning_rate": rate, "decay": DECAY}
