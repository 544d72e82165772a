"""RecordIO files as MXNet writes them: records of bytes, an index of their places, and image records.

A record is the magic number, a word with its length (29 bits) and part (3 bits), the bytes, and zeros up to
a multiple of 4. Where the magic number itself stands in the bytes on a multiple of 4 the record is cut
there and the number left out, so that a reader may look for a beginning anywhere in a file.

A file is not trusted: a length is compared with the bytes that are there before anything is read.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy

from ..errors import ArgumentError, FileFormatError, NotBoundError, UnknownNameError, near_miss
from . import image_codec

__all__ = ["MXRecordIO", "MXIndexedRecordIO", "IRHeader", "pack", "unpack", "pack_img", "unpack_img"]

_MAGIC = struct.pack("<I", 0xCED7230A)
_HEAD = struct.Struct("<4sI")
_LENGTH_BITS = 29
_LONGEST = (1 << _LENGTH_BITS) - 1
_WHOLE, _FIRST, _MIDDLE, _LAST = range(4)
_PARTS = ("a whole record", "a first part", "a middle part", "a last part")


def _write_record(write: Callable[[bytes], Any], record: bytes) -> None:
    pieces, start, at = [], 0, record.find(_MAGIC)
    while at >= 0:
        if at % 4 == 0:
            pieces.append(record[start:at])
            start = at + 4
        at = record.find(_MAGIC, at + 4 if at % 4 == 0 else at + 1)
    pieces.append(record[start:])
    for number, piece in enumerate(pieces):
        last = number == len(pieces) - 1
        kind = (_WHOLE if last else _FIRST) if number == 0 else (_LAST if last else _MIDDLE)
        write(_HEAD.pack(_MAGIC, kind << _LENGTH_BITS | len(piece)) + piece + bytes(-len(piece) % 4))


class RecordFile:
    """The records of a file by their offsets; reading moves nothing, so threads and forks may share one."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self._file = open(self.path, "rb", buffering=0)  # noqa: SIM115
        self.size = os.fstat(self._file.fileno()).st_size

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self.close()

    def _part(self, offset: int) -> tuple[int, int]:
        """Kind and length of the part that begins here; raises FileFormatError where none does."""
        head = os.pread(self._file.fileno(), _HEAD.size, offset)
        if len(head) < _HEAD.size:
            fact = f"{_HEAD.size} bytes must begin a record, but the file ends after {len(head)} (truncated?)"
            self.fail(offset, fact)
        magic, word = _HEAD.unpack(head)
        if magic != _MAGIC:
            self.fail(offset, f"a record must begin with {_MAGIC.hex(' ')}, but here is {magic.hex(' ')}")
        kind, length = word >> _LENGTH_BITS, word & _LONGEST
        left = self.size - offset - _HEAD.size
        if length + -length % 4 > left:
            self.fail(offset, f"a record of {length} bytes must follow, but the file ends after {left} (truncated?)")
        return kind, length

    def _parts(self, offset: int) -> Iterator[tuple[int, int]]:
        """Offset and length of the bytes of every part of the record that begins here."""
        wanted = (_WHOLE, _FIRST)
        while True:
            kind, length = self._part(offset)
            if kind not in wanted:
                found = _PARTS[kind] if kind < len(_PARTS) else f"part {kind}, which there is not"
                self.fail(offset, f"here must begin {' or '.join(_PARTS[k] for k in wanted)}, but it is {found}")
            yield offset + _HEAD.size, length
            if kind in (_WHOLE, _LAST):
                return
            wanted, offset = (_MIDDLE, _LAST), self._after(offset, length)

    @staticmethod
    def _after(offset: int, length: int) -> int:
        return offset + _HEAD.size + length + -length % 4

    def read(self, offset: int) -> tuple[bytes, int]:
        """The record that begins at an offset, and the offset of the next one."""
        pieces = []
        for start, length in self._parts(offset):
            piece = os.pread(self._file.fileno(), length, start)
            if len(piece) < length:
                self.fail(start, f"{length} bytes must follow, but there are {len(piece)}: the file has shrunk")
            pieces.append(piece)
        return _MAGIC.join(pieces), self._after(start - _HEAD.size, length)

    def offsets(self) -> numpy.ndarray[Any, Any]:
        """The offsets of all records, found by going from head to head."""
        found, offset = [], 0
        while offset < self.size:
            found.append(offset)
            for start, length in self._parts(offset):
                offset = self._after(start - _HEAD.size, length)
        return numpy.array(found, numpy.int64)

    def fail(self, offset: int, fact: str) -> None:
        raise FileFormatError(f"{self.path!r}, byte {offset}: {fact}")


