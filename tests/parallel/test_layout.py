"""The layout of parameters under ranks: one order for all buckets, from what they describe or from inference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import arrayexec as ax
from arrayexec.errors import BucketError, ShapeError
from arrayexec.parallel.gradient_sync import Layout, describe_nodes
from arrayexec.parallel.loading import Described as Inputs
from tests.parallel.networks import Described, convolutional, lstm, mlp

sym = ax.sym


def layout(symbol: Any, described: Described) -> Layout:
    return Layout(symbol, Inputs.of(described.provide_data, described.provide_label), set())


def words(length: int) -> Described:
    return Described({"data": (4, length)}, {"softmax_label": (4, length)})


def test_parameters_stand_as_backward_finishes_them() -> None:
    symbol = convolutional(norm=True)
    described = Described({"data": (4, 1, 8, 8)}, {"softmax_label": (4,)})
    found = layout(symbol, described)
    executor = symbol.simple_bind(ax.cpu(), data=(4, 1, 8, 8))
    executor.forward(is_train=True)
    finished: list[str] = []
    executor.backward(on_ready=finished.append)
    assert list(found.parameters) == [name for name in finished if name not in ("data", "softmax_label")]
    assert {n: tuple(shape) for n, (shape, _) in found.parameters.items()} == {
        n: executor.arg_dict[n].shape for n in found.parameters
    }
    assert list(found.aux) == symbol.list_auxiliary_states()


@pytest.mark.parametrize("described", [True, False])
def test_other_buckets_follow_by_name(described: bool) -> None:
    build = lstm(1, 4, 9, own=(3, 7))
    found = layout(build(5), words(5))
    first = list(found.parameters)
    assert not any(name.startswith("own") for name in first)
    for length in (7, 3):
        one = words(length)
        found.add(length, build(length), Inputs.of(one.provide_data, one.provide_label) if described else None)
    assert list(found.parameters) == [*first, "own3_bias", "own3_weight", "own7_bias", "own7_weight"]
    assert found.parameters["own7_weight"][0] == (4, 4)
    assert found.parameters["own3_bias"][0] == (4,)


def test_a_shape_that_follows_from_a_description_alone() -> None:
    def build(key: int) -> Any:
        return sym.MakeLoss(sym.Variable("data") * sym.Variable(f"weight_{key}"))

    found = layout(build(5), Described({"data": (4, 5)}, {}))
    with pytest.raises(BucketError, match="'weight_3' does not follow"):
        found.add(3, build(3), None)
    found.add(3, build(3), Inputs.of([("data", (4, 3), np.float64)], None))
    assert found.parameters == {"weight_5": ((4, 5), np.float32), "weight_3": ((4, 3), np.float64)}


def test_a_bucket_may_have_inputs_of_its_own() -> None:
    def build(count: int) -> Any:
        total = sum((sym.Variable(f"t{i}") for i in range(1, count)), sym.Variable("t0"))
        return sym.MakeLoss(sym.FullyConnected(total, num_hidden=2, name="fc"))

    found = layout(build(2), Described({"t0": (4, 5), "t1": (4, 5)}, {}))
    found.add(3, build(3), Inputs.of([(f"t{i}", (4, 5)) for i in range(3)], None))
    assert set(found.parameters) == {"fc_weight", "fc_bias"}


def test_a_bucket_that_contradicts_the_default_one() -> None:
    found = layout(mlp(hidden=8), Described({"data": (4, 6)}, {"softmax_label": (4,)}))
    with pytest.raises(ShapeError, match="fc1_weight"):
        found.add("other", mlp(hidden=9), None)


def test_a_gamma_is_ignored_only_if_every_bucket_ignores_it() -> None:
    def build(fixed: bool) -> Any:
        net = sym.BatchNorm(sym.FullyConnected(sym.Variable("data"), num_hidden=3, name="fc"), fix_gamma=fixed, name="bn")
        return sym.SoftmaxOutput(net, name="softmax")

    described = Described({"data": (4, 6)}, {"softmax_label": (4,)})
    for first, second, ignored in ((True, True, {"bn_gamma"}), (True, False, set()), (False, True, set())):
        found = layout(build(first), described)
        found.add("other", build(second), None)
        assert found.ignored == ignored


def test_nodes_are_compared_by_value() -> None:
    assert describe_nodes(None, sym.Activation(sym.Variable("x"), act_type="relu", name="a")) == {
        "node 'a'": "Activation(act_type='relu') of x"
    }
    assert list(describe_nodes((3, "b"), mlp()))[-1] == "node 'softmax' of bucket (3, 'b')"
