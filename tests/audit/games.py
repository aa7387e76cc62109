"""Every game: each private method through its front ends, mechanisms and surveys alone, and loops that are not ours.

δ is 0.1, or 0: a bound from frequencies cannot see what is rarer than one replay in a few thousand. What is claimed is an event,
which has a price at every δ, and a test at one of them is a test of it.
"""

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np

from privopt.linear_model import HuberRegressor
from privopt.measure.clips import l2
from privopt.measure.measurement import Measurement
from privopt.measure.mechanisms import above_threshold, gamma_norm, gaussian, gaussian_pool, laplace, noisy_min
from privopt.measure.queries import gradient
from privopt.measure.randomness import Rng, generator
from privopt.measure.samplers import Sampler, fixed_size, poisson
from privopt.measure.selection import best_of_geometric
from privopt.methods import METHODS
from privopt.perexample.grads import Materialized, Rows, Vector
from privopt.postprocess.updates import sgd
from privopt.privacy.accountants import epsilon
from privopt.privacy.budget import Budget, Neighbours
from privopt.privacy.events import DpEvent
from privopt.privacy.ledger import Ledger
from privopt.recipe import Recipe, always
from tests.audit import evaluations, federations, surveys
from tests.audit.auditing import Game
from tests.audit.frontends import ROWS, Captured, linear, network, people, table
from tests.audit.transcripts import Start, first_rounds, log_ratio, replays
from tests.laws.table import FEDERATED_METHODS, ROW_METHODS

DELTA = 0.1
BUDGET, PURE = Budget(2.0, DELTA), Budget(2.0, 0.0)
REPLACED = Budget(2.0, DELTA, "replace-one")
PRIVATE = [name for name in ROW_METHODS if METHODS[name].private]
MANY, SOME, FEW = 30_000, 1_200, 400  # replays on each data set: of one answer, of a few rounds, and of a few of a network
AT_ONCE = 300_000  # of first rounds, which are replayed as one long vector


class Entry(NamedTuple):
    """A game that is made when it is played, and on how many replays the tests play it."""

    make: Callable[[], Game]
    replays: int


def _seed(name: str) -> int:
    return crc32(name.encode())


def _game(captured: Captured, name: str, *, alone: bool = False, tight: bool = False) -> Game:
    """A game against a statement; `alone` replays the first round only."""
    claim = captured.statement.epsilon, captured.statement.budget.delta
    play = first_rounds if alone else replays
    return Game(*claim, play(captured.present, captured.absent, _seed(name)), tight)


# ---------------------------------------------------------------- linear models

_PUBLIC = np.random.default_rng(5).uniform(-0.5, 0.5, (6, 2)), np.linspace(-1, 1, 6)
_LINEAR: dict[str, dict[str, Any]] = {  # what a method is told here, beside its defaults
    "dp-agd": {"options": {"candidates": 1}},
    "output-perturbation": {"estimator": HuberRegressor},
    "sagd-minibatch": {"batch_size": 4},
    "sagd-sparse": {"options": {"answers": 1, "threshold": 0.0}},
}
_ADDS_NOTHING = ("output-perturbation", "sagd-sparse")  # methods whose canary can do most where the other rows are all 0
SOLVED = ("output-perturbation",)  # in one round, which is no sum of clipped vectors
LOOSE = (
    "dp-agd",
    "sagd-sparse",
    "sagd-minibatch",
    "warm-start",
)  # what they do in one round is not one Gaussian or Laplace answer
ROUNDS = 3


def _linear(method: str, rounds: int, *, budget: Budget = BUDGET, **given: Any) -> Captured:
    others = method not in _ADDS_NOTHING
    public = {"public": _PUBLIC} if "public data" in METHODS[method].needs else {}
    told = {"rounds": rounds} | public | _LINEAR.get(method, {}) | given
    return linear(method, table(1.0, others=others), table(0.0, others=others), budget, **told)


def _one_round(method: str) -> Game:
    return _game(_linear(method, 1), method, alone=True, tight=True)


def _several_rounds(method: str) -> Game:
    return _game(_linear(method, ROUNDS), method)


