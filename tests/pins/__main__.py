"""Compare every pinned run bit for bit with pinned.json, or pin them anew.

python -m tests.pins [--write] [WORD …]
"""

import json
import sys

from tests.pins.cases import cases
from tests.pins.test_pins import PINNED


def main(words: list[str], *, write: bool) -> int:
    known = json.loads(PINNED.read_text()) if PINNED.exists() else {}
    moved = []
    for name, run in cases().items():
        if words and not any(word in name for word in words):
            continue
        found = json.loads(json.dumps(run()))
        if found != known.get(name):
            moved.append(name)
            parts = [part for part in found if found[part] != known.get(name, {}).get(part)]
            print(f"moved: {name} ({', '.join(parts)})", flush=True)  # noqa: T201  # what this program is for
        known[name] = found
    if write:
        PINNED.write_text("{\n" + ",\n".join(f"{json.dumps(name)}: {json.dumps(pin)}" for name, pin in known.items()) + "\n}\n")
    print(f"{len(moved)} of {len(known)} moved")  # noqa: T201
    return 1 if moved and not write else 0


if __name__ == "__main__":
    sys.exit(main([word for word in sys.argv[1:] if word != "--write"], write="--write" in sys.argv))
