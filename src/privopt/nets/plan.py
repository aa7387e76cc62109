"""The plan of a private training run: sampling, rounds and noise, from public numbers."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from privopt.errors import InputError
from privopt.limits import MOST_ROUNDS
from privopt.measure.samplers import Sampler, full_batch, poisson
from privopt.privacy.accountants import Accountant, epsilon
from privopt.privacy.budget import Budget
from privopt.privacy.calibration import calibrate
from privopt.privacy.ledger import Ledger
from privopt.recipe import Recipe


@dataclass(frozen=True)
class Schedule:
    """How often which examples take part."""

    size: int
    batch_size: int
    rounds: int

    @property
    def sampler(self) -> Sampler:
        """Poisson batches, or every example if a batch holds them all."""
        return poisson(self.batch_size / self.size) if self.batch_size < self.size else full_batch()

    def phrase(self) -> str:
        """The batch size in words."""
        return f"{self.batch_size} of {self.size} on average (Poisson)" if self.batch_size < self.size else "all examples"


def check_given(budget: Any, ledger: Any, clip_bound: Any, physical_batch_size: Any) -> None:
    """Refuse what is of another kind, or cannot be."""
    if not isinstance(budget, Budget):
        raise InputError(f"budget is {budget!r}, but it is a Budget(epsilon, delta), such as Budget(3.0, 1e-5).")
    if not isinstance(ledger, Ledger | None):
        raise InputError(f"ledger is {ledger!r}, but it is a Ledger, such as Ledger(path='ledger.jsonl'), or None.")
    if isinstance(clip_bound, str) or (isinstance(clip_bound, Real) and not 0 < float(clip_bound) < math.inf):
        raise InputError(f"clip_bound is {clip_bound!r}, but it is a finite number > 0, or a clip of privopt.measure.clips.")
    if physical_batch_size is not None and not (isinstance(physical_batch_size, Integral) and int(physical_batch_size) >= 1):
        raise InputError(f"physical_batch_size is {physical_batch_size!r}, but it is a whole number, at least 1, or None.")


def schedule(size: int, batch_size: int, epochs: float | None, rounds: int | None) -> Schedule:
    """Rounds, or as many as make up these passes over the data."""
    if size < 1:
        raise InputError("the data set is empty: there is nothing to train on.")
    if not isinstance(batch_size, Integral) or batch_size < 1:
        raise InputError(f"batch_size is {batch_size!r}, but a batch holds a whole number of examples, at least one.")
    if (epochs is None) == (rounds is None):
        raise InputError("say how long to train: epochs=… or rounds=…, and not both.")
    batch = min(batch_size, size)
    if rounds is None:
        assert epochs is not None
        if not isinstance(epochs, Real) or not 0 < epochs < math.inf:
            raise InputError(f"epochs is {epochs!r}, but it is a finite number > 0.")
        rounds = max(1, round(min(epochs * size / batch, 2.0 * MOST_ROUNDS)))
    if not isinstance(rounds, Integral) or rounds < 1:
        raise InputError(f"rounds is {rounds!r}, but it is a whole number, at least 1.")
    if rounds > MOST_ROUNDS:
        raise InputError(f"this would take more than {MOST_ROUNDS} rounds, the most that a run has. Say fewer epochs or rounds.")
    return Schedule(size, batch, rounds)


def noise_for(recipe: Callable[[float], Recipe], budget: Budget, accountant: Accountant) -> float:
    """The least noise that keeps the recipe within the budget."""
    if budget.delta == 0 and math.isinf(epsilon(recipe(1.0).planned_event(), 0.0, budget.neighbours)):
        raise InputError("delta is 0, but Gaussian noise needs delta > 0: well below 1/n, such as 1e-6.")
    return calibrate(lambda noise: recipe(noise).planned_event(), budget, accountant=accountant)
