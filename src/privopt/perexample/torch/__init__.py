"""Networks: exact per-example gradients of any torch module, at almost the cost of an ordinary step.

One forward pass records what goes into each layer; one backward pass, through activations only, gives the gradient of what comes
out. From the two come every example's norm and any weighted sum, in closed form: no second backward pass, no vector formed.
Nothing here is private.
"""

from privopt.perexample.torch.chunked import ChunkedGrads
from privopt.perexample.torch.errors import UnsupportedLayer, UnsupportedLoss
from privopt.perexample.torch.flat import FlatParameters, Layout
from privopt.perexample.torch.functions import clipped_sum, per_example_gradients, per_example_norms
from privopt.perexample.torch.grads import TorchGrads, clip_weights
from privopt.perexample.torch.losses import per_example
from privopt.perexample.torch.oracle import TorchOracle
from privopt.perexample.torch.record import Recorder, record
from privopt.perexample.torch.support import replace_batchnorm

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
