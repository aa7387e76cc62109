"""Write the measured parts of docs/assurance.md, from benchmarks/results.

python benchmarks/assurance.py
"""

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "assurance.md"


def audits(found: dict[str, Any]) -> str:
    """The audits that have to be tight, and a count of all."""
    rows = [row for row in found["audits"] if row["tight"]]
    exceeded = [row["game"] for row in found["audits"] if row["exceeded"]]
    lines = ["| game | claimed ε | audited ε ≥ | ratio | replays |", "|---|---|---|---|---|"]
    for row in rows:
        numbers = f"{row['claim']:.3f} | {row['bound']:.3f} | {row['bound'] / row['claim']:.2f} | {row['replays']}"
        lines.append(f"| {row['game']} | {numbers} |")
    above = f"{len(found['audits'])} audits (`{found['command']}`); claims exceeded: {', '.join(exceeded) or 'none'}."
    return f"{above} Those that have to be tight:\n\n" + "\n".join(lines)


def architectures(found: dict[str, Any]) -> str:
    """What the long mode showed."""
    return f"`{found['command']}`: {found['models']} models, {found['failures']} failures."


def mutants(found: dict[str, Any]) -> str:
    """How many bugs were caught."""
    return f"`{found['command']}`: {found['caught']} caught, {len(found['survived'])} survived."


def page() -> str:
    """The page, with its measured parts made anew; one without results stays as it is."""
    text = PAGE.read_text()
    for part in (audits, architectures, mutants):
        name = part.__name__
        path = ROOT / "benchmarks" / "results" / f"{name}.json"
        if not path.exists():
            continue
        results = json.loads(path.read_text())
        found = re.search(rf"<!-- {name} -->\n(.*?)<!-- end -->", text, flags=re.DOTALL)
        assert found is not None, name
        text = f"{text[: found.start(1)]}{part(results)}\n{text[found.end(1) :]}"
    return text


if __name__ == "__main__":
    PAGE.write_text(page())
