"""Batches for training: their description, the iterator protocol, iterators over arrays and around iterators.

Sharded iterators: ``batch_size`` given to the constructor counts the rows of the *global* batch. Every
rank sees the same global batches in the same order and takes its own consecutive rows of each, so all
ranks draw the same number of batches and no row is lost or repeated. A batch tells where its rows lie
(`first_row`), how many of them count (`valid`) and how many count on all ranks together (`global_rows`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy

from ..context import Array, asnumpy
from ..errors import AttributeValueError, ShapeError, UnknownNameError, near_miss
from . import random
from .options import one_of

if TYPE_CHECKING:
    from concurrent.futures import Future


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
        self, data: Sequence[Array], label: Sequence[Array] | None = None, pad: int | None = None,
        index: Any = None, bucket_key: Any = None, provide_data: Sequence[DataDesc] | None = None,
        provide_label: Sequence[DataDesc] | None = None, first_row: int = 0, global_rows: int | None = None,
    ) -> None:
        for role, arrays in (("data", data), ("label", label)):
            if arrays is not None and not isinstance(arrays, (list, tuple)):
                raise AttributeValueError(
                    f"DataBatch: {role} must be a list of arrays, one for each name, "
                    f"but it is a {type(arrays).__name__}"
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


def split_rows(rows: int, parts: int) -> list[int]:
    """How ``rows`` are divided among ``parts`` ranks: sizes differ by at most 1, the first are larger."""
    size, extra = divmod(rows, parts)
    return [size + (part < extra) for part in range(parts)]


class Shard:
    """The rows of every global batch that one of ``num_shards`` ranks takes: `first`, `size`, `rows`.

    Raises AttributeValueError unless ``0 <= shard_id < num_shards <= batch_size``.
    """

    def __init__(self, who: str, batch_size: int, num_shards: int, shard_id: int) -> None:
        if batch_size < 1:
            raise AttributeValueError(f"{who}: batch_size must be at least 1, but it is {batch_size}")
        if not 1 <= num_shards <= batch_size:
            raise AttributeValueError(
                f"{who}: a global batch of {batch_size} rows can be divided among 1 to {batch_size} shards, "
                f"but num_shards is {num_shards}"
            )
        if not 0 <= shard_id < num_shards:
            raise AttributeValueError(
                f"{who}: with num_shards={num_shards}, shard_id must be in 0..{num_shards - 1}, "
                f"but it is {shard_id}"
            )
        sizes = split_rows(batch_size, num_shards)
        self.global_size = batch_size
        self.first = sum(sizes[:shard_id])
        self.size = sizes[shard_id]
        self.rows = slice(self.first, self.first + self.size)

    def pad(self, global_pad: int) -> int:
        """How many rows of this shard are among the last ``global_pad`` of the global batch."""
        return min(self.size, max(0, self.first + self.size - (self.global_size - global_pad)))


class NDArrayIter(DataIter):
    """Batches of the rows of arrays that lie in memory; float64 and int64 become float32.

    data, label: an array, a list of arrays (named ``_0_data``, ``_1_data``, …) or a dict name → array,
    all with the same number of rows. last_batch_handle: ``pad`` fills the last batch up with rows from
    the beginning and tells their count, ``discard`` drops it, ``roll_over`` lets its rows lead the next
    epoch. ``shuffle`` draws a new order for every epoch from the one seed. ``num_shards`` and
    ``shard_id``: see the module.

    Raises ShapeError where lengths differ, AttributeValueError for options that mean nothing.
    """

    def __init__(
        self, data: Any, label: Any = None, batch_size: int = 1, shuffle: bool = False,
        last_batch_handle: str = "pad", data_name: str = "data", label_name: str = "softmax_label",
        num_shards: int = 1, shard_id: int = 0,
    ) -> None:
        who = type(self).__name__
        self.data = _named_arrays(who, data, data_name)
        self.label = [] if label is None else _named_arrays(who, label, label_name)
        if not self.data:
            raise AttributeValueError(f"{who}: data must hold at least one array")
        self.num_data = _common_rows(who, self.data + self.label)
        self.shard = Shard(who, batch_size, num_shards, shard_id)
        super().__init__(self.shard.size)
        self.shuffle = shuffle
        self.last_batch_handle = one_of(
            who, "last_batch_handle", last_batch_handle, ("pad", "discard", "roll_over")
        )
        self.epoch = 0
        self.hard_reset()

    @property
    def provide_data(self) -> list[DataDesc]:  # type: ignore[override]
        """Name, shape (with the rows of this shard) and type of every data array."""
        return self._describe(self.data)

    @property
    def provide_label(self) -> list[DataDesc]:  # type: ignore[override]
        """Name, shape (with the rows of this shard) and type of every label array."""
        return self._describe(self.label)

    @property
    def num_batches(self) -> int:
        """The batches of the current epoch; the same on all shards."""
        rows = self._held.size + self.num_data
        size = self.shard.global_size
        return -(-rows // size) if self.last_batch_handle == "pad" else rows // size

    def hard_reset(self) -> None:
        """Go to the beginning of the current epoch and forget rows that were held over."""
        self._held = numpy.empty(0, numpy.intp)
        self._order: numpy.ndarray[Any, Any] | None = None
        self._batch = -1

    def reset(self) -> None:
        """Go to the beginning of the next epoch; an iterator that has not moved stays where it is."""
        if self._batch < 0:
            return
        held = self._held[:0]
        if self.last_batch_handle == "roll_over" and self._batch >= self.num_batches:
            held = self._rows_of_epoch()[self.num_batches * self.shard.global_size :]
        self.hard_reset()
        self._held = held
        self.epoch += 1

    def iter_next(self) -> bool:
        """Move to the next batch; False at the end of the epoch."""
        self._batch = min(self._batch + 1, self.num_batches)
        return self._batch < self.num_batches

    def next(self) -> DataBatch:
        """The next batch of this shard; raises StopIteration at the end of the epoch."""
        if not self.iter_next():
            raise StopIteration
        return DataBatch(
            self.getdata(), self.getlabel(), self.getpad(), self.getindex(), provide_data=self.provide_data,
            provide_label=self.provide_label, first_row=self.shard.first,
            global_rows=self.shard.global_size - self._global_pad(),
        )

    def getdata(self) -> list[Array]:
        """Copies of this shard's rows of every data array."""
        rows = self.getindex()
        return [array[rows] for _, array in self.data]

    def getlabel(self) -> list[Array]:
        """Copies of this shard's rows of every label array."""
        rows = self.getindex()
        return [array[rows] for _, array in self.label]

    def getpad(self) -> int:
        """How many rows at the end of this shard's batch only fill it up."""
        return self.shard.pad(self._global_pad())

    def getindex(self) -> numpy.ndarray[Any, Any]:
        """The numbers of the rows of the current batch in the arrays, those of the padding included."""
        rows = self._rows_of_epoch()
        start = self._batch * self.shard.global_size
        wanted = numpy.arange(start, start + self.shard.global_size)[self.shard.rows]
        return rows[wanted % rows.size]

    def _global_pad(self) -> int:
        end = (self._batch + 1) * self.shard.global_size
        return max(0, end - self._held.size - self.num_data)

    def _rows_of_epoch(self) -> numpy.ndarray[Any, Any]:
        # Drawn when first needed: a seed set after the iterator was made counts.
        if self._order is None:
            fresh = numpy.arange(self.num_data)
            if self.shuffle:
                random.generator("iterator", self.epoch).shuffle(fresh)
            self._order = numpy.concatenate([self._held, fresh])
        return self._order

    def _describe(self, arrays: list[tuple[str, Any]]) -> list[DataDesc]:
        return [DataDesc(name, (self.batch_size, *array.shape[1:]), array.dtype) for name, array in arrays]


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
        array = asnumpy(value)
        if array.dtype.kind not in "biuf" or array.ndim == 0:
            raise ShapeError(
                f"{who}: {name!r} must be an array of numbers with rows, "
                f"but it is {array.dtype} {array.shape}"
            )
        if array.dtype in (numpy.float64, numpy.int64):
            array = array.astype(numpy.float32)
        arrays.append((name, array))
    return arrays


