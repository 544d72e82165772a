"""Batches for training: their description, the iterator protocol, the rows of a rank.

Sharded iterators: ``batch_size`` given to the constructor counts the rows of the *global* batch. Every
rank sees the same global batches in the same order and takes its own consecutive rows of each, so all
ranks draw the same number of batches and no row is lost or repeated. A batch tells where its rows lie
(`first_row`), how many of them count (`valid`) and how many count on all ranks together (`global_rows`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy

from ..context import Array
from ..errors import AttributeValueError, CheckpointError


class _NameAndShape(NamedTuple):
    name: str
    shape: tuple[int, ...]


class DataDesc(_NameAndShape):
    """Name, shape, element type and layout of an input; unpacks as ``name, shape``.

    Two descriptions are equal when all four agree; one equals a plain tuple when name and shape agree.
    """

    dtype: numpy.dtype[Any]
    layout: str | None

    def __new__(
        cls, name: str, shape: Sequence[int], dtype: Any = numpy.float32, layout: str | None = "NCHW"
    ) -> DataDesc:
        desc = super().__new__(cls, name, tuple(shape))
        desc.dtype = numpy.dtype(dtype)
        desc.layout = layout
        return desc

    def __eq__(self, other: object) -> bool:
        if isinstance(other, DataDesc) and (self.dtype, self.layout) != (other.dtype, other.layout):
            return False
        return tuple(self) == other

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return f"DataDesc({self.name!r}, {self.shape}, dtype={self.dtype}, layout={self.layout!r})"

    @staticmethod
    def get_batch_axis(layout: str | None) -> int:
        """The axis of the rows in a layout such as ``NT`` or ``TNC``: 0 for None, -1 where there is no N."""
        return 0 if layout is None else layout.find("N")

    @staticmethod
    def get_list(
        shapes: Sequence[tuple[str, Sequence[int]]], types: Sequence[tuple[str, Any]] | None = None
    ) -> list[DataDesc]:
        """Descriptions from ``(name, shape)`` pairs and, where given, ``(name, type)`` pairs."""
        known = dict(types or ())
        return [DataDesc(name, shape, known.get(name, numpy.float32)) for name, shape in shapes]


class DataBatch:
    """The arrays of one step. The last ``pad`` rows only fill the batch up and do not count."""

    def __init__(
        self,
        data: Sequence[Array],
        label: Sequence[Array] | None = None,
        pad: int | None = None,
        index: Any = None,
        bucket_key: Any = None,
        provide_data: Sequence[DataDesc] | None = None,
        provide_label: Sequence[DataDesc] | None = None,
        first_row: int = 0,
        global_rows: int | None = None,
    ) -> None:
        for role, arrays in (("data", data), ("label", label)):
            if arrays is not None and not isinstance(arrays, (list, tuple)):
                raise AttributeValueError(
                    f"DataBatch: {role} must be a list of arrays, one for each name, "
                    f"but its type is {type(arrays).__name__}"
                )
        self.data = data
        self.label = label
        self.pad = pad
        self.index = index
        self.bucket_key = bucket_key
        self.provide_data = provide_data
        self.provide_label = provide_label
        self.first_row = first_row
        self._global_rows = global_rows

    @property
    def rows(self) -> int:
        """The rows of this batch, padding included."""
        if not self.data:
            return 0
        layout = getattr(self.provide_data[0], "layout", None) if self.provide_data else None
        return int(self.data[0].shape[max(DataDesc.get_batch_axis(layout), 0)])

    @property
    def valid(self) -> int:
        """The rows of this batch that count."""
        return self.rows - (self.pad or 0)

    @property
    def global_rows(self) -> int:
        """The rows that count in the whole global batch, over all ranks."""
        return self.valid if self._global_rows is None else self._global_rows

    def __repr__(self) -> str:
        def shapes(arrays: Sequence[Array] | None) -> str:
            return "None" if arrays is None else str([tuple(array.shape) for array in arrays])

        bucket = "" if self.bucket_key is None else f", bucket_key={self.bucket_key!r}"
        return f"DataBatch(data={shapes(self.data)}, label={shapes(self.label)}, pad={self.pad}{bucket})"


class DataIter:
    """The protocol of iterators: a subclass gives ``iter_next`` and the ``get…`` methods, or ``next``."""

    provide_data: list[DataDesc]
    provide_label: list[DataDesc]

    def __init__(self, batch_size: int = 0) -> None:
        self.batch_size = batch_size

    def __iter__(self) -> Iterator[DataBatch]:
        return self

    def __next__(self) -> DataBatch:
        return self.next()

    def next(self) -> DataBatch:
        """The next batch; raises StopIteration at the end of the epoch."""
        if not self.iter_next():
            raise StopIteration
        return DataBatch(self.getdata(), self.getlabel(), self.getpad(), self.getindex())

    def reset(self) -> None:
        """Go to the beginning of the next epoch."""

    def iter_next(self) -> bool:
        """Move to the next batch; False at the end of the epoch."""
        raise AttributeValueError(f"{type(self).__name__}: the class must define next() or iter_next()")

    def getdata(self) -> Sequence[Array]:
        """The data arrays of the current batch."""
        raise AttributeValueError(f"{type(self).__name__}: a class with iter_next() must define getdata()")

    def getlabel(self) -> Sequence[Array]:
        """The label arrays of the current batch."""
        return []

    def getpad(self) -> int | None:
        """How many rows at the end of the current batch do not count."""
        return 0

    def getindex(self) -> Any:
        """The numbers of the rows of the current batch in the source, where known."""
        return None

    def get_state(self) -> dict[str, Any]:
        """Where the iterator stands, as numbers, texts, arrays, dicts and lists: what a checkpoint keeps."""
        raise CheckpointError(
            f"{type(self).__name__}: the class must define get_state() and set_state(), so that training can be "
            "resumed in mid-epoch, but it does not"
        )

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go to where `get_state` was called: the identical batches follow."""
        raise CheckpointError(
            f"{type(self).__name__}: the class must define set_state(), so that training can be resumed in "
            "mid-epoch, but it does not"
        )


