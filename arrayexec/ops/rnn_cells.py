"""The loops over time of the fused recurrent layers: plain, LSTM and GRU, forward and backward.

All directions of a layer run side by side on axis 0, each in its own order of time: the backward direction gets its
input reversed. A step is one product with the state and a few passes over arrays that stay in cache.
"""

from __future__ import annotations

import dataclasses
from typing import Any

Array = Any


@dataclasses.dataclass
class Layer:
    """One layer of d directions: what forward makes and backward reads.

    steps (d, t+1, n, p): states, the first one before the first step. gates (d, t, n, g·h): what is added to the
    product with the state, then the gates (None for plain layers: they lie in steps). memory: LSTM's cell states
    (d, t+1, n, h), GRU's share of the state in its third gate (d, t, n, h). recurrent (d, g·h, p) and projection
    (d, p, h) are weights. held (d, t, n, 1): where a sequence is over, or has not begun, and its state stays.
    """

    xp: Any
    steps: Array
    gates: Array
    memory: Array
    recurrent: Array
    projection: Array
    held: Array
    clip: tuple[float, float, bool] | None = None


@dataclasses.dataclass
class Arriving:
    """Gradients on their way back: steps (d, t, n, p) from above; state and cell after the last step, None for zero."""

    steps: Array
    state: Array
    cell: Array


def _start(target: Array, arriving: Array) -> None:
    """Fill ``target`` with ``arriving``, zero for None."""
    target[...] = 0 if arriving is None else arriving


def sigmoid_rows(xp: Any, count: int, size: int, dtype: Any) -> tuple[Array, Array]:
    """Factor and offset (g·h,) with which ``y = factor · tanh(factor · x) + offset`` is the gate's own function.

    That is tanh for the third of ``count`` gates, sigmoid for the others: all of them in one call of tanh.
    """
    factor, offset = xp.full(count * size, 0.5, dtype), xp.full(count * size, 0.5, dtype)
    factor[2 * size : 3 * size], offset[2 * size : 3 * size] = 1, 0
    return factor, offset


def side_by_side(xp: Any, steps: Array, out: Array) -> None:
    """Directions (d, t, n, p), each in its own order, to ``out`` (t, n, d · p)."""
    size = steps.shape[-1]
    xp.copyto(out[..., :size], steps[0])
    if len(steps) > 1:
        xp.copyto(out[..., size:], steps[1][::-1])


def apart(xp: Any, values: Array, steps: Array) -> Array:
    """The inverse of `side_by_side`: fills and returns ``steps``."""
    size = steps.shape[-1]
    xp.copyto(steps[0], values[..., :size])
    if len(steps) > 1:
        xp.copyto(steps[1], values[..., size:][::-1])
    return steps


# --- plain -----------------------------------------------------------------------------------------------------------


def plain_forward(layer: Layer, relu: bool, bias: Array, fresh: Array) -> None:
    """``h' = act(input share + h · recurrentᵀ + bias)``; the input share lies in the place of ``h'``."""
    xp, steps = layer.xp, layer.steps
    for t in range(steps.shape[1] - 1):
        before, after = steps[:, t], steps[:, t + 1]
        xp.matmul(before, layer.recurrent, out=fresh)
        xp.add(after, fresh, out=after)
        xp.add(after, bias, out=after)
        if relu:
            xp.maximum(after, 0, out=after)
        else:
            xp.tanh(after, out=after)
        if layer.held is not None:
            _keep(xp, after, before, layer.held[:, t])


def plain_backward(layer: Layer, relu: bool, arriving: Arriving, dgates: Array, carry: Array) -> Array:
    """Fill ``dgates``; the gradient of the state before the first step."""
    xp, arrived, dstate, spare = layer.xp, carry[0], carry[1], carry[2]
    _start(dstate, arriving.state)
    for t in reversed(range(dgates.shape[1])):
        after, gradient = layer.steps[:, t + 1], dgates[:, t]
        xp.add(arriving.steps[:, t], dstate, out=arrived)
        if relu:
            xp.sign(after, out=gradient)  # 1 where it is positive, else 0
        else:
            xp.multiply(after, after, out=gradient)
            xp.subtract(1, gradient, out=gradient)
        xp.multiply(gradient, arrived, out=gradient)
        if layer.held is not None:
            xp.copyto(gradient, 0, where=layer.held[:, t])
        xp.matmul(gradient, layer.recurrent, out=spare)
        if layer.held is not None:
            xp.copyto(spare, arrived, where=layer.held[:, t])
        dstate, spare = spare, dstate
    return dstate


# --- LSTM ------------------------------------------------------------------------------------------------------------


