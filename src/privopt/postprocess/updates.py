"""Update rules: what to do with a private answer. Written once against the array API, for NumPy and for torch.

A rule turns a direction into a step. Its state is arrays by name, so that it can be saved; they are updated in place, and a large
one part by part, so a step takes no memory of its size. In the formulas θ is the iterate, g the direction, η the learning rate,
and ĝ a public gradient.

A schedule is the step size of each round, a public function of its number.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

from array_api_compat import array_namespace, is_torch_array

from privopt.errors import CompositionError
from privopt.needs import PUBLIC_GRADIENT, Needs, needs_of
from privopt.state import NOTHING, Known, copy_iterate, places

# ---------------------------------------------------------------- schedules


Schedule = Callable[[int], float]


def constant(value: float) -> Schedule:
    """The same in every round."""
    return lambda round_: value


def step_decay(value: float, *, factor: float, every: int) -> Schedule:
    """Multiplied by `factor` after each `every` rounds.

    >>> [step_decay(1.0, factor=0.1, every=2)(t) for t in range(4)]
    [1.0, 1.0, 0.1, 0.1]
    """
    return lambda round_: value * factor ** (round_ // every)


def inverse_sqrt(value: float) -> Schedule:
    """value/√t in round t = 1, 2, …"""
    return lambda round_: value / math.sqrt(round_ + 1)


def inverse(value: float) -> Schedule:
    """value/t in round t = 1, 2, …"""
    return lambda round_: value / (round_ + 1)


def as_schedule(rate: float | Schedule) -> Schedule:
    """A number is a constant schedule."""
    return rate if callable(rate) else constant(rate)


# ---------------------------------------------------------------- update rules


State = dict[str, Any]  # arrays by name; empty for a rule without state


class Step(NamedTuple):
    """θ ← θ − rate · along, where `towards` is the vector `along`, or a function that computes it at some places."""

    rate: float
    towards: Any

    @property
    def along(self) -> Any:
        return self.towards(...) if callable(self.towards) else self.towards

    @property
    def displacement(self) -> Any:
        """What is added to the iterate."""
        return -self.rate * self.along

    def taken(self, here: Any, *, in_place: bool = False) -> Any:
        """The next iterate, in a new array or in place. For torch in one pass, because it may be large."""
        if callable(self.towards):
            there = here if in_place else copy_iterate(here)
            for where in places(here):
                part = Step(self.rate, self.towards(where))
                if is_torch_array(here):
                    part.taken(there[where], in_place=True)
                else:
                    there[where] += part.displacement
            return there
        if is_torch_array(here):
            most = array_namespace(here).finfo(here.dtype).max
            rate = self.rate if self.rate <= most else math.inf  # torch refuses a number that overflows, but takes infinity
            return (here.add_ if in_place else here.add)(self.towards, alpha=-rate)
        there, more = (here, self.displacement) if in_place else (self.displacement, here)
        there += more
        return there


class UpdateRule(Protocol):
    """What to do with the answer of a round. It declares what it needs beside the answer: `privopt.needs`."""

    def start(self, parameters: Any) -> State:
        """The state before the first round; it depends on the shape of the parameters only."""
        ...

    def step(self, direction: Any, state: State, round_: int, known: Known = NOTHING) -> tuple[Step, State]:
        """The step from the iterate, and the next state; `known` is the side information of the round.

        The state that is given may be changed in place: it is the rule's own, and is not asked again. All else stays as it is.
        """
        ...


@dataclass(frozen=True)
class sgd:  # noqa: N801  # a constructor that reads as a phrase
    """θ ← θ − min{η, `longest`/‖g‖} g: no step is longer than `longest`."""

    learning_rate: float | Schedule
    longest: float = math.inf

    def start(self, parameters: Any) -> State:
        return {}

    def step(self, direction: Any, state: State, round_: int, known: Known = NOTHING) -> tuple[Step, State]:
        rate = as_schedule(self.learning_rate)(round_)
        if self.longest < math.inf:
            length = float(array_namespace(direction).linalg.vector_norm(direction))
            rate = rate if rate * length <= self.longest else self.longest / length
        return Step(rate, direction), state


@dataclass(frozen=True)
class momentum:  # noqa: N801
    """m ← β m + g; θ ← θ − η m."""

    learning_rate: float | Schedule
    decay: float = 0.9

    def start(self, parameters: Any) -> State:
        return {"velocity": 0 * parameters}

    def step(self, direction: Any, state: State, round_: int, known: Known = NOTHING) -> tuple[Step, State]:
        velocity = state["velocity"]
        for where in places(velocity):
            velocity[where] = self.decay * velocity[where] + direction[where]
        return Step(as_schedule(self.learning_rate)(round_), velocity), state


def descent(learning_rate: float | Schedule, decay: float) -> momentum | sgd:
    """Gradient descent, with momentum unless `decay` is 0."""
    return momentum(learning_rate, decay) if decay else sgd(learning_rate)


@dataclass(frozen=True)
class rmsprop:  # noqa: N801
    """v ← β₂ v + (1 − β₂) g²; θ ← θ − η g/(√min(v, λ) + ν).

    The ceiling λ keeps noise, which inflates v, from making the steps vanish (Zhou et al., DPAGD).
    """

    learning_rate: float | Schedule
    decay: float = 0.99
    stability: float = 1e-8
    ceiling: float = math.inf

    def start(self, parameters: Any) -> State:
        return {"second": 0 * parameters}

    def step(self, direction: Any, state: State, round_: int, known: Known = NOTHING) -> tuple[Step, State]:
        xp, second = array_namespace(direction), state["second"]
        for where in places(second):
            second[where] = self.decay * second[where] + (1 - self.decay) * direction[where] ** 2

        def towards(where: Any) -> Any:
            held = second[where] if self.ceiling == math.inf else xp.clip(second[where], max=self.ceiling)
            return direction[where] / (xp.sqrt(held) + self.stability)

        return Step(as_schedule(self.learning_rate)(round_), towards), state


@dataclass(frozen=True)
class adam:  # noqa: N801
    """m ← β₁ m + (1 − β₁) g; v ← β₂ v + (1 − β₂) g²; θ ← θ − η m/(√min(v, λ) + ν).

    With bias correction m and v are divided by 1 − β₁ᵗ and 1 − β₂ᵗ first. The DPAGD paper has the ceiling λ and no
    correction; the AdaDPS paper has the correction and no ceiling. With a noise variance s², max(v − s², floor) takes the
    place of v (DP-AdamBC).
    """

    learning_rate: float | Schedule
    first_decay: float = 0.9
    second_decay: float = 0.999
    stability: float = 1e-8
    ceiling: float = math.inf
    bias_correction: bool = True
    noise_variance: float = 0.0
    floor: float = 0.0

    def start(self, parameters: Any) -> State:
        return {"first": 0 * parameters, "second": 0 * parameters}

    def step(self, direction: Any, state: State, round_: int, known: Known = NOTHING) -> tuple[Step, State]:
        xp, first, second = array_namespace(direction), state["first"], state["second"]
        for where in places(first):
            first[where] = self.first_decay * first[where] + (1 - self.first_decay) * direction[where]
            second[where] = self.second_decay * second[where] + (1 - self.second_decay) * direction[where] ** 2

        def towards(where: Any) -> Any:
            mean, square = first[where], second[where]
            if self.bias_correction:
                mean = mean / (1 - self.first_decay ** (round_ + 1))
                square = square / (1 - self.second_decay ** (round_ + 1))
            if self.noise_variance:
                square = xp.clip(square - self.noise_variance, min=self.floor)
            if self.ceiling != math.inf:
                square = xp.clip(square, max=self.ceiling)
            return mean / (xp.sqrt(square) + self.stability)

        return Step(as_schedule(self.learning_rate)(round_), towards), state


@dataclass(frozen=True)
class projected:  # noqa: N801
    """θ ← Π(θ + the step of `rule`), Π the nearest point of the ball ‖θ − θ₀‖ ≤ `radius` around the start θ₀."""

    rule: UpdateRule
    radius: float

    def __post_init__(self) -> None:
        if not 0 < self.radius < math.inf:
            raise CompositionError(f"radius is {self.radius}, but a ball has a finite radius > 0.")

    @property
    def needs(self) -> Needs:
        return needs_of(self.rule)

    def start(self, parameters: Any) -> State:
        return {**self.rule.start(parameters), "moved": 0 * parameters}

    def step(self, direction: Any, state: State, round_: int, known: Known = NOTHING) -> tuple[Step, State]:
        own = {name: value for name, value in state.items() if name != "moved"}
        step, own = self.rule.step(direction, own, round_, known)
        moved = step.taken(state["moved"])
        length = float(array_namespace(moved).linalg.vector_norm(moved))
        if length > self.radius:
            moved = moved * (self.radius / length)
            step = Step(1.0, state["moved"] - moved)
        return step, {**own, "moved": moved}


@dataclass(frozen=True)
class public_rmsprop:  # noqa: N801
    """v ← β v + (1 − β) ĝ²; θ ← θ − η g/(√v + ε), where ĝ is a public gradient: noise in g does not inflate v."""

    learning_rate: float | Schedule
    decay: float = 0.9
    stability: float = 1e-5
    needs: ClassVar[Needs] = frozenset({PUBLIC_GRADIENT})

    def start(self, parameters: Any) -> State:
        return {"second": 0 * parameters}

    def step(self, direction: Any, state: State, round_: int, known: Known = NOTHING) -> tuple[Step, State]:
        xp = array_namespace(direction)
        second = self.decay * state["second"] + (1 - self.decay) * known.gradient**2
        return Step(as_schedule(self.learning_rate)(round_), direction / (xp.sqrt(second) + self.stability)), {"second": second}


@dataclass(frozen=True)
class public_adam:  # noqa: N801
    """m ← β₂ m + (1 − β₂)(β₁ g + (1 − β₁) ĝ); v ← β₃ v + (1 − β₃) ĝ²; θ ← θ − η m̂/(√v̂ + ε), where ĝ is a public gradient.

    m̂ and v̂ are m and v divided by 1 − β₂ᵗ and 1 − β₃ᵗ.
    """

    learning_rate: float | Schedule
    weight: float = 0.9  # β₁
    first_decay: float = 0.9  # β₂
    second_decay: float = 0.999  # β₃
    stability: float = 1e-5
    needs: ClassVar[Needs] = frozenset({PUBLIC_GRADIENT})

    def start(self, parameters: Any) -> State:
        return {"first": 0 * parameters, "second": 0 * parameters}

    def step(self, direction: Any, state: State, round_: int, known: Known = NOTHING) -> tuple[Step, State]:
        xp, gradient = array_namespace(direction), known.gradient
        mixed = self.weight * direction + (1 - self.weight) * gradient
        first = self.first_decay * state["first"] + (1 - self.first_decay) * mixed
        second = self.second_decay * state["second"] + (1 - self.second_decay) * gradient**2
        mean = first / (1 - self.first_decay ** (round_ + 1))
        root = xp.sqrt(second / (1 - self.second_decay ** (round_ + 1)))
        along = mean / (root + self.stability)
        return Step(as_schedule(self.learning_rate)(round_), along), {"first": first, "second": second}


@dataclass(frozen=True)
class mirror_mix:  # noqa: N801
    """θ ← θ − η (α g + (1 − α) ĝ) with α = cos(πt/2K) until t = K, then 0, where ĝ is a public gradient."""

    learning_rate: float | Schedule
    horizon: int  # K
    needs: ClassVar[Needs] = frozenset({PUBLIC_GRADIENT})

    def start(self, parameters: Any) -> State:
        return {}

    def step(self, direction: Any, state: State, round_: int, known: Known = NOTHING) -> tuple[Step, State]:
        share = math.cos(math.pi * min(round_ / self.horizon, 1.0) / 2)
        mixed = share * direction + (1 - share) * known.gradient
        return Step(as_schedule(self.learning_rate)(round_), mixed), state


@dataclass(frozen=True)
class warm_up:  # noqa: N801
    """In the first rounds a step along g + ĝ by `first`; g is 0, or a regulariser's gradient, as no private example is asked."""

    rounds: int
    first: UpdateRule
    then: UpdateRule

    @property
    def needs(self) -> Needs:
        return needs_of(self.first, self.then) | {PUBLIC_GRADIENT}

    def start(self, parameters: Any) -> State:
        return _add_prefix("first", self.first.start(parameters)) | _add_prefix("then", self.then.start(parameters))

    def step(self, direction: Any, state: State, round_: int, known: Known = NOTHING) -> tuple[Step, State]:
        if round_ < self.rounds:
            step, memory = self.first.step(direction + known.gradient, _with_prefix("first", state), round_, known)
            return step, state | _add_prefix("first", memory)
        step, memory = self.then.step(direction, _with_prefix("then", state), round_ - self.rounds, known)
        return step, state | _add_prefix("then", memory)


def _add_prefix(part: str, state: State) -> State:
    return {f"{part} {name}": value for name, value in state.items()}


def _with_prefix(part: str, state: State) -> State:
    return {name.removeprefix(f"{part} "): value for name, value in state.items() if name.startswith(f"{part} ")}
