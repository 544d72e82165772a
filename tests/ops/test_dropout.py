"""Dropout: how often, how much, which rows, and the same mask wherever a row is computed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from arrayexec import streams
from arrayexec.dims import UNKNOWN
from arrayexec.errors import AttributeValueError, ShapeError
from arrayexec.ops import dropout
from arrayexec.registry import make_op
from tests.ops.runs import run, shapes_of, uniform


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_a_share_p_is_dropped_and_the_rest_scaled(p: float) -> None:
    x = np.ones((200, 500), np.float32)
    got = run("Dropout", {"data": x}, x, p=p)
    dropped = got.out == 0
    assert abs(dropped.mean() - p) < 5 * np.sqrt(p * (1 - p) / x.size)  # five deviations of a fair coin
    assert abs(dropped.mean(axis=0) - p).max() < 6 * np.sqrt(p * (1 - p) / 200)
    np.testing.assert_allclose(got.out[~dropped], 1 / (1 - p), rtol=1e-6)
    np.testing.assert_array_equal(got.gradients["data"], got.out)


def test_the_mask_is_that_of_the_stream() -> None:
    x = uniform((3, 2, 5), dtype=np.float32) + 2
    got = run("Dropout", {"data": x}, p=0.25)
    noise = np.empty((3, streams.width(10)), np.float32)
    streams.Stream("node", streams.RunPosition()).uniform(noise)
    np.testing.assert_array_equal(got.out != 0, (noise[:, :10] >= 0.25).reshape(x.shape))


def test_a_row_has_its_mask_wherever_it_is_computed() -> None:
    x = np.ones((8, 13), np.float32)
    whole = run("Dropout", {"data": x}).out
    parts = [run("Dropout", {"data": x[a:b]}, first_row=a).out for a, b in ((0, 1), (1, 5), (5, 8))]
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    assert len({row.tobytes() for row in whole}) > 4


def test_masks_do_not_depend_on_how_many_numbers_are_drawn_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.ones((8, 13), np.float32)
    whole = run("Dropout", {"data": x}, first_row=3).out
    for piece in (1, 48):
        monkeypatch.setattr(dropout, "PIECE", piece)
        np.testing.assert_array_equal(run("Dropout", {"data": x}, first_row=3).out, whole)


def test_another_seed_is_another_mask() -> None:
    x = np.ones((4, 50), np.float32)
    before = run("Dropout", {"data": x}).out
    try:
        streams.seed(5)
        assert (run("Dropout", {"data": x}).out != before).any()
    finally:
        streams.seed(0)
    np.testing.assert_array_equal(run("Dropout", {"data": x}).out, before)


@pytest.mark.parametrize("axes", [(1,), (2,), (-1, 1), (0,), (0, 2)])
def test_whole_slices_drop_together_along_axes(axes: tuple[int, ...]) -> None:
    got = run("Dropout", {"data": np.ones((6, 5, 4), np.float32)}, axes=axes)
    shared = tuple(axis % 3 for axis in axes)
    first = got.out.min(axis=shared, keepdims=True)
    np.testing.assert_array_equal(got.out, np.broadcast_to(first, got.out.shape))
    assert 0 < (got.out == 0).mean() < 1


def test_a_mask_shared_by_the_rows_does_not_depend_on_where_they_stand() -> None:
    x = np.ones((1, 40), np.float32)
    np.testing.assert_array_equal(
        run("Dropout", {"data": x}, axes=(0,), first_row=7).out, run("Dropout", {"data": x}, axes=(0,)).out
    )


@pytest.mark.parametrize(("train", "options"), [(False, {}), (True, {"p": 0.0}), (False, {"p": 0.0, "mode": "always"})])
def test_it_is_the_identity(train: bool, options: dict[str, Any]) -> None:
    x = uniform((3, 4))
    got = run("Dropout", {"data": x}, x, train=train, **options)
    np.testing.assert_array_equal(got.out, x)
    np.testing.assert_array_equal(got.gradients["data"], x)
    assert make_op("Dropout", options).is_view(train)


def test_always_drops_in_inference_too() -> None:
    x = np.ones((20, 20), np.float32)
    got = run("Dropout", {"data": x}, x, train=False, mode="always")
    np.testing.assert_array_equal(got.out, run("Dropout", {"data": x}).out)
    np.testing.assert_array_equal(got.gradients["data"], got.out)


def test_dropping_all_gives_zeros_and_zero_gradients() -> None:
    x = uniform((3, 4))
    got = run("Dropout", {"data": x}, x, p=1)
    np.testing.assert_array_equal(got.out, np.zeros_like(x))
    np.testing.assert_array_equal(got.gradients["data"], np.zeros_like(x))


@pytest.mark.parametrize("shape", [(0, 5), (5,), (3, 0)])
def test_small_shapes(shape: tuple[int, ...]) -> None:
    assert run("Dropout", {"data": np.ones(shape)}, np.ones(shape)).out.shape == shape


def test_what_it_says_of_shapes_and_attributes() -> None:
    found = shapes_of("Dropout", {"data": (UNKNOWN, 3)}, axes=(0,))
    assert (str(found["node_output"]), found["node_mask"]) == ("(?, 3)", (1, 3))
    with pytest.raises(ShapeError, match=r"data 'data' must have an axis 2, but it is \("):
        shapes_of("Dropout", {"data": (4, 3)}, axes=(2,))
    with pytest.raises(AttributeValueError, match=r"'p' must lie in \[0, 1\], but it is 1.5"):
        make_op("Dropout", {"p": 1.5})
