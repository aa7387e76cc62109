"""Models of the tests: one for each layer and each way to use it."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.checkpoint import checkpoint

LENGTHS = 7


def normal(*shape: int) -> Tensor:
    """Made-up inputs, the same each time."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(2))


def ids(*shape: int, below: int = 9) -> Tensor:
    """Made-up tokens."""
    return torch.randint(0, below, shape, generator=torch.Generator().manual_seed(3))


class Uses(nn.Module):
    """A custom forward around some modules."""

    def __init__(self, forward: Callable[..., Tensor], *parts: nn.Module) -> None:
        super().__init__()
        self.parts, self._forward = nn.ModuleList(parts), forward

    def forward(self, *inputs: Any) -> Tensor:
        return self._forward(self.parts, *inputs)


def recurrent(kind: Callable[..., nn.Module], **settings: Any) -> Uses:
    module = kind(5, 4, **settings)
    wide = 8 if settings.get("bidirectional") else 4
    if settings.get("batch_first"):
        return Uses(lambda m, x: m[1](m[0](x)[0]), module, nn.Linear(wide, 3))
    return Uses(lambda m, x: m[1](m[0](x.transpose(0, 1))[0].transpose(0, 1)), module, nn.Linear(wide, 3))


def packed(kind: Callable[..., nn.Module]) -> Uses:
    def forward(m: Any, x: Tensor, lengths: Tensor) -> Tensor:
        sequence = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        output, last = m[0](sequence)
        padded, _ = pad_packed_sequence(output, batch_first=True, total_length=LENGTHS)
        states = torch.cat(list(last), 2) if isinstance(last, tuple) else last
        return torch.cat([padded.flatten(1), states.transpose(0, 1).flatten(1)], 1)

    return Uses(forward, kind(5, 4, batch_first=True, bidirectional=True, num_layers=2))


def turned(batch_first: bool) -> Callable[[Tensor], Tensor]:
    """From examples first to what a module wants, and back."""
    return lambda tensor: tensor if batch_first else tensor.transpose(0, 1)


def windows(work: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Each example is two sequences of three steps."""
    return work(x.reshape(-1, 3, x.shape[2])).reshape(len(x), -1)


def attention(*, weights: bool, cross: bool, **settings: Any) -> Uses:
    turn = turned(settings.get("batch_first", False))

    def forward(m: Any, x: Tensor) -> Tensor:
        query = turn(x)
        key, value = (turn(2 * x[:, :3]), turn(x[:, :3])) if cross else (query, query)
        return turn(m[0](query, key, value, need_weights=weights)[0])

    return Uses(forward, nn.MultiheadAttention(4, 2, **settings))


def masked_attention() -> Uses:
    later = torch.triu(torch.ones(7, 7), 1).bool()

    def forward(m: Any, x: Tensor, padding: Tensor) -> Tensor:
        return m[0](x, x, x, attn_mask=later, key_padding_mask=padding)[0]

    return Uses(forward, nn.MultiheadAttention(4, 2, batch_first=True))


def encoder(*, batch_first: bool, norm_first: bool) -> Uses:
    turn = turned(batch_first)
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=batch_first, norm_first=norm_first)
    stack = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(4), enable_nested_tensor=False)
    return Uses(lambda m, x: turn(m[0](turn(x))), stack)


def transformer(*, batch_first: bool) -> Uses:
    turn = turned(batch_first)
    whole = nn.Transformer(4, 2, 1, 1, 8, dropout=0.0, batch_first=batch_first)
    return Uses(lambda m, x: turn(m[0](turn(x), turn(x[:, :4]))), whole)


class Scale(nn.Module):
    """A leaf with parameters of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix, self.offset = nn.Parameter(torch.randn(4, 4)), nn.Parameter(torch.randn(4))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x @ self.matrix + self.offset)


class Temperature(nn.Module):
    """A parameter that is one number."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.scale = nn.Linear(4, 3), nn.Parameter(torch.tensor(0.5))

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) * self.scale.exp()


class Vision(nn.Module):
    """Bare parameters around other modules, which it calls twice: class token, positions, gate."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.places = nn.Parameter(torch.randn(1, 1, 4)), nn.Parameter(torch.randn(8, 4))
        self.gate, self.inner, self.act = nn.Parameter(torch.rand(4)), nn.Linear(4, 4), nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.places
        y = self.inner(x)
        y += x * self.gate
        return self.inner(self.act(y)) * self.gate