def split_rows(rows: int, parts: int) -> list[int]:
    """How ``rows`` are divided among ``parts`` ranks: sizes differ by at most 1, the first are larger."""
    size, extra = divmod(rows, parts)
    return [size + (part < extra) for part in range(parts)]


class Shard:
    """The rows of every global batch that one of ``num_shards`` ranks takes: `first`, `size`, `rows`.

    Raises AttributeValueError unless ``0 <= shard_id < num_shards <= batch_size``.
    """

    def __init__(self, who: str, batch_size: int, num_shards: int, shard_id: int) -> None:
        if not isinstance(batch_size, (int, numpy.integer)) or batch_size < 1:
            raise AttributeValueError(f"{who}: batch_size must be an integer >= 1, but it is {batch_size!r}")
        if not 1 <= num_shards <= batch_size:
            raise AttributeValueError(
                f"{who}: with batch_size={batch_size}, num_shards must be in 1..{batch_size}, but it is {num_shards}"
            )
        if not 0 <= shard_id < num_shards:
            raise AttributeValueError(
                f"{who}: with num_shards={num_shards}, shard_id must be in 0..{num_shards - 1}, but it is {shard_id}"
            )
        sizes = split_rows(batch_size, num_shards)
        self.global_size = batch_size
        self.first = sum(sizes[:shard_id])
        self.size = sizes[shard_id]
        self.rows = slice(self.first, self.first + self.size)

    def pad(self, global_pad: int) -> int:
        """How many rows of this shard are among the last ``global_pad`` of the global batch."""
        return min(self.size, max(0, self.first + self.size - (self.global_size - global_pad)))
