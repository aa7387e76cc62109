"""Measurements: sampler × clipped queries × mechanism. What leaves one is private.

`shared_noise` is the measurement of a federation whose devices draw the noise. An open round is a measurement whose batch is
processed in pieces, for a training loop of the user's own.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from privopt.errors import CompositionError
from privopt.measure.clips import adaptive, automatic, l2
from privopt.measure.mechanisms import Independent, Mechanism, gaussian
from privopt.measure.queries import Term
from privopt.measure.randomness import Rng, Sum
from privopt.measure.samplers import Sampler, full_batch, poisson, several_rows
from privopt.measure.units import Unit, each_row, each_user, rows_drawn
from privopt.needs import EVERY_ROUND, USER_CHANGES, Needs, RowsDrawn, needs_of
from privopt.perexample.grads import Array, Oracle, PerExampleGrads, Rows
from privopt.perexample.persons import Persons, cut_between_persons
from privopt.privacy.budget import UNITS
from privopt.privacy.events import DpEvent
from privopt.state import PublicState

Carry = dict[str, Any]  # arrays and numbers by name


class Noisy(NamedTuple):
    """A private answer, the event that pays for it, and what the private side keeps for the next round."""

    value: Array
    event: DpEvent
    carry: Carry = {}  # noqa: RUF012  # never changed; it may be secret (a noisy threshold, noise), so update rules do not see it


class Measuring(Protocol):
    """What a round measures: a `Measurement`, or an answer of another kind, such as a stable solution or a noisy choice.

    It declares what it needs of other slots and of the oracle: `privopt.needs`.
    """

    def event(self, round_: int) -> DpEvent:
        """What this round will cost: known before any data are read."""
        ...

    def measure(self, oracle: Oracle, at: PublicState, round_: int, rng: Rng, carry: Carry = ...) -> Noisy:
        """Measure; `carry` is what the round before kept."""
        ...


@dataclass(frozen=True)
class Measurement:
    """The noisy mean of clipped per-example vectors.

    **Guarantee** One example moves Σ over terms of weight × clipped sum by at most Σ |weight| × bound; the mechanism's noise is
    relative to that; the sampler amplifies its event. The divisor is the sampler's expected size, a public constant.

    The same queries ask for the vectors of persons if that is the unit, of an oracle that has one for each person. With
    `rows_of_persons` they ask for rows, and the event is that of a person with several. A recipe is run on an oracle of its own
    unit only: `Recipe.check`.

    >>> from privopt.measure.clips import l1, l2
    >>> from privopt.measure.mechanisms import gaussian, laplace
    >>> from privopt.measure.queries import gradient
    >>> from privopt.measure.samplers import full_batch
    >>> Measurement(full_batch(), [gradient() @ l2(1.0)], gaussian(2.0)).event(0)
    GaussianDpEvent(noise_multiplier=2.0)
    >>> Measurement(full_batch(), [gradient() @ l2(1.0)], laplace(2.0))
    Traceback (most recent call last):
    privopt.errors.CompositionError: laplace hides an l1 change, but the clip bounds l2. Use l1(1.0), or gaussian / gamma_norm.
    """

    sampler: Sampler
    terms: Sequence[Term]
    mechanism: Mechanism
    unit: Unit = field(default=each_row(), kw_only=True)

    def __post_init__(self) -> None:
        if not self.terms:
            raise CompositionError("a measurement needs at least one clipped query.")
        for term in self.terms:
            if term.clip.order != self.mechanism.order:
                kind, bound = type(self.mechanism).__name__, term.clip.bound
                fit = f"l1({bound}), or gaussian / gamma_norm" if self.mechanism.order == 1 else f"l2({bound}), or laplace"
                raise CompositionError(
                    f"{kind} hides an l{self.mechanism.order} change, but the clip bounds l{term.clip.order}. Use {fit}."
                )
            unit: Unit = getattr(term.query, "unit", each_row())
            if unit != self.unit and (unit.name, self.unit.name) != ("example", "person"):
                raise CompositionError(
                    f"{type(term.query).__name__} gives a vector for {UNITS[unit.name]}, but the unit of the "
                    f"measurement is {self.unit}: what is clipped is what is protected. Use unit={unit}."
                )
            if unit == each_user() and USER_CHANGES not in needs_of(term.query):
                raise CompositionError(f"{type(term.query).__name__} asks rows, so it protects no user. Use client_update(…).")
            if isinstance(term.clip, adaptive) and not (len(self.terms) == 1 and isinstance(self.mechanism, gaussian)):
                raise CompositionError("an adaptive clip shares Gaussian noise with one query. Use gaussian, or l2 with others.")
        if rows_drawn(self.unit) is not None and not (isinstance(self.sampler, poisson) and isinstance(self.mechanism, gaussian)):
            raise CompositionError(
                f"{self.unit} draws rows, which has a price for Poisson batches and Gaussian noise only. Use each_person()."
            )
        if not self._independent and not (isinstance(self.sampler, full_batch) and math.isfinite(self.bound)):
            raise CompositionError(
                f"the noise of {type(self.mechanism).__name__} is correlated across rounds, so it hides the same change of every "
                "row in each of them. Use full_batch() and a clip with a finite bound, or noise that is independent (gaussian)."
            )

    def protecting(self, unit: Unit) -> "Measurement":
        """The same measurement of an oracle that has a vector for each unit of this kind, instead of one for each row."""
        return replace(self, unit=unit) if self.unit == each_row() else self

    @property
    def needs(self) -> Needs:
        drawn = RowsDrawn(rows_drawn(self.unit))
        return needs_of(self.sampler, *self.terms) | {drawn} | (frozenset() if self._independent else {EVERY_ROUND})

    @property
    def _independent(self) -> bool:
        return isinstance(self.mechanism, Independent)

    @property
    def bound(self) -> float:
        """How far one example can move the sum."""
        return sum(term.bound for term in self.terms)

    def event(self, round_: int) -> DpEvent:
        """What this round will cost: known before any data are read."""
        if (most := rows_drawn(self.unit)) is not None:
            assert isinstance(self.sampler, poisson)
            assert isinstance(self.mechanism, gaussian)
            return several_rows(self.sampler.sampling_probability, most, self.mechanism.noise_multiplier)
        return self.sampler.amplify(self.mechanism.event_in(round_), round_)

    def measure(self, oracle: Oracle, at: PublicState, round_: int, rng: Rng, carry: Carry = {}) -> Noisy:  # noqa: B006
        """Draw rows, query, clip, sum, and add noise."""
        rows = self.sampler.draw(oracle.size, round_, rng)
        if isinstance(self.terms[0].clip, adaptive):
            return self._measure_adaptively(self.terms[0].clip, oracle, rows, at, round_, rng, carry)
        terms = [term.at(at) for term in self.terms]
        expected = self.sampler.expected(oracle.size)
        bound = sum(term.bound for term in terms) if self._independent else self.bound  # correlated noise has one scale
        hidden = self.begin(at.current, bound / expected, round_, rng, carry)
        asked = oracle if len(terms) == 1 else _Once(oracle)
        vectors = [term.query(asked, rows, at) for term in terms]

        def mean(out: Array | None) -> Array:
            for term, grads in zip(terms, vectors, strict=True):
                out = grads.clipped_sum(term.clip, term.weight / expected, out)
            return out

        return hidden(mean)

    def _measure_adaptively(
        self, clip: adaptive, oracle: Oracle, rows: Rows, at: PublicState, round_: int, rng: Rng, carry: Carry
    ) -> Noisy:
        """Measure the mean, and the share of vectors within the bound, which decides the next bound.

        **Guarantee** What the round would cost with a fixed bound. An example's vector v has ‖v‖ ≤ C, and its count c is ½ if v
        was within the bound and −½ if not. The mean is released with noise of multiplier z₁ = z/√(1 − p) and the count with
        deviation z₂ = z/(2√p), where p is the clip's `share`. In units of their noise one example moves both together by at
        most √(1/z₁² + (½/z₂)²) = 1/z: one Gaussian(z), of one draw of rows. A person with J drawn rows moves both by at most J/z;
        rows of a person above the cap have no vector, and no count.
        """
        assert isinstance(self.mechanism, gaussian)
        noise, expected, term = self.mechanism.noise_multiplier, self.sampler.expected(oracle.size), self.terms[0]
        bound = float(carry.get("clip_bound", clip.bound))
        fixed = l2(bound)
        hide = gaussian(noise / math.sqrt(1 - clip.share)).begin(at.current, abs(term.weight) * bound / expected, rng)
        vectors: Any = term.query(oracle, rows, at)
        value = hide(lambda out: vectors.clipped_sum(fixed, term.weight / expected, out))
        drawn = oracle.size if rows is None else len(rows)
        if rows_drawn(self.unit) is not None:
            drawn = vectors.examples  # those that count
        count = np.array([vectors.count_within(bound) - drawn / 2])
        noisy = float(gaussian(noise / math.sqrt(clip.share)).release(count, 0.5, rng)[0])
        return Noisy(value, self.event(round_), {"clip_bound": clip.next_bound(bound, noisy / expected + 0.5)})

    def begin(self, like: Array, bound: float, round_: int, rng: Rng, carry: Carry = {}) -> Callable[[Sum], Noisy]:  # noqa: B006
        """Start drawing the noise of a round; the function that is returned adds the mean, which one example moves by `bound`."""
        if not (self._independent or carry or round_ == 0):
            raise CompositionError("correlated noise begins in round 0, and each round needs what the one before kept.")
        add = self.mechanism.step(carry if round_ else self.mechanism.start(like), round_, like, bound, rng)

        def answer(mean: Sum) -> Noisy:
            value, kept = add(mean)
            return Noisy(value, self.event(round_), kept)

        return answer


class _Once:
    """An oracle that visits each point once, when several terms of a round ask for the same rows there."""

    def __init__(self, oracle: Oracle) -> None:
        self._visited: list[tuple[Array, Rows, PerExampleGrads]] = []  # holds the points: another could not take one's place
        self._oracle, self.size = oracle, oracle.size

    def __call__(self, parameters: Array, rows: Rows) -> PerExampleGrads:
        for point, asked, grads in self._visited:
            if point is parameters and asked is rows:
                return grads
        self._visited.append((parameters, rows, self._oracle(parameters, rows)))
        return self._visited[-1][2]


# ---------------------------------------------------------------- noise that devices draw


@dataclass(frozen=True)
class shared_noise:  # noqa: N801  # a constructor that reads as a phrase
    """The noisy mean of users' clipped vectors, whose noise is drawn by the devices of the users that take part.

    Each of k devices adds N(0, (zC)²/k) on each coordinate, so the sum of all carries N(0, (zC)²). Of devices that do not
    answer, or whose answer is refused, the server adds the share: the noise of the sum does not depend on who answers.

    **Guarantee** Query: Σ of the vectors of a draw of users, each clipped to l2 norm C: one user moves it by at most C. Given the
    draw, the noise of the *sum* is N(0, (zC)² I), whatever k is and whoever answers. Event: sampling(Gaussian(z)). It is the
    guarantee of `gaussian(z)` for whoever sees nothing but sums, which takes a secure aggregation: a server that sees the answer
    of a single device sees it under that device's share of the noise only. It relies on devices that draw their share.
    """

    sampler: Sampler
    term: Term
    noise_multiplier: float
    unit: Unit = field(default=each_user(), kw_only=True)

    def __post_init__(self) -> None:
        gaussian(self.noise_multiplier)  # validates it
        if type(self.term.clip) not in (l2, automatic):
            raise CompositionError("devices that add noise themselves clip to a bound that is fixed. Use l2 or automatic.")
        if getattr(self.term.query, "unit", None) != self.unit:
            raise CompositionError(f"shared noise is that of users' devices. Use client_update(…), not {self.term.query}.")

    @property
    def needs(self) -> Needs:
        return needs_of(self.sampler, self.term)

    def event(self, round_: int) -> DpEvent:
        """What this round will cost."""
        return self.sampler.amplify(gaussian(self.noise_multiplier).event, round_)

    def measure(self, oracle: Oracle, at: PublicState, round_: int, rng: Rng, carry: Carry = {}) -> Noisy:  # noqa: B006
        """Draw users, ask for their noisy sum, and add the noise that did not come."""
        users = self.sampler.draw(oracle.size, round_, rng)
        vectors: Any = self.term.query(oracle, users, at)
        bound = self.term.clip.bound
        total, arrived = vectors.noisy_sum(self.term.clip, self.noise_multiplier * bound)
        missing = gaussian(self.noise_multiplier * math.sqrt(max(0.0, 1 - arrived)))
        value = missing.release(total, bound, rng) * (self.term.weight / self.sampler.expected(oracle.size))
        return Noisy(value, self.event(round_))


# ---------------------------------------------------------------- open rounds


CLOSED = "this round is closed: it has answered, or the sum of one of its pieces failed. A round answers once; begin the next."


def _fits(unit: Unit, persons: Persons | None, size: int) -> bool:
    """Whether these persons are what such a unit is drawn from, `size` in number."""
    most = rows_drawn(unit)
    if persons is None or most is None:
        return (persons is None) == (unit == each_row()) and (persons is None or persons.size == size)
    return len(persons.rows) <= size and int(persons.counts.max(initial=0)) <= most


class RoundInPieces(Protocol):
    """A round whose pieces are added one by one, and which then answers once."""

    parts: Sequence[NDArray[Any]]  # the rows of each piece
    places: Sequence[int]  # a number for each piece, of which its random numbers are made

    def add(self, place: int, grads: PerExampleGrads) -> None:
        """Clip the vectors of the part in this place and add them; parts are added in order."""
        ...

    def finish(self) -> Noisy:
        """Hide the mean, once."""
        ...


class OpenRound:
    """One round: rows are drawn once, each piece's clipped vectors are added, and their mean is hidden at the end.

    With `persons`, those are drawn. A piece has all rows of its persons, and the gradients of these rows are made vectors of
    persons here, before anything is clipped. With `rows_of_persons`, `size` rows are drawn; those that count for nobody drop out.

    **Guarantee** That of the measurement, whatever fails: a piece is used up before its sum is computed, so it counts at most
    once; a round with a sum that failed stays closed; the answer is drawn once. A round without rows is hidden like any other.
    """

    def __init__(
        self,
        measurement: Measurement,
        size: int,
        round_: int,
        rng: Rng,
        zero: Array,
        most: int,
        persons: Persons | None = None,
    ) -> None:
        if len(measurement.terms) != 1:
            raise CompositionError("a round in pieces has one clipped query.")
        if not _fits(measurement.unit, persons, size):
            raise CompositionError(f"the unit of the measurement is {measurement.unit}, so persons={persons} are not the {size}.")
        self._term, self._expected = measurement.terms[0], measurement.sampler.expected(size)
        self._mean: Array | None = zero  # None: the round is closed
        rows = measurement.sampler.draw(size, round_, rng)
        self._hidden = measurement.begin(zero, measurement.bound / self._expected, round_, rng)
        self.rows = np.arange(size) if rows is None else rows
        self._counts: list[NDArray[Any]] = []  # how many rows each person of a piece has
        self.parts: Sequence[NDArray[Any]] = []
        if persons is not None and rows_drawn(measurement.unit) is not None:
            self.rows = self.rows[np.isin(self.rows, persons.rows)]
        if persons is None or rows_drawn(measurement.unit) is not None:
            self.parts = [self.rows[start : start + most] for start in range(0, len(self.rows), most)]
        else:
            drawn = persons.take(self.rows)
            pieces = [drawn.take(np.arange(*span)) for span in cut_between_persons(drawn.counts, most)]
            self.parts, self._counts = [piece.rows for piece in pieces], [piece.counts for piece in pieces]
        self.places: Sequence[int] = range(len(self.parts))
        self._added = 0  # how many parts

    def add(self, place: int, grads: Any) -> None:
        """Clip the vectors of the part in this place and add them; parts are added in order."""
        if place != self._added or place >= len(self.parts):
            raise CompositionError(f"piece {place + 1} of {len(self.parts)} is not the next one: each counts once, in order.")
        mean = self._take_mean()
        self._added += 1
        if self._counts:
            grads = grads.of_persons(self._counts[place])
        self._mean = grads.clipped_sum(self._term.clip, self._term.weight / self._expected, mean)

    def finish(self) -> Noisy:
        """Hide the mean, once."""
        if self._added < len(self.parts):
            raise CompositionError(f"{self._added} of {len(self.parts)} pieces were added: a round is answered when all were.")
        mean = self._take_mean()
        return self._hidden(lambda out: mean if out is None else out + mean)

    def _take_mean(self) -> Array:
        """Take the mean so far; the round is closed until it is put back."""
        mean, self._mean = self._mean, None
        if mean is None:
            raise CompositionError(CLOSED)
        return mean
