"""Laws 1 and 2 for users: one user, with any rows, moves a round by at most the bound; the divisor is the expected number."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from privopt.errors import CompositionError
from privopt.federated.nodes import FederatedOracle, NodesInProcess, Reply, Request, answer
from privopt.measure.clips import automatic, l2, per_layer
from privopt.measure.measurement import Measurement
from privopt.measure.mechanisms import gaussian
from privopt.measure.queries import client_update, gradient
from privopt.measure.randomness import generator
from privopt.measure.samplers import full_batch, poisson
from privopt.measure.units import each_user
from privopt.perexample.losses import Logistic
from privopt.perexample.user_vectors import LinearUsers, LocalSteps, group_rows
from privopt.state import PublicState
from tests.federated.federations import LOCAL, FaultyNodes, GivenUsers, linear_users, oracle

ANY = st.one_of(
    st.lists(st.floats(-1e3, 1e3), min_size=3, max_size=3),
    st.lists(st.floats(width=64), min_size=3, max_size=3),  # NaN, infinite, tiny and huge, too
    st.just(ValueError("of this user only")),
)
AT = PublicState(np.zeros(3))


def total(vectors: list[Any], clip: Any) -> Any:
    federation = FederatedOracle(NodesInProcess([GivenUsers(vectors)]), 3)
    return federation.changes(np.zeros(3), None, LOCAL, None).clipped_sum(clip)


@pytest.mark.parametrize("clip", [l2(1.0), l2(0.0), automatic(1.0)], ids=repr)
@given(vectors=st.lists(ANY, min_size=2, max_size=6), place=st.integers(0, 5))
def test_removing_one_user_moves_the_sum_by_at_most_the_bound(clip: Any, vectors: list[Any], place: int) -> None:
    place %= len(vectors)
    without = vectors[:place] + vectors[place + 1 :]
    moved = np.linalg.norm(total(vectors, clip) - total(without, clip))
    assert moved <= clip.bound * (1 + 1e-9)


@pytest.mark.parametrize("sampler", [full_batch(), poisson(0.5)], ids=repr)
def test_the_server_s_noisy_mean_hides_any_one_user(sampler: Any) -> None:
    """With the same coins and noise, and any one user's vector gone, turned or broken, it moves by 1/z of its noise at most."""
    z, bound = 2.0, 0.3
    asked = Measurement(sampler, [client_update(LOCAL) @ l2(bound)], gaussian(z), unit=each_user())
    vectors: list[Any] = list(np.random.default_rng(0).standard_normal((9, 3)))

    def noisy(vectors: list[Any], seed: int) -> Any:
        nodes = NodesInProcess([GivenUsers(vectors[:4]), GivenUsers(vectors[4:])])
        return asked.measure(FederatedOracle(nodes, 3), AT, 0, generator(seed)).value

    for user in range(9):
        for other in (np.zeros(3), np.full(3, np.nan), ValueError("of this user only")):
            neighbour = [*vectors[:user], other, *vectors[user + 1 :]]
            assert np.linalg.norm(noisy(vectors, user) - noisy(neighbour, user)) <= bound / sampler.expected(9) * (1 + 1e-9)
    nobody = np.array([noisy([np.zeros(3)] * 9, seed) for seed in range(300)]) / (z * bound / sampler.expected(9))
    low, high = stats.chi2(nobody.size).ppf([1e-6, 1 - 1e-6])
    assert low < np.square(nobody).sum() < high


def test_a_user_with_a_thousand_rows_moves_the_sum_no_further_than_one_with_one_row() -> None:
    rng = np.random.default_rng(0)
    ids = np.array([0] * 1000 + [1])
    users = LinearUsers(1e6 * rng.standard_normal((1001, 2)), np.ones(1001), group_rows(ids), Logistic(), intercept=0.0)
    request = Request(np.zeros(2), None, LOCAL, l2(0.5), np.array([0]))
    assert np.linalg.norm(answer(users, request).total) <= 0.5 * (1 + 1e-9)


def test_a_user_s_time_does_not_grow_with_its_rows() -> None:
    """As many rows are used of a user with many as of any other: else a slow user would take its node along."""
    batches = LOCAL.batches(10**6, np.ones(3))
    assert [len(batch) for batch in batches] == [LOCAL.batch_size] * LOCAL.steps
    assert LOCAL.batches(10**6, np.ones(3))[0].tolist() == batches[0].tolist()
    assert LOCAL.batches(10**6, np.zeros(3))[0].tolist() != batches[0].tolist()


@pytest.mark.parametrize("sampler", [full_batch(), poisson(0.5)], ids=repr)
def test_a_mean_divides_by_the_expected_number_of_users(sampler: Any) -> None:
    users = GivenUsers([np.ones(3) / 10] * 8)
    federation = FederatedOracle(NodesInProcess([users]), 3)
    asked = Measurement(sampler, [client_update(LOCAL) @ l2(1.0)], gaussian(0.0), unit=each_user())
    drawn = sampler.draw(8, 0, generator(1))
    count = 8 if drawn is None else len(drawn)
    found = asked.measure(federation, AT, 0, generator(1)).value
    np.testing.assert_allclose(found, count / 10 / sampler.expected(8))


def test_a_node_that_is_missing_is_not_made_up_for() -> None:
    """A divisor of those who answered would let one user decide how much the others count."""
    nodes = FaultyNodes([GivenUsers([np.ones(3) / 10] * 4), GivenUsers([np.ones(3) / 10] * 4)], {1: None})
    asked = Measurement(full_batch(), [client_update(LOCAL) @ l2(1.0)], gaussian(0.0), unit=each_user())
    np.testing.assert_allclose(asked.measure(FederatedOracle(nodes, 3), AT, 0, generator(0)).value, 4 / 10 / 8)


