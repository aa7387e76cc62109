"""The check of a model before it is trained: made-up examples, as a batch and one at a time.

Only the shapes and types of the data are used, so messages may quote what torch says: they are about no real example.
"""

import itertools
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from privopt.errors import InputError, PrivoptError
from privopt.perexample.networks.examples import (
    Kind,
    Like,
    Numbers,
    call_model,
    compute_losses,
    copy_tensors,
    count_examples,
    describe_types,
    effort_for,
    leaves,
    make_up,
    normal,
    padded,
    positive,
    possible_kinds,
    rows_of,
    shortened,
)
from privopt.perexample.networks.isolation.combinations import Operations, Products
from privopt.perexample.networks.isolation.one_by_one import SINGLE_ONLY, TOLERANCES, check_isolation
from privopt.perexample.networks.isolation.overwriting import (
    BatchRows,
    autograd_sum,
    check_losses,
    compare,
    record_half_precision,
)
from privopt.perexample.networks.layout import Layout
from privopt.perexample.networks.loss_modules import Loss
from privopt.perexample.networks.model_state import Attributes, ModelState, evaluation_mode, in_precision
from privopt.perexample.networks.recorder import Recorder, gradients
from privopt.perexample.networks.rng import RngState, without_randomness
from privopt.perexample.networks.unsupported import SlowModel, UnsupportedLayer, UnsupportedLoss

SLOW = (
    "this model is exact but slow: each example goes through it on its own, because neither its layers nor torch.vmap could "
    "separate the examples. Code without Python numbers read from tensors, without data-dependent shapes and without packed "
    "sequences or cells is faster."
)
CHANGES = "the model changes numbers or settings that it holds, such as a count of calls, so it may do something else later"
WEIGHTS = (1.0, -0.5, 2.0, 1.5, -1.0)  # of single examples


class ModelCheck(NamedTuple):
    """What was found out about a model that is not refused."""

    output: Any  # for made-up examples
    changes_inputs: bool  # in place
    doubts: list[str]  # why the independence of examples is checked, and not proved


def check_model(recorder: Recorder, loss: Loss, inputs: Any, targets: Any) -> ModelCheck:
    """Refuse a model or loss whose per-example gradients do not add up, and set the recorder's way to one that is exact.

    Gradients must be those of plain autograd on each example alone, without dropout. In the model's own mode, no example's loss
    may depend on another example. Where losses or gradients are not finite, other made-up examples are tried. `one_by_one` then
    compares batches with single examples: a model is refused because examples mix, whatever the way. Most examples are short,
    unless the code does something to long ones that it does not do to short ones.
    """
    data, attributes = (inputs, targets), Attributes(recorder.model)
    try:
        short, known = shortened(data, partial(_runs, recorder.model, loss)), operations(recorder.model, loss, data)
        if short is not data and known <= (of_short := operations(recorder.model, loss, short)):
            with suppress(UnsupportedLayer):  # perhaps because of rounding: a norm over one number that is left
                return _check_with(recorder, loss, data, short, of_short)
        return _check_with(recorder, loss, data, data, known)
    finally:
        attributes.restore()


def _check_with(
    recorder: Recorder, loss: Loss, data: tuple[Any, Any], short: tuple[Any, Any], known: set[tuple[Any, ...]]
) -> ModelCheck:
    """Check with made-up examples like these, of which most are short; it is `known` what is done to a few of those."""
    reasons, before = list[PrivoptError](), Attributes(recorder.model)
    for way in recorder.ways:
        recorder.way = way
        try:
            found = _check_gradients(recorder, loss, data, short)
            doubts = _doubt_precision(recorder, loss, found.like) if recorder.way == "together" and found.whole else []
            break
        except (UnsupportedLayer, InputError) as error:
            reasons.append(error.with_traceback(None))  # which would keep a batch in memory
    else:
        recorder.way = recorder.ways[0]
        raise next((reason for reason in reasons if isinstance(reason, UnsupportedLayer)), reasons[0])
    doubts += found.doubts
    doubts += check_isolation(recorder.model, loss, found.like, found.whole)
    doubts += _doubt_sizes(recorder.model, loss, short, known)
    doubts += [CHANGES] if before.changed() else []
    if recorder.way == "one by one":
        reason = str(reasons[recorder.ways.index("mapped")]).partition(": ")[2] or str(reasons[0])
        warnings.warn(f"{SLOW} Here: {reason}", SlowModel, stacklevel=5)
    return ModelCheck(found.output, found.changes_inputs, doubts)


