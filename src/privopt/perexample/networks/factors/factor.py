"""Factors: the gradients of one parameter, one for each example, kept as the factors of a product.

| factor | the gradient of example i | made by |
|---|---|---|
| `RankOne` | δᵢ ⊗ aᵢ | a linear layer on rows |
| `Outer` | Σₜ δᵢₜ ⊗ aᵢₜ | linear, convolution, recurrent and attention weights |
| `Lookup` | Σₜ δᵢₜ in row idᵢₜ | embeddings |
| `Dense` | itself | biases, norm layers, everything else |
| `Sum` | a sum of different kinds | a weight shared by, say, an embedding and a linear layer |

A norm that is computed without forming the gradient must not be too small when terms cancel: the example would be clipped too
little. Where that could happen, the gradients of those examples are formed (`CANCELLED`), and where they almost vanish, the
weighted sum adds the formed gradients, too (`Cancelled`).
"""

import weakref
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from privopt.perexample.networks.factors.kernels import usable, weighted_squares

CANCELLED = 3e-3  # share of the largest possible squared norm, below which rounding shows
LONG = 1 << 16  # elements whose squares are added in one sum
BLOCK = 1 << 20  # elements of formed gradients at a time
HUGE = {
    torch.float32: 1e30,
    torch.float64: 1e300,
}  # squared norms beside which the other factor's may have underflowed and still count
OVERFLOW = {dtype: torch.finfo(dtype).max / huge for dtype, huge in HUGE.items()}


class Factor(Protocol):
    """The gradients of one parameter, one for each example."""

    @property
    def examples(self) -> int:
        """The number of examples."""
        ...

    def squared_norms(self, diagonal: Tensor | None = None) -> Tensor:
        """‖gᵢ ⊙ diagonal‖² for each example."""
        ...

    def absolute_norms(self, diagonal: Tensor | None = None) -> Tensor:
        """‖gᵢ ⊙ diagonal‖₁ for each example."""
        ...

    def add_weighted_sum(self, weights: Tensor, out: Tensor) -> None:
        """out += Σ wᵢ gᵢ, in the parameter's shape."""
        ...

    def dots(self, vector: Tensor) -> Tensor:
        """⟨gᵢ, vector⟩ for each example."""
        ...

    def dense(self) -> Tensor:
        """(examples, *shape): the gradients themselves."""
        ...

    def take(self, index: Tensor) -> "Factor":
        """The gradients of these examples."""
        ...

    def minus(self, other: "Factor", weight: float) -> "Factor":
        """gᵢ − weight · g′ᵢ."""
        ...

    def plus(self, other: "Factor") -> "Factor":
        """gᵢ + g′ᵢ, for a parameter that is used twice."""
        ...

    def fold(self, members: "Members") -> "Factor":
        """Σₜ wₚₜ gₘ₍ₚ,ₜ₎ for each person p: the rows of a person are time steps of one example."""
        ...


class Members:
    """The rows of persons, as (persons, steps): the examples that they are, and their weights.

    A person with fewer rows than there are steps has one of them again, with weight 0: what is not finite stays with its person.
    """

    def __init__(self, rows: Tensor, weights: Tensor) -> None:
        self.rows, self.weights = rows, weights

    @property
    def persons(self) -> int:
        """How many there are."""
        return self.rows.shape[0]

    @property
    def steps(self) -> int:
        """How many rows each has."""
        return self.rows.shape[1]

    def take(self, values: Tensor) -> Tensor:
        """(examples, …) → (persons, steps, …)"""
        return values.index_select(0, self.rows.flatten()).view(*self.rows.shape, *values.shape[1:])

    def weighted(self, values: Tensor) -> Tensor:
        """(examples, …) → (persons, steps, …), times the weights."""
        return self.take(values).mul_(self.weights.to(values.dtype).view(*self.rows.shape, *[1] * (values.ndim - 1)))


def squares(rows: Tensor) -> Tensor:
    """‖rowᵢ‖² over all dimensions but the first. (A norm needs no memory for the squares.)"""
    flat = rows if rows.ndim == 2 else rows.flatten(1)
    if flat.shape[1] <= LONG:
        return torch.linalg.vector_norm(flat, dim=1).square_()
    parts = torch.split(flat, LONG, 1)  # rounding grows with length
    return add_tensors([torch.linalg.vector_norm(part, dim=1).square_() for part in parts])


def multiply_squares(one: Tensor, other: Tensor) -> Tensor:
    """‖δᵢ‖² ‖aᵢ‖², from the squares. NaN or infinite where one is huge: the other may be 0 only because it underflowed."""
    huge = (one + other).mul_(OVERFLOW[one.dtype])
    return (one * other).add_(huge, alpha=0.0)  # 0 · ∞; comparing takes twice as long


