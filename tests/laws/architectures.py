"""Random networks: plain data that says what a model is made of, and the model that is made of it.

Every part takes (examples, TIME, WIDTH) and each example's length, and gives the same shape, so parts stand after each other,
around each other and again. A description prints as the expression that makes it. The parts are smooth: at a kink, gradients in
single and in double precision would differ.
"""

import operator
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any, Literal, Protocol

import torch
import torch.nn.functional as F  # noqa: N812
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from tests.perexample.networks.models import Lists, Merging, Mixer, Scale, Temperature, Uses, Vision

TIME, WIDTH, TOKENS = 4, 4, 7


def fitted(x: Tensor, shape: tuple[int, ...] = (TIME, WIDTH)) -> Tensor:
    """The numbers of each example in another shape: averaged where there are too many, repeated where there are too few."""
    return F.adaptive_avg_pool1d(x.flatten(1).unsqueeze(1), prod(shape)).view(len(x), *shape)


class Part(Protocol):
    """A piece of a model."""

    def make(self) -> nn.Module:
        """(x, lengths) → x, with new parameters."""
        ...


# ---------------------------------------------------------------- layers


@dataclass(frozen=True)
class Dense:
    """A linear layer on one row for each example, on each step, or on steps that are merged into the batch."""

    on: Literal["rows", "steps", "pixels", "merged"]
    out: int = WIDTH
    bias: Literal["parameter", "buffer", "none"] = "parameter"

    def make(self) -> nn.Module:
        layer = nn.Linear(TIME * WIDTH if self.on == "rows" else WIDTH, self.out, bias=self.bias != "none")
        if self.bias == "buffer":
            values = layer.bias.detach().clone()
            del layer.bias
            layer.register_buffer("bias", values)
        given: Callable[[Tensor], Tensor] = {
            "rows": lambda x: x.flatten(1),
            "steps": lambda x: x,
            "pixels": lambda x: x.view(len(x), 2, TIME // 2, WIDTH),
            "merged": lambda x: x.reshape(-1, WIDTH),
        }[self.on]
        return Uses(lambda m, x, lengths: fitted(m[0](given(x)).reshape(len(x), -1)), layer)


@dataclass(frozen=True)
class Convolution:
    pixels: int
    transposed: bool = False
    groups: int = 1
    kernel: int = 2
    stride: int = 1
    padding: int = 0
    dilation: int = 1
    bias: bool = True
    mode: str = "zeros"
    depthwise: bool = False

    def make(self) -> nn.Module:
        ins, outs = (1, 1) if self.depthwise else (2, 3)  # channels of a group
        kinds: tuple[Any, ...] = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
        if self.transposed:
            kinds = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
        layer = kinds[self.pixels - 1](
            ins * self.groups,
            outs * self.groups,
            self.kernel,
            stride=self.stride,
            padding=self.padding,
            dilation=self.dilation,
            groups=self.groups,
            bias=self.bias,
            padding_mode="zeros" if self.transposed else self.mode,
        )
        shape = (ins * self.groups, *[4] * self.pixels)
        return Uses(lambda m, x, lengths: fitted(m[0](fitted(x, shape))), layer)


@dataclass(frozen=True)
class Norm:
    kind: Literal["layer", "layer of steps", "rms", "group", "instance 1", "instance 2", "instance 3"]

    def make(self) -> nn.Module:
        kinds: dict[str, Callable[[], tuple[nn.Module, tuple[int, ...]]]] = {
            "layer": lambda: (nn.LayerNorm(WIDTH), (TIME, WIDTH)),
            "layer of steps": lambda: (nn.LayerNorm((TIME, WIDTH)), (TIME, WIDTH)),
            "rms": lambda: (nn.RMSNorm(WIDTH), (TIME, WIDTH)),
            "group": lambda: (nn.GroupNorm(2, 4), (4, 4)),
            "instance 1": lambda: (nn.InstanceNorm1d(4, affine=True), (4, 4)),
            "instance 2": lambda: (nn.InstanceNorm2d(2, affine=True), (2, 4, 2)),
            "instance 3": lambda: (nn.InstanceNorm3d(2, affine=True), (2, 2, 2, 2)),
        }
        layer, shape = kinds[self.kind]()
        for parameter in layer.parameters():
            nn.init.normal_(parameter)
        return Uses(lambda m, x, lengths: fitted(m[0](fitted(x, shape))), layer)


@dataclass(frozen=True)
class Recurrent:
    kind: Literal["RNN", "LSTM", "GRU"]
    layers: int = 1
    both: bool = False
    batch_first: bool = True
    bias: bool = True
    packed: bool = False
    gives: Literal["outputs", "states", "both"] = "outputs"

    def make(self) -> nn.Module:
        module = getattr(nn, self.kind)(
            WIDTH, 3, self.layers, bias=self.bias, batch_first=self.batch_first, bidirectional=self.both
        )

        def forward(m: nn.ModuleList, x: Tensor, lengths: Tensor) -> Tensor:
            sequence: Any = x if self.batch_first else x.transpose(0, 1)
            if self.packed:
                sequence = pack_padded_sequence(sequence, lengths, batch_first=self.batch_first, enforce_sorted=False)
            outputs, last = m[0](sequence)
            if self.packed:
                outputs, _ = pad_packed_sequence(outputs, batch_first=self.batch_first, total_length=TIME)
            states = (torch.cat(list(last), 2) if isinstance(last, tuple) else last).transpose(0, 1).flatten(1)
            outputs = (outputs if self.batch_first else outputs.transpose(0, 1)).flatten(1)
            return fitted({"outputs": outputs, "states": states, "both": torch.cat([outputs, states], 1)}[self.gives])

        return Uses(forward, module)


@dataclass(frozen=True)
class Cells:
    """A cell that is called once for each step."""

    kind: Literal["RNNCell", "LSTMCell", "GRUCell"]

    def make(self) -> nn.Module:
        def forward(m: nn.ModuleList, x: Tensor, lengths: Tensor) -> Tensor:
            state, steps = None, []
            for step in x.unbind(1):
                state = m[0](step, state)
                steps.append(state[0] if isinstance(state, tuple) else state)
            return torch.stack(steps, 1)

        return Uses(forward, getattr(nn, self.kind)(WIDTH, WIDTH))


@dataclass(frozen=True)
class Attention:
    batch_first: bool = True
    bias: bool = True
    cross: bool = False
    weights: bool = False
    padded: bool = False
    extended: bool = False  # by learned and by zero keys

    def make(self) -> nn.Module:
        settings = {"add_bias_kv": self.extended, "add_zero_attn": self.extended}
        module = nn.MultiheadAttention(WIDTH, 2, bias=self.bias, batch_first=self.batch_first, **settings)

        def forward(m: nn.ModuleList, x: Tensor, lengths: Tensor) -> Tensor:
            missing = torch.arange(TIME) >= lengths.unsqueeze(1) if self.padded else None
            query = x if self.batch_first else x.transpose(0, 1)
            key, value = (torch.tanh(query), 2 * query) if self.cross else (query, query)
            found: Tensor = m[0](query, key, value, key_padding_mask=missing, need_weights=self.weights)[0]
            return found if self.batch_first else found.transpose(0, 1)

        return Uses(forward, module)


@dataclass(frozen=True)
class Encoder:
    batch_first: bool = True
    norm_first: bool = False
    dropout: bool = False

    def make(self) -> nn.Module:
        settings: dict[str, Any] = {"batch_first": self.batch_first, "norm_first": self.norm_first, "activation": "gelu"}
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 6, dropout=0.3 if self.dropout else 0.0, **settings)
        layer.self_attn.dropout = layer.dropout1.p = 0.0  # torch and the recorder draw these in different orders

        def forward(m: nn.ModuleList, x: Tensor, lengths: Tensor) -> Tensor:
            turned = x if self.batch_first else x.transpose(0, 1)
            found: Tensor = m[0](turned)
            return found if self.batch_first else found.transpose(0, 1)

        return Uses(forward, layer)


OTHERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "scale": (Scale, (TIME, 4)),
    "temperature": (Temperature, (4,)),
    "vision": (Vision, (7, 4)),
    "merging": (Merging, (TIME, 4)),
    "lists": (Lists, (TIME, 4)),
    "table": (lambda: Uses(lambda m, x: m[0](x, torch.tril(torch.ones(TIME, TIME)).to(x)), Mixer()), (TIME, 4)),
    "bilinear": (lambda: Uses(lambda m, x: m[0](x, torch.tanh(x)), nn.Bilinear(4, 4, 3)), (4,)),
}


@dataclass(frozen=True)
class Other:
    """Parameters in a module's own code, in lists of parameters, or in a layer without a closed form."""

    kind: str

    def make(self) -> nn.Module:
        made, shape = OTHERS[self.kind]
        return Uses(lambda m, x, lengths: fitted(m[0](fitted(x, shape))), made())


@dataclass(frozen=True)
class WeightNorm:
    """A weight that is computed from a length and a direction."""

    def make(self) -> nn.Module:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # torch would rather have the new one, which is called without a batch
            layer = nn.utils.weight_norm(nn.Linear(WIDTH, WIDTH))
        return Uses(lambda m, x, lengths: m[0](x), layer)


@dataclass(frozen=True)
class Tied:
    """One weight in two linear layers."""

    first: Literal["rows", "steps"]
    second: Literal["rows", "steps"]

    def make(self) -> nn.Module:
        layers = [nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)]
        layers[1].weight = layers[0].weight

        def forward(m: nn.ModuleList, x: Tensor, lengths: Tensor) -> Tensor:
            for layer, on in zip(m, (self.first, self.second), strict=True):
                x = torch.tanh(layer(x)) if on == "steps" else x + torch.tanh(layer(x.mean(1))).unsqueeze(1)
            return x

        return Uses(forward, *layers)


