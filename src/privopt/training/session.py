"""Sessions: one owner of a private run, from the budget to the statement.

check → calibrate → pay → run → compare → state. Every front end builds a problem and an oracle and calls a session; a training
loop of the user's own is the same session, opened round by round.

Rounds of a user's own loop are paid a few ahead. Each is answered at most once, and is spent whatever happens in it. If a round
fails after a state was saved, there are two continuations: a loop that loads this state repeats the round, and the present loop
goes past it. They must not share noise, so the present loop goes on as a new run of the ledger, and what the old run has paid
ahead is left to the saved state.
"""

import hashlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, Protocol

import numpy as np

from privopt.checkpoint import Checkpoint, Finished
from privopt.errors import BudgetExceeded, CompositionError, InputError, warn
from privopt.loop import Result, run
from privopt.measure.measurement import Measurement
from privopt.measure.randomness import SOURCE, generator
from privopt.measure.units import check_unit, rows_drawn
from privopt.methods.dp_sgd import dp_sgd
from privopt.methods.method import Method
from privopt.methods.problem import Problem
from privopt.needs import Offer
from privopt.perexample.grads import Oracle
from privopt.privacy.accountants import Accountant, choose, epsilon
from privopt.privacy.budget import UNITS, Budget, UnitName, cautions, default_delta
from privopt.privacy.calibration import calibrate
from privopt.privacy.events import DpEvent, GaussianDpEvent, PureDpEvent, compose
from privopt.privacy.ledger import Ledger, Run
from privopt.privacy.statement import Statement
from privopt.recipe import Recipe

# ---------------------------------------------------------------- rounds of a user's own loop


AHEAD = 16  # rounds that are paid with one write


class PaidRounds:
    """Counts the rounds that are closed, begun and affordable, and pays for them in runs of the ledger.

    **Guarantee** A round is begun once it is paid for, and its number is then used up. A round that fails is closed without an
    answer, and the next one has a payment of its own.
    """

    def __init__(self, spending: Run, events: Sequence[DpEvent]) -> None:
        self._spending, self._events, self._ledger = spending, list(events), spending.ledger
        self._earlier: list[Run] = []  # runs that ended with a round that failed
        self._first = 0  # the round that `_spending` began with
        self._saved = False  # whether a state of `_spending` may be replayed
        self.planned = self._last = len(self._events)  # and affordable
        self.closed = self.begun = self.failed = 0  # begun: inside a round one more than closed; failed: closed without an update

    @property
    def event(self) -> DpEvent:
        """What was paid for."""
        return compose(run.since(0) for run in (*self._earlier, self._spending))

    @property
    def begun_event(self) -> DpEvent:
        """What the rounds that were begun cost. Of a run that ended with a failed round, all that was paid counts."""
        own = self._events[self._first : self.begun]
        return compose([*(run.since(0) for run in self._earlier), *own])

    @property
    def left(self) -> bool:
        """Whether another round is planned and affordable."""
        return self.closed < self._last

    @property
    def inside(self) -> bool:
        """Whether a round is begun and not closed."""
        return self.begun > self.closed

    def afford(self) -> None:
        """Ask the ledger how many of the rounds fit into its budget."""
        paid = self._first + self._spending.position
        self._last = paid + self._spending.affordable(self._events[paid:])
        if self._last == self.closed < self.planned:
            raise BudgetExceeded(f"not even one round fits into what is left of the ledger's budget: {self._ledger.budget}.")

    def begin(self) -> None:
        """Pay for the next round, if that was not done ahead, and use up its number."""
        if self.closed >= self._first + self._spending.position:
            self._spending.pay(self._events[self.closed : min(self.closed + AHEAD, self._last)])
        self.begun = self.closed + 1

    def close(self) -> None:
        """The round that was begun has answered."""
        self.closed = self.begun

    @property
    def renews(self) -> bool:
        """Whether the loop goes on as a new run, with new randomness, if the round that was begun fails."""
        return self._saved

    def fail(self) -> None:
        """Close the round that was begun without an answer."""
        if self._saved:
            paid = self._first + self._spending.position
            self._earlier, self._spending, self._saved = [*self._earlier, self._spending], self._ledger.run(), False
            self._first = self.begun = paid
        self.failed += self.begun - self.closed
        self.close()

    def save(self) -> dict[str, Any]:
        """What `load` reads back: the runs, and where they stand."""
        self._saved = True
        runs = [[run.name, run.position] for run in (*self._earlier, self._spending)]
        return {"runs": runs, "round": self.closed, "failed": self.failed}

    def load(self, state: dict[str, Any]) -> None:
        """Go on where a state was saved; a durable ledger holds its payments already."""
        runs, first = [], 0
        for name, paid in state["runs"]:
            runs.append(self._ledger.run(name))
            runs[-1].pay(self._events[first : first + paid])
            first += paid
        *self._earlier, self._spending = runs
        self._first, self._saved = first - self._spending.position, True
        self.begun = self.closed = state["round"]
        self.failed = state["failed"]


