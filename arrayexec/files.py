"""Bytes to named arrays and back: MXNet's ``.params`` of every generation, and NumPy's npz. No graph.

A file is not trusted: each length that it states is compared with the bytes that are there before
anything is allocated, nothing is unpickled, and every refusal names the offset and what it holds.
"""

from __future__ import annotations

import contextlib
import math
import os
import struct
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO, Never

import numpy

from .context import asnumpy
from .errors import ArgumentError, FileFormatError, ShapeError

Array = numpy.ndarray[Any, Any]
Path = str | os.PathLike[str]

_FILE_MAGIC = 0x112
_V1, _V2, _V3 = 0xF993FAC8, 0xF993FAC9, 0xF993FACA
_DENSE, _ROW_SPARSE, _CSR = 0, 1, 2
_MAX_RANK = 32
_TYPES = {0: "<f4", 1: "<f8", 2: "<f2", 3: "u1", 4: "<i4", 5: "i1", 6: "<i8", 7: "?"}
_CODES = {numpy.dtype(text): code for code, text in _TYPES.items()}
_BFLOAT16 = 12
_DENSE_LIMIT = 4 << 30  # a sparse array may be larger than its file; past this it is refused
_DEFLATE_RATIO = 1032  # no deflate stream grows by more


def load(path: Path) -> dict[str, Array | None] | list[Array | None]:
    """The arrays of a ``.params`` or npz file: a dict in the file's order, or a list where it has no names.

    Sparse arrays come dense and bfloat16 as float32 (each value exactly); an empty slot of MXNet's is None.
    Raises FileFormatError, with the offset, for anything that is not such a file in whole.
    """
    path = _text("load", path)
    with open(path, "rb") as file:
        start = file.read(4)
        file.seek(0)
        if start == b"PK\x03\x04":
            return _load_npz(file, path)
        return _ParamsReader(file, path).read()


def save(path: Path, arrays: Mapping[str, Any] | Sequence[Any]) -> None:
    """Write arrays of any device: npz if the path ends so, else ``.params`` (bytes as MXNet 1.9 writes them).

    npz holds bfloat16 as float32.
    The file appears whole or not at all. Raises FileFormatError for a type or name that the format does not
    have and ShapeError for a 0-d array.
    """
    target = _text("save", path)
    if not isinstance(arrays, (Mapping, Sequence)):
        raise ArgumentError(f"save {target!r}: arrays must stand in a dict or a list, not in {type(arrays).__name__}")
    names, given = (list(arrays), arrays.values()) if isinstance(arrays, Mapping) else ([], arrays)
    values = [None if array is None else asnumpy(array) for array in given]
    for name in names:
        if not isinstance(name, str):
            raise FileFormatError(f"save {target!r}: names must be texts, but one is {name!r}")
    with _replacing(target) as file:
        if target.endswith(".npz"):
            _save_npz(file, target, names or [f"arr_{i}" for i in range(len(values))], values)
        else:
            _save_params(file, target, names, values)


def _text(call: str, path: Any) -> str:
    if not isinstance(path, (str, os.PathLike)):  # a number would be a file that is open already
        raise ArgumentError(f"{call}: the path must be a text or a Path, but it is {path!r}")
    return os.fspath(path)


