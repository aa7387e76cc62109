"""The slot: a plan turns a noise multiplier into a recipe, before any data are read."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from privopt.recipe import Recipe


@dataclass(frozen=True)
class Planned:
    """A method, ready but for its noise. More noise costs less; calibration finds the least that fits into the budget."""

    recipe: Callable[[float], Recipe]
    settings: Callable[[float], dict[str, Any]]  # what the statement shows, by name
    limit: float = math.inf  # rows that are longer are made shorter
