"""The plan's promises: planned = unplanned to the bit, and memory is what was stated."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

import arrayexec as ax
from arrayexec import sym
from arrayexec.executor import bind
from arrayexec.plan import Keep, make_plan
from arrayexec.symbol.infer import infer_types
from arrayexec.testing.naive import NaiveRun

MIB = 2**20


def random_net(rng: np.random.Generator) -> Any:
    """A group of outputs of a random graph over three inputs (4, 6): sharing, splits, views, norms, drops, losses."""
    values: list[Any] = [sym.Variable(f"x{i}") for i in range(3)]

    def pick() -> Any:
        return values[rng.integers(len(values))]

    def dense(data: Any, name: str, kind: str = "w") -> Any:
        weight, bias = sym.Variable(f"{kind}{rng.integers(3)}"), sym.Variable(f"b{name}")
        return sym.FullyConnected(data, weight=weight, bias=bias, num_hidden=6, name=name)

    def node(number: int) -> Any:
        name = f"n{number}"
        return [
            lambda: dense(pick(), name),
            lambda: sym.elemwise_add(pick(), pick(), name=name),
            lambda: sym.elemwise_mul(pick(), pick(), name=name),
            lambda: sym.Activation(pick(), act_type=str(rng.choice(["relu", "tanh", "sigmoid"])), name=name),
            lambda: dense(sym.SliceChannel(pick(), num_outputs=2, name=f"s{number}")[int(rng.integers(2))], name, "v"),
            lambda: sym.Concat(sym.slice_axis(pick(), axis=1, begin=0, end=2), sym.slice_axis(pick(), axis=1, begin=2, end=6), dim=1, name=name),
            lambda: sym.Reshape(sym.Reshape(pick(), shape=(-1, 3)), shape=(4, 6), name=name),
            lambda: sym.BatchNorm(pick(), fix_gamma=bool(rng.integers(2)), name=name),
            lambda: sym.Dropout(pick(), p=0.4, name=name),
            lambda: sym.BlockGrad(pick(), name=name),
            lambda: pick() * 2.0 - pick(),
        ][int(rng.integers(11))]()  # fmt: skip

    for number in range(int(rng.integers(3, 25))):
        values.append(node(number))
    heads = [pick() for _ in range(int(rng.integers(1, 4)))]
    if rng.integers(3) == 0:
        heads.append(sym.LinearRegressionOutput(pick(), name="loss"))
    return sym.Group(heads)


def check_against_unplanned(seed: int) -> tuple[int, int]:
    """Planned = unplanned to the bit for one random graph; (arena bytes, bytes without any sharing)."""
    rng = np.random.default_rng(seed)
    net = random_net(rng)
    known = {n: (4, 6) for n in net.list_arguments() if n.startswith(("x", "loss"))}
    arguments, outputs, aux = net.infer_shape(**known)
    names = net.list_arguments()

    def draw(shape: Any) -> np.ndarray:
        array = rng.uniform(-1, 1, shape).astype(np.float32)
        return np.asfortranarray(array) if seed % 3 == 0 else array

    args = {n: draw(s) for n, s in zip(names, arguments, strict=True)}
    states = {n: np.abs(draw(s)) + 0.5 for n, s in zip(net.list_auxiliary_states(), aux, strict=True)}
    wants = {n: str(rng.choice(["write", "add", "null"])) for n in names}
    grads = {n: draw(a.shape) for n, a in args.items()}
    heads = [draw(s) for s in outputs]

    naive = NaiveRun(net, args, states)
    want = naive.forward(True)
    gradients = naive.backward(heads, wants, {n: g.copy() for n, g in grads.items()})
    executor = bind(net, ax.cpu(), args, grads, wants, {n: a.copy() for n, a in states.items()})
    got = executor.forward(True)
    for one, other in zip(got, want, strict=True):
        assert np.array_equal(one, other)
    for name, state in executor.aux_dict.items():
        assert np.array_equal(state, naive.aux[name]), name
    executor.backward(heads)
    for one, other in zip(executor.outputs, want, strict=True):
        assert np.array_equal(one, other), "backward has changed an output"
    for name, gradient in gradients.items():
        assert np.array_equal(executor.grad_dict[name], gradient), name
    plan = executor.plan()
    return plan.arena_bytes, sum(v.nbytes for v in plan.values if v.in_arena and v.base is None)


@pytest.mark.parametrize("block", range(10))
def test_planned_is_unplanned_on_random_graphs(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARRAYEXEC_POISON", "1")
    sizes = [check_against_unplanned(20 * block + i) for i in range(20)]
    assert sum(planned for planned, _ in sizes) < sum(naive for _, naive in sizes)


def test_random_graphs_by_hypothesis(monkeypatch: pytest.MonkeyPatch) -> None:
    hypothesis = pytest.importorskip("hypothesis", reason="hypothesis is not installed")
    monkeypatch.setenv("ARRAYEXEC_POISON", "1")

    @hypothesis.settings(max_examples=50, deadline=None, derandomize=True)
    @hypothesis.given(hypothesis.strategies.integers(1000, 2**31))
    def run(seed: int) -> None:
        check_against_unplanned(seed)

    run()


def chain() -> Any:
    """20 × (FullyConnected 512 + ReLU), head of 10."""
    net = sym.Variable("data")
    for i in range(20):
        net = sym.Activation(sym.FullyConnected(net, num_hidden=512, name=f"fc{i}"), act_type="relu", name=f"relu{i}")
    return sym.SoftmaxOutput(sym.FullyConnected(net, num_hidden=10, name="head"), name="softmax")


def bound_chain() -> Any:
    net = chain()
    wants = {n: "write" for n in net.list_arguments() if n.endswith(("weight", "bias"))}
    executor = net.simple_bind(ax.cpu(), grad_req=wants, data=(2048, 512))
    rng = np.random.default_rng(0)
    for name, array in executor.arg_dict.items():
        array[...] = rng.integers(0, 10, array.shape) if name == "softmax_label" else rng.normal(0, 0.05, array.shape)
    return executor


def test_chain_peaks_below_88_mib() -> None:
    executor = bound_chain()
    stated = executor.memory_plan()
    assert stated["arena"] <= 88 * MIB
    assert stated["gradient"] == sum(g.nbytes for g in executor.grad_arrays if g is not None)
    assert stated["live"] <= stated["arena"] <= 1.05 * stated["live"]
    tracemalloc.start()
    try:
        executor.forward(True)
        executor.backward()
        assert abs(executor.arena.nbytes - stated["arena"]) < 64
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        executor.forward(True)
        executor.backward()
        assert tracemalloc.get_traced_memory()[1] - before < 64 * 1024
    finally:
        tracemalloc.stop()


def bytes_of_arrays() -> int:
    """Live bytes of NumPy's arrays over 1 KiB."""
    domain = tracemalloc.DomainFilter(True, np.lib.tracemalloc_domain)
    return sum(trace.size for trace in tracemalloc.take_snapshot().filter_traces([domain]).traces if trace.size > 1024)


