"""What is refused, by name and with what would do; what is left as it was."""

import copy

import pytest
import torch
from torch import Tensor, nn

from privopt.perexample.networks import (
    FlatParameters,
    Recorder,
    TorchOracle,
    UnsupportedLayer,
    UnsupportedLoss,
    per_example_gradients,
    record,
    replace_batchnorm,
)
from tests.perexample.networks.models import MODELS, Uses, Vision, normal
from tests.perexample.networks.reference import assert_exact, squared

CE = nn.CrossEntropyLoss


def classes(count: int = 4) -> Tensor:
    return torch.arange(count) % 2


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.ModuleDict({"conv": nn.Conv2d(1, 4, 3), "norm1": nn.BatchNorm2d(4)})
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder["norm1"](self.encoder["conv"](x)).mean((2, 3)))


def test_batch_norm_is_refused_with_what_to_use() -> None:
    with pytest.raises(UnsupportedLayer) as refusal:
        TorchOracle(Encoder(), CE(), normal(4, 1, 6, 6), classes())
    assert str(refusal.value) == (
        "encoder.norm1 (BatchNorm2d) mixes examples, so no per-example gradient exists. GroupNorm does not mix. "
        "privopt.replace_batchnorm(model) puts it there."
    )


def test_batch_norm_that_is_switched_to_training_later_is_refused() -> None:
    model = Encoder().eval()
    oracle = TorchOracle(model, CE(), normal(4, 1, 6, 6), classes())
    oracle(None, None)
    model.train()
    with pytest.raises(UnsupportedLayer, match="norm1"):
        oracle(None, None)


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (nn.SyncBatchNorm(3), "mixes examples"),
        (nn.BatchNorm1d(3, affine=False), "mixes examples"),
        (nn.InstanceNorm1d(3, affine=True, track_running_stats=True), "track_running_stats=False"),
        (nn.LazyLinear(3), "made-up data"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_modules_that_mix_or_remember_are_refused(module: nn.Module, words: str) -> None:
    with pytest.raises(UnsupportedLayer, match=words):
        Recorder(nn.Sequential(nn.Conv1d(3, 3, 1), module))


def test_embeddings_that_mix_are_refused() -> None:
    for settings, words in (({"scale_grad_by_freq": True}, "scale_grad_by_freq"), ({"max_norm": 1.0}, "max_norm")):
        with pytest.raises(UnsupportedLayer, match=words):
            TorchOracle(nn.Sequential(nn.Embedding(5, 3, **settings), nn.Flatten()), squared, classes()[:, None], normal(4, 3))


def test_group_norm_takes_the_place_of_batch_norm() -> None:
    model = Encoder()
    old = model.encoder["norm1"]
    assert isinstance(old, nn.BatchNorm2d)
    nn.init.uniform_(old.weight)
    replaced = replace_batchnorm(model)
    assert isinstance(replaced, Encoder)
    norm = replaced.encoder["norm1"]
    assert isinstance(norm, nn.GroupNorm)
    torch.testing.assert_close(norm.weight, old.weight)
    assert_exact(replaced, normal(4, 1, 6, 6))
    assert isinstance(replace_batchnorm(nn.BatchNorm1d(4)), nn.GroupNorm)


MIXING = {
    "a mean over the batch": (Uses(lambda m, x: m[0](x - x.mean(0)), nn.Linear(5, 2)), normal(4, 5)),
    "a softmax over the batch": (Uses(lambda m, x: m[0](x).softmax(0), nn.Linear(5, 2)), normal(4, 5)),
    "time first": (Uses(lambda m, x: m[0](x)[0][:, -1], nn.GRU(5, 2)), normal(4, 6, 5)),
}


@pytest.mark.parametrize("name", MIXING)
def test_a_model_whose_gradients_do_not_add_up_is_refused_when_it_is_attached(name: str) -> None:
    model, inputs = MIXING[name]
    with pytest.raises(UnsupportedLayer):
        TorchOracle(model, CE(), inputs, classes())


def test_a_loss_that_mixes_examples_is_refused_when_it_is_attached() -> None:
    with pytest.raises(UnsupportedLayer, match="mixes examples"):
        TorchOracle(nn.Linear(5, 2), lambda output, y: output.mean().expand(len(y)) * output[:, 0], normal(4, 5), classes())
    with pytest.raises(UnsupportedLoss, match="one for each example"):
        TorchOracle(nn.Linear(5, 2), lambda output, y: output.flatten(), normal(4, 5), classes())


def test_an_input_changed_in_place_is_refused_by_name() -> None:
    class Changes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(5, 5)

        def forward(self, x: Tensor) -> Tensor:
            y = x * 2
            z = self.first(y)
            y += 1
            return z + y

    with pytest.raises(UnsupportedLayer, match=r"input of first \(Linear\) was changed in place"):
        per_example_gradients(Changes(), squared, normal(4, 5), normal(4, 5))


@pytest.mark.parametrize(
    "name", ["mlp, in-place", "bare parameters around modules", "encoder, eval", "LSTM, last state", "tied linear layers"]
)
def test_nothing_stays_on_the_model(name: str) -> None:
    torch.manual_seed(0)
    make, inputs = MODELS[name]
    model = make()
    before = copy.deepcopy(model.state_dict())
    attributes = {path: set(module.__dict__) for path, module in model.named_modules()}
    data = inputs(3)
    oracle = TorchOracle(model, squared, data, model(data).detach() + 1)
    oracle(None, None).weighted_sum(torch.ones(3))
    assert list(model.state_dict()) == list(before)
    assert {path: set(module.__dict__) for path, module in model.named_modules()} == attributes
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert all(parameter.grad is None and not parameter.__dict__ for parameter in model.parameters())
    for key, value in model.state_dict().items():
        torch.testing.assert_close(value, before[key])


def test_hooks_go_when_the_forward_pass_fails() -> None:
    model = Vision()
    with pytest.raises(RuntimeError), record(model):
        model(normal(2, 7, 5))
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_flat_parameters_are_the_model() -> None:
    first, second = nn.Linear(3, 2), nn.Linear(2, 2)
    model = nn.Sequential(first, second)
    first.bias.requires_grad_(False)
    values = {name: value.clone() for name, value in model.state_dict().items()}
    flat = FlatParameters(model)
    assert list(flat.slices) == ["0.weight", "1.weight", "1.bias"]
    assert flat.size == 12
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, values[name])
    flat.assign(torch.arange(12.0))
    torch.testing.assert_close(second.bias.detach(), torch.tensor([10.0, 11.0]))
    flat.release()
    flat.vector.zero_()
    torch.testing.assert_close(second.bias.detach(), torch.tensor([10.0, 11.0]))
    assert second.bias.is_leaf
    assert second.bias.requires_grad


