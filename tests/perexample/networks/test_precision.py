"""Half precision: autocast rounds the gradients; their norms and sums are exact, so a clip keeps its bound."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from privopt.measure.clips import l2
from privopt.perexample.networks import Layout, Recorder, TorchGrads, TorchOracle, UnsupportedLayer, per_example_gradients
from privopt.perexample.networks.factors.factor import scaled_product
from privopt.perexample.networks.rng import RngState
from privopt.perexample.networks.unsupported import refuse_rounding, rounding_settings
from tests.perexample.networks.models import MODELS, Uses, normal
from tests.perexample.networks.reference import assert_close, one_at_a_time, squared, targets_for

BOUND = 0.5
pytestmark = [
    pytest.mark.filterwarnings("ignore:LSTM with projections"),
    pytest.mark.filterwarnings("ignore:enable_nested_tensor is True"),
    pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight"),  # RMSNorm of torch is slow under autocast
]


def in_single(output: Tensor, targets: Tensor) -> Tensor:
    return squared(output.float(), targets)


def alone(grads: TorchGrads, example: int) -> TorchGrads:
    return grads.take(torch.tensor([example]))


@pytest.mark.parametrize("inside", [True, False], ids=["sums under autocast", "sums after it"])
@pytest.mark.parametrize("name", MODELS)
def test_under_autocast_norms_and_sums_are_those_of_the_same_vectors(name: str, inside: bool) -> None:
    torch.manual_seed(0)
    make, inputs = MODELS[name]
    model, data = make(), inputs(5)
    targets = targets_for(model, data)
    with torch.autocast("cpu", torch.bfloat16):
        grads = per_example_gradients(model, in_single, data, targets)
    with torch.autocast("cpu", torch.bfloat16, enabled=inside):
        vectors = grads.dense().double()
        assert_close(grads.norms()[:, None], vectors.norm(dim=1)[:, None], 1e-6)
        clipped = torch.stack([alone(grads, example).clipped_sum(l2(BOUND)) for example in range(5)]).double()
    assert float(clipped.norm(dim=1).max()) <= BOUND * (1 + 1e-6)
    assert vectors.dtype == torch.float64
    wanted = one_at_a_time(model, data, targets)
    assert_close(grads.norms()[:, None], wanted.norm(dim=1)[:, None], 2e-2)  # bfloat16 has 8 bits
    assert_close(vectors, wanted, 5e-2)


@pytest.mark.parametrize(
    "model",
    [
        Uses(lambda m, x: m[0](x), nn.Linear(300, 200)),
        Uses(lambda m, x: m[0](x.mean(1)), nn.Linear(300, 200)),
        Uses(lambda m, x: m[0](x[:, None]), nn.Conv2d(1, 16, 5)),
    ],
    ids=["sequence", "rows", "convolution"],
)
@pytest.mark.parametrize("half", [True, False])
def test_the_bound_holds_to_a_millionth_also_for_large_layers(model: nn.Module, half: bool) -> None:
    inputs = 3 * normal(4, 12, 300)
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        grads = per_example_gradients(model, lambda output: output.float().square().flatten(1).sum(1), inputs)
    for example in range(4):
        assert float(alone(grads, example).clipped_sum(l2(BOUND)).double().norm()) <= BOUND * (1 + 1e-6)


class InHalf(nn.Module):
    """A forward pass that chooses its precision itself."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return self.second(torch.tanh(self.first(x)))


def test_a_model_that_uses_autocast_itself_is_checked_in_its_own_precision() -> None:
    oracle = TorchOracle(InHalf(), nn.CrossEntropyLoss(), normal(5, 6), torch.arange(5) % 3)
    assert oracle(None, None).norms().dtype == torch.float32


