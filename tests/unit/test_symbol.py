"""Symbols: names, attributes, indexing, composition, copies, arithmetic, and what is refused in which words."""

from __future__ import annotations

import copy
import inspect
import pickle
import threading
import time
from typing import Any

import numpy as np
import pytest

import arrayexec as ax
from arrayexec import errors, sym
from arrayexec.symbol.naming import NameManager, Prefix

Fully = sym.FullyConnected


def chain(data: Any = None) -> Any:
    """data → fc1 → relu1 → fc2"""
    out = Fully(sym.Variable("data") if data is None else data, num_hidden=4, name="fc1")
    out = sym.Activation(out, act_type="relu", name="relu1")
    return Fully(out, num_hidden=3, name="fc2")


CHAIN_ARGUMENTS = ["data", "fc1_weight", "fc1_bias", "fc2_weight", "fc2_bias"]

# --- lists and indexing -----------------------------------------------------------------------------------------------


def test_lists() -> None:
    net = chain()
    assert (net.name, len(net)) == ("fc2", 1)
    assert net.list_arguments() == net.list_inputs() == CHAIN_ARGUMENTS
    assert net.list_auxiliary_states() == []
    assert net.list_outputs() == ["fc2_output"]
    assert [output.name for output in net.get_internals()] == [
        "data", "fc1_weight", "fc1_bias", "fc1", "relu1", "fc2_weight", "fc2_bias", "fc2",
    ]  # fmt: skip
    children = net.get_children()
    assert children is not None
    assert children.list_outputs() == ["relu1_output", "fc2_weight", "fc2_bias"]
    assert sym.Variable("x").get_children() is None


def test_auxiliary_states_are_no_arguments_but_inputs() -> None:
    net = sym.BatchNorm(sym.Variable("data"), name="bn")
    assert net.list_arguments() == ["data", "bn_gamma", "bn_beta"]
    assert net.list_auxiliary_states() == ["bn_moving_mean", "bn_moving_var"]
    assert net.list_inputs() == ["data", "bn_gamma", "bn_beta", "bn_moving_mean", "bn_moving_var"]


def test_indexing() -> None:
    parts = sym.SliceChannel(sym.Variable("data"), num_outputs=3, name="s")
    assert parts[1].list_outputs() == parts["s_output1"].list_outputs() == ["s_output1"]
    assert parts[np.int64(2)].list_outputs() == ["s_output2"]
    assert parts[1:].list_outputs() == ["s_output1", "s_output2"]
    assert [part.list_outputs() for part in parts] == [["s_output0"], ["s_output1"], ["s_output2"]]
    assert chain().get_internals()["relu1_output"].list_arguments() == CHAIN_ARGUMENTS[:3]


@pytest.mark.parametrize(
    ("item", "error", "text"),
    [
        (3, IndexError, "<Symbol s> has outputs 0 to 2, not 3"),
        (-1, IndexError, "<Symbol s> has outputs 0 to 2, not -1"),
        (slice(3, None), IndexError, "<Symbol s>: the slice slice(3, None, None) takes none of its 3 outputs"),
        ("s_output5", ValueError, "<Symbol s> has no output 's_output5'; did you mean 's_output2' or 's_output1'?"),
        (1.0, TypeError, "<Symbol s> is indexed by output number, name or slice, not by float"),
        (True, TypeError, "<Symbol s> is indexed by output number, name or slice, not by bool"),
    ],
)
def test_index_refused(item: Any, error: type[Exception], text: str) -> None:
    parts = sym.SliceChannel(sym.Variable("data"), num_outputs=3, name="s")
    with pytest.raises(error) as caught:
        parts[item]
    assert str(caught.value) == text
    assert isinstance(caught.value, ax.ArrayExecError)


def test_ambiguous_name_is_refused() -> None:
    x = sym.Variable("x")
    with pytest.raises(errors.CompositionError, match=r"has 2 outputs named 'x' \(numbers \[0, 1\]\); take one by number"):
        sym.Group([x, x])["x"]


