"""The sparse vector: what one hidden threshold tells about neighbours, computed exactly; and when the data are asked."""

import functools
import itertools
import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import stats

import privopt.loop
from privopt.checkpoint import Checkpoint
from privopt.errors import CompositionError
from privopt.loop import run
from privopt.measure.clips import l1, l2
from privopt.measure.mechanisms import above_threshold, laplace
from privopt.measure.queries import gradient
from privopt.measure.randomness import Rng, generator
from privopt.measure.samplers import disjoint_batches, fixed_size, full_batch, poisson
from privopt.measure.sparse_vector import SparseVector
from privopt.perexample.grads import Materialized, Rows, Vector
from privopt.postprocess.side_information import public_gradient
from privopt.postprocess.updates import sgd
from privopt.privacy.accountants import epsilon
from privopt.privacy.events import LaplaceDpEvent, NoOpDpEvent, PureDpEvent, atoms, compose
from privopt.privacy.ledger import Ledger
from privopt.recipe import Recipe, always
from privopt.state import Known, PublicState
from tests.laws.checks import FALSE_ALARM, check_laplace
from tests.problems import Given, Public, Unreadable
from tests.stopped import StopAt, Stopped

BOUND, NOISE = 2.0, 0.8
HERE = PublicState(np.zeros(1), np.zeros(1), Known(gradient=np.zeros(1)))


def sparse(noise: float = NOISE, answers: int = 2, threshold: float = 1.0, **options: Any) -> SparseVector:
    return SparseVector(full_batch(), gradient() @ l1(BOUND), noise, answers, threshold, **options)


# ---------------------------------------------------------------- the likelihood of answers, computed exactly


class Tape:
    """A generator that writes down the scale of every Laplace draw, and draws 0."""

    def __init__(self) -> None:
        self.scales: list[float] = []

    def laplace(self, loc: float = 0.0, scale: float = 1.0, size: Any = None) -> Any:
        self.scales.append(scale)
        return 0.0 if size is None else np.zeros(size)


Scales = list[list[float]]  # of each comparison: that of its hidden threshold, if it is a new one, then its own


def honest(comparisons: int) -> Scales:
    """What the code draws for so many comparisons that all say no."""
    scales: Scales = []
    measurement, carry = sparse(threshold=100.0), dict[str, Any]()
    for round_ in range(comparisons):
        tape: Any = Tape()
        carry = measurement.measure(Given(np.zeros((1, 1))), HERE, round_, tape, carry).carry
        scales.append(tape.scales)
    assert carry["left"] == measurement.answers
    return scales


def log_likelihood(scales: Scales, values: list[float], threshold: float, *, last: bool) -> float:
    """ln P[no … no, and at last yes or no]: given a hidden threshold, comparisons are independent; sum over where it may be."""
    yes = [last and place == len(values) - 1 for place in range(len(values))]
    starts = [place for place, drawn in enumerate(scales) if len(drawn) == 2]
    total = 0.0
    for start, end in itertools.pairwise([*starts, len(values)]):
        compared = Counter((values[place], scales[place][-1], yes[place]) for place in range(start, end))
        total += log_likelihood_of_one(threshold, scales[start][0], tuple(compared.items()))
    return total


@functools.cache
def log_likelihood_of_one(threshold: float, scale: float, compared: tuple[tuple[tuple[float, float, bool], int], ...]) -> float:
    """The same for the comparisons with one hidden threshold: (value, scale, is it a yes?), and how often."""
    hidden = threshold + np.linspace(-60 * scale, 60 * scale, 20_001)
    logs = stats.laplace.logpdf(hidden, threshold, scale)
    for (value, own, yes), count in compared:
        logs = logs + count * (stats.laplace.logsf if yes else stats.laplace.logcdf)(hidden, value, own)
    peak = float(logs.max())
    return peak + math.log(float(np.exp(logs - peak).sum()) * (hidden[1] - hidden[0]))