def _runs(model: nn.Module, loss: Loss, data: Any) -> bool:
    """Whether there are made-up examples like the data that model and loss can take, and that leave the model as it is."""
    before = Attributes(model)
    with evaluation_mode(model):
        runs = _try(model, loss, data) == (FEW,)
    changed = before.changed()
    before.restore()
    return runs and not changed


FEW, MANY = 2, 16  # rows of two batches to which the same has to be done


def operations(model: nn.Module, loss: Loss, data: Any, size: int = FEW) -> set[tuple[Any, ...]]:
    """What the model, as it is trained, and the loss do to made-up examples like the data."""
    with without_randomness(model), Operations() as watch:
        _try(model, loss, data, size)
    return watch.found


def _doubt_sizes(model: nn.Module, loss: Loss, data: Any, known: set[tuple[Any, ...]]) -> list[str]:
    """Name the lines of code that only a batch of many examples reaches: such batches are not compared."""
    more = operations(model, loss, data, MANY) - known
    lines = sorted({where or name for name, _, where in more})
    return [f"something is done to a batch of {MANY} examples that is not done to one of {FEW} ({line})" for line in lines]


def _try(model: nn.Module, loss: Loss, data: Any, size: int = FEW) -> torch.Size | None:
    """The shape of the losses of made-up examples like the data, if there are any that the model and the loss can take."""
    start, generator = ModelState(model), torch.Generator().manual_seed(0)
    try:
        with RngState(next(model.parameters()).device).replay(), torch.no_grad():
            for kind in possible_kinds(data):
                batch = _make_batch(data, normal, kind, generator, size)
                with suppress(Exception):
                    return compute_losses(loss, call_model(model, batch[0]), batch[1]).shape
        return None
    finally:
        start.restore()


class _Found(NamedTuple):
    output: Any
    changes_inputs: bool
    like: Like  # made-up examples that could be run
    whole: Like | None  # … as long as those of the data, if that is longer
    doubts: list[str]