def test_group() -> None:
    net = chain()
    pair = sym.Group([net, net.get_internals()["relu1_output"]])
    assert (pair.name, repr(pair)) == (None, "<Symbol group [fc2, relu1]>")
    assert pair.list_outputs() == ["fc2_output", "relu1_output"]
    assert sym.Group([pair, net]).list_outputs() == ["fc2_output", "relu1_output", "fc2_output"]
    with pytest.raises(errors.CompositionError, match="Group needs at least one symbol"):
        sym.Group([])
    with pytest.raises(errors.CompositionError, match="Group takes symbols, but one is 3"):
        sym.Group([net, 3])  # type: ignore[list-item]


# --- names ------------------------------------------------------------------------------------------------------------


def test_counters_belong_to_the_called_name() -> None:
    x = sym.Variable("x")
    with NameManager():
        names = [Fully(x, num_hidden=1).name, Fully(x, num_hidden=1).name, (x + 1).name, (x + x).name, (2 - x).name]
        names += [sym.Concat(x, x).name, sym.concat(x, x).name, (-x).name, (x * 2).name, (2**x).name, (x >= x).name]
        with NameManager():
            names.append((x + 1).name)
        names.append((x + 1).name)
    assert names == [
        "fullyconnected0", "fullyconnected1", "_plusscalar0", "_plus0", "_rminusscalar0",
        "concat0", "concat1", "_mulscalar0", "_mulscalar1", "_rpower_scalar0", "_greater_equal0",
        "_plusscalar0", "_plusscalar1",
    ]  # fmt: skip


def test_prefix_goes_before_given_and_counted_names_of_operators() -> None:
    with Prefix("p_"):
        net = Fully(Fully(sym.Variable("x"), num_hidden=1), num_hidden=1, name="fc")
    assert net.list_arguments() == [
        "x", "p_fullyconnected0_weight", "p_fullyconnected0_bias", "p_fc_weight", "p_fc_bias",
    ]  # fmt: skip


def test_scopes_of_threads_are_their_own() -> None:
    seen: list[Any] = []

    def other() -> None:
        net = Fully(sym.Variable("x"), num_hidden=1)
        seen.extend([net.name, net.attr("mood")])

    with Prefix("p_"), ax.AttrScope(__mood__="x"):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert seen == ["fullyconnected0", None]


# --- attributes -------------------------------------------------------------------------------------------------------


def test_hidden_keys_read_under_both_spellings() -> None:
    x = sym.Variable("x", lr_mult=2.0, attr={"ctx_group": "a", "mood": "so"})
    assert x.attr("lr_mult") == x.attr("__lr_mult__") == "2.0"
    assert x.list_attr() == {
        "__lr_mult__": "2.0", "lr_mult": "2.0", "__ctx_group__": "a", "ctx_group": "a", "mood": "so",
    }  # fmt: skip
    assert x.attr("nope") is None
    x._set_attr(wd_mult="0.5")
    assert x.attr("__wd_mult__") == "0.5"


def test_operator_gives_its_attributes_to_the_variables_it_makes() -> None:
    with ax.AttrScope(ctx_group="a"):
        net = Fully(sym.Variable("x"), num_hidden=3, no_bias=True, name="f", lr_mult=2)
    own = {"num_hidden": "3", "no_bias": "True", "__ctx_group__": "a", "ctx_group": "a", "__lr_mult__": "2", "lr_mult": "2"}
    assert net.attr_dict() == {"x": {"__ctx_group__": "a", "ctx_group": "a"}, "f_weight": own, "f": own}


def test_inner_scope_wins_and_a_given_text_wins_over_both() -> None:
    with ax.AttrScope(__a__="1", __b__="1"), ax.AttrScope(__b__="2", __c__="2"):
        x = sym.Variable("x", attr={"__c__": "3"})
    assert x.list_attr() == {"__a__": "1", "__b__": "2", "__c__": "3"}
    assert sym.Variable("y").list_attr() == {}


