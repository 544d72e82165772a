"""The fused cell: unrolled in all forms, against the same network out of single cells, and trained over buckets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import arrayexec as ax
from arrayexec import rnn, sym
from arrayexec.errors import AttributeValueError, CompositionError
from arrayexec.symbol.naming import NameManager
from arrayexec.train.rnn_layout import rnn_pieces

T, N, K, H, LAYERS = 4, 3, 5, 6, 2
Array = np.ndarray[Any, Any]
MODES = pytest.mark.parametrize("mode", ["rnn_relu", "rnn_tanh", "lstm", "gru"])
WAYS = pytest.mark.parametrize("bidirectional", [False, True])


def values_of(symbol: Any, **shapes: tuple[int, ...]) -> dict[str, Array]:
    """Random float64 values for all arguments."""
    draw = np.random.default_rng(5)
    found = symbol.infer_shape(**shapes)[0]
    return {name: draw.normal(0, 0.6, shape) for name, shape in zip(symbol.list_arguments(), found, strict=True)}


def trained(symbol: Any, values: dict[str, Array], head: Array) -> tuple[list[Array], dict[str, Array]]:
    """Outputs and all gradients, with ``head`` arriving at the first output and ones at the others."""
    gradients = {name: np.zeros_like(value) for name, value in values.items()}
    executor = symbol.bind(ax.cpu(), values, gradients)
    outputs = [np.array(out) for out in executor.forward(is_train=True)]
    executor.backward([head, *(np.ones_like(out) for out in outputs[1:])])
    return outputs, gradients


@WAYS
@MODES
def test_fused_and_unfused_are_one_network(mode: str, bidirectional: bool) -> None:
    """Outputs, last states and every gradient, weights carried over by their names."""
    fused = rnn.FusedRNNCell(H, LAYERS, mode, bidirectional, get_next_state=True, prefix="f_")
    unfused = fused.unfuse()
    outputs, last = fused.unroll(T, sym.Variable("data"), merge_outputs=True)
    one = sym.Group([outputs, *last])
    first = values_of(one, data=(N, T, K))
    head = np.random.default_rng(6).normal(size=(N, T, H * (1 + bidirectional)))
    got, gradients = trained(one, first, head)

    outputs, last = unfused.unroll(T, sym.Variable("data"), merge_outputs=True)
    other = sym.Group([outputs, *last])
    weights = unfused.pack_weights(fused.unpack_weights({"f_parameters": first["f_parameters"]}))
    wanted, by_cell = trained(other, weights | {"data": first["data"]}, head)
    np.testing.assert_allclose(got[0], wanted[0], 1e-12, 1e-13)
    kinds = 2 if mode == "lstm" else 1
    for kind in range(kinds):
        np.testing.assert_allclose(got[1 + kind], np.stack(wanted[1 + kind :: kinds]), 1e-12, 1e-13)
    np.testing.assert_allclose(gradients["data"], by_cell.pop("data"), 1e-11, 1e-12)
    packed = fused.pack_weights(unfused.unpack_weights(by_cell))["f_parameters"]
    np.testing.assert_allclose(gradients["f_parameters"], packed, 1e-11, 1e-12)


@pytest.mark.parametrize("merged", [True, False, None])
@pytest.mark.parametrize("layout", ["NTC", "TNC"])
@pytest.mark.parametrize("listed", [False, True])
def test_layouts(layout: str, merged: bool | None, listed: bool) -> None:
    """One sequence in every form gives the same outputs in every form."""
    cell = rnn.FusedRNNCell(H, LAYERS, "gru", prefix="f_")
    axis = layout.index("T")
    shape = (T, N, K) if axis == 0 else (N, T, K)
    plain, none = cell.unroll(T, sym.Variable("data"), layout="TNC", merge_outputs=True)
    assert none == []
    values = values_of(plain, data=(T, N, K))
    (wanted,) = plain.eval(ax.cpu(), **values)
    steps = [sym.Variable(f"x{t}") for t in range(T)]
    outputs, _ = cell.unroll(T, steps if listed else sym.Variable("data"), layout=layout, merge_outputs=merged)
    assert isinstance(outputs, list) == (merged is False)
    given = {f"x{t}": values["data"][t] for t in range(T)} if listed else {"data": values["data"].reshape(T, N, K)}
    if not listed and axis == 1:
        given["data"] = values["data"].swapaxes(0, 1)
        assert given["data"].shape == shape
    symbol = sym.Group(outputs) if merged is False else outputs
    got = symbol.eval(ax.cpu(), **given, f_parameters=values["f_parameters"])
    found = np.stack(got) if merged is False else np.asarray(got[0]).swapaxes(0, axis)
    np.testing.assert_allclose(found, wanted, 1e-13, 1e-14)


@pytest.mark.parametrize(("mode", "count"), [("lstm", 2), ("gru", 1)])
def test_states(mode: str, count: int) -> None:
    """First states may be inputs; the last ones come out where they are asked for, and go in again."""
    cell = rnn.FusedRNNCell(H, LAYERS, mode, get_next_state=True, prefix="f_")
    assert cell.state_shape == [(LAYERS, 0, H)] * count
    first = cell.begin_state(sym.Variable)
    assert [state.name for state in first] == [f"f_begin_state_{i}" for i in range(count)]
    outputs, last = cell.unroll(T, sym.Variable("data"), first, layout="TNC")
    assert len(last) == count
    half = sym.Group([outputs, *last])
    values = values_of(half, data=(T, N, K))
    whole, _ = rnn.FusedRNNCell(H, LAYERS, mode, prefix="f_").unroll(2 * T, sym.Variable("data"), first, layout="TNC")
    twice = np.concatenate([values["data"], values["data"][::-1]])
    (wanted,) = whole.eval(ax.cpu(), **(values | {"data": twice}))
    one, *between = half.eval(ax.cpu(), **values)
    states = {state.name: np.array(value) for state, value in zip(first, between, strict=True)}
    one = np.array(one)
    two = half.eval(ax.cpu(), **(values | {"data": values["data"][::-1].copy()} | states))[0]
    np.testing.assert_allclose(np.concatenate([one, two]), wanted, 1e-12, 1e-13)


@pytest.mark.parametrize("dtype", [np.float64, np.float16])
def test_first_states_follow_batch_and_type_of_the_data(dtype: Any) -> None:
    outputs, _ = rnn.FusedRNNCell(H, prefix="f_").unroll(T, sym.Variable("data"))
    assert outputs.infer_shape(data=(N, T, K))[1] == [(N, T, H)]
    assert outputs.infer_type(data=dtype)[1] == [np.dtype(dtype)]


def test_stacked_with_other_cells() -> None:
    stack = rnn.SequentialRNNCell()
    stack.add(rnn.FusedRNNCell(H, 1, "gru", True, prefix="f_"))
    stack.add(rnn.LSTMCell(3, prefix="l_"))
    outputs, states = stack.unroll(T, sym.Variable("data"), merge_outputs=True)
    assert outputs.infer_shape(data=(N, T, K))[1] == [(N, T, 3)] and len(states) == 2
    assert outputs.list_arguments()[:2] == ["data", "f_parameters"]


def test_dropout_goes_to_the_operator() -> None:
    outputs, _ = rnn.FusedRNNCell(H, LAYERS, dropout=0.5, prefix="f_").unroll(T, sym.Variable("data"), layout="TNC")
    values = values_of(outputs, data=(T, N, K))
    executor = outputs.bind(ax.cpu(), values)
    kept, dropped = (np.array(executor.forward(is_train=train)[0]) for train in (False, True))
    assert abs(kept - dropped).max() > 1e-3


def test_first_values_of_the_vector() -> None:
    """By the initialiser that the cell wrote beside its variable: each piece by its own name, forget gates apart."""
    outputs, _ = rnn.FusedRNNCell(H, LAYERS, "lstm", True, forget_bias=2.0, prefix="f_").unroll(T, sym.Variable("data"))
    size = outputs.infer_shape(data=(N, T, K))[0][1][0]
    vector = np.full(size, np.nan)
    ax.init.Xavier(factor_type="in", magnitude=3)(ax.InitDesc("f_parameters", outputs.attr_dict()["f_parameters"]), vector)
    for name, where, shape in rnn_pieces(size, H, LAYERS, "lstm", True):
        piece = vector[where].reshape(shape)
        if name.endswith("bias"):
            assert (piece == (2.0 if "_f_" in name else 0.0)).all(), name
        else:
            assert 0 < abs(piece).max() <= np.sqrt(3 / shape[1]), name
            assert abs(piece).max() > 0.7 * np.sqrt(3 / shape[1]), name


def test_refused() -> None:
    cell = rnn.FusedRNNCell(H, prefix="f_")
    with pytest.raises(AttributeValueError, match="takes the layouts TNC and NTC, but it was given 'NCT'"):
        cell.unroll(T, sym.Variable("data"), layout="NCT")
    with pytest.raises(CompositionError, match="takes a list of 2 states, but it was given 1"):
        cell.unroll(T, sym.Variable("data"), [sym.Variable("state")])


# --- training over buckets -------------------------------------------------------------------------------------------

WORDS, CLASSES, ROWS = 40, 8, 8


def sentences() -> list[list[int]]:
    """Each number is followed by its double plus the one before it, modulo 7: a rule that needs a memory of one step."""
    draw, made = np.random.default_rng(0), []
    for _ in range(WORDS * 4):
        one = [int(draw.integers(1, CLASSES)), int(draw.integers(1, CLASSES))]
        while len(one) < draw.choice([5, 7]):
            one.append((2 * one[-1] + one[-2]) % 7 + 1)
        made.append(one)
    return made


def predictor(length: int) -> Any:
    embedded = sym.Embedding(sym.Variable("data"), input_dim=CLASSES, output_dim=8, name="embed")
    cell = rnn.FusedRNNCell(24, 1, "lstm", prefix="lstm_")
    outputs, _ = cell.unroll(length, embedded, merge_outputs=True)
    scores = sym.FullyConnected(sym.Reshape(outputs, shape=(-1, 24)), num_hidden=CLASSES, name="scores")
    label = sym.Reshape(sym.Variable("softmax_label"), shape=(-1,))
    return sym.SoftmaxOutput(scores, label, use_ignore=True, ignore_label=0, normalization="valid", name="softmax")


def test_training_over_buckets() -> None:
    """The vector is the same for every length; after 20 epochs what can be known is known."""
    iterator = rnn.BucketSentenceIter(sentences(), ROWS, [5, 7], 0)
    params: dict[str, Array] = {}
    executors: dict[int, Any] = {}
    for length in (7, 5):
        with NameManager():
            net = predictor(length)
        known = {"data": (ROWS, length), "softmax_label": (ROWS, length)}
        shapes = dict(zip(net.list_arguments(), net.infer_shape(**known)[0], strict=True))
        for name, shape in shapes.items():
            if name not in ("data", "softmax_label") and name not in params:
                params[name] = np.zeros(shape, np.float32)
                ax.init.Xavier()(ax.InitDesc(name, net.attr_dict().get(name)), params[name])
        inputs = {name: np.zeros((ROWS, length), np.float32) for name in ("data", "softmax_label")}
        gradients = {name: np.zeros_like(value) for name, value in params.items()}
        executors[length] = net.bind(ax.cpu(), params | inputs, gradients)
        assert executors[length].arg_dict["lstm_parameters"] is params["lstm_parameters"]
    update = ax.optimizer.get_updater(ax.optimizer.create("adam", learning_rate=0.02))
    losses = []
    for _ in range(20):
        iterator.reset()
        total = count = 0.0
        for batch in iterator:
            executor = executors[batch.bucket_key]
            executor.arg_dict["data"][...] = batch.data[0]
            executor.arg_dict["softmax_label"][...] = label = np.asarray(batch.label[0])
            chosen = np.array(executor.forward(is_train=True)[0])[np.arange(label.size), label.astype(int).ravel()]
            counted = label.ravel() > 0
            total, count = total - float(np.log(chosen[counted]).sum()), count + counted.sum()
            executor.backward()
            for number, name in enumerate(sorted(params)):
                update(number, executor.grad_dict[name], params[name])
        losses.append(total / count)
    # The second number of a sentence is free: ln 7 nats for 1 of 4 or of 6; the others follow.
    assert losses[0] > 1.5 and losses[-1] < 0.65, losses
