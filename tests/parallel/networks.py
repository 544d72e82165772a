"""Networks that the tests of groups, buckets and ranks train."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import arrayexec as ax
from arrayexec.train.io import DataDesc

sym = ax.sym


def mlp(classes: int = 3, hidden: int = 8, dropout: float = 0.0, norm: bool = False) -> Any:
    """Two layers and a softmax loss."""
    net = sym.FullyConnected(sym.Variable("data"), num_hidden=hidden, name="fc1")
    if norm:
        net = sym.BatchNorm(net, name="bn", fix_gamma=False)
    net = sym.Activation(net, act_type="relu", name="relu1")
    if dropout:
        net = sym.Dropout(net, p=dropout, name="drop")
    net = sym.FullyConnected(net, num_hidden=classes, name="fc2")
    return sym.SoftmaxOutput(net, name="softmax")


def convolutional(classes: int = 4, norm: bool = False, dropout: float = 0.0) -> Any:
    """Two convolutions, pooling, a hidden layer, a softmax loss: of (n, 1, 8, 8) images."""
    net = sym.Variable("data")
    for number, filters in enumerate((8, 12), 1):
        net = sym.Convolution(net, kernel=(3, 3), pad=(1, 1), num_filter=filters, name=f"conv{number}")
        if norm:
            net = sym.BatchNorm(net, name=f"bn{number}", fix_gamma=number == 2)
        net = sym.Activation(net, act_type="relu", name=f"relu{number}")
        net = sym.Pooling(net, kernel=(2, 2), stride=(2, 2), pool_type="max", name=f"pool{number}")
    net = sym.Activation(sym.FullyConnected(net, num_hidden=16, name="fc1"), act_type="tanh", name="tanh1")
    if dropout:
        net = sym.Dropout(net, p=dropout, name="drop")
    return sym.SoftmaxOutput(sym.FullyConnected(net, num_hidden=classes, name="fc2"), name="softmax")


def lstm(layers: int, hidden: int, vocabulary: int, own: tuple[int, ...] = ()) -> Callable[[int], Any]:
    """``sym_gen`` of an unrolled LSTM language model: data and softmax_label (batch, length).

    Lengths in ``own`` have a layer that no other has.
    """

    def build(length: int) -> Any:
        data = sym.Embedding(sym.Variable("data"), input_dim=vocabulary, output_dim=hidden, name="embed")
        steps = list(sym.SliceChannel(data, num_outputs=length, axis=1, squeeze_axis=True, name="steps"))
        shared = [
            {f"{part}_{kind}": sym.Variable(f"l{layer}_{part}_{kind}") for part in ("i2h", "h2h") for kind in ("weight", "bias")}
            for layer in range(layers)
        ]
        cells: list[Any] = [None] * layers
        states: list[Any] = [None] * layers
        outputs = []
        for t, step in enumerate(steps):
            for layer, weights in enumerate(shared):
                name = f"l{layer}_t{t}"
                gates = sym.FullyConnected(
                    step, weights["i2h_weight"], weights["i2h_bias"], num_hidden=4 * hidden, name=f"{name}_i2h"
                )
                if t:
                    gates = gates + sym.FullyConnected(
                        states[layer], weights["h2h_weight"], weights["h2h_bias"], num_hidden=4 * hidden, name=f"{name}_h2h"
                    )
                parts = sym.SliceChannel(gates, num_outputs=4, axis=1, name=f"{name}_slice")
                enter, forget, leave = (sym.Activation(parts[i], act_type="sigmoid") for i in (0, 1, 3))
                cell = enter * sym.Activation(parts[2], act_type="tanh")
                cells[layer] = cell + forget * cells[layer] if t else cell
                step = states[layer] = leave * sym.Activation(cells[layer], act_type="tanh")
            outputs.append(step)
        rows = sym.Reshape(sym.Concat(*(sym.expand_dims(o, axis=1) for o in outputs), dim=1), shape=(-1, hidden))
        if length in own:
            rows = sym.Activation(sym.FullyConnected(rows, num_hidden=hidden, name=f"own{length}"), act_type="tanh")
        scores = sym.FullyConnected(rows, num_hidden=vocabulary, name="scores")
        return sym.SoftmaxOutput(scores, sym.Reshape(sym.Variable("softmax_label"), shape=(-1,)), name="softmax")

    return build


class Described:
    """What a manager asks of an iterator."""

    def __init__(
        self, data: dict[str, tuple[int, ...]], label: dict[str, tuple[int, ...]], layout: str | None = None,
        dtype: Any = np.float32, **more: Any,
    ) -> None:
        self.provide_data = [DataDesc(name, shape, dtype, layout) for name, shape in data.items()]
        self.provide_label = [DataDesc(name, shape, np.float32, layout) for name, shape in label.items()]
        self.batch_size = self.provide_data[0].shape[max(0, DataDesc.get_batch_axis(layout))]
        self.__dict__ |= more


def values(symbol: Any, seed: int = 3, scale: float = 0.2, **shapes: tuple[int, ...]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Parameters and auxiliary states for ``symbol``."""
    arguments, _, states = symbol.infer_shape_partial(**shapes)
    rng = np.random.default_rng(seed)
    args = {
        name: rng.normal(0, scale, shape).astype(np.float32)
        for name, shape in zip(symbol.list_arguments(), arguments, strict=True)
        if name not in shapes and not name.endswith("label")
    }
    aux = {
        name: np.full(shape, float(name.endswith("var")), np.float32)
        for name, shape in zip(symbol.list_auxiliary_states(), states, strict=True)
    }
    return args, aux