def lstm_forward(layer: Layer, bias: Array, fresh: Array, small: Array) -> None:
    """``c' = f·c + i·g``, ``h' = o·tanh(c')``, perhaps projected; weights and bias come multiplied with the factor."""
    xp, steps, memory, hidden = layer.xp, layer.steps, layer.memory, small[0]
    size = memory.shape[-1]
    factor, offset = sigmoid_rows(xp, 4, size, memory.dtype)
    apart = layer.gates.reshape(*layer.gates.shape[:-1], 4, size)
    for t in range(layer.gates.shape[1]):
        gates, one, before, after = layer.gates[:, t], apart[:, t], steps[:, t], steps[:, t + 1]
        cell, fill = memory[:, t], memory[:, t + 1]
        xp.matmul(before, layer.recurrent, out=fresh)
        xp.add(gates, fresh, out=gates)
        xp.add(gates, bias, out=gates)
        xp.tanh(gates, out=gates)
        xp.multiply(gates, factor, out=gates)
        xp.add(gates, offset, out=gates)
        xp.multiply(one[:, :, 1], cell, out=fill)
        xp.multiply(one[:, :, 0], one[:, :, 2], out=hidden)
        xp.add(fill, hidden, out=fill)
        if layer.clip is not None:
            low, high, stop_nan = layer.clip
            (xp.fmax if stop_nan else xp.maximum)(fill, low, out=fill)
            xp.minimum(fill, high, out=fill)
        xp.tanh(fill, out=hidden)
        if layer.projection is None:
            xp.multiply(one[:, :, 3], hidden, out=after)
        else:
            xp.multiply(one[:, :, 3], hidden, out=hidden)
            xp.matmul(hidden, layer.projection, out=after)
        if layer.held is not None:
            _keep(xp, fill, cell, layer.held[:, t])
            _keep(xp, after, before, layer.held[:, t])


def lstm_backward(
    layer: Layer, arriving: Arriving, dgates: Array, fresh: Array, carry: Array, small: Array, cut: Array
) -> tuple[Array, Array]:
    """Fill ``dgates``; gradients of state and cell before the first step.

    With a projection ``arriving.steps`` is overwritten by the whole gradient of every new state.
    """
    xp, memory, arrived, dstate, spare = layer.xp, layer.memory, carry[0], carry[1], carry[2]
    total, dcell, other, dhidden = small[0], small[1], small[2], small[3]
    size = memory.shape[-1]
    _, offset = sigmoid_rows(xp, 4, size, memory.dtype)
    rise = 1 - 2 * offset  # the derivative by x is (y + rise)·(1 - y): sigmoid's y·(1 - y), tanh's (1 + y)·(1 - y)
    gates_apart = layer.gates.reshape(*layer.gates.shape[:-1], 4, size)
    dgates_apart = dgates.reshape(gates_apart.shape)
    _start(dstate, arriving.state)
    _start(dcell, arriving.cell)
    for t in reversed(range(dgates.shape[1])):
        gates, gradient, one, back = layer.gates[:, t], dgates[:, t], gates_apart[:, t], dgates_apart[:, t]
        if layer.projection is None:
            xp.add(arriving.steps[:, t], dstate, out=arrived)
            dhidden = arrived
        else:
            arrived = arriving.steps[:, t]
            xp.add(arrived, dstate, out=arrived)
            xp.matmul(arrived, layer.projection, out=dhidden)
        xp.add(gates, rise, out=gradient)
        xp.subtract(1, gates, out=fresh)
        xp.multiply(gradient, fresh, out=gradient)
        xp.tanh(memory[:, t + 1], out=total)
        xp.multiply(back[:, :, 3], dhidden, out=back[:, :, 3])
        xp.multiply(back[:, :, 3], total, out=back[:, :, 3])
        xp.multiply(total, total, out=total)
        xp.subtract(1, total, out=total)
        xp.multiply(total, one[:, :, 3], out=total)
        xp.multiply(total, dhidden, out=total)
        xp.add(total, dcell, out=total)
        xp.multiply(back[:, :, :3], total[:, :, None], out=back[:, :, :3])
        xp.multiply(back[:, :, 0], one[:, :, 2], out=back[:, :, 0])
        xp.multiply(back[:, :, 1], memory[:, t], out=back[:, :, 1])
        xp.multiply(back[:, :, 2], one[:, :, 0], out=back[:, :, 2])
        xp.multiply(total, one[:, :, 1], out=other)
        if layer.clip is not None:
            _cut(xp, memory[:, t + 1], layer.clip, cut)
            xp.copyto(back[:, :, :3], 0, where=cut[0][:, :, None])
            xp.copyto(other, 0, where=cut[0])
        if layer.held is not None:
            xp.copyto(gradient, 0, where=layer.held[:, t])
            xp.copyto(other, dcell, where=layer.held[:, t])
        xp.matmul(gradient, layer.recurrent, out=spare)
        if layer.held is not None:
            xp.copyto(spare, arrived, where=layer.held[:, t])
            if layer.projection is not None:
                xp.copyto(arrived, 0, where=layer.held[:, t])
        dstate, spare, dcell, other = spare, dstate, other, dcell
    return dstate, dcell


