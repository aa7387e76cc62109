"""Kernels: squared norms of outer products, row by row, in one compiled pass over the factors.

They take rows in single precision on the CPU. Sums are in double precision, so no square underflows.
"""

import math

import numpy as np
import torch
from numba import float64
from torch import Tensor

from privopt.numba_cache import compiled
from privopt.perexample.grads import Vector

Pair = tuple[Tensor, Tensor]


def squared_lengths(gradients: Tensor, inputs: Tensor) -> tuple[Tensor, Tensor]:
    """‖δᵢ ⊗ aᵢ‖² = ‖δᵢ‖² ‖aᵢ‖², and ‖δᵢ‖².

    >>> squared_lengths(torch.tensor([[3.0, 4.0], [1e-30, 0.0]]), torch.tensor([[2.0], [1e30]]))
    (tensor([100.,   1.]), tensor([25.,  0.]))
    """
    results = np.empty((2, gradients.shape[0]), np.float32)
    _squared_lengths(gradients.contiguous().numpy(), inputs.contiguous().numpy(), results)
    return torch.from_numpy(results[0]), torch.from_numpy(results[1])


def squared_lengths_of_two(gradients: Pair, inputs: Pair, least: float) -> tuple[Tensor, Tensor | None]:
    """‖δᵢ ⊗ aᵢ + δ′ᵢ ⊗ a′ᵢ‖², and a mask of rows where it is below `least` × its largest possible value; None if nowhere.

    >>> one = torch.tensor([[1.0], [1.0]])
    >>> squared_lengths_of_two((one, -2 * one), (5 * one, one), least=0.1)
    (tensor([9., 9.]), None)
    >>> squared_lengths_of_two((one, -2 * one), (torch.tensor([[5.0], [2.0]]), one), least=0.1)
    (tensor([9., 0.]), tensor([False,  True]))
    """
    values, below = np.empty(gradients[0].shape[0], np.float32), np.empty(gradients[0].shape[0], np.bool_)
    some = _squared_lengths_of_two(*(rows.contiguous().numpy() for rows in (*gradients, *inputs)), least, values, below)
    return torch.from_numpy(values), torch.from_numpy(below) if some else None


def squared_lengths_of_steps(gradients: Tensor, inputs: Tensor, least: float) -> tuple[Tensor, Tensor | None]:
    """‖Σₜ δᵢₜ ⊗ aᵢₜ‖² of (rows, time, width), and a mask of rows where it is below `least` × its largest possible value.

    >>> deltas, inputs = torch.tensor([[[1.0], [-2.0]], [[1.0], [-2.0]]]), torch.tensor([[[5.0], [1.0]], [[2.0], [1.0]]])
    >>> squared_lengths_of_steps(deltas, inputs, least=0.1)
    (tensor([9., 0.]), tensor([False,  True]))
    """
    values, below = np.empty(gradients.shape[0], np.float32), np.empty(gradients.shape[0], np.bool_)
    some = _squared_lengths_of_steps(*(rows.contiguous().numpy() for rows in (gradients, inputs)), least, values, below)
    return torch.from_numpy(values), torch.from_numpy(below) if some else None


def squared_lengths_of_segments(gradients: Tensor, inputs: Tensor, counts: Vector) -> Vector:
    """Of each segment of rows: ‖Σ δᵢ ⊗ aᵢ‖² and Σ ‖δᵢ ⊗ aᵢ‖, and the same of the δᵢ alone.

    >>> deltas, inputs = torch.tensor([[1.0], [-2.0], [3.0]]), torch.tensor([[5.0], [1.0], [2.0]])
    >>> squared_lengths_of_segments(deltas, inputs, np.array([2, 0, 1])).T.tolist()
    [[9.0, 7.0, 1.0, 3.0], [0.0, 0.0, 0.0, 0.0], [36.0, 6.0, 9.0, 3.0]]
    """
    results = np.empty((4, len(counts)))
    rows = (tensor.contiguous().numpy() for tensor in (gradients, inputs))
    _squared_lengths_of_segments(*rows, counts.cumsum().astype(np.int64), results)
    return results


def weighted_squares(weights: Tensor, inputs: Tensor) -> Tensor:
    """Σⱼ wᵢⱼ aᵢⱼ², for each row.

    >>> weighted_squares(torch.tensor([[1.0, 2.0], [1e-30, 0.0]]), torch.tensor([[3.0, 1.0], [1e30, 5.0]]))
    tensor([1.1000e+01, 1.0000e+30])
    """
    values = np.empty(weights.shape[0], np.float32)
    _weighted_squares(weights.contiguous().numpy(), inputs.contiguous().numpy(), values)
    return torch.from_numpy(values)


