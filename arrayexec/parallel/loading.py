"""Batches into the arrays of executors, with checks that name what does not fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..context import copyto
from ..errors import ShapeError, format_shape
from ..executor import note_write
from ..train.io import DataDesc

Array = Any
Target = Any  # one array, or a list of (rows, array) pairs, one a device; rows is a slice, or one for every axis


def load_general(data: Sequence[Any] | None, targets: Sequence[Target], names: Sequence[str] = ()) -> None:
    """Copy each array into its target: a whole array, or the rows of every (slice, array) pair; types are cast.

    Raises ShapeError naming the array if counts or shapes differ.
    """
    arrays = list(data or ())
    if len(arrays) != len(targets):
        raise ShapeError(
            f"a batch must have {len(targets)} arrays ({', '.join(names) or 'as bound'}), but it has {len(arrays)}"
        )
    for number, (array, target) in enumerate(zip(arrays, targets, strict=True)):
        name = f"'{names[number]}'" if number < len(names) else f"array {number}"
        pieces: list[tuple[Any, Array]] = target if isinstance(target, list) else [(..., target)]
        last = pieces[-1][0]
        axis = len(last) - 1 if isinstance(last, tuple) else 0
        rows = last[-1] if isinstance(last, tuple) else last
        if isinstance(rows, slice) and array.shape[axis : axis + 1] != (rows.stop,):
            raise ShapeError(
                f"{name} of the batch must have {rows.stop} rows, but its shape is {format_shape(array.shape)}"
            )
        for rows, part in pieces:
            source = array[rows]
            if tuple(source.shape) != tuple(part.shape):
                raise ShapeError(
                    f"{name} of the batch must be {format_shape(part.shape)} for this device, but it is {format_shape(source.shape)}"
                )
            copyto(part, source)
            note_write(part, "load_data_batch")


def load_data(batch: Any, targets: Sequence[Target]) -> None:
    """Copy the data of a batch into its targets."""
    load_general(batch.data, targets)


def load_label(batch: Any, targets: Sequence[Target]) -> None:
    """Copy the labels of a batch into their targets; none where the batch has none."""
    if batch.label:
        load_general(batch.label, targets)


def describe(item: Any) -> DataDesc:
    """A ``DataDesc`` from one, or from a (name, shape) or (name, shape, type) tuple."""
    return item if isinstance(item, DataDesc) else DataDesc(*item)


def batch_axis(desc: Any) -> int:
    """Axis of the batch in an input's layout (0 where the layout does not say)."""
    return max(0, DataDesc.get_batch_axis(getattr(desc, "layout", None)))


def rows_of(axis: int, rows: slice) -> Any:
    """Index that takes ``rows`` on the batch axis: the slice itself for axis 0."""
    return rows if axis == 0 else (*[slice(None)] * axis, rows)


_load_general, _load_data, _load_label = load_general, load_data, load_label