def _check_gradients(recorder: Recorder, loss: Loss, data: tuple[Any, Any], short: tuple[Any, Any]) -> _Found:
    """Compare single examples as long as those of the data, and batches of perhaps shorter ones."""
    layout, generator, start = Layout(recorder.model), torch.Generator().manual_seed(0), ModelState(recorder.model)
    output: Any = None
    singles_compared = batch_compared = changes = False
    doubts = list[str]()
    double = recorder.way == "together" and short is data
    ran: list[tuple[Numbers, Kind]] = []
    possible = possible_kinds(data)
    try:
        with RngState(layout.device).replay(), torch.enable_grad():
            for numbers, place in itertools.product((normal, positive), range(len(possible))):
                if singles_compared and batch_compared:
                    break
                try:
                    with Products() as of_whole:
                        found = _run(recorder, loss, layout, *_make_batch(data, numbers, possible[place], generator, 3))
                    effort = effort_for(recorder.model, of_whole.count // 3)
                    few = _make_batch(data, numbers, possible[place], generator, effort.single)
                    if not singles_compared:
                        singles_compared, doubts = _check_singles(recorder, loss, layout, few, double=double)
                    with Products() as of_short:
                        _run(recorder, loss, layout, *_make_batch(short, numbers, possible[place], generator, 2))
                    less = effort_for(recorder.model, of_short.count // 2)
                    compared, changed = _check_some_batch(recorder, loss, layout, short, numbers, possible[place], less.batch)
                    batch_compared, changes = batch_compared or compared, changes or changed
                except InputError:
                    if output is None and place == len(possible) - 1:
                        raise
                    continue
                output = found if output is None else output
                ran.append((numbers, possible[place]))
    finally:
        start.restore()
    if not (singles_compared and batch_compared):
        raise UnsupportedLayer(
            "losses or gradients of made-up examples are not finite, so it cannot be checked whether the model or the loss mixes "
            "examples. Keep logarithms, roots and divisors away from 0, for one example alone as well (no std over the batch)."
        )
    kind, numbers_that_ran = ran[-1][1], [numbers for numbers in (normal, positive) if any(numbers is one for one, _ in ran)]
    whole = None if short is data else Like(*data, kind, numbers_that_ran, effort)
    return _Found(output, changes, Like(*short, kind, numbers_that_ran, less), whole, doubts)


def _check_singles(
    recorder: Recorder, loss: Loss, layout: Layout, batch: tuple[Any, Any], *, double: bool
) -> tuple[bool, list[str]]:
    """Compare single examples in the model's own precision, and perhaps in `double`, where a large branch hides no small one.

    If they differ in the model's own, perhaps by rounding, double precision decides, unless the code does something else there.
    Returns whether that was conclusive, and why something is doubtful.
    """
    try:
        conclusive = _check_single_examples(recorder, loss, layout, *batch)
    except UnsupportedLayer as error:
        if operations(recorder.model, loss, batch) != _operations_in_double_precision(recorder.model, loss, batch):
            raise
        try:
            return _check_in_double_precision(recorder, loss, batch), []
        except InputError:
            raise error from None
    if double:
        try:
            return _check_in_double_precision(recorder, loss, batch), []
        except InputError:
            return conclusive, [SINGLE_ONLY]
    return conclusive, []


def _in_double_precision(batch: tuple[Any, Any]) -> Any:
    return tree_map(lambda x: x.double() if isinstance(x, Tensor) and x.is_floating_point() else x, batch)


def _operations_in_double_precision(model: nn.Module, loss: Loss, data: tuple[Any, Any]) -> set[tuple[Any, ...]]:
    with in_precision(model, torch.float64):
        return operations(model, loss, _in_double_precision(data))


def _check_in_double_precision(recorder: Recorder, loss: Loss, batch: tuple[Any, Any]) -> bool:
    """Compare single examples in double precision."""
    start = ModelState(recorder.model)
    batch = _in_double_precision(batch)
    with in_precision(recorder.model, torch.float64):
        try:
            with RngState(next(recorder.model.parameters()).device).replay(), torch.enable_grad():
                return _check_single_examples(recorder, loss, Layout(recorder.model), *batch)
        finally:
            start.restore()


def _doubt_precision(recorder: Recorder, loss: Loss, like: Like) -> list[str]:
    """Compare single examples like these in double precision, after longer ones in the model's own."""
    generator = torch.Generator().manual_seed(1)
    batch = _make_batch((like.inputs, like.targets), normal, like.kind, generator, like.effort.single)
    try:
        _check_in_double_precision(recorder, loss, batch)
    except InputError:
        return [SINGLE_ONLY]
    return []


def _has_features(inputs: Any) -> bool:
    """Whether there are floating-point features, in which a model may look for marks of missing values."""
    return any(isinstance(x, Tensor) and x.is_floating_point() and x.ndim > 1 for x in leaves(inputs))


def _make_batch(data: tuple[Any, Any], numbers: Numbers, kind: Kind, generator: torch.Generator, size: int) -> tuple[Any, Any]:
    examples = make_up(data[0], size, generator, numbers=numbers, kind=kind)
    return examples, make_up(data[1], size, generator, numbers=torch.rand, kind=Kind(boolean=kind.boolean))


def _run(recorder: Recorder, loss: Loss, layout: Layout, inputs: Any, targets: Any) -> Any:
    """The model's output for a made-up batch that model and loss accept."""
    with evaluation_mode(recorder.model):
        output = run_or_explain("the model", lambda: call_model(recorder.model, copy_tensors(inputs)), inputs, layout)
        try:
            run_or_explain("the loss", lambda: _require_tensor(loss, output, targets), (output, targets), layout)
        except InputError as error:
            if not hasattr(output, "logits"):
                raise
            remedy = "The model's output is no tensor but has logits: give lambda output, targets: loss(output.logits, targets)."
            raise InputError(f"{error} {remedy}") from None
    return output


def _check_some_batch(
    recorder: Recorder, loss: Loss, layout: Layout, data: tuple[Any, Any], numbers: Numbers, kind: Kind, size: int
) -> tuple[bool, bool]:
    """Check a batch with marks of missing values, if the model can take it; otherwise one of these numbers."""
    generator = torch.Generator().manual_seed(2)
    if numbers is normal and _has_features(data[0]):
        with suppress(InputError):
            found = _check_batch(recorder, loss, layout, *_make_batch(data, padded, kind, generator, size))
            if found[0]:
                return found
    return _check_batch(recorder, loss, layout, *_make_batch(data, numbers, kind, generator, size))


def _check_batch(recorder: Recorder, loss: Loss, layout: Layout, inputs: Any, targets: Any) -> tuple[bool, bool]:
    """Check that losses do not depend on other rows. Whether that was conclusive, and whether tensors are changed in place."""
    count = count_examples((inputs, targets))
    tensors, changed = [leaf for leaf in leaves((inputs, targets)) if isinstance(leaf, Tensor)], False

    def losses() -> Tensor:
        nonlocal changed
        before = [tensor._version for tensor in tensors]
        values = compute_losses(loss, call_model(recorder.model, inputs), targets)
        changed = changed or before != [tensor._version for tensor in tensors]
        if values.shape != (count,):
            raise UnsupportedLoss(
                f"the loss gave a value of shape {tuple(values.shape)} for {count} examples: one for each is needed."
            )
        return values

    if recorder.way != "together":  # `check_losses` runs the model itself; apart, training may need what vmap cannot do
        few = copy_tensors(rows_of((inputs, targets), slice(2)))
        of = partial(gradients, recorder, layout, loss)
        run_or_explain("the model in training", lambda: of(few[0], few[1], min(count, 2)), few, layout)
    rows = BatchRows((inputs, targets), count)
    conclusive = run_or_explain(
        "the model in training", lambda: check_losses(recorder, layout, losses, rows), (inputs, targets), layout
    )
    return bool(conclusive), changed


def _check_single_examples(recorder: Recorder, loss: Loss, layout: Layout, inputs: Any, targets: Any) -> bool:
    """Compare with plain autograd on each example alone. Returns whether that was conclusive."""
    weights = torch.tensor(WEIGHTS[: count_examples((inputs, targets))], dtype=layout.dtype, device=layout.device)
    halves: set[torch.dtype] = set()
    with evaluation_mode(recorder.model), without_randomness(recorder.model):
        of = partial(gradients, recorder, layout, loss)
        grads = run_or_explain("the model", lambda: of(copy_tensors(inputs), targets, len(weights)), (inputs, targets), layout)
        wanted: dict[str, Tensor] = {name: torch.zeros_like(parameter) for name, parameter in layout.parameters.items()}
        for i, weight in enumerate(weights.tolist()):
            own = copy_tensors(rows_of((inputs, targets), slice(i, i + 1)))
            with record_half_precision(halves):
                value = run_or_explain("the model", partial(_loss_of, recorder.model, loss, *own), own, layout)
            if value.shape != (1,):
                raise UnsupportedLoss(
                    f"the loss gave a value of shape {tuple(value.shape)} for one example. Give one value for each: shape (1,)."
                )
            found = (
                torch.autograd.grad(value[0], list(layout.parameters.values()), allow_unused=True) if value.requires_grad else ()
            )
            for name, gradient in zip(wanted, found, strict=False):
                if gradient is not None:
                    wanted[name].add_(gradient.to_dense() if gradient.is_sparse else gradient, alpha=weight)
            found = ()  # keep one at a time in memory
        tolerance = TOLERANCES[halves.pop() if halves else layout.dtype]
        if recorder.way != "together":  # apart, nothing can mix: the model itself must not
            whole = copy_tensors((inputs, targets))
            values = run_or_explain("the model", partial(_loss_of, recorder.model, loss, *whole), whole, layout)
            compare(autograd_sum(layout, values, weights), wanted, tolerance)
    recorder.formed = grads.formed
    return compare(layout.views(grads.weighted_sum(weights)), wanted, tolerance)


def _loss_of(model: nn.Module, loss: Loss, inputs: Any, targets: Any) -> Tensor:
    return compute_losses(loss, call_model(model, inputs), targets)


def run_or_explain(what: str, work: Callable[[], Any], given: Any, layout: Layout) -> Any:
    """The result for made-up examples, or an error that describes the types and shapes that were given."""
    try:
        return work()
    except PrivoptError:
        raise
    except Exception as error:
        says = str(error).strip().partition("\n")[0].rstrip(".")
        other = [x for x in leaves(given) if isinstance(x, Tensor) and x.is_floating_point() and x.dtype != layout.dtype]
        remedy = f" Give numbers in the model's type: inputs.to({layout.dtype})." if other else ""
        raise InputError(
            f"{what} cannot be run on made-up examples like those of the data, {describe_types(given)}: "
            f"{type(error).__name__}: {says}.{remedy}"
        ) from None


def _require_tensor(loss: Loss, output: Any, targets: Any) -> None:
    value = compute_losses(loss, output, targets)
    if not isinstance(value, Tensor):
        raise UnsupportedLoss(
            f"the loss gave a {type(value).__name__}, but a tensor of one value for each example is needed. A model's own loss "
            "(output.loss) is a mean over the batch: compute losses from its outputs, such as output.logits."
        )
