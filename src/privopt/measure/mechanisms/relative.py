"""What mechanisms have in common: noise in proportion to a bound."""

from dataclasses import dataclass

from privopt.errors import CompositionError
from privopt.privacy.events import DpEvent, NonPrivateDpEvent, PureDpEvent


@dataclass(frozen=True)
class Relative:
    """Noise of z times the bound."""

    noise_multiplier: float

    def __post_init__(self) -> None:
        if not self.noise_multiplier >= 0:
            raise CompositionError(
                f"{type(self).__name__}({self.noise_multiplier}): a noise multiplier is ≥ 0 (0 is no privacy)."
            )


def pure(noise_multiplier: float) -> DpEvent:
    """1/z-DP, or no guarantee without noise."""
    return PureDpEvent(1 / noise_multiplier) if noise_multiplier else NonPrivateDpEvent()
