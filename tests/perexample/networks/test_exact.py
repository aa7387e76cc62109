"""Law 3 for networks: norms and sums equal those of gradients computed one example at a time, for every layer."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn

from privopt.measure.clips import l2
from privopt.perexample.networks import per_example_gradients
from privopt.perexample.networks.examples import rows_of
from privopt.perexample.networks.factors import outer
from tests.perexample.networks.models import MODELS, Uses, Vision, ids, normal
from tests.perexample.networks.reference import (
    assert_close,
    assert_exact,
    assert_grads,
    doubled,
    one_at_a_time,
    squared,
    targets_for,
)

CONVOLUTIONS: dict[int, tuple[Callable[..., nn.Module], Callable[..., nn.Module]]] = {
    1: (nn.Conv1d, nn.ConvTranspose1d),
    2: (nn.Conv2d, nn.ConvTranspose2d),
    3: (nn.Conv3d, nn.ConvTranspose3d),
}
pytestmark = [
    pytest.mark.filterwarnings("ignore:LSTM with projections"),
    pytest.mark.filterwarnings("ignore:enable_nested_tensor is True"),
    pytest.mark.filterwarnings("ignore:Using padding='same'"),
]
few = settings(max_examples=25)


@pytest.mark.parametrize("examples", [1, 6])
@pytest.mark.parametrize("name", MODELS)
def test_gradients_equal_those_of_each_example_alone(name: str, examples: int) -> None:
    torch.manual_seed(0)
    make, inputs = MODELS[name]
    assert_exact(make(), inputs(examples))


@pytest.mark.parametrize("name", MODELS)
def test_derived_vectors_equal_those_of_each_example_alone(name: str) -> None:
    torch.manual_seed(0)
    make, inputs = MODELS[name]
    model, data = make(), inputs(4)
    targets = targets_for(model, data)
    wanted = one_at_a_time(model, data, targets)
    grads = per_example_gradients(model, squared, data, targets)
    diagonal, shift = torch.rand(wanted.shape[1]) + 0.5, torch.randn(wanted.shape[1])
    assert_grads(grads.scaled(diagonal), wanted * diagonal)
    assert_grads(grads.shifted(shift, 0.3), wanted + 0.3 * shift.double())
    assert_grads(grads.shifted(shift, 0.3).scaled(diagonal), (wanted + 0.3 * shift.double()) * diagonal)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter) * parameter.requires_grad)
    before = one_at_a_time(model, data, targets)
    change = grads.minus(per_example_gradients(model, squared, data, targets), 0.7)
    assert_grads(change, wanted - 0.7 * before, 1e-4)
    assert_grads(change.scaled(diagonal), (wanted - 0.7 * before) * diagonal, 1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_differences_of_points_that_are_a_millionth_apart_are_exact(name: str) -> None:
    torch.manual_seed(0)
    make, inputs = MODELS[name]
    model, data = make().double(), doubled(inputs(3))
    targets = targets_for(model, data)
    here, first = one_at_a_time(model, data, targets), per_example_gradients(model, squared, data, targets)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1e-6 * torch.randn_like(parameter) * parameter.requires_grad)
    there, second = one_at_a_time(model, data, targets), per_example_gradients(model, squared, data, targets)
    change = first.minus(second)
    assert_close(change.norms()[:, None], (here - there).norm(dim=1)[:, None], 1e-6)
    assert_close(change.weighted_sum(torch.ones(3))[None], (here - there).sum(0)[None], 1e-6)


def test_every_way_to_take_norms_is_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Conv2d(4, 6, 3, groups=2), nn.Tanh(), nn.Flatten(2), nn.Linear(9, 5))
    for traffic, keep in ((0, 0), (10**9, 0), (0, 10**9), (10**9, 10**9)):  # formed and dropped, Gram, formed and kept
        monkeypatch.setattr(outer, "TRAFFIC", traffic)
        monkeypatch.setattr(outer, "KEEP", keep)
        monkeypatch.setattr(outer, "SHARE", 0)
        for block in (1, 70, 10**9):  # a few examples at a time, also where that does not come out even
            monkeypatch.setattr(outer, "BLOCK", block)
            monkeypatch.setattr(outer, "CUT", 10**9 if block == 70 else block)
            assert_exact(model, normal(5, 4, 5, 5))


@few
@given(st.integers(1, 5), st.lists(st.integers(1, 4), max_size=2), st.integers(1, 6), st.integers(1, 6), st.booleans())
def test_linear_layers_of_any_shape(examples: int, between: list[int], width: int, out: int, bias: bool) -> None:
    assert_exact(nn.Linear(width, out, bias=bias), normal(examples, *between, width))


@settings(max_examples=60)
@given(data=st.data())
def test_convolutions_of_any_shape(data: st.DataObject) -> None:
    def draw(strategy: st.SearchStrategy[Any]) -> Any:
        return data.draw(strategy)

    pixels, transposed, groups = draw(st.integers(1, 3)), draw(st.booleans()), draw(st.integers(1, 2))

    def each(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw(st.integers(low, high)) for _ in range(pixels))

    kernel, stride, dilation, size = each(1, 3), each(1, 2), each(1, 2), each(4, 6)
    made: dict[str, Any] = {"stride": stride, "dilation": dilation, "groups": groups, "bias": draw(st.booleans())}
    reach = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
    if transposed:
        made["padding"] = tuple(draw(st.integers(0, r)) for r in reach)
        made["output_padding"] = tuple(draw(st.integers(0, max(s, d) - 1)) for s, d in zip(stride, dilation, strict=True))
        lengths = zip(size, stride, made["padding"], reach, made["output_padding"], strict=True)
        assume(min((n - 1) * s - 2 * p + r + more for n, s, p, r, more in lengths) >= 0)
    elif draw(st.booleans()):
        made |= {"padding": "same", "stride": 1}
    else:
        made |= {"padding": each(0, 1), "padding_mode": draw(st.sampled_from(["zeros", "circular", "replicate", "reflect"]))}
    assume(transposed or min(s - r for s, r in zip(size, reach, strict=True)) > 0)
    channels = (2 * groups, 3 * groups)
    module = CONVOLUTIONS[pixels][transposed](*channels, kernel, **made)
    with pytest.MonkeyPatch.context() as patch:
        conv = import_module("privopt.perexample.networks.layers.conv")
        patch.setattr(conv, "SHORT", draw(st.sampled_from([0, conv.SHORT])))  # rows of places copied, or looked up
        assert_exact(module, normal(draw(st.integers(1, 4)), channels[0], *size))


@few
@given(st.integers(1, 5), st.integers(1, 20), st.integers(2, 6), st.integers(1, 4), st.sampled_from([None, 0, 1]))
def test_embeddings_of_any_shape(examples: int, time: int, tokens: int, width: int, padding: int | None) -> None:
    assert_exact(nn.Embedding(tokens, width, padding_idx=padding), ids(examples, time, below=tokens))


@few
@given(st.lists(st.integers(0, 4), min_size=1, max_size=5), st.sampled_from(["sum", "mean"]), st.booleans())
def test_bags_of_any_length(lengths: list[int], mode: str, weighted: bool) -> None:
    weighted = weighted and mode == "sum"
    module = nn.EmbeddingBag(6, 3, mode=mode)
    tokens, weights = ids(sum(lengths), below=6), torch.rand(sum(lengths))
    ends = torch.tensor(lengths).cumsum(0)
    offsets, targets = ends - torch.tensor(lengths), torch.randn(len(lengths), 3)
    model = Uses(lambda m, places: m[0](tokens, places, weights if weighted else None), module)
    rows = []
    for i, length in enumerate(lengths):
        part = slice(int(offsets[i]), int(ends[i]))
        own = module(tokens[part], torch.tensor([0]), weights[part] if weighted else None)
        found = torch.autograd.grad(squared(own, targets[i : i + 1]).sum(), module.weight)[0]
        rows.append(found.reshape(-1).double() if length else torch.zeros(18, dtype=torch.float64))
    assert_grads(per_example_gradients(model, squared, offsets, targets), torch.stack(rows))


@few
@given(
    st.sampled_from([nn.LSTM, nn.GRU, nn.RNN]),
    st.integers(1, 4),
    st.integers(1, 5),
    st.integers(1, 3),
    st.booleans(),
    st.integers(1, 2),
)
def test_recurrent_layers_of_any_shape(
    kind: Callable[..., nn.Module], examples: int, time: int, hidden: int, both: bool, layers: int
) -> None:
    torch.manual_seed(0)
    module = kind(3, hidden, num_layers=layers, bidirectional=both, batch_first=True)
    assert_exact(Uses(lambda m, x: m[0](x)[0], module), normal(examples, time, 3))


@few
@given(st.integers(1, 4), st.integers(1, 5), st.integers(1, 2), st.integers(1, 3), st.booleans())
def test_attention_of_any_shape(examples: int, time: int, heads: int, width: int, bias: bool) -> None:
    torch.manual_seed(0)
    module = nn.MultiheadAttention(heads * width, heads, bias=bias, batch_first=True)
    assert_exact(Uses(lambda m, x: m[0](x, x, x)[0], module), normal(examples, time, heads * width))


@few
@given(st.integers(1, 4), st.lists(st.integers(1, 4), max_size=2), st.integers(2, 5), st.booleans(), st.booleans())
def test_norms_over_the_last_dimensions_of_any_shape(
    examples: int, between: list[int], width: int, rms: bool, both: bool
) -> None:
    shape = (*between[-1:], width) if both else (width,)
    assert_exact(nn.RMSNorm(shape) if rms else nn.LayerNorm(shape), 2 * normal(examples, *between, width))


@few
@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 2), st.lists(st.integers(2, 4), max_size=3))
def test_norms_over_groups_of_channels_of_any_shape(examples: int, groups: int, each: int, pixels: list[int]) -> None:
    assume(each > 1 or pixels)  # a group of one number has no spread
    assert_exact(nn.GroupNorm(groups, groups * each), 2 * normal(examples, groups * each, *pixels))


@few
@given(st.integers(1, 4), st.integers(1, 5), st.integers(1, 2), st.booleans(), st.booleans())
def test_transformer_layers_of_any_shape(examples: int, time: int, heads: int, norm_first: bool, decodes: bool) -> None:
    torch.manual_seed(0)
    kind = nn.TransformerDecoderLayer if decodes else nn.TransformerEncoderLayer
    layer = kind(2 * heads, heads, 5, dropout=0.0, batch_first=True, norm_first=norm_first)
    memory = {"memory": 1} if decodes else {}
    model = Uses(lambda m, x: m[0](x, *(x[:, :1].tanh() for _ in memory)), layer)
    assert_exact(model, normal(examples, time, 2 * heads))


FLOATING = [name for name, (_, inputs) in MODELS.items() if isinstance(inputs(1), torch.Tensor) and inputs(1).is_floating_point()]


@pytest.mark.parametrize("name", FLOATING)
def test_an_example_that_is_not_finite_is_absent_from_every_layer(name: str) -> None:
    torch.manual_seed(0)
    make, inputs = MODELS[name]
    model, data = make(), inputs(5)
    targets = targets_for(model, data)
    good = torch.tensor([0, 1, 3, 4])
    wanted = per_example_gradients(model, squared, data[good], targets[good]).clipped_sum(l2(0.5))
    data[2] = torch.nan
    grads = per_example_gradients(model, squared, data, targets)
    assert not bool(grads.norms()[2].isfinite())
    torch.testing.assert_close(grads.clipped_sum(l2(0.5)), wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_an_empty_batch_has_no_gradients(name: str) -> None:
    make, inputs = MODELS[name]
    model = make()
    data = rows_of(inputs(1), slice(0))
    grads = per_example_gradients(model, squared, data, torch.zeros(0, 2))
    assert grads.norms().shape == (0,)
    assert not grads.weighted_sum(torch.zeros(0)).any()


@pytest.mark.parametrize("mode", [True, False], ids=["train", "eval"])
def test_modes_are_the_users(mode: bool) -> None:
    model = nn.Sequential(nn.Linear(5, 4), nn.Dropout(0.0 if mode else 0.5), nn.RReLU(0.2, 0.2), nn.Linear(4, 3)).train(mode)
    assert_exact(model, normal(4, 5))
    assert [module.training for module in model] == [mode] * 4


def test_with_dropout_sums_equal_those_of_autograd_on_the_same_draw() -> None:
    model = nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.5), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 2))
    inputs, targets = normal(6, 5), normal(6, 2)
    torch.manual_seed(5)
    grads = per_example_gradients(model, squared, inputs, targets)
    weights = torch.linspace(-1, 1, 6)
    torch.manual_seed(5)
    torch.autograd.backward((weights * squared(model(inputs), targets)).sum())
    wanted = torch.cat([p.grad.reshape(-1) for p in model.parameters() if p.grad is not None])
    torch.testing.assert_close(grads.weighted_sum(weights), wanted, rtol=1e-5, atol=1e-5)


def test_a_twice_used_weight_counts_its_cross_terms() -> None:
    model = Uses(lambda m, x: m[0](x) + m[0](2 * x), nn.Linear(3, 2, bias=False))
    inputs = normal(4, 3)
    norms = per_example_gradients(model, lambda output: output.sum(1), inputs).norms()
    torch.testing.assert_close(norms, 3 * 2**0.5 * inputs.norm(dim=1))


def test_terms_that_cancel_do_not_make_a_norm_too_small() -> None:
    model = Uses(lambda m, x: (m[0](x) - m[0](x + 1e-3 * x.flip(1))).unsqueeze(1), nn.Linear(8, 40, bias=False))
    inputs = 100 * normal(5, 8)
    targets = targets_for(model, inputs)
    wanted = one_at_a_time(model, inputs, targets).norm(dim=1)
    found = per_example_gradients(model, squared, inputs, targets).norms()
    torch.testing.assert_close(found.double(), wanted, rtol=2e-3, atol=0)  # the inputs themselves are rounded


@pytest.mark.parametrize("scaled", [False, True], ids=["plain", "scaled"])
@pytest.mark.parametrize("between", [(), (3,)], ids=["rows", "sequence"])
@pytest.mark.parametrize("size", [1e10, 1e19])
@pytest.mark.parametrize("turned", [False, True], ids=["large inputs", "large gradients"])
def test_squares_that_underflow_do_not_make_a_norm_too_small(
    turned: bool, size: float, between: tuple[int, ...], scaled: bool
) -> None:
    large, small = (2e-4 / size, size) if turned else (size, 2e-4 / size)
    model = nn.Linear(20, 30, bias=False)
    grads = per_example_gradients(model, lambda output: small * output.flatten(1).sum(1), torch.full((4, *between, 20), large))
    found = (grads.scaled(torch.full((600,), 0.5)) if scaled else grads).norms()
    true = 2e-4 * 600**0.5 * (0.5 if scaled else 1.0) * (3 if between else 1)
    assert not bool((found < true * (1 - 1e-5) - 1e-6).any())  # one that is no number is absent


def test_a_users_hooks_on_a_part_count_once() -> None:
    torch.manual_seed(0)
    model = Vision()
    model.inner.register_forward_hook(lambda module, args, output: 2 * output)
    model.inner.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    assert_exact(model, normal(5, 7, 4))
