"""Layers with a closed form: one file for each family.

`OBSERVED` layers need only their inputs and the gradient of their output. `REWRITTEN` layers contain products that cannot be seen
from outside, so their forward pass is written out. Both are looked up by the forward function, so that a subclass that changes it
is not mistaken for its parent.
"""

from collections.abc import Callable
from typing import Any

from torch import nn

from privopt.perexample.networks.layers.attention import record_attention
from privopt.perexample.networks.layers.basic import group_norm_factors, instance_norm_factors, layer_norm_factors, linear_factors
from privopt.perexample.networks.layers.conv import conv_factors, conv_transpose_factors
from privopt.perexample.networks.layers.embedding import embedding_bag_factors, embedding_factors
from privopt.perexample.networks.layers.recurrent import record_recurrent
from privopt.perexample.networks.tape import FactorRule, Site

__all__ = ["OBSERVED", "REWRITTEN", "FactorRule", "Site"]

OBSERVED: dict[Callable[..., Any], FactorRule] = {
    nn.Linear.forward: linear_factors,
    nn.Conv1d.forward: conv_factors,
    nn.Conv2d.forward: conv_factors,
    nn.Conv3d.forward: conv_factors,
    nn.ConvTranspose1d.forward: conv_transpose_factors,
    nn.ConvTranspose2d.forward: conv_transpose_factors,
    nn.ConvTranspose3d.forward: conv_transpose_factors,
    nn.Embedding.forward: embedding_factors,
    nn.EmbeddingBag.forward: embedding_bag_factors,
    nn.LayerNorm.forward: layer_norm_factors,
    nn.RMSNorm.forward: layer_norm_factors,
    nn.GroupNorm.forward: group_norm_factors,
    nn.InstanceNorm2d.forward: instance_norm_factors,  # all dimensions share it
}

REWRITTEN: dict[Callable[..., Any], Callable[..., Callable[..., Any]]] = {
    nn.LSTM.forward: record_recurrent,
    nn.GRU.forward: record_recurrent,
    nn.RNN.forward: record_recurrent,
    nn.MultiheadAttention.forward: record_attention,
}
