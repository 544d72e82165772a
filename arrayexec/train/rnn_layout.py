"""Where the weights of a fused RNN lie in its flat parameter vector.

For every layer and direction the input-to-hidden weights, then the hidden-to-hidden ones; after all weights
the biases in the same order. Inside each, one piece for every gate.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from ..errors import ShapeError
from .options import one_of

GATES = {
    "rnn_relu": ("",),
    "rnn_tanh": ("",),
    "lstm": ("_i", "_f", "_c", "_o"),
    "gru": ("_r", "_z", "_o"),
}


def rnn_pieces(
    size: int, num_hidden: int, num_layers: int, mode: str, bidirectional: bool = False
) -> Iterator[tuple[str, slice, tuple[int, ...]]]:
    """Name (``l0_i2h_f_weight``; ``r0_…`` runs backwards), place and shape of every piece, in order.

    Raises AttributeValueError for an unknown mode, ShapeError for a size that no number of inputs gives.
    """
    gates = GATES[one_of("fused RNN", "mode", mode, list(GATES))]
    directions = ("l", "r") if bidirectional else ("l",)
    inputs = _num_input(size, num_hidden, num_layers, len(gates), len(directions))
    cells = [(layer, direction) for layer in range(num_layers) for direction in directions]
    start = 0
    for kind in ("weight", "bias"):
        for layer, direction in cells:
            below = inputs if layer == 0 else num_hidden * len(directions)
            for group, columns in (("i2h", below), ("h2h", num_hidden)):
                shape = (num_hidden, columns) if kind == "weight" else (num_hidden,)
                for gate in gates:
                    end = start + math.prod(shape)
                    yield f"{direction}{layer}_{group}{gate}_{kind}", slice(start, end), shape
                    start = end


def rnn_size(num_input: int, num_hidden: int, num_layers: int, mode: str, bidirectional: bool = False) -> int:
    """The length of the parameter vector of a fused RNN on ``num_input`` inputs."""
    rows, upper = _rows_and_upper(num_hidden, num_layers, len(GATES[mode]), 2 if bidirectional else 1)
    return upper + rows * (num_input + num_hidden + 2)


def _rows_and_upper(num_hidden: int, num_layers: int, num_gates: int, num_directions: int) -> tuple[int, int]:
    """Rows of the first layer's weights over all directions, and the number of values of the layers above."""
    rows = num_directions * num_gates * num_hidden
    return rows, (num_layers - 1) * rows * (num_directions * num_hidden + num_hidden + 2)


def _num_input(size: int, num_hidden: int, num_layers: int, num_gates: int, num_directions: int) -> int:
    rows, upper = _rows_and_upper(num_hidden, num_layers, num_gates, num_directions)
    inputs, rest = divmod(size - upper, rows)
    inputs -= num_hidden + 2
    if rest or inputs < 1:
        raise ShapeError(
            f"fused RNN: with {num_layers} layers of {num_hidden}, {num_gates} gates and {num_directions} "
            f"directions the parameter vector must have {upper + rows * (num_hidden + 2)} values and {rows} "
            f"more for each input, but it has {size}"
        )
    return inputs
