"""What a report computes from released numbers."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from privopt.datasets import Date, Encoding, Numeric
from privopt.privacy.accountants import epsilon
from privopt.privacy.events import GaussianDpEvent, LaplaceDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent, compose
from privopt.report import Contents
from privopt.runs.folder import RunFolder
from tests.report.finished import train_once_hidden, train_patients

SEEDS = 14


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return train_patients(tmp_path_factory.mktemp("patients"))


def test_the_noise_of_coefficients_is_what_the_intervals_say(tmp_path: Path) -> None:
    """10 coefficients of 14 runs that differ in their noise only: 130 degrees of freedom, so 4 deviations are ±25 %."""
    runs = [Contents.of(train_once_hidden(tmp_path / "rows.csv", tmp_path / f"run-{seed}", seed)) for seed in range(SEEDS)]
    values = np.array([[*one.model.slopes.ravel(), *one.model.intercepts] for one in runs])
    said = {coefficient.feature: coefficient.deviation for coefficient in runs[0].coefficients}
    assert None not in said.values()
    deviations = np.array([said[name] for name in (*runs[0].model.names, "(intercept)")], dtype=float)
    assert len(set(deviations[:-1])) == 1
    assert deviations[-1] != deviations[0]
    errors = (values - values.mean(axis=0)) / deviations
    ratio = math.sqrt((errors**2).sum() / ((SEEDS - 1) * len(deviations)))
    assert 0.75 < ratio < 1.25
    assert not 0.75 < ratio / 2 < 1.25  # twice the noise would be noticed


def test_other_methods_have_no_noise_intervals(finished: RunFolder) -> None:
    contents = Contents.of(finished)
    assert not contents.deviation_known
    assert {one.deviation for one in contents.coefficients} == {None}


@pytest.mark.parametrize(("event", "delta"), [(GaussianDpEvent(2.0), 1e-5), (LaplaceDpEvent(3.0), 0.0)], ids=["gaussian", "pure"])
def test_epsilon_over_the_releases_is_priced_by_the_accountant(finished: RunFolder, event: GaussianDpEvent, delta: float) -> None:
    contents = Contents.of(finished)
    whole = compose([event] * 7 + [type(event)(9.0)] * 30)
    budget = replace(contents.statement.budget, delta=delta)
    contents = replace(contents, statement=replace(contents.statement, event=whole, budget=budget))
    assert contents.spending[0] == (0, 0.0)
    assert contents.spending[-1].releases == 37
    assert contents.spending[-1].epsilon == contents.statement.epsilon
    prices = dict(contents.spending)
    assert prices[7] == pytest.approx(epsilon(SelfComposedDpEvent(event, 7), delta))
    assert list(prices.values()) == sorted(prices.values())


def test_sampled_rounds_have_few_prices(finished: RunFolder) -> None:
    contents = Contents.of(finished)
    event = SelfComposedDpEvent(PoissonSampledDpEvent(0.05, GaussianDpEvent(2.0)), 100)
    spending = replace(contents, statement=replace(contents.statement, event=event)).spending
    assert [one.releases for one in spending] == [0, 25, 50, 75, 100]
    assert spending[-1].epsilon == epsilon(event, contents.statement.budget.delta)


@pytest.mark.parametrize(("noise", "delta"), [(2.0, 1e-5), (1.0, 0.01), (0.3, 1e-6)])
def test_no_guess_beats_the_bound_that_a_report_tells(finished: RunFolder, noise: float, delta: float) -> None:
    """The best guess about one Gaussian is known: Φ(1/2z)."""
    contents = Contents.of(finished)
    budget = replace(contents.statement.budget, delta=delta)
    contents = replace(contents, statement=replace(contents.statement, event=GaussianDpEvent(noise), budget=budget))
    best = 0.5 * (1 + math.erf(1 / (2 * noise) / math.sqrt(2)))
    assert contents.guess is not None
    assert best <= contents.guess <= 1.0
    value = math.exp(contents.statement.epsilon)
    assert contents.guess == pytest.approx((value + delta) / (value + 1))


def test_ranges_tell_where_they_come_from(finished: RunFolder) -> None:
    contents = Contents.of(finished)
    origins = {feature.name: feature.origin for feature in contents.features}
    assert origins["region"] == origins["smoker"] == "declared in the schema: assumed public"
    assert origins["income"] == "estimated privately, inside this budget, within the declared range"
    assert contents.ignored == ("cost",)
    said = {"region": {"values": ["north", "south", "east"]}, "income": {"missing": 0}, "smoker": {"type": "category"}}
    partly = replace(contents, asked={**contents.asked, "schema": {"columns": said}})
    origins = {feature.name: feature.origin for feature in partly.features}
    assert origins.pop("region").startswith("declared")
    assert set(origins.values()) == {"estimated privately, inside this budget"}


def test_dates_are_described_in_words(finished: RunFolder) -> None:
    contents = Contents.of(finished)
    when = Date(("year", "month"), Numeric(2018, 2021), missing="indicator")
    said = {"columns": {"when": {"type": "date"}, "born": {"parts": ["year"], "low": 1900, "high": 2020}}}
    encoding = Encoding((("when", when), ("born", Date(("year",), Numeric(1900, 2020))), ("day", Date(("weekday",)))))
    dated = replace(contents, model=replace(contents.model, encoding=encoding), asked={**contents.asked, "schema": said})
    assert [tuple(feature) for feature in dated.features] == [
        ("when", "dates: year, month; years 2018 to 2021; missing ones are marked", "estimated privately, inside this budget"),
        ("born", "dates: year; years 1900 to 2020", "declared in the schema: assumed public"),
        ("day", "dates: weekday", "declared in the schema: assumed public"),
    ]


@pytest.mark.parametrize("made", [None, "x", 10**30, -(10**30)])
def test_a_date_that_is_none_is_unknown(finished: RunFolder, made: object) -> None:
    assert replace(Contents.of(finished), made=made).date == "unknown"  # type: ignore[arg-type]
