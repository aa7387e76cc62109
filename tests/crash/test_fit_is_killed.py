"""`fit` is killed at any durable call: asked again, it returns the same model bit for bit, and every round is paid once."""

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.crash.killing import durable_calls, killed_at, spread
from tests.problems import cross_entropies, tanh_network, tensor_rows
from tests.processes import one_fork_server

if find_spec("torch") is None:
    pytest.skip("networks need torch", allow_module_level=True)

import torch
from torch import Tensor

import privopt.loop
from privopt import Budget, Ledger, fit
from privopt.postprocess.release import uniform_iterate

pytestmark = one_fork_server
LONG = os.environ.get("PRIVOPT_LONG") == "1"
ROUNDS = 6
WAYS: dict[str, dict[str, Any]] = {
    "dp-adam": {"method": "dp-adam", "batch_size": 40},
    "dp-sgd on samples": {"method": "dp-sgd", "learning_rate": 0.1, "batch_size": 20},
    "rrpsgd": {"method": "rrpsgd", "learning_rate": 0.1, "batch_size": 40},
    "an iterate at random": {"method": "dp-sgd", "learning_rate": 0.1, "release": uniform_iterate(), "batch_size": 40},
}
PLACES = {"dp-adam": 14, "dp-sgd on samples": 4}  # of these ways in CI, where accounting for samples takes a second; 8 of others


def train(folder: Path, way: str, seed: int | None = 7) -> None:
    """A program that trains and saves its model; asked again, it does so again."""
    torch.set_num_threads(1)
    privopt.loop.DURABILITY = 1e9  # saved after every block
    model = tanh_network(3, 4, dropout=0.2)
    with Ledger(path=folder / "ledger.jsonl") as ledger:
        result = fit(
            model,
            cross_entropies,
            tensor_rows(40, 3),
            budget=Budget(3.0, 1e-5),
            rounds=ROUNDS,
            accountant="rdp",
            ledger=ledger,
            checkpoint=folder / "state",
            progress=False,
            seed=seed,
            **WAYS[way],
        )
    torch.save((result.model.state_dict(), result.rounds, result.privacy.statement.epsilon), folder / "model.pt")


def outcome(folder: Path) -> tuple[dict[str, Tensor], int, float]:
    found: tuple[dict[str, Tensor], int, float] = torch.load(folder / "model.pt", weights_only=True)
    return found


def same(one: tuple[dict[str, Tensor], int, float], other: tuple[dict[str, Tensor], int, float]) -> bool:
    return one[1:] == other[1:] and all(torch.equal(one[0][name], other[0][name]) for name in one[0])


@pytest.mark.parametrize("way", WAYS)
def test_a_run_that_is_killed_ends_as_one_that_was_not(way: str, tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    whole.mkdir()
    calls = durable_calls(train, whole, way)
    for place in range(len(calls)) if LONG else spread(len(calls), PLACES.get(way, 8)):
        folder = tmp_path / str(place)
        folder.mkdir()
        assert killed_at(place, train, folder, way)
        durable_calls(train, folder, way)
        assert same(outcome(folder), outcome(whole)), f"another model after a kill at {calls[place]}, call {place}"
        ledger = Ledger.read(folder / "ledger.jsonl")
        assert ledger.event == Ledger.read(whole / "ledger.jsonl").event, f"not paid once after a kill at call {place}"
        assert len({entry.run for entry in ledger.entries}) == 1
        assert [path.name for path in (folder / "state").iterdir()] == ["finished.npz"], "randomness outlives its run"


def test_noise_that_nobody_knows_is_repeated_however_often_a_run_is_killed(tmp_path: Path) -> None:
    """Without a seed, killed three times: what the last process returns is returned again, for free."""
    for place in (30, 12, 8):
        assert killed_at(place, train, tmp_path, "dp-adam", None)
    durable_calls(train, tmp_path, "dp-adam", None)
    first, ledger = outcome(tmp_path), (tmp_path / "ledger.jsonl").read_bytes()
    durable_calls(train, tmp_path, "dp-adam", None)
    assert same(outcome(tmp_path), first)
    assert (tmp_path / "ledger.jsonl").read_bytes() == ledger
    assert sum(entry.count for entry in Ledger.read(tmp_path / "ledger.jsonl").entries) == ROUNDS


def test_a_finished_run_is_kept_before_its_randomness_goes(tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    calls = durable_calls(train, tmp_path / "whole", "dp-adam", None)
    end = max(place for place, call in enumerate(calls) if call == "replace")
    assert killed_at(end + 1, train, tmp_path, "dp-adam", None)  # what was released is written, the randomness still there
    kept, names = (tmp_path / "state" / "finished.npz").read_bytes(), {path.name for path in (tmp_path / "state").iterdir()}
    assert names > {"finished.npz", "begin.json"}
    durable_calls(train, tmp_path, "dp-adam", None)
    assert (tmp_path / "state" / "finished.npz").read_bytes() == kept
    assert [path.name for path in (tmp_path / "state").iterdir()] == ["finished.npz"]
