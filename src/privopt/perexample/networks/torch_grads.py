"""Per-example gradients of a network, kept as one factor for each parameter.

gᵢ = D ⊙ g⁰ᵢ + s: the factors of g⁰ come from one backward pass; the diagonal D and the shift s are public.

A batch that is too large for memory is computed in chunks of a few examples, of which only the norms are kept. `clipped_sum`
passes over the data once; `norms` and then `weighted_sum` pass twice, with the same random numbers.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from privopt.errors import CompositionError
from privopt.perexample.grads import ClipFactors, LayerFactors, Vector, clip_weights, where_finite
from privopt.perexample.networks.factors import Dense, Factor, Outer, RankOne, Shifted
from privopt.perexample.networks.factors.factor import Members, add_tensors
from privopt.perexample.networks.factors.kernels import squared_lengths_of_segments, usable
from privopt.perexample.networks.factors.sums import VANISHED
from privopt.perexample.networks.layout import Layout
from privopt.perexample.networks.model_state import full_precision
from privopt.perexample.networks.rng import RngState, seed_torch
from privopt.perexample.persons import Persons


class TorchGrads:
    """One vector for each example, flat over the trainable parameters. Not private: these are raw gradients."""

    def __init__(
        self,
        layout: Layout,
        factors: dict[str, Factor],
        examples: int,
        *,
        diagonal: Tensor | None = None,
        shift: Tensor | None = None,
    ) -> None:
        self._layout, self._factors, self.examples = layout, factors, examples
        self._diagonal, self._shift = diagonal, shift
        self._norms: dict[int, Tensor] = {}
        self._shifted: dict[str, Shifted] = {}
        if shift is not None:
            for name, factor in factors.items():
                self._shifted[name] = Shifted(factor, self._part(name, diagonal), layout.view(name, shift))

    @property
    def formed(self) -> int:
        """How many numbers of each vector are held as they are, and not as factors."""
        return sum(factor.values[0].numel() for factor in self._factors.values() if isinstance(factor, Dense))

    def norms(self, order: int = 2) -> Tensor:
        """The l1 or l2 norm of each; infinite or NaN where a vector is not finite."""
        if order not in (1, 2):
            raise CompositionError(f"there are norms of order 1 and 2, not of order {order}.")
        if order not in self._norms:
            with full_precision(self._layout.device):
                self._cache_norms(list(self._powers(order).values()), order)
        return self._norms[order]

    def layer_norms(self, order: int = 2) -> dict[str, Tensor]:
        """The norm of each example's gradient by parameter, for clips with a bound for each layer."""
        with full_precision(self._layout.device):
            found = self._powers(order)
            self._cache_norms(list(found.values()), order)
            powers = {name: found.get(name, self._zeros()) for name in self._layout.slices}
            return {name: power.sqrt() if order == 2 else power for name, power in powers.items()}

    def weighted_sum(self, weights: Any, out: Tensor | None = None) -> Tensor:
        """Σ wᵢ gᵢ, flat. An example of weight 0 is absent, even if its vector is not finite.

        `weights` is one vector, or one for each parameter by name. The sum is added to `out` if that is given, which may hold
        noise already.
        """
        if isinstance(weights, dict):
            by_name = {name: self._weights(own) for name, own in weights.items()}
        else:
            by_name = dict.fromkeys(self._layout.slices, self._weights(weights))
        with full_precision(self._layout.device):
            total = self._layout.zeros() if out is None else out
            for name, shifted in self._shifted.items():
                if shifted.cancelled is not None:
                    by_name[name] = shifted.cancelled.add(by_name[name], total[self._layout.slices[name]])
            if self._diagonal is None:
                self._add(by_name, total)
            else:
                plain = torch.zeros_like(total)
                self._add(by_name, plain)
                total.addcmul_(plain, self._diagonal)
            if self._shift is not None:
                for name, where in self._layout.slices.items():
                    total[where] += by_name[name].sum() * self._shift[where]
            return total

    def clipped_sum(self, clip: ClipFactors, weight: float = 1.0, out: Tensor | None = None) -> Tensor:
        """weight × Σ of the clipped vectors; each parameter is a layer."""
        if isinstance(clip, LayerFactors):
            factors = clip.layer_factors(self.layer_norms(clip.order), weight)
            norms = self.norms(clip.order)  # a vector that is not finite in one layer is absent from all
            return self.weighted_sum({name: where_finite(norms, own) for name, own in factors.items()}, out)
        norms = self.norms(clip.order)
        weights = clip_weights(clip, norms.numpy() if norms.is_cpu else norms, weight)  # numpy is quicker with few numbers
        return self.weighted_sum(weights, out)

    def count_within(self, bound: float) -> int:
        """How many vectors have an l2 norm of at most `bound`."""
        return int((self.norms() <= bound).sum())

    def minus(self, other: "TorchGrads", weight: float = 1.0) -> "TorchGrads":
        """gᵢ − weight · g′ᵢ for the same examples at another point; accurate also if the points are close."""
        if self.examples != other.examples:
            raise CompositionError(
                f"a difference needs the same examples at both points, not {self.examples} and {other.examples}."
            )
        shift = _add_scaled(self._shift, other._shift, -weight)
        mine, its = self, other
        if not _same(self._diagonal, other._diagonal):
            mine, its = self._form_scaled(), other._form_scaled()
        factors: dict[str, Factor] = {}
        with full_precision(self._layout.device):
            for name in mine._factors | its._factors:
                if name in mine._factors and name in its._factors:
                    factors[name] = mine._factors[name].minus(its._factors[name], weight)
                elif name in mine._factors:
                    factors[name] = mine._factors[name]
                else:
                    factors[name] = Dense(-weight * its._factors[name].dense())
        return TorchGrads(self._layout, factors, self.examples, diagonal=mine._diagonal, shift=shift)

    def scaled(self, diagonal: Tensor) -> "TorchGrads":
        """gᵢ ⊙ diagonal: preconditioning by a public vector."""
        diagonal = self._vector(diagonal)
        both = diagonal if self._diagonal is None else self._diagonal * diagonal
        shift = None if self._shift is None else self._shift * diagonal
        return TorchGrads(self._layout, self._factors, self.examples, diagonal=both, shift=shift)

    def shifted(self, vector: Tensor, weight: float = 1.0) -> "TorchGrads":
        """gᵢ + weight · vector, for a public vector."""
        shift = _add_scaled(self._shift, self._vector(vector), weight)
        return TorchGrads(self._layout, self._factors, self.examples, diagonal=self._diagonal, shift=shift)

    def of_persons(self, counts: Vector) -> "PersonGrads":
        """The mean gradient of each person; rows stand one person after another, so many each."""
        if self._diagonal is not None or self._shift is not None or int(counts.sum()) != self.examples:
            raise CompositionError(
                f"persons have {int(counts.sum())} rows: those need a gradient each, which is not changed yet."
            )
        powers = self._powers_of_persons(counts)
        if powers is None or not np.isfinite(powers[1]).all():
            return PersonGrads(self.in_parts(counts), len(counts), self._layout)
        return PersonSums(self, counts, *powers)

    def _powers_of_persons(self, counts: Vector) -> tuple[Vector, Vector] | None:
        """‖Σ gᵢ‖² of each person's rows, and the largest it could be; `None` unless all layers are single outer products."""
        layers = [factor for factor in self._factors.values() if isinstance(factor, RankOne)]
        biases = {id(factor) for factor in self._factors.values() if not isinstance(factor, RankOne)}
        if not biases <= {id(factor.gradients) for factor in layers}:
            return None
        if not all(usable(factor.gradients.values, factor.inputs) for factor in layers):
            return None
        widths = [(factor.gradients.values.shape[1], factor.inputs.shape[1]) for factor in layers]
        products = sum(map(sum, widths)) * float((counts * (counts + 1.0)).sum()) / 2
        if products > sum(map(math.prod, widths)) * int(counts.sum()):  # forming them takes less
            return None
        total, possible = np.zeros(len(counts)), np.zeros(len(counts))
        for factor in layers:
            both, largest, of_bias, largest_of_bias = squared_lengths_of_segments(factor.gradients.values, factor.inputs, counts)
            total, possible = total + both, possible + largest**2
            if id(factor.gradients) in biases:
                biases.remove(id(factor.gradients))
                total, possible = total + of_bias, possible + largest_of_bias**2
        return total, possible

    def add_rows(self, weights: Tensor, out: Tensor) -> None:
        """out += Σ wᵢ gᵢ of finite gradients that are not changed."""
        with full_precision(self._layout.device):
            parts = self._layout.views(out)
            for name, factor in self._factors.items():
                factor.add_weighted_sum(weights, parts[name])

    def in_parts(self, counts: Vector) -> list[tuple[Tensor, "TorchGrads"]]:
        """Persons with about as many rows, and their vectors."""
        device, starts, parts = self._layout.device, np.cumsum(counts) - counts, []
        sequences = any(isinstance(factor, Outer) for factor in self._factors.values())
        for steps, places in _alike(counts, 0 if sequences else FEW):
            each = np.arange(steps)
            own = each < counts[places, None]
            rows = torch.from_numpy(starts[places, None] + np.where(own, each, 0)).to(device)
            weights = torch.from_numpy(own / counts[places, None]).to(device, self._layout.dtype)
            parts.append((torch.from_numpy(places).to(device), self._fold(Members(rows, weights))))
        return parts

    def _fold(self, members: Members) -> "TorchGrads":
        """The vectors of these persons: the rows of a person are time steps of one example."""
        if members.steps == 1:
            return self.take(members.rows.squeeze(1))
        with full_precision(self._layout.device):
            factors = {name: factor.fold(members) for name, factor in self._factors.items()}
        return TorchGrads(self._layout, factors, members.persons)

    def take(self, index: Tensor) -> "TorchGrads":
        """These examples."""
        factors = {name: factor.take(index) for name, factor in self._factors.items()}
        return TorchGrads(self._layout, factors, len(index), diagonal=self._diagonal, shift=self._shift)

    def dense(self) -> Tensor:
        """(examples, parameters): the vectors themselves, formed."""
        rows = torch.zeros(self.examples, self._layout.size, dtype=self._layout.dtype, device=self._layout.device)
        with full_precision(self._layout.device):
            for name, factor in self._factors.items():
                rows[:, self._layout.slices[name]] = factor.dense().reshape(self.examples, -1)
            if self._diagonal is not None:
                rows *= self._diagonal
            return rows if self._shift is None else rows + self._shift

    def _cache_norms(self, powers: list[Tensor], order: int) -> None:
        """Cache the norms, from the powers of all parameters."""
        total = add_tensors(powers) if powers else self._zeros()
        self._norms[order] = total.sqrt() if order == 2 else total

    def _zeros(self) -> Tensor:
        return torch.zeros(self.examples, dtype=self._layout.dtype, device=self._layout.device)

    def _vector(self, values: Any) -> Tensor:
        vector = torch.as_tensor(values, dtype=self._layout.dtype, device=self._layout.device)
        if vector.shape != (self._layout.size,):
            raise CompositionError(f"a vector of {self._layout.size} numbers is needed, not of shape {tuple(vector.shape)}.")
        return vector

    def _weights(self, values: Any) -> Tensor:
        weights = torch.from_numpy(values) if isinstance(values, np.ndarray) else torch.as_tensor(values)
        if weights.dtype != self._layout.dtype or weights.device != self._layout.device:
            weights = weights.to(self._layout.device, self._layout.dtype)
        if weights.shape != (self.examples,):
            raise CompositionError(f"{self.examples} weights are needed, not {tuple(weights.shape)}.")
        return weights

    def _part(self, name: str, vector: Tensor | None) -> Tensor | None:
        return None if vector is None else self._layout.view(name, vector)

    def _powers(self, order: int) -> dict[str, Tensor]:
        """‖gᵢ‖² or ‖gᵢ‖₁ by parameter, for parameters that have a gradient."""
        if self._diagonal is None and self._shift is None:
            return {name: part.squared_norms() if order == 2 else part.absolute_norms() for name, part in self._factors.items()}
        names = self._factors if self._shift is None else self._layout.slices
        return {name: self._changed_powers(name, order) for name in names}

    def _changed_powers(self, name: str, order: int) -> Tensor:
        """‖gᵢ‖² or ‖gᵢ‖₁ of one parameter, with the diagonal and the shift."""
        if self._shift is None:
            factor, diagonal = self._factors[name], self._part(name, self._diagonal)
            return factor.squared_norms(diagonal) if order == 2 else factor.absolute_norms(diagonal)
        if name in self._shifted:
            return self._shifted[name].squared_norms() if order == 2 else self._shifted[name].absolute_norms()
        shift = self._shift[self._layout.slices[name]]
        return self._zeros() + (shift.square() if order == 2 else shift.abs()).sum()

    def _add(self, weights: dict[str, Tensor], total: Tensor) -> None:
        """total += Σ wᵢ g⁰ᵢ; examples of weight 0 are left out if any could be NaN."""
        parts = self._layout.views(total)
        if not self._is_finite():
            for name, factor in self._factors.items():
                present = weights[name].nonzero().squeeze(1)
                factor.take(present).add_weighted_sum(weights[name][present], parts[name])
            return
        for name, factor in self._factors.items():
            factor.add_weighted_sum(weights[name], parts[name])

    def _is_finite(self) -> bool:
        norms = next(iter(self._norms.values())) if self._norms else self.norms()
        return math.isfinite(norms.numpy().max(initial=0.0) if norms.is_cpu else float(norms.sum()))

    def _form_scaled(self) -> "TorchGrads":
        """The same vectors, formed, without a diagonal or a shift."""
        rows = TorchGrads(self._layout, self._factors, self.examples, diagonal=self._diagonal).dense()
        factors: dict[str, Factor] = {
            name: Dense(rows[:, where].reshape(self.examples, *self._layout.parameters[name].shape))
            for name, where in self._layout.slices.items()
        }
        return TorchGrads(self._layout, factors, self.examples)


