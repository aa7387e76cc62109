"""Settings of every test and doctest: the same entropy each time; torch and Flower, which are extras, only where installed."""

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
]

WITH_FLOWER = [
    *(f"src/privopt/federated/{name}.py" for name in ("flower_*", "strategy", "mods", "arrays")),
    "src/privopt/runs/server_app.py",
    "src/privopt/runs/client_app.py",
    "tests/federated/in_process.py",
]

collect_ignore_glob = [*([] if find_spec("torch") else WITH_TORCH), *([] if find_spec("flwr") else WITH_FLOWER)]


@pytest.fixture(autouse=True)
def same_entropy(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What passes once passes always: a run without a seed takes its entropy from the name of the test."""
    monkeypatch.setattr(secrets, "randbits", random.Random(request.node.nodeid).getrandbits)
    if torch := sys.modules.get("torch"):
        torch.default_generator.manual_seed(0)  # of the CPU: the other devices are not there
