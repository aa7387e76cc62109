"""Requests and replies: what a server asks of a node, and what the node answers.

Little is imported here: Flower starts a process for each message.
"""

import math
from dataclasses import dataclass

import numpy as np

from privopt.measure.clips import automatic, l2
from privopt.measure.randomness import Rng, generator
from privopt.perexample.grads import Vector
from privopt.perexample.user_vectors import LocalSteps, Users, clipped_sum

ROUNDING = 1e-9  # by how much a sum of clipped vectors may exceed its bound
DEVIATIONS = 10.0  # of the length of a node's own noise, beyond which its answer is refused


@dataclass(frozen=True, eq=False)
class Request:
    """What a node is asked: the clipped sum of these users' vectors, with noise of this deviation."""

    parameters: Vector
    scale: Vector | None
    local: LocalSteps
    clip: l2 | automatic
    users: Vector  # numbered from 0 within the node
    deviation: float = 0.0

    @property
    def longest(self) -> float:
        """The length that no honest answer exceeds (with noise: in less than one answer in 10²⁰)."""
        noise = self.deviation * (math.sqrt(len(self.parameters)) + DEVIATIONS)
        return len(self.users) * self.clip.bound * (1 + ROUNDING) + noise


@dataclass(frozen=True, eq=False)
class Reply:
    """What a node answers. `within` counts users whose vectors were short enough as they were; it is 0 beside a noisy sum."""

    total: Vector
    within: int
    users: int

    def refused(self, request: Request) -> str | None:
        """Why this cannot be the answer to a request; `None` if it can."""
        if self.users != len(request.users):
            return "it speaks for more or fewer users than it was asked about"  # how many those are is secret
        if self.total.shape != request.parameters.shape:
            return f"its sum has the shape {self.total.shape}, but the model has {len(request.parameters)} parameters"
        if not 0 <= self.within <= self.users:
            return "it counts more short vectors than it has users, or fewer than none"
        with np.errstate(all="ignore"):
            length = float(np.linalg.norm(self.total))
        if not length <= request.longest:
            return "its sum is not finite" if not math.isfinite(length) else "its sum is longer than its users may make it"
        return None


def answer(users: Users, request: Request, rng: Rng | None = None) -> Reply:
    """Answer a request, on the node.

    **Guarantee** One user moves the sum by at most the clip's bound (`clipped_sum`). Noise, if it is asked for, is drawn here,
    from the node's own generator: the server cannot subtract it. Beside a noisy sum nothing exact is told.
    """
    total, within = clipped_sum(users, request.users.tolist(), request.parameters, request.local, request.scale, request.clip)
    if request.deviation:
        from privopt.measure.mechanisms import gaussian  # accounting comes with it, which other answers do not wait for

        total, within = gaussian(request.deviation).release(total, 1.0, generator() if rng is None else rng), 0
    return Reply(total, within, len(request.users))
