"""Loops that are interrupted between two statements, and states that are taken where the model is between two rounds."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from privopt import Budget, Ledger, fit, make_private
from privopt.errors import InputError
from privopt.training.session import PaidRounds
from tests.problems import accuracy, tanh_network, tensor_rows

BUDGET = Budget(3.0, 1e-5)


def loop(model: nn.Module, **changes: Any) -> tuple[Any, list[Tensor]]:
    """A loop on rows of zeros, whose weights have no gradient but noise; and the gradients that its optimizer was given."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    answers: list[Tensor] = []
    optimizer.register_step_pre_hook(lambda *_: answers.append(next(model.parameters()).grad.clone()))  # type: ignore[union-attr]
    data = torch.zeros(40, 3), torch.zeros(40)
    return make_private(model, optimizer, data, budget=BUDGET, batch_size=20, rounds=6, seed=0, **changes), answers


def train(private: Any, model: nn.Module, *, saving: bool = False) -> None:
    def losses(batch: Any) -> Tensor:
        if saving:
            private.state_dict()
        return (model(batch[0])[:, 0] - batch[1]) ** 2

    for batch in private.loader:
        private.step(lambda batch=batch: losses(batch))


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_interrupt_beside_the_closing_of_a_round_never_repeats_its_noise(when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same noise for another iterate would reveal the difference of two sums."""
    close, interrupted = PaidRounds.close, False

    def closed(rounds: PaidRounds) -> None:
        nonlocal interrupted
        first, interrupted = not interrupted, True
        if first and when == "before":
            raise KeyboardInterrupt
        close(rounds)
        if first:
            raise KeyboardInterrupt

    monkeypatch.setattr(PaidRounds, "close", closed)
    model = nn.Linear(3, 1, bias=False)
    private, answers = loop(model)
    with pytest.raises(KeyboardInterrupt):
        train(private, model)
    train(private, model)
    assert len(answers) == 6 == sum(entry.count for entry in private.ledger.entries)
    assert len({tuple(answer.flatten().tolist()) for answer in answers}) == 6


def test_a_state_is_not_taken_inside_a_step() -> None:
    """There the model is of one round, and the generator of the round before: a resumed loop would repeat its noise."""
    model = nn.Linear(3, 1, bias=False)
    private, _ = loop(model)
    private.optimizer.register_step_post_hook(lambda *_: private.state_dict())
    with pytest.raises(InputError, match="not inside a step"):
        train(private, model)
    private, _ = loop(model)
    with pytest.raises(InputError, match="not inside a step"):
        train(private, model, saving=True)
    private, _ = loop(model)
    train(private, model)
    assert private.state_dict()["round"] == 6


class Words(Dataset[Any]):
    """Examples with a word each; the first one's is given."""

    def __init__(self, first: str) -> None:
        self._first = first

    def __len__(self) -> int:
        return 60

    def __getitem__(self, place: int) -> Any:
        numbers = torch.randn(3, generator=torch.Generator().manual_seed(place))
        return {"numbers": numbers, "word": "no" if place else self._first}, place % 2


class Loud(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(3, 2)

    def forward(self, numbers: Tensor, word: list[str]) -> Tensor:
        return self.last(numbers * torch.tensor([10.0 if said == "yes" else 1.0 for said in word])[:, None])


def test_no_default_depends_on_the_text_of_an_example() -> None:
    settings = []
    for first in ("no", "yes"):
        fitted = fit(Loud(), nn.CrossEntropyLoss(), Words(first), budget=BUDGET, rounds=2, seed=0, progress=False)
        settings.append(dict(fitted.privacy.statement.settings))
    assert settings[0] == settings[1]


def test_nothing_but_a_budget_has_to_be_said() -> None:
    inputs, targets = tensor_rows(600, 4)
    model = tanh_network(4)
    fitted = fit(model, nn.CrossEntropyLoss(), (inputs, targets), budget=Budget(8.0, 1e-4), progress=False, seed=0)
    assert accuracy(model, inputs, targets) > 0.9
    assert fitted.privacy.statement.epsilon <= 8.0


@pytest.mark.parametrize("wrong", [{"observer": 3}, {"progress": "yes"}, {"checkpoint": ""}])
def test_what_watches_a_run_is_checked_before_anything_is_paid(wrong: dict[str, Any]) -> None:
    ledger = Ledger()
    with pytest.raises(InputError):
        fit(
            nn.Linear(3, 2),
            nn.CrossEntropyLoss(),
            (torch.zeros(9, 3), torch.zeros(9).long()),
            budget=BUDGET,
            ledger=ledger,
            **wrong,
        )
    assert ledger.entries == ()
