"""No implementation of a slot can be forgotten by the laws."""

import importlib
import inspect
import pkgutil
from types import ModuleType

import pytest

import privopt.measure.clips
import privopt.measure.mechanisms
import privopt.measure.queries
import privopt.measure.samplers
import privopt.methods
import privopt.perexample.losses
import privopt.postprocess.estimates
import privopt.postprocess.regularizers
import privopt.postprocess.release
import privopt.postprocess.side_information
import privopt.postprocess.updates
from privopt.methods import METHODS
from privopt.recipe import Recipe
from tests.laws import table

NOT_A_SLOT = {
    "Term",
    "Step",
    "l2_moved",  # is an `l2` as soon as a round knows its iterates: tests/measure/test_queries.py
    "adaptive",  # is an `l2` in each round: tests/measure/test_adaptive_clips.py
    "client_update",  # asks users, and not rows: tests/federated
    "Independent",  # what mechanisms with fresh noise have in common
    "gaussian_pool",  # is divided among several sums: tests/measure/test_gaussian_pool.py
    "noisy_min",  # tells a place, and hides no sum: tests/measure/test_noisy_min.py
    "above_threshold",  # answers yes or no, and hides no sum: tests/measure/test_sparse_vector.py
}


def implementations(module: ModuleType) -> set[str]:
    """The public classes that a module, or the modules of a package, define; protocols only name the slot."""
    modules = [module]
    for found in pkgutil.iter_modules(getattr(module, "__path__", [])):
        modules.append(importlib.import_module(f"{module.__name__}.{found.name}"))
    return {
        name
        for each in modules
        for name, value in vars(each).items()
        if inspect.isclass(value)
        and value.__module__ == each.__name__
        and not name.startswith("_")
        and not getattr(value, "_is_protocol", False)
        and name not in NOT_A_SLOT
    }


@pytest.mark.parametrize(
    ("module", "known"),
    [
        (privopt.measure.samplers, table.SAMPLERS),
        (privopt.measure.queries, table.QUERIES),
        (privopt.measure.clips, table.CLIPS),
        (privopt.measure.mechanisms, table.MECHANISMS),
        (privopt.perexample.losses, table.LOSSES),
        (privopt.postprocess.estimates, table.ESTIMATES),
        (privopt.postprocess.updates, table.UPDATES),
        (privopt.postprocess.release, table.RELEASES),
        (privopt.postprocess.regularizers, table.REGULARIZERS),
        (privopt.postprocess.side_information, table.SIDES),
    ],
    ids=lambda value: value.__name__ if inspect.ismodule(value) else "",
)
def test_every_implementation_of_a_slot_is_in_the_table(module: ModuleType, known: dict[str, object]) -> None:
    assert implementations(module) == set(known)


def test_every_entry_of_the_table_is_what_its_name_says() -> None:
    made = (table.QUERIES, table.ESTIMATES, table.UPDATES, table.RELEASES, table.REGULARIZERS, table.SIDES, table.LOSSES)
    for entries in made:
        for name, entry in entries.items():
            assert type(entry).__name__ == name
    for makers in (table.CLIPS, table.MECHANISMS):
        for name, maker in makers.items():
            assert type(maker(1.0)).__name__ == name
    for name, sampler in table.SAMPLERS.items():
        assert type(sampler(6)).__name__ == name


def test_every_recipe_is_in_the_registry_under_its_own_name() -> None:
    recipes = {
        name
        for found in pkgutil.iter_modules(privopt.methods.__path__)
        for name, value in vars(importlib.import_module(f"privopt.methods.{found.name}")).items()
        if inspect.isfunction(value)
        and value.__module__ != "privopt.recipe"
        and inspect.signature(value).return_annotation is Recipe
    }
    assert {method.recipe.__name__ for method in METHODS.values()} == recipes
    assert all(name == method.name == method.recipe.__name__.replace("_", "-") for name, method in METHODS.items())


def test_every_method_has_a_sample() -> None:
    assert set(table.SAMPLES) == set(table.ROW_METHODS)


def test_every_mechanism_fits_some_clip_and_every_clip_some_mechanism() -> None:
    assert {clip for clip, _ in table.FITTING} == set(table.CLIPS)
    assert {mechanism for _, mechanism in table.FITTING} == set(table.MECHANISMS)
