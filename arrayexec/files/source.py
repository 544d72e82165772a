"""A file that is not trusted: every read says what it expects, and every refusal names the offset and what it holds."""

from __future__ import annotations

import contextlib
import json
import math
import os
import stat
import struct
from collections.abc import Iterator
from typing import Any, BinaryIO, Never

import numpy

from ..errors import ArgumentError, FileFormatError

Array = numpy.ndarray[Any, Any]
Path = str | os.PathLike[str]

_UNPACKED = 64 << 20
_UNPACKED_RATIO = 64
_CHUNK = 1 << 20

_OTHERS = (
    (b"version https://git-lfs", "a git-lfs pointer: the file itself was not fetched ('git lfs pull' does that)"),
    (b"\x80", "a Python pickle, which is not read (but MXNet's optimizer states are, with format='mxnet-pickle')"),
    (b"(dp", "a Python pickle, which is not read (but MXNet's optimizer states are, with format='mxnet-pickle')"),
    (b"\x1f\x8b", "a gzip archive: unpack it first"),
    (b"BZh", "a bzip2 archive: unpack it first"),
    (b"\xfd7zXZ", "an xz archive: unpack it first"),
    (b"PK", "a zip archive"),
    (b"\x89HDF", "an HDF5 file"),
    (b"\x93NUMPY", "a single array of NumPy's (npy): write it with numpy.savez"),
    (b"\x89PNG", "a picture (PNG)"),
    (b"\xff\xd8\xff", "a picture (JPEG)"),
    (b"\0\0\0\0\0\0\x01\x12", "a .params file with its bytes in reverse order, from a big-endian machine"),
    (b"\x12\x01\0\0\0\0\0\0", "a .params file"),
    (b"<", "a web page (HTML or XML): was an error page saved in place of the file?"),
    (b"{", "a JSON text: a symbol file is read by sym.load"),
)


def what_it_is(start: bytes) -> str:
    """``; it looks like …`` for the first bytes of a file of another kind, else an empty text."""
    start = start.removeprefix(b"\xef\xbb\xbf").lstrip() if start[:1] != b"\0" else start
    found = next((kind for first, kind in _OTHERS if start.startswith(first)), "")
    return f"; it looks like {found}" if found else ""


def path_text(call: str, path: Any) -> str:
    """The path as a text; ArgumentError for what is none, such as the number of an open file."""
    if not isinstance(path, (str, os.PathLike)):
        raise ArgumentError(f"{call}: the path must be a text or a Path, but it is {path!r}")
    text = os.fspath(path)
    if "\0" in text:
        raise ArgumentError(f"{call}: a path cannot hold a zero byte, but it is {text!r}")
    return text


class Source:
    """Bytes of a known size. ``limit``: how many bytes all packed and sparse arrays may take when they are unpacked."""

    def __init__(self, file: BinaryIO, size: int, path: str, limit: int | None = None) -> None:
        self.file = file
        self.size = size
        self.path = path
        self.left = max(_UNPACKED, _UNPACKED_RATIO * size) if limit is None else limit
        self.item = ""
        self.at = 0  # where what was read last begins

    def fail(self, fact: str) -> Never:
        """FileFormatError with the path, the offset and what it holds."""
        raise FileFormatError(f"{self.path!r}, byte {self.at}{self.item}: {fact}")

    def start(self, nbytes: int) -> bytes:
        """The first bytes, to tell formats apart; reading begins at 0 afterwards."""
        found = self.file.read(nbytes)
        self.file.seek(0)
        if not found:
            self.fail("the file is empty")
        return found

    def need(self, nbytes: int, what: str) -> None:
        """The file must have ``nbytes`` more bytes, which are read next."""
        self.at = self.file.tell()
        if nbytes > self.size - self.at:
            left = max(self.size - self.at, 0)
            self.fail(f"{nbytes} bytes must follow for {what}, but the file ends after {left} (truncated?)")

    def take(self, nbytes: int, what: str) -> bytes:
        """The next ``nbytes`` bytes."""
        self.need(nbytes, what)
        got = self.file.read(nbytes)
        self.check_read(len(got), nbytes, what)
        return got

    def check_read(self, got: int, nbytes: int, what: str) -> None:
        """Refuse a file that shrinks while it is read."""
        if got != nbytes:
            self.fail(f"{nbytes} bytes were there for {what}, but {got} could be read: is the file being written?")

    def number(self, form: str, what: str) -> int:
        """The next number, little-endian, of a type of ``struct``."""
        return int(struct.unpack("<" + form, self.take(struct.calcsize("<" + form), what))[0])

    def count(self, what: str, least: int) -> int:
        """A 64-bit count of things that take at least ``least`` bytes each."""
        count, left = self.number("Q", what), self.size - self.file.tell()
        if count * least > left:
            self.fail(f"{what} is {count}, but only {left} bytes follow")
        return count

    def unpack(self, nbytes: int, what: str) -> None:
        """Allow that ``nbytes`` which do not stand in the file are allocated for ``what``."""
        if nbytes > self.left:
            self.fail(f"{what} takes {nbytes} bytes when unpacked, more than the {self.left} that are left of limit=")
        self.left -= nbytes

    def values(self, shape: tuple[int, ...], kind: Any, what: str) -> Array:
        """An array that stands as it is in the file, in the machine's byte order."""
        kind = numpy.dtype(kind)
        nbytes = math.prod(shape) * kind.itemsize
        self.need(nbytes, f"{what} ({kind} {shape})")
        flat = numpy.empty(nbytes, numpy.uint8)
        self.fill(self.file, flat, what)
        return self.shaped(flat.view(kind).astype(kind.newbyteorder("="), copy=False), shape, what)

    def fill(self, file: Any, flat: Array, what: str) -> None:
        """Read ``flat`` from ``file``, piece by piece."""
        view = memoryview(flat)  # type: ignore[arg-type]
        for begin in range(0, flat.size, _CHUNK):
            piece = view[begin : begin + _CHUNK]
            self.check_read(file.readinto(piece), len(piece), what)

    def shaped(self, flat: Array, shape: tuple[int, ...], what: str) -> Array:
        """The elements of ``flat``, which are as many, in a shape."""
        try:
            return flat.reshape(shape)
        except ValueError:  # 0 elements, and dims that no array can have
            self.fail(f"{what} cannot have the shape {shape}")


@contextlib.contextmanager
def opened(path: str, limit: int | None = None) -> Iterator[Source]:
    """The file at ``path`` as a Source. FileNotFoundError and PermissionError are the system's own."""
    try:
        with open(path, "rb", opener=_open_at_once) as file:
            told = os.fstat(file.fileno())
            if not stat.S_ISREG(told.st_mode):
                raise FileFormatError(f"{path!r} must be a file, but it is a device or a pipe")
            yield Source(file, told.st_size, path, limit)
    except (FileNotFoundError, PermissionError):
        raise
    except OSError as error:  # a folder, a loop of links, a disk that fails
        raise FileFormatError(f"{path!r} cannot be read: {error.strerror or error}") from error


def _open_at_once(path: str, flags: int) -> int:
    """Open without waiting for somebody to write into a pipe."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def read_text(path: str) -> bytes:
    """All bytes of a file that holds text."""
    with opened(path) as source:
        return source.take(source.size, "the text") if source.size else source.start(1)


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text. ValueError says what is wrong: not JSON, too deep, or a key that stands twice."""
    try:
        return json.loads(text, object_pairs_hook=_unique)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(name for name in names if names.count(name) > 1)[:60]!r} stands twice")
    return found
