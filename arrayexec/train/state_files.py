"""Files of states: dicts and lists of arrays and plain values, written whole or not at all, read without unpickling.

A file is a zip of ``.npy`` members (``numpy.load`` reads them, too) and of one, ``tree.npy``, whose bytes are the JSON
that says what stands where. The zip has a checksum of every member.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import zipfile
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

import numpy

from ..atomic import replacing
from ..context import asnumpy
from ..errors import CheckpointError, FileFormatError
from ..files import npz
from ..files.source import Source, opened, what_it_is

Path = str | os.PathLike[str]

_TREE = "tree"
_VERSION = 1
_END = 22  # bytes of what a zip ends with
_LONG = 1 << 63  # JSON numbers past this are written in hexadecimal: readers elsewhere would round them
_KEYS = (str, int, float, bool, type(None))


def save_states(path: Path, mapping: Any) -> None:
    """Write nested dicts, lists and tuples of arrays (of any device and type), numbers, texts, bools and None.

    Keys of dicts are texts, numbers, bools, None or tuples of them. The file appears whole or not at all, even if the
    machine stops. Raises CheckpointError for other things, naming where they stand, and OSError.
    """
    target = os.fspath(path)
    members = _members(mapping, f"save_states {target!r}")
    with replacing(target) as file:
        _write(file, members)


def load_states(path: Path) -> Any:
    """What `save_states` wrote; arrays as NumPy ones, bfloat16 as float32 where no package has brought that type.

    Raises CheckpointError for a file that is no such thing or is damaged, naming the member and what is wrong, and
    OSError.
    """
    source = os.fspath(path)
    try:
        with opened(source) as held:
            return _read(held.file, held.size, source)
    except FileFormatError as error:  # a folder, a pipe, a disk that fails
        raise CheckpointError(f"load_states: {error}") from error


def to_bytes(mapping: Any) -> bytes:
    """What `save_states` would write."""
    file = io.BytesIO()
    _write(file, _members(mapping, "to_bytes"))
    return file.getvalue()


def from_bytes(raw: bytes | memoryview, path: str) -> Any:
    """What `load_states` would read; ``path``: where the bytes come from, for messages."""
    return _read(io.BytesIO(raw), len(raw), path)


def _members(mapping: Any, call: str) -> dict[str, Any]:
    """The arrays of the zip by name."""
    members: dict[str, Any] = {}
    with _at(call):
        tree = _encode(mapping, "", members)
    text = json.dumps({"arrayexec states": _VERSION, "tree": tree})
    return {**members, _TREE: numpy.frombuffer(text.encode(), numpy.uint8)}


def _write(file: BinaryIO, members: Mapping[str, Any]) -> None:
    with zipfile.ZipFile(file, "w", allowZip64=True) as archive:
        for name, array in members.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                numpy.lib.format.write_array(member, array, allow_pickle=False)


def _read(file: BinaryIO, size: int, path: str) -> Any:
    start = file.read(40)
    file.seek(max(0, size - _END))
    end = file.read(4)
    file.seek(0)
    with _at(f"load_states {path!r}"):
        if start[:2] != b"PK":
            what = f"begins with {start[:8]!r}{what_it_is(start)}" if start else "is empty"
            raise _Fault(f"states must be in a file of save_states, but this one {what}")
        if end != b"PK\5\6":
            raise _Fault(f"the file must end with the list of its members, but it stops at byte {size} (truncated?)")
        try:
            found, _ = npz.read(Source(file, size, path))
        except FileFormatError as error:
            raise CheckpointError(f"load_states: {error}") from error
        except OSError as error:  # an offset before the file
            raise _Fault(f"the list of its members is damaged: {error}") from error
        if _TREE not in found:
            raise _Fault(f"a file of save_states has a member '{_TREE}.npy', but this zip has {list(found)[:8]}")
        try:
            head = json.loads(found[_TREE].tobytes())  # type: ignore[union-attr]
            version, tree = head["arrayexec states"], head["tree"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise _Fault(f"member '{_TREE}.npy' is not the JSON of save_states: {error!r}") from error
        if version != _VERSION:
            raise _Fault(f"the version of the file must be {_VERSION}, but it is {version!r}: use a newer arrayexec")
        return _decode(tree, "", found)


class _Fault(Exception):
    """What is wrong, without the file it is wrong in."""


@contextlib.contextmanager
def _at(call: str) -> Iterator[None]:
    try:
        yield
    except _Fault as fault:
        raise CheckpointError(f"{call}: {fault}") from fault.__cause__
    except RecursionError:
        raise CheckpointError(f"{call}: dicts and lists are nested too deeply (or in themselves)") from None


def _encode(value: Any, where: str, members: dict[str, Any]) -> Any:
    """JSON of a value: None, bools, texts, small numbers as they are, all else a list that begins with its kind."""
    if isinstance(value, numpy.bool_ | numpy.integer | numpy.float64 | numpy.float32 | numpy.float16):
        value = value.item()
    if value is None or isinstance(value, bool | str | float):
        return value
    if isinstance(value, int):
        return int(value) if -_LONG <= value < _LONG else ["int", hex(value)]
    if isinstance(value, Mapping):
        pairs = []
        for key, item in value.items():
            if not _is_key(key):
                kinds = "texts, numbers, bools, None or tuples of them"
                raise _Fault(f"keys of dicts must be {kinds}, but {where or 'the value'} has {key!r}")
            pairs.append([_encode(key, where, members), _encode(item, f"{where}.{key}".lstrip("."), members)])
        return ["dict", pairs]
    if isinstance(value, list | tuple):
        items = [_encode(item, f"{where}.{i}".lstrip("."), members) for i, item in enumerate(value)]
        return ["tuple" if isinstance(value, tuple) else "list", items]
    if not hasattr(value, "dtype") or not hasattr(value, "shape"):
        kinds = "an array, a number, a text, a bool, None, or a dict, list or tuple of them"
        raise _Fault(f"{where or 'the value'} must be {kinds}, but it is {type(value).__name__}")
    array = asnumpy(value)
    kind = array.dtype.name
    if kind == "bfloat16":  # a type that npy does not know
        array = array.view(numpy.uint16)
    elif array.dtype.kind not in "biufc":
        raise _Fault(f"{where or 'the value'} must be an array of numbers, but its type is {array.dtype}")
    name = f"{len(members)} " + re.sub(r"[^\w.\-]", "_", where)[:100]
    members[name] = array
    return ["array", name, kind]


def _is_key(key: Any) -> bool:
    return isinstance(key, _KEYS) or (isinstance(key, tuple) and all(map(_is_key, key)))


def _decode(tree: Any, where: str, members: Mapping[str, Any]) -> Any:
    if not isinstance(tree, list):
        if isinstance(tree, dict):
            raise _Fault(f"{where or 'the value'} has a form that save_states does not write")
        return tree
    match tree:
        case ["int", str(digits)]:
            return int(digits, 16)
        case ["dict", list(pairs)] if all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
            return {
                (key := _decode(first, where, members)): _decode(item, f"{where}.{key}".lstrip("."), members)
                for first, item in pairs
            }
        case [("list" | "tuple") as kind, list(items)]:
            found = [_decode(item, f"{where}.{i}".lstrip("."), members) for i, item in enumerate(items)]
            return found if kind == "list" else tuple(found)
        case ["array", str(name), str(kind)]:
            array = members.get(name)
            if array is None or array.dtype.name != ("uint16" if kind == "bfloat16" else kind):
                there = "is not there" if array is None else f"holds {array.dtype}"
                raise _Fault(f"{where or 'the value'} must be in member {name + '.npy'!r}, of {kind}, but that {there}")
            return _from_bits(array) if kind == "bfloat16" else array
    raise _Fault(f"{where or 'the value'} has a form that save_states does not write")


def _from_bits(bits: Any) -> Any:
    try:
        return bits.view(numpy.dtype("bfloat16"))
    except TypeError:
        return (bits.astype(numpy.uint32) << 16).view(numpy.float32)
