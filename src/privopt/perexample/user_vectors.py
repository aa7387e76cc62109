"""Users: one vector per user, by which the model moves when the user trains it on the user's own rows.

A user takes a few steps w ← w − η ∇f(w)/A from the parameters θ that everybody is sent, where f is the mean loss of at most
`batch_size` of the user's rows and A a public scale. The user's vector is θ − w, so that it points where a gradient does: a
round of one step with η = 1 is a gradient. It depends on one user's rows and on public numbers, so a clip of it bounds what a
user can do. How long it takes depends on public numbers, too, once the rows are in memory: a user with many
rows uses as many as any other.

Whatever fails for one user is that user's absence, and no other user notices.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import scipy.sparse as sp

from privopt.errors import CompositionError, InputError
from privopt.perexample.grads import ClipFactors, Vector, clip_weights
from privopt.perexample.losses import Loss


@dataclass(frozen=True)
class LocalSteps:
    """How a user trains: so many steps, each on at most `batch_size` rows. The same for all users."""

    steps: int
    learning_rate: float
    batch_size: int

    def __post_init__(self) -> None:
        if self.steps < 1 or self.batch_size < 1:
            raise CompositionError(f"a user takes at least one step on at least one row, not {self.steps} on {self.batch_size}.")
        if not 0 < self.learning_rate < np.inf:
            raise CompositionError(f"the local learning rate is a finite number > 0, not {self.learning_rate}.")

    def batches(self, rows: int, parameters: Vector) -> list[Vector]:
        """The rows of each step, among so many: one after another, from a place on that differs from round to round.

        The place is a hash of the parameters, so whoever is sent them finds the same one, and a replay repeats it.
        """
        if rows <= self.batch_size:
            return [np.arange(rows)] * self.steps
        start = int.from_bytes(hashlib.sha256(np.ascontiguousarray(parameters).tobytes()).digest()[:8]) % rows
        return [(start + step * self.batch_size + np.arange(self.batch_size)) % rows for step in range(self.steps)]


class Change(NamedTuple):
    """A user's vector: its values at some places, and 0 elsewhere; at all places if none are named."""

    values: Vector
    places: Vector | None = None


class Users(Protocol):
    """Users and their rows."""

    @property
    def size(self) -> int:
        """The number of users."""
        ...

    @property
    def dimension(self) -> int:
        """The number of parameters."""
        ...

    def change(self, parameters: Vector, user: int, local: LocalSteps, scale: Vector | None) -> Change:
        """The vector of one user."""
        ...


class Answer(NamedTuple):
    """What some users contribute together: their clipped sum, and how many of them were not clipped."""

    total: Vector
    within: int


def clipped_sum(
    users: Users, chosen: Sequence[int], parameters: Vector, local: LocalSteps, scale: Vector | None, clip: ClipFactors
) -> Answer:
    """The clipped sum of some users' vectors, one user after another.

    **Guarantee** A user's vector is clipped to the bound of `clip` before it is added, so one user moves the sum by at most that.
    A user who fails, or whose vector is not finite, is absent. Nothing else of a user's rows is returned.
    """
    total, within = np.zeros(len(parameters)), 0
    for user in chosen:
        with np.errstate(all="ignore"):  # a warning would tell something about the data
            try:
                values, places = users.change(parameters, user, local, scale)
                if values.shape != (len(parameters) if places is None else len(places),):
                    continue  # a sum would repeat its numbers
                norm = np.array([np.linalg.norm(values, ord=clip.order)])
            except Exception:  # of this user only: an error would tell of its rows, and would take others along
                continue
            weight = float(clip_weights(clip, norm)[0])
            if weight == 0:
                continue
            if places is None:
                total += weight * values
            else:
                total[places] += weight * values  # places differ from each other
            within += int(weight >= 1)
    return Answer(total, within)


def group_rows(ids: Any) -> list[Vector]:
    """The rows of each user, by the order in which users first appear. An id is compared by its text.

    >>> [rows.tolist() for rows in group_rows(np.array(["b", "a", "b"]))]
    [[0, 2], [1]]
    """
    ids = np.asarray(ids)
    if ids.ndim != 1:
        raise InputError(f"ids have the shape {ids.shape}, but there is one for each row.")
    if any(one is None or one != one for one in ids.tolist()):
        raise InputError("some rows have no id, so it is not known whose they are. Leave such rows out.")
    if ids.dtype == object:
        ids = np.array(list(map(str, ids)))
    _, first, inverse, counts = np.unique(ids, return_index=True, return_inverse=True, return_counts=True)
    parts = np.split(np.argsort(inverse, kind="stable"), np.cumsum(counts)[:-1])
    return [parts[place] for place in np.argsort(first)]


