"""nn.LSTM, nn.GRU, nn.RNN: any number of layers, one or two directions, padded or packed.

The input projection is a linear layer on the sequence. The gradient of its output is the gradient of the gates, which the
recurrent weight shares: Σₜ δₜ ⊗ hₜ₋₁. The steps in between are written by hand, forward and backward, without weight gradients.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from privopt.perexample.networks.factors import Dense, Outer
from privopt.perexample.networks.layers.basic import as_sequences, sum_over_time
from privopt.perexample.networks.model_state import at_least_float32
from privopt.perexample.networks.tape import Gradients, ParameterFactors, Site, Tape
from privopt.perexample.networks.unsupported import UnsupportedLayer

AT_ONCE = 1 << 18  # gate values that are processed together: they fit a cache

Linear = Callable[..., Tensor]  # (input, weight, bias)


class StepRecord:
    """What the weights' gradients need of the steps: hidden states, and the gradients at the recurrent weight."""

    def __init__(self) -> None:
        self.states: Tensor | None = None  # (time, examples, hidden), before each step
        self.gradients: Tensor | None = None  # (time, examples, gates · hidden); None: the same as at the projection


class _Lstm(torch.autograd.Function):
    """An LSTM on inputs (time, examples, width). One buffer holds the gates and then their gradients."""

    @staticmethod
    def forward(
        ctx: Any,
        anchor: Tensor,
        x: Tensor,
        w_ih: Tensor,
        bias: Tensor | None,
        w_hh: Tensor,
        h: Tensor,
        c: Tensor,
        record: StepRecord,
    ) -> tuple[Tensor, ...]:
        time, examples, _ = x.shape
        n = w_hh.shape[1]
        gates = F.linear(x, w_ih, bias)
        hs, cs = x.new_empty(time + 1, examples, n), x.new_empty(time + 1, examples, n)
        tanhs = x.new_empty(time, examples, n)
        hs[0], cs[0] = h, c
        h_before, h_after, c_before, c_after = (part.unbind() for part in (hs[:-1], hs[1:], cs[:-1], cs[1:]))
        recurrent = w_hh.T
        for now, th, h0, h1, c0, c1 in zip(gates.unbind(), tanhs.unbind(), h_before, h_after, c_before, c_after, strict=True):
            now.addmm_(h0, recurrent)
            now[:, : 2 * n].sigmoid_()
            i, f, g, o = now.chunk(4, 1)
            g.tanh_()
            o.sigmoid_()
            torch.mul(f, c0, out=c1).addcmul_(i, g)
            torch.tanh(c1, out=th)
            torch.mul(o, th, out=h1)
        record.states = hs[:-1]
        ctx.record = record
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(gates, cs, tanhs, w_ih, w_hh)
        return hs[1:], hs[-1].clone(), cs[-1].clone(), cs[1:]

    @staticmethod
    def backward(
        ctx: Any, dhs: Tensor | None, dh: Tensor | None, dc: Tensor | None, dcs: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        gates, cs, tanhs, w_ih, w_hh = ctx.saved_tensors
        time, examples, wide = gates.shape
        n = wide // 4
        total = _add_optional(dh, None if dhs is None else dhs[-1], tanhs[0])
        cell = torch.zeros_like(tanhs[0]) if dc is None else dc.clone()
        step = max(1, AT_ONCE // max(1, examples * wide))
        slopes = gates.new_empty(step, examples, wide)
        for start in reversed(range(0, time, step)):
            stop = min(start + step, time)
            now, th = gates[start:stop], tanhs[start:stop]
            i, f, g, o = now.chunk(4, 2)
            # the slope of each gate times what it multiplies: then a step is three products
            si, sf, sg, so = slopes[: stop - start].chunk(4, 2)
            torch.addcmul(i, i, i, value=-1, out=si).mul_(g)
            torch.addcmul(f, f, f, value=-1, out=sf).mul_(cs[start:stop])
            torch.addcmul(i, i, g.square(), value=-1, out=sg)
            torch.addcmul(o, o, o, value=-1, out=so).mul_(th)
            through = torch.addcmul(o, o, th.square(), value=-1)
            forget = f.clone()
            for t in reversed(range(start, stop)):
                d, s = gates[t], slopes[t - start]  # the gates of this step are no longer needed: d overwrites them
                if dcs is not None:
                    cell.add_(dcs[t])
                cell.addcmul_(total, through[t - start])
                torch.mul(total, s[:, 3 * n :], out=d[:, 3 * n :])
                torch.mul(cell.unsqueeze(1), s[:, : 3 * n].view(-1, 3, n), out=d[:, : 3 * n].view(-1, 3, n))
                cell.mul_(forget[t - start])
                total = torch.addmm(dhs[t - 1], d, w_hh) if t and dhs is not None else d @ w_hh
        ctx.record.gradients = gates
        dx = gates @ w_ih if ctx.needs_input_grad[1] else None
        return torch.zeros_like(total[:0, 0]), dx, None, None, None, total, cell, None


class _Gru(torch.autograd.Function):
    """Steps of a GRU on projected inputs (time, examples, 3 · hidden)."""

    @staticmethod
    def forward(
        ctx: Any, projected: Tensor, weight: Tensor, bias: Tensor | None, h: Tensor, record: StepRecord
    ) -> tuple[Tensor, ...]:
        time, examples, wide = projected.shape
        n = wide // 3
        gates = torch.empty_like(projected, memory_format=torch.contiguous_format)  # r, z, n
        hs, inner = projected.new_empty(time + 1, examples, n), projected.new_empty(time, examples, n)
        hs[0] = h
        for t in range(time):
            hidden = F.linear(hs[t], weight, bias)
            now = gates[t]
            torch.add(projected[t, :, : 2 * n], hidden[:, : 2 * n], out=now[:, : 2 * n]).sigmoid_()
            r, z, new = now.chunk(3, 1)
            inner[t] = hidden[:, 2 * n :]
            torch.addcmul(projected[t, :, 2 * n :], r, inner[t], out=new).tanh_()
            torch.lerp(new, hs[t], z, out=hs[t + 1])
        record.states = hs[:-1]
        ctx.record = record
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(gates, hs, inner, weight)
        return hs[1:], hs[-1].clone()

    @staticmethod
    def backward(ctx: Any, dhs: Tensor | None, dh: Tensor | None) -> tuple[Tensor | None, ...]:
        gates, hs, inner, weight = ctx.saved_tensors
        n = gates.shape[2] // 3
        r, z, new = gates.chunk(3, 2)
        slope_new = (1 - z) * (1 - new.square())
        slopes = torch.cat([slope_new * inner * r * (1 - r), (hs[:-1] - new) * z * (1 - z), slope_new * r], 2)
        hidden, totals = torch.empty_like(gates), torch.empty_like(inner)
        total = _add_optional(dh, None if dhs is None else dhs[-1], inner[0])
        for t in reversed(range(len(gates))):
            totals[t] = total
            torch.mul(total.unsqueeze(1), slopes[t].view(-1, 3, n), out=hidden[t].view(-1, 3, n))
            carried = torch.addcmul(dhs[t - 1], total, z[t]) if t and dhs is not None else total * z[t]
            total = torch.addmm(carried, hidden[t], weight)
        ctx.record.gradients = hidden
        deltas = hidden.clone()
        torch.mul(totals, slope_new, out=deltas[:, :, 2 * n :])
        return deltas, None, None, total, None


class _Rnn(torch.autograd.Function):
    """Steps of an Elman network on projected inputs (time, examples, hidden)."""

    @staticmethod
    def forward(ctx: Any, projected: Tensor, weight: Tensor, h: Tensor, relu: bool, record: StepRecord) -> tuple[Tensor, ...]:
        hs = projected.new_empty(projected.shape[0] + 1, *projected.shape[1:])
        hs[0] = h
        weight = weight.T
        for t in range(len(projected)):
            torch.addmm(projected[t], hs[t], weight, out=hs[t + 1])
            hs[t + 1].relu_() if relu else hs[t + 1].tanh_()
        record.states = hs[:-1]
        ctx.relu = relu
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(hs, weight)
        return hs[1:], hs[-1].clone()

    @staticmethod
    def backward(ctx: Any, dhs: Tensor | None, dh: Tensor | None) -> tuple[Tensor | None, ...]:
        hs, weight = ctx.saved_tensors
        slopes = (hs[1:] > 0).to(hs.dtype) if ctx.relu else 1 - hs[1:].square()
        deltas = torch.empty_like(slopes)
        weight = weight.T
        total = _add_optional(dh, None if dhs is None else dhs[-1], hs[0])
        for t in reversed(range(len(slopes))):
            torch.mul(total, slopes[t], out=deltas[t])
            total = torch.addmm(dhs[t - 1], deltas[t], weight) if t and dhs is not None else deltas[t] @ weight
        return deltas, None, total, None, None


def _add_optional(one: Tensor | None, other: Tensor | None, like: Tensor) -> Tensor:
    """Their sum, where None is zero."""
    if one is None:
        return torch.zeros_like(like) if other is None else other
    return one if other is None else one + other


_lstm: Callable[..., tuple[Tensor, ...]] = _Lstm.apply
_gru: Callable[..., tuple[Tensor, ...]] = _Gru.apply
_rnn: Callable[..., tuple[Tensor, ...]] = _Rnn.apply


def record_recurrent(module: nn.RNNBase, name: str, tape: Tape) -> Callable[..., Any]:
    """A forward function for the module that records its steps; in single precision, also under autocast."""

    def forward(input: Any, hx: Any = None) -> Any:  # noqa: A002  # torch's name
        with torch.autocast(next(module.parameters()).device.type, enabled=False):
            return run_steps(input, hx)

    def run_steps(input: Any, hx: Any) -> Any:  # noqa: A002
        packed = isinstance(input, PackedSequence)
        lengths: Tensor | None = None
        if packed:
            sequence, lengths = pad_packed_sequence(input)  # in the batch's own order
        else:
            sequence = input if not module.batch_first else input.transpose(0, 1)
        if sequence.ndim != 3:
            raise UnsupportedLayer(
                f"{name} ({type(module).__name__}) was given one sequence without a batch dimension. Use x.unsqueeze."
            )
        sequence = at_least_float32(sequence)
        steps, examples, _ = sequence.shape
        directions = 2 if module.bidirectional else 1
        states = tuple(at_least_float32(state) for state in (hx if isinstance(hx, tuple) else (hx,)) if state is not None)
        if hx is None:
            zeros = sequence.new_zeros(module.num_layers * directions, examples, module.hidden_size)
            states = (zeros, zeros)
        layer_input, last_h, last_c = sequence, [], []
        backwards = _backwards(steps, lengths, sequence.device) if module.bidirectional else None
        for layer in range(module.num_layers):
            outputs = []
            for direction in range(directions):
                place = layer * directions + direction
                x = layer_input if not direction else _reverse(layer_input, backwards)
                start = [state[place] for state in states]
                hs, h, *cells = _direction(module, name, tape, x, layer, direction, start)
                if lengths is not None:  # the states after each example's own last step
                    index = (lengths.to(hs.device) - 1).view(1, -1, 1).expand(1, -1, hs.shape[2])
                    h, cells = hs.gather(0, index)[0], [sequence.gather(0, index)[0] for sequence in cells[1:]]
                outputs.append(hs if not direction else _reverse(hs, backwards))
                last_h.append(h)
                last_c.extend(cells[:1])
            layer_input = outputs[0] if directions == 1 else torch.cat(outputs, 2)
            if module.dropout and module.training and layer + 1 < module.num_layers:
                layer_input = F.dropout(layer_input, module.dropout)
        if packed:
            assert lengths is not None
            result: Any = pack_padded_sequence(layer_input, lengths, enforce_sorted=input.sorted_indices is None)
        else:  # may be changed in place, while the states are still needed
            result = layer_input.transpose(0, 1).clone() if module.batch_first else layer_input.clone()
        h = torch.stack(last_h)
        return result, ((h, torch.stack(last_c)) if module.mode == "LSTM" else h)

    return forward


def _backwards(steps: int, lengths: Tensor | None, device: torch.device) -> Tensor | None:
    """For each example, its steps from last to first: (time, examples); None if all have the same length."""
    if lengths is None:
        return None
    places = torch.arange(steps, device=device).unsqueeze(1)
    reverse = lengths.to(device).unsqueeze(0) - 1 - places
    return torch.where(reverse >= 0, reverse, places)


def _reverse(sequence: Tensor, order: Tensor | None) -> Tensor:
    if order is None:
        return sequence.flip(0)
    return sequence.gather(0, order.unsqueeze(2).expand(-1, -1, sequence.shape[2]))


def _direction(
    module: nn.RNNBase, name: str, tape: Tape, x: Tensor, layer: int, direction: int, states: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """The steps of one layer in one direction, recorded."""
    suffix = f"l{layer}{'_reverse' if direction else ''}"
    w_ih, w_hh = getattr(module, f"weight_ih_{suffix}"), getattr(module, f"weight_hh_{suffix}")
    b_ih, b_hh = (getattr(module, f"bias_{side}_{suffix}") if module.bias else None for side in ("ih", "hh"))
    record = StepRecord()
    kind = type(module).__name__
    if any(p is not None and p.requires_grad and not isinstance(p, nn.Parameter) for p in (w_ih, w_hh, b_ih, b_hh)):
        raise UnsupportedLayer(
            f"{name or 'the model'} ({kind}) computes a weight from other parameters, as weight_norm and spectral_norm do: "
            "it has no closed form then. Use it without (remove_parametrizations)."
        )
    x = x.contiguous()
    kept = x.detach()
    lstm = module.mode == "LSTM"
    trainable = any(p is not None and p.requires_grad for p in (w_ih, w_hh, b_ih, b_hh))
    gru = module.mode == "GRU"
    weight = w_hh.detach()
    out: tuple[Tensor, ...]
    if lstm:  # no tensor of the graph stands for its weights, so an empty one does
        tapped = x.new_empty(0).requires_grad_(trainable)
        bias = None if b_ih is None else (b_ih + b_hh).detach()
        out = _lstm(tapped, x, w_ih.detach(), bias, weight, *states, record)
    else:
        tapped = F.linear(x, w_ih, b_ih if gru or b_ih is None else b_ih + b_hh)
        if gru:
            out = _gru(tapped, weight, None if b_hh is None else b_hh.detach(), states[0], record)
        else:
            out = _rnn(tapped, weight, states[0], module.mode == "RNN_RELU", record)

    def make_factors(gradients: Gradients, examples: int) -> ParameterFactors:
        deltas = record.gradients if lstm else gradients[0]
        assert deltas is not None
        assert record.states is not None
        site = Site(name, kind, 0, examples)

        def first(sequence: Tensor) -> Tensor:  # several sequences of one example are one longer sequence
            return as_sequences(site.examples_first(sequence.transpose(0, 1)))

        def sum_steps(sequence: Tensor) -> Dense:
            return Dense(sum_over_time(site.examples_first(sequence.sum(0))))

        d = first(deltas)
        hidden = d if record.gradients is None else first(record.gradients)
        if w_ih.requires_grad:
            yield w_ih, Outer.of(first(kept), d, w_ih.shape)
        if w_hh.requires_grad:
            yield w_hh, Outer.of(first(record.states), hidden, w_hh.shape)
        if b_ih is not None and b_hh is not None:
            of_input = sum_steps(deltas) if b_ih.requires_grad or b_hh.requires_grad else None
            if b_ih.requires_grad and of_input is not None:
                yield b_ih, of_input
            if b_hh.requires_grad and of_input is not None:
                yield b_hh, sum_steps(record.gradients) if gru and record.gradients is not None else of_input

    if trainable and tapped.requires_grad and record.states is not None:
        tape.tap(name, kind, [tapped], [kept, record.states], make_factors)
    return out


# ---------------------------------------------------------------- single cells


def _lstm_cell(linear: Linear, x: Tensor, states: Sequence[Tensor], *weights: Tensor | None) -> tuple[Tensor, Tensor]:
    gates = linear(x, *weights[::2]) + linear(states[0], *weights[1::2])
    write, forget, new, read = gates.chunk(4, -1)
    cell = forget.sigmoid() * states[1] + write.sigmoid() * new.tanh()
    return read.sigmoid() * cell.tanh(), cell


def _gru_cell(linear: Linear, x: Tensor, state: Tensor, *weights: Tensor | None) -> Tensor:
    of_input, of_state = linear(x, *weights[::2]).chunk(3, -1), linear(state, *weights[1::2]).chunk(3, -1)
    reset, keep = (of_input[gate] + of_state[gate] for gate in (0, 1))
    new = (of_input[2] + reset.sigmoid() * of_state[2]).tanh()
    return new + keep.sigmoid() * (state - new)


def _tanh_cell(linear: Linear, x: Tensor, state: Tensor, *weights: Tensor | None) -> Tensor:
    return (linear(x, *weights[::2]) + linear(state, *weights[1::2])).tanh()


def _relu_cell(linear: Linear, x: Tensor, state: Tensor, *weights: Tensor | None) -> Tensor:
    return (linear(x, *weights[::2]) + linear(state, *weights[1::2])).relu()


CELLS: dict[Callable[..., Any], Callable[..., Any]] = {
    torch.lstm_cell: _lstm_cell,
    torch.gru_cell: _gru_cell,
    torch.rnn_tanh_cell: _tanh_cell,
    torch.rnn_relu_cell: _relu_cell,
}  # the functions of nn.LSTMCell, nn.GRUCell and nn.RNNCell, written out: torch.vmap has no rule for them
