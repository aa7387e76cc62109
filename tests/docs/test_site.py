"""The site: docstrings read as they were meant, and what is said in two places agrees."""

import doctest
import importlib.util
import re
from pathlib import Path
from types import ModuleType

import privopt

ROOT = Path(__file__).parents[2]


def load(path: Path) -> ModuleType:
    """Import a module that is not in a package."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


docstrings = load(ROOT / "docs" / "docstrings.py")


def test_the_examples_of_the_translation_of_docstrings() -> None:
    results = doctest.testmod(docstrings)
    assert results.attempted
    assert not results.failed


def test_what_looks_like_markup_in_a_docstring_is_text() -> None:
    (line,) = docstrings.restructure(["Keep *args and |x|, coef_ and `n_iter_`; **Guarantee** none *at all*, a*b*c."])
    assert line == r"Keep \*args and \|x\|, coef\_ and ``n_iter_``; **Guarantee** none *at all*, a\*b\*c."


def test_every_page_is_in_the_table_of_contents() -> None:
    """Sphinx says so too, as an error of `make docs`; this is quicker."""
    listed: set[Path] = {ROOT / "docs" / "index.md"}
    for page in (ROOT / "docs").rglob("index.md"):
        for block in re.findall(r"^```\{toctree\}\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
            entries = [line for line in block.splitlines() if line and not line.startswith(":")]
            listed |= {page.parent / f"{entry}.md" for entry in entries}
    assert listed == set((ROOT / "docs").rglob("*.md"))


def test_the_citation_is_of_this_version() -> None:
    (version,) = re.findall(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.MULTILINE)
    assert version == privopt.__version__
