"""Every refusal of the namespace in MXNet's place.

The texts stand in ``texts_compat.txt``; how they are recorded: ``recorder.py``.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import arrayexec.compat.mxnet as mx
from tests.errors.recorder import PACKAGE, Recorder, checks_of
from tests.strict_device import strict

FILES = sorted((PACKAGE / "compat" / "mxnet").glob("*.py"))
RECORDER = Recorder(Path(__file__).parent / "texts_compat.txt", FILES)
case, cases = RECORDER.case, RECORDER.cases
nd, utils = mx.nd, mx.test_utils


def two() -> Any:
    return nd.array([[1, 2, 3], [4, 5, 6]])


def product() -> Any:
    return mx.sym.Variable("a") * mx.sym.Variable("b")


cases(
    no_autograd=lambda: mx.autograd,
    no_gluon=lambda: mx.gluon,
    no_quantization=lambda: mx.contrib.quantization,
    no_np=lambda: mx.np,
    import_of_gluon=lambda: importlib.import_module("arrayexec.compat.mxnet.gluon"),
    misspelt=lambda: mx.modul,
    misspelt_metric=lambda: mx.metric.Accurcy,
    no_boxes=lambda: mx.io.ImageDetRecordIter,
    no_loops=lambda: nd.contrib.foreach,
    no_branches=lambda: mx.sym.contrib.cond,
    operand=lambda: two() + ["a list"],  # noqa: RUF005
    operand_text=lambda: 2 ** (two() * "x"),
    types_mixed=lambda: two() + nd.ones((2, 3), dtype="int32"),
    no_broadcast=lambda: two() + nd.array([1, 2]),
    truth=lambda: bool(two()),
    no_index=lambda: [1, 2][nd.array([1.5])],
    no_scalar=lambda: two().asscalar(),
    copy_to_number=lambda: two().copyto(3),
    copy_to_shape=lambda: two().copyto(nd.zeros((3, 2))),
    sparse=lambda: two().tostype("csr"),
    reshape_word=lambda: two().reshape(shape=(3, 2), order="C"),
    reshape_size=lambda: two().reshape((4, 2)),
    index_kind=lambda: two()["a"],
    index_range=lambda: two()[2],
    index_range_of_lists=lambda: two()[[0, 5]],
    assign_range=lambda: two().__setitem__(7, 1),
    assign_shape=lambda: two().__setitem__(slice(None), nd.array([1, 2])),
    attach_grad=lambda: two().attach_grad(),
    gradient=lambda: two().grad,
    backward=lambda: two().backward(),
    odd_method=lambda: two().zork(),
    not_numbers=lambda: nd.array([[1], [2, 3]]),
    not_a_number=lambda: nd.array("text"),
    sparse_variable=lambda: mx.sym.Variable("w", stype="row_sparse"),
    sparse_zeros=lambda: nd.zeros((2,), stype="row_sparse"),
    sparse_empty=lambda: nd.empty((2,), stype="csr"),
    sparse_matrix=lambda: nd.sparse.csr_matrix((2, 2)),
    input_missing=lambda: nd.FullyConnected(two(), num_hidden=2),
    inputs=lambda: nd.exp(two(), two()),
    devices=lambda: nd.dot(two(), nd.ones((3, 3), strict(0))),
    out_count=lambda: nd.split(two(), num_outputs=3, axis=1, out=[nd.zeros((2, 1))]),
    out_shape=lambda: nd.exp(two(), out=nd.zeros((3,))),
    attribute_twice=lambda: nd.sum(two(), 1, axis=0),
    no_input=lambda: nd.FullyConnected(two(), wieght=two(), num_hidden=2),
    input_twice=lambda: nd.dot(two(), two(), lhs=two()),
    many_values=lambda: nd.sum(two(), 1, True, False, 3, 4),
    attribute=lambda: nd.FullyConnected(two(), two(), num_hiden=2),
    shape=lambda: nd.FullyConnected(two(), nd.ones((2, 4)), num_hidden=2, no_bias=True),
    operator=lambda: nd.FullyConected(two()),
    operator_of_group=lambda: nd.linalg.gem2(two()),
    no_prop=lambda: mx.operator.register("x")(mx.operator.CustomOp),
    random_values=lambda: mx.random.uniform(0, 1, (2,), "float32", None, None, 3),
    random_limits=lambda: nd.random.uniform(5, 1, shape=(2,)),
    random_mixed=lambda: nd.random.normal(nd.zeros((2,)), 1.0),
    random_name=lambda: mx.random.unifrom,
    check_name=lambda: utils.check_symbolic_forward(product(), {"c": np.ones(1)}, []),
    check_count=lambda: utils.check_symbolic_forward(product(), [np.ones(1)], []),
    check_value=lambda: utils.check_symbolic_forward(product(), [np.ones(2), np.ones(2)], [np.array([1, 2])]),
    check_type=lambda: utils.check_numeric_gradient(product(), [np.ones(1), np.ones(1)], dtype="int32"),
    check_node=lambda: utils.check_numeric_gradient(product(), [np.ones(1), np.ones(1)], grad_nodes=["z"]),
    unequal=lambda: utils.assert_almost_equal(two(), two() + np.eye(2, 3, dtype="f")),
    unequal_shapes=lambda: utils.assert_almost_equal(two(), np.ones(2)),
    no_exception=lambda: utils.assert_exception(len, ValueError, ()),
    unknown_word=lambda: mx.rnn.encode_sentences([["a", "z"]], {"a": 0}),
    label_count=lambda: mx.metric.check_label_shapes([1], [1, 2]),
    download=lambda: utils.download("http://example.org/mnist.npz"),
    get_mnist=lambda: utils.get_mnist(),
)


@case
def inconsistent() -> None:
    odd = mx.sym.Variable("data") + 1, mx.sym.Variable("data") + 2
    utils.check_consistency(odd, [{"ctx": mx.cpu(i), "data": (2,)} for i in range(2)], arg_params={"data": np.ones(2)})


@case
def no_graphviz() -> None:
    with mock.patch("importlib.util.find_spec", return_value=None):
        mx.viz.plot_network(product()).render()


(
    found, test_text, test_no_text_is_left_over, test_every_refusal_is_reached,
    test_what_is_held_elsewhere_is_there,
) = checks_of(RECORDER)  # fmt: skip
