"""MXNet's ``.params``: every generation of it read, today's written to the byte. Numbers are little-endian everywhere.

A file is a head, records of arrays, and a name for each or none. A record begins with its generation: none (the rank
stands there, dims have 32 bits), 1 (64-bit dims), 2 (storage types) or 3 (0-d and zero-size arrays).
"""

from __future__ import annotations

import math
import struct
from typing import Any, BinaryIO

import numpy

from ..errors import FileFormatError, ShapeError
from .source import Array, Source, what_it_is

FILE_MAGIC = 0x112
_V1, _V2, _V3 = 0xF993FAC8, 0xF993FAC9, 0xF993FACA
_DENSE, _ROW_SPARSE, _CSR = 0, 1, 2
_MAX_RANK = 32
_TYPES = {0: "<f4", 1: "<f8", 2: "<f2", 3: "u1", 4: "<i4", 5: "i1", 6: "<i8", 7: "?"}
_CODES = {numpy.dtype(text): code for code, text in _TYPES.items()}
_BFLOAT16 = 12
_OLD_CODES = range(7)  # what a reader of generation 1 knows

Arrays = dict[str, Array | None] | list[Array | None]


def is_bfloat16(array: Array) -> bool:
    """Whether values are of the type that another package brings."""
    return bool(array.dtype.name == "bfloat16")


def from_bfloat16(bits: Array) -> Array:
    """float32 values, each exact, of bfloat16 ones that are given as unsigned integers."""
    return (bits.astype(numpy.uint32) << 16).view(numpy.float32)


# --- reading ----------------------------------------------------------------------------------------------------------


def read(source: Source) -> Arrays:
    """The arrays of a whole file: a dict in the file's order, or a list where it has no names."""
    begin = source.start(40)
    magic = source.number("Q", "the magic number")
    if magic != FILE_MAGIC:
        source.fail(f"a .params file begins with {FILE_MAGIC:#x}, but this one with {magic:#x}{what_it_is(begin)}")
    source.number("Q", "the reserved word")
    arrays = []
    for i in range(source.count("the number of arrays", 4)):
        source.item = f" (array {i})"
        arrays.append(record(source))
    source.item = ""
    number = source.count("the number of names", 8)
    if number not in (0, len(arrays)):
        source.fail(f"there must be 0 or {len(arrays)} names, one for each array, but there are {number}")
    named: dict[str, Array | None] = {}
    for i in range(number):
        source.item = f" (name {i})"
        name = _name(source)
        if name in named:
            source.fail(f"names must differ, but {name!r} occurs twice")
        named[name] = arrays[i]
    source.item, source.at = "", source.file.tell()
    if source.at != source.size:
        source.fail(f"the file must end here, but {source.size - source.at} bytes follow")
    return arrays if arrays and not number else named  # of no arrays: a dict was written, more likely


def _name(source: Source) -> str:
    raw = source.take(source.count("the length of the name", 1), "the name")
    try:
        return raw.decode()
    except UnicodeDecodeError:
        source.fail(f"names must be UTF-8 text, but this one is {raw[:40]!r}")


def record(source: Source) -> Array | None:
    """One array, dense, or None for a slot that holds none."""
    offset = source.file.tell()
    magic = source.number("I", "the array's magic number")
    if magic in (_V2, _V3):
        kind = source.number("i", "the storage type")
        if kind not in (_DENSE, _ROW_SPARSE, _CSR):
            source.fail(f"the storage type must be 0 (dense), 1 (row-sparse) or 2 (CSR), but it is {kind}")
        stored = _shape(source, "the stored shape") if kind != _DENSE else None
        shape = _shape(source, "the shape", unknown_allowed=magic == _V3)
    elif magic == _V1:
        kind, stored, shape = _DENSE, None, _shape(source, "the shape")
    elif magic <= _MAX_RANK:
        kind, stored = _DENSE, None
        shape = tuple(source.number("I", "a dim") for _ in range(magic))
    else:
        known = f"a rank up to {_MAX_RANK} or {_V1:#x} to {_V3:#x}"
        source.fail(f"an array begins with {known}, but here is {magic:#x} (is the file of a later MXNet?)")
    if shape is None or (shape == () and magic != _V3):
        return None
    source.take(8, "the device")  # written by a GPU or not: the values are read into host memory
    code = _type_code(source, "the element type")
    if kind == _DENSE:
        return _values(source, shape, code, "the values")
    auxiliary = [(_type_code(source, "an index type"), _shape(source, "an index shape")) for _ in range(kind)]
    if kind == _CSR and stored == (0,):  # MXNet states none for some arrays, and stores one for each column number
        stored = auxiliary[1][1]
    values = _values(source, stored or (), code, "the stored values")
    indices = [_values(source, dims or (), kind_of_index, "the indices") for kind_of_index, dims in auxiliary]
    source.at = offset
    return _dense(source, shape, values, indices)


