"""Operators that move values, against NumPy's own reshape, transposition and indexing; inference in both directions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from arrayexec.dims import ANY, UNKNOWN, from_user, to_user
from arrayexec.errors import AttributeValueError, ShapeError
from arrayexec.registry import make_op
from arrayexec.symbol.graph import Graph, Node, variable
from arrayexec.symbol.infer import infer_shapes
from tests.ops.runs import graph_of, run, shapes_of, uniform

U = UNKNOWN


def there_and_back(operator: str, data: Any, wanted: Any, back: Any, **attributes: Any) -> None:
    """Output as wanted; the gradient of a head is what ``back`` makes of it."""
    head = uniform(wanted.shape, 1)
    found = run(operator, {"data": data}, [head], **attributes)
    np.testing.assert_array_equal(found.out, wanted)
    np.testing.assert_array_equal(found.gradients["data"], back(head))


RESHAPES = [
    ((2, 3, 4), (4, 0, 2), (4, 3, 2)),
    ((2, 3, 4), (6, 1, -1), (6, 1, 4)),
    ((2, 3, 4), (-2, 1, 1), (2, 3, 4, 1, 1)),
    ((2, 3, 4), (-2, 1, -2), (2, 3, 4, 1)),
    ((2, 3, 4), (2, -2), (2, 3, 4)),
    ((2, 3, 4), (-3, 4), (6, 4)),
    ((2, 3, 4, 5), (-3, -3), (6, 20)),
    ((2, 3, 4), (0, -3), (2, 12)),
    ((2, 3, 4), (-4, 1, 2, -2), (1, 2, 3, 4)),
    ((2, 3, 4), (2, -4, -1, 3, -2), (2, 1, 3, 4)),
    ((2, 3, 4), (-1,), (24,)),
    ((0, 3, 4), (0, -1), (0, 12)),
]
REVERSED = [
    ((10, 5, 4), (-1, 0), (50, 4)),
    ((2, 3, 8), (0, 0, -4, 2, -1), (2, 3, 2, 4)),
    ((2, 3, 4), (-1, -3), (2, 12)),
    ((2, 3, 4), (-2,), (2, 3, 4)),
    ((2, 3, 4), (-2, 1, -2), (1, 2, 3, 4)),
]


@pytest.mark.parametrize(
    ("shape", "codes", "wanted", "reverse"), [(*r, False) for r in RESHAPES] + [(*r, True) for r in REVERSED]
)
def test_reshape(shape: tuple[int, ...], codes: tuple[int, ...], wanted: tuple[int, ...], reverse: bool) -> None:
    data = uniform(shape)
    there_and_back("Reshape", data, data.reshape(wanted), lambda h: h.reshape(shape), shape=codes, reverse=reverse)


def test_reshape_in_the_older_spelling() -> None:
    data = uniform((2, 3, 4))
    there_and_back("Reshape", data, data.reshape(6, 4), lambda h: h.reshape(data.shape), target_shape=(6, 0))
    there_and_back(
        "Reshape",
        data,
        data.reshape(2, 6, 2),
        lambda h: h.reshape(data.shape),
        target_shape=(9, 0, 2),
        keep_highest=True,
    )


def test_reshape_of_a_transposed_array_reads_in_c_order() -> None:
    data = uniform((3, 4)).T
    there_and_back("Reshape", data, np.ascontiguousarray(data).reshape(2, 6), lambda h: h.reshape(4, 3), shape=(2, 6))


@pytest.mark.parametrize(
    ("data", "out", "codes", "data_after", "out_after"),
    [
        ((0, 3, 4), (), (0, -1), (0, 3, 4), (0, 12)),
        ((0, 3, 0), (), (0, -1), (0, 3, 0), (0, 0)),
        ((0, 8), (2, 12), (-1, 12), (3, 8), (2, 12)),
        ((0, 8), (), (-1, 4), (0, 8), (0, 4)),
        ((), (), (4, -1), (), (4, 0)),
        ((), (), (-3, 5, -4, 2, 3), (), (0, 5, 2, 3)),
        ((0, 0), (), (-4, 2, 3, -2), (6, 0), (2, 3, 0)),
        ((0, 3), (12,), (-3,), (4, 3), (12,)),
        ((0, 0), (5, 7), (0, 0), (5, 7), (5, 7)),
        ((6, 0), (), (2, 3, 4), (6, 4), (2, 3, 4)),
        ((0, 3, 4), (5, 0), (0, -1), (5, 3, 4), (5, 12)),
    ],
)
def test_reshape_infers_both_ways(data: Any, out: Any, codes: Any, data_after: Any, out_after: Any) -> None:
    found = _both("Reshape", data, out, shape=codes)
    assert found == (data_after, out_after)


def _both(operator: str, data: Any, out: Any, **attributes: Any) -> tuple[Any, Any]:
    """Shapes of data and out, in MXNet's spelling, when both are partly given."""
    graph = graph_of(operator, **attributes)
    # An elementwise node with a second variable states the output's shape from outside.
    head = graph.nodes[-1]
    other = Node(make_op("elemwise_add", {}), "sum", {}, [(head, 0), (variable("other"), 0)])
    whole = Graph([(other, 0)])
    shapes = infer_shapes(whole, {k: from_user(v) for k, v in (("data", data), ("other", out)) if v})
    names = {whole.entry_name(i): shape for i, shape in enumerate(shapes)}
    made = next(shape for name, shape in names.items() if name.startswith("node_output"))
    return to_user(names["data"]), to_user(made)


