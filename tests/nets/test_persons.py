"""`fit` and `make_private` for persons: what is drawn, clipped, claimed and replayed."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from privopt import Budget, Ledger
from privopt.errors import CompositionError, InputError, PrivoptError
from privopt.measure.clips import adaptive, automatic, per_layer
from privopt.nets import fit, fitting, loops, make_private
from privopt.nets.private_loop import Private
from privopt.perexample.networks import TorchPersonOracle
from privopt.perexample.persons import Persons
from privopt.privacy.events import PoissonSampledDpEvent, atoms
from tests.problems import accuracy, difference, tanh_network, tensor_rows
from tests.stopped import StopAt, Stopped

BUDGET = Budget(3.0, 1e-4, unit="person")
PERSONS = 300
COUNTS = np.random.default_rng(0).integers(1, 9, PERSONS)
IDS = np.random.default_rng(1).permutation(np.repeat(np.arange(PERSONS), COUNTS))  # rows of a person are anywhere
LOSS = nn.CrossEntropyLoss()


def data() -> tuple[Tensor, Tensor]:
    return tensor_rows(len(IDS), columns=6, score=difference)


def network() -> nn.Module:
    return tanh_network(6, 8, dropout=0.1)


def parameters(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


def trained(**given: Any) -> Any:
    settings = {"budget": BUDGET, "persons": IDS, "rounds": 12, "batch_size": 30, "seed": 0, "progress": False}
    return fit(network(), LOSS, data(), **(settings | given))


# ---------------------------------------------------------------- what is claimed


def test_fit_learns_and_claims_one_person() -> None:
    fitted = trained(rounds=60, batch_size=60, rows_per_person=4)
    assert accuracy(fitted.model, *data()) > 0.8
    statement = fitted.privacy.statement
    assert statement.epsilon <= 3.0
    text = statement.text()
    for words in (
        "Unit: one person (all rows of a person together).",
        f"the number of persons ({PERSONS}), the number of examples ({len(IDS)})",
        "batch size: 60 of 300 on average (Poisson)",
        "rows of a person, at most: 4",
    ):
        assert words in text
    ((event, count),) = atoms(fitted.ledger.event)
    assert isinstance(event, PoissonSampledDpEvent)
    assert (event.sampling_probability, count) == (0.2, 60)


def test_the_ledger_of_persons_holds_nothing_for_rows(tmp_path: Path) -> None:
    with Ledger(BUDGET, tmp_path / "ledger.jsonl") as ledger:
        trained(ledger=ledger)
    assert Ledger.read(tmp_path / "ledger.jsonl").budget == BUDGET
    with pytest.raises(CompositionError, match="Use a ledger of the same unit"):
        trained(ledger=Ledger(Budget(3.0, 1e-4)))


def test_the_rows_that_count_are_drawn_once_and_are_those_of_each_person() -> None:
    seen: list[Persons] = []

    class Watched(TorchPersonOracle):
        def __init__(self, rows: Any, persons: Persons) -> None:
            seen.append(persons)
            super().__init__(rows, persons)

    with mock.patch.object(fitting, "TorchPersonOracle", Watched):
        trained(rows_per_person=3)
    (drawn,) = seen
    assert drawn.size == PERSONS
    whose = IDS[drawn.rows]
    assert len(set(drawn.rows.tolist())) == len(drawn.rows)
    assert all(len(set(part.tolist())) == 1 for part in np.split(whose, np.cumsum(drawn.counts)[:-1]))
    assert sorted(drawn.counts) == sorted(np.minimum(COUNTS, 3))


# ---------------------------------------------------------------- the same whichever way it is computed


@pytest.mark.parametrize("method", ["dp-sgd", "dp-adam", "dp-srm", "spiderboost", "adadps", "dp2-rmsprop", "dp-gd"])
def test_every_method_trains_for_persons(method: str) -> None:
    options = {"scale": np.full(74, 0.5)} if method == "adadps" else {}
    batch = None if method == "dp-gd" else 30
    fitted = trained(method=method, rounds=6, batch_size=batch, options=options)
    assert fitted.privacy.statement.budget.unit == "person"


@pytest.mark.parametrize("clip", [automatic(1.0), adaptive(1.0), per_layer({"0": 1.0, "3": 1.0}), 0.5])
def test_a_person_is_never_cut_so_the_size_of_pieces_does_not_matter(clip: Any) -> None:
    def model(physical: int) -> Tensor:
        plain = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Identity(), nn.Linear(8, 2))
        torch.manual_seed(0)
        for parameter in plain.parameters():
            nn.init.normal_(parameter, std=0.3)
        settings: dict[str, Any] = {"rounds": 5, "batch_size": 30, "seed": 0, "clip_bound": clip, "progress": False}
        fit(plain, LOSS, data(), budget=BUDGET, persons=IDS, physical_batch_size=physical, **settings)
        return parameters(plain)

    for physical in (1, 10):
        torch.testing.assert_close(model(physical), model(4096), rtol=1e-3, atol=1e-4)


def test_persons_with_one_row_are_rows() -> None:
    """But for the draw of rows, which comes first: so the noise is another, and the claim is the same."""
    ids = np.arange(len(IDS))
    persons = trained(persons=ids).privacy.statement
    rows = trained(persons=None, budget=Budget(3.0, 1e-4)).privacy.statement
    assert persons.event == rows.event


# ---------------------------------------------------------------- loops


def begun(**given: Any) -> Private:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.2), nn.Linear(8, 2))
    settings = {"budget": BUDGET, "persons": IDS, "rounds": 12, "batch_size": 60, "physical_batch_size": 40, "seed": 0}
    settings["rows_per_person"] = 4
    return make_private(model, torch.optim.Adam(model.parameters(), lr=0.05), data(), **(settings | given))


def looped(private: Private, after: Callable[[bool], None] = lambda updated: None) -> Tensor:
    for inputs, targets in private.loader:
        after(private.step(lambda: nn.functional.cross_entropy(private.model(inputs), targets, reduction="none")))  # noqa: B023
    return parameters(private.model)


def saved(private: Private) -> dict[str, Any]:
    buffer = io.BytesIO()
    states = private.model.state_dict(), private.optimizer.state_dict(), private.state_dict()
    torch.save(dict(zip(("model", "optimizer", "private"), states, strict=True)), buffer)
    return dict(torch.load(io.BytesIO(buffer.getvalue()), weights_only=True))


def resumed(private: Private, state: dict[str, Any]) -> Private:
    private.model.load_state_dict(state["model"])
    private.optimizer.load_state_dict(state["optimizer"])
    private.load_state_dict(state["private"])
    return private


def test_a_loop_hands_out_whole_persons_and_claims_one_person() -> None:
    private = begun()
    x, _ = data()
    number = {tuple(row): place for place, row in enumerate(x.tolist())}
    pieces: list[list[int]] = []
    for inputs, targets in private.loader:
        whose = [int(IDS[number[tuple(row)]]) for row in inputs.tolist()]
        updated = private.step(lambda: nn.functional.cross_entropy(private.model(inputs), targets, reduction="none"))  # noqa: B023
        if private.rounds >= 1:  # the first pieces are parts, for a rehearsal
            pieces.append(whose)
        if updated and len(pieces) > 1:
            everybody = [person for piece in pieces for person in dict.fromkeys(piece)]
            assert len(everybody) == len(set(everybody))  # nobody is in two pieces of a round
            assert all(sum(piece.count(one) for piece in pieces) == min(4, COUNTS[one]) for one in everybody)
            pieces = []
        elif updated:
            pieces = []
    text = private.statement().text()
    assert "Unit: one person" in text
    assert f"the number of persons ({PERSONS})" in text
    assert "rows of a person, at most: 4" in text
    assert private.epsilon() <= 3.0


@pytest.mark.parametrize("at", [0, 5])
def test_a_loop_goes_on_bit_for_bit_with_the_rows_that_were_drawn(at: int) -> None:
    whole = begun()
    wanted = looped(whole)
    private = begun()
    state = saved(private)

    def after(updated: bool) -> None:
        nonlocal state
        if updated and private.rounds == at:
            state = saved(private)

    looped(private, after)
    again = resumed(begun(seed=99), state)  # which has drawn other rows
    assert torch.equal(looped(again), wanted)
    assert again.statement().event == whole.statement().event


@pytest.mark.parametrize("given", [{"persons": IDS[::-1].copy()}, {"rows_per_person": 3}])
def test_a_state_of_other_persons_is_refused(given: dict[str, Any]) -> None:
    state = saved(begun())
    with pytest.raises(PrivoptError, match="not those that this state was saved with"):
        resumed(begun(**given), state)


def test_a_loop_that_forgets_the_persons_is_refused() -> None:
    private = begun()
    private._persons = None
    with pytest.raises(CompositionError, match="each_person"):
        looped(private)


# ---------------------------------------------------------------- killed and resumed


def test_a_killed_fit_is_resumed_with_the_same_rows(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"rows_per_person": 2, "rounds": 30}
    whole = trained(**settings)
    with Ledger(path=tmp_path / "ledger.jsonl") as ledger:
        settings |= {"ledger": ledger, "checkpoint": tmp_path / "state"}
        with pytest.raises(Stopped):
            trained(**settings, progress=StopAt(11))
        assert torch.equal(parameters(trained(**settings, seed=0).model), parameters(whole.model))
        assert ledger.event == whole.ledger.event


def test_resuming_with_other_persons_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        trained(checkpoint=tmp_path / "state", progress=StopAt(1))
    for other in ({"persons": IDS[::-1].copy()}, {"rows_per_person": 5}):
        with pytest.raises(InputError, match="not those that this run began with"):
            trained(checkpoint=tmp_path / "state", **other)


# ---------------------------------------------------------------- refused


@pytest.mark.parametrize("train", [trained, begun], ids=["fit", "make_private"])
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"budget": Budget(3.0, 1e-4)}, r"persons are given, but the budget is for one example .*unit=.person."),
        ({"persons": None, "rows_per_person": None}, "whose row each is was not said. Give persons=ids"),
        ({"persons": None, "budget": Budget(3.0, 1e-4), "rows_per_person": 3}, "say whose row each is, with persons=ids"),
        ({"persons": IDS[1:]}, "each has one id"),
        ({"persons": np.zeros(len(IDS))}, "one person"),
        ({"rows_per_person": 0}, "at least 1"),
        ({"rows_per_person": 2.5}, "whole number"),
    ],
)
def test_persons_that_cannot_be_are_refused(train: Callable[..., Any], given: dict[str, Any], message: str) -> None:
    ledger = Ledger()
    with pytest.raises(PrivoptError, match=message):
        train(ledger=ledger, **given)
    assert not list(atoms(ledger.event))


@pytest.mark.parametrize("module", [fitting, loops])
def test_persons_in_a_torchrun_job_are_refused(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "join", lambda: mock.sentinel.ranks)
    monkeypatch.setattr(module, "count_examples", lambda ranks, data, sharded: len(data))
    with pytest.raises(InputError, match="torchrun job"):
        trained() if module is fitting else begun()


def test_a_method_that_bounds_losses_of_rows_is_refused() -> None:
    with pytest.raises(PrivoptError, match="one person"):
        trained(method="dp-agd", batch_size=None)
