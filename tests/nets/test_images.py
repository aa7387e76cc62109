"""The recipe for images: features that are public functions of one image, and a linear model by its own rule."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from privopt import Budget, Ledger, fit
from privopt.errors import InputError
from privopt.methods.problem import Choices, Problem, multinomial_facts
from privopt.nets import ImageFeatures, fit_images
from privopt.nets.images import CLIP, LONGEST, METHOD, SHAKE
from privopt.nets.scattering import draw_strokes


@pytest.fixture(scope="module")
def features() -> ImageFeatures:
    return ImageFeatures(8, width=40)


def two_kinds(count: int) -> tuple[Tensor, Tensor]:
    labels = torch.arange(count) % 2
    images = draw_strokes(count, 8, torch.Generator().manual_seed(1))
    images[labels == 1] = images[labels == 1] * torch.linspace(0, 1, 8)
    return images, labels


def test_features_are_of_one_image_and_about_as_long_as_1(features: ImageFeatures) -> None:
    images, _ = two_kinds(200)
    found = features(images)
    assert found.shape == (200, features.width)
    torch.testing.assert_close(found[:3], torch.cat([features(image[None]) for image in images[:3]]), rtol=1e-3, atol=1e-4)
    assert 0.3 < float(found.norm(dim=1).median()) < 3


def test_features_are_the_same_for_everybody(features: ImageFeatures) -> None:
    images, _ = two_kinds(5)
    torch.manual_seed(17)
    assert torch.equal(ImageFeatures(8, width=40)(images), features(images))


def test_noise_alone_moves_each_parameter_as_far_as_the_rule_says() -> None:
    """T rounds of noise zC/n through momentum: a random walk of steps η zC/(n(1 − β))."""
    for size, noise in ((60_000, 28.0), (2_000, 30.0)):
        problem = Problem("network", Choices(), multinomial_facts(10), size, 501, 5010, 1.0, 1.0)
        found = METHOD.arguments(problem, noise)
        rng, velocity, place = np.random.default_rng(0), np.zeros(2000), np.zeros(2000)
        for _ in range(found["rounds"]):
            velocity = found["momentum_decay"] * velocity + rng.normal(0, noise * found["clip_bound"] / size, 2000)
            place -= found["learning_rate"] * velocity
        assert 0.75 * SHAKE < place.std() < 1.1 * SHAKE
    assert METHOD.arguments(problem, 1e-9)["learning_rate"] == LONGEST / CLIP
    assert not math.isinf(METHOD.arguments(problem, 0.0)["learning_rate"])


def test_one_call_learns_and_records_what_it_planned() -> None:
    images, labels = two_kinds(1000)
    ledger, budget = Ledger(), Budget(2.0, 1e-5)
    result = fit_images(images, labels, classes=2, budget=budget, ledger=ledger, seed=0)
    assert float((result.model(images).argmax(1) == labels).float().mean()) > 0.9
    assert 1.9 < ledger.epsilon(1e-5) <= 2.0
    same: dict[str, Any] = {"budget": budget, "method": METHOD, "seed": 0}
    assert isinstance(result.model.linear, nn.Linear)
    linear = nn.Linear(result.model.linear.in_features, 2)
    nn.init.zeros_(linear.weight)
    nn.init.zeros_(linear.bias)
    fit(linear, nn.CrossEntropyLoss(), (ImageFeatures(8)(images), labels), **same)
    torch.testing.assert_close(linear.weight, result.model.linear.weight)


def test_what_is_no_image_is_refused() -> None:
    labels = torch.zeros(4, dtype=torch.long)
    for wrong in (torch.zeros(4, 1, 8, 8, dtype=torch.uint8), torch.zeros(4, 8, 8), torch.zeros(4, 1, 8, 12)):
        with pytest.raises(InputError, match="divide bytes by 255"):
            fit_images(wrong, labels, classes=2, budget=Budget(2.0, 1e-5))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"images": np.zeros((4, 1, 8, 8))}, "ndarray and Tensor, but are tensors"),
        ({"classes": 0}, "classes is 0, but"),
        ({"classes": "2"}, "classes is '2', but"),
        ({"images": torch.zeros(0, 1, 8, 8)}, "there are no images"),
        ({"images": torch.full((4, 1, 8, 8), 255.0)}, "not between 0 and 1.*divide bytes by 255"),
    ],
    ids=str,
)
def test_what_cannot_be_learnt_is_named(changed: dict[str, Any], said: str) -> None:
    given: dict[str, Any] = {"images": torch.zeros(4, 1, 8, 8), "labels": torch.zeros(4, dtype=torch.long), "classes": 2}
    with pytest.raises(InputError, match=said):
        fit_images(**given | changed, budget=Budget(2.0, 1e-5))


@pytest.mark.parametrize("kind", [torch.float64, torch.float16])
def test_features_of_other_floating_point_types_are_computed_in_single_precision(
    features: ImageFeatures, kind: torch.dtype
) -> None:
    images = (two_kinds(3)[0] * 8).round() / 8
    assert torch.equal(features(images.to(kind)), features(images))
