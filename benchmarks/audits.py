"""Audits of every private method, on more replays than the tests have time for: claims, and what the audits show of them.

    python benchmarks/audits.py [--times 100] [--only TEXT] [--json benchmarks/results/audits.json]

Each game of tests/audit is played on so many times the replays of the tests; 100 times take a few hours. The table has the
claimed ε, the ε that an audit shows to be spent at least (wrong with probability 10⁻⁶), their ratio, and the seconds of the
processor. The program fails if an audit exceeds its claim.
"""

import argparse
import json
import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.audit.auditing import FALSE_ALARM, Audit, audit
from tests.audit.games import GAMES

from benchmarks.report import machine

HEADER = f"{'game':<36}{'claim':>7}{'bound':>7}{'ratio':>7}{'replays':>10}{'seconds':>9}"


def line(name: str, found: Audit) -> str:
    """One row of a table that 80 columns hold."""
    mark = " !" if found.exceeded else ""
    numbers = f"{found.claim:7.3f}{found.bound:7.3f}{found.bound / found.claim:7.2f}{found.replays:10d}{found.seconds:9.1f}"
    return f"{name:<36}{numbers}{mark}"


def main() -> int:
    parser = argparse.ArgumentParser(description="Audits of every private method.")
    parser.add_argument("--times", type=float, default=100.0, help="times the replays of the tests")
    parser.add_argument("--only", default="", help="games whose name has this in it")
    parser.add_argument("--json", type=Path, default=None, help="where to write the results")
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    about = {"command": shlex.join(["python", "benchmarks/audits.py", *sys.argv[1:]]), "false_alarm": FALSE_ALARM}
    about |= {"machine": machine()}
    print(HEADER, flush=True)
    for name, entry in GAMES.items():
        if given.only not in name:
            continue
        game = entry.make()
        found = audit(game, max(2, round(given.times * entry.replays)))
        print(line(name, found), flush=True)
        rows.append({"game": name, "delta": game.delta, "tight": game.tight, **asdict(found), "exceeded": found.exceeded})
        if given.json is not None:
            given.json.parent.mkdir(parents=True, exist_ok=True)
            given.json.write_text(json.dumps({**about, "audits": rows}, indent=1, ensure_ascii=False) + "\n")
    exceeded = [row["game"] for row in rows if row["exceeded"]]
    print(f"{len(rows)} audits; claims exceeded: {', '.join(exceeded) or 'none'}")
    return 1 if exceeded else 0


if __name__ == "__main__":
    raise SystemExit(main())
