"""The networks are those of the papers, public examples are not among the private ones, and a run keeps to its budget."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from benchmarks import pages
from benchmarks import papers_networks as papers


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def test_the_networks_are_those_of_the_paper() -> None:
    assert count(papers.autoencoder()) == 2_837_314  # "more than 2 million"
    assert count(papers.Reviewer()) - 2 * 64 == 706_690  # two of our ids are padding and unknown words
    wide, usual = (next(papers.autoencoder(gain).parameters()).detach().abs().max() for gain in (4.0, None))
    assert wide > 3 * usual


def test_public_examples_are_held_out() -> None:
    numbers = torch.arange(100)
    private, public = papers._split(numbers, numbers, 10)
    assert sorted([*private[0].tolist(), *public[0].tolist()]) == numbers.tolist()
    assert (len(private[1]), len(public[1])) == (90, 10)


def tiny() -> papers.Task:
    x = torch.randn(400, 5, generator=torch.Generator().manual_seed(0))
    private, public = papers._split(x, (x[:, 0] > 0).long(), 40)
    return papers.Task(lambda: nn.Linear(5, 2), nn.CrossEntropyLoss(), private, public, private, papers.accuracy)


@pytest.mark.parametrize("name", papers.TABLES)
@pytest.mark.parametrize("kind", ["paper", "ours"])
def test_every_row_trains_at_its_price(name: str, kind: str) -> None:
    table = papers.TABLES[name]
    for setting in table.paper if kind == "paper" else table.ours:
        assert setting.row.split(",")[0] in table.published
        short = replace(setting, rounds=4, batch=64, build=None)
        run = papers.train(tiny(), replace(table, delta=1e-5), short, 0)
        assert 0 < run["epsilon"] <= (table.epsilon if setting.noise is None else 20)
        assert setting.noise in (None, run["noise"])


def test_runs_that_a_file_holds_are_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = papers.TABLES["classification"]
    short = [replace(setting, rounds=3, batch=64) for setting in table.ours[:2]]
    monkeypatch.setattr(papers, "TABLES", {"classification": replace(table, make=tiny, delta=1e-5, ours=short)})
    file = tmp_path / "found.json"
    for seeds in (1, 2):
        monkeypatch.setattr(sys, "argv", ["", "--settings", "ours", "--seeds", str(seeds), "--json", str(file)])
        papers.main()
        runs = json.loads(file.read_text())["tables"]["classification"]["runs"]
        assert [(run["row"], run["seed"]) for run in runs] == [(s.row, seed) for seed in range(seeds) for s in short]


def test_rows_that_were_not_run_say_what_they_would_take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = papers.TABLES["classification"]
    monkeypatch.setattr(papers, "TABLES", {"classification": replace(table, make=tiny, delta=1e-5, paper=table.paper[:1])})
    file = tmp_path / "found.json"
    monkeypatch.setattr(sys, "argv", ["", "--settings", "paper", "--time", "--json", str(file)])
    papers.main()
    found = json.loads(file.read_text())
    timed = found["tables"]["classification"]["timed"]["paper"]["DP-SGD"]
    assert timed["rounds"] == table.paper[0].rounds
    assert 0 < timed["seconds"] < 10
    assert found["tables"]["classification"]["runs"] == []
    assert f"not run: {timed['rounds']:,} rounds" in pages.papers_adadps(found)
