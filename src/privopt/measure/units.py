"""Units: whose rows are protected together.

A guarantee is for one unit: what is clipped together, and sampled together, is what one budget hides. A measurement names its
unit; a budget names the unit that it promises to protect, and a run whose measurements have another is refused.
"""

from dataclasses import dataclass
from typing import ClassVar, Protocol

from privopt.errors import CompositionError
from privopt.privacy.budget import UNITS, Budget, UnitName


class Unit(Protocol):
    """Whose rows are protected together."""

    @property
    def name(self) -> UnitName:
        """Its name in a budget; `privopt.privacy.budget.UNITS` has the words that a statement prints for it."""
        ...


@dataclass(frozen=True)
class each_row:  # noqa: N801  # a constructor that reads as a phrase
    """Each row by itself. **Guarantee** Every row is drawn, and its vector clipped, without regard to any other row.

    >>> UNITS[each_row().name]
    'one example (row)'
    """

    name: ClassVar[UnitName] = "example"


@dataclass(frozen=True)
class each_person:  # noqa: N801
    """A person, with all rows that share an id. **Guarantee** Persons are drawn by themselves, and a person's vector is clipped.

    The vector of a person is made of that person's rows and of public numbers only: the mean of their gradients
    (`privopt.perexample.person_oracle` for linear models, `privopt.perexample.networks.torch_persons` for networks).

    >>> UNITS[each_person().name]
    'one person (all rows of a person together)'
    """

    name: ClassVar[UnitName] = "person"


@dataclass(frozen=True)
class rows_of_persons:  # noqa: N801
    """A person, with all rows that share an id, of which each is drawn and clipped by itself.

    **Guarantee** A person has at most `most_rows` rows, so Poisson batches of rows with Gaussian noise cost a person what
    `privopt.measure.samplers.several_rows` says. It needs less noise than drawing persons where noise is small because batches
    are: a person is then rarely in one with more than one row.

    >>> rows_of_persons(4).name
    'person'
    """

    most_rows: int

    name: ClassVar[UnitName] = "person"

    def __post_init__(self) -> None:
        if self.most_rows < 1:
            raise CompositionError(f"rows_of_persons({self.most_rows}): a person has at least one row.")


@dataclass(frozen=True)
class each_user:  # noqa: N801
    """A user of a federation, with all rows. **Guarantee** Users are drawn by themselves, and a user's whole change is clipped.

    >>> UNITS[each_user().name]
    'one user (all rows of a user together)'
    """

    name: ClassVar[UnitName] = "user"


def rows_drawn(unit: Unit) -> int | None:
    """How many rows it has at most, if these are drawn and clipped each by itself; `None`: it is drawn and clipped as one.

    >>> rows_drawn(rows_of_persons(4)), rows_drawn(each_person())
    (4, None)
    """
    return getattr(unit, "most_rows", None)


def check_unit(budget: Budget | None, *measurements: object) -> None:
    """Refuse a budget that promises to protect another unit than these measurements do. What names no unit protects each row."""
    for one in measurements:
        unit: Unit = getattr(one, "unit", each_row())
        if budget is not None and unit.name != budget.unit:
            words = UNITS.get(unit.name, unit.name)
            raise CompositionError(
                f"the budget is for {UNITS[budget.unit]}, but {type(one).__name__} clips and samples {words}: no more "
                f"can be promised. Use Budget(…, unit={unit.name!r}), or measurements of the other unit."
            )
