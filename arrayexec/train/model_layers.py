"""Layers of a model under construction: each makes Symbols, and the parameters it needs, under the name of its output.

The first parameter is the model; `ModelHelper` has all of them as methods. Inputs are Symbols, or names of blobs of the
same device (a name that nobody made is an input of the net).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import symbol as sym
from .initializer import Constant, Initializer, Uniform, Xavier
from .rnn_layout import rnn_size

Blob = Any
"""A Symbol, or the name of a blob of the device."""
Pair = int | Sequence[int]


def _pair(value: Pair) -> tuple[int, ...]:
    return (value, value) if isinstance(value, int) else tuple(value)


def _weight(model: Any, name: str, shape: Any, init: Initializer | None) -> Any:
    """A weight of known shape; without a rule of its own uniform in ±sqrt(3 / inputs)."""
    return model.create_param(name, shape, init or Xavier("uniform", "in", 3), decays=True)


def _bias(model: Any, name: str, size: int, init: Initializer | None, value: float = 0.0) -> Any:
    return model.create_param(name, (size,), init or Constant(value))


def fc(
    model: Any, blob_in: Blob, blob_out: str, dim_in: int, dim_out: int, weight_init: Initializer | None = None,
    bias_init: Initializer | None = None, no_bias: bool = False,
) -> Any:  # fmt: skip
    """``x · wᵀ + b``: x (n, …) of dim_in values a row, ``<blob_out>_w`` (dim_out, dim_in), ``_b`` (dim_out,)."""
    inputs = {"weight": _weight(model, f"{blob_out}_w", (dim_out, dim_in), weight_init)}
    if not no_bias:
        inputs["bias"] = _bias(model, f"{blob_out}_b", dim_out, bias_init)
    return model.make("FullyConnected", blob_out, blob_in, **inputs, num_hidden=dim_out, no_bias=no_bias)


def conv(
    model: Any, blob_in: Blob, blob_out: str, dim_in: int, dim_out: int, kernel: Pair, stride: Pair = 1, pad: Pair = 0,
    dilation: Pair = 1, group: int = 1, weight_init: Initializer | None = None, bias_init: Initializer | None = None,
    no_bias: bool = False,
) -> Any:  # fmt: skip
    """Convolution of (n, dim_in, h, w): ``<blob_out>_w`` (dim_out, dim_in / group, *kernel), ``_b`` (dim_out,)."""
    shape = (dim_out, dim_in // group, *_pair(kernel))
    inputs = {"weight": _weight(model, f"{blob_out}_w", shape, weight_init)}
    if not no_bias:
        inputs["bias"] = _bias(model, f"{blob_out}_b", dim_out, bias_init)
    return model.make(
        "Convolution", blob_out, blob_in, **inputs, num_filter=dim_out, kernel=_pair(kernel), stride=_pair(stride),
        pad=_pair(pad), dilate=_pair(dilation), num_group=group, no_bias=no_bias,
    )  # fmt: skip


def spatial_bn(
    model: Any, blob_in: Blob, blob_out: str, dim_in: int, epsilon: float = 1e-5, momentum: float = 0.9,
    is_test: bool = False,
) -> Any:  # fmt: skip
    """Batch normalisation of (n, dim_in, …) by channel: parameters ``_s _b``, computed ones ``_rm _riv``.

    Running variances are unbiased. Training shows the batch's mean as ``<blob_out>_sm`` and 1 / deviation as ``_siv``.
    With ``combine_spatial_bn`` the statistics are those of the rows of all devices.
    """
    inputs = {
        "gamma": model.create_param(f"{blob_out}_s", (dim_in,), Constant(1.0), decays=True),
        "beta": _bias(model, f"{blob_out}_b", dim_in, None),
        "moving_mean": model.create_param(f"{blob_out}_rm", (dim_in,), Constant(0.0), computed=True),
        "moving_var": model.create_param(f"{blob_out}_riv", (dim_in,), Constant(1.0), computed=True),
    }
    options = {"eps": epsilon, "momentum": momentum}
    if model.combines_spatial_bn and not is_test:
        data = model.blob(blob_in)
        moments = sym._joined_moments(sym._batch_moments(data, name=f"{blob_out}_own"), name=f"{blob_out}_moments")
        found = model.make("_normalized", blob_out, data, moments=moments, **inputs, **options)
        model.name_value(f"{blob_out}_siv", found, "inverse")
        return found
    found = model.make(
        "BatchNorm", blob_out, blob_in, **inputs, **options, fix_gamma=False, unbiased=True, use_global_stats=is_test
    )
    if not is_test:
        model.name_value(f"{blob_out}_sm", found, "mean")
        model.name_value(f"{blob_out}_siv", found, "var")
    return found


def _pool(model: Any, kind: str, blob_in: Blob, blob_out: str, options: dict[str, Any]) -> Any:
    given = {
        "kernel": _pair(options["kernel"]), "stride": _pair(options["stride"]), "pad": _pair(options["pad"]),
        "global_pool": options["global_pooling"],
    }  # fmt: skip
    return model.make("Pooling", blob_out, blob_in, pool_type=kind, **given)


def max_pool(
    model: Any, blob_in: Blob, blob_out: str, kernel: Pair = 1, stride: Pair = 1, pad: Pair = 0,
    global_pooling: bool = False,
) -> Any:  # fmt: skip
    """Largest value of each window of (n, c, h, w)."""
    given = {"kernel": kernel, "stride": stride, "pad": pad, "global_pooling": global_pooling}
    return _pool(model, "max", blob_in, blob_out, given)


def average_pool(
    model: Any, blob_in: Blob, blob_out: str, kernel: Pair = 1, stride: Pair = 1, pad: Pair = 0,
    global_pooling: bool = False,
) -> Any:  # fmt: skip
    """Mean of each window of (n, c, h, w)."""
    given = {"kernel": kernel, "stride": stride, "pad": pad, "global_pooling": global_pooling}
    return _pool(model, "avg", blob_in, blob_out, given)


def relu(model: Any, blob_in: Blob, blob_out: str) -> Any:
    """The larger one of x and 0."""
    return model.make("Activation", blob_out, blob_in, act_type="relu")


def tanh(model: Any, blob_in: Blob, blob_out: str) -> Any:
    """Hyperbolic tangent."""
    return model.make("Activation", blob_out, blob_in, act_type="tanh")


def sigmoid(model: Any, blob_in: Blob, blob_out: str) -> Any:
    """``1 / (1 + exp(-x))``."""
    return model.make("Activation", blob_out, blob_in, act_type="sigmoid")


def dropout(model: Any, blob_in: Blob, blob_out: str, ratio: float = 0.5, is_test: bool = False) -> Any:
    """In training, zeros in place of ``ratio`` of the values, the others scaled up; the same mask on any devices."""
    if is_test:
        return model.make("identity", blob_out, blob_in)
    return model.make("Dropout", blob_out, blob_in, p=ratio)


def add(model: Any, blobs_in: Sequence[Blob], blob_out: str) -> Any:
    """Sum of blobs of one shape."""
    return model.make("add_n", blob_out, *blobs_in)


def concat(model: Any, blobs_in: Sequence[Blob], blob_out: str, axis: int = 1) -> Any:
    """Blobs side by side along an axis."""
    return model.make("Concat", blob_out, *blobs_in, dim=axis)


def flatten(model: Any, blob_in: Blob, blob_out: str) -> Any:
    """(n, …) as (n, values a row)."""
    return model.make("Flatten", blob_out, blob_in)


def scale(model: Any, blob_in: Blob, blob_out: str, scale: float = 1.0) -> Any:
    """``scale · x``."""
    return model.make("_mul_scalar", blob_out, blob_in, scalar=float(scale))


def stop_gradient(model: Any, blob_in: Blob, blob_out: str) -> Any:
    """x, through which no gradient flows."""
    return model.make("BlockGrad", blob_out, blob_in)


def gather(
    model: Any, indices: Blob, blob_out: str, size: int, dim: int, weight_init: Initializer | None = None,
    sparse: bool = True,
) -> Any:  # fmt: skip
    """Rows of a table ``<blob_out>_w`` (size, dim) by whole numbers (n,). ``sparse``: only rows that were read move."""
    sparse = sparse and model.trains
    table = model.create_param(f"{blob_out}_w", (size, dim), weight_init or Xavier("uniform", "in", 3), sparse=sparse)
    options = {"weight": table, "input_dim": size, "output_dim": dim}
    if not sparse:
        return model.make("Embedding", blob_out, indices, **options)
    rows = sym.Embedding(model.blob(indices), **options, name=f"{blob_out}_read")
    return model.tap(rows, f"{blob_out}_w", indices, blob_out)


def lstm(
    model: Any, blob_in: Blob, blob_out: str, dim_in: int, dim_out: int, num_layers: int = 1,
    weight_init: Initializer | None = None,
) -> Any:  # fmt: skip
    """Hidden states (t, n, dim_out) of an LSTM over (t, n, dim_in) from states of zeros.

    Its weights and biases are one parameter, ``<blob_out>_w``.
    """
    size = rnn_size(dim_in, dim_out, num_layers, "lstm")
    weights = model.create_param(f"{blob_out}_w", (size,), weight_init or Uniform(dim_out**-0.5), decays=True)
    zeros = [sym.zeros((num_layers, 0, dim_out), name=f"{blob_out}_{part}") for part in ("hidden", "cell")]
    return model.make(
        "RNN", blob_out, blob_in, parameters=weights, state=zeros[0], state_cell=zeros[1], mode="lstm",
        state_size=dim_out, num_layers=num_layers,
    )  # fmt: skip


def softmax(model: Any, blob_in: Blob, blob_out: str) -> Any:
    """exp(x) of each row by the row's sum."""
    return model.make("softmax", blob_out, blob_in)


