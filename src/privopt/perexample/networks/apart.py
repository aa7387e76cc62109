"""Apart: a model that is run on each example on its own, so that no example can reach another one's output or gradient.

The forward function of the whole model is replaced. Its inputs are split by example, and each example is a batch of one:

- *mapped*: all examples at once, under `torch.vmap`. Layers with a closed form are recorded with the examples put first, wherever
  the model's own code has them: behind time, merged with time, or twice in a batch of pairs. What is the same for all examples,
  such as the embedding of positions, is expanded at the layer. Products with a parameter have a closed form, too.
- *one by one*: in a loop, as plain PyTorch, for code that vmap cannot run.

Every parameter is replaced by stand-ins, leaves of the graph with one copy for each example (of the same memory). Whatever uses a
parameter without a closed form uses its stand-in, so the gradient of the stand-in is the gradient of each example. A parameter
may be used in both ways; the two add up.

Query: the gradient of each example's loss, where output i is computed from rows i only. Unit: one example. So the sensitivity
of a clipped sum does not rest on how the model treats a batch, but on the loss, and on state that the model keeps.
Both are checked.
"""

import inspect
import math
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch._C._functorch import _add_batch_dim, _unwrap_batched, is_batchedtensor, maybe_current_level, maybe_get_level
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.autograd.graph import get_gradient_edge
from torch.func import vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_unflatten

from privopt.perexample.networks.factors import Dense, Factor, Outer, RankOne
from privopt.perexample.networks.layers.basic import as_sequences
from privopt.perexample.networks.layers.embedding import lookup_factor
from privopt.perexample.networks.layers.recurrent import CELLS
from privopt.perexample.networks.model_state import at_least_float32
from privopt.perexample.networks.tape import Gradients, ParameterFactors, Tape
from privopt.perexample.networks.unsupported import UnsupportedLayer

Layers = dict[nn.Module, Callable[..., Any]]  # forward functions that record, by module
StandIns = dict[nn.Parameter, Tensor]
Homes = list[tuple[dict[str, Any], str, nn.Parameter]]  # the tables of parameters in which each parameter is


def _homes(model: nn.Module) -> Homes:
    return [
        (module._parameters, key, parameter)
        for module in model.modules()
        for key, parameter in module._parameters.items()
        if parameter is not None and parameter.requires_grad
    ]


