"""Side information: what is known publicly at an iterate. It shapes what is asked of the examples, and how answers are used.

It comes from common knowledge fixed before training, from public data, or from earlier private answers; never from the private
examples themselves.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import NDArray

from privopt.errors import CompositionError, InputError
from privopt.needs import MOMENTUM, PUBLIC_GRADIENT, SCALE, Need, Needs, length_of
from privopt.state import NOTHING, Known

State = dict[str, Any]  # arrays by name, so that it can be saved


class SideInformation(Protocol):
    """What is publicly known. It declares what it `offers` (a public gradient, a scale, a momentum): `privopt.needs`."""

    def start(self, parameters: Any) -> State:
        """The state before the first round."""
        ...

    def at(self, parameters: Any, state: State, round_: int) -> tuple[Known, State]:
        """What is known at this iterate when a round begins, and the next state."""
        ...

    def observe(self, answer: Any, state: State, round_: int) -> State:
        """The state after a round with this private answer."""
        ...


class _Public:
    """Side information that does not depend on private answers."""

    def start(self, parameters: Any) -> State:
        return {}

    def observe(self, answer: Any, state: State, round_: int) -> State:
        return state


@dataclass(frozen=True)
class nothing(_Public):  # noqa: N801  # a constructor that reads as a phrase
    """Nothing is known."""

    def at(self, parameters: Any, state: State, round_: int) -> tuple[Known, State]:
        return NOTHING, state


# ---------------------------------------------------------------- fixed before training, from common knowledge


@dataclass(frozen=True)
class fixed_scale(_Public):  # noqa: N801
    """A scale A that is fixed before training: the typical size of each coordinate's gradient, a positive number."""

    scale: Any
    offers: ClassVar[frozenset[Need]] = frozenset({SCALE})

    def __post_init__(self) -> None:
        xp = array_namespace(self.scale)
        if not bool(xp.all(xp.isfinite(self.scale) & (self.scale > 0))):
            raise CompositionError("a scale holds a finite number > 0 for each coordinate: give what is rare a small one, not 0.")

    @property
    def needs(self) -> Needs:
        return length_of(self.scale, "fixed_scale")

    def at(self, parameters: Any, state: State, round_: int) -> tuple[Known, State]:
        return Known(scale=self.scale), state


# Scales of word counts, from a public corpus. Computed on the private rows they would leak: a word that only one row has would
# show. `privopt.measure.surveys.column_sizes` measures the private rows, with noise, and pays for it.


def token_frequency(counts: Any) -> NDArray[np.float64]:
    """A_j = (documents with word j + 1)/(documents + 1), for a public documents × words matrix, dense or sparse.

    >>> token_frequency(np.array([[2, 1, 0], [1, 0, 0], [4, 0, 0]])).tolist()
    [1.0, 0.5, 0.25]
    """
    present = _present(counts)
    return (present + 1) / (_documents(counts) + 1)


def tf_idf(counts: Any) -> NDArray[np.float64]:
    """A_j = 1/(mean TF-IDF score of word j), so that the largest score has A = 1, for a public documents × words matrix.

    tf is the word's share of a document, idf = ln((documents + 1)/(documents with it + 1)) + 1. A word that the corpus lacks
    counts as if half a document had it once.

    >>> tf_idf(np.array([[2, 2], [4, 0]])).round(2).tolist()
    [1.0, 2.13]
    """
    documents, present = _documents(counts), _present(counts)
    lengths = np.asarray(counts.sum(axis=1), dtype=float).ravel()
    shares = np.asarray(counts.T @ (1 / np.maximum(lengths, 1.0))).ravel()
    typical = max(float(np.median(lengths)), 1.0)
    score = np.maximum(shares, 0.5 / typical) * (np.log((documents + 1) / (present + 1)) + 1)
    return np.asarray(score.max() / score)


def _documents(counts: Any) -> int:
    if counts.ndim != 2 or not counts.shape[0] or not counts.shape[1]:
        raise InputError(f"a corpus is a documents × words matrix of counts, not of shape {counts.shape}.")
    return int(counts.shape[0])


def _present(counts: Any) -> NDArray[np.float64]:
    """In how many documents each word occurs."""
    return np.asarray((counts != 0).sum(axis=0), dtype=float).ravel()


# ---------------------------------------------------------------- statistics of public gradients
# ĝ is the mean gradient of a batch of public data at the current iterate. The batch of a round depends on the round's number
# only, so a run that is resumed sees the same ones.


class PublicGradient(Protocol):
    """Public data, as a function (θ, round) → ĝ."""

    @property
    def epoch(self) -> int:
        """How many rounds one pass over the data takes."""
        ...

    def __call__(self, parameters: Any, round_: int) -> Any:
        """The mean gradient of this round's batch at these parameters."""
        ...


@dataclass(frozen=True)
class public_gradient(_Public):  # noqa: N801
    """ĝ itself."""

    gradient: PublicGradient
    offers: ClassVar[frozenset[Need]] = frozenset({PUBLIC_GRADIENT})

    def at(self, parameters: Any, state: State, round_: int) -> tuple[Known, State]:
        return Known(gradient=self.gradient(parameters, round_)), state


@dataclass(frozen=True)
class public_rms(_Public):  # noqa: N801
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
class public_sum(_Public):  # noqa: N801
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
class public_moments(_Public):  # noqa: N801
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
    """√E[ĝ²] at these parameters, over the batches of one pass (at most 32)."""
    rounds = min(gradient.epoch, 32)
    return sum((gradient(parameters, round_) ** 2 for round_ in range(rounds)), 0 * parameters) ** 0.5 / rounds**0.5


def least_seen(sizes: Any) -> float:
    """A stability ε for these sizes: the tenth percentile of those above 0.

    A coordinate that never occurs in public data is then divided by the size of a rare one, and not by 0.
    """
    shown = array_namespace(sizes).sort(sizes[sizes > 0])
    return float(shown[shown.shape[0] // 10]) if shown.shape[0] else 1.0


# ---------------------------------------------------------------- from earlier private answers


@dataclass(frozen=True)
class delayed_preconditioner:  # noqa: N801
    """The scale √v + ν of averaged answers: phases of `phase` rounds that average alternate with phases that know the scale.

    v ← β v + (1 − β) ḡ² at the end of each phase of averaging, where ḡ is the mean of its answers.
    """

    phase: int
    decay: float = 0.9
    stability: float = 1e-8
    offers: ClassVar[frozenset[Need]] = frozenset({SCALE})  # in some rounds

    def __post_init__(self) -> None:
        if self.phase < 1:
            raise CompositionError(f"a phase has at least one round, not {self.phase}.")

    def ready(self, round_: int) -> bool:
        """Whether the scale is known in this round."""
        return round_ // self.phase % 2 == 1

    def start(self, parameters: Any) -> State:
        return {"total": 0 * parameters, "second": 0 * parameters}

    def at(self, parameters: Any, state: State, round_: int) -> tuple[Known, State]:
        if not self.ready(round_):
            return NOTHING, state
        return Known(scale=array_namespace(parameters).sqrt(state["second"]) + self.stability), state

    def observe(self, answer: Any, state: State, round_: int) -> State:
        if self.ready(round_):
            return state
        total = state["total"] + answer
        if not self.ready(round_ + 1):
            return {**state, "total": total}
        second = self.decay * state["second"] + (1 - self.decay) * (total / self.phase) ** 2
        return {"total": 0 * total, "second": second}