def test_plain_key_around_an_operator_is_refused() -> None:
    with ax.AttrScope(mood="so"), pytest.raises(errors.AttributeValueError, match=r"look like __mood__\)$"):
        Fully(sym.Variable("x"), num_hidden=3)


def test_variable_texts() -> None:
    class Init:
        def dumps(self) -> str:
            return '["one", {}]'

    x = sym.Variable("x", shape=(0, 3), dtype=np.float16, init=Init(), wd_mult=0, __layout__="NC")
    assert x.list_attr() == {
        "__shape__": "(0, 3)", "__dtype__": "2", "__init__": '["one", {}]', "__wd_mult__": "0", "wd_mult": "0",
        "__layout__": "NC",
    }  # fmt: skip
    assert sym.Variable("x", dtype="uint16").attr("__dtype__") == "uint16"
    assert sym.Variable("x", shape=3).attr("__shape__") == "(3,)"
    by_position = sym.Variable("x", (2, 3), "float64", "zeros", 2.0, 0.5, {"__layout__": "NC"})
    assert by_position.list_attr() == {
        "__shape__": "(2, 3)", "__dtype__": "1", "__init__": "zeros", "__lr_mult__": "2.0", "__wd_mult__": "0.5",
        "__layout__": "NC", "lr_mult": "2.0", "wd_mult": "0.5",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: sym.Variable(3), "Variable: the name must be a text, but it is 3"),
        (lambda: sym.Variable("a", shap=(2,)), "Variable 'a' has no argument 'shap'; did you mean 'shape'?"),
        (lambda: sym.Variable("a", __x__=2), "Variable 'a': attribute '__x__' must be a text, but it is 2; write __x__='2'"),
        (lambda: sym.Variable("a", shape=(2, -1)), "Variable 'a': dims of 'shape' are whole numbers >= 0"),
        (lambda: sym.Variable("a", attr={"weight_lr_mult": "1"}), "Variable 'a': 'weight_lr_mult' is not an attribute"),
        (lambda: sym.Variable("a", shape="ab"), "Variable 'a': the shape of 'shape' must be a tuple, but it is 'ab'"),
        (lambda: sym.Variable("a", init=3), "Variable 'a': init must be an initialiser or its text, but it is 3"),
        (lambda: ax.AttrScope(lr_mult=2), "AttrScope: attribute 'lr_mult' must be a text, but it is 2; write lr_mult='2'"),
    ],
)
def test_variable_refused(call: Any, text: str) -> None:
    with pytest.raises(ValueError) as caught:
        call()
    assert str(caught.value).startswith(text)
    assert isinstance(caught.value, errors.ArgumentError)


def test_node_attribute_of_the_operator_is_fixed() -> None:
    net = Fully(sym.Variable("x"), num_hidden=3, name="f")
    with pytest.raises(errors.CompositionError, match="'num_hidden' is fixed since the operator was applied"):
        net._set_attr(num_hidden="4")
    with pytest.raises(errors.CompositionError, match=r"give that one Variable\(lr_mult=\)"):
        net._set_attr(weight_lr_mult="4")


# --- calls of operators -----------------------------------------------------------------------------------------------


def test_inputs_by_position_keyword_and_not_at_all() -> None:
    x, w = sym.Variable("x"), sym.Variable("w")
    assert Fully(x, w, num_hidden=2, name="f").list_arguments() == ["x", "w", "f_bias"]
    assert Fully(weight=w, data=x, num_hidden=2, name="f").list_arguments() == ["x", "w", "f_bias"]
    assert Fully(num_hidden=2, bias=None, name="f").list_arguments() == ["f_data", "f_weight", "f_bias"]
    assert sym.Concat([x, w], dim=0).attr("num_args") == "2"
    assert sym.Concat(x, num_args=2, name="c").list_arguments() == ["x", "c_arg1"]
    assert sym.transpose(x, (1, 0)).attr("axes") == "(1, 0)"  # an attribute by position


