"""Documents: every example runs, prints what the document says that it prints, and every link leads somewhere.

In README.md and docs/, the blocks of a file run in order, in one namespace and one temporary folder that holds patients.csv,
new_patients.csv and schema.json:

- `python`: what it prints is the `text` block right below it (nothing, if there is none); `>>>` prompts are doctests;
- `console`: lines that start with `$ privopt` are run and must succeed; other lines, if any, are what the command prints;
- `json`: a schema;  `sh`: targets of the Makefile;  `mermaid` and `text`: not run.

`...` stands for anything. White space does not count, and decimal numbers agree within one unit of the last digit shown.
"""

import contextlib
import doctest
import io
import json
import re
import shlex
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from privopt.linear_model.refusals import DECIDED
from typer.testing import CliRunner

from privopt.cli import app
from privopt.datasets import Schema
from privopt.methods import METHODS

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LANGUAGES = {"python", "console", "text", "json", "sh", "mermaid"}
COLUMNS = "100"  # of the terminal that the documents show

each_document = pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))


@dataclass(frozen=True)
class Block:
    """A fenced block; `answers` says that nothing stands between it and the block before."""

    language: str
    source: str
    line: int
    answers: bool


def blocks(text: str) -> list[Block]:
    """The fenced blocks of a document."""
    found: list[Block] = []
    inside: list[str] | None = None
    language, start, answers, quiet = "", 0, False, False
    for number, line in enumerate(text.splitlines(), start=1):
        if line.startswith("```") and inside is None:
            language, inside, start, answers = line[3:].strip(), [], number, quiet
        elif line.startswith("```") and inside is not None:
            found.append(Block(language, "\n".join(inside) + "\n", start, answers))
            inside, quiet = None, True
        elif inside is not None:
            inside.append(line)
        elif line.strip():
            quiet = False
    assert inside is None, f"the block of line {start} does not end"
    return found


# ---------------------------------------------------------------- what is printed, and what should be

_VARIES = re.compile(r"(\.\.\.|\d+\.\d+)")


def agrees(expected: str, actual: str) -> bool:
    """Whether a text is what the document shows.

    >>> agrees("loss 0.36, ...", "loss   0.3567, 200 rounds"), agrees("loss 0.36", "loss 0.38"), agrees("2 rounds", "3 rounds")
    (True, False, False)
    """
    pattern, numbers = "", []
    for piece in _VARIES.split(_squeezed(expected)):
        if piece == "...":
            pattern += ".*?"
        elif _VARIES.fullmatch(piece):
            pattern += r"(?<![\d.])(\d+(?:\.\d+)?(?:e[-+]?\d+)?)(?!\d)"
            numbers.append(piece)
        else:
            pattern += re.escape(piece)
    match = re.fullmatch(pattern, _squeezed(actual), re.DOTALL)
    return match is not None and all(
        abs(float(shown) - float(printed)) <= 1.001 * 10.0 ** -len(shown.partition(".")[2])
        for shown, printed in zip(numbers, match.groups(), strict=True)
    )


def _squeezed(text: str) -> str:
    return " ".join(text.split())


class _Checker(doctest.OutputChecker):
    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        return agrees(want, got)


# ---------------------------------------------------------------- running


def run_python(block: Block, shown: str, namespace: dict[str, Any], where: str) -> None:
    """Run it; what it prints is what is shown."""
    if ">>>" in block.source:
        run_doctest(block, namespace, where)
        return
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile("\n" * block.line + block.source, where, "exec"), namespace)
    assert agrees(shown, printed.getvalue()), f"{where}:{block.line} prints\n{printed.getvalue()}\nbut shows\n{shown}"


def run_doctest(block: Block, namespace: dict[str, Any], where: str) -> None:
    """Run the lines behind the prompts, in the document's namespace."""
    examples = doctest.DocTestParser().get_doctest(block.source, namespace, where, where, block.line)
    report: list[str] = []
    runner = doctest.DocTestRunner(checker=_Checker(), verbose=False)
    results = runner.run(examples, out=report.append, clear_globs=False)
    namespace.update(examples.globs)
    assert results.attempted, f"{where}:{block.line} has prompts but no examples"
    assert not results.failed, "".join(report)


def run_console(block: Block, where: str) -> None:
    """Run each command through the real command line; what it prints is what is shown, if anything is."""
    commands = re.split(r"^\$ ", block.source, flags=re.MULTILINE)
    assert not commands[0].strip(), f"{where}:{block.line} does not start with a command"
    for command in commands[1:]:
        line, _, shown = command.partition("\n")
        program, *arguments = shlex.split(line)
        assert program == "privopt", f"{where}:{block.line} runs {program}, not privopt"
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0, f"{where}: {line} ends with {result.exit_code}:\n{result.output}"
        if shown.strip():
            assert agrees(shown, result.output), f"{where}: {line} prints\n{result.output}\nbut shows\n{shown}"


# ---------------------------------------------------------------- the folder that examples run in

SCHEMA = {
    "target": {"classes": ["no", "yes"]},
    "columns": {
        "age": {"low": 18, "high": 90},
        "stay_days": {"low": 0, "high": 30},
        "region": {"values": ["north", "south", "east", "west"]},
    },
}


