"""The statement: words that can be checked against the ledger."""

import json
import math
from dataclasses import replace

import pytest

from privopt.errors import InputError
from privopt.privacy.accountants import epsilon
from privopt.privacy.budget import Budget, describe_neighbours
from privopt.privacy.events import (
    FailureDpEvent,
    GaussianDpEvent,
    NonPrivateDpEvent,
    NoOpDpEvent,
    PoissonSampledDpEvent,
    SampledWithoutReplacementDpEvent,
    SelfComposedDpEvent,
    compose,
)
from privopt.privacy.statement import NOT_COVERED, Statement

EVENT = compose([SelfComposedDpEvent(PoissonSampledDpEvent(0.01, GaussianDpEvent(8.5)), 300), FailureDpEvent(1e-7)])
STATEMENT = Statement(
    budget=Budget(2.0, 1e-5),
    event=EVENT,
    released="the coefficients",
    examples=32561,
    assumed_public=["the number of rows"],
    paid_for=["column ranges"],
    public_data=["a word list"],
    assumed=["examples do not mix"],
    cap="at most ε = 3 by Rényi composition",
    noise="ChaCha8, keyed with 256 bits",
    settings={"rounds": 300, "rate": 0.1234567891},
)


def test_the_stated_epsilon_is_what_the_accountant_says_of_the_recorded_event() -> None:
    assert STATEMENT.epsilon == epsilon(EVENT, 1e-5)
    assert f"ε = {STATEMENT.epsilon:.4g}, δ = 1e-05" in str(STATEMENT)


def test_the_words_say_what_was_done_to_whom_and_what_is_not_covered() -> None:
    text = STATEMENT.text()
    for words in (
        "Unit: one example (row).",
        "Neighbours: one example's contribution added or removed while the number of examples stays public (zero-out).",
        "Planned budget: ε = 2",
        "Released: the coefficients",
        "300 × Gaussian mechanism, noise multiplier 8.5, Poisson sampling with probability 0.01",
        "failure probability 1e-07",
        "Accountant: pld",
        "Taken as public:\n  - the number of rows",
        "inside this budget:\n  - column ranges",
        "Public data used:\n  - a word list",
        "Assumed (checked, but not proved):\n  - examples do not mix",
        "Ledger: at most ε = 3 by Rényi composition.",
        "Noise: ChaCha8, keyed with 256 bits.",
        *NOT_COVERED,
    ):
        assert words in text
    assert "WARNING" not in text


def test_a_seeded_run_is_marked() -> None:
    text = Statement(STATEMENT.budget, EVENT, "a model", seeded=True).text()
    assert "WARNING: the noise came from a fixed seed" in text
    assert "Noise:" not in text


def test_a_delta_that_allows_to_publish_examples_is_marked() -> None:
    assert "CAUTION: delta = 1e-05 is not below 1/n" in replace(STATEMENT, examples=100_000).text()
    for harmless in (STATEMENT, replace(STATEMENT, examples=99_999)):
        assert "CAUTION" not in harmless.text()


def test_replace_one_and_the_accountant_in_use_are_named() -> None:
    event = SampledWithoutReplacementDpEvent(1000, 10, GaussianDpEvent(3.0))
    text = Statement(Budget(1.0, 1e-5, "replace-one"), event, "a model").text()
    assert "Neighbours: one example replaced by another, while the number of examples stays public." in text
    assert "zero-out" not in text
    assert "Accountant: rdp" in text


def test_json_gives_the_statement_back() -> None:
    written = json.loads(json.dumps(STATEMENT.to_json()))
    read = Statement.from_json(written)
    assert read == STATEMENT
    assert written["not_covered"] == list(STATEMENT.not_covered)
    assert written["unit"] == "one example (row)"
    assert written["neighbours"] == describe_neighbours("add-remove")


def test_a_statement_of_a_unit_that_nobody_enforces_is_not_read() -> None:
    written = STATEMENT.to_json()
    with pytest.raises(InputError, match="unit is 'household'"):
        Statement.from_json(written | {"budget": written["budget"] | {"unit": "household"}})


def test_a_statement_for_persons_says_so_and_is_read_back() -> None:
    statement = replace(STATEMENT, budget=replace(STATEMENT.budget, unit="person"))
    assert "Unit: one person (all rows of a person together)." in statement.text()
    assert "one person's contribution added or removed while the number of persons stays public" in statement.text()
    assert "people with several" not in statement.text()
    assert "people who have rows under several ids" in statement.text()
    assert Statement.from_json(statement.to_json()) == statement


@pytest.mark.parametrize("words", ["people with several rows", "steps before this one", "that an error was raised"])
def test_what_no_training_here_covers_is_always_listed(words: str) -> None:
    assert words in Statement(Budget(1.0, 1e-5), NoOpDpEvent(), "nothing").text().partition("Not covered:")[2]


def test_an_epsilon_that_somebody_wrote_into_the_json_is_not_believed() -> None:
    written = STATEMENT.to_json() | {"epsilon": 1e-3}
    assert Statement.from_json(written).to_json()["epsilon"] == STATEMENT.to_json()["epsilon"]


def test_a_page_holds_the_words_and_runs_none_of_them() -> None:
    page = Statement(Budget(2.0, 1e-5), EVENT, "<script>alert(1)</script>", settings={"<b>": "<i>", "rate": 0.5}).to_html()
    assert "&lt;script&gt;alert(1)" in page
    assert "<script" not in page
    assert "&lt;b&gt;" in page
    assert "<i>" not in page
    assert "noise multiplier 8.5" in page


@pytest.mark.parametrize("event", [GaussianDpEvent(0.0), NonPrivateDpEvent()], ids=str)
def test_a_release_without_privacy_is_stated_as_one(event: GaussianDpEvent | NonPrivateDpEvent) -> None:
    statement = Statement(Budget(1.0, 1e-5), event, "everything", noise="ChaCha8")
    assert statement.epsilon == math.inf
    assert "Noise:" not in statement.text()
    assert "NO GUARANTEE" in statement.text()
    assert "ε = inf" in statement.text()
    assert "differentially private" not in statement.text()
    assert "no guarantee" in statement.to_html()
    assert "differentially private" not in statement.to_html()
    assert not statement.private
    assert statement.to_json()["epsilon"] is None
    assert Statement.from_json(json.loads(json.dumps(statement.to_json()))).epsilon == math.inf


def test_nothing_released_is_stated_as_nothing_spent() -> None:
    assert "ε = 0" in Statement(Budget(1.0, 1e-5), NoOpDpEvent(), "nothing").text()


def test_it_may_be_called_like_that_of_a_private_loop() -> None:
    assert STATEMENT() is STATEMENT
