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
from privopt.perexample.torch.errors import UnsupportedLayer, UnsupportedLoss
from privopt.perexample.torch.flat import Layout
from privopt.perexample.torch.functions import gradients
from privopt.perexample.torch.grads import TorchGrads
from privopt.perexample.torch.losses import Loss
from privopt.perexample.torch.record import Recorder

EXAMPLES = 3
TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-3}
TOLERANCE_OF_HALVES = 5e-2
MIXES = "Either the model or the loss mixes examples: the batch must be the first dimension everywhere."


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
            with torch.enable_grad(), _halves(halved):
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
    _compare(ours, alone, TOLERANCE_OF_HALVES if halved else TOLERANCE[layout.dtype])
    return output


def check_losses(recorder: Recorder, layout: Layout, losses: Callable[[], Tensor]) -> None:
    """Refuse the losses of a batch if one depends on other examples, or if the gradients do not add up.

    Half of the losses are taken, then the others: an example whose loss is not among them has no gradient at all, and the sum is
    that of plain autograd. The halves follow no period, as a model may.
    """
    draws, halved = Draws(layout.device), set[torch.dtype]()
    for half in (0, 1):
        with draws.again(), torch.enable_grad(), recorder.record() as tape:
            values = losses()
            taken = torch.tensor([i.bit_count() % 2 == half for i in range(len(values))], device=values.device)
            factors = tape.factors(values * taken)
        grads = TorchGrads(layout, {layout.names[key]: factor for key, factor in factors.items()}, len(values))
        mixed = [name for name, norms in grads.layer_norms().items() if bool((norms[~taken] > 0).any())]
        if mixed:
            raise UnsupportedLayer(f"the gradients of {_some(mixed)} are not those of each example alone. {MIXES}")
    with draws.again(), torch.enable_grad(), _halves(halved):
        total = (losses() * taken).sum()
    plain = torch.autograd.grad(total, list(layout.parameters.values()), allow_unused=True)
    wanted = {
        name: torch.zeros_like(parameter) if gradient is None else gradient.to_dense()
        for (name, parameter), gradient in zip(layout.parameters.items(), plain, strict=True)
    }
    ours = layout.views(grads.weighted_sum(torch.ones(len(values))))
    _compare(ours, wanted, TOLERANCE_OF_HALVES if halved else TOLERANCE[layout.dtype])


def _compare(ours: dict[str, Tensor], wanted: dict[str, Tensor], tolerance: float) -> None:
    size = max(float(value.abs().max()) for value in wanted.values() if value.numel())
    wrong = [
        name
        for name, value in wanted.items()
        if value.numel() and bool(value.isfinite().all()) and not float((ours[name] - value).abs().max()) <= tolerance * size
    ]
    if wrong:
        raise UnsupportedLayer(
            f"the gradients of {_some(wrong)} are not those of each example alone. {MIXES} Or a parameter is used outside the "
            "module that owns it: call that module, or share it (decoder.weight = embedding.weight)."
        )


def _some(names: list[str]) -> str:
    return f"{', '.join(names[:5])}{' …' if len(names) > 5 else ''}"


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
def _halves(found: set[torch.dtype]) -> Iterator[None]:
    """Note which half precisions anything is computed in."""

    def look(tensor: Tensor) -> Tensor:
        found.update({tensor.dtype} & {torch.bfloat16, torch.float16})
        return tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(look, lambda tensor: tensor):
        yield


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
