"""Squared lengths of outer products, row by row, in one pass over both factors."""

import numpy as np
import torch
from numba import float64
from torch import Tensor

from privopt.compiled import compiled


def squared_lengths(gradients: Tensor, inputs: Tensor) -> tuple[Tensor, Tensor]:
    """(‖δᵢ‖² ‖aᵢ‖², ‖δᵢ‖²) of rows in single precision on the CPU. Sums are in double precision: no square underflows.

    >>> squared_lengths(torch.tensor([[3.0, 4.0], [1e-30, 0.0]]), torch.tensor([[2.0], [1e30]]))
    (tensor([100.,   1.]), tensor([25.,  0.]))
    """
    room = np.empty((2, gradients.shape[0]), np.float32)
    _squared_lengths(gradients.contiguous().numpy(), inputs.contiguous().numpy(), room)
    return torch.from_numpy(room[0]), torch.from_numpy(room[1])


@compiled("void(float32[:, ::1], float32[:, ::1], float32[:, ::1])", fastmath={"reassoc", "contract"})
def _squared_lengths(gradients, inputs, room):  # type: ignore[no-untyped-def]  # compiled
    for row in range(gradients.shape[0]):
        ours = float64(0.0)
        for column in range(gradients.shape[1]):
            ours += float64(gradients[row, column]) * float64(gradients[row, column])
        theirs = float64(0.0)
        for column in range(inputs.shape[1]):
            theirs += float64(inputs[row, column]) * float64(inputs[row, column])
        room[0, row], room[1, row] = ours * theirs, ours
