"""float16 and bfloat16 in whole: bytes of the plan, networks beside float32, casts, files, master parameters, products."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import arrayexec as ax
from arrayexec import files, sym
from arrayexec.ops.precision import narrow, widen
from arrayexec.testing.numbers import sixteen_bits
from arrayexec.train import optimizer
from tests.ops.runs import run
from tests.parallel.networks import convolutional

KINDS = [pytest.param(np.dtype(np.float16), 2.0**-9, id="float16")]
KINDS += [pytest.param(kind, error, id=kind.name) for kind, error in sixteen_bits().items() if kind != np.float16]
if len(KINDS) == 1:
    KINDS.append(pytest.param(None, 0, id="bfloat16", marks=pytest.mark.skip(reason="bfloat16 needs ml_dtypes")))
TYPES = pytest.mark.parametrize(("kind", "error"), KINDS)


def perceptron() -> Any:
    net = sym.Variable("data")
    for i in range(4):
        net = sym.Activation(sym.FullyConnected(net, num_hidden=256, name=f"fc{i}"), act_type="tanh", name=f"tanh{i}")
    return sym.SoftmaxOutput(sym.FullyConnected(net, num_hidden=8, name="last"), name="softmax")


def bound(symbol: Any, kind: Any, **shapes: Any) -> Any:
    return symbol.simple_bind(ax.cpu(), grad_req="write", type_dict={"data": kind}, **shapes)


@TYPES
def test_parameters_and_gradients_take_half_the_bytes(kind: Any, error: float) -> None:
    for symbol, shape in ((perceptron(), (4096, 64)), (convolutional(norm=True), (64, 1, 8, 8))):
        small, large = (bound(symbol, one, data=shape) for one in (kind, np.float32))
        wide = {n for n, a in {**small.arg_dict, **small.aux_dict}.items() if a.dtype == np.float32}
        norms = {f"bn{i}_{name}" for i in (1, 2) for name in ("gamma", "beta", "moving_mean", "moving_var")}
        assert wide <= norms  # parameters and statistics of a norm, and nothing else
        assert (wide == set()) == (symbol.list_auxiliary_states() == [])
        own = sum(large.arg_dict[n].nbytes for n in wide & set(large.arg_dict))
        for role in ("argument", "gradient"):
            assert 2 * small.memory_plan()[role] - own == large.memory_plan()[role], role
        assert small.memory_plan()["aux"] == large.memory_plan()["aux"]


@TYPES
def test_the_arena_of_a_deep_network_takes_half_the_bytes(kind: Any, error: float) -> None:
    small, large = (bound(perceptron(), one, data=(4096, 64)).memory_plan() for one in (kind, np.float32))
    room = 4 * (256 * 256 + 2 * 512 * 512)  # float32 scratch of one product: the smaller matrix, and pieces of the others
    assert small["arena"] <= large["arena"] / 2 + room
    assert small["arena"] <= 0.6 * large["arena"]


def smooth(name: str) -> tuple[Any, tuple[int, ...]]:
    """Networks without corners, where a rounded value could fall on the other side."""
    data = sym.Variable("data")
    if name == "lstm":
        rnn = sym.RNN(data, state_size=8, num_layers=2, mode="lstm", name="lstm")
        return sym.FullyConnected(sym.Reshape(rnn, shape=(-3, 0)), num_hidden=3, name="last"), (5, 4, 6)
    if name == "attention":
        scores = sym.softmax(sym.batch_dot(data, data, transpose_b=True) * 8**-0.5, axis=-1)
        mixed = sym.LayerNorm(sym.batch_dot(scores, data) + data, name="norm")
        return sym.FullyConnected(mixed, num_hidden=4, name="last"), (3, 5, 8)
    net, shape = data, (16, 6)
    if name == "convolution":
        shape = (16, 2, 8, 8)
        net = sym.Activation(sym.Convolution(net, kernel=(3, 3), pad=(1, 1), num_filter=8, name="conv"), act_type="tanh")
        net = sym.BatchNorm(net, fix_gamma=False, name="bn")
        net = sym.Pooling(net, kernel=(2, 2), stride=(2, 2), pool_type="avg")
    net = sym.Activation(sym.FullyConnected(net, num_hidden=16, name="first"), act_type="tanh")
    return sym.FullyConnected(net, num_hidden=3, name="last"), shape


@TYPES
@pytest.mark.parametrize("name", ["mlp", "convolution", "attention", "lstm"])
def test_networks_are_near_float32(kind: Any, error: float, name: str) -> None:
    """Outputs beside the largest output, gradients beside the network's largest: where a sum cancels, less is left."""
    rng = np.random.default_rng(0)
    symbol, shape = smooth(name)
    small, large = (bound(symbol, one, data=shape) for one in (kind, np.float32))
    values = {n: rng.uniform(-0.5, 0.5, a.shape).astype(kind) for n, a in {**small.arg_dict, **small.aux_dict}.items()}
    head = rng.uniform(-1, 1, small.outputs[0].shape).astype(kind) if small.outputs else None
    found = []
    for executor in (small, large):
        for n, array in {**executor.arg_dict, **executor.aux_dict}.items():
            array[...] = values[n]
        out = executor.forward(is_train=True)[0]
        head = rng.uniform(-1, 1, out.shape).astype(kind) if head is None else head
        executor.backward(head.astype(out.dtype))
        gradients = {n: g.astype(np.float64) for n, g in executor.grad_dict.items() if g is not None}
        found.append({"out": out.astype(np.float64), **gradients})
    largest = {"out": np.abs(found[1]["out"]).max()}
    others = max(np.abs(want).max() for n, want in found[1].items() if n != "out")
    for n, want in found[1].items():
        assert np.abs(found[0][n] - want).max() <= error * largest.get(n, others), n


