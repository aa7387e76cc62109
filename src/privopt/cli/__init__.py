"""The command line."""

from privopt.cli.app import app

__all__ = ["app"]
