"""Operators, networks and refused binds, as recorded from MXNet 1.9.1."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from arrayexec import errors
from arrayexec.testing import NaiveRun
from tests.conformance import golden

# What an MLP, LeNet, ResNet v1, an autoencoder, matrix factorisation and unrolled LSTM/GRU need: always there.
_NAMES = """
FullyConnected Convolution Pooling BatchNorm Activation LeakyReLU Dropout Flatten Reshape Concat SliceChannel
Embedding SoftmaxOutput LinearRegressionOutput LogisticRegressionOutput MAERegressionOutput MakeLoss BlockGrad
softmax log_softmax dot batch_dot transpose expand_dims SwapAxis slice_axis sum mean max min pick one_hot clip Cast
_copy add_n Custom _zeros _ones zeros_like ones_like
elemwise_add elemwise_sub elemwise_mul elemwise_div _power _maximum _minimum _mod _hypot
_plus_scalar _minus_scalar _rminus_scalar _mul_scalar _div_scalar _rdiv_scalar _power_scalar _rpower_scalar
_mod_scalar _rmod_scalar _maximum_scalar _minimum_scalar _hypot_scalar
_equal _not_equal _greater _greater_equal _lesser _lesser_equal _logical_and _logical_or _logical_xor
_equal_scalar _not_equal_scalar _greater_scalar _greater_equal_scalar _lesser_scalar _lesser_equal_scalar
broadcast_add broadcast_sub broadcast_mul broadcast_div broadcast_mod broadcast_power broadcast_maximum
broadcast_minimum broadcast_hypot broadcast_equal broadcast_not_equal broadcast_greater broadcast_greater_equal
broadcast_lesser broadcast_lesser_equal broadcast_logical_and broadcast_logical_or broadcast_logical_xor
broadcast_to broadcast_axis broadcast_like
abs sign round rint ceil floor trunc fix exp log log2 log10 log1p expm1 sqrt rsqrt cbrt rcbrt square reciprocal
sin cos tan arcsin arccos arctan sinh cosh tanh arcsinh arccosh arctanh degrees radians sigmoid relu softsign
hard_sigmoid erf negative logical_not
"""
REQUIRED = set(_NAMES.split())

_LISTED = golden.DATA.parent / "differences.json"
DIFFERENT = json.loads(_LISTED.read_text()) if _LISTED.exists() else {"smo_outgrad": "D8"}
CASES = golden.cases("operator", "network")
WAITING = [case for case in CASES if golden.missing(case)]
READY = [case for case in CASES if case not in WAITING]


def plain(case: golden.Case, is_train: bool) -> NaiveRun:
    args, aux = golden.inputs(case)
    return NaiveRun(golden.load_symbol(case), args, aux, is_train)


def check(case: golden.Case, run: Any) -> None:
    """Forward and backward of one bound graph against what was recorded; arguments stay as they are."""
    before = {name: array.copy() for name, array in run.args.items()}
    for got, key, name in zip(run.forward(), case["outputs"], case["output_names"], strict=True):
        golden.assert_close(case, name, got, golden.array(case, key))
    if case["backward"]:
        heads = case["out_grads"] and [golden.array(case, key) for key in case["out_grads"]]
        given = golden.arrays(case, "grad_init")
        gradients = run.backward(heads, case["grad_req"], given)
        for name, want in golden.arrays(case, "arg_grads").items():
            golden.assert_close(case, f"gradient of {name}", gradients[name], want)
        for name in case["grads_untouched"]:
            assert not gradients[name].any(), f"gradient of {name} is no zero"
    for name, want in golden.arrays(case, "aux_after_backward").items():
        golden.assert_close(case, f"{name} afterwards", run.aux[name], want)
    for name, array in before.items():
        np.testing.assert_array_equal(run.args[name], array, err_msg=f"{name} was written")


@pytest.mark.parametrize("case", READY, ids=lambda case: case["name"])
def test_naive(case: golden.Case) -> None:
    if case["name"] in DIFFERENT:
        with pytest.raises(AssertionError):
            check(case, plain(case, case["is_train"]))
        return
    check(case, plain(case, case["is_train"]))
    if "eval_outputs" in case:
        outputs = plain(case, False).forward()
        for got, key, name in zip(outputs, case["eval_outputs"], case["output_names"], strict=True):
            golden.assert_close(case, f"{name} in evaluation", got, golden.array(case, key))


@pytest.mark.parametrize("case", golden.cases("bind_error"), ids=lambda case: case["name"])
def test_refused(case: golden.Case) -> None:
    args, aux = golden.inputs(case)
    expected = {
        "bind_missing_arg": errors.UnknownNameError,
        "bind_wrong_shape": errors.ShapeError,
        "bind_nonscalar_head_no_outgrad": errors.BindError,
    }
    with pytest.raises(expected[case["name"]]):
        run = NaiveRun(golden.load_symbol(case), args, aux)
        run.forward()
        run.backward(None, case["grad_req"])


def test_required_operators_are_there() -> None:
    assert sorted(name for name in REQUIRED if not golden.there(name)) == []


def test_only_later_operators_are_waited_for() -> None:
    for case in WAITING:
        assert golden.missing(case).isdisjoint(REQUIRED), case["name"]
    assert len(READY) + len(WAITING) == len(CASES) == 355