def test_attribute_texts_stay_as_given() -> None:
    x = sym.Variable("x")
    assert sym.Convolution(x, kernel="[3,3]", num_filter=np.int32(2)).list_attr() == {"kernel": "[3,3]", "num_filter": "2"}
    assert sym.Convolution(x, kernel=[3, 3], num_filter=2).attr("kernel") == "(3, 3)"
    assert sym.Convolution(x, kernel=np.array([3, 3]), num_filter=2).attr("kernel") == "(3, 3)"
    assert sym.Cast(x, dtype=np.float64).attr("dtype") == "float64"


def here(call: Any) -> str:
    return f"(test_symbol.py:{call.__code__.co_firstlineno})"


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (
            lambda: Fully(sym.Variable("x"), num_hiden=3, name="f"), errors.AttributeValueError,
            "FullyConnected 'f' {} has no attribute or input 'num_hiden'; did you mean 'num_hidden'? "
            "There are: num_hidden, no_bias, flatten, data, weight, bias",
        ),
        (
            lambda: Fully(sym.Variable("x"), num_hidden=3, mood="blue", name="f"), errors.AttributeValueError,
            "FullyConnected 'f' {} has no attribute or input 'mood'; there are: num_hidden, no_bias, flatten, data, weight, bias",
        ),
        (
            lambda: Fully(sym.Variable("x"), num_hidden=3, xp=4, name="f"), errors.AttributeValueError,
            "FullyConnected 'f' {} has no attribute or input 'xp'; there are: num_hidden, no_bias, flatten, data, weight, bias",
        ),
        (
            lambda: Fully(sym.Variable("x"), wieght=sym.Variable("w"), num_hidden=3, name="f"), errors.CompositionError,
            "FullyConnected 'f' {} has no input 'wieght'; did you mean 'weight'?",
        ),
        (
            lambda: Fully(sym.Variable("x"), data=sym.Variable("w"), num_hidden=3, name="f"), errors.CompositionError,
            "FullyConnected 'f' {}: input 'data' is given by position and by keyword",
        ),
        (
            lambda: Fully(*[sym.Variable("x")] * 4, num_hidden=3, name="f"), errors.CompositionError,
            "FullyConnected 'f' {} was given 4 inputs, but it takes 3: data, weight, bias",
        ),
        (
            lambda: Fully(sym.Variable("x"), num_hidden=3, weight_lr_mult=2, name="f"), errors.AttributeValueError,
            "FullyConnected 'f' {}: 'weight_lr_mult' would belong to the input 'weight'; "
            "make that one yourself: weight=Variable('…_weight', lr_mult=2)",
        ),
        (
            lambda: Fully(sym.Variable("x"), name="f"), errors.AttributeValueError,
            "FullyConnected 'f' {} needs the attribute 'num_hidden' (a whole number)",
        ),
        (
            lambda: sym.Activation(sym.Variable("x"), act_type="rel", name="f"), errors.AttributeValueError,
            "Activation 'f' {}: attribute 'act_type' must be one of relu, sigmoid, tanh, softrelu, softsign, "
            "log_sigmoid, mish, but it is 'rel'; did you mean 'relu'?",
        ),
    ],
)  # fmt: skip
def test_call_refused(call: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value) == text.format(here(call))


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda x: Fully(x, num_hidden=3, name=4), "FullyConnected: name must be a text, but it is 4"),
        (
            lambda x: Fully(x, 3, False, True, 4),
            "FullyConnected was given 4 values after its symbols, but its attributes are ['num_hidden', 'no_bias', 'flatten']",
        ),
        (lambda x: Fully(x, 3, x), "FullyConnected: symbols come before attributes, but <Symbol x> follows one"),
        (lambda x: Fully(x, 3, num_hidden=3), "FullyConnected: attribute 'num_hidden' is given by position and by keyword"),
    ],
)
def test_positions_refused(call: Any, text: str) -> None:
    with pytest.raises(TypeError) as caught:
        call(sym.Variable("x"))
    assert str(caught.value) == text


