"""What was pinned still holds, up to the rounding of another machine."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.pins.cases import cases

PINNED = Path(__file__).with_name("pinned.json")
KNOWN = json.loads(PINNED.read_text()) if PINNED.exists() else {}


@pytest.mark.parametrize("name", list(cases()))
def test_a_seeded_run_gives_what_was_pinned(name: str) -> None:
    found, known = cases()[name](), KNOWN[name]
    assert found.keys() == known.keys()
    for part, values in known.items():
        if isinstance(values, str):
            assert found[part] == values
        else:
            assert np.allclose(found[part], values, rtol=1e-6, atol=1e-9)
