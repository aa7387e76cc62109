"""The DP-SRM table: its optimum is one, its rows are private as they say, and each is there."""

import numpy as np
import pytest

from benchmarks import data, dpsrm
from privopt.privacy.events import GaussianDpEvent, PoissonSampledDpEvent, PureDpEvent, atoms


def test_the_optimum_has_no_gradient_and_beats_the_start() -> None:
    problem = dpsrm.Problem(data.a9a(2000))
    found = problem.optimum()
    assert found.gradient < 1e-3
    assert found.training < problem.objective(np.zeros(problem.train.dimension))[0] - 0.1
    assert found.objective > found.loss


def test_the_paper_s_settings_are_those_of_the_paper() -> None:
    recipe = dpsrm._srm(1628, 100, 32561, 0.1, 2.0)
    assert [(type(part), count) for part, count in atoms(recipe.planned_event())] == [(PoissonSampledDpEvent, 1628)]
    searched = dpsrm._agd_as_published(360, 2.0)
    kinds = [(part, count) for part, count in atoms(searched.planned_event())]
    assert [type(part) for part, _ in kinds] == [GaussianDpEvent, PureDpEvent]
    choice, line = kinds[1][0].epsilon ** 2 / 2, searched.measurement(0)
    first = line.first_share / (2 * kinds[0][0].noise_multiplier ** 2)  # type: ignore[attr-defined]
    assert choice / first == pytest.approx(2 * np.log(1.25e5))


def test_every_row_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dpsrm, "STEPS", (0.1,))
    monkeypatch.setattr(dpsrm, "BATCHES", (800,))
    monkeypatch.setattr(dpsrm, "EPSILONS", (0.5,))
    monkeypatch.setattr(dpsrm, "DEFAULTS", ("dp-gd",))
    rows = list(dpsrm.table(dpsrm.Size(1, rows=1600, rounds=6)))
    assert [row.name.split(",")[0] for row in rows[1:]] == ["DP-SRM", "DP-GD", "RRPSGD", "DP-AGD", "DP-AGD", "dp-gd"]
    assert all(row.numbers is not None and row.numbers["mean"]["loss"] < 1.0 for row in rows)
    assert rows[1].note == "paper: 0.3506"
