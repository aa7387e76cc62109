"""Runs: a table becomes a private model in a folder of its own, which survives being killed."""
