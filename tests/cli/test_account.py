"""`privopt account`: the numbers of the accountants, in words and in JSON."""

import json
import math
import subprocess
import sys
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from privopt.cli.account import account, reading
from privopt.errors import InputError, UnsupportedEvent
from privopt.privacy.accountants import epsilon
from privopt.privacy.events import (
    GaussianDpEvent,
    PoissonSampledDpEvent,
    SampledWithoutReplacementDpEvent,
    SelfComposedDpEvent,
    from_json,
)

app = typer.Typer()
app.command()(account)


def invoke(arguments: str) -> Any:
    return CliRunner().invoke(app, arguments.split())


def plain(text: str) -> str:
    """The words without the panel around them."""
    return " ".join(text.replace("│", " ").split())


def answer(arguments: str) -> dict[str, Any]:
    result = invoke(f"{arguments} --json")
    assert result.exit_code == 0, result.output
    value: dict[str, Any] = json.loads(result.stdout)
    return value


@pytest.mark.parametrize(
    ("run", "rounds", "rdp", "pld"),
    [  # dp-accounting 0.6.0 with its default grid of 1e-4, as in the design's golden table
        ("--n 60000 --batch 128 --noise 2 --epochs 100 --delta 1e-5", 46875, 1.0012, 0.9158),
        ("--n 60000 --batch 128 --noise 4 --epochs 100 --delta 1e-5", 46875, 0.4470, 0.4074),
        ("--n 60000 --batch 128 --noise 8 --epochs 100 --delta 1e-5", 46875, 0.2089, 0.1906),
        ("--n 25000 --batch 64 --noise 1 --epochs 30 --delta 4e-5", 11718, 1.4624, 1.3118),
    ],
)
def test_golden_table(run: str, rounds: int, rdp: float, pld: float) -> None:
    by_pld = answer(f"{run} --accountant pld --grid 1e-4")
    by_rdp = answer(f"{run} --accountant rdp")
    assert by_pld["rounds"] == by_rdp["rounds"] == rounds
    assert by_pld["epsilon"] == pytest.approx(pld, abs=5e-5)
    assert by_rdp["epsilon"] == pytest.approx(rdp, abs=5e-5)
    assert (by_pld["accountant"], by_rdp["accountant"]) == ("pld", "rdp")


@pytest.mark.parametrize(
    ("arguments", "event", "neighbours"),
    [
        ("--batch 50", PoissonSampledDpEvent(0.05, GaussianDpEvent(2.0)), "add-remove"),
        ("--batch 50 --neighbours replace-one", PoissonSampledDpEvent(0.05, GaussianDpEvent(2.0)), "replace-one"),
        (
            "--batch 50 --sampling fixed-size --neighbours replace-one",
            SampledWithoutReplacementDpEvent(1000, 50, GaussianDpEvent(2.0)),
            "replace-one",
        ),
        ("--sampling full-batch", GaussianDpEvent(2.0), "add-remove"),
        ("--sampling full-batch --batch 7 --neighbours replace-one", GaussianDpEvent(2.0), "replace-one"),
    ],
)
def test_every_sampling_is_the_event_it_says(arguments: str, event: Any, neighbours: Any) -> None:
    found = answer(f"--n 1000 --noise 2 --rounds 20 --delta 1e-5 {arguments}")
    expected = SelfComposedDpEvent(event, 20)
    assert from_json(found["event"]) == expected
    assert found["epsilon"] == epsilon(expected, 1e-5, neighbours)
    assert found["data_passes"] == pytest.approx(20 if "full" in arguments else 1)


def test_calibration_keeps_within_the_budget_and_wastes_little() -> None:
    found = answer("--n 1000 --batch 50 --epsilon 1 --rounds 20")
    assert found["budget"] == 1
    assert found["delta"] == 1e-4
    assert 0.99 <= found["epsilon"] <= 1
    again = answer(f"--n 1000 --batch 50 --noise {found['noise_multiplier']!r} --rounds 20")
    assert again["epsilon"] == found["epsilon"]


def test_epochs_of_full_batches_are_rounds() -> None:
    assert answer("--n 1000 --sampling full-batch --noise 5 --epochs 3")["rounds"] == 3


def test_the_answer_in_words() -> None:
    result = invoke("--n 1000 --batch 50 --noise 2 --rounds 20")
    words = plain(result.stdout)
    assert result.exit_code == 0
    for part in ("ε = ", "δ = 0.0001", "Poisson sampling with probability 0.05", "pld", "added or removed", "better than"):
        assert part in words
    words = invoke("--n 1000 --sampling full-batch --epsilon 1 --rounds 20 --neighbours replace-one").stdout
    assert "noise multiplier" in words
    assert "one example replaced" in words


