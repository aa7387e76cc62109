"""What is known beside the private rows: public rows, or a scale of the columns. Made before training, in the same frame.

A scale is how large the gradient of each column's coefficient typically is, up to a factor, declared by the user as a vector; or
`"frequency"`: then E|x| is measured on the private rows, with noise, paid from the budget, and its root is the scale.
"""

import hashlib
import math
from dataclasses import dataclass
from inspect import signature
from typing import Any

import numpy as np
import scipy.sparse as sp

from privopt.errors import InputError
from privopt.linear_model.defaults import INTERCEPT
from privopt.linear_model.problem import Settings, Side
from privopt.linear_model.scaling import NORM_SHARE, Scales, share_of
from privopt.measure import surveys
from privopt.measure.randomness import Rng
from privopt.perexample.design import Design, Frame
from privopt.perexample.grads import Vector
from privopt.perexample.losses import Loss
from privopt.perexample.public_rows import PublicRows
from privopt.postprocess.side_information import least_seen, seen_sizes
from privopt.privacy.budget import Budget
from privopt.privacy.calibration import calibrate
from privopt.privacy.events import GaussianDpEvent
from privopt.privacy.ledger import Run
from privopt.recipes import METHODS, check_side
from privopt.recipes import method as method_of

FREQUENCY_SHARE = 0.1  # of the squared budget measures frequencies that nobody declared
BATCH = 64  # public rows at a time: the mean gradient of more would tell less of how large gradients are
WHOLE = ("sagd-sparse",)  # but these compare that mean with the private one, and use all


@dataclass(frozen=True, eq=False)
class PublicTable:
    """Rows that are not private, and their targets, encoded as the private ones are."""

    name: str
    matrix: Vector | sp.csr_matrix
    targets: Vector

    def __str__(self) -> str:
        return f"{self.name}: {len(self.targets)} rows, sha256 {self.digest[:16]}"

    @property
    def digest(self) -> str:
        """A hash of rows and targets: what was used can be recognised."""
        rows = sp.csr_array(self.matrix)
        rows.sum_duplicates()
        parts = (np.array(rows.shape), rows.indptr.astype(np.int64), rows.indices.astype(np.int64), rows.data.astype(float))
        digest = hashlib.sha256()
        for part in (*parts, np.asarray(self.targets, dtype=float)):
            digest.update(np.ascontiguousarray(part).tobytes())
        return digest.hexdigest()


def check(settings: Settings, public: bool) -> None:
    """Refuse side information that the method cannot use, and the lack of one that it needs; nothing depends on the data."""
    method = method_of(settings.method)
    if public and "public" not in signature(method.recipe).parameters:
        able = ", ".join(name for name, other in METHODS.items() if "public" in signature(other.recipe).parameters)
        raise InputError(f"{method.name} does not use public data. Leave them out, or choose one of {able}.")
    check_side(method, settings.options, public=public)
    scale = settings.options.get("scale")
    if isinstance(scale, str) and scale != "frequency":
        raise InputError(f'scale is {scale!r}; it is a number > 0 for each column, or "frequency", which is measured privately.')


def check_columns(matrix: Vector | sp.csr_matrix, public: PublicTable | None, settings: Settings) -> None:
    """Refuse public rows and scales that are not for these columns."""
    columns, scale = int(matrix.shape[1]), settings.options.get("scale")
    if public is not None and public.matrix.shape[1] != columns:
        raise InputError(f"the public rows have {public.matrix.shape[1]} columns, but the private ones have {columns}.")
    if scale is not None and not isinstance(scale, str):
        _of_columns(scale, columns)


def known(
    matrix: Vector | sp.csr_matrix,
    targets: Vector,
    public: PublicTable | None,
    settings: Settings,
    scales: Scales,
    loss: Loss,
    *,
    regression: bool,
    budget: Budget,
    spending: Run,
    rng: Rng,
) -> Side | None:
    """Whatever the method uses of it; `None` if it uses nothing.

    **Guarantee** Public rows are used in the clear, private ones only through surveys that are paid for, except for a method
    without a guarantee.
    """
    method, shift, unit = method_of(settings.method), *scales.target
    if public is None and "scale" in settings.options:
        return _by_scale(matrix, settings, scales, outputs=loss.outputs, budget=budget, spending=spending, rng=rng)
    if public is None and method.private:
        return None
    told = ~np.isnan(targets)
    rows, answers = (matrix[told], targets[told]) if public is None else (public.matrix, public.targets)
    if sp.issparse(rows) and scales.frame.centre is not None:
        rows = sp.csr_array(rows).toarray()
    design = Design(rows, scales.frame)
    batch = len(answers) if settings.method in WHOLE else BATCH
    gradient = PublicRows(design, (answers - shift) / unit if regression else answers, loss, batch)
    roots = seen_sizes(gradient, np.zeros(loss.outputs * design.width))
    stability = settings.options.get("stability", least_seen(roots))
    diagonal = 1 / (roots + stability)
    norms = design.take(None).scaled_norms(diagonal if loss.outputs == 1 else diagonal.reshape(loss.outputs, -1), 2)
    if norms.ndim == 2:
        norms = np.sqrt((norms**2).mean(axis=1))
    return Side(None if public is None else gradient, None, float(np.quantile(norms, surveys.TYPICAL)), stability)


def _by_scale(
    matrix: Vector | sp.csr_matrix,
    settings: Settings,
    scales: Scales,
    *,
    outputs: int,
    budget: Budget,
    spending: Run,
    rng: Rng,
) -> Side:
    """A scale that is shared by the outputs; the intercept weighs in a divided row what it weighs in a row."""
    frame = Frame(scales.frame.centre, scales.frame.scale, 0.0)
    design = Design(matrix, frame)
    alone = calibrate(GaussianDpEvent, budget, spent=spending.since(0), accountant=settings.accountant)
    given, declared, paid = settings.options["scale"], list[str](), list[str]()
    if isinstance(given, str):
        noise = share_of(alone, FREQUENCY_SHARE, 1)
        sizes = surveys.column_sizes(design, bound=scales.row_norm, noise_multiplier=noise, spending=spending, rng=rng)
        scale = np.sqrt(sizes)  # of an indicator, the root mean square
        paid.append("how large the entries of each column are (how frequent, for words)")
    else:
        scale = _of_columns(given, int(matrix.shape[1])) / (1.0 if frame.scale is None else frame.scale)
        declared.append("the declared scale of the columns")
    with np.errstate(all="ignore"):  # a warning would tell something about the data
        norms = design.take(None).scaled_norms(1 / scale, 2)
    noise = share_of(alone, NORM_SHARE, 1)
    typical = surveys.typical_norm(norms, noise_multiplier=noise, spending=spending, rng=rng)
    paid.append("the length of a typical row divided by the scale" + (" (too few rows to tell)" if typical is None else ""))
    if typical is None:
        typical = scales.row_norm / float(np.median(scale))
    if settings.fit_intercept:
        scale = np.append(scale, scales.row_norm / typical)
        typical *= math.hypot(1.0, INTERCEPT)
    return Side(None, np.tile(scale, outputs), typical, 0.0, declared, paid)


def _of_columns(given: Any, columns: int) -> Vector:
    try:
        scale = np.asarray(given, dtype=float)
    except (TypeError, ValueError):
        scale = np.zeros(0)
    if scale.shape != (columns,) or not (np.isfinite(scale) & (scale > 0)).all():
        raise InputError(f"scale must be {columns} finite numbers > 0, one for each column: what is rare has a small one, not 0.")
    return scale
