"""What was pinned still holds, up to the rounding of another machine."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.pins.cases import cases

PINNED = Path(__file__).with_name("pinned.json")
CLOSE = 2e-3  # another machine rounds differently, and noise is searched for up to a thousandth
KNOWN = json.loads(PINNED.read_text()) if PINNED.exists() else {}


@pytest.mark.parametrize("name", list(cases()))
def test_a_seeded_run_gives_what_was_pinned(name: str) -> None:
    found, known = cases()[name](), KNOWN[name]
    assert found.keys() == known.keys()
    for part, values in known.items():
        if isinstance(values, str):
            assert found[part] == values
        else:
            largest = np.abs(values).max() if part == "result" else 0.0
            assert np.allclose(found[part], values, rtol=CLOSE, atol=CLOSE * largest)
