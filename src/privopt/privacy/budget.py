"""Budgets: how much may be learnt about one unit, what one unit is, and what an attacker can do with so much."""

import math
from dataclasses import asdict, dataclass
from numbers import Real
from typing import Literal

from privopt.errors import InputError

Neighbours = Literal["add-remove", "replace-one"]
UnitName = Literal["example", "person", "user"]
UNITS: dict[UnitName, str] = {  # in the words of a statement
    "example": "one example (row)",
    "person": "one person (all rows of a person together)",
    "user": "one user (all rows of a user together)",
}
_RELATIONS: dict[Neighbours, str] = {
    "add-remove": "one {unit}'s contribution added or removed while the number of {unit}s stays public (zero-out)",
    "replace-one": "one {unit} replaced by another, while the number of {unit}s stays public",
}


def describe_neighbours(neighbours: Neighbours, unit: UnitName = "example") -> str:
    """What neighbouring data sets are, in the words of a statement."""
    return _RELATIONS[neighbours].format(unit=unit)


@dataclass(frozen=True)
class Budget:
    """An (ε, δ) guarantee, its neighbouring relation and the unit that it protects.

    **Guarantee** On neighbouring data sets the probability of any outcome differs by a factor of at most e^ε, except with
    probability at most δ. Both data sets have the same n, which is public: means are divided by n, or by a share of
    it. With `"add-remove"`, one of them lacks what one example contributes, as if a row that counts for nothing stood in its
    place. That relation is known as zero-out (Kairouz et al., Practical and Private (Deep) Learning without Sampling or
    Shuffling). With `"replace-one"`, one example differs. The unit is what is clipped and sampled: one example, one person
    with all rows, or in a federation one user with all rows.

    >>> Budget(1.0, 1e-6)
    Budget(epsilon=1.0, delta=1e-06, neighbours='add-remove', unit='example')
    >>> print(Budget(1.0, 1e-6))
    ε = 1, δ = 1e-06
    """

    epsilon: float
    delta: float = 0.0
    neighbours: Neighbours = "add-remove"
    unit: UnitName = "example"

    def __post_init__(self) -> None:
        if not isinstance(self.epsilon, Real) or isinstance(self.epsilon, bool) or not 0 < self.epsilon < math.inf:
            raise InputError(f"epsilon is {self.epsilon!r}, but a guarantee needs a finite epsilon > 0; 1.0 is a common choice.")
        if not isinstance(self.delta, Real) or isinstance(self.delta, bool) or not 0 <= self.delta < 1:
            raise InputError(f"delta is {self.delta!r}, but it is a probability: 0 ≤ delta < 1, and below 1/n to mean anything.")
        if self.neighbours not in ("add-remove", "replace-one"):
            raise InputError(f"neighbours is {self.neighbours!r}; it is 'add-remove' or 'replace-one'.")
        if self.unit not in UNITS:
            raise InputError(
                f"unit is {self.unit!r}, but it is 'example', where each example is clipped and sampled by itself, 'person', "
                "where all rows that share an id are (groups=ids of a linear model), or 'user' in a federation."
            )

    def __str__(self) -> str:
        other = f", {self.neighbours}" if self.neighbours != "add-remove" else ""
        return f"ε = {self.epsilon:.10g}, δ = {self.delta:.10g}{other}"


def default_delta(size: int) -> float:
    """1/(10 n), rounded down to a power of ten so that δ itself says little about n.

    >>> default_delta(32561)
    1e-06
    """
    exponent = math.floor(-math.log10(10 * size) + 1e-9)
    return float(f"1e{exponent}")


def cautions(delta: float, size: int, unit: UnitName = "example") -> list[str]:
    """Cautions about a δ that is valid, but too large to mean much for this number of units.

    >>> cautions(0.02, 100)
    ['delta = 0.02 is not below 1/n = 0.01: publishing 2 of the 100 examples in the clear would satisfy it. Use 0.001, or less.']
    """
    if delta < 1 / size:
        return []
    published = math.floor(delta * size * (1 + 1e-9))
    caution = (
        f"delta = {delta:.3g} is not below 1/n = {1 / size:.3g}: publishing {published} of the {size} {unit}s in the clear "
        f"would satisfy it. Use {default_delta(size):g}, or less."
    )
    return [caution]


# ---------------------------------------------------------------- what it means

ALMOST_SURE = 0.9995
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

    Every (ε, δ)-DP release can be made from one bit of a randomised response: with probability δ it tells whether the unit took
    part, and else it is right with odds e^ε (Kairouz, Oh, Viswanath 2015). So no attack, with whatever knowledge of all other
    rows, does better than one that sees that bit. An attack on what was really released may do far worse.

    >>> attacker = strongest_attacker(1.0, 1e-5)
    >>> f"{attacker.success:.3f} {attacker.advantage:.3f} {attacker.posterior:.3f}"
    '0.731 0.462 0.731'
    """
    posterior = 1 / (1 + math.exp(-epsilon))
    advantage = delta + (1 - delta) * math.tanh(epsilon / 2)
    return Attacker((1 + advantage) / 2, advantage, posterior)


def detection_rate(epsilon: float, delta: float, false_alarms: float) -> float:
    """How often, at most, an attacker recognises a unit that took part, who accuses others with this probability.

    The trade-off curve of (ε, δ): a test with false positive rate α has a true positive rate of at most
    min(δ + e^ε α, 1 − e^−ε (1 − δ − α)) (Wasserman, Zhou 2010; Kairouz, Oh, Viswanath 2015).

    >>> f"{detection_rate(1.0, 0.0, 0.01):.4f} {detection_rate(0.0, 0.0, 0.3):.1f} {detection_rate(100.0, 1e-5, 0.01):.1f}"
    '0.0272 0.3 1.0'
    """
    few, many = delta + math.exp(min(epsilon, 700.0)) * false_alarms, 1 - math.exp(-epsilon) * (1 - delta - false_alarms)
    return max(0.0, min(1.0, few, many))


_STRENGTHS = (
    (1.0, "strong: 1 or less is what many would wish for"),
    (3.0, "common in practice, between strong (1) and weak (10)"),
    (WEAK, "weak: usual for large models, and far from the strong ε = 1"),
    (math.inf, "very weak: above 10, the bound says little"),
)


def describe_strength(epsilon: float) -> str:
    """How strong such an ε is; its first word or two are a label.

    >>> describe_strength(2.0)
    'common in practice, between strong (1) and weak (10)'
    """
    return next(words for most, words in _STRENGTHS if epsilon <= most)


def describe_attacker(epsilon: float, delta: float = 0.0) -> str:
    """What ε means, in words.

    >>> describe_attacker(1.0)[:95]
    'At ε = 1 an attacker who gives it even odds that someone took part can become at most 73.1 % su'
    """
    attacker = strongest_attacker(epsilon, delta)
    apart = f", but for an event of probability δ = {delta:.3g}" if delta else ""
    if attacker.posterior < ALMOST_SURE:
        said = (
            f"At ε = {epsilon:g} an attacker who gives it even odds that someone took part can become at most "
            f"{100 * attacker.posterior:.1f} % sure{apart}, and guess right with probability at most {attacker.success:.3f} "
            f"(0.5 is blind guessing); membership advantage at most {attacker.advantage:.3f}."
        )
    else:
        said = f"At ε = {epsilon:g} an attacker who gives it even odds that someone took part can become all but certain of it."
    if epsilon > WEAK:
        said += (
            f" So ε = {epsilon:g} by itself promises next to nothing: it allows a release that shows who took part. "
            "1 is strong, 3 is common, 10 is weak."
        )
    return said
