"""What (ε, δ) says about an attacker who wants to know whether someone's data took part.

Every (ε, δ)-DP release can be made from one bit of a randomised response: with probability δ it tells whether the unit took part,
and else it is right with odds e^ε (Kairouz, Oh, Viswanath 2015). So no attack, with whatever knowledge of all other rows, does
better than one that sees that bit. An attack on what was really released may do far worse.
"""

import math
from dataclasses import asdict, dataclass

WEAK = 10.0  # an ε above which the guarantee by itself protects hardly anybody


@dataclass(frozen=True)
class Attacker:
    """The best that an attacker can do who thinks it as likely as not that a unit took part.

    `success` is the probability of a right guess, `advantage` the true minus the false positive rate of a test, and `posterior`
    how sure the attacker can become, except in an event of probability δ.
    """

    success: float
    advantage: float
    posterior: float

    def to_json(self) -> dict[str, float]:
        """The numbers by name."""
        return asdict(self)


def strongest_attacker(epsilon: float, delta: float = 0.0) -> Attacker:
    """The best attacker against (ε, δ): success δ + (1 − δ) p, where p = e^ε/(1 + e^ε) is the posterior.

    >>> attacker = strongest_attacker(1.0, 1e-5)
    >>> f"{attacker.success:.3f} {attacker.advantage:.3f} {attacker.posterior:.3f}"
    '0.731 0.462 0.731'
    """
    posterior = 1 / (1 + math.exp(-epsilon))
    advantage = delta + (1 - delta) * math.tanh(epsilon / 2)
    return Attacker((1 + advantage) / 2, advantage, posterior)


def describe_attacker(epsilon: float, delta: float = 0.0) -> str:
    """What ε means, in words.

    >>> describe_attacker(1.0)[:95]
    'At ε = 1 an attacker who gives it even odds that someone took part can become at most 73.1 % su'
    """
    attacker = strongest_attacker(epsilon, delta)
    apart = f", but for an event of probability δ = {delta:.3g}" if delta else ""
    said = (
        f"At ε = {epsilon:g} an attacker who gives it even odds that someone took part can become at most "
        f"{_percent(attacker.posterior)} sure{apart}, and guess right with probability at most {_share(attacker.success)} "
        f"(0.5 is blind guessing); membership advantage at most {_share(attacker.advantage)}."
    )
    if epsilon > WEAK:
        said += (
            f" So ε = {epsilon:g} by itself promises next to nothing: it allows a release that shows who took part. "
            "1 is strong, 3 is common, 10 is weak."
        )
    return said


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %" if share < 0.9995 else "more than 99.95 %"


def _share(share: float) -> str:
    return f"{share:.3f}" if share < 0.9995 else "almost 1"
