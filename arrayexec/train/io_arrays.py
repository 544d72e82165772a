"""Batches of the rows of arrays: in memory, or mapped from a file that is larger than memory."""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from typing import Any

import numpy

from ..context import Array, asnumpy
from ..errors import AttributeValueError, ContextError, ShapeError
from .batch import DataDesc
from .io_rows import RowIter
from .sampler import Rows, ShardedSampler

NARROWED = {numpy.dtype(kind): numpy.dtype(numpy.float32) for kind in (numpy.float64, numpy.int64)}


class ArrayRows(RowIter):
    """Rows of named arrays, handed out in the types of the descriptions."""

    def __init__(
        self, sampler: ShardedSampler, data: list[tuple[str, Any]], label: list[tuple[str, Any]], cast: bool = False
    ) -> None:
        self.data, self.label = data, label

        def described(arrays: list[tuple[str, Any]]) -> list[tuple[str, tuple[int, ...], Any]]:
            types = [array.dtype.newbyteorder("=") for _, array in arrays]
            types = [NARROWED.get(kind, kind) for kind in types] if cast else types
            return [(name, array.shape[1:], kind) for (name, array), kind in zip(arrays, types, strict=True)]

        super().__init__(sampler, described(data), described(label))

    def read(self, rows: Rows) -> tuple[list[Array], list[Array]]:
        """Copies of these rows of every data array and of every label array."""
        first, last = int(rows[0]), int(rows[-1]) + 1
        consecutive = not self.sampler.shuffle and last - first == rows.size
        where: Any = slice(first, last) if consecutive else rows

        def taken(arrays: list[tuple[str, Any]], described: list[DataDesc]) -> list[Array]:
            # A plain array in any case: the rows of a memory map are read here, and only they.
            copy = True if consecutive else None
            pairs = zip(arrays, described, strict=True)
            return [numpy.array(array[where], desc.dtype, order="C", copy=copy) for (_, array), desc in pairs]

        return taken(self.data, self.provide_data), taken(self.label, self.provide_label)


class NDArrayIter(ArrayRows):
    """Batches of the rows of arrays; float64 and int64 become float32.

    data, label: an array, a list of arrays (named ``_0_data``, ``_1_data``, …) or a dict name → array,
    all with the same number of rows. Of a `numpy.memmap` (also ``numpy.load(path, mmap_mode='r')``) only
    the rows of the batch are read, so it may be larger than memory; arrays of other packages are read whole.
    ``last_batch_handle``: ``pad`` fills the last batch up with rows from the beginning and tells their count,
    ``discard`` drops it, ``roll_over`` lets its rows lead the next epoch. ``shuffle`` draws a new order for every
    epoch from ``seed`` (None: the one seed). ``num_shards`` and ``shard_id``: see `ShardedSampler`.

    Raises ShapeError where lengths differ, AttributeValueError for options that mean nothing.
    """

    def __init__(
        self,
        data: Any,
        label: Any = None,
        batch_size: int = 1,
        shuffle: bool = False,
        last_batch_handle: str = "pad",
        data_name: str = "data",
        label_name: str = "softmax_label",
        num_shards: int = 1,
        shard_id: int = 0,
        seed: int | None = None,
    ) -> None:
        who = type(self).__name__
        named_data = _named_arrays(who, data, data_name)
        named_label = [] if label is None else _named_arrays(who, label, label_name)
        if not named_data:
            raise AttributeValueError(f"{who}: data must hold at least one array, but it holds none")
        rows = common_rows(who, named_data + named_label)
        sampler = ShardedSampler(rows, batch_size, num_shards, shard_id, shuffle, last_batch_handle, seed, who)
        super().__init__(sampler, named_data, named_label, cast=True)
        self.shuffle = sampler.shuffle
        self.last_batch_handle = sampler.last_batch_handle


ArrayIter = NDArrayIter


def _named_arrays(who: str, source: Any, default_name: str) -> list[tuple[str, numpy.ndarray[Any, Any]]]:
    """``(name, host array)`` pairs in the order given."""
    if isinstance(source, Mapping):
        pairs = list(source.items())
    elif isinstance(source, (list, tuple)) and (not source or hasattr(source[0], "shape")):
        single = len(source) == 1
        pairs = [(default_name if single else f"_{i}_{default_name}", a) for i, a in enumerate(source)]
    else:
        pairs = [(default_name, source)]
    arrays = []
    for name, value in pairs:
        array = _on_host(who, name, value)
        if array.dtype.kind not in "biuf" or array.ndim == 0:
            raise ShapeError(
                f"{who}: {name!r} must be an array of numbers with rows, but it is {array.dtype} {array.shape}"
            )
        if array.dtype in NARROWED and not _is_mapped(array):
            array = array.astype(NARROWED[array.dtype])
        arrays.append((name, array))
    return arrays


def _on_host(who: str, name: str, value: Any) -> Any:
    """A host array of an array of any device or package, or of a list of numbers."""
    try:
        return asnumpy(value)
    except ContextError as error:
        if not hasattr(value, "__array__"):
            what = type(value).__name__
            raise AttributeValueError(f"{who}: {name!r} must be an array, but it is a {what}") from error
        return numpy.asarray(value)


def _is_mapped(array: Any) -> bool:
    """Whether values lie in a file that is mapped: they are cast batch by batch."""
    while array is not None and not isinstance(array, mmap.mmap):
        array = getattr(array, "base", None)
    return array is not None


def common_rows(who: str, arrays: list[tuple[str, Any]]) -> int:
    """The number of rows that all named arrays have.

    Raises ShapeError unless they agree, AttributeValueError for a name twice.
    """
    lengths = {name: array.shape[0] for name, array in arrays}
    if len(lengths) < len(arrays):
        names = ", ".join(name for name, _ in arrays)
        raise AttributeValueError(f"{who}: the names of data and labels must differ, but they are {names}")
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{name!r} has {rows}" for name, rows in lengths.items())
        raise ShapeError(f"{who}: all arrays must have the same number of rows, but {listed}")
    rows = next(iter(lengths.values()))
    if rows == 0:
        raise ShapeError(f"{who}: the arrays must have at least one row, but they have none")
    return int(rows)
