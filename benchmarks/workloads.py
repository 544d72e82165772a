"""The nets that are measured, as symbols with their inputs; :mod:`by_hand` has each once more in plain NumPy."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from arrayexec import rnn, sym

VOCABULARY, HIDDEN, SENTENCES = 10_000, 200, 32


class Workload(NamedTuple):
    """A net, its inputs and its work: float operations of forward and backward (2 a product, products alone)."""

    symbol: Any
    inputs: dict[str, np.ndarray]
    flops: float
    out_grad: np.ndarray | None = None


def mlp(batch: int) -> Workload:
    """784-512-512-10, relu."""
    return _dense([784, 512, 512, 10], batch)


def chain() -> Workload:
    """Twenty layers of 512 with relu, a head of 10, batch 2048."""
    return _dense([512] * 21 + [10], 2048)


def _dense(widths: list[int], batch: int) -> Workload:
    net = sym.Variable("data")
    for number, width in enumerate(widths[1:]):
        if number:
            net = sym.Activation(net, act_type="relu")
        net = sym.FullyConnected(net, num_hidden=width, name=f"fc{number}")
    pairs = [a * b for a, b in itertools.pairwise(widths)]
    return Workload(_loss(net), _images(batch, (widths[0],)), 2.0 * batch * (3 * sum(pairs) - pairs[0]))


def lenet(batch: int) -> Workload:
    """Two convolutions of 5×5 (20, 50) with tanh and max pooling, 500 hidden units, images of 28×28."""
    net = sym.Variable("data")
    for number, filters in enumerate((20, 50)):
        net = sym.Convolution(net, kernel=(5, 5), num_filter=filters, name=f"conv{number}")
        net = sym.Activation(net, act_type="tanh")
        net = sym.Pooling(net, kernel=(2, 2), stride=(2, 2), pool_type="max")
    net = sym.Activation(sym.FullyConnected(net, num_hidden=500, name="fc0"), act_type="tanh")
    net = sym.FullyConnected(net, num_hidden=10, name="fc1")
    return Workload(_loss(net), _images(batch, (1, 28, 28)), 13.18e6 * batch)


def _norm(net: Any, name: str) -> Any:
    return sym.BatchNorm(net, fix_gamma=False, eps=1e-5, name=name)


def _conv(net: Any, filters: int, kernel: int, stride: int, name: str) -> Any:
    pad = kernel // 2
    return sym.Convolution(net, kernel=(kernel, kernel), stride=(stride, stride), pad=(pad, pad),
                           num_filter=filters, no_bias=True, name=name)  # fmt: skip


def _relu(net: Any) -> Any:
    return sym.Activation(net, act_type="relu")


def resnet20(batch: int) -> Workload:
    """Residual net of 20 layers for images of 32×32: 3 stages of 3 blocks, 16, 32 and 64 channels, batch norm."""
    net = _relu(_norm(_conv(sym.Variable("data"), 16, 3, 1, "conv"), "norm"))
    for stage, filters in enumerate((16, 32, 64)):
        for block in range(3):
            name, stride = f"s{stage}b{block}", 2 if stage and not block else 1
            inner = _relu(_norm(_conv(net, filters, 3, stride, f"{name}_conv0"), f"{name}_norm0"))
            inner = _norm(_conv(inner, filters, 3, 1, f"{name}_conv1"), f"{name}_norm1")
            if stride == 2:
                net = _norm(_conv(net, filters, 1, 2, f"{name}_short"), f"{name}_shortnorm")
            net = _relu(inner + net)
    net = sym.Pooling(net, global_pool=True, pool_type="avg")
    return Workload(
        _loss(sym.FullyConnected(net, num_hidden=10, name="fc")), _images(batch, (3, 32, 32)), 244.0e6 * batch
    )


def resnet50(batch: int) -> Workload:
    """Residual net of 50 layers for images of 224×224: 3, 4, 6, 3 blocks of 1×1, 3×3, 1×1; 25.6 M parameters."""
    net = _relu(_norm(_conv(sym.Variable("data"), 64, 7, 2, "conv"), "norm"))
    net = sym.Pooling(net, kernel=(3, 3), stride=(2, 2), pad=(1, 1), pool_type="max")
    for stage, blocks in enumerate((3, 4, 6, 3)):
        filters = 64 << stage
        for block in range(blocks):
            name, stride = f"s{stage}b{block}", 2 if stage and not block else 1
            inner = _relu(_norm(_conv(net, filters, 1, 1, f"{name}_conv0"), f"{name}_norm0"))
            inner = _relu(_norm(_conv(inner, filters, 3, stride, f"{name}_conv1"), f"{name}_norm1"))
            inner = _norm(_conv(inner, 4 * filters, 1, 1, f"{name}_conv2"), f"{name}_norm2")
            if not block:
                net = _norm(_conv(net, 4 * filters, 1, stride, f"{name}_short"), f"{name}_shortnorm")
            net = _relu(inner + net)
    net = sym.Pooling(net, global_pool=True, pool_type="avg")
    return Workload(
        _loss(sym.FullyConnected(net, num_hidden=1000, name="fc")), _images(batch, (3, 224, 224)), 24.5e9 * batch
    )


def lstm(length: int) -> Workload:
    """Language model: embedding, two LSTM layers of 200 unrolled, 10,000 words, 32 sentences."""
    stack = rnn.SequentialRNNCell()
    for layer in range(2):
        stack.add(rnn.LSTMCell(HIDDEN, prefix=f"l{layer}_"))
    words = sym.Embedding(sym.Variable("data"), input_dim=VOCABULARY, output_dim=HIDDEN, name="embed")
    outputs, _ = stack.unroll(length, words, merge_outputs=True)
    net = sym.FullyConnected(sym.Reshape(outputs, shape=(-1, HIDDEN)), num_hidden=VOCABULARY, name="fc")
    net = sym.SoftmaxOutput(
        net, sym.Reshape(sym.Variable("softmax_label"), shape=(-1,)), normalization="batch", name="softmax"
    )
    random = np.random.default_rng(0)
    inputs = {n: random.integers(0, VOCABULARY, (SENTENCES, length)).astype("f") for n in ("data", "softmax_label")}
    return Workload(net, inputs, 15.84e6 * SENTENCES * length)


def tiny() -> Workload:
    """100 elementwise operators on 16 numbers."""
    x, y = sym.Variable("x"), sym.Variable("y")
    net = x
    for _ in range(25):
        net = sym.tanh(net * y + x) - y
    random = np.random.default_rng(0)
    return Workload(net, {n: random.random(16, dtype="f") for n in "xy"}, 0.0, np.ones(16, "f"))


def _loss(net: Any) -> Any:
    return sym.SoftmaxOutput(net, normalization="batch", name="softmax")


def _images(batch: int, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    return {
        "data": random.random((batch, *shape), dtype="f"),
        "softmax_label": random.integers(0, 10, batch).astype("f"),
    }


WORKLOADS: dict[str, Callable[[], Workload]] = {
    "mlp64": lambda: mlp(64), "mlp512": lambda: mlp(512), "lenet64": lambda: lenet(64),
    "lstm_10": lambda: lstm(10), "lstm_30": lambda: lstm(30), "lstm_60": lambda: lstm(60),
    "chain": chain, "tiny": tiny, "resnet20": lambda: resnet20(32),
    "resnet50": lambda: resnet50(4),
}  # fmt: skip
