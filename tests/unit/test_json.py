"""The JSON reader on files that are old, odd or damaged, and the writer on names that need care."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from arrayexec import errors, sym
from arrayexec.symbol.json_format import MAX_PORTS

DATA = Path(__file__).parents[1] / "conformance" / "mxnet" / "symbols"


def document(**changes: Any) -> dict[str, Any]:
    """A fully connected layer as MXNet 1.0 writes it."""
    whole = {
        "nodes": [
            {"op": "null", "name": "data", "inputs": []},
            {"op": "null", "name": "f_weight", "attrs": {"num_hidden": "3"}, "inputs": []},
            {"op": "null", "name": "f_bias", "attrs": {"num_hidden": "3"}, "inputs": []},
            {"op": "FullyConnected", "name": "f", "attrs": {"num_hidden": "3"}, "inputs": [[0, 0, 0], [1, 0, 0], [2, 0, 0]]},
        ],
        "arg_nodes": [0, 1, 2],
        "node_row_ptr": [0, 1, 2, 3, 4],
        "heads": [[3, 0, 0]],
        "attrs": {"mxnet_version": ["int", 10000]},
    }
    return {**whole, **changes}


def node(**changes: Any) -> dict[str, Any]:
    """The document with its layer changed."""
    whole = document()
    whole["nodes"][3].update(changes)
    return whole


def load(whole: Any) -> Any:
    return sym.load_json(json.dumps(whole))


def test_round_trip_of_odd_texts() -> None:
    net = sym.Variable('a "quoted"\\ name\twith\nlines\r', attr={"mood": "größer"}) + 1
    text = net.tojson()
    assert json.loads(text)["nodes"][0]["name"] == 'a "quoted"\\ name\twith\nlines\r'
    assert sym.load_json(text).tojson() == text
    assert sym.load_json(text.encode()).tojson() == text


def test_files(tmp_path: Path) -> None:
    net = load(document())
    net.save(tmp_path / "net.json")
    assert (tmp_path / "net.json").read_bytes() == net.tojson().encode()
    assert sym.load(tmp_path / "net.json").tojson() == net.tojson()
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(errors.FileFormatError, match=r"bad\.json' is not a symbol file: it is not JSON \(Expecting"):
        sym.load(str(tmp_path / "bad.json"))
    with pytest.raises(FileNotFoundError):
        sym.load(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("whole", "text"),
    [
        ([], "the top level must be an object with a list 'nodes'"),
        (document(nodes={}), "the top level must be an object with a list 'nodes'"),
        (document(heads=[]), "'heads' must be a list of at least one output"),
        (document(heads=[[4, 0, 0]]), "the heads of the graph name node 4, but only nodes 0 to 3 stand before it"),
        (document(heads=[[3, 1, 0]]), "the heads of the graph name output 1 of node 'f', which has 1"),
        (document(heads=[[-1, 0, 0]]), "the heads of the graph name node -1, but only nodes 0 to 3 stand before it"),
        (document(heads=[[3.0, 0, 0]]), "the heads of the graph must be [node, output, version], but one is [3.0, 0, 0]"),
        (document(heads=[[True, 0, 0]]), "the heads of the graph must be [node, output, version], but one is [True, 0, 0]"),
        (document(heads=[3]), "the heads of the graph must be [node, output, version], but one is 3"),
        (
            document(nodes=[{"op": "relu", "name": "r", "inputs": [[0, 0, 0]]}]),
            "the inputs of node 'r' name node 0, but no node stands before it",
        ),
        (document(attrs=[]), "the top level's 'attrs' must be an object"),
        (document(attrs={"mxnet_version": "1.0"}), "'mxnet_version' must be ['int', number], but it is '1.0'"),
        (document(attrs={"mxnet_version": ["int", 1 << 40]}), f"'mxnet_version' must be ['int', number], but it is ['int', {1 << 40}]"),
        (document(nodes=[{"op": "null"}]), "node 0 must be an object with texts 'op' and 'name'"),
        (document(nodes=[3]), "node 0 must be an object with texts 'op' and 'name'"),
        (node(inputs=3), "the inputs of node 'f' must be a list"),
        (node(inputs=[[3, 0, 0]]), "the inputs of node 'f' name node 3, but only nodes 0 to 2 stand before it"),
        (node(inputs=[[0, 0, 0]]), "FullyConnected 'f' has 1 inputs, but it needs 3: data, weight, bias"),
        (node(inputs=[[0, 0, 0]] * 4), "FullyConnected 'f' has 4 inputs, but it needs 3: data, weight, bias"),
        (node(attrs={"num_hidden": 3}), "'attrs' of node 'f' must be an object of texts"),
        (node(op="null"), "variable 'f' has inputs"),
        (
            node(op="SliceChannel", attrs={"num_outputs": "1000000000"}, inputs=[[0, 0, 0]]),
            f"SliceChannel 'f' has num_outputs=1000000000, more than {MAX_PORTS}",
        ),
        (
            node(op="Concat", attrs={"num_args": "1000000000"}, inputs=[[0, 0, 0]]),
            f"Concat 'f' has num_args=1000000000, more than {MAX_PORTS}",
        ),
        (
            node(op="multi_all_finite", attrs={"num_arrays": "1000000000"}, inputs=[[0, 0, 0]]),
            f"multi_all_finite 'f' has num_arrays=1000000000, more than {MAX_PORTS}",
        ),
        (
            node(op="_split_v2", attrs={"indices": "(0,)", "sections": "1000000000000"}, inputs=[[0, 0, 0]]),
            f"_split_v2 'f' has sections=1000000000000, more than {MAX_PORTS}",
        ),
    ],
)
def test_damage(whole: Any, text: str) -> None:
    with pytest.raises(errors.FileFormatError) as caught:
        load(whole)
    assert str(caught.value) == f"the JSON text is not a symbol file: {text}"


def test_deep_nesting_is_damage() -> None:
    with pytest.raises(errors.FileFormatError, match="it is not JSON"):
        sym.load_json("[" * 200_000)


def test_all_unknown_operators_in_one_error() -> None:
    whole = document()
    whole["nodes"][1:3] = [
        {"op": "NoSuchOp", "name": "a", "inputs": []},
        {"op": "FullyConected", "name": "b", "inputs": []},
    ]
    with pytest.raises(errors.UnknownOperatorError) as caught:
        load(whole)
    assert str(caught.value) == (
        "the JSON text uses operators that are not registered: NoSuchOp (node 'a'); "
        "FullyConected (node 'b'; did you mean 'FullyConnected'?)"
    )


def test_unknown_attribute_names_node_and_version() -> None:
    with pytest.raises(errors.AttributeValueError) as caught:
        load(node(attrs={"num_hidden": "3", "num_hiden": "3"}))
    assert str(caught.value) == (
        "FullyConnected 'f' in the JSON text (MXNet 10000) has no attribute 'num_hiden'; did you mean 'num_hidden'? "
        "There are: num_hidden, no_bias, flatten"
    )
    with pytest.raises(errors.AttributeValueError, match="'num_hidden' must be a whole number, but it is '16L'"):
        load(node(attrs={"num_hidden": "16L"}))


def test_hints_of_other_versions_are_left_out_with_a_warning() -> None:
    with pytest.warns(UserWarning, match="FullyConnected 'f' in the JSON text: the hint lazy_update=True is left out"):
        net = load(node(attrs={"num_hidden": "3", "lazy_update": "True"}))
    assert net.list_attr() == {"num_hidden": "3"}


def test_what_a_later_version_added_is_left_out_with_a_warning() -> None:
    whole = node(attrs={"num_hidden": "3", "sparsity": "0.5"})
    whole["attrs"] = {"mxnet_version": ["int", 20000]}
    with pytest.warns(UserWarning) as caught:
        net = load(whole)
    assert net.list_attr() == {"num_hidden": "3"}
    assert str(caught[1].message) == (
        "FullyConnected 'f' in the JSON text (MXNet 20000): sparsity=0.5 is not known and is left out"
    )


def test_later_version_warns() -> None:
    with pytest.warns(UserWarning, match="was written by MXNet 20000, later than 10901"):
        assert load(document(attrs={"mxnet_version": ["int", 20000]})).name == "f"


def test_what_nobody_knows_at_the_top_or_in_a_node_is_ignored() -> None:
    whole = node(control_deps=[], colour="red")
    whole.update(subgraphs=[], made_by="somebody")
    del whole["arg_nodes"], whole["node_row_ptr"]
    assert load(whole).list_arguments() == ["data", "f_weight", "f_bias"]


def test_bias_may_be_missing() -> None:  # as MXNet takes it: the argument list lacks the bias
    net = load(node(inputs=[[0, 0, 0], [1, 0, 0]]))
    assert net.list_arguments() == ["data", "f_weight"]
    assert net.infer_shape(data=(2, 5)) == ([(2, 5), (3, 5)], [(2, 3)], [])
    assert net.list_attr() == {"num_hidden": "3"}


def test_only_what_the_heads_need_is_kept() -> None:
    whole = document()
    whole["nodes"].append({"op": "null", "name": "stray", "inputs": []})
    assert load(whole).list_arguments() == ["data", "f_weight", "f_bias"]


def test_texts_of_attributes_stay_verbatim() -> None:
    whole = node(op="Convolution", attrs={"num_filter": "4", "kernel": "[5, 5]", "__mood__": "x"})
    net = load(whole)
    assert net.list_attr() == {"num_filter": "4", "kernel": "[5, 5]", "__mood__": "x"}
    assert json.loads(net.tojson())["nodes"][3]["attrs"] == whole["nodes"][3]["attrs"]


def test_what_mxnet_does_not_know_is_written_only_where_it_says_something() -> None:  # D21
    plain = sym.BatchNorm(sym.Variable("x"), name="bn").tojson()
    assert sym.BatchNorm(sym.Variable("x"), unbiased=False, name="bn").tojson() == plain
    assert '"unbiased": "True"' in sym.BatchNorm(sym.Variable("x"), unbiased=True, name="bn").tojson()


def test_old_argmax_axis_means_all() -> None:
    whole = node(op="argmax", attrs={"axis": "-1"}, inputs=[[0, 0, 0]])
    whole["attrs"]["mxnet_version"][1] = 904
    assert load(whole).list_attr() == {}


@pytest.mark.parametrize("law", ["uniform", "normal"])
def test_old_samplers_had_numbers_for_parameters(law: str) -> None:
    names = {"uniform": ("low", "high"), "normal": ("loc", "scale")}[law]
    attributes = {**dict.fromkeys(names, "2"), "shape": "(3L, 2L)", "ctx": ""}
    symbol = load(node(op=f"_sample_{law}", attrs=attributes, inputs=[]))
    assert symbol.infer_shape()[1] == [(3, 2)] and json.loads(symbol.tojson())["nodes"][0]["op"] == f"_random_{law}"
    with pytest.raises(errors.AttributeValueError, match=f"_sample_{law} 'f' in the JSON text .* no attribute"):
        load(node(op=f"_sample_{law}", attrs=attributes, inputs=[[0, 0, 0], [1, 0, 0]]))


def test_cycle_is_refused() -> None:
    whole = document()
    whole["nodes"].append({"op": "_plus_scalar", "name": "p", "attrs": {"scalar": "1"}, "inputs": [[4, 0, 0]]})
    whole["heads"] = [[4, 0, 0]]
    with pytest.raises(errors.FileFormatError, match="the inputs of node 'p' name node 4"):
        load(whole)


@pytest.mark.filterwarnings("ignore:.*was written by MXNet", "ignore:.*the hint")
@pytest.mark.parametrize("name", ["sload_bn_08", "sload_hidden_keys_09", "list_bn_mean_var"])
def test_mutated_files_load_or_are_refused_by_name(name: str) -> None:
    whole = (DATA / f"{name}.json").read_text()
    source = random.Random(7)
    refused = 0
    for _ in range(150):
        text = list(whole)
        for _ in range(source.randint(1, 4)):
            text[source.randrange(len(text))] = source.choice('0123456789[]{}",:-eT x')
        try:
            sym.load_json("".join(text)).list_arguments()
        except errors.ArrayExecError:
            refused += 1
    assert refused > 20


def test_attributes_of_an_operator_that_has_none_are_left_out_with_a_warning() -> None:
    # as CosineEmbeddingLoss of MXNet 1.9.1 writes them
    whole = json.loads(sym.broadcast_maximum(sym.Variable("a"), sym.Variable("b"), name="m").tojson())
    whole["nodes"][2]["attrs"] = {"axis": "1"}
    with pytest.warns(UserWarning, match="broadcast_maximum 'm' in the JSON text: axis=1 says nothing, left out"):
        assert load(whole).list_attr() == {}
