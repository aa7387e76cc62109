"""Users of a network: local steps of any torch model on a user's own rows.

Rows of one user may meet in the model (batch normalisation, say): they are one unit. Each user trains a copy of model and loss,
so whatever these remember of a user (buffers, attributes, counts) is gone with it; random numbers are those of the round.
"""

import copy
import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from privopt.errors import InputError
from privopt.perexample.grads import Vector
from privopt.perexample.networks.rng import RngState, seed_torch
from privopt.perexample.user_vectors import Change, LocalSteps


def flat_parameters(model: nn.Module) -> Vector:
    """The trained parameters of a model, as one vector."""
    trained = [parameter.detach() for parameter in model.parameters() if parameter.requires_grad]
    if not trained:
        raise InputError("no parameter of the model is trained: set requires_grad of some to True.")
    return np.asarray(parameters_to_vector(trained).cpu().double().numpy())


def assign_parameters(model: nn.Module, values: Vector) -> None:
    """Put a vector's values into the trained parameters."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    with torch.no_grad():
        vector_to_parameters(torch.from_numpy(np.asarray(values)).to(trained[0].dtype), trained)


class NetworkUsers:
    """Users of a torch model: inputs and targets of all rows on this node, and the rows of each user.

    `loss(output, targets)` is a mean over rows, as torch's losses are, or one value for each row.
    """

    def __init__(
        self, model: nn.Module, loss: Callable[..., Tensor], inputs: Tensor, targets: Tensor, groups: Sequence[Vector]
    ) -> None:
        if len(inputs) != len(targets):
            raise InputError(f"there are {len(inputs)} inputs and {len(targets)} targets; each row has one of both.")
        self._model, self._loss, self._groups = model, loss, groups
        self._inputs, self._targets = inputs, targets
        self.dimension = len(flat_parameters(model))

    @property
    def size(self) -> int:
        return len(self._groups)

    def change(self, parameters: Vector, user: int, local: LocalSteps, scale: Vector | None) -> Change:
        rows = self._groups[user]
        if not len(rows):
            return Change(np.zeros(len(parameters)))
        model, loss = copy.deepcopy((self._model, self._loss))
        assign_parameters(model, parameters)
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        before = flat_parameters(model)
        divisors: list[Any] = [1.0] * len(trained) if scale is None else _like(trained, scale)
        seed = int.from_bytes(hashlib.sha256(np.ascontiguousarray(parameters).tobytes()).digest()[:7])
        model.train()
        with RngState(trained[0].device).replay(), torch.enable_grad():
            seed_torch(seed)  # of dropout
            for batch in local.batches(len(rows), parameters):
                chosen = torch.from_numpy(rows[batch])
                value = loss(model(self._inputs[chosen]), self._targets[chosen]).mean()
                gradients = torch.autograd.grad(value, trained, allow_unused=True)
                with torch.no_grad():
                    for parameter, gradient, divisor in zip(trained, gradients, divisors, strict=True):
                        if gradient is not None:
                            parameter.sub_(local.learning_rate * gradient / divisor)
        return Change(before - flat_parameters(model))


def _like(trained: Sequence[Tensor], values: Vector) -> list[Tensor]:
    """Parts of a vector, shaped like the parameters."""
    parts = np.split(values, np.cumsum([parameter.numel() for parameter in trained])[:-1])
    return [torch.from_numpy(part).to(one.dtype).reshape(one.shape) for part, one in zip(parts, trained, strict=True)]