def test_live_bytes_after_bind_are_the_memory_plan() -> None:
    net = chain()
    tracemalloc.start()
    try:
        executor = net.simple_bind(ax.cpu(), data=(256, 512))
        bound = bytes_of_arrays()
        executor.forward(True)
        executor.backward()
        run = bytes_of_arrays()
    finally:
        tracemalloc.stop()
    stated = executor.memory_plan()
    wanted = stated["argument"] + stated["gradient"] + stated["aux"] + stated["arena"]
    alignment = 2 * 64 * len(net.list_arguments()) + 4 * 64  # 64 bytes an array
    assert wanted <= bound + 64 and bound <= wanted + alignment
    assert run == bound


def test_binding_the_users_arrays_allocates_the_arena() -> None:
    net = sym.FullyConnected(sym.Variable("data"), num_hidden=3, name="fc")
    arrays = [np.zeros(s, np.float32) for s in ((1024, 8), (3, 8), (3,))]
    executor = bind(net, ax.cpu(), arrays, [None, np.zeros((3, 8), np.float32), None])
    assert executor.arena.nbytes == executor.memory_plan()["arena"] > 0
    assert bind(net, ax.cpu(), arrays).arena.nbytes == 0, "without gradients it is as large as what is run first"


def test_a_shared_arena_grows_without_the_old_one() -> None:
    """The views of all executors are dropped before the larger block is allocated, so both never live at once."""
    net = chain()
    tracemalloc.start()
    try:
        small = net.simple_bind(ax.cpu(), data=(500, 512))
        small.forward(True)
        small.backward()
        own, before = small.arena.nbytes, tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        large = net.simple_bind(
            ax.cpu(), shared_exec=small, shared_arg_names=net.list_arguments()[1:-1], data=(1000, 512)
        )  # fmt: skip
        peak = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    inputs = sum(large.arg_dict[name].nbytes + large.grad_dict[name].nbytes for name in ("data", "softmax_label"))
    assert own > 20 * MIB
    assert abs(peak - (large.arena.nbytes - own + inputs)) < MIB
    small.backward()


