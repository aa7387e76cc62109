"""Networks: private training of any PyTorch model."""

import privopt.measure.randomness.torch_noise  # noqa: F401  # what is missing is missed now, and not when a round is paid
from privopt.measure.clips import automatic, per_layer
from privopt.nets.facts import clipped_sum, per_example_norms
from privopt.nets.fitting import Fitted, fit
from privopt.nets.images import fit_images
from privopt.nets.loops import make_private
from privopt.nets.private_loop import Private
from privopt.nets.ranks import Shard
from privopt.nets.scattering import ImageFeatures
from privopt.nets.views import Views
from privopt.nets.weight_standardization import standardize_weights
from privopt.perexample.networks import UnsupportedLayer, replace_batchnorm

__all__ = [
    "Fitted",
    "ImageFeatures",
    "Private",
    "Shard",
    "UnsupportedLayer",
    "Views",
    "automatic",
    "clipped_sum",
    "fit",
    "fit_images",
    "make_private",
    "per_example_norms",
    "per_layer",
    "replace_batchnorm",
    "standardize_weights",
]
