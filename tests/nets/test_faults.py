"""Faults in loops: whatever raises in a round, wherever, what leaves was paid for, and no example counts twice.

Every call of privopt's in a round, and every return from one, raises once; then the loop is entered again, goes on, or is resumed
from a state that was saved. A sample of the places; PRIVOPT_LONG=1 tries all of them.
"""

import os
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from privopt import Budget, Ledger, fit
from privopt.errors import InputError
from privopt.measure.measurement import OpenRound
from privopt.measure.mechanisms import gaussian
from privopt.nets import Private, attachment, make_private
from privopt.nets.loading import Examples
from privopt.perexample.networks import TorchGrads, torch_oracle
from privopt.perexample.networks.tape import Tape
from privopt.training import session
from tests.nets import faults
from tests.nets.faults import CLIP, Fault, Faults, Released, data, network, once

LONG = os.environ.get("PRIVOPT_LONG") == "1"
ROUNDS = 4
SETTINGS: dict[str, Any] = {
    "budget": Budget(3.0, 1e-5),
    "rounds": ROUNDS,
    "batch_size": 4,
    "clip_bound": CLIP,
    "physical_batch_size": 2,
    "accountant": "rdp",
    "seed": 1,
}
pytestmark = [
    pytest.mark.filterwarnings("ignore::privopt.errors.PrivoptWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # faults while a generator is thrown away
]


@pytest.fixture(autouse=True)
def _few_rounds_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "AHEAD", 2)


@pytest.fixture(autouse=True)
def _torch_as_it_was() -> Iterator[None]:
    """A fault at a `yield` is raised past the `finally` of its generator, which no real error does: modes of torch stay on."""
    depth = torch._C._len_torch_function_stack()
    yield
    torch.set_grad_enabled(True)
    while torch._C._len_torch_function_stack() > depth:
        torch._C._pop_torch_function_stack()


@pytest.fixture
def released(monkeypatch: pytest.MonkeyPatch) -> Released:
    return Released(monkeypatch)


