"""What the benchmark programs share: fair timing, and rows of results with what was required beside them."""

import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Row:
    """One result. `required` says what it has to be; `passed` is `None` where nothing is required.

    The numbers of a row with a `place` are in the file once more, under the two keys that it names, with those of others there.
    """

    section: str
    name: str
    value: str
    required: str = ""
    passed: bool | None = None
    note: str = ""
    numbers: dict[str, Any] | None = None
    place: tuple[str, str] | None = None


def interleaved(contenders: Mapping[str, Callable[[], int]], blocks: int) -> dict[str, NDArray[Any]]:
    """Seconds per step of each contender in each block. A contender runs a block of steps and says how many they were.

    Blocks alternate (A B A B …), so that whatever else the machine does meets all alike; a first round is not counted.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for block in range(blocks + 1):
        for name, steps in contenders.items():
            started = time.perf_counter()
            count = steps()
            if block:
                seconds[name].append((time.perf_counter() - started) / count)
    return {name: np.array(values) for name, values in seconds.items()}


def middle(values: Iterable[float] | NDArray[Any]) -> tuple[float, float, float]:
    """Median, lower and upper quartile."""
    low, median, high = np.percentile(np.asarray(list(values)), [25, 50, 75])
    return float(median), float(low), float(high)


def spread(values: Iterable[float] | NDArray[Any], unit: str = "", scale: float = 1.0) -> str:
    """Median and interquartile range, in words."""
    median, low, high = (scale * number for number in middle(values))
    return f"{median:.3g}{unit} ({low:.3g} – {high:.3g})"


def machine() -> dict[str, Any]:
    """What was measured on."""
    threads = os.environ.get("OMP_NUM_THREADS", "default")
    load = round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else float("nan")
    return {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "cores": os.cpu_count(),
        "threads": threads,
        "load": load,
    }


class Report:
    """Rows as they come, then a table, and a file of them if one is named."""

    def __init__(self, title: str, json_file: Path | None = None) -> None:
        self.title, self.json_file, self.rows = title, json_file, list[Row]()
        self.console = Console(width=None if sys.stdout.isatty() else 160)
        self.machine = machine()

    def extend(self, rows: Iterable[Row]) -> None:
        for row in rows:
            self.rows.append(row)
            self.console.print(f"[dim]{row.section}: {row.name}: {row.value}[/]")
            if self.json_file is not None:
                self.json_file.write_text(json.dumps(self.content(), indent=2))

    def content(self) -> dict[str, Any]:
        """What the file holds."""
        content: dict[str, Any] = {"title": self.title, "machine": self.machine, "rows": [asdict(row) for row in self.rows]}
        for row in self.rows:
            if row.place is not None:
                outer, inner = row.place
                content.setdefault(outer, {}).setdefault(inner, {}).update(row.numbers or {})
        return content

    def show(self) -> None:
        about = ", ".join(f"{key} {value}" for key, value in self.machine.items())
        table = Table("", "result", "required", "", "note", title=f"{self.title} ({about})", title_justify="left")
        section = None
        for row in self.rows:
            if row.section != section:
                section = row.section
                table.add_section()
                table.add_row(f"[bold]{section}[/]")
            mark = "" if row.passed is None else "[green]met[/]" if row.passed else "[red]MISSED[/]"
            table.add_row(f"  {row.name}", row.value, row.required, mark, row.note)
        self.console.print(table)
