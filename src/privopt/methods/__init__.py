"""Methods: one file per algorithm, with its recipe, its defaults and its record; and the list of them.

`METHODS["dp-sgd"].recipe`, or `privopt.methods.dp_sgd.dp_sgd`, builds the recipe from arguments of your own.
"""

import sys
import sysconfig
from importlib import import_module
from pathlib import Path
from types import ModuleType

from privopt.errors import InputError
from privopt.methods import (
    adadps,
    adas,
    bassily_sgd,
    dp2_rmsprop,
    dp_adam,
    dp_adam_bc,
    dp_adam_pub,
    dp_agd,
    dp_fedadam,
    dp_fedavg,
    dp_gd,
    dp_r_pub,
    dp_rmsprop,
    dp_sgd,
    dp_srm,
    fed_adadps,
    ideal,
    output_perturbation,
    pda_dpmd,
    rrpsgd,
    sagd_lap,
    sagd_minibatch,
    sagd_sparse,
    spiderboost,
    warm_start,
)
from privopt.methods.method import Method

__all__ = ["METHODS", "Method", "check_delta", "find_method", "own_files"]

METHODS = {
    module.METHOD.name: module.METHOD
    for module in (
        dp_adam,
        dp_rmsprop,
        dp_sgd,
        dp_gd,
        dp_srm,
        dp_agd,
        spiderboost,
        output_perturbation,
        rrpsgd,
        bassily_sgd,
        dp_adam_bc,
        dp2_rmsprop,
        sagd_lap,
        sagd_minibatch,
        sagd_sparse,
        adadps,
        dp_r_pub,
        dp_adam_pub,
        pda_dpmd,
        warm_start,
        dp_fedavg,
        dp_fedadam,
        fed_adadps,
        ideal,
        adas,
    )
}


def check_delta(method: Method, delta: float) -> None:
    """Refuse δ = 0 for a method that adds Gaussian noise."""
    if delta == 0 and not method.pure:
        able = ", ".join(name for name, other in METHODS.items() if other.pure and set(other.models) & set(method.models))
        without = f" Without delta: {able}." if able else ""
        raise InputError(f"delta is 0, but {method.name} adds Gaussian noise, which needs delta > 0, such as 1e-6.{without}")


def find_method(method: str | Method) -> Method:
    """A method by its name, or by the place of a user's own, `module:name`; a `Method` is itself."""
    if isinstance(method, Method):
        return method
    if not isinstance(method, str):
        raise InputError(f"method is {method!r}, but it is a name, such as 'dp-adam', or a privopt.methods.Method.")
    if method in METHODS:
        return METHODS[method]
    module, colon, name = method.partition(":")
    if not colon:
        raise InputError(f"method is {method!r}; the methods are {', '.join(METHODS)}, or module:name of your own.")
    try:
        found = getattr(import_module(module), name)
    except SyntaxError as error:
        raise InputError(f"method is {method!r}, but {error.filename}, line {error.lineno}: {error.msg}.") from error
    except Exception as error:  # of the user's own code, which has not met any data
        why = f"{type(error).__name__}: {error}"
        raise InputError(f"method is {method!r}, but {why}. It names a Method in a module that Python can import.") from error
    if not isinstance(found, Method):
        raise InputError(f"method is {method!r}, which is a {type(found).__name__}, not a privopt.methods.Method.")
    return found


def own_files(method: Method) -> list[Path]:
    """The files of the modules of the user's own that a method's code reaches; none, for a method of privopt."""
    installed = [Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    installed.append(Path(__file__).resolve().parents[1])
    found: dict[Path, None] = {}

    def visit(name: str | None) -> None:
        module = sys.modules.get(name or "")
        file = getattr(module, "__file__", None)
        path = Path(file).resolve() if file else None
        if module is None or path is None or path in found or any(path.is_relative_to(folder) for folder in installed):
            return
        found[path] = None
        for value in vars(module).values():
            visit(value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None))

    for part in (method.recipe, method.defaults):
        visit(getattr(part, "__module__", None))
    return sorted(found)
