"""Parameters of a fused RNN joined to one vector: sizes that only the data say."""

from __future__ import annotations

import numpy as np
import pytest

from arrayexec import sym
from arrayexec.dims import UNKNOWN
from arrayexec.errors import ShapeError
from tests.ops.runs import run, shapes_of, uniform


def test_input_weights_follow_from_the_whole() -> None:
    hidden, features = 3, 5
    parts = [
        sym.Reshape(sym.Variable(f"{side}_{what}", shape=shape), shape=(-1,))
        for what, shape in (("i2h", (4 * hidden, 0)), ("h2h", (4 * hidden, hidden)), ("bias", (8 * hidden,)))
        for side in "lr"
    ]
    joined = sym._rnn_param_concat(*parts, dim=0, num_args=len(parts), name="joined")
    whole = 2 * (4 * hidden * (features + hidden) + 8 * hidden)
    total = joined + sym.Variable("other", shape=(whole,))
    arguments, outputs, _ = total.infer_shape()
    found = dict(zip(total.list_arguments(), arguments, strict=True))
    assert found["l_i2h"] == found["r_i2h"] == (4 * hidden, features)
    assert outputs == [(whole,)]


def test_it_is_a_concat() -> None:
    parts = {f"arg{i}": uniform((i + 1,), i) for i in range(3)}
    head = uniform((6,), 9)
    found = run("_rnn_param_concat", parts, [head], num_args=3, dim=0)
    np.testing.assert_array_equal(found.out, np.concatenate(list(parts.values())))
    np.testing.assert_array_equal(found.gradients["arg2"], head[3:])
    shapes = shapes_of("_rnn_param_concat", {"arg0": (4,), "arg1": (UNKNOWN,)}, num_args=2, dim=0)
    assert repr(shapes["node_output"]) == "(?,)"


def test_what_cannot_be_shared_is_refused() -> None:
    parts = [sym.Variable(name) for name in "abc"]
    joined = sym._rnn_param_concat(*parts, dim=0, num_args=3, name="joined") + sym.Variable("d")
    text = r"_rnn_param_concat 'joined'.*: out 'joined_output' must leave 2 equal parts in dim 0, but it is \(9,\)"
    with pytest.raises(ShapeError, match=text):
        joined.infer_shape(a=(4,), b=(0,), c=(0,), d=(9,))