def test_a_reading_is_the_best_guess_against_the_guarantee() -> None:
    assert "50.0 %" in reading(0.0, 0.0, "add-remove")
    assert "75.0 %" in reading(math.log(3), 0.0, "add-remove")
    assert "practically 100 %" in reading(math.inf, 0.0, "replace-one")
    assert "100 %" in reading(0.0, 1.0, "add-remove")


@pytest.mark.parametrize("form", ["", "--json"])
def test_a_large_delta_is_warned_of(form: str) -> None:
    result = invoke(f"--n 1000 --sampling full-batch --noise 5 --rounds 1 --delta 1e-3 {form}")
    assert result.exit_code == 0
    assert "WARNING" in result.stderr
    assert "not below 1/n" in plain(result.stderr)
    assert not invoke("--n 1000 --sampling full-batch --noise 5 --rounds 1 --delta 9e-4").stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("--n 0 --batch 1 --noise 1 --rounds 1", "--n is 0"),
        ("--n -5 --batch 1 --noise 1 --rounds 1", "--n is -5"),
        ("--n 100 --noise 1 --rounds 1", "poisson sampling needs --batch"),
        ("--n 100 --batch 0 --noise 1 --rounds 1", "--batch is 0"),
        ("--n 100 --batch 101 --noise 1 --rounds 1", "--batch is 101, but there are only 100"),
        ("--n 100 --batch 10 --noise 1", "either --rounds"),
        ("--n 100 --batch 10 --noise 1 --rounds 1 --epochs 1", "either --rounds"),
        ("--n 100 --batch 10 --noise 1 --rounds 0", "--rounds is 0"),
        ("--n 100 --batch 10 --noise 1 --epochs 0.01", "less than one step"),
        ("--n 100 --batch 10 --noise 1 --epochs nan", "--epochs is nan"),
        ("--n 100 --batch 10 --rounds 1", "either --noise"),
        ("--n 100 --batch 10 --rounds 1 --noise 1 --epsilon 1", "either --noise"),
        ("--n 100 --batch 10 --rounds 1 --noise 0", "--noise is 0"),
        ("--n 100 --batch 10 --rounds 1 --noise -1", "--noise is -1"),
        ("--n 100 --batch 10 --rounds 1 --noise nan", "--noise is nan"),
        ("--n 100 --batch 10 --rounds 1 --noise inf", "--noise is inf"),
        ("--n 100 --batch 10 --rounds 1 --epsilon 0", "--epsilon is 0"),
        ("--n 100 --batch 10 --rounds 1 --epsilon nan", "--epsilon is nan"),
        ("--n 100 --batch 10 --rounds 1 --noise 1 --delta 0", "--delta is 0"),
        ("--n 100 --batch 10 --rounds 1 --noise 1 --delta 1", "--delta is 1"),
        ("--n 100 --batch 10 --rounds 1 --noise 1 --delta nan", "--delta is nan"),
        ("--n 100 --batch 10 --rounds 1 --noise 1 --grid 0", "--grid is 0"),
        ("--n 100 --batch 10 --rounds 1 --epsilon 1 --grid 1e-4", "--grid prices a given --noise"),
    ],
)
def test_settings_that_cannot_be(arguments: str, says: str) -> None:
    result = invoke(arguments)
    assert result.exit_code != 0
    assert isinstance(result.exception, InputError)
    assert says in str(result.exception)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("--batch 10 --sampling fixed-size", "replace-one"),
        ("--batch 10 --sampling fixed-size --neighbours replace-one --accountant pld", "rdp can"),
        ("--batch 10 --neighbours replace-one --accountant rdp", "pld can"),
    ],
)
@pytest.mark.parametrize("question", ["--noise 1", "--epsilon 1"])
def test_what_no_accountant_prices_says_which_could(arguments: str, says: str, question: str) -> None:
    result = invoke(f"--n 100 --rounds 1 {question} {arguments}")
    assert isinstance(result.exception, UnsupportedEvent)
    assert says in str(result.exception)


def test_misspelt_choices_and_options_are_usage_errors() -> None:
    assert invoke("--n 100 --batch 10 --noise 1 --rounds 1 --sampling shuffle").exit_code == 2
    assert invoke("--n 100 --batch 10 --noise 1 --round 1").exit_code == 2
    assert invoke("--batch 10 --noise 1 --rounds 1").exit_code == 2


@pytest.mark.parametrize("module", ["privopt.cli.account", "privopt.cli.plan"])
def test_the_command_is_defined_without_loading_numpy(module: str) -> None:
    code = f"import sys, {module}; sys.exit(any(name in sys.modules for name in ('numpy', 'dp_accounting', 'scipy')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