# ---------------------------------------------------------------- sessions


class Observer(Protocol):
    """Is called as a run goes on, with the number of rounds and ε: nothing that depends on the data."""

    def start(self, rounds: int, spent: Callable[[int], float]) -> None:
        """Training begins; `spent` gives ε after so many rounds."""
        ...

    def advance(self, done: int) -> None:
        """So many rounds are done."""
        ...


@dataclass(frozen=True)
class Released:
    """What a session released: parameters that are private, and how they were trained."""

    parameters: Any
    rounds: int
    stopped_early: bool
    noise_multiplier: float
    settings: Mapping[str, Any]  # for the statement


class Session:
    """One private run under one budget. With a `noise_multiplier` nothing is calibrated, and the budget is what this noise costs.

    `surveys` says that something is measured before training, while not all events are known: the ledger then has to have room
    for the whole budget.

    **Guarantee** Everything that is measured on the data is planned within `budget`, together with what this run released
    before, and is recorded in the ledger before it is used. With a checkpoint, a run that was killed repeats the answers that
    were paid for, and one that has ended gives what it released, for free.
    """

    def __init__(
        self,
        budget: Budget,
        size: int,
        *,
        ledger: Ledger | None = None,
        seed: Any = None,
        accountant: Accountant = "auto",
        checkpoint: Checkpoint | None = None,
        observer: Observer | None = None,
        surveys: bool = False,
        noise_multiplier: float | None = None,
    ) -> None:
        check_budget(budget, ledger)
        self._chosen_noise = noise_multiplier
        self.budget, self.size, self.accountant = budget, size, accountant
        self.ledger = ledger if ledger is not None else Ledger()
        self.seeded = seed is not None
        for caution in cautions(budget.delta, size, budget.unit):
            warn(caution)
        self._checkpoint, self._observer = checkpoint, observer
        name, self.rng = self.ledger.run().name, generator(seed)
        self._finished = None if checkpoint is None else checkpoint.finished()
        if self._finished is not None:  # whoever asked was killed before it had the model, or asks again
            self.spending = self.ledger.run(self._finished.run)
            self.spending.pay([self._finished.event])  # free, unless the ledger that holds it was lost
            return
        if checkpoint is not None:
            name, self.rng = checkpoint.begin(name, self.rng)
        self.spending = self.ledger.run(name, budget=budget if surveys else None)

    @property
    def spent(self) -> DpEvent:
        """What this run has released so far."""
        return self.spending.since(0)

    @property
    def repeated(self) -> bool:
        """Whether the run had ended before: what it released is given again."""
        return self._finished is not None

    def single_release_noise(self) -> float:
        """The noise multiplier with which one release costs what is left of the budget: Gaussian, or pure without δ."""
        return self.noise_for(single_release(self.budget))

    def noise_for(self, event: Callable[[float], DpEvent]) -> float:
        """The least noise that keeps this event within what is left of the budget."""
        return calibrate(event, self.budget, spent=self.spent, accountant=self.accountant)

    def _noise_of_run(self, event: Callable[[float], DpEvent]) -> float:
        return self.noise_for(event) if self._chosen_noise is None else self._chosen_noise

    def train(
        self,
        method: Method,
        problem: Problem,
        oracle: Oracle,
        start: Any,
        *,
        run: Callable[..., Result] = run,
        keep_result: bool = False,
    ) -> Released:
        """Calibrate the noise of a method for this problem, and run it from public start parameters.

        `keep_result` leaves what was released in the checkpoint, for a caller that is killed before it has it.
        """
        if self._finished is not None:
            return self._repeated(self._finished, method, problem)
        before = self.spent
        rounds = method.build(problem, problem.single_release_noise).stop(self.rng)  # drawn before data are read
        noise = self._noise_of_run(lambda z: _plan_event(method, problem, z, rounds))
        recipe = method.build(problem, noise).stopped(rounds)
        check_unit(self.budget, *recipe.measurements)
        if method.private and self._epsilon(compose([before, recipe.planned_event()])) > self.budget.epsilon:
            raise CompositionError(
                f"{method.name} was calibrated within the budget, but the recipe that it built costs more: its defaults have to "
                "give the same recipe for the same problem and noise."
            )
        if self._checkpoint is not None:
            self._checkpoint.built = _fingerprint(recipe)
        if self._observer is not None:
            self._observer.start(recipe.rounds, lambda done: self._epsilon(compose([before, recipe.planned_event(done)])))
        result = run(
            recipe,
            oracle,
            start,
            spending=self.spending,
            rng=self.rng,
            checkpoint=self._checkpoint,
            progress=None if self._observer is None else self._observer.advance,
        )
        if keep_result and self._checkpoint is not None:
            ended = Finished(self.spending.name, result.parameters, result.rounds, result.stopped_early, noise, result.event)
            self._checkpoint.finish(ended)
        if result.stopped_early:
            self.warn_of_early_end(result.rounds, recipe.rounds)
        return Released(result.parameters, result.rounds, result.stopped_early, noise, method.settings(problem, noise))

    def _repeated(self, ended: Finished, method: Method, problem: Problem) -> Released:
        settings = method.settings(problem, ended.noise_multiplier)
        return Released(ended.parameters, ended.rounds, ended.stopped_early, ended.noise_multiplier, settings)

    def open(self, measurement: Callable[[float], Measurement], rounds: int) -> tuple[float, PaidRounds]:
        """Calibrate the noise of so many rounds of a measurement, for a loop that asks for them one by one."""

        def events(noise_multiplier: float) -> list[DpEvent]:
            asked = measurement(noise_multiplier)
            check_unit(self.budget, asked)
            return [asked.event(round_) for round_ in range(rounds)]

        noise = self._noise_of_run(lambda z: compose(events(z)))
        return noise, PaidRounds(self.spending, events(noise))

    def state(
        self,
        released: str,
        *,
        settings: Mapping[str, Any],
        assumed_public: Sequence[str],
        paid_for: Sequence[str] = (),
        public_data: Sequence[str] = (),
        assumed: Sequence[str] = (),
        event: DpEvent | None = None,
    ) -> Statement:
        """Write the statement of what was released, for `event`; by default for all that this run has spent."""
        return Statement(
            budget=self.budget,
            event=self.spent if event is None else event,
            released=released,
            accountant=self.accountant,
            examples=self.size,
            assumed_public=assumed_public,
            paid_for=paid_for,
            public_data=public_data,
            assumed=assumed,
            cap=self.ledger.cap,
            noise=None if self.seeded else SOURCE,
            seeded=self.seeded,
            settings=settings,
        )

    def warn_of_early_end(self, done: int, planned: int) -> None:
        """Warn that the ledger ended the run."""
        warn(
            f"training stopped after {done} of {planned} rounds, because the ledger's budget ({self.ledger.budget}) holds no "
            "more. The model so far is kept."
        )

    def _epsilon(self, event: DpEvent) -> float:
        return epsilon(event, self.budget.delta, self.budget.neighbours, accountant=self.accountant)