def _same(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return one is other or torch.equal(one, other)


def _add_scaled(one: Tensor | None, other: Tensor | None, weight: float) -> Tensor | None:
    """one + weight · other, where None is zero."""
    if other is None:
        return one
    return weight * other if one is None else one + weight * other


# ---------------------------------------------------------------- persons


STEPS = np.array([1, 2, 3, 4, 6, 8, 12, 16, 24, 32])  # persons with so many rows, or a few less, are computed together
FEW = 256  # rows, for which a layer takes less time than calling it


class PersonGrads:
    """One vector for each person, in parts: persons with about as many rows together. Not private: these are raw gradients."""

    def __init__(self, parts: Sequence[tuple[Tensor, TorchGrads]], examples: int, layout: Layout) -> None:
        self._parts, self.examples, self._layout = parts, examples, layout

    def norms(self, order: int = 2) -> Tensor:
        """The l1 or l2 norm of each; infinite for a person without rows."""
        return self._in_place([part.norms(order) for _, part in self._parts])

    def layer_norms(self, order: int = 2) -> dict[str, Tensor]:
        """The norm of each person's vector by parameter."""
        found = [part.layer_norms(order) for _, part in self._parts]
        return {name: self._in_place([norms[name] for norms in found]) for name in self._layout.slices}

    def weighted_sum(self, weights: Any, out: Tensor | None = None) -> Tensor:
        """Σ wₚ vₚ, flat; added to `out` if that is given."""
        total = self._layout.zeros() if out is None else out
        for places, part in self._parts:
            if isinstance(weights, dict):
                own: Any = {name: torch.as_tensor(each)[places] for name, each in weights.items()}
            else:
                own = torch.as_tensor(weights)[places]
            part.weighted_sum(own, total)
        return total

    def clipped_sum(self, clip: ClipFactors, weight: float = 1.0, out: Tensor | None = None) -> Tensor:
        """weight × Σ of the clipped vectors; each parameter is a layer."""
        total = self._layout.zeros() if out is None else out
        for _, part in self._parts:
            part.clipped_sum(clip, weight, total)
        return total

    def count_within(self, bound: float) -> int:
        """How many vectors have an l2 norm of at most `bound`."""
        return sum(part.count_within(bound) for _, part in self._parts)

    def minus(self, other: "PersonGrads", weight: float = 1.0) -> "PersonGrads":
        """vₚ − weight · v′ₚ for the same persons at another point."""
        pairs = zip(self._parts, other._parts, strict=True)
        return self._replace([(places, part.minus(its, weight)) for (places, part), (_, its) in pairs])

    def scaled(self, diagonal: Tensor) -> "PersonGrads":
        """vₚ ⊙ diagonal."""
        return self._replace([(places, part.scaled(diagonal)) for places, part in self._parts])

    def shifted(self, vector: Tensor, weight: float = 1.0) -> "PersonGrads":
        """vₚ + weight · vector."""
        return self._replace([(places, part.shifted(vector, weight)) for places, part in self._parts])

    def _in_place(self, found: Sequence[Tensor]) -> Tensor:
        norms = torch.full((self.examples,), torch.inf, dtype=self._layout.dtype, device=self._layout.device)
        for (places, _), own in zip(self._parts, found, strict=True):
            norms[places] = own
        return norms

    def _replace(self, parts: Sequence[tuple[Tensor, TorchGrads]]) -> "PersonGrads":
        return PersonGrads(parts, self.examples, self._layout)


class PersonSums(PersonGrads):
    """Vectors of persons whose rows' gradients are single outer products, and do not cancel: sums are sums of rows.

        Σₚ wₚ vₚ = Σᵢ (w/k)ₚ₍ᵢ₎ gᵢ        over all rows i

    So nothing is gathered for them, however many rows each has. What changes vectors or looks at layers needs the parts. So do
    persons whose norm is below `VANISHED` of what it could be: their rows cancel, and the rounding of a sum of rows would show.
    """

    def __init__(self, rows: TorchGrads, counts: Vector, powers: Vector, possible: Vector) -> None:
        self._rows, self._counts, self.examples, self._layout = rows, counts, len(counts), rows._layout
        norms = np.where(counts > 0, np.sqrt(powers) / np.maximum(counts, 1), np.inf)
        self._norms = torch.from_numpy(norms).to(rows._layout.dtype)
        self._vanished = torch.from_numpy(np.flatnonzero(~(powers >= VANISHED**2 * possible)))
        self._others: PersonGrads | None = None
        if len(self._vanished):
            few = Persons(np.arange(rows.examples), counts).take(self._vanished.numpy())
            taken = rows.take(torch.from_numpy(few.rows))
            self._others = PersonGrads(taken.in_parts(few.counts), len(few.counts), self._layout)
            self._norms[self._vanished] = self._others.norms()

    @cached_property
    def _parts(self) -> Sequence[tuple[Tensor, TorchGrads]]:  # type: ignore[override]  # made where they are needed
        return self._rows.in_parts(self._counts)

    def norms(self, order: int = 2) -> Tensor:
        return self._norms if order == 2 else super().norms(order)

    def weighted_sum(self, weights: Any, out: Tensor | None = None) -> Tensor:
        if isinstance(weights, dict):
            return super().weighted_sum(weights, out)
        total = self._layout.zeros() if out is None else out
        weights = torch.as_tensor(weights)
        shares = weights / torch.from_numpy(np.maximum(self._counts, 1))
        if self._others is not None:
            self._others.weighted_sum(weights[self._vanished], total)
            shares[self._vanished] = 0.0
        self._rows.add_rows(shares.to(self._layout.dtype).repeat_interleave(torch.from_numpy(self._counts)), total)
        return total

    def clipped_sum(self, clip: ClipFactors, weight: float = 1.0, out: Tensor | None = None) -> Tensor:
        if isinstance(clip, LayerFactors) or clip.order == 1:
            return super().clipped_sum(clip, weight, out)
        return self.weighted_sum(clip_weights(clip, self._norms.numpy(), weight), out)

    def count_within(self, bound: float) -> int:
        return int((self._norms <= bound).sum())


def _alike(counts: Vector, least: int) -> Iterator[tuple[int, Vector]]:
    """The places of persons with about as many rows, and how many steps those take; not of persons without rows.

    Persons whose steps are fewer than `least` together go with those who have more: each step counts little then.
    """
    ladder = STEPS if counts.max(initial=0) <= STEPS[-1] else np.union1d(STEPS, counts)
    steps = ladder.take(ladder.searchsorted(counts)) * (counts > 0)
    longest, waiting = int(steps.max(initial=0)), np.zeros(len(counts), dtype=bool)
    for length in np.unique(steps[steps > 0]).tolist():
        waiting |= steps == length
        if int(waiting.sum()) * length >= least or length == longest:
            yield length, np.flatnonzero(waiting)
            waiting[:] = False


# ---------------------------------------------------------------- chunks


class ChunkedGrads:
    """The vectors of a batch, computed by `compute(start, stop)` each time they are needed: a `TorchGrads` or `PersonGrads`."""

    def __init__(self, compute: Callable[[int, int], Any], spans: Sequence[tuple[int, int]], layout: Layout) -> None:
        self._compute, self._spans, self._layout = compute, spans, layout
        self.examples = spans[-1][1] if spans else 0
        self._seed = int(torch.randint(2**62, (1,)))  # of dropout: the same for two points in one round
        self._norms: dict[int, Tensor] = {}

    def part(self, start: int, stop: int) -> Any:
        """One chunk, with the same random numbers each time."""
        with RngState(self._layout.device).replay():
            seed_torch(self._seed + start)
            return self._compute(start, stop)

    def norms(self, order: int = 2) -> Tensor:
        """The l1 or l2 norm of each."""
        if order not in self._norms:
            self._norms[order] = torch.cat([self.part(*span).norms(order) for span in self._spans])
        return self._norms[order]

    def layer_norms(self, order: int = 2) -> dict[str, Tensor]:
        """The norm of each example's gradient of each parameter."""
        parts = [self.part(*span).layer_norms(order) for span in self._spans]
        return {name: torch.cat([part[name] for part in parts]) for name in self._layout.slices}

    def weighted_sum(self, weights: Any, out: Tensor | None = None) -> Tensor:
        """Σ wᵢ gᵢ, flat; added to `out` if that is given."""
        total = self._layout.zeros() if out is None else out
        for start, stop in self._spans:
            if isinstance(weights, dict):
                own: Any = {name: torch.as_tensor(own)[start:stop] for name, own in weights.items()}
            else:
                own = torch.as_tensor(weights)[start:stop]
            self.part(start, stop).weighted_sum(own, total)
        return total

    def clipped_sum(self, clip: ClipFactors, weight: float = 1.0, out: Tensor | None = None) -> Tensor:
        """weight × Σ of the clipped vectors, in one pass over the examples."""
        total, norms = self._layout.zeros() if out is None else out, []
        for span in self._spans:
            part = self.part(*span)
            part.clipped_sum(clip, weight, total)
            norms.append(part.norms(clip.order))
        if norms:
            self._norms[clip.order] = torch.cat(norms)
        return total

    def count_within(self, bound: float) -> int:
        """How many vectors have an l2 norm of at most `bound`."""
        return int((self.norms() <= bound).sum()) if self.examples else 0

    def minus(self, other: "ChunkedGrads", weight: float = 1.0) -> "ChunkedGrads":
        """gᵢ − weight · g′ᵢ."""
        return self._replace(lambda start, stop: self.part(start, stop).minus(other.part(start, stop), weight))

    def scaled(self, diagonal: Tensor) -> "ChunkedGrads":
        """gᵢ ⊙ diagonal."""
        return self._replace(lambda start, stop: self.part(start, stop).scaled(diagonal))

    def shifted(self, vector: Tensor, weight: float = 1.0) -> "ChunkedGrads":
        """gᵢ + weight · vector."""
        return self._replace(lambda start, stop: self.part(start, stop).shifted(vector, weight))

    def _replace(self, compute: Callable[[int, int], Any]) -> "ChunkedGrads":
        return ChunkedGrads(compute, self._spans, self._layout)


def cut(examples: int, chunk: int) -> list[tuple[int, int]]:
    """Chunks of almost the same size: a last chunk of a few examples would take almost as long as the others."""
    chunks = -(-examples // chunk)
    return list(itertools.pairwise(examples * piece // chunks for piece in range(chunks + 1)))
