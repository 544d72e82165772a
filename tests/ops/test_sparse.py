"""Operators of sparse arrays on dense ones: a factorization machine as a file of the time holds it."""

from __future__ import annotations

import json

import numpy as np

import arrayexec as ax
from arrayexec.testing import check_op
from tests.ops.runs import close, run, uniform


def node(op: str, name: str, inputs: list[int], **attributes: str) -> dict[str, object]:
    return {"op": op, "name": name, "attrs": attributes, "inputs": [[i, 0, 0] for i in inputs]}


NODES = [
    node("null", "x", []),
    node("null", "v", [], __storage_type__="1"),
    node("dot", "xv", [0, 1]),
    node("square", "interactions", [2]),
    node("_square_sum", "v_norm", [1], axis="1", keepdims="True"),
    node("square", "x2", [0]),
    node("dot", "x2v", [5, 4]),
    node("cast_storage", "dense", [3], stype="default"),
    node("sum", "total", [7], axis="1", keepdims="True"),
    node("elemwise_sub", "model", [8, 6]),
]


def test_a_factorization_machine() -> None:
    text = {"nodes": NODES, "arg_nodes": [0, 1], "heads": [[9, 0, 0]], "attrs": {"mxnet_version": ["int", 10200]}}
    symbol = ax.sym.load_json(json.dumps(text))
    x, v = uniform((5, 7)), uniform((7, 3), 1)
    executor = symbol.bind(ax.cpu(), {"x": x, "v": v}, {"x": np.zeros_like(x), "v": np.zeros_like(v)})
    out = executor.forward(is_train=True)[0]
    pairs = [[2 * sum(x[r, i] * x[r, j] * (v[i] @ v[j]) for i in range(7) for j in range(i))] for r in range(5)]
    close(out, np.array(pairs), 12)
    executor.backward(np.ones_like(out))
    close(executor.grad_dict["v"], 2 * (x.T @ (x @ v) - (x**2).sum(axis=0)[:, None] * v), 12)


def test_large_16_bit_squares_are_summed() -> None:
    data = np.full((2, 3), 300, np.float16)
    found = run("_square_sum", {"data": data}, np.array([0.25, 1], np.float16), axis=1)
    assert np.isinf(found.out).all()  # 270000 is no float16, and that is seen
    data = np.full((1, 4000), 2**-6, np.float16)
    assert run("_square_sum", {"data": data}, axis=1).out[0] == np.float16(4000 * 2.0**-12)


def test_contract() -> None:
    check_op("_square_sum")
    check_op("cast_storage")
