"""The modules and parameters of an attached model, which must not be exchanged while it is trained."""

from collections.abc import Mapping

from torch import nn

from privopt.errors import InputError

REMEDY = "The check and the bound hold for the model that was attached: change it first, and call make_private after that."


class Attached:
    """The modules of a model, the parameters they own, and which of those are trained.

    >>> model = nn.Sequential(nn.Linear(2, 2), nn.Identity())
    >>> attached = Attached(model)
    >>> attached.check()
    >>> model[1] = nn.BatchNorm1d(2)
    >>> attached.check()
    Traceback (most recent call last):
    privopt.errors.InputError: the modules of the model are not those that were attached. The check ...
    """

    def __init__(self, model: nn.Module) -> None:
        self._children = [(path, module._modules, _ids(module._modules)) for path, module in model.named_modules()]
        self._own = [(path, module._parameters, _ids(module._parameters)) for path, module in model.named_modules()]
        self._parameters = dict(model.named_parameters())
        self._trained = [parameter.requires_grad for parameter in self._parameters.values()]

    def check(self) -> None:
        """Refuse a model that has changed since it was attached."""
        for path, table, ids in self._children:
            if _ids(table) != ids:
                raise InputError(f"the modules of {path or 'the model'} are not those that were attached. {REMEDY}")
        for path, own, ids in self._own:
            if _ids(own) != ids:
                raise InputError(
                    f"the parameters of {path or 'the model'} are not those that were attached. {REMEDY} To load values, use "
                    "load_state_dict without assign=True."
                )
        if [parameter.requires_grad for parameter in self._parameters.values()] != self._trained:
            pairs = zip(self._parameters.items(), self._trained, strict=True)
            changed = next(name for (name, parameter), was in pairs if parameter.requires_grad != was)
            raise InputError(f"{changed}.requires_grad has changed since the model was attached. {REMEDY}")


def _ids(table: Mapping[str, object]) -> list[int]:
    return list(map(id, table.values()))
