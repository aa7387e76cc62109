"""The command line."""

import sys

try:
    from privopt.cli.application import app
except KeyboardInterrupt:  # while it is loaded: nothing has begun
    sys.stderr.write("Stopped.\n")
    sys.exit(130)

__all__ = ["app"]