def _shape(source: Source, what: str, unknown_allowed: bool = False) -> tuple[int, ...] | None:
    rank = source.number("i", f"the rank of {what}")
    if rank == -1 and unknown_allowed:
        return None
    if not 0 <= rank <= _MAX_RANK:
        source.fail(f"the rank of {what} must be 0 to {_MAX_RANK}, but it is {rank}")
    dims = tuple(source.number("q", f"a dim of {what}") for _ in range(rank))
    if any(dim < 0 for dim in dims):
        source.at -= 8 * (rank - 1)
        source.fail(f"the dims of {what} must be >= 0, but they are {dims}")
    return dims


def _type_code(source: Source, what: str) -> int:
    code = source.number("i", what)
    if code not in _TYPES and code != _BFLOAT16:
        source.fail(f"{what} must be one of the codes 0 to 7 and 12, but it is {code}")
    return code


def _values(source: Source, shape: tuple[int, ...], code: int, what: str) -> Array:
    array = source.values(shape, "<u2" if code == _BFLOAT16 else _TYPES[code], what)
    return from_bfloat16(array) if code == _BFLOAT16 else array


def _dense(source: Source, shape: tuple[int, ...], values: Array, indices: list[Array]) -> Array:
    """A row-sparse (indices) or CSR (row starts, columns) array, its zeros filled in."""
    if len(shape) != 2 and (shape == () or len(indices) == 2):
        source.fail(f"a sparse array cannot have the shape {shape}")
    source.unpack(math.prod(shape) * values.itemsize, f"a sparse array {shape}")
    if any(index.dtype.kind not in "iu" or index.ndim != 1 for index in indices):
        source.fail("the indices of a sparse array must be flat and of an integer type")
    try:
        out = numpy.zeros(shape, values.dtype)
    except ValueError:  # 0 elements, and dims that no array can have
        source.fail(f"no array can have the shape {shape}")
    if len(indices) == 1:
        (rows,) = indices
        _check_index(source, rows, shape[0])
        if values.shape != (rows.size, *shape[1:]):
            source.fail(f"{rows.size} rows of {shape} cannot be stored as {values.shape}")
        out[rows] = values
        return out
    starts, columns = indices
    if values.shape != columns.shape or starts.size != shape[0] + 1:
        stored = f"{starts.size} row starts, {columns.size} columns and values {values.shape}"
        source.fail(f"{stored} do not make a CSR array {shape}")
    _check_index(source, columns, shape[1])
    if starts[0] != 0 or starts[-1] != columns.size or (starts[1:] < starts[:-1]).any():
        source.fail(f"row starts must rise from 0 to {columns.size}, but they are {starts[:8]}")
    out[numpy.repeat(numpy.arange(shape[0]), numpy.diff(starts)), columns] = values
    return out


def _check_index(source: Source, index: Array, end: int) -> None:
    if index.size and (index.min() < 0 or index.max() >= end):
        source.fail(f"indices must be 0 to {end - 1}, but they are {index.min()} to {index.max()}")


# --- writing ----------------------------------------------------------------------------------------------------------


def write(file: BinaryIO, path: str, names: list[str], arrays: list[Array | None], version: int | None) -> None:
    """A whole file. ``version``: generation of the records; None: 3 if there are 0-d or zero-size arrays, else 2."""
    if version is None:
        version = 3 if any(array is not None and array.size * array.ndim == 0 for array in arrays) else 2
    file.write(struct.pack("<QQQ", FILE_MAGIC, 0, len(arrays)))
    magic = struct.pack("<I", _V1) if version == 1 else struct.pack("<Ii", _V1 - 1 + version, _DENSE)
    for i, array in enumerate(arrays):
        label = f"save {path!r}: array {names[i]!r}" if names else f"save {path!r}: array {i}"
        file.write(magic)
        if array is None:
            file.write(struct.pack("<i", -1 if version == 3 else 0))
            continue
        code = _code_of(array, label, version)
        if version < 3 and array.size * array.ndim == 0:
            raise ShapeError(
                f"{label} must have elements and a dim in generation {version}, but its shape is {array.shape}; "
                "leave out version="
            )
        file.write(struct.pack(f"<i{array.ndim}q", array.ndim, *array.shape))
        file.write(struct.pack("<iii", 1, 0, code))  # cpu(0)
        bits: Any = array.view(numpy.uint16) if code == _BFLOAT16 else array
        flat = numpy.ascontiguousarray(bits, bits.dtype.newbyteorder("<")).reshape(-1)
        file.write(flat.view(numpy.uint8).data)
    file.write(struct.pack("<Q", len(names)))
    for name in names:
        raw = name.encode()
        file.write(struct.pack("<Q", len(raw)) + raw)


def _code_of(array: Array, label: str, version: int) -> int:
    code = _BFLOAT16 if is_bfloat16(array) else _CODES.get(array.dtype.newbyteorder("<"))
    if code is None or (version == 1 and code not in _OLD_CODES):
        known = ", ".join(str(kind) for kind, known_code in _CODES.items() if version > 1 or known_code in _OLD_CODES)
        raise FileFormatError(f"{label} must be one of {known}, but it is {array.dtype}; .npz has more")
    return code