FAULTS = {
    "not finite": (lambda reply: replace(reply, total=np.full(3, np.nan)), "not finite"),
    "huge": (lambda reply: replace(reply, total=np.full(3, 1e9)), "longer"),
    "another shape": (lambda reply: replace(reply, total=np.zeros(4)), "shape"),
    "more users": (lambda reply: replace(reply, users=reply.users + 1), "speaks for"),
    "wrong count": (lambda reply: replace(reply, within=reply.users + 1), "counts"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_answer_counts_as_no_answer(fault: str) -> None:
    change, why = FAULTS[fault]
    honest = [GivenUsers([np.ones(3) / 10] * 4), GivenUsers([np.ones(3) / 10] * 4)]
    nodes = FaultyNodes(honest, {0: change})
    found = FederatedOracle(nodes, 3).changes(np.zeros(3), None, LOCAL, None).clipped_sum(l2(1.0))
    np.testing.assert_allclose(found, 0.4)
    assert why in nodes.refused[0]


def test_a_node_s_sum_is_bounded_by_what_its_users_may_contribute() -> None:
    """A node that does not clip is found out when its sum is longer than its users could make it."""
    request = Request(np.zeros(3), None, LOCAL, l2(1.0), np.arange(4))
    assert Reply(np.array([4.0, 0, 0]), 4, 4).find_fault(request) is None
    assert Reply(np.array([4.01, 0, 0]), 4, 4).find_fault(request) is not None


@pytest.mark.parametrize("drawn", [[], [0], [0, 5], range(9)], ids=len)
def test_which_nodes_are_asked_does_not_tell_who_was_drawn(drawn: Any) -> None:
    """Sampling hides a user only while the draw is secret; who answers shows in progress, in logs, and in when a run stops."""
    honest = NodesInProcess([GivenUsers([np.ones(3)] * 4), GivenUsers([]), GivenUsers([np.ones(3)] * 5)])
    asked = []

    class Watched:
        sizes = honest.sizes

        def ask(self, requests: Any) -> Any:
            asked.append(set(requests))
            return honest.ask(requests)

    found = FederatedOracle(Watched(), 3).changes(np.zeros(3), np.array(drawn, dtype=int), LOCAL, None).clipped_sum(l2(10.0))
    assert asked == [{0, 2}]
    np.testing.assert_allclose(found, len(drawn))


def test_a_node_that_is_away_moves_an_adaptive_bound_to_neither_side() -> None:
    """Its users are as if they had not been drawn: a count of them among the long ones would let the bound grow without end."""
    nodes = [GivenUsers([np.ones(3)] * 4), GivenUsers([np.ones(3)] * 4)]
    for short, bound in ((4, 2.0), (0, 1.0)):
        away = FederatedOracle(FaultyNodes(nodes, {1: None}), 3).changes(np.zeros(3), None, LOCAL, None)
        assert away.count_within(bound) - 8 / 2 == short - 4 / 2


def test_answers_do_not_depend_on_how_users_are_numbered_through() -> None:
    federation = oracle()
    everyone = federation.changes(np.zeros(4), None, LOCAL, None).clipped_sum(l2(0.5))
    parts = [
        federation.changes(np.zeros(4), np.array(users), LOCAL, None).clipped_sum(l2(0.5)) for users in ([0, 7, 11], [3], [])
    ]
    rest = [user for user in range(12) if user not in (0, 3, 7, 11)]
    parts.append(federation.changes(np.zeros(4), np.array(rest), LOCAL, None).clipped_sum(l2(0.5)))
    np.testing.assert_allclose(sum(parts), everyone)


def test_a_query_of_users_is_refused_with_the_unit_of_rows_and_the_other_way_round() -> None:
    with pytest.raises(CompositionError, match="Use unit=each_user"):
        Measurement(full_batch(), [client_update(LOCAL) @ l2(1.0)], gaussian(1.0))
    with pytest.raises(CompositionError, match="Use unit=each_row"):
        Measurement(full_batch(), [gradient() @ l2(1.0)], gaussian(1.0), unit=each_user())


def test_a_clip_that_cannot_be_sent_is_refused() -> None:
    with pytest.raises(CompositionError, match="cannot be sent"):
        oracle().changes(np.zeros(4), None, LOCAL, None).clipped_sum(per_layer({"": 1.0}))


@pytest.mark.parametrize("wrong", [{"steps": 0}, {"batch_size": 0}, {"learning_rate": 0.0}, {"learning_rate": float("nan")}])
def test_local_steps_are_validated(wrong: dict[str, Any]) -> None:
    with pytest.raises(CompositionError):
        LocalSteps(**({"steps": 1, "learning_rate": 0.1, "batch_size": 1} | wrong))


def test_users_without_usable_rows_contribute_nothing() -> None:
    matrix = np.array([[np.nan, 1.0], [1.0, 1.0], [np.inf, 1.0]])
    users = LinearUsers(matrix, np.array([1.0, np.nan, 1.0]), group_rows(np.array([0, 1, 2])), Logistic(), intercept=1.0)
    reply = answer(users, Request(np.zeros(3), None, LOCAL, l2(1.0), np.arange(3)))
    assert not reply.total.any()
    assert linear_users().size == 12
