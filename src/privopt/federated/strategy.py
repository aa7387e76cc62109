"""A wrapper that makes the strategy of an existing Flower app private.

The wrapped strategy keeps what it does with an average: its server-side optimizer, its configuration of clients. What touches a
node's reply is done here, and the wrapped strategy is given one reply, which is private already:

    coins (who takes part) → replies → change → clip → sum → noise  ── ledger ──▶  one reply → wrapped strategy → model

What must stay true: the wrapped strategy learns neither who was drawn nor what any node replied, so all it does is
post-processing. A round is paid for before its noise is drawn. A round that was configured is aggregated once, whatever came
back: whoever could drop a round and draw another would choose among draws, and what was priced is one.
"""

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from os import PathLike
from typing import Any, ClassVar, NamedTuple, NoReturn, SupportsIndex

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.serverapp.exception import PrivacyBudgetExhausted
from flwr.serverapp.strategy import (
    Bulyan,
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
    FedMedian,
    FedTrimmedAvg,
    FedXgbBagging,
    FedXgbCyclic,
    Krum,
    MultiKrum,
    QFedAvg,
    Result,
    Strategy,
)
from flwr.serverapp.strategy.strategy_utils import aggregate_metricrecords

from privopt.errors import BudgetExceeded, CompositionError, InputError, LedgerError
from privopt.federated.arrays import SentModel, add_clipped
from privopt.limits import MOST_ROUNDS
from privopt.measure.clips import l2
from privopt.measure.measurement import Noisy
from privopt.measure.mechanisms import gaussian
from privopt.measure.randomness import Rng
from privopt.measure.samplers import Sampler, full_batch, poisson
from privopt.measure.units import Unit, check_unit, each_user
from privopt.perexample.grads import Vector
from privopt.privacy.accountants import Accountant, epsilon
from privopt.privacy.budget import Budget, cautions
from privopt.privacy.calibration import COARSER, calibrate
from privopt.privacy.events import DpEvent, SelfComposedDpEvent
from privopt.privacy.ledger import Ledger, Run
from privopt.privacy.statement import Statement
from privopt.training.session import Session

LOG = logging.getLogger("flwr")  # so that it appears between the lines of Flower's own strategies

_CHOOSES = (
    "it chooses among the replies of nodes, and privately there is one reply, their noisy mean. FedAvg does the same with it"
)
_TREES = "it merges trees, which are not vectors that can be clipped and averaged"
_NOISE = "it adds noise of its own. Wrap the strategy inside it"
REFUSED: dict[type[Strategy], str] = {
    Krum: _CHOOSES,
    MultiKrum: _CHOOSES,
    Bulyan: _CHOOSES,
    FedMedian: _CHOOSES,
    FedTrimmedAvg: _CHOOSES,
    QFedAvg: "it weights nodes by their training losses, which are not private. FedAvg weights all nodes equally",
    FedXgbBagging: _TREES,
    FedXgbCyclic: _TREES,
    DifferentialPrivacyServerSideFixedClipping: _NOISE,
    DifferentialPrivacyClientSideFixedClipping: _NOISE,
    DifferentialPrivacyServerSideAdaptiveClipping: _NOISE,
    DifferentialPrivacyClientSideAdaptiveClipping: _NOISE,
}


@dataclass(frozen=True)
class NodeMean:
    """The noisy mean of the changes of the nodes that were drawn, over the *expected* number of them.

    **Guarantee** `sampler.amplify(Gaussian(z))`, for one node more or less: its clipped change has an l2 norm of at most C, so
    the sum divided by the constant b moves by at most C/b, and the noise is z times that.
    """

    sampler: Sampler
    clip: l2
    mechanism: gaussian
    expected: float
    unit: ClassVar[Unit] = each_user()

    @property
    def event(self) -> DpEvent:
        """What one round costs."""
        return self.sampler.amplify(self.mechanism.event, 0)

    def draw(self, nodes: Sequence[int], rng: Rng) -> list[int]:
        """Toss a coin for each node."""
        places = self.sampler.draw(len(nodes), 0, rng)
        return list(nodes) if places is None else [nodes[place] for place in places]

    def release(self, changes: Iterable[Vector | None], zero: Vector, rng: Rng) -> Noisy:
        """Clip each change, add them up, divide, and add noise. `None` is a node without a usable reply."""
        mean = zero
        for change in changes:
            mean = add_clipped(change, self.clip, mean, 1 / self.expected)
        return Noisy(self.mechanism.release(mean, self.clip.bound / self.expected, rng), self.event)