def _attend(q: Tensor, k: Tensor, mask: Tensor) -> Tensor:
    """Two heads."""
    q, k = (x.view(len(x), TIME, 2, -1).transpose(1, 2) for x in (q, k))
    return F.scaled_dot_product_attention(q, k, k, mask).transpose(1, 2).flatten(2)


@dataclass(frozen=True)
class Shared:
    """What is the same for all examples: positions, with a leading dimension of 1 or none, or a bias of scores."""

    kind: Literal["one", "none", "scores", "prompt", "biased attention", "padded attention"]

    def make(self) -> nn.Module:
        table, inner = nn.Embedding(TIME, WIDTH), nn.Linear(WIDTH, WIDTH)

        def forward(m: nn.ModuleList, x: Tensor, lengths: Tensor) -> Tensor:
            places = torch.arange(TIME)
            if self.kind == "prompt":
                return fitted(torch.cat([torch.tanh(m[1](m[0](places[None]))).expand(len(x), -1, -1), x], 1))
            distances = m[0]((places[:, None] - places[None]).abs()).sum(2)
            if self.kind == "biased attention":
                return _attend(m[1](x), x, distances)
            if self.kind == "padded attention":
                inside = (places < lengths[:, None])[:, None, None]
                return _attend(m[1](x) + m[0](places), x, torch.where(inside, distances, -1e9))
            if self.kind == "scores":
                scores = m[1](x) @ x.transpose(1, 2) + distances
                return scores.tanh() @ x
            return m[1](x + m[0](places[None] if self.kind == "one" else places))

        return Uses(forward, table, inner)


@dataclass(frozen=True)
class Product:
    """A parameter that multiplies outside of the module that owns it, or is used in two ways."""

    kind: Literal["right", "transposed", "added", "both", "table", "summed"]

    def make(self) -> nn.Module:
        def forward(m: nn.ModuleList, x: Tensor, lengths: Tensor) -> Tensor:
            weight: Any = m[0].weight
            if self.kind == "right":
                return x @ weight
            if self.kind == "transposed":
                return torch.matmul(x.mean(1), weight.T).unsqueeze(1) + x
            if self.kind == "added":
                bias: Any = m[1].bias
                return torch.addmm(bias, x.reshape(-1, WIDTH), weight).view_as(x)
            if self.kind == "both":
                return F.linear(m[0](x).tanh(), weight)
            if self.kind == "table":
                return F.linear(F.embedding((x[:, :, 0] > 0).long(), weight) + x, weight)
            return m[1](x) + weight.sum() * weight[0]

        return Uses(forward, nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))


