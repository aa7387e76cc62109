"""Queries: one vector per example, asked at points that are already public."""

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from privopt.errors import CompositionError
from privopt.measure.clips import Clip, check_factors
from privopt.measure.units import Unit, each_row, each_user
from privopt.needs import MOMENTUM, PREVIOUS_ITERATE, ROW_GRADIENTS, SCALE, USER_CHANGES, Needs, needs_of
from privopt.perexample.grads import Oracle, PerExampleVectors, Rows
from privopt.perexample.user_vectors import LocalSteps
from privopt.state import PublicState


class Query(Protocol):
    """What is asked of each example, or of each user. It declares what it needs of other slots: `privopt.needs`."""

    def __call__(self, oracle: Oracle, rows: Rows, at: PublicState) -> PerExampleVectors:
        """The vectors of these rows."""
        ...

    def __matmul__(self, clip: Clip) -> "Term":
        """The query with the clip that bounds it."""
        ...


@dataclass(frozen=True)
class Term:
    """weight × a clipped query. One example moves its sum by at most weight × the clip's bound."""

    weight: float
    query: Query
    clip: Clip

    def __post_init__(self) -> None:
        if not math.isfinite(self.weight):
            raise CompositionError(f"the weight of a query is a finite number, not {self.weight}.")
        if PREVIOUS_ITERATE in needs_of(self.clip) - needs_of(self.query):
            raise CompositionError("l2_moved bounds how gradients change: use it with gradient_difference(), and l2 with others.")
        check_factors(self.clip)
        if self.clip.order == 1 and MOMENTUM in self.needs:
            raise CompositionError("l1 norms of gradients that a momentum is mixed into have no closed form. Use an l2 clip.")

    @property
    def needs(self) -> Needs:
        return needs_of(self.query, self.clip)

    def __rmul__(self, factor: float) -> "Term":
        return Term(factor * self.weight, self.query, self.clip)

    @property
    def bound(self) -> float:
        return abs(self.weight) * self.clip.bound

    def at(self, state: PublicState) -> "Term":
        """The term of a round, whose bound is a number."""
        clip = self.clip.at(state)
        return self if clip is self.clip else Term(self.weight, self.query, clip)


class _Clippable:
    unit: ClassVar[Unit] = each_row()  # whose vector it is

    def __matmul__(self, clip: Clip) -> Term:
        return Term(1.0, self, clip)  # type: ignore[arg-type]  # the kinds below are queries


@dataclass(frozen=True)
class gradient(_Clippable):  # noqa: N801  # a constructor that reads as a phrase
    """The gradient of each example's loss at the current iterate.

    >>> from privopt.measure.clips import l2
    >>> (0.5 * (gradient() @ l2(2.0))).bound
    1.0
    """

    needs: ClassVar[Needs] = frozenset({ROW_GRADIENTS})

    def __call__(self, oracle: Oracle, rows: Rows, at: PublicState) -> PerExampleVectors:
        return oracle(at.current, rows)


@dataclass(frozen=True)
class gradient_difference(_Clippable):  # noqa: N801
    """∇fᵢ(θ) − ∇fᵢ(θ′), of the same examples at the current iterate and at the one before."""

    needs: ClassVar[Needs] = frozenset({PREVIOUS_ITERATE, ROW_GRADIENTS})

    def __call__(self, oracle: Oracle, rows: Rows, at: PublicState) -> PerExampleVectors:
        return oracle(at.current, rows).minus(oracle(at.previous, rows))


@dataclass(frozen=True)
class preconditioned_gradient(_Clippable):  # noqa: N801
    """(β ∇fᵢ(θ) + (1 − β) M)/A, with the scale A and the momentum M of side information; ∇fᵢ(θ) in rounds without a scale.

    A and M are the same for all examples and depend on none of them, so a clip of the result bounds what one example does.
    """

    weight: float = field(default=1.0)  # β

    @property
    def needs(self) -> Needs:
        return frozenset({ROW_GRADIENTS, SCALE} if self.weight == 1 else {ROW_GRADIENTS, SCALE, MOMENTUM})

    def __call__(self, oracle: Oracle, rows: Rows, at: PublicState) -> PerExampleVectors:
        grads, (_, scale, momentum) = oracle(at.current, rows), at.known
        if scale is None:
            return grads
        grads = grads.scaled(self.weight / scale)
        return grads if self.weight == 1 else grads.shifted(momentum / scale, 1 - self.weight)


@dataclass(frozen=True)
class client_update(_Clippable):  # noqa: N801
    """θ − w for each user, where w is reached from θ by local steps on the user's own rows: w ← w − η ∇f(w)/A.

    A is the scale of side information if the steps are `scaled`, else 1. θ, A and the steps are public, so a user's vector
    depends on no other user, and a clip of it bounds what one user does, with however many rows.
    """

    local: LocalSteps
    scaled: bool = False
    unit: ClassVar[Unit] = each_user()

    @property
    def needs(self) -> Needs:
        return frozenset({USER_CHANGES, SCALE} if self.scaled else {USER_CHANGES})

    def __call__(self, oracle: Any, rows: Rows, at: PublicState) -> Any:
        return oracle.changes(at.current, rows, self.local, at.known.scale if self.scaled else None)