class _OpenRound(NamedTuple):
    """A round between `configure_train` and `aggregate_train`."""

    number: int
    message: Message  # what each drawn node is sent
    key: str  # of its ArrayRecord
    sent: SentModel
    drawn: frozenset[int]  # secret


class PrivateStrategy(Strategy):
    """A Flower strategy under user-level differential privacy. One Flower node is one user.

    `rounds` rounds are planned within the budget; `cohort` of `population` users take part in a round, on average. `ledger` is
    the path of a file that holds the budget (a server that was killed, and started again with the same file and settings, goes
    on with the rounds that are left), or a `Ledger`, whose cap, if it has one, then counts. `seed` is for tests.

    **Guarantee** Everything that leaves the server (the models sent to nodes, the result) is (ε, δ)-DP for one user:

    - *Query.* θ_i − θ, for the model θ that was sent and the model θ_i that node i replied with, all floating-point arrays as
      one vector. No reply, an error, several replies, other names or shapes, or a number that is not finite: the zero vector.
    - *Unit and sensitivity.* The server clips each node's vector to l2 norm C, gives each the weight 1, whatever numbers of
      examples nodes report, and divides the sum by b = `cohort`, a constant. One node's contribution moves that by at most C/b.
    - *Sampling.* Each connected node takes part by a coin of its own with probability q = cohort/population, from the keyed
      generator. The wrapped strategy's sampling decides nothing. More or fewer connected nodes than `population` change neither
      q nor b.
    - *Event.* Noise N(0, (zC/b)²) on each coordinate: PoissonSampled(q, Gaussian(z)) for each round, Gaussian(z) if q = 1. z is
      calibrated so that `rounds` of them cost at most ε. Each is charged, durably if the ledger is a file, before noise is drawn.
    - *Post-processing.* The wrapped strategy gets one reply: θ plus the noisy mean, weight 1, no metrics.

    Metrics of clients are dropped, and nodes are asked for no evaluation, unless `unaccounted_evaluation` says that the metrics
    they report may leave although nothing pays for them. Use `start(evaluate_fn=…)`, with data of the server.

    The server is trusted: it, the SuperLink and their logs see replies, and who was drawn.

    >>> strategy = PrivateStrategy(
    ...     FedAvg(), budget=Budget(8.0, 1e-5, unit="user"), rounds=20, cohort=100, population=1000, clip_bound=1.0
    ... )
    >>> round(strategy.noise_multiplier, 2), strategy.epsilon()
    (0.68, 0.0)
    """

    def __init__(
        self,
        strategy: Strategy,
        *,
        budget: Budget,
        rounds: int,
        cohort: float,
        population: int,
        clip_bound: float,
        ledger: Ledger | str | PathLike[str] | None = None,
        seed: int | None = None,
        accountant: Accountant = "auto",
        unaccounted_evaluation: bool = False,
    ) -> None:
        _check_strategy(strategy)
        _check_numbers(budget, rounds, cohort, population, clip_bound)

        def mean(noise_multiplier: float) -> NodeMean:
            sampler = poisson(cohort / population) if cohort < population else full_batch()
            return NodeMean(sampler, l2(clip_bound), gaussian(noise_multiplier), sampler.expected(population))

        check_unit(budget, mean(1.0))
        if isinstance(ledger, Ledger):
            check_unit(ledger.budget, mean(1.0))
        self.strategy, self.budget, self.rounds = strategy, budget, rounds
        self.noise_multiplier = calibrate(lambda z: SelfComposedDpEvent(mean(z).event, rounds), budget, accountant=accountant)
        self._mean = mean(self.noise_multiplier)
        self._settings = {
            "strategy": type(strategy).__name__,
            "rounds": rounds,
            "cohort": cohort,
            "population": population,
            "clip_bound": clip_bound,
            "noise_multiplier": self.noise_multiplier,
        }
        self._population, self._evaluates = population, unaccounted_evaluation
        self._weight_key = str(getattr(strategy, "weighted_by_key", "num-examples"))
        self._open: _OpenRound | None = None
        self._noted: set[str] = set()
        held = ledger if isinstance(ledger, Ledger) else Ledger(budget, ledger)
        try:
            self._session = Session(budget, population, ledger=held, seed=seed, accountant=accountant)
            self._session.spending = _continue_run(held.run(_plan_name(self._settings, budget)), self._mean.event)
            self._left = self._affordable()
        except BaseException:
            if held is not ledger:
                held.close()
            raise

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise CompositionError("a PrivateStrategy cannot be copied: the copy would draw the same noise for other answers.")

    # ------------------------------------------------------------ the account

    @property
    def ledger(self) -> Ledger:
        """The ledger that rounds are charged to."""
        return self._session.ledger

    @property
    def rounds_left(self) -> int:
        """How many rounds are planned, and fit into the ledger."""
        return self._left

    def epsilon(self) -> float:
        """The ε of the rounds so far, at the budget's δ."""
        return self._spent()

    def statement(self) -> Statement:
        """What may be claimed about the rounds so far."""
        public = [
            "which nodes are connected, and when; each is taken to be one user, and no user to have two",
            "what the server, the SuperLink and their logs see: they are trusted",
            "the model that training starts from, and the settings of the strategy",
        ]
        if self._evaluates:
            public.append("the metrics that nodes report on evaluation: they leave, and nothing pays for them")
        return self._session.state("the model after each round, as sent to nodes", settings=self._settings, assumed_public=public)

    def _spent(self, coarser: float = 1.0) -> float:
        budget, accountant = self.budget, self._session.accountant
        return epsilon(self._session.spent, budget.delta, budget.neighbours, accountant=accountant, coarser=coarser)

    def _affordable(self) -> int:
        """How many rounds are planned and fit into the ledger."""
        done = self._session.spending.position
        left = self._session.spending.affordable([self._mean.event] * (self.rounds - done))
        if left < 1:
            spent = f"all {self.rounds} rounds were run" if done >= self.rounds else "not one round fits into what is left of it"
            raise BudgetExceeded(f"this ledger's budget is used up ({self.ledger.budget}): {spent}. Use its last model.")
        return left

    def _pay(self) -> None:
        try:
            self._session.spending.pay([self._mean.event])
        except BudgetExceeded as error:
            raise PrivacyBudgetExhausted(str(error)) from error
        self._left -= 1

    # ------------------------------------------------------------ Flower's strategy

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int | None = None,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run the rounds that are left, or `num_rounds` of them, with Flower's own loop."""
        rounds = self.rounds_left if num_rounds is None else num_rounds
        if rounds > self.rounds_left:
            raise PrivacyBudgetExhausted(
                f"start() was asked for {rounds} rounds, but {self.rounds_left} are left of the {self.rounds} that the noise was "
                f"calibrated for. Nothing was spent. Ask for at most {self.rounds_left}, or plan more: PrivateStrategy(rounds=…)."
            )
        return super().start(grid, initial_arrays, rounds, timeout, train_config, evaluate_config, evaluate_fn)

    def summary(self) -> None:
        """Log the privacy settings, and those of the wrapped strategy."""
        LOG.info("\t├──> Privacy (privopt): %s for one user", self.budget)
        LOG.info("\t│\t├── Rounds: %d left of %d", self.rounds_left, self.rounds)
        LOG.info("\t│\t├── Users: %g of %d a round, by coins", self._mean.expected, self._population)
        LOG.info("\t│\t├── Clip bound: %g, noise multiplier: %.4g", self._mean.clip.bound, self.noise_multiplier)
        LOG.info("\t│\t└── Evaluation on nodes: %s", "on, NOT accounted" if self._evaluates else "off (use evaluate_fn)")
        self.strategy.summary()

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> list[Message]:
        """Ask the wrapped strategy what to send, and send it to the nodes that coins choose."""
        if self._open is not None:
            raise CompositionError(
                f"round {self._open.number} was configured and not aggregated. Aggregate what came back, if only []: a missing "
                "reply counts as no change. Drawing again after looking at the replies would not be the sampling that is priced."
            )
        if self.rounds_left < 1:
            raise PrivacyBudgetExhausted(f"the {self.rounds} rounds that the noise was calibrated for are spent: {self.budget}.")
        message = _common_message(self.strategy.configure_train(server_round, arrays, config, _NodesOnly(grid)))
        (key, record), *others = message.content.array_records.items()
        if others:
            raise CompositionError(f"{type(self.strategy).__name__} sends several ArrayRecords. Put the model into one.")
        sent = SentModel(record)
        if sent.fixed:
            self._note(f"arrays that are not floating-point numbers are not trained, and stay as they are: {sent.fixed}")
        nodes = sorted(set(grid.get_node_ids()))
        if len(nodes) > self._population:
            self._note(f"more nodes are connected than population={self._population}: the steps will be larger than planned")
        drawn = self._mean.draw(nodes, self._session.rng)
        self._open = _OpenRound(server_round, message, key, sent, frozenset(drawn))
        about = message.metadata
        return [
            Message(message.content, node, about.message_type, ttl=about.ttl, group_id=about.group_id)  # the same content to all
            for node in drawn
        ]

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Pay for the round, hide the sum of the clipped changes, and hand it to the wrapped strategy as one reply."""
        opened = self._open
        if opened is None or opened.number != server_round:
            state = "no round is open" if opened is None else f"round {opened.number} is open"
            raise CompositionError(
                f"round {server_round} cannot be aggregated: {state}. Each round is configured once, then aggregated once."
            )
        self._open = None  # used up, whatever fails from here on
        self._pay()
        noisy = self._mean.release(self._changes(opened, replies), np.zeros_like(opened.sent.vector), self._session.rng)
        content = RecordDict(
            {opened.key: opened.sent.moved(noisy.value), f"{opened.key}-weight": MetricRecord({self._weight_key: 1})}
        )
        arrays, metrics = self.strategy.aggregate_train(server_round, [Message(content, reply_to=opened.message)])
        if LOG.isEnabledFor(logging.INFO):
            LOG.info("aggregate_train: ε = %.3f spent of the budget, %s", self._spent(COARSER), self.budget)
        return arrays, metrics or None

    def configure_evaluate(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Iterable[Message]:
        """Ask nodes for nothing, unless unaccounted evaluation was allowed."""
        return self.strategy.configure_evaluate(server_round, arrays, config, grid) if self._evaluates else []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Drop what nodes report, unless unaccounted evaluation was allowed."""
        return self.strategy.aggregate_evaluate(server_round, replies) if self._evaluates else None

    # ------------------------------------------------------------ replies

    def _changes(self, opened: _OpenRound, replies: Iterable[Message]) -> Iterator[Vector | None]:
        """What each drawn node changed, in the order of their ids: a sum in order of arrival would differ in its last bits."""
        answers: dict[int, list[Message]] = {}
        for reply in replies:
            answers.setdefault(reply.metadata.src_node_id, []).append(reply)
        for node in sorted(opened.drawn):
            own = answers.get(node, [])
            change = opened.sent.change(own[0]) if len(own) == 1 else None
            if change is None:
                LOG.warning("round %d: node %d sent no usable reply, which counts as no change", opened.number, node)
            elif any(set(metrics) - {self._weight_key} for metrics in own[0].content.metric_records.values()):
                self._note("the training metrics of clients are not private, and are dropped")
            yield change

    def _note(self, text: str) -> None:
        """Log a warning once."""
        if text not in self._noted:
            self._noted.add(text)
            LOG.warning("privopt: %s.", text)


