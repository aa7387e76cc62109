"""Networks: exact per-example gradients of any torch module, at almost the cost of an ordinary step.

One forward pass records the inputs of each layer; one backward pass, through activations only, gives the gradients of their
outputs. Norms and weighted sums of per-example gradients follow in closed form: no second backward pass, no gradient formed.
Nothing here is private.
"""

from privopt.perexample.networks.layout import FlatParameters, Layout
from privopt.perexample.networks.loss_modules import per_example
from privopt.perexample.networks.recorder import Recorder, per_example_gradients, record
from privopt.perexample.networks.torch_grads import ChunkedGrads, PersonGrads, TorchGrads
from privopt.perexample.networks.torch_oracle import TorchOracle
from privopt.perexample.networks.torch_persons import TorchPersonOracle, TorchRowsOfPersons
from privopt.perexample.networks.unsupported import UnsupportedLayer, UnsupportedLoss, replace_batchnorm

__all__ = [
    "ChunkedGrads",
    "FlatParameters",
    "Layout",
    "PersonGrads",
    "Recorder",
    "TorchGrads",
    "TorchOracle",
    "TorchPersonOracle",
    "TorchRowsOfPersons",
    "UnsupportedLayer",
    "UnsupportedLoss",
    "per_example",
    "per_example_gradients",
    "record",
    "replace_batchnorm",
]
