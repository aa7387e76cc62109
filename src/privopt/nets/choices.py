"""What a user chooses for a network, validated: batch size, rounds or epochs, clip, learning rate, independence.

Independence is whether it is checked or proved that each example's loss depends on that example only.
"""

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from numbers import Integral, Real
from typing import Any, Literal, ParamSpec, TypeVar

import numpy as np

from privopt.errors import InputError
from privopt.limits import MOST_ROUNDS
from privopt.measure.randomness import Rng
from privopt.measure.samplers import Sampler, draw_rows, full_batch, poisson
from privopt.perexample.networks.unsupported import UnsupportedLayer
from privopt.perexample.persons import Persons
from privopt.privacy.budget import UNITS, Budget
from privopt.training.settings import check_rows_per_person


def check_clip(clip_bound: Any) -> None:
    """Validate a clip bound."""
    if isinstance(clip_bound, str) or (isinstance(clip_bound, Real) and not 0 < float(clip_bound) < math.inf):
        raise InputError(f"clip_bound is {clip_bound!r}, but it is a finite number > 0, or a clip of privopt.measure.clips.")


def check_physical(physical_batch_size: Any) -> None:
    """Validate how many examples go through the model at a time."""
    if physical_batch_size is not None and not (isinstance(physical_batch_size, Integral) and int(physical_batch_size) >= 1):
        raise InputError(f"physical_batch_size is {physical_batch_size!r}, but it is a whole number, at least 1, or None.")


def check_rate(learning_rate: Any, rounds: int) -> None:
    """Validate a learning rate, or what a schedule gives for each of the rounds."""
    if learning_rate is None:
        return
    scheduled = callable(learning_rate)
    for value in map(learning_rate, range(rounds)) if scheduled else [learning_rate]:
        if not (isinstance(value, Real) and 0 <= float(value) < math.inf and (float(value) > 0 or scheduled)):
            raise InputError(f"learning_rate is {value!r}, but it is a finite number > 0, or a function of the round to one.")


def check_batch(size: int, batch_size: int | None) -> None:
    """Validate the batch size for so many examples."""
    if size < 1:
        raise InputError("the data set is empty: there is nothing to train on.")
    if batch_size is not None and (not isinstance(batch_size, Integral) or batch_size < 1):
        raise InputError(f"batch_size is {batch_size!r}, but a batch holds a whole number of examples, at least one.")


def count_rounds(size: int, batch: float, epochs: float | None, rounds: int | None) -> int | None:
    """The number of rounds, or as many as make up these passes over the data; `None` if neither is chosen."""
    if epochs is not None and rounds is not None:
        raise InputError("say how long to train: epochs=… or rounds=…, and not both.")
    if epochs is not None:
        if not isinstance(epochs, Real) or not 0 < epochs < math.inf:
            raise InputError(f"epochs is {epochs!r}, but it is a finite number > 0.")
        rounds = max(1, round(min(epochs * size / batch, 2.0 * MOST_ROUNDS)))
    if rounds is not None and (not isinstance(rounds, Integral) or rounds < 1):
        raise InputError(f"rounds is {rounds!r}, but it is a whole number, at least 1.")
    if rounds is not None and rounds > MOST_ROUNDS:
        raise InputError(f"this would take more than {MOST_ROUNDS} rounds, the most that a run has. Say fewer epochs or rounds.")
    return rounds


def count_passes(size: int, batch: float, epochs: float | None, rounds: int | None) -> list[int]:
    """After how many rounds each pass over the data ends: each epoch, or all rounds in one pass.

    >>> count_passes(1000, 300, 2.5, None), count_passes(1000, 300, None, 8)
    ([3, 7, 8], [8])
    """
    total = count_rounds(size, batch, epochs, rounds)
    if total is None:
        raise InputError("say how long to train: epochs=… or rounds=…, and not both.")
    if epochs is None:
        return [total]
    ends = [round(done * size / batch) for done in range(1, math.ceil(epochs) + 1)]
    return [end for end in ends if end < total] + [total]


def need_batch_size(said: int | None, of_loader: int | None) -> int:
    """The batch size, said here or by a DataLoader."""
    if said is None and of_loader is None:
        raise InputError("say how many examples a batch has on average: batch_size=…, or that of a DataLoader.")
    if said is not None and of_loader is not None and said != of_loader:
        raise InputError(f"batch_size is {said!r}, but {of_loader} in the DataLoader. Say it once.")
    return said if said is not None else of_loader  # type: ignore[return-value]  # one of them is a number


def sampler_of(size: int, batch_size: int) -> Sampler:
    """Poisson batches, or every example if a batch holds them all."""
    return poisson(batch_size / size) if batch_size < size else full_batch()