def test_functions_without_inputs() -> None:
    with NameManager():
        made = [sym.zeros((0, 3)), sym.ones(4, dtype="int32"), sym.full((2,), 3.5), sym.arange(2, 8, 2.0, name="count")]
    assert [symbol.name for symbol in made] == ["_zeros0", "_ones0", "_full0", "count"]
    assert [symbol.list_arguments() for symbol in made] == [[]] * 4
    assert [symbol.infer_shape_partial()[1] for symbol in made] == [[(0, 3)], [(4,)], [(2,)], [(3,)]]
    assert made[1].infer_type() == ([], [np.int32], [])
    assert (sym.maximum(2, 3), sym.minimum(2, 3), sym.hypot(3.0, 4.0), sym.power(2, 5)) == (3, 2, 5.0, 32)


def test_functions_for_operators_that_are_spelled_otherwise() -> None:
    assert sym.linspace(0, 3, 4).eval()[0].tolist() == [0, 1, 2, 3]
    assert sym.linspace(0, 3, 3, endpoint=False, dtype="int32").eval()[0].tolist() == [0, 1, 2]
    assert sym.eye(2, 3, 1).eval()[0].tolist() == [[0, 1, 0], [0, 0, 1]]
    data = np.arange(12, dtype=np.float32).reshape(6, 2)
    for cuts in (3, (2, 4)):
        parts = sym.split_v2(sym.Variable("x"), cuts, name="s")
        assert parts.list_outputs() == ["s_output0", "s_output1", "s_output2"]
        found = parts.eval(x=data)
        assert [part.tolist() for part in found] == [part.tolist() for part in np.split(data, cuts)]
    assert sym.split_v2(sym.Variable("x"), 6, squeeze_axis=True)[5].eval(x=data)[0].tolist() == [10, 11]


def test_free_attributes_go_to_the_file_and_back() -> None:
    net = sym.Custom(data=sym.Variable("x"), op_type="arrayexec.Scale", factor=3, name="c", lr_mult="2")
    assert net.list_attr() == {"op_type": "arrayexec.Scale", "factor": "3", "__lr_mult__": "2", "lr_mult": "2"}
    again = sym.load_json(net.tojson())
    assert again.tojson() == net.tojson()
    assert again.eval(x=np.ones((1, 2), "float32"))[0].tolist() == [[3.0, 3.0]]


def test_several_outputs_are_no_input() -> None:
    parts = sym.SliceChannel(sym.Variable("x"), num_outputs=2, name="s")
    with pytest.raises(errors.CompositionError, match=r"input 0 must be one value, but <Symbol s> has 2 outputs; take one"):
        Fully(parts, num_hidden=1)
    with pytest.raises(errors.CompositionError, match=r"_plus_scalar takes one value, but <Symbol s> has 2 outputs"):
        _ = parts + 1


def test_unknown_operator_names_near_ones() -> None:
    with pytest.raises(AttributeError, match="there is no operator 'FullyConected'; did you mean 'FullyConnected'"):
        _ = sym.FullyConected
    assert not hasattr(sym, "nope")


def test_functions_carry_documentation() -> None:
    parameters = inspect.signature(Fully).parameters
    assert parameters["num_hidden"].default is inspect.Parameter.empty
    assert parameters["no_bias"].default is False
    assert "weight" in (Fully.__doc__ or "")
    assert Fully is sym.FullyConnected
    assert {"FullyConnected", "elemwise_add", "Variable", "zeros"} <= set(dir(sym))


def test_nodes_remember_where_they_were_made() -> None:
    line = inspect.currentframe().f_lineno + 1  # type: ignore[union-attr]
    net = sym.Variable("x") + 1
    sources = [node.source for node in net.graph.nodes]
    assert sources == [(__file__, line)] * 2


# --- composition ------------------------------------------------------------------------------------------------------


