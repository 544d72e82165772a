"""Random programs on modules: several devices give what one gives, whatever is called in between."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import arrayexec as ax

hypothesis = pytest.importorskip("hypothesis", reason="random programs need hypothesis")
st = hypothesis.strategies
sym = ax.sym
RNG = np.random.default_rng(2)
X = RNG.normal(size=(40, 5)).astype(np.float32)
Y = RNG.integers(0, 3, 40).astype(np.float32)


def network() -> Any:
    hidden = sym.Activation(sym.FullyConnected(sym.Variable("data"), num_hidden=7, name="fc1"), act_type="tanh")
    return sym.SoftmaxOutput(sym.FullyConnected(hidden, num_hidden=3, name="fc2"), name="softmax")


CALLS = st.one_of(
    st.tuples(st.just("train"), st.integers(0, 20), st.integers(1, 20)),
    st.tuples(st.just("predict"), st.integers(1, 40), st.integers(1, 17)),
    st.tuples(st.just("score"), st.integers(1, 40), st.integers(1, 17)),
    st.tuples(st.just("rebind"), st.integers(4, 20)),
    st.tuples(st.just("get and set")),
    st.tuples(st.just("rate"), st.floats(0.01, 0.5)),
)


def make(devices: int, loads: list[int], request: str, fixed: list[str], optimizer: str) -> Any:
    module = ax.mod.Module(
        network(), context=[ax.cpu(i) for i in range(devices)], work_load_list=loads[:devices], fixed_param_names=fixed
    )
    module.bind([("data", (8, 5))], [("softmax_label", (8,))], grad_req=request)
    ax.random.seed(1)
    module.init_params(ax.init.Normal(0.5))
    module.init_optimizer(optimizer=optimizer, optimizer_params={"learning_rate": 0.1, "wd": 0.01})
    return module


def run(module: Any, call: tuple[Any, ...], request: str) -> list[Any]:
    kind, *values = call
    if kind == "train":
        start, rows = values
        module.forward(ax.io.DataBatch([X[start : start + rows]], [Y[start : start + rows]]), is_train=True)
        module.backward()
        outputs = module.get_outputs()
        module.update()
        if request == "add":
            module.zero_grad()
        return outputs
    if kind in ("predict", "score"):
        rows, size = values
        data = ax.io.NDArrayIter(X[:rows], Y[:rows], size)
        if kind == "predict":
            return [module.predict(data)]
        return [np.array([value for _, value in module.score(data, ["acc", "ce"])])]
    if kind == "rebind":
        (rows,) = values
        module.bind([("data", (rows, 5))], [("softmax_label", (rows,))], force_rebind=True, grad_req=request)
        return []
    if kind == "rate":
        module.optimizer.lr = values[0]
        return []
    module.set_params(*module.get_params())
    return []


@hypothesis.given(
    st.lists(CALLS, min_size=1, max_size=8), st.integers(2, 4), st.lists(st.integers(1, 5), min_size=4, max_size=4),
    st.sampled_from(["write", "add"]), st.sampled_from([[], ["fc1_weight", "fc2_bias"]]), st.sampled_from(["sgd", "adam"]),
)  # fmt: skip
def test_devices_are_one(calls: Any, devices: int, loads: list[int], request: str, fixed: list[str], optimizer: str) -> None:
    one, several = (make(count, loads, request, fixed, optimizer) for count in (1, devices))
    for call in calls:
        for first, second in zip(run(one, call, request), run(several, call, request), strict=True):
            np.testing.assert_allclose(first, second, 1e-3, 1e-4, err_msg=str(call))
    for first, second in zip(one.get_params(), several.get_params(), strict=True):
        for name in first:
            np.testing.assert_allclose(first[name], second[name], 1e-3, 1e-4, err_msg=name)