class _ParamsReader:
    """One pass over a ``.params`` file; every read says what it is about to read."""

    def __init__(self, file: BinaryIO, path: str) -> None:
        self.file = file
        self.path = path
        self.size = os.fstat(file.fileno()).st_size
        self.item = ""
        self.at = 0  # where what was read last begins

    def fail(self, fact: str) -> Never:
        raise FileFormatError(f"{self.path!r}, byte {self.at}{self.item}: {fact}")

    def need(self, nbytes: int, what: str) -> None:
        """The file must have ``nbytes`` more bytes, which are read next."""
        self.at = self.file.tell()
        if nbytes > self.size - self.at:
            self.fail(
                f"{nbytes} bytes must follow for {what}, but the file ends after {self.size - self.at} (truncated?)"
            )

    def number(self, form: str, what: str) -> int:
        width = struct.calcsize("<" + form)
        self.need(width, what)
        return int(struct.unpack("<" + form, self.file.read(width))[0])

    def count(self, what: str, least: int) -> int:
        """A 64-bit count of things that take at least ``least`` bytes each."""
        count, left = self.number("Q", what), self.size - self.file.tell()
        if count * least > left:
            self.fail(f"{what} is {count}, but only {left} bytes follow")
        return count

    def read(self) -> dict[str, Array | None] | list[Array | None]:
        magic = self.number("Q", "the magic number")
        if magic != _FILE_MAGIC:
            self.fail(f"a .params file begins with {_FILE_MAGIC:#x}, but this one with {magic:#x}")
        self.number("Q", "the reserved word")
        arrays = []
        for i in range(self.count("the number of arrays", 4)):
            self.item = f" (array {i})"
            arrays.append(self.array())
        self.item = ""
        number = self.count("the number of names", 8)
        if number not in (0, len(arrays)):
            self.fail(f"there must be 0 or {len(arrays)} names, one for each array, but there are {number}")
        named: dict[str, Array | None] = {}
        for i in range(number):
            self.item = f" (name {i})"
            name = self.text()
            if name in named:
                self.fail(f"names must differ, but {name!r} occurs twice")
            named[name] = arrays[i]
        self.item, self.at = "", self.file.tell()
        if self.at != self.size:
            self.fail(f"the file must end here, but {self.size - self.at} bytes follow")
        return named or arrays

    def text(self) -> str:
        length = self.count("the length of the name", 1)
        self.need(length, "the name")
        raw = self.file.read(length)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            self.fail(f"names must be UTF-8 text, but this one is {raw[:40]!r}")

    def array(self) -> Array | None:
        offset = self.file.tell()
        magic = self.number("I", "the array's magic number")
        if magic in (_V2, _V3):
            kind = self.number("i", "the storage type")
            if kind not in (_DENSE, _ROW_SPARSE, _CSR):
                self.fail(f"the storage type must be 0 (dense), 1 (row-sparse) or 2 (CSR), but it is {kind}")
            stored = self.shape("the stored shape") if kind != _DENSE else None
            shape = self.shape("the shape", unknown_allowed=magic == _V3)
        elif magic == _V1:
            kind, stored, shape = _DENSE, None, self.shape("the shape")
        elif magic <= _MAX_RANK:  # the oldest layout has no magic: this is the rank, and dims are 32-bit
            kind, stored = _DENSE, None
            shape = tuple(self.number("I", "a dim") for _ in range(magic))
        else:
            known = f"a rank up to {_MAX_RANK} or {_V1:#x} to {_V3:#x}"
            self.fail(f"an array begins with {known}, but here is {magic:#x}")
        if shape is None or (shape == () and magic != _V3):
            return None
        self.need(8, "the device")
        self.file.read(8)  # written by a GPU or not: the values are read into host memory
        code = self.type_code("the element type")
        if kind == _DENSE:
            return self.values(shape, code, "the values")
        auxiliary = [(self.type_code("an index type"), self.shape("an index shape")) for _ in range(kind)]
        values = self.values(stored or (), code, "the stored values")
        indices = [self.values(dims or (), kind_of_index, "the indices") for kind_of_index, dims in auxiliary]
        self.at = offset
        return self.dense(shape, values, indices)

    def shape(self, what: str, unknown_allowed: bool = False) -> tuple[int, ...] | None:
        rank = self.number("i", f"the rank of {what}")
        if rank == -1 and unknown_allowed:
            return None
        if not 0 <= rank <= _MAX_RANK:
            self.fail(f"the rank of {what} must be 0 to {_MAX_RANK}, but it is {rank}")
        dims = tuple(self.number("q", f"a dim of {what}") for _ in range(rank))
        if any(dim < 0 for dim in dims):
            self.at -= 8 * (rank - 1)
            self.fail(f"the dims of {what} must be >= 0, but they are {dims}")
        return dims

    def type_code(self, what: str) -> int:
        code = self.number("i", what)
        if code not in _TYPES and code != _BFLOAT16:
            self.fail(f"{what} must be one of the codes 0 to 7 and 12, but it is {code}")
        return code

    def values(self, shape: tuple[int, ...], code: int, what: str) -> Array:
        kind = numpy.dtype("<u2" if code == _BFLOAT16 else _TYPES[code])
        count = math.prod(shape)
        self.need(count * kind.itemsize, f"{what} ({kind} {shape})")
        array = numpy.empty(count, kind)
        self.file.readinto(array.view(numpy.uint8))  # type: ignore[attr-defined]
        array = array.astype(kind.newbyteorder("="), copy=False)
        if code == _BFLOAT16:
            array = (array.astype(numpy.uint32) << 16).view(numpy.float32)
        try:
            return array.reshape(shape)
        except ValueError:  # 0 elements, and dims that no array can have
            self.fail(f"{what} cannot have the shape {shape}")

    def dense(self, shape: tuple[int, ...], values: Array, indices: list[Array]) -> Array:
        """A row-sparse (indices) or CSR (row starts, columns) array, its zeros filled in."""
        if len(shape) != 2 and (shape == () or len(indices) == 2):
            self.fail(f"a sparse array cannot have the shape {shape}")
        if math.prod(shape) * values.itemsize > _DENSE_LIMIT:
            self.fail(f"a sparse array {shape} takes more than {_DENSE_LIMIT} bytes when dense")
        if any(index.dtype.kind not in "iu" or index.ndim != 1 for index in indices):
            self.fail("the indices of a sparse array must be flat and of an integer type")
        out = numpy.zeros(shape, values.dtype)
        if len(indices) == 1:
            (rows,) = indices
            self.check_index(rows, shape[0])
            if values.shape != (rows.size, *shape[1:]):
                self.fail(f"{rows.size} rows of {shape} cannot be stored as {values.shape}")
            out[rows] = values
            return out
        starts, columns = indices
        if values.shape != columns.shape or starts.size != shape[0] + 1:
            stored = f"{starts.size} row starts, {columns.size} columns and values {values.shape}"
            self.fail(f"{stored} do not make a CSR array {shape}")
        self.check_index(columns, shape[1])
        lengths = numpy.diff(starts)
        if starts[0] != 0 or starts[-1] != columns.size or (lengths < 0).any():
            self.fail(f"row starts must rise from 0 to {columns.size}, but they are {starts[:8]}")
        out[numpy.repeat(numpy.arange(shape[0]), lengths), columns] = values
        return out

    def check_index(self, index: Array, end: int) -> None:
        if index.size and (index.min() < 0 or index.max() >= end):
            self.fail(f"indices must be 0 to {end - 1}, but they are {index.min()} to {index.max()}")