class Merging(nn.Module):
    """A bare parameter around a module that is given every step as an example."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.inner = nn.Parameter(torch.rand(4)), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return (self.inner((x * self.gate).reshape(-1, 4)) * self.gate).view_as(x).tanh()


class Mixer(nn.Module):
    """A bare parameter in a module that is given a table which is no batch."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.rand(4))

    def forward(self, x: Tensor, table: Tensor) -> Tensor:
        return torch.tanh(table @ (x * self.gate))


class Lists(nn.Module):
    """Bare parameters in lists and dicts, which have no code of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.matrices = nn.ParameterList([nn.Parameter(torch.randn(4, 4)) for _ in range(2)])
        self.offsets = nn.ParameterDict({"a": nn.Parameter(torch.randn(4)), "b": nn.Parameter(torch.randn(4))})
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        for matrix, offset in zip(self.matrices, self.offsets.values(), strict=True):
            x = torch.tanh(x @ matrix + offset)
        return self.head(x)


class Recomputed(nn.Module):
    """Layers whose activations are computed again in the backward pass."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.first, self.inner, self.last = nn.Linear(4, 4), inner, nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        inner = checkpoint(self.inner, self.first(x), use_reentrant=False)
        return self.last(inner[0] if isinstance(inner, tuple) else inner)


class Tied(nn.Module):
    """A table that is also the output layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.middle, self.output = nn.Embedding(9, 4), nn.Linear(4, 4), nn.Linear(4, 9)
        self.output.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.output(torch.tanh(self.middle(self.embedding(tokens))))


class Cells(nn.Module):
    """A cell that is called once for each step."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        state = None
        for step in x.unbind(1):
            state = self.cell(step, state)
        assert state is not None
        return state[0]


def frozen() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Linear(4, 4), nn.LayerNorm(4))
    model[0].weight.requires_grad_(False)
    model[2].requires_grad_(False)
    model[4].bias.requires_grad_(False)
    return model


def bias_in_a_buffer() -> nn.Module:
    layer = nn.Linear(4, 4)
    values = layer.bias.detach().clone()
    del layer.bias
    layer.register_buffer("bias", values)
    return nn.Sequential(layer, nn.Tanh(), nn.Linear(4, 2))


def shared_linear() -> nn.Module:
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    second.weight = first.weight
    return nn.Sequential(first, nn.Tanh(), second)


def old_weight_norm() -> nn.Module:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return nn.Sequential(nn.utils.weight_norm(nn.Linear(4, 4)), nn.Linear(4, 2))