@pytest.fixture
def _model_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check of a model comes before anything that raises here, and there is one model: its answer is kept."""
    for module, name in ((attachment, "check_model"), (torch_oracle, "check_with_small_tables")):
        monkeypatch.setattr(module, name, kept(getattr(module, name)))


def kept(call: Callable[..., Any]) -> Callable[..., Any]:
    """The same call, which is made once."""
    answers: list[Any] = []

    def called(*arguments: Any) -> Any:
        if not answers:
            answers.append(call(*arguments))
        return answers[0]

    return called


# ---------------------------------------------------------------- loops of the user's own


def begun(ledger: Ledger) -> Private:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return make_private(model, optimizer, list(zip(*data(), strict=True)), ledger=ledger, **SETTINGS)


def losses(private: Private, batch: Any) -> Tensor:
    inputs, targets = batch
    return faults.loss(private.model(inputs), targets)


def loop(private: Private) -> None:
    for batch in private.loader:
        private.step(lambda batch=batch: losses(private, batch))  # type: ignore[misc]


def states(private: Private) -> tuple[Any, ...]:
    return deepcopy((private.model.state_dict(), private.optimizer.state_dict(), private.state_dict()))


def resumed(ledger: Ledger, state: tuple[Any, ...]) -> Private:
    private = begun(ledger)
    private.model.load_state_dict(state[0])
    private.optimizer.load_state_dict(state[1])
    private.load_state_dict(state[2])
    return private


def entered_again(ledger: Ledger, fault: Faults) -> None:
    private = begun(ledger)
    try:
        with fault.inside():
            loop(private)
    except Fault:
        loop(private)
    assert private.rounds == ROUNDS


def gone_on_inside(ledger: Ledger, fault: Faults) -> None:
    """The loop catches what its step raises, and goes on with the next batch; the same batch is tried again first."""
    private = begun(ledger)

    def caught() -> None:
        with fault.inside():
            for batch in private.loader:
                for _ in range(2):
                    try:
                        private.step(lambda batch=batch: losses(private, batch))  # type: ignore[misc]
                        break
                    except Fault:
                        pass
                    except InputError:  # the batch is used up
                        break

    try:
        caught()
    except (Fault, InputError):  # the loader itself
        loop(private)
    assert private.rounds == ROUNDS


def resumed_from_a_state(ledger: Ledger, fault: Faults) -> None:
    """The loop is left for dead, and another one starts from the state that was saved last."""
    private = begun(ledger)
    state = states(private)
    try:
        with fault.inside():
            for batch in private.loader:
                if private.step(lambda batch=batch: losses(private, batch)) and private.rounds == 1:  # type: ignore[misc]
                    state = states(private)
    except Fault:
        pass
    private = resumed(ledger, state)
    loop(private)
    assert private.rounds == ROUNDS


def gone_on_and_resumed(ledger: Ledger, fault: Faults) -> None:
    """The loop goes on after the fault, and then another one starts from a state that was saved before it."""
    private = begun(ledger)
    state = states(private)
    try:
        with fault.inside():
            loop(private)
    except Fault:
        loop(private)
    loop(resumed(ledger, state))


NO_FAULT = Faults()  # whose program has a fault of its own
WAYS: list[Callable[[Ledger, Faults], None]] = [entered_again, gone_on_inside, resumed_from_a_state, gone_on_and_resumed]


@cache
def loop_without_fault() -> Faults:
    for fault in (Faults(), Faults()):  # what is loaded when it is first used is loaded by the first
        entered_again(Ledger(), fault)
    return fault


@pytest.mark.usefixtures("_model_checked_once")
@pytest.mark.parametrize("way", WAYS)
def test_whichever_call_of_a_loop_raises_what_left_was_paid(way: Callable[[Ledger, Faults], None], released: Released) -> None:
    whole = loop_without_fault()
    for at in range(len(whole.met)) if LONG else whole.places(slice(WAYS.index(way), None, len(WAYS))):
        ledger, fault = Ledger(), Faults(at)
        with released.checked(ledger, fault):
            way(ledger, fault)
        assert len(fault.met) > at


PASS = "the pass that computes gradients"  # of a round that is paid: checks and rehearsals, which come before, call it too
PLACES: dict[str, tuple[Any, str, int]] = {  # what is called, and which time it raises
    "a closure": (faults, "loss", 9),
    "a closure, when it is checked": (faults, "loss", 3),
    "reading a batch": (Examples, "read_sorted", 4),
    PASS: (Tape, "factors", 3),
    "a clipped sum": (TorchGrads, "clipped_sum", 3),
    "the sum of a piece": (OpenRound, "add", 3),
    "the noise": (gaussian, "begin", 1),
    "the answer": (OpenRound, "finish", 1),
    "the optimizer": (torch.optim.SGD, "step", 1),
    "the ledger": (Ledger, "_append", 1),
}


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("way", [entered_again, gone_on_inside, gone_on_and_resumed])
def test_wherever_a_loop_fails_what_left_was_paid(
    way: Callable[[Ledger, Faults], None], place: str, after: bool, released: Released, monkeypatch: pytest.MonkeyPatch
) -> None:
    where, name, when = PLACES[place]
    ledger, times = Ledger(), list[bool]()
    counts = (lambda: bool(ledger.entries)) if place == PASS else (lambda: True)
    monkeypatch.setattr(where, name, once(getattr(where, name), times, after=after, when=when, counts=counts))
    with released.checked(ledger, NO_FAULT):
        way(ledger, NO_FAULT)
    assert times[when]


# ---------------------------------------------------------------- fit


def fitted_again(ledger: Ledger, fault: Faults, folder: Path | None = None) -> None:
    """A run that is asked for again after it has failed; without a checkpoint it is another run."""

    def fitted(seed: int) -> None:
        settings = SETTINGS | {"learning_rate": 0.1, "progress": False, "seed": seed}
        fit(network(), faults.loss, data(), ledger=ledger, checkpoint=folder, **settings)

    try:
        with fault.inside():
            fitted(1)
    except Fault:
        fitted(2 if folder is None else 1)


@cache
def fit_without_fault() -> Faults:
    for fault in (Faults(within="run"), Faults(within="run")):
        fitted_again(Ledger(), fault)
    return fault


@pytest.mark.usefixtures("_model_checked_once")
@pytest.mark.parametrize("checkpoint", [True, False], ids=["with a checkpoint", "without one"])
def test_whichever_call_of_fit_raises_what_left_was_paid(
    checkpoint: bool, released: Released, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("privopt.loop.DURABILITY", 1e9)  # saved after every block
    whole = fit_without_fault()
    for at in range(len(whole.met)) if LONG else whole.places(slice(checkpoint, None, 3)):
        ledger, fault = Ledger(), Faults(at, within="run")
        with released.checked(ledger, fault):
            fitted_again(ledger, fault, tmp_path / str(at) if checkpoint else None)
        assert len(fault.met) > at
        rounds = sum(entry.count for entry in ledger.entries)
        assert rounds == ROUNDS if checkpoint else ROUNDS <= rounds <= 2 * ROUNDS
