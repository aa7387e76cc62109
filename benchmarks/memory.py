"""The most memory that one fit takes beyond its data, which are in memory when it begins. Linux only.

python benchmarks/memory.py dense|CSR ROWS COLUMNS ENTRIES_PER_ROW yes|no   (are bounds declared?); prints bytes
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import resident
from privopt.linear_model import LogisticRegression


def main(kind: str, rows: int, columns: int, entries: int, declared: bool) -> None:
    model = LogisticRegression(epsilon=1.0, bounds=(0.0, 1.0) if declared else None)
    rng = np.random.default_rng(0)
    model.fit(rng.random((1000, 3)), rng.random(1000) > 0.5)  # whatever is loaded once is loaded
    X = rng.random((rows, columns)) if kind == "dense" else _sparse(rows, columns, entries, rng)
    y = (rng.random(rows) > 0.5).astype(float)
    resident.forget()
    before = resident.now()
    model.fit(X, y)
    print(resident.most() - before)


def _sparse(rows: int, columns: int, entries: int, rng: np.random.Generator) -> Any:
    """One entry in each of `entries` groups of columns."""
    step = columns // entries
    indices = rng.integers(0, step, (rows, entries), dtype=np.int32)
    indices += np.arange(0, step * entries, step, dtype=np.int32)
    pointers = np.arange(0, rows * entries + 1, entries, dtype=np.int32)
    return sp.csr_matrix((rng.random(rows * entries), indices.ravel(), pointers), shape=(rows, columns))


if __name__ == "__main__":
    kind_, rows_, columns_, entries_, declared_ = sys.argv[1:]
    main(kind_, int(rows_), int(columns_), int(entries_), declared_ == "yes")