def test_composition_replaces_variables_in_a_copy() -> None:
    net = chain()
    before = net.tojson()
    inner = Fully(sym.Variable("z"), num_hidden=5, name="inner")
    by_keyword = net(data=inner, name="head")
    assert by_keyword.list_arguments() == ["z", "inner_weight", "inner_bias", *CHAIN_ARGUMENTS[1:]]
    assert by_keyword.list_outputs() == ["head_output"]
    assert net(inner).list_arguments() == by_keyword.list_arguments()
    by_keyword._set_attr(mood="new")
    assert net.tojson() == before
    assert sym.Variable("v")(v=inner).list_outputs() == ["inner_output"]


def test_composition_refused() -> None:
    net = chain()
    with pytest.raises(errors.UnknownNameError, match="has no argument 'dta'; did you mean 'data'"):
        net(dta=net)
    with pytest.raises(TypeError, match="by position or by keyword, not both"):
        net(net, data=net)
    with pytest.raises(errors.CompositionError, match="'data' must be a symbol with one output, but it is 3"):
        net(data=3)
    with pytest.raises(TypeError, match="was given 6 values, but <Symbol fc2> has 5 arguments"):
        net(*[net] * 6)
    with pytest.raises(errors.CompositionError, match="renames the operator at the head, but this has none"):
        sym.Group([net, net.get_internals()[3]])(name="x")


def test_one_name_is_one_argument() -> None:
    total = sym.Variable("w", shape=(2, 3)) + sym.Variable("w")
    assert total.list_arguments() == ["w"]
    assert total.infer_shape() == ([(2, 3)], [(2, 3)], [])
    clash = sym.Variable("w", shape=(2, 3)) + sym.Variable("w", shape=(3, 2))
    with pytest.raises(errors.CompositionError, match=r"two variables are named 'w' but disagree in shape: .*test_symbol.py"):
        clash.list_arguments()


def test_copies() -> None:
    net = chain(sym.BatchNorm(sym.Variable("data"), name="bn"))
    for twin in (copy.copy(net), copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert twin.tojson() == net.tojson()
        twin.get_internals()["data"]._set_attr(mood="new")
        twin._set_attr(mood="new")
    assert net.attr("mood") is None
    assert net.get_internals()["data"].attr("mood") is None


# --- arithmetic -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "operator"),
    [
        (lambda a, b: a + b, "elemwise_add"), (lambda a, b: a - b, "elemwise_sub"), (lambda a, b: a * b, "elemwise_mul"),
        (lambda a, b: a / b, "elemwise_div"), (lambda a, b: a % b, "_mod"), (lambda a, b: a**b, "_power"),
        (lambda a, b: a == b, "_equal"), (lambda a, b: a != b, "_not_equal"), (lambda a, b: a < b, "_lesser"),
        (lambda a, b: a <= b, "_lesser_equal"), (lambda a, b: a > b, "_greater"), (lambda a, b: a >= b, "_greater_equal"),
        (lambda a, b: a + 2, "_plus_scalar"), (lambda a, b: 2 + a, "_plus_scalar"), (lambda a, b: 2 - a, "_rminus_scalar"),
        (lambda a, b: a - 2, "_minus_scalar"), (lambda a, b: 2 * a, "_mul_scalar"), (lambda a, b: a / 2, "_div_scalar"),
        (lambda a, b: 2 / a, "_rdiv_scalar"), (lambda a, b: 2 % a, "_rmod_scalar"), (lambda a, b: 2**a, "_rpower_scalar"),
        (lambda a, b: a**2, "_power_scalar"), (lambda a, b: np.float32(2) < a, "_greater_scalar"), (lambda a, b: a == 2, "_equal_scalar"),
        (lambda a, b: np.float32(2) * a, "_mul_scalar"), (lambda a, b: np.int64(2) - a, "_rminus_scalar"),
        (lambda a, b: abs(a), "abs"), (lambda a, b: sym.maximum(a, b), "_maximum"),
        (lambda a, b: sym.minimum(2, a), "_minimum_scalar"), (lambda a, b: sym.pow(2, a), "_rpower_scalar"),
    ],
)  # fmt: skip
def test_arithmetic_makes_operator_nodes(call: Any, operator: str) -> None:
    made = call(sym.Variable("a"), sym.Variable("b"))
    node = made.heads[0][0]
    assert node.op.form.name == operator
    if operator.endswith("_scalar"):
        assert float(node.attributes["scalar"]) == 2.0


