"""The loop: runs every recipe on every oracle."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device

from privopt.checkpoint import Checkpoint, Progress
from privopt.errors import BudgetExceeded, Diverged, LedgerError
from privopt.measure.randomness import Rng, generator
from privopt.measure.units import check_unit
from privopt.needs import Offer
from privopt.perexample.grads import Oracle
from privopt.privacy.accountants import accountable
from privopt.privacy.events import DpEvent, NoOpDpEvent, compose
from privopt.privacy.ledger import Ledger, Run
from privopt.recipe import Recipe
from privopt.state import PublicState, copy_iterate, is_finite

DURABILITY = 0.005  # share of the time of a block of rounds that goes into paying for it, and as much into saving it
FIRST_BLOCK = 1 / 16  # share of the rounds that is paid before it is known how long one takes


@dataclass(frozen=True)
class Result:
    """What a run gives: parameters that are private, and the event that was recorded for them, which was also planned."""

    parameters: Any
    rounds: int
    event: DpEvent
    stopped_early: bool


def run(
    recipe: Recipe,
    oracle: Oracle,
    parameters: Any,
    *,
    spending: Run | None = None,
    rng: Rng | None = None,
    checkpoint: Checkpoint | None = None,
    progress: Callable[[int], None] | None = None,
) -> Result:
    """Run a recipe from public start parameters. What does not fit is refused before anything is paid or read.

    **Guarantee** Rounds are paid into the ledger, in blocks, before they are measured. If the ledger's budget holds fewer
    rounds than the recipe has, the run stops before the first one too many and returns the model so far.

    With a checkpoint, start and generator are saved before the first payment. A run that is repeated under its name goes on from
    what was saved, whatever `parameters` and `rng` are given: it repeats the answers that were paid for, and draws no others.

    An oracle that `shows_iterates` (nodes of a federation are sent them) may answer otherwise when it is asked again: a node is
    missing, say. So each iterate is saved before it is shown, and a round that was not saved, whose answer nobody saw, is drawn
    anew.

    >>> import numpy as np
    >>> from privopt.perexample.grads import Materialized
    >>> from privopt.methods.dp_sgd import dp_sgd
    >>> class Points:
    ...     size = 100
    ...     def __call__(self, parameters, rows):
    ...         return Materialized(np.tile(parameters - 1.0, (100, 1)))
    >>> recipe = dp_sgd(rounds=50, noise_multiplier=1.0, clip_bound=1.0, learning_rate=0.5)
    >>> result = run(recipe, Points(), np.zeros(2), rng=generator(0))
    >>> bool(abs(result.parameters - 1.0).max() < 0.1), result.event == recipe.planned_event()
    (True, True)
    """
    recipe.check(Offer.of(oracle), parameters)
    spending = spending or Ledger().run()
    check_unit(spending.ledger.budget, *recipe.measurements)
    first, shown = spending.position, getattr(oracle, "shows_iterates", False)
    state = _RunState(recipe, parameters, generator(rng))
    saved = checkpoint.load() if checkpoint is not None else None
    if saved is not None:
        _check_checkpoint(saved, spending.name, first)
        state.restore(saved, parameters)
        if shown:  # the round is drawn anew: another answer under the same noise would reveal both, if the first was seen
            state.rng = generator()
    del parameters  # large, perhaps, and needed no more
    events, last = _plan(recipe, state, spending, replayed=saved is not None)
    if shown and spending.paid > spending.position + 1:
        raise LedgerError(
            f"{spending.paid - first} rounds were paid, but the checkpoint stands before round {state.done + 1}. Later iterates "
            "have been shown, so their noise cannot be repeated: this checkpoint is too old. Start a new run."
        )

    def save() -> float:
        """Save where the run stands; the seconds that this takes."""
        if checkpoint is None:
            return 0.0
        started = time.perf_counter()
        checkpoint.save(Progress(state.done, state.parts(), state.rng, spending.name, first), keep_start=not shown)
        return time.perf_counter() - started

    save_cost = save() if saved is None and last else 0.0
    block, unsaved = math.ceil(FIRST_BLOCK * (last - state.done)), 0.0
    while state.done < last:
        block = 1 if shown else min(block, last - state.done)
        started = time.perf_counter()
        spending.pay(events[state.done : state.done + block])
        paid = time.perf_counter()
        for _ in range(block):
            state.advance(oracle, events[state.done], len(events))
            if progress is not None:
                progress(state.done)
        worked = time.perf_counter() - paid
        unsaved += worked
        pay_cost = paid - started
        if shown or (checkpoint is not None and state.done < last and unsaved > max(pay_cost, save_cost) / DURABILITY):
            save_cost, unsaved = save(), 0.0
        # what is paid ahead is worth the wait for the disk; without a checkpoint so far, a killed run replays from its beginning
        block = max(1, math.ceil(max(pay_cost, save_cost) / DURABILITY / max(worked / block, 1e-9)))
    recorded, planned = spending.since(first), compose(events[: state.done])
    if recorded != planned:
        raise LedgerError(f"planned {planned}, but recorded {recorded}.")
    return Result(recipe.release.select(state.kept), state.done, recorded, stopped_early=state.done < len(events))


class _RunState:
    """Where a run stands after so many rounds: all that a checkpoint saves of it."""

    def __init__(self, recipe: Recipe, parameters: Any, rng: Rng) -> None:
        self._recipe, self.rng, self.done = recipe, rng, 0
        self.at = PublicState(copy_iterate(parameters), parameters if recipe.looks_back else None)
        self.memory, self.kept = recipe.update.start(parameters), recipe.release.start(parameters, recipe.rounds, rng)
        self.side, self.belief = recipe.side.start(parameters), recipe.estimate.start(parameters)
        self.carry: dict[str, Any] = {}

    def restore(self, saved: Progress, like: Any) -> None:
        """Go on from what was saved, with arrays like the parameters, and with the generator that began the run."""
        self.done, self.rng = saved.round_, saved.rng
        self.at = PublicState(**_like(like, saved.parts["at"]))
        self.memory, self.kept, self.side, self.carry, self.belief = (
            _like(like, saved.parts.get(part, {})) for part in ("memory", "kept", "side", "carry", "belief")
        )

    def parts(self) -> dict[str, dict[str, Any]]:
        """The parts of a checkpoint."""
        where = {"current": self.at.current} | ({"previous": self.at.previous} if self._recipe.looks_back else {})
        return {
            "at": where,
            "memory": self.memory,
            "kept": self.kept,
            "side": self.side,
            "carry": self.carry,
            "belief": self.belief,
        }

    def advance(self, oracle: Oracle, paid: DpEvent, rounds: int) -> None:
        """Measure a round that was paid as this event, and use its answer."""
        recipe, at, done = self._recipe, self.at, self.done
        known, side = recipe.side.at(at.current, self.side, done)
        at = PublicState(at.current, at.previous, known) if known is not at.known else at
        with np.errstate(all="ignore"):  # a warning would tell something about the data
            measurement = recipe.measurement(done)
            noisy = measurement.measure(oracle, at, done, self.rng, self.carry)  # the only line that meets private data
        if noisy.event is not paid and noisy.event != paid:
            raise LedgerError(f"round {done + 1} drew {noisy.event}, but {paid} was planned and paid.")
        here = at.current
        del at, self.at  # frees the memory of the iterate before
        direction, self.belief = recipe.estimate.of(noisy.value, self.belief, done)
        if recipe.regularizer is not None:
            direction = direction + recipe.regularizer.gradient(here)
        step, self.memory = recipe.update.step(direction, self.memory, done, known)
        self.side, self.carry = recipe.side.observe(noisy.value, side, done), noisy.carry
        there = step.taken(here, in_place=not recipe.looks_back)
        self.at = PublicState(there, here if recipe.looks_back else None)
        self.kept = recipe.release.observe(self.kept, done, rounds, there)
        self.done += 1


def _check_checkpoint(saved: Progress, name: str, first: int) -> None:
    """Refuse what was saved by another run, or by another part of this one."""
    if (saved.run, saved.first) != (name, first):
        raise LedgerError(
            f"the checkpoint is of the run {saved.run!r} from its release {saved.first + 1} on, not of {name!r} "
            f"from {first + 1} on. The same noise would hide two answers: give each run a checkpoint of its own."
        )


def _plan(recipe: Recipe, state: _RunState, spending: Run, *, replayed: bool) -> tuple[list[DpEvent], int]:
    """The events of all rounds, and how many of them the ledger's budget holds. What is done is paid already, or is paid now."""
    events = recipe.events(recipe.release.rounds(state.kept, recipe.rounds))
    accountable(compose(events))
    if not replayed and spending.paid > spending.position:
        raise LedgerError(
            f"the ledger holds releases of the run {spending.name!r} already. They are free only if their noise is repeated, "
            "which needs the checkpoint of that run: give it, or pay for a new run."
        )
    spending.pay(events[: state.done])  # free, unless the ledger that holds them was lost: one in memory, say
    last = state.done + spending.affordable(events[state.done :])
    if last < len(events) and all(isinstance(event, NoOpDpEvent) for event in events[:last]):
        raise BudgetExceeded(f"not even one round fits into what is left of the ledger's budget: {spending.ledger.budget}.")
    return events, last


def check_finite(*parameters: Any) -> None:
    """Refuse to release parameters that are not finite. To look is post-processing of private answers, which is free."""
    if not all(map(is_finite, parameters)):
        raise Diverged(
            "training diverged: the released parameters are not finite, so there is no model. What was paid for stays in the "
            "ledger. A smaller learning rate, or the default one, would help; so would declared ranges that fit the data."
        )


def _like(parameters: Any, state: dict[str, Any]) -> dict[str, Any]:
    """Convert saved arrays to the library, precision and device of the parameters."""
    xp = array_namespace(parameters)
    return {
        name: xp.asarray(value, dtype=parameters.dtype, device=device(parameters)) if isinstance(value, np.ndarray) else value
        for name, value in state.items()
    }
