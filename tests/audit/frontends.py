"""Front ends: the recipe, the oracle and the start that an estimator or `fit` makes of data with a canary, and of data without.

The canary is a row far outside of the rest, whose clipped vector has the full length of the bound in every round. Without it, its
row is one that adds nothing: the number of rows is public. Both fits have to plan the same, or the plan itself would tell.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple
from unittest import mock

import numpy as np

from privopt import loop
from privopt.errors import PrivoptWarning
from privopt.linear_model import Ridge
from privopt.perexample.grads import Vector
from privopt.privacy.budget import Budget
from privopt.privacy.statement import Statement
from privopt.state import copy_iterate
from privopt.training import linear as training
from tests.audit.transcripts import Start

ROWS = 8
FAR = 1e3  # the length of the canary's row; rows are declared to have length 1
IDS = np.repeat(np.arange(ROWS), [3, 1, 2, 1, 2, 1, 1, 1])  # of persons; the first is the canary, with three rows
HUGE = 1e9  # the canary's target; targets are declared to lie in [−1, 1]

Table = tuple[Vector, Vector]


class Captured(NamedTuple):
    """Both sides of a game, and what the front end claims of it."""

    present: Start
    absent: Start
    statement: Statement


@contextmanager
def _watching(module: Any) -> Iterator[list[Start]]:
    """Note what a front end hands to the loop, which runs as ever."""
    started: list[Start] = []

    def run(recipe: Any, oracle: Any, parameters: Any, **rest: Any) -> Any:
        started.append(Start(recipe, oracle, copy_iterate(parameters)))
        return loop.run(recipe, oracle, parameters, **rest)

    with mock.patch.object(module, "run", run), warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivoptWarning)  # a model of eight rows is nothing but noise
        yield started


def _captured(starts: list[Start], statement: Statement) -> Captured:
    present, absent = starts
    assert present.recipe.planned_event() == absent.recipe.planned_event()
    assert bool((present.parameters == absent.parameters).all())  # a start is public
    assert statement.epsilon <= statement.budget.epsilon
    return Captured(present, absent, statement)


# ---------------------------------------------------------------- linear models


def table(canary: float, *, columns: int = 2, others: bool = True) -> Table:
    """Eight rows and their targets. The canary is the first row, and `canary` the sign of its target; 0 is no canary."""
    rng = np.random.default_rng(3)
    X, y = rng.uniform(-0.5, 0.5, (ROWS, columns)) * others, rng.uniform(-1, 1, ROWS) * others
    X[0], y[0] = 0.0, canary * HUGE
    X[0, 0] = FAR * abs(canary)
    return X, y


def people(canary: float) -> tuple[Vector, Vector, Vector]:
    """Eight persons. Rows, targets and ids."""
    X, y = table(canary)
    return X[IDS], y[IDS], IDS


def linear(
    method: str,
    present: Table,
    absent: Table,
    budget: Budget,
    *,
    estimator: Callable[..., Any] = Ridge,
    groups: Any = None,
    **given: Any,
) -> Captured:
    """What an estimator hands to the loop; `groups` are ids of persons."""
    settings = {"bounds": 1.0, "target_bounds": (-1, 1), "fit_intercept": False, "random_state": 0} | given
    model = estimator(budget.epsilon, delta=budget.delta, neighbours=budget.neighbours, method=method, **settings)
    with _watching(training) as started:
        for X, y in (present, absent):
            model.fit(X, y, groups=groups)
    return _captured(started, model.privacy_.statement)


# ---------------------------------------------------------------- networks


def weighted(output: Any, targets: Any) -> Any:
    """Squared loss of targets (y, weight): a row of weight 0 adds nothing, whatever the model is."""
    return targets[:, 1] * (output[:, 0] - targets[:, 0]) ** 2 / 2


def network(
    method: str,
    model: Callable[[], Any],
    inputs: Any,
    budget: Budget,
    *,
    others: bool = True,
    batch_size: int = ROWS,
    options: Mapping[str, Any] | None = None,
    persons: bool = False,
    **given: Any,
) -> Captured:
    """What `fit` hands to the loop; the first input is the canary's. With `persons`, inputs are those of persons with `IDS`."""
    import torch

    from privopt.nets import fit, network_run

    statement = None
    with _watching(network_run) as started:
        for canary in (1.0, 0.0):
            targets = torch.stack([torch.linspace(-1, 1, ROWS), torch.full((ROWS,), float(others))], dim=1)
            targets[0] = torch.tensor([HUGE, canary])
            fitted = fit(
                model(),
                weighted,
                (inputs[IDS], targets[IDS]) if persons else (inputs, targets),
                budget=replace(budget, unit="person") if persons else budget,
                persons=IDS if persons else None,
                method=method,
                batch_size=batch_size,
                options=dict(options or {}),
                progress=False,
                seed=0,
                **given,
            )
            statement = fitted.privacy.statement
    assert statement is not None
    return _captured(started, statement)
