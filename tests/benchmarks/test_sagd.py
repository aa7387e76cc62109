"""The program runs on small synthetic data, and its public rows are not among those that are trained on in private."""

import itertools

import pytest

from benchmarks import data, sagd
from privopt.linear_model import LogisticRegression


def test_it_runs() -> None:
    split = data.a9a(1500)
    for row in itertools.islice(sagd.rows(split, 1), 3):
        assert "accuracy 0." in row.value
    assert sagd.score(split, "sagd-sparse", 1.0, {"delta": 0.0, "bounds": 3.8}, 0)["accuracy"] > 0.5


def test_public_rows_are_not_private_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    split = data.a9a(1500)
    fit = LogisticRegression.fit

    def watched(self: LogisticRegression, X: object, y: list[float]) -> LogisticRegression:
        seen.append(len(y))
        return fit(self, X, y)

    monkeypatch.setattr(LogisticRegression, "fit", watched)
    sagd.score(split, "sagd-sparse", 1.0, {"delta": 0.0, "bounds": 3.8}, 0)
    assert seen == [500]
