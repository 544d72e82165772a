"""The fused recurrent operator against a plain loop over sequences and steps, PyTorch, and what was decided."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from arrayexec import rnn, sym
from arrayexec.dims import ANY, UNKNOWN
from arrayexec.errors import ShapeError, TypeInferenceError
from arrayexec.registry import make_op
from arrayexec.train.rnn_layout import rnn_size
from tests.ops.runs import Result, close, run, shapes_of, types_of, uniform

Array = Any
GATES = {"rnn_relu": 1, "rnn_tanh": 1, "lstm": 4, "gru": 3}
MODES = pytest.mark.parametrize("mode", GATES)
T, N, K, H = 5, 3, 4, 6


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def cell(mode: str, w: Array, r: Array, b: Array, c: Array, x: Array, h: Array, m: Array, clip: Any) -> tuple[Array, Array]:
    """One step of one sequence: new state before a projection, new memory."""
    if mode == "gru":
        (xr, xz, xn), (hr, hz, hn) = np.split(w @ x + b, 3), np.split(r @ h + c, 3)
        reset, z = sigmoid(xr + hr), sigmoid(xz + hz)
        return (1 - z) * np.tanh(xn + reset * hn) + z * h, m
    a = w @ x + b + r @ h + c
    if mode != "lstm":
        return (np.maximum(a, 0) if mode == "rnn_relu" else np.tanh(a)), m
    i, f, g, o = np.split(a, 4)
    m = sigmoid(f) * m + sigmoid(i) * np.tanh(g)
    if clip is not None:
        m = np.clip(m, *clip)
    return sigmoid(o) * np.tanh(m), m


def reference(
    x: Array, vector: Array, state: Array, memory: Array, *, mode: str, num_layers: int, bidirectional: bool = False,
    projection: int | None = None, lengths: Any = None, clip: Any = None,
) -> tuple[Array, Array, Array]:  # fmt: skip
    """Outputs, last states, last memories: sequence by sequence, step by step, weights read off the vector in order."""
    d, rows, hidden = 1 + bidirectional, GATES[mode] * memory.shape[2], memory.shape[2]
    width = projection or hidden
    steps, batch, features = x.shape
    place = 0

    def take(*shape: int) -> Array:
        nonlocal place
        place += int(np.prod(shape))
        return vector[place - int(np.prod(shape)) : place].reshape(shape)

    weights = {}
    for layer in range(num_layers):
        for way in range(d):
            below = d * width if layer else features
            weights[layer, way] = [take(rows, below), take(rows, width)]
            weights[layer, way] += [take(width, hidden)] if projection else [np.eye(hidden)]
    for layer in range(num_layers):
        for way in range(d):
            weights[layer, way] += [take(rows), take(rows)]
    assert place == vector.size
    last, last_memory = state.copy(), memory.copy()
    for layer in range(num_layers):
        out = np.zeros((steps, batch, d * width))
        for way in range(d):
            w, r, project, b, c = weights[layer, way]
            for n in range(batch):
                length = steps if lengths is None else int(lengths[n])
                h, m = state[layer * d + way, n], memory[layer * d + way, n]
                for t in range(length)[:: -1 if way else 1]:
                    h, m = cell(mode, w, r, b, c, x[t, n], h, m, clip)
                    h = project @ h
                    out[t, n, way * width : (way + 1) * width] = h
                last[layer * d + way, n], last_memory[layer * d + way, n] = h, m
        x = out
    return x, last, last_memory


def given(mode: str, layers: int = 1, directions: int = 1, projection: int | None = None) -> dict[str, Array]:
    """Random inputs in float64; the vector is as long as the operator says."""
    options: dict[str, Any] = {"mode": mode, "num_layers": layers, "state_size": H, "bidirectional": directions == 2}
    op: Any = make_op("RNN", options | ({"projection_size": projection} if projection else {}))
    arrays = {
        "data": uniform((T, N, K)),
        "parameters": uniform((op.packed_size(K),), 1),
        "state": uniform((layers * directions, N, projection or H), 2),
    }
    if mode == "lstm":
        arrays["state_cell"] = uniform((layers * directions, N, H), 3)
    return arrays


def memory_of(arrays: dict[str, Array]) -> Array:
    return arrays.get("state_cell", np.zeros((*arrays["state"].shape[:2], H)))


def check(arrays: dict[str, Array], got: Result, **how: Any) -> None:
    wanted = reference(arrays["data"], arrays["parameters"], arrays["state"], memory_of(arrays), **how)
    for one, other in zip(got.outputs, wanted, strict=False):
        close(one, other, 12)


@MODES
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("layers", [1, 3])
def test_formula(mode: str, layers: int, bidirectional: bool) -> None:
    arrays = given(mode, layers, 1 + bidirectional)
    assert arrays["parameters"].size == rnn_size(K, H, layers, mode, bidirectional)
    how: dict[str, Any] = {"mode": mode, "num_layers": layers, "bidirectional": bidirectional}
    got = run("RNN", arrays, state_size=H, state_outputs=True, **how)
    assert len(got.outputs) == (3 if mode == "lstm" else 2)
    check(arrays, got, **how)
    alone = run("RNN", arrays, state_size=H, **how)
    assert len(alone.outputs) == 1
    np.testing.assert_array_equal(alone.out, got.out)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_projection(bidirectional: bool) -> None:
    arrays = given("lstm", 2, 1 + bidirectional, 3)
    how: dict[str, Any] = {"mode": "lstm", "num_layers": 2, "bidirectional": bidirectional}
    got = run("RNN", arrays, state_size=H, state_outputs=True, projection_size=3, **how)
    assert [out.shape[-1] for out in got.outputs] == [3 * (1 + bidirectional), 3, H]
    check(arrays, got, projection=3, **how)


def test_memory_is_cut_to_its_limits() -> None:
    arrays = given("lstm", 2)
    arrays["state_cell"] *= 5
    limits: dict[str, Any] = {"lstm_state_clip_min": -0.3, "lstm_state_clip_max": 0.2}
    got = run("RNN", arrays, state_size=H, num_layers=2, mode="lstm", state_outputs=True, **limits)
    check(arrays, got, mode="lstm", num_layers=2, clip=(-0.3, 0.2))
    assert got.outputs[2].min() == -0.3 and got.outputs[2].max() == 0.2


def test_nan_in_the_memory() -> None:
    """It stays, unless it is to be stopped: then it is the least, and no gradient goes through it."""
    arrays = given("lstm")
    arrays["state_cell"][0, 1, 2] = np.nan
    limits: dict[str, Any] = {"lstm_state_clip_min": -0.3, "lstm_state_clip_max": 0.2}
    options: dict[str, Any] = {"state_size": H, "num_layers": 1, "mode": "lstm", "state_outputs": True}
    for stays in (run("RNN", arrays, **options), run("RNN", arrays, **options, **limits)):
        assert np.isnan(stays.out[0, 1, 2]) and np.isnan(stays.outputs[2][0, 1]).all()
        assert np.isfinite(stays.out[:, [0, 2]]).all()
    heads = [uniform((T, N, H), 4), uniform((1, N, H), 5), uniform((1, N, H), 6)]
    stopped = run("RNN", arrays, heads, **options, **limits, lstm_state_clip_nan=True)
    assert all(np.isfinite(array).all() for array in (*stopped.outputs, *stopped.gradients.values()))
    without = given("lstm")
    without["state_cell"][0, 1, 2] = -1e9
    check(without, stopped, mode="lstm", num_layers=1, clip=(-0.3, 0.2))
    assert stopped.gradients["state_cell"][0, 1, 2] == 0


@MODES
@pytest.mark.parametrize("bidirectional", [False, True])
def test_lengths(mode: str, bidirectional: bool) -> None:
    arrays = given(mode, 2, 1 + bidirectional)
    how: dict[str, Any] = {"mode": mode, "num_layers": 2, "bidirectional": bidirectional}
    options: dict[str, Any] = {"state_size": H, "state_outputs": True, "use_sequence_length": True, **how}
    got = run("RNN", arrays | {"sequence_length": np.array([2.0, 5.0, 1.0])}, **options)
    check(arrays, got, lengths=(2, 5, 1), **how)
    assert not got.out[2:, 0].any() and not got.out[1:, 2].any()
    changed = {**arrays, "data": arrays["data"].copy(), "sequence_length": np.array([2, 5, 1], np.int32)}
    changed["data"][3:, 0] = 77
    np.testing.assert_array_equal(run("RNN", changed, **options).out, got.out)


def test_lengths_out_of_range() -> None:
    """None of the steps for NaN and what is not above 0, all for what is beyond; every step that has begun counts."""
    arrays = given("gru")
    options: dict[str, Any] = {"state_size": H, "num_layers": 1, "mode": "gru", "state_outputs": True, "use_sequence_length": True}
    for lengths, counted in (((-3.0, np.nan, 0.0), (0, 0, 0)), ((9.0, np.inf, 1.5), (5, 5, 2))):
        got = run("RNN", arrays | {"sequence_length": np.array(lengths)}, **options)
        check(arrays, got, mode="gru", num_layers=1, lengths=counted)


@MODES
@pytest.mark.parametrize(("steps", "batch"), [(0, 2), (3, 0), (0, 0)])
def test_no_steps_and_no_sequences(mode: str, steps: int, batch: int) -> None:
    """Without a step the last states are the first; gradients of the parameters are zero."""
    arrays = given(mode, 2, 2)
    arrays = {"data": np.zeros((steps, batch, K)), "parameters": arrays["parameters"]} | {
        name: array[:, :batch] for name, array in arrays.items() if name.startswith("state")
    }
    states = [arrays[name] for name in ("state", "state_cell") if name in arrays]
    heads = [np.zeros((steps, batch, 2 * H)), *(uniform(state.shape, 7) for state in states)]
    options: dict[str, Any] = {"state_size": H, "num_layers": 2, "mode": mode, "bidirectional": True, "state_outputs": True}
    got = run("RNN", arrays, heads, **options)
    assert got.out.shape == (steps, batch, 2 * H)
    assert not got.gradients["parameters"].any()
    if not steps:
        for last, first, head, name in zip(got.outputs[1:], states, heads[1:], ("state", "state_cell"), strict=False):
            np.testing.assert_array_equal(last, first)
            np.testing.assert_array_equal(got.gradients[name], head)


# --- dropout between layers ------------------------------------------------------------------------------------------


def test_dropout_is_between_layers_and_in_training_only() -> None:
    arrays = given("gru", 2)
    options: dict[str, Any] = {"state_size": H, "num_layers": 2, "mode": "gru"}
    plain = run("RNN", arrays, **options).out
    np.testing.assert_array_equal(run("RNN", arrays, train=False, p=0.5, **options).out, plain)
    assert abs(run("RNN", arrays, p=0.5, **options).out - plain).max() > 0.01
    one = {name: array[:1] if name == "state" else array for name, array in given("gru").items()}
    np.testing.assert_array_equal(
        run("RNN", one, p=0.5, state_size=H, num_layers=1, mode="gru").out,
        run("RNN", one, state_size=H, num_layers=1, mode="gru").out,
    )


def test_dropout_values() -> None:
    """The second layer is the identity of what is positive, so it shows the mask: nothing, or doubled."""
    eye, none = np.eye(H), np.zeros((H, H))
    vector = np.concatenate([a.ravel() for a in (eye, none, eye, none, np.zeros(4 * H))])
    data = np.random.default_rng(0).uniform(0.5, 1, (40, 8, H))
    arrays = {"data": data, "parameters": vector, "state": np.zeros((2, 8, H))}
    options: dict[str, Any] = {"state_size": H, "num_layers": 2, "mode": "rnn_relu"}
    got = run("RNN", arrays, np.ones_like(data), p=0.25, **options)
    kept = got.out != 0
    np.testing.assert_allclose(got.out[kept], data[kept] / 0.75, 1e-15)
    assert abs(kept.mean() - 0.75) < 4 * np.sqrt(0.25 * 0.75 / data.size)
    np.testing.assert_allclose(got.gradients["data"], kept / 0.75, 1e-15)
    assert not run("RNN", arrays, p=1.0, **options).out.any()


def test_dropout_does_not_depend_on_the_cut_of_the_batch() -> None:
    arrays = given("lstm", 3, 2)
    options: dict[str, Any] = {"state_size": H, "num_layers": 3, "mode": "lstm", "bidirectional": True, "p": 0.4}
    whole = run("RNN", arrays, **options).out
    for rows in (slice(0, 1), slice(1, 3)):
        part = {name: array if name == "parameters" else array[:, rows] for name, array in arrays.items()}
        close(run("RNN", part, first_row=rows.start, **options).out, whole[:, rows], 12)


# --- types -----------------------------------------------------------------------------------------------------------


def test_sixteen_bits_are_computed_in_thirty_two() -> None:
    arrays = {name: array.astype(np.float16) for name, array in given("lstm", 2).items()}
    heads = [uniform((T, N, H), 4).astype(np.float16), *(np.zeros((2, N, H), np.float16) for _ in range(2))]
    options: dict[str, Any] = {"state_size": H, "num_layers": 2, "mode": "lstm", "state_outputs": True}
    small = run("RNN", arrays, heads, **options)
    wide = run("RNN", {n: a.astype(np.float32) for n, a in arrays.items()}, [h.astype(np.float32) for h in heads], **options)
    for one, other in zip(small.outputs, wide.outputs, strict=True):
        assert one.dtype == np.float16
        np.testing.assert_array_equal(one, other.astype(np.float16))
    for name, gradient in small.gradients.items():
        np.testing.assert_array_equal(gradient, wide.gradients[name].astype(np.float16), err_msg=name)


def test_types() -> None:
    options: dict[str, Any] = {"state_size": H, "num_layers": 1, "mode": "lstm", "use_sequence_length": True}
    found = types_of("RNN", {"parameters": np.float16, "sequence_length": np.int32}, **options)
    assert found["state_cell"] == found["data"] == found["node_output"] == np.float16
    assert found["sequence_length"] == np.int32
    with pytest.raises(TypeInferenceError):
        types_of("RNN", {"data": np.int32}, **options)


# --- shapes ----------------------------------------------------------------------------------------------------------


@MODES
@pytest.mark.parametrize("bidirectional", [False, True])
def test_everything_follows_from_the_data(mode: str, bidirectional: bool) -> None:
    options: dict[str, Any] = {"state_size": H, "num_layers": 2, "mode": mode, "bidirectional": bidirectional, "state_outputs": True}
    found = shapes_of("RNN", {"data": (T, N, K)}, **options)
    d = 1 + bidirectional
    assert found["parameters"] == (rnn_size(K, H, 2, mode, bidirectional),)
    assert found["state"] == found["node_state_output"] == (2 * d, N, H)
    assert found["node_output"] == (T, N, d * H)


def test_recorded_sizes() -> None:
    """As MXNet 1.9.1 says: 2 layers, both directions, 5 units on 3 inputs; two layers of 5 units on 3."""
    lstm: dict[str, Any] = {"state_size": 5, "num_layers": 2, "mode": "lstm", "bidirectional": True}
    assert shapes_of("RNN", {"data": (1, 1, 3)}, **lstm)["parameters"] == (1080,)
    gru: dict[str, Any] = {"state_size": 5, "num_layers": 2, "mode": "gru"}
    assert shapes_of("RNN", {"data": (1, 1, 3)}, **gru)["parameters"] == (330,)


def test_features_follow_from_the_parameters_and_the_batch_from_any_state() -> None:
    options: dict[str, Any] = {"state_size": H, "num_layers": 2, "mode": "lstm", "state_outputs": True, "use_sequence_length": True}
    size = rnn_size(K, H, 2, "lstm")
    assert shapes_of("RNN", {"parameters": (size,)}, **options)["data"] == (UNKNOWN, UNKNOWN, K)
    for name, shape in (
        ("state", (2, N, H)), ("state_cell", (2, N, H)), ("sequence_length", (N,)), ("data", (UNKNOWN, N, UNKNOWN)),
    ):  # fmt: skip
        found = shapes_of("RNN", {name: shape}, **options)
        assert found["data"][1] == N and found["sequence_length"] == (N,), name
        assert found["state"] == found["state_cell"] == found["node_statecell_output"] == (2, N, H), name
        assert found["parameters"] == (UNKNOWN,) and found["node_output"] == (UNKNOWN, N, H), name
    assert shapes_of("RNN", {}, **options)["data"] == (UNKNOWN, UNKNOWN, UNKNOWN)
    assert all(shape is not ANY for shape in shapes_of("RNN", {}, **options).values())


@pytest.mark.parametrize(
    "wrong",
    [
        {"data": (T, K)},
        {"data": (T, N, K), "state": (2, 1, H)},
        {"data": (T, N, K), "state": (1, N, H)},
        {"data": (T, N, K), "parameters": (rnn_size(K, H, 2, "gru") + 1,)},
        {"parameters": (rnn_size(0, H, 2, "gru"),)},
        {"parameters": (7,)},
    ],
)
def test_wrong_shapes(wrong: dict[str, Any]) -> None:
    with pytest.raises(ShapeError):
        shapes_of("RNN", wrong, state_size=H, num_layers=2, mode="gru")


def test_sizes_beyond_32_bits() -> None:
    found = shapes_of("RNN", {"data": (1 << 20, 1 << 12, 8)}, state_size=1 << 17, num_layers=2, mode="lstm")
    assert found["node_output"] == (1 << 20, 1 << 12, 1 << 17)
    assert found["parameters"] == (rnn_size(8, 1 << 17, 2, "lstm"),) and found["parameters"][0] > 1 << 37


def test_names() -> None:
    net = sym.RNN(sym.Variable("x"), state_size=H, num_layers=1, mode="lstm", state_outputs=True, name="r")
    assert net.list_arguments() == ["x", "r_parameters", "r_state", "r_state_cell"]
    assert net.list_outputs() == ["r_output", "r_state_output", "r_statecell_output"]
    net = sym.RNN(state_size=H, num_layers=1, mode="gru", state_outputs=True, use_sequence_length=True, name="r")
    assert net.list_arguments() == ["r_data", "r_parameters", "r_state", "r_sequence_length"]
    assert net.list_outputs() == ["r_output", "r_state_output"]


def test_first_states_of_unknown_batch() -> None:
    """The zeros of a cell get their batch from the operator, also where only another input knows it."""
    cell = rnn.FusedRNNCell(H, 2, "lstm", True, prefix="f_")
    first = cell.begin_state()
    net, _ = cell.unroll(T, sym.Variable("data"), first, layout="TNC")
    arguments, outputs, _ = net.infer_shape(data=(T, N, K))
    assert arguments == [(T, N, K), (rnn_size(K, H, 2, "lstm", True),)] and outputs == [(T, N, 2 * H)]


# --- PyTorch ---------------------------------------------------------------------------------------------------------


def torch_network(torch: Any, arrays: dict[str, Array], mode: str, layers: int, d: int, projection: int) -> Any:
    kind = {"rnn_relu": "RNN", "rnn_tanh": "RNN"}.get(mode, mode.upper())
    more: dict[str, Any] = {"nonlinearity": mode.removeprefix("rnn_")} if kind == "RNN" else {}
    more |= {"proj_size": projection} if projection else {}
    network = getattr(torch.nn, kind)(K, H, layers, bidirectional=d == 2, **more).double()
    with torch.no_grad():
        place = 0
        for piece in ordered(network, layers, d, projection):
            piece.copy_(torch.tensor(arrays["parameters"][place : place + piece.numel()]).reshape(piece.shape))
            place += piece.numel()
    assert place == arrays["parameters"].size
    return network


def ordered(network: Any, layers: int, d: int, projection: int) -> list[Any]:
    """PyTorch's weights in the order of the vector."""
    ends = [f"l{layer}{way}" for layer in range(layers) for way in ("", "_reverse")[:d]]
    kinds = ["weight_ih", "weight_hh", *(["weight_hr"] if projection else [])]
    names = [f"{kind}_{end}" for end in ends for kind in kinds]
    names += [f"{kind}_{end}" for end in ends for kind in ("bias_ih", "bias_hh")]
    return [getattr(network, name) for name in names]


