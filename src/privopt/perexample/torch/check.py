"""The check on attaching: gradients of made-up examples against plain autograd on each example alone.

Only the shapes and types of the data are used, so a message may say all that torch says: it is about no example.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from privopt.errors import InputError, PrivoptError
from privopt.perexample.torch.data import call, described, leaves, rows_of, score, synthetic
from privopt.perexample.torch.draws import Draws
from privopt.perexample.torch.errors import UnsupportedLoss
from privopt.perexample.torch.flat import Layout
from privopt.perexample.torch.functions import gradients
from privopt.perexample.torch.losses import Loss
from privopt.perexample.torch.mixing import OF_HALVES, TOLERANCE, compare, noting_halves
from privopt.perexample.torch.record import Recorder

EXAMPLES = 3


def check_model(recorder: Recorder, loss: Loss, inputs: Any, targets: Any) -> Any:
    """Refuse a model or loss whose per-example gradients do not add up; give what the model makes of the made-up examples."""
    generator = torch.Generator().manual_seed(0)
    inputs = synthetic(inputs, EXAMPLES, generator)
    targets = synthetic(targets, EXAMPLES, generator, positive=True)
    layout = Layout(recorder.model)
    weights = torch.tensor([1.0, -0.5, 2.0], dtype=layout.dtype, device=layout.device)
    with _evaluating(recorder.model), Draws(layout.device).again():
        output = tried("the model", lambda: call(recorder.model, inputs), inputs, layout)
        tried("the loss", lambda: _scored(loss, output, targets), (output, targets), layout)
        ours = layout.views(gradients(recorder, layout, loss, inputs, targets).weighted_sum(weights))
        alone: dict[str, Tensor] = {name: torch.zeros_like(parameter) for name, parameter in layout.parameters.items()}
        halved: set[torch.dtype] = set()
        for i, weight in enumerate(weights.tolist()):
            own = rows_of((inputs, targets), slice(i, i + 1))
            with torch.enable_grad(), noting_halves(halved):
                value = score(loss, call(recorder.model, own[0]), own[1])
            if value.shape != (1,):
                raise UnsupportedLoss(
                    f"the loss gave a value of shape {tuple(value.shape)} for one example. Give one value for each: shape (1,)."
                )
            found = (
                torch.autograd.grad(value[0], list(layout.parameters.values()), allow_unused=True) if value.requires_grad else ()
            )
            for name, gradient in zip(alone, found, strict=False):
                if gradient is not None:
                    alone[name].add_(gradient.to_dense() if gradient.is_sparse else gradient, alpha=weight)
            found = ()  # one at a time is in memory
    compare(ours, alone, OF_HALVES if halved else TOLERANCE[layout.dtype])
    return output


def tried(what: str, work: Callable[[], Any], given: Any, layout: Layout) -> Any:
    """What it gives for made-up examples, or an error that says what it was given."""
    try:
        return work()
    except PrivoptError:
        raise
    except Exception as error:
        says = str(error).strip().partition("\n")[0].rstrip(".")
        other = [x for x in leaves(given) if isinstance(x, Tensor) and x.is_floating_point() and x.dtype != layout.dtype]
        remedy = f" Give numbers in the model's type: inputs.to({layout.dtype})." if other else ""
        raise InputError(
            f"{what} cannot be run on made-up examples like those of the data, {described(given)}: "
            f"{type(error).__name__}: {says}.{remedy}"
        ) from None


def _scored(loss: Loss, output: Any, targets: Any) -> None:
    value = score(loss, output, targets)
    if not isinstance(value, Tensor):
        raise UnsupportedLoss(f"the loss gave a {type(value).__name__}, but a tensor of one value for each example is needed.")


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Without dropout, for a while."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        yield
    finally:
        for module, mode in modes:
            module.training = mode
