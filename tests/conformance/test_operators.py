"""Operators, networks and refused binds, as recorded from MXNet 1.9.1."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from arrayexec import errors
from arrayexec.registry import find_op
from arrayexec.testing import NaiveRun, run_planned
from arrayexec.testing.bodies import unequal
from arrayexec.testing.trial import Outcome
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

DIFFERENT = json.loads((golden.DATA.parent / "differences.json").read_text())
CASES = golden.cases("operator", "network")
WAITING = [case for case in CASES if golden.missing(case)]
READY = [case for case in CASES if case not in WAITING]


Run = Callable[..., Outcome]


def plain(symbol: Any, args: Any, aux: Any, is_train: bool, heads: Any, wants: Any, gradients: Any) -> Outcome:
    """Forward and, if something is wanted, backward through the naive interpreter."""
    run = NaiveRun(symbol, args, aux, is_train)
    return Outcome(run.forward(), [], run.backward(heads, wants, gradients), run.aux)


def check(case: golden.Case, run: Run) -> Outcome:
    """Forward and backward against what was recorded; arguments stay as they are."""
    (args, aux), heads = golden.inputs(case), case["out_grads"]
    before = {name: array.copy() for name, array in args.items()}
    heads = heads and [golden.array(case, key) for key in heads]
    wants = case["grad_req"] if case["backward"] else {}
    gradients = golden.arrays(case, "grad_init")
    found = run(golden.load_symbol(case), args, aux, case["is_train"], heads, wants, gradients)
    check_outputs(case, found, "outputs")
    if case["backward"]:
        for name, want in golden.arrays(case, "arg_grads").items():
            golden.assert_close(case, f"gradient of {name}", found.gradients[name], want)
        for name in case["grads_untouched"]:
            assert not found.gradients[name].any(), f"gradient of {name} is no zero"
    for name, want in golden.arrays(case, "aux_after_backward").items():
        golden.assert_close(case, f"{name} afterwards", found.aux[name], want)
    for name, array in before.items():
        np.testing.assert_array_equal(args[name], array, err_msg=f"{name} was written")
    if "eval_outputs" in case:
        check_outputs(case, run(golden.load_symbol(case), args, aux, False, None, {}, {}), "eval_outputs")
    return found


def check_outputs(case: golden.Case, found: Outcome, field: str) -> None:
    for got, key, name in zip(found.outputs, case[field], case["output_names"], strict=True):
        golden.assert_close(case, f"{name} in {field}", got, golden.array(case, key))


@pytest.mark.parametrize("case", READY, ids=lambda case: case["name"])
def test_recorded(case: golden.Case) -> None:
    if case["name"] in DIFFERENT:
        for run in (plain, run_planned):
            with pytest.raises(AssertionError):
                check(case, run)
    else:
        naive, planned = check(case, plain), check(case, run_planned)
        assert unequal(planned.named(), naive.named()) == "", "the planned executor is not the naive run to the bit"


@pytest.mark.parametrize("case", golden.cases("bind_error"), ids=lambda case: case["name"])
@pytest.mark.parametrize("run", [plain, run_planned])
def test_refused(case: golden.Case, run: Run) -> None:
    args, aux = golden.inputs(case)
    expected = {
        "bind_missing_arg": errors.BindError,
        "bind_wrong_shape": errors.ShapeError,
        "bind_nonscalar_head_no_outgrad": errors.BindError,
    }
    with pytest.raises(expected[case["name"]]):
        run(golden.load_symbol(case), args, aux, True, None, case["grad_req"], {})


def test_required_operators_are_there() -> None:
    assert sorted(name for name in REQUIRED if find_op(name) is None) == []


def test_only_later_operators_are_waited_for() -> None:
    for case in WAITING:
        assert golden.missing(case).isdisjoint(REQUIRED), case["name"]
    assert len(READY) + len(WAITING) == len(CASES) == 355
