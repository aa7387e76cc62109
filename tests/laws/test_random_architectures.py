"""Laws 1 and 3 for random networks: norms and sums are those of each example alone, and no clipped vector is too long."""

from typing import Any, Literal

import pytest
from hypothesis import given, settings

from privopt.perexample.networks import TorchOracle
from tests.laws import architectures as made
from tests.laws import exactness
from tests.laws.architectures import Architecture, Part
from tests.laws.exactness import CASES, WAYS, Batch, Case, Minus, Scaled, Shifted, Step, cases_of_persons, check

pytestmark = [
    pytest.mark.filterwarnings("ignore:enable_nested_tensor is True"),
    pytest.mark.filterwarnings("ignore:this model is exact but slow"),
]

DEPTHWISE = [(1, False), (2, False), (3, False), (2, True)]  # dimensions, and whether transposed
LAYERS: list[Part] = [
    *(made.Dense(on) for on in ("rows", "steps", "pixels", "merged")),
    made.Dense("rows", bias="buffer"),
    made.Dense("rows", bias="none"),
    *(made.Convolution(pixels, transposed) for pixels in (1, 2, 3) for transposed in (False, True)),
    made.Convolution(2, groups=2, kernel=3, stride=2, padding=1),
    *(made.Convolution(pixels, t, groups=3, kernel=3, padding=2, dilation=2, depthwise=True) for pixels, t in DEPTHWISE),
    *(made.Norm(kind) for kind in ("layer", "layer of steps", "rms", "group", "instance 1", "instance 2", "instance 3")),
    *(made.Recurrent(kind, layers=2, both=True, packed=packed) for kind in ("RNN", "LSTM", "GRU") for packed in (False, True)),
    *(made.Cells(kind) for kind in ("RNNCell", "LSTMCell", "GRUCell")),
    made.Attention(),
    made.Attention(cross=True, padded=True, extended=True),
    made.Encoder(),
    *(made.Other(kind) for kind in made.OTHERS),
    made.WeightNorm(),
    *(made.Shared(kind) for kind in ("one", "none", "scores", "prompt", "biased attention", "padded attention")),
    *(made.Product(kind) for kind in ("right", "transposed", "added", "both", "table", "summed")),
    made.Tied("rows", "rows"),
    made.Tied("rows", "steps"),
]


@pytest.mark.parametrize("head", ["none", "rows", "steps"])
@pytest.mark.parametrize("layer", LAYERS, ids=repr)
def test_every_layer_before_every_head(layer: Part, head: Literal["none", "rows", "steps"]) -> None:
    check(Case(Architecture(None, (layer,), head), Batch(("usual", "tiny", "constant"), 1)))


@pytest.mark.parametrize("way", ["grouped", "grouped, a few at a time"])
@pytest.mark.parametrize("layer", [layer for layer in LAYERS if isinstance(layer, made.Convolution)], ids=repr)
def test_every_convolution_as_a_grouped_one(layer: Part, way: str) -> None:
    check(Case(Architecture(None, (layer,), "rows"), Batch(("usual", "tiny", "constant"), 1), way=way))


@settings(max_examples=300)
@given(CASES)
def test_random_architectures(case: Case) -> None:
    check(case)


@pytest.mark.parametrize("layer", LAYERS, ids=repr)
@pytest.mark.parametrize("way", ["Gram", "a few at a time", "grouped"])
def test_every_layer_for_persons_with_several_rows(layer: Part, way: str) -> None:
    batch = Batch(("usual", "tiny", "constant", "usual", "usual", "zero", "usual", "usual"), 1)
    check(Case(Architecture(None, (layer,), "rows"), batch, way=way, persons=(1, 5, 2)))


@settings(max_examples=200)
@given(cases_of_persons())
def test_random_architectures_for_persons_with_several_rows(case: Case) -> None:
    check(case)


TURNED = Minus("turned")
CANCELLING: list[tuple[Step, ...]] = [(Minus(1e-6),), (TURNED,), (TURNED, Scaled()), (Shifted(True),), (Scaled(), Shifted(True))]


@pytest.mark.parametrize("double", [False, True], ids=["single", "double"])
@pytest.mark.parametrize("steps", CANCELLING, ids=repr)
@pytest.mark.parametrize("way", WAYS)
def test_vectors_that_all_but_cancel(steps: tuple[Step, ...], way: str, double: bool) -> None:
    """Turned signs make differences of equal gradients: without a target, an output and its slope turn together."""
    parts: list[Part] = [made.Dense("rows", bias="none"), made.Dense("steps"), made.Twice(made.Dense("rows"))]
    for seed, part in enumerate(parts):
        architecture = Architecture(None, (made.Dense("rows", 9, "none"), part), "none", double)
        check(Case(architecture, Batch(("constant", "zero", "usual"), seed), steps, bound=1e-8, way=way))


NORM, SCALE = made.Norm("layer"), made.Frozen(made.Norm("instance 2"), "biases")
ATTENTION, LONGER = made.Attention(bias=False), made.Attention(padded=True, extended=True)
ROUNDED: dict[str, Case] = {  # further off than parameters and examples that are moved explain
    "P − P is rounding of P": Case(
        Architecture(None, (made.Opposed(made.Attention(), 1.0), NORM, NORM, NORM)), Batch(("zero", "usual"), 17), (Minus(1.0),)
    ),
    "P − P in double precision": Case(
        Architecture(made.Embedding(padding=True, bag="mean"), (made.Opposed(LONGER, 1e-3),), "rows", double=True),
        Batch(("usual", "zero"), 195),
        (Scaled(uneven=True),),
    ),
    "x − mean(x) is rounding of x": Case(Architecture(None, (SCALE, SCALE)), Batch(("usual", "zero"), 152)),
    "scores of 10⁶ are rounded to 0.06": Case(Architecture(None, (ATTENTION,)), Batch(("huge", "usual"), 90)),
}


@pytest.mark.parametrize("case", ROUNDED.values(), ids=ROUNDED)
def test_rounding_of_every_operation_is_explained(case: Case) -> None:
    check(case)


@pytest.mark.parametrize("case", ROUNDED.values(), ids=ROUNDED)
def test_a_thousandth_is_not_explained_by_rounding(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Norms and sums of gradients that are all too long, consistently."""

    def oracle(model: Any, loss: Any, *data: Any, **settings: Any) -> TorchOracle:
        return TorchOracle(model, lambda outputs, targets: 1.001 * loss(outputs, targets), *data, **settings)

    monkeypatch.setattr(exactness, "TorchOracle", oracle)
    with pytest.raises(AssertionError, match="what rounding explains"):
        check(case)
