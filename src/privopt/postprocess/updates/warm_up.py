"""First some rounds on public gradients, by one rule; then the private rounds, by another."""

from dataclasses import dataclass
from typing import Any

from privopt.needs import PUBLIC_GRADIENT, Needs, needs_of
from privopt.postprocess.updates.rule import State, Step, UpdateRule
from privopt.trajectory import NOTHING, Known


@dataclass(frozen=True)
class warm_up:  # noqa: N801  # a constructor that reads as a phrase
    """In the first rounds a step along g + ĝ by `first`, where g is 0 (or a regulariser's gradient): nobody is asked yet."""

    rounds: int
    first: UpdateRule
    then: UpdateRule

    @property
    def needs(self) -> Needs:
        return needs_of(self.first, self.then) | {PUBLIC_GRADIENT}

    def start(self, parameters: Any) -> State:
        return _named("first", self.first.start(parameters)) | _named("then", self.then.start(parameters))

    def step(self, direction: Any, state: State, round_: int, known: Known = NOTHING) -> tuple[Step, State]:
        if round_ < self.rounds:
            step, memory = self.first.step(direction + known.gradient, _part("first", state), round_, known)
            return step, state | _named("first", memory)
        step, memory = self.then.step(direction, _part("then", state), round_ - self.rounds, known)
        return step, state | _named("then", memory)


def _named(part: str, state: State) -> State:
    return {f"{part} {name}": value for name, value in state.items()}


def _part(part: str, state: State) -> State:
    return {name.removeprefix(f"{part} "): value for name, value in state.items() if name.startswith(f"{part} ")}