class Apart:
    """Forward functions that run a model on each example on its own, recorded on a tape.

    They belong to every module that holds a trained parameter, as a loop may call parts of a model. The outermost call counts.
    `layers` are those with a closed form. They are used under vmap only.
    """

    def __init__(self, model: nn.Module, tape: Tape, layers: Layers) -> None:
        self._tape, self._modules, self._inside = tape, list(model.modules()), False
        self._names = {parameter: name for name, parameter in model.named_parameters() if parameter.requires_grad}
        self._homes = _homes(model)
        self._layers = [_Layer(module, forward) for module, forward in layers.items()]

    def forwards(self, *, mapped: bool) -> Layers:
        """The forward functions, by module."""
        run = self._run_mapped if mapped else self._run_one_by_one
        holding = [module for module in self._modules if any(p.requires_grad for p in module.parameters())]
        return {module: partial(self._outermost, run, module.forward) for module in holding}

    def _outermost(self, run: Callable[..., Any], own: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self._inside or not self._tape.recording:
            return own(*args, **kwargs)
        self._inside = True
        try:
            return run(own, _Split((args, kwargs)))
        finally:
            self._inside = False

    def _run_mapped(self, own: Callable[..., Any], split: "_Split") -> Any:
        """All examples at once, under vmap."""
        results: list[tuple[list[Any], Any]] = []
        ends = {p: p.detach().expand(split.count, *p.shape).requires_grad_() for p in self._names}
        self._tap({parameter: [end] for parameter, end in ends.items()})

        def one(token: Tensor, rows: list[Tensor], values: list[Tensor]) -> tuple[Tensor, ...]:
            stand_ins = dict(zip(ends, values, strict=True))
            args, kwargs = split.rebuild([row.unsqueeze(0).clone() for row in rows])
            with self._replace(stand_ins), self._layers_under(token), _Products(stand_ins, self._names, self._tape, token):
                leaves, form = tree_flatten(own(*args, **kwargs))
            results.append((leaves, form))
            return tuple(x for x in leaves if isinstance(x, Tensor))

        with under_vmap():
            found = vmap(one, randomness="different")(split.token, split.rows, list(ends.values()))
        ((leaves, form),) = results
        return _join([leaves], form, [x.flatten(0, 1) if x.ndim > 1 else x for x in found])

    def _run_one_by_one(self, own: Callable[..., Any], split: "_Split") -> Any:
        """In a loop."""
        outputs, forms = list[list[Any]](), list[Any]()
        ends: dict[nn.Parameter, list[Tensor]] = {parameter: [] for parameter in self._names}
        buffers = [
            (m._buffers, k, x, x.clone(), x._version) for m in self._modules for k, x in m._buffers.items() if x is not None
        ]
        for place in range(split.count):
            for table, key, buffer, start, version in buffers:  # as they are for all examples of a batch
                if table[key] is not buffer or buffer._version != version:
                    table[key], buffer.data = buffer, start.clone()
            stand_ins = {parameter: parameter.detach().requires_grad_() for parameter in ends}
            for parameter, stand_in in stand_ins.items():
                ends[parameter].append(stand_in)
            args, kwargs = split.rebuild([row[place : place + 1].clone() for row in split.rows])
            with self._replace(stand_ins):
                leaves, form = tree_flatten(own(*args, **kwargs))
            outputs.append(leaves)
            forms.append(form)
        self._tap(ends)
        tensors = [[x for x in leaves if isinstance(x, Tensor)] for leaves in outputs]
        if any(form != forms[0] for form in forms) or len({len(parts) for parts in tensors}) > 1:
            raise UnsupportedLayer("the model's output has another structure for another example. Give the same for all.")
        joined = [torch.cat(x) if x[0].ndim else torch.stack(x) for x in map(list, zip(*tensors, strict=True))]
        return _join(outputs, forms[0], joined)

    def _tap(self, ends: dict[nn.Parameter, list[Tensor]]) -> None:
        """Record the gradients of the stand-ins: one tensor of all examples, or one for each."""
        for parameter, leaves in ends.items():

            def make_factors(gradients: Gradients, examples: int, parameter: nn.Parameter = parameter) -> ParameterFactors:
                rows = [torch.zeros_like(parameter) if g is None else g.to_dense() if g.is_sparse else g for g in gradients]
                self._tape.formed.add(parameter)
                together = rows[0].contiguous() if rows[0].ndim > parameter.ndim else torch.stack(rows)
                if together.shape[0] != examples:
                    raise UnsupportedLayer(
                        f"the loss gave {examples} values for {together.shape[0]} examples, on each of which the model was run."
                    )
                yield parameter, Dense(together)

            self._tape.tap_edges(self._names[parameter], "parameter", list(map(get_gradient_edge, leaves)), make_factors)

    @contextmanager
    def _replace(self, stand_ins: StandIns) -> Iterator[None]:
        """Put stand-ins in place of the parameters. Tensors that modules keep as attributes are put back afterwards, too."""
        kept = [(m.__dict__, {key: x for key, x in m.__dict__.items() if isinstance(x, Tensor)}) for m in self._modules]
        try:
            for table, key, parameter in self._homes:
                table[key] = stand_ins[parameter]
            yield
        finally:
            for table, key, parameter in self._homes:
                table[key] = parameter
            for attributes, before in kept:
                for key in [key for key, x in attributes.items() if isinstance(x, Tensor) and key not in before]:
                    del attributes[key]
                attributes.update(before)
            for module in self._modules:
                if isinstance(module, nn.RNNBase):
                    module._init_flat_weights()  # its own list of parameters

    @contextmanager
    def _layers_under(self, token: Tensor) -> Iterator[None]:
        """Record the layers, in code that sees one example."""
        tables = [layer.module.__dict__ for layer in self._layers]
        before = [table.get("forward") for table in tables]
        try:
            for table, layer in zip(tables, self._layers, strict=True):
                table["forward"] = layer.under(token)
            yield
        finally:
            for table, own in zip(tables, before, strict=True):
                table.pop("forward", None)
                if own is not None:
                    table["forward"] = own


class _Split:
    """The arguments of a call: tensors whose first dimension is the examples, and what all examples share.

    A shared tensor of another length is refused: in a batch of that many examples it would be taken for theirs, and which part of
    it an example gets would depend on its place among the others.
    """

    def __init__(self, arguments: Any) -> None:
        self._leaves, self._form = tree_flatten(arguments)
        sizes = [x.shape[0] for x in self._leaves if isinstance(x, Tensor) and x.ndim]
        if not sizes:
            raise UnsupportedLayer("the model was called without a tensor that holds examples. Give it a batch.")
        self.count = sizes[0]
        if shared := [size for size in sizes if size not in (1, self.count)]:
            raise UnsupportedLayer(
                f"the model was given a tensor of length {shared[0]} beside {self.count} examples. What all examples share, such "
                "as a mask of attention, has the length 1 (mask.unsqueeze(0)), or is made in the model or held as its buffer."
            )
        each = [isinstance(x, Tensor) and x.ndim > 0 and x.shape[0] == self.count for x in self._leaves]
        self._places = [place for place, own in enumerate(each) if own]
        self.rows: list[Tensor] = [self._leaves[place] for place in self._places]
        self.token = torch.zeros(self.count, device=self.rows[0].device)  # what makes vmap ask for a rule in any case

    def rebuild(self, rows: Sequence[Tensor]) -> Any:
        """The arguments for one example."""
        own = list(self._leaves)
        for place, row in zip(self._places, rows, strict=True):
            own[place] = row
        return tree_unflatten(own, self._form)


def _join(outputs: Sequence[Sequence[Any]], form: Any, tensors: Sequence[Tensor]) -> Any:
    """The output of a batch: tensors, and plain values that all examples share. (Other values hold one example's state.)"""
    left = iter(tensors)

    def of(values: Sequence[Any]) -> Any:
        if isinstance(values[0], Tensor):
            return next(left)
        plain = isinstance(values[0], bool | int | float | str)
        return values[0] if plain and all(type(v) is type(values[0]) and v == values[0] for v in values) else None

    return tree_unflatten([of(values) for values in zip(*outputs, strict=True)], form)


# ---------------------------------------------------------------- rules for vmap


@contextmanager
def under_vmap() -> Iterator[None]:
    """Let code know that tensors of vmap have no values to read.

    transformers asks its `is_tracing(tensor)` before it reads whether a mask masks anything, and that asks `is_fake_tensor`.
    Then it uses the mask as it is, which gives the same outputs. A value that is read in spite of that is an error of vmap.
    """
    asked: Any = sys.modules.get("transformers.utils.import_utils")
    own = getattr(asked, "is_fake_tensor", None)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "There is a performance drop")  # no batching rule: correct, and slow
        if own is None:
            yield
            return
        asked.is_fake_tensor = lambda x: own(x) or (isinstance(x, Tensor) and is_batchedtensor(x))
        try:
            yield
        finally:
            asked.is_fake_tensor = own


