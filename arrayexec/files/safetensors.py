"""safetensors: the length of a JSON header, the header, and the bytes that it shares out among the arrays."""

from __future__ import annotations

import json
import math
import struct
from typing import Any, BinaryIO

import numpy

from ..errors import FileFormatError
from .params import from_bfloat16, is_bfloat16
from .source import Array, Source, parse_json, what_it_is

_TYPES = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1", "U64": "<u8",
    "U32": "<u4", "U16": "<u2", "U8": "u1", "BOOL": "?", "C64": "<c8", "BF16": "<u2",
}  # fmt: skip
_NAMES = {numpy.dtype(text): name for name, text in _TYPES.items() if name != "BF16"}
_METADATA = "__metadata__"
_HEADER_LIMIT = 100_000_000


def read(source: Source) -> tuple[dict[str, Array | None], dict[str, str]]:
    """Arrays in the header's order, and metadata."""
    start = source.start(40)
    length = source.number("Q", "the length of the header")
    if not 2 <= length <= min(_HEADER_LIMIT, source.size - 8):
        source.fail(
            f"the header must have 2 to {min(_HEADER_LIMIT, source.size - 8)} bytes, but states {length}"
            f"{what_it_is(start)}"
        )
    try:
        header = parse_json(source.take(length, "the header"))
    except ValueError as error:
        source.fail(f"the header is not JSON: {error}")
    if not isinstance(header, dict):
        source.fail("the header must be a JSON object")
    metadata = header.pop(_METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
        source.fail(f"{_METADATA} must be an object of texts")
    placed = {name: _place(source, name, told) for name, told in header.items()}
    begin, end = 8 + length, 0
    for name, (_, _, first, last) in sorted(placed.items(), key=lambda item: item[1][2:]):
        if first != end:
            source.at = begin + first
            source.fail(f"array {name!r} must begin where the one before it ends, at {end}, but begins at {first}")
        end = last
    if begin + end != source.size:
        source.at = min(begin + end, source.size)
        source.fail(f"the arrays take {end} bytes, but {source.size - begin} follow the header (truncated?)")
    arrays: dict[str, Array | None] = {}
    for name, (kind, shape, first, _) in placed.items():
        source.item = f" (array {name!r})"
        source.file.seek(begin + first)
        array = source.values(shape, _TYPES[kind], "the values")
        arrays[name] = from_bfloat16(array) if kind == "BF16" else array
    return arrays, metadata


def _place(source: Source, name: str, told: Any) -> tuple[str, tuple[int, ...], int, int]:
    """Type, shape, first byte and end of an array."""
    source.item = f" (array {name[:80]!r})"
    if not isinstance(told, dict) or told.keys() != {"dtype", "shape", "data_offsets"}:
        source.fail(f"an array has dtype, shape and data_offsets, but this one is {str(told)[:80]}")
    kind, shape, offsets = told["dtype"], told["shape"], told["data_offsets"]
    if not isinstance(kind, str) or kind not in _TYPES:
        source.fail(f"the dtype must be one of {', '.join(_TYPES)}, but it is {str(kind)[:40]!r}")
    for what, numbers in (("shape", shape), ("data_offsets", offsets)):
        if not isinstance(numbers, list) or not all(type(n) is int and 0 <= n < 1 << 63 for n in numbers):
            source.fail(f"{what} must be a list of whole numbers >= 0, but it is {str(numbers)[:80]}")
    nbytes = math.prod(shape) * numpy.dtype(_TYPES[kind]).itemsize
    if len(offsets) != 2 or offsets[1] - offsets[0] != nbytes:
        source.fail(f"{kind} {tuple(shape[:33])} takes {nbytes} bytes, but data_offsets are {str(offsets)[:80]}")
    source.item = ""
    return kind, tuple(shape), offsets[0], offsets[1]


def write(
    file: BinaryIO, path: str, names: list[str], arrays: list[Array | None], metadata: dict[str, str]
) -> None:
    """A whole file: the header in the order that is given, the bytes with the widest types first, so aligned."""
    given: dict[str, tuple[str, Array]] = {}
    for name, array in zip(names, arrays, strict=True):
        if name == _METADATA:
            raise FileFormatError(f"save {path!r}: no array can be named {name!r} in a safetensors file")
        code = None
        if array is not None:
            code = "BF16" if is_bfloat16(array) else _NAMES.get(array.dtype.newbyteorder("<"))
        if array is None or code is None:
            kind = "None" if array is None else array.dtype
            known = ", ".join(map(str, _NAMES))
            raise FileFormatError(f"save {path!r}: array {name!r} must be one of {known}, but it is {kind}")
        given[name] = code, array
    order = sorted(given, key=lambda name: -given[name][1].itemsize)
    ends, end = {}, 0
    for name in order:
        end += given[name][1].nbytes
        ends[name] = end
    header: dict[str, Any] = {_METADATA: metadata} if metadata else {}
    for name, (code, array) in given.items():
        offsets = [ends[name] - array.nbytes, ends[name]]
        header[name] = {"dtype": code, "shape": list(array.shape), "data_offsets": offsets}
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    file.write(struct.pack("<Q", len(text)) + text)
    for name in order:
        code, array = given[name]
        bits: Any = array.view(numpy.uint16) if code == "BF16" else array
        flat = numpy.ascontiguousarray(bits, bits.dtype.newbyteorder("<")).reshape(-1)
        file.write(flat.view(numpy.uint8).data)
