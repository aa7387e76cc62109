"""Models that are run on each example apart: exact however parameters are used, and refused only if examples mix."""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm
from torch.nn.utils.rnn import pack_padded_sequence

from privopt.perexample.networks import Layout, Recorder, TorchGrads, TorchOracle, UnsupportedLayer, examples
from privopt.perexample.networks.examples import PLAIN, Like
from privopt.perexample.networks.isolation.one_by_one import check_isolation
from privopt.perexample.networks.recorder import Way, gradients
from privopt.perexample.networks.unsupported import SlowModel
from tests.perexample.networks.models import MODELS, Scale, Uses, Vision, ids, normal
from tests.perexample.networks.reference import assert_grads, one_at_a_time, squared, targets_for

pytestmark = [
    pytest.mark.filterwarnings("ignore:LSTM with projections"),
    pytest.mark.filterwarnings("ignore:enable_nested_tensor is True"),
    pytest.mark.filterwarnings("ignore:Using padding='same'"),
    pytest.mark.filterwarnings("ignore:this model is exact but slow"),
]


def run(model: nn.Module, way: Way, inputs: Any, targets: Tensor) -> TorchGrads:
    recorder = Recorder(model)
    recorder.way = way
    return gradients(recorder, Layout(model), squared, inputs, targets, len(targets))


def vectors(oracle: TorchOracle) -> TorchGrads:
    found = oracle(None, None)
    assert isinstance(found, TorchGrads)
    return found


NOT_MAPPED = ("packed", "recomputed", "projected")  # code that torch.vmap cannot run
NOT_ALONE = "LSTM, changed in place"  # which torch's own LSTM does not allow


@pytest.mark.parametrize("way", ["mapped", "one by one"])
@pytest.mark.parametrize("name", MODELS)
def test_every_layer_is_exact_when_examples_are_apart(name: str, way: Way) -> None:
    torch.manual_seed(0)
    make, inputs = MODELS[name]
    model, data = make(), inputs(5)
    targets = targets_for(model, data)
    if (way == "mapped" and any(word in name for word in NOT_MAPPED)) or (way == "one by one" and name.startswith(NOT_ALONE)):
        with pytest.raises((RuntimeError, UnsupportedLayer)):
            run(model, way, data, targets)
        return
    assert_grads(run(model, way, data, targets), one_at_a_time(model, data, targets))


class Prompted(nn.Module):
    """A learned prompt before the tokens, positions that all examples share, and a head that is the embedding's table."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(9, 4, padding_idx=0), nn.Embedding(8, 4)
        self.prompt, self.mixer = nn.Parameter(torch.randn(1, 2, 4)), nn.TransformerEncoderLayer(4, 2, 8, 0.0, batch_first=True)

    def forward(self, tokens: Tensor) -> Tensor:
        x = torch.cat([self.prompt.expand(len(tokens), -1, -1), self.words(tokens)], 1)
        x = self.mixer(x + self.places(torch.arange(x.shape[1])[None]))
        return F.linear(x, self.words.weight)


class RelativeBias(nn.Module):
    """Scores with a learned bias by distance, which has no batch dimension at all (T5, Swin)."""

    def __init__(self) -> None:
        super().__init__()
        self.bias, self.table, self.inner = nn.Embedding(13, 2), nn.Parameter(torch.randn(13, 2)), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        time = x.shape[1]
        apart = torch.arange(time)[:, None] - torch.arange(time)[None] + 6
        heads = self.inner(x).unflatten(2, (2, 2)).transpose(1, 2)
        bias = self.bias(apart).permute(2, 0, 1)[None] + self.table[apart.flatten()].view(time, time, 2).permute(2, 0, 1)
        return F.scaled_dot_product_attention(heads, heads, heads, attn_mask=bias).transpose(1, 2).flatten(2)


class Latents(nn.Module):
    """Learned latents that read the inputs (Perceiver), with torch's own attention."""

    def __init__(self) -> None:
        super().__init__()
        self.latents, self.reader = nn.Parameter(torch.randn(3, 4)), nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.reader(self.latents.expand(len(x), -1, -1), x, x)[0]


