"""nn.MultiheadAttention, also inside torch's transformer layers: its projections are linear layers that hooks cannot see.

The forward pass is written out so that each projection has a tap; its results are those of torch's own.
"""

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from privopt.perexample.networks.factors import Dense, Outer, Signal, Term
from privopt.perexample.networks.layers.basic import as_sequences, sum_over_time
from privopt.perexample.networks.model_state import at_least_float32
from privopt.perexample.networks.tape import Gradients, MakeFactors, ParameterFactors, Site, Tape
from privopt.perexample.networks.unsupported import UnsupportedLayer


def record_attention(module: nn.MultiheadAttention, name: str, tape: Tape) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """A forward function for the module that records its projections."""
    taps = _Taps(module, name, tape)

    def forward(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        if query.ndim != 3:
            raise UnsupportedLayer(
                f"{name} (MultiheadAttention) was given a query without a batch dimension. Use query.unsqueeze."
            )
        if is_causal and attn_mask is None:
            raise RuntimeError("Need attn_mask if specifying the is_causal hint.")
        q, k, v = taps.project(query, key, value)  # (examples, time, width) each
        examples, longest, wide = q.shape
        heads = module.num_heads
        causal = is_causal and key_padding_mask is None and not need_weights
        mask = None if causal else _additive(attn_mask, q.dtype)
        padding = _additive(key_padding_mask, q.dtype)
        if module.bias_k is not None and module.bias_v is not None:
            k, v = taps.extend(k, "bias_k"), taps.extend(v, "bias_v")
            mask, padding = _widen(mask), _widen(padding)
        q, k, v = (x.view(examples, -1, heads, wide // heads).transpose(1, 2) for x in (q, k, v))  # examples, heads, time, width
        if module.add_zero_attn:
            k, v = (F.pad(x, (0, 0, 0, 1)) for x in (k, v))
            mask, padding = _widen(mask), _widen(padding)
        if mask is not None:
            mask = mask.view(examples, heads, *mask.shape[1:]) if mask.ndim == 3 else mask
        if padding is not None:
            rows = padding[:, None, None, :]
            mask = rows if mask is None else mask + rows
        dropout = module.dropout if module.training else 0.0
        weights: Tensor | None = None
        if need_weights:
            scores = q @ k.transpose(2, 3) / math.sqrt(q.shape[3])
            weights = F.dropout(torch.softmax(scores if mask is None else scores + mask, 3), dropout)
            attended = weights @ v
            weights = weights.mean(1) if average_attn_weights else weights
        else:
            attended = F.scaled_dot_product_attention(q, k, v, mask, dropout, is_causal=causal)
        attended = attended.transpose(1, 2).reshape(examples, longest, wide)
        out = taps.linear(attended, module.out_proj.weight, module.out_proj.bias)
        return out if module.batch_first else out.transpose(0, 1), weights

    return forward


class _Taps:
    """The projections of one attention module. Tensors are (examples, time, width)."""

    def __init__(self, module: nn.MultiheadAttention, name: str, tape: Tape) -> None:
        self._module, self._name, self._tape = module, name, tape

    def _tap(self, outputs: list[Tensor], kept: list[Tensor], make_factors: MakeFactors) -> None:
        if all(output.requires_grad for output in outputs):
            self._tape.tap(self._name, "MultiheadAttention", outputs, kept, make_factors)

    def _first(self, tensor: Tensor, examples: int) -> Tensor:
        """(examples, time, width): several sequences of one example are one longer sequence."""
        return as_sequences(Site(self._name, "MultiheadAttention", 0, examples).examples_first(tensor))

    def _each(self, gradients: Gradients, outputs: Sequence[torch.Size], examples: int) -> list[Tensor]:
        """The gradients, examples first; 0 where no loss depends on an output."""
        like = next(gradient for gradient in gradients if gradient is not None)
        pairs = zip(gradients, outputs, strict=True)
        return [self._first(like.new_zeros(shape) if gradient is None else gradient, examples) for gradient, shape in pairs]

    def linear(self, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """One projection, recorded."""
        output, kept = F.linear(inputs, weight, bias), inputs.detach()

        def make_factors(gradients: Gradients, examples: int) -> ParameterFactors:
            assert gradients[0] is not None
            deltas = self._first(gradients[0], examples)
            if weight.requires_grad and isinstance(weight, nn.Parameter):
                yield weight, Outer.of(self._first(at_least_float32(kept), examples), deltas, weight.shape)
            if bias is not None and bias.requires_grad and isinstance(bias, nn.Parameter):
                yield bias, Dense(sum_over_time(deltas))

        self._tap([output], [kept], make_factors)
        return output

    def project(self, query: Tensor, key: Tensor, value: Tensor) -> list[Tensor]:
        """Queries, keys and values."""
        module, bias = self._module, self._module.in_proj_bias
        same = query is key and key is value
        inputs = [x if module.batch_first else x.transpose(0, 1) for x in (query, key, value)]
        if module._qkv_same_embed_dim and same:
            return list(self.linear(inputs[0], module.in_proj_weight, bias).chunk(3, 2))
        biases = bias.chunk(3) if bias is not None else (None, None, None)
        if module._qkv_same_embed_dim:
            weights = module.in_proj_weight.chunk(3)
            outputs = [F.linear(x, w, b) for x, w, b in zip(inputs, weights, biases, strict=True)]
            self._three_in_one(inputs, outputs)
            return outputs
        own = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
        outputs = [self.linear(x, w, b) for x, w, b in zip(inputs, own, biases, strict=True)]
        if bias is not None and bias.requires_grad:
            shapes = [output.shape for output in outputs]

            def make_factors(gradients: Gradients, examples: int) -> ParameterFactors:
                yield bias, Dense(torch.cat([g.sum(1) for g in self._each(gradients, shapes, examples)], 1))

            self._tap(outputs, [], make_factors)
        return outputs

    def _three_in_one(self, inputs: list[Tensor], outputs: list[Tensor]) -> None:
        """Record one weight on three inputs as three groups, padded to the longest."""
        weight, bias = self._module.in_proj_weight, self._module.in_proj_bias
        kept, shapes = [x.detach() for x in inputs], [output.shape for output in outputs]

        def make_factors(gradients: Gradients, examples: int) -> ParameterFactors:
            deltas = self._each(gradients, shapes, examples)
            if weight.requires_grad:
                longest = max(d.shape[1] for d in deltas)
                a, d = (
                    torch.stack([F.pad(x, (0, 0, 0, longest - x.shape[1])) for x in sides], 1).flatten(0, 1)
                    for sides in ([self._first(at_least_float32(x), examples) for x in kept], deltas)
                )
                yield weight, Outer([Term(Signal(a), d)], weight.shape, groups=3)
            if bias is not None and bias.requires_grad:
                yield bias, Dense(torch.cat([d.sum(1) for d in deltas], 1))

        self._tap(outputs, kept, make_factors)

    def extend(self, sequence: Tensor, name: str) -> Tensor:
        """The sequence with one more, learned, step."""
        bias: nn.Parameter = getattr(self._module, name)
        step = bias.expand(sequence.shape[0], 1, -1)
        if bias.requires_grad:

            def make_factors(gradients: Gradients, examples: int) -> ParameterFactors:
                assert gradients[0] is not None
                yield bias, Dense(sum_over_time(self._first(gradients[0], examples)).view(examples, 1, 1, -1))

            self._tap([step], [], make_factors)
        return torch.cat([sequence, step], 1)


def _additive(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """A mask as numbers that are added to the scores."""
    if mask is None or mask.is_floating_point():
        return mask
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(mask, -math.inf)


def _widen(mask: Tensor | None) -> Tensor | None:
    return None if mask is None else F.pad(mask, (0, 1))
