"""Images without a public network: fixed features and a private linear model, in one call.

The rule. T rounds of step η on all n examples move each parameter by η√T zC/n by noise alone, and momentum β by 1/(1 − β) times
that. Features have length about 1, so this is `SHAKE`, the distance by which noise may move the score of an image; ηC is
`LONGEST` at most. The clip bound C is so small that nearly every gradient counts alike. T cancels, as it does for all linear
models, but steps are long here: momentum of 0.9 swings, and neither no momentum nor half of the rounds arrive. The numbers are
empirical, from training images of MNIST of which 10,000 were held out, at ε = 1.2 and 3.
"""

import math
import reprlib
from collections.abc import Callable
from dataclasses import replace
from os import PathLike
from typing import Any

from torch import Tensor, nn

from privopt.errors import InputError
from privopt.methods import find_method
from privopt.methods.problem import Problem
from privopt.nets.fitting import Fitted, fit
from privopt.nets.scattering import ImageFeatures
from privopt.postprocess.release import average
from privopt.privacy.budget import Budget
from privopt.privacy.ledger import Ledger

ROUNDS = 200
MOMENTUM = 0.5
CLIP = 0.06
SHAKE = 1.0
LONGEST = 100.0


def image_defaults(problem: Problem, noise_multiplier: float) -> dict[str, Any]:
    """Settings of descent with momentum on rows of length about 1. See the top of this file."""
    whole = problem.on_all_examples
    noise = noise_multiplier * CLIP / whole.size
    return {
        "rounds": ROUNDS,
        "sampling": whole.sampler,
        "clip_bound": CLIP,
        "learning_rate": min((1 - MOMENTUM) * SHAKE / (math.sqrt(ROUNDS) * max(noise, 1e-300)), LONGEST / CLIP),
        "momentum_decay": MOMENTUM,
        "release": average("last half"),
    }


METHOD = replace(find_method("dp-sgd"), defaults=image_defaults)


class ImageClassifier(nn.Module):
    """Fixed features, computed on the way, and one linear layer, which starts at 0: images between 0 and 1 → scores."""

    def __init__(self, size: int, channels: int, classes: int) -> None:
        super().__init__()
        self.features = ImageFeatures(size, channels)
        self.linear = nn.Linear(self.features.width, classes)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.linear(self.features(images))
        return scores


def fit_images(
    images: Tensor,
    labels: Tensor,
    *,
    classes: int,
    budget: Budget,
    ledger: Ledger | None = None,
    checkpoint: str | PathLike[str] | None = None,
    progress: bool | Callable[[int], None] = True,
    seed: int | None = None,
) -> Fitted:
    """Train a private classifier of square images (examples, channels, size, size) with values between 0 and 1.

    The features are scattering coefficients, the same for everybody (`ImageFeatures`); a linear model on them is trained with
    every example in each round. `result.model` takes images.

    **Guarantee** That of `fit` for the linear model: a feature is a public function of one image.
    """
    _check_images(images, labels, classes)
    model = ImageClassifier(images.shape[2], images.shape[1], classes)
    result = fit(
        model.linear, nn.CrossEntropyLoss(), (model.features(images), labels), budget=budget, method=METHOD,
        ledger=ledger, checkpoint=checkpoint, progress=progress, seed=seed,
    )  # fmt: skip
    return replace(result, model=model)


def _check_images(images: Any, labels: Any, classes: Any) -> None:
    """Refuse what `fit_images` does not take."""
    if not (isinstance(images, Tensor) and isinstance(labels, Tensor)):
        given = f"{type(images).__name__} and {type(labels).__name__}"
        raise InputError(f"images and labels are {given}, but are tensors. torch.as_tensor makes a tensor of an array.")
    if not isinstance(classes, int) or isinstance(classes, bool) or classes < 2:
        raise InputError(f"classes is {reprlib.repr(classes)}, but it is the number of classes, a whole number of at least 2.")
    if images.ndim != 4 or images.shape[2] != images.shape[3] or not images.is_floating_point():
        raise InputError(
            f"images have the shape {tuple(images.shape)} and the type {images.dtype}, but are (examples, channels, size, size), "
            "numbers between 0 and 1: divide bytes by 255."
        )
    if not len(images):
        raise InputError("there are no images.")
    if images.min() < 0 or images.max() > 1:
        raise InputError(
            "images hold numbers that are not between 0 and 1, for which the features are made: divide bytes by 255."
        )