class _Rule(torch.autograd.Function):
    """A function that runs on all examples at once under vmap: `work(count, tensors)`."""

    @staticmethod
    def forward(work: Callable[..., Any], *tensors: Any) -> Any:
        raise NotImplementedError  # the token is mapped

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def vmap(info: Any, dims: tuple[int | None, ...], work: Callable[..., Any], token: Tensor, *tensors: Tensor) -> Any:
        """Put the examples first; expand what they share."""
        pairs = zip(tensors, dims[2:], strict=True)
        found = work(info.batch_size, [_examples_first(info.batch_size, x, dim) for x, dim in pairs])
        return found, (0,) * len(found)


def _examples_first(count: int, x: Tensor, dim: int | None) -> Tensor:
    return x.expand(count, *x.shape) if dim is None else x.movedim(dim, 0) if dim else x


def _run_rule(
    work: Callable[[int, list[Tensor]], tuple[Tensor, ...]], token: Tensor, tensors: Sequence[Tensor]
) -> Sequence[Tensor]:
    level = maybe_get_level(token)
    if level != maybe_current_level():  # of a vmap in the model's own code
        return _Rule.apply(work, token, *tensors)  # type: ignore[no-untyped-call]
    count = _unwrap_batched(token, level)[0].shape[0]
    rows = [_examples_first(count, *_unwrap_batched(x, level)) for x in tensors]
    with temporarily_clear_interpreter_stack():  # what `_Rule` does in this case, in a twentieth of its time
        found = work(count, rows)
    return [_add_batch_dim(x, 0, level) for x in found]


