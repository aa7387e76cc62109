"""Large tables of embeddings are checked on a few rows, with the ids as they are, and are afterwards what they were."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from privopt.perexample.networks import TorchOracle
from privopt.perexample.networks.isolation import small_tables
from privopt.perexample.networks.isolation.model_check import check_model
from privopt.perexample.networks.unsupported import UnsupportedLayer

ROWS = 40


@pytest.fixture(autouse=True)
def _every_table_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_tables, "LARGE", 0)
    monkeypatch.setattr(small_tables, "PERIOD", 17)


class Words(nn.Module):
    """The mean of the words' embeddings, and a linear layer."""

    def __init__(self, padding: int | None = None) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(ROWS, 3, padding_idx=padding), nn.Linear(3, 2)

    def forward(self, ids: Tensor) -> Tensor:
        found: Tensor = self.head(self.table(ids).mean(1))
        return found


class Trimmed(Words):
    """Leaves out the places where all examples have the last word, so that one example decides how long the others are."""

    def forward(self, ids: Tensor) -> Tensor:
        kept = (ids != ROWS - 1).any(0)
        found: Tensor = self.head(self.table(ids[:, kept]).mean(1))
        return found


class Centred(Words):
    """Subtracts the mean of the batch."""

    def forward(self, ids: Tensor) -> Tensor:
        words = self.table(ids).mean(1)
        found: Tensor = self.head(words - words.mean(0))
        return found


class Tied(Words):
    """Predicts words, by the table itself."""

    def forward(self, ids: Tensor) -> Tensor:
        return F.linear(self.table(ids).mean(1), self.table.weight) + 0 * self.head(self.table(ids).mean(1)).sum(1, keepdim=True)


def data(classes: int = 2) -> tuple[Tensor, Tensor]:
    return torch.randint(0, ROWS, (30, 5)), torch.randint(0, classes, (30,))


def oracle(model: nn.Module, classes: int = 2) -> TorchOracle:
    return TorchOracle(model, nn.CrossEntropyLoss(), *data(classes))


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows the table had in each check."""
    rows = list[int]()

    def check(recorder: Any, *given: Any) -> Any:
        rows.append(recorder.model.table.weight.shape[0])
        return check_model(recorder, *given)

    monkeypatch.setattr(small_tables, "check_model", check)
    return rows


@pytest.mark.parametrize("padding", [None, 2, ROWS - 1])
def test_a_table_is_checked_on_a_few_rows_and_is_then_what_it_was(padding: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, model = counted(monkeypatch), Words(padding)
    weight, values = model.table.weight, model.table.weight.detach().clone()
    found = oracle(model)
    assert (rows, found.doubts) == ([17], [])
    assert model.table.weight is weight
    assert torch.equal(model.table.weight, values)
    assert (model.table.padding_idx, len(model.table._forward_pre_hooks)) == (padding, 0)
    assert found(None, None).norms().isfinite().all()


@pytest.mark.parametrize("make", [Trimmed, Centred])
def test_a_model_that_mixes_examples_is_refused_by_the_ids_as_they_are(
    make: Callable[[], Words], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`Trimmed` mixes at the last word of the whole table only."""
    rows, model = counted(monkeypatch), make()
    with pytest.raises(UnsupportedLayer):
        oracle(model)
    assert rows == [17, ROWS]
    assert model.table.weight.shape[0] == ROWS


def test_a_table_that_is_used_beside_lookups_is_checked_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = counted(monkeypatch)
    oracle(Tied(), classes=ROWS)
    assert rows == [17, ROWS]


def test_a_table_that_has_two_owners_is_checked_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, model = counted(monkeypatch), Words()
    model.head = nn.Linear(3, ROWS)
    model.head.weight = model.table.weight
    oracle(model, classes=ROWS)
    assert rows == [ROWS]


class Looking(Words):
    """Subtracts the mean of the batch if its table is large."""

    def forward(self, ids: Tensor) -> Tensor:
        words = self.table(ids).mean(1)
        found: Tensor = self.head(words - words.mean(0) if self.table.weight.shape[0] == ROWS else words)
        return found


def test_code_that_looks_at_the_size_of_a_table_is_checked_with_the_table() -> None:
    with pytest.raises(UnsupportedLayer, match=r"not those of each example alone|depends on other"):
        TorchOracle(Looking(), nn.CrossEntropyLoss(), torch.randint(ROWS, (5, 6)), torch.randint(2, (5,)))
