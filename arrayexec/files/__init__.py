"""Bytes to named arrays and back: MXNet's ``.params`` of every generation, npz and safetensors. No graph.

A file is not trusted: each length that it states is compared with the bytes that are there before anything is
allocated, nothing is unpickled, and every refusal names the offset and what it holds. See docs/files.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, overload

from ..atomic import replacing
from ..context import asnumpy
from ..errors import ArgumentError, FileFormatError
from . import npz, params, safetensors
from .mxnet_states import load_mxnet_states
from .params import Arrays
from .source import Path, Source, opened, path_text

__all__ = ["ArrayFile", "load", "load_mxnet_states", "read", "save"]


class ArrayFile(NamedTuple):
    """What a file holds: ``format`` (params, npz, safetensors), arrays as ``load`` gives them, and texts by name."""

    format: str
    arrays: Arrays
    metadata: dict[str, str]


@overload
def load(path: Path, *, format: None = None, limit: int | None = None) -> Arrays: ...


@overload
def load(path: Path, *, format: str, limit: int | None = None) -> dict[str, Any]: ...


def load(path: Path, *, format: str | None = None, limit: int | None = None) -> Arrays | dict[str, Any]:
    """The arrays of a ``.params``, npz or safetensors file: a dict in its order, or a list where it has no names.

    Sparse arrays come dense and bfloat16 as float32 (each value exactly); an empty slot of MXNet's is None. A file of
    no arrays is ``{}``. ``limit``: bytes that packed and sparse arrays may take together; None: 64 times the file, at
    least 64 MiB. ``format="mxnet-pickle"`` reads a ``.states`` file, see ``load_mxnet_states``. Raises FileFormatError,
    with the offset, for anything that is not such a file in whole.
    """
    if format == "mxnet-pickle":
        return load_mxnet_states(path, limit=limit)
    if format is not None:
        raise ArgumentError(f"load: format must be None (told by the file) or 'mxnet-pickle', but it is {format!r}")
    return read(path, limit=limit).arrays


def read(path: Path, *, limit: int | None = None) -> ArrayFile:
    """The format, arrays (as of ``load``) and metadata of a file."""
    text = path_text("load", path)
    with opened(text, limit) as source:
        kind = _format(source, text)
        if kind == "npz":
            return ArrayFile(kind, *npz.read(source))
        if kind == "safetensors":
            return ArrayFile(kind, *safetensors.read(source))
        return ArrayFile(kind, params.read(source), {})


def save(
    path: Path,
    arrays: Mapping[str, Any] | Sequence[Any],
    *,
    metadata: Mapping[str, str] | None = None,
    version: int | None = None,
) -> None:
    """Write arrays of any device: npz or safetensors if the path ends so, else ``.params`` (as MXNet 1.9 writes it).

    The file appears whole or not at all. ``metadata``: texts by name, which ``.params`` cannot hold. ``version``: the
    generation of ``.params`` records, 1 for readers before MXNet 0.12; None: 3 where there are 0-d or zero-size arrays,
    else 2. npz holds bfloat16 as float32. Raises FileFormatError for a type or name that the format does not have,
    ShapeError for an array that the generation does not have.
    """
    text = path_text("save", path)
    if not isinstance(arrays, (Mapping, Sequence)):
        raise ArgumentError(f"save {text!r}: arrays must stand in a dict or a list, not in {type(arrays).__name__}")
    names, given = (list(arrays), arrays.values()) if isinstance(arrays, Mapping) else ([], arrays)
    for name in names:
        if not isinstance(name, str) or "\0" in name or _broken(name):
            raise FileFormatError(f"save {text!r}: names must be texts without zero bytes, but one is {name!r}")
    kind = _named(text)
    if version not in (None, 1, 2, 3) or (version is not None and kind != "params"):
        raise ArgumentError(f"save {text!r}: version must be 1, 2 or 3, of .params alone, but it is {version!r}")
    texts = dict(metadata or {})
    if not all(isinstance(item, str) and not _broken(item) for pair in texts.items() for item in pair):
        raise ArgumentError(f"save {text!r}: metadata must be texts by name, but it is {str(metadata)[:200]}")
    if texts and kind == "params":
        raise ArgumentError(f"save {text!r}: a .params file holds no metadata; .npz and .safetensors do")
    values = [None if array is None else asnumpy(array) for array in given]
    with replacing(text) as file:
        if kind == "params":
            params.write(file, text, names, values, version)
        else:
            module = npz if kind == "npz" else safetensors
            module.write(file, text, names or [f"arr_{i}" for i in range(len(values))], values, texts)


def _named(path: str) -> str:
    """The format that a path's ending names."""
    return next((kind for kind in ("npz", "safetensors") if path.endswith(f".{kind}")), "params")


def _format(source: Source, path: str) -> str:
    """The format of a file by its first bytes, and by its name where they are of none."""
    start = source.start(9)
    if start[:2] == b"PK":
        return "npz"
    if start[8:] == b"{":
        return "safetensors"
    return "params" if start[:8] == params.FILE_MAGIC.to_bytes(8, "little") else _named(path)


def _broken(text: str) -> bool:
    """Whether half of a surrogate pair stands alone, which no UTF-8 holds."""
    return any("\ud800" <= letter <= "\udfff" for letter in text)
