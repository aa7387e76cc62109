"""Training a federation: a problem and an oracle for the same session that trains everything else."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from privopt.errors import BudgetExceeded, InputError
from privopt.federated.nodes import FederatedOracle, Nodes
from privopt.loop import check_finite
from privopt.measure.clips import Clip
from privopt.measure.measurement import shared_noise
from privopt.methods import Method, check_delta, find_method
from privopt.methods.problem import Choices, LossFacts, Problem, SideFacts
from privopt.perexample.grads import Vector
from privopt.postprocess.side_information import fixed_scale
from privopt.privacy.accountants import epsilon
from privopt.privacy.events import DpEvent
from privopt.privacy.statement import Statement
from privopt.training.linear import round_up
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
    """The settings of a federation; `None` is left to the method's defaults."""

    method: str | Method = "dp-fedavg"
    rounds: int | None = None
    cohort: int | None = None  # expected users of a round
    clip_bound: float | Clip | None = None
    learning_rate: float | None = None  # of the server
    options: Mapping[str, Any] = field(default_factory=dict)  # the method's own

    @property
    def chosen(self) -> Choices:
        """The settings that are the method's."""
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
    side = _side_of_scale(settings.options["scale"], facts) if facts.side is None and "scale" in settings.options else facts.side
    problem = Problem(
        model="federated",
        chosen=settings.chosen,
        loss=facts.loss,
        size=users,
        width=facts.width,
        dimension=facts.dimension,
        row_norm=facts.row_norm,
        single_release_noise=session.single_release_noise(),
        side=side,
    )
    check_plan(method, problem, session.budget, session.accountant)
    if settings.options.get("noise") == "paper":
        _check_device_noise(method, problem, session)
    return method, problem


def _check_device_noise(method: Method, problem: Problem, session: Session) -> None:
    """Refuse a `device_noise` that is too small for the budget, before any node is asked; name the least that fits."""

    def event(device_noise: float) -> DpEvent:
        options = {**problem.chosen.options, "device_noise": device_noise}
        return method.build(problem.choosing(options=options), 1.0).planned_event()

    given, least = problem.chosen.options["device_noise"], session.noise_for(event)
    if given < least:
        budget, rounds = session.budget, method.build(problem, 1.0).rounds
        cost = epsilon(event(given), budget.delta, accountant=session.accountant)
        raise BudgetExceeded(
            f'noise="paper" with device_noise={given:.6g} costs epsilon = {cost:.4g} in {rounds} rounds of {problem.batch:.6g} '
            f"users, but the budget is {budget.epsilon:.4g}. device_noise ≥ {round_up(least)} fits."
        )


def _side_of_scale(given: Any, facts: ModelFacts) -> SideFacts:
    """The facts that follow from a public scale A of the parameters, where there are no public rows to measure.

    A is the typical size of each coordinate's gradient, so rows of length R that fit it have Σ (x/A)² = R² · d/Σ A².
    """
    try:
        scale = np.asarray(given, dtype=float)
    except (TypeError, ValueError):
        scale = np.zeros(0)
    if scale.shape != (facts.dimension,):
        found = f"has the shape {scale.shape}" if scale.size else f"is a {type(given).__name__}"
        raise InputError(
            f"the scale {found}, but the model has {facts.dimension} parameters: give a finite number > 0 for each of them, "
            "intercepts included."
        )
    fixed_scale(scale)  # validates it
    typical = facts.row_norm / float(np.sqrt(np.mean(scale**2)))
    return SideFacts(None, scale, typical, 0.0, declared=["the scale by which local steps are divided"])


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
    public_data: Sequence[str] = (),
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
            *([] if problem.side is None else problem.side.declared),
            *assumed_public,
        ],
        paid_for=paid_for,
        public_data=public_data,
        assumed=[TRUSTED, IN_TIME, *([SHARED] if shared else []), *([] if users_apart or len(nodes.sizes) == 1 else [APART])],
        settings={
            "method": method.name,
            "rounds": trained.rounds,
            "noise added by": "the users' devices, in shares" if shared else "the server",
            **trained.settings,
        },
    )
    return trained, statement