class MXRecordIO:
    """A RecordIO file that is read (``flag='r'``) or written (``'w'``) from beginning to end.

    Raises ArgumentError for another flag, FileFormatError with the offset for what is no record.
    """

    def __init__(self, uri: str | os.PathLike[str], flag: str) -> None:
        if flag not in ("r", "w"):
            raise ArgumentError(f"{type(self).__name__}: flag must be 'r' or 'w', but it is {flag!r}")
        self.uri = os.fspath(uri)
        self.flag = flag
        self.writable = flag == "w"
        self.is_open = False
        self.open()

    def open(self) -> None:
        """Open the file, at its beginning; a file to be written begins empty."""
        if self.writable:
            self._sink = open(self.uri, "wb")  # noqa: SIM115
        else:
            self._source = RecordFile(self.uri)
            self._at = 0
        self.is_open = True

    def close(self) -> None:
        """Close the file; what was written is complete then."""
        if self.is_open:
            (self._sink if self.writable else self._source).close()
            self.is_open = False

    def __enter__(self) -> MXRecordIO:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "is_open", False):
            self.close()

    def __getstate__(self) -> dict[str, Any]:
        if self.writable:
            raise ArgumentError(f"{type(self).__name__}: a file that is being written cannot be pickled")
        return {key: value for key, value in self.__dict__.items() if key != "_source"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self.is_open:
            self._source = RecordFile(self.uri)

    def reset(self) -> None:
        """Go to the beginning; a file that is written begins anew."""
        self.close()
        self.open()

    def write(self, buf: bytes) -> None:
        """Append a record. ArgumentError for one of 2**29 bytes or more."""
        self._ready(True)
        record = bytes(buf)
        if len(record) > _LONGEST:
            raise ArgumentError(
                f"{type(self).__name__}: a record may have {_LONGEST} bytes, but this one has {len(record)}"
            )
        _write_record(self._sink.write, record)

    def read(self) -> bytes | None:
        """The next record; None at the end."""
        self._ready(False)
        if self._at >= self._source.size:
            return None
        record, self._at = self._source.read(self._at)
        return record

    def tell(self) -> int:
        """The offset of the record that is written or read next."""
        self._ready(self.writable)
        return self._sink.tell() if self.writable else self._at

    def _ready(self, writing: bool) -> None:
        who = f"{type(self).__name__} {self.uri!r}"
        if not self.is_open:
            raise NotBoundError(f"{who}: the file must be open, but it is closed; call open()")
        if writing != self.writable:
            wanted, is_open = ("'w'", "'r'") if writing else ("'r'", "'w'")
            raise ArgumentError(f"{who}: the file must be opened with flag {wanted}, but it is with {is_open}")


class MXIndexedRecordIO(MXRecordIO):
    """A RecordIO file beside an index, a text file of lines ``key<TAB>offset``, that leads to every record.

    ``keys``: in the order of the index; ``idx``: key → offset. ``key_type`` turns the texts into keys.
    """

    def __init__(
        self,
        idx_path: str | os.PathLike[str],
        uri: str | os.PathLike[str],
        flag: str,
        key_type: Callable[[str], Any] = int,
    ) -> None:
        self.idx_path = os.fspath(idx_path)
        self.key_type = key_type
        super().__init__(uri, flag)

    def open(self) -> None:
        """Open both files; those to be written begin empty."""
        super().open()
        self.idx: dict[Any, int] = {}
        if self.writable:
            self._index = open(self.idx_path, "w", encoding="utf-8", newline="\n")  # noqa: SIM115
        else:
            self.idx = read_index(self.idx_path, self.key_type, self._source.size)
        self.keys = list(self.idx)

    def close(self) -> None:
        """Close both files."""
        if self.is_open and self.writable:
            self._index.close()
        super().close()

    def seek(self, idx: Any) -> None:
        """Go to the record of a key. UnknownNameError (a KeyError) if there is none."""
        self._ready(False)
        if idx not in self.idx:
            raise UnknownNameError(
                f"{type(self).__name__}: {self.idx_path!r} must have the key {idx!r}, but has not"
                + near_miss(str(idx), map(str, self.idx))
            )
        self._at = self.idx[idx]

    def read_idx(self, idx: Any) -> bytes | None:
        """The record of a key."""
        self.seek(idx)
        return self.read()

    def write_idx(self, idx: Any, buf: bytes) -> None:
        """Append a record under a key."""
        key = self.key_type(idx)
        offset = self.tell()
        self.write(buf)
        self._index.write(f"{key}\t{offset}\n")
        self.idx[key] = offset
        self.keys.append(key)


def read_index(path: str | os.PathLike[str], key_type: Callable[[str], Any], size: int) -> dict[Any, int]:
    """Key → offset of an index of a file of ``size`` bytes; FileFormatError, with the line, for anything else."""
    found: dict[Any, int] = {}
    at = 0
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            try:
                text, offset = line.decode().split("\t")
                key, place = key_type(text), int(offset)
            except ValueError:
                key, place = None, -1
            if not 0 <= place < max(size, 1):
                raise FileFormatError(
                    f"{os.fspath(path)!r}, line {number} (byte {at}): there must be a key, a tab and an offset below "
                    f"{size}, but there is {line[:40]!r}"
                )
            found[key] = place
            at += len(line)
    return found


class IRHeader(NamedTuple):
    """What stands before an image: ``flag`` (the number of labels if there are several), label, ids."""

    flag: int
    label: Any
    id: int
    id2: int


_IR = struct.Struct("<IfQQ")


def pack(header: Any, s: bytes) -> bytes:
    """Bytes with a header in front. A label that is no number is stored as float32 values, counted by ``flag``."""
    flag, label, first, second = header
    values = b""
    if not isinstance(label, (int, float, numpy.number)):
        array = numpy.asarray(label, "<f4").reshape(-1)
        flag, label, values = array.size, 0.0, array.tobytes()
    try:
        return _IR.pack(flag, label, first, second) + values + s
    except (struct.error, OverflowError) as error:
        raise ArgumentError(f"pack: flag, id and id2 must be whole numbers >= 0 that fit, but {error}") from error


def unpack(s: bytes, where: str = "unpack") -> tuple[IRHeader, bytes]:
    """Header and bytes of a packed record. FileFormatError where the record is too short for what it states."""
    if len(s) < _IR.size:
        raise FileFormatError(f"{where}: a packed record must have {_IR.size} bytes or more, but it has {len(s)}")
    header = IRHeader(*_IR.unpack_from(s))
    if header.flag == 0:
        return header, s[_IR.size :]
    end = _IR.size + 4 * header.flag
    if end > len(s):
        raise FileFormatError(
            f"{where}: the header states {header.flag} labels, {4 * header.flag} bytes, but {len(s) - _IR.size} follow"
        )
    labels = numpy.frombuffer(s, "<f4", header.flag, _IR.size).astype(numpy.float32)
    return header._replace(label=labels), s[end:]


def pack_img(header: Any, img: Any, quality: int = 95, img_fmt: str = ".jpg") -> bytes:
    """A record of an image (h, w, 3) in the order blue, green, red, or grey, encoded as ``img_fmt`` says.

    ``.npy`` keeps the pixels as they are and needs no Pillow.
    """
    return pack(header, image_codec.encode(_swapped(numpy.asarray(img)), img_fmt, quality))


def unpack_img(s: bytes, iscolor: int = -1) -> tuple[IRHeader, Any]:
    """Header and image of a record, in the order blue, green, red; ``iscolor=0``: grey (h, w)."""
    header, data = unpack(s)
    image = image_codec.decode(data, iscolor != 0, "unpack_img")
    return header, _swapped(image) if image.shape[2] == 3 else image[:, :, 0]


def _swapped(image: Any) -> Any:
    return numpy.ascontiguousarray(image[:, :, ::-1]) if image.ndim == 3 and image.shape[2] == 3 else image
