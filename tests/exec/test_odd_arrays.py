"""Arrays as users really have them: odd ranks, types, layouts and subclasses, overlapping in every way."""

from __future__ import annotations

import gc
import tracemalloc
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import arrayexec as ax
from arrayexec import sym
from arrayexec.errors import ArgumentError, BindError, ShapeError, TypeInferenceError

CPU = ax.cpu()


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


def square() -> Any:
    return sym.Variable("a") * sym.Variable("a")


def square_gradient(array: np.ndarray, gradient: np.ndarray) -> np.ndarray:
    executor = square().bind(CPU, [array], [gradient])
    executor.forward(True)
    executor.backward(np.ones_like(array, subok=False))
    return gradient


# --- ranks and types -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(), (1,), (1,) * 40, (0,), (3, 0, 2), (2, 1, 1, 3)])
def test_every_rank(shape: tuple[int, ...]) -> None:
    array = np.full(shape, 3, np.float32)
    gradient = np.zeros(shape, np.float32)
    assert np.array_equal(square_gradient(array, gradient), np.full(shape, 6, np.float32))


@pytest.mark.parametrize("kind", ["int8", "uint8", "int32", "int64", "uint16", "float16", "float64", "longdouble"])
def test_every_type_of_numbers(kind: str) -> None:
    array = np.full((2, 3), 3, kind)
    gradient = square_gradient(array, np.zeros((2, 3), kind))
    assert gradient.dtype == kind and (gradient == 6).all()


@pytest.mark.parametrize("kind", ["complex64", "object", ">f4", ">i8", "datetime64[s]", "S4", "U4", "V8", "f4,f4"])
def test_what_is_no_type_of_numbers(kind: str) -> None:
    wanted = "the type of 'a' must be an element type of real numbers in native byte order, but it is"
    with pytest.raises(TypeInferenceError, match=f"^bind: {wanted}"):
        square().bind(CPU, [np.zeros((2, 3), kind)])
    with pytest.raises(TypeInferenceError, match=f"^simple_bind: {wanted}"):
        square().simple_bind(CPU, type_dict={"a": kind}, a=(2, 3))
    with pytest.raises(ax.errors.AttributeValueError, match="element type of real numbers"):
        sym.Cast(sym.Variable("a"), dtype=kind)


def test_impossible_sizes() -> None:
    with pytest.raises(ShapeError, match=r"^simple_bind: 'a' must have at most 64 dims and \d+ bytes"):
        square().simple_bind(CPU, a=(1,) * 65)
    with pytest.raises(ShapeError, match=r"but it is float32 \(10000000000, 10000000000\)$"):
        square().simple_bind(CPU, a=(10**10, 10**10))
    executor = square().simple_bind(CPU, a=(2,))
    with pytest.raises(MemoryError):
        square().simple_bind(CPU, shared_exec=executor, a=(10**13,))
    assert (executor.forward(a=ones(2))[0] == 1).all()  # nothing that was shared is spoilt


@pytest.mark.parametrize("shape", [(-3, 2), (3.5, 2), ("3", 2), (True, 2), (None, 2)])
def test_dims_that_are_no_dims(shape: Any) -> None:
    with pytest.raises(BindError, match=r"^simple_bind: dims of 'a' must be whole numbers >= 0 \(0: unknown\), but"):
        square().simple_bind(CPU, a=shape)


# --- subclasses and layouts ------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:the matrix subclass")
def test_subclasses_with_a_meaning_of_their_own_are_refused() -> None:
    masked = np.ma.masked_array(ones(2, 2), mask=[[1, 0], [0, 0]])
    for array in (masked, np.matrix(ones(2, 2))):
        text = f"must be a plain array, but it is a {type(array).__name__}; give numpy.asarray"
        with pytest.raises(BindError, match=f"^bind: argument 'a' {text}"):
            square().bind(CPU, [array])
        with pytest.raises(BindError, match=f"^bind: gradient 'a' {text}"):
            square().bind(CPU, [ones(2, 2)], [array])


def test_files_as_arrays(tmp_path: Path) -> None:
    array = np.memmap(tmp_path / "a", np.float32, "w+", shape=(2, 3))
    array[:] = 3
    gradient = np.memmap(tmp_path / "g", np.float32, "w+", shape=(2, 3))
    assert (square_gradient(array, gradient) == 6).all()


def test_arrays_that_cannot_be_written() -> None:
    fixed = ones(2, 3)
    fixed.flags.writeable = False
    assert (square_gradient(fixed, zeros(2, 3)) == 2).all()
    executor = square().bind(CPU, [fixed])
    with pytest.raises(ax.errors.ContextError, match="the destination float32 .* is read-only"):
        executor.forward(a=zeros(2, 3))
    with pytest.raises(BindError, match="^bind: the gradient array of 'a' must be writable, but it is read-only$"):
        square_gradient(ones(2, 3), fixed)


