"""A killed run goes on with the same data only: all of them are compared, whatever holds them."""

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from privopt.errors import InputError
from privopt.nets.data import content
from tests.processes import Connection, answered, one_fork_server


class Rows(Dataset[Any]):
    """Rows of tensors or of arrays, of which one may be another."""

    def __init__(self, kind: str, changed: int | None = None) -> None:
        self.kind, self.changed = kind, changed

    def __len__(self) -> int:
        return 300

    def __getitem__(self, place: int) -> tuple[Any, int]:
        row = np.full(3, float(place) * (100 if place == self.changed else 1))
        return (torch.from_numpy(row) if self.kind == "tensors" else row), place % 2


@pytest.mark.parametrize("kind", ["tensors", "arrays"])
def test_any_example_counts(kind: str) -> None:
    assert content(Rows(kind)) == content(Rows(kind))
    assert content(Rows(kind, changed=7)) != content(Rows(kind))


def find(connection: Connection, kind: str) -> None:
    connection.send(content(Rows(kind)))


@one_fork_server
@pytest.mark.parametrize("kind", ["tensors", "arrays"])
def test_another_process_finds_the_same(kind: str) -> None:
    assert answered(find, kind) == content(Rows(kind))


def test_examples_that_are_drawn_anew_are_drawn_alike() -> None:
    class Augmented(Rows):
        def __getitem__(self, place: int) -> tuple[Any, int]:
            return torch.randn(3), place % 2

    before = torch.get_rng_state()
    assert content(Augmented("tensors")) == content(Augmented("tensors"))
    assert torch.equal(before, torch.get_rng_state())


def test_numbers_of_numpy_and_python_are_drawn_alike_and_the_users_go_on() -> None:
    class Augmented(Rows):
        def __getitem__(self, place: int) -> tuple[Any, int]:
            return torch.tensor([random.random(), np.random.rand()]), place % 2  # noqa: NPY002

    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    wanted = random.random(), np.random.rand()  # noqa: NPY002
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    assert content(Augmented("tensors")) == content(Augmented("tensors"))
    assert (random.random(), np.random.rand()) == wanted  # noqa: NPY002


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_examples_that_a_seed_does_not_repeat_are_refused(share: float) -> None:
    """Of 32 examples none is drawn with probability 2^-32."""

    class Augmented(Rows):
        def __init__(self) -> None:
            super().__init__("tensors")
            self.rng = np.random.default_rng(0)

        def __getitem__(self, place: int) -> tuple[Any, int]:
            moved = self.rng.normal() if self.rng.uniform() < share else 0.0
            return torch.full((3,), place + moved), place % 2

    with pytest.raises(InputError, match="gives other examples each time"):
        content(Augmented())