# ---------------------------------------------------------------- persons


@dataclass(frozen=True)
class People:
    """The persons whose rows the examples are, and how many rows of a person count."""

    persons: Persons
    most: int

    def draw(self, rng: Rng) -> Persons:
        """Draw the rows that count, before anything is measured."""
        return draw_rows(self.persons, self.most, rng)

    def fingerprint(self) -> str:
        """Of who has which rows."""
        digest = hashlib.sha256(str(self.most).encode())
        for part in (self.persons.rows, self.persons.counts):
            digest.update(part.astype(np.int64).tobytes())
        return digest.hexdigest()


def find_people(ids: Any, rows_per_person: Any, rows: int, budget: Budget | None, *, torchrun: bool) -> People | None:
    """The persons, if ids say whose row each is; refused where the budget or the job is for something else."""
    if ids is None:
        if rows_per_person is not None:
            raise InputError("rows_per_person is for persons: say whose row each is, with persons=ids.")
        if budget is not None and budget.unit == "person":
            raise InputError(
                f"the budget is for {UNITS[budget.unit]}, but whose row each is was not said. Give persons=ids, or leave out "
                'unit="person" to protect each row by itself.'
            )
        return None
    if torchrun:
        raise InputError("persons=… is for one process: in a torchrun job the rows of a person could be in two of them.")
    if budget is not None and budget.unit != "person":
        raise InputError(
            f"persons are given, but the budget is for {UNITS[budget.unit]}. Say Budget({budget.epsilon:g}, {budget.delta:g}, "
            'unit="person"): δ is well below 1 / the number of persons.'
        )
    return People(Persons.of(ids, rows), check_rows_per_person(rows_per_person))


def describe_examples(size: int, people: People | None) -> str:
    """What a statement says of the number of examples, which is public."""
    if people is None:
        return f"the number of examples ({size}), their shapes and types"
    return f"the number of persons ({size}), the number of examples ({len(people.persons.rows)}), their shapes and types"


# ---------------------------------------------------------------- independence of examples


Independence = Literal["checked", "proved"]


def check_independence(independence: object) -> None:
    """Validate the argument."""
    if independence not in ("checked", "proved"):
        raise InputError(f"independence is {independence!r}; it is 'checked' or 'proved'.")


def require(independence: Independence, doubts: Sequence[str]) -> None:
    """Refuse a model whose independence was only checked, if a proof is wanted."""
    if independence == "proved" and doubts:
        raise UnsupportedLayer(
            f"it is not proved that each example's loss depends on that example only, because {'; '.join(doubts)}. Change that, "
            'or use independence="checked", which compares batches with single examples and says so in the statement.'
        )


def assumptions(doubts: Sequence[str]) -> list[str]:
    """The sentences of a statement about losses whose independence was checked and not proved.

    >>> assumptions(["a tensor is read as a Python number (model.py, line 7: n = int(mask.sum()))"])  # doctest: +ELLIPSIS
    ["each example's loss depends on that example only; not proved, because a tensor is read as a Python number (model.py, ...)"]
    """
    return [f"each example's loss depends on that example only; not proved, because {doubt}" for doubt in doubts]


# ---------------------------------------------------------------- names of Opacus


OPACUS = {  # what to write instead
    "module": "model, the first argument",
    "data_loader": "the third argument, which is a DataLoader, a dataset or a pair of tensors",
    "max_grad_norm": "clip_bound=…",
    "target_epsilon": "budget=Budget(epsilon, delta)",
    "target_delta": "budget=Budget(epsilon, delta)",
    "poisson_sampling": "nothing: batches are Poisson samples always",
    "sample_rate": "batch_size=…, which is the sample rate times the number of examples",
    "max_physical_batch_size": "physical_batch_size=…",
    "clipping": "clip_bound=…, a number or a clip such as privopt.nets.automatic(1.0)",
    "grad_sample_mode": "nothing: there is one engine",
    "loss_reduction": "nothing: losses are one for each example, and their sum is divided by the expected batch size",
    "batch_first": "nothing: the first dimension is always the example",
    "noise_generator": "seed=…, in tests only",
    "secure_mode": "nothing: noise comes from a cipher always",
}
P = ParamSpec("P")
R = TypeVar("R")


def helping_from_opacus(function: Callable[P, R]) -> Callable[P, R]:
    """Answer an argument that Opacus has, and this function does not, with what to write instead."""

    @wraps(function)
    def called(*arguments: P.args, **named: P.kwargs) -> R:
        if foreign := [name for name in named if name in OPACUS]:
            raise InputError("; ".join(f"{name} is Opacus' name. Write {OPACUS[name]}" for name in foreign) + ".")
        return function(*arguments, **named)

    return called