def _pure(method: str) -> Game:
    """δ = 0; a canary in one column, where noise of Gamma length is Laplace noise."""
    sides = [table(canary, columns=1, others=False) for canary in (1.0, 0.0)]
    public = {"public": (np.zeros((3, 1)), np.zeros(3))} if method == "sagd-sparse" else {}
    rounds = 2 if method == "sagd-minibatch" else 1  # which cuts the rows in two
    told: dict[str, Any] = {"rounds": rounds} | public | _LINEAR.get(method, {}) | {"estimator": HuberRegressor}
    captured = linear(method, sides[0], sides[1], PURE, **told)
    tight = method not in LOOSE
    return _game(captured, method, alone=tight, tight=tight)


def _sampled(method: str) -> Game:
    """Poisson batches of a quarter of the rows, all of which but the canary add nothing."""
    sides = table(1.0, others=False), table(0.0, others=False)
    return _game(linear(method, *sides, BUDGET, rounds=ROUNDS, batch_size=2), method)


def _replaced() -> Game:
    """A canary that pulls the other way."""
    captured = linear("dp-gd", table(1.0), table(-1.0), REPLACED, rounds=1)
    return _game(captured, "replaced", alone=True, tight=True)


def _line_search() -> Game:
    """DP-AGD with a canary whose loss a step of the longest length takes from the bound to 0."""
    reach = 1.0
    sides = [(np.array([[canary]] + [[0.0]] * 7), np.array([canary * reach] + [0.0] * 7)) for canary in (1.0, 0.0)]
    options = {"candidates": 1, "longest_step": reach, "loss_bound": reach**2 / 2, "gradient_share": 0.5}
    return _game(linear("dp-agd", sides[0], sides[1], BUDGET, rounds=1, clip_bound=0.1, options=options), "line search")


def _persons(method: str, rounds: int, **given: Any) -> Game:
    """A canary that is a person with three rows."""
    (*present, ids), (*absent, _) = people(1.0), people(0.0)
    captured = linear(method, tuple(present), tuple(absent), BUDGET, groups=ids, rounds=rounds, **given)  # type: ignore[arg-type]
    return _game(captured, f"persons {method}", alone=rounds == 1, tight=rounds == 1)


