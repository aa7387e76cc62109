"""`privopt bounds`: the comparison of the theory, in tables and in JSON."""

import json
import math
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from privopt.cli.bounds import bounds, notes, print_tables
from privopt.errors import InputError
from privopt.theory import Bound, Noise, Problem, orders, zhou_private_nonconvex
from privopt.theory.comparison import Row

app = typer.Typer()
app.command()(bounds)


def invoke(arguments: str) -> Any:
    return CliRunner().invoke(app, arguments.split())


@pytest.fixture(scope="module")
def answer() -> dict[str, Any]:
    result = invoke("--n 2000 --d 10 --epsilon 0.5 --delta 1e-3 --lipschitz 2 --smoothness 3 --gap 0.5 --json")
    assert result.exit_code == 0, result.output
    assert "not below 1/n" in " ".join(result.stderr.replace("│", " ").split())
    value: dict[str, Any] = json.loads(result.stdout)
    return value


def test_the_answer_is_the_theory_at_these_numbers(answer: dict[str, Any]) -> None:
    given = {"n": 2000, "d": 10, "epsilon": 0.5, "delta": 1e-3, "lipschitz": 2, "smoothness": 3, "gap": 0.5}
    assert {name: answer[name] for name in given} == given
    assert answer["neighbours"] == "replace-one"
    table = [(order.method, order.utility, order.gradients) for order in orders(2000, 10, epsilon=0.5, delta=1e-3)]
    assert [tuple(row["order"].values()) for row in answer["methods"]] == table
    plan = zhou_private_nonconvex.gd_expected_plan(Problem(2000, 10, 2.0, 3.0, 0.5), epsilon=0.5, delta=1e-3)
    descent = answer["methods"][1]
    assert descent["rounds"] == plan.rounds
    assert descent["noise"]["printed"] == plan.noise.printed
    assert descent["noise"]["needed"] == plan.noise.needed
    squared = 2 * 3 * 0.5 / plan.rounds + 10 * plan.noise.needed**2
    assert descent["needed_bound"]["value"] == pytest.approx(math.sqrt(squared))


def test_a_bound_whose_condition_fails_has_no_number_and_a_note(answer: dict[str, Any]) -> None:
    srm = answer["methods"][3]
    assert srm["needed_bound"]["value"] is None
    assert srm["needed_bound"]["failing"] == ["n₀ ≥ 1: n₀ = 0.375"]
    assert any(
        note.startswith("DP-SRM: its theorem needs n₀ = L·gap/G² ≥ 1: n₀ = 0.375; L = G²/gap = 8") for note in answer["notes"]
    )
    assert "1/n" in answer["warnings"][0]


PROBLEM = Problem(1000, 5)
ORDERS = orders(1000, 5, epsilon=1.0, delta=1e-5)
COVERED = Row(ORDERS[1], 50, 1000, 4.0, Noise(0.3, 0.1, "here"), Bound("E‖∇F‖", 2.0, "here"), Bound("E‖∇F‖", 0.25, "here"))
FAILING = Row(
    ORDERS[3],
    70,
    20,
    0.5,
    Noise(0.5, 0.125, "here", failing=("σ′² ≥ 0.7: σ′² = 0.5",)),
    Bound("E‖∇F‖", None, "here", failing=("n₀ ≥ 1: n₀ = 0.1",)),
    Bound("E‖∇F‖", None, "here", failing=("n₀ ≥ 1: n₀ = 0.1",)),
    failing=("n₀ ≥ 1: n₀ = 0.1",),
)


def test_the_tables(capsys: pytest.CaptureFixture[str]) -> None:
    print_tables([COVERED, Row(ORDERS[2]), FAILING], PROBLEM, 1.0, 1e-5)
    printed = capsys.readouterr().out
    cells = [line.split() for line in printed.splitlines()]
    assert "ε = 1, δ = 1e-05 (replace-one), n = 1000, d = 5, G = 1, L = 0.25, gap = 1" in printed
    assert ["DP-GD", "50", "1000", "4", "0.1", "0.3", "3.00"] in cells
    assert ["DP-SRM", "70", "20", "0.5", "0.125", "0.5*", "4.00"] in cells
    first = {line[0]: line for line in reversed(cells) if line}  # the row of the upper table
    assert first["DP-GD"][-3:] == ["0.25", "2", "†"]
    assert first["DP-SRM"][-2:] == ["–", "–"]
    assert first["Private"][-2:] == ["–", "–"]


def test_notes_name_what_fails_and_what_says_nothing() -> None:
    assert list(notes([COVERED, Row(ORDERS[2]), FAILING], PROBLEM)) == [
        "DP-SRM: its theorem needs n₀ ≥ 1: n₀ = 0.1.",
        "DP-SRM: * the paper's own proof does not cover its noise. It needs σ′² ≥ 0.7: σ′² = 0.5.",
        "† No gradient is longer than G = 1, so this bound says nothing.",
    ]
    assert list(notes([replace(COVERED, printed_bound=None)], PROBLEM)) == []


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("--n 0 --d 1 --epsilon 1", "--n is 0"),
        ("--n 10 --d -3 --epsilon 1", "--d is -3"),
        ("--n 10000000000 --d 1 --epsilon 1", "--n is 10000000000; it is a number from 1 to 1e+09"),
        ("--n 10 --d 1 --epsilon 0", "--epsilon is 0"),
        ("--n 10 --d 1 --epsilon nan", "--epsilon is nan"),
        ("--n 10 --d 1 --epsilon 1 --delta 0", "--delta is 0"),
        ("--n 10 --d 1 --epsilon 1 --delta 1.5", "--delta is 1.5"),
        ("--n 10 --d 1 --epsilon 1 --lipschitz -1", "--lipschitz is -1"),
        ("--n 10 --d 1 --epsilon 1 --smoothness inf", "--smoothness is inf"),
        ("--n 10 --d 1 --epsilon 1 --gap 0", "--gap is 0"),
    ],
)
def test_settings_that_cannot_be(arguments: str, says: str) -> None:
    result = invoke(arguments)
    assert result.exit_code != 0
    assert isinstance(result.exception, InputError)
    assert says in str(result.exception)


def test_the_command_is_defined_without_loading_numpy() -> None:
    code = "import sys, privopt.cli.bounds; sys.exit(any(name in sys.modules for name in ('numpy', 'dp_accounting', 'scipy')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_it_is_among_the_commands() -> None:
    from privopt.cli.application import app as whole

    result = CliRunner().invoke(whole, ["bounds", "--help"])
    assert result.exit_code == 0
    assert "What the theory promises" in result.output
