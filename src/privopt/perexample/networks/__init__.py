"""Networks: exact per-example gradients of any torch module, at almost the cost of an ordinary step.

One forward pass records what goes into each layer; one backward pass, through activations only, gives the gradient of what comes
out. From the two come every example's norm and any weighted sum, in closed form: no second backward pass, no vector formed.
Nothing here is private.
"""

from privopt.perexample.networks.chunked import ChunkedGrads
from privopt.perexample.networks.functions import clipped_sum, per_example_gradients, per_example_norms
from privopt.perexample.networks.layout import FlatParameters, Layout
from privopt.perexample.networks.loss_modules import per_example
from privopt.perexample.networks.recorder import Recorder, record
from privopt.perexample.networks.torch_grads import TorchGrads, clip_weights
from privopt.perexample.networks.torch_oracle import TorchOracle
from privopt.perexample.networks.unsupported import UnsupportedLayer, UnsupportedLoss, replace_batchnorm

__all__ = [
    "ChunkedGrads",
    "FlatParameters",
    "Layout",
    "Recorder",
    "TorchGrads",
    "TorchOracle",
    "UnsupportedLayer",
    "UnsupportedLoss",
    "clip_weights",
    "clipped_sum",
    "per_example",
    "per_example_gradients",
    "per_example_norms",
    "record",
    "replace_batchnorm",
]