def worst(scales: Scales) -> float:
    """The largest log-ratio of likelihoods over neighbours whose values are moved by the bound, in the directions that hurt."""
    found, count = 0.0, len(scales)
    for threshold in (0.0, 3.0, 30.0, 100.0):
        for last in (True, False):
            lower, upper = [0.0] * count, [BOUND] * count
            if last:
                lower[-1], upper[-1] = BOUND, 0.0
            one, other = (log_likelihood(scales, values, threshold, last=last) for values in (lower, upper))
            found = max(found, abs(one - other))
    return found


def check_threshold(scales: Scales) -> None:
    """One hidden threshold is 1/z-DP up to and including its first yes."""
    assert worst(scales) <= 1 / NOISE * (1 + 1e-6)


@pytest.mark.parametrize("comparisons", [1, 2, 5, 60])
def test_all_answers_of_one_threshold_together_are_as_private_as_it_is_charged(comparisons: int) -> None:
    check_threshold(honest(comparisons))
    assert above_threshold(NOISE).event == PureDpEvent(1 / NOISE)


def test_the_charge_is_tight() -> None:
    """Many comparisons far below the threshold approach it: less noise would not do."""
    assert worst(honest(60)) > 0.9 / NOISE


def redrawn(scales: Scales) -> Scales:
    """The paper's listing: a new threshold in every step."""
    return [[scales[0][0], one[-1]] for one in scales]


def halved(scales: Scales) -> Scales:
    return [[scale / 2 for scale in one] for one in scales]


def careless_about_values(scales: Scales) -> Scales:
    return [[*one[:-1], one[-1] / 2] for one in scales]


def careless_about_the_threshold(scales: Scales) -> Scales:
    return [[*[scale / 2 for scale in one[:-1]], one[-1]] for one in scales]


@pytest.mark.parametrize("broken", [redrawn, halved, careless_about_values, careless_about_the_threshold])
def test_a_broken_sparse_vector_is_found(broken: Callable[[Scales], Scales]) -> None:
    with pytest.raises(AssertionError):
        check_threshold(broken(honest(60)))


def test_the_likelihood_is_that_of_the_code() -> None:
    """How often five comparisons all say no, on neighbouring data: 2000 runs each, Hoeffding at a false alarm of 1e-6."""
    draws, rounds, threshold = 2000, 5, 0.9
    measurement = sparse(answers=1, threshold=threshold)
    for rows in ([[3.0], [-0.5]], [[0.0], [-0.5]]):
        gap = abs(sum(max(-BOUND, min(BOUND, row[0])) for row in rows))
        silent, rng = 0, generator(1)
        for _ in range(draws):
            carry: dict[str, Any] = {}
            for round_ in range(rounds):
                carry = measurement.measure(Given(np.array(rows)), HERE, round_, rng, carry).carry
                if not carry["left"]:
                    break
            else:
                silent += 1
        expected = math.exp(log_likelihood(honest(rounds), [gap] * rounds, threshold * math.sqrt(2) * NOISE * BOUND, last=False))
        assert 0.1 < expected < 0.9
        assert abs(silent / draws - expected) < math.sqrt(math.log(4 / FALSE_ALARM) / (2 * draws))


# ---------------------------------------------------------------- the value that is compared


