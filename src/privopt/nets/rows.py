"""Rows of a table, dense or CSR, for a network: scaled and made dense when they are drawn; the table is not copied."""

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor, nn

from privopt.nets.data import physical_batch_size
from privopt.perexample.design import Frame
from privopt.perexample.grads import Vector
from privopt.perexample.networks import TorchOracle


class Rows:
    """A matrix of rows and the targets of a network.

    >>> rows = Rows(sp.csr_matrix([[2.0, 0.0], [0.0, 4.0]]), Frame(scale=np.array([2.0, 2.0])), torch.tensor([0, 1]))
    >>> rows([1])
    (tensor([[0., 2.]]), tensor([1]))
    """

    def __init__(self, matrix: Vector | sp.csr_matrix, frame: Frame, targets: Tensor) -> None:
        self._matrix, self._frame, self._targets = matrix, frame, targets

    def __call__(self, places: list[int]) -> tuple[Tensor, Tensor]:
        """The rows with these indices."""
        drawn: Any = self._matrix[places]
        rows = np.asarray(drawn.toarray() if sp.issparse(drawn) else drawn, dtype=float)  # indexing has made a copy
        if self._frame.centre is not None:
            rows -= self._frame.centre
        if self._frame.scale is not None:
            rows /= self._frame.scale
        with np.errstate(over="ignore"):  # a number too large for single precision becomes infinite, and its row is left out
            return torch.from_numpy(rows.astype(np.float32)), self._targets[places]

    def oracle(self, model: nn.Module, loss: Callable[..., Tensor]) -> TorchOracle:
        """The oracle of a model on these rows, with as many rows at a time as memory allows."""
        places: Any = range(len(self._targets))
        return TorchOracle.of_dataset(model, loss, places, collate=self, chunk=physical_batch_size(model, self([0])[0]))
