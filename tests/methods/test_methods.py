"""The list of methods, a user's own among them, and recipes as plans."""

import itertools
import math
import pkgutil
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

import privopt
from privopt.errors import InputError
from privopt.measure.clips import l2
from privopt.measure.measurement import Measurement
from privopt.measure.mechanisms import gaussian
from privopt.measure.queries import gradient
from privopt.measure.samplers import disjoint_batches, full_batch
from privopt.methods import METHODS, find_method, own_files
from privopt.methods.problem import Choices, ModelKind, Problem, logistic_facts
from privopt.methods.rules import adaptive_defaults, mean_share, network_pays
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


# ---------------------------------------------------------------- rules of linear models


def linear_problem(size: int, width: int, noise: float) -> Problem:
    return Problem("linear", Choices(), logistic_facts(), size, width, width, 2.0, noise)


@pytest.mark.parametrize(("size", "width"), [(500, 40), (30_000, 100), (25_000, 10_000)])
def test_more_budget_never_means_a_smaller_clip_or_step_and_stability_holds_five_rows_back(size: int, width: int) -> None:
    noises = np.geomspace(1e3, 1e-4, 40)
    found = [adaptive_defaults(linear_problem(size, width, noise), noise * math.sqrt(200)) for noise in noises]
    for name in ("clip_bound", "rounds"):
        assert np.diff([settings[name] for settings in found]).min() >= 0
    paces = [settings["learning_rate"] * math.sqrt(settings["rounds"]) for settings in found]
    assert min(later / earlier for earlier, later in itertools.pairwise(paces)) > 0.999
    five = 5 * 0.5 * 2.0 / size
    for noise, settings in zip(noises, found, strict=True):
        per_coordinate = noise * math.sqrt(200) * settings["clip_bound"] / size
        assert per_coordinate + settings["stability"] >= five * (1 - 1e-9)
    assert found[0]["stability"] < 0.01 * noises[0] * math.sqrt(200) * found[0]["clip_bound"] / size


@pytest.mark.parametrize("model", ["linear", "network"])
def test_a_chosen_learning_rate_of_dp_srm_is_not_cut_by_the_default_limit_of_steps(model: ModelKind) -> None:
    problem = replace(linear_problem(1000, 7, 1.0), model=model)
    method = METHODS["dp-srm"]
    assert 0 < method.arguments(problem, 1.0)["longest_step"] < math.inf
    chosen = problem.choosing(learning_rate=0.5)
    assert method.build(chosen, 1.0).update == sgd(0.5)
    endless = problem.choosing(options={"longest_step": math.inf})
    assert method.settings(endless, 1.0)["longest step"] == "no limit"  # a statement is JSON, which has no infinity
    limited = chosen.choosing(options={"longest_step": 0.1})
    assert method.build(limited, 1.0).update == sgd(0.5, 0.1)


def test_a_network_pays_where_rows_and_budget_are_many_for_each_column() -> None:
    assert network_pays(8000, 5, 4.0)
    assert not network_pays(8000, 5, 40.0)  # a small budget
    assert not network_pays(5000, 5, 1.0)  # few rows
    assert not network_pays(80_000, 22, 4.0)  # many columns


def test_a_mean_is_measured_as_closely_as_it_has_to_be() -> None:
    assert mean_share(100_000, 10, 1.0) == 0.005  # it comes cheap
    assert mean_share(1000, 25, 4.0) == pytest.approx(25 * (4 / 1000) ** 2 / 0.1**2)
    assert mean_share(1000, 25, 9.0) == 0.05
    assert mean_share(1000, 25, 12.0) is None  # too few rows to be worth it
