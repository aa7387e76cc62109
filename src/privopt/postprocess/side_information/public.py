"""Statistics of public gradients, taken along the way: what adaptive methods need to know and noise would spoil.

ĝ is the mean gradient of a batch of public data at the current iterate. The batch of a round depends on the round's number
alone, so a run that is resumed sees the same ones.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from array_api_compat import array_namespace

from privopt.needs import MOMENTUM, PUBLIC_GRADIENT, SCALE, Need
from privopt.postprocess.side_information.slot import State, Unmoved
from privopt.trajectory import Known


class PublicGradient(Protocol):
    """Public data, as a method sees them: (θ, round) → ĝ."""

    @property
    def epoch(self) -> int:
        """How many rounds pass once over the data."""
        ...

    def __call__(self, parameters: Any, round_: int) -> Any:
        """The mean gradient of this round's batch at these parameters."""
        ...


@dataclass(frozen=True)
class public_gradient(Unmoved):  # noqa: N801  # a constructor that reads as a phrase
    """ĝ itself."""

    gradient: PublicGradient
    offers: ClassVar[frozenset[Need]] = frozenset({PUBLIC_GRADIENT})

    def at(self, parameters: Any, state: State, round_: int) -> tuple[Known, State]:
        return Known(gradient=self.gradient(parameters, round_)), state


@dataclass(frozen=True)
class public_rms(Unmoved):  # noqa: N801
    """RMSProp's scale: v ← β v + (1 − β) ĝ²; A = √v + ε."""

    gradient: PublicGradient
    decay: float = 0.9
    stability: float = 1e-5
    offers: ClassVar[frozenset[Need]] = frozenset({PUBLIC_GRADIENT, SCALE})

    def start(self, parameters: Any) -> State:
        return {"second": 0 * parameters}

    def at(self, parameters: Any, state: State, round_: int) -> tuple[Known, State]:
        gradient = self.gradient(parameters, round_)
        second = self.decay * state["second"] + (1 - self.decay) * gradient**2
        return Known(gradient, second**0.5 + self.stability), {"second": second}


@dataclass(frozen=True)
class public_sum(Unmoved):  # noqa: N801
    """AdaGrad's scale: v ← v + ĝ²; A = √v + ε."""

    gradient: PublicGradient
    stability: float = 1e-5
    offers: ClassVar[frozenset[Need]] = frozenset({PUBLIC_GRADIENT, SCALE})

    def start(self, parameters: Any) -> State:
        return {"second": 0 * parameters}

    def at(self, parameters: Any, state: State, round_: int) -> tuple[Known, State]:
        gradient = self.gradient(parameters, round_)
        second = state["second"] + gradient**2
        return Known(gradient, second**0.5 + self.stability), {"second": second}


@dataclass(frozen=True)
class public_moments(Unmoved):  # noqa: N801
    """Adam's scale and momentum: A as `public_rms`; M ← β₁ M + (1 − β₁) ĝ."""

    gradient: PublicGradient
    first_decay: float = 0.9
    decay: float = 0.9
    stability: float = 1e-5
    offers: ClassVar[frozenset[Need]] = frozenset({PUBLIC_GRADIENT, SCALE, MOMENTUM})

    def start(self, parameters: Any) -> State:
        return {"first": 0 * parameters, "second": 0 * parameters}

    def at(self, parameters: Any, state: State, round_: int) -> tuple[Known, State]:
        gradient = self.gradient(parameters, round_)
        first = self.first_decay * state["first"] + (1 - self.first_decay) * gradient
        second = self.decay * state["second"] + (1 - self.decay) * gradient**2
        return Known(gradient, second**0.5 + self.stability, first), {"first": first, "second": second}


def seen_sizes(gradient: PublicGradient, parameters: Any) -> Any:
    """√E[ĝ²] at these parameters, over the batches of a pass (32 at most)."""
    rounds = min(gradient.epoch, 32)
    return sum((gradient(parameters, round_) ** 2 for round_ in range(rounds)), 0 * parameters) ** 0.5 / rounds**0.5


def least_seen(sizes: Any) -> float:
    """A stability ε beside sizes: what a tenth of the coordinates that public data show at all do not exceed.

    A coordinate that they do not show is then divided by about what a rare one is, and not by 0.
    """
    shown = array_namespace(sizes).sort(sizes[sizes > 0])
    return float(shown[shown.shape[0] // 10]) if shown.shape[0] else 1.0
