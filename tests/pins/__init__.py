"""Pins: what the default rules choose and what seeded runs give, for every method and front end, as numbers in pinned.json.

A change of names or structure must not move a number. `python -m tests.pins` compares bit for bit, and `--write` pins anew;
the test allows for the rounding of another machine.
"""