@dataclass(frozen=True)
class Activation:
    kind: Literal["tanh", "gelu", "dropout"]

    def make(self) -> nn.Module:
        kinds: dict[str, Callable[[], nn.Module]] = {"tanh": nn.Tanh, "gelu": nn.GELU, "dropout": lambda: nn.Dropout(0.3)}
        return Uses(lambda m, x, lengths: m[0](x), kinds[self.kind]())


# ---------------------------------------------------------------- parts of parts


@dataclass(frozen=True)
class Residual:
    parts: tuple[Part, ...]

    def make(self) -> nn.Module:
        def forward(m: nn.ModuleList, x: Tensor, lengths: Tensor) -> Tensor:
            y = x
            for part in m:
                y = part(y, lengths)
            return x + y

        return Uses(forward, *(part.make() for part in self.parts))


@dataclass(frozen=True)
class Twice:
    """The same module, called again on what it gave."""

    part: Part

    def make(self) -> nn.Module:
        return Uses(lambda m, x, lengths: m[0](torch.tanh(m[0](x, lengths)), lengths), self.part.make())


@dataclass(frozen=True)
class Opposed:
    """What a module makes of almost the same: its gradients are differences of almost equal terms."""

    part: Part
    apart: float

    def make(self) -> nn.Module:
        def forward(m: nn.ModuleList, x: Tensor, lengths: Tensor) -> Tensor:
            return m[0](x, lengths) - m[0](x + self.apart * x.flip(2), lengths)

        return Uses(forward, self.part.make())


@dataclass(frozen=True)
class Frozen:
    part: Part
    what: Literal["all", "weights", "biases"]

    def make(self) -> nn.Module:
        made = self.part.make()
        for name, parameter in made.named_parameters():
            if self.what == "all" or ("bias" in name) == (self.what == "biases"):
                parameter.requires_grad_(False)
        return made


@dataclass(frozen=True)
class Unused:
    part: Part

    def make(self) -> nn.Module:
        return Uses(lambda m, x, lengths: x, self.part.make())


# ---------------------------------------------------------------- models


@dataclass(frozen=True)
class Embedding:
    padding: bool = False
    sparse: bool = False
    bag: Literal["", "sum", "mean", "max"] = ""

    def make(self) -> nn.Module:
        padding = 0 if self.padding else None
        if self.bag:
            return nn.EmbeddingBag(TOKENS, WIDTH, mode=self.bag, padding_idx=padding)
        return nn.Embedding(TOKENS, WIDTH, padding_idx=padding, sparse=self.sparse)


class Model(nn.Module):
    """Parts after each other."""

    def __init__(self, source: nn.Module | None, parts: list[nn.Module], head: nn.Module | None) -> None:
        super().__init__()
        self.source, self.parts, self.head = source, nn.ModuleList(parts), head

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        if self.source is not None:
            x = fitted(self.source(x))
        for part in self.parts:
            x = part(x, lengths)
        if self.head is None:
            return x.flatten(1)
        return self.head(x if self.head.in_features == WIDTH else x.flatten(1)).flatten(1)


@dataclass(frozen=True)
class Architecture:
    """A model. `source` is None if examples are numbers; the head "tied" is the embedding's table."""

    source: Embedding | None
    parts: tuple[Part, ...]
    head: Literal["none", "rows", "steps", "tied"] = "none"
    double: bool = False

    def make(self, seed: int) -> Model:
        torch.manual_seed(seed)
        source = None if self.source is None else self.source.make()
        head: nn.Linear | None = None
        if self.head != "none":
            head = nn.Linear(TIME * WIDTH if self.head == "rows" else WIDTH, TOKENS)
        if self.head == "tied" and head is not None and source is not None:
            head.weight = source.weight  # type: ignore[assignment]  # of an embedding
        model = Model(source, [part.make() for part in self.parts], head)
        return model.double() if self.double else model


