"""Terms that all but cancel: an example that is huge on the way to a small gradient moves a sum by its gradient, and no more."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from privopt.measure.clips import l2
from privopt.perexample.grads import clip_weights
from privopt.perexample.networks import TorchGrads, per_example_gradients
from privopt.perexample.networks.factors import Factor, Outer, Signal, Sum, Term, outer
from privopt.perexample.networks.layers.conv import Patches
from privopt.perexample.networks.layers.embedding import Lookup
from tests.perexample.networks.models import Uses, normal

HUGE = 2.0**40
WAYS = {"Gram": (10**9, 0), "formed and dropped": (0, 0), "formed and kept": (0, 10**9)}


def opposed(*shape: int) -> tuple[Tensor, Tensor]:
    """a and δ in time: the last two steps of example 2 are P and −P, and cancel but for the steps before."""
    inputs, gradients = normal(*shape), normal(*shape).roll(1, 1)
    inputs[2, -2:] = HUGE
    gradients[2, -2], gradients[2, -1] = 1.0, -1.0
    return inputs, gradients


def moments() -> Outer:
    inputs, gradients = opposed(5, 3, 6)
    terms = [Term(Signal(a.unsqueeze(1)), d.unsqueeze(1)) for a, d in zip(inputs.unbind(1), gradients.unbind(1), strict=True)]
    return Outer(terms, torch.Size((6, 6)))


def groups() -> Outer:
    inputs, gradients = opposed(10, 3, 4)
    return Outer([Term(Signal(inputs), gradients)], torch.Size((8, 4)), groups=2)


def patches() -> Outer:
    images, gradients = normal(5, 3, 8), normal(5, 6, 4)
    images[2], gradients[2] = HUGE, torch.tensor([1.0, -1.0]).repeat(3).unsqueeze(1)
    return Outer([Term(Patches(images, (3,), (1,), (0,), (1,), 1, (6,)), gradients)], torch.Size((4, 3, 3)))


def lookup(inputs: Tensor, ids: Tensor) -> Lookup:
    owners = torch.arange(len(inputs)).repeat_interleave(inputs.shape[1])
    return Lookup(owners, ids.reshape(-1), inputs.flatten(0, 1), len(inputs), torch.Size((4, 6)))


def entries() -> Lookup:
    inputs, signs = opposed(5, 3, 6)
    signs[2] = torch.tensor([1.0, 1.0, -1.0]).unsqueeze(1)
    return lookup(inputs * signs, torch.tensor([0, 1, 1]).expand(5, 3))


def tied() -> Sum:
    rows = normal(5, 1, 6)
    once = Outer.of(rows[:, 0].clone(), normal(5, 4), torch.Size((4, 6)))
    once.terms[0].gradients[2], once.terms[0].source.block(2, 3)[:] = torch.eye(4)[1], HUGE
    values = rows.clone()
    values[2] = -HUGE
    values = torch.cat([values, normal(5, 1, 6).flip(0)], 1)
    return Sum([lookup(values, torch.tensor([1, 2]).expand(5, 2)), once], [1.0, 1.0])


FACTORS: dict[str, Callable[[], Factor]] = {
    "in time": lambda: Outer.of(*opposed(5, 4, 6), torch.Size((6, 6))),
    "moments": moments,
    "groups": groups,
    "patches": patches,
    "entries": entries,
    "tied": tied,
}


@pytest.mark.parametrize("scaled", [False, True], ids=["plain", "scaled"])
@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", FACTORS)
def test_a_sum_gains_what_the_norm_was_taken_of(
    name: str, way: str, order: int, scaled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    traffic, keep = WAYS[way]
    monkeypatch.setattr(outer, "TRAFFIC", traffic)
    monkeypatch.setattr(outer, "KEEP", keep)
    monkeypatch.setattr(outer, "SHARE", 0)
    factor = FACTORS[name]()
    shape = factor.take(torch.arange(1)).dense().shape[1:]
    diagonal = torch.rand(shape) + 0.5 if scaled else None
    norms = factor.squared_norms(diagonal).sqrt() if order == 2 else factor.absolute_norms(diagonal)
    vectors = factor.dense().double()
    rows = (vectors if diagonal is None else vectors * diagonal).flatten(1)
    torch.testing.assert_close(norms.double(), torch.linalg.vector_norm(rows, order, 1), rtol=1e-5, atol=0)
    assert float(norms[2]) < 1e3
    start, direction, weights = torch.randn(shape), torch.randn(shape), clip_weights(l2(0.5), norms)
    wanted = torch.einsum("i,i...->...", weights.double(), vectors)
    some = torch.tensor([4, 2])
    for part in (factor, factor.take(torch.arange(5))):
        total = start.clone()
        part.add_weighted_sum(weights, total)
        torch.testing.assert_close(total.double(), start + wanted, rtol=0, atol=1e-5)
    wanted_dots = vectors.flatten(1) @ direction.double().reshape(-1)
    torch.testing.assert_close(factor.dots(direction).double(), wanted_dots, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(factor.take(some).dots(direction).double(), wanted_dots[some], rtol=1e-5, atol=1e-4)


def pairs(part: nn.Module) -> Uses:
    """What changes between the two halves of a pair."""
    return Uses(lambda m, x: m[1]((m[0](x[:, 0]) - m[0](x[:, 1])).flatten(2).mean(2)), part, nn.Linear(32, 2))


def in_one_call(m: nn.ModuleList, x: Tensor) -> Tensor:
    first, second = m[0](x).unbind(1)
    return m[1](first - second)


PAIRS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "rows": (lambda: Uses(in_one_call, nn.Linear(24, 32), nn.Linear(32, 2)), (24,)),
    "calls": (lambda: pairs(nn.Sequential(nn.Linear(24, 32), nn.Unflatten(1, (32, 1)))), (24,)),
    "convolution": (lambda: pairs(nn.Conv2d(8, 32, 3)), (8, 5, 5)),
    "convolution of 3 groups": (lambda: pairs(nn.Sequential(nn.Conv1d(6, 33, 3, groups=3), nn.Conv1d(33, 32, 1))), (6, 5)),
}


def changes(model: nn.Module, grads: TorchGrads, loss: nn.Module, data: tuple[Tensor, Tensor]) -> TorchGrads:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return grads.minus(per_example_gradients(model, loss, *data), 0.7)


@pytest.mark.parametrize("kind", ["gradients", "differences", "scaled", "shifted", "beside one that is not finite"])
@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("keep", [0, outer.KEEP])
def test_noise_and_others_stay_in_the_sum(name: str, kind: str, keep: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outer, "KEEP", keep)
    torch.manual_seed(0)
    make, shape = PAIRS[name]
    model, loss = make(), nn.CrossEntropyLoss()
    inputs, targets = normal(8, 2, *shape), torch.arange(8) % 2
    inputs[3] = HUGE
    if kind.startswith("beside"):
        inputs[5] = torch.nan
    grads = per_example_gradients(model, loss, inputs, targets)
    if kind == "differences":
        grads = changes(model, grads, loss, (inputs, targets))
    vector = torch.randn(sum(p.numel() for p in model.parameters()))
    if kind == "scaled":
        grads = grads.scaled(vector.abs() + 0.1)
    if kind == "shifted":
        grads = grads.shifted(vector, 1e-2)
    noise = torch.randn(len(vector))
    norms = grads.norms()
    found = grads.weighted_sum(clip_weights(l2(0.1), norms), noise.clone())
    usable = norms.isfinite()
    vectors = grads.dense().double()[usable]
    lengths = vectors.norm(dim=1)
    torch.testing.assert_close(norms[usable].double(), lengths, rtol=1e-5, atol=0)
    wanted = noise + (0.1 / lengths).clamp_max(1) @ vectors
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-6)


def of_rows(model: nn.Linear, inputs: Tensor, slopes: Tensor) -> TorchGrads:
    """Gradients δ ⊗ a of a dense layer on rows, with these δ and a."""
    return per_example_gradients(model, lambda output, slopes: (output * slopes).sum(1), inputs, slopes)


@pytest.mark.parametrize("terms", [2, 4], ids=["two terms", "four terms"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("apart", [0.0, 1e-9, 1e-6, 1e-3])
def test_a_difference_of_equal_gradients_with_unequal_factors_is_as_long_as_its_norm(
    terms: int, dtype: torch.dtype, apart: float
) -> None:
    """δ ⊗ a − (δ / 3) ⊗ 3a: two points that are far apart, whose gradients are not. What is left is rounding.

    Two terms in single precision have a compiled loop; others go the general way.
    """
    model = nn.Linear(24, 32, bias=False).to(dtype)
    inputs, slopes = normal(40, 24).to(dtype), normal(40, 32).to(dtype)
    near = inputs * (1 + apart * normal(40, 24).flip(0).to(dtype))
    change = of_rows(model, inputs, slopes).minus(of_rows(model, 3 * near, slopes / 3))
    if terms == 4:
        change = change.minus(of_rows(model, 7 * inputs, slopes / 7).minus(of_rows(model, 5 * near, slopes / 5)), 0.5)
    bound = 1e-12
    for example in range(40):
        alone = change.take(torch.tensor([example]))
        assert float(alone.clipped_sum(l2(bound)).double().norm()) <= bound * (1 + 1e-5)
    noise, norms = torch.randn(24 * 32, dtype=dtype), change.norms()
    weights = clip_weights(l2(0.1), norms)
    moved = change.weighted_sum(weights, noise.clone()).double() - noise.double()
    rounding = 1e-4 if dtype == torch.float32 else 1e-12  # of the noise, once for each of 40 vectors
    assert float(moved.norm()) <= float((weights * norms).sum()) + rounding
