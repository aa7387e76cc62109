"""Settings of every test and doctest: the same entropy each time, and torch, which is an extra, only where it is installed."""

import random
import secrets
import sys
from importlib.util import find_spec

import pytest

WITH_TORCH = [
    "src/privopt/perexample/networks/*",
    "src/privopt/nets/*",
    "src/privopt/numba_cache.py",
    "src/privopt/measure/randomness/keyed_normal.py",
    "src/privopt/measure/randomness/torch_noise.py",
    "src/privopt/runs/network.py",
]

collect_ignore_glob = [] if find_spec("torch") else WITH_TORCH


@pytest.fixture(autouse=True)
def same_entropy(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What passes once passes always: a run without a seed takes its entropy from the name of the test."""
    monkeypatch.setattr(secrets, "randbits", random.Random(request.node.nodeid).getrandbits)
    if torch := sys.modules.get("torch"):
        torch.manual_seed(0)
