"""Networks on the rows of a table: the scales of linear models, a random start, then a session.

Layers of tanh units lie between the inputs and the scores. tanh keeps activations, and with them gradients, bounded. Under noise
ReLU was about as good with one hidden layer, and less reliable with two. The start is random and depends on no data.
"""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor, nn

from privopt.checkpoint import software
from privopt.loop import check_finite
from privopt.measure.randomness import Rng
from privopt.methods.problem import LossFacts, Problem, huber_facts, logistic_facts, multinomial_facts
from privopt.nets.data import physical_batch_size
from privopt.nets.facts import find_stable_move
from privopt.nets.network_run import run_network
from privopt.nets.ranked import Job, RankedOracle, Split, expect, serve
from privopt.nets.ranks import arithmetic, join
from privopt.perexample.design import Frame
from privopt.perexample.grads import Vector
from privopt.perexample.networks import TorchOracle, TorchPersonOracle, per_example_gradients
from privopt.perexample.networks.examples import make_up
from privopt.postprocess.regularizers import ridge
from privopt.training.linear import Trained
from privopt.training.scaling import TrainingRows, check_declared, find_scales
from privopt.training.session import Session, check_plan
from privopt.training.settings import Settings, check_settings

LENGTH = 5.0  # of a typical row when it enters a network
PROBES = 64  # made-up rows
Layer = tuple[Vector, Vector]  # weights (outputs × inputs) and biases


def build_mlp(inputs: int, hidden: Sequence[int], outputs: int, rng: Rng) -> nn.Sequential:
    """A network whose units have variance 1 at the start, before tanh, for rows of length `LENGTH`.

    >>> from privopt.measure.randomness import generator
    >>> build_mlp(3, (8, 4), 2, generator(0))
    Sequential(
      (0): Linear(in_features=3, out_features=8, bias=True)
      (1): Tanh()
      (2): Linear(in_features=8, out_features=4, bias=True)
      (3): Tanh()
      (4): Linear(in_features=4, out_features=2, bias=True)
    )
    """
    layers: list[nn.Module] = []
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(int(rng.integers(2**62)))
        for width, following in zip((inputs, *hidden), hidden, strict=False):
            layer = nn.Linear(width, following)
            layer.weight *= math.sqrt(3)  # torch starts with variance 1/(3 inputs)
            if not layers:
                layer.weight *= math.sqrt(inputs) / LENGTH
            layers += [layer, nn.Tanh()]
        return nn.Sequential(*layers, nn.Linear(hidden[-1], outputs))


def gradient_norm(model: nn.Sequential, inputs: int) -> float:
    """The length of the gradient of a score with respect to all parameters, for made-up rows of length `LENGTH`."""
    rows: Tensor = make_up(torch.zeros(1, inputs), PROBES, torch.Generator().manual_seed(0))
    rows *= LENGTH / rows.norm(dim=1, keepdim=True)
    norms = per_example_gradients(model, lambda scores, _: scores[:, 0], rows, torch.zeros(PROBES)).norms()
    return float(norms.square().mean().sqrt())


def unfold_layers(model: nn.Sequential, frame: Frame) -> list[Layer]:
    """The layers for rows as they were before the frame."""
    layers = [
        (layer.weight.detach().double().numpy(), layer.bias.detach().double().numpy())
        for layer in model
        if isinstance(layer, nn.Linear)
    ]
    slopes, constants = frame.unfold(layers[0][0])
    return [(slopes, layers[0][1] + constants), *layers[1:]]


