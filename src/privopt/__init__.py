"""privopt: train models under differential privacy, with a claim that can be checked."""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_HOMES = {  # loaded when first asked for: `import privopt` costs next to nothing
    "Budget": "privopt.privacy.budget",
    "Ledger": "privopt.privacy.ledger",
    "Recipe": "privopt.recipe",
    "Shard": "privopt.nets",
    "Statement": "privopt.privacy.statement",
    "calibrate": "privopt.privacy.calibration",
    "epsilon": "privopt.privacy.accountants",
    "fit": "privopt.nets",
    "make_private": "privopt.nets",
    "replace_batchnorm": "privopt.nets",
    "run": "privopt.loop",
}
_EXTRA = ("torch", "numba")  # what networks need

__all__ = [
    "Budget",
    "Ledger",
    "Recipe",
    "Shard",
    "Statement",
    "calibrate",
    "epsilon",
    "fit",
    "make_private",
    "replace_batchnorm",
    "run",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        try:
            return getattr(import_module(_HOMES[name]), name)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] not in _EXTRA:
                raise
            raise ModuleNotFoundError(
                f"privopt.{name} trains networks, which needs torch: pip install 'privopt[torch]'"
            ) from None
    if name in ("PrivacyEngine", "GradSampleModule", "DPOptimizer", "DPDataLoader"):  # of Opacus
        raise ImportError(
            f"{name} is Opacus'. Here the model stays as it is: private = privopt.make_private(model, optimizer, data, "
            "budget=privopt.Budget(3.0, 1e-5), batch_size=256, epochs=5). Which lines change: docs/coming-from-opacus.md."
        )
    raise AttributeError(f"module 'privopt' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
