"""Standardised filters: trained by the gradients of the raw weights, one example at a time."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.nn.utils import parametrize

from privopt import Budget, fit
from privopt.errors import InputError
from privopt.measure.clips import l2
from privopt.nets import standardize_weights
from privopt.perexample.networks import TorchOracle

IMAGES, LABELS = torch.randn(10, 2, 7, 7, generator=torch.Generator().manual_seed(0)), torch.arange(10) % 3


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Conv2d(4, 4, 3, groups=2), nn.ReLU(), nn.Flatten(), nn.Linear(36, 3)
    )


def test_gradients_of_raw_weights_equal_those_of_one_example_at_a_time() -> None:
    model = standardize_weights(network())
    oracle = TorchOracle(model, nn.CrossEntropyLoss(), IMAGES, LABELS)
    assert oracle.doubts == []
    grads, lengths, total = oracle(None, None), [], torch.zeros(oracle.dimension)
    for image, label in zip(IMAGES, LABELS, strict=True):
        own = torch.autograd.grad(F.cross_entropy(model(image[None]), label[None]), list(model.parameters()))
        flat = torch.cat([part.flatten() for part in own])
        lengths.append(flat.norm())
        total += flat * min(1.0, 0.5 / float(flat.norm()))
    torch.testing.assert_close(grads.norms(), torch.stack(lengths), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(grads.clipped_sum(l2(0.5)), total, rtol=1e-4, atol=1e-5)


def test_outputs_are_those_of_a_convolution_with_standardised_filters() -> None:
    plain = network()
    wanted = plain[0].weight.detach() - plain[0].weight.detach().mean((1, 2, 3), keepdim=True)  # type: ignore[index]
    wanted /= wanted.square().sum((1, 2, 3), keepdim=True).sqrt()
    found = standardize_weights(plain)
    torch.testing.assert_close(found[0](IMAGES), F.conv2d(IMAGES, wanted, plain[0].bias), rtol=1e-4, atol=1e-4)  # type: ignore[index]
    assert not parametrize.is_parametrized(plain[0])  # type: ignore[index]


def test_raw_weights_are_trained_and_a_killed_run_resumes(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"budget": Budget(3.0, 1e-3), "rounds": 4, "batch_size": 6, "accountant": "rdp", "seed": 0}

    def stop(done: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    def trained(**more: Any) -> nn.Module:
        return fit(standardize_weights(network()), nn.CrossEntropyLoss(), (IMAGES, LABELS), **settings, **more).model

    whole = trained()
    with pytest.raises(KeyboardInterrupt):
        trained(checkpoint=tmp_path / "run", progress=stop)
    resumed = trained(checkpoint=tmp_path / "run")
    before = standardize_weights(network()).state_dict()
    for name, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name])
        assert not torch.equal(value, before[name])
    parametrize.remove_parametrizations(whole[0], "weight")  # type: ignore[index]
    assert "0.weight" in whole.state_dict()


def test_filters_of_one_weight_are_refused() -> None:
    with pytest.raises(InputError, match="filters of one weight"):
        standardize_weights(nn.Sequential(nn.Conv2d(1, 4, 1)))