@pytest.mark.parametrize(
    ("shape", "codes"),
    [((2, 3), (5, -1)), ((2, 3), (4, 4)), ((2, 3), (0, 0, 0)), ((2, 3), (-3, -3)), ((5, 3), (-4, 2, -1, 3))],
)
def test_reshape_refuses_another_count(shape: Any, codes: Any) -> None:
    with pytest.raises(ShapeError, match=r"Reshape 'node': data 'data'"):
        shapes_of("Reshape", {"data": shape}, shape=codes)


@pytest.mark.parametrize("codes", [(-1, -1), (), (-5,), (-4, 2), (-4, -1, -1), (-4, 0, 2)])
def test_reshape_refuses_codes(codes: Any) -> None:
    with pytest.raises(AttributeValueError, match=r"Reshape: attribute 'shape'"):
        graph_of("Reshape", shape=codes)


def test_flatten() -> None:
    for shape in ((2, 3, 4), (3,), (2, 5), (0, 3, 4)):
        data = uniform(shape)
        there_and_back(
            "Flatten", data, data.reshape(shape[0], int(np.prod(shape[1:]))), lambda h, s=shape: h.reshape(s)
        )
    assert _both("Flatten", (0, 3, 4), ()) == ((0, 3, 4), (0, 12))
    assert _both("Flatten", (0, 3, 0), (5, 12)) == ((5, 3, 4), (5, 12))
    assert _both("Flatten", (), ()) == ((), (0, 0))


def test_expand_and_squeeze() -> None:
    data = uniform((2, 3))
    for axis in (0, 1, 2, -1, -2, -3):
        there_and_back("expand_dims", data, np.expand_dims(data, axis), lambda h: h.reshape(2, 3), axis=axis)
    assert _both("expand_dims", (), (4, 1, 5), axis=1) == ((4, 5), (4, 1, 5))
    with pytest.raises(ShapeError, match=r"at least 3 dims, but it is \(2, 3\)"):
        shapes_of("expand_dims", {"data": (2, 3)}, axis=3)
    data = uniform((1, 2, 1, 3))
    there_and_back("squeeze", data, data.reshape(2, 3), lambda h: h.reshape(data.shape))
    there_and_back("squeeze", data, data.reshape(1, 2, 3), lambda h: h.reshape(data.shape), axis=(-2,))
    there_and_back("squeeze", data[:, :1, :, :1], data[:, 0, 0, 0], lambda h: h.reshape(1, 1, 1, 1))
    assert _both("squeeze", (0, 1, 0), (4, 5), axis=1) == ((4, 1, 5), (4, 5))
    with pytest.raises(ShapeError, match=r"must be \(\?, 1, \?, \?\), but it is \(1, 2, 1, 3\)"):
        shapes_of("squeeze", {"data": (1, 2, 1, 3)}, axis=1)