def label_cross_entropy(model: Any, probabilities: Blob, label: Blob, blob_out: str) -> Any:
    """``-log(probability of the label)`` of each row: probabilities (n, c), label (n,), out (n,)."""
    chosen = sym.pick(model.blob(probabilities), model.blob(label), name=f"{blob_out}_chosen")
    floor = sym.log(sym.maximum(chosen, 1e-20), name=f"{blob_out}_log")
    return model.make("negative", blob_out, floor)


def softmax_with_loss(model: Any, logits: Blob, label: Blob, blobs_out: Sequence[str] = ("softmax", "loss")) -> Any:
    """Probabilities (n, c) and the mean of ``-log(probability of the label)``: logits (n, c), label (n,).

    Gives both; no gradient flows through the probabilities.
    """
    scores = model.blob(logits)
    shown = model.make("softmax", blobs_out[0], sym.BlockGrad(scores, name=f"{blobs_out[0]}_scores"))
    logs = sym.log_softmax(scores, name=f"{blobs_out[1]}_logs")
    chosen = sym.pick(logs, model.blob(label), name=f"{blobs_out[1]}_chosen")
    mean = sym.mean(chosen, name=f"{blobs_out[1]}_mean")
    return shown, model.make("negative", blobs_out[1], mean)


def averaged_loss(model: Any, blob_in: Blob, blob_out: str) -> Any:
    """Mean of all values, (1,)."""
    return model.make("mean", blob_out, blob_in)


def accuracy(model: Any, scores: Blob, label: Blob, blob_out: str) -> Any:
    """Part of the rows whose largest score is at the label, (1,): scores (n, c), label (n,)."""
    largest = sym.argmax(model.blob(scores), axis=1, name=f"{blob_out}_largest")
    hits = sym.broadcast_equal(largest, sym.Cast(model.blob(label), dtype="float32", name=f"{blob_out}_label"))
    return model.make("mean", blob_out, hits)
