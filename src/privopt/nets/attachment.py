"""A model, its optimizer and its data, checked to be fit for private training in a loop of the user's own."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from privopt.checkpoint import software
from privopt.errors import InputError
from privopt.nets.data import content, physical_batch_size
from privopt.nets.identity import identify
from privopt.nets.loading import LABELS, OWN_COLLATION, Examples
from privopt.nets.rehearsal import Attached
from privopt.perexample.networks import Layout, Recorder
from privopt.perexample.networks.examples import leaves, move_to_device
from privopt.perexample.networks.isolation.model_check import check_model, run_or_explain
from privopt.perexample.networks.isolation.one_by_one import DRAWN, draws_random_numbers
from privopt.perexample.networks.unsupported import UnsupportedLayer

OWN_CODE = "the losses are computed by the loop's own code"


class Attachment:
    """A model, its optimizer and its data, checked to be fit for private training."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        examples: Examples,
        physical: int | None,
        *,
        most: int | None,
        chunk: int | None = None,
        doubts: list[str] | None = None,
    ) -> None:
        self.model, self.optimizer, self.examples = model, optimizer, examples
        self._code, self._content = _code_of(model, examples), ""  # before anything runs the model, which may count its calls
        self.recorder, self.layout, self.attached = Recorder(model), Layout(model), Attached(model)
        _check_optimizer(optimizer, self.layout)
        self._inputs = _possible_inputs(examples.first)
        if doubts is None:
            examples.check_collation()
            doubts = [OWN_CODE, *([OWN_COLLATION] if examples.own_collation else []), *self._doubts_of_model()]
        self.doubts = doubts  # of another rank, which has checked
        if not (chunk := chunk or physical):
            chunk = self._measured_chunk() if most is None else min(self._measured_chunk(), most)
        self.chunk = chunk

    def fingerprints(self, data: str | None = None) -> dict[str, str]:
        """Fingerprints of what decides the losses: code, software and data; `data` if their fingerprint is known already."""
        if isinstance(self._code, InputError):
            raise self._code
        self._content = data or self._content or content(self.examples.data)
        return {"data": self._content, **self._code, "software": software()}

    def _doubts_of_model(self) -> list[str]:
        """Refuse a model that mixes examples. Why that is not proved, of the model alone."""
        for inputs in self._inputs:
            made_up = move_to_device(inputs, self.layout.device)
            try:
                found = check_model(self.recorder, _projected, made_up, torch.zeros(1, device=self.layout.device)).doubts
            except InputError:
                continue
            except UnsupportedLayer:
                if draws_random_numbers(self.model, made_up):
                    return [DRAWN]
                raise
            self._inputs = [inputs]
            return found
        return ["the loop calls the model in a way of its own"]

    def _measured_chunk(self) -> int:
        reasons = list[InputError]()
        for inputs in self._inputs:
            measure = partial(physical_batch_size, self.model, inputs, self.recorder.formed)
            try:
                return int(run_or_explain("the model", measure, inputs, self.layout))
            except InputError as error:
                reasons.append(error)
        raise InputError(f"{reasons[0]} If your loop calls the model in another way, say physical_batch_size=….")


def _possible_inputs(batch: Any) -> list[Any]:
    """What a loop may give the model of a batch, from the usual to the unusual: all but the labels, by name or by place."""
    if isinstance(batch, dict):
        named = {name: value for name, value in batch.items() if name not in LABELS}
        return [named, tuple(named.values())]
    return [batch[0], tuple(batch[:-1]), tuple(batch)] if isinstance(batch, tuple | list) else [batch]


def _code_of(model: nn.Module, examples: Examples) -> dict[str, str] | InputError:
    """Fingerprints of the model's and the loader's code; or why there are none, which matters only if a state is saved."""
    try:
        return {"model's code": identify(values=False, model=model, torch=torch), "loader's code": identify(**examples.code)}
    except InputError as error:
        return error.with_traceback(None)


def _projected(output: Any, examples: Tensor) -> Tensor:
    """One number for each example, to which every output of the model contributes."""
    parts = [x for x in leaves(output) if isinstance(x, Tensor) and x.is_floating_point() and x.shape[:1] == examples.shape[:1]]
    if not parts:
        raise InputError("the model gives no tensor with one row for each example.")
    columns = torch.cat([part.flatten(1) if part.ndim > 1 else part.unsqueeze(1) for part in parts], 1)
    return columns @ torch.arange(1.0, columns.shape[1] + 1, device=columns.device).cos().to(columns.dtype)


def _check_optimizer(optimizer: torch.optim.Optimizer, layout: Layout) -> None:
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise InputError(
            f"the optimizer is a {type(optimizer).__name__}, but one of torch is needed, such as "
            "torch.optim.Adam(model.parameters()). privopt.fit trains without one, by its method."
        )
    if isinstance(optimizer, torch.optim.LBFGS):
        raise InputError("LBFGS asks for more gradients inside a step than a round pays for. Use an optimizer that asks for one.")
    if isinstance(optimizer, torch.optim.SparseAdam):
        raise InputError("SparseAdam takes sparse gradients only, but noise is added to every row. Use torch.optim.Adam.")
    held = {parameter for group in optimizer.param_groups for parameter in group["params"] if parameter.requires_grad}
    if held - set(layout.names):
        raise InputError(
            "the optimizer holds trainable parameters that are not the model's: their gradients would not be private."
        )
    if left := [name for name, parameter in layout.parameters.items() if parameter not in held]:
        raise InputError(
            f"{', '.join(left[:5])}{' …' if len(left) > 5 else ''} can be trained, but the optimizer does not hold it: it would "
            "use a share of the clip bound and never move. Freeze it (requires_grad_(False)), or give it to the optimizer."
        )


@contextmanager
def guarded(model: nn.Module, allowed: Callable[[], bool]) -> Iterator[None]:
    """Refuse steps of any optimizer with gradients of this model that are not `allowed`: they would not be private.

    A step without any gradient changes nothing, and a trainer that has a loop of its own takes it after each of ours.
    """
    parameters = set(model.parameters())

    def refuse(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if allowed():
            return
        held = {parameter for group in optimizer.param_groups for parameter in group["params"]} & parameters
        given = [value for value in (*args[1:], *kwargs.values()) if value is not None]  # a closure computes gradients
        if held and (given or any(parameter.grad is not None for parameter in held)):
            raise InputError("optimizer.step() in the loop would use gradients that are not private. private.step(…) calls it.")

    hook = register_optimizer_step_pre_hook(refuse)
    try:
        yield
    finally:
        hook.remove()
