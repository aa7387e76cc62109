"""The libraries are extras: tests of those that are not installed are left out."""

from importlib.util import find_spec

NEEDED = {"test_huggingface.py": ("transformers", "accelerate", "peft"), "test_lightning.py": ("lightning",)}

collect_ignore = [name for name, modules in NEEDED.items() if not all(map(find_spec, ("torch", *modules)))]
