"""The study of federations: its page shows what was measured, and its program runs."""

import json
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from benchmarks.federated import Data, Federation

from benchmarks import federated
from privopt.perexample.user_vectors import group_rows

ROOT = Path(__file__).parents[2]


def test_the_page_shows_the_committed_results() -> None:
    results = json.loads((ROOT / "benchmarks" / "results" / "federated.json").read_text())
    assert federated.table(results) in (ROOT / "docs" / "federated.md").read_text(encoding="utf-8")


def test_a_study_runs_on_made_up_posts() -> None:
    rng = np.random.default_rng(0)
    rows = sp.random(60, 30, density=0.2, format="csr", random_state=0)
    tags = rng.integers(0, 3, 60).astype(float)
    data = Data(rows, tags, group_rows(np.arange(60) // 3), rows, tags, np.full(30, 0.5))
    found = federated.study(data, Federation("a few", 20, 10, 2, 50.0, 1e-2), seeds=1)
    assert set(found["methods"]) == set(federated.METHODS)
    assert all(0 <= method["accuracy"][0] <= 1 for method in found["methods"].values())
