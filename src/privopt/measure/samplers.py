"""Samplers: which rows take part in a round.

A sampler draws the rows of a round in time proportional to their number, knows the *expected* size of a draw exactly (that,
and never the drawn size, is what a mean is divided by), and says how the sampling changes the event of a mechanism.
"""

import math
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol

import numpy as np
from scipy.stats import binom

from privopt.errors import CompositionError
from privopt.measure.randomness import KEY_BITS, Rng, from_key
from privopt.needs import Needs, Offer, OracleNeed
from privopt.perexample.grads import Rows, Vector
from privopt.perexample.persons import Persons
from privopt.privacy.events import (
    DpEvent,
    GaussianDpEvent,
    MixtureOfGaussiansDpEvent,
    NoOpDpEvent,
    PoissonSampledDpEvent,
    SampledWithoutReplacementDpEvent,
)


class Sampler(Protocol):
    """Which rows take part."""

    def draw(self, size: int, round_: int, rng: Rng) -> Rows:
        """The rows of this round; `None` is all of them."""
        ...

    def expected(self, size: int) -> float:
        """The expected number of rows, exactly."""
        ...

    def amplify(self, event: DpEvent, round_: int) -> DpEvent:
        """The event of this round, given the mechanism's event without sampling."""
        ...


@dataclass(frozen=True)
class poisson:  # noqa: N801  # a constructor that reads as a phrase
    """Each row takes part with this probability, independently.

    **Guarantee** PoissonSampled(q, event): amplified, for either kind of neighbours. An empty draw is a draw.
    """

    sampling_probability: float

    def __post_init__(self) -> None:
        if not 0 < self.sampling_probability <= 1:
            raise CompositionError(f"poisson({self.sampling_probability}): a sampling probability lies in (0, 1].")

    def draw(self, size: int, round_: int, rng: Rng) -> Rows:
        # among independent coins the gaps between heads are geometric: sorted rows, in O(batch)
        expected = self.expected(size)
        count = int(expected + 5 * math.sqrt(expected)) + 8
        heads = rng.geometric(self.sampling_probability, count).cumsum()
        while heads[-1] < size:
            heads = np.concatenate([heads, heads[-1] + rng.geometric(self.sampling_probability, count).cumsum()])
        rows: Vector = heads[: heads.searchsorted(size, "right")] - 1
        return rows

    def expected(self, size: int) -> float:
        return self.sampling_probability * size

    def amplify(self, event: DpEvent, round_: int) -> DpEvent:
        return _sampled(self.sampling_probability, event)


@lru_cache(maxsize=8)
def _sampled(probability: float, event: DpEvent) -> DpEvent:
    """Cached, so that all rounds share one object: making and comparing events takes as long as drawing a small batch."""
    return PoissonSampledDpEvent(probability, event)


@dataclass(frozen=True)
class fixed_size:  # noqa: N801
    """A uniformly random set of `batch_size` of `size` rows.

    **Guarantee** SampledWithoutReplacement(n, b, event): amplified, for replace-one neighbours only.
    """

    batch_size: int
    size: int

    def __post_init__(self) -> None:
        if not 0 < self.batch_size <= self.size:
            raise CompositionError(f"fixed_size({self.batch_size}, {self.size}): a batch holds 1 … {self.size} rows.")

    @property
    def needs(self) -> Needs:
        return frozenset({_Rows(self.size)})

    def draw(self, size: int, round_: int, rng: Rng) -> Rows:
        if reason := _Rows(self.size).missing(Offer(size)):
            raise CompositionError(reason)
        return rng.choice(size, self.batch_size, replace=False, shuffle=False)

    def expected(self, size: int) -> float:
        return float(self.batch_size)

    def amplify(self, event: DpEvent, round_: int) -> DpEvent:
        return SampledWithoutReplacementDpEvent(self.size, self.batch_size, event)


@dataclass(frozen=True)
class _Rows(OracleNeed):
    """An exact number of rows."""

    size: int

    def missing(self, offer: Offer) -> str | None:
        return None if offer.size == self.size else f"fixed_size was planned for {self.size} rows, but there are {offer.size}."


@dataclass(frozen=True)
class full_batch:  # noqa: N801
    """Every row, every round. **Guarantee** the mechanism's own event."""

    def draw(self, size: int, round_: int, rng: Rng) -> Rows:
        return None

    def expected(self, size: int) -> float:
        return float(size)

    def amplify(self, event: DpEvent, round_: int) -> DpEvent:
        return event


@dataclass(frozen=True)
class disjoint_batches:  # noqa: N801
    """The rows cut once into `batches` parts; the rounds of an epoch visit one part each.

    **Guarantee** Each row's part is drawn independently and uniformly, by the secret `key` (from `secrets.randbits(256)`, or from
    the run's generator, so that a resumed run cuts the same way). Given the parts of all other rows,
    one row more or less touches one part, so an epoch costs what one round does (parallel composition), and so does the
    mixture over all draws: the epoch's first round carries the event, the others none. A cut by position would not do:
    removing a row would move the others to other parts.
    """

    batches: int
    key: int = field(repr=False)

    def __post_init__(self) -> None:
        if self.batches < 1:
            raise CompositionError(f"disjoint_batches({self.batches}): there is at least one part.")
        if not 0 <= self.key < 2**KEY_BITS:
            raise CompositionError(f"disjoint_batches: a key has {KEY_BITS} bits, such as secrets.randbits({KEY_BITS}).")

    def draw(self, size: int, round_: int, rng: Rng) -> Rows:
        return _parts(self.batches, self.key, size)[round_ % self.batches]

    def expected(self, size: int) -> float:
        return size / self.batches

    def amplify(self, event: DpEvent, round_: int) -> DpEvent:
        return event if round_ % self.batches == 0 else NoOpDpEvent()


