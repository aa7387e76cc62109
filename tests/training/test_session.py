"""The session: what does not fit is refused before anything is paid, and the recipe that runs is the one that was planned."""

import pickle
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pytest

from privopt.checkpoint import Checkpoint, Progress
from privopt.errors import CompositionError, InputError, PrivoptError, UnsupportedEvent
from privopt.linear_model import LogisticRegression, Ridge
from privopt.measure.clips import as_clip, automatic, l2, l2_moved, per_layer
from privopt.measure.measurement import Measurement
from privopt.measure.mechanisms import gaussian
from privopt.measure.queries import gradient
from privopt.measure.randomness import generator
from privopt.measure.samplers import fixed_size, full_batch
from privopt.methods import METHODS
from privopt.methods.dp_sgd import dp_sgd
from privopt.postprocess.release import last
from privopt.postprocess.updates import sgd
from privopt.privacy.budget import Budget
from privopt.privacy.ledger import Ledger
from privopt.recipe import Recipe, always
from privopt.state import PublicState
from tests.laws.table import ROW_METHODS
from tests.problems import sign_rows

X, Y = sign_rows(400)
OWN = replace(METHODS["dp-sgd"], name="own")


class broken(sgd):  # noqa: N801
    """An update rule with a typo."""

    def step(self, direction: Any, state: Any, round_: int, known: Any = None) -> Any:
        return super().step(direction.momentum, state, round_, known)


def with_a_typo(*, rounds: int, noise_multiplier: float, clip_bound: float, **_: Any) -> Recipe:
    measurement = Measurement(full_batch(), [gradient() @ l2(clip_bound)], gaussian(noise_multiplier))
    return Recipe(rounds, always(measurement), broken(0.1), last())


