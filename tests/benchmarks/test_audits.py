"""The program plays games and writes what they show."""

import json
import sys
from pathlib import Path

import pytest

from benchmarks import audits


def test_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "audits.json"
    monkeypatch.setattr(sys, "argv", ["audits.py", "--times", "0.05", "--only", "laplace", "--json", str(file)])
    assert audits.main() == 0
    written = json.loads(file.read_text())
    assert [row["game"] for row in written["audits"]] == ["laplace"]
    assert 0 < written["audits"][0]["bound"] < written["audits"][0]["claim"] == pytest.approx(2.0)
    assert "--only laplace" in written["command"]
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80
