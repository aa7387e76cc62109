"""Random networks for as long as you like: norms, sums and clipped sums against each example alone (tests/laws/exactness.py).

    python benchmarks/architectures.py [--minutes N] [--seed N] [--json benchmarks/results/architectures.json]

Prints how many models were tried and, for each failure, the expression that makes the case again. Exits with 1 after a failure.
"""

import argparse
import json
import os
import shlex
import sys
import time
import warnings
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is loaded: small products lose by threads
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from hypothesis import HealthCheck, Phase, given, seed, settings
from tests.laws.exactness import CASES, Case, check

from benchmarks.report import machine

AT_ONCE = 200  # cases of one seed


def main() -> int:
    """Try cases until the time is over."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=None, help="of the first batch of cases; otherwise from the clock")
    parser.add_argument("--json", type=Path, default=None, help="where to write the counts")
    given_ = parser.parse_args()
    warnings.simplefilter("ignore")  # of torch, about layers that are slow
    end, now = time.monotonic() + 60 * given_.minutes, given_.seed if given_.seed is not None else time.time_ns() % 2**32
    first, tried, failures = now, 0, 0
    print(f"seeds from {now}", flush=True)
    while time.monotonic() < end:

        @seed(now)
        @settings(
            max_examples=AT_ONCE, database=None, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
        )
        @given(CASES)
        def attempt(case: Case) -> None:
            nonlocal tried, failures
            if time.monotonic() >= end:
                return
            tried += 1
            try:
                check(case)
            except Exception as error:
                failures += 1
                print(
                    f"\nfailure {failures}: {type(error).__name__}: {str(error).splitlines()[0]}\n    check({case!r})", flush=True
                )

        attempt()
        now += 1
    print(f"\n{tried} models tried, {failures} failures", flush=True)
    if given_.json is not None:
        command = shlex.join(["python", "benchmarks/architectures.py", *sys.argv[1:]])
        found = {"command": command, "machine": machine(), "first_seed": first, "models": tried, "failures": failures}
        given_.json.write_text(json.dumps(found, indent=1) + "\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