REFUSED: dict[str, tuple[dict[str, Any], type[Exception]]] = {
    "no price": ({"method": "dp-agd", "accountant": "rdp"}, UnsupportedEvent),
    "no price for a sampler": ({"method": "dp-srm", "options": {"anchor_sampling": fixed_size(20, 400)}}, PrivoptError),
    "no release rule": ({"options": {"release": object()}}, CompositionError),
    "a class for a release rule": ({"options": {"release": last}}, CompositionError),
    "no observer": ({"observer": 3}, InputError),
    "a typo in an update rule": ({"method": replace(OWN, recipe=with_a_typo)}, AttributeError),
    "a misspelt argument": (
        {"method": replace(OWN, defaults=lambda problem, noise: {"round": 3})},
        TypeError,
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused_before_any_survey_is_paid(name: str) -> None:
    settings, error = REFUSED[name]
    ledger = Ledger()
    with pytest.raises(error):
        LogisticRegression(epsilon=2.0, ledger=ledger, random_state=0, **settings).fit(X, Y)
    assert ledger.entries == ()


def test_defaults_that_give_another_recipe_than_was_calibrated_are_refused() -> None:
    calls = 0

    def defaults(problem: Any, noise_multiplier: float) -> dict[str, Any]:
        nonlocal calls
        calls += 1
        found = METHODS["dp-sgd"].defaults(problem, noise_multiplier)
        return found | ({"rounds": 100 * found["rounds"]} if calls > armed else {})

    armed = 10**9
    model = LogisticRegression(epsilon=2.0, bounds=1.8, method=replace(OWN, defaults=defaults), random_state=0).fit(X, Y)
    assert model.privacy_.statement.epsilon <= 2.0
    total, calls = calls, 0
    armed = total - 2  # the last two: the recipe that runs, and what the statement shows of it
    with pytest.raises(CompositionError, match="costs more"):
        LogisticRegression(epsilon=2.0, bounds=1.8, method=replace(OWN, defaults=defaults), random_state=0).fit(X, Y)


def test_the_noise_that_is_printed_is_the_noise_that_ran() -> None:
    fixed = replace(OWN, noisy=False, defaults=lambda p, z: {**METHODS["dp-sgd"].defaults(p, z), "noise_multiplier": 2 * z})
    statement = LogisticRegression(epsilon=2.0, bounds=1.8, method=fixed, random_state=0).fit(X, Y).privacy_.statement
    assert f"noise multiplier {statement.settings['noise multiplier']:.4g}" in statement.text()


@dataclass(frozen=True)
class each_token:  # noqa: N801
    name: ClassVar[str] = "token"


def test_a_measurement_of_another_unit_is_refused_whatever_the_ledger_is() -> None:
    def recipe(*, rounds: int, noise_multiplier: float, clip_bound: float, **_: Any) -> Recipe:
        unit: Any = each_token()
        terms = [gradient() @ l2(clip_bound)]
        return Recipe(rounds, always(Measurement(full_batch(), terms, gaussian(noise_multiplier), unit=unit)), sgd(0.1))

    for ledger in (Ledger(), Ledger(Budget(9.0, 1e-4))):
        with pytest.raises(CompositionError, match="token"):
            LogisticRegression(method=replace(OWN, recipe=recipe), bounds=1.8, ledger=ledger, random_state=0).fit(X, Y)
        assert ledger.entries == ()


def test_a_checkpoint_is_of_the_recipe_that_was_built(tmp_path: Path) -> None:
    saved = Checkpoint(tmp_path, "same")
    saved.built = "one"
    saved.save(Progress(0, {}, generator(0)))
    other = Checkpoint(tmp_path, "same")
    other.built = "another"
    with pytest.raises(InputError, match="the recipe that was built"):
        other.load()


@pytest.mark.parametrize("method", ROW_METHODS)
def test_a_method_can_be_pickled(method: str) -> None:
    assert pickle.loads(pickle.dumps(METHODS[method])).name == method


# ---------------------------------------------------------------- clips


@dataclass(frozen=True)
class own:  # noqa: N801
    """A clip by these factors."""

    bound: Any
    rule: Callable[[Any], Any]
    order: ClassVar[Literal[1, 2]] = 2

    def at(self, state: PublicState) -> "own":
        return self

    def factors(self, norms: Any, weight: float = 1.0) -> Any:
        return weight * self.rule(norms)


@pytest.mark.parametrize(
    "clip",
    [
        own(1.0, np.ones_like),
        own(0.0, np.ones_like),
        own(-1.0, np.zeros_like),
        own(np.nan, np.zeros_like),
        own(1.0, lambda norms: norms * np.nan),
        own(1.0, lambda norms: -2 / np.maximum(norms, 1.0)),
    ],
)
def test_a_clip_that_does_not_keep_its_bound_is_refused(clip: Any) -> None:
    with pytest.raises(CompositionError, match="bound"):
        dp_sgd(rounds=1, noise_multiplier=1.0, clip_bound=as_clip(clip), learning_rate=0.1)


def test_a_clip_that_keeps_its_bound_is_accepted() -> None:
    soft = own(1.0, lambda norms: 1 / np.sqrt(1 + norms**2))
    dp_sgd(rounds=1, noise_multiplier=1.0, clip_bound=soft, learning_rate=0.1)


@pytest.mark.parametrize(
    "make",
    [lambda: l2(1e-30), lambda: automatic(1.0, stability=1e-30), lambda: per_layer({"": 1e-46})],
)
def test_bounds_that_rounding_would_lose_are_refused(make: Callable[[], Any]) -> None:
    """Norms are sums of squares: below 1e-23 they are 0 in single precision, and a factor would make anything of them."""
    with pytest.raises(CompositionError, match="1e-15"):
        make()
    assert l2_moved(1.0).at(PublicState(np.full(2, 1e-20), np.zeros(2))).bound == 0


def test_the_bounds_of_layers_do_not_change() -> None:
    bounds = {"0": 1.0, "2": 1.0}
    clip = per_layer(bounds)
    bounds["0"] = 1e4
    with pytest.raises(CompositionError, match="do not change"):
        clip.bounds["0"] = 1e4  # type: ignore[index]
    assert clip.bound == np.sqrt(2)


# ---------------------------------------------------------------- errors without values


@pytest.mark.parametrize(
    "call",
    [
        lambda: Ridge().fit(X, np.array(["1.5", "HIV+"] * 200, dtype=object)),
        lambda: LogisticRegression().fit(X[:, 0], Y),
        lambda: LogisticRegression().fit(X + 1j, Y),
    ],
)
def test_errors_of_estimators_quote_no_value(call: Callable[[], Any]) -> None:
    with pytest.raises(InputError) as error:
        call()
    assert not any(text in str(error.value) for text in ("HIV", str(X[0, 0])[:5], "array("))
