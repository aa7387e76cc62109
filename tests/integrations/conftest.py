"""The libraries are extras: tests of those that are not installed are left out."""

from importlib.util import find_spec

from tests.accounting import quick_prices

__all__ = ["quick_prices"]

NEEDED = {"test_huggingface.py": ("transformers", "accelerate", "peft"), "test_lightning.py": ("lightning",)}

collect_ignore = [name for name, modules in NEEDED.items() if not all(map(find_spec, ("torch", *modules)))]
