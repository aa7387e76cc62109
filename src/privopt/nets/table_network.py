"""Networks on the rows of a table: the scales of linear models, a random start, then a session."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import nn

from privopt.loop import check_finite
from privopt.methods.problem import LossFacts, Problem, huber_facts, logistic_facts, multinomial_facts
from privopt.nets.facts import find_stable_move
from privopt.nets.mlp import LENGTH, Layer, build_mlp, gradient_norm, unfold_layers
from privopt.nets.rows import Rows
from privopt.nets.running import run_network
from privopt.perexample.design import Frame
from privopt.perexample.grads import Vector
from privopt.postprocess.regularizers import ridge
from privopt.training.linear import Trained
from privopt.training.scaling import TrainingRows, check_declared, find_scales
from privopt.training.session import Session, check_plan
from privopt.training.settings import Settings, check_settings

THRESHOLD = 0.2  # of Huber's loss, for targets on [−1, 1]
IGNORED = nn.CrossEntropyLoss().ignore_index  # the label of a row whose class is not listed


def count_weights(widths: Sequence[int]) -> int:
    """Weights and biases of layers of these widths.

    >>> count_weights((3, 8, 1))
    41
    """
    return sum((width + 1) * after for width, after in pairwise(widths))


def table_facts(classes: int) -> LossFacts:
    """What the default rules know of the loss; without classes, a number is predicted."""
    if classes > 2:
        return multinomial_facts(classes)
    return logistic_facts() if classes else huber_facts(THRESHOLD)


def train_table_network(
    rows: TrainingRows, hidden: Sequence[int], classes: int, settings: Settings, session: Session
) -> tuple[list[Layer], Trained]:
    """A private network with hidden layers of these widths; without classes it predicts a number.

    What comes back are the hidden layers, and the last one as the linear model of units that it is. They are for the data as
    they were given.

    **Guarantee** That of the session: scales that were not declared, and then the gradient of every round, are planned within its
    budget and recorded before they are used. The start values come from the session's generator, so a resumed run begins with the
    same.
    """
    size, inputs = map(int, rows.matrix.shape)
    facts = table_facts(classes)
    method = check_settings(settings, facts, "network", delta=session.budget.delta, public=False)
    check_declared(rows)
    widths = (inputs, *hidden, facts.outputs)
    supposed = Problem("network", settings.chosen, facts, size, inputs + 1, count_weights(widths), 1.0, 1.0)
    check_plan(method, supposed, session.budget, settings.accountant)
    scales = find_scales(rows, session, fit_intercept=False)
    columns = np.ones(inputs) if scales.frame.scale is None else scales.frame.scale
    frame = Frame(scales.frame.centre, columns * scales.row_norm / LENGTH, intercept=0.0)
    centre, unit = scales.target
    loss, values = _loss(rows.targets, classes, centre, unit)
    model = build_mlp(inputs, hidden, facts.outputs, session.rng)
    typical = gradient_norm(model, inputs)
    problem = Problem(
        model="network",
        chosen=settings.chosen,
        loss=facts,
        size=size,
        width=inputs + 1,
        dimension=sum(parameter.numel() for parameter in model.parameters()),
        row_norm=typical,
        stable_move=find_stable_move(list(model.parameters()), lambda: gradient_norm(model, inputs), typical),
        single_release_noise=session.single_release_noise(),
        regularizer=ridge(settings.alpha, _weights(model)) if settings.alpha else None,
    )
    oracle = Rows(rows.matrix, frame, values).oracle(model, loss)
    released = session.train(method, problem, oracle, oracle.flat.vector, run=run_network)
    with np.errstate(all="ignore"):
        *layers, (slopes, intercepts) = unfold_layers(model, frame)
        slopes, intercepts = slopes * unit, intercepts * unit + centre
    check_finite(slopes, intercepts, *(part for layer in layers for part in layer))
    statement = session.state(
        "the weights of a network, the settings below and the scales named below",
        assumed_public=[
            f"the number of rows ({size}), and the names and types of the columns",
            *rows.assumed_public,
            *([] if rows.encoded else scales.declared),
        ],
        paid_for=[*rows.paid_for, *scales.estimated],
        settings={
            "model": f"network, hidden layers of {', '.join(map(str, hidden))} tanh units, random start",
            "method": method.name,
            "rounds": released.rounds,
            **released.settings,
            "typical row norm": scales.row_norm,
            "regulariser": f"ridge {settings.alpha:g}" if settings.alpha else "none",
        },
    )
    return layers, Trained(slopes, intercepts, statement, released.rounds, released.stopped_early)


def _loss(targets: Vector, classes: int, centre: float, unit: float) -> tuple[nn.Module, torch.Tensor]:
    """The loss, and the targets as it wants them."""
    if classes > 2:
        return nn.CrossEntropyLoss(), torch.from_numpy(np.nan_to_num(targets, nan=IGNORED).astype(np.int64))
    with np.errstate(all="ignore"):  # a warning would tell something about the data
        values = torch.from_numpy(((targets - centre) / unit).astype(np.float32))[:, None]
    return (nn.BCEWithLogitsLoss() if classes else nn.HuberLoss(delta=THRESHOLD)), values


def _weights(model: nn.Module) -> torch.Tensor:
    """1 for weights, 0 for biases."""
    return torch.cat([torch.full((parameter.numel(),), float(parameter.ndim > 1)) for parameter in model.parameters()])