@pytest.mark.parametrize("lengths", [None, [2, 5, 1]])
@pytest.mark.parametrize(
    ("mode", "layers", "d", "projection"),
    [("rnn_relu", 2, 1, 0), ("rnn_tanh", 1, 2, 0), ("lstm", 2, 2, 0), ("gru", 2, 2, 0), ("lstm", 1, 1, 0), ("lstm", 2, 2, 3)],
)
def test_pytorch(mode: str, layers: int, d: int, projection: int, lengths: Any) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: nothing to compare with")
    arrays = given(mode, layers, d, projection or None)
    network = torch_network(torch, arrays, mode, layers, d, projection)
    x, *states = (torch.tensor(a, requires_grad=True) for name, a in arrays.items() if name != "parameters")
    fed: Any = x
    if lengths is not None:
        fed = torch.nn.utils.rnn.pack_padded_sequence(x, torch.tensor(lengths), enforce_sorted=False)
    out, last = network(fed, tuple(states) if mode == "lstm" else states[0])
    if lengths is not None:
        out, _ = torch.nn.utils.rnn.pad_packed_sequence(out, total_length=T)
    outputs = [out, *(last if mode == "lstm" else [last])]
    heads = [uniform(tuple(o.shape), 10 + i) for i, o in enumerate(outputs)]
    torch.autograd.backward(outputs, [torch.tensor(h) for h in heads])
    options: dict[str, Any] = {"num_layers": layers, "mode": mode, "bidirectional": d == 2, "state_outputs": True, "state_size": H}
    if projection:
        options["projection_size"] = projection
    if lengths is not None:
        arrays["sequence_length"], options["use_sequence_length"] = np.array(lengths, np.float64), True
    got = run("RNN", arrays, heads, **options)
    for one, other in zip(got.outputs, outputs, strict=True):
        close(one, other.detach().numpy(), 12)
    close(got.gradients["data"], x.grad.numpy(), 11)
    for name, value in zip(("state", "state_cell"), states, strict=False):
        close(got.gradients[name], value.grad.numpy(), 11)
    vector = np.concatenate([piece.grad.numpy().ravel() for piece in ordered(network, layers, d, projection)])
    close(got.gradients["parameters"], vector, 11)