def test_a_vector_that_is_assigned_is_used_itself_and_the_one_before_stays_as_it_was() -> None:
    """Differences need the gradients at the iterate before: it must not change under them."""
    flat = FlatParameters(nn.Linear(2, 3))
    before, values, after = flat.vector, flat.vector.clone(), torch.arange(9.0)
    flat.assign(after)
    assert all(parameter.data_ptr() != before.data_ptr() for parameter in flat.parameters.values())
    after.zero_()
    assert all(bool((parameter == 0).all()) for parameter in flat.parameters.values())
    torch.testing.assert_close(before, values)
    flat.assign(torch.arange(9.0, dtype=torch.float64))
    assert flat.parameters["bias"].tolist() == [6.0, 7.0, 8.0]
    assert flat.vector.dtype == torch.float32


def test_flat_parameters_need_one_type() -> None:
    with pytest.raises(UnsupportedLayer, match=r"1\.weight is torch\.float64"):
        FlatParameters(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double()))
    with pytest.raises(UnsupportedLayer, match=r"0\.weight is torch\.complex64.*view_as_complex"):
        FlatParameters(nn.Sequential(nn.Linear(2, 2, dtype=torch.complex64)))
    with pytest.raises(UnsupportedLayer, match="no trainable parameter"):
        FlatParameters(nn.ReLU())
