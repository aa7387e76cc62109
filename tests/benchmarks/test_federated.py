"""The study of federations: its program runs, and reads nothing of the users' rows for what it takes as public."""

import os
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from benchmarks.federated import Data, Federation

from benchmarks import federated
from privopt.perexample.user_vectors import group_rows


def test_a_study_runs_on_made_up_posts() -> None:
    rng = np.random.default_rng(0)
    rows = sp.random(60, 30, density=0.2, format="csr", random_state=0)
    tags = rng.integers(0, 3, 60).astype(float)
    data = Data(rows, tags, group_rows(np.arange(60) // 3), rows, tags, np.full(30, 0.5), 2.0)
    found = federated.study(data, Federation("a few", 20, 10, 2, 50.0, 1e-2), seeds=1)
    assert set(found["methods"]) == set(federated.METHODS)
    assert all(0 <= method["accuracy"][0] <= 1 for method in found["methods"].values())


GIVEN = os.environ.get("PRIVOPT_DATA")  # which benchmarks do not see in tests


@pytest.mark.skipif(not GIVEN, reason="PRIVOPT_DATA names no folder with the data sets")
def test_what_is_taken_as_public_does_not_depend_on_the_posts(tmp_path: Path) -> None:
    """The violation: rows of users that decide the length of a typical divided row, and so clip bound and rates, unpaid."""
    assert GIVEN
    for name in ("imdb_train_bow.npz", "imdb_vocab.txt.gz", "stackexchange_vocab.txt.gz"):
        (tmp_path / name).symlink_to(Path(GIVEN) / name)
    scale, scaled_norm = federated._public_scale(tmp_path)  # without the posts
    assert (scale > 0).all()
    assert 1.0 < scaled_norm < 1 / scale.min()