@lru_cache(maxsize=1)
def _parts(batches: int, key: int, size: int) -> tuple[Vector, ...]:
    """The rows of each part."""
    part = from_key(key).integers(batches, size=size)
    return tuple(np.split(np.argsort(part, kind="stable"), np.cumsum(np.bincount(part, minlength=batches))[:-1]))


def held_out_rows(size: int, share: float, key: int) -> tuple[Vector, Vector]:
    """Cut the rows once into those to train on and a share that is set aside, at random; both in order.

    **Guarantee** The cut is a function of the number of rows, which is public, of a public share and of a key that was drawn
    before any row was read; it may be known to everybody. So each row is, whatever it holds, in one part only (in either
    relation of neighbours n stays, and so does each row's place). If the model is trained on the one part at (ε₁, δ₁) and
    evaluated on the other at (ε₂, δ₂), then a row that was trained on moves the model only, and for every model the evaluation
    is drawn without it: both releases together cost it (ε₁, δ₁). A row that was set aside does not touch the model, and for
    every model the evaluation costs it (ε₂, δ₂). The larger of the two holds for every row (parallel composition).

    >>> trained, held_out = held_out_rows(10, 0.2, key=5)
    >>> len(trained), len(held_out), sorted([*trained, *held_out]) == list(range(10))
    (8, 2, True)
    """
    held_out = np.sort(from_key(key).choice(size, round(share * size), replace=False))
    return np.setdiff1d(np.arange(size), held_out, assume_unique=True), held_out


# ---------------------------------------------------------------- the rows of persons


@lru_cache(maxsize=8)
def several_rows(sampling_probability: float, most: int, noise_multiplier: float) -> DpEvent:
    """What Poisson sampling of rows with Gaussian noise costs a person with at most `most` rows.

    Query: Σ of the drawn rows' vectors, each of l2 norm ≤ C, plus N(0, (zC)² I). Unit: a person, whose rows are drawn each by a
    coin of its own. Sensitivity: the rows in the batch, J ~ Binomial(k, q) of them, move the sum by at most J·C.

    **Guarantee** A mixture of Gaussians: N(0, z²) against Σⱼ P(J = j) N(j, z²). Derivation, in units of zC: given everybody
    else's coins and earlier answers, the answer without the person is N(0, I), after a shift; with the person it is
    Σ_S p_S N(v_S, I), where ‖v_S‖ ≤ |S|/z. What an attacker can do depends on the likelihood ratio
    L = Σ_S p_S exp(⟨v_S, X⟩ − ‖v_S‖²/2), X ~ N(0, I): both directions' δ(ε) are means of convex functions of it, (L − e^ε)⁺ and
    (1 − e^ε L)⁺. Each term has the law of exp(‖v_S‖ G − ‖v_S‖²/2) for G ~ N(0, 1), which is a martingale in ‖v_S‖², so a longer
    v_S only adds to such means; and of all joint laws of the terms, that in which all of them rise with one G makes them largest
    (sums of comonotone variables). So L is replaced by Σⱼ P(J = j) exp(jG/z − j²/(2z²)), the likelihood ratio of the mixture;
    that of fewer rows, shorter vectors or absent rows lies below it. This is Corollary 4.7 of Choquette-Choo, Ganesh, Steinke,
    Thakurta: Privacy Amplification for Matrix Mechanisms. It holds for a person who is added or removed while n stays, not for
    one who is replaced.

    >>> several_rows(0.01, 1, 2.0)
    PoissonSampledDpEvent(sampling_probability=0.01, event=GaussianDpEvent(noise_multiplier=2.0))
    """
    if sampling_probability == 1:
        return GaussianDpEvent(noise_multiplier / most)
    if most == 1 or noise_multiplier == 0:
        return PoissonSampledDpEvent(sampling_probability, GaussianDpEvent(noise_multiplier))
    rows = np.arange(most + 1)
    chances = binom.pmf(rows, most, sampling_probability)
    return MixtureOfGaussiansDpEvent(noise_multiplier, tuple(rows.astype(float).tolist()), tuple(chances.tolist()))


def draw_rows(persons: Persons, most: int, rng: Rng) -> Persons:
    """At most `most` rows of each person, drawn uniformly, once; fewer rows stay all.

    **Guarantee** Each row has a number of its own, drawn independently, and a person's rows with the smallest numbers stay. So
    which rows of a person stay depends on that person's rows alone, and what holds for every draw holds for the mixture. How
    many numbers are drawn is the number of rows, which is public.

    >>> from privopt.measure.randomness import generator
    >>> draw_rows(Persons.of(["a", "b", "a", "a"], 4), 2, generator(0)).counts.tolist()
    [2, 1]
    """
    if most < 1:
        raise CompositionError(f"{most} rows of a person would stay, but at least one does.")
    numbers = rng.integers(2**63, size=len(persons.rows))
    order = np.lexsort((numbers, persons.person_of))
    rank = np.arange(len(order)) - persons.starts.take(persons.person_of)
    stay = np.sort(order[rank < most])  # rows of a person stand together, in the order in which they stood
    return Persons(persons.rows[stay], np.minimum(persons.counts, most))
