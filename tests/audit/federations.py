"""Games against federations: a user far away from all others, or one who contributes nothing, whose number stays public."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from privopt.federated.nodes import FederatedOracle, NodesInProcess, Request
from privopt.federated.training import FederatedSettings, ModelFacts, check_federation, train_federation
from privopt.measure.clips import adaptive
from privopt.measure.measurement import Measurement
from privopt.measure.mechanisms import gaussian
from privopt.measure.queries import gradient
from privopt.measure.randomness import Rng, generator
from privopt.measure.samplers import full_batch
from privopt.methods.problem import SideFacts, logistic_facts
from privopt.perexample.grads import Materialized, Rows, Vector
from privopt.perexample.losses import Logistic
from privopt.perexample.user_vectors import Change, LinearUsers, LocalSteps, Users, group_rows
from privopt.privacy.accountants import epsilon
from privopt.privacy.budget import Budget
from privopt.state import PublicState
from privopt.training.session import Session
from tests.audit.auditing import Game
from tests.audit.frontends import Captured
from tests.audit.transcripts import Start

USERS, WIDTH, DELTA = 4, 2, 0.1
BUDGET = Budget(2.0, DELTA, unit="user")


class _Recalled:
    """Users that compute their vectors at the first point once: in every first round they are the same."""

    def __init__(self, users: Users) -> None:
        self.size, self.dimension, self._users = users.size, users.dimension, users
        self._first: dict[int, Change] = {}

    def change(self, parameters: Vector, user: int, local: LocalSteps, scale: Vector | None) -> Change:
        if parameters.any():
            return self._users.change(parameters, user, local, scale)
        if user not in self._first:
            self._first[user] = self._users.change(parameters, user, local, scale)
        return self._first[user]


class _Nodes(NodesInProcess):
    """Nodes whose noise differs from replay to replay, and not from one test to the next."""

    def __init__(self, nodes: Sequence[Users]) -> None:
        super().__init__(nodes)
        self._stream = generator(7)

    def _rng(self, node: int, request: Request) -> Rng:
        return self._stream


def nodes(canary: bool, others: bool) -> NodesInProcess:
    """Two nodes of two users. The canary has a hundred rows that all pull one way; the others, if they count, a row each."""
    rng = np.random.default_rng(3)
    ids = np.concatenate([np.zeros(100, dtype=int), np.arange(1, USERS)])
    rows = rng.uniform(-0.5, 0.5, (len(ids), WIDTH)) * others
    rows[:100] = [1e3 * canary, 0.0]
    targets = np.concatenate([np.zeros(100), np.arange(1, USERS) % 2])

    def part(of: Vector) -> Users:
        return _Recalled(LinearUsers(rows[of], targets[of], group_rows(ids[of]), Logistic(), intercept=0.0))

    return _Nodes([part(ids < USERS // 2), part(ids >= USERS // 2)])


def captured(method: str, *, rounds: int, cohort: int = USERS, others: bool = True, **options: Any) -> Captured:
    """Both sides of a game, and the statement of a run."""
    side = SideFacts(None, np.array([1.0, 0.3]), 2.0, 0.0) if method == "fed-adadps" else None
    options |= {"scale": "known"} if side else {}
    facts = ModelFacts(logistic_facts(), WIDTH, WIDTH, 1.0, side)
    settings = FederatedSettings(method, rounds=rounds, cohort=cohort, options=options)
    session = Session(BUDGET, USERS, seed=0)
    found, problem = check_federation(settings, facts, session, USERS)
    noise = session.noise_for(lambda z: found.build(problem, z).planned_event())
    recipe = found.build(problem, noise)
    present, absent = (Start(recipe, FederatedOracle(nodes(canary, others), WIDTH), np.zeros(WIDTH)) for canary in (True, False))
    _, statement = train_federation(nodes(True, others), np.zeros(WIDTH), facts, settings, session)
    assert statement.event == recipe.planned_event()
    return Captured(present, absent, statement)


class _Far:
    """Rows of which the first is far away; or contributes nothing, neither to the sum nor to the count."""

    size = USERS

    def __init__(self, canary: bool) -> None:
        self._vectors = np.zeros((USERS, 1))
        self._vectors[0] = 1e6 * canary
        self._missing = 0.5 * (not canary)

    def __call__(self, parameters: Vector, rows: Rows) -> Materialized:
        found = Materialized(self._vectors)
        within = found.count_within
        found.count_within = lambda bound: within(bound) - self._missing  # type: ignore
        return found


def adaptive_clip(share: float = 0.3) -> Game:
    """What the noisy sum and the next bound of an adaptive clip tell together, by their likelihoods."""
    noise, clip = 1.0, adaptive(1.0, share=share, rate=0.01)
    asked = Measurement(full_batch(), [gradient() @ clip], gaussian(noise))
    of_sum, of_count = noise / math.sqrt(1 - share), noise / (2 * math.sqrt(share))

    def play(canary: bool, count: int) -> Vector:
        rng, oracle, at = generator(11 + canary), _Far(canary), PublicState(np.zeros(1))
        scores = []
        for _ in range(count):
            noisy = asked.measure(oracle, at, 0, rng)
            total = float(noisy.value[0]) * USERS
            counted = (0.5 - math.log(noisy.carry["clip_bound"]) / clip.rate - 0.5) * USERS  # within, less half of the rows
            around = USERS - 1 - USERS / 2  # of the others
            likelier = _normal(total - 1, of_sum) + _normal(counted - around, of_count)
            scores.append(likelier - _normal(total, of_sum) - _normal(counted - around - 0.5, of_count))
        return np.array(scores)

    return Game(epsilon(asked.event(0), DELTA), DELTA, play, tight=False)


def _normal(x: float, deviation: float) -> float:
    return -(x**2) / (2 * deviation**2)
