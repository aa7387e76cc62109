"""Every way to train draws its noise from a keyed cipher, by the operating system's key, and names it in its statement."""

import json
import random
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from privopt import Budget, Ledger, run
from privopt.errors import InputError
from privopt.linear_model import LogisticRegression, Ridge
from privopt.measure.randomness import SOURCE, generator
from privopt.methods.dp_sgd import dp_sgd
from privopt.perexample.grads import Materialized
from privopt.privacy.statement import Statement
from tests.cli.typed import privopt
from tests.problems import flat_parameters, tanh_network

try:
    import torch
except ModuleNotFoundError:  # an extra
    torch = None  # type: ignore[assignment]

Trained = tuple[Any, Statement]  # what was released, and what is claimed

BUDGET = Budget(3.0, 1e-5)
SHORT: dict[str, Any] = {"rounds": 2, "batch_size": 50, "accountant": "rdp"}
OTHERS = ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64", "RandomState", "default_rng")


def rows(count: int = 200) -> tuple[Any, Any]:
    rng = generator(0)
    X = rng.uniform(-1, 1, (count, 3))
    return X, (X[:, 0] > 0).astype(int)


# ---------------------------------------------------------------- ways to train


def estimator(method: str, **settings: Any) -> Callable[[Path], Trained]:
    def train(folder: Path) -> Trained:
        X, y = rows()
        model = LogisticRegression(3.0, method=method, bounds=(-1, 1), rounds=3, **settings).fit(X, y)
        return model.coef_, model.privacy_.statement

    return train


def ridge(folder: Path) -> Trained:
    X, y = rows()
    model = Ridge(3.0, bounds=(-1, 1), target_bounds=(0, 1), rounds=3).fit(X, y)
    return model.coef_, model.privacy_.statement


def command(*options: str) -> Callable[[Path], Trained]:
    """With column ranges that are surveyed privately."""

    def train(folder: Path) -> Trained:
        X, y = rows()
        pd.DataFrame(X, columns=list("abc")).assign(y=np.where(y, "yes", "no")).to_csv(folder / "rows.csv", index=False)
        privopt("train", folder / "rows.csv", "--target", "y", "--epsilon", 3, "--rounds", 3, *options, "--out", folder / "run")
        return (folder / "run" / "model.json").read_text(), Statement.from_json(
            json.loads((folder / "run" / "statement.json").read_text())
        )

    return train


def network(width: int, dtype: str) -> Callable[[Path], Trained]:
    def train(folder: Path) -> Trained:
        from privopt.nets import fit

        model, (x, y) = _model(width, dtype)
        fitted = fit(model, torch.nn.CrossEntropyLoss(), (x, y), budget=BUDGET, **SHORT, learning_rate=0.1)
        return flat_parameters(model).numpy(), fitted.privacy.statement

    return train


def begun_loop() -> Any:
    from privopt.nets import make_private

    model, data = _model(4, "float32")
    return make_private(model, torch.optim.SGD(model.parameters(), 0.1), data, budget=BUDGET, **SHORT)


def loop(folder: Path) -> Trained:
    private = begun_loop()
    for x, y in private.loader:
        private.step(lambda x=x, y=y: torch.nn.functional.cross_entropy(private.model(x), y, reduction="none"))
    return flat_parameters(private.model).numpy(), private.statement()


def _model(width: int, dtype: str) -> Any:
    """The same start every time, with dropout, whose numbers are torch's own."""
    X, y = rows()
    with torch.random.fork_rng(devices=[]):
        model = tanh_network(3, width, dropout=0.1).to(getattr(torch, dtype))
    return model, (torch.tensor(X, dtype=getattr(torch, dtype)), torch.tensor(y))


