"""Values that are kept to the end of a run, and runs up to steps at which devices meet."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import arrayexec as ax
from arrayexec import sym
from arrayexec.executor import Arena, Binding, Executor
from arrayexec.plan import Keep


def network() -> Any:
    h = sym.Variable("data")
    for number in range(3):
        h = sym.Activation(sym.FullyConnected(h, num_hidden=6, name=f"fc{number}"), act_type="tanh", name=f"tanh{number}")
    return sym.LinearRegressionOutput(h, name="out")


def kept(keep: Keep) -> Executor:
    """The network after a step, with the same numbers."""
    plain = network().simple_bind(ax.cpu(), data=(5, 4))
    rng = np.random.default_rng(0)
    for array in plain.arg_dict.values():
        array[...] = rng.normal(size=array.shape)
    old = plain._binding
    gradients = {name: np.zeros_like(array) for name, array in old.gradients.items()}
    binding = Binding(old.inferred, old.placement, old.grad_req, old.arguments, gradients, old.aux, Arena(ax.cpu()), keep=keep)
    executor = Executor(binding)
    executor.forward(is_train=True)
    executor.backward()
    return executor


FORWARD = ("fc0_output", "tanh0_output", "fc2_output")
BACKWARD = ("d fc0_output", "d tanh1_output")


def test_scopes_keep_what_they_say() -> None:
    everything = kept(Keep("all"))
    for name in (*FORWARD, *BACKWARD):
        assert everything.value(name) is not None
    forward, nothing = kept(Keep("forward")), kept(Keep())
    for name in FORWARD:
        np.testing.assert_array_equal(forward.value(name), everything.value(name))
    assert nothing.value("fc0_output") is None
    assert forward.value("d fc0_output") is None
    named = kept(Keep(names=frozenset(["tanh1_output", "d fc0_output"])))
    for name in ("tanh1_output", "d fc0_output"):
        np.testing.assert_array_equal(named.value(name), everything.value(name))
    sizes = [executor.plan().arena_bytes for executor in (nothing, named, forward, everything)]
    assert sizes == sorted(sizes) and sizes[0] < sizes[2] < sizes[3]
    for executor in (forward, nothing, named):
        for name, gradient in everything.grad_dict.items():
            np.testing.assert_array_equal(executor.grad_dict[name], gradient)


def test_a_value_of_a_run_that_was_not_is_none() -> None:
    assert network().simple_bind(ax.cpu(), data=(5, 4)).value("fc0_output") is None


def joined() -> Any:
    h = sym._batch_moments(sym.Variable("data"), name="own")
    moments = sym._joined_moments(h, name="joined")
    return sym.MakeLoss(sym.sum(sym.square(sym._normalized(sym.Variable("data"), moments, name="bn")) * sym.Variable("weight")))


def test_devices_meet_where_they_must_and_equal_one() -> None:
    rng = np.random.default_rng(1)
    data = (rng.normal(size=(10, 3, 2)) + 30).astype(np.float32)
    weight = rng.normal(size=data.shape).astype(np.float32)
    net = joined()
    whole = net.simple_bind(ax.cpu(), data=data.shape, weight=data.shape)
    parts = [net.simple_bind(ax.cpu(i), data=data[rows].shape, weight=data[rows].shape) for i, rows in enumerate((slice(0, 3), slice(3, 10)))]
    rows = [slice(0, 10), slice(0, 3), slice(3, 10)]
    for executor, own in zip((whole, *parts), rows, strict=True):
        for name, value in (("data", data[own]), ("weight", weight[own]), ("bn_gamma", [1, 2, 3]), ("bn_beta", [3, 2, 1])):
            executor.arg_dict[name][...] = value
    whole.forward(is_train=True)
    whole.backward()
    for forward in (True, False):
        walks = [executor.stages(forward, heads=[None]) for executor in parts]
        seen = 0
        while (meetings := [next(walk, None) for walk in walks])[0] is not None:
            meetings[0].op.meet(meetings[0].kind, None, [meeting.arrays for meeting in meetings])
            seen += 1
        assert seen == 1
    found = np.concatenate([executor.grad_dict["data"] for executor in parts])
    wanted = whole.grad_dict["data"]
    assert np.abs(found - wanted).max() <= 1e-5 * np.abs(wanted).max()
    for executor in parts:
        for name, state in whole.aux_dict.items():
            np.testing.assert_allclose(executor.aux_dict[name], state, rtol=1e-6)
    np.testing.assert_allclose(whole.aux_dict["bn_moving_mean"], 0.1 * data.mean(axis=(0, 2)), rtol=1e-5)
    np.testing.assert_allclose(whole.aux_dict["bn_moving_var"], 0.1 * data.var(axis=(0, 2), ddof=1), rtol=1e-4)
    total = sum(executor.grad_dict["bn_gamma"] for executor in parts)
    np.testing.assert_allclose(total, whole.grad_dict["bn_gamma"], rtol=1e-5)


@pytest.mark.parametrize("level", [0.0, 1e4])
def test_joined_moments_far_from_zero(level: float) -> None:
    """Merging keeps what sums of squares would lose: at 1e4 those are off by more than the variance."""
    rng = np.random.default_rng(2)
    data = (rng.normal(size=(64, 5)) + level).astype(np.float32)
    meet = sym._joined_moments(sym._batch_moments(sym.Variable("data")))
    op = meet.heads[0][0].op
    parts: list[Any] = []
    for own in np.array_split(data, [5, 30]):
        apart = sym._batch_moments(sym.Variable("data")).eval(ctx=ax.cpu(), data=own)[0]
        parts.append({"data": apart, "out": np.zeros_like(apart)})
    op.meet("forward", None, parts)
    exact = data.astype(np.float64)
    for part in parts:
        np.testing.assert_allclose(part["out"][0], exact.mean(axis=0), rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(part["out"][1], exact.var(axis=0), rtol=1e-3 if level else 1e-5)  # means are float32
        assert part["out"][2].tolist() == [64] * 5