class Routed(nn.Module):
    """Each step goes through the expert that scores highest."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.experts = nn.Linear(4, 3), nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, 4)
        scores, out = self.router(rows).softmax(1), torch.zeros_like(rows)
        for place, expert in enumerate(self.experts):
            chosen = (scores.argmax(1) == place).nonzero().squeeze(1)
            out = out.index_add(0, chosen, expert(rows[chosen]) * scores[chosen, place, None])
        return out.view_as(x)


class LearnedStart(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.start, self.cells = nn.Parameter(torch.randn(1, 1, 3)), nn.GRU(4, 3, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.cells(x, self.start.expand(1, len(x), 3).contiguous())[0]


class OwnLoss(nn.Module):
    """A loss with a weight of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.LinearCrossEntropyLoss(4, 5, reduction="none")

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x).tanh(), torch.arange(len(x)) * 0 + 2)


def parent(m: nn.ModuleList, x: Tensor) -> Tensor:
    """A child's parameter in its parent's code, and the child itself."""
    first: Any = m[0]
    return first(x) @ first.weight + first.bias * x


def siamese(m: nn.ModuleList, x: Tensor) -> Tensor:
    both: Tensor = m[1](m[0](torch.cat([x[:, :3], x[:, 3:6]], 0)).tanh())
    return (both[: len(x)] - both[len(x) :]).flatten(1)


def time_major(m: nn.ModuleList, x: Tensor) -> Tensor:
    hidden = m[0](x.transpose(0, 1))
    return m[1](hidden.flatten(0, 1)).unflatten(0, hidden.shape[:2]).transpose(0, 1)  # time and examples merged


def packed(m: nn.ModuleList, x: Tensor) -> Tensor:
    return m[0](pack_padded_sequence(x, [6] * len(x), batch_first=True))[1][0].transpose(0, 1)


def masked(m: nn.ModuleList, x: Tensor) -> Tensor:
    hidden = x[:, :, 0] > 1
    return m[0](x, x, x, key_padding_mask=hidden & hidden.logical_not().any(1, keepdim=True))[0]


def looked_up(m: nn.ModuleList, tokens: Tensor) -> Tensor:
    """A table with padding, in its parent's code."""
    table: Any = m[0].weight
    other: Any = m[1].weight
    return F.embedding(tokens, table, padding_idx=-9) * other.sum()


def products(m: nn.ModuleList, x: Tensor) -> Tensor:
    first: Any = m[0]
    y = torch.addmm(first.offset, x.reshape(-1, 4), first.matrix).view_as(x).tanh()
    return F.linear(y @ first.matrix.T, first.matrix, first.offset) + first.matrix.sum()


SEQUENCES = normal(5, 7, 4)
UNUSUAL: dict[str, tuple[Callable[[], nn.Module], Any]] = {
    "prompt, positions, tied head": (Prompted, ids(5, 6)),
    "relative biases": (RelativeBias, SEQUENCES),
    "latents": (Latents, SEQUENCES),
    "routed experts": (Routed, SEQUENCES),
    "bare parameters twice": (Vision, SEQUENCES),
    "a learned start": (LearnedStart, SEQUENCES),
    "a child's parameter in its parent": (lambda: Uses(parent, nn.Linear(4, 4)), SEQUENCES),
    "pairs in one batch": (lambda: Uses(siamese, nn.Linear(4, 4), nn.Conv1d(3, 2, 2)), SEQUENCES),
    "time first": (lambda: Uses(time_major, nn.Linear(4, 4), nn.Linear(4, 2)), SEQUENCES),
    "as long as the batch": (lambda: Uses(time_major, nn.Linear(4, 4), nn.Linear(4, 2)), SEQUENCES[:, :5]),
    "time first, in cells": (lambda: Uses(lambda m, x: m[0](x.transpose(0, 1))[0][-1], nn.LSTM(4, 3)), SEQUENCES),
    "packed, projected": (lambda: Uses(packed, nn.LSTM(4, 3, proj_size=2, batch_first=True)), SEQUENCES[:, :6]),
    "masks of attention": (lambda: Uses(masked, nn.MultiheadAttention(4, 2, batch_first=True)), SEQUENCES),
    "weights with a norm": (lambda: nn.Sequential(weight_norm(nn.Linear(4, 3)), weight_norm(nn.Linear(3, 2))), SEQUENCES),
    "a recurrent weight with a norm": (
        lambda: Uses(lambda m, x: m[0](x)[0], weight_norm(nn.GRU(4, 3, batch_first=True), "weight_hh_l0")),
        SEQUENCES,
    ),
    "a table in its parent": (lambda: Uses(looked_up, nn.Embedding(9, 4), nn.Linear(2, 2)), ids(5, 6)),
    "products and a sum": (lambda: Uses(products, Scale()), SEQUENCES),
}


