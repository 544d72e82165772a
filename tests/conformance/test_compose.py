"""Graphs made by calls: what MXNet 1.9.1 refuses is refused, and the same program gives the same file to the byte."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from arrayexec import AttrScope, errors, sym
from arrayexec.symbol.naming import NameManager, Prefix
from tests.conformance import golden

CASES = {case["name"]: case for case in golden.cases("compose_error")}
FILES = {case["name"]: case for case in golden.cases("listing")}


def mlp() -> Any:
    out = sym.Variable("data")
    for number, hidden in enumerate((16, 8), 1):
        out = sym.FullyConnected(out, num_hidden=hidden, name=f"fc{number}")
        out = sym.Activation(out, act_type="relu", name=f"relu{number}")
    return sym.SoftmaxOutput(sym.FullyConnected(out, num_hidden=4, name="fc3"), name="softmax")


def data() -> Any:
    return sym.Variable("data")


REFUSED: dict[str, tuple[Callable[[], Any], type[Exception]]] = {
    "compose_attr_weight_lr_mult": (
        lambda: sym.FullyConnected(data(), num_hidden=2, attr={"weight_lr_mult": "3"}),
        errors.AttributeValueError,
    ),
    "compose_unknown_param": (lambda: sym.FullyConnected(data(), num_hidden=2, foo=3), errors.AttributeValueError),
    "compose_missing_required": (lambda: sym.FullyConnected(data()), errors.AttributeValueError),
    "compose_bad_enum": (lambda: sym.Activation(data(), act_type="nope"), errors.AttributeValueError),
    "compose_bad_tuple": (lambda: sym.Convolution(data(), num_filter=2, kernel="abc"), errors.AttributeValueError),
    "compose_concat_no_input": (lambda: sym.Concat(), errors.CompositionError),
    "compose_attr_no_dunder": (lambda: sym.Variable("a", foo=1), errors.ArgumentError),
    "compose_internals_missing": (lambda: mlp().get_internals()["nope_output"], errors.UnknownNameError),
    "compose_index_oob": (lambda: sym.SliceChannel(data(), num_outputs=2)[2], errors.OutputIndexError),
}


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_refused(name: str) -> None:
    assert CASES[name]["expect"]["result"] == "error"
    call, error = REFUSED[name]
    with pytest.raises(error):
        call()


def test_hidden_key_is_taken() -> None:
    expect = CASES["compose_attr_dunder"]["expect"]
    made = sym.Variable("a", __foo__="1")
    assert (expect["result"], expect["outputs"], expect["arguments"]) == (
        "ok", made.list_outputs(), made.list_arguments(),
    )  # fmt: skip


def test_all_cases_are_here() -> None:
    assert {*REFUSED, "compose_attr_dunder"} == set(CASES)


# --- the programs behind recorded files -------------------------------------------------------------------------------


def auto_names() -> Any:
    out = sym.FullyConnected(sym.FullyConnected(data(), num_hidden=2), num_hidden=3)
    return sym.exp(sym.Activation(out, act_type="relu")) + 1


def attr_scope() -> Any:
    with AttrScope(ctx_group="dev1", lr_mult="0.1"):
        a = sym.Variable("a")
        f = sym.FullyConnected(a, num_hidden=3, name="f")
    with AttrScope(__mood__="no", ctx_group="dev1"), AttrScope(ctx_group="dev2", __mood__="so", __weight_lr_mult__="3"):
        return sym.FullyConnected(f, num_hidden=2, name="g")


def name_prefix() -> Any:
    with Prefix("net_"):
        return sym.FullyConnected(sym.FullyConnected(data(), num_hidden=2), num_hidden=3, name="out")


def compose() -> Any:
    first = sym.FullyConnected(sym.Variable("x"), num_hidden=3, name="a")
    second = sym.FullyConnected(data(), num_hidden=4, name="b")
    return first(x=second, name="comp")


def group_order() -> Any:
    x = data()
    return sym.Group(
        [sym.FullyConnected(x, num_hidden=2, name="z"), sym.FullyConnected(x, num_hidden=3, name="b")]
    )


PROGRAMS: dict[str, Callable[[], Any]] = {
    "list_mlp": mlp,
    "list_auto_names": auto_names,
    "list_multi_out": lambda: sym.SliceChannel(data(), num_outputs=3, name="sl"),
    "list_multi_out_index": lambda: sym.SliceChannel(data(), num_outputs=3, name="sl")[1],
    "list_group_order": group_order,
    "list_bn_hidden_outputs": lambda: sym.BatchNorm(data(), name="bn"),
    "list_bn_mean_var": lambda: sym.BatchNorm(data(), output_mean_var=True, name="bn"),
    "list_var_only": lambda: sym.Variable(
        "x", shape=(2, 3), lr_mult=2.0, wd_mult=0.5, dtype="float32", init='["constant", {"value": 3}]'
    ),
    "list_internal_slice": lambda: mlp().get_internals()["fc1_output"],
    "list_attr_scope": attr_scope,
    "list_attr_explicit": lambda: sym.Convolution(
        data(), kernel=(1, 1), num_filter=2, name="c", attr={"__mood__": "x", "lr_mult": "1"}
    ),
    "list_name_prefix": name_prefix,
    "list_compose": compose,
    "list_duplicate_arg_names": lambda: sym.Variable("w") * sym.Variable("w"),
    "list_optional_bias": lambda: sym.FullyConnected(data(), num_hidden=3, no_bias=True, name="f"),
    "list_softmax_auto_label": lambda: sym.SoftmaxOutput(data()),
    "list_prelu": lambda: sym.LeakyReLU(data(), act_type="prelu", name="pr"),
    "list_children": lambda: sym.FullyConnected(
        sym.FullyConnected(data(), num_hidden=2, name="f1"), num_hidden=3, name="f2"
    ).get_children(),
}


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_program_gives_the_recorded_file(name: str) -> None:
    with NameManager():
        assert PROGRAMS[name]().tojson() == golden.symbol_text(FILES[name])
