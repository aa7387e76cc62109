"""Networks need torch, which is an extra. The same noise is calibrated once for all tests of a process: it takes seconds."""

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest

from privopt.privacy.calibration import calibrate
from tests.accounting import quick_prices

__all__ = ["quick_prices"]

collect_ignore_glob = [] if find_spec("torch") else ["test_*.py"]
_known: dict[str, float] = {}


def _once(event: Callable[[float], Any], budget: Any, *, spent: Any = None, accountant: Any = "auto") -> float:
    key = repr((event(1.0), budget, spent, accountant))
    if key not in _known:
        _known[key] = calibrate(event, budget, spent=spent, accountant=accountant)
    return _known[key]


@pytest.fixture(autouse=True)
def _calibrated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("privopt.training.session", "privopt.nets.fitting"):
        monkeypatch.setattr(import_module(module), "calibrate", _once)
