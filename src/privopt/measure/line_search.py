"""Line search: a step against a noisy gradient, whose length is chosen by a noisy comparison of losses.

What must stay true: the gradients of a run take their noise from one pool, and each round chooses once. Both are paid before the
first round although the data decide how the pool is divided: `gaussian_pool` says why that is enough.
"""

import math
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from array_api_compat import array_namespace

from privopt.errors import CompositionError
from privopt.measure.clips import l2
from privopt.measure.measurement import Carry, Noisy
from privopt.measure.mechanisms import gaussian_pool, noisy_min
from privopt.measure.queries import gradient
from privopt.measure.randomness import Rng
from privopt.needs import EVERY_ROUND, Needs, Offer, OracleNeed, needs_of
from privopt.perexample.grads import Array, Objective, Oracle, Vector
from privopt.privacy.events import DpEvent, compose
from privopt.state import PublicState

SETTLE = 10  # steps between two adjustments of the longest candidate to the steps that were chosen
MARGIN = 1.1  # the longest candidate, as a multiple of the longest chosen step


class PublicTerm(Protocol):
    """A part of the objective that no data enter."""

    def value(self, parameters: Any) -> float: ...

    def gradient(self, parameters: Any) -> Any: ...


@dataclass(frozen=True)
class LineSearch:
    """The step from the iterate: 0, or one against a noisy gradient.

    The gradient takes a share of the pool. Its direction is tried at `candidates` step lengths and at 0; the noisy minimum of the
    losses says which is best. If 0 is, the next round measures the same gradient again, with `growth` times the share
    that it has, and averages: an answer with a share p has the variance z²/p, so shares are the weights. All later shares are
    larger by that factor. When the pool does not hold two more shares it is used up; after that the iterate stays where it is.

    **Guarantee** One example moves the sum of clipped gradients by at most `clip.bound`: `gaussian_pool`. Its clipped loss lies
    in [0, `loss_bound`], so adding it raises the sum of losses at *every* candidate, by at most that: `noisy_min`. A
    regulariser and the number of examples, which weighs it, are public: they add the same to a score with or without the
    example. Event: the pool and one choice in round 0, one choice in every other round, also in one that does not choose.
    """

    clip: l2
    loss_bound: float
    pool: gaussian_pool
    selection: noisy_min
    first_share: float
    growth: float
    longest: float
    candidates: int
    regularizer: PublicTerm | None = None

    def __post_init__(self) -> None:
        l2(self.loss_bound)  # a finite number ≥ 0
        if not 0 < self.first_share <= 1:
            raise CompositionError(f"first_share is {self.first_share}, but a share of the noise lies in (0, 1].")
        if not 0 < self.growth < math.inf:
            raise CompositionError(f"growth is {self.growth}, but gradients that are not good enough need more: a number > 0.")
        if not 0 < self.longest < math.inf:
            raise CompositionError(f"the longest step is {self.longest}, but it is a finite number > 0.")
        if self.candidates < 1:
            raise CompositionError(f"there is at least one step to try, not {self.candidates}.")

    @property
    def needs(self) -> Needs:
        return needs_of(self.regularizer) | {_Losses(), EVERY_ROUND}

    def event(self, round_: int) -> DpEvent:
        """What this round will cost: known before any data are read."""
        return self.selection.event if round_ else compose([self.pool.event, self.selection.event])

    def measure(self, oracle: Oracle, at: PublicState, round_: int, rng: Rng, carry: Carry = {}) -> Noisy:  # noqa: B006
        """Choose the step, which is to be subtracted from the iterate; all that is carried is private already."""
        if round_ and not carry:
            raise CompositionError("a line search pays for its gradients in round 0, so it begins there.")
        state = _State(**carry) if round_ else _State(0.0, self.first_share, 0.0, 0 * at.current, self.longest, 0.0, 0)
        if state.spent >= 1:
            return Noisy(0 * at.current, self.event(round_), carry)
        state = self._refine_gradient(oracle, at, state, rng)
        direction = state.gradient
        if self.regularizer is not None:
            direction = direction + self.regularizer.gradient(at.current)
        direction = direction / max(float(array_namespace(direction).linalg.vector_norm(direction)), 1e-300)
        steps = np.linspace(0.0, state.longest, self.candidates + 1)
        scores = np.array([self._score(oracle, at.current - step * direction) for step in steps.tolist()])  # type: ignore[arg-type]
        step = float(steps[self.selection.choose(scores, self.loss_bound, rng)])
        return Noisy(step * direction, self.event(round_), vars(self._after_step(state, step)))

    def _refine_gradient(self, oracle: Oracle, at: PublicState, state: "_State", rng: Rng) -> "_State":
        """Measure the mean gradient: anew where the iterate moved, with less noise where it did not."""
        share = state.share * (1 + self.growth) if state.held else state.share
        wanted, left = share - state.held if state.held else share, 1 - state.spent
        taken = wanted if left > (2 - 1e-9) * wanted else left
        mean = gradient()(oracle, None, at).clipped_sum(self.clip, 1 / oracle.size)
        answer, spent = self.pool.release(mean, self.clip.bound / oracle.size, taken, state.spent, rng)
        held = state.held + taken
        average = answer if not state.held else (state.held * state.gradient + taken * answer) / held
        return _State(spent, share, held, average, state.longest, state.recent, state.moves)

    def _score(self, oracle: Objective, parameters: Array) -> float:
        """The sum of clipped losses; NaN counts as the bound."""
        losses = oracle.losses(parameters, None).clip(0.0, self.loss_bound)
        losses[losses != losses] = self.loss_bound
        xp = array_namespace(losses)
        total = float(xp.sum(losses, dtype=xp.float64))
        return total if self.regularizer is None else total + oracle.size * float(self.regularizer.value(parameters))

    def _after_step(self, state: "_State", step: float) -> "_State":
        """The state after a step. A new iterate needs a new gradient; every few steps the longest candidate is adjusted."""
        if step == 0:
            return state
        longest, recent, moves = state.longest, max(state.recent, step), state.moves + 1
        if moves % SETTLE == 0:
            longest, recent = min(MARGIN * recent, self.longest), 0.0
        return _State(state.spent, state.share, 0.0, state.gradient, longest, recent, moves)


@dataclass(frozen=True)
class _Losses(OracleNeed):
    """The loss of each example."""

    def missing(self, offer: Offer) -> str | None:
        return None if offer.losses else "a line search compares losses, but this oracle knows gradients only: see `Objective`."


@dataclass(frozen=True)
class _State:
    """What a round keeps for the next one."""

    spent: float  # of the pool
    share: float  # of the pool, for each gradient
    held: float  # the share that the gradient of this iterate has; 0 at a new one
    gradient: Vector
    longest: float  # candidate
    recent: float  # longest step since that was set
    moves: int
