"""Games against `make_private`: the gradients that the user's optimizer is given.

The optimizer's steps have length 0, so the rounds of one loop are alike and independent: every one, or every few in a row, is a
replay.
"""

from functools import partial
from typing import Any
from unittest import mock

import numpy as np
import torch
from scipy.stats import binom
from torch import Tensor, nn

from privopt.measure.clips import l2
from privopt.measure.measurement import Measurement
from privopt.measure.mechanisms import gaussian
from privopt.measure.queries import gradient
from privopt.measure.samplers import poisson
from privopt.measure.units import rows_of_persons
from privopt.nets import loops, make_private
from privopt.perexample.grads import Vector
from privopt.privacy.accountants import epsilon
from privopt.privacy.budget import Budget
from privopt.privacy.events import DpEvent, GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from privopt.training import session
from tests.audit.auditing import Game
from tests.audit.frontends import IDS
from tests.audit.transcripts import log_ratio

DELTA, ROWS, CLIP = 0.1, 8, 0.7


MOST = 3  # rows of the canary


def rows_game(*, rounds: int) -> Game:
    """So many rounds on Poisson batches of half of the rows, of which the canary has three; all others are zeros."""
    share, noise = 0.5, 1.2
    drawn = Measurement(poisson(share), [gradient() @ l2(CLIP)], gaussian(noise), unit=rows_of_persons(MOST))
    mean = np.array([-CLIP / (share * len(IDS)), 0.0])  # what one row of the canary adds
    chances = binom.logpmf(np.arange(MOST + 1), MOST, share)

    def play(canary: bool, count: int) -> Vector:
        with mock.patch.object(loops, "rows_need_less_noise", return_value=True):
            answers, paid = _gradients(canary, rounds * count, noise, int(share * ROWS), persons=True)
        assert paid == SelfComposedDpEvent(drawn.event(0), rounds * count)
        scale = noise * CLIP / (share * len(IDS))
        places = np.arange(MOST + 1)[:, None, None] * mean
        logs = -((answers - places) ** 2).sum(axis=2) / (2 * scale**2)
        ratios = np.logaddexp.reduce(logs + chances[:, None], axis=0) - logs[0]
        return ratios.reshape(count, rounds).sum(axis=1)

    return Game(epsilon(SelfComposedDpEvent(drawn.event(0), rounds), DELTA), DELTA, play)


def game(*, rounds: int, sampled: bool, persons: bool = False) -> Game:
    """So many rounds, on Poisson batches of half of the rows or on all rows; all rows but the canary are zeros.

    With `persons` the canary is one, with three rows.
    """
    share, noise = (0.5, 0.8) if sampled else (1.0, 0.66)
    event: DpEvent = PoissonSampledDpEvent(share, GaussianDpEvent(noise)) if sampled else GaussianDpEvent(noise)
    expected = int(share * ROWS)
    held = np.array([-CLIP / expected, 0.0])  # the canary's part of the mean: its gradient points down, and is cut

    def play(canary: bool, count: int) -> Vector:
        answers, paid = _gradients(canary, rounds * count, noise, expected, persons)
        assert paid == SelfComposedDpEvent(event, rounds * count)
        scale = noise * CLIP / expected
        ratios: Vector = log_ratio(gaussian(1.0), scale, share, answers, held, 0 * held)
        return ratios.reshape(count, rounds).sum(axis=1)

    return Game(epsilon(SelfComposedDpEvent(event, rounds), DELTA), DELTA, play)


def _gradients(canary: bool, rounds: int, noise: float, batch_size: int, persons: bool) -> tuple[Vector, DpEvent]:
    """The gradients that an optimizer is given, round by round, and what was paid for them."""
    inputs, targets = torch.zeros(ROWS, 2), torch.zeros(ROWS)
    if canary:
        inputs[0, 0], targets[0] = 1e3, 1e9
    if persons:
        inputs, targets = inputs[IDS], targets[IDS]
    model = nn.Linear(2, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    given: list[Vector] = []
    optimizer.register_step_pre_hook(lambda *_: given.append(_flat(model)))
    with mock.patch.object(session, "calibrate", return_value=noise):  # no budget is for thousands of rounds
        private = make_private(
            model,
            optimizer,
            (inputs, targets),
            budget=Budget(1.0, DELTA, unit="person" if persons else "example"),
            persons=IDS if persons else None,
            rows_per_person=MOST if persons else None,
            batch_size=batch_size,
            rounds=rounds,
            clip_bound=CLIP,
            seed=11 + canary,
        )
    for rows, wanted in private.loader:
        private.step(partial(_losses, model, rows, wanted))
    return np.array(given), private.ledger.event


def _losses(model: nn.Module, rows: Tensor, wanted: Tensor) -> Tensor:
    return (model(rows)[:, 0] - wanted) ** 2 / 2


def _flat(model: nn.Module) -> Vector:
    gradients: list[Any] = [parameter.grad for parameter in model.parameters()]
    return np.concatenate([gradient.detach().numpy().astype(float).ravel() for gradient in gradients])
