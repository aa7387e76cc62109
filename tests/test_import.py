"""What `import privopt` costs, and which names it offers."""

import importlib
import pkgutil
import subprocess
import sys
from types import ModuleType

import pytest

import privopt


def loaded(statement: str) -> set[str]:
    """The modules that a fresh interpreter holds after this statement."""
    code = f"{statement}\nimport sys\nprint(' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_import_privopt_alone_loads_nothing_heavy() -> None:
    heavy = {"torch", "sklearn", "pandas", "dp_accounting", "scipy", "numpy"}
    assert not loaded("import privopt") & heavy


def test_training_by_recipe_loads_neither_torch_nor_pandas_nor_scikit_learn() -> None:
    modules = loaded("import privopt.methods, privopt.loop, privopt.privacy.statement, privopt.privacy.calibration")
    assert "dp_accounting" in modules
    assert not modules & {"torch", "numba", "pandas", "sklearn"}


@pytest.mark.parametrize("name", privopt.__all__)
def test_every_public_name_can_be_had(name: str) -> None:
    assert getattr(privopt, name).__name__ == name
    assert name in dir(privopt)


@pytest.mark.parametrize("missing", ["torch", "numba"])
def test_what_networks_need_is_missed_at_once(missing: str) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None; import privopt; privopt.fit"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr.endswith("pip install 'privopt[torch]'\n")


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        privopt.nothing  # noqa: B018


def test_no_two_files_share_a_name_and_no_package_hides_one_of_its_modules() -> None:
    places = list(pkgutil.walk_packages(privopt.__path__, "privopt."))
    names = [place.name.rpartition(".")[2] for place in places if not place.ispkg]
    assert len(set(names)) == len(names)
    for package, _, name in (place.name.rpartition(".") for place in places):
        if name != "__main__":  # which runs a command
            importlib.import_module(f"{package}.{name}")
            assert isinstance(getattr(sys.modules[package], name), ModuleType), f"{package}.{name}"