def test_states_that_cannot_be_written() -> None:
    """They are read as they are; only training, which moves them, is refused."""
    fixed = np.broadcast_to(np.float32(0.5), (3,))
    everywhere = np.lib.stride_tricks.as_strided(ones(1), (3,), (0,))

    def bound() -> ax.Executor:
        net = sym.BatchNorm(sym.Variable("a"), name="bn")
        return net.bind(CPU, [ones(2, 3), ones(3), zeros(3)], aux_states=[fixed, everywhere])

    np.testing.assert_allclose(bound().forward()[0], np.full((2, 3), 0.5 / np.sqrt(1 + 1e-3)), rtol=1e-6)
    with pytest.raises(BindError, match="auxiliary state 'bn_moving_mean' must be writable, but it is read-only$"):
        bound().forward(True)
    fixed = zeros(3)
    with pytest.raises(BindError, match="the elements of auxiliary state 'bn_moving_var' must lie apart"):
        bound().forward(True)


def test_elements_that_are_one_memory() -> None:
    repeated = np.broadcast_to(np.float32(3), (2, 3))
    assert (square_gradient(repeated, zeros(2, 3)) == 6).all(), "an argument is only read"
    everywhere = np.lib.stride_tricks.as_strided(zeros(1), (2, 3), (0, 0))
    windows = np.lib.stride_tricks.as_strided(zeros(4), (2, 3), (4, 4))
    for gradient in (everywhere, windows):
        with pytest.raises(BindError, match="^bind: the elements of the gradient array of 'a' must lie apart"):
            square_gradient(ones(2, 3), gradient)


@pytest.mark.parametrize(
    "view",
    [
        lambda block: block.reshape(3, 8)[:, ::-2],
        lambda block: block.reshape(8, 3).T[:, ::2],
        lambda block: block.reshape(4, 3, 2)[::-1, :, 0].T,
        lambda block: block.view(np.uint8)[1:49].view(np.float32).reshape(3, 4),  # unaligned
    ],
)
def test_views(view: Any) -> None:
    array, gradient = view(np.arange(24, dtype=np.float32)), view(zeros(24))
    array[...] = np.arange(array.size).reshape(array.shape)
    assert np.array_equal(square_gradient(array, gradient), 2 * array)


# --- overlap ---------------------------------------------------------------------------------------------------------


def test_interleaved_is_not_overlapping() -> None:
    block = ones(2, 12)
    array, gradient = block[:, ::2], block[:, 1::2]
    assert (square_gradient(array, gradient) == 2).all() and (array == 1).all()


def test_one_array_in_two_roles() -> None:
    net = sym.Variable("a") * sym.Variable("b")
    block = np.arange(1, 7, dtype=np.float32)
    gradients = [zeros(4), zeros(4)]
    executor = net.bind(CPU, [block[:4], block[2:]], gradients)
    executor.forward(True)
    executor.backward(ones(4))
    assert np.array_equal(gradients[0], block[2:]) and np.array_equal(gradients[1], block[:4])
    for bad in ([block[:4], zeros(4)], [gradients[0], gradients[0]]):
        with pytest.raises(BindError, match="share memory, but one of them is written while the other is in use"):
            net.bind(CPU, [block[:4], block[2:]], bad)
    nothing = zeros(0, 3)
    executor = net.bind(CPU, [nothing, nothing], [nothing, nothing])
    executor.forward(True)
    executor.backward(nothing)


def test_inputs_that_are_the_executors_own_arrays() -> None:
    executor = (sym.Variable("a") * 2 - sym.Variable("b")).simple_bind(CPU, a=(3,), b=(3,))
    a, b = executor.arg_dict["a"], executor.arg_dict["b"]
    a[:], b[:] = [1, 2, 3], [5, 6, 7]
    assert np.array_equal(executor.forward(a=b, b=a)[0], [9, 10, 11])  # exchanged, not overwritten
    executor.copy_params_from({"a": b, "b": a})
    assert np.array_equal(a, [1, 2, 3]) and np.array_equal(b, [5, 6, 7])
    executor.forward(a=a[::-1])
    assert np.array_equal(a, [3, 2, 1])


def test_outputs_fed_back() -> None:
    executor = sym.Group([sym.Variable("a") * 2, sym.Variable("b") * 3]).simple_bind(CPU, a=(3,), b=(3,))
    outputs = executor.forward(a=ones(3), b=ones(3))
    for _ in range(3):
        outputs = executor.forward(a=outputs[1], b=outputs[0])
    assert (outputs[0] == 2**2 * 3**2).all() and (outputs[1] == 2**2 * 3**2).all()


@pytest.mark.parametrize("is_train", [True, False])
def test_head_gradients_made_in_the_outputs(is_train: bool) -> None:
    """``out -= label; backward(out)``: also where backward repeats the forward, which writes the outputs anew."""
    executor = square().simple_bind(CPU, a=(3,))
    output = executor.forward(is_train, a=ones(3) * 3)[0]
    for times in (1, 2):
        output[:] = [0, 1, 2]
        executor.backward(output)
        assert np.array_equal(executor.grad_dict["a"], [0, 6, 12]), times


