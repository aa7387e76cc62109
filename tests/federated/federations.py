"""Federations for tests: made-up users with few rows, honest nodes and others."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from privopt.federated.nodes import FederatedOracle, NodesInProcess, Reply, Request, answer
from privopt.federated.training import ModelFacts
from privopt.methods.problem import logistic_facts
from privopt.perexample.grads import Vector
from privopt.perexample.losses import Logistic
from privopt.perexample.user_vectors import Change, LinearUsers, LocalSteps, Users, group_rows

COLUMNS = 3
LOCAL = LocalSteps(steps=3, learning_rate=0.5, batch_size=4)


def linear_users(users: int = 12, seed: int = 0, rows: int = 5) -> LinearUsers:
    """Users of a logistic model, with up to `rows` rows each."""
    rng = np.random.default_rng(seed)
    ids = np.repeat(np.arange(users), rng.integers(1, rows + 1, users))
    matrix = rng.standard_normal((len(ids), COLUMNS))
    targets = (matrix[:, 0] + 0.3 * rng.standard_normal(len(ids)) > 0).astype(float)
    return LinearUsers(matrix, targets, group_rows(ids), Logistic(), intercept=1.0)


def oracle(nodes: Sequence[Users] | None = None) -> FederatedOracle:
    """A federation of two nodes in this process."""
    return FederatedOracle(NodesInProcess(nodes or [linear_users(7, 1), linear_users(5, 2)], seed=0), COLUMNS + 1)


def facts() -> ModelFacts:
    """What is known of the model of `linear_users`."""
    return ModelFacts(logistic_facts(), COLUMNS + 1, COLUMNS + 1, 2.0)


class GivenUsers:
    """Users whose vectors are given; an exception is raised instead of being a vector."""

    def __init__(self, vectors: Sequence[Any]) -> None:
        self._vectors = vectors
        self.size = len(vectors)
        self.dimension = 3

    def change(self, parameters: Vector, user: int, local: LocalSteps, scale: Vector | None) -> Change:
        found = self._vectors[user]
        if isinstance(found, Exception):
            raise found
        return Change(np.asarray(found, dtype=float))


class FaultyNodes:
    """Nodes of which some answer as `faults` says: None for no answer, or a function of the honest reply."""

    def __init__(self, nodes: Sequence[Users], faults: Mapping[int, Any]) -> None:
        self._nodes, self._faults = nodes, faults
        self.sizes = [node.size for node in nodes]
        self.refused: dict[int, str] = {}

    def ask(self, requests: Mapping[int, Request]) -> dict[int, Reply]:
        """As a transport does: what cannot be an answer is left out."""
        replies = {}
        for node, request in requests.items():
            reply = answer(self._nodes[node], request)
            fault = self._faults.get(node, lambda honest: honest)
            if fault is None:
                continue
            reply = fault(reply)
            if (why := reply.find_fault(request)) is None:
                replies[node] = reply
            else:
                self.refused[node] = why
        return replies