class LinearUsers:
    """Users of a linear model: rows, dense or CSR, with their targets and the rows of each user.

    Rows are on the scale on which the model is trained; `intercept`, if it is not 0, is the constant behind each of them.
    Parameters are outputs × width, flat. A user's step touches the columns that its rows have, so no more is computed.

    >>> from privopt.perexample.losses import Logistic
    >>> users = LinearUsers(np.array([[1.0], [2.0], [4.0]]), np.array([0.0, 0.0, 1.0]), [np.array([0, 1]), np.array([2])],
    ...                     Logistic(), intercept=0.0)
    >>> users.change(np.zeros(1), 0, LocalSteps(1, 1.0, 8), None).values
    array([0.75])
    """

    def __init__(
        self, matrix: Vector | sp.csr_matrix, targets: Vector, groups: Sequence[Vector], loss: Loss, *, intercept: float
    ) -> None:
        if matrix.shape[0] != len(targets):
            raise InputError(f"there are {matrix.shape[0]} rows and {len(targets)} targets; each row has one.")
        usable = np.isfinite(targets) & _finite_rows(matrix)
        self._matrix, self._targets, self._groups = matrix, targets, [group[usable[group]] for group in groups]
        self._loss, self._intercept = loss, intercept
        self._found: dict[int, tuple[Vector, Vector, Vector]] = {}  # of sparse rows, which take longer to find than to use

    @property
    def size(self) -> int:
        return len(self._groups)

    @property
    def dimension(self) -> int:
        return self._loss.outputs * self._width

    @property
    def _width(self) -> int:
        return int(self._matrix.shape[1]) + (self._intercept != 0)

    def change(self, parameters: Vector, user: int, local: LocalSteps, scale: Vector | None) -> Change:
        batches = local.batches(len(self._groups[user]), parameters) if len(self._groups[user]) else []
        rows, targets, columns, steps = self._rows_of(user, batches)
        outputs = self._loss.outputs
        before = parameters.reshape(outputs, self._width)[:, columns]
        divisor = 1.0 if scale is None else scale.reshape(outputs, self._width)[:, columns]
        after = before.copy()
        for batch in steps:
            scores = rows[batch] @ after.T
            residuals = self._loss.residuals(scores[:, 0] if outputs == 1 else scores, targets[batch])
            gradient = residuals.reshape(len(batch), outputs).T @ rows[batch] / len(batch)
            after -= local.learning_rate * gradient / divisor
        places = (np.arange(outputs)[:, None] * self._width + columns).ravel()
        return Change((before - after).ravel(), places)

    def _rows_of(self, user: int, batches: list[Vector]) -> tuple[Vector, Vector, Vector, list[Vector]]:
        """The rows that the user's steps use, and no others; their targets, their columns, and the rows of each step."""
        own = self._groups[user]
        used = np.unique(np.concatenate(batches)) if batches else np.arange(0)
        steps = [np.searchsorted(used, batch) for batch in batches]
        everything = len(used) == len(own)
        if everything and user in self._found:
            return *self._found[user], steps
        rows: Any = self._matrix[own[used]]
        columns = np.arange(self._matrix.shape[1])
        if sp.issparse(rows):
            columns = np.unique(rows.indices)
            rows = rows[:, columns].toarray()
        rows, targets = np.asarray(rows, dtype=float), self._targets[own[used]]
        if self._intercept:
            rows = np.hstack([rows, np.full((len(rows), 1), self._intercept)])
            columns = np.append(columns, self._matrix.shape[1])
        if everything and sp.issparse(self._matrix):
            self._found[user] = rows, targets, columns
        return rows, targets, columns, steps


def _finite_rows(matrix: Any) -> Vector:
    """Which rows hold finite numbers only."""
    if not sp.issparse(matrix):
        return np.asarray(np.isfinite(matrix).all(axis=1))
    wrong = np.zeros(matrix.shape[0], dtype=bool)
    wrong[np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))[~np.isfinite(matrix.data)]] = True
    return ~wrong