def _keep(xp: Any, after: Array, before: Array, held: Array) -> None:
    """Rows of ``before`` that are held go into ``after``, by direction: NumPy would copy what interleaves."""
    for direction in range(len(after)):
        xp.copyto(after[direction], before[direction], where=held[direction])


def _cut(xp: Any, cell: Array, clip: tuple[float, float, bool], cut: Array) -> None:
    """Mark in ``cut[0]`` the cell states at a limit: no gradient goes through them."""
    xp.less_equal(cell, clip[0], out=cut[0])
    xp.greater_equal(cell, clip[1], out=cut[1])
    xp.logical_or(cut[0], cut[1], out=cut[0])


# --- GRU -------------------------------------------------------------------------------------------------------------


def gru_forward(layer: Layer, bias: Array, inner_bias: Array, fresh: Array, small: Array) -> None:
    """``h' = n + z·(h - n)`` with ``n = tanh(input share + r·(h · recurrentᵀ + inner_bias))``.

    Weights and biases of the gates r and z come multiplied with one half.
    """
    xp, steps, work = layer.xp, layer.steps, small[0]
    size = work.shape[-1]
    for t in range(layer.gates.shape[1]):
        gates, inner, before, after = layer.gates[:, t], layer.memory[:, t], steps[:, t], steps[:, t + 1]
        both, new = gates[..., : 2 * size], gates[..., 2 * size :]
        xp.matmul(before, layer.recurrent, out=fresh)
        xp.add(gates, bias, out=gates)
        xp.add(both, fresh[..., : 2 * size], out=both)
        xp.tanh(both, out=both)
        xp.multiply(both, 0.5, out=both)
        xp.add(both, 0.5, out=both)
        xp.add(fresh[..., 2 * size :], inner_bias, out=inner)
        xp.multiply(gates[..., :size], inner, out=work)
        xp.add(new, work, out=new)
        xp.tanh(new, out=new)
        xp.subtract(before, new, out=work)
        xp.multiply(work, gates[..., size : 2 * size], out=work)
        xp.add(work, new, out=after)
        if layer.held is not None:
            _keep(xp, after, before, layer.held[:, t])


def gru_backward(layer: Layer, arriving: Arriving, dgates: Array, fresh: Array, carry: Array, small: Array) -> Array:
    """As `plain_backward`; ``dgates`` is of the input share: r times the third gate's is that of the state's."""
    xp, arrived, dstate, spare, work, kept = layer.xp, carry[0], carry[1], carry[2], small[0], small[1]
    size = work.shape[-1]
    _start(dstate, arriving.state)
    for t in reversed(range(dgates.shape[1])):
        gates, gradient, before = layer.gates[:, t], dgates[:, t], layer.steps[:, t]
        both, new = gates[..., : 2 * size], gates[..., 2 * size :]
        dboth, dr, dz = gradient[..., : 2 * size], gradient[..., :size], gradient[..., size : 2 * size]
        dnew, side = gradient[..., 2 * size :], fresh[..., : 2 * size]
        xp.add(arriving.steps[:, t], dstate, out=arrived)
        xp.multiply(arrived, gates[..., size : 2 * size], out=kept)
        xp.subtract(before, new, out=dz)
        xp.multiply(dz, arrived, out=dz)
        xp.multiply(new, new, out=work)
        xp.subtract(1, work, out=work)
        xp.subtract(arrived, kept, out=dnew)
        xp.multiply(dnew, work, out=dnew)
        xp.multiply(dnew, layer.memory[:, t], out=dr)
        xp.subtract(1, both, out=side)
        xp.multiply(side, both, out=side)
        xp.multiply(dboth, side, out=dboth)
        if layer.held is not None:
            xp.copyto(gradient, 0, where=layer.held[:, t])
        xp.copyto(side, dboth)
        xp.multiply(dnew, gates[..., :size], out=fresh[..., 2 * size :])
        xp.matmul(fresh, layer.recurrent, out=spare)
        xp.add(spare, kept, out=spare)
        if layer.held is not None:
            xp.copyto(spare, arrived, where=layer.held[:, t])
        dstate, spare = spare, dstate
    return dstate