def test_scalar_texts() -> None:
    a = sym.Variable("a")
    assert (a + 1).attr("scalar") == "1"
    assert (a * 1e-05).attr("scalar") == "1e-05"
    assert (-a).attr("scalar") == "-1.0"
    assert (a + True).attr("scalar") == "1"


def test_what_is_no_number_is_refused() -> None:
    a = sym.Variable("a")
    with pytest.raises(TypeError, match="goes together with symbols and numbers, not with str"):
        a + "1"
    with pytest.raises(TypeError, match="not with ndarray; make it a Variable and hand the array to bind"):
        np.ones(3) + a
    with pytest.raises(TypeError, match="not with NoneType"):
        a == None  # noqa: B015, E711
    with pytest.raises(TypeError, match="so it is neither true nor false"):
        bool(a == a)
    with pytest.raises(TypeError, match="neither true nor false"):
        assert a in [sym.Variable("b")]


# --- size -------------------------------------------------------------------------------------------------------------


def test_ten_thousand_nodes_in_a_row() -> None:
    started = time.perf_counter()
    out = sym.Variable("x")
    for _ in range(10_000):
        out = out + 1
    built = time.perf_counter() - started
    assert len(out.graph.nodes) == 10_001
    assert out.infer_shape(x=(2, 3)) == ([(2, 3)], [(2, 3)], [])
    assert out.infer_type(x="float64")[1] == [np.float64]
    twin = copy.deepcopy(pickle.loads(pickle.dumps(out(x=sym.Variable("y")))))
    assert twin.list_arguments() == ["y"]
    assert len(out.get_internals()) == 10_001
    assert out.summary(x=(2, 3)).count("\n") > 10_000
    assert time.perf_counter() - started < 10  # seconds; about 1 on an idle machine
    assert built < 3


# --- execution is the executor's --------------------------------------------------------------------------------------


def test_binding_hands_over_to_the_executor() -> None:
    x = np.array([[1.0, 2.0, 3.0]], dtype="float32")
    net = sym.Variable("x") * 2 + 1
    assert [output.tolist() for output in net.eval(x=x)] == [[[3.0, 5.0, 7.0]]]
    assert net.bind(ax.cpu(), {"x": x}).forward()[0].tolist() == [[3.0, 5.0, 7.0]]
    assert net.simple_bind(ax.cpu(), x=(1, 3)).forward(x=x)[0].tolist() == [[3.0, 5.0, 7.0]]
    norm = sym.BatchNorm(sym.Variable("x"), name="bn", eps=0.0, fix_gamma=False)
    state = {name: np.full(3, value, "float32") for name, value in (("gamma", 2), ("beta", 1), ("moving_mean", 1), ("moving_var", 4))}
    assert norm.eval(x=x, **{f"bn_{name}": array for name, array in state.items()})[0].tolist() == [[1.0, 2.0, 3.0]]
    with pytest.raises(errors.UnknownNameError, match=r"eval: <Symbol .*> has no argument 'y'"):
        net.eval(x=x, y=x)



def test_public_face() -> None:
    assert ax.sym is sym
    assert ax.symbol is sym
    assert ax.name.NameManager is NameManager
    assert ax.ShapeError is errors.ShapeError
    with pytest.raises(AttributeError, match="'arrayexec' has no attribute 'Symbl'; did you mean 'Symbol'"):
        _ = ax.Symbl
    assert {"sym", "AttrScope", "cpu", "io", "register_op"} <= set(dir(ax))
