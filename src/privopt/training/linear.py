"""Linear models: scales, then a session, then coefficients for the data as they were given.

What is known beside the private rows (public rows, or a scale of the columns) is made before training, in the same frame. A scale
is how large the gradient of each column's coefficient typically is, up to a factor, declared by the user as a vector; or
`"frequency"`: then E|x| is measured on the private rows, with noise, paid from the budget, and its root is the scale.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

import numpy as np
import scipy.sparse as sp
from threadpoolctl import threadpool_limits

from privopt.errors import InputError
from privopt.loop import Result, check_finite, run
from privopt.measure import surveys
from privopt.measure.randomness import key
from privopt.measure.units import Unit
from privopt.methods import METHODS, Method
from privopt.methods.problem import (
    LossFacts,
    Problem,
    SideFacts,
    huber_facts,
    logistic_facts,
    multinomial_facts,
    squared_facts,
)
from privopt.methods.rules import LEAST_KNOTS, START_SHARES, column_knots, start_share
from privopt.perexample.columns import Basis, Hats, UnitRows
from privopt.perexample.design import Design, Frame, LimitedDesign
from privopt.perexample.grads import Vector
from privopt.perexample.linear_oracle import LinearOracle, PublicRows
from privopt.perexample.losses import Huber, Logistic, Loss, Multinomial
from privopt.perexample.person_oracle import PersonOracle
from privopt.postprocess.regularizers import Regularizer, nonconvex, ridge
from privopt.postprocess.side_information import least_seen, seen_sizes
from privopt.privacy.accountants import epsilon
from privopt.privacy.budget import Budget, default_delta
from privopt.privacy.calibration import calibrate
from privopt.privacy.events import GaussianDpEvent, atoms
from privopt.privacy.statement import Statement
from privopt.recipe import Recipe
from privopt.training.scaling import (
    INTERCEPT,
    LINE,
    NORM_SHARE,
    Scales,
    TrainingRows,
    check_declared,
    find_scales,
    share_of,
)
from privopt.training.session import Session, check_plan, single_release
from privopt.training.settings import Settings, check_settings

# ---------------------------------------------------------------- public rows and scales


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
        return _by_scale(rows.surveyed.matrix, options["scale"], scales, loss.outputs, session)
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


# ---------------------------------------------------------------- training


MOST_CLASSES, MOST_LETTERS = 5, 30  # that a statement names, and of each name
HOPELESS = 0.5  # noise on one averaged gradient, in clip bounds, that leaves nothing to learn from


@dataclass(frozen=True)
class Trained:
    """Slopes (outputs × features) and intercepts for the data as they were given, and what is claimed about them."""

    slopes: Vector
    intercepts: Vector
    statement: Statement
    rounds: int
    stopped_early: bool
    columns: Basis | None = None  # what the columns become before they meet the slopes


def check_linear(
    settings: Settings, loss: LossFacts, *, size: int, columns: int, budget: Budget, public: bool, unit: Unit
) -> Method:
    """Refuse what a linear model cannot be trained with; nothing here depends on a value of the data."""
    method = check_settings(settings, loss, "linear", delta=budget.delta, public=public)
    check_public(method, settings.options, public=public)
    _try(method, settings, loss, size, columns + bool(settings.fit_intercept), budget, unit, public=public)
    return method


def planned_recipe(
    settings: Settings, loss: LossFacts, *, size: int, columns: int, budget: Budget, public: bool, unit: Unit
) -> Recipe:
    """The recipe for rows of length 1, with noise of multiplier 1, after the checks of `check_linear`: its kinds of events."""
    method = check_linear(settings, loss, size=size, columns=columns, budget=budget, public=public, unit=unit)
    return _try(method, settings, loss, size, columns + bool(settings.fit_intercept), budget, unit, public=public)


def train_linear(rows: TrainingRows, loss: Callable[[float], Loss], settings: Settings, session: Session) -> Trained:
    """A private linear model. `loss` is made for the scale of the target (1 for classification).

    **Guarantee** That of the session: scales that were not declared, and then the gradient of every round, are planned within its
    budget and recorded before they are used.
    """
    size, columns = rows.size, int(rows.matrix.shape[1])
    facts, public = loss_facts(loss(1.0)), rows.public is not None
    method = check_linear(settings, facts, size=size, columns=columns, budget=session.budget, public=public, unit=rows.unit)
    check_columns(rows, settings.options)
    check_declared(rows)
    knots = _knots(rows, method, settings, session)
    unit_rows = method.tables and rows.public is None and settings.numeric != "linear"
    width = columns + bool(settings.fit_intercept)
    planned = _try(method, settings, facts, size, width, session.budget, rows.unit, public=public).planned_event()
    gaussian = all(isinstance(event, GaussianDpEvent) for event, _ in atoms(planned))
    scales = find_scales(
        rows,
        session,
        fit_intercept=settings.fit_intercept,
        knots=knots,
        unit_rows=unit_rows,
        gaussian=gaussian,
        centred=method.tables and rows.public is None and settings.fit_intercept,
    )
    with np.errstate(all="ignore"):  # a warning would tell something about the data
        used = scales.applied(rows)
    centre, unit = scales.target
    fitted = loss(unit if rows.regression else 1.0)
    side = find_side_facts(used, method, settings.options, scales, fitted, session)
    started, paid = _start(used, method, settings, scales, fitted.outputs, session)
    problem = _problem(settings, fitted, scales, used, session, side)
    with np.errstate(all="ignore"):
        oracle = _oracle(used, scales, fitted, None if method.row_limit is None else method.row_limit(problem))
    released = session.train(method, problem, oracle, started, run=_run_on_one_thread)
    with np.errstate(all="ignore"):
        slopes, intercepts = scales.frame.unfold(released.parameters.reshape(fitted.outputs, -1))
        slopes, intercepts = slopes * unit, intercepts * unit + centre
    check_finite(slopes, intercepts)
    statement = session.state(
        "the coefficients of a linear model, the settings below and the scales named below",
        assumed_public=[
            ("" if rows.persons is None else f"the number of persons ({size}), ")
            + f"the number of rows ({rows.matrix.shape[0]}), and the names and types of the columns",
            *rows.assumed_public,
            *scales.declared,
            *(side.declared if side else []),
        ],
        paid_for=[*rows.paid_for, *scales.estimated, *(side.paid_for if side else []), *paid],
        public_data=[] if rows.public is None else [str(rows.public)],
        settings={
            "method": method.name,
            "rounds": released.rounds,
            **released.settings,
            **({} if rows.persons is None else {"rows of a person, at most": rows.persons.most}),
            **describe_columns(knots, scales),
            "typical row norm": scales.row_norm,
            "regulariser": f"{settings.penalty} {settings.alpha:g}" if settings.alpha else "none",
        },
    )
    return Trained(slopes, intercepts, statement, released.rounds, released.stopped_early, scales.columns)


def _knots(rows: TrainingRows, method: Method, settings: Settings, session: Session) -> int:
    """The most knots of a numeric column: as the user says, or by the rule, for a method whose defaults are made for tables."""
    if settings.numeric == "linear" or session.budget.delta == 0 or (not rows.encoded and isinstance(rows.bounds, Real)):
        return LINE
    if settings.numeric == "auto" and (not method.tables or rows.public is not None):
        return LINE
    columns = int(rows.matrix.shape[1])
    numeric = len(rows.numeric) if rows.encoded else columns
    asked = column_knots(rows.size, numeric, columns - numeric, session.noise_for(GaussianDpEvent))
    return max(asked, LEAST_KNOTS) if settings.numeric == "hats" else asked


def describe_columns(knots: int, scales: Scales) -> dict[str, str]:
    """What a statement says of the columns."""
    if isinstance(scales.columns, Hats):
        return {"numeric columns": f"piecewise linear, {knots} knots on average"}
    if isinstance(scales.columns, UnitRows):
        return {"rows": "divided by their length"}
    return {}


def _start(
    rows: TrainingRows, method: Method, settings: Settings, scales: Scales, outputs: int, session: Session
) -> tuple[Vector, list[str]]:
    """Start parameters, and what was paid for them: all 0, but for an intercept that says what is usual of the target.

    It starts at the log-odds of the noisy shares of the classes, or at the noisy mean of a target on [−1, 1]: a rare class is not
    to be learnt from rounds of noise. The shares are shrunk towards equal ones, the mean towards 0, by what their noise is
    expected to add to their distance from that (James and Stein).
    """
    width = scales.columns.width if isinstance(scales.columns, Hats) else int(rows.matrix.shape[1])
    start = np.zeros((outputs, width + bool(settings.fit_intercept)))
    if not (settings.fit_intercept and method.tables and session.budget.delta):
        return start.ravel(), []
    targets = rows.surveyed.targets
    noise = session.noise_for(GaussianDpEvent)
    noise = share_of(noise, START_SHARES[0] if rows.regression else start_share(len(targets), noise), 1)
    centre, unit = scales.target
    classes = np.arange(max(outputs, 2))
    vectors = ((targets - centre) / unit)[:, None] if rows.regression else (targets[:, None] == classes).astype(float)
    mean = surveys.mean_target(vectors, noise_multiplier=noise, spending=session.spending, rng=session.rng)
    error, equal = noise / len(targets), 0.0 if rows.regression else 1 / len(mean)
    distance = float(((mean - equal) ** 2).sum())
    mean = equal + (mean - equal) * max(0.0, 1 - len(mean) * error**2 / max(distance, 1e-300))
    if rows.regression:
        start[:, -1] = np.clip(mean, -1.0, 1.0) / scales.frame.intercept
        return start.ravel(), ["the mean of the target, at which the intercept starts"]
    logs = np.log(np.clip(mean, min(max(error, 1 / len(targets)), equal), 1.0))
    start[:, -1] = (logs[1:] - logs[0] if outputs == 1 else logs - logs.mean()) / scales.frame.intercept
    return start.ravel(), ["the shares of the classes, at which the intercept starts"]


def _oracle(rows: TrainingRows, scales: Scales, loss: Loss, row_limit: float | None) -> LinearOracle | PersonOracle:
    """The gradients of the rows, or of the persons whose rows have a class that is known."""
    centre, unit = scales.target
    targets = (rows.targets - centre) / unit if rows.regression else rows.targets
    if rows.persons is not None:
        persons = rows.persons.trained.where(~np.isnan(targets))
        return PersonOracle(Design(rows.matrix[persons.rows], scales.frame), targets[persons.rows], loss, persons)
    design = Design(rows.matrix, scales.frame)
    return LinearOracle(design if row_limit is None else LimitedDesign(rows.matrix, scales.frame, row_limit), targets, loss)


def _run_on_one_thread(*arguments: Any, **named: Any) -> Result:
    """A matrix times a vector waits for memory, not for cores, and a replay repeats its sums to the last bit."""
    with threadpool_limits(1, user_api="blas"):
        return run(*arguments, **named)


def _problem(
    settings: Settings, loss: Loss, scales: Scales, rows: TrainingRows, session: Session, side: SideFacts | None
) -> Problem:
    size, columns = rows.size, int(rows.matrix.shape[1])
    width = columns + bool(settings.fit_intercept)
    return Problem(
        model="linear",
        chosen=settings.chosen,
        loss=loss_facts(loss),
        size=size,
        width=width - (scales.columns.complete if isinstance(scales.columns, Hats) else 0),
        dimension=loss.outputs * width,
        row_norm=scales.row_norm * (math.hypot(1.0, INTERCEPT) if settings.fit_intercept else 1.0),
        single_release_noise=session.single_release_noise(),
        pure=session.budget.delta == 0,
        regularizer=_regularizer(settings, loss.outputs, width),
        ridge=settings.alpha if settings.penalty == "ridge" else 0.0,
        side=side,
        unit=rows.unit,
        key=key(session.rng),
    )


def _regularizer(settings: Settings, outputs: int, width: int) -> Regularizer | None:
    """The penalty on all coefficients but the intercept."""
    if not settings.alpha:
        return None
    mask = np.ones((outputs, width))
    if settings.fit_intercept:
        mask[:, -1] = 0.0
    return (ridge if settings.penalty == "ridge" else nonconvex)(settings.alpha, mask.ravel())


def loss_facts(loss: Loss) -> LossFacts:
    """What the default rules know of this loss."""
    match loss:
        case Logistic():
            return logistic_facts()
        case Multinomial(outputs=classes):
            return multinomial_facts(classes)
        case Huber(threshold=threshold):
            return huber_facts(threshold)
        case _:
            return squared_facts()


def _try(
    method: Method, settings: Settings, loss: LossFacts, size: int, width: int, budget: Budget, unit: Unit, *, public: bool
) -> Recipe:
    """Plan for rows of length 1, without what may suit other rows only: what is refused then is refused for all data."""
    options = {name: value for name, value in settings.options.items() if name != "smoothness"}
    choices = replace(settings.chosen, learning_rate=None, clip_bound=None, options=options)
    problem = Problem("linear", choices, loss, size, width, loss.outputs * width, 1.0, 1.0, budget.delta == 0)
    one = np.zeros((1, width))
    supposed: Loss = Logistic() if loss.outputs == 1 else Multinomial(loss.outputs)
    gradient = PublicRows(Design(one, Frame(intercept=0.0)), np.zeros(1), supposed, 1) if public else None
    scale = np.ones(loss.outputs * width) if "scale" in settings.options else None
    side = SideFacts(gradient, scale, scaled_norm=1.0, stability=1.0)
    return check_plan(method, replace(problem, side=side, unit=unit), budget, settings.accountant)


def describe_classes(classes: Sequence[object], *, declared: bool) -> str:
    """How a statement names the classes of a target.

    Whether a row has a class that was not declared is private, so a misspelt one is for the reader to find.
    """
    if not declared:
        return f"the {len(classes)} classes, read off the data"
    few = ", ".join(repr(name)[:MOST_LETTERS] for name in classes[:MOST_CLASSES])
    more = ", …" if len(classes) > MOST_CLASSES else ""
    return f"the {len(classes)} classes, as declared: {few}{more}. Rows of any other class were left out: compare the spelling"


def too_noisy(size: int, width: int, budget: Budget) -> str | None:
    """Why a model of `width` coefficients would be nothing but noise, and what would help; `None` if it would not.

    The whole budget spent on one averaged gradient leaves noise of √width/(nμ) clip bounds on it, where one Gaussian with noise
    1/μ costs the budget; without δ the noise has length width/(nε). Nothing is learnt when that is not well below the gradient.
    """
    release = single_release(budget)
    single = calibrate(release, budget)
    length = math.sqrt(width) if budget.delta else width  # of the noise, for one coefficient's
    if single * length / size <= HOPELESS:
        return None
    enough = 1.01 * epsilon(release(size * HOPELESS / length), budget.delta, budget.neighbours)  # calibrated noise is above this
    rows, needed = size, math.ceil(single * length / HOPELESS)
    while rows < needed:  # more rows have a smaller default δ, which needs more noise
        rows = needed
        within = replace(budget, delta=min(budget.delta, default_delta(rows)))
        needed = math.ceil(calibrate(release, within) * length / HOPELESS)
    unit = "row" if budget.unit == "example" else budget.unit
    few = f"1 {unit} is" if size == 1 else f"{size} {unit}s are"
    return (
        f"{few} too few for {width} coefficients at epsilon = {budget.epsilon:.3g}: the noise would drown the model. "
        f"epsilon ≥ {round_up(enough)}, or {rows} {unit}s, or fewer columns would help."
    )


def round_up(value: float) -> str:
    """Two digits that are not below the value.

    >>> round_up(1.01), round_up(0.02), round_up(1234.5)
    ('1.1', '0.02', '1300')
    """
    step = 10.0 ** (math.floor(math.log10(value)) - 1)
    return f"{math.ceil(value / step * (1 - 1e-9)) * step:.6g}"
