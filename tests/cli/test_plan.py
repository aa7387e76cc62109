"""`privopt plan`: rows that all cost the budget, and the rule that picks one."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from privopt.cli.plan import Row, choose_row, default_batches, plan, reason
from privopt.errors import InputError
from privopt.privacy.accountants import epsilon
from privopt.privacy.budget import Budget
from privopt.privacy.calibration import calibrate
from privopt.privacy.events import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent

app = typer.Typer()
app.command()(plan)


def invoke(arguments: str) -> Any:
    return CliRunner().invoke(app, arguments.split())


@pytest.fixture(scope="module")
def small() -> dict[str, Any]:
    result = invoke("--n 2000 --d 25 --epsilon 1 --batches full,500 --rounds 20,80 --json")
    assert result.exit_code == 0, result.output
    value: dict[str, Any] = json.loads(result.stdout)
    return value


def row(batch: int, rounds: int, noise: float, passes: float) -> Row:
    return Row(batch, False, rounds, passes, 1.0, 1.0, 1.0, noise)


def test_every_row_costs_the_budget(small: dict[str, Any]) -> None:
    assert [(row["batch"], row["rounds"]) for row in small["rows"]] == [(b, t) for b in (2000, 500) for t in (20, 80)]
    assert small["delta"] == 1e-5
    for row in small["rows"]:
        inner = GaussianDpEvent(row["noise_multiplier"])
        event = inner if row["full"] else PoissonSampledDpEvent(row["batch"] / 2000, inner)
        assert 0.99 <= epsilon(SelfComposedDpEvent(event, row["rounds"]), 1e-5) <= 1


def test_the_columns_are_what_they_say(small: dict[str, Any]) -> None:
    for row in small["rows"]:
        z, b, t = row["noise_multiplier"], row["batch"], row["rounds"]
        assert row["data_passes"] == pytest.approx(t * b / 2000)
        assert row["noise_per_coordinate"] == pytest.approx(z / b)
        assert row["noise_norm"] == pytest.approx(z * 5 / b)
        assert row["noise_at_equal_progress"] == pytest.approx(z * 5 / b / math.sqrt(t))
    full = small["rows"][0]
    expected = calibrate(lambda z: SelfComposedDpEvent(GaussianDpEvent(z), 20), Budget(1.0, 1e-5))
    assert full["noise_multiplier"] == expected


def test_at_equal_progress_full_batches_are_alike_and_smaller_batches_have_more_noise(small: dict[str, Any]) -> None:
    noise = {(row["batch"], row["rounds"]): row["noise_at_equal_progress"] for row in small["rows"]}
    assert noise[2000, 20] == pytest.approx(noise[2000, 80], rel=0.005)
    for rounds in (20, 80):
        assert noise[2000, rounds] <= 1.005 * noise[500, rounds]


def test_the_recommended_row_is_the_cheapest_of_the_quiet_ones(small: dict[str, Any]) -> None:
    best, least = small["recommended"], min(row["noise_at_equal_progress"] for row in small["rows"])
    quiet = [row for row in small["rows"] if row["noise_at_equal_progress"] <= 1.05 * least]
    assert best in quiet
    assert best["data_passes"] == min(row["data_passes"] for row in quiet)


def test_the_rule_prefers_cheap_within_five_percent_and_quiet_beyond() -> None:
    quiet, cheap, noisy = row(100, 10, 1.0, 50), row(10, 10, 1.049, 5), row(1, 10, 1.06, 0.5)
    assert choose_row([quiet, cheap, noisy]) == cheap
    assert choose_row([quiet, noisy]) == quiet
    assert "4.9 % above the least" in reason([quiet, cheap, noisy], cheap)
    assert "the least of all" in reason([quiet, noisy], quiet)


def test_of_rows_with_equal_passes_the_quieter_wins() -> None:
    assert choose_row([row(10, 40, 1.01, 4), row(20, 20, 1.0, 4)]) == row(20, 20, 1.0, 4)


@pytest.mark.parametrize(("n", "batches"), [(32561, [32561, 4096, 1024, 256]), (20, [20, 2]), (10, [10]), (1, [1])])
def test_default_batches_scale_with_the_data(n: int, batches: list[int]) -> None:
    assert default_batches(n) == batches


def test_default_rows_are_at_most_twelve_and_full_batches_of_few_rows_work() -> None:
    assert all(len(default_batches(n)) <= 4 for n in (1, 100, 10**4, 10**9))
    result = invoke("--n 10 --d 3 --epsilon 2 --json")
    assert len(json.loads(result.stdout)["rows"]) == 3


def test_the_table_marks_the_recommended_row_and_says_why() -> None:
    result = invoke("--n 1000 --d 4 --epsilon 1 --batches full,1000 --rounds 50,100 --neighbours replace-one --delta 1e-3")
    assert result.exit_code == 0
    lines = [line.split() for line in result.stdout.splitlines()]
    assert [line[1:4] for line in lines if line[:2] == ["→", "full"]] == [["full", "50", "1000"], ["full", "batch", "×"]]
    assert "fewest data passes (50)" in " ".join(result.stdout.split())
    assert "replace-one" in result.stdout
    assert "WARNING" in result.stderr
    assert "WARNING" not in result.stdout


def test_replacing_needs_twice_the_noise_of_full_batches() -> None:
    answers = [
        json.loads(invoke(f"--n 1000 --d 4 --epsilon 1 --batches full --rounds 50 --json --neighbours {neighbours}").stdout)
        for neighbours in ("add-remove", "replace-one")
    ]
    one, two = (answer["rows"][0]["noise_multiplier"] for answer in answers)
    assert two == pytest.approx(2 * one, rel=0.005)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("--n 0 --d 1 --epsilon 1", "--n is 0"),
        ("--n 10 --d 0 --epsilon 1", "--d is 0"),
        ("--n 10 --d 1 --epsilon -1", "--epsilon is -1"),
        ("--n 10 --d 1 --epsilon nan", "--epsilon is nan"),
        ("--n 10 --d 1 --epsilon 1 --delta 1.5", "--delta is 1.5"),
        ("--n 10 --d 1 --epsilon 1 --batches 11", "--batches has 11, but there are only 10"),
        ("--n 10 --d 1 --epsilon 1 --batches half", "--batches has 'half'"),
        ("--n 10 --d 1 --epsilon 1 --batches 5,", "--batches has ''"),
        ("--n 10 --d 1 --epsilon 1 --rounds 0", "--rounds has '0'"),
        ("--n 10 --d 1 --epsilon 1 --rounds full", "--rounds has 'full'"),
        ("--n 10 --d 1 --epsilon 1 --rounds 1.5", "--rounds has '1.5'"),
        ("--n 10 --d 1 --epsilon 1 --best 0.4", "--best is 0.4"),
        ("--n 10 --d 1 --epsilon 1 --best nan", "--best is nan"),
    ],
)
def test_settings_that_cannot_be(arguments: str, says: str) -> None:
    result = invoke(arguments)
    assert result.exit_code != 0
    assert isinstance(result.exception, InputError)
    assert says in str(result.exception)


def test_what_an_attacker_can_say_is_told(small: dict[str, Any]) -> None:
    assert small["attacker"]["advantage"] == pytest.approx((math.e - 1) / (math.e + 1), abs=1e-4)
    result = invoke("--n 2000 --d 25 --epsilon 50 --batches full --rounds 20")
    assert "promises next to nothing" in " ".join(result.output.split())


def test_each_epsilon_has_an_expected_quality_and_an_attacker(small: dict[str, Any]) -> None:
    found = small["choices"]
    assert [one["epsilon"] for one in found] == [0.1, 0.3, 1, 3, 10]
    assert [one["expected"] for one in found] == sorted(one["expected"] for one in found)
    assert found[2]["advantage"] == small["attacker"]["advantage"]
    assert found[-1]["strength"].startswith("weak")


def test_what_to_expect_is_drawn_in_the_terminal_and_as_a_page(tmp_path: Path) -> None:
    options = "--n 300 --d 20 --epsilon 0.2 --batches full --rounds 50 --task regress"
    result = invoke(f"{options} --html {tmp_path / 'plan.html'}")
    assert result.exit_code == 0
    marked = next(line for line in result.stdout.splitlines() if "→  0.2" in line)
    assert "█" in marked
    assert "░" in marked
    assert "strong" in marked
    assert all(len(line) <= 80 for line in result.stdout.splitlines())
    assert "What an attacker can say" in (tmp_path / "plan.html").read_text()
    nowhere = invoke(f"{options} --html {tmp_path / 'nowhere' / 'plan.html'}")
    assert "there is no folder" in str(nowhere.exception)
    assert nowhere.stdout == ""  # before any work
    again = invoke(f"{options} --html {tmp_path / 'plan.html'}")
    assert "exists already" in str(again.exception)
