"""Persons of a linear model: one vector per person, the mean of the gradients of that person's rows.

    vₚ = D ⊙ (1/kₚ) Σ residualᵢ ⊗ rowᵢ + s        over the kₚ rows i of person p, for a public diagonal D and a public shift s

A weighted sum of persons is one of rows: Σ wₚ vₚ = D ⊙ Σᵢ (w/k)ₚ₍ᵢ₎ residualᵢ ⊗ rowᵢ + Σ wₚ s, so nothing is formed for it.
Norms take the products of a person's rows with each other: with uᵢ = rowᵢ/‖rowᵢ‖ and aᵢ = residualᵢ ‖rowᵢ‖/kₚ,
‖vₚ‖² = Σᵢⱼ ⟨aᵢ, aⱼ⟩⟨uᵢ, uⱼ⟩. The products ⟨uᵢ, uⱼ⟩ do not change in training, so they are found once, as a sparse matrix of all
rows, of which a round takes one product. With a diagonal, in l1, or if the products would take more memory than the rows, the
vectors are formed, a few persons at a time.

**Guarantee** A person's vector depends on that person's rows and on public numbers only, and its norm is not understated. Rows
of a person may cancel, which a sum in floating point shows up to rounding of its largest part. So a millionth of the mean length
of the person's row gradients is added to the norm (as the side of a right angle; an l1 norm is at least that), which is more
than rounding hides; weights are then so bounded that the rounding of a sum stays below 10⁻⁹ bounds. Where squares may have
under- or overflowed, the mean length of the row gradients takes the norm's place, which is at least the norm. A person with a row
that is not finite, or with no row at all, is absent. A person with one row has that row's vector and norm.
"""

import math
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp

from privopt.errors import CompositionError
from privopt.perexample.design import Design
from privopt.perexample.grads import PerExampleVectors, Rows, Vector
from privopt.perexample.linear_oracle import ROUNDING, LinearGrads, LinearOracle, shifted_norms
from privopt.perexample.losses import Loss
from privopt.perexample.persons import Persons, cut_between_persons
from privopt.perexample.row_storage import CHUNK, SURE


