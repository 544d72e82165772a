"""Padding, repetition, turning round and stacking against loops over values."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from arrayexec.dims import UNKNOWN
from arrayexec.errors import AttributeValueError, ShapeError
from tests.ops.runs import close, graph_of, run, shapes_of, uniform


def check_moved(operator: str, data: Any, source: Any, shape: tuple[int, ...], **attributes: Any) -> None:
    """The output at each place is data at ``source(place)`` or the number that it gives; gradients flow back there."""
    head = uniform(shape, 7)
    wanted, back = np.empty(shape), np.zeros(data.shape)
    for place in itertools.product(*map(range, shape)):
        there = source(place)
        wanted[place] = data[there] if isinstance(there, tuple) else there
        if isinstance(there, tuple):
            back[there] += head[place]
    found = run(operator, {"data": data}, [head], **attributes)
    np.testing.assert_array_equal(found.out, wanted)
    close(found.gradients["data"], back)


def reflected(i: int, count: int) -> int:
    """Where a walk to and fro between the ends is after ``i`` steps from the first value."""
    while not 0 <= i < count:
        i = -i if i < 0 else 2 * (count - 1) - i
    return i


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect"])
@pytest.mark.parametrize(
    ("shape", "width"),
    [((2, 2, 3, 4), (1, 2, 3, 0)), ((2, 1, 2, 3, 5), (1, 0, 2, 2, 0, 4)), ((1, 2, 3, 3), (0, 0, 0, 0))],
)
def test_pad(mode: str, shape: tuple[int, ...], width: tuple[int, ...]) -> None:
    before = (0, 0, *width[::2])
    whole = tuple(n + p + q for n, p, q in zip(shape, before, (0, 0, *width[1::2]), strict=True))

    def source(place: tuple[int, ...]) -> Any:
        at = [i - p for i, p in zip(place, before, strict=True)]
        if mode == "constant":
            return tuple(at) if all(0 <= i < n for i, n in zip(at, shape, strict=True)) else 2.5
        rule = reflected if mode == "reflect" else lambda i, n: min(max(i, 0), n - 1)
        return tuple(rule(i, n) for i, n in zip(at, shape, strict=True))

    pad_width = (0, 0, 0, 0, *width)
    check_moved("Pad", uniform(shape), source, whole, mode=mode, pad_width=pad_width, constant_value=2.5)


@pytest.mark.parametrize("mode", ["edge", "reflect"])
def test_pad_is_the_same_in_blocks_and_in_16_bits(mode: str) -> None:
    data = uniform((40, 8, 32, 33), 1, np.float16)  # more than one block of planes
    head, width = np.ones((40, 8, 36, 36), np.float16), [0] * 4 + [2, 2, 1, 2]
    wide = run("Pad", {"data": data.astype(np.float64)}, [head.astype(np.float64)], mode=mode, pad_width=width)
    found = run("Pad", {"data": data}, [head], mode=mode, pad_width=width)
    np.testing.assert_array_equal(found.out, np.pad(data, [(0, 0), (0, 0), (2, 2), (1, 2)], mode=mode))
    np.testing.assert_array_equal(found.gradients["data"], wide.gradients["data"])


def test_pad_infers() -> None:
    width = (0, 0, 0, 0, 1, 2, 0, 1)
    assert shapes_of("Pad", {"data": (2, 3, 4, UNKNOWN)}, mode="edge", pad_width=width)["node_output"][:3] == (2, 3, 7)
    found = shapes_of("Pad", {"node_output": (2, 3, 7, 5)} | {"data": (UNKNOWN, 3, 4, 4)}, mode="edge", pad_width=width)
    assert found["data"][1:] == (3, 4, 4)
    with pytest.raises(ShapeError, match=r"data 'data' must have at least 3 in dim 2 to pad it with 'reflect'"):
        shapes_of("Pad", {"data": (2, 3, 2, 4)}, mode="reflect", pad_width=width)
    with pytest.raises(ShapeError, match="3 dims instead of 4"):
        shapes_of("Pad", {"data": (2, 3, 2)}, mode="constant", pad_width=width)
    for wrong in ((0, 0, 1, 1), (0, 0, 1, 0, 1, 2, 0, 1), (0, 0, 0, 0, -1, 2, 0, 1)):
        with pytest.raises(AttributeValueError, match="'pad_width' must hold two whole numbers >= 0 for each of 4 or 5"):
            graph_of("Pad", mode="constant", pad_width=wrong)
    with pytest.raises(AttributeValueError, match="'mode' must be one of constant, edge, reflect, but it is 'wrap'"):
        graph_of("Pad", mode="wrap", pad_width=width)


@pytest.mark.parametrize(("shape", "reps"), [((2, 3), (2, 3)), ((3,), (2, 1, 2)), ((2, 1, 3), (2,)), ((2, 3), ())])
def test_tile(shape: tuple[int, ...], reps: tuple[int, ...]) -> None:
    rank = max(len(shape), len(reps))
    dims, counts = (1,) * (rank - len(shape)) + shape, (1,) * (rank - len(reps)) + reps
    whole = tuple(n * r for n, r in zip(dims, counts, strict=True))
    check_moved(
        "tile", uniform(shape),
        lambda place: tuple(i % n for i, n in zip(place, dims, strict=True))[rank - len(shape):], whole, reps=reps,
    )  # fmt: skip


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_repeat(axis: int) -> None:
    shape = [2, 3, 4]
    shape[axis] *= 3

    def source(place: tuple[int, ...]) -> tuple[int, ...]:
        at = list(place)
        at[axis] //= 3
        return tuple(at)

    check_moved("repeat", uniform((2, 3, 4)), source, tuple(shape), repeats=3, axis=axis)


def test_repeat_of_everything_is_flat() -> None:
    check_moved("repeat", uniform((2, 3)), lambda place: divmod(place[0] // 2, 3), (12,), repeats=2)


@pytest.mark.parametrize("operator", ["tile", "repeat"])
def test_gradients_of_copies_add_up_in_32_bits(operator: str) -> None:
    attributes: dict[str, Any] = {"reps": (4096,)} if operator == "tile" else {"repeats": 4096}
    found = run(operator, {"data": np.ones(1, np.float16)}, [np.ones(4096, np.float16)], **attributes)
    assert found.gradients["data"][0] == 4096  # 16 bits alone stop at 2048


@pytest.mark.parametrize("axis", [(0,), (1, -1), (0, 1, 2)])
def test_reverse(axis: tuple[int, ...]) -> None:
    shape = (2, 3, 4)
    turned = {i % 3 for i in axis}
    check_moved(
        "reverse", uniform(shape),
        lambda place: tuple(n - 1 - i if a in turned else i for a, (i, n) in enumerate(zip(place, shape, strict=True))),
        shape, axis=axis,
    )  # fmt: skip


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_stack(axis: int) -> None:
    parts = [uniform((2, 3), i) for i in range(3)]
    shape = [2, 3]
    shape.insert(axis if axis >= 0 else 3 + axis, 3)
    head = uniform(tuple(shape), 9)
    found = run("stack", {f"arg{i}": part for i, part in enumerate(parts)}, [head], num_args=3, axis=axis)
    for i, place in itertools.product(range(3), itertools.product(range(2), range(3))):
        at = list(place)
        at.insert(axis if axis >= 0 else 3 + axis, i)
        assert found.out[tuple(at)] == parts[i][place]
        assert found.gradients[f"arg{i}"][place] == head[tuple(at)]


def test_shapes_beyond_32_bits() -> None:
    many = 2**31 + 7
    assert shapes_of("tile", {"data": (2, many)}, reps=(3, 5))["node_output"] == (6, many * 5)
    assert shapes_of("repeat", {"data": (many, 3)}, repeats=7)["node_output"] == (many * 21,)
    assert shapes_of("stack", {"arg0": (many,)}, num_args=2, axis=1) == {
        "arg0": (many,), "arg1": (many,), "node_output": (many, 2)
    }  # fmt: skip
    padded = shapes_of("Pad", {"data": (1, 1, many, many)}, mode="constant", pad_width=[0] * 4 + [many, 1, 0, 0])
    assert padded["node_output"] == (1, 1, 2 * many + 1, many)


def test_inference_and_what_is_refused() -> None:
    assert shapes_of("tile", {"data": (UNKNOWN, 3)}, reps=(2, 2))["node_output"][1] == 6
    assert shapes_of("repeat", {"data": (UNKNOWN, 3)}, repeats=2, axis=1)["node_output"][1] == 6
    assert shapes_of("stack", {"arg0": (UNKNOWN, 3), "arg1": (2, UNKNOWN)}, num_args=2)["node_output"] == (2, 2, 3)
    for operator, attributes, text in (
        ("tile", {"reps": (2, 0)}, "'reps' must hold whole numbers >= 1"),
        ("repeat", {"repeats": 0}, "'repeats' must be at least 1"),
        ("stack", {"num_args": 0}, "'num_args' must be at least 1"),
    ):
        with pytest.raises(AttributeValueError, match=text):
            graph_of(operator, **attributes)
    with pytest.raises(ShapeError, match="must have 2 different axes"):
        shapes_of("reverse", {"data": (2, 3)}, axis=(1, -1))
    with pytest.raises(ShapeError, match="must have an axis 2"):
        shapes_of("reverse", {"data": (2, 3)}, axis=2)


@pytest.mark.parametrize(
    ("operator", "attributes"),
    [("Pad", {"mode": "constant", "pad_width": [0] * 4 + [1] * 4}), ("tile", {"reps": 2}), ("reverse", {"axis": 1})],
)
def test_an_empty_batch(operator: str, attributes: dict[str, Any]) -> None:
    out = run(operator, {"data": np.zeros((0, 2, 3, 3))}, **attributes).out
    assert out.shape[0] == 0