@TYPES
def test_cast_goes_both_ways(kind: Any, error: float) -> None:
    wide = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    down = run("Cast", {"data": wide}, np.ones((3, 4), kind), dtype=kind.name)
    assert (down.out.dtype, down.gradients["data"].dtype) == (kind, np.float32)
    np.testing.assert_array_equal(down.out, wide.astype(kind))
    up = run("Cast", {"data": down.out}, wide, dtype="float32")
    assert (up.out.dtype, up.gradients["data"].dtype) == (np.float32, kind)
    np.testing.assert_array_equal(up.out, wide.astype(kind).astype(np.float32))


@TYPES
def test_files_hold_every_bit(kind: Any, error: float, tmp_path: Path) -> None:
    array = np.random.default_rng(0).normal(size=(3, 4)).astype(kind)
    for name in ("a.params", "a.npz"):
        files.save(tmp_path / name, {"arg:w": array, "turned": array.T})
        found = files.load(tmp_path / name)
        for key, want in (("arg:w", array), ("turned", array.T)):
            np.testing.assert_array_equal(found[key].astype(np.float64), want.astype(np.float64))
            assert found[key].dtype == (np.float16 if kind == np.float16 else np.float32)


@TYPES
@pytest.mark.parametrize("name", ["sgd", "nag", "adam"])
def test_a_master_is_float32_and_its_state_too(kind: Any, error: float, name: str) -> None:
    rng = np.random.default_rng(0)
    start = rng.normal(size=40_000).astype(kind)
    options: dict[str, Any] = {} if name == "adam" else {"momentum": 0.9}
    rules = [optimizer.create(name, learning_rate=1e-4, wd=1e-2, multi_precision=m, **options) for m in (True, False)]
    held, exact = start.copy(), start.astype(np.float32)
    small, large = (optimizer.get_updater(rule) for rule in rules)
    for _ in range(5):
        grad = rng.normal(size=start.shape).astype(kind)
        small("w_weight", grad, held)
        large("w_weight", grad.astype(np.float32), exact)
    state = small.states["w_weight"]
    assert set(state) == {"master", *large.states["w_weight"]}
    for key, value in large.states["w_weight"].items():
        np.testing.assert_array_equal(state[key], value, strict=True)
    np.testing.assert_array_equal(state["master"], exact, strict=True)
    np.testing.assert_array_equal(held, exact.astype(kind))


