"""Law 6 for noise that devices share: the sum carries the stated noise once, whoever answers."""

import math

import numpy as np
import pytest
from scipy import stats

from privopt.errors import CompositionError
from privopt.federated.nodes import FederatedOracle, NodesInProcess
from privopt.measure.clips import adaptive, l2
from privopt.measure.measurement import shared_noise
from privopt.measure.mechanisms import gaussian
from privopt.measure.queries import client_update, gradient
from privopt.measure.randomness import generator
from privopt.measure.samplers import full_batch, poisson
from privopt.privacy.events import GaussianDpEvent, PoissonSampledDpEvent
from privopt.state import PublicState
from tests.federated.federations import LOCAL, FaultyNodes, GivenUsers

SIZE, USERS, NOISE, BOUND = 4000, 6, 2.0, 0.5
FALSE_ALARM = 1e-6


class Silent(GivenUsers):
    """Users who contribute nothing, of a model with many parameters: what is left is noise."""

    def __init__(self, users: int) -> None:
        super().__init__([np.zeros(SIZE)] * users)


def deviation(nodes: object, sampler: object = full_batch()) -> float:
    """Of the noise on the sum, in clip bounds."""
    asked = shared_noise(sampler, client_update(LOCAL) @ l2(BOUND), NOISE)  # type: ignore[arg-type]
    oracle = FederatedOracle(nodes, SIZE)  # type: ignore[arg-type]
    value = asked.measure(oracle, PublicState(np.zeros(SIZE)), 0, generator(3)).value
    expected = sampler.expected(oracle.size)  # type: ignore[attr-defined]
    return float(np.sqrt(np.mean(value**2)) * expected / BOUND)


def plausible(found: float) -> bool:
    """Whether this deviation of so many numbers may be that of the stated noise, with a false alarm in a million."""
    low, high = stats.chi2.interval(1 - FALSE_ALARM, SIZE)
    return math.sqrt(low / SIZE) * NOISE <= found <= math.sqrt(high / SIZE) * NOISE


@pytest.mark.parametrize("missing", [{}, {0: None}, {0: None, 1: None, 2: None}], ids=["none", "one", "all"])
def test_the_sum_carries_the_stated_noise_whoever_answers(missing: dict[int, None]) -> None:
    assert plausible(deviation(FaultyNodes([Silent(1), Silent(2), Silent(3)], missing)))


def test_the_noise_does_not_depend_on_how_many_users_are_drawn() -> None:
    for probability in (0.1, 0.9):
        assert plausible(deviation(NodesInProcess([Silent(20), Silent(20)]), poisson(probability)))


def test_a_round_without_users_is_hidden_by_the_server() -> None:
    assert plausible(deviation(NodesInProcess([Silent(1)]), poisson(1e-9)))


def test_a_node_that_adds_half_of_its_share_is_told_by_this_test() -> None:
    """The violation: shares of half the deviation."""

    class Stingy(NodesInProcess):
        def ask(self, requests: object) -> object:  # type: ignore[override]
            from dataclasses import replace

            return super().ask({node: replace(one, deviation=one.deviation / 2) for node, one in requests.items()})  # type: ignore

    assert not plausible(deviation(Stingy([Silent(3), Silent(3)])))


def test_no_server_that_makes_up_for_nobody_passes() -> None:
    """The violation: a missing node's share is forgotten. Half of the users are missing, so the deviation is √½ of the stated."""

    class Forgetful(FaultyNodes):
        def ask(self, requests: object) -> object:  # type: ignore[override]
            replies = super().ask(requests)  # type: ignore[arg-type]
            from dataclasses import replace

            return {node: replace(reply, users=6) for node, reply in replies.items()}

    assert not plausible(deviation(Forgetful([Silent(3), Silent(3)], {0: None})))


def test_the_event_is_that_of_the_whole_noise() -> None:
    asked = shared_noise(poisson(0.25), client_update(LOCAL) @ l2(BOUND), NOISE)
    assert asked.event(0) == PoissonSampledDpEvent(0.25, GaussianDpEvent(NOISE))
    assert asked.event(0) == poisson(0.25).amplify(gaussian(NOISE).event, 0)


def test_what_devices_cannot_share_is_refused() -> None:
    with pytest.raises(CompositionError, match="fixed"):
        shared_noise(full_batch(), client_update(LOCAL) @ adaptive(1.0), NOISE)
    with pytest.raises(CompositionError, match="users' devices"):
        shared_noise(full_batch(), gradient() @ l2(1.0), NOISE)
    with pytest.raises(CompositionError, match="noise multiplier"):
        shared_noise(full_batch(), client_update(LOCAL) @ l2(1.0), -1.0)