WAYS = {
    "dp-adam": estimator("dp-adam"),
    "dp-sgd on batches": estimator("dp-sgd", batch_size=50, accountant="rdp"),
    "parts of the rows": estimator("sagd-minibatch", batch_size=50),
    "line search": estimator("dp-agd"),
    "noise of Gamma length": estimator("output-perturbation", alpha=0.1, delta=0.0),
    "ridge": ridge,
    "command, linear": command(),
}
WAYS_WITH_TORCH = {
    "command, network": command("--model", "mlp:4"),
    "small network": network(4, "float32"),
    "network in double precision": network(4, "float64"),
    "network": network(1000, "float32"),
    "loop": loop,
}
needs_torch = pytest.mark.skipif(torch is None, reason="needs torch")
each_way = pytest.mark.parametrize(
    "train",
    [
        *(pytest.param(way, id=name) for name, way in WAYS.items()),
        *(pytest.param(way, id=name, marks=needs_torch) for name, way in WAYS_WITH_TORCH.items()),
    ],
)


# ---------------------------------------------------------------- laws


def shared() -> list[str]:
    """The state of the generators that everybody shares."""
    of_torch = torch.get_rng_state().tolist() if torch else None
    return [repr(np.random.get_state()), repr(random.getstate()), repr(of_torch)]  # noqa: NPY002


@contextmanager
def nothing_else_is_random(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No other generator can be made, and those that everybody shares are left as they were."""

    class Refused:
        def __init__(self, *_: object, **__: object) -> None:
            raise AssertionError("a generator that is not keyed was made")

    if torch:
        import privopt.perexample.networks.rng  # noqa: F401  # makes a generator for dropout and augmentation, which hide nothing
    before = shared()
    with monkeypatch.context() as patched:
        for name in OTHERS:
            kind = getattr(np.random, name)
            patched.setattr(np.random, name, type(name, (Refused, kind), {}) if isinstance(kind, type) else Refused)
        yield
    assert shared() == before


@each_way
def test_noise_is_the_ciphers_and_follows_from_the_operating_systems_key_alone(
    train: Callable[[Path], Trained], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = []
    for place, key in enumerate((2**200 + 1, 2**200 + 1, 1)):
        random.seed(place)
        np.random.seed(place)  # noqa: NPY002
        if torch:
            torch.manual_seed(place)
        folder = tmp_path / str(place)
        folder.mkdir()
        monkeypatch.setattr(secrets, "randbits", lambda bits, key=key: key)
        with nothing_else_is_random(monkeypatch):
            model, statement = train(folder)
        released.append(model)
        assert statement.noise == SOURCE
        assert not statement.seeded
        assert f"Noise: {SOURCE}." in statement.text()
    assert np.array_equal(released[0], released[1])
    assert not np.array_equal(released[0], released[2])


@pytest.mark.parametrize("name", OTHERS)
def test_another_generator_would_be_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with nothing_else_is_random(monkeypatch), pytest.raises(AssertionError, match="not keyed"):
        getattr(np.random, name)(0)


def test_noise_of_the_generator_that_everybody_shares_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AssertionError), nothing_else_is_random(monkeypatch):
        np.random.standard_normal()  # noqa: NPY002


class Zeros:
    """Gradients of 0: what is released is noise."""

    size = 4

    def __call__(self, at: Any, units: Any) -> Materialized:
        return Materialized(np.zeros((4, 2)))


def test_a_recipe_that_is_run_with_a_generator_of_numpys_takes_only_its_key_from_it() -> None:
    recipe = dp_sgd(rounds=3, noise_multiplier=1.0, clip_bound=1.0, learning_rate=1.0)
    given, same = np.random.default_rng(5), generator(np.random.default_rng(5))
    released = [run(recipe, Zeros(), np.zeros(2), spending=Ledger().run(), rng=rng).parameters for rng in (given, same)]
    np.testing.assert_array_equal(*released)


@needs_torch
def test_a_loop_that_another_version_saved_is_refused_before_it_is_paid() -> None:
    saved, private = begun_loop().state_dict(), begun_loop()
    saved["runs"] = [[name, 1] for name, _ in saved["runs"]]
    with pytest.raises(InputError, match="another version of privopt began it"):
        private.load_state_dict(saved | {"generator": json.dumps(np.random.PCG64DXSM(0).state)})
    assert private.statement().epsilon == 0
    private.load_state_dict(saved)  # its own would be
    assert private.statement().epsilon > 0