class _NodesOnly(Grid):
    """What a wrapped strategy sees of the grid: who is connected. It exchanges no messages with nodes by itself."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    @property
    def run(self) -> Any:
        return self._grid.run

    def get_node_ids(self) -> Iterable[int]:
        return self._grid.get_node_ids()

    def get_nodes(self) -> Iterable[NodeInfo]:
        return self._grid.get_nodes()

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def set_run(self, run: Any) -> None:
        self._refuse()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        self._refuse()

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        self._refuse()

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise CompositionError(
            "the wrapped strategy exchanges messages with nodes while it configures a round. What they answer would reach the "
            "model without being paid for. Return the messages from configure_train, or pass public facts."
        )


def _common_message(messages: Iterable[Message]) -> Message:
    """The one message that a strategy has for all nodes."""
    every = list(messages)
    if not every:
        raise CompositionError("the wrapped strategy has no training message for any node. Is its fraction_train 0?")
    first, *others = every
    kind = first.metadata.message_type
    if kind.partition(".")[0] != MessageType.TRAIN or not first.has_content() or not first.content.array_records:
        raise CompositionError(f"the wrapped strategy sends a message of type {kind!r} instead of a model to train.")
    for other in others:
        if other.metadata.message_type != kind or not (other.content is first.content or other.content == first.content):
            raise CompositionError("the wrapped strategy sends different messages to different nodes. Send all nodes the same.")
    return first


def _plan_name(settings: Mapping[str, Any], budget: Budget) -> str:
    """The name of a plan's run in a ledger: a server that is started again with the same settings goes on with the same run."""
    plan = {name: value for name, value in settings.items() if name != "strategy"} | {"budget": str(budget)}
    return hashlib.sha256(json.dumps(plan, sort_keys=True).encode()).hexdigest()[:12]


