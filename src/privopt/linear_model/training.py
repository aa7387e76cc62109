"""Training: scales, defaults, calibration, the loop and the statement, for every linear model."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import scipy.sparse as sp
from threadpoolctl import threadpool_limits

from privopt.checkpoint import Checkpoint
from privopt.linear_model import methods, side
from privopt.linear_model.defaults import INTERCEPT
from privopt.linear_model.problem import Problem, Settings
from privopt.linear_model.refusals import check
from privopt.linear_model.scaling import scales
from privopt.linear_model.side import PublicTable
from privopt.loop import check_finite, run, warn_of_early_end
from privopt.measure.randomness import SOURCE, Rng, key
from privopt.perexample.design import Design
from privopt.perexample.grads import Vector
from privopt.perexample.limited import LimitedDesign
from privopt.perexample.linear import LinearOracle
from privopt.perexample.losses import Loss
from privopt.privacy.accountants import epsilon
from privopt.privacy.budget import Budget, default_delta, warn_of_delta
from privopt.privacy.calibration import calibrate
from privopt.privacy.events import DpEvent, GaussianDpEvent, PureDpEvent, compose
from privopt.privacy.ledger import Run
from privopt.privacy.statement import Statement
from privopt.recipe import Recipe
from privopt.recipes import dp_sgd
from privopt.recipes import method as method_of

MOST_CLASSES, MOST_LETTERS = 5, 30  # that a statement names, and of each name
HOPELESS = 0.5  # noise on one averaged gradient, in clip bounds, that leaves nothing to learn from


@dataclass(frozen=True)
class Trained:
    """Slopes (outputs × columns) and intercepts for the data as they were given, and what is claimed about them."""

    slopes: Vector
    intercepts: Vector
    statement: Statement
    rounds: int
    stopped_early: bool


class Observer(Protocol):
    """Somebody who watches a run: rounds and ε, nothing that depends on the data."""

    def start(self, rounds: int, spent: Callable[[int], float]) -> None:
        """Training begins; `spent` tells ε after so many rounds."""
        ...

    def advance(self, done: int) -> None:
        """So many rounds are done."""
        ...


def train(
    matrix: Vector | sp.csr_matrix,
    targets: Vector,
    loss: Callable[[float], Loss],
    settings: Settings,
    budget: Budget,
    *,
    spending: Run,
    rng: Rng,
    seeded: bool,
    regression: bool,
    checkpoint: Checkpoint | None = None,
    observer: Observer | None = None,
    encoded: bool = False,
    public: PublicTable | None = None,
    assumed_public: Sequence[str] = (),
    paid_for: Sequence[str] = (),
) -> Trained:
    """A private linear model. `loss` is made for the scale of the target (1 for classification).

    `encoded` rows were made by the caller, who knows where their bounds come from and says so in the two lists. A row of a class
    that is not among those declared has the target NaN: no gradient and no loss, while n stays. Its columns count in surveys.

    **Guarantee** Everything measured on the data (scales that were not declared, then the gradient of every round) is planned
    within `budget`, together with what this run released before, and recorded in the ledger before it is used.
    """
    size = int(matrix.shape[0])
    check(settings, budget, loss(1.0), size=size, columns=int(matrix.shape[1]), public=public is not None)
    side.check_columns(matrix, public, settings)
    warn_of_delta(budget, size, frames=3)
    found = scales(
        matrix,
        targets if regression else None,
        bounds=settings.bounds,
        target_bounds=settings.target_bounds,
        fit_intercept=settings.fit_intercept,
        budget=budget,
        accountant=settings.accountant,
        spending=spending,
        rng=rng,
    )
    shift, unit = found.target
    fitted = loss(unit if regression else 1.0)
    beside = side.known(
        matrix, targets, public, settings, found, fitted, regression=regression, budget=budget, spending=spending, rng=rng
    )
    before = spending.since(0)
    problem = Problem(
        settings=settings,
        loss=fitted,
        size=size,
        width=int(matrix.shape[1]) + bool(settings.fit_intercept),
        row_norm=found.row_norm * (math.hypot(1.0, INTERCEPT) if settings.fit_intercept else 1.0),
        alone=calibrate(one_release(budget), budget, spent=before, accountant=settings.accountant),
        pure=budget.delta == 0,
        side=beside,
        key=key(rng),
    )
    planned = methods.plan(problem)
    rounds = planned.recipe(problem.alone).stop(rng)

    def recipe(noise_multiplier: float) -> Recipe:
        return planned.recipe(noise_multiplier).stopped(rounds)

    def as_if_private(noise_multiplier: float) -> Recipe:
        """What a method without a guarantee is compared with."""
        sampling = problem.sampler
        return dp_sgd(rounds=rounds, noise_multiplier=noise_multiplier, clip_bound=1.0, learning_rate=1.0, sampling=sampling)

    priced = recipe if method_of(settings.method).private else as_if_private
    noise = calibrate(lambda z: priced(z).planned_event(), budget, spent=before, accountant=settings.accountant)
    ready = recipe(noise)
    design = Design(matrix, found.frame) if math.isinf(planned.limit) else LimitedDesign(matrix, found.frame, planned.limit)
    with np.errstate(all="ignore"):  # a warning would tell something about the data
        oracle = LinearOracle(design, (targets - shift) / unit if regression else targets, fitted)
    if observer is not None:
        observer.start(
            ready.rounds,
            lambda done: epsilon(
                compose([before, ready.planned_event(done)]), budget.delta, budget.neighbours, accountant=settings.accountant
            ),
        )
    # one thread: a matrix times a vector waits for memory, not for cores, and a replay repeats its sums to the last bit
    with threadpool_limits(1, user_api="blas"):
        result = run(
            ready,
            oracle,
            np.zeros(oracle.dimension),
            spending=spending,
            rng=rng,
            checkpoint=checkpoint,
            progress=observer.advance if observer else None,
        )
    if result.stopped_early:
        warn_of_early_end(result.rounds, ready.rounds, spending.ledger, frames=3)
    with np.errstate(all="ignore"):
        slopes, intercepts = found.frame.unfold(result.parameters.reshape(fitted.outputs, -1))
        slopes, intercepts = slopes * unit, intercepts * unit + shift
    check_finite(slopes, intercepts)
    statement = Statement(
        budget=budget,
        event=spending.since(0),
        released="the coefficients of a linear model, the settings below and the scales named below",
        accountant=settings.accountant,
        examples=size,
        assumed_public=[
            f"the number of rows ({size}), and the names and types of the columns",
            *assumed_public,
            *([] if encoded else found.declared),
            *(beside.declared if beside else []),
        ],
        paid_for=[*paid_for, *found.estimated, *(beside.paid_for if beside else [])],
        public_data=[] if public is None else [str(public)],
        noise=None if seeded else SOURCE,
        cap=spending.ledger.cap,
        seeded=seeded,
        settings={
            "method": settings.method,
            "rounds": result.rounds,
            "noise multiplier": noise,
            **planned.settings(noise),
            "typical row norm": found.row_norm,
            "regulariser": f"{settings.penalty} {settings.alpha:g}" if settings.alpha else "none",
        },
    )
    return Trained(slopes, intercepts, statement, result.rounds, result.stopped_early)


def classes_in_words(classes: Sequence[object], *, declared: bool) -> str:
    """How a statement names the classes of a target.

    Whether a row has a class that was not declared is private, so a misspelt one is for the reader to find.
    """
    if not declared:
        return f"the {len(classes)} classes, read off the data"
    few = ", ".join(repr(name)[:MOST_LETTERS] for name in classes[:MOST_CLASSES])
    more = ", …" if len(classes) > MOST_CLASSES else ""
    return f"the {len(classes)} classes, as declared: {few}{more}. Rows of any other class were left out: compare the spelling"


def one_release(budget: Budget) -> Callable[[float], DpEvent]:
    """What one release with this noise costs: Gaussian noise, or noise of Gamma length where there is no δ to spend."""
    return GaussianDpEvent if budget.delta else lambda noise_multiplier: PureDpEvent(1 / noise_multiplier)


def drowned(size: int, width: int, budget: Budget) -> str | None:
    """Why a model of `width` coefficients would be nothing but noise, and what would help; `None` if it would not.

    The whole budget spent on one averaged gradient leaves noise of √width/(nμ) clip bounds on it, where one Gaussian with noise
    1/μ costs the budget; without δ the noise has length width/(nε). Nothing is learnt when that is not well below the gradient.
    """
    release = one_release(budget)
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
    few = "1 row is" if size == 1 else f"{size} rows are"
    return (
        f"{few} too few for {width} coefficients at epsilon = {budget.epsilon:.3g}: the noise would drown the model. "
        f"epsilon ≥ {_rounded_up(enough)}, or {rows} rows, or fewer columns would help."
    )


def _rounded_up(value: float) -> str:
    """Two digits that are not below the value.

    >>> _rounded_up(1.01), _rounded_up(0.02), _rounded_up(1234.5)
    ('1.1', '0.02', '1300')
    """
    step = 10.0 ** (math.floor(math.log10(value)) - 1)
    return f"{math.ceil(value / step * (1 - 1e-9)) * step:.6g}"