@TYPES
@pytest.mark.parametrize("size", [10, 40_000])
def test_without_a_master_rules_still_compute_in_float32(kind: Any, error: float, size: int) -> None:
    rng = np.random.default_rng(0)
    weight, grad = rng.normal(size=size).astype(kind), (rng.normal(size=size) * 64).astype(kind)
    want = weight.astype(np.float32) - np.float32(0.01) * (grad.astype(np.float32) * np.float32(2.0**-26) * np.float32(2.0**20))
    rule = optimizer.create("sgd", learning_rate=0.01 * 2.0**20, rescale_grad=2.0**-26)  # both are nothing in float16
    optimizer.get_updater(rule)("w", grad, weight)
    assert np.abs(weight.astype(np.float32) - want).max() <= error / 2 * np.abs(want).max()
    adam = optimizer.get_updater(optimizer.create("adam", epsilon=1e-8))
    adam("w", np.zeros(size, kind), weight)  # 0 / (0 + epsilon), and epsilon is 0 in float16
    assert np.isfinite(weight.astype(np.float32)).all()


def test_float16_is_converted_to_the_bit() -> None:
    random = np.random.default_rng(0)
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    finite = every[np.isfinite(every)]
    steps = np.sort(finite.astype(np.float32))
    ties = (steps[1:] + steps[:-1]) / 2
    near = np.concatenate([np.nextafter(ties, np.float32(-9e9)), ties, np.nextafter(ties, np.float32(9e9))])
    some = random.integers(0, 1 << 32, 1 << 17, dtype=np.uint64).astype(np.uint32).view(np.float32)
    with np.errstate(all="ignore"):
        for values in (near, some, some[np.abs(some) < 65519]):
            found, want = np.empty(values.shape, np.float16), values.astype(np.float16)
            narrow(np, values.copy(), found)
            np.testing.assert_array_equal(found, want)
            np.testing.assert_array_equal(np.signbit(found), np.signbit(want))
        cube = some[:6000].reshape(10, 20, 30)
        for axes in ((0, 1, 2), (2, 0, 1), (1, 0, 2), (2, 1, 0)):
            turned = np.empty((30, 40, 60), np.float16)[::3, ::2, ::2].transpose(axes)
            narrow(np, cube.transpose(axes).copy("K"), turned)
            np.testing.assert_array_equal(turned, cube.transpose(axes).astype(np.float16))
        for values in (every, finite):
            wide = np.empty(values.shape, np.float32)
            widen(np, values, wide)
            np.testing.assert_array_equal(wide, values.astype(np.float32))
            np.testing.assert_array_equal(np.signbit(wide), np.signbit(values))


PRODUCTS = {
    "FullyConnected": {"data": (9, 7), "weight": (5, 7), "bias": (5,), "num_hidden": 5},
    "dot": {"lhs": (9, 7), "rhs": (7, 5)},
    "batch_dot": {"lhs": (3, 9, 7), "rhs": (3, 7, 5)},
    "linalg_gemm2": {"A": (3, 9, 7), "B": (3, 7, 5)},
    "linalg_syrk": {"A": (3, 9, 7)},
    "Convolution": {"data": (2, 3, 6, 6), "weight": (4, 3, 3, 3), "bias": (4,), "kernel": (3, 3), "num_filter": 4},
    "Deconvolution": {"data": (2, 3, 6, 6), "weight": (3, 4, 3, 3), "kernel": (3, 3), "num_filter": 4},
    "RNN": {"data": (3, 2, 4), "parameters": (55,), "state": (1, 2, 5), "state_size": 5, "num_layers": 1, "mode": "rnn_tanh"},
}


@TYPES
@pytest.mark.parametrize("name", PRODUCTS)
def test_products_never_run_in_the_slow_loops(kind: Any, error: float, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """NumPy multiplies 16-bit matrices value by value, hundreds of times slower than BLAS."""
    seen: list[Any] = []
    plain = np.matmul

    def watched(left: Any, right: Any, out: Any = None) -> Any:
        seen.extend((left.dtype, right.dtype, out.dtype))
        return plain(left, right, out=out)

    monkeypatch.setattr(np, "matmul", watched)
    given = PRODUCTS[name]
    inputs = {"data", "weight", "bias", "lhs", "rhs", "A", "B", "parameters", "state"}
    shapes = {n: v for n, v in given.items() if n in inputs}
    arrays = {n: np.ones(shape, kind) for n, shape in shapes.items()}
    attributes = {n: v for n, v in given.items() if n not in shapes}
    out = run(name, arrays, **attributes).out
    run(name, arrays, np.ones(out.shape, kind), **attributes)
    assert len(seen) >= 6
    assert set(seen) == {np.dtype(np.float32)}
