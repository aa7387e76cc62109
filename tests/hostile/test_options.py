"""Option values far outside of what is meant."""

import json
from pathlib import Path

import pytest

from tests.hostile.commands import refused, refused_alone, run, table, train, write_schema
from tests.processes import one_fork_server

ACCOUNT = ("account", "--n", 60_000)
SAMPLED = (*ACCOUNT, "--batch", 100)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((*SAMPLED, "--noise", 1, "--rounds", 999_999_999_999), "from 1 to 10000000"),
        ((*SAMPLED, "--noise", 1, "--rounds", 10**4000), "from 1 to 10000000"),
        ((*SAMPLED, "--noise", 1, "--epochs", 1e9), "from 1 to 10000000"),
        ((*SAMPLED, "--noise", 1, "--epochs", "nan"), "--epochs"),
        ((*SAMPLED, "--noise", "inf", "--rounds", 10), "--noise"),
        ((*SAMPLED, "--noise", 1e308, "--rounds", 10), "--noise"),
        ((*SAMPLED, "--noise", 1, "--rounds", 10, "--grid", 1e-9), "too fine"),
        ((*SAMPLED, "--noise", 1, "--rounds", 10, "--delta", "nan"), "--delta"),
        (("account", "--n", 10**18, "--batch", 1, "--epsilon", 1, "--rounds", 10), "--n"),
        (("account", "--n", 10**400, "--batch", 1, "--epsilon", 1, "--rounds", 10), "--n"),
        (("plan", "--n", 1000, "--d", 10**400, "--epsilon", 1), "--d"),
        (("plan", "--n", 1000, "--d", 10, "--epsilon", 1, "--rounds", "9" * 5000), "--rounds"),
        (("plan", "--n", 1000, "--d", 10, "--epsilon", 1, "--rounds", "999999999999"), "--rounds"),
        (("plan", "--n", 1000, "--d", 10, "--epsilon", 1, "--batches", "1,\x1b[2J"), "--batches"),
        (("bounds", "--n", 10**400, "--d", 10, "--epsilon", 1), "--n"),
        (("show", "x" * 500), "File name too long"),
        (("show", "\udcff"), "not a run folder"),
    ],
)
def test_numbers_beyond_the_limits_are_refused_at_once(arguments: tuple[object, ...], words: str) -> None:
    assert words in refused(*arguments)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("data") / "rows.csv"
    table().to_csv(file, index=False)
    write_schema(file.parent / "schema.json")
    return file


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--rounds", 999_999_999_999), "rounds is 999999999999"),
        (("--rounds", 10**400), "rounds is 1000"),
        (("--rounds", -1), "rounds is -1"),
        (("--batch-size", 10**400), "batch_size is 1000"),
        (("--epsilon", "nan"), "epsilon is nan"),
        (("--epsilon", 1e-300), "epsilon"),
        (("--clip-bound", "inf"), "clip_bound is inf"),
        (("--learning-rate", "nan"), "learning_rate is nan"),
        (("--alpha", "inf"), "alpha is inf"),
        (("--seed", -1), "seed"),
        (("--model", "mlp:" + ",".join(["99999"] * 50)), "too few"),
        (("--model", "\x1b[2J"), "--model is"),
        (("--option", "first_decay=" + "[" * 100_000), "first_decay"),
        (("--option", "x" * 100_000), "name=value"),
        (("--method", "\x1b[2J\n"), "method is"),
        (("--target", "\x1b[2J"), "no column"),
        (("--target", "\udcff"), "no column"),
    ],
)
def test_settings_beyond_the_limits_are_refused_and_leave_nothing(
    tmp_path: Path, data: Path, options: tuple[object, ...], words: str
) -> None:
    out = tmp_path / "run"
    assert words in refused(*train(data, "--schema", data.parent / "schema.json", *options, "--out", out))
    assert not out.exists()


@one_fork_server
def test_so_many_rounds_take_no_memory(data: Path) -> None:
    assert "rounds is" in refused_alone(*train(data, "--rounds", 999_999_999_999))


@pytest.mark.parametrize("options", [("--learning-rate", 1e308), ("--learning-rate", 1e308, "--model", "mlp:4")])
def test_a_model_that_is_not_finite_is_no_success_and_is_paid_for(
    tmp_path: Path, data: Path, options: tuple[object, ...]
) -> None:
    schema, out = data.parent / "schema.json", tmp_path / "run"
    result = run(*train(data, "--schema", schema, "--rounds", 20, *options, "--out", out))
    assert result.exit_code == 2
    assert "training diverged" in result.stderr
    assert "smaller learning rate" in result.stderr
    assert {path.name for path in out.iterdir()} == {"run.json", "ledger.jsonl", "ledger.jsonl.tip", "failed.json"}
    ledger = (out / "ledger.jsonl").read_bytes()
    for again in (run("show", out).stdout, refused("train", "--resume", out), refused("predict", out, data)):
        assert "training diverged" in again
        assert "Spent: ε = " in again
        assert "Unfinished" not in again
    assert "training diverged" in json.loads(run("show", out, "--json").stdout)["failure"]
    assert "Name another folder" in refused(*train(data, "--out", out))
    assert (out / "ledger.jsonl").read_bytes() == ledger
