"""Gradients as tensors: one row for each example."""

from torch import Tensor

from privopt.perexample.networks.factors.factor import Factor, absolutes, squares


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
