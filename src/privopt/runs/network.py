"""Training a network on the rows of a table: scales of `linear_model`, the rule of `nets.defaults`, the loop of `nets.fit`."""

from collections.abc import Sequence

import numpy as np
import scipy.sparse as sp
import torch
from torch import nn

from privopt.checkpoint import Checkpoint
from privopt.linear_model.problem import Settings
from privopt.linear_model.scaling import scales
from privopt.linear_model.training import Observer, Trained
from privopt.loop import check_finite, warn_of_early_end
from privopt.measure.randomness import SOURCE, Rng
from privopt.nets.defaults import Steps, Target, amount, binary, default_batch, default_rounds, default_steps, multiclass
from privopt.nets.fit import trained
from privopt.nets.mlp import LENGTH, Layer, gradient_norm, mlp, unfolded
from privopt.nets.plan import Schedule
from privopt.nets.rows import Rows
from privopt.perexample.design import Frame
from privopt.perexample.grads import Vector
from privopt.postprocess.regularizers import ridge
from privopt.privacy.accountants import epsilon
from privopt.privacy.budget import Budget, warn_of_delta
from privopt.privacy.calibration import calibrate
from privopt.privacy.events import GaussianDpEvent, compose
from privopt.privacy.ledger import Run
from privopt.privacy.statement import Statement
from privopt.recipe import Recipe
from privopt.recipes import method as method_of

THRESHOLD = 0.2  # of Huber's loss, for targets on [−1, 1]
IGNORED = nn.CrossEntropyLoss().ignore_index  # the label of a row whose class is not listed


def train_network(
    matrix: Vector | sp.csr_matrix,
    targets: Vector,
    hidden: Sequence[int],
    classes: int,
    settings: Settings,
    budget: Budget,
    *,
    spending: Run,
    rng: Rng,
    seeded: bool,
    checkpoint: Checkpoint | None = None,
    observer: Observer | None = None,
    encoded: bool = False,
    assumed_public: Sequence[str] = (),
    paid_for: Sequence[str] = (),
) -> tuple[list[Layer], Trained]:
    """A private network with hidden layers of these widths; without classes it predicts a number.

    What comes back are the hidden layers, and the last one as the linear model of units that it is. They are for the data as
    they were given.

    **Guarantee** As `linear_model.training.train`: scales that were not declared, and then the gradient of every round, are
    planned within `budget` together with what this run released before, and recorded before they are used. The start values come
    from the run's generator, so a resumed run begins with the same.
    """
    size, inputs = map(int, matrix.shape)
    warn_of_delta(budget, size, frames=1)
    found = scales(
        matrix,
        None if classes else targets,
        bounds=settings.bounds,
        target_bounds=settings.target_bounds,
        fit_intercept=False,
        budget=budget,
        accountant=settings.accountant,
        spending=spending,
        rng=rng,
    )
    columns = np.ones(inputs) if found.frame.scale is None else found.frame.scale
    frame = Frame(found.frame.centre, columns * found.row_norm / LENGTH, intercept=0.0)
    shift, unit = found.target
    target, loss, values = _learning(targets, classes, shift, unit)
    model = mlp(inputs, hidden, target.outputs, rng)

    before = spending.since(0)
    alone = calibrate(GaussianDpEvent, budget, spent=before, accountant=settings.accountant)
    batch = min(settings.batch_size or default_batch(settings.method, size), size)
    rounds = settings.rounds or default_rounds(size=size, batch=batch, alone=alone)
    planned = Schedule(size, batch, rounds)
    typical = gradient_norm(model, inputs)
    build = method_of(settings.method).recipe

    def steps(noise_multiplier: float) -> Steps:
        return default_steps(
            settings.method,
            target,
            inputs=inputs,
            parameters=sum(parameter.numel() for parameter in model.parameters()),
            batch=batch,
            gradient_norm=typical,
            rounds=rounds,
            noise_multiplier=noise_multiplier,
            clip_bound=settings.clip_bound,
        )

    def recipe(noise_multiplier: float) -> Recipe:
        chosen = steps(noise_multiplier)
        return build(
            rounds=rounds,
            noise_multiplier=noise_multiplier,
            clip_bound=chosen.clip_bound,
            learning_rate=settings.learning_rate or chosen.learning_rate,
            regularizer=ridge(settings.alpha, _weights(model)) if settings.alpha else None,
            **({"sampling": planned.sampler} if batch < size else {}),
            **{**chosen.options, **settings.options},
        )

    noise = calibrate(lambda z: recipe(z).planned_event(), budget, spent=before, accountant=settings.accountant)
    ready = recipe(noise)

    def spent(done: int) -> float:
        event = compose([before, ready.planned_event(done)])
        return epsilon(event, budget.delta, budget.neighbours, accountant=settings.accountant)

    if observer is not None:
        observer.start(rounds, spent)
    rows = Rows(matrix, frame, values)
    result = trained(
        rows.oracle(model, loss),
        ready,
        spending=spending,
        rng=rng,
        checkpoint=checkpoint,
        progress=observer.advance if observer else None,
    )
    if result.stopped_early:
        warn_of_early_end(result.rounds, rounds, spending.ledger, frames=1)
    statement = Statement(
        budget=budget,
        event=spending.since(0),
        released="the weights of a network, the settings below and the scales named below",
        accountant=settings.accountant,
        examples=size,
        assumed_public=[
            f"the number of rows ({size}), and the names and types of the columns",
            *assumed_public,
            *([] if encoded else found.declared),
        ],
        paid_for=[*paid_for, *found.estimated],
        noise=None if seeded else SOURCE,
        cap=spending.ledger.cap,
        seeded=seeded,
        settings={
            "model": f"network, hidden layers of {', '.join(map(str, hidden))} tanh units, random start",
            "method": settings.method,
            "rounds": result.rounds,
            "noise multiplier": noise,
            "batch size": planned.phrase(),
            "clip bound": steps(noise).clip_bound,
            "learning rate": settings.learning_rate or steps(noise).learning_rate,
            **settings.options,
            "typical row norm": found.row_norm,
            "regulariser": f"ridge {settings.alpha:g}" if settings.alpha else "none",
        },
    )
    with np.errstate(all="ignore"):
        *layers, (slopes, intercepts) = unfolded(model, frame)
        slopes, intercepts = slopes * unit, intercepts * unit + shift
    check_finite(slopes, intercepts, *(part for layer in layers for part in layer))
    return layers, Trained(slopes, intercepts, statement, result.rounds, result.stopped_early)


def _learning(targets: Vector, classes: int, shift: float, unit: float) -> tuple[Target, nn.Module, torch.Tensor]:
    """What the rule knows of the target, its loss, and the targets as the loss wants them."""
    if classes > 2:
        return multiclass(classes), nn.CrossEntropyLoss(), torch.from_numpy(np.nan_to_num(targets, nan=IGNORED).astype(np.int64))
    with np.errstate(all="ignore"):  # a warning would tell something about the data
        values = torch.from_numpy(((targets - shift) / unit).astype(np.float32))[:, None]
    return (binary(), nn.BCEWithLogitsLoss(), values) if classes else (amount(THRESHOLD), nn.HuberLoss(delta=THRESHOLD), values)


def _weights(model: nn.Module) -> torch.Tensor:
    """1 for weights, 0 for biases."""
    return torch.cat([torch.full((parameter.numel(),), float(parameter.ndim > 1)) for parameter in model.parameters()])
