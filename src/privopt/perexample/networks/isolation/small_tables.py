"""Small tables: a model with a large table of embeddings is checked on the table's first rows.

A table whose rows repeat with the period p answers id i as its first p rows answer i mod p. So a model whose ids are taken modulo
p, just before they are looked up in p rows, computes what it computes with such a periodic table, and its code sees the ids as
they are (the last one, say, which may mean padding). What the check shows, it shows at these parameters: that examples do not
mix, and that each row's gradient, added up over the ids that share it, is that of each example alone. It saves memory: the check
takes a dozen times that of what it looks at, and training a few times that of the model.
"""

import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_map

from privopt.perexample.networks.examples import leaves
from privopt.perexample.networks.isolation.model_check import ModelCheck, check_model, operations
from privopt.perexample.networks.loss_modules import Loss
from privopt.perexample.networks.recorder import Recorder
from privopt.perexample.networks.unsupported import SlowModel

LARGE = 1 << 24  # numbers of a table
PERIOD = 4093  # rows of a table that is checked: a prime, which few other dimensions are


def check_with_small_tables(recorder: Recorder, loss: Loss, inputs: Any, targets: Any) -> ModelCheck:
    """`check_model` with small tables, unless there are none, or unless that refuses or doubts: then with the model as it is.

    An output with as many columns as a small table has rows comes from code that uses the table itself: that is no lookup. Nor
    may the code do to large tables what it does not do to small ones.
    """
    checked, few = None, set[tuple[Any, ...]]()
    with small_tables(recorder.model) as found:
        if found:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("error", SlowModel)
                    checked = check_model(recorder, loss, inputs, targets)
                sizes = {size for leaf in leaves(checked.output) if isinstance(leaf, Tensor) for size in leaf.shape}
                few = operations(recorder.model, loss, (inputs, targets)) if PERIOD not in sizes else few
            except Exception:  # the model as it is says why
                checked = None
    if checked is not None and not checked.doubts and few and operations(recorder.model, loss, (inputs, targets)) <= few:
        return checked
    return check_model(recorder, loss, inputs, targets)


@contextmanager
def small_tables(model: nn.Module) -> Iterator[list[nn.Embedding]]:
    """Use large tables, if nothing else holds them, as if they were periodic for this block; yields their modules."""
    holders = Counter[Tensor | None](parameter for module in model.modules() for parameter in module._parameters.values())
    found = [
        module
        for module in model.modules()
        if type(module) is nn.Embedding and module.weight.numel() > LARGE and module.weight.shape[0] > PERIOD
        if holders[module.weight] == 1 and module.max_norm is None and "forward" not in module.__dict__
    ]  # fmt: skip
    with ExitStack() as stack:
        for module in found:
            stack.callback(_restore, module, module.weight.data, module.padding_idx)
            stack.callback(module.register_forward_pre_hook(_take_modulo, with_kwargs=True).remove)
            module.weight.data = module.weight.data[:PERIOD]
            if module.padding_idx is not None:
                module.padding_idx %= PERIOD
        yield found


def _take_modulo(module: nn.Module, args: Any, kwargs: Any) -> Any:
    return tree_map(lambda ids: ids % PERIOD if isinstance(ids, Tensor) else ids, (args, kwargs))


def _restore(module: nn.Embedding, weight: Tensor, padding: int | None) -> None:
    module.weight.data, module.padding_idx = weight, padding
