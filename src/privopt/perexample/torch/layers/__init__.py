"""Layers with a closed form: one file for each family.

`OBSERVED` layers are watched by a forward hook: what went in and the gradient of what came out are all they need.
`REWRITTEN` layers hide products inside, so their forward pass is written out. Both are found by the forward function, so that a
subclass that changes it is not mistaken for its parent.
"""

from collections.abc import Callable
from typing import Any

from torch import nn

from privopt.perexample.torch.layers.attention import attention
from privopt.perexample.torch.layers.conv import conv, conv_transpose
from privopt.perexample.torch.layers.embedding import embedding, embedding_bag
from privopt.perexample.torch.layers.linear import linear
from privopt.perexample.torch.layers.norm import group_norm, instance_norm, layer_norm
from privopt.perexample.torch.layers.recurrent import recurrent
from privopt.perexample.torch.layers.site import LayerGrads, Site

__all__ = ["OBSERVED", "REWRITTEN", "LayerGrads", "Site"]

OBSERVED: dict[Callable[..., Any], LayerGrads] = {
    nn.Linear.forward: linear,
    nn.Conv1d.forward: conv,
    nn.Conv2d.forward: conv,
    nn.Conv3d.forward: conv,
    nn.ConvTranspose1d.forward: conv_transpose,
    nn.ConvTranspose2d.forward: conv_transpose,
    nn.ConvTranspose3d.forward: conv_transpose,
    nn.Embedding.forward: embedding,
    nn.EmbeddingBag.forward: embedding_bag,
    nn.LayerNorm.forward: layer_norm,
    nn.RMSNorm.forward: layer_norm,
    nn.GroupNorm.forward: group_norm,
    nn.InstanceNorm2d.forward: instance_norm,  # all dimensions share it
}

REWRITTEN: dict[Callable[..., Any], Callable[..., Callable[..., Any]]] = {
    nn.LSTM.forward: recurrent,
    nn.GRU.forward: recurrent,
    nn.RNN.forward: recurrent,
    nn.MultiheadAttention.forward: attention,
}