def check_budget(budget: Any, ledger: Any) -> None:
    """Validate the types of a budget and of a ledger."""
    if not isinstance(budget, Budget):
        raise InputError(f"budget is {budget!r}, but it is a Budget(epsilon, delta), such as Budget(3.0, 1e-5).")
    check_ledger(ledger)
    if ledger is not None and ledger.budget is not None and ledger.budget.unit != budget.unit:
        raise CompositionError(
            f"the ledger's budget is for {UNITS[ledger.budget.unit]}, but this run protects {UNITS[budget.unit]}: what each "
            "costs does not add up. Use a ledger of the same unit."
        )


def check_ledger(ledger: Any) -> None:
    """Validate the type of a ledger."""
    if not isinstance(ledger, Ledger | None):
        raise InputError(f"ledger is {ledger!r}, but it is a Ledger, such as Ledger(path='ledger.jsonl'), or None.")


def settle_budget(
    budget: Budget | None,
    noise_multiplier: float | None,
    delta: float | None,
    size: int,
    plan: Callable[[float], DpEvent],
    *,
    accountant: Accountant,
    unit: UnitName = "example",
) -> Budget:
    """The budget that was given; or what the plan costs with the noise that was given, at this δ.

    >>> from privopt.privacy.events import SelfComposedDpEvent
    >>> plan = lambda z: SelfComposedDpEvent(GaussianDpEvent(z), 100)
    >>> print(settle_budget(None, 37.3, 1e-5, 1000, plan, accountant="auto"))  # doctest: +ELLIPSIS
    ε = 1.000..., δ = 1e-05
    """
    if noise_multiplier is None:
        if budget is None:
            raise InputError("say how private the model is: budget=Budget(epsilon, delta), or noise_multiplier=….")
        if delta is not None:
            raise InputError("delta goes with noise_multiplier=…; a budget has its own: Budget(epsilon, delta).")
        if not isinstance(budget, Budget):
            raise InputError(f"budget is {budget!r}, but it is a Budget(epsilon, delta), such as Budget(3.0, 1e-5).")
        return budget
    if budget is not None:
        raise InputError("a budget and a noise_multiplier were given, but one follows from the other. Say one of them.")
    if not isinstance(noise_multiplier, Real) or not 0 < noise_multiplier < math.inf:
        raise InputError(f"noise_multiplier is {noise_multiplier!r}, but it is a finite number > 0.")
    chosen = Budget(1.0, default_delta(size) if delta is None else delta, unit=unit)
    cost = epsilon(plan(noise_multiplier), chosen.delta, chosen.neighbours, accountant=accountant)
    if not cost < math.inf:
        raise InputError(
            f"noise_multiplier={noise_multiplier:g} costs more than can be stated at δ = {chosen.delta:g}: so many rounds "
            "protect nobody. More noise, fewer rounds, smaller batches or a larger δ would."
        )
    return replace(chosen, epsilon=cost)