ONE_BY_ONE = {"routed experts", "packed, projected", "a recurrent weight with a norm"}


@pytest.mark.parametrize("name", UNUSUAL)
def test_unusual_models_train_exactly(name: str) -> None:
    torch.manual_seed(0)
    make, data = UNUSUAL[name]
    model = make()
    attributes = {path: set(module.__dict__) for path, module in model.named_modules()}
    targets = targets_for(model, data)
    oracle = TorchOracle(model, squared, data, targets)
    assert (oracle.way == "one by one") == (name in ONE_BY_ONE)
    assert_grads(vectors(oracle), one_at_a_time(model, data, targets))
    assert {path: set(module.__dict__) for path, module in model.named_modules()} == attributes
    assert all(isinstance(p, nn.Parameter) for module in model.modules() for p in module._parameters.values() if p is not None)


@pytest.mark.skipif(not hasattr(nn, "LinearCrossEntropyLoss"), reason="this torch has no such loss")
def test_a_loss_with_a_weight_of_its_own_trains_in_the_model() -> None:
    torch.manual_seed(0)
    oracle = TorchOracle(model := OwnLoss(), lambda output: output, data := normal(4, 4))
    wanted = [torch.autograd.grad(model(data[i : i + 1]).sum(), list(model.parameters())) for i in range(4)]
    rows = torch.stack([torch.cat([part.reshape(-1) for part in parts]) for parts in wanted]).double()
    assert_grads(vectors(oracle), rows)


def test_a_model_that_goes_one_by_one_says_once_why_it_is_slow() -> None:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        oracle = TorchOracle(Routed(), squared, SEQUENCES, torch.zeros(5, 28))
        oracle(None, None).norms()
    (slow,) = [one for one in found if one.category is SlowModel]
    assert "nonzero" in str(slow.message)


def test_products_with_parameters_are_not_formed() -> None:
    """Nothing of the size of examples × parameters is made, unless a parameter is used in another way."""
    model = Uses(lambda m, x: (x @ m[0].matrix).tanh(), Scale())
    recorder = Recorder(model)
    assert recorder.way == "mapped"
    with recorder.record() as tape:
        tape.factors(model(SEQUENCES).flatten(1).sum(1))
    assert tape.formed == set()


class MixesBare(nn.Module):
    """A bare parameter, so that examples go through it apart, and a mean over the batch."""

    def __init__(self, place: str) -> None:
        super().__init__()
        self.matrix, self.place = nn.Parameter(torch.randn(4, 4)), place

    def forward(self, x: Tensor) -> Tensor:
        if self.place == "values":
            return (x - x.mean(0)) @ self.matrix
        if self.place == "a little":
            return x @ self.matrix + 1e-3 * x.mean(0)
        if self.place == "gradients":
            y = x @ self.matrix
            return y + y.mean(0) - y.mean(0).detach()
        if self.place == "in training":
            return (x - x.mean(0) * self.training) @ self.matrix
        return (x @ self.matrix)[x.flatten(1).sum(1).argsort()]


@pytest.mark.parametrize("place", ["values", "a little", "gradients", "in training", "order"])
def test_a_model_that_mixes_is_refused_though_it_would_be_run_apart(place: str) -> None:
    with pytest.raises(UnsupportedLayer, match="mixes examples"):
        TorchOracle(MixesBare(place), squared, SEQUENCES, torch.zeros(5, 28))