class Rows:
    """A matrix of rows and the targets of a network.

    >>> rows = Rows(sp.csr_matrix([[2.0, 0.0], [0.0, 4.0]]), Frame(scale=np.array([2.0, 2.0])), torch.tensor([0, 1]))
    >>> rows([1])
    (tensor([[0., 2.]]), tensor([1]))
    """

    def __init__(self, matrix: Vector | sp.csr_matrix, frame: Frame, targets: Tensor) -> None:
        self._matrix, self._frame, self._targets = matrix, frame, targets

    def __call__(self, places: list[int]) -> tuple[Tensor, Tensor]:
        """The rows with these indices."""
        drawn: Any = self._matrix[places]
        rows = np.asarray(drawn.toarray() if sp.issparse(drawn) else drawn, dtype=float)  # indexing has made a copy
        if self._frame.centre is not None:
            rows -= self._frame.centre
        if self._frame.scale is not None:
            rows /= self._frame.scale
        with np.errstate(over="ignore"):  # a number too large for single precision becomes infinite, and its row is left out
            return torch.from_numpy(rows.astype(np.float32)), self._targets[places]

    def oracle(
        self, model: nn.Module, loss: Callable[..., Tensor], chunk: int | None = None, *, check: bool = True
    ) -> TorchOracle:
        """The oracle of a model on these rows, with `chunk` rows at a time, or as many as memory allows."""
        places: Any = range(len(self._targets))
        chunk = chunk or physical_batch_size(model, self([0])[0])
        return TorchOracle.of_dataset(model, loss, places, collate=self, chunk=chunk, check=check)


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
    size, inputs = rows.size, int(rows.matrix.shape[1])
    facts = table_facts(classes)
    method = check_settings(settings, facts, "network", delta=session.budget.delta, public=False)
    check_declared(rows)
    widths = (inputs, *hidden, facts.outputs)
    supposed = Problem("network", settings.chosen, facts, size, inputs + 1, count_weights(widths), 1.0, 1.0, unit=rows.unit)
    check_plan(method, supposed, session.budget, settings.accountant)
    scales = find_scales(rows, session, fit_intercept=False)
    columns = np.ones(inputs) if scales.frame.scale is None else scales.frame.scale
    frame = Frame(scales.frame.centre, columns * scales.row_norm / LENGTH, intercept=0.0)
    centre, unit = scales.target
    with np.errstate(all="ignore"):  # a warning would tell something about the data
        used = scales.applied(rows)
    loss, values = _loss(used.targets, classes, centre, unit)
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
        unit=rows.unit,
    )
    table = Rows(used.matrix, frame, values)
    oracle = table.oracle(model, loss)
    job = _lead(table, loss, oracle)
    asked: Any = oracle if job is None else RankedOracle(oracle, job.ranks, job.split)  # whose vectors are only ever summed
    if rows.persons is not None:
        asked = TorchPersonOracle(oracle, rows.persons.trained.where(~np.isnan(rows.targets)))
    released = session.train(method, problem, asked, oracle.flat.vector, run=run_network)
    if job is not None:
        job.finish(oracle, None)
    with np.errstate(all="ignore"):
        *layers, (slopes, intercepts) = unfold_layers(model, frame)
        slopes, intercepts = slopes * unit, intercepts * unit + centre
    check_finite(slopes, intercepts, *(part for layer in layers for part in layer))
    statement = session.state(
        "the weights of a network, the settings below and the scales named below",
        assumed_public=[
            ("" if rows.persons is None else f"the number of persons ({size}), ")
            + f"the number of rows ({rows.matrix.shape[0]}), and the names and types of the columns",
            *rows.assumed_public,
            *scales.declared,
        ],
        paid_for=[*rows.paid_for, *scales.estimated],
        settings={
            "model": f"network, hidden layers of {', '.join(map(str, hidden))} tanh units, random start",
            "method": method.name,
            "rounds": released.rounds,
            **released.settings,
            **({} if rows.persons is None else {"rows of a person, at most": rows.persons.most}),
            "typical row norm": scales.row_norm,
            "regulariser": f"ridge {settings.alpha:g}" if settings.alpha else "none",
            **({} if job is None else job.settings),
        },
    )
    trained = Trained(slopes, intercepts, statement, released.rounds, released.stopped_early, scales.columns)
    return layers, trained


def _lead(table: Rows, loss: nn.Module, oracle: TorchOracle) -> Job | None:
    """In a torchrun job, give the other ranks the scaled table, the model and the loss, as rank 0 has them."""
    if (ranks := join()) is None:
        return None
    ranks.share(("table", (table, oracle.model, loss, oracle.chunk, oracle.copies)))
    ranks.check_agreement({"software": software(), "threads or processor": arithmetic()})
    return Job(ranks, Split(ranks.rank, ranks.size, oracle.size), "")


def serve_table() -> None:
    """Answer for this rank's part of a table that rank 0 trains on, until it has a model."""
    ranks = join()
    assert ranks is not None
    table, model, loss, chunk, copies = expect(ranks, "table")
    ranks.check_agreement({"software": software(), "threads or processor": arithmetic()})
    oracle = table.oracle(model, loss, chunk, check=False)  # which rank 0 has done
    oracle.copies = copies
    serve(oracle, ranks, Split(ranks.rank, ranks.size, oracle.size))


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
