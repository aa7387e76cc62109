"""Release rules: which iterate is released. All iterates are private already, so choosing among them is free."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

from privopt.errors import CompositionError
from privopt.state import copy_iterate, places

State = dict[str, Any]


class ReleaseRule(Protocol):
    """Which iterate is released; its state is arrays by name, so that it can be saved."""

    def start(self, parameters: Any, rounds: int, rng: np.random.Generator) -> State:
        """The state before the first round. Random choices are made here, before any answer."""
        ...

    def rounds(self, state: State, rounds: int) -> int:
        """How many of the planned rounds are run."""
        ...

    def observe(self, state: State, round_: int, rounds: int, parameters: Any) -> State:
        """The state after a round with this iterate. The loop moves iterates in place, so an early one is kept as a copy.

        The state that is given may be changed in place: it is the rule's own, and is not asked again.
        """
        ...

    def select(self, state: State) -> Any:
        """The iterate to release, after any number of rounds."""
        ...


class _Last:
    """Releases the newest iterate; the rules below override which one is kept."""

    def start(self, parameters: Any, rounds: int, rng: np.random.Generator) -> State:
        return {"kept": parameters}

    def rounds(self, state: State, rounds: int) -> int:
        return rounds

    def observe(self, state: State, round_: int, rounds: int, parameters: Any) -> State:
        return {**state, "kept": parameters}

    def select(self, state: State) -> Any:
        return state["kept"]


@dataclass(frozen=True)
class last(_Last):  # noqa: N801  # a constructor that reads as a phrase
    """The last iterate."""


@dataclass(frozen=True)
class uniform_iterate(_Last):  # noqa: N801
    """An iterate drawn uniformly from all rounds, as in the theorems on non-convex problems."""

    def start(self, parameters: Any, rounds: int, rng: np.random.Generator) -> State:
        return {"kept": parameters, "chosen": int(rng.integers(rounds))}

    def observe(self, state: State, round_: int, rounds: int, parameters: Any) -> State:
        if round_ > state["chosen"]:
            return state
        return {**state, "kept": copy_iterate(parameters) if round_ == state["chosen"] else parameters}


@dataclass(frozen=True)
class random_round(_Last):  # noqa: N801
    """Stop after a number of rounds drawn from 1 … T, uniformly or in proportion to `weights`, one for each.

    It depends on no data, so only those rounds are paid.
    """

    weights: Sequence[float] | None = None

    def __post_init__(self) -> None:
        if self.weights is not None and not (all(0 <= weight < math.inf for weight in self.weights) and any(self.weights)):
            raise CompositionError("random_round(weights): each weight is a finite number ≥ 0, and one of them is > 0.")

    def start(self, parameters: Any, rounds: int, rng: np.random.Generator) -> State:
        if self.weights is None:
            return {"kept": parameters, "chosen": int(rng.integers(1, rounds + 1))}
        shares = np.asarray(self.weights) / np.sum(self.weights)
        return {"kept": parameters, "chosen": 1 + int(rng.choice(rounds, p=shares))}

    def rounds(self, state: State, rounds: int) -> int:
        return int(state["chosen"])


@dataclass(frozen=True)
class average(_Last):  # noqa: N801
    """The mean of all iterates, or of those after the first half of the rounds, whose noise it averages out."""

    of: Literal["all", "last half"] = "all"

    def start(self, parameters: Any, rounds: int, rng: np.random.Generator) -> State:
        return {"kept": parameters, "count": 0}

    def observe(self, state: State, round_: int, rounds: int, parameters: Any) -> State:
        if self.of == "last half" and round_ < rounds // 2:
            return {"kept": parameters, "count": 0}
        count = state["count"] + 1
        if count == 1:
            return {"kept": copy_iterate(parameters), "count": count}
        kept = state["kept"]
        for where in places(kept):
            kept[where] = kept[where] + (parameters[where] - kept[where]) / count
        return {"kept": kept, "count": count}


@dataclass(frozen=True)
class moving_average(_Last):  # noqa: N801
    """An exponential moving average of the iterates, θ̄ ← d θ̄ + (1 − d) θ with d = min(decay, t/(t + 9)) after t rounds.

    De, Berrada, Hayes, Smith, Balle: Unlocking High-Accuracy Differentially Private Image Classification through Scale. Early
    on d is small, so the start is soon forgotten. The iterates are private already, so averaging them is free.
    """

    decay: float = 0.99

    def __post_init__(self) -> None:
        if not 0 <= self.decay < 1:
            raise CompositionError(f"moving_average({self.decay}): the decay is a number ≥ 0 and < 1.")

    def start(self, parameters: Any, rounds: int, rng: np.random.Generator) -> State:
        return {"kept": parameters, "count": 0}

    def observe(self, state: State, round_: int, rounds: int, parameters: Any) -> State:
        count = state["count"]
        decay = min(self.decay, count / (count + 9))
        if not count:
            return {"kept": copy_iterate(parameters), "count": 1}
        kept = state["kept"]
        for where in places(kept):
            kept[where] = parameters[where] + decay * (kept[where] - parameters[where])
        return {"kept": kept, "count": count + 1}
