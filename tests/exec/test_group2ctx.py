"""Operators of one graph on several contexts: the same bits as on one, every array where its group says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import arrayexec as ax
from arrayexec.context import Context, asnumpy, copyto
from arrayexec.executor import bind
from tests.exec.test_memory import random_net
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
        executor.backward(heads)  # repeats the forward
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