def test_inputs_of_other_types() -> None:
    executor = square().simple_bind(CPU, a=(2,))
    for good in (np.array([1, 2]), np.array([1, 2], ">f8"), np.array([True, False])):
        assert np.array_equal(executor.forward(a=good)[0], good.astype(np.float32) ** 2)
    net = (sym.Variable("a") + sym.Variable("b")).simple_bind(CPU, a=(2,), b=(2,))
    for bad in (np.array([1j, 2]), np.array([1, None]), np.array(["x", "y"]), np.zeros(2, "f4,f4")):
        with pytest.raises(TypeInferenceError, match="argument 'b' must hold real numbers, but its type is"):
            net.forward(a=ones(2), b=bad)
        with pytest.raises(TypeInferenceError, match="argument 'b' must hold real numbers, but its type is"):
            net.copy_params_from({"a": ones(2), "b": bad})
        assert not net.arg_dict["a"].any(), "nothing is copied if something does not fit"
    net.forward(True)
    with pytest.raises(TypeInferenceError, match="head gradient of '.*' must hold real numbers"):
        net.backward(np.array([1j, 2]))
    for bad in (1.0, [[1.0, 2.0]]):
        with pytest.raises(BindError, match="head gradient of '.*' must be an array, but it is a (float|list)"):
            net.backward(bad)


# --- memory ----------------------------------------------------------------------------------------------------------


def test_memory_is_freed_without_the_garbage_collector() -> None:
    gc.collect()
    gc.disable()
    try:
        net = sym.FullyConnected(sym.Variable("data"), num_hidden=4, name="fc")
        executors = [net.simple_bind(CPU, data=(2, 4))]
        executors.append(net.simple_bind(CPU, data=(3, 4), shared_exec=executors[0]))
        for executor in executors:
            executor.set_monitor_callback(lambda name, array: None)
            rows = executor.forward(True)[0].shape[0]
            executor.backward(ones(rows, 4))
            executor.set_monitor_callback(None)
            executor.forward(False)
            executor.backward(ones(rows, 4))
            with pytest.raises(BindError):
                executor.backward()
        del executor
        first, second = executors
        held = [second, first.arena.blocks[ax.cpu()], first.arena, second._binding.inferred, net]
        watch = [weakref.ref(thing) for thing in held]
        del held, executors, second
        assert watch[0]() is None, "one executor of two"
        assert watch[1]() is not None
        del first, net
        assert [ref() for ref in watch] == [None] * 5
    finally:
        gc.enable()


def test_many_reshapes_take_no_memory() -> None:
    executor = sym.FullyConnected(sym.Variable("data"), num_hidden=4, name="fc").simple_bind(CPU, data=(64, 40))

    def visit(count: int) -> None:
        for i in range(count):
            rows = 1 + i % 64
            other = executor.reshape(data=(rows, 40))
            other.forward(True)
            other.backward(ones(rows, 4))

    visit(64)
    gc.collect()
    tracemalloc.start()
    try:
        visit(100)
        before = tracemalloc.get_traced_memory()[0]
        visit(400)
        gc.collect()
        held = tracemalloc.get_traced_memory()[0] - before
        assert held < 1 << 20, "400 executors kept alive are more than 5 MiB"
    finally:
        tracemalloc.stop()


# --- callbacks -------------------------------------------------------------------------------------------------------


def test_monitors_may_do_as_they_like_with_what_they_get() -> None:
    executor = sym.tanh(sym.Variable("a") * 2, name="t").simple_bind(CPU, a=(3,))
    executor.arg_dict["a"][:] = 0.5

    def spoil(name: str, array: np.ndarray) -> None:
        array[...] = 77
        if name == "t_output":
            executor.set_monitor_callback(None)

    executor.set_monitor_callback(spoil, monitor_all=True)
    output = executor.forward(True)[0]
    executor.backward(ones(3))
    np.testing.assert_allclose(output, np.tanh(1), rtol=1e-6)
    np.testing.assert_allclose(executor.grad_dict["a"], 2 * (1 - np.tanh(1) ** 2), rtol=1e-6)
    with pytest.raises(ArgumentError, match="the monitor callback must be callable, but it is 5$"):
        executor.set_monitor_callback(5)  # type: ignore[arg-type]


def test_a_reshaped_executor_draws_on() -> None:
    """Its masks are those of the step at which it was made, not those of the first step again."""
    net = sym.Dropout(sym.Variable("a"), p=0.5, name="drop")
    executor = net.simple_bind(CPU, a=(4, 40))
    first = executor.forward(True, a=ones(4, 40))[0].copy()
    executor.first_row = 8
    other = executor.reshape(a=(4, 40))
    assert (other.step, other.first_row) == (1, 8)
    assert not np.array_equal(other.forward(True)[0], first)


def test_seeds() -> None:
    executor = sym.Dropout(sym.Variable("a"), p=0.5).bind(CPU, [ones(4, 40)])
    masks = []
    for seed in (0, 1, -1, 2**62, 2**70 + 1, np.int64(7)):
        ax.random.seed(seed)
        executor.step = 0
        masks.append(executor.forward(True)[0].tobytes())
    assert len(set(masks)) == 5 and masks[4] == masks[1], "a seed counts modulo 2**63"
