"""Selection: what it pays, when it pays, what it lets out, and what it refuses."""

import numpy as np
import pytest
from scipy import stats

from privopt.errors import BudgetExceeded, CompositionError
from privopt.measure.mechanisms import gaussian, laplace
from privopt.measure.randomness import Rng, generator
from privopt.measure.samplers import poisson
from privopt.measure.selection import best_of_geometric, costs_at_most
from privopt.privacy.accountants import epsilon
from privopt.privacy.budget import Budget
from privopt.privacy.events import DpEvent, GaussianDpEvent, LaplaceDpEvent, NonPrivateDpEvent, RepeatAndSelectDpEvent, compose
from privopt.privacy.ledger import Ledger

SELECTION = best_of_geometric(6.0, 3.0)


def honest(candidate: int, spent: Ledger, rng: Rng) -> tuple[float, float]:
    """A trial that spends all that it may on one answer, which is its score as well."""
    spent.run().pay([gaussian(3.0).event])
    answer = float(gaussian(3.0).release(np.array([float(candidate)]), 1.0, rng)[0])
    return answer, answer


def test_a_selection_is_paid_before_its_first_trial_and_once() -> None:
    ledger = Ledger()

    def trial(candidate: int, spent: Ledger, rng: Rng) -> tuple[float, float]:
        assert [entry.event for entry in ledger.entries] == [SELECTION.event]
        return honest(candidate, spent, rng)

    SELECTION.release(3, trial, spending=ledger.run(), rng=generator(0))
    assert ledger.event == RepeatAndSelectDpEvent(GaussianDpEvent(3.0), 6.0, 1.0)


def test_a_ledger_that_cannot_hold_a_selection_sees_no_trial() -> None:
    ledger = Ledger(Budget(0.1, 1e-5))
    with pytest.raises(BudgetExceeded):
        SELECTION.release(3, lambda *_: pytest.fail("a trial was made"), spending=ledger.run(), rng=generator(0))
    assert not ledger.entries


def test_the_trial_with_the_best_score_is_released() -> None:
    made: list[tuple[float, float]] = []

    def trial(candidate: int, spent: Ledger, rng: Rng) -> tuple[float, float]:
        made.append(honest(candidate, spent, rng))
        return made[-1]

    for seed in range(50):
        made.clear()
        _, score, result = SELECTION.release(3, trial, spending=Ledger().run(), rng=generator(seed))
        assert score == result == max(made)[0]


def test_trials_are_geometric_and_candidates_uniform() -> None:
    """20,000 selections; each bound is six standard deviations wide."""
    counts, drawn = list[int](), np.zeros(4)

    def trial(candidate: int, spent: Ledger, rng: Rng) -> tuple[float, None]:
        counts[-1] += 1
        drawn[candidate] += 1
        return 0.0, None

    rng, runs = generator(5), 20_000
    for _ in range(runs):
        counts.append(0)
        SELECTION.release(4, trial, spending=Ledger().run(), rng=rng)
    stop = 1 / 6
    for number in (1, 2, 5):
        expected = stop * (1 - stop) ** (number - 1)
        assert abs(np.mean(np.array(counts) == number) - expected) < 6 * np.sqrt(expected / runs)
    assert abs(np.mean(counts) - 6) < 6 * np.sqrt(30 / runs)
    assert np.abs(drawn / drawn.sum() - 0.25).max() < 6 * np.sqrt(0.25 / drawn.sum())


@pytest.mark.parametrize(
    "spent",
    [
        [GaussianDpEvent(2.9)],
        [GaussianDpEvent(4.0), GaussianDpEvent(4.0)],
        [LaplaceDpEvent(1e6)],
        [poisson(0.1).amplify(GaussianDpEvent(1e6), 0)],
        [NonPrivateDpEvent()],
        [GaussianDpEvent(0.0)],
    ],
    ids=str,
)
def test_a_trial_that_costs_more_or_otherwise_releases_nothing(spent: list[DpEvent]) -> None:
    def greedy(candidate: int, ledger: Ledger, rng: Rng) -> tuple[float, str]:
        ledger.run().pay(spent)
        return 0.0, "result"

    ledger = Ledger()
    with pytest.raises(CompositionError, match="nothing is released"):
        SELECTION.release(2, greedy, spending=ledger.run(), rng=generator(0))
    assert ledger.event == SELECTION.event  # and it is spent


def test_a_trial_that_costs_less_is_covered() -> None:
    assert costs_at_most(compose([GaussianDpEvent(6.0)] * 4), 3.0)
    assert costs_at_most(compose([]), 3.0)
    assert not costs_at_most(laplace(5.0).event, 3.0)


