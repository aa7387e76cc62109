"""What `fit` shows while it trains: a bar in a terminal, nothing elsewhere, and never a number measured on private data."""

import re
import sys
from typing import Any

import pytest
import torch
from torch import nn

from privopt import Budget
from privopt.nets import fit
from tests.problems import tensor_rows
from tests.test_progress import Terminal

X, Y = tensor_rows(300, 4)


def shown(monkeypatch: pytest.MonkeyPatch, screen: Terminal, **settings: Any) -> str:
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "xterm")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))
    budget = Budget(3.0, 1e-4)
    fit(model, nn.CrossEntropyLoss(), (X, Y), budget=budget, rounds=20, batch_size=300, seed=0, **settings)
    return re.sub(r"\x1b\[[?\d;]*[a-zA-Z]", "", screen.getvalue())


def test_a_terminal_shows_rounds_epsilon_and_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    last = shown(monkeypatch, Terminal()).strip().splitlines()[-1]
    assert re.search(r"training ━+ 20/20 rounds  ε ≤ 2\.99\d 0:00:00$", last)


def test_the_loss_is_shown_on_public_data_only(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "loss" not in shown(monkeypatch, Terminal())
    assert re.search(r"public loss \d", shown(monkeypatch, Terminal(), public=(X[:5], Y[:5])))


def test_silence_can_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(monkeypatch, Terminal(), progress=False) == ""


def test_watching_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = []
    asked: list[dict[str, Any]] = [{"progress": False}, {"public": (X[:5], Y[:5])}]
    for settings in asked:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))
        monkeypatch.setattr(sys, "stderr", Terminal())
        budget = Budget(3.0, 1e-4)
        fit(model, nn.CrossEntropyLoss(), (X, Y), budget=budget, rounds=9, batch_size=300, seed=0, **settings)
        ends.append(nn.utils.parameters_to_vector(model.parameters()))
    assert torch.equal(*ends)
