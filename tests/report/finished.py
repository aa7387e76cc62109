"""Finished runs that reports are made of, and a parser that tells what is on a page."""

from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd

from privopt.datasets import Categorical, Schema
from privopt.runs import execution as runs
from privopt.runs.folder import RunFolder
from privopt.runs.request import Request
from privopt.training.settings import Settings
from tests.problems import patients, patients_request

SCRIPT = "<script>alert(1)</script>"
EVIL = f'{SCRIPT}&"$x_1$|`\x1b[2J'  # a name of a column, of a category, of a class
VOID = {"meta", "br", "img", "link", "hr", "input"}


def train_patients(folder: Path) -> RunFolder:
    """A linear model of declared columns."""
    return runs.start(patients_request(patients(folder / "patients.csv"), seed=None), folder / "run")


def train_evil(folder: Path) -> RunFolder:
    """A model of three classes, with hostile names."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({EVIL: rng.choice(["a", EVIL], 3000), "w" * 300: rng.choice(["b", "c"], 3000)})
    frame["y"] = np.where(frame[EVIL] == "a", "no", rng.choice([EVIL, "maybe"], 3000))
    frame.to_csv(folder / f"{SCRIPT.replace('/', '')}.csv", index=False)
    return runs.start(Request(folder / f"{SCRIPT.replace('/', '')}.csv", "y", 3.0, seed=0), folder / "run")


def train_once_hidden(file: Path, folder: Path, seed: int) -> RunFolder:
    """Output perturbation on columns of which everything is declared, so that nothing is random but its noise."""
    if not file.exists():
        rng = np.random.default_rng(3)
        frame = pd.DataFrame({f"c{place}": rng.choice(["x", "y", "z"], 2000) for place in range(3)})
        frame["sick"] = np.where((frame["c0"] == "x") ^ (rng.random(2000) < 0.2), "yes", "no")
        frame.to_csv(file, index=False)
    schema = Schema({f"c{place}": Categorical(("x", "y", "z")) for place in range(3)}, classes=("no", "yes"))
    settings = Settings(method="output-perturbation")
    return runs.start(Request(file, "sick", 1.0, schema=schema, settings=settings, seed=seed), folder)


class Page(HTMLParser):
    """The elements of a page: each is closed where it should be, and its attributes and text are kept."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        """The attributes of every element of a kind."""
        return [attributes for name, attributes in self.elements if name == tag]
