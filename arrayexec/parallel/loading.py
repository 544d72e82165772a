"""What a batch looks like, and its way into the arrays of executors, with checks that name what does not fit."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from ..context import copyto
from ..errors import BindError, ShapeError, format_shape
from ..executor import note_write
from ..train.io import DataDesc

Array = Any
Target = Any  # one array, or a list of (rows, array) pairs, one a device; rows is a slice, or one for every axis


def describe(item: Any) -> DataDesc:
    """A ``DataDesc`` from one, or from a (name, shape), with type and layout behind it; ShapeError for other things."""
    if isinstance(item, DataDesc):
        return item
    fits = isinstance(item, tuple | list) and len(item) > 1 and isinstance(item[1], Sequence)
    if not fits or not all(isinstance(dim, int | np.integer) and dim >= 0 for dim in item[1]):
        raise ShapeError(f"an input is described by its name and shape, ('data', (32, 10)), but not by {item!r}")
    return DataDesc(*item)


def batch_axis(desc: DataDesc) -> int:
    """Axis of the batch in an input's layout (0 where the layout does not say)."""
    return max(0, DataDesc.get_batch_axis(desc.layout))


def rows_of(axis: int, rows: slice) -> Any:
    """Index that takes ``rows`` on the batch axis: the slice itself for axis 0."""
    return rows if axis == 0 else (*[slice(None)] * axis, rows)


@dataclasses.dataclass(frozen=True)
class Described:
    """Names, shapes, types and layouts of the inputs of a batch: what a group is made from."""

    provide_data: tuple[DataDesc, ...]
    provide_label: tuple[DataDesc, ...]

    @classmethod
    def of(cls, data: Sequence[Any] | None, label: Sequence[Any] | None) -> Described:
        """From what an iterator gives as ``provide_data`` and ``provide_label``; ShapeError without any data."""
        if not data:
            raise ShapeError("a batch must have at least one data array, but none is described")
        return cls(tuple(map(describe, data)), tuple(map(describe, label or ())))

    @property
    def all(self) -> tuple[DataDesc, ...]:
        """Data, then labels."""
        return (*self.provide_data, *self.provide_label)

    @property
    def rows(self) -> int:
        """Rows of the batch."""
        first = self.provide_data[0]
        return int(first.shape[batch_axis(first)])

    def of_batch(self, batch: Any, names: Sequence[Sequence[str] | None] = (None, None)) -> Described:
        """Descriptions of a batch: its own, else these (or those of ``names``) with the shapes of its arrays.

        A batch without labels (inference) has none described. Raises ShapeError for a wrong number of arrays.
        """
        data = _matched("data", batch.data, getattr(batch, "provide_data", None), names[0], self.provide_data)
        if not batch.label:
            return Described(data, ())
        own = getattr(batch, "provide_label", None)
        return Described(data, _matched("label", batch.label, own, names[1], self.provide_label))

    def with_rows(self, rows: int) -> Described:
        """The same inputs with another number of rows."""
        data = tuple(_with_rows(desc, rows) for desc in self.provide_data)
        return Described(data, tuple(_with_rows(desc, rows) for desc in self.provide_label))


def _with_rows(desc: DataDesc, rows: int) -> DataDesc:
    shape = list(desc.shape)
    shape[batch_axis(desc)] = rows
    return DataDesc(desc.name, shape, desc.dtype, desc.layout)


def _matched(
    role: str, arrays: Sequence[Array], own: Sequence[Any] | None, names: Sequence[str] | None,
    default: tuple[DataDesc, ...],
) -> tuple[DataDesc, ...]:  # fmt: skip
    known = tuple(map(describe, own)) if own else default
    if not own and names is not None:
        like = {desc.name: desc for desc in default}
        known = tuple(like.get(name) or DataDesc(name, ()) for name in names)
    if len(arrays) != len(known):
        raise ShapeError(_count(f"{role} arrays", [desc.name for desc in known], arrays))
    if own:
        return known
    return tuple(
        DataDesc(desc.name, _shape(f"'{desc.name}'", array), desc.dtype, desc.layout)
        for desc, array in zip(known, arrays, strict=True)
    )


def _shape(name: str, array: Any) -> tuple[int, ...]:
    if not hasattr(array, "shape"):
        raise BindError(f"{name} of the batch must be an array, but it is a {type(array).__name__}")
    return tuple(array.shape)


def _count(what: str, names: Sequence[str], arrays: Sequence[Array]) -> str:
    listed = f" ({', '.join(names)})" if names else ""
    return f"a batch must have {len(names)} {what}{listed}, but it has {len(arrays)}"


def load_general(data: Sequence[Any] | None, targets: Sequence[Target], names: Sequence[str] = ()) -> None:
    """Copy each array into its target: a whole array, or the rows of every (slice, array) pair; types are cast.

    Raises ShapeError naming the array if counts or shapes differ.
    """
    arrays = list(data or ())
    if len(arrays) != len(targets):
        raise ShapeError(_count("arrays", names or [str(number) for number in range(len(targets))], arrays))
    for number, (array, target) in enumerate(zip(arrays, targets, strict=True)):
        name = f"'{names[number]}'" if number < len(names) else f"array {number}"
        shape = _shape(name, array)
        pieces: list[tuple[Any, Array]] = target if isinstance(target, list) else [(..., target)]
        last = pieces[-1][0]
        axis = len(last) - 1 if isinstance(last, tuple) else 0
        rows = last[-1] if isinstance(last, tuple) else last
        if isinstance(rows, slice) and shape[axis : axis + 1] != (rows.stop,):
            raise ShapeError(
                f"{name} of the batch must have {rows.stop} rows on axis {axis}, but its shape is {format_shape(shape)}"
            )
        for rows, part in pieces:
            source = array[rows]
            if tuple(source.shape) != tuple(part.shape):
                raise ShapeError(
                    f"{name} of the batch must be {format_shape(part.shape)} for this device, "
                    f"but it is {format_shape(source.shape)}"
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


def first_rows(batch: Any, described: Described, rows: int) -> Any:
    """The first ``rows`` rows of a batch's arrays."""

    def cut(items: Sequence[Any], arrays: Sequence[Array] | None) -> list[Array]:
        return [a[rows_of(batch_axis(item), slice(0, rows))] for item, a in zip(items, arrays or (), strict=False)]

    data, label = cut(described.provide_data, batch.data), cut(described.provide_label, batch.label)
    return SimpleNamespace(data=data, label=label)
