"""Networks for the rows of a table: layers of tanh units between the inputs and the scores.

tanh keeps activations, and with them gradients, bounded. Under noise ReLU was about as good with one hidden layer, and less
reliable with two. The start is random and depends on no data.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from privopt.measure.randomness import Rng
from privopt.perexample.design import Frame
from privopt.perexample.grads import Vector
from privopt.perexample.networks import per_example_gradients
from privopt.perexample.networks.examples import make_up

LENGTH = 5.0  # of a typical row when it enters a network
PROBES = 64  # made-up rows
Layer = tuple[Vector, Vector]  # weights (outputs × inputs) and biases


def build_mlp(inputs: int, hidden: Sequence[int], outputs: int, rng: Rng) -> nn.Sequential:
    """A network whose units have variance 1 at the start, before tanh, for rows of length `LENGTH`.

    >>> from privopt.measure.randomness import generator
    >>> build_mlp(3, (8, 4), 2, generator(0))
    Sequential(
      (0): Linear(in_features=3, out_features=8, bias=True)
      (1): Tanh()
      (2): Linear(in_features=8, out_features=4, bias=True)
      (3): Tanh()
      (4): Linear(in_features=4, out_features=2, bias=True)
    )
    """
    layers: list[nn.Module] = []
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(int(rng.integers(2**62)))
        for width, following in zip((inputs, *hidden), hidden, strict=False):
            layer = nn.Linear(width, following)
            layer.weight *= math.sqrt(3)  # torch starts with variance 1/(3 inputs)
            if not layers:
                layer.weight *= math.sqrt(inputs) / LENGTH
            layers += [layer, nn.Tanh()]
        return nn.Sequential(*layers, nn.Linear(hidden[-1], outputs))


def gradient_norm(model: nn.Sequential, inputs: int) -> float:
    """The length of the gradient of a score with respect to all parameters, for made-up rows of length `LENGTH`."""
    rows: Tensor = make_up(torch.zeros(1, inputs), PROBES, torch.Generator().manual_seed(0))
    rows *= LENGTH / rows.norm(dim=1, keepdim=True)
    norms = per_example_gradients(model, lambda scores, _: scores[:, 0], rows, torch.zeros(PROBES)).norms()
    return float(norms.square().mean().sqrt())


def unfold_layers(model: nn.Sequential, frame: Frame) -> list[Layer]:
    """The layers for rows as they were before the frame."""
    layers = [
        (layer.weight.detach().double().numpy(), layer.bias.detach().double().numpy())
        for layer in model
        if isinstance(layer, nn.Linear)
    ]
    slopes, constants = frame.unfold(layers[0][0])
    return [(slopes, layers[0][1] + constants), *layers[1:]]
