"""Graphs that nobody draws: thousands deep, thousands wide, heads that repeat, losses in the middle, names that clash."""

from __future__ import annotations

import json
import time
from typing import Any

import numpy as np
import pytest

import arrayexec as ax
from arrayexec import sym
from arrayexec.errors import ArrayExecError, BindError, CompositionError, FileFormatError

CPU = ax.cpu()
Var = sym.Variable


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def run(net: Any, heads: Any = None, **arrays: np.ndarray) -> Any:
    """An executor that has run forward and backward; arguments not given are ones."""
    executor = net.simple_bind(CPU, **{name: array.shape for name, array in arrays.items()})
    for name, array in executor.arg_dict.items():
        array[...] = arrays.get(name, 1)
    executor.forward(True)
    executor.backward(heads)
    return executor


def test_ten_thousand_nodes() -> None:
    """Every way that a graph goes, without recursion and in a time that grows with the nodes (seconds, not minutes)."""
    start = time.perf_counter()
    net = Var("data")
    for _ in range(5000):
        net = sym.elemwise_add(-net, net * 2.0)
    assert net.infer_shape(data=(4,))[1] == [(4,)]
    assert net.infer_type(data="float32")[1] == [np.float32]
    again = sym.load_json(net.tojson())
    assert again.tojson() == net.tojson()
    assert len(net.get_internals()) == 15001
    executor = run(net, ones(4) * 3, data=np.arange(4, dtype=np.float32))
    assert np.array_equal(executor.outputs[0], np.arange(4)) and (executor.grad_dict["data"] == 3).all()
    assert executor.memory_plan()["arena"] < 4096, "a chain needs a few places only"
    del net, again, executor
    assert time.perf_counter() - start < 30


@pytest.mark.parametrize("count", [3000])
def test_thousands_of_inputs_and_outputs(count: int) -> None:
    """Inference that says every input's shape to every other one took minutes."""
    start = time.perf_counter()
    pieces = sym.SliceChannel(Var("a"), num_outputs=count, axis=0)
    net = sym.Concat(*pieces, *[Var(f"p{i}") for i in range(count)], dim=0)
    shapes = {f"p{i}": (1, 2) for i in range(count)}
    executor = net.simple_bind(CPU, a=(count, 2), shared_data_arrays={}, **shapes)
    executor.arg_dict["p7"][:] = 7
    assert executor.forward(True, a=ones(count, 2))[0][count + 7, 1] == 7
    executor.backward(np.arange(4 * count, dtype=np.float32).reshape(2 * count, 2))
    assert np.array_equal(executor.grad_dict["p1"], [[2 * count + 2, 2 * count + 3]])
    assert time.perf_counter() - start < 15


def test_heads_that_repeat() -> None:
    a = Var("a")
    net = a * 2
    executor = run(sym.Group([net, net, a, a]), [ones(3), ones(3) * 10, ones(3) * 100, ones(3) * 1000], a=ones(3))
    assert (executor.grad_dict["a"] == 2 * 11 + 1100).all()
    assert not any(np.shares_memory(output, executor.arg_dict["a"]) for output in executor.outputs)
    with pytest.raises(BindError, match="several outputs named"):
        _ = executor.output_dict
    executor.backward({"a": ones(3), net.list_outputs()[0]: ones(3)})
    assert (executor.grad_dict["a"] == 2 * 2 + 2).all(), "a name speaks of every output that bears it"


def test_one_variable_as_data_and_label() -> None:
    data = Var("data")
    net = sym.LinearRegressionOutput(sym.FullyConnected(data, num_hidden=4, name="fc"), data, name="loss")
    executor = run(net, data=ones(2, 4))
    args = executor.arg_dict
    error = (ones(2, 4) @ args["fc_weight"].T + args["fc_bias"] - ones(2, 4)) / 4
    np.testing.assert_allclose(executor.grad_dict["fc_weight"], error.T @ ones(2, 4), rtol=1e-6)
    np.testing.assert_allclose(executor.grad_dict["data"], error @ args["fc_weight"], rtol=1e-6)
    assert not run(sym.LinearRegressionOutput(data, data), data=ones(2, 4)).grad_dict["data"].any()


def test_a_loss_in_the_middle() -> None:
    loss = sym.SoftmaxOutput(Var("data"), Var("label"), name="softmax")
    arrays = dict(data=np.zeros((2, 4), np.float32), label=np.zeros(2, np.float32))
    gradient = np.array([[-0.75, 0.25, 0.25, 0.25]] * 2)
    for net, head in ((sym.sum(loss * 2), ones(1) * 9), (sym.Group([sym.BlockGrad(loss), loss]), None)):
        np.testing.assert_allclose(run(net, head, **arrays).grad_dict["data"], gradient)
    blocked = run(sym.BlockGrad(loss), **arrays)
    assert not blocked.grad_dict["data"].any(), "nothing flows through BlockGrad, and zeros are written"