def test_transpositions() -> None:
    data = uniform((2, 3, 4))
    there_and_back("transpose", data, data.T, lambda h: h.T)
    for axes in ((1, 2, 0), (2, 0, 1), (0, -1, 1)):
        back = np.argsort([a % 3 for a in axes])
        there_and_back("transpose", data, data.transpose(axes), lambda h, b=back: h.transpose(b), axes=axes)
    there_and_back("SwapAxis", data, data.swapaxes(0, 2), lambda h: h.swapaxes(0, 2), dim1=0, dim2=-1)
    assert _both("transpose", (), (2, 3, 4), axes=(1, 2, 0)) == ((4, 2, 3), (2, 3, 4))
    assert _both("transpose", (0, 3), (), axes=(1, 0)) == ((0, 3), (3, 0))
    assert _both("transpose", (), (), axes=(1, 0)) == ((0, 0), (0, 0))
    assert _both("transpose", (), (2, 3)) == ((3, 2), (2, 3))
    assert _both("SwapAxis", (0, 3, 4), (0, 0, 2), dim1=0, dim2=2) == ((2, 3, 4), (4, 3, 2))
    with pytest.raises(ShapeError, match=r"must have 2 dims for axes \(0, 1\), but it is \(1, 2, 3\)"):
        shapes_of("transpose", {"data": (1, 2, 3)}, axes=(0, 1))
    with pytest.raises(ShapeError, match=r"must have an axis 2, but it is \(3, 4\)"):
        shapes_of("SwapAxis", {"data": (3, 4)}, dim2=2)
    with pytest.raises(AttributeValueError, match="every axis once"):
        graph_of("transpose", axes=(0, 0))


def scattered(shape: tuple[int, ...], key: Any) -> Any:
    def back(head: Any) -> Any:
        whole = np.zeros(shape)
        whole[key] = head
        return whole

    return back


def test_slices() -> None:
    data = uniform((4, 5, 3))
    for key, attributes in (
        (np.s_[1:3], {"begin": (1,), "end": (3,)}),
        (np.s_[:, ::-1, 1:], {"begin": (None, None, 1), "end": (None, None, None), "step": (1, -1, 1)}),
        (np.s_[-3:-1, 4:0:-2], {"begin": (-3, 4), "end": (-1, 0), "step": (None, -2)}),
    ):
        there_and_back("slice", data, data[key], scattered(data.shape, key), **attributes)
    for axis, begin, end in ((1, 1, 4), (-1, 0, None), (0, -3, -1), (2, 1, 99)):
        key = tuple([slice(None)] * (axis % 3) + [slice(begin, end)])
        there_and_back("slice_axis", data, data[key], scattered(data.shape, key), axis=axis, begin=begin, end=end)
    assert _both("slice_axis", (0, 5), (4, 2), axis=1, begin=1, end=3) == ((4, 5), (4, 2))
    assert _both("slice_axis", (3, 0), (), axis=1, begin=1, end=3) == ((3, 0), (3, 0))
    assert _both("slice_axis", (), (4, 2), axis=-1, begin=1, end=3) == ((4, 0), (4, 2))
    assert _both("slice_axis", (), (0, 2), axis=1, begin=0, end=None) == ((0, 2), (0, 2))
    with pytest.raises(ShapeError, match=r"out 'node_output' must have an axis 1, but it is \(4,\)"):
        _both("slice_axis", (), (4,), axis=1, begin=1, end=3)
    with pytest.raises(ShapeError, match="must hold something at"):
        shapes_of("slice_axis", {"data": (3, 4)}, axis=1, begin=4, end=None)
    with pytest.raises(ShapeError, match="at least 3 dims"):
        shapes_of("slice", {"data": (3, 4)}, begin=(0, 0, 0), end=(1, 1, 1))
    with pytest.raises(AttributeValueError, match="one length"):
        graph_of("slice", begin=(0,), end=(1, 2))


def test_crop() -> None:
    a, b = uniform((2, 1, 6, 5)), uniform((3, 4, 3, 2))
    head = uniform((2, 1, 3, 2), 1)
    found = run("Crop", {"arg0": a, "arg1": b}, [head], num_args=2, offset=(2, 1))
    np.testing.assert_array_equal(found.out, a[:, :, 2:5, 1:3])
    np.testing.assert_array_equal(found.gradients["arg0"], scattered(a.shape, np.s_[:, :, 2:5, 1:3])(head))
    assert not found.gradients["arg1"].any()
    middle = run("Crop", {"arg0": a}, num_args=1, h_w=(3, 2), center_crop=True)
    np.testing.assert_array_equal(middle.out, a[:, :, 1:4, 1:3])
    with pytest.raises(ShapeError, match=r"must hold a window of \(3, 2\) at \(4, 0\)"):
        shapes_of("Crop", {"arg0": (2, 1, 6, 5)}, num_args=1, h_w=(3, 2), offset=(4, 0))


