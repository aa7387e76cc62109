"""Nodes: where users' rows are. A node is asked about some of its users and answers with one clipped sum.

The server knows how many users each node has, and numbers the users of all nodes; it never sees a user's row, name or vector. A
node that does not answer, or whose answer could not come from the users that it was asked about, counts as if its users had not
been drawn: the noise is the same.

Sampling hides a user only as long as nobody learns who was drawn. So every node is asked in every round, even if none of its
users was drawn: which nodes answer, and whether a run stops because none does, then tells nothing about the draw.

Little is imported here: Flower starts a process of a node for each message.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from privopt.errors import CompositionError, InputError
from privopt.measure.clips import automatic, l2
from privopt.measure.randomness import Rng, generator
from privopt.perexample.grads import ClipFactors, PerExampleGrads, Rows, Vector
from privopt.perexample.user_vectors import LocalSteps, Users, clipped_sum

ROUNDING = 1e-9  # by how much a sum of clipped vectors may exceed its bound
DEVIATIONS = 10.0  # of the length of a node's own noise, beyond which its answer is refused


# ---------------------------------------------------------------- one node


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

    def find_fault(self, request: Request) -> str | None:
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
    from the node's own generator: the server cannot subtract it. Beside a noisy sum no exact number leaves the node.
    """
    total, within = clipped_sum(users, request.users.tolist(), request.parameters, request.local, request.scale, request.clip)
    if request.deviation:
        from privopt.measure.mechanisms import gaussian  # accounting comes with it, which other answers do not wait for

        total, within = gaussian(request.deviation).release(total, 1.0, generator() if rng is None else rng), 0
    return Reply(total, within, len(request.users))


# ---------------------------------------------------------------- all of them, for the server


class Nodes(Protocol):
    """The nodes of a federation, whatever carries the requests to them."""

    @property
    def sizes(self) -> Sequence[int]:
        """The number of users of each node."""
        ...

    def ask(self, requests: Mapping[int, Request]) -> Mapping[int, Reply]:
        """Send the requests, and return the replies that can be used."""
        ...


class NodesInProcess:
    """Nodes in this process: no transport, the same answers.

    A `seed` is for tests: the noise of a node, where nodes draw it, is then the same whenever it is asked the same.
    """

    def __init__(self, nodes: Sequence[Users], seed: int | None = None) -> None:
        self._nodes, self._seed = nodes, seed
        self.sizes, self.seeded = [node.size for node in nodes], seed is not None

    def ask(self, requests: Mapping[int, Request]) -> dict[int, Reply]:
        replies = {node: answer(self._nodes[node], request, self._rng(node, request)) for node, request in requests.items()}
        return {node: reply for node, reply in replies.items() if reply.find_fault(requests[node]) is None}

    def _rng(self, node: int, request: Request) -> Rng | None:
        if self._seed is None:
            return None
        asked = f"{self._seed} {node} {request.local} {request.clip} {request.deviation} {request.users.tolist()} ".encode()
        scale = b"" if request.scale is None else request.scale.tobytes()
        return generator(int.from_bytes(hashlib.sha256(asked + request.parameters.tobytes() + scale).digest()))


class FederatedOracle:
    """A federation as an oracle: its units are users, numbered through all nodes, and their vectors stay where they are.

    **Guarantee** Which nodes are asked depends on no draw: all that have users, in every round.

    Nodes are sent each iterate, so a run with a checkpoint saves an iterate before it is sent (`shows_iterates`).
    """

    shows_iterates = True

    def __init__(self, nodes: Nodes, dimension: int) -> None:
        if not sum(nodes.sizes):
            raise InputError("the nodes have no users: there is nobody to learn from.")
        self._nodes, self.dimension = nodes, dimension
        self.size = sum(nodes.sizes)
        self._ends = np.cumsum(nodes.sizes)

    def __call__(self, parameters: Vector, rows: Rows) -> PerExampleGrads:
        raise CompositionError("a federation answers client_update(…) only: gradients of single rows do not leave their nodes.")

    def changes(self, parameters: Vector, users: Rows, local: LocalSteps, scale: Vector | None) -> "UserVectors":
        """The vectors of these users; `None` is all of them."""
        chosen = np.arange(self.size) if users is None else np.asarray(users)
        node_of = np.searchsorted(self._ends, chosen, side="right")
        starts = self._ends - self._nodes.sizes
        parts = {node: chosen[node_of == node] - starts[node] for node, size in enumerate(self._nodes.sizes) if size}
        return UserVectors(self._nodes, parts, np.asarray(parameters, dtype=float), local, scale)


class UserVectors:
    """One vector per user, on their nodes: asked for sums, never for themselves."""

    def __init__(
        self, nodes: Nodes, users: Mapping[int, Vector], parameters: Vector, local: LocalSteps, scale: Vector | None
    ) -> None:
        self._nodes, self._users = nodes, users
        self._parameters, self._local, self._scale = parameters, local, scale
        self._within: tuple[float, float] | None = None
        self.count = sum(map(len, users.values()))

    def clipped_sum(self, clip: ClipFactors, weight: float = 1.0, out: Vector | None = None) -> Vector:
        """weight × Σ of the clipped vectors, added to `out` if that is given."""
        total, _ = self._ask(clip, 0.0)
        return weight * total if out is None else out + weight * total

    def noisy_sum(self, clip: ClipFactors, deviation: float) -> tuple[Vector, float]:
        """Σ of the clipped vectors with noise that the users' nodes drew, and the share of its variance that came.

        The noise of all nodes together has this deviation: each draws the share of its users among those asked.
        """
        return self._ask(clip, deviation)

    def count_within(self, bound: float) -> float:
        """How many vectors have an l2 norm of at most `bound`; nodes tell it with the sum that is clipped to this bound.

        A user whose node did not answer counts one half, so that it is on neither side: else a bound that follows the count
        would grow while a node is away.
        """
        if self._within is None or self._within[0] != bound:
            self._ask(l2(bound), 0.0)
        assert self._within is not None
        return self._within[1]

    def _ask(self, clip: ClipFactors, deviation: float) -> tuple[Vector, float]:
        if type(clip) not in (l2, automatic):
            raise CompositionError(f"{type(clip).__name__} cannot be sent to nodes. Use l2(bound), automatic or adaptive.")
        assert isinstance(clip, l2 | automatic)
        requests = {
            node: Request(
                self._parameters, self._scale, self._local, clip, users, deviation * math.sqrt(len(users) / max(self.count, 1))
            )
            for node, users in self._users.items()
        }
        replies = self._nodes.ask(requests)
        total, arrived = np.zeros(len(self._parameters)), 0
        for node in sorted(replies):  # in this order: another would have other last bits
            total += replies[node].total
            arrived += replies[node].users
        self._within = clip.bound, sum(reply.within for reply in replies.values()) + (self.count - arrived) / 2
        return total, arrived / self.count if self.count else 0.0
