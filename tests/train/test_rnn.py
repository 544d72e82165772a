"""Recurrent cells: against their formulas in plain NumPy, numeric gradients, and the graphs that MXNet's cells make."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import arrayexec as ax
from arrayexec import errors, rnn, sym
from arrayexec.symbol.naming import NameManager
from tests.conformance import golden

N, T, INPUTS, HIDDEN = 3, 4, 5, 6
Array = np.ndarray[Any, Any]
Arrays = dict[str, Array]
Step = Callable[[Arrays, str, Array, list[Array]], tuple[Array, list[Array]]]


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def affine(w: Arrays, name: str, x: Array) -> Array:
    return x @ w[f"{name}_weight"].T + w[f"{name}_bias"]


def rnn_step(w: Arrays, p: str, x: Array, states: list[Array]) -> tuple[Array, list[Array]]:
    out = np.tanh(affine(w, f"{p}i2h", x) + affine(w, f"{p}h2h", states[0]))
    return out, [out]


def relu_step(w: Arrays, p: str, x: Array, states: list[Array]) -> tuple[Array, list[Array]]:
    out = np.maximum(affine(w, f"{p}i2h", x) + affine(w, f"{p}h2h", states[0]), 0)
    return out, [out]


def lstm_step(w: Arrays, p: str, x: Array, states: list[Array]) -> tuple[Array, list[Array]]:
    i, f, g, o = np.split(affine(w, f"{p}i2h", x) + affine(w, f"{p}h2h", states[0]), 4, axis=1)
    memory = sigmoid(f) * states[1] + sigmoid(i) * np.tanh(g)
    out = sigmoid(o) * np.tanh(memory)
    return out, [out, memory]


def gru_step(w: Arrays, p: str, x: Array, states: list[Array]) -> tuple[Array, list[Array]]:
    i_r, i_z, i_n = np.split(affine(w, f"{p}i2h", x), 3, axis=1)
    h_r, h_z, h_n = np.split(affine(w, f"{p}h2h", states[0]), 3, axis=1)
    r, z = sigmoid(i_r + h_r), sigmoid(i_z + h_z)
    out = (1 - z) * np.tanh(i_n + r * h_n) + z * states[0]
    return out, [out]


CELLS: dict[str, tuple[Callable[..., Any], Step, int]] = {
    "rnn": (rnn.RNNCell, rnn_step, 1),
    "relu": (lambda hidden, **words: rnn.RNNCell(hidden, "relu", **words), relu_step, 1),
    "lstm": (rnn.LSTMCell, lstm_step, 2),
    "gru": (rnn.GRUCell, gru_step, 1),
}
EACH = pytest.mark.parametrize("kind", CELLS)


def filled(symbol: Any, **shapes: tuple[int, ...]) -> Arrays:
    """Random float64 values for all arguments."""
    draw = np.random.default_rng(3)
    names, found = symbol.list_arguments(), symbol.infer_shape(**shapes)[0]
    return {name: draw.normal(0, 0.7, shape) for name, shape in zip(names, found, strict=True)}


def steps(step: Step, w: Arrays, prefix: str, x: Array, states: list[Array]) -> tuple[list[Array], list[Array]]:
    """Outputs and last states of a sequence x (n, t, …)."""
    outputs = []
    for t in range(x.shape[1]):
        out, states = step(w, prefix, x[:, t], states)
        outputs.append(out)
    return outputs, states


def zeros(count: int, hidden: int = HIDDEN) -> list[Array]:
    return [np.zeros((N, hidden)) for _ in range(count)]


def run(symbol: Any, values: Arrays) -> list[Array]:
    return [np.array(out) for out in symbol.eval(ax.cpu(), **values)]


@EACH
def test_formula_in_float64(kind: str) -> None:
    """First states follow the type of the data: float64 needs no word about them."""
    make, step, count = CELLS[kind]
    outputs, states = make(HIDDEN, prefix="c_").unroll(T, sym.Variable("data"), merge_outputs=True)
    symbol = sym.Group([outputs, *states])
    values = filled(symbol, data=(N, T, INPUTS))
    got = run(symbol, values)
    want, last = steps(step, values, "c_", values["data"], zeros(count))
    assert got[0].dtype == np.float64
    np.testing.assert_allclose(got[0], np.stack(want, 1), 1e-12, 1e-13)
    for one, other in zip(got[1:], last, strict=True):
        np.testing.assert_allclose(one, other, 1e-12, 1e-13)


def test_type_of_a_constant() -> None:
    assert sym._zeros(shape=(2,)).infer_type()[1] == [np.float32]
    added = sym._zeros(shape=(0,)) + sym.Variable("data")
    assert added.infer_type(data="float16")[1] == [np.float16]
    assert sym.Group([added, sym._zeros(shape=(2,))]).infer_type(data="float64")[1] == [np.float64, np.float32]
    fixed = sym.zeros((2,)) + sym.Variable("data")
    with pytest.raises(errors.TypeInferenceError):
        fixed.infer_type(data="float64")


@EACH
def test_first_states_as_inputs(kind: str) -> None:
    make, step, count = CELLS[kind]
    cell = make(HIDDEN, prefix="c_")
    first = cell.begin_state(sym.Variable)
    assert [state.name for state in first] == [f"c_begin_state_{i}" for i in range(count)]
    outputs, _ = cell.unroll(T, sym.Variable("data"), begin_state=first, layout="TNC", merge_outputs=True)
    values = filled(outputs, data=(T, N, INPUTS))
    want, _ = steps(step, values, "c_", values["data"].swapaxes(0, 1), [values[state.name] for state in first])
    np.testing.assert_allclose(run(outputs, values)[0], np.stack(want), 1e-12, 1e-13)


@EACH
def test_numeric_gradient(kind: str) -> None:
    """Weights are used in every step: their gradients are sums over steps."""
    make, _, _ = CELLS[kind]
    cell = make(2, prefix="c_")
    outputs, _ = cell.unroll(3, sym.Variable("data"), cell.begin_state(sym.Variable), merge_outputs=True)
    values = filled(outputs, data=(2, 3, 2))
    head = np.random.default_rng(4).normal(size=(2, 3, 2))
    grads = {name: np.zeros_like(value) for name, value in values.items()}
    executor = outputs.bind(ax.cpu(), values, grads)
    executor.forward(is_train=True)
    executor.backward([head])
    for name, value in values.items():
        numeric = np.zeros_like(value)
        for place in np.ndindex(value.shape):
            kept, sides = value[place], []
            for sign in (1, -1):
                value[place] = kept + sign * 1e-6
                sides.append(float((executor.forward()[0] * head).sum()))
            value[place] = kept
            numeric[place] = (sides[0] - sides[1]) / 2e-6
        np.testing.assert_allclose(grads[name], numeric, 1e-6, 1e-8, err_msg=name)


def language_model(length: int, cells: list[Any], vocabulary: int, width: int, hidden: int) -> Any:
    embedded = sym.Embedding(sym.Variable("data"), input_dim=vocabulary, output_dim=width, name="embed")
    if isinstance(cells[0], rnn.FusedRNNCell):
        stack = cells[0]
    else:
        stack = rnn.SequentialRNNCell()
        for cell in cells:
            stack.add(cell)
    outputs, _ = stack.unroll(length, embedded, merge_outputs=True)
    scores = sym.FullyConnected(sym.Reshape(outputs, shape=(-1, hidden)), num_hidden=vocabulary, name="pred")
    return sym.SoftmaxOutput(scores, sym.Reshape(sym.Variable("softmax_label"), shape=(-1,)), name="softmax")


RECORDED = {
    **{f"bucket_lstm4_{t}": ("lstm", t, 1, 10, 5, 6) for t in (3, 5, 7, 9)},
    **{f"bucket_manager_lstm_{t}": ("lstm", t, 1, 9, 4, 5) for t in (2, 3, 4, 6)},
    **{f"bucket_gru_adam_{t}": ("gru", t, 1, 8, 4, 5) for t in (2, 4, 5, 6)},
    "list_lstm": ("lstm", 2, 2, 12, 6, 8),
    "net_lstm_lm": ("lstm", 4, 2, 12, 6, 8),
    "shape_lstm_lm": ("lstm", 5, 2, 12, 6, 8),
    "net_gru_lm": ("gru", 4, 1, 12, 6, 8),
}


def recorded(name: str) -> Any:
    """A recorded graph, but with first states of no type of their own."""
    document = json.loads((golden.DATA / "symbols" / f"{name}.json").read_text())
    for node in document["nodes"]:
        if node["op"] == "_zeros":
            assert node["attrs"].pop("dtype") == "float32"
    return document


@pytest.mark.parametrize("name", RECORDED)
def test_graph_as_recorded(name: str) -> None:
    """The same program gives the same file: nodes, names, order, attributes."""
    kind, length, layers, vocabulary, width, hidden = RECORDED[name]
    make = {"lstm": rnn.LSTMCell, "gru": rnn.GRUCell}[kind]
    with NameManager():
        cells = [make(hidden, prefix=f"{kind}_l{layer}_") for layer in range(layers)]
        symbol = language_model(length, cells, vocabulary, width, hidden)
    assert json.loads(symbol.tojson()) == recorded(name)


def test_fused_graph_as_recorded() -> None:
    with NameManager():
        symbol = language_model(4, [rnn.FusedRNNCell(8, prefix="lstm_")], 12, 6, 8)
    assert json.loads(symbol.tojson()) == recorded("net_fused_lstm_lm")


# --- cells of cells -----------------------------------------------------------------------------


@pytest.mark.parametrize("merged", [True, False])
@pytest.mark.parametrize("layout", ["NTC", "TNC"])
def test_both_directions(merged: bool, layout: str) -> None:
    cell = rnn.BidirectionalCell(rnn.LSTMCell(HIDDEN, "l_"), rnn.GRUCell(HIDDEN, "r_"))
    outputs, states = cell.unroll(T, sym.Variable("data"), layout=layout, merge_outputs=merged)
    axis = layout.index("T")
    heads = [outputs] if merged else outputs
    names = ["bi_out"] if merged else [f"bi_t{t}" for t in range(T)]
    assert [head.name for head in heads] == names
    symbol = sym.Group([*heads, *states])
    shape = (N, T, INPUTS) if layout == "NTC" else (T, N, INPUTS)
    values = filled(symbol, data=shape)
    x = values["data"].swapaxes(0, 1) if layout == "TNC" else values["data"]
    left, left_states = steps(lstm_step, values, "l_", x, zeros(2))
    right, right_states = steps(gru_step, values, "r_", x[:, ::-1], zeros(1))
    got = run(symbol, values)
    want = [np.concatenate(pair, 1) for pair in zip(left, right[::-1], strict=True)]
    np.testing.assert_allclose(got[0] if merged else np.stack(got[:T], axis), np.stack(want, axis), 1e-12, 1e-13)
    for one, other in zip(got[len(heads) :], [*left_states, *right_states], strict=True):
        np.testing.assert_allclose(one, other, 1e-12, 1e-13)


def test_one_after_another_by_single_steps_and_unrolled() -> None:
    def stack() -> rnn.SequentialRNNCell:
        made = rnn.SequentialRNNCell()
        for cell in (rnn.GRUCell(HIDDEN, "a_"), rnn.DropoutCell(0.5), rnn.LSTMCell(HIDDEN, "b_")):
            made.add(cell)
        return made

    cell = stack()
    assert cell.state_shape == [(0, HIDDEN)] * 3
    data = [sym.Variable(f"x{t}") for t in range(T)]
    states, outputs = cell.begin_state(), []
    for x in data:
        output, states = cell(x, states)
        outputs.append(output)
    singly, unrolled = sym.Group([*outputs, *states]), stack().unroll(T, data)
    values = filled(singly, **{f"x{t}": (N, INPUTS) for t in range(T)})
    x = np.stack([values[f"x{t}"] for t in range(T)], 1)
    middle, first = steps(gru_step, values, "a_", x, zeros(1))
    want, last = steps(lstm_step, values, "b_", np.stack(middle, 1), zeros(2))
    for symbol in (singly, sym.Group([*unrolled[0], *unrolled[1]])):
        for one, other in zip(run(symbol, values), [*want, *first, *last], strict=True):
            np.testing.assert_allclose(one, other, 1e-12, 1e-13)


@pytest.mark.parametrize("merged", [True, False])
def test_residual(merged: bool) -> None:
    cell = rnn.ResidualCell(rnn.RNNCell(INPUTS, prefix="c_"))
    outputs, _ = cell.unroll(T, sym.Variable("data"), merge_outputs=merged)
    symbol = outputs if merged else sym.Group(outputs)
    values = filled(symbol, data=(N, T, INPUTS))
    want, _ = steps(rnn_step, values, "c_", values["data"], zeros(1, INPUTS))
    got = run(symbol, values)
    np.testing.assert_allclose(got[0] if merged else np.stack(got, 1), np.stack(want, 1) + values["data"], 1e-12, 1e-13)
    assert symbol.list_outputs()[0].endswith("_plus_residual_output")


def test_residual_of_single_steps() -> None:
    cell = rnn.ResidualCell(rnn.RNNCell(INPUTS, prefix="c_"))
    output, _ = cell(sym.Variable("data"), cell.begin_state())
    values = filled(output, data=(N, INPUTS))
    want, _ = rnn_step(values, "c_", values["data"], zeros(1, INPUTS))
    np.testing.assert_allclose(run(output, values)[0], want + values["data"], 1e-12)


def test_zoneout_keeps_old_values_in_training_only() -> None:
    """With an identity for a cell: every output is today's or yesterday's input, about half of each."""

    class Echo(rnn.BaseRNNCell):
        @property
        def state_info(self) -> list[dict[str, Any]]:
            return [{"shape": (0, 1000), "__layout__": "NC"}]

        def __call__(self, inputs: Any, states: Any) -> tuple[Any, list[Any]]:
            return inputs + 0, [inputs + 1]

    cell = rnn.ZoneoutCell(Echo("echo_"), zoneout_outputs=0.5, zoneout_states=0.25)
    outputs, states = cell.unroll(2, sym.Variable("data"))
    symbol = sym.Group([*outputs, *states])
    x = np.stack([np.full((2, 1000), 3.0), np.full((2, 1000), 7.0)], 1)
    executor = symbol.bind(ax.cpu(), {"data": x}, grad_req="null")
    first, second, state = (np.array(out) for out in executor.forward())
    assert (first == 3).all() and (second == 7).all() and (state == 8).all()
    first, second, state = (np.array(out) for out in executor.forward(is_train=True))
    assert set(np.unique(first)) == {0.0, 3.0}
    assert set(np.unique(second)) == {0.0, 3.0, 7.0}
    assert set(np.unique(state)) == {0.0, 4.0, 8.0}
    assert 0.45 < (second == 7).mean() < 0.55
    assert 0.7 < (state == 8).mean() < 0.8
    assert (second[first == 0] != 3).all()


def test_dropout_of_a_whole_sequence_or_of_steps() -> None:
    cell = rnn.DropoutCell(0.3)
    data = sym.Variable("data")
    whole, _ = cell.unroll(T, data)
    assert whole.infer_shape(data=(2, T, 3))[1] == [(2, T, 3)]
    listed, states = cell.unroll(T, data, merge_outputs=False)
    assert (len(listed), states) == (T, [])
    executor = sym.Group(listed).bind(ax.cpu(), {"data": np.ones((10, T, 100))}, grad_req="null")
    for out in executor.forward(is_train=True):
        np.testing.assert_allclose(np.unique(out), [0, 1 / 0.7])
        assert 0.65 < (np.asarray(out) > 0).mean() < 0.75
    assert rnn.DropoutCell(0.0).unroll(T, data)[0] is data
    steps_in = [sym.Variable(f"x{t}") for t in range(2)]
    merged, _ = cell.unroll(2, steps_in, merge_outputs=True)
    assert merged.infer_shape(x0=(2, 3), x1=(2, 3))[1] == [(2, 2, 3)]


def test_shared_parameters_are_one_argument() -> None:
    first = rnn.LSTMCell(HIDDEN, "shared_")
    second = rnn.LSTMCell(HIDDEN, "shared_", params=first.params)
    output, states = first(sym.Variable("data"), first.begin_state())
    output, _ = second(output, states)
    assert [name for name in output.list_arguments() if name.endswith("i2h_weight")] == ["shared_i2h_weight"]
    outer = rnn.RNNParams()
    stack = rnn.SequentialRNNCell(params=outer)
    mine = outer.get("own_i2h_weight", lr_mult=2.0)
    stack.add(rnn.RNNCell(HIDDEN, prefix="own_"))
    out, _ = stack.unroll(1, [sym.Variable("data")])
    assert out[0].attr_dict()["own_i2h_weight"] == mine.list_attr()


# --- weights ------------------------------------------------------------------------------------

MODES = ["rnn_tanh", "rnn_relu", "lstm", "gru"]


def same(one: Arrays, other: Arrays) -> None:
    assert set(one) == set(other)
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


@EACH
def test_gates_apart_and_together(kind: str) -> None:
    make, _, _ = CELLS[kind]
    cell = make(HIDDEN, prefix="c_")
    outputs, _ = cell.unroll(1, sym.Variable("data"), merge_outputs=True)
    values = filled(outputs, data=(N, 1, INPUTS))
    apart = cell.unpack_weights(values)
    names = {"rnn": ("",), "relu": ("",), "lstm": ("_i", "_f", "_c", "_o"), "gru": ("_r", "_z", "_o")}[kind]
    for number, gate in enumerate(names):
        rows = slice(number * HIDDEN, (number + 1) * HIDDEN)
        np.testing.assert_array_equal(apart[f"c_i2h{gate}_weight"], values["c_i2h_weight"][rows])
        np.testing.assert_array_equal(apart[f"c_h2h{gate}_bias"], values["c_h2h_bias"][rows])
    assert len(apart) == 1 + 4 * len(names)
    same(cell.pack_weights(apart), values)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_fused_and_unfused_weights(mode: str, bidirectional: bool) -> None:
    """The vector, taken apart and put together by single cells, has the pieces that those cells ask for."""
    cell = rnn.FusedRNNCell(HIDDEN, 2, mode, bidirectional, dropout=0.2, prefix="f_")
    unfused = cell.unfuse()
    outputs, _ = unfused.unroll(2, sym.Variable("data"), merge_outputs=True)
    given = filled(outputs, data=(N, 2, INPUTS))
    del given["data"]
    packed = cell.pack_weights(unfused.unpack_weights(given))
    assert list(packed) == ["f_parameters"] and packed["f_parameters"].size == sum(v.size for v in given.values())
    same(unfused.pack_weights(cell.unpack_weights(packed)), given)


def test_fused_vector_against_recorded_operator() -> None:
    """The recorded RNN operator (two layers, both directions) with the weights of the unfused cells in its vector."""
    for case in golden.cases("operator"):
        if not case["name"].startswith("rnn_"):
            continue
        (node,) = [n for n in json.loads(golden.symbol_text(case))["nodes"] if n["op"] == "RNN"]
        texts, args = node["attrs"], golden.inputs(case)[0]
        layers, hidden = int(texts.get("num_layers", 1)), int(texts["state_size"])
        fused = rnn.FusedRNNCell(hidden, layers, texts["mode"], texts.get("bidirectional") == "True", prefix="f_")
        unfused = fused.unfuse()
        weights = unfused.pack_weights(fused.unpack_weights({"f_parameters": args["parameters"]}))
        first = unfused.begin_state(sym.Variable)
        length = args["data"].shape[0]
        outputs, last = unfused.unroll(length, sym.Variable("data"), first, "TNC", merge_outputs=True)
        # The operator's states are (layers · directions, n, hidden), of every kind one array.
        kinds = [args[name] for name in ("state", "state_cell") if name in args]
        given = [kind[cell] for cell in range(len(kinds[0])) for kind in kinds]
        values = weights | {"data": args["data"]}
        values |= {state.name: value for state, value in zip(first, given, strict=True)}
        got = run(sym.Group([outputs, *last]), values)
        wanted = [golden.array(case, key) for key in case["outputs"]]
        golden.assert_close(case, "outputs", got[0], wanted[0])
        for kind, states in enumerate(wanted[1:]):
            golden.assert_close(case, "states", np.stack(got[1 + kind :: len(kinds)]), states)


def test_forget_bias() -> None:
    fused = rnn.FusedRNNCell(2, prefix="f_", forget_bias=2.5)
    outputs, _ = fused.unfuse().unroll(1, sym.Variable("data"), merge_outputs=True)
    bias = np.ones(8)
    ax.init.Zero()(ax.InitDesc("f_l0_i2h_bias", outputs.attr_dict()["f_l0_i2h_bias"]), bias)
    assert bias.tolist() == [0, 0, 2.5, 2.5, 0, 0, 0, 0]


# --- cells on images ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["Rnn", "Lstm", "Gru"])
def test_cells_on_images(kind: str) -> None:
    """On images of one pixel, a convolution that only sees its centre is the affine map of the plain cell."""
    step = {"Rnn": rnn_step, "Lstm": lstm_step, "Gru": gru_step}[kind]
    make = getattr(rnn, f"Conv{kind.upper()}Cell")
    count = 2 if kind == "Lstm" else 1
    cell = make((1, INPUTS, 1, 1), HIDDEN, activation="tanh", prefix="c_")
    assert cell.state_shape == [(0, HIDDEN, 1, 1)] * count
    outputs, _ = cell.unroll(T, sym.Variable("data"), layout="NTCHW", merge_outputs=True)
    values = filled(outputs, data=(N, T, INPUTS, 1, 1))
    flat = {n: v[:, :, 1, 1] if n.endswith("weight") else v for n, v in values.items()}
    want, _ = steps(step, flat, "c_", values["data"][..., 0, 0], zeros(count))
    np.testing.assert_allclose(run(outputs, values)[0][..., 0, 0], np.stack(want, 1), 1e-11, 1e-12)


def test_state_size_on_images() -> None:
    cell = rnn.ConvLSTMCell((1, 3, 9, 8), 4, h2h_kernel=(5, 3), h2h_dilate=(1, 2), i2h_stride=(2, 2), prefix="c_")
    assert cell.state_shape == [(0, 4, 5, 4)] * 2
    outputs, _ = cell.unroll(2, [sym.Variable("a"), sym.Variable("b")])
    assert outputs[1].infer_shape(a=(2, 3, 9, 8), b=(2, 3, 9, 8))[1] == [(2, 4, 5, 4)]
    relu = rnn.ConvRNNCell((1, 3, 4, 4), 2)
    out, _ = relu(sym.Variable("data"), relu.begin_state())
    assert "LeakyReLU" in out.tojson() and relu._prefix == "ConvRNN_"


# --- mistakes -----------------------------------------------------------------------------------


def test_numbering_begins_anew() -> None:
    cell = rnn.RNNCell(2, prefix="c_")
    first = cell.unroll(2, sym.Variable("data"))[0][0]
    assert cell.unroll(2, sym.Variable("data"))[0][0].name == first.name == "c_t0_out"


MISTAKES: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "modified": (
        lambda: [cell := rnn.RNNCell(2), rnn.ResidualCell(cell), cell.begin_state()],
        errors.CompositionError,
        "<RNNCell 'rnn_'> belongs to a modifier cell; call that one instead",
    ),
    "modified stack": (
        lambda: [cell := rnn.SequentialRNNCell(), rnn.ResidualCell(cell), cell.begin_state()],
        errors.CompositionError,
        "<SequentialRNNCell ''> belongs to a modifier cell; call that one instead",
    ),
    "modified twice": (
        lambda: [cell := rnn.ResidualCell(rnn.RNNCell(2)), rnn.ZoneoutCell(cell), cell.begin_state()],
        errors.CompositionError,
        "<ResidualCell 'rnn_'> belongs to a modifier cell; call that one instead",
    ),
    "single step": (
        lambda: rnn.FusedRNNCell(2)(sym.Variable("x"), []),
        errors.CompositionError,
        "<FusedRNNCell 'lstm_'> cannot take single steps; use unroll",
    ),
    "no states": (
        lambda: rnn.BaseRNNCell("own_").state_shape,
        errors.CompositionError,
        "<BaseRNNCell 'own_'> has no states: its class must define state_info",
    ),
    "length": (
        lambda: rnn.RNNCell(2).unroll(3, [sym.Variable("x")]),
        errors.CompositionError,
        "<RNNCell 'rnn_'>: unroll of 3 steps takes one symbol or a list of 3, but it was given 1 inputs",
    ),
    "outputs": (
        lambda: rnn.RNNCell(2).unroll(2, sym.Group([sym.Variable("x"), sym.Variable("y")])),
        errors.CompositionError,
        "<RNNCell 'rnn_'>: unroll takes one value in layout NTC or a list of them, but <Symbol group [x, y]> has 2 outputs; hand over list(symbol)",
    ),
    "layout": (
        lambda: rnn.RNNCell(2).unroll(2, sym.Variable("x"), layout="NC"),
        errors.AttributeValueError,
        "unroll: layout must have a time axis T, as 'NTC', but it is 'NC'",
    ),
    "states": (
        lambda: rnn.BidirectionalCell(rnn.RNNCell(2, prefix="l_"), rnn.RNNCell(2, prefix="r_")).unroll(
            1, [sym.Variable("x")], []
        ),
        errors.CompositionError,
        "<BidirectionalCell ''> takes a list of 2 states, but it was given 0",
    ),
    "params twice": (
        lambda: rnn.SequentialRNNCell(params=rnn.RNNParams()).add(rnn.RNNCell(2, params=rnn.RNNParams())),
        errors.CompositionError,
        "<SequentialRNNCell ''>: give params either to the outer cell or to <RNNCell 'rnn_'>, not to both",
    ),
    "zoneout": (
        lambda: rnn.ZoneoutCell(rnn.FusedRNNCell(2)),
        errors.CompositionError,
        "ZoneoutCell works step by step, but <FusedRNNCell 'lstm_'> cannot; unfuse() it, or put ZoneoutCell around the cells inside",
    ),
    "mode": (
        lambda: rnn.FusedRNNCell(2, mode="lstn"),
        errors.AttributeValueError,
        "FusedRNNCell: mode must be one of rnn_relu, rnn_tanh, lstm, gru, but it is 'lstn'; did you mean 'lstm'?",
    ),
    "even kernel": (
        lambda: rnn.ConvRNNCell((1, 3, 4, 4), 2, h2h_kernel=(2, 3)),
        errors.AttributeValueError,
        "ConvRNNCell: h2h_kernel must be odd, but it is (2, 3)",
    ),
    "image layout": (
        lambda: rnn.ConvGRUCell((1, 3, 4, 4), 2, conv_layout="NHWC"),
        errors.AttributeValueError,
        "ConvGRUCell: conv_layout must begin with NC, but it is 'NHWC'",
    ),
    "missing weight": (
        lambda: rnn.RNNCell(2).unpack_weights({"rnn_i2h_weights": np.zeros((2, 2))}),
        errors.UnknownNameError,
        "<RNNCell 'rnn_'> needs the array 'rnn_i2h_weight', but it is not given; did you mean 'rnn_i2h_weights'?",
    ),
    "piece": (
        lambda: rnn.FusedRNNCell(2, mode="rnn_tanh", prefix="f_").pack_weights(
            {"f_l0_i2h_weight": np.zeros((2, 3)), "f_l0_h2h_weight": np.zeros((2, 3))}
        ),
        errors.ShapeError,
        "<FusedRNNCell 'f_'>: 'f_l0_h2h_weight' must be (2, 2), but it is (2, 3)",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistake(name: str) -> None:
    call, error, text = MISTAKES[name]
    with pytest.raises(error) as raised:
        call()
    assert str(raised.value) == text


def test_sixty_steps_of_two_layers_are_inferred_at_once() -> None:
    embedded = sym.Embedding(sym.Variable("data"), input_dim=1000, output_dim=20)
    stack = rnn.SequentialRNNCell()
    for layer in range(2):
        stack.add(rnn.LSTMCell(20, prefix=f"l{layer}_"))
    outputs, _ = stack.unroll(60, embedded, merge_outputs=True)
    times = []
    for _ in range(5):
        start = time.process_time()
        outputs.infer_shape(data=(32, 60))
        times.append(time.process_time() - start)
    assert min(times) <= 0.1
