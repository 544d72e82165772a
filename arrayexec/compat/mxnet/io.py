"""``mx.io``: the iterators of the engine, whose batches hold NDArrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy

from ...train import io as _core
from ...train.batch import DataBatch, DataDesc, DataIter
from .array import NDArray, unwrap, wrap
from .refused import found_in

__path__: list[str] = []  # programs import from modules inside this one
__all__ = ["DataBatch", "DataDesc", "DataIter", "NDArrayIter"]


class _Handed:
    """An iterator of the engine that hands out NDArrays."""

    def next(self) -> Any:
        """The next batch; raises StopIteration at the end of the epoch."""
        batch = super().next()  # type: ignore[misc]
        batch.data = wrapped(batch.data)
        batch.label = wrapped(batch.label)
        return batch

    def getdata(self) -> Any:
        """The data arrays of the current batch."""
        return wrapped(super().getdata())  # type: ignore[misc]

    def getlabel(self) -> Any:
        """The label arrays of the current batch."""
        return wrapped(super().getlabel())  # type: ignore[misc]


def wrapped(arrays: Any) -> Any:
    """A list of arrays as NDArrays; None as it is."""
    return None if arrays is None else [wrap(array) for array in arrays]


class NDArrayIter(_Handed, _core.NDArrayIter):
    """Batches of the rows of arrays; inputs given as a dict come in the order of their names.

    NDArrays keep their type, everything else comes as float32.
    """

    def __init__(self, data: Any, label: Any = None, *args: Any, layout: str = "NCHW", **keywords: Any) -> None:
        super().__init__(_source(data), _source(label), *args, **keywords)
        for name, given in (("provide_data", data), ("provide_label", label)):
            pairs = zip(getattr(self, name), _items(given), strict=True)
            types = [(desc, desc.dtype if isinstance(one, NDArray) else numpy.float32) for desc, one in pairs]
            setattr(self, name, [DataDesc(desc.name, desc.shape, dtype, layout) for desc, dtype in types])


def _items(given: Any) -> list[Any]:
    """The arrays of a source, in the order in which they come."""
    if isinstance(given, Mapping):
        return [given[name] for name in sorted(given)]
    listed = isinstance(given, list | tuple) and (not given or hasattr(given[0], "shape"))
    return list(given) if listed else [] if given is None else [given]


def _source(given: Any) -> Any:
    plain = unwrap(given)
    return dict(sorted(plain.items())) if isinstance(plain, Mapping) else plain


def __getattr__(name: str) -> Any:
    found = found_in(_core, "io", name, __dir__())
    if isinstance(found, type) and issubclass(found, DataIter):
        found = type(name, (_Handed, found), {"__doc__": found.__doc__})
        globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*__all__, *_core.__all__})
