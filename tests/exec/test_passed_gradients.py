"""Gradients that are another's as they are: handed on without a copy, summed without touching what others read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import arrayexec as ax
from arrayexec import sym
from arrayexec.testing.naive import NaiveRun
from arrayexec.testing.planned import run_planned


def residual() -> Any:
    """Both summands get a second contribution after the sum's gradient went to them."""
    a = sym.tanh(sym.Variable("x"))
    b = sym.sin(sym.Variable("y"))
    return sym.exp(a) * (a + b) + sym.Reshape(sym.Reshape(b, shape=(3, 4)), shape=(4, 3))


def twice() -> Any:
    """One value on both sides of a sum and of a difference, straight from arguments."""
    x, y = sym.Variable("x"), sym.Variable("y")
    return (x + x) - (y - y) + sym.add_n(x, y, x, sym.tanh(y), num_args=4)


def chain() -> Any:
    """Sums in a row: one gradient reaches every argument."""
    x, y = sym.Variable("x"), sym.Variable("y")
    net = x
    for _ in range(5):
        net = sym.sin(net + y + 1.0 - 2.0) + net
    return net


@pytest.mark.parametrize("build", [residual, twice, chain])
@pytest.mark.parametrize("wants", [("write", "write"), ("add", "write"), ("null", "add")])
def test_planned_is_plain(build: Any, wants: tuple[str, str]) -> None:
    random = np.random.default_rng(5)
    args = {name: random.uniform(-1, 1, (4, 3)).astype("f") for name in "xy"}
    head = [random.uniform(-1, 1, (4, 3)).astype("f")]
    requests = dict(zip("xy", wants, strict=True))
    given = {name: np.full((4, 3), 0.5, "f") for name in "xy"}
    run = NaiveRun(build(), args)
    run.forward(True)
    want = run.backward(head, requests, {name: array.copy() for name, array in given.items()})
    got = run_planned(build(), args, {}, True, head, requests, {name: array.copy() for name, array in given.items()})
    assert set(got.gradients) == set(want)
    for name, gradient in want.items():
        np.testing.assert_array_equal(got.gradients[name], gradient, err_msg=name)


def test_a_sum_runs_no_backward_and_copies_nothing() -> None:
    net = sym.tanh(sym.Variable("x")) + sym.tanh(sym.Variable("y"))
    plan = net.simple_bind(ax.cpu(), x=(4, 3), y=(4, 3)).plan()
    assert [(s.kind, s.op.form.name) for s in plan.steps if s.phase == "backward"] == [("backward", "tanh")] * 2
