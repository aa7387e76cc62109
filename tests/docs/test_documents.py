"""Documents: every example runs, prints what the document says that it prints, and every link leads somewhere.

In README.md, CONTRIBUTING.md, SECURITY.md and docs/, the blocks of a file run in order, in one namespace and a temporary folder.
It holds patients.csv and new_patients.csv, unless the file itself writes them with `privopt sample`, and schema.json:

- `python`: what it prints is the `text` block right below it (nothing, if there is none); `>>>` prompts are doctests;
- `console`: lines that start with `$ privopt` are run and must succeed; other lines, if any, are what the command prints;
- `json`: a schema;  `sh`: targets of the Makefile, and extras to install;  `text`, and directives of the site: not run.

`...` stands for anything. White space does not count, and decimal numbers agree within one unit of the last digit shown.
"""

import contextlib
import doctest
import io
import json
import re
import shlex
import tomllib
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from privopt.cli.application import app
from privopt.datasets import Schema
from privopt.methods import METHODS

ROOT = Path(__file__).parents[2]
TOP = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
DOCUMENTS = [*TOP, *sorted((ROOT / "docs").rglob("*.md"))]
LANGUAGES = {"python", "console", "text", "json", "sh", "{toctree}", "{eval-rst}", "{include} ../CHANGELOG.md"}
NEEDS = {
    "flower-wrapper.md": ("flwr",),
    "trainers.md": ("transformers", "peft", "lightning"),
}  # extras that a document's examples import
COLUMNS = "80"  # of the terminal that the documents show

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
        "patient": {"ignore": True},
        "age": {"low": 18, "high": 90},
        "stay_days": {"low": 0, "high": 30},
        "earlier_stays": {"low": 0, "high": 5},
        "region": {"values": ["north", "south", "east", "west"]},
        "insurance": {"values": ["public", "private", "self-pay", "(missing)"]},
        "department": {"values": ["internal", "surgery", "neurology", "other"]},
        "admission": {"values": ["planned", "emergency", "referral", "(missing)"]},
    },
}
SAMPLES = {"patients.csv": ["--rows", "4000"], "new_patients.csv": ["--rows", "200", "--seed", "1"]}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder with a schema, where the examples of one document run."""
    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", COLUMNS)
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def write_samples(text: str) -> None:
    """Write the tables that a document uses and does not write itself."""
    for name, options in SAMPLES.items():
        if name in text and f"$ privopt sample {name}" not in text:
            assert CliRunner().invoke(app, ["sample", name, *options]).exit_code == 0


# ---------------------------------------------------------------- the tests


@each_document
def test_every_example_runs_and_prints_what_the_document_shows(path: Path, folder: Path) -> None:
    where = str(path.relative_to(ROOT))
    if missing := [name for name in NEEDS.get(path.name, ()) if not find_spec(name)]:
        pytest.skip(f"{where} needs {missing[0]}, which is an extra")
    text = path.read_text(encoding="utf-8")
    write_samples(text)
    found = blocks(text)
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


@pytest.mark.parametrize("name", ["README.md", "docs/tutorials/table.md"])
def test_the_schema_that_is_shown_is_the_one_that_the_examples_use(name: str) -> None:
    found = blocks((ROOT / name).read_text(encoding="utf-8"))
    assert [json.loads(block.source) for block in found if block.language == "json"] == [SCHEMA]


@each_document
def test_every_make_target_and_every_extra_exists(path: Path) -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    for block in blocks(path.read_text(encoding="utf-8")):
        for line in block.source.splitlines() if block.language == "sh" else ():
            match shlex.split(line, comments=True):
                case ["make", target]:
                    assert target in targets
                case ["pip", "install", what]:
                    named = re.fullmatch(r"(?:\.|privopt)(?:\[([\w,]+)\])?", what)
                    assert named is not None
                    assert set((named[1] or "torch").split(",")) <= set(extras)
                case _:
                    pytest.fail(f"{line!r} is neither a target of make nor an installation")


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
    module = METHODS[name].recipe.__module__.rpartition(".")[2]
    page = ROOT / "docs" / "methods" / f"{'dp_sgd' if name == 'dp-gd' else module}.md"
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
    page = (ROOT / "docs" / "methods" / f"{name.replace('-', '_')}.md").read_text()
    assert {option for option in METHODS[name].options if f"`{option}`" not in page} == set()
