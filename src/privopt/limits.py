"""Limits: what is refused at once, so that a small file or a slip of the finger cannot eat the machine.

They lie far above what real data and real runs need. `docs/command-line.md` lists them; nothing else in privopt limits sizes.
"""

MOST_COLUMNS = 2**24  # features of a model, and columns of a sparse matrix
MOST_NAMED_COLUMNS = 2**18  # columns of a CSV or Parquet file, each an object of its own in memory
MOST_NAME_CHARACTERS = 10_000  # of one column's name
MOST_JSON_BYTES = 2**29  # of a schema, or of a JSON file in a run folder: 2²⁴ names fit
MOST_UNPACKED_BYTES = 2**27  # of a compressed file; a larger one may unpack to so many times its own size:
MOST_UNPACKED_RATIO = 100
MOST_ROUNDS = 10**7  # of a training run: its plan is a list of them
MOST_EXAMPLES = 10**12  # that accounting commands count with: beyond, floating-point numbers give out


def unpacked_limit(packed: int) -> int:
    """How many bytes a file of `packed` bytes may unpack to."""
    return max(MOST_UNPACKED_BYTES, MOST_UNPACKED_RATIO * packed)