def check_plan(method: Method, problem: Problem, budget: Budget, accountant: Accountant) -> Recipe:
    """Refuse a method whose recipe for this problem does not fit together, or has no price. Nothing is paid or read.

    Returns the recipe with a noise multiplier of 1.
    """
    recipe, loss = method.build(problem, 1.0), problem.loss
    steepness = loss.steepness * problem.row_norm
    federated = problem.model == "federated"
    offer = Offer(
        problem.size,
        problem.dimension,
        losses=not federated,
        gradients=not federated,
        changes=federated,
        lipschitz=steepness,
        smoothness=problem.smoothness,
        unit="user" if federated else problem.unit.name,
        most_rows=rows_drawn(problem.unit),
    )
    recipe.check(offer, np.zeros(problem.dimension))
    check_unit(budget, *recipe.measurements)
    if method.private:
        choose(recipe.planned_event(), budget.neighbours, accountant)
    return recipe


def single_release(budget: Budget) -> Callable[[float], DpEvent]:
    """What one release with this noise costs: Gaussian noise, or noise of Gamma length where there is no δ to spend."""
    return GaussianDpEvent if budget.delta else lambda noise_multiplier: PureDpEvent(1 / noise_multiplier)


def _fingerprint(recipe: Recipe) -> str:
    """Fingerprint a recipe by the numbers in its slots: changed code of a method, which has no fingerprint, shows in them."""
    slots = (recipe.rounds, recipe.measurements, recipe.update, recipe.release, recipe.estimate, recipe.regularizer)
    return hashlib.sha256(re.sub(r"0x[0-9a-f]+", "", repr(slots)).encode()).hexdigest()


def _plan_event(method: Method, problem: Problem, noise_multiplier: float, rounds: int) -> DpEvent:
    """What the run will cost. A method without a guarantee gets the noise of DP-SGD, with which it is compared."""
    if method.private:
        return method.build(problem, noise_multiplier).stopped(rounds).planned_event()
    compared = dp_sgd(
        rounds=rounds, noise_multiplier=noise_multiplier, clip_bound=1.0, learning_rate=1.0, sampling=problem.sampler
    )
    return compared.planned_event()
