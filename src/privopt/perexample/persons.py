"""Persons: whose row each row is.

A person is everybody whose rows share an id. A guarantee for persons needs ids that tell people apart: an id that is written in
two ways would make two persons of one, so such ids are refused, and rows without an id as well.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import Any

import numpy as np

from privopt.errors import InputError
from privopt.perexample.grads import Vector
from privopt.perexample.user_vectors import group_rows


@dataclass(frozen=True, eq=False)
class Persons:
    """The rows of each person, one person after another; those of the first person first."""

    rows: Vector
    counts: Vector  # of each person's rows

    @classmethod
    def of(cls, ids: Any, size: int) -> "Persons":
        """By the ids of so many rows. Persons come in the order in which they first appear.

        >>> persons = Persons.of(["b", "a", "b"], 3)
        >>> persons.rows.tolist(), persons.counts.tolist()
        ([0, 2, 1], [2, 1])
        """
        groups = group_rows(_plain(ids, size))
        if len(groups) < 2:
            raise InputError("all rows have the same id, so there is one person: nobody is hidden among others.")
        return cls(np.concatenate(groups), np.array([len(group) for group in groups]))

    def where(self, usable: Vector) -> "Persons":
        """The same persons with those of their rows that are usable, if there are any."""
        stay = usable.take(self.rows)
        return Persons(self.rows[stay], np.bincount(self.person_of[stay], minlength=self.size))

    def take(self, chosen: Vector) -> "Persons":
        """These persons, with their rows.

        >>> Persons.of(["b", "a", "b"], 3).take(np.array([1, 0])).rows.tolist()
        [1, 0, 2]
        """
        counts = self.counts.take(chosen)
        before = np.cumsum(counts) - counts
        places = np.repeat(self.starts.take(chosen) - before, counts) + np.arange(int(counts.sum()))
        return Persons(self.rows.take(places), counts)

    @property
    def size(self) -> int:
        """The number of persons."""
        return len(self.counts)

    @cached_property
    def starts(self) -> Vector:
        """Where each person's rows begin."""
        return np.cumsum(self.counts) - self.counts

    @cached_property
    def person_of(self) -> Vector:
        """Whose each of `rows` is."""
        return np.repeat(np.arange(self.size), self.counts)


def cut_between_persons(counts: Vector, most: int) -> list[tuple[int, int]]:
    """Where pieces of persons with so many rows begin and end. None has more than `most` rows, unless it is one person.

    >>> cut_between_persons(np.array([3, 2, 2, 1]), 4)
    [(0, 1), (1, 3), (3, 4)]
    """
    ends, pieces, first = np.cumsum(counts), list[tuple[int, int]](), 0
    while first < len(counts):
        before = int(ends[first] - counts[first])
        after = max(first + 1, int(ends.searchsorted(before + most, "right")))
        pieces.append((first, after))
        first = after
    return pieces


def _plain(ids: Any, size: int) -> Vector:
    """The ids as an array of one type, without missing ones."""
    missing = getattr(ids, "isna", None)  # of pandas, whose missing values differ from type to type
    if missing is not None and bool(np.asarray(missing()).any()):
        raise InputError("some rows have no id: every row belongs to a person. Leave such rows out.")
    found = np.asarray(ids)
    if found.shape != (size,):
        raise InputError(f"ids have the shape {found.shape}, but there are {size} rows, and each has one id.")
    if found.dtype == object:
        kinds = {"number" if isinstance(one, int | float | np.number) else type(one).__name__ for one in found.tolist()}
        if len(kinds - {"NoneType"}) > 1:
            raise InputError("the ids are of several types, such as 12 and '12': one person would count as two.")
    if found.dtype.kind in "OSUT":
        check_written_alike(set(map(str, found.tolist())))
    return found


def check_written_alike(ids: Iterable[str], where: str = "the ids", who: str = "person") -> None:
    """Refuse ids that are written in several ways."""
    distinct = set(ids)
    if len(distinct) > len(set(map(_canonical, distinct))):
        raise InputError(f"{where} are written in several ways, such as 12 and 12.0: one {who} would count as two.")


def _canonical(text: str) -> str | Decimal:
    """An id without the blanks around it; a number however it is written, unless with leading zeros, which make another id.

    >>> _canonical("12.0") == _canonical(" 12"), _canonical("007") == _canonical("7"), _canonical("1_2") == _canonical("12")
    (True, False, False)
    """
    text = text.strip()
    return Decimal(text) if re.fullmatch(r"[+-]?(0|[1-9]\d*)(\.\d*)?([eE][+-]?\d{1,6})?", text) else text
