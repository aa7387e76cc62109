"""The oracle: rows, chunks, bad examples, and the points it is asked at."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from privopt.errors import CompositionError, InputError
from privopt.measure.clips import l2
from privopt.nets import clipped_sum, per_example_norms
from privopt.perexample.networks import (
    ChunkedGrads,
    FlatParameters,
    Layout,
    TorchGrads,
    TorchOracle,
    UnsupportedLoss,
    per_example,
    per_example_gradients,
)
from privopt.perexample.networks.torch_grads import cut
from tests.perexample.networks.models import normal
from tests.perexample.networks.reference import assert_grads, one_at_a_time


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(5, 6), nn.ReLU(inplace=True), nn.Unflatten(1, (2, 3)), nn.Linear(3, 3), nn.Flatten(), nn.Linear(6, 3)
    )


def examples(count: int = 8) -> tuple[Tensor, Tensor]:
    return normal(count, 5), torch.arange(count) % 3


def entropy(output: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(output, targets.long(), reduction="none")


def reference(rows: list[int]) -> Tensor:
    inputs, targets = examples()
    return one_at_a_time(network(), inputs[rows], targets[rows], entropy)


@pytest.mark.parametrize("rows", [None, [0, 3, 3, 7], [2], []], ids=str)
@pytest.mark.parametrize("chunk", [None, 1, 3, 100])
def test_rows_in_chunks_are_rows(rows: list[int] | None, chunk: int | None) -> None:
    oracle = TorchOracle(network(), nn.CrossEntropyLoss(), *examples(), chunk=chunk)
    grads = oracle(oracle.flat.vector, None if rows is None else np.array(rows, dtype=int))
    wanted = reference(list(range(8)) if rows is None else rows)
    torch.testing.assert_close(grads.norms().double(), wanted.norm(dim=1), rtol=1e-5, atol=0)
    torch.testing.assert_close(grads.norms(1).double(), wanted.abs().sum(1), rtol=1e-5, atol=0)
    weights = torch.linspace(0, 1, len(wanted))
    torch.testing.assert_close(grads.weighted_sum(weights.numpy()).double(), weights.double() @ wanted, rtol=1e-5, atol=1e-6)
    clipped = (wanted * torch.clamp(0.1 / wanted.norm(dim=1), max=1)[:, None]).sum(0)
    start = torch.ones(len(clipped))
    torch.testing.assert_close(grads.clipped_sum(l2(0.1), out=start).double(), 1 + clipped, rtol=1e-5, atol=1e-6)


def test_a_dataset_is_read_when_rows_are_drawn() -> None:
    oracle = TorchOracle.of_dataset(network(), nn.CrossEntropyLoss(), TensorDataset(*examples()))
    assert oracle.size == 8
    found = oracle(None, np.array([1, 4]))
    assert isinstance(found, TorchGrads)
    assert_grads(found, reference([1, 4]))
    assert oracle(None, np.array([], dtype=int)).norms().shape == (0,)


@pytest.mark.parametrize("chunk", [None, 3])
@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e30])
def test_an_example_that_is_not_finite_is_left_out(bad: float, chunk: int | None) -> None:
    inputs, targets = examples()
    inputs[2, 1] = bad
    oracle = TorchOracle(network(), nn.CrossEntropyLoss(), inputs, targets, chunk=chunk)
    total = oracle(None, None).clipped_sum(l2(0.1))
    rest = reference([0, 1, 3, 4, 5, 6, 7])
    wanted = (rest * torch.clamp(0.1 / rest.norm(dim=1), max=1)[:, None]).sum(0)
    assert torch.isfinite(total).all()
    assert float((total.double() - wanted).norm()) <= (1e-6 if bad != 1e30 else 0.1 + 1e-6)  # huge may be clipped or left out
    weights = torch.ones(8)
    weights[2] = 0
    torch.testing.assert_close(oracle(None, None).weighted_sum(weights).double(), rest.sum(0), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("chunk", "sizes"), [(1, [1] * 8), (3, [2, 3, 3]), (5, [4, 4]), (7, [4, 4]), (8, [8])])
def test_no_chunk_is_larger_than_asked_for_and_none_is_a_small_rest(chunk: int, sizes: list[int]) -> None:
    asked: list[int] = []

    def compute(start: int, stop: int) -> TorchGrads:
        asked.append(stop - start)
        return TorchGrads(layout, {}, stop - start)

    layout = Layout(network())
    ChunkedGrads(compute, cut(8, chunk), layout).norms()
    assert asked == sizes


@pytest.mark.parametrize("chunk", [None, 3])
def test_differences_between_two_points(chunk: int | None) -> None:
    oracle = TorchOracle(network().double(), nn.CrossEntropyLoss(), examples()[0].double(), examples()[1], chunk=chunk)
    here = oracle.flat.vector.clone()
    there = here + 1e-6 * torch.randn(len(here), dtype=torch.float64)
    first, second = oracle(here, None), oracle(there, None)
    if isinstance(first, ChunkedGrads):
        assert isinstance(second, ChunkedGrads)
        norms = first.minus(second, 1.0).scaled(2 + 0 * here).norms()
    else:
        assert isinstance(second, TorchGrads)
        norms = first.minus(second, 1.0).scaled(2 + 0 * here).norms()
    model = network().double()
    flat = FlatParameters(model)
    one = one_at_a_time(model, examples()[0].double(), examples()[1], entropy)
    flat.assign(there)
    other = one_at_a_time(model, examples()[0].double(), examples()[1], entropy)
    torch.testing.assert_close(norms, 2 * (one - other).norm(dim=1), rtol=1e-6, atol=0)


@pytest.mark.parametrize("distance", [1e-1, 1e-3, 1e-4, 1e-6])
def test_a_difference_of_close_points_has_the_norm_of_its_vectors(distance: float) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 30), nn.Tanh(), nn.Linear(30, 4))
    inputs, targets = normal(16, 20), torch.arange(16) % 4
    first = per_example_gradients(model, nn.CrossEntropyLoss(), inputs, targets)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1 + distance * torch.randn_like(parameter))
    second = per_example_gradients(model, nn.CrossEntropyLoss(), inputs, targets)
    change = first.minus(second)
    wanted = change.dense().double().norm(dim=1)  # what a weighted sum would add: float32 itself limits a and δ
    torch.testing.assert_close(change.norms().double(), wanted, rtol=1e-5, atol=0)


def test_a_shift_that_nearly_cancels_is_exact() -> None:
    inputs, targets = examples()
    grads = per_example_gradients(network(), nn.CrossEntropyLoss(), inputs, targets)
    vectors = grads.dense()
    norms = grads.shifted(vectors[3], -0.9999).norms()
    torch.testing.assert_close(norms, (vectors - 0.9999 * vectors[3]).norm(dim=1), rtol=1e-4, atol=0)


def test_chunks_with_dropout_are_the_same_when_computed_again() -> None:
    model = nn.Sequential(nn.Linear(5, 20), nn.Dropout(0.5), nn.Linear(20, 3))
    grads = TorchOracle(model, nn.CrossEntropyLoss(), *examples(), chunk=3)(None, None)
    assert isinstance(grads, ChunkedGrads)
    weights = torch.ones(8)
    torch.testing.assert_close(grads.weighted_sum(weights), grads.weighted_sum(weights))


def test_layer_norms_and_weights_by_layer() -> None:
    inputs, targets = examples()
    grads = per_example_gradients(network(), nn.CrossEntropyLoss(), inputs, targets)
    norms = grads.layer_norms()
    torch.testing.assert_close(torch.stack(list(norms.values())).norm(dim=0), grads.norms())
    total = grads.weighted_sum({name: l2(0.01).factors(values) for name, values in norms.items()})
    assert float(total.norm()) <= 8 * 0.01 * len(norms) ** 0.5 + 1e-6


def test_low_level_functions() -> None:
    model, (inputs, targets) = network(), examples()
    wanted = reference(list(range(8)))
    torch.testing.assert_close(
        per_example_norms(model, nn.CrossEntropyLoss(), inputs, targets).double(), wanted.norm(dim=1), rtol=1e-5, atol=0
    )
    for chunk in (None, 3):
        sums = clipped_sum(model, nn.CrossEntropyLoss(), inputs, targets, clip_bound=0.1, chunk=chunk)
        assert list(sums) == [name for name, _ in model.named_parameters()]
        total = torch.cat([value.reshape(-1) for value in sums.values()]).double()
        clipped = (wanted * torch.clamp(0.1 / wanted.norm(dim=1), max=1)[:, None]).sum(0)
        torch.testing.assert_close(total, clipped, rtol=1e-5, atol=1e-6)
    assert all(not value.any() for value in clipped_sum(model, entropy, inputs, targets, clip_bound=0.0).values())


def test_losses_of_torch_give_one_value_for_each_example() -> None:
    output, target = normal(4, 3, 5), normal(4, 3, 5)
    torch.testing.assert_close(per_example(nn.MSELoss())(output, target), ((output - target) ** 2).mean((1, 2)))
    torch.testing.assert_close(per_example(nn.L1Loss(reduction="sum"))(output, target), (output - target).abs().sum((1, 2)))
    classes = torch.tensor([[0, 1, 2, -100, 1]]).expand(4, 5)
    wanted = torch.stack([nn.functional.cross_entropy(output[i : i + 1], classes[i : i + 1]) for i in range(4)])
    torch.testing.assert_close(per_example(nn.CrossEntropyLoss())(output, classes), wanted)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_the_loss_of_alignments_is_torchs(reduction: str) -> None:
    output, lengths = normal(9, 4, 5).log_softmax(2), torch.tensor([2, 3, 1, 0])
    given = (torch.ones(4, 3, dtype=torch.long), torch.full((4,), 9), lengths)
    found = per_example(nn.CTCLoss(reduction=reduction))(output, *given)
    wanted = nn.CTCLoss(reduction=reduction)(output, *given)
    torch.testing.assert_close({"mean": found.mean(), "sum": found.sum(), "none": found}[reduction], wanted)


def test_a_loss_that_averages_over_the_batch_is_refused() -> None:
    with pytest.raises(UnsupportedLoss, match="one value for each example"):
        TorchOracle(network(), nn.functional.cross_entropy, *examples())
    with pytest.raises(UnsupportedLoss, match="reduction='batchmean'"):
        per_example(nn.KLDivLoss(reduction="batchmean"))


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(InputError, match="one row for each example"):
        TorchOracle(network(), nn.CrossEntropyLoss(), normal(4, 5), torch.zeros(5, dtype=torch.long))
    grads = per_example_gradients(network(), nn.CrossEntropyLoss(), *examples())
    with pytest.raises(CompositionError, match="8 weights"):
        grads.weighted_sum([1.0])
    with pytest.raises(CompositionError, match="order 3"):
        grads.norms(3)
    with pytest.raises(CompositionError, match="same examples"):
        grads.minus(grads.take(torch.arange(3)))
    with pytest.raises(CompositionError, match="numbers is needed"):
        grads.scaled(torch.ones(3))


def test_without_clipping_a_step_is_that_of_torch() -> None:
    model, twin = network(), network()
    oracle = TorchOracle(model, nn.CrossEntropyLoss(), *examples())
    optimizer = torch.optim.SGD(twin.parameters(), 0.5)
    for _ in range(5):
        theta = oracle.flat.vector
        theta.add_(oracle(theta, None).weighted_sum(torch.ones(8)), alpha=-0.5 / 8)
        optimizer.zero_grad()
        torch.autograd.backward(nn.functional.cross_entropy(twin(examples()[0]), examples()[1]))
        optimizer.step()
    for mine, its in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine, its, rtol=1e-4, atol=1e-5)
