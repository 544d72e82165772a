"""Faults reported of MXNet, in the namespace that takes its place: none of them is here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import arrayexec.compat.mxnet as mx


def totals(capsys: Any) -> dict[str, int]:
    """The totals under a summary that was printed."""
    lines = [line.split(": ") for line in capsys.readouterr().out.splitlines()]
    return {title: int(number) for title, number in (line for line in lines if len(line) == 2)}


def true_sizes(symbol: Any, **shapes: Any) -> int:
    """The sizes of all arguments that are no inputs, by inference."""
    found, _, _ = symbol.infer_shape(**shapes)
    named = zip(symbol.list_arguments(), found, strict=True)
    return sum(int(np.prod(shape)) for name, shape in named if name not in shapes and "label" not in name)


def test_bug_16093_parameters_of_other_operators_count(capsys: Any) -> None:
    scale = mx.sym.Variable("scale", shape=(1, 7))
    symbol = mx.sym.broadcast_mul(mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=7, name="fc"), scale)
    mx.viz.print_summary(symbol, shape={"data": (2, 5)})
    assert totals(capsys) == {"Total params": 7 * 5 + 7 + 7}


def test_bug_15192_dense_layer_behind_a_convolution(capsys: Any) -> None:
    data = mx.sym.Variable("data")
    conv = mx.sym.Convolution(data, num_filter=4, kernel=(3, 3), name="conv")
    symbol = mx.sym.FullyConnected(mx.sym.BatchNorm(conv, name="bn"), num_hidden=2, name="fc")
    mx.viz.print_summary(symbol, shape={"data": (1, 1, 6, 6)})
    assert totals(capsys) == {"Total params": 40 + 130 + 8, "Auxiliary states": 8}
    assert true_sizes(symbol, data=(1, 1, 6, 6)) == 178


def test_bug_12844_summary_of_an_lstm(capsys: Any) -> None:
    stack = mx.rnn.SequentialRNNCell()
    stack.add(mx.rnn.LSTMCell(8, prefix="a_"))
    stack.add(mx.rnn.LSTMCell(4, prefix="b_"))
    data = mx.sym.Embedding(mx.sym.Variable("data"), input_dim=12, output_dim=6, name="embed")
    outputs, _ = stack.unroll(5, inputs=data, merge_outputs=True)
    symbol = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(outputs, num_hidden=3, name="fc"), name="softmax")
    mx.viz.print_summary(symbol, shape={"data": (2, 5)})
    assert totals(capsys) == {"Total params": true_sizes(symbol, data=(2, 5))}
    fused = mx.rnn.FusedRNNCell(8, num_layers=2, mode="lstm", prefix="f_").unroll(5, inputs=data, merge_outputs=True)[0]
    mx.viz.print_summary(fused, shape={"data": (2, 5)})
    assert totals(capsys) == {"Total params": true_sizes(fused, data=(2, 5))}


def test_bug_12844_summary_without_shapes(capsys: Any) -> None:
    mx.viz.print_summary(mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=2, name="fc"))
    assert "fc(FullyConnected)" in capsys.readouterr().out


def test_bug_4504_one_array_in_place_of_a_list() -> None:
    with pytest.raises(TypeError, match="must be a list of arrays"):
        mx.io.DataBatch(mx.nd.ones((2, 3)), [mx.nd.ones((2,))])


def test_bug_10051_inputs_of_a_dict_have_one_order() -> None:
    given = {"zeros": np.zeros((4, 1)), "ones": mx.nd.ones((4, 2))}
    assert [desc.name for desc in mx.io.NDArrayIter(given, batch_size=2).provide_data] == ["ones", "zeros"]


def test_bug_17488_a_file_of_no_arrays(tmp_path: Path) -> None:
    path = str(tmp_path / "none.params")
    mx.nd.save(path, {})
    assert mx.nd.load(path) == {}
    mx.nd.save(path, {"a": mx.nd.ones((2,)), "b": mx.nd.zeros((1, 2), dtype="int32")})
    found = mx.nd.load(path)
    assert list(found) == ["a", "b"] and all(isinstance(array, mx.nd.NDArray) for array in found.values())
    assert found["b"].dtype is np.int32
    with open(path, "rb") as file:
        assert mx.nd.load_frombuffer(file.read())["a"].asnumpy().tolist() == [1, 1]
    mx.nd.save(path, [mx.nd.ones((2,))])
    assert mx.nd.load(path)[0].asnumpy().tolist() == [1, 1]


def test_bug_8907_the_rate_changes_while_training() -> None:
    symbol = mx.sym.LinearRegressionOutput(mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=1, name="fc"), name="lr")
    module = mx.mod.Module(symbol, label_names=["lr_label"])
    iterator = mx.io.NDArrayIter(np.ones((4, 2)), np.ones((4, 1)), 2, label_name="lr_label")
    rates = []

    def slower(param: Any) -> None:
        module._optimizer.lr *= 0.1
        rates.append(module._optimizer.lr)

    module.fit(iterator, num_epoch=1, eval_metric="mse", batch_end_callback=slower)
    assert rates == pytest.approx([0.001, 0.0001])