def _linear_games() -> dict[str, Entry]:
    several = [name for name in PRIVATE if name not in SOLVED]
    pure = [name for name in PRIVATE if METHODS[name].pure]
    return (
        {f"{name}, one round": Entry(partial(_one_round, name), AT_ONCE) for name in PRIVATE if name not in (*LOOSE, *SOLVED)}
        | {f"{name}, one round": Entry(partial(_one_round, name), MANY) for name in SOLVED}
        | {f"{name}, {ROUNDS} rounds": Entry(partial(_several_rounds, name), SOME) for name in several}
        | {f"{name}, δ = 0": Entry(partial(_pure, name), 3 * SOME if name in LOOSE else MANY // 3) for name in pure}
        | {f"{name}, Poisson": Entry(partial(_sampled, name), 2 * SOME) for name in ("dp-sgd", "dp-srm")}
        | {f"persons, {name}, one round": Entry(partial(_persons, name, 1), AT_ONCE) for name in ("dp-gd", "sagd-lap")}
        | {f"persons, {name}, {ROUNDS} rounds": Entry(partial(_persons, name, ROUNDS), SOME) for name in ("dp-adam", "dp-srm")}
        | {"dp-gd, replace-one": Entry(_replaced, AT_ONCE), "dp-agd, losses too": Entry(_line_search, 2 * SOME)}
    )


# ---------------------------------------------------------------- measurements and mechanisms alone


class Far:
    """An oracle with a vector far away, or two that are opposite, and otherwise zeros."""

    size = 8

    def __init__(self, canary: float) -> None:
        self._vectors = np.zeros((self.size, 2))
        self._vectors[0, 0] = 1e6 * canary

    def __call__(self, parameters: Vector, rows: Rows) -> Materialized:
        return Materialized(self._vectors if rows is None else self._vectors[rows])


def _measured(sampler: Sampler, name: str, neighbours: Neighbours, rounds: int) -> Game:
    recipe = Recipe(rounds, always(Measurement(sampler, [gradient() @ l2(1.0)], gaussian(1.0))), sgd(0.1))
    sides = [Start(recipe, Far(canary), np.zeros(2)) for canary in (1.0, -1.0 if neighbours == "replace-one" else 0.0)]
    return Game(epsilon(recipe.planned_event(), DELTA, neighbours), DELTA, replays(sides[0], sides[1], _seed(name)))


SELECTED = best_of_geometric(4.0, 1.7)
Draw = Callable[[Rng, bool], float]  # a score of one release, with or without the canary


def _mechanism(draw: Draw, event: DpEvent, delta: float, tight: bool = True) -> Game:
    def play(canary: bool, count: int) -> Vector:
        rng = generator(2 * _seed(repr(event)) + canary)
        return np.array([draw(rng, canary) for _ in range(count)])

    return Game(epsilon(event, delta), delta, play, tight)


def _answer(mechanism: Any) -> Draw:
    return lambda rng, canary: float(mechanism.release(np.array([float(canary)]), 1.0, rng)[0])


def _gamma_norm(rng: Rng, canary: bool) -> float:
    answer = gamma_norm(0.5).release(np.array([float(canary), 0.0]), 1.0, rng)
    return log_ratio(gamma_norm(0.5), 0.5, 1.0, answer, np.array([1.0, 0.0]), np.zeros(2))


def _gaussian_pool(rng: Rng, canary: bool) -> float:
    """Answers whose shares depend on those before; their sum, weighted by shares, tells all that they tell."""
    pool, spent, total = gaussian_pool(0.66), 0.0, 0.0
    while spent < 1:
        share = min(0.2 if total > 0 else 0.4, 1 - spent)
        answer, spent = pool.release(np.array([float(canary)]), 1.0, share, spent, rng)
        total += share * float(answer[0])
    return total


def _noisy_min(rng: Rng, canary: bool) -> float:
    """Two scores, the second of which the canary raises: choosing the first gives it away."""
    return float(noisy_min(0.5).choose(np.array([0.0, float(canary)]), 1.0, rng) == 0)


def _best_of_geometric(rng: Rng, canary: bool) -> float:
    """Trials that release their own score: the canary raises all of them."""

    def trial(candidate: int, spent: Ledger, own: Rng) -> tuple[float, None]:
        return float(gaussian(SELECTED.noise_multiplier).release(np.array([float(canary)]), 1.0, own)[0]), None

    return SELECTED.release(2, trial, spending=Ledger().run(), rng=rng)[1]


def _above_threshold(rng: Rng, canary: bool) -> float:
    """Twenty values that the canary raises, and one that it lowers: it makes "no" twenty times and then "yes" unlikely."""
    compare = above_threshold(0.5)
    hidden = compare.noisy_threshold(3.0, 1.0, rng)
    early = [compare.exceeds(float(canary), hidden, 1.0, rng) for _ in range(20)]
    return float(any(early) or not compare.exceeds(5.0 - canary, hidden, 1.0, rng))


def _mechanism_games() -> dict[str, Entry]:
    gauss, lap = gaussian(0.66), laplace(0.5)
    return {
        "gaussian": Entry(lambda: _mechanism(_answer(gauss), gauss.event, DELTA), MANY),
        "laplace": Entry(lambda: _mechanism(_answer(lap), lap.event, 0.0), MANY),
        "gamma_norm": Entry(lambda: _mechanism(_gamma_norm, gamma_norm(0.5).event, 0.0), MANY),
        "gaussian_pool": Entry(lambda: _mechanism(_gaussian_pool, gaussian_pool(0.66).event, DELTA), MANY),
        "noisy_min": Entry(lambda: _mechanism(_noisy_min, noisy_min(0.5).event, 0.0), MANY),
        "best_of_geometric": Entry(lambda: _mechanism(_best_of_geometric, SELECTED.event, DELTA, tight=False), MANY // 3),
        "above_threshold": Entry(lambda: _mechanism(_above_threshold, above_threshold(0.5).event, 0.0, tight=False), MANY),
        "fixed size, replace-one": Entry(lambda: _measured(fixed_size(4, 8), "fixed", "replace-one", 2), SOME),
        "Poisson, replace-one": Entry(lambda: _measured(poisson(0.5), "poisson", "replace-one", 2), SOME),
    }


# ---------------------------------------------------------------- networks

_NETWORK: dict[str, dict[str, Any]] = {  # what a method is told here
    "dp-agd": {"options": {"loss_bound": 1.0, "candidates": 1}, "learning_rate": None},
    "dp-srm": {"options": {"change_bound": 0.2, "refresh": 0.2}, "rounds": 2},
    "spiderboost": {"options": {"smoothness": 1.0, "period": 4}, "rounds": 2},
    "dp2-rmsprop": {"options": {"phase": 1}, "rounds": 2},
    "warm-start": {"options": {"public_epochs": 1}},
}
WITH_LOOP = ("dp-agd", "dp-srm", "spiderboost", "dp2-rmsprop", "warm-start")  # their first round is not all that they do


def _network(method: str) -> Game:
    import torch

    from tests.audit.architectures import dense

    inputs = torch.linspace(-1, 1, 2 * ROWS).reshape(ROWS, 2)
    public = {"public": (inputs, torch.ones(ROWS, 2))} if "public data" in METHODS[method].needs else {}
    told = {"rounds": 1, "learning_rate": 0.01} | public | _NETWORK.get(method, {})
    captured = network(method, dense, inputs, BUDGET, **told)
    alone = method not in WITH_LOOP
    tight = alone and not METHODS[method].pure  # l1 lengths are divided among several parameters
    return _game(captured, f"network {method}", alone=alone, tight=tight)


def _architecture(name: str, *, persons: bool = False) -> Game:
    from tests.audit.architectures import ARCHITECTURES

    captured = network("dp-sgd", *ARCHITECTURES[name], BUDGET, rounds=1, learning_rate=0.01, persons=persons)
    return _game(captured, f"{name}{' persons' if persons else ''}", alone=True, tight=True)


def _network_games() -> dict[str, Entry]:
    if not find_spec("torch"):
        return {}
    from tests.audit import loops
    from tests.audit.architectures import ARCHITECTURES

    names = [name for name in PRIVATE if "network" in METHODS[name].models]
    return (
        {f"network, {name}": Entry(partial(_network, name), FEW if name in WITH_LOOP else AT_ONCE) for name in names}
        | {f"network, {name}": Entry(partial(_architecture, name), AT_ONCE) for name in ARCHITECTURES}
        | {f"network of persons, {name}": Entry(partial(_architecture, name, persons=True), AT_ONCE) for name in ARCHITECTURES}
        | {
            "make_private, persons": Entry(partial(loops.game, rounds=1, sampled=False, persons=True), 2 * SOME),
            "make_private, persons, Poisson": Entry(partial(loops.game, rounds=2, sampled=True, persons=True), SOME),
            "make_private, rows of persons": Entry(partial(loops.rows_game, rounds=1), 2 * SOME),
            "make_private, one round": Entry(partial(loops.game, rounds=1, sampled=False), 2 * SOME),
            "make_private, Poisson": Entry(partial(loops.game, rounds=2, sampled=True), SOME),
        }
    )


# ---------------------------------------------------------------- federations


def _federated(method: str, *, rounds: int, **given: Any) -> Game:
    return _game(federations.captured(method, rounds=rounds, **given), method, alone=rounds == 1, tight=rounds == 1)


def _federated_games() -> dict[str, Entry]:
    return (
        {f"{name}, one round": Entry(partial(_federated, name, rounds=1), AT_ONCE) for name in FEDERATED_METHODS}
        | {f"{name}, {ROUNDS} rounds": Entry(partial(_federated, name, rounds=ROUNDS), FEW) for name in FEDERATED_METHODS}
        | {
            "dp-fedavg, shares": Entry(partial(_federated, "dp-fedavg", rounds=1, noise="shares"), MANY),
            "dp-fedavg, Poisson": Entry(partial(_federated, "dp-fedavg", rounds=2, cohort=1, others=False), SOME),
            "adaptive clip": Entry(federations.adaptive_clip, MANY),
        }
    )


# ---------------------------------------------------------------- all

GAMES: dict[str, Entry] = (
    _linear_games()
    | _mechanism_games()
    | {
        "survey of column ranges": Entry(surveys.column_ranges, SOME),
        "survey of knots": Entry(surveys.column_knots, MANY),
        "survey of a target's mean": Entry(surveys.mean_target, MANY),
        "survey of typical norm": Entry(surveys.typical_norm, MANY),
        "survey of column sizes": Entry(surveys.column_sizes, MANY),
        "survey of a mean row": Entry(surveys.mean_row, MANY),
        "survey of categories, a common one": Entry(surveys.common_category, 2 * SOME),
        "survey of categories, a new one": Entry(surveys.new_category, 2 * SOME),
        "evaluation of a classifier": Entry(evaluations.classifier, 2 * MANY // 3),
        "evaluation of a classifier, δ = 0": Entry(evaluations.pure_classifier, MANY // 3),
        "evaluation of a classifier, replace-one": Entry(evaluations.replaced, MANY // 3),
        "evaluation of persons": Entry(evaluations.persons, 2 * MANY // 3),
        "evaluation of a regressor": Entry(evaluations.regressor, 2 * MANY // 3),
    }
    | _network_games()
    | _federated_games()
)
