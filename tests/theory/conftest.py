"""One comparison for all tests: pricing it takes seconds."""

import pytest

from privopt.theory import Problem, compare
from privopt.theory.comparison import Row

PROBLEM = Problem(2000, 10, smoothness=1.0, gap=2.0)
BUDGET = {"epsilon": 0.5, "delta": 1e-4}


@pytest.fixture(scope="session")
def compared() -> tuple[Row, Row, Row, Row]:
    return compare(PROBLEM, **BUDGET)
