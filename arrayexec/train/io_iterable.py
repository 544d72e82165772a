"""An iterator over whatever Python can loop over."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import numpy

from ..context import Array, asnumpy
from ..errors import AttributeValueError, CheckpointError, ShapeError, TypeInferenceError
from .batch import DataBatch, DataDesc, DataIter
from .io_arrays import NARROWED
from .options import one_of
from .sampler import check_state

_WHO = "IterableIter"


class IterableIter(DataIter):
    """The batches of a Python iterable: a list, a generator, a loader of another package.

    source: an iterable of batches ``data``, ``(data, label)`` or `DataBatch`, or a function that gives one
    for every epoch (with a parameter, it gets the number of the epoch); a generator lasts one epoch. Data and
    label are an array, a list of arrays (two items are data and label) or a dict name → array, of NumPy or of
    what NumPy can read; float64 and int64 become float32. With ``batch_size``, items are single rows, which
    are collected. A batch with fewer rows than the first is filled up by repeating its own, which `pad`
    counts (``last_batch_handle='discard'``: left out).

    The first batch is drawn at once, to describe it. A state is the epoch and the number of batches: to go
    on from it the source is run up to there. Raises ShapeError for batches that are not alike.
    """

    def __init__(
        self,
        source: Iterable[Any] | Callable[..., Iterable[Any]],
        batch_size: int | None = None,
        data_name: str = "data",
        label_name: str = "softmax_label",
        last_batch_handle: str = "pad",
    ) -> None:
        if not callable(source) and not isinstance(source, Iterable):
            raise AttributeValueError(
                f"{_WHO}: source must be an iterable or a function that gives one, but its type is "
                f"{type(source).__name__}"
            )
        if batch_size is not None and (not isinstance(batch_size, (int, numpy.integer)) or batch_size < 1):
            raise AttributeValueError(f"{_WHO}: batch_size must be None or an integer >= 1, but it is {batch_size!r}")
        self.source = source
        self.last_batch_handle = one_of(_WHO, "last_batch_handle", last_batch_handle, ("pad", "discard"))
        self._collected = batch_size
        self._default_names = {"data": data_name, "label": label_name}
        self._names: dict[str, list[str]] = {}
        self._items: Iterator[Any] | None = None
        self.epoch = 0
        self.batch = 0  # how many of this epoch have been handed out
        first = self._drawn()
        if first is None:
            raise ShapeError(f"{_WHO}: the source must give at least one batch, but it gives none")
        if any(array.ndim == 0 for array in (*first.data, *(first.label or ()))):
            raise ShapeError(f"{_WHO}: arrays of a batch must have rows; if items are single rows give batch_size=")
        self._peeked: DataBatch | None = first
        super().__init__(first.rows if batch_size is None else int(batch_size))
        self.provide_data = self._described("data", first.data)
        self.provide_label = self._described("label", first.label or [])

    def _described(self, role: str, arrays: Any) -> list[DataDesc]:
        pairs = zip(self._names.get(role, []), arrays, strict=True)
        return [DataDesc(name, (self.batch_size, *array.shape[1:]), array.dtype) for name, array in pairs]

    def reset(self) -> None:
        """Go to the beginning of the next epoch; an iterator that has not moved stays where it is."""
        if self.batch or self._peeked is None:
            self._restart(self.epoch + 1)

    def _restart(self, epoch: int) -> None:
        self.epoch, self.batch, self._items, self._peeked = epoch, 0, None, None

    def _begun(self) -> Iterator[Any]:
        made: Any = self.source
        if callable(made):
            made = made(self.epoch) if _takes_one(made) else made()
        elif iter(made) is made and self._names:
            raise AttributeValueError(
                f"{_WHO}: a {type(made).__name__} lasts one epoch, which has been drawn; give a function that makes one"
            )
        return iter(made)

    def next(self) -> DataBatch:
        """The next batch; raises StopIteration at the end of the epoch, ShapeError for a batch unlike the first."""
        batch, self._peeked = self._peeked or self._drawn(), None
        while batch is not None and batch.rows < self.batch_size and self.last_batch_handle == "discard":
            batch = self._drawn()
        if batch is None:
            raise StopIteration
        if batch.bucket_key is None:
            self._check(batch)
        self.batch += 1
        return self._full(batch)

    def _check(self, batch: DataBatch) -> None:
        for descs, arrays in ((self.provide_data, batch.data), (self.provide_label, batch.label or [])):
            found = [(array.shape[1:], array.dtype) for array in arrays]
            wanted = [(desc.shape[1:], desc.dtype) for desc in descs]
            rows = {array.shape[0] for array in arrays} - {batch.rows}
            if found != wanted or rows or batch.rows > self.batch_size:
                shown = ", ".join(f"{array.dtype} {array.shape}" for array in arrays) or "nothing"
                told = ", ".join(f"{desc.name} {desc.dtype} {desc.shape}" for desc in descs) or "nothing"
                raise ShapeError(
                    f"{_WHO}: all batches must be like the first, {told} (or fewer rows), but batch {self.batch} of "
                    f"epoch {self.epoch} has {shown}"
                )

    def _full(self, batch: DataBatch) -> DataBatch:
        rows = batch.rows
        if batch.bucket_key is not None or rows == self.batch_size:
            return batch
        where = numpy.arange(self.batch_size) % rows
        return DataBatch(
            [array[where] for array in batch.data],
            [array[where] for array in batch.label or ()],
            self.batch_size - batch.valid,
            None if batch.index is None else numpy.asarray(batch.index)[where],
        )

    def _drawn(self) -> DataBatch | None:
        if self._items is None:
            self._items = self._begun()
        if self._collected is None:
            item = next(self._items, None)
            return None if item is None else self._batch_of(item)
        rows = [self._batch_of(row) for row in islice(self._items, self._collected)]
        if not rows:
            return None
        try:
            data = [numpy.stack(arrays) for arrays in zip(*(row.data for row in rows), strict=True)]
            label = [numpy.stack(arrays) for arrays in zip(*(row.label or () for row in rows), strict=True)]
        except ValueError as error:
            raise ShapeError(f"{_WHO}: all rows must be alike, but: {error}") from error
        return DataBatch(data, label, 0)

    def _batch_of(self, item: Any) -> DataBatch:
        if isinstance(item, DataBatch):
            for role, descs in (("data", item.provide_data), ("label", item.provide_label)):
                given = list((item.data if role == "data" else item.label) or [])
                self._arrays(role, dict(zip([desc.name for desc in descs], given, strict=True)) if descs else given)
            return item
        data, label = item if isinstance(item, (tuple, list)) and len(item) == 2 else (item, None)
        return DataBatch(self._arrays("data", data), [] if label is None else self._arrays("label", label), 0)

    def _arrays(self, role: str, given: Any) -> list[Array]:
        """Arrays in the order of the names, which the first item tells."""
        if isinstance(given, Mapping):
            names = self._names.setdefault(role, list(given))
            if set(names) != set(given):
                has = ", ".join(map(str, given))
                raise ShapeError(f"{_WHO}: {role} must have {', '.join(names)}, but it has {has}")
            return [_plain(role, given[name]) for name in names]
        values = given if isinstance(given, (list, tuple)) and not _is_row(given) else [given]
        default = self._default_names[role]
        self._names.setdefault(role, [default] if len(values) == 1 else [f"_{i}_{default}" for i in range(len(values))])
        return [_plain(role, value) for value in values]

    def get_state(self) -> dict[str, Any]:
        """The epoch and how many of its batches have been handed out."""
        return {"epoch": self.epoch, "batch": self.batch, "batch_size": self.batch_size}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Run the source up to where `get_state` was called. CheckpointError where it has fewer batches."""
        check_state(_WHO, state, ("epoch", "batch"), {"batch_size": self.batch_size})
        epoch, batch = int(state["epoch"]), int(state["batch"])
        if epoch != self.epoch or batch < self.batch:
            self._restart(epoch)
        while self.batch < batch:
            if next(self, None) is None:
                raise CheckpointError(
                    f"{_WHO}: the source must have {batch} batches in epoch {epoch}, as the state says, but it has "
                    f"{self.batch}"
                )


def _takes_one(function: Callable[..., Any]) -> bool:
    """Whether a function wants the number of the epoch."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # some built-in ones do not tell
        return False
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return any(p.kind in by_position and p.default is p.empty for p in parameters)


def _is_row(given: Any) -> bool:
    """Whether a list or tuple is itself one array: of numbers."""
    return bool(given) and isinstance(given[0], (int, float, numpy.number))


def _plain(role: str, value: Any) -> Array:
    for method in ("detach", "cpu"):  # tensors that follow gradients, or lie on a device
        value = getattr(value, method)() if hasattr(value, method) else value
    array = asnumpy(value) if hasattr(value, "__cuda_array_interface__") else numpy.asarray(value)
    if array.dtype.kind not in "biuf":
        raise TypeInferenceError(f"{_WHO}: {role} must be arrays of numbers, but one is {array.dtype} {array.shape}")
    return array.astype(NARROWED.get(array.dtype, array.dtype), copy=False)
