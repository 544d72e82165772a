"""Iterators over tables of numbers in text files: comma-separated, and sparse rows as LibSVM writes them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy

from ..context import Array
from ..errors import AttributeValueError, FileFormatError, ShapeError
from .io_arrays import ArrayRows
from .io_rows import RowIter
from .sampler import Rows, sampler_of_part

Path = str | os.PathLike[str]


def _files_of(path: Path) -> list[str]:
    """The file, or all files of a folder in the order of their names."""
    text = os.fspath(path)
    if not os.path.isdir(text):
        return [text]
    inside = (os.path.join(text, name) for name in sorted(os.listdir(text)))
    return [name for name in inside if os.path.isfile(name)]


def _lines(path: str) -> Iterator[tuple[int, int, bytes]]:
    """Number, offset and bytes of every line that is not blank."""
    at = 0
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield number, at, line
            at += len(line)


def read_csv(path: Path, columns: int, dtype: Any = numpy.float32) -> Array:
    """The rows of ``columns`` numbers of a file or of all files of a folder; blank lines do not count.

    Raises FileFormatError, with line and offset, for a line that is no such row, and for a file without rows.
    """
    kind = numpy.dtype(dtype)
    tables = []
    for name in _files_of(path):
        if next(_lines(name), None) is None:
            continue
        try:
            with open(name, encoding="utf-8") as file:
                table = numpy.loadtxt(file, kind, comments=None, delimiter=",", ndmin=2)
        except (ValueError, OverflowError) as error:  # UnicodeDecodeError is one, too
            raise _csv_fault(name, columns, kind, error) from error
        if table.shape[1] != columns:
            raise _csv_fault(name, columns, kind, None)
        tables.append(table)
    if not tables:
        raise FileFormatError(f"{os.fspath(path)!r}: there must be at least one row of numbers, but there is none")
    return tables[0] if len(tables) == 1 else numpy.concatenate(tables)


def _csv_fault(path: str, columns: int, kind: numpy.dtype[Any], error: Exception | None) -> FileFormatError:
    """The error that names the first line that is at fault."""
    for number, at, line in _lines(path):
        where = f"{path!r}, line {number} (byte {at})"
        values = line.rstrip(b"\r\n").split(b",")
        if len(values) != columns:
            return FileFormatError(f"{where}: the count of numbers in a row must be {columns}, but it is {len(values)}")
        for place, value in enumerate(values, 1):
            try:
                numpy.array([value.strip()]).astype(kind)
            except (ValueError, OverflowError):
                return FileFormatError(f"{where}: value {place} must be of {kind}, but it is {value[:40]!r}")
    return FileFormatError(f"{path!r} is not a table of {kind}: {error}")


def _shape(who: str, option: str, shape: Any) -> tuple[int, ...]:
    dims = tuple(shape) if isinstance(shape, (list, tuple)) else (shape,)
    if not all(isinstance(dim, (int, numpy.integer)) and dim > 0 for dim in dims):
        raise AttributeValueError(f"{who}: {option} must be a shape of dims >= 1, but it is {shape!r}")
    return tuple(map(int, dims))


def _check_rows(who: str, **counts: int) -> None:
    """ShapeError unless both files, by the names of their options, have as many rows."""
    (data, rows), (label, labels) = counts.items()
    if rows != labels:
        raise ShapeError(
            f"{who}: both files must have the same number of rows, but {data} has {rows} and {label} {labels}"
        )


class CSVIter(ArrayRows):
    """Batches of the rows of a comma-separated file (or of all files of a folder), read into memory at the beginning.

    Every line of ``data_csv`` is one sample of ``data_shape``, every line of ``label_csv`` one label of
    ``label_shape`` ((1,): a number); without ``label_csv`` labels are 0. ``dtype``: of data and label. The
    last batch is filled up with rows from the beginning, which `pad` counts; every epoch begins at the first
    row, whatever ``round_batch`` says. ``num_parts`` and ``part_index``: see `ImageRecordIter`. Nothing is
    read ahead, whatever ``prefetch_buffer`` says.

    Raises FileFormatError, with line and offset, for a line that is no such row, ShapeError where the files
    have different numbers of rows.
    """

    def __init__(
        self,
        data_csv: Path,
        data_shape: Sequence[int],
        batch_size: int,
        label_csv: Path | None = None,
        label_shape: Sequence[int] = (1,),
        round_batch: bool = True,
        dtype: Any = "float32",
        shuffle: bool = False,
        num_parts: int = 1,
        part_index: int = 0,
        seed: int | None = None,
        data_name: str = "data",
        label_name: str = "softmax_label",
        prefetch_buffer: int = 4,
    ) -> None:
        who = type(self).__name__
        shape, label_dims = _shape(who, "data_shape", data_shape), _shape(who, "label_shape", label_shape)
        kind = numpy.dtype(dtype or "float32")
        table = read_csv(data_csv, int(numpy.prod(shape)), kind)
        data = table.reshape(-1, *shape)
        label_dims = () if label_dims == (1,) else label_dims
        if label_csv is None:
            label = numpy.zeros((len(data), *label_dims), kind)
        else:
            label = read_csv(label_csv, int(numpy.prod(label_dims)), kind).reshape(-1, *label_dims)
        _check_rows(who, data_csv=len(data), label_csv=len(label))
        sampler = sampler_of_part(who, len(data), batch_size, num_parts, part_index, shuffle, "pad", seed)
        super().__init__(sampler, [(data_name, data)], [(label_name, label)])


_NUMBER = rb"[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|nan|inf)"
_SPARSE_LINE = re.compile(rb"\s*(%b)((?:[ \t]+\d+:%b)*)\s*" % (_NUMBER, _NUMBER))


class _Sparse:
    """Rows of a LibSVM file: the first number of each line, and what follows it in compressed form."""

    def __init__(self, path: Path, columns: int) -> None:
        heads: list[bytes] = []
        pairs: list[bytes] = []
        counts: list[int] = []
        for name in _files_of(path):
            for number, at, line in _lines(name):
                found = _SPARSE_LINE.fullmatch(line)
                if found is None:
                    raise FileFormatError(
                        f"{name!r}, line {number} (byte {at}): a row must be a number and pairs index:value, but it is "
                        f"{line[:60]!r}"
                    )
                entries = found[2].split()
                last = max((int(entry.partition(b":")[0]) for entry in entries), default=0)
                if last >= columns:
                    raise FileFormatError(
                        f"{name!r}, line {number} (byte {at}): an index must be in 0..{columns - 1}, but one is {last}"
                    )
                heads.append(found[1])
                pairs += entries
                counts.append(len(entries))
        if not heads:
            raise FileFormatError(f"{os.fspath(path)!r}: there must be at least one row, but there is none")
        self.columns = columns
        self.heads = numpy.array(heads).astype(numpy.float32)
        self.starts = numpy.concatenate([[0], numpy.cumsum(counts)])
        flat = numpy.array(b":".join(pairs).split(b":") if pairs else [], "S").reshape(-1, 2)
        self.indices, self.values = flat[:, 0].astype(numpy.intp), flat[:, 1].astype(numpy.float32)

    def dense(self, rows: Rows) -> Array:
        """These rows with their zeros."""
        out = numpy.zeros((rows.size, self.columns), numpy.float32)
        starts, counts = self.starts[rows], self.starts[rows + 1] - self.starts[rows]
        inside = numpy.arange(counts.sum()) - numpy.repeat(numpy.cumsum(counts) - counts, counts)
        entries = numpy.repeat(starts, counts) + inside
        out[numpy.repeat(numpy.arange(rows.size), counts), self.indices[entries]] = self.values[entries]
        return out


class LibSVMIter(RowIter):
    """Dense batches of the sparse rows ``label index:value …`` of a file (or of all files of a folder); indices from 0.

    Rows are kept sparse in memory. With ``label_libsvm``, labels are the sparse rows of that file. The last
    batch is filled up as in `CSVIter`, and ``round_batch`` and ``prefetch_buffer`` change nothing either.

    Raises FileFormatError, with line and offset, for a line that is no such row.
    """

    def __init__(
        self,
        data_libsvm: Path,
        data_shape: Sequence[int],
        batch_size: int,
        label_libsvm: Path | None = None,
        label_shape: Sequence[int] = (1,),
        num_parts: int = 1,
        part_index: int = 0,
        round_batch: bool = True,
        shuffle: bool = False,
        seed: int | None = None,
        data_name: str = "data",
        label_name: str = "softmax_label",
        prefetch_buffer: int = 4,
    ) -> None:
        who = type(self).__name__
        self._data = _Sparse(data_libsvm, self._columns(who, "data_shape", data_shape))
        self._label = None
        if label_libsvm is not None:
            self._label = _Sparse(label_libsvm, self._columns(who, "label_shape", label_shape))
            _check_rows(who, data_libsvm=len(self._data.heads), label_libsvm=len(self._label.heads))
        rows = len(self._data.heads)
        sampler = sampler_of_part(who, rows, batch_size, num_parts, part_index, shuffle, "pad", seed)
        label_dims = () if self._label is None else (self._label.columns,)
        kind = numpy.float32
        super().__init__(sampler, [(data_name, (self._data.columns,), kind)], [(label_name, label_dims, kind)])

    @staticmethod
    def _columns(who: str, option: str, shape: Any) -> int:
        dims = _shape(who, option, shape)
        if len(dims) != 1:
            raise AttributeValueError(f"{who}: {option} must have one dim, but it is {dims}")
        return dims[0]

    def read(self, rows: Rows) -> tuple[list[Array], list[Array]]:
        """These rows, dense."""
        return [self._data.dense(rows)], [self._data.heads[rows] if self._label is None else self._label.dense(rows)]
