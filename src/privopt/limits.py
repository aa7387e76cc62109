"""Limits: larger inputs are refused at once, so that a small file or a typing error cannot exhaust the machine.

They lie far above what real data and real runs need. `docs/command-line.md` lists them; there are no others.
"""

MOST_COLUMNS = 2**24  # features of a model, and columns of a sparse matrix
MOST_NAMED_COLUMNS = 2**18  # columns of a CSV or Parquet file: each is an object in memory
MOST_NAME_CHARACTERS = 10_000  # length of a column's name
MOST_JSON_BYTES = 2**29  # size of a schema, or of a JSON file in a run folder: 2²⁴ names fit
MOST_UNPACKED_BYTES = 2**27  # size of a compressed file's content, or this many times the size of the file:
MOST_UNPACKED_RATIO = 100
MOST_ROUNDS = 10**7  # rounds of a training run: its plan is a list of them
MOST_EXAMPLES = 10**12  # examples, for accounting commands: beyond, floating-point numbers are too coarse


def unpacked_limit(packed: int) -> int:
    """How many bytes a file of `packed` bytes may unpack to."""
    return max(MOST_UNPACKED_BYTES, MOST_UNPACKED_RATIO * packed)
