"""What the engine refuses. Each error names the module, why it cannot be, and what would be."""

from privopt.errors import PrivoptError


class UnsupportedLayer(PrivoptError):
    """A module whose per-example gradient does not exist, or cannot be had as the module is used."""


class UnsupportedLoss(PrivoptError):
    """A loss that does not give one value for each example."""