def scaled_product(gradients: Tensor, diagonal: Tensor, inputs: Tensor) -> Tensor:
    """‖(δᵢ ⊗ aᵢ) ⊙ D‖² = (δ²)ᵀ D² (a²), where each column of D is divided by its largest number, and a multiplied by it.

    No square underflows: those of δ and D are at least `tiny`, and a is not squared on its own. So no norm is too small: each
    column has an entry 1, so (δ²)ᵀ D² is at least `tiny`, beside which whatever still underflows does not count.
    """
    tiny = torch.finfo(gradients.dtype).tiny
    largest = diagonal.abs().amax(0)
    unit = diagonal / torch.where(largest == 0, 1.0, largest)  # a column of zeros contributes a · 0
    through, inputs = gradients.square().clamp_min_(tiny) @ unit.square_().clamp_min_(tiny), inputs * largest
    return weighted_squares(through, inputs) if usable(through, inputs) else squares(through.sqrt_().mul_(inputs))


class Formable(Protocol):
    """Gradients that can be formed a few examples at a time."""

    @property
    def examples(self) -> int:
        """The number of examples."""
        ...

    def take(self, index: Tensor) -> "Formable":
        """The gradients of these examples."""
        ...

    def dense(self) -> Tensor:
        """(examples, *shape)"""
        ...


def norms_in_blocks(factor: Formable, elements: int, norm: "Norm", diagonal: Tensor | None) -> Tensor:
    """Norms of formed gradients, a few examples at a time."""
    step = max(1, BLOCK // max(1, elements))
    parts = []
    for start in range(0, factor.examples, step):
        rows = factor.take(torch.arange(start, min(start + step, factor.examples))).dense()
        parts.append(norm(rows if diagonal is None else rows * diagonal))
    return torch.cat(parts) if parts else torch.zeros(0)


class Norm(Protocol):
    """A function that gives a norm of each row."""

    def __call__(self, rows: Tensor, /) -> Tensor:
        """(examples,)"""
        ...


def absolutes(rows: Tensor) -> Tensor:
    """‖rowᵢ‖₁ over all dimensions but the first."""
    return rows.flatten(1).abs().sum(1)


def add_tensors(parts: Sequence[Tensor]) -> Tensor:
    """The sum of tensors of one shape."""
    total = parts[0]
    for place, part in enumerate(parts[1:]):
        total = total.add_(part) if place else total + part
    return total


class Dense:
    """gᵢ = values[i]. Its squared norms and its last difference are cached: the weight of the same layer uses them."""

    def __init__(self, values: Tensor) -> None:
        self.values = values if values.ndim > 1 else values.unsqueeze(1)  # a parameter may be one number
        self.squares: Tensor | None = None
        self._difference: tuple[Factor, float, Dense] | None = None

    @property
    def examples(self) -> int:
        return self.values.shape[0]

    def squared_norms(self, diagonal: Tensor | None = None) -> Tensor:
        if diagonal is not None:
            return squares(self.values * diagonal)
        if self.squares is None:
            self.squares = squares(self.values)
        return self.squares

    def absolute_norms(self, diagonal: Tensor | None = None) -> Tensor:
        return absolutes(self.values if diagonal is None else self.values * diagonal)

    def add_weighted_sum(self, weights: Tensor, out: Tensor) -> None:
        if out.ndim == 1:
            out.addmv_(self.values.T, weights)
        else:
            out.view(-1).addmv_(self.values.flatten(1).T, weights)

    def dots(self, vector: Tensor) -> Tensor:
        return self.values.flatten(1) @ vector.reshape(-1)

    def dense(self) -> Tensor:
        return self.values

    def take(self, index: Tensor) -> "Dense":
        return Dense(self.values[index])

    def minus(self, other: Factor, weight: float) -> "Dense":
        if self._difference is None or self._difference[0] is not other or self._difference[1] != weight:
            self._difference = other, weight, Dense(self.values.sub(other.dense(), alpha=weight))
        return self._difference[2]

    def plus(self, other: Factor) -> "Dense":
        return Dense(self.values + other.dense())

    def fold(self, members: Members) -> "Dense":
        return Dense(members.weighted(self.values).sum(1))


# ---------------------------------------------------------------- memory


class Buffers:
    """Large tensors that are reused in the next step, for one recorder.

    Memory that is new to the process costs more than the arithmetic done in it. A buffer is lent to an owner and returned when
    the owner is deleted.
    """

    def __init__(self) -> None:
        self._free: list[Tensor] = []
        self._space: Tensor | None = None

    def space(self, numbers: int, like: Tensor) -> Tensor:
        """An uninitialised tensor of at least so many numbers, until the next call."""
        kept = self._space
        if kept is None or (kept.dtype, kept.device) != (like.dtype, like.device) or kept.numel() < numbers:
            self._space = kept = like.new_empty(numbers)
        return kept

    def lend(self, owner: object, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """An uninitialised tensor, for as long as the owner lives."""
        numbers = torch.Size(shape).numel()
        fitting = [
            buffer
            for buffer in self._free
            if (buffer.dtype, buffer.device) == (like.dtype, like.device) and numbers <= buffer.numel() <= 2 * numbers
        ]
        if fitting:
            buffer = min(fitting, key=Tensor.numel)
            self._free = [other for other in self._free if other is not buffer]
        else:
            self._free.clear()  # the batch size has changed: the old buffers do not fit
            buffer = like.new_empty(numbers + numbers // 8)
        weakref.finalize(owner, self._free_list, buffer)
        return buffer[:numbers].view(shape)

    def _free_list(self, buffer: Tensor) -> None:
        self._free.append(buffer)
