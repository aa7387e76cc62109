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
from privopt.state import PublicState, copy_iterate

DURABILITY = 0.005  # of the time of a block of rounds goes into paying for it, and as much into saving it
FIRST = 1 / 16  # of the rounds are paid before it is known how long one takes


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
    rng = generator(rng)
    at = PublicState(copy_iterate(parameters), parameters if recipe.looks_back else None)
    memory, kept = recipe.update.start(parameters), recipe.release.start(parameters, recipe.rounds, rng)
    side, carry, belief = recipe.side.start(parameters), dict[str, Any](), recipe.estimate.start(parameters)
    first = spending.position
    done = 0
    saved = checkpoint.load() if checkpoint is not None else None
    if saved is not None:
        if (saved.run, saved.first) != (spending.name, first):
            raise LedgerError(
                f"the checkpoint is of the run {saved.run!r} from its release {saved.first + 1} on, not of {spending.name!r} "
                f"from {first + 1} on. The same noise would hide two answers: give each run a checkpoint of its own."
            )
        done, rng = saved.round_, saved.rng
        at = PublicState(**_like(parameters, saved.parts["at"]))
        memory, kept, side, carry, belief = (
            _like(parameters, saved.parts.get(part, {})) for part in ("memory", "kept", "side", "carry", "belief")
        )
    del parameters  # large, perhaps, and needed no more
    rounds = recipe.release.rounds(kept, recipe.rounds)
    events = recipe.events(rounds)
    accountable(compose(events))
    if saved is None and spending.paid > spending.position:
        raise LedgerError(
            f"the ledger holds releases of the run {spending.name!r} already. They are free only if their noise is repeated, "
            "which needs the checkpoint of that run: give it, or pay for a new run."
        )
    spending.pay(events[:done])  # free, unless the ledger that holds them was lost: one in memory, say
    last = done + spending.affordable(events[done:])
    if last < len(events) and all(isinstance(event, NoOpDpEvent) for event in events[:last]):
        raise BudgetExceeded(f"not even one round fits into what is left of the ledger's budget: {spending.ledger.budget}.")

    def save() -> float:
        """Save where the run stands; the seconds that this takes."""
        if checkpoint is None:
            return 0.0
        started = time.perf_counter()
        where = {"current": at.current} | ({"previous": at.previous} if recipe.looks_back else {})
        parts = {"at": where, "memory": memory, "kept": kept, "side": side, "carry": carry, "belief": belief}
        checkpoint.save(Progress(done, parts, rng, spending.name, first))
        return time.perf_counter() - started

    save_cost = save() if saved is None and last else 0.0
    block, unsaved = math.ceil(FIRST * (last - done)), 0.0
    while done < last:
        block = min(block, last - done)
        started = time.perf_counter()
        spending.pay(events[done : done + block])
        paid = time.perf_counter()
        for _ in range(block):
            known, side = recipe.side.at(at.current, side, done)
            at = PublicState(at.current, at.previous, known) if known is not at.known else at
            with np.errstate(all="ignore"):  # a warning would tell something about the data
                noisy = recipe.measurement(done).measure(oracle, at, done, rng, carry)  # the only line that meets private data
            if noisy.event is not events[done] and noisy.event != events[done]:
                raise LedgerError(f"round {done + 1} drew {noisy.event}, but {events[done]} was planned and paid.")
            here = at.current
            del at  # the iterate before, and its memory
            direction, belief = recipe.estimate.of(noisy.value, belief, done)
            if recipe.regularizer is not None:
                direction = direction + recipe.regularizer.gradient(here)
            step, memory = recipe.update.step(direction, memory, done, known)
            side, carry = recipe.side.observe(noisy.value, side, done), noisy.carry
            there = step.taken(here, in_place=not recipe.looks_back)
            at = PublicState(there, here if recipe.looks_back else None)
            kept = recipe.release.observe(kept, done, rounds, there)
            done += 1
            del noisy, direction, step, here, there  # theirs, too
            if progress is not None:
                progress(done)
        worked = time.perf_counter() - paid
        unsaved += worked
        pay_cost = paid - started
        if checkpoint is not None and done < last and unsaved > max(pay_cost, save_cost) / DURABILITY:
            save_cost, unsaved = save(), 0.0
        # what is paid ahead is worth the wait for the disk; without a checkpoint so far, a killed run replays from its beginning
        block = max(1, math.ceil(max(pay_cost, save_cost) / DURABILITY / max(worked / block, 1e-9)))
    recorded, planned = spending.since(first), compose(events[:done])
    if recorded != planned:
        raise LedgerError(f"planned {planned}, but recorded {recorded}.")
    return Result(recipe.release.select(kept), done, recorded, stopped_early=done < rounds)


def check_finite(*parameters: Any) -> None:
    """Refuse to release what is no model. Whether it is one is read off private parameters: post-processing, which is free."""
    if not all(bool(array_namespace(part).isfinite(part).all()) for part in parameters):
        raise Diverged(
            "training diverged: the released parameters are not finite, so there is no model. What was paid for stays in the "
            "ledger. A smaller learning rate, or the default one, would help; so would declared ranges that fit the data."
        )


def _like(parameters: Any, state: dict[str, Any]) -> dict[str, Any]:
    """Saved arrays as arrays of the parameters' kind."""
    xp = array_namespace(parameters)
    return {
        name: xp.asarray(value, dtype=parameters.dtype, device=device(parameters)) if isinstance(value, np.ndarray) else value
        for name, value in state.items()
    }
