"""Operators of one graph on several contexts: the same bits as on one, every array where its group says."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import pytest

import arrayexec as ax
from arrayexec import sym
from arrayexec.context import Context, Device, asnumpy, copyto, register_device
from arrayexec.errors import BindError, NonFiniteError, StaleForwardError
from arrayexec.executor import bind
from arrayexec.registry import Op, register_op
from arrayexec.train.rnn import LSTMCell
from tests.exec.test_memory import random_net
from tests.exec.test_walls import shard_rows
from tests.strict_device import strict

GROUPS = ("left", "right", "far")


@pytest.fixture(params=["cpu", "strict", "mixed"])
def places(request: pytest.FixtureRequest) -> dict[str, Context]:
    """A context for every group: replicas on the host, strict devices, or both with the host between them."""
    if request.param == "cpu":
        return {"left": ax.cpu(1), "right": ax.cpu(2), "far": ax.cpu(3)}
    if request.param == "strict":
        return {"left": strict(0), "right": strict(1), "far": strict(0)}
    return {"left": strict(0), "right": ax.cpu(0), "far": strict(1)}


def group_of(net: Any, name: str) -> str | None:
    return net.attr_dict().get(name, {}).get("ctx_group")


def on(places: dict[str, Context], group: str | None) -> Context:
    return ax.cpu() if group is None else places[group]


def moved(arrays: dict[str, np.ndarray], net: Any, places: dict[str, Context]) -> dict[str, Any]:
    """Copies of arrays, each on the context of its variable's group."""
    found = {}
    for name, array in arrays.items():
        context = on(places, group_of(net, name))
        found[name] = context.empty(array.shape, array.dtype, "parameter")
        copyto(found[name], array)
    return found


def lies_on(array: Any, context: Context) -> bool:
    """Whether an array lies on a context; replicas of the host share its memory."""
    return context.device.owns(array)


# --- random graphs ---------------------------------------------------------------------------------------------------


def check_spread(seed: int, places: dict[str, Context]) -> int:
    """One random graph with random groups = the same graph on one context, to the bit; number of transfers."""
    rng = np.random.default_rng(seed)
    net = random_net(rng)
    for output in net.get_internals():
        if rng.integers(4):
            output._set_attr(ctx_group=str(rng.choice(GROUPS)))
    known = {n: (4, 6) for n in net.list_arguments() if n.startswith(("x", "loss"))}
    arguments, outputs, states = net.infer_shape(**known)
    names, aux_names = net.list_arguments(), net.list_auxiliary_states()

    def draw(shape: Any) -> np.ndarray:
        return rng.uniform(-1, 1, shape).astype(np.float32)

    args = {n: draw(s) for n, s in zip(names, arguments, strict=True)}
    aux = {n: np.abs(draw(s)) + 0.5 for n, s in zip(aux_names, states, strict=True)}
    wants = {n: str(rng.choice(["write", "add", "null"])) for n in names}
    grads = {n: draw(a.shape) for n, a in args.items()}
    heads = [draw(s) for s in outputs]

    def run(executor: Any, is_train: bool = True) -> list[np.ndarray]:
        values = [asnumpy(o).copy() for o in executor.forward(is_train)]
        executor.backward(heads)
        values += [asnumpy(o).copy() for o in executor.outputs]
        ready: dict[str, np.ndarray] = {}
        executor.backward(heads, on_ready=lambda name: ready.update({name: asnumpy(executor.grad_dict[name]).copy()}))
        assert ready.keys() == {n for n, request in wants.items() if request != "null"}  # the forward was repeated
        for name, gradient in ready.items():
            assert np.array_equal(gradient, asnumpy(executor.grad_dict[name])), "it was not finished"
        found = (*executor.aux_dict.values(), *(g for g in executor.grad_dict.values() if g is not None))
        return values + [asnumpy(array).copy() for array in found]

    alone = bind(net, ax.cpu(), *({n: a.copy() for n, a in d.items()} for d in (args, grads)), wants, {n: a.copy() for n, a in aux.items()})  # fmt: skip
    apart = bind(net, ax.cpu(), moved(args, net, places), moved(grads, net, places), wants, moved(aux, net, places), places)
    for mode in (True, False, True):
        for one, other in zip(run(alone, mode), run(apart, mode), strict=True):
            assert np.array_equal(one, other), seed
    for (node, _), output in zip(net.heads, apart.outputs, strict=True):
        assert lies_on(output, on(places, node.attributes.get("__ctx_group__")))
    return sum(step.kind == "transfer" for step in apart.plan().steps)