def patients(size: int, rng: np.random.Generator) -> pd.DataFrame:
    """Patients that nobody ever was."""
    age, stay = rng.integers(18, 91, size), np.minimum(rng.poisson(4.0, size), 30)
    region = rng.choice(["north", "south", "east", "west"], size, p=[0.4, 0.3, 0.2, 0.1])
    score = -2.0 + 0.05 * (age - 54) + 0.3 * stay + np.where(region == "north", 0.7, 0.0)
    readmitted = np.where(rng.random(size) < 1 / (1 + np.exp(-score)), "yes", "no")
    return pd.DataFrame({"age": age, "stay_days": stay, "region": region, "readmitted": readmitted})


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with small files, where the examples of one document run."""
    rng = np.random.default_rng(0)
    patients(4000, rng).to_csv(tmp_path / "patients.csv", index=False)
    patients(200, rng).drop(columns="readmitted").to_csv(tmp_path / "new_patients.csv", index=False)
    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", COLUMNS)
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


# ---------------------------------------------------------------- the tests


@each_document
def test_every_example_runs_and_prints_what_the_document_shows(path: Path, folder: Path) -> None:
    where = str(path.relative_to(ROOT))
    found = blocks(path.read_text(encoding="utf-8"))
    namespace: dict[str, Any] = {"__name__": "document"}
    for place, block in enumerate(found):
        after = found[place + 1] if place + 1 < len(found) else None
        shown = after.source if after is not None and after.language == "text" and after.answers else ""
        if block.language == "python":
            run_python(block, shown, namespace, where)
        elif block.language == "console":
            run_console(block, where)


@each_document
def test_every_block_is_of_a_kind_that_is_checked(path: Path) -> None:
    """An example that must not be run would need another word here."""
    for block in blocks(path.read_text(encoding="utf-8")):
        assert block.language in LANGUAGES, f"line {block.line} has a block of {block.language!r}"


@each_document
def test_every_schema_is_one(path: Path) -> None:
    for block in blocks(path.read_text(encoding="utf-8")):
        if block.language == "json":
            Schema.from_json(json.loads(block.source))


def test_the_readme_shows_the_schema_that_its_examples_use() -> None:
    shown = [
        json.loads(block.source) for block in blocks((ROOT / "README.md").read_text(encoding="utf-8")) if block.language == "json"
    ]
    assert shown == [SCHEMA]


@each_document
def test_every_make_target_exists(path: Path) -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for block in blocks(path.read_text(encoding="utf-8")):
        if block.language == "sh":
            for line in block.source.splitlines():
                program, target = line.partition("#")[0].split()
                assert program == "make"
                assert target in targets


@pytest.mark.parametrize("path", [*DOCUMENTS, ROOT / "CHANGELOG.md"], ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_somewhere(path: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8")):
        if "://" in link:
            continue
        file, _, heading = link.partition("#")
        target = path.parent / file if file else path
        assert target.exists(), link
        if heading:
            assert heading in anchors(target.read_text(encoding="utf-8")), link


def anchors(text: str) -> set[str]:
    """The headings of a document, as links name them."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_a_page(name: str) -> None:
    page = ROOT / "docs" / "recipes" / f"{METHODS[name].recipe.__module__.rpartition('.')[2]}.md"
    assert f"`{name}`" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("expected", "actual", "same"),
    [
        ("ε = 0.999", "ε  =\n0.9992", True),
        ("ε = 0.999", "ε = 0.9971", False),
        ("a ... z", "a b c z", True),
        ("a ... z", "a b c", False),
        ("200 × 0.5", "201 × 0.5", False),
        ("... 0.9", "1.99", False),
        ("", "", True),
        ("", "something", False),
        ("0.1 0.2", "0.1", False),
    ],
)
def test_agreement_is_neither_blind_nor_petty(expected: str, actual: str, same: bool) -> None:
    assert agrees(expected, actual) is same


def test_a_wrong_output_and_a_failing_command_are_found(folder: Path) -> None:
    with pytest.raises(AssertionError, match="prints"):
        run_python(Block("python", "print(1)\n", 1, False), "2\n", {}, "here")
    with pytest.raises(AssertionError, match="prints"):
        run_python(Block("python", "print(1)\n", 1, False), "", {}, "here")
    with pytest.raises(AssertionError, match="Expected"):
        run_python(Block("python", ">>> 1 + 1\n3\n", 1, False), "", {}, "here")
    with pytest.raises(AssertionError, match="ends with 2"):
        run_console(Block("console", "$ privopt show nowhere\n", 1, False), "here")
    with pytest.raises(AssertionError, match="prints"):
        run_console(Block("console", "$ privopt methods --json\nnothing\n", 1, False), "here")


@pytest.mark.parametrize("name", [name for name in METHODS if name != "dp-gd"])  # which is dp-sgd on all rows, and on its page
def test_each_option_of_a_method_is_on_its_page(name: str) -> None:
    page = (ROOT / "docs" / "recipes" / f"{name.replace('-', '_')}.md").read_text()
    own = set(signature(METHODS[name].recipe).parameters) - DECIDED
    own -= {"smoothness"} if name == "output-perturbation" else set()  # follows from the rows
    assert {option for option in own if f"`{option}`" not in page} == set()
