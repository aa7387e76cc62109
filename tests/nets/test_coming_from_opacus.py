"""Every public name of Opacus has its place on the page for those who come from there."""

import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "coming-from-opacus.md"
MODULES = ("opacus", *(f"opacus.{name}" for name in ("accountants", "data_loader", "distributed", "grad_sample", "layers")))
MODULES += tuple(f"opacus.{name}" for name in ("lightning", "optimizers", "schedulers", "utils", "validators"))


def public(module: str) -> Iterator[str]:
    """What a module exports, or defines; of a package without exports, what its modules do."""
    found = importlib.import_module(module)
    exported = getattr(found, "__all__", None)
    if exported is not None:
        yield from (name for name in exported if not name.startswith("_"))
        return
    for name, value in vars(found).items():
        if not name.startswith("_") and getattr(value, "__module__", None) == module:
            yield name
    for below in pkgutil.iter_modules(getattr(found, "__path__", [])):
        yield from public(f"{module}.{below.name}")


def test_every_public_name_of_opacus_is_on_the_page() -> None:
    opacus = pytest.importorskip("opacus", reason="opacus is for benchmarks: pip install 'privopt[bench]'")
    names = {name for module in MODULES for name in public(module)}
    for name, method in inspect.getmembers(opacus.PrivacyEngine, inspect.isfunction):
        if not name.startswith("_") or name == "__init__":
            names |= {name} - {"__init__"} | set(inspect.signature(method).parameters) - {"self", "kwargs"}
    assert {"PrivacyEngine", "target_epsilon", "DPLSTM", "BatchMemoryManager", "ModuleValidator"} <= names
    written = set(re.findall(r"\w+", " ".join(re.findall(r"`[^`\n]+`", PAGE.read_text()))))
    assert sorted(names - written) == []