def _continue_run(run: Run, event: DpEvent) -> Run:
    """The run to pay in. If a ledger's cap is reserved for one plan, the rounds left of it go on with fresh noise, which is paid.

    The plan is a number of equal rounds, fixed before the first one. So rounds of several processes are one composition if
    their events are those of the plan.
    """
    ledger = run.ledger
    planned = ledger.run(run.name if ledger.holder is None else ledger.holder)
    try:
        planned.pay([event] * planned.paid)  # free: only moves behind what was paid, so that nothing is taken for a replay
    except LedgerError:
        raise BudgetExceeded(
            "this ledger's budget is reserved for a run that was planned with other settings, before its first release. Go on "
            "with the same budget, rounds, cohort and population, or use another ledger, which adds to what was spent here."
        ) from None
    return planned


def _check_strategy(strategy: Strategy) -> None:
    """Refuse strategies for which one private reply makes no sense."""
    kind = type(strategy)
    if not isinstance(strategy, Strategy):
        raise InputError(f"strategy is {strategy!r}, but it is a strategy of flwr.serverapp.strategy, such as FedAvg().")
    if isinstance(strategy, PrivateStrategy):
        raise CompositionError("the strategy is private already.")
    for refused, reason in REFUSED.items():
        if isinstance(strategy, refused):
            raise CompositionError(f"{kind.__name__} cannot be made private by this wrapper: {reason}.")
    if kind.start is not Strategy.start:
        raise CompositionError(
            f"{kind.__name__}.start would not be called: PrivateStrategy runs Flower's own. Move what it does into evaluate_fn, "
            "or into a subclass of PrivateStrategy."
        )
    if isinstance(strategy, FedAvg) and strategy.train_metrics_aggr_fn is not aggregate_metricrecords:
        raise CompositionError(
            f"{kind.__name__} has a train_metrics_aggr_fn, but metrics of clients are not private and are dropped: leave it out."
        )


