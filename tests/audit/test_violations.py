"""Audits can fail: code that is broken on purpose is found by the games that pass without it."""

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from privopt.measure import clips, evaluations, surveys
from privopt.measure.mechanisms import gamma_norm, gaussian, gaussian_pool, laplace, noisy_min
from privopt.measure.samplers import disjoint_batches, poisson, several_rows
from privopt.perexample.linear_oracle import LinearGrads
from privopt.perexample.person_oracle import PersonGrads
from tests.audit.auditing import Game, audit
from tests.audit.frontends import linear, table
from tests.audit.games import BUDGET, GAMES
from tests.audit.transcripts import first_rounds

Break = Callable[[pytest.MonkeyPatch], None]


def _less(kind: type[Any], method: str, place: int, times: float = 2) -> Break:
    """Noise for half of the bound, or less, which is the argument at this place of a method."""

    def broken(patch: pytest.MonkeyPatch) -> None:
        honest = getattr(kind, method)

        def halved(self: Any, *given: Any) -> Any:
            return honest(self, *(value / times if at == place else value for at, value in enumerate(given)))

        patch.setattr(kind, method, halved)

    return broken


def _no_clip(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(clips, "_shorten", lambda norms, bound, weight: np.full_like(norms, weight))


def _short_norms(patch: pytest.MonkeyPatch) -> None:
    """A canary of twice the bound."""
    honest = LinearGrads.norms
    patch.setattr(LinearGrads, "norms", lambda self, order: honest(self, order) / 2)


def _each_row(patch: pytest.MonkeyPatch) -> None:
    """Rows that are clipped one by one, where a person is promised protection."""
    patch.setattr(PersonGrads, "clipped_sum", lambda self, clip, weight=1.0, out=None: self._each.clipped_sum(clip, weight, out))


def _each_row_of_a_network(patch: pytest.MonkeyPatch) -> None:
    from privopt.perexample.networks import TorchGrads

    patch.setattr(TorchGrads, "of_persons", lambda self, counts: self)


def _everybody(sampler: type[Any]) -> Break:
    """A sampler that says who takes part in what, and takes all."""
    return lambda patch: patch.setattr(sampler, "draw", lambda self, size, round_, rng: None)


def _whole_pool(patch: pytest.MonkeyPatch) -> None:
    """A pool that gives everything to each answer."""
    honest = gaussian_pool.release

    def release(self: Any, total: Any, bound: float, share: float, spent: float, rng: Any) -> Any:
        return honest(self, total, bound, 1.0, 0.0, rng)[0], spent + share

    patch.setattr(gaussian_pool, "release", release)


def _low_threshold(patch: pytest.MonkeyPatch) -> None:
    """Categories that are named as soon as their noisy count exceeds 1."""

    class Norm:
        isf = staticmethod(lambda probability: 0.0)

    patch.setattr(surveys, "norm", Norm)


def _twice(patch: pytest.MonkeyPatch) -> None:
    """A piece of a batch that is added two times."""
    honest = clips.l2.factors
    patch.setattr(clips.l2, "factors", lambda self, norms, weight=1.0: honest(self, norms, 2 * weight))


def _one_row_each(patch: pytest.MonkeyPatch) -> None:
    """Rows of persons at the price of rows: as if everybody had one."""
    patch.setattr("privopt.measure.measurement.several_rows", lambda share, most, noise: several_rows(share, 1, noise))


def _half_a_vote(patch: pytest.MonkeyPatch) -> None:
    """An evaluation that forgets the losses when it bounds what a row adds, and half of the vote."""
    patch.setattr(evaluations, "sensitivity", lambda cells, values, order: 0.5)


def _every_row_counts(patch: pytest.MonkeyPatch) -> None:
    """A person who votes with every row."""
    honest = np.bincount
    patch.setattr(np, "bincount", lambda places, weights=None, minlength=0: honest(places, minlength=minlength))


VIOLATIONS: dict[str, tuple[Break, str, int]] = {  # how the code is broken, which game finds it, on how many replays
    "half of the Gaussian noise": (_less(gaussian, "begin", 1), "dp-gd, one round", 6000),
    "half of the Gaussian noise, in rounds": (_less(gaussian, "begin", 1), "dp-adam, 3 rounds", 2400),
    "half of the Gaussian noise, in a survey": (_less(gaussian, "begin", 1), "survey of typical norm", 2400),
    "half of the Laplace noise": (_less(laplace, "release", 1), "sagd-lap, one round", 6000),
    "half of the Laplace noise, δ = 0": (_less(laplace, "release", 1), "sagd-lap, δ = 0", 3600),
    "half of the noise of Gamma length": (_less(gamma_norm, "release", 1), "output-perturbation, δ = 0", 3600),
    "half of a noisy minimum's noise": (_less(noisy_min, "choose", 1), "noisy_min", 6000),
    "no clip": (_no_clip, "dp-gd, 3 rounds", 600),
    "no clip of differences": (_no_clip, "dp-srm, 3 rounds", 600),
    "a canary of twice the bound": (_short_norms, "dp-gd, one round", 6000),
    "rows are clipped, not persons": (_each_row, "persons, dp-gd, one round", 6000),
    "rows are clipped, not persons, in rounds": (_each_row, "persons, dp-adam, 3 rounds", 2400),
    "everybody is in a Poisson batch": (_everybody(poisson), "dp-sgd, Poisson", 2400),
    "everybody is in a disjoint batch": (_everybody(disjoint_batches), "sagd-minibatch, δ = 0", 3600),
    "each answer takes the whole pool": (_whole_pool, "gaussian_pool", 6000),
    "half of the bound, in an evaluation": (_half_a_vote, "evaluation of a classifier", 6000),
    "half of the bound, in an evaluation, δ = 0": (_half_a_vote, "evaluation of a classifier, δ = 0", 6000),
    "half of the bound, of moments": (_half_a_vote, "evaluation of a regressor", 6000),
    "a person who counts with every row": (_every_row_counts, "evaluation of persons", 6000),
    "a quarter of the noise, in a selection": (_less(gaussian, "release", 1, 4), "best_of_geometric", 6000),
    "a threshold without room for failure": (_low_threshold, "survey of categories, a new one", 1200),
}
if find_spec("torch"):
    VIOLATIONS |= {
        "no clip, in a loop": (_no_clip, "make_private, one round", 800),
        "half of the Gaussian noise, in a network": (_less(gaussian, "begin", 1), "network, dp-adam", 6000),
        "rows are clipped, not persons, in a network": (_each_row_of_a_network, "network of persons, MLP", 6000),
        "rows are clipped, not persons, in a loop": (_each_row_of_a_network, "make_private, persons", 2400),
        "rows of persons at the price of rows": (_one_row_each, "make_private, rows of persons", 2400),
        "a piece that is added twice": (_twice, "make_private, one round", 2400),
    }


@pytest.mark.parametrize("name", VIOLATIONS)
def test_code_that_is_broken_is_found_by_an_audit(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    broken, game, replays = VIOLATIONS[name]
    broken(monkeypatch)
    assert audit(GAMES[game].make(), replays).exceeded


def test_a_replacement_is_more_than_an_addition() -> None:
    """What is claimed for one row more or less does not hold for another row in its place."""
    captured = linear("dp-gd", table(1.0), table(-1.0), BUDGET, rounds=1)
    play = first_rounds(captured.present, captured.absent)
    assert audit(Game(captured.statement.epsilon, BUDGET.delta, play), 6000).exceeded
