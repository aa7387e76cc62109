"""The list of seeded bugs fits the source: each can be seeded, and is one."""

import ast
from pathlib import Path

import pytest

from tests.mutants.bugs import BUGS, ROOT, Bug


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_bug_fits_the_source(bug: Bug) -> None:
    assert bug.text().count(bug.old) == 1
    ast.parse(bug.text().replace(bug.old, bug.new))
    assert bug.old != bug.new
    assert bug.tests
    for test in bug.tests:
        assert (ROOT / test.partition("::")[0]).exists()


def test_names_are_told_apart() -> None:
    assert len({bug.name for bug in BUGS}) == len(BUGS)
    assert all(Path(bug.file).suffix == ".py" for bug in BUGS)