def test_concat() -> None:
    parts = [uniform((2, n, 3), n) for n in (1, 4, 2)]
    head = uniform((2, 7, 3), 9)
    given = {f"arg{i}": part for i, part in enumerate(parts)}
    for dim in (1, -2):
        found = run("Concat", given, [head], num_args=3, dim=dim)
        np.testing.assert_array_equal(found.out, np.concatenate(parts, 1))
        np.testing.assert_array_equal(found.gradients["arg1"], head[:, 1:5])
        np.testing.assert_array_equal(found.gradients["arg2"], head[:, 5:])


def test_concat_infers() -> None:
    def names(given: dict[str, Any], **attributes: Any) -> dict[str, Any]:
        return shapes_of("concat", given, num_args=2, **attributes)

    found = names({"arg0": (2, 3)})
    assert (to_user(found["arg1"]), to_user(found["node_output"])) == ((2, 0), (2, 0))
    found = names({"arg0": (2, U), "arg1": (U, 3)}, dim=0)
    assert (to_user(found["arg0"]), to_user(found["arg1"])) == ((2, 3), (0, 3))
    assert names({})["arg0"] is ANY
    with pytest.raises(
        ShapeError, match=r"Concat 'node': arg1 'arg1' must be \(2, \?\), but it is \(3, 3\) \(differs in dim 0\)"
    ):
        names({"arg0": (2, 3), "arg1": (3, 3)})
    with pytest.raises(ShapeError, match=r"arg1 'arg1' must have an axis 1, but it is \(3,\)"):
        names({"arg1": (3,)})
    with pytest.raises(AttributeValueError, match="'num_args' must be at least 1, but it is 0"):
        graph_of("Concat", num_args=0)


def test_a_part_of_a_concat_follows_from_the_whole() -> None:
    joined = Node(make_op("Concat", {"num_args": 2}), "joined", {}, [(variable("a"), 0), (variable("b"), 0)])
    total = Node(make_op("elemwise_add", {}), "total", {}, [(joined, 0), (variable("c"), 0)])
    graph = Graph([(total, 0)])

    def shape_of_b(a: Any, c: Any) -> Any:
        shapes = infer_shapes(graph, {"a": a, "c": c})
        return shapes[graph.first[[node.name for node in graph.nodes].index("b")]]

    assert shape_of_b((2, 3), (2, 8)) == (2, 5)
    with pytest.raises(ShapeError, match=r"must be at least 3 long in dim 1, but it is \(2, 2\)"):
        shape_of_b((2, 3), (2, 2))


def test_slice_channel() -> None:
    data = uniform((2, 6, 3))
    heads = [uniform((2, 2, 3), i) for i in range(3)]
    found = run("SliceChannel", {"data": data}, heads, num_outputs=3)
    for got, wanted in zip(found.outputs, np.split(data, 3, 1), strict=True):
        np.testing.assert_array_equal(got, wanted)
    np.testing.assert_array_equal(found.gradients["data"], np.concatenate(heads, 1))
    heads = [uniform((2, 6), i) for i in range(3)]
    found = run("split", {"data": data}, heads, num_outputs=3, axis=-1, squeeze_axis=True)
    np.testing.assert_array_equal(found.outputs[2], data[:, :, 2])
    np.testing.assert_array_equal(found.gradients["data"], np.stack(heads, -1))


def test_slice_channel_infers_and_refuses() -> None:
    assert _both("SliceChannel", (), (2, 5), num_outputs=1) == ((2, 5), (2, 5))
    found = shapes_of("SliceChannel", {"data": (0, 6)}, num_outputs=3)
    assert [found[f"node_output{i}"] for i in range(3)] == [(0, 2)] * 3
    with pytest.raises(ShapeError, match=r"must be a multiple of 4 in dim 1, but it is \(2, 6\)"):
        shapes_of("SliceChannel", {"data": (2, 6)}, num_outputs=4)
    with pytest.raises(ShapeError, match=r"must be \(2, 3\), but it is \(2, 6\)"):
        shapes_of("SliceChannel", {"data": (2, 6)}, num_outputs=3, squeeze_axis=True)
    with pytest.raises(ShapeError, match="must have at least 2 dims"):
        shapes_of("SliceChannel", {"data": (3,)}, num_outputs=3, axis=0, squeeze_axis=True)
