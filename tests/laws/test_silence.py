"""Law 8: no data make a run warn. What NumPy says of an overflow, it says of somebody's row; pytest makes it an error here."""

import numpy as np
import pytest
import scipy.sparse as sp

from privopt.loop import run
from privopt.measure.randomness import generator
from privopt.methods import METHODS
from privopt.perexample.design import Design, Frame, LimitedDesign
from privopt.perexample.linear_oracle import LinearOracle
from tests.laws.table import LIMIT, LOSSES, ROW_METHODS, SAMPLES

STRANGE = np.array(
    [[1.0, -2.0, 0.5], [np.nan, 1.0, 0.0], [np.inf, -np.inf, 1.0], [1.7e308, -1.7e308, 1.7e308], [5e-324, 0.0, 0.0]]
)
PRIVATE = [name for name in ROW_METHODS if METHODS[name].private]
CASES = [(name, "Logistic") for name in PRIVATE]
CASES += [(name, "Squared") for name in PRIVATE if name != "output-perturbation"]  # whose loss has bounded residuals


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "csr"])
@pytest.mark.parametrize(("method", "loss"), CASES)
def test_no_row_and_no_target_makes_a_run_warn(method: str, loss: str, sparse: bool) -> None:
    rows = np.tile(STRANGE, (16, 1))  # 80, as a recipe of the table plans
    frame = Frame(None if sparse else np.array([0.1, 0.0, 0.0]), np.array([0.5, 1.0, 2.0]))
    matrix = sp.csr_array(rows) if sparse else rows
    design = LimitedDesign(matrix, frame, LIMIT) if loss == "Logistic" else Design(matrix, frame)
    oracle = LinearOracle(design, np.resize([0.0, 1.0 if loss == "Logistic" else 1.7e308], 80), LOSSES[loss])
    result = run(SAMPLES[method](5, 1.0), oracle, np.zeros(oracle.dimension), rng=generator(0))
    assert np.isfinite(result.parameters).all()