@pytest.mark.parametrize("block", range(4))
def test_spread_is_alone_on_random_graphs(block: int, places: dict[str, Context], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARRAYEXEC_POISON", "1")
    assert sum(check_spread(20 * block + i, places) for i in range(20)) > 20


# --- what the plan says ----------------------------------------------------------------------------------------------


def halves(width: int = 8) -> Any:
    """Two dense layers on ``left``, two on ``right`` that both read what ``left`` has made, a sum on no group."""
    with ax.AttrScope(ctx_group="left"):
        low = sym.FullyConnected(sym.Variable("data"), num_hidden=width, name="a")
        low = sym.Activation(low, act_type="tanh", name="b")
    with ax.AttrScope(ctx_group="right"):
        one = sym.FullyConnected(low, num_hidden=width, name="c")
        two = sym.FullyConnected(low, num_hidden=width, name="d")
        high = sym.elemwise_mul(one, two, name="e")
    return sym.elemwise_add(high, low, name="top")


def test_a_value_is_copied_once_for_each_destination() -> None:
    net = halves()
    executor = net.simple_bind(ax.cpu(), group2ctx={"left": ax.cpu(1), "right": ax.cpu(2)}, data=(4, 8))
    plan = executor.plan()
    moves = [
        (step.phase, step.name, plan.values[step.reads[0]].place, plan.values[step.writes[0]].place)
        for step in plan.steps
        if step.kind == "transfer"
    ]
    left, right = 1, 2  # places in the order in which nodes are first met; 0 is the executor's own
    assert moves == [
        ("forward", "b_output", left, right),  # once for c and d, forward and backward
        ("forward", "e_output", right, 0),
        ("forward", "b_output", left, 0),
        ("backward", "head gradient of top_output", 0, right),  # the sum passes its gradient on
        ("backward", "d b_output", right, left),  # of d
        ("backward", "head gradient of top_output", 0, left),
        ("backward", "d b_output", right, left),  # of c
    ]
    assert "transfer b_output" in str(plan) and "place 2" in str(plan)


def test_arrays_and_arenas_lie_where_their_group_says(places: dict[str, Context]) -> None:
    net = halves()
    executor = net.simple_bind(ax.cpu(), group2ctx=places, data=(4, 8))
    for name, array in {**executor.arg_dict, **executor.grad_dict}.items():
        group = {"a": "left", "c": "right", "d": "right"}.get(name[0] if "_" in name else "data")
        assert lies_on(array, on(places, group if name != "data" else "left")), name
    assert lies_on(executor.outputs[0], ax.cpu())
    stated = executor.memory_plan()
    assert set(stated["contexts"]) == {"cpu(0)", str(places["left"]), str(places["right"])}
    for role in ("argument", "gradient", "aux", "arena"):
        assert sum(held[role] for held in stated["contexts"].values()) == stated[role]
    assert stated["contexts"][str(places["right"])]["argument"] == 4 * 2 * (8 * 8 + 8)
    for context, block in executor.arena.blocks.items():
        assert lies_on(block, context) and block.size == stated["contexts"][str(context)]["arena"] > 0


def test_groups_on_one_context_are_no_groups() -> None:
    plain = halves().simple_bind(ax.cpu(), data=(4, 8))
    for groups in ({}, {"left": ax.cpu(), "right": ax.cpu(0)}, {"left": ax.cpu(), "right": ax.cpu(), "unused": ax.cpu(7)}):
        assert halves().simple_bind(ax.cpu(), group2ctx=groups, data=(4, 8)).plan() == plain.plan()


def test_a_device_is_opened_only_where_a_node_runs() -> None:
    """Of groups that no node has nothing is asked, and nothing is allocated on the default context for nothing."""
    with ax.AttrScope(ctx_group="left"):
        net = sym.FullyConnected(sym.Variable("data"), num_hidden=2, name="fc")
    executor = net.simple_bind(ax.cpu(), group2ctx={"left": ax.cpu(1), "other": ax.gpu(99)}, data=(4, 3))
    assert executor.memory_plan()["contexts"]["cpu(0)"]["arena"] == 0


class _Seen(Op):
    """Base: a state ``seen`` of one value."""

    aux: ClassVar[tuple[str, ...]] = ("seen",)
    examples: ClassVar[list[dict[str, Any]]] = [{"data": (2,)}]

    def infer(self, s: Any) -> None:
        s.out = s.data
        s.data = s.out
        s.seen = (1,)


@register_op
class _Counts(_Seen):
    """``out = data``; each training forward adds one to ``seen``, which forward does not read."""

    def forward(self, xp: Any, data: Any, out: Any) -> None:
        xp.copyto(out, data)

    def backward(self, xp: Any, dout: Any, ddata: Any) -> None:
        xp.copyto(ddata, dout)

    def update(self, xp: Any, seen: Any) -> None:
        xp.add(seen, 1, out=seen)


@register_op
class _Scales(_Seen):
    """``out = data * seen``."""

    def forward(self, xp: Any, data: Any, seen: Any, out: Any) -> None:
        xp.multiply(data, seen, out=out)

    def backward(self, xp: Any, dout: Any, seen: Any, ddata: Any) -> None:
        xp.multiply(dout, seen, out=ddata)


@pytest.mark.parametrize("group", [None, *GROUPS])
def test_a_state_of_another_group_moves_once(
    group: str | None, places: dict[str, Context], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its copy is brought in a repeated forward, too; it is moved in none."""
    monkeypatch.setenv("ARRAYEXEC_POISON", "1")
    with ax.AttrScope(ctx_group="left"):
        state = sym.Variable("seen", attr={"ctx_group": group} if group else {"ctx_group": "left"})
        net = sym.tanh(sym._Scales(sym._Counts(sym.Variable("x"), seen=state), seen=state))
    alone, apart = (net.simple_bind(ax.cpu(), group2ctx=groups, x=(2,)) for groups in (None, places))
    x, head = np.float32([0.1, 0.2]), np.float32([1, 2])
    for count in (1, 2):
        for executor in (alone, apart):
            executor.forward(True, x=x)
            for _ in range(2):
                executor.backward(head)
                want = head * (1 - np.tanh(x * count) ** 2) * count
                assert np.allclose(asnumpy(executor.grad_dict["x"]), want)
                assert asnumpy(executor.aux_dict["seen"]) == [count]


class Noted(Device):
    """Host memory that notes whose turn it is."""

    turn: ClassVar[list[str]] = []

    @contextlib.contextmanager
    def enter(self) -> Iterator[None]:
        self.turn.append(self.name)
        try:
            yield
        finally:
            self.turn.pop()


@register_op
class _Where(Op):
    """``out = data``, and the device on which each body ran under its name."""

    mark: str
    ran: ClassVar[dict[str, str]] = {}
    examples: ClassVar[list[dict[str, Any]]] = [{"data": (2,), "mark": "a"}]

    def infer(self, s: Any) -> None:
        s.out = s.data
        s.data = s.out

    def forward(self, xp: Any, data: Any, out: Any) -> None:
        xp.copyto(out, data)
        self.ran[self.mark] = Noted.turn[-1]

    def backward(self, xp: Any, dout: Any, ddata: Any) -> None:
        xp.copyto(ddata, dout)
        self.ran[f"d{self.mark}"] = Noted.turn[-1]


def test_a_step_runs_while_its_device_is_the_current_one() -> None:
    register_device("noted", lambda i: Noted(f"noted({i})"))
    places = {"left": Context("noted", 0), "right": Context("noted", 1)}
    net = sym.Variable("x", attr={"ctx_group": "left"})
    for mark, group in (("a", "left"), ("b", "right"), ("c", "left")):
        net = sym._Where(net, mark=mark, attr={"ctx_group": group})
    executor = net.simple_bind(Context("noted", 5), group2ctx=places, x=(2,))
    executor.forward(True)
    executor.backward(np.ones(2, np.float32))
    left, right = "noted(0)", "noted(1)"
    assert _Where.ran == {"a": left, "b": right, "c": left, "da": left, "db": right, "dc": left}
    assert not Noted.turn


def test_a_run_waits_for_the_caller_once_a_device() -> None:
    devices = strict(0), strict(1)
    net = halves()
    executor = net.simple_bind(ax.cpu(), group2ctx={"left": devices[0], "right": devices[1]}, data=(4, 8))
    executor.forward(True)
    for context in devices:
        context.device.log.clear()
    executor.forward(True)
    assert [context.device.count("wait") for context in devices] == [2, 2]


# --- beside other features -------------------------------------------------------------------------------------------


def filled(executor: Any, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    for array in executor.arg_dict.values():
        copyto(array, rng.uniform(-1, 1, array.shape).astype(np.float32))
    return executor


def results(executor: Any, head: np.ndarray) -> list[np.ndarray]:
    output = asnumpy(executor.forward(True)[0]).copy()
    executor.backward(head)
    return [output, *(asnumpy(g).copy() for g in executor.grad_arrays)]


def same(one: list[np.ndarray], other: list[np.ndarray]) -> None:
    for left, right in zip(one, other, strict=True):
        assert np.array_equal(left, right)


def test_sharing_between_buckets(places: dict[str, Context]) -> None:
    """Parameters, inputs and arena of a larger bucket serve smaller ones, in any order."""
    net, pool = halves(), {}
    shared = [n for n in net.list_arguments() if n != "data"]
    large = filled(net.simple_bind(ax.cpu(), group2ctx=places, shared_data_arrays=pool, data=(6, 8)))
    small = net.simple_bind(
        ax.cpu(), group2ctx=places, shared_data_arrays=pool, shared_exec=large, shared_arg_names=shared, data=(3, 8)
    )
    assert small.arg_dict["c_weight"] is large.arg_dict["c_weight"]
    assert lies_on(pool["data"], places["left"])
    before = large.arena.nbytes
    for rows, executor in ((6, large), (3, small), (6, large)):
        data = np.random.default_rng(rows).uniform(-1, 1, (rows, 8)).astype(np.float32)
        executor.forward(True, data=data)
        plain = filled(net.simple_bind(ax.cpu(), data=(rows, 8)))
        for name in shared:
            copyto(plain.arg_dict[name], large.arg_dict[name])
        plain.arg_dict["data"][...] = data
        same(results(plain, data), results(executor, data))
    assert large.arena.nbytes == before and small.arena is large.arena
    with pytest.raises(StaleForwardError):
        small.backward(np.zeros((3, 8), np.float32))
    grown = net.simple_bind(ax.cpu(), group2ctx=places, shared_data_arrays=pool, shared_exec=large, data=(60, 8))
    same(results(filled(grown), np.ones((60, 8), np.float32)), results(filled(net.simple_bind(ax.cpu(), data=(60, 8))), np.ones((60, 8), np.float32)))  # fmt: skip
    assert large.arena.nbytes > before
    results(large, np.ones((6, 8), np.float32))


def test_a_loan_from_another_context_is_refused() -> None:
    net, device = halves(), strict(0)
    lender = net.simple_bind(ax.cpu(), data=(6, 8))
    options: dict[str, Any] = {"group2ctx": {"left": ax.cpu(1), "right": device}, "data": (3, 8)}
    with pytest.raises(BindError, match=r"shared argument 'c_weight' must lie on strict\(0\), but it is an array of cpu"):
        net.simple_bind(ax.cpu(), shared_exec=lender, shared_arg_names=["a_weight", "c_weight"], **options)
    options["group2ctx"] = {"left": device, "right": ax.cpu(1)}
    with pytest.raises(BindError, match=r"shared input 'data' must lie on strict\(0\)"):
        net.simple_bind(ax.cpu(), shared_data_arrays={"data": np.zeros((3, 8), np.float32)}, **options)
    arrays = {n: np.zeros(a.shape, np.float32) for n, a in lender.arg_dict.items()}
    with pytest.raises(BindError, match=r"argument 'data' must lie on strict\(0\), but it is an array of cpu\(0\)"):
        net.bind(ax.cpu(), arrays, group2ctx=options["group2ctx"])


def test_reshape(places: dict[str, Context]) -> None:
    net = halves()
    first = filled(net.simple_bind(ax.cpu(), group2ctx=places, data=(6, 8)))
    for rows in (3, 9):
        other = first.reshape(allow_up_sizing=True, partial_shaping=True, data=(rows, 8))
        assert other.contexts == first.contexts and lies_on(other.arg_dict["data"], places["left"])
        data = np.random.default_rng(rows).uniform(-1, 1, (rows, 8)).astype(np.float32)
        copyto(other.arg_dict["data"], data)
        plain = net.simple_bind(ax.cpu(), data=(rows, 8))
        for name, array in other.arg_dict.items():
            copyto(plain.arg_dict[name], array)
        same(results(plain, data), results(other, data))


def test_monitors_see_the_same_values(places: dict[str, Context], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in random graphs, where gradients are passed on and summed in other places."""
    monkeypatch.setenv("ARRAYEXEC_POISON", "1")
    for seed in range(15):
        rng = np.random.default_rng(seed)
        net = random_net(rng)
        for output in net.get_internals():
            output._set_attr(ctx_group=str(rng.choice(GROUPS)))
        known = {n: (4, 6) for n in net.list_arguments() if n.startswith(("x", "loss"))}
        heads = [rng.uniform(-1, 1, shape).astype(np.float32) for shape in net.infer_shape(**known)[1]]
        told: list[list[tuple[str, np.ndarray]]] = []
        for groups in (None, places):
            seen: list[tuple[str, np.ndarray]] = []
            executor = filled(net.simple_bind(ax.cpu(), group2ctx=groups, **known))
            executor.set_monitor_callback(lambda name, array, seen=seen: seen.append((name, array)), monitor_all=True)
            executor.forward(True)
            executor.backward(heads)
            told.append([(name, asnumpy(array)) for name, array in seen])
        for one, other in zip(*told, strict=True):
            assert one[0] == other[0] and np.array_equal(one[1], other[1]), (seed, one[0])


def test_a_check_names_the_node_on_its_context(places: dict[str, Context]) -> None:
    executor = filled(halves().simple_bind(ax.cpu(), group2ctx=places, data=(4, 8)))
    copyto(executor.arg_dict["c_bias"], np.full(8, np.inf, np.float32))
    with pytest.raises(NonFiniteError, match="FullyConnected 'c'") as caught:
        executor.forward(True, check="finite")
    assert str(caught.value).endswith("not finite already: argument 'c_bias'")
    copyto(executor.arg_dict["c_bias"], np.zeros(8, np.float32))
    found = executor.forward(True, check="finite", internals=["b_output", "e_output"])
    assert lies_on(found["b_output"], places["left"]) and lies_on(found["e_output"], places["right"])
    executor.backward(np.ones((4, 8), np.float32), check="finite")


def test_dropout_draws_the_same(places: dict[str, Context]) -> None:
    with ax.AttrScope(ctx_group="left"):
        net = sym.Dropout(sym.Variable("data"), p=0.5, name="drop")
    ones = np.ones((40, 5), np.float32)
    outputs = [
        asnumpy(net.simple_bind(ax.cpu(), group2ctx=groups, data=(40, 5)).forward(True, data=ones)[0])
        for groups in (None, places)
    ]
    assert np.array_equal(*outputs) and 0 < outputs[0].astype(bool).sum() < 200


def test_groups_are_kept_in_files(places: dict[str, Context]) -> None:
    net = halves()
    again = sym.load_json(net.tojson())
    assert group_of(again, "c_weight") == "right" and '"__ctx_group__": "right"' in net.tojson()
    one, other = (filled(n.simple_bind(ax.cpu(), group2ctx=places, data=(4, 8))) for n in (net, again))
    assert one.plan().arenas == other.plan().arenas and one.plan().offsets == other.plan().offsets
    head = np.ones((4, 8), np.float32)
    same(results(one, head), results(other, head))


def test_an_exception_leaves_the_executor_usable(places: dict[str, Context]) -> None:
    executor = filled(halves().simple_bind(ax.cpu(), group2ctx=places, data=(4, 8)))
    head = np.ones((4, 8), np.float32)
    want = results(executor, head)

    def stop(name: str, array: Any) -> None:
        if name == "c_output":
            raise KeyError(name)

    executor.set_monitor_callback(stop)
    with pytest.raises(KeyError):
        executor.forward(True)
    executor.set_monitor_callback(None)
    same(want, results(executor, head))


# --- a recurrent net whose layers lie on different devices -----------------------------------------------------------


def layered_lstm(steps: int, layers: int, hidden: int) -> Any:
    """Embedding and each LSTM layer in a group of its own, the classifier in the last one."""
    cells = []
    for i in range(layers):
        with ax.AttrScope(ctx_group=f"layer{i}"):
            cells.append(LSTMCell(num_hidden=hidden, prefix=f"l{i}_"))
            states = cells[-1].begin_state()
        cells[-1] = [cells[-1], states]
    with ax.AttrScope(ctx_group="embed"):
        embed = sym.Embedding(sym.Variable("data"), input_dim=20, output_dim=hidden, name="embed")
        words = sym.SliceChannel(embed, num_outputs=steps, axis=1, squeeze_axis=True, name="words")
    outputs = []
    for t in range(steps):
        value = words[t]
        for i, cell in enumerate(cells):
            with ax.AttrScope(ctx_group=f"layer{i}"):
                value, cell[1] = cell[0](value, cell[1])
        outputs.append(value)
    with ax.AttrScope(ctx_group="decode"):
        joined = sym.Concat(*outputs, dim=0, name="joined")
        scores = sym.FullyConnected(joined, num_hidden=20, name="cls")
        label = sym.Reshape(sym.transpose(sym.Variable("label")), shape=(-1,), name="flat_label")
        return sym.SoftmaxOutput(scores, label, name="softmax")


def test_model_parallel_lstm_trains_as_on_one_device(places: dict[str, Context]) -> None:
    """The pattern of MXNet's example: arrays are made by the user on the context of each argument's group."""
    steps, layers, hidden, batch = 5, 3, 6, 4
    net = layered_lstm(steps, layers, hidden)
    groups = {"embed": places["left"], "decode": places["far"]}
    groups |= {f"layer{i}": list(places.values())[i] for i in range(layers)}
    inputs = {n: (batch, hidden) for n in net.list_arguments() if "begin_state" in n}
    shapes, _, _ = net.infer_shape(data=(batch, steps), label=(batch, steps), **inputs)
    rng = np.random.default_rng(0)
    names = net.list_arguments()
    start = {n: rng.uniform(-0.3, 0.3, s).astype(np.float32) for n, s in zip(names, shapes, strict=True)}
    start |= {n: np.zeros(s, np.float32) for n, s in inputs.items()}
    trained = [n for n in names if n not in ("data", "label", *inputs)]
    attributes = net.attr_dict()
    assert {attributes[n]["ctx_group"] for n in names} == set(groups)

    runs = []
    for group2ctx in (None, groups):
        arguments, gradients = {}, {}
        for name in names:
            context = groups[attributes[name]["ctx_group"]] if group2ctx else ax.cpu()
            arguments[name] = context.zeros(start[name].shape, np.float32, "parameter")
            copyto(arguments[name], start[name])
            if name in trained:
                gradients[name] = context.zeros(start[name].shape, np.float32, "gradient")
        executor = net.bind(ax.cpu(), arguments, gradients, group2ctx=group2ctx)
        draws, losses = np.random.default_rng(1), []
        for _ in range(25):
            data = draws.integers(0, 20, (batch, 1)) + np.arange(steps) * 3
            label = (data + 3) % 20
            (probabilities,) = executor.forward(True, data=np.float32(data % 20), label=np.float32(label))
            executor.backward()
            rows = asnumpy(probabilities)[np.arange(batch * steps), label.T.reshape(-1)]
            losses.append(float(-np.log(rows).mean()))
            for name in trained:
                arguments[name] -= gradients[name] * np.float32(0.1)
        runs.append((losses, {n: asnumpy(arguments[n]).copy() for n in trained}))
    (want, parameters), (got, others) = runs
    assert want == got and want[-1] < want[0]
    for name in trained:
        assert np.array_equal(parameters[name], others[name]), name


def test_shards_pass_through(places: dict[str, Context]) -> None:
    """A rewrite knows nothing of places: what it makes runs where the nodes do that it stands for."""
    with ax.AttrScope(ctx_group="left"):
        net = sym.Activation(sym.FullyConnected(sym.Variable("data"), num_hidden=8, name="a"), act_type="tanh", name="b")
    with ax.AttrScope(ctx_group="right"):
        net = sym.FullyConnected(net, num_hidden=8, name="c")
    shapes, _, _ = net.infer_shape(data=(4, 8))
    rng = np.random.default_rng(0)
    args = {n: rng.uniform(-1, 1, s).astype(np.float32) for n, s in zip(net.list_arguments(), shapes, strict=True)}
    found = []
    for groups in (None, places):
        arrays = [moved(args, net, groups) if groups else {n: a.copy() for n, a in args.items()} for _ in range(2)]
        executor = bind(net, ax.cpu(), *arrays, group2ctx=groups, rewrites=[shard_rows])
        assert {step.lane for step in executor.plan().steps} == {-1, 0, 1}
        found.append(results(executor, np.ones((4, 8), np.float32)))
        executor.forward(True, check="finite")
        assert {step.lane for step in executor.plan("train, watched").steps} == {-1}
        executor.backward(np.ones((4, 8), np.float32), check="finite")
    same(*found)
