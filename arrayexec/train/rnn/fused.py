"""The cell that is one operator: all layers, directions and steps of an `RNN` with a single parameter vector."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy

from ... import symbol as sym
from ...context import Array, asnumpy
from ...errors import AttributeValueError, ShapeError
from ...symbol import Symbol
from ..initializer import FusedRNN
from ..options import one_of
from ..rnn_layout import GATES, rnn_pieces, rnn_size
from .base import Arrays, BaseRNNCell, RNNParams, StateInfo, Unrolled, as_steps, check_states, merge, taken, time_axis
from .cells import GRUCell, LSTMCell, RNNCell


class FusedRNNCell(BaseRNNCell):
    """``num_layers`` layers of mode rnn_relu, rnn_tanh, lstm or gru in one operator, perhaps in both directions.

    Between layers outputs are dropped with probability ``dropout``. ``get_next_state``: unroll gives the last states,
    too. `unfuse` gives the same network out of single cells. Raises AttributeValueError for another mode.
    """

    def __init__(
        self, num_hidden: int, num_layers: int = 1, mode: str = "lstm", bidirectional: bool = False,
        dropout: float = 0.0, get_next_state: bool = False, forget_bias: float = 1.0, prefix: str | None = None,
        params: RNNParams | None = None,
    ) -> None:  # fmt: skip
        one_of("FusedRNNCell", "mode", mode, list(GATES))
        super().__init__(f"{mode}_" if prefix is None else prefix, params)
        self._num_hidden = num_hidden
        self._num_layers = num_layers
        self._mode = mode
        self._bidirectional = bidirectional
        self._dropout = dropout
        self._get_next_state = get_next_state
        self._forget_bias = forget_bias
        init = FusedRNN(None, num_hidden, num_layers, mode, bidirectional, forget_bias)
        self._params.get("parameters", init=init)

    @property
    def state_info(self) -> list[StateInfo]:
        """States (layers · directions, n, num_hidden): one, with lstm two."""
        shape = (self._num_layers * (2 if self._bidirectional else 1), 0, self._num_hidden)
        return [{"shape": shape, "__layout__": "LNC"} for _ in range(2 if self._mode == "lstm" else 1)]

    def unpack_weights(self, args: Mapping[str, Array]) -> Arrays:
        """A copy of ``args`` with a weight and a bias for each layer and gate, as NumPy arrays, for the vector.

        Raises UnknownNameError if the vector is missing, ShapeError if its length fits no number of inputs.
        """
        args = dict(args)
        vector = asnumpy(taken(self, args, f"{self._prefix}parameters"))
        for name, where, shape in self._pieces(vector.size):
            args[self._prefix + name] = vector[where].reshape(shape).copy()
        return args

    def pack_weights(self, args: Mapping[str, Array]) -> Arrays:
        """The inverse of `unpack_weights`. Raises UnknownNameError for a missing piece, ShapeError for a wrong one."""
        args = dict(args)
        first = taken(self, dict(args), f"{self._prefix}l0_i2h{GATES[self._mode][0]}_weight")
        size = rnn_size(first.shape[1], self._num_hidden, self._num_layers, self._mode, self._bidirectional)
        vector = numpy.empty(size, first.dtype)
        for name, where, shape in self._pieces(size):
            piece = asnumpy(taken(self, args, self._prefix + name))
            if piece.shape != shape:
                raise ShapeError(f"{self!r}: '{self._prefix + name}' must be {shape}, but it is {piece.shape}")
            vector[where] = piece.ravel()
        args[f"{self._prefix}parameters"] = vector
        return args

    def _pieces(self, size: int) -> Any:
        return rnn_pieces(size, self._num_hidden, self._num_layers, self._mode, self._bidirectional)

    def unroll(
        self, length: int, inputs: Any, begin_state: Sequence[Symbol] | None = None, layout: str = "NTC",
        merge_outputs: bool | None = None,
    ) -> Unrolled:  # fmt: skip
        """As `BaseRNNCell.unroll` in layout TNC, or NTC with two axes swapped; no states without ``get_next_state``."""
        self.reset()
        axis = time_axis(layout)
        if axis > 1:
            raise AttributeValueError(f"{self!r}: unroll takes the layouts TNC and NTC, but it was given {layout!r}")
        data = merge(inputs if isinstance(inputs, Symbol) else as_steps(self, length, inputs, layout), layout)
        if axis == 1:  # the operator wants time first
            data = sym.swapaxes(data, dim1=0, dim2=1)
        states = self.begin_state() if begin_state is None else begin_state
        check_states(self, states)
        made = sym.RNN(
            data, self._params.get("parameters"), *states, state_size=self._num_hidden, num_layers=self._num_layers,
            bidirectional=self._bidirectional, p=self._dropout, state_outputs=self._get_next_state, mode=self._mode,
            name=f"{self._prefix}rnn",
        )  # fmt: skip
        outputs, after = made[0], list(made)[1:]
        if axis == 1:
            outputs = sym.swapaxes(outputs, dim1=0, dim2=1)
        return (as_steps(self, length, outputs, layout) if merge_outputs is False else outputs), after

    def unfuse(self) -> Any:
        """The same network as a SequentialRNNCell; its `pack_weights` takes what `unpack_weights` gives here."""
        from .stack import BidirectionalCell, DropoutCell, SequentialRNNCell

        stack = SequentialRNNCell()
        for layer in range(self._num_layers):
            if self._bidirectional:
                left, right = self._single(f"l{layer}_"), self._single(f"r{layer}_")
                stack.add(BidirectionalCell(left, right, output_prefix=f"{self._prefix}bi_l{layer}_"))
            else:
                stack.add(self._single(f"l{layer}_"))
            if self._dropout > 0 and layer < self._num_layers - 1:
                stack.add(DropoutCell(self._dropout, prefix=f"{self._prefix}_dropout{layer}_"))
        return stack

    def _single(self, place: str) -> BaseRNNCell:
        prefix = self._prefix + place
        if self._mode == "lstm":
            return LSTMCell(self._num_hidden, prefix, forget_bias=self._forget_bias)
        if self._mode == "gru":
            return GRUCell(self._num_hidden, prefix)
        return RNNCell(self._num_hidden, self._mode.removeprefix("rnn_"), prefix)
