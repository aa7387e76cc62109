"""What reaches a terminal: no control codes and no markup of whoever named a column, a class or a file."""

import io
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from privopt.cli.application import app
from privopt.escaping import standard_error
from tests.hostile.commands import check, refused, run, table, train, write_schema

EVIL = "\x1b[2J\x1b]0;owned\x07[bold red]age[/]\u202eegA\nε = 0.001"


def evil_rows(path: Path) -> Path:
    frame = table().drop(columns="note").rename(columns={"age": EVIL})
    frame["sick"] = frame["sick"].map({"yes": f"yes{EVIL}", "no": "no"})
    frame.to_csv(path, index=False)
    return path


def test_a_column_cannot_write_to_the_terminal_nor_forge_a_line(tmp_path: Path) -> None:
    file, out = evil_rows(tmp_path / "rows.csv"), tmp_path / "[red]run\x1b[2J"
    done = run(*train(file, "--out", out))
    assert done.exit_code == 0
    assert "\\x1b[2J" in done.stdout
    assert "[bold red]age[/]" in done.stdout
    assert "[red]run" in done.stdout
    assert not any(line.strip(" │").startswith("ε = 0.001") for line in done.stdout.splitlines())
    check(run("show", out).stdout, "")
    names = json.loads((out / "model.json").read_text())["names"]
    assert any(name.startswith(f"{EVIL} at ") for name in names)
    for written in ("statement.txt", "statement.html"):
        assert "\x1b" not in (out / written).read_text()
    assert "\\x1b[2J" in refused("predict", out, file, "--target", EVIL + "x")
    assert "[bold red]age[/]" in refused(*train(file, "--target", EVIL + "x"))
    pd.DataFrame({"a": [1]}).to_csv(tmp_path / "other.csv", index=False)
    assert "\\x1b[2J" in refused("predict", out, tmp_path / "other.csv")
    assert "\\x1b[2J" in refused(*train(file, "--schema", write_schema(tmp_path / "\x1b[2J.json", [])))


def test_a_file_name_that_is_not_expected_cannot_write_to_the_terminal() -> None:
    for arguments in (("show", "run", "\x1b[2J"), ("\x1b[2J",), ("train", "a.csv", "--\x1b[2J")):
        result = run(*arguments)
        assert result.exit_code == 2


def test_classes_are_escaped_on_a_terminal_and_not_in_a_pipe(tmp_path: Path) -> None:
    file, out = evil_rows(tmp_path / "rows.csv"), tmp_path / "run"
    assert run(*train(file, "--out", out)).exit_code == 0
    command = [sys.executable, "-c", "from privopt.cli.application import app; app()", "predict", str(out), str(file)]
    piped = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "\x1b[2J" in piped.stdout
    reader, writer = pty.openpty()
    process = subprocess.Popen(command, stdout=writer, stderr=subprocess.DEVNULL)
    os.close(writer)
    shown = b""
    try:
        while block := os.read(reader, 1 << 16):
            shown += block
    except OSError:  # the other side was closed
        pass
    assert process.wait() == 0
    assert b"probability of no" in shown
    assert b"\x1b" not in shown


def test_a_warning_is_printed_above_the_spinner_and_not_on_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = table().drop(columns="note")
    rows.assign(visit_id=[f"v{place}" for place in range(len(rows))]).to_csv(tmp_path / "rows.csv", index=False)
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("COLUMNS", "150")
    standard_error.cache_clear()
    app([str(word) for word in train(tmp_path / "rows.csv", "--out", tmp_path / "run")], standalone_mode=False)
    standard_error.cache_clear()
    shown = screen.getvalue()
    assert "Calibrating noise" in shown
    assert "Warning:" in shown
    assert not re.search("Calibrating noise[^\r\n]*Warning:", shown)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True
