"""The check on attaching: made-up examples, all together and each alone.

Only the shapes and types of the data are used, so a message may say all that torch says: it is about no example.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from privopt.errors import InputError, PrivoptError
from privopt.perexample.networks.examples import Kind, Numbers, call, copied, described, kinds, leaves, rows_of, score, synthetic
from privopt.perexample.networks.functions import gradients
from privopt.perexample.networks.isolation.comparison import TOLERANCES, check_isolation
from privopt.perexample.networks.isolation.made_up import normal, padded, positive, wide
from privopt.perexample.networks.isolation.overwriting import BatchRows, check_losses, compare, noting_halves
from privopt.perexample.networks.layout import Layout
from privopt.perexample.networks.loss_modules import Loss
from privopt.perexample.networks.model_state import ModelState, evaluating, in_precision
from privopt.perexample.networks.recorder import Recorder
from privopt.perexample.networks.rng import RngState, without_randomness
from privopt.perexample.networks.unsupported import UnsupportedLayer, UnsupportedLoss

TOGETHER, ALONE = 7, 5  # no period of one is a period of the other


class Checked(NamedTuple):
    """What was found of a model that is not refused."""

    output: Any  # for made-up examples
    changes_inputs: bool  # in place
    doubts: list[str]  # why independence of the examples was checked, and not proved


def check_model(recorder: Recorder, loss: Loss, inputs: Any, targets: Any) -> Checked:
    """Refuse a model or loss whose per-example gradients do not add up.

    Gradients are those of plain autograd on each example alone, without dropout; and, in the model's own mode, no example's loss
    depends on another's. What cannot be told, because it is not finite, is tried on other examples. `isolation` then compares
    batches with single examples.
    """
    layout, generator, start = Layout(recorder.model), torch.Generator().manual_seed(0), ModelState(recorder.model)
    output: Any = None
    alone = together = changes = False
    ran: list[tuple[Numbers, Kind]] = []
    try:
        with RngState(layout.device).replay(), torch.enable_grad():
            for numbers in (normal, wide, padded, positive):
                if (numbers is positive and alone and together) or (numbers is padded and not _features(inputs)):
                    continue
                possible = kinds((inputs, targets))
                for place, kind in enumerate(possible):
                    made = _made_up(inputs, targets, numbers, kind, generator)
                    try:
                        found = _run(recorder, loss, layout, *made)
                        alone = alone or _check_alone(recorder, loss, layout, *rows_of(made, slice(ALONE)))
                        told, changed = _check_together(recorder, loss, layout, *made)
                        together, changes = together or told, changes or changed
                    except InputError:
                        if output is None and place == len(possible) - 1:
                            raise
                        continue
                    output = found if output is None else output
                    ran.append((numbers, kind))
                    if (alone and together) or numbers is wide:
                        break
    finally:
        start.restore()
    if not (alone and together):
        raise UnsupportedLayer(
            "losses or gradients of made-up examples are not finite, so it cannot be told whether the model or the loss mixes "
            "examples. Keep logarithms, roots and divisors away from 0, for one example alone as well (no std over the batch)."
        )
    doubts = _check_precisely(recorder, loss, inputs, targets, ran[-1][1])
    numbers_that_ran = [numbers for numbers in (normal, positive) if any(numbers is one for one, _ in ran)]
    doubts += check_isolation(recorder.model, loss, inputs, targets, ran[-1][1], numbers_that_ran or [normal])
    return Checked(output, changes, doubts)


def _check_precisely(recorder: Recorder, loss: Loss, inputs: Any, targets: Any, kind: Kind) -> list[str]:
    """Compare with plain autograd again, in double precision: a large branch hides nothing of a small one there."""
    model, generator, start = recorder.model, torch.Generator().manual_seed(1), ModelState(recorder.model)
    made = _made_up(inputs, targets, normal, kind, generator)
    made = tree_map(lambda x: x.double() if isinstance(x, Tensor) and x.is_floating_point() else x, made)
    with in_precision(model, torch.float64):
        try:
            with RngState(next(model.parameters()).device).replay(), torch.enable_grad():
                _check_alone(recorder, loss, Layout(model), *rows_of(made, slice(ALONE)))
        except InputError:
            return ["the model computes in single precision only, where rounding hides what is small"]
        finally:
            start.restore()
    return []


def _features(inputs: Any) -> bool:
    """Whether there are numbers that a model may look at for marks."""
    return any(isinstance(x, Tensor) and x.is_floating_point() and x.ndim > 1 for x in leaves(inputs))


def _made_up(
    inputs: Any, targets: Any, numbers: Callable[..., Tensor], kind: Kind, generator: torch.Generator
) -> tuple[Any, Any]:
    made = synthetic(inputs, TOGETHER, generator, numbers=numbers, kind=kind)
    return made, synthetic(targets, TOGETHER, generator, numbers=torch.rand, kind=Kind(boolean=kind.boolean))


def _run(recorder: Recorder, loss: Loss, layout: Layout, inputs: Any, targets: Any) -> Any:
    with evaluating(recorder.model):
        output = tried("the model", lambda: call(recorder.model, copied(inputs)), inputs, layout)
        tried("the loss", lambda: _scored(loss, output, targets), (output, targets), layout)
    return output


def _check_together(recorder: Recorder, loss: Loss, layout: Layout, inputs: Any, targets: Any) -> tuple[bool, bool]:
    """Whether it could be told that losses are each for themselves, and whether inputs or targets are changed in place."""
    tensors, changed = [leaf for leaf in leaves((inputs, targets)) if isinstance(leaf, Tensor)], False

    def losses() -> Tensor:
        nonlocal changed
        before = [tensor._version for tensor in tensors]
        values = score(loss, call(recorder.model, inputs), targets)
        changed = changed or before != [tensor._version for tensor in tensors]
        if values.shape != (TOGETHER,):
            raise UnsupportedLoss(
                f"the loss gave a value of shape {tuple(values.shape)} for {TOGETHER} examples: one for each is needed."
            )
        return values

    handed = BatchRows((inputs, targets), TOGETHER)
    told = tried("the model in training", lambda: check_losses(recorder, layout, losses, handed), (inputs, targets), layout)
    return bool(told), changed


def _check_alone(recorder: Recorder, loss: Loss, layout: Layout, inputs: Any, targets: Any) -> bool:
    """Compare with plain autograd on each example alone. Whether that could be told."""
    weights = torch.tensor([1.0, -0.5, 2.0, 1.5, -1.0], dtype=layout.dtype, device=layout.device)
    halved: set[torch.dtype] = set()
    with evaluating(recorder.model), without_randomness(recorder.model):
        of = partial(gradients, recorder, layout, loss)
        grads = tried("the model", lambda: of(copied(inputs), targets, len(weights)), (inputs, targets), layout)
        alone: dict[str, Tensor] = {name: torch.zeros_like(parameter) for name, parameter in layout.parameters.items()}
        for i, weight in enumerate(weights.tolist()):
            own = copied(rows_of((inputs, targets), slice(i, i + 1)))
            with noting_halves(halved):
                value = tried("the model", partial(_scored_alone, recorder.model, loss, *own), own, layout)
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
    ours = layout.views(grads.weighted_sum(weights))
    return compare(ours, alone, TOLERANCES[halved.pop() if halved else layout.dtype])


def _scored_alone(model: nn.Module, loss: Loss, inputs: Any, targets: Any) -> Tensor:
    return score(loss, call(model, inputs), targets)


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
