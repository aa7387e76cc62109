"""Networks need torch, which is an extra. Benchmarks run on made-up rows here, wherever real ones are."""

from importlib.util import find_spec

import pytest

collect_ignore = [] if find_spec("torch") else ["test_networks.py", "test_papers_networks.py"]


@pytest.fixture(autouse=True)
def _synthetic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PRIVOPT_DATA", raising=False)
