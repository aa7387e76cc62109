"""Settings of every test: the same examples each time, and one thread for each process."""

import gc
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy is loaded: small products lose by threads

from hypothesis import HealthCheck, settings

settings.register_profile(
    "laws",
    derandomize=True,
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("laws")


def pytest_xdist_auto_num_workers() -> int:
    """One more than there are cores: tests that start processes mostly wait for them."""
    return (os.cpu_count() or 1) + 1


def pytest_collection_finish() -> None:
    """Thousands of collected tests live to the end: the garbage collector need not look at them again and again."""
    gc.collect()
    gc.freeze()