class Masked(nn.Module):
    """Attention of its own, with a mask that all examples share."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(4, 4))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        scores = x @ self.matrix @ x.transpose(1, 2)
        return (scores if mask is None else scores.masked_fill(mask, -1e9)).softmax(-1) @ x


@pytest.mark.parametrize("way", ["mapped", "one by one"])
def test_what_examples_share_is_not_divided_among_as_many_examples(way: Way) -> None:
    """A mask over six steps beside six examples would give each the row of its place: the first one's absence moves all others.

    So it is refused beside any other number of examples, which a loop has before it is trained.
    """
    model, x = Masked(), normal(5, 6, 4)
    mask = torch.ones(6, 6).triu(1).bool()
    recorder = Recorder(model)
    recorder.way = way
    with recorder.record() as tape:
        with pytest.raises(UnsupportedLayer, match="length 6 beside 5 examples"):
            model(x, mask)
        found = model(x, mask.unsqueeze(0))
        tape.factors(found.flatten(1).sum(1))
    torch.testing.assert_close(found, model(x, mask))


class Counts(nn.Module):
    """State that examples leave behind."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(4, 4))
        self.seen: Tensor
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        self.seen.add_(x.detach().mean((0, 1)))
        return x @ self.matrix


def test_a_model_that_keeps_something_of_its_examples_is_refused() -> None:
    with pytest.raises(UnsupportedLayer, match="seen keeps something"):
        TorchOracle(Counts(), squared, SEQUENCES, torch.zeros(5, 28))


def test_made_up_examples_differ_while_random_draws_of_the_model_are_constants() -> None:
    """Equal examples would hide a mean over the batch."""
    for model in (MixesBare("values"), nn.Sequential(nn.Dropout(0.5), MixesBare("values"))):
        with pytest.raises(UnsupportedLayer, match="mixes examples"):
            check_isolation(model, squared, Like(SEQUENCES[:1], torch.zeros(1, 28), PLAIN, [examples.normal], examples.THOROUGH))


def test_a_large_model_is_checked_with_fewer_examples_and_mixing_is_still_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examples, "LARGE", 1)
    TorchOracle(Vision(), squared, SEQUENCES, targets_for(Vision(), SEQUENCES))
    for place in ("values", "a little", "gradients", "in training", "order"):
        with pytest.raises(UnsupportedLayer, match="mixes examples"):
            TorchOracle(MixesBare(place), squared, SEQUENCES, torch.zeros(5, 28))


class Repeated(nn.Module):
    """Every token is looked up in the table that is also the head: the two gradients point the same way, or cancel."""

    def __init__(self, sign: float) -> None:
        super().__init__()
        self.words, self.sign = nn.Embedding(9, 4), sign

    def forward(self, tokens: Tensor) -> Tensor:
        return self.sign * F.linear(self.words(tokens).tanh(), self.words.weight).mean(1)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_table_that_is_also_the_head_is_exact_without_forming_it(sign: float) -> None:
    torch.manual_seed(0)
    model, tokens = Repeated(sign), ids(6, 5)
    targets = targets_for(model, tokens)
    oracle = TorchOracle(model, squared, tokens, targets)
    assert oracle.formed == 0
    assert_grads(vectors(oracle), one_at_a_time(model, tokens, targets))


class MaskedAlone(nn.Module):
    """Attention with a mask that all examples share, in a model whose examples are mapped."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.attention = nn.Parameter(torch.eye(4)), nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        h, mask = F.linear(x, 2 * self.weight), torch.zeros(3, 3, dtype=x.dtype)
        found: Tensor = self.attention(h, h, h, attn_mask=mask)[0].sum((1, 2))
        return found


def test_a_batch_of_one_example_may_have_a_mask_of_attention() -> None:
    torch.manual_seed(0)
    oracle = TorchOracle(MaskedAlone(), lambda output, y: output * y, torch.randn(5, 3, 4), torch.ones(5))
    torch.testing.assert_close(oracle(None, np.array([2])).norms(), oracle(None, None).norms()[2:3])