def test_a_model_that_mixes_examples_under_autocast_is_still_found_out() -> None:
    class Mixes(InHalf):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x - x.mean(0))

    with pytest.raises(UnsupportedLayer, match="mixes examples"):
        TorchOracle(Mixes(), nn.CrossEntropyLoss(), normal(5, 6), torch.arange(5) % 3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_parameters_in_half_precision_are_refused(dtype: torch.dtype) -> None:
    with pytest.raises(UnsupportedLayer, match=r"0\.weight is torch\..*16.*torch\.autocast"):
        Layout(nn.Sequential(nn.Linear(2, 2)).to(dtype))


@pytest.fixture
def _rounded_rounding_settings() -> Iterator[None]:
    matmul = getattr(torch.backends.mkldnn, "matmul")  # noqa: B009  # newer than its types
    before = matmul.fp32_precision
    matmul.fp32_precision = "bf16"
    yield
    matmul.fp32_precision = before


@pytest.mark.skipif(not hasattr(torch.backends.mkldnn, "matmul"), reason="torch before 2.9 has no such setting")
@pytest.mark.usefixtures("_rounded_rounding_settings")
def test_rounding_settings_that_torch_was_told_to_round_are_refused() -> None:
    recorder = Recorder(nn.Linear(2, 2))
    with pytest.raises(UnsupportedLayer, match=r"rounded to bf16.*ieee"), recorder.record():
        pass


@pytest.mark.skipif(not hasattr(torch.backends.mkldnn, "matmul"), reason="torch before 2.9 has no such setting")
def test_convolutions_on_a_gpu_are_refused_while_it_rounds_them() -> None:
    """tf32 is the default of cuDNN."""
    refuse_rounding(rounding_settings(nn.Linear(2, 2), torch.device("cuda")))
    with pytest.raises(UnsupportedLayer, match=r"rounded to tf32.*cudnn\.conv"):
        refuse_rounding(rounding_settings(nn.Conv2d(1, 1, 1), torch.device("cuda")))


def test_draws_are_repeated_and_leave_no_trace() -> None:
    draws = RngState(torch.device("cpu"))
    first, second = torch.rand(3), torch.rand(3)
    with draws.replay():
        torch.testing.assert_close(torch.rand(3), first)
    draws = RngState(torch.device("cpu"))
    third = torch.rand(3)
    with draws.replay():
        torch.testing.assert_close(torch.rand(3), third)
    assert not torch.equal(second, third)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_scaled_norm_is_too_small_where_squares_underflow(dtype: torch.dtype) -> None:
    """‖(δ ⊗ a) ⊙ D‖ against the same in logarithms; D² underflows, in all of a column, in some of it, or in one column."""
    low = -23 if dtype == torch.float32 else -165  # 10 to this power, squared, is 0
    diagonals = torch.tensor([[[low, low], [low, low]], [[0, low], [0, low]], [[0, 0], [low, low]], [[low, 0], [0, low]]])
    deltas = torch.tensor([[0.0, 0.0], [low / 2, low / 2], [low, 5], [5, low]]).double()
    inputs = torch.tensor([[0.0, 0.0], [-1.2 * low, -1.2 * low], [low, -1.2 * low], [-1.2 * low, low]]).double()
    for powers in diagonals.double():
        for delta in deltas:
            terms = delta[:, None] + powers + inputs[:, None]
            true = (2 * torch.tensor(10.0).double().log() * terms).flatten(1).logsumexp(1)
            given = [(10**part).to(dtype) for part in (delta.expand(4, 2), powers, inputs)]
            found = scaled_product(*given).double().log()
            counts = true > -30  # shorter ones are shorter than any bound
            assert (found[counts] > true[counts] - 1e-4).all()


def test_a_scaled_norm_is_that_of_the_vector_where_a_diagonal_is_zero_infinite_or_none() -> None:
    delta, inputs = torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 1e30]])
    assert scaled_product(delta, torch.tensor([[2.0, 0.0], [1.0, 0.0]]), inputs).item() == pytest.approx(72.0)
    assert scaled_product(delta, torch.zeros(2, 2), inputs).item() == 0.0
    for no_number in (torch.inf, torch.nan):
        assert not scaled_product(delta, torch.tensor([[2.0, no_number], [1.0, 0.0]]), inputs).isfinite().any()