WHOLE = -1  # a tensor that a layer takes as it is: the same for all examples
PIXELS: dict[type[nn.Module], int] = {
    nn.Conv1d: 1, nn.Conv2d: 2, nn.Conv3d: 3, nn.ConvTranspose1d: 1, nn.ConvTranspose2d: 2, nn.ConvTranspose3d: 3,
    nn.InstanceNorm1d: 1, nn.InstanceNorm2d: 2, nn.InstanceNorm3d: 3,
}  # fmt: skip


@cache
def _signature(function: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(function)


class _Layer:
    """A layer whose recorded forward function takes the examples of all rows as one batch."""

    def __init__(self, module: nn.Module, forward: Callable[..., Any]) -> None:
        self.module, self._forward, self._homes = module, forward, _homes(module)
        self._signature = _signature(type(module).forward)
        self._is_plain = not isinstance(module, nn.RNNBase | nn.MultiheadAttention)

    def under(self, token: Tensor) -> Callable[..., Any]:
        """The forward function for code that sees one example."""

        def forward(*args: Any, **kwargs: Any) -> Any:
            if self._is_plain and len(args) == 1 and not kwargs and isinstance(args[0], Tensor):
                return self._run(args[0], token)
            bound = self._signature.bind(self.module, *args, **kwargs)
            names = [name for name in bound.arguments if name != "self"]
            leaves, form = tree_flatten({name: bound.arguments[name] for name in names})
            given = {id(x): x for x in leaves if isinstance(x, Tensor)}  # one for each, also if it is given twice
            if any(not isinstance(x, Tensor | bool | int | float | str | None) for x in leaves):
                raise UnsupportedLayer(f"a {type(self.module).__name__} is given something that is no tensor.")
            ins, outs = self._batch_dims(bound.arguments)
            results: list[tuple[list[Any], Any]] = []

            def work(count: int, tensors: list[Tensor]) -> tuple[Tensor, ...]:
                merged = {key: _merge(x, ins.get(key)) for key, x in zip(given, tensors, strict=True)}
                own = tree_unflatten([merged.get(id(x), x) if isinstance(x, Tensor) else x for x in leaves], form)
                with self._originals():
                    results.append(tree_flatten(self._forward(**own)))
                found = [x for x in results[0][0] if isinstance(x, Tensor)]
                return tuple(
                    x if dim is None else x.reshape(*x.shape[:dim], count, -1, *x.shape[dim + 1 :]).movedim(dim, 0)
                    for x, dim in zip(found, outs, strict=False)
                )

            apart = iter(_run_rule(work, token, list(given.values())))
            ((outputs, shape),) = results
            return tree_unflatten([next(apart) if isinstance(x, Tensor) else x for x in outputs], shape)

        return forward

    def _run(self, x: Tensor, token: Tensor) -> Tensor:
        """The output for one tensor, which most layers are given."""
        ins, (dim,) = self._batch_dims({"input": x})

        def work(count: int, tensors: list[Tensor]) -> tuple[Tensor]:
            with self._originals():
                found = self._forward(_merge(tensors[0], ins.get(id(x))))
            return (found if dim is None else found.reshape(count, -1, *found.shape[1:]),)

        return _run_rule(work, token, [x])[0]

    @contextmanager
    def _originals(self) -> Iterator[None]:
        """The parameters in place of their stand-ins."""
        before = [table[key] for table, key, _ in self._homes]
        try:
            for table, key, parameter in self._homes:
                table[key] = parameter
            yield
        finally:
            for (table, key, _), stand_in in zip(self._homes, before, strict=True):
                table[key] = stand_in

    def _batch_dims(self, given: dict[str, Any]) -> tuple[dict[int, int], list[int | None]]:
        """The dimension of the layer's own batch, by tensor that goes in, and for each that comes out; None: it needs none."""
        module, kind = self.module, type(self.module).__name__
        values = [value for name, value in given.items() if name != "self"]
        first = values[0]
        if isinstance(module, nn.RNNBase | nn.MultiheadAttention):
            if not isinstance(first, Tensor) or first.ndim != 3:
                raise UnsupportedLayer(f"a {kind} is given one sequence without a batch dimension.")
            dim = 0 if module.batch_first else 1
            if isinstance(module, nn.RNNBase):
                return {id(first): dim} | {id(x): 1 for x in tree_flatten(values[1:])[0]}, [dim, 1, 1]
            masks = {id(given[name]): 0 for name in ("key_padding_mask",) if name in given}
            if isinstance(mask := given.get("attn_mask"), Tensor):
                masks[id(mask)] = 0 if mask.ndim == 3 else WHOLE
            return {id(x): dim for x in values[:3]} | masks, [dim, 0]
        batch: int | None = None
        if type(module) in PIXELS:
            batch = 0 if first.ndim == PIXELS[type(module)] + 2 else None
        elif isinstance(module, nn.GroupNorm | nn.EmbeddingBag):
            if given.get("offsets") is not None:
                raise UnsupportedLayer(f"a {kind} is given offsets, which hold several examples.")
            batch = 0
        return ({} if batch is None else {id(x): batch for x in values if isinstance(x, Tensor)}), [batch]


def _merge(x: Tensor, dim: int | None) -> Tensor:
    """The examples (dimension 0) of `x`, merged into the layer's own batch."""
    if dim is None:
        return x
    if dim == WHOLE:
        if x.stride(0) and len(x) > 1:
            raise UnsupportedLayer("a MultiheadAttention is given another attn_mask for each example.")
        return x[0]
    return x.movedim(0, dim).flatten(dim, dim + 1)


# ---------------------------------------------------------------- products with a parameter


PRODUCTS = {torch.matmul, torch.mm, Tensor.matmul, Tensor.mm, Tensor.__matmul__}
TRANSPOSES = {torch.t, Tensor.t, *(getattr(getattr(Tensor, name), "__get__") for name in ("T", "mT"))}  # noqa: B009  # untyped
DRAWS = {torch.rand, torch.randn}


class Functions(TorchFunctionMode):
    """Functions that do something else under vmap, which has no rule for them.

    One random number, by which code may decide (to skip a layer), is drawn once for all examples, as in a batch. Attention with a
    trained bias takes the kernel that has a gradient for it. All examples go through it at once, as rows that it does not mix.
    Recurrent cells are written out.
    """

    def __init__(self, token: Tensor) -> None:
        super().__init__()
        self._token = token

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in CELLS:
            return CELLS[func](self._linear, *args, **kwargs)
        if func in DRAWS and math.prod(torch.Size(args[0] if len(args) == 1 and not isinstance(args[0], int) else args)) == 1:
            with temporarily_clear_interpreter_stack():  # of vmap
                return func(*args, **kwargs)
        if func is F.scaled_dot_product_attention:
            single = len(args) > 2 and all(x.ndim == 4 and len(x) == 1 for x in args[:3]) and any(map(is_batchedtensor, args[:3]))
            return self._attention(*args, **kwargs) if single else _attend(*args, **kwargs)
        return func(*args, **kwargs)

    def _linear(self, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:  # noqa: A002  # torch's names
        return F.linear(input, weight, bias)

    def _attention(
        self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, *args: Any, **kwargs: Any
    ) -> Tensor:
        def work(count: int, tensors: list[Tensor]) -> tuple[Tensor]:
            rows, mask = [x.flatten(0, 1) for x in tensors[:3]], None
            if attn_mask is not None:  # one for all, or (count, …, time, time)
                each = tensors[3]
                mask = each.view(count, *[1] * (5 - each.ndim), *each.shape[1:]).flatten(0, 1) if each.stride(0) else each[0]
            return (_attend(*rows, mask, *args, **kwargs).unsqueeze(1),)

        masks = [] if attn_mask is None else [attn_mask]
        return _run_rule(work, self._token, [query, key, value, *masks])[0]


class _Products(Functions):
    """x @ W, x @ W.T, F.linear, torch.addmm and F.embedding with a stand-in are recorded as those with the parameter itself."""

    def __init__(self, stand_ins: StandIns, names: dict[nn.Parameter, str], tape: Tape, token: Tensor) -> None:
        super().__init__(token)
        self._names, self._tape = names, tape
        self._known = {id(value): (value, parameter, False) for parameter, value in stand_ins.items() if parameter.ndim == 2}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in TRANSPOSES and (known := self._known.get(id(args[0]))):
            found = func(*args, **kwargs)
            self._known[id(found)] = (found, known[1], not known[2])
            return found
        if func is F.embedding:
            return self._embedding(*args, **kwargs)
        if func is F.linear:
            return self._linear(*args, **kwargs)
        if kwargs:
            return super().__torch_function__(func, types, args, kwargs)
        if func in PRODUCTS and (known := self._known.get(id(args[1]))) and args[0].ndim:
            return self._product(args[0], known[1], known[2])
        if func is torch.addmm and (known := self._known.get(id(args[2]))):
            return args[0] + self._product(args[1], known[1], known[2])
        return super().__torch_function__(func, types, args, kwargs)

    def _linear(self, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:  # noqa: A002  # torch's names
        known = self._known.get(id(weight))
        if known is None:
            return F.linear(input, weight, bias)
        found = self._product(input, known[1], not known[2])
        return found if bias is None else found + bias

    def _embedding(
        self,
        input: Tensor,  # noqa: A002  # torch's names
        weight: Tensor,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
    ) -> Tensor:
        known = self._known.get(id(weight))
        if known is None:
            return F.embedding(input, weight, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse)
        if known[2] or max_norm is not None or scale_grad_by_freq:  # which vmap would ignore
            raise UnsupportedLayer("an embedding of a transposed table, or with max_norm or scale_grad_by_freq.")
        parameter, padding = known[1], padding_idx if padding_idx is None else padding_idx % weight.shape[0]

        def work(count: int, tensors: list[Tensor]) -> tuple[Tensor]:
            ids = tensors[0]
            output = F.embedding(ids, parameter)

            def make_factors(gradients: Gradients, examples: int) -> ParameterFactors:
                assert gradients[0] is not None
                yield parameter, lookup_factor(ids, gradients[0], parameter.shape, padding)

            self._tape.tap(self._names[parameter], "embedding", [output], [ids], make_factors)
            return (output,)

        return _run_rule(work, self._token, [input])[0]

    def _product(self, x: Tensor, parameter: nn.Parameter, transposed: bool) -> Tensor:
        """x @ W, or x @ Wᵀ: gᵢ = Σₜ aᵢₜ ⊗ δᵢₜ, or its transpose."""

        def work(count: int, tensors: list[Tensor]) -> tuple[Tensor]:
            inputs = tensors[0]
            output = inputs @ (parameter.T if transposed else parameter)
            kept = inputs.detach()

            def make_factors(gradients: Gradients, examples: int) -> ParameterFactors:
                assert gradients[0] is not None
                sides = as_sequences(at_least_float32(kept)), as_sequences(gradients[0])
                yield parameter, product_factor(*(sides if transposed else sides[::-1]), parameter.shape)

            self._tape.tap(self._names[parameter], "product", [output], [kept], make_factors)
            return (output,)

        return _run_rule(work, self._token, [x])[0]


def _attend(*args: Any, **kwargs: Any) -> Tensor:
    try:
        return F.scaled_dot_product_attention(*args, **kwargs)
    except RuntimeError as error:
        if "attn_mask" not in str(error):
            raise
    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(*args, **kwargs)


def product_factor(inputs: Tensor, gradients: Tensor, shape: torch.Size) -> Factor:
    """Σₜ δₜ ⊗ aₜ from (examples, width) or (examples, time, width)."""
    if inputs.ndim == 3 and inputs.shape[1] == 1:
        inputs, gradients = inputs.squeeze(1), gradients.squeeze(1)
    return RankOne(inputs, Dense(gradients)) if inputs.ndim == 2 else Outer.of(inputs, gradients, shape)