def _is_bfloat16(array: Array) -> bool:
    """Whether values are of the type that another package brings."""
    return bool(array.dtype.name == "bfloat16")


def _save_params(file: BinaryIO, path: str, names: list[str], arrays: list[Array | None]) -> None:
    file.write(struct.pack("<QQQ", _FILE_MAGIC, 0, len(arrays)))
    for i, array in enumerate(arrays):
        if array is None:
            file.write(struct.pack("<Iii", _V2, _DENSE, 0))
            continue
        label = f"array {names[i]!r}" if names else f"array {i}"
        code = _BFLOAT16 if _is_bfloat16(array) else _CODES.get(array.dtype.newbyteorder("<"))
        if code is None:
            known = ", ".join(map(str, _CODES))
            raise FileFormatError(
                f"save {path!r}: {label} must be one of {known}, but it is {array.dtype}; .npz has more"
            )
        if array.ndim == 0:
            raise ShapeError(f"save {path!r}: {label} must have a dim, but it is 0-d; reshape it to (1,)")
        file.write(struct.pack(f"<Iii{array.ndim}q", _V2, _DENSE, array.ndim, *array.shape))
        file.write(struct.pack("<iii", 1, 0, code))  # cpu(0)
        bits = array.view(numpy.uint16) if code == _BFLOAT16 else array
        flat = numpy.ascontiguousarray(bits, bits.dtype.newbyteorder("<")).reshape(-1)
        file.write(flat.view(numpy.uint8).data)
    file.write(struct.pack("<Q", len(names)))
    for name in names:
        raw = name.encode()
        file.write(struct.pack("<Q", len(raw)) + raw)


def _load_npz(file: BinaryIO, path: str) -> dict[str, Array | None]:
    arrays: dict[str, Array | None] = {}
    try:
        with zipfile.ZipFile(file) as archive:
            for entry in archive.infolist():
                name = entry.filename.removesuffix(".npy")
                if name in arrays:
                    raise FileFormatError(f"{path!r}: names must differ, but {name!r} occurs twice")
                arrays[name] = _load_npy(archive, entry, path)
    except (zipfile.BadZipFile, EOFError, ValueError, NotImplementedError, RuntimeError, OSError) as error:
        if isinstance(error, FileFormatError):
            raise
        raise FileFormatError(f"{path!r} is not a whole npz file: {error}") from error
    return arrays


def _load_npy(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, path: str) -> Array:
    where = f"{path!r}, member {entry.filename!r} at byte {entry.header_offset}"
    with archive.open(entry) as member:
        npy = numpy.lib.format
        version = npy.read_magic(member)
        if version not in ((1, 0), (2, 0)):
            raise FileFormatError(f"{where}: the npy version must be 1 or 2, but is {version[0]}")
        shape, _, kind = (npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0)(member)
        if kind.hasobject:
            raise FileFormatError(f"{where}: it holds Python objects (a pickle), which are not read")
        stated, there = math.prod(shape) * kind.itemsize, entry.file_size - member.tell()
        if stated != there:
            raise FileFormatError(f"{where}: {kind} {shape} needs {stated} bytes, but there are {there}")
        packed = entry.compress_size
        if entry.file_size > _DEFLATE_RATIO * (packed + 1):
            raise FileFormatError(f"{where}: {packed} packed bytes cannot hold the {entry.file_size} that are stated")
        member.seek(0)
        return npy.read_array(member, allow_pickle=False)


def _save_npz(file: BinaryIO, path: str, names: list[str], arrays: list[Array | None]) -> None:
    with zipfile.ZipFile(file, "w", allowZip64=True) as archive:
        for name, array in zip(names, arrays, strict=True):
            if array is None or array.dtype.hasobject:
                kind = "None" if array is None else array.dtype
                raise FileFormatError(f"save {path!r}: array {name!r} must be of numbers, but it is {kind}")
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                plain = array.astype(numpy.float32) if _is_bfloat16(array) else array  # the format has no such type
                numpy.lib.format.write_array(member, plain, allow_pickle=False)


@contextlib.contextmanager
def _replacing(path: str) -> Iterator[BinaryIO]:
    """A file that takes the place of ``path`` when the block ends well, and vanishes when it does not."""
    folder, name = os.path.split(path)
    handle, temporary = tempfile.mkstemp(prefix=f".{name}.", dir=folder or ".")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)  # as open() would have made it
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