def _common_rows(who: str, arrays: list[tuple[str, Any]]) -> int:
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


class _Wrapper(DataIter):
    """An iterator that hands on the batches of others; a subclass gives ``iter_next``."""

    current_batch: DataBatch

    def next(self) -> DataBatch:
        """The next batch; raises StopIteration at the end of the epoch."""
        if not self.iter_next():
            raise StopIteration
        return self.current_batch

    def getdata(self) -> Sequence[Array]:
        """The data arrays of the current batch."""
        return self.current_batch.data

    def getlabel(self) -> Sequence[Array]:
        """The label arrays of the current batch."""
        return self.current_batch.label or []

    def getpad(self) -> int | None:
        """How many rows at the end of the current batch do not count."""
        return self.current_batch.pad

    def getindex(self) -> Any:
        """The numbers of the rows of the current batch in the source, where known."""
        return self.current_batch.index


class ResizeIter(_Wrapper):
    """Epochs of exactly ``size`` batches of another iterator, which is reset whenever it ends.

    With ``reset_internal`` every epoch starts at its beginning, otherwise where the last one stopped.
    """

    def __init__(self, data_iter: DataIter, size: int, reset_internal: bool = True) -> None:
        super().__init__(data_iter.batch_size)
        self.data_iter = data_iter
        self.size = size
        self.reset_internal = reset_internal
        self.cur = 0
        self.provide_data = data_iter.provide_data
        self.provide_label = data_iter.provide_label
        for name in ("buckets", "default_bucket_key"):
            if hasattr(data_iter, name):
                setattr(self, name, getattr(data_iter, name))

    def reset(self) -> None:
        """Begin the next epoch."""
        self.cur = 0
        if self.reset_internal:
            self.data_iter.reset()

    def iter_next(self) -> bool:
        """Move to the next batch; False after ``size`` of them."""
        if self.cur >= self.size:
            return False
        batch = next(self.data_iter, None)
        if batch is None:
            self.data_iter.reset()
            batch = next(self.data_iter, None)
        if batch is None:
            raise AttributeValueError(
                f"ResizeIter: the {type(self.data_iter).__name__} inside must give a batch after reset(), "
                "but it gives none"
            )
        self.current_batch = batch
        self.cur += 1
        return True


