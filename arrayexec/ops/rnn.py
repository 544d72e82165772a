"""The fused recurrent network: all layers, directions and steps in one operator with one vector of parameters."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

from ..dims import UNKNOWN, product
from ..errors import AttributeValueError
from ..registry import Op, Sample, Temp, register_op
from ..streams import width
from . import rnn_cells
from .checks import check_floating
from .dropout import PIECE
from .precision import narrow, wide, widen

Array = Any
GATES = {"rnn_relu": 1, "rnn_tanh": 1, "lstm": 4, "gru": 3}


class Weights(NamedTuple):
    """Views of one layer's parameters: (d, g·h, k), (d, g·h, p), (d, p, h) or None, and (d, 2, g·h)."""

    inputs: Array
    recurrent: Array
    projection: Array
    biases: Array


@register_op
class RNN(Op):
    """``num_layers`` recurrent layers of ``state_size`` over t steps; ``bidirectional``: each forwards and backwards.

    data (t, n, k), state and state_output (layers · d, n, p), state_cell and statecell_output (lstm only)
    (layers · d, n, h), out (t, n, d · p), where d is the number of directions and p is h or ``projection_size``.
    rnn_relu, rnn_tanh: ``h' = act(W·x + R·h + b)``. lstm (gates i, f, g, o): ``c' = f·c + i·g``, ``h' = o·tanh(c')``,
    with ``projection_size`` times a (p, h) matrix; c' is cut to ``lstm_state_clip_min`` … ``_max``: no gradient passes
    there, and with ``lstm_state_clip_nan`` NaN becomes the least. gru (gates r, z, n):
    ``n = tanh(W·x + b + r·(R·h + b'))``, ``h' = (1 - z)·n + z·h``.

    parameters: for each layer and direction W (g·h, k), R (g·h, p) and the projection (p, h); after all of them, for
    each layer and direction the biases of W and of R. Between layers values are dropped with probability ``p`` in
    training; the mask of a sequence depends on its place in the global batch, not on the cut.

    ``use_sequence_length``: of sequence i the steps ``t < sequence_length[i]`` count, none if it is NaN or not above 0,
    all if it is beyond t. After them out is 0 and the states stay; the backward direction begins at the last one.
    No steps or no sequences are legal. 16-bit data is computed in float32 throughout.
    """

    state_size: int
    num_layers: int
    mode: Literal["rnn_relu", "rnn_tanh", "lstm", "gru"]
    bidirectional: bool = False
    p: float = 0.0
    state_outputs: bool = False
    projection_size: int | None = None
    lstm_state_clip_min: float | None = None
    lstm_state_clip_max: float | None = None
    lstm_state_clip_nan: bool = False
    use_sequence_length: bool = False
    no_gradient = ("sequence_length",)
    batch_axis = 1
    multiplies = True
    examples = (
        {"data": (4, 4, 3), "state_size": 32, "num_layers": 1, "mode": "rnn_tanh"},
        {"data": Sample((3, 4, 5), 0.1, 0.9), "parameters": Sample((264,), 0.05, 0.25),
         "state": Sample((2, 4, 8), 0.1, 0.5), "state_outputs": True,
         "state_size": 8, "num_layers": 2, "mode": "rnn_relu"},
        {"data": (2, 4, 3), "state_size": 32, "num_layers": 2, "mode": "lstm", "bidirectional": True},
        {"data": (3, 4, 2), "sequence_length": Sample((4,), 1, 3, True), "use_sequence_length": True, "p": 0.5,
         "state_size": 32, "num_layers": 2, "mode": "gru", "bidirectional": True, "state_outputs": True},
        {"data": (3, 4, 2), "state_cell": Sample((2, 4, 32), -3, 3), "sequence_length": Sample((4,), 1, 3, True),
         "use_sequence_length": True, "projection_size": 3, "lstm_state_clip_min": -0.5, "lstm_state_clip_max": 0.75,
         "state_size": 32, "num_layers": 1, "mode": "lstm", "bidirectional": True, "state_outputs": True},
        {"data": (4, 4, 2), "state_cell": Sample((1, 4, 32), math.nan, math.nan), "lstm_state_clip_nan": True,
         "lstm_state_clip_min": -0.5, "lstm_state_clip_max": 0.75, "state_size": 32, "num_layers": 1, "mode": "lstm"},
    )  # fmt: skip

    def __post_init__(self) -> None:
        def refuse(name: str, must: str) -> None:
            raise AttributeValueError(f"RNN: attribute '{name}' must {must}, but it is {getattr(self, name)}")

        for name in ("state_size", "num_layers", "projection_size"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                refuse(name, "be at least 1")
        if not 0 <= self.p <= 1:
            refuse("p", "lie in [0, 1]")
        for name in ("projection_size", "lstm_state_clip_min", "lstm_state_clip_max"):
            if getattr(self, name) is not None and self.mode != "lstm":
                refuse(name, f"be left out with mode '{self.mode}': it speaks of lstm")
        low, high = self.lstm_state_clip_min, self.lstm_state_clip_max
        if (low is None) != (high is None):
            refuse(f"lstm_state_clip_{'min' if low is None else 'max'}", "be given together with the other limit")
        if low is not None and high is not None and not low <= high:
            refuse("lstm_state_clip_min", f"be at most lstm_state_clip_max, {high}")

    @property
    def directions(self) -> int:
        """Number of directions, d."""
        return 2 if self.bidirectional else 1

    @property
    def output_size(self) -> int:
        """Width of the state that a layer hands on, p."""
        return self.projection_size or self.state_size

    @property
    def rows_of_gates(self) -> int:
        """Rows of the weights of one layer and direction, g·h."""
        return GATES[self.mode] * self.state_size

    def inputs(self) -> tuple[str, ...]:
        cell = ("state_cell",) if self.mode == "lstm" else ()
        return ("data", "parameters", "state", *cell, *(("sequence_length",) if self.use_sequence_length else ()))

    def outputs(self) -> tuple[str, ...]:
        states = ("state_output", "statecell_output") if self.mode == "lstm" else ("state_output",)
        return ("out", *(states if self.state_outputs else ()))

    def hidden(self) -> tuple[str, ...]:
        gates = ("gates", "memory") if GATES[self.mode] > 1 else ()
        return ("steps", *gates, *(("mask",) if self._drops else ()))

    def total_outputs(self) -> int:
        return len(self.outputs())

    @property
    def _drops(self) -> bool:
        return self.p > 0 and self.num_layers > 1

    # --- shapes and types ------------------------------------------------------------------------------------------

    def _per_direction(self, features: Any) -> Any:
        """Weights of one layer and direction on ``features`` inputs."""
        projection = self.state_size * (self.projection_size or 0)
        return self.rows_of_gates * (features + self.output_size) + projection

    def packed_size(self, features: Any) -> Any:
        """Length of the vector of parameters for data of ``features``."""
        above = (self.num_layers - 1) * self._per_direction(self.directions * self.output_size)
        biases = self.num_layers * 2 * self.rows_of_gates
        return self.directions * (self._per_direction(features) + above + biases)

    def infer(self, s: Any) -> None:
        layers, d, h, p = self.num_layers, self.directions, self.state_size, self.output_size
        s.data = s.out = (UNKNOWN, UNKNOWN, UNKNOWN)
        for t, n in ((s.data[0], s.data[1]), (s.out[0], s.out[1]), (UNKNOWN, s.sequence_length[0])):
            s.data, s.out = (t, n, UNKNOWN), (t, n, d * p)
        for _ in range(2):  # the batch from any of them to all of them
            s.state = s.state_output = (layers * d, s.data[1], p)
            s.state_cell = s.statecell_output = (layers * d, s.data[1], h)
            for batch in (s.state[1], s.state_output[1], s.state_cell[1], s.statecell_output[1]):
                s.data = (UNKNOWN, batch, UNKNOWN)
        s.out, s.sequence_length = (s.data[0], s.data[1], d * p), (s.data[1],)
        t, n = s.data[0], s.data[1]
        s.steps = (layers, d, t + 1, n, p)
        s.gates = (layers, d, t, n, self.rows_of_gates)
        s.memory = (layers, d, t + 1 if self.mode == "lstm" else t, n, h)
        s.mask = (layers - 1, t, n, d * p)
        s.parameters = (self.packed_size(s.data[2]),)
        least, more = self.packed_size(0), d * self.rows_of_gates
        rest = s.parameters[0] - least
        if rest < more or rest % more:
            must = f"must have {least} values and {more} more for each feature"
            s.fail("parameters", f"{must}, but it has {rest + least}")
        s.data = (t, n, rest // more)

    def types(self, t: Any) -> None:
        t.same()
        check_floating(t, "data")
        if t.data is not None:
            t.steps = t.gates = t.memory = wide(t.data)
        t.mask = "bool"

    def temps(self, s: Any) -> Mapping[str, tuple[tuple[int, ...], Any]]:
        (t, n, k), d, h, p = s.data, self.directions, self.state_size, self.output_size
        kind = s.dtype("steps")
        cast = kind != s.dtype("data")
        values = d * t * n * max(k, d * p if self.num_layers > 1 else 0)
        columns = width(product(s.mask) // max(n, 1)) if self._drops else 0
        own = cast or d > 1 or self._drops
        copied = cast or d > 1 or self.use_sequence_length or self.projection_size is not None
        return {
            "weights": (s.parameters, kind),
            "dweights": (s.parameters if cast else (0,), kind),
            "inputs": ((values if own else 0,), kind),
            "dinputs": ((values if own or self.num_layers > 1 else 0,), kind),
            "dsteps": ((d, t, n, p) if copied else (0,), kind),
            "dgates": ((d, t, n, self.rows_of_gates), kind),
            "fresh": ((d, n, self.rows_of_gates), kind),
            "carry": ((3, d, n, p), kind),
            "small": ((4, d, n, h), kind),
            "cut": ((2, d, n, h) if self.lstm_state_clip_min is not None else (0,), "bool"),
            "held": ((d, t, n, 1) if self.use_sequence_length else (0,), "bool"),
            "noise": ((min(n, max(1, PIECE // max(columns, 1))), columns), "float32"),
        }

    def keeps(self, want: frozenset[str]) -> Iterable[str]:
        left_out = () if "parameters" in want else ("data",)
        return [name for name in self.form.backward.parameters if name not in left_out]  # type: ignore[union-attr]

    # --- bodies ----------------------------------------------------------------------------------------------------

    def forward(
        self, xp: Any, rng: Any, is_train: bool, data: Array, parameters: Array, state: Array, state_cell: Array,
        sequence_length: Array, out: Array, state_output: Array, statecell_output: Array, steps: Array, gates: Array,
        memory: Array, mask: Array, weights: Temp, inputs: Temp, fresh: Temp, small: Temp, held: Temp, noise: Temp,
    ) -> None:  # fmt: skip
        layers = self._prepared(xp, parameters, weights)
        hold = self._hold(xp, sequence_length, held)
        if mask is not None:
            self._draw(xp, rng, is_train, mask, noise)
        steps[:, :, 0] = state.reshape(steps[:, :, 0].shape)
        if state_cell is not None:
            memory[:, :, 0] = state_cell.reshape(memory[:, :, 0].shape)
        for number, own in enumerate(layers):
            layer = self._layer(xp, number, steps, gates, memory, own, hold)
            source = self._input(xp, number, data, steps, mask if is_train else None, inputs)
            place = layer.steps[:, 1:] if gates is None else layer.gates
            xp.matmul(source, own.inputs, out=place.reshape(*source.shape[:2], self.rows_of_gates))
            bias = own.biases.sum(axis=1, keepdims=True)
            if self.mode == "lstm":
                rnn_cells.lstm_forward(layer, bias, fresh, small)
            elif self.mode == "gru":
                inner = own.biases[:, 1:, 2 * self.state_size :]
                bias[..., 2 * self.state_size :] = own.biases[:, :1, 2 * self.state_size :]
                rnn_cells.gru_forward(layer, bias, inner, fresh, small)
            else:
                rnn_cells.plain_forward(layer, self.mode == "rnn_relu", bias, fresh)
        rnn_cells.side_by_side(xp, steps[-1][:, 1:], out)
        if hold is not None:
            xp.copyto(out, 0, where=hold[0])
        if state_output is not None:
            xp.copyto(state_output.reshape(steps[:, :, -1].shape), steps[:, :, -1])
        if statecell_output is not None:
            xp.copyto(statecell_output.reshape(memory[:, :, -1].shape), memory[:, :, -1])

    def backward(
        self, xp: Any, is_train: bool, dout: Array, dstate_output: Array, dstatecell_output: Array, data: Array,
        parameters: Array, sequence_length: Array, steps: Array, gates: Array, memory: Array, mask: Array, ddata: Array,
        dparameters: Array, dstate: Array, dstate_cell: Array, weights: Temp, dweights: Temp, inputs: Temp,
        dinputs: Temp, dsteps: Temp, dgates: Temp, fresh: Temp, carry: Temp, small: Temp, cut: Temp, held: Temp,
    ) -> None:  # fmt: skip
        kind, features = steps.dtype, self._features(parameters.shape[0])
        if parameters.dtype != kind:
            widen(xp, parameters, weights)
            parameters = weights
        layers = self._views(parameters, features)
        whole = dparameters if dparameters is None or dparameters.dtype == kind else dweights
        gradients = None if whole is None else self._views(whole, features)
        hold, mask, shape = self._hold(xp, sequence_length, held), mask if is_train else None, steps[:, :, 0].shape
        arriving = dout[None]
        if dsteps.ndim > 1:
            arriving = rnn_cells.apart(xp, dout, dsteps)
            if hold is not None:
                xp.copyto(dsteps, 0, where=hold)
        last = None if dstate_output is None else dstate_output.reshape(shape)
        last_cell = None if dstatecell_output is None else dstatecell_output.reshape(memory[:, :, 0].shape)
        for number in reversed(range(self.num_layers)):
            layer = self._layer(xp, number, steps, gates, memory, layers[number], hold)
            above = rnn_cells.Arriving(
                arriving, None if last is None else last[number], None if last_cell is None else last_cell[number]
            )
            if self.mode == "lstm":
                state, cell = rnn_cells.lstm_backward(layer, above, dgates, fresh, carry, small, cut)
                if dstate_cell is not None:
                    xp.copyto(dstate_cell.reshape(memory[:, :, 0].shape)[number], cell)
            elif self.mode == "gru":
                state = rnn_cells.gru_backward(layer, above, dgates, fresh, carry, small)
            else:
                state = rnn_cells.plain_backward(layer, self.mode == "rnn_relu", above, dgates, carry)
            if dstate is not None:
                xp.copyto(dstate.reshape(shape)[number], state)
            below = self._below(xp, layers[number].inputs, dgates, dinputs if number else ddata, dinputs)
            if gradients is not None:
                source = self._input(xp, number, data, steps, mask, inputs)
                self._weights(xp, layer, source, arriving, dgates, gradients[number])
            if below is not None and self.bidirectional:
                xp.add(below[0], below[1][::-1], out=below[0])
            if number:
                if mask is not None:
                    self._drop(xp, below[0], mask[number - 1])
                arriving = below if dsteps.ndim == 1 else rnn_cells.apart(xp, below[0], dsteps)
            elif below is not None and (self.bidirectional or ddata.dtype != kind):
                narrow(xp, below[0], ddata)
        if dparameters is not None and whole is not dparameters:
            narrow(xp, whole, dparameters)

    # --- pieces of both --------------------------------------------------------------------------------------------

    def _features(self, size: int) -> int:
        return int(size - self.packed_size(0)) // (self.directions * self.rows_of_gates)

    def _views(self, packed: Array, features: int) -> list[Weights]:
        """Weights and biases of every layer in a vector of parameters."""
        d, h, p, rows, layers, start = self.directions, self.state_size, self.output_size, self.rows_of_gates, [], 0
        biases = packed[packed.size - self.num_layers * d * 2 * rows :].reshape(self.num_layers, d, 2, rows)
        for number in range(self.num_layers):
            k = d * p if number else features
            size = self._per_direction(k)
            block = packed[start : start + d * size].reshape(d, size)
            first, second = rows * k, rows * (k + p)
            projection = block[:, second:].reshape(d, p, h) if self.projection_size else None
            inputs, recurrent = block[:, :first].reshape(d, rows, k), block[:, first:second].reshape(d, rows, p)
            layers.append(Weights(inputs, recurrent, projection, biases[number]))
            start += d * size
        return layers

    def _prepared(self, xp: Any, parameters: Array, weights: Array) -> list[Weights]:
        """Copies for forward in ``weights``: matrices turned, rows scaled so that one tanh is good for all gates."""
        factor, features = xp.ones(self.rows_of_gates, weights.dtype), self._features(parameters.shape[0])
        if GATES[self.mode] > 1:
            factor, _ = rnn_cells.sigmoid_rows(xp, GATES[self.mode], self.state_size, weights.dtype)
        found = []
        for given, own in zip(self._views(parameters, features), self._views(weights, features), strict=True):
            d, rows, k = own.inputs.shape
            inputs, recurrent = own.inputs.reshape(d, k, rows), own.recurrent.reshape(d, self.output_size, rows)
            xp.multiply(given.inputs.swapaxes(1, 2), factor, out=inputs)
            xp.multiply(given.recurrent.swapaxes(1, 2), factor, out=recurrent)
            xp.multiply(given.biases, factor, out=own.biases)
            projection = own.projection
            if projection is not None:
                projection = projection.reshape(d, self.state_size, self.output_size)
                xp.copyto(projection, given.projection.swapaxes(1, 2))
            found.append(Weights(inputs, recurrent, projection, own.biases))
        return found

    def _layer(
        self, xp: Any, number: int, steps: Array, gates: Array, memory: Array, own: Weights, hold: Array
    ) -> rnn_cells.Layer:
        low, high = self.lstm_state_clip_min, self.lstm_state_clip_max
        return rnn_cells.Layer(
            xp, steps[number], None if gates is None else gates[number], None if memory is None else memory[number],
            own.recurrent, own.projection, hold,
            None if low is None or high is None else (low, high, self.lstm_state_clip_nan),
        )  # fmt: skip

    def _hold(self, xp: Any, lengths: Array, held: Array) -> Array:
        """Where a direction has no step to take, (d, t, n, 1)."""
        if lengths is None:
            return None
        t = xp.arange(held.shape[1])[:, None]
        xp.less(t, lengths, out=held[0, :, :, 0])
        xp.logical_not(held[0], out=held[0])
        if self.bidirectional:
            xp.copyto(held[1], held[0][::-1])
        return held

    def _draw(self, xp: Any, rng: Any, is_train: bool, mask: Array, noise: Array) -> None:
        """Fill ``mask`` (layers - 1, t, n, d · p) with what is kept; a sequence has a row of random numbers."""
        if not is_train:
            mask.fill(True)
            return
        above, t, n, columns = mask.shape
        for start in range(0, n, max(len(noise), 1)):
            drawn = noise[: n - start]
            rng.uniform(drawn, start=start)
            rows = drawn[:, : above * t * columns].reshape(len(drawn), above, t, columns)
            xp.greater_equal(rows.transpose(1, 2, 0, 3), self.p, out=mask[:, :, start : start + len(drawn)])

    def _drop(self, xp: Any, values: Array, mask: Array) -> None:
        xp.multiply(values, 1 / (1 - self.p) if self.p < 1 else 0.0, out=values)
        xp.multiply(values, mask, out=values)

    def _input(self, xp: Any, number: int, data: Array, steps: Array, mask: Array, inputs: Array) -> Array:
        """What layer ``number`` reads, (d, t·n, k), each direction in its own order."""
        t, n, k = steps.shape[2] - 1, steps.shape[3], self.directions * self.output_size if number else data.shape[2]
        if not (self.bidirectional or self._drops or data.dtype != steps.dtype):
            return (steps[number - 1, 0, 1:] if number else data).reshape(1, t * n, k)
        found = inputs[: self.directions * t * n * k].reshape(self.directions, t, n, k)
        if number:
            rnn_cells.side_by_side(xp, steps[number - 1][:, 1:], found[0])
            if mask is not None:
                self._drop(xp, found[0], mask[number - 1])
        else:
            widen(xp, data, found[0])
        if self.bidirectional:
            xp.copyto(found[1], found[0][::-1])
        return found.reshape(self.directions, t * n, k)

    def _below(self, xp: Any, weights: Array, dgates: Array, wanted: Array, spare: Array) -> Array:
        """Gradient of a layer's input for each direction, (d, t, n, k) in its own order; None if nobody wants it."""
        if wanted is None:
            return None
        (d, t, n, rows), k = dgates.shape, weights.shape[2]
        direct = wanted.ndim == 3 and d == 1 and wanted.dtype == dgates.dtype
        found = (wanted if direct else spare[: d * t * n * k]).reshape(d, t, n, k)
        xp.matmul(dgates.reshape(d, t * n, rows), weights, out=found.reshape(d, t * n, k))
        return found

    def _weights(
        self, xp: Any, layer: rnn_cells.Layer, source: Array, arrived: Array, dgates: Array, own: Weights
    ) -> None:
        """Gradients of one layer's weights and biases: one product each over all steps. Overwrites ``dgates``."""
        d, t, n, rows = dgates.shape
        flat, p, h = dgates.reshape(d, t * n, rows), self.output_size, self.state_size
        xp.matmul(flat.swapaxes(1, 2), source, out=own.inputs)
        xp.sum(flat, axis=1, out=own.biases[:, 0])
        if self.mode == "gru":
            xp.multiply(dgates[..., 2 * h :], layer.gates[..., :h], out=dgates[..., 2 * h :])
        xp.matmul(flat.swapaxes(1, 2), layer.steps[:, :-1].reshape(d, t * n, p), out=own.recurrent)
        xp.sum(flat, axis=1, out=own.biases[:, 1])
        if own.projection is not None:
            hidden = dgates.reshape(-1)[: d * t * n * h].reshape(d, t, n, h)
            xp.tanh(layer.memory[:, 1:], out=hidden)
            xp.multiply(hidden, layer.gates[..., 3 * h :], out=hidden)
            turned = arrived.reshape(d, t * n, p).swapaxes(1, 2)
            xp.matmul(turned, hidden.reshape(d, t * n, h), out=own.projection)
