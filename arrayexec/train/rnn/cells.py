"""The plain, LSTM and GRU cells. Input and state (n, …) go through one affine map each, then through the gates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ... import symbol as sym
from ...symbol import Symbol
from ..initializer import LSTMBias
from .base import BaseRNNCell, RNNParams, StateInfo, check_states

Activation = str | Callable[..., Symbol]


class GatedCell(BaseRNNCell):
    """Base of the cells: weights and biases ``i2h_…`` (of the input) and ``h2h_…`` (of the state), gate after gate."""

    def __init__(
        self, num_hidden: int, prefix: str, params: RNNParams | None, activation: Activation = "tanh",
        init: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(prefix, params)
        self._num_hidden = num_hidden
        self._activation = activation
        inits = init or {}
        for name in ("i2h_weight", "i2h_bias", "h2h_weight", "h2h_bias"):
            self._params.get(name, init=inits.get(name))

    _num_states = 1

    @property
    def state_info(self) -> list[StateInfo]:
        """States (n, num_hidden)."""
        return [{"shape": (0, self._num_hidden), "__layout__": "NC"} for _ in range(self._num_states)]

    def _next_step(self, states: Sequence[Symbol]) -> str:
        """The beginning of the names of the next step's nodes, which must be given the cell's ``states``."""
        check_states(self, states)
        self._counter += 1
        return f"{self._prefix}t{self._counter}_"

    def _affine(self, group: str, data: Symbol, name: str) -> Symbol:
        """All gates' shares of ``data``, side by side on axis 1."""
        weight, bias = self._params.get(f"{group}_weight"), self._params.get(f"{group}_bias")
        units = self._num_hidden * len(self._gate_names)
        return sym.FullyConnected(data, weight, bias, num_hidden=units, name=name)  # type: ignore[no-any-return]

    def _activate(self, data: Symbol, name: str | None = None) -> Symbol:
        if isinstance(self._activation, str):
            return sym.Activation(data, act_type=self._activation, name=name)  # type: ignore[no-any-return]
        return self._activation(data, name=name)


def _sigmoid(data: Symbol, name: str) -> Symbol:
    return sym.Activation(data, act_type="sigmoid", name=name)  # type: ignore[no-any-return]


class RNNCell(GatedCell):
    """``out = activation(i2h(input) + h2h(state))``; the output is the new state. activation: a name or a function."""

    _gate_names = ("",)

    def __init__(
        self, num_hidden: int, activation: Activation = "tanh", prefix: str = "rnn_", params: RNNParams | None = None
    ) -> None:
        super().__init__(num_hidden, prefix, params, activation)

    def __call__(self, inputs: Symbol, states: Sequence[Symbol]) -> tuple[Symbol, list[Symbol]]:
        """Output (n, num_hidden) and the new state, which is the same."""
        name = self._next_step(states)
        output = self._activate(
            self._affine("i2h", inputs, f"{name}i2h") + self._affine("h2h", states[0], f"{name}h2h"), f"{name}out"
        )
        return output, [output]


class LSTMCell(GatedCell):
    """``c' = f·c + i·g``, ``out = o·tanh(c')`` with gates i, f, g, o in this order (g is called ``_c``); states out, c.

    i, f, o = sigmoid, g = tanh of ``i2h(input) + h2h(out)``. The biases of f begin at ``forget_bias``.
    """

    _gate_names = ("_i", "_f", "_c", "_o")
    _num_states = 2

    def __init__(
        self, num_hidden: int, prefix: str = "lstm_", params: RNNParams | None = None, forget_bias: float = 1.0
    ) -> None:
        super().__init__(num_hidden, prefix, params, init={"i2h_bias": LSTMBias(forget_bias)})

    def __call__(self, inputs: Symbol, states: Sequence[Symbol]) -> tuple[Symbol, list[Symbol]]:
        """Output (n, num_hidden), and the new states: output and memory."""
        name = self._next_step(states)
        gates = self._affine("i2h", inputs, f"{name}i2h") + self._affine("h2h", states[0], f"{name}h2h")
        i, f, g, o = sym.SliceChannel(gates, num_outputs=4, name=f"{name}slice")
        i, f = _sigmoid(i, f"{name}i"), _sigmoid(f, f"{name}f")
        g, o = self._activate(g, f"{name}c"), _sigmoid(o, f"{name}o")
        memory = sym.elemwise_add(f * states[1], i * g, name=f"{name}state")
        output = sym.elemwise_mul(o, self._activate(memory), name=f"{name}out")
        return output, [output, memory]


class GRUCell(GatedCell):
    """``out = (1 - z)·n + z·state`` with ``n = tanh(i2h_n(input) + r·h2h_n(state))``; the output is the new state.

    Gates r, z (sigmoid of the sum of both maps) and n, called ``_o``, in this order.
    """

    _gate_names = ("_r", "_z", "_o")

    def __init__(self, num_hidden: int, prefix: str = "gru_", params: RNNParams | None = None) -> None:
        super().__init__(num_hidden, prefix, params)

    def __call__(self, inputs: Symbol, states: Sequence[Symbol]) -> tuple[Symbol, list[Symbol]]:
        """Output (n, num_hidden) and the new state, which is the same."""
        name = self._next_step(states)
        i2h, h2h = self._affine("i2h", inputs, f"{name}_i2h"), self._affine("h2h", states[0], f"{name}_h2h")
        i_r, i_z, i_n = sym.SliceChannel(i2h, num_outputs=3, name=f"{name}_i2h_slice")
        h_r, h_z, h_n = sym.SliceChannel(h2h, num_outputs=3, name=f"{name}_h2h_slice")
        r = _sigmoid(i_r + h_r, f"{name}_r_act")
        z = _sigmoid(i_z + h_z, f"{name}_z_act")
        n = self._activate(i_n + r * h_n, f"{name}_h_act")
        output = sym.elemwise_add((1.0 - z) * n, z * states[0], name=f"{name}out")
        return output, [output]
