"""Clips by layer and automatic clips: law 1 on networks, whole and in chunks, and training with them."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from privopt import Budget, Ledger, run
from privopt.errors import CompositionError
from privopt.measure.clips import Clip, automatic, l1, l2, per_layer
from privopt.measure.randomness import generator
from privopt.methods.dp_sgd import dp_sgd
from privopt.nets import fit, make_private
from privopt.perexample.networks import TorchGrads, TorchOracle, per_example_gradients
from tests.perexample.networks.reference import one_at_a_time
from tests.problems import cross_entropies, linear_oracle, tanh_network, tensor_rows

BUDGET = Budget(3.0, 1e-5)
BOUNDS = {"0": 0.3, "2.weight": 0.2, "2": 0.1}  # a module, a parameter, and what is left of its module
CLIPS: list[Clip] = [automatic(0.5), automatic(0.5, stability=3.0), per_layer(BOUNDS), per_layer({"": 0.5})]


def data(size: int = 12) -> tuple[Tensor, Tensor]:
    x, y = tensor_rows(size, 5)
    return 2 * x, y


def oracle(inputs: Tensor, targets: Tensor, chunk: int | None = None) -> TorchOracle:
    return TorchOracle(tanh_network(5, 4), nn.CrossEntropyLoss(), inputs, targets, chunk=chunk)


def by_hand(clip: Clip, vectors: Tensor) -> Tensor:
    """One example and one layer at a time, in double precision."""
    if isinstance(clip, automatic):
        return (vectors * clip.bound / (vectors.norm(dim=1, keepdim=True) + clip.stability)).sum(0)
    groups = {"": [slice(0, 34)]} if clip == per_layer({"": 0.5}) else {"0": [slice(0, 24)], "2.weight": [slice(24, 32)]}
    if len(groups) > 1:
        groups["2"] = [slice(32, 34)]
    total = torch.zeros(34, dtype=torch.float64)
    assert isinstance(clip, per_layer)
    for layer, (where,) in groups.items():
        part = vectors[:, where]
        total[where] = (part * torch.clamp(clip.bounds[layer] / part.norm(dim=1, keepdim=True), max=1)).sum(0)
    return total


@pytest.mark.parametrize("chunk", [None, 1, 5, 100])
@pytest.mark.parametrize("clip", CLIPS, ids=str)
def test_sums_are_those_of_each_example_clipped_alone(clip: Clip, chunk: int | None) -> None:
    x, y = data()
    wanted = by_hand(clip, one_at_a_time(tanh_network(5, 4), x, y, cross_entropies))
    found = oracle(x, y, chunk)(None, None).clipped_sum(clip, 0.25)
    torch.testing.assert_close(found.double(), 0.25 * wanted, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("clip", [l2(0.5), l2(0.0), l1(0.5), automatic(0.5)], ids=str)
def test_no_gradient_makes_a_clip_warn(clip: Clip) -> None:
    """Norms of which even the sum is too large, infinite ones, none at all: pytest makes a warning an error."""
    model = nn.Linear(1, 1, bias=False)
    rows = torch.tensor([[3e38], [3e38], [math.inf], [math.nan], [0.0], [1.0]])
    grads = per_example_gradients(model, lambda output: output.squeeze(1), rows)
    total = grads.clipped_sum(clip)
    assert bool(total.isfinite().all())
    assert float(total.abs()) <= 4 * clip.bound


def moves(clip: Clip, chunk: int | None, scale: float) -> list[Tensor]:
    """How far each example moves the sum."""
    x, y = data()
    asked = oracle(scale * x, y, chunk)
    total = asked(None, None).clipped_sum(clip).double()
    return [total - asked(None, np.delete(np.arange(12), row)).clipped_sum(clip).double() for row in range(12)]


@pytest.mark.parametrize("chunk", [None, 5])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4, 1e30, math.nan])
@pytest.mark.parametrize("clip", CLIPS, ids=str)
def test_removing_one_example_moves_the_sum_by_at_most_the_bound(clip: Clip, scale: float, chunk: int | None) -> None:
    for moved in moves(clip, chunk, scale):
        assert bool(moved.isfinite().all())
        assert float(moved.norm()) <= clip.bound * (1 + 1e-5)


@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_removing_one_example_moves_each_layer_by_at_most_its_own_bound(scale: float) -> None:
    for moved in moves(per_layer(BOUNDS), None, scale):
        assert float(moved[:24].norm()) <= 0.3 * (1 + 1e-5)
        assert float(moved[24:32].norm()) <= 0.2 * (1 + 1e-5)
        assert float(moved[32:].norm()) <= 0.1 * (1 + 1e-5)


class understated(per_layer):  # noqa: N801
    """States the largest of its bounds."""

    @property
    def bound(self) -> float:
        return max(self.bounds.values())


def test_a_bound_that_forgets_layers_is_found() -> None:
    """This data set has an example that is clipped in every layer, so the law above fails for a clip that states too little."""
    clip = understated({name: bound / 10 for name, bound in BOUNDS.items()})
    assert max(float(moved.norm()) for moved in moves(clip, None, 1.0)) > clip.bound * 1.1


@pytest.mark.parametrize("clip", CLIPS, ids=str)
def test_an_example_that_is_not_finite_in_one_layer_is_absent_from_all(clip: Clip) -> None:
    x, y = data()
    x[3] = 0.0
    x[3, 0] = 1e38  # the first layer's gradient overflows, the second's does not
    model = tanh_network(5, 4)
    assert isinstance(model, nn.Sequential)
    with torch.no_grad():
        model[0].weight.mul_(0)  # type: ignore[operator]
        model[2].weight.mul_(1e5)  # type: ignore[operator]
    asked = TorchOracle(model, nn.CrossEntropyLoss(), x, y)
    grads = asked(None, None)
    assert isinstance(grads, TorchGrads)
    norms = grads.layer_norms()
    assert not norms["0.weight"][3].isfinite()
    assert norms["2.bias"][3].isfinite()
    without = asked(None, np.delete(np.arange(12), 3)).clipped_sum(clip)
    torch.testing.assert_close(asked(None, None).clipped_sum(clip), without)


def test_automatic_clips_leave_directions_and_make_lengths_alike() -> None:
    x, y = data()
    asked = oracle(x, y)
    plain = asked(None, np.array([4])).weighted_sum(torch.ones(1))
    scaled = asked(None, np.array([4])).clipped_sum(automatic(0.5))
    assert float(scaled.norm()) == pytest.approx(0.5 * float(plain.norm()) / (float(plain.norm()) + 0.01), rel=1e-5)
    torch.testing.assert_close(scaled / scaled.norm(), plain / plain.norm())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: automatic(1.0, stability=0.0), "stability=0"),
        (lambda: automatic(-1.0), "finite number"),
        (lambda: per_layer({}), "a bound for each layer"),
        (lambda: per_layer({"0": 1.0, "2": math.inf}), "finite number"),
        (
            lambda: l2(automatic(1.0)),  # type: ignore[arg-type]
            "a clip bound is 0, or a finite number",
        ),
        (lambda: dp_sgd(rounds=1, noise_multiplier=1.0, clip_bound=l1(1.0), learning_rate=0.1), "hides an l2 change"),
    ],
)
def test_clips_that_bound_nothing_are_refused(make: Any, message: str) -> None:
    with pytest.raises(CompositionError, match=message):
        make()


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        ({"0": 1.0}, r"no bound for 2\.weight"),
        ({"0": 1.0, "2": 1.0, "3": 1.0}, r"\['3'\], which are no layers"),
        ({"0": 1.0, "2": 1.0, "0.weigh": 1.0}, "which are no layers"),
    ],
)
def test_layers_that_do_not_fit_the_model_are_refused_before_anything_is_paid(bounds: dict[str, float], message: str) -> None:
    ledger = Ledger()
    x, y = data(60)
    settings: dict[str, Any] = {"budget": BUDGET, "rounds": 2, "batch_size": 20, "ledger": ledger}
    with pytest.raises(CompositionError, match=message):
        fit(tanh_network(5, 4), nn.CrossEntropyLoss(), (x, y), clip_bound=per_layer(bounds), **settings)
    model = tanh_network(5, 4)
    with pytest.raises(CompositionError, match=message):
        make_private(model, torch.optim.SGD(model.parameters(), 0.1), (x, y), clip_bound=per_layer(bounds), **settings)
    assert ledger.entries == ()


@pytest.mark.parametrize("clip", [automatic(1.0), per_layer({"0": 1.0, "2": 0.5})], ids=str)
def test_networks_are_trained_with_any_clip(clip: Clip) -> None:
    x, y = data(2000)
    settings: dict[str, Any] = {"budget": BUDGET, "rounds": 40, "batch_size": 400, "clip_bound": clip, "seed": 0}
    result = fit(tanh_network(5, 4), nn.CrossEntropyLoss(), (x, y), learning_rate=0.05, **settings)
    assert float((result.model(x).argmax(1) == y).float().mean()) > 0.85
    assert str(clip) in str(result.privacy.statement.settings["clip bound"])
    model = tanh_network(5, 4)
    private = make_private(model, torch.optim.Adam(model.parameters(), 0.05), (x, y), **settings)
    for inputs, targets in private.loader:
        private.step(lambda inputs=inputs, targets=targets: cross_entropies(model(inputs), targets))  # type: ignore[misc]
    assert float((model(x).argmax(1) == y).float().mean()) > 0.85


@pytest.mark.parametrize("clip", [automatic(1.0), per_layer({"": 1.0})], ids=str)
def test_linear_models_are_trained_with_any_clip(clip: Clip) -> None:
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((2000, 3))
    labels = (rows[:, 0] > 0).astype(float)
    recipe = dp_sgd(rounds=50, noise_multiplier=5.0, clip_bound=clip, learning_rate=0.5)
    found = run(recipe, linear_oracle(rows, labels, intercept=1.0), np.zeros(4), rng=generator(0)).parameters
    assert np.mean((rows @ found[:3] + found[3] > 0) == labels) > 0.9