class PrefetchingIter(_Wrapper):
    """The batches of one or several iterators, each drawn one step ahead on a thread of its own.

    Data and labels of several iterators are joined in order; ``rename_data`` and ``rename_label`` (one
    dict for each iterator) give names to them. What an iterator raises on its thread is raised by
    ``next()``.
    """

    def __init__(
        self,
        iters: DataIter | Sequence[DataIter],
        rename_data: Sequence[Mapping[str, str]] | None = None,
        rename_label: Sequence[Mapping[str, str]] | None = None,
    ) -> None:
        self.iters = [iters] if isinstance(iters, DataIter) else list(iters)
        if not self.iters:
            raise AttributeValueError("PrefetchingIter: at least one iterator is needed")
        super().__init__(self.iters[0].batch_size)
        self.provide_data = _renamed([it.provide_data for it in self.iters], rename_data, "rename_data")
        self.provide_label = _renamed([it.provide_label for it in self.iters], rename_label, "rename_label")
        for name in ("buckets", "default_bucket_key"):
            if hasattr(self.iters[0], name):
                setattr(self, name, getattr(self.iters[0], name))
        self._pending: list[Future[DataBatch | None]] = []

    def reset(self) -> None:
        """Drop what was drawn ahead and reset every iterator."""
        for future in self._pending:
            future.exception()  # waits; a fault of a batch that nobody asked for is no matter
        self._pending = []
        for iterator in self.iters:
            iterator.reset()

    def iter_next(self) -> bool:
        """Move to the next batch; False at the end of the epoch.

        Raises what an iterator raised on its thread, and ShapeError where several iterators do not keep step.
        """
        pending = self._pending or self._draw()
        self._pending = []
        batches = [future.result() for future in pending]
        present = [batch for batch in batches if batch is not None]
        if not present:
            return False
        if len(present) < len(batches):
            raise ShapeError("PrefetchingIter: all iterators must have the same number of batches")
        if len({batch.pad for batch in present}) > 1:
            raise ShapeError(
                "PrefetchingIter: all iterators must pad alike, but a batch has the pads "
                f"{[batch.pad for batch in present]}"
            )
        self.current_batch = present[0] if len(present) == 1 else self._joined(present)
        self._pending = self._draw()
        return True

    def _draw(self) -> list[Future[DataBatch | None]]:
        return [_next_on_thread(iterator) for iterator in self.iters]

    def _joined(self, batches: list[DataBatch]) -> DataBatch:
        first = batches[0]
        return DataBatch(
            [array for batch in batches for array in batch.data],
            [array for batch in batches for array in batch.label or ()], first.pad, first.index,
            first.bucket_key, self.provide_data, self.provide_label, first.first_row, first.global_rows,
        )


def _next_on_thread(iterator: DataIter) -> Future[DataBatch | None]:
    """The next batch, or None at the end, drawn on a thread that never holds up the end of the program."""
    import threading
    from concurrent.futures import Future

    drawn: Future[DataBatch | None] = Future()

    def draw() -> None:
        try:
            drawn.set_result(next(iterator, None))
        except BaseException as error:
            drawn.set_exception(error)

    threading.Thread(target=draw, name="prefetch", daemon=True).start()
    return drawn


def _renamed(
    described: list[list[DataDesc]], names: Sequence[Mapping[str, str]] | None, option: str
) -> list[DataDesc]:
    if names is None:
        return [desc for descs in described for desc in descs]
    if len(names) != len(described):
        raise AttributeValueError(
            f"PrefetchingIter: {option} must have one dict for each of the {len(described)} iterators, "
            f"but it has {len(names)}"
        )
    renamed = []
    for descs, mapping in zip(described, names, strict=True):
        for name in mapping:
            if name not in (known := [desc.name for desc in descs]):
                raise UnknownNameError(
                    f"PrefetchingIter: {option} must name inputs of its iterator, but names {name!r}"
                    + near_miss(name, known)
                )
        renamed += [
            DataDesc(mapping.get(desc.name, desc.name), desc.shape, desc.dtype, desc.layout) for desc in descs
        ]
    return renamed
