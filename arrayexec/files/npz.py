"""NumPy's npz: a zip archive with one npy member an array, and one of texts for metadata."""

from __future__ import annotations

import ast
import json
import math
import re
import struct
import zipfile
import zlib
from typing import Any, BinaryIO

import numpy

from ..errors import FileFormatError
from .params import is_bfloat16
from .source import Array, Source, parse_json, what_it_is

_METADATA = "__metadata__.json"
_NPY = b"\x93NUMPY"
_HEADER_LIMIT = 10_000
_KIND = re.compile(r"[<>|=]?[biufcUSmM]\d*(\[\w+\])?")
_DAMAGE = (
    zipfile.BadZipFile, zlib.error, struct.error, EOFError, ValueError, LookupError, OverflowError,
    NotImplementedError, RuntimeError,
)  # fmt: skip
"""What zipfile raises for archives that are damaged, locked or packed in ways that it does not know."""


def read(source: Source) -> tuple[dict[str, Array | None], dict[str, str]]:
    """Arrays in the archive's order, and metadata."""
    arrays: dict[str, Array | None] = {}
    metadata: dict[str, str] = {}
    start = source.start(40)
    try:
        with zipfile.ZipFile(source.file) as archive:
            entries = archive.infolist()
            _check_sizes(source, entries)
            for entry in entries:
                source.at, source.item = entry.header_offset, f" (member {entry.filename!r})"
                if entry.filename == _METADATA:
                    metadata = _metadata(source, archive, entry)
                    continue
                name = entry.filename.removesuffix(".npy")
                if name in arrays:
                    source.fail(f"names must differ, but {name!r} occurs twice")
                with archive.open(entry) as member:
                    arrays[name] = _array(source, member, entry.file_size)
    except _DAMAGE as error:
        if isinstance(error, FileFormatError):
            raise
        kind = what_it_is(start) if start[:2] != b"PK" else ""
        raise FileFormatError(f"{source.path!r}{source.item} is not a whole npz file: {error}{kind}") from error
    return arrays, metadata


def _check_sizes(source: Source, entries: list[zipfile.ZipInfo]) -> None:
    """Compare what members state with the file before any is opened."""
    packed = sum(entry.compress_size for entry in entries)
    if packed > source.size:
        source.fail(f"its members state {packed} packed bytes, but the file has {source.size}")
    for entry in entries:
        source.at, source.item = entry.header_offset, f" (member {entry.filename!r})"
        if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            source.fail(f"members must be stored or deflated, but this one is packed by method {entry.compress_type}")
        if entry.compress_type == zipfile.ZIP_STORED and entry.file_size != entry.compress_size:
            source.fail(f"{entry.compress_size} stored bytes cannot be the {entry.file_size} that are stated")
        if entry.file_size > entry.compress_size:
            source.unpack(entry.file_size, "the member")
    source.at, source.item = 0, ""


def _metadata(source: Source, archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> dict[str, str]:
    found = parse_json(archive.read(entry))
    if not isinstance(found, dict) or not all(isinstance(text, str) for text in found.values()):
        source.fail("metadata must be a JSON object of texts")
    return found


def _array(source: Source, member: Any, size: int) -> Array:
    start = member.read(8)
    if start[:6] != _NPY:
        source.fail(f"an array begins with {_NPY!r}, but this one with {start[:6]!r}")
    version = tuple(start[6:])
    if version not in ((1, 0), (2, 0)):
        source.fail(f"the npy version must be 1 or 2, but is {version[0]}")
    width, form = (2, "<H") if version == (1, 0) else (4, "<I")
    (length,) = struct.unpack(form, member.read(width))
    if length > _HEADER_LIMIT:
        source.fail(f"the header of an array must have at most {_HEADER_LIMIT} bytes, but states {length}")
    kind, fortran, shape = _header(source, member.read(length))
    stated, there = math.prod(shape) * kind.itemsize, size - 8 - width - length
    if stated != there:
        source.fail(f"{kind} {shape} needs {stated} bytes, but there are {there}")
    flat = numpy.empty(stated, numpy.uint8)
    source.fill(member, flat, "the values")
    member.read(1)  # the end: the checksum is compared
    array = source.shaped(flat.view(kind), shape[::-1] if fortran else shape, "the values")
    return array.T if fortran else array


def _header(source: Source, raw: bytes) -> tuple[numpy.dtype[Any], bool, tuple[int, ...]]:
    """Element type, Fortran order and shape, which stand there as a Python dict of literals."""
    text = re.sub(r"(?<=\d)L\b", "", raw.decode("latin-1")).strip()
    try:
        if text.count("{") + text.count("(") > 2 or "[(" in text or not text.isascii():
            raise ValueError("its literals are nested")
        found = ast.literal_eval(text)
        descr, fortran, shape = (found.pop(key) for key in ("descr", "fortran_order", "shape"))
        if found or type(fortran) is not bool or type(shape) is not tuple:
            raise ValueError("it must hold descr, fortran_order and shape")
        if not all(type(dim) is int and dim >= 0 for dim in shape):
            raise ValueError(f"dims must be whole numbers >= 0, but they are {shape}")
        if str(descr).strip("<>|=").startswith("O"):
            source.fail("it holds Python objects (a pickle), which are not read")
        if not isinstance(descr, str) or not _KIND.fullmatch(descr):
            raise ValueError(f"the element type must be of numbers, but it is {descr!r}")
        kind = numpy.dtype(descr)
        if not kind.itemsize:
            raise ValueError(f"the element type must have bytes, but it is {descr!r}")
    except (ValueError, TypeError, LookupError, SyntaxError, AttributeError, MemoryError, RecursionError) as error:
        if isinstance(error, FileFormatError):
            raise
        source.fail(f"its header {text[:80]!r} is damaged: {error}")
    return kind, fortran, shape


def write(
    file: BinaryIO, path: str, names: list[str], arrays: list[Array | None], metadata: dict[str, str]
) -> None:
    """A whole file, not packed."""
    with zipfile.ZipFile(file, "w", allowZip64=True) as archive:
        if metadata:
            archive.writestr(zipfile.ZipInfo(_METADATA), json.dumps(metadata, ensure_ascii=False))
        for name, array in zip(names, arrays, strict=True):
            if array is None or (array.dtype.kind not in "biufcUSmM" and not is_bfloat16(array)):
                kind = "None" if array is None else array.dtype
                raise FileFormatError(f"save {path!r}: array {name!r} must be of numbers, but it is {kind}")
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                plain = array.astype(numpy.float32) if is_bfloat16(array) else array  # the format has no such type
                numpy.lib.format.write_array(member, plain, allow_pickle=False)