class PersonGrads(PerExampleVectors):
    """vₚ = the mean of gᵢ over a person's rows, + s; kept as the factors of the gᵢ."""

    def __init__(self, each: LinearGrads, members: "_Members", shift: Vector | None = None) -> None:
        self._each, self._members, self._shift = each, members, shift

    def norms(self, order: int) -> Vector:
        if not len(self._each.residuals):
            return np.full(len(self._members.counts), np.inf)
        norms = self._norms_of_several(order) / self._members.divisors
        if self._members.fewest < 2:
            norms = self._with_few_rows(norms, order)
        if self._shift is None:
            return norms
        if order == 1:
            raise CompositionError("l1 norms of shifted gradients have no closed form: clip them in l2.")
        return shifted_norms(norms, self._members.mean(self._each.dots(self._shift)), self._shift)

    def weighted_sum(self, weights: Vector) -> Vector:
        total = self._each.weighted_sum(self._members.spread(weights / self._members.divisors))
        return total if self._shift is None else total + weights.sum() * self._shift

    def minus(self, other: "PersonGrads", weight: float = 1.0) -> "PersonGrads":
        """vₚ − weight · v′ₚ for the same persons at another point."""
        shift = self._shift
        if other._shift is not None:
            shift = (0.0 if shift is None else shift) - weight * other._shift
        return PersonGrads(self._each.minus(other._each, weight), self._members, shift)

    def scaled(self, diagonal: Vector) -> "PersonGrads":
        """vₚ ⊙ diagonal: preconditioning by a public vector."""
        shift = None if self._shift is None else self._shift * diagonal
        return PersonGrads(self._each.scaled(diagonal), self._members, shift)

    def shifted(self, vector: Vector, weight: float = 1.0) -> "PersonGrads":
        """vₚ + weight · vector, for a public vector."""
        shift = weight * vector if self._shift is None else self._shift + weight * vector
        return PersonGrads(self._each, self._members, shift)

    def _norms_of_several(self, order: int) -> Vector:
        """‖Σ gᵢ‖ for persons with several rows, and what rounding may hide of it.

        Where squares may have under- or overflowed, Σ ‖gᵢ‖, which no norm of a sum exceeds.
        """
        members, each = self._members, self._each
        if order == 1:
            return np.maximum(members.formed_powers(each, 1), math.sqrt(ROUNDING) * self._lengths(1))
        if each.diagonal is None:
            residuals, rows, centre = each.residuals, each.batch.norms(2), members.centre_length
            sizes = np.abs(residuals) if residuals.ndim == 1 else np.abs(residuals).sum(axis=1)  # in l1, which is at least l2
            longest = members.sum(sizes * (rows + centre if centre else rows))
            formed = members.products is None
            squares = members.formed_powers(each, 2) if formed else members.squares((residuals.T * rows).T)
        else:
            longest, squares = self._lengths(2), members.formed_powers(each, 2)
        squares += ROUNDING * longest * longest
        norms = np.sqrt(squares)
        if squares.min() > SURE and squares.max() < np.inf:  # NaN is neither
            return norms
        return np.where((squares > SURE) & (squares < np.inf), norms, longest)

    def _with_few_rows(self, norms: Vector, order: int) -> Vector:
        """The norms, with those of persons with one row as they are, and with infinity for persons with none."""
        members = self._members
        norms = np.where(members.counts == 1, self._each.norms(order).take(members.starts, mode="clip"), norms)
        if not members.fewest:
            norms[members.counts == 0] = np.inf
        return norms

    def _lengths(self, order: int) -> Vector:
        """Σ ‖D ⊙ gᵢ‖ over each person's rows, and of what the centre of the columns takes away again."""
        own, diagonal, frame = self._each.norms(order), self._each.diagonal, self._members.design.frame
        if frame.centre is None:
            return self._members.sum(own)
        sizes = np.abs(self._each.residuals).reshape(len(own), -1)
        columns = np.tile(frame.centre if frame.scale is None else frame.centre / frame.scale, (sizes.shape[1], 1))
        if diagonal is not None:
            columns *= diagonal.reshape(len(columns), -1)[:, : columns.shape[1]]
        return self._members.sum(own + sizes @ np.linalg.norm(columns, ord=order, axis=1))


