"""Doctests of networks need torch, which is an extra."""

from importlib.util import find_spec

WITH_TORCH = [
    "src/privopt/perexample/torch/*",
    "src/privopt/nets/*",
    "src/privopt/measure/torch_randomness.py",
    "src/privopt/runs/network.py",
]

collect_ignore_glob = [] if find_spec("torch") else WITH_TORCH
