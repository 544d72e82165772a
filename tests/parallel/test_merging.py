"""Which axis has the rows of a batch, and pieces put together along it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import arrayexec as ax
from arrayexec.parallel.loading import Described
from arrayexec.parallel.merging import first_part, merged, row_axes

sym = ax.sym
DATA = sym.Variable("data")
NTC, TNC = ("data", (4, 5, 6)), ax.io.DataDesc("data", (5, 4, 6), layout="TNC")


@pytest.mark.parametrize(
    ("symbol", "described", "axes"),
    [
        (DATA * 2, NTC, [0]),
        (DATA * 2, TNC, [1]),
        (sym.sum(DATA, axis=0), TNC, [0]),
        (sym.transpose(DATA, axes=(2, 0, 1)), NTC, [1]),
        (sym.Reshape(DATA, shape=(-3, 0)), NTC, [0]),
        (sym.sum(DATA), NTC, [None]),
        (sym.Group([sym.sum(DATA, axis=(1, 2)), sym.sum(DATA, axis=0)]), NTC, [0, None]),
        (sym.Reshape(DATA, shape=(4, 30)), NTC, [0]),  # fits four rows alone
        (sym.dot(sym.Flatten(DATA), sym.Flatten(DATA), transpose_b=True), NTC, [0]),
    ],
)
def test_axes_of_outputs(symbol: Any, described: Any, axes: list[int | None]) -> None:
    assert row_axes(symbol, Described.of([described], None))[1] == axes


def test_a_head_says_its_axis_itself() -> None:
    net = sym.sum(DATA, axis=2, name="total", attr={"__layout__": "TN"})
    assert row_axes(net, Described.of([NTC], None))[1] == [1]


def test_axes_of_arguments() -> None:
    net = sym.FullyConnected(DATA, num_hidden=3, name="fc") + sym.Variable("state")
    found = row_axes(net, Described.of([("data", (4, 6))], None))[0]
    assert found == {"data": 0, "fc_weight": None, "fc_bias": None, "state": 0}


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_pieces_make_the_whole(axis: int) -> None:
    whole = np.arange(60).reshape(3, 4, 5)
    found = merged(np.split(whole, [1, 3], axis), axis, ax.cpu())
    np.testing.assert_array_equal(found, whole)
    assert found.dtype == whole.dtype
    np.testing.assert_array_equal(merged([np.array(1.0), np.array(2.0)], None, ax.cpu()), [1, 2])


def test_the_first_rows_of_outputs() -> None:
    flat = np.arange(12).reshape(12, 1)  # three values a row
    np.testing.assert_array_equal(first_part(flat, 0, 2, 4), flat[:6])
    np.testing.assert_array_equal(first_part(flat.T, 1, 1, 4), flat.T[:, :3])
    assert first_part(flat, None, 2, 4) is flat