TRUE_FALSE = (True, False)
TABLE = torch.tril(torch.ones(6, 6))  # as many rows as examples, sometimes
RECOMPUTED: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 4)),
    "LSTM": lambda: nn.LSTM(4, 4, batch_first=True),
    "attention": lambda: nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True),
    "bare parameters": Scale,
}
MODELS: dict[str, tuple[Callable[..., nn.Module], Callable[[int], Any]]] = {
    "linear": (lambda: nn.Linear(5, 3), lambda n: normal(n, 5)),
    "mlp, in-place": (lambda: nn.Sequential(nn.Linear(5, 4), nn.ReLU(inplace=True), nn.Linear(4, 3)), lambda n: normal(n, 5)),
    "linear, sequence": (lambda: nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)), lambda n: normal(n, 6, 5)),
    "linear, long sequence": (lambda: nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)), lambda n: normal(n, 40, 5)),
    "linear, pictures": (lambda: nn.Linear(5, 4), lambda n: normal(n, 2, 3, 5)),
    "linear, merged": (
        lambda: Uses(lambda m, x: m[0](x.reshape(-1, 5)).view(len(x), -1), nn.Linear(5, 4)),
        lambda n: normal(n, 6, 5),
    ),
    "conv, merged": (
        lambda: Uses(lambda m, x: m[0](x.flatten(0, 1)).view(len(x), -1), nn.Conv2d(2, 3, 2)),
        lambda n: normal(n, 3, 2, 4, 4),
    ),
    "transposed convolution of single pixels": (
        lambda: nn.ConvTranspose1d(4, 3, 1, dilation=2, output_padding=1),
        lambda n: normal(n, 4, 6),
    ),
    "embedding": (lambda: nn.Sequential(nn.Embedding(9, 4, padding_idx=0), nn.Linear(4, 2)), lambda n: ids(n, 12)),
    "embedding, sparse": (lambda: nn.Embedding(9, 4, sparse=True), lambda n: ids(n, 2, 3)),
    **{
        f"embedding bag, {mode}": (lambda mode=mode: nn.EmbeddingBag(9, 4, mode=mode, padding_idx=0), lambda n: ids(n, 12))
        for mode in ("sum", "mean", "max")
    },
    "layer norm": (
        lambda: nn.Sequential(nn.Linear(5, 4), nn.LayerNorm(4), nn.Linear(4, 4), nn.RMSNorm(4)),
        lambda n: normal(n, 3, 5),
    ),
    "layer norm, rows": (lambda: nn.LayerNorm((3, 5)), lambda n: normal(n, 3, 5)),
    "group norm": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.Conv2d(4, 4, 1), nn.InstanceNorm2d(4, affine=True)),
        lambda n: normal(n, 3, 5, 5),
    ),
    "batch norm, eval": (
        lambda: nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)).eval(),
        lambda n: normal(n, 5),
    ),
    **{
        f"{kind.__name__} {settings}": (
            lambda kind=kind, settings=settings: recurrent(kind, **settings),
            lambda n: normal(n, LENGTHS, 5),
        )
        for kind in (nn.LSTM, nn.GRU, nn.RNN)
        for settings in ({"batch_first": True}, {"bidirectional": True, "num_layers": 2, "batch_first": True}, {"bias": False})
    },
    "RNN relu": (lambda: recurrent(nn.RNN, nonlinearity="relu", batch_first=True), lambda n: normal(n, LENGTHS, 5)),
    "LSTM, projected": (
        lambda: Uses(lambda m, x: m[0](x)[0], nn.LSTM(5, 4, proj_size=2, batch_first=True)),
        lambda n: normal(n, 5, 5),
    ),
    "LSTM, last state": (
        lambda: Uses(lambda m, x: torch.cat([*m[0](x)[1]], 2).transpose(0, 1), nn.LSTM(5, 4, batch_first=True)),
        lambda n: normal(n, LENGTHS, 5),
    ),
    **{
        f"{kind.__name__}, packed": (
            lambda kind=kind: packed(kind),
            lambda n: (normal(n, LENGTHS, 5), torch.tensor([3, 7, 5, 2, 7, 1])[:n]),
        )
        for kind in (nn.LSTM, nn.GRU, nn.RNN)
    },
    **{
        f"{kind.__name__}, merged": (
            lambda kind=kind: Uses(lambda m, x: windows(lambda z: m[0](z)[0], x), kind(4, 3, batch_first=True)),
            lambda n: normal(n, 6, 4),
        )
        for kind in (nn.LSTM, nn.GRU, nn.RNN)
    },
    **{
        f"{kind.__name__}, changed in place, batch_first={b}": (
            lambda kind=kind, b=b: Uses(
                lambda m, x: turned(b)(m[1](m[0](turned(b)(x))[0])), kind(4, 3, batch_first=b), nn.ReLU(inplace=True)
            ),
            lambda n: normal(n, 6, 4),
        )
        for kind in (nn.LSTM, nn.GRU, nn.RNN)
        for b in TRUE_FALSE
    },
    "cells": (Cells, lambda n: normal(n, 3, 4)),
    **{
        f"attention, weights={weights}, cross={cross}, {settings}": (
            lambda weights=weights, cross=cross, settings=settings: attention(weights=weights, cross=cross, **settings),
            lambda n: normal(n, 7, 4),
        )
        for weights in TRUE_FALSE
        for cross in TRUE_FALSE
        for settings in ({"batch_first": True}, {}, {"bias": False, "add_bias_kv": True, "add_zero_attn": True})
    },
    "attention, masked": (masked_attention, lambda n: (normal(n, 7, 4), (torch.arange(7) > 4).expand(n, -1))),
    "attention, other widths": (
        lambda: Uses(
            lambda m, x: m[0](x, x[..., :3], x[..., :2])[0], nn.MultiheadAttention(4, 2, kdim=3, vdim=2, batch_first=True)
        ),
        lambda n: normal(n, 7, 4),
    ),
    "attention, windows": (
        lambda: Uses(lambda m, x: windows(lambda z: m[0](z, z, z)[0], x), nn.MultiheadAttention(4, 2, batch_first=True)),
        lambda n: normal(n, 6, 4),
    ),
    "attention, cross, windows": (
        lambda: Uses(
            lambda m, x: windows(lambda z: m[0](z, z[:, :2], 2 * z[:, :2])[0], x),
            nn.MultiheadAttention(4, 2, add_bias_kv=True, batch_first=True),
        ),
        lambda n: normal(n, 6, 4),
    ),
    **{
        f"attention, only its weights, {settings}": (
            lambda settings=settings: Uses(
                lambda m, x: m[0](x, 2 * x[..., :3], x[..., :3])[1] if settings else m[0](x, 2 * x, x)[1],
                nn.MultiheadAttention(4, 2, batch_first=True, **settings),
            ),
            lambda n: normal(n, 7, 4),
        )
        for settings in ({}, {"kdim": 3, "vdim": 3})
    },
    "encoder, windows": (
        lambda: Uses(lambda m, x: windows(m[0], x), nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)),
        lambda n: normal(n, 6, 4),
    ),
    **{
        f"encoder, batch_first={b}, norm_first={f}": (
            lambda b=b, f=f: encoder(batch_first=b, norm_first=f),
            lambda n: normal(n, 7, 4),
        )
        for b in TRUE_FALSE
        for f in TRUE_FALSE
    },
    "encoder, eval": (lambda: encoder(batch_first=True, norm_first=False).eval(), lambda n: normal(n, 7, 4)),
    **{f"transformer, batch_first={b}": (lambda b=b: transformer(batch_first=b), lambda n: normal(n, 7, 4)) for b in TRUE_FALSE},
    "bare parameters": (lambda: nn.Sequential(nn.Linear(4, 4), Scale(), nn.Linear(4, 2)), lambda n: normal(n, 7, 4)),
    "a parameter that is one number": (Temperature, lambda n: normal(n, 4)),
    "bare parameters around modules": (Vision, lambda n: normal(n, 7, 4)),
    "bare parameters in bare parameters": (
        lambda: nn.Sequential(nn.Linear(4, 4), Vision(), Scale(), nn.Flatten(), nn.Linear(32, 2)),
        lambda n: normal(n, 7, 4),
    ),
    "bare parameters, merged": (lambda: Uses(lambda m, x: windows(m[0], x), Scale()), lambda n: normal(n, 6, 4)),
    "bare parameters around merged rows": (Merging, lambda n: normal(n, 6, 4)),
    "bare parameters beside a table": (lambda: Uses(lambda m, x: m[0](x, TABLE.to(x)), Mixer()), lambda n: normal(n, 6, 4)),
    "bare parameters in lists": (Lists, lambda n: normal(n, 7, 4)),
    **{
        f"recomputed: {name}": (lambda inner=inner: Recomputed(inner()), lambda n: normal(n, 7, 4))
        for name, inner in RECOMPUTED.items()
    },
    "instance norm, 1 dimension": (
        lambda: nn.Sequential(nn.Conv1d(3, 4, 3), nn.InstanceNorm1d(4, affine=True)),
        lambda n: normal(n, 3, 7),
    ),
    "instance norm, 3 dimensions": (
        lambda: nn.Sequential(nn.Conv3d(2, 4, 2), nn.InstanceNorm3d(4, affine=True)),
        lambda n: normal(n, 2, 3, 4, 3),
    ),
    "other layer: PReLU": (lambda: nn.Sequential(nn.Linear(5, 4), nn.PReLU(4), nn.Linear(4, 4)), lambda n: normal(n, 5)),
    "other layer: PReLU, merged": (
        lambda: Uses(lambda m, x: m[0](x.reshape(-1, 4)).view(len(x), -1), nn.Sequential(nn.Linear(4, 4), nn.PReLU(4))),
        lambda n: normal(n, 6, 4),
    ),
    "embedding bag, max, merged": (
        lambda: Uses(lambda m, x: m[0](x.reshape(-1, 4)).view(len(x), -1), nn.EmbeddingBag(9, 4, mode="max")),
        lambda n: ids(n, 12),
    ),
    "other layer: Bilinear": (lambda: Uses(lambda m, x: m[0](x, 2 * x), nn.Bilinear(4, 4, 3)), lambda n: normal(n, 4)),
    "weight norm": (old_weight_norm, lambda n: normal(n, 4)),
    "called twice": (lambda: Uses(lambda m, x: m[0](torch.tanh(m[0](x))), nn.Linear(4, 4)), lambda n: normal(n, 4)),
    "convolution called twice": (
        lambda: Uses(lambda m, x: m[0](torch.tanh(m[0](x))), nn.Conv2d(2, 2, 3, padding=1)),
        lambda n: normal(n, 2, 4, 4),
    ),
    "tied linear layers": (shared_linear, lambda n: normal(n, 4)),
    "tied embedding and output": (Tied, lambda n: ids(n, 5)),
    "frozen parameters": (frozen, lambda n: normal(n, 4)),
    "a bias that is a buffer": (bias_in_a_buffer, lambda n: normal(n, 4)),
    "a part is not used": (lambda: Uses(lambda m, x: m[0](x), nn.Linear(4, 2), nn.Linear(4, 2)), lambda n: normal(n, 4)),
}