def allocated_in_second_step(case: str, batch: int) -> int:
    """Bytes that forward + backward allocate at most beside what is bound, when everything has run once."""
    if case == "conv":
        net = sym.Convolution(sym.Variable("data"), kernel=(3, 3), num_filter=16, pad=(1, 1), name="c1")
        net = sym.Activation(sym.BatchNorm(net, name="bn1"), act_type="relu")
        net = sym.Pooling(net, kernel=(2, 2), stride=(2, 2), pool_type="max")
        net = sym.Convolution(net, kernel=(3, 3), num_filter=16, stride=(2, 2), num_group=2, name="c2")
        net = sym.Dropout(sym.FullyConnected(net, num_hidden=64, name="fc"), p=0.5)
        shapes = {"data": (batch, 3, 28, 28)}
    else:
        net = sym.Embedding(sym.Variable("data"), input_dim=500, output_dim=128, name="embed")
        steps = sym.SliceChannel(net, num_outputs=3, axis=1, squeeze_axis=True)
        net = steps[0]
        for i in range(3):
            inner = sym.FullyConnected(net, num_hidden=512, name=f"h{i}")
            gates = sym.FullyConnected(steps[i], num_hidden=512, name=f"i{i}") + inner
            a, b, c, d = sym.SliceChannel(gates, num_outputs=4, name=f"slice{i}")
            net = sym.sigmoid(a) * sym.tanh(b) + sym.sigmoid(c) * sym.tanh(d)
        shapes = {"data": (4 * batch, 3)}
    net = sym.SoftmaxOutput(sym.FullyConnected(net, num_hidden=64, name="head"), name="softmax")
    wants = {n: "write" for n in net.list_arguments() if n not in shapes}
    executor = net.simple_bind(ax.cpu(), grad_req=wants, **shapes)
    rng = np.random.default_rng(0)
    for name, array in executor.arg_dict.items():
        indices = name in ("data", "softmax_label")
        array[...] = rng.integers(0, 64, array.shape) if indices else rng.normal(0, 0.1, array.shape)
    executor.forward(True)
    executor.backward()
    tracemalloc.start()
    try:
        for _ in range(2):
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            executor.forward(True)
            executor.backward()
            extra = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    return extra


@pytest.mark.parametrize("case", ["conv", "lstm"])
def test_second_step_allocates_nothing_beside_the_plan(case: str) -> None:
    """Only NumPy's own casting buffers, of 8,192 elements, a few at a time: none is over 64 KiB or grows with the batch."""
    small, large = (allocated_in_second_step(case, batch) for batch in (32, 128))
    assert large < 5 * 8192 * 4
    assert large - small < 8192 * 4


def test_a_plan_is_data() -> None:
    import pickle

    net = chain()
    shapes = ax.symbol.infer.infer_shapes(net.graph, {"data": (8, 512)})
    types = infer_types(net.graph, {}, default=np.float32)
    wants = dict.fromkeys(net.list_arguments(), "write")
    one = make_plan(net.graph, shapes, types, wants, is_train=True)
    assert pickle.loads(pickle.dumps(one)) == one
    assert "backward FullyConnected 'fc19'" in " ".join(str(one).split())
    kept = make_plan(net.graph, shapes, types, wants, is_train=True, keep=Keep("all"))
    assert kept.arena_bytes > 2 * one.arena_bytes
