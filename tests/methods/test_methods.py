"""The list of methods, a user's own among them, and recipes as plans."""

import pkgutil
from importlib import import_module
from pathlib import Path

import pytest

import privopt
from privopt.errors import InputError
from privopt.measure.clips import l2
from privopt.measure.measurement import Measurement
from privopt.measure.mechanisms import gaussian
from privopt.measure.queries import gradient
from privopt.measure.samplers import disjoint_batches, full_batch
from privopt.methods import METHODS, find_method, own_files
from privopt.postprocess.updates import sgd
from privopt.privacy.events import GaussianDpEvent, NoOpDpEvent, SelfComposedDpEvent, compose
from privopt.recipe import Recipe, always
from tests.laws.table import DESCENT


def test_methods_are_found_by_name_and_a_wrong_name_lists_the_right_ones() -> None:
    for name in METHODS:
        assert find_method(name).name == name
        assert find_method(name).summary
        assert find_method(name).paper
    with pytest.raises(InputError) as error:
        find_method("dp-sdg")
    assert all(name in str(error.value) for name in METHODS)


def test_a_method_of_the_users_own_is_found_by_itself_and_by_its_place() -> None:
    own = METHODS["dp-sgd"]
    assert find_method(own) is own
    assert find_method("privopt.methods.dp_sgd:METHOD") is own
    for wrong in ("privopt.methods.dp_sgd:NOTHING", "no_such_module:METHOD", ":METHOD", "privopt.methods:METHODS"):
        with pytest.raises(InputError, match="method is"):
            find_method(wrong)


def test_the_code_of_the_users_own_method_is_that_of_all_modules_that_it_reaches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resumed run compares it: the same noise for another query would reveal both."""
    assert all(own_files(method) == [] for method in METHODS.values())
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "steps_of_mine.py").write_text("RATE = 0.1\n\n\ndef rate(): return RATE\n")
    (tmp_path / "method_of_mine.py").write_text(
        "from privopt.methods import METHODS, Method\nfrom privopt.methods.dp_sgd import dp_sgd\n"
        "from steps_of_mine import rate\n\n\n"
        "def defaults(problem, noise):\n    return METHODS['dp-sgd'].defaults(problem, noise) | {'learning_rate': rate()}\n\n\n"
        "METHOD = Method('mine', dp_sgd, defaults, paper='none', summary='none')\n"
    )
    files = own_files(find_method("method_of_mine:METHOD"))
    assert [file.name for file in files] == ["method_of_mine.py", "steps_of_mine.py"]


def test_no_name_is_both_a_module_and_something_else() -> None:
    for module in pkgutil.walk_packages(privopt.__path__, "privopt."):
        if module.name != "privopt.__main__":
            found, (package, _, name) = import_module(module.name), module.name.rpartition(".")
            assert getattr(import_module(package), name) is found, module.name


@pytest.mark.parametrize("name", DESCENT)
def test_a_misspelt_argument_is_an_error(name: str) -> None:
    with pytest.raises(TypeError):
        METHODS[name].recipe(rounds=1, noise_multiplier=1.0, clip_bound=1.0, learning_rate=0.1, clip_norm=1.0)
    with pytest.raises(TypeError):
        METHODS[name].recipe(1, 1.0, 1.0, 0.1)


@pytest.mark.parametrize("name", DESCENT)
def test_a_recipe_of_t_rounds_plans_t_gaussians(name: str) -> None:
    recipe = METHODS[name].recipe(rounds=9, noise_multiplier=3.0, clip_bound=1.0, learning_rate=0.1)
    assert recipe.planned_event() == SelfComposedDpEvent(GaussianDpEvent(3.0), 9)
    assert recipe.planned_event(4) == SelfComposedDpEvent(GaussianDpEvent(3.0), 4)
    assert recipe.planned_event(0) == NoOpDpEvent()
    measurement = recipe.measurement(5)
    assert isinstance(measurement, Measurement)
    assert measurement.bound == 1.0


def test_a_recipe_may_measure_something_else_in_each_round() -> None:
    def plan(round_: int) -> Measurement:
        return Measurement(full_batch(), [gradient() @ l2(1.0)], gaussian(2.0 + round_ % 2))

    recipe = Recipe(4, plan, sgd(0.1))
    assert recipe.planned_event() == compose([GaussianDpEvent(2.0), GaussianDpEvent(3.0)] * 2)


def test_rounds_that_cost_nothing_are_planned_as_such() -> None:
    recipe = Recipe(7, always(Measurement(disjoint_batches(3, key=0), [gradient() @ l2(1.0)], gaussian(2.0))), sgd(0.1))
    assert [isinstance(event, NoOpDpEvent) for event in recipe.events()] == [False, True, True, False, True, True, False]
    assert recipe.planned_event() == SelfComposedDpEvent(GaussianDpEvent(2.0), 3)