@pytest.mark.parametrize("arguments", [(1.0, 3.0), (0.5, 3.0), (float("nan"), 3.0), (4.0, -1.0)])
def test_a_selection_that_cannot_be_is_refused(arguments: tuple[float, float]) -> None:
    with pytest.raises(CompositionError, match="mean number of trials"):
        best_of_geometric(*arguments)
    with pytest.raises(CompositionError, match="nothing to select from"):
        SELECTION.release(1, honest, spending=Ledger().run(), rng=generator(0))


@pytest.mark.parametrize("neighbours", ["add-remove", "replace-one"])
@pytest.mark.parametrize("noise", [2.0, 8.0])
def test_the_price_is_that_of_the_theorem(noise: float, neighbours: str) -> None:
    """Papernot and Steinke's formula for Gaussian trials, and the conversion of Canonne, Kamath and Steinke, written out."""
    mean, delta, sensitivity = 6.0, 1e-5, 2.0 if neighbours == "replace-one" else 1.0
    orders = np.concatenate([np.linspace(1.01, 10, 2000), np.linspace(10, 500, 5000)])
    trial = orders * sensitivity**2 / (2 * noise**2)
    other = np.min((1 - 1 / orders) * trial + np.log(mean) / orders)
    divergence = trial + 2 * other + np.log(mean) / (orders - 1)
    bound = divergence + np.log1p(-1 / orders) - np.log(delta * orders) / (orders - 1)
    claimed = epsilon(best_of_geometric(mean, noise).event, delta, neighbours)  # type: ignore[arg-type]
    assert bound.min() * 0.999 <= claimed <= 1.02 * bound.min()


def test_a_selection_costs_more_than_a_trial_and_less_than_all_of_them() -> None:
    for mean in (2.0, 6.0, 20.0, 200.0):
        selected = epsilon(best_of_geometric(mean, 8.0).event, 1e-6)
        assert epsilon(GaussianDpEvent(8.0), 1e-6) < selected < 4 * epsilon(GaussianDpEvent(8.0), 1e-6)


# ---------------------------------------------------------------- exact distributions of what leaves


def _leaks(present: np.ndarray, absent: np.ndarray, claimed: float, delta: float) -> bool:
    """Whether some outcome of a finite distribution refutes (claimed, δ): the hockey-stick divergence, in both directions."""
    return any(
        float(np.maximum(one - np.exp(claimed) * other, 0).sum()) > delta for one, other in ((present, absent), (absent, present))
    )


def _best_is_good(good: np.ndarray, mean: float) -> np.ndarray:
    """The probability that the best of a geometric number of trials is good, if each is with these probabilities."""
    return 1 - (1 - good) / mean / (1 - (1 - 1 / mean) * (1 - good))


@pytest.mark.parametrize("mean", [2.0, 6.0, 60.0])
@pytest.mark.parametrize("noise", [0.7, 2.0, 6.0])
def test_the_exact_distribution_of_what_leaves_keeps_the_claim(mean: float, noise: float) -> None:
    """Trials that release their score, whose largest has a distribution in closed form; and trials that only say "good"."""
    grid = np.linspace(-12 * noise, 12 * noise + 1, 20_001)
    sides = [stats.norm.cdf(grid, canary, noise) for canary in (0.0, 1.0)]
    for delta in (1e-6, 1e-3):
        claimed = epsilon(best_of_geometric(mean, noise).event, delta)
        largest = [np.diff(cdf / mean / (1 - (1 - 1 / mean) * cdf), prepend=0.0, append=1.0) for cdf in sides]
        assert not _leaks(largest[0], largest[1], claimed, delta)
        assert _leaks(largest[0], largest[1], claimed / 4, delta) or mean == 60.0
        for one, other in zip(1 - sides[0], 1 - sides[1], strict=True):
            good, rather = (_best_is_good(np.array([share]), mean) for share in (one, other))
            assert not _leaks(np.append(good, 1 - good), np.append(rather, 1 - rather), claimed, delta)


def test_a_fixed_number_of_trials_would_break_the_claim() -> None:
    """With 300 trials, no more and no fewer, whether one of them is good says more than what 300 on average cost."""
    delta, noise, trials = 1e-6, 6.0, 300
    claimed = epsilon(best_of_geometric(trials, noise).event, delta)
    found = False
    for threshold in np.linspace(0, 30, 121):
        sides = [1 - stats.norm.cdf(threshold, canary, noise) ** trials for canary in (0.0, 1.0)]
        found |= _leaks(*(np.array([good, 1 - good]) for good in sides), claimed, delta)  # type: ignore[call-arg, arg-type]
    assert found
