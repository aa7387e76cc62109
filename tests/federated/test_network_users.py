"""Users of a torch model: local steps are torch's own, and nothing of a user stays in the model."""

import numpy as np
import pytest

pytest.importorskip("torch", reason="networks need torch")

import torch
from torch import nn

from privopt.federated import (
    FederatedSettings,
    LocalSteps,
    NetworkUsers,
    NodesInProcess,
    assign_parameters,
    flat_parameters,
    group_rows,
    network_facts,
    train_federation,
)
from privopt.perexample.grads import Vector
from privopt.privacy.budget import Budget
from privopt.training.session import Session

LOCAL = LocalSteps(steps=4, learning_rate=0.2, batch_size=3)


def rows(users: int = 6, each: int = 5) -> tuple[torch.Tensor, torch.Tensor, list[Vector]]:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(users * each, 4, generator=generator)
    return inputs, (inputs[:, 0] > 0).long(), group_rows(np.repeat(np.arange(users), each))


def network(*more: nn.Module) -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 5), *more, nn.Tanh(), nn.Linear(5, 2))


def test_local_steps_are_those_of_torch_s_sgd() -> None:
    inputs, targets, groups = rows()
    model, other = network(), network()
    start = flat_parameters(model)
    found = NetworkUsers(model, nn.CrossEntropyLoss(), inputs, targets, groups).change(start, 2, LOCAL, None).values
    optimizer = torch.optim.SGD(other.parameters(), lr=0.2)
    for batch in LOCAL.batches(5, start):
        optimizer.zero_grad()
        nn.functional.cross_entropy(other(inputs[groups[2][batch]]), targets[groups[2][batch]]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    np.testing.assert_allclose(found, start - flat_parameters(other), atol=1e-6)


def test_a_scale_divides_the_steps() -> None:
    inputs, targets, groups = rows()
    model = network()
    start, one = flat_parameters(model), LocalSteps(1, 0.2, 8)
    users = NetworkUsers(model, nn.CrossEntropyLoss(), inputs, targets, groups)
    scale = np.linspace(0.5, 4.0, len(start))
    np.testing.assert_allclose(
        users.change(start, 0, one, scale).values, users.change(start, 0, one, None).values / scale, atol=1e-6
    )


@pytest.mark.parametrize("layer", [nn.BatchNorm1d(5), nn.Dropout(0.5)], ids=repr)
def test_a_user_leaves_nothing_behind_and_a_replay_repeats_itself(layer: nn.Module) -> None:
    """Rows of one user may meet; those of two users do not, and random numbers are those of the round."""
    inputs, targets, groups = rows()
    users = NetworkUsers(network(layer), nn.CrossEntropyLoss(), inputs, targets, groups)
    start = flat_parameters(network(layer))
    first = users.change(start, 0, LOCAL, None).values
    users.change(start, 1, LOCAL, None)
    np.testing.assert_array_equal(users.change(start, 0, LOCAL, None).values, first)


def test_users_without_rows_change_nothing() -> None:
    inputs, targets, groups = rows()
    users = NetworkUsers(network(), nn.CrossEntropyLoss(), inputs, targets, [*groups, np.array([], dtype=int)])
    assert not users.change(flat_parameters(network()), len(groups), LOCAL, None).values.any()


def test_a_federated_network_learns() -> None:
    inputs, targets, groups = rows(users=80, each=6)
    model = network()
    nodes = NodesInProcess(
        [NetworkUsers(network(), nn.CrossEntropyLoss(), inputs, targets, groups[part::2]) for part in (0, 1)], seed=0
    )
    session = Session(Budget(40.0, 1e-3, unit="user"), 80, seed=0)
    facts = network_facts(model, nn.CrossEntropyLoss(), inputs[:1])
    released, statement = train_federation(nodes, flat_parameters(model), facts, FederatedSettings(rounds=10), session)
    assign_parameters(model, released.parameters)
    assert float((model(inputs).argmax(1) == targets).float().mean()) > 0.8
    assert statement.epsilon <= 40