def usable(gradients: Tensor, inputs: Tensor) -> bool:
    """Whether the kernels can take these rows."""
    return gradients.is_cpu and gradients.dtype == inputs.dtype == torch.float32


@compiled("void(float32[:, ::1], float32[:, ::1], float32[:, ::1])", fastmath={"reassoc", "contract"})
def _squared_lengths(gradients, inputs, results):  # type: ignore[no-untyped-def]  # compiled
    for row in range(gradients.shape[0]):
        ours = float64(0.0)
        for column in range(gradients.shape[1]):
            ours += float64(gradients[row, column]) * float64(gradients[row, column])
        theirs = float64(0.0)
        for column in range(inputs.shape[1]):
            theirs += float64(inputs[row, column]) * float64(inputs[row, column])
        results[0, row], results[1, row] = ours * theirs, ours


@compiled(f"boolean({4 * 'float32[:, ::1], '}float64, float32[::1], boolean[::1])", fastmath={"reassoc", "contract"})
def _squared_lengths_of_two(gradients, others, inputs, theirs, least, values, below):  # type: ignore[no-untyped-def]
    some = False
    for row in range(gradients.shape[0]):
        dd, ee, de = float64(0.0), float64(0.0), float64(0.0)
        for column in range(gradients.shape[1]):
            d, e = float64(gradients[row, column]), float64(others[row, column])
            dd, ee, de = dd + d * d, ee + e * e, de + d * e
        aa, bb, ab = float64(0.0), float64(0.0), float64(0.0)
        for column in range(inputs.shape[1]):
            a, b = float64(inputs[row, column]), float64(theirs[row, column])
            aa, bb, ab = aa + a * a, bb + b * b, ab + a * b
        square = dd * aa + ee * bb + float64(2.0) * de * ab
        values[row], below[row] = square, square < least * (math.sqrt(dd * aa) + math.sqrt(ee * bb)) ** 2
        some |= below[row]
    return some


@compiled(f"boolean({2 * 'float32[:, :, ::1], '}float64, float32[::1], boolean[::1])", fastmath={"reassoc", "contract"})
def _squared_lengths_of_steps(gradients, inputs, least, values, below):  # type: ignore[no-untyped-def]
    some = False
    for row in range(gradients.shape[0]):
        square, possible = float64(0.0), float64(0.0)
        for step in range(gradients.shape[1]):
            for other in range(step + 1):
                de, ab = float64(0.0), float64(0.0)
                for column in range(gradients.shape[2]):
                    de += float64(gradients[row, step, column]) * float64(gradients[row, other, column])
                for column in range(inputs.shape[2]):
                    ab += float64(inputs[row, step, column]) * float64(inputs[row, other, column])
                square += de * ab if other == step else float64(2.0) * de * ab
                if other == step:
                    possible += math.sqrt(de * ab)
        values[row], below[row] = square, square < least * possible**2
        some |= below[row]
    return some


@compiled("void(float32[:, ::1], float32[:, ::1], int64[::1], float64[:, ::1])", fastmath={"reassoc", "contract"})
def _squared_lengths_of_segments(gradients, inputs, ends, results):  # type: ignore[no-untyped-def]
    first = 0
    for segment in range(len(ends)):
        both, possible, ours, largest = float64(0.0), float64(0.0), float64(0.0), float64(0.0)
        for row in range(first, ends[segment]):
            for other in range(first, row + 1):
                de, ab = float64(0.0), float64(0.0)
                for column in range(gradients.shape[1]):
                    de += float64(gradients[row, column]) * float64(gradients[other, column])
                for column in range(inputs.shape[1]):
                    ab += float64(inputs[row, column]) * float64(inputs[other, column])
                if other == row:
                    both, possible = both + de * ab, possible + math.sqrt(de * ab)
                    ours, largest = ours + de, largest + math.sqrt(de)
                else:
                    both, ours = both + float64(2.0) * de * ab, ours + float64(2.0) * de
        results[0, segment], results[1, segment] = both, possible
        results[2, segment], results[3, segment] = ours, largest
        first = ends[segment]


@compiled("void(float32[:, ::1], float32[:, ::1], float32[::1])", fastmath={"reassoc", "contract"})
def _weighted_squares(weights, inputs, values):  # type: ignore[no-untyped-def]
    for row in range(weights.shape[0]):
        total = float64(0.0)
        for column in range(weights.shape[1]):
            a = float64(inputs[row, column])
            total += float64(weights[row, column]) * (a * a)
        values[row] = total
