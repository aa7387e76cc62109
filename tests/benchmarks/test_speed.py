"""The speed program measures what it says, on tiny synthetic data. How long anything took is not looked at."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from benchmarks import data, peers, report, speed
from privopt.loop import run
from privopt.methods.dp_adam import dp_adam

TINY = speed.Size(blocks=2, steps=2, fits=2, imports=1, rows=300)


@pytest.fixture(autouse=True)
def _without_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "installed", lambda: False)


@pytest.mark.parametrize(
    ("section", "rows"),
    [(speed.full_batch_step, 3), (speed.small_batch_step, 8), (speed.methods, 7), (speed.whole_fit, 4), (speed.durability, 4)],
)
@pytest.mark.filterwarnings("ignore::privopt.errors.PrivoptWarning")  # 300 rows are too few to learn much
def test_every_section_reports_its_rows(section: Callable[[speed.Size], Iterator[report.Row]], rows: int) -> None:
    found = list(section(TINY))
    assert len(found) == rows
    assert all(row.name and row.value for row in found)


def test_import_of_privopt_loads_neither_torch_nor_scikit_learn() -> None:
    assert "loads [] of" in next(speed.imports(TINY)).note


def test_without_clipping_and_noise_the_private_step_is_the_other_one() -> None:
    split = data.a9a(200)
    design, oracle = speed._model(split)
    recipe = dp_adam(rounds=3, noise_multiplier=0.0, clip_bound=1e6, learning_rate=0.1)
    private = run(recipe, oracle, np.zeros(oracle.dimension)).parameters
    assert np.allclose(private, speed.descended(recipe, design, split.y))


def test_blocks_alternate_and_the_first_round_is_not_counted() -> None:
    order: list[str] = []

    def contender(name: str) -> Callable[[], int]:
        def block() -> int:
            order.append(name)
            return 2

        return block

    seconds = report.interleaved({"a": contender("a"), "b": contender("b")}, blocks=2)
    assert order == ["a", "b"] * 3
    assert [len(values) for values in seconds.values()] == [2, 2]


def test_numbers_are_medians_with_quartiles() -> None:
    assert report.middle([1.0, 2.0, 3.0, 4.0, 5.0]) == (3.0, 2.0, 4.0)
    assert report.spread([1.0, 2.0, 3.0, 4.0, 5.0], " ms") == "3 ms (2 – 4)"


def test_the_report_is_written_as_it_grows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = report.Report("title", tmp_path / "rows.json")
    rows.extend([report.Row("section", "name", "1 s", "< 2 s", passed=True)])
    rows.show()
    assert '"name": "name"' in (tmp_path / "rows.json").read_text()
    assert "met" in capsys.readouterr().out