def gap_of(rows: Any, public: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[float, float]:
    seen: list[tuple[float, float]] = []

    def exceeds(self: above_threshold, value: float, hidden: float, bound: float, rng: Rng) -> bool:
        seen.append((value, bound))
        return False

    monkeypatch.setattr(above_threshold, "exceeds", exceeds)
    at = PublicState(np.zeros(2), np.zeros(2), Known(gradient=np.asarray(public)))
    sparse().measure(Given(np.array(rows)), at, 0, generator(0))
    return seen[0]


@pytest.mark.parametrize("row", [[9.0, -9.0], [1.0, 1.0], [0.0, -2.0], [1e300, 0.0], [math.inf, 1.0], [math.nan, 0.0]])
@pytest.mark.parametrize("public", [[0.0, 0.0], [0.7, -0.1], [1e6, 1.0]])
def test_one_example_moves_the_gap_by_at_most_the_bound(
    row: list[float], public: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    others = [[0.3, 0.2], [-4.0, 5.0], [1.0, -1.0]]
    one, bound = gap_of([row, *others], public, monkeypatch)
    other, _ = gap_of([[0.0, 0.0], *others], public, monkeypatch)  # n is public, so it stays
    assert bound == BOUND
    assert abs(one - other) <= BOUND + 1e-9 * max(1.0, one)


def test_the_gap_is_the_distance_of_the_clipped_sum_from_n_public_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    gap, _ = gap_of([[3.0, 1.0], [0.5, 0.5]], [0.5, 0.0], monkeypatch)
    assert gap == pytest.approx(math.hypot(1.5 + 0.5 - 1.0, 0.5 + 0.5))


# ---------------------------------------------------------------- when the data are asked, and what is answered


def test_a_hidden_threshold_lasts_until_a_paid_answer_and_is_then_drawn_anew() -> None:
    measurement, carry, kinds = sparse(answers=2), dict[str, Any](), []
    for round_, rows in enumerate([[[0.0]], [[0.0]], [[2.0]], [[0.0]], [[2.0]], [[2.0]]]):
        tape: Any = Tape()
        data = Given(np.tile(np.array(rows), (9, 1)))
        noisy = measurement.measure(data, HERE, round_, tape, carry)
        carry = noisy.carry
        kinds.append([scale / (NOISE * BOUND) for scale in tape.scales])
    # threshold and value; value; value, and noise of scale 1 for an answer; threshold and value; value and answer; nothing
    assert kinds == [[2, 4], [4], [4, 1 / (NOISE * BOUND)], [2, 4], [4, 1 / (NOISE * BOUND)], []]


def test_a_paid_answer_is_the_mean_under_laplace_noise_of_the_charged_scale() -> None:
    size = 10
    measurement = sparse(answers=1, threshold=-1e6)

    class Answer:
        def release(self, total: Vector, bound: float, rng: Rng) -> Vector:
            at = PublicState(total, total, Known(gradient=0 * total))
            return total + size * measurement.measure(Given(np.zeros((size, len(total)))), at, 0, rng).value

    check_laplace(Answer(), NOISE, BOUND)
    rows = np.tile([[0.5, -0.25]], (size, 1))
    at = PublicState(np.zeros(2), np.zeros(2), Known(gradient=np.zeros(2)))
    clean = sparse(noise=0.0, answers=1).measure(Given(rows), at, 0, generator(0))
    np.testing.assert_allclose(clean.value, rows[0])


@pytest.mark.parametrize(("afterwards", "value"), [("public", 7.0), ("stop", 0.0)])
def test_when_no_answers_are_left_the_data_are_not_read_and_the_caller_says_what_is_answered(
    afterwards: str, value: float
) -> None:
    measurement = sparse(afterwards=afterwards)
    at = PublicState(np.zeros(1), np.zeros(1), Known(gradient=np.array([7.0])))
    noisy = measurement.measure(Unreadable(), at, 9, generator(0), {"left": 0, "noise_multiplier": NOISE})
    assert noisy.value == value
    assert noisy.event == NoOpDpEvent()


def test_a_public_gradient_that_is_right_is_used_and_one_that_is_wrong_is_not() -> None:
    rows = np.full((50_000, 1), 0.5)
    for public, private in ((0.5, False), (-0.5, True)):
        at = PublicState(np.zeros(1), np.zeros(1), Known(gradient=np.array([public])))
        noisy = sparse(threshold=20.0).measure(Given(rows), at, 0, generator(0))
        assert bool(noisy.value[0] != public) is private
        assert noisy.value[0] == pytest.approx(0.5, abs=0.01)


# ---------------------------------------------------------------- what is charged


def recipe(rounds: int = 12, answers: int = 3) -> Recipe:
    return Recipe(rounds, always(sparse(answers=answers, threshold=0.0)), sgd(0.1), side=public_gradient(Public()))


def test_comparisons_and_answers_are_charged_once_each_and_add_up_without_delta() -> None:
    event = recipe().planned_event()
    assert list(atoms(event)) == [(PureDpEvent(1 / NOISE), 3), (LaplaceDpEvent(NOISE), 3)]
    assert epsilon(event, 0.0) == pytest.approx(2 * 3 / NOISE)


def test_charging_both_kinds_is_never_dearer_than_twice_the_epsilon_per_paid_answer() -> None:
    doubled = [PureDpEvent(2 / NOISE)] * 3
    assert epsilon(recipe().planned_event(), 1e-5) <= epsilon(compose(doubled), 1e-5)


def test_everything_is_paid_before_the_data_are_first_read() -> None:
    ledger = Ledger()

    class Watching(Given):
        def __call__(self, parameters: Vector, rows: Rows) -> Materialized:
            assert ledger.event == recipe().planned_event()
            return super().__call__(parameters, rows)

    run(recipe(), Watching(np.ones((4, 1))), np.zeros(1), spending=ledger.run(), rng=generator(0))
    assert ledger.event == recipe().planned_event()


def test_a_run_never_gives_more_answers_than_it_paid_for(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[float] = []

    def release(self: laplace, total: Vector, bound: float, rng: Rng) -> Vector:
        given.append(bound)
        return total

    monkeypatch.setattr(laplace, "release", release)
    run(recipe(rounds=40), Given(np.ones((4, 1))), np.zeros(1), rng=generator(0))
    assert given == [BOUND] * 3


@pytest.mark.parametrize("sampler", [poisson(0.5), fixed_size(2, 12), disjoint_batches(2, key=1)], ids=str)
def test_sampling_around_a_sparse_vector_is_refused(sampler: Any) -> None:
    with pytest.raises(CompositionError, match="sampling around a sparse vector"):
        SparseVector(sampler, gradient() @ l1(1.0), NOISE, 3)


def test_other_wrong_compositions_are_refused_before_data_are_read() -> None:
    with pytest.raises(CompositionError, match="use l1"):
        SparseVector(full_batch(), gradient() @ l2(1.0), NOISE, 3)
    with pytest.raises(CompositionError, match="at least one"):
        sparse(answers=0)
    with pytest.raises(CompositionError, match="threshold is nan"):
        sparse(threshold=math.nan)
    with pytest.raises(CompositionError, match="'public' or 'stop'"):
        sparse(afterwards="pause")
    with pytest.raises(CompositionError, match="noise multiplier"):
        above_threshold(-1.0)


def test_a_sparse_vector_that_round_0_did_not_pay_for_is_refused() -> None:
    with pytest.raises(CompositionError, match="paid for in round 0"):
        sparse().measure(Unreadable(), HERE, 1, generator(0))
    paid = sparse().measure(Given(np.zeros((1, 1))), HERE, 0, generator(0)).carry
    with pytest.raises(CompositionError, match="paid for in round 0"):
        sparse(noise=NOISE / 2).measure(Unreadable(), HERE, 1, generator(0), paid)


def test_an_interrupted_run_keeps_its_hidden_threshold(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(privopt.loop, "DURABILITY", 1e9)  # saved in every round
    data, start = Given(np.array([[0.2, 0.1], [-0.3, 0.4], [0.1, -0.1]])), np.zeros(2)
    whole = run(recipe(), data, start, rng=generator(7))

    for after in (2, 5, 9, 99):
        checkpoint = Checkpoint(tmp_path / "checkpoint", "these data")
        with Ledger(path=tmp_path / "ledger") as ledger:
            name, rng = checkpoint.begin(ledger.run().name, generator(7))
            try:
                result = run(
                    recipe(), data, start, spending=ledger.run(name), rng=rng, checkpoint=checkpoint, progress=StopAt(after)
                )
            except Stopped:
                continue
    np.testing.assert_array_equal(result.parameters, whole.parameters)
    assert Ledger.read(tmp_path / "ledger").event == recipe().planned_event()