class _Members:
    """Some persons, and where their rows are: in the batch, which holds them one person after another, and in the design."""

    def __init__(self, people: "_People", chosen: Rows) -> None:
        self._people, self._chosen, self.design, self.fewest = people, chosen, people.design, people.fewest
        self.counts, self.starts = people.persons.counts, people.persons.starts
        self.rows: Rows = None
        if chosen is not None:
            self.counts = self.counts.take(chosen)
            self.starts = self.counts.cumsum() - self.counts
            self._moved = people.persons.starts.take(chosen) - self.starts  # how much later a person's rows are in the design
            self.rows = self._moved.repeat(self.counts)
            self.rows += np.arange(len(self.rows))
        self.divisors = self.counts if self.fewest else np.maximum(self.counts, 1)

    @property
    def products(self) -> sp.csr_array | None:
        """Those of all rows: see `_People`."""
        return self._people.products

    @property
    def centre_length(self) -> float:
        """How much longer than a row what the centre of the columns takes away from it may be."""
        return self._people.centre_length

    def sum(self, values: Vector) -> Vector:
        """The sum of a number over each person's rows."""
        return self._people.membership @ values if self.rows is None else self._segments(values, self.starts, self.counts)

    def mean(self, values: Vector) -> Vector:
        """The mean of a number over each person's rows; 0 without rows."""
        found: Vector = self.sum(values) / self.divisors
        return found

    def spread(self, values: Vector) -> Vector:
        """Each person's number, for each of the rows."""
        return values.repeat(self.counts)

    def squares(self, sizes: Vector) -> Vector:
        """‖Σ sizeᵢ ⊗ uᵢ‖² for each person."""
        if self._pairs is None:
            through = self.products @ sizes
            through *= sizes
            return self.sum(through if through.ndim == 1 else through.sum(axis=1))
        values, left, right, starts, numbers = self._pairs
        if sizes.ndim == 1:
            both = sizes.take(left)
            both *= sizes.take(right)
        else:
            both = np.einsum("po,po->p", sizes.take(left, axis=0), sizes.take(right, axis=0))
        both *= values
        return self._segments(both, starts, numbers)

    @cached_property
    def _pairs(self) -> tuple[Vector, Vector, Vector, Vector, Vector] | None:
        """Of persons who were drawn: the products, the places of both rows in the batch, and where those of each person are."""
        if self.rows is None or self.products is None:
            return None
        numbers = self._people.pairs.take(self._chosen)
        ends, places = numbers.cumsum(), np.arange(len(self.rows))
        each = np.arange(int(ends[-1]))
        later = (self.starts + self.counts).repeat(self.counts) - places  # rows that the person has from this one on
        right = (places - (later.cumsum() - later)).repeat(later) + each
        entries = (self._people.ends_of_pairs.take(self._chosen) - ends).repeat(numbers) + each
        return self.products.data.take(entries), places.repeat(later), right, ends - numbers, numbers

    def _segments(self, values: Vector, starts: Vector, numbers: Vector) -> Vector:
        """Sums of so many values each; 0 for persons without any."""
        if self.fewest:
            return np.add.reduceat(values, starts)
        found, some = np.zeros(len(numbers)), numbers > 0
        found[some] = np.add.reduceat(values, starts[some])
        return found

    def formed_powers(self, each: LinearGrads, order: int) -> Vector:
        """‖D ⊙ Σ residualᵢ ⊗ rowᵢ‖² or ‖…‖₁ for each person, from vectors that are formed, a few at a time."""
        powers = np.zeros(len(self.counts))
        outputs = 1 if each.residuals.ndim == 1 else each.residuals.shape[1]
        diagonal = None if each.diagonal is None else each.diagonal.reshape(outputs, 1, -1)
        for people, ends in self._pieces():
            residuals = each.residuals[ends[0] : ends[-1]]
            if each.batch.is_dense:
                sums = each.batch.segment_sums(residuals, ends - ends[0], ends[0]).reshape(outputs, len(ends) - 1, -1)
                sums = sums if diagonal is None else sums * diagonal
                powers[people] = np.einsum("opw,opw->p", sums, sums) if order == 2 else np.abs(sums).sum(axis=(0, 2))
                continue
            values = self.design.framed_values(
                np.arange(ends[0], ends[-1]) if self.rows is None else self.rows[ends[0] : ends[-1]]
            )
            for output, column in enumerate(residuals.reshape(len(residuals), -1).T):
                segments: Any = sp.csr_array((column, np.arange(len(column)), ends - ends[0]), (len(ends) - 1, len(column)))
                sparse = segments @ values
                entries = sparse.data if diagonal is None else sparse.data * diagonal[output, 0].take(sparse.indices)
                person_of = np.arange(len(ends) - 1).repeat(np.diff(sparse.indptr))
                powers[people] += np.bincount(person_of, np.abs(entries) ** order, minlength=len(ends) - 1)
        return powers

    def _pieces(self) -> Iterator[tuple[slice, Vector]]:
        """Persons and where their rows end, of at most so many numbers at a time as are copied at once."""
        ends, most = np.append(self.starts, int(self.counts.sum())), max(1, CHUNK // max(1, self.design.width))
        if ends[-1] <= most:
            yield slice(0, len(self.counts)), ends
            return
        for first, after in cut_between_persons(self.counts, most):
            yield slice(first, after), ends[first : after + 1]


class _People:
    """All persons of a design whose rows stand one person after another.

    `pairs` is how many pairs of its rows a person has, each row's with itself among them.
    """

    def __init__(self, design: Design, persons: Persons) -> None:
        self.design, self.persons = design, persons
        self.fewest = int(persons.counts.min(initial=1))
        self.pairs = persons.counts.astype(np.intp) * (persons.counts + 1) // 2
        self.ends_of_pairs = self.pairs.cumsum()

    @cached_property
    def centre_length(self) -> float:
        """The length of the framed centre; 0 without one."""
        frame = self.design.frame
        if frame.centre is None:
            return 0.0
        return float(np.linalg.norm(frame.centre if frame.scale is None else frame.centre / frame.scale))

    @cached_property
    def membership(self) -> sp.csr_array:
        """persons × rows: 1 for a person's own rows."""
        rows = len(self.persons.rows)
        return sp.csr_array((np.ones(rows), np.arange(rows), np.append(self.persons.starts, rows)), (self.persons.size, rows))

    @cached_property
    def products(self) -> sp.csr_array | None:
        """rows × rows: ⟨uᵢ, uᵢ⟩, and 2 ⟨uᵢ, uⱼ⟩ for j > i of the same person. `None` if that would take too much memory."""
        counts, rows = self.persons.counts, len(self.design)
        if 2 * int(self.pairs.sum()) > max(rows * self.design.width, 16 * CHUNK):
            return None
        values, columns = (
            np.empty(int(self.pairs.sum())),
            np.empty(int(self.pairs.sum()), dtype=np.int32 if rows < 2**31 else np.int64),
        )
        for count in np.unique(counts[counts > 0]).tolist():
            same = counts == count
            starts, (left, right) = self.persons.starts[same], np.triu_indices(count)
            entries = (self.ends_of_pairs - self.pairs)[same][:, None] + np.arange(len(left))
            values[entries] = np.where(left == right, 1, 2) * self._products_of(count, starts)[:, left, right]
            columns[entries] = starts[:, None] + right
        later = self.persons.counts.cumsum().repeat(counts) - np.arange(rows)
        return sp.csr_array((values, columns, np.append(0, later.cumsum()).astype(columns.dtype)), (rows, rows))

    def _products_of(self, count: int, starts: Vector) -> Vector:
        """persons × count × count: ⟨uᵢ, uⱼ⟩ of persons with so many rows, which begin here."""
        norms = self.design.norms(2)
        found = np.empty((len(starts), count, count))
        step = max(1, CHUNK // (count * max(1, self.design.width)))
        for first in range(0, len(starts), step):
            part = starts[first : first + step]
            rows = (part[:, None] + np.arange(count)).ravel()
            own = norms.take(rows)
            inverse = np.where(np.isfinite(own) & (own > 0), own, np.inf)
            found[first : first + step] = _inner_products(self.design.framed_values(rows), inverse, count)
        return found


def _inner_products(values: Any, norms: Vector, count: int) -> Vector:
    """⟨uᵢ, uⱼ⟩ within each `count` rows, where u is a row divided by its norm; 0 for a row of infinite norm."""
    if not sp.issparse(values):
        units = (values / norms[:, None]).reshape(-1, count, values.shape[1])
        return units @ units.transpose(0, 2, 1)
    row_of = np.repeat(np.arange(values.shape[0]), np.diff(values.indptr))
    units = values.data / norms.take(row_of)
    keys = row_of // count * values.shape[1] + values.indices  # columns of a person's own: rows of others have no product
    columns, places = np.unique(keys, return_inverse=True)
    apart = sp.csr_array((units, (row_of, places)), shape=(values.shape[0], len(columns)))
    products: Any = sp.coo_array(apart @ apart.T)
    found = np.zeros((values.shape[0] // count, count, count))
    left, right = products.coords
    found[left // count, left % count, right % count] = products.data
    return found


class PersonOracle:
    """A linear model on the data of persons. Its design holds the rows of `persons.rows`, in this order."""

    unit = "person"

    def __init__(self, design: Design, targets: Vector, loss: Loss, persons: Persons) -> None:
        if math.isfinite(design.limit):
            raise CompositionError("rows of limited length bound what a row does, not what a person does. Use a Design.")
        if len(design) != len(persons.rows):
            raise CompositionError(f"the design has {len(design)} rows, but {len(persons.rows)} rows are of persons.")
        self._each, self._people = LinearOracle(design, targets, loss), _People(design, persons)
        self._taken: tuple[Rows, _Members] = None, _Members(self._people, None)

    @property
    def size(self) -> int:
        """The number of persons."""
        return self._people.persons.size

    @property
    def dimension(self) -> int:
        """The number of parameters."""
        return self._each.dimension

    def __call__(self, parameters: Vector, rows: Rows) -> PersonGrads:
        """The vectors of these persons (the rows of a round are persons here); `None` is all of them."""
        if self._taken[0] is not rows:  # a round may use the same persons at several points
            self._taken = rows, _Members(self._people, rows)
        members = self._taken[1]
        return PersonGrads(self._each(parameters, members.rows), members)
