"""Which axis of an array has the rows of the batch, and pieces of several devices put together along it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..context import Context, asnumpy, copyto
from ..errors import ShapeError
from ..train.io import DataDesc
from .loading import Described, rows_of

Array = Any


def row_axes(symbol: Any, described: Described) -> tuple[dict[str, int | None], list[int | None]]:
    """The axis that grows with the batch: of every argument by name, of every output in order (None: there is none).

    A head's own ``__layout__`` says its axis; a symbol that fits one number of rows only has them on axis 0.
    """
    arguments, outputs = symbol.list_arguments(), symbol.list_outputs()
    try:
        small, large = (_shapes(symbol, described.with_rows(rows)) for rows in (described.rows, 2 * described.rows))
    except ShapeError:
        return dict.fromkeys(arguments, 0), [0] * len(outputs)
    axes = [
        next((i for i, dims in enumerate(zip(*both, strict=True)) if dims[0] != dims[1]), None)
        for both in zip(small, large, strict=True)
    ]
    count = len(arguments)
    return dict(zip(arguments, axes, strict=False)), [
        found if head.attr("__layout__") is None else max(0, DataDesc.get_batch_axis(head.attr("__layout__")))
        for head, found in zip(symbol, axes[count:], strict=True)
    ]


def _shapes(symbol: Any, described: Described) -> list[tuple[int, ...]]:
    names = set(symbol.list_arguments())
    arguments, outputs, _ = symbol.infer_shape_partial(**{i.name: i.shape for i in described.all if i.name in names})
    return [*arguments, *outputs]


def merged(parts: Sequence[Array], axis: int | None, context: Context) -> Array:
    """One array of the pieces of several devices, along ``axis`` (None: 0): a copy on ``context``."""
    parts = [part.reshape(1) if part.ndim == 0 else part for part in parts]
    axis, whole = axis or 0, list(parts[0].shape)
    whole[axis : axis + 1] = [sum(part.shape[axis] for part in parts)]
    result, start = context.empty(tuple(whole), parts[0].dtype, "input"), 0
    for part in parts:
        stop = start + part.shape[axis]
        copyto(result[rows_of(axis, slice(start, stop))], part)
        start = stop
    return result


def first_part(array: Array, axis: int | None, rows: int, of: int) -> Array:
    """A view of what belongs to the first ``rows`` of ``of`` rows; all of it where no axis has rows."""
    if axis is None or array.shape[axis] % of:
        return array
    return array[rows_of(axis, slice(0, array.shape[axis] // of * rows))]


def on_host(arrays: Any) -> Any:
    """Arrays, or lists of arrays, as NumPy arrays."""
    return [on_host(one) for one in arrays] if isinstance(arrays, list) else asnumpy(arrays)