def test_operators_of_one_name() -> None:
    net = sym.FullyConnected(sym.FullyConnected(Var("fc"), num_hidden=4, name="fc"), num_hidden=4, name="fc")
    assert net.list_arguments() == ["fc", "fc_weight", "fc_bias"]
    executor = run(net, ones(2, 4), fc=ones(2, 4))
    assert (executor.outputs[0] == 4 * 5 + 1).all()
    assert (executor.grad_dict["fc_weight"] == 2 * (5 + 4)).all(), "used twice: both gradients"


def test_an_auxiliary_state_that_is_used_twice_or_computed() -> None:
    mean = Var("mean")
    twice = sym.BatchNorm(sym.BatchNorm(Var("a"), moving_mean=mean, name="one"), moving_mean=mean, name="two")
    assert twice.list_auxiliary_states()[0] == "mean" and "mean" not in twice.list_arguments()
    run(twice, ones(4, 3), a=ones(4, 3))
    computed = sym.BatchNorm(Var("a"), moving_mean=mean * 2, name="one")
    executor = run(computed, ones(4, 3), a=ones(4, 3))
    assert (executor.arg_dict["mean"] == 1).all(), "what the state is computed from stays"


@pytest.mark.parametrize("requests", [("write", "add"), ("add", "null"), ("null", "write"), ("add", "add")])
def test_requests_mixed(requests: tuple[str, str]) -> None:
    net = Var("a") * Var("b") + Var("a")
    arrays = [ones(3) * 2, ones(3) * 3]
    gradients = [ones(3) * 10, ones(3) * 20]
    executor = net.bind(CPU, arrays, gradients, list(requests))
    for _ in range(2):
        executor.forward(True)
        executor.backward(ones(3))
    for request, gradient, start, true in zip(requests, gradients, (10, 20), (4, 2), strict=True):
        want = {"write": true, "add": start + 2 * true, "null": start}[request]
        assert (gradient == want).all(), request


# --- files that mean harm --------------------------------------------------------------------------------------------

FILE = json.loads(sym.FullyConnected(Var("data"), num_hidden=4, name="fc").tojson())


@pytest.mark.parametrize(
    "text",
    [
        "", "null", "[]", "NaN", '{"nodes": NaN, "heads": [[0, 0]]}', "[" * 100_000, b"\xff\xfe\x00",
        '{"nodes": [], "heads": [[0, 0, 0]]}', '{"nodes": [], "heads": [[-1, 0, 0]]}',
        '{"nodes": [], "heads": [[' + "9" * 5000 + ", 0, 0]]}",
        json.dumps(FILE).replace('"heads"', '"nodes": [], "heads"'),
        json.dumps(FILE).replace('"4"', "[" * 90_000 + "]" * 90_000),
    ],
    ids=range(12),
)  # fmt: skip
def test_documents(text: Any) -> None:
    with pytest.raises(FileFormatError, match="^the JSON text is not a symbol file: "):
        sym.load_json(text)


@pytest.mark.parametrize("value", ["9" * 4000, "1" * 100_000, "nan", "-4", "0", "²", "٤", "4.5", "", "4,"])
def test_attribute_texts(value: str) -> None:
    document = json.loads(json.dumps(FILE))
    document["nodes"][3]["attrs"]["num_hidden"] = value
    with pytest.raises(
        ArrayExecError, match="^FullyConnected 'fc' in the JSON text: attribute 'num_hidden' must be"
    ) as caught:
        sym.load_json(json.dumps(document))
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("op", ["Concat", "SliceChannel"])
@pytest.mark.parametrize("number", ["999999999999", "+99999999", " 100001 "])
def test_ports_without_number(op: str, number: str) -> None:
    key = {"Concat": "num_args", "SliceChannel": "num_outputs"}[op]
    nodes = [
        {"op": "null", "name": "a", "inputs": []},
        {"op": op, "name": "c", "attrs": {key: number}, "inputs": [[0, 0, 0]]},
    ]
    with pytest.raises(FileFormatError, match="more than 100000$"):
        sym.load_json(json.dumps({"nodes": nodes, "heads": [[1, 0, 0]]}))


@pytest.mark.parametrize("name", ['a"b', "a\\b", "a\nb", "a\x00b\x1f", "a\u2028b", "é", "", "\ud800", "x" * 100_000])
def test_names_come_back(name: str) -> None:
    net = sym.FullyConnected(Var(name), num_hidden=2, name="fc")
    assert sym.load_json(net.tojson()).list_arguments() == [name, "fc_weight", "fc_bias"]


def test_two_variables_of_one_name_that_disagree() -> None:
    net = Var("a", shape=(2,)) + Var("a", shape=(3,))
    with pytest.raises(CompositionError, match="two variables are named 'a' but disagree in shape"):
        net.simple_bind(CPU)
