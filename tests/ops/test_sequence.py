"""SequenceMask, SequenceLast and SequenceReverse against loops over rows; lengths out of range."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from arrayexec.dims import UNKNOWN
from tests.ops.runs import run, shapes_of, types_of, uniform

Array = Any
LENGTHS = np.array([0, 1, 4.9, 5, 99, -3])


def mask(row: Array, n: int) -> Array:
    return np.concatenate([row[:n], np.full_like(row[n:], -1.5)])


def last(row: Array, n: int) -> Array:
    return row[max(n, 1) - 1]


def reverse(row: Array, n: int) -> Array:
    return np.concatenate([row[:n][::-1], row[n:]])


def rows_of(data: Array, axis: int) -> list[Array]:
    return [data[:, i] if axis == 0 else data[i] for i in range(data.shape[1 - axis])]


OPERATORS: dict[str, tuple[Callable[..., Array], dict[str, Any]]] = {
    "SequenceMask": (mask, {"value": -1.5}), "SequenceLast": (last, {}), "SequenceReverse": (reverse, {}),
}  # fmt: skip


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("rest", [(), (3,), (2, 3)])
@pytest.mark.parametrize("kind", [np.float64, np.float32, np.float16, np.int32])
def test_each_row_to_its_length(operator: str, axis: int, rest: tuple, kind: Any) -> None:
    rule, given = OPERATORS[operator]
    given = {name: int(value) if kind == np.int32 else value for name, value in given.items()}
    data = (9 * uniform(((5, 6) if axis == 0 else (6, 5)) + rest)).astype(kind)
    cut = [min(max(int(n), 0), 5) for n in LENGTHS]
    want = [rule(row, n) for row, n in zip(rows_of(data, axis), cut, strict=True)]
    arrays = {"data": data, "sequence_length": LENGTHS}
    found = run(operator, arrays, axis=axis, use_sequence_length=True, **given)
    got = list(found.out) if operator == "SequenceLast" else rows_of(found.out, axis)
    np.testing.assert_array_equal(got, want)
    assert found.out.dtype == kind


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("axis", [0, 1])
def test_gradients_go_back_to_where_values_came_from(operator: str, axis: int) -> None:
    shape = (5, 6, 2) if axis == 0 else (6, 5, 2)
    places = np.arange(60.0).reshape(shape) + 1
    arrays = {"data": places, "sequence_length": LENGTHS}
    given = {"axis": axis, "use_sequence_length": True}
    out = run(operator, arrays, **given).out
    head = uniform(out.shape, 1)
    want = np.zeros(61)
    np.add.at(want, out.astype(int).ravel(), head.ravel())
    want[0] = 0
    found = run(operator, arrays, head, **given)
    np.testing.assert_array_equal(found.gradients["data"].ravel(), want[1:])
    assert not found.gradients["sequence_length"].any()


@pytest.mark.parametrize("axis", [0, 1])
def test_without_lengths_every_row_has_all_steps(axis: int) -> None:
    data, head = uniform((5, 6, 2)), uniform((5, 6, 2), 1)
    found = run("SequenceMask", {"data": data}, head, axis=axis, value=7.0)
    np.testing.assert_array_equal(found.out, data)
    np.testing.assert_array_equal(found.gradients["data"], head)
    found = run("SequenceReverse", {"data": data}, head, axis=axis)
    np.testing.assert_array_equal(found.out, np.flip(data, axis))
    np.testing.assert_array_equal(found.gradients["data"], np.flip(head, axis))
    head = uniform((6, 2) if axis == 0 else (5, 2), 1)
    found = run("SequenceLast", {"data": data}, head, axis=axis)
    np.testing.assert_array_equal(found.out, np.take(data, -1, axis))
    np.testing.assert_array_equal(np.take(found.gradients["data"], -1, axis), head)
    assert not np.delete(found.gradients["data"], -1, axis).any()


@pytest.mark.parametrize("value", [0.0, 2.0])
def test_what_is_masked_may_be_nan_or_infinite(value: float) -> None:
    data = np.array([[1.0, np.nan], [np.nan, np.inf], [np.inf, -np.inf]])
    arrays = {"data": data, "sequence_length": np.array([1, np.nan])}
    found = run("SequenceMask", arrays, np.full((3, 2), np.nan), use_sequence_length=True, value=value)
    assert found.out.tolist() == [[1, value], [value, value], [value, value]]
    assert not found.gradients["data"][1:].any()


def test_shapes_types_and_empty_batches() -> None:
    for operator, (_, given) in OPERATORS.items():
        known = {"data": (4, UNKNOWN, 2), "sequence_length": (3,)}
        assert shapes_of(operator, known, use_sequence_length=True, **given)["data"] == (4, 3, 2)
        known = {"data": (UNKNOWN, 4, 2), "sequence_length": (3,)}
        assert shapes_of(operator, known, use_sequence_length=True, axis=1)["data"] == (3, 4, 2)
        assert shapes_of(operator, {"data": (1 << 20, 64, 512)})["node_output"][-1] == 512
        assert types_of(operator, {"data": np.int32, "sequence_length": np.int64}, use_sequence_length=True)
        arrays = {"data": np.zeros((4, 0, 2)), "sequence_length": np.zeros(0)}
        assert run(operator, arrays, use_sequence_length=True, **given).out.size == 0
