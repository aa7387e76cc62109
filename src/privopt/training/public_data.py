"""What is known beside the private rows: public rows, or a scale of the columns. Made before training, in the same frame.

A scale is how large the gradient of each column's coefficient typically is, up to a factor, declared by the user as a vector; or
`"frequency"`: then E|x| is measured on the private rows, with noise, paid from the budget, and its root is the scale.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy.sparse as sp

from privopt.errors import InputError
from privopt.measure import surveys
from privopt.methods import METHODS, Method
from privopt.methods.problem import SideFacts
from privopt.perexample.design import Design, Frame
from privopt.perexample.grads import Vector
from privopt.perexample.losses import Loss
from privopt.perexample.public_rows import PublicRows
from privopt.postprocess.side_information import least_seen, seen_sizes
from privopt.privacy.events import GaussianDpEvent
from privopt.training.scaling import INTERCEPT, NORM_SHARE, Scales, TrainingRows, share_of
from privopt.training.session import Session

FREQUENCY_SHARE = 0.1  # of the squared budget measures frequencies that nobody declared


def check_public(method: Method, options: Mapping[str, Any], *, public: bool) -> None:
    """Refuse side information that the method cannot use; nothing depends on the data."""
    if public and not method.uses_public:
        able = ", ".join(name for name, other in METHODS.items() if other.uses_public)
        raise InputError(f"{method.name} does not use public data. Leave them out, or choose one of {able}.")
    scale = options.get("scale")
    if isinstance(scale, str) and scale != "frequency":
        raise InputError(f'scale is {scale!r}; it is a number > 0 for each column, or "frequency", which is measured privately.')


def check_columns(rows: TrainingRows, options: Mapping[str, Any]) -> None:
    """Refuse public rows and scales that are not for these columns."""
    columns, scale = int(rows.matrix.shape[1]), options.get("scale")
    if rows.public is not None and rows.public.matrix.shape[1] != columns:
        raise InputError(f"the public rows have {rows.public.matrix.shape[1]} columns, but the private ones have {columns}.")
    if scale is not None and not isinstance(scale, str):
        _of_columns(scale, columns)


def find_side_facts(
    rows: TrainingRows, method: Method, options: Mapping[str, Any], scales: Scales, loss: Loss, session: Session
) -> SideFacts | None:
    """Whatever the method uses of it; `None` if it uses nothing.

    **Guarantee** Public rows are used in the clear, private ones only through surveys that are paid for, except for a method
    without a guarantee.
    """
    centre, unit = scales.target
    if rows.public is None and "scale" in options:
        return _by_scale(rows.matrix, options["scale"], scales, loss.outputs, session)
    if rows.public is None and method.private:
        return None
    known = ~np.isnan(rows.targets)
    matrix, targets = (
        (rows.matrix[known], rows.targets[known]) if rows.public is None else (rows.public.matrix, rows.public.targets)
    )
    if sp.issparse(matrix) and scales.frame.centre is not None:
        matrix = sp.csr_array(matrix).toarray()
    design = Design(matrix, scales.frame)
    batch = method.public_batch or len(targets)
    gradient = PublicRows(design, (targets - centre) / unit if rows.regression else targets, loss, batch)
    roots = seen_sizes(gradient, np.zeros(loss.outputs * design.width))
    stability = options.get("stability", least_seen(roots))
    diagonal = 1 / (roots + stability)
    norms = design.take(None).scaled_norms(diagonal if loss.outputs == 1 else diagonal.reshape(loss.outputs, -1), 2)
    if norms.ndim == 2:
        norms = np.sqrt((norms**2).mean(axis=1))
    return SideFacts(None if rows.public is None else gradient, None, float(np.quantile(norms, surveys.TYPICAL)), stability)


def _by_scale(matrix: Vector | sp.csr_matrix, given: Any, scales: Scales, outputs: int, session: Session) -> SideFacts:
    """A scale that is shared by the outputs; the intercept weighs in a divided row what it weighs in a row."""
    frame = Frame(scales.frame.centre, scales.frame.scale, 0.0)
    design = Design(matrix, frame)
    noise, declared, paid = session.noise_for(GaussianDpEvent), list[str](), list[str]()
    if isinstance(given, str):
        asked = share_of(noise, FREQUENCY_SHARE, 1)
        sizes = surveys.column_sizes(
            design, bound=scales.row_norm, noise_multiplier=asked, spending=session.spending, rng=session.rng
        )
        scale = np.sqrt(sizes)  # of an indicator, the root mean square
        paid.append("how large the entries of each column are (how frequent, for words)")
    else:
        scale = _of_columns(given, int(matrix.shape[1])) / (1.0 if frame.scale is None else frame.scale)
        declared.append("the declared scale of the columns")
    with np.errstate(all="ignore"):  # a warning would tell something about the data
        norms = design.take(None).scaled_norms(1 / scale, 2)
    typical = surveys.typical_norm(
        norms, noise_multiplier=share_of(noise, NORM_SHARE, 1), spending=session.spending, rng=session.rng
    )
    paid.append("the length of a typical row divided by the scale" + (" (too few rows to tell)" if typical is None else ""))
    if typical is None:
        typical = scales.row_norm / float(np.median(scale))
    if scales.frame.intercept:
        scale = np.append(scale, scales.row_norm / typical)
        typical *= math.hypot(1.0, INTERCEPT)
    return SideFacts(None, np.tile(scale, outputs), typical, 0.0, declared, paid)


def _of_columns(given: Any, columns: int) -> Vector:
    try:
        scale = np.asarray(given, dtype=float)
    except (TypeError, ValueError):
        scale = np.zeros(0)
    if scale.shape != (columns,) or not (np.isfinite(scale) & (scale > 0)).all():
        raise InputError(f"scale must be {columns} finite numbers > 0, one for each column: what is rare has a small one, not 0.")
    return scale