YES_NO = st.booleans()
MOSTLY = st.sampled_from([True, True, False])
RECURRENT = st.builds(
    Recurrent,
    kind=st.sampled_from(["RNN", "LSTM", "GRU"]),
    layers=st.integers(1, 2),
    both=YES_NO,
    batch_first=YES_NO,
    bias=MOSTLY,
    packed=YES_NO,
    gives=st.sampled_from(["outputs", "states", "both"]),
)
LAYERS: st.SearchStrategy[Any] = st.one_of(
    st.builds(
        Dense,
        on=st.sampled_from(["rows", "steps", "pixels", "merged"]),
        out=st.sampled_from([1, 4, 9]),
        bias=st.sampled_from(["parameter", "buffer", "none"]),
    ),
    st.builds(
        Convolution,
        pixels=st.integers(1, 3),
        transposed=YES_NO,
        groups=st.integers(1, 2),
        kernel=st.integers(1, 3),
        stride=st.integers(1, 2),
        padding=st.integers(0, 1),
        dilation=st.just(1),
        bias=YES_NO,
        mode=st.sampled_from(["zeros", "circular"]),
    ),
    st.builds(Convolution, pixels=st.integers(1, 3), transposed=YES_NO, kernel=st.just(2), dilation=st.just(2)),
    st.builds(
        Convolution,
        pixels=st.integers(1, 3),
        transposed=YES_NO,
        groups=st.integers(2, 3),
        kernel=st.integers(1, 3),
        stride=st.integers(1, 2),
        padding=st.just(1),
        dilation=st.integers(1, 2),
        bias=YES_NO,
        depthwise=st.just(True),
    ),
    st.builds(Norm, kind=st.sampled_from(["layer", "layer of steps", "rms", "group", "instance 1", "instance 2", "instance 3"])),
    RECURRENT,
    RECURRENT,  # of which there are three kinds
    st.builds(Cells, kind=st.sampled_from(["RNNCell", "LSTMCell", "GRUCell"])),
    st.builds(Attention, batch_first=YES_NO, bias=YES_NO, cross=YES_NO, weights=YES_NO, padded=YES_NO, extended=YES_NO),
    st.builds(Encoder, batch_first=YES_NO, norm_first=YES_NO, dropout=YES_NO),
    st.builds(Other, kind=st.sampled_from(sorted(OTHERS))),
    st.builds(WeightNorm),
    st.builds(Tied, first=st.sampled_from(["rows", "steps"]), second=st.sampled_from(["rows", "steps"])),
    st.builds(Shared, kind=st.sampled_from(["one", "none", "scores", "prompt", "biased attention", "padded attention"])),
    st.builds(Product, kind=st.sampled_from(["right", "transposed", "added", "both", "table", "summed"])),
    st.builds(Activation, kind=st.sampled_from(["tanh", "gelu", "dropout"])),
)


def _around(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.builds(Residual, parts=st.lists(inner, min_size=1, max_size=2).map(tuple)),
        st.builds(Twice, part=inner),
        st.builds(Opposed, part=LAYERS, apart=st.sampled_from([1e-3, 1.0])),  # in each other they would leave only rounding
        st.builds(Frozen, part=inner, what=st.sampled_from(["all", "weights", "biases"])),
        st.builds(Unused, part=inner),
    )


PARTS = st.recursive(LAYERS, _around, max_leaves=3)


def _is_trainable(architecture: Architecture) -> bool:
    """Whether some parameter that is used is not frozen."""
    numbers = torch.float64 if architecture.double else torch.float32
    shape, dtype = ((2, TIME, WIDTH), numbers) if architecture.source is None else ((2, TIME), torch.long)
    return architecture.make(0)(torch.zeros(shape, dtype=dtype), torch.full((2,), TIME)).requires_grad


ARCHITECTURES = st.one_of(
    st.builds(
        Architecture,
        source=st.none(),
        parts=st.lists(PARTS, min_size=1, max_size=3).map(tuple),
        head=st.sampled_from(["rows", "rows", "steps", "none"]),
        double=MOSTLY.map(operator.not_),
    ),
    st.builds(
        Architecture,
        source=st.builds(Embedding, padding=YES_NO, sparse=YES_NO, bag=st.sampled_from(["", "sum", "mean", "max"])),
        parts=st.lists(PARTS, max_size=2).map(tuple),
        head=st.sampled_from(["rows", "rows", "steps", "none", "tied"]),
        double=MOSTLY.map(operator.not_),
    ),
).filter(_is_trainable)
