"""Training a federation: a problem and an oracle for the same session that trains everything else."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from privopt.errors import InputError
from privopt.federated.nodes import FederatedOracle, Nodes
from privopt.loop import check_finite
from privopt.measure.clips import Clip
from privopt.measure.shared_noise import shared_noise
from privopt.methods import Method, check_delta, find_method
from privopt.methods.problem import Choices, LossFacts, Problem, SideFacts
from privopt.perexample.grads import Vector
from privopt.privacy.statement import Statement
from privopt.training.session import Released, Session, check_budget, check_plan
from privopt.training.settings import check_model

TRUSTED = "nodes clip each user's change as they are asked to; the server checks how long the sum of a node is, and no more"
SHARED = (
    "devices draw their share of the noise, and nobody sees the answer of a single node (a secure aggregation): whoever does "
    "sees it under that node's share of the noise only, and once more for each time that a round was repeated after a kill"
)
IN_TIME = "whether a node answers in time does not depend on its users' rows: it reads its file anew in each round"
APART = "no user has rows on two nodes: nodes do not compare their users, so such a user counts once on each"


@dataclass(frozen=True)
class ModelFacts:
    """What is publicly known of a model: the default rules ask for no more."""

    loss: LossFacts
    width: int  # directions that matter: columns with the intercept; inputs + 1 of a network
    dimension: int
    row_norm: float  # length of a typical row; of a typical gradient of a network's score
    side: SideFacts | None = None


def network_facts(model: Any, loss: Any, inputs: Any) -> ModelFacts:
    """The facts of a torch model, measured on made-up examples like `inputs`, the inputs of one example."""
    from privopt.nets.facts import count_inputs, facts_of_loss, gradient_facts

    typical, outputs = gradient_facts(model, inputs)
    dimension = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    return ModelFacts(facts_of_loss(loss, outputs), min(count_inputs(inputs), dimension) + 1, dimension, typical)


@dataclass(frozen=True)
class FederatedSettings:
    """What a user may say of a federation; `None` is left to the method's defaults."""

    method: str | Method = "dp-fedavg"
    rounds: int | None = None
    cohort: int | None = None  # expected users of a round
    clip_bound: float | Clip | None = None
    learning_rate: float | None = None  # of the server
    options: Mapping[str, Any] = field(default_factory=dict)  # the method's own

    @property
    def chosen(self) -> Choices:
        """What is for the method."""
        return Choices(self.clip_bound, self.rounds, self.cohort, self.learning_rate, self.options)


def check_federation(settings: FederatedSettings, facts: ModelFacts, session: Session, users: int) -> tuple[Method, Problem]:
    """Refuse what a federation cannot be trained with, before anything is paid or asked."""
    method = find_method(settings.method)
    check_model(method, "federated")
    check_budget(session.budget, session.ledger)
    check_delta(method, session.budget.delta)
    if settings.cohort is not None and settings.cohort > users:
        raise InputError(f"cohort is {settings.cohort}, but the federation has {users} users. Say {users}, or fewer.")
    choices = {"clip_bound": settings.clip_bound, "rounds": settings.rounds, "options": settings.options}
    method.check(choices, facts.loss, public=facts.side is not None and facts.side.public is not None)
    problem = Problem(
        model="federated",
        chosen=settings.chosen,
        loss=facts.loss,
        size=users,
        width=facts.width,
        dimension=facts.dimension,
        row_norm=facts.row_norm,
        single_release_noise=session.single_release_noise(),
        side=facts.side,
    )
    check_plan(method, problem, session.budget, session.accountant)
    return method, problem


def train_federation(
    nodes: Nodes,
    start: Vector,
    facts: ModelFacts,
    settings: FederatedSettings,
    session: Session,
    *,
    users_apart: bool = False,
    released: str = "the parameters of a federated model",
    assumed_public: Sequence[str] = (),
    paid_for: Sequence[str] = (),
) -> tuple[Released, Statement]:
    """Train a model that all users share, from public start parameters.

    **Guarantee** That of the session, for one user: each round draws users by coins, asks nodes for the sum of their clipped
    changes and hides it. It is planned within the budget and recorded before the model leaves.
    """
    session.seeded |= getattr(nodes, "seeded", False)
    oracle = FederatedOracle(nodes, len(start))
    if session.size != oracle.size:
        raise InputError(f"the session is for {session.size} users, but the nodes have {oracle.size}.")
    method, problem = check_federation(settings, facts, session, oracle.size)
    trained = session.train(method, problem, oracle, np.asarray(start, dtype=float))
    check_finite(trained.parameters)
    recipe = method.build(problem, trained.noise_multiplier)
    shared = any(isinstance(one, shared_noise) for one in recipe.measurements)
    statement = session.state(
        released,
        assumed_public=[
            f"the number of users ({session.size}) and of nodes ({len(nodes.sizes)}), and how many users each node has",
            "the model, its start values and the settings",
            *assumed_public,
        ],
        paid_for=paid_for,
        assumed=[TRUSTED, IN_TIME, *([SHARED] if shared else []), *([] if users_apart or len(nodes.sizes) == 1 else [APART])],
        settings={
            "method": method.name,
            "rounds": trained.rounds,
            "noise added by": "the users' devices, in shares" if shared else "the server",
            **trained.settings,
        },
    )
    return trained, statement