def _check_numbers(budget: Budget, rounds: int, cohort: float, population: int, clip_bound: float) -> None:
    """Validate argument types and ranges."""
    if not isinstance(budget, Budget):
        raise InputError(f'budget is {budget!r}, but it is a Budget, such as Budget(8.0, 1e-6, unit="user").')
    if budget.delta == 0:
        raise InputError("delta is 0, but Gaussian noise needs a delta > 0, below 1/population.")
    if not isinstance(rounds, Integral) or not 1 <= rounds <= MOST_ROUNDS:
        raise InputError(f"rounds is {rounds!r}, but it is a whole number from 1 to {MOST_ROUNDS}.")
    if not isinstance(population, Integral) or population < 1:
        raise InputError(f"population is {population!r}, but it is the number of users of the federation, 1 or more.")
    if not isinstance(cohort, Real) or not 1 <= cohort <= population:
        raise InputError(f"cohort is {cohort!r}, but it is how many users take part in a round, on average: 1 … {population}.")
    for caution in cautions(budget.delta, population):
        raise InputError(caution.replace("examples", "users"))
    if not isinstance(clip_bound, Real) or not clip_bound > 0:
        raise InputError(f"clip_bound is {clip_bound!r}, but it is the largest l2 norm of one user's change, above 0.")
