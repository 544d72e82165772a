"""Files of arrays and of graphs from one format to another, and what they hold."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from .. import files
from ..errors import ArgumentError
from ..files.source import opened
from ..symbol import symbol

ARRAY_ENDINGS = (".params", ".npz", ".safetensors")


def convert(
    source: str, target: str, force: bool = False, version: int | None = None, limit: int | None = None
) -> Iterator[str]:
    """Write ``source`` anew as ``target``, whose ending says the format; lines that tell what was done.

    Arrays go from any format to any; a symbol file is written as MXNet 1.9.1 writes it, with what old files lack.
    Raises ArgumentError where the target exists (unless ``force``) or is of another kind, and all errors of readers.
    """
    if not force and os.path.lexists(target):
        raise ArgumentError(f"convert: {target!r} exists already; --force replaces it")
    if _is_symbol(source):
        if target.endswith(ARRAY_ENDINGS):
            raise ArgumentError(f"convert: {source!r} is a symbol file, so {target!r} must end in .json")
        net = symbol.load(source)
        net.save(target)
        yield from _listing_of(net)
        return
    if not target.endswith(ARRAY_ENDINGS):
        raise ArgumentError(f"convert: {target!r} must end in {', '.join(ARRAY_ENDINGS)} to hold arrays")
    found = files.read(source, limit=limit)
    metadata = found.metadata
    if metadata and target.endswith(".params"):
        yield f"left out, as .params holds no metadata: {', '.join(metadata)}"
        metadata = {}
    files.save(target, found.arrays, metadata=metadata, version=version)
    yield from _listing(found)


def inspect(path: str, states: bool = False, limit: int | None = None) -> Iterator[str]:
    """Lines that tell what a file holds; ``states``: it is a ``.states`` file of MXNet's, a pickle."""
    if states:
        held = files.load_mxnet_states(path)
        for key, state in held["states"].items():
            yield f"state {key}: {_state(state)}"
        for key, value in (held["optimizer"] or {}).items():
            yield f"optimizer {key}: {value!r}"
    elif _is_symbol(path):
        yield from _listing_of(symbol.load(path))
    else:
        yield from _listing(files.read(path, limit=limit))


def _is_symbol(path: str) -> bool:
    with opened(path) as source:
        return source.start(64).removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"{"


def _listing_of(net: symbol.Symbol) -> Iterator[str]:
    for title, names in (
        ("argument", net.list_arguments()),
        ("auxiliary state", net.list_auxiliary_states()),
        ("output", net.list_outputs()),
    ):
        yield from (f"{title} {name}" for name in names)


def _listing(found: files.ArrayFile) -> Iterator[str]:
    named = found.arrays if isinstance(found.arrays, dict) else dict(enumerate(found.arrays))
    for name, array in named.items():
        yield f"{name} {'None' if array is None else f'{array.dtype} {array.shape}'}"
    for name, text in found.metadata.items():
        yield f"metadata {name}: {text}"
    yield f"{len(named)} arrays, {sum(array.nbytes for array in named.values() if array is not None)} bytes"


def _state(state: Any) -> str:
    if isinstance(state, tuple):
        return f"({', '.join(map(_state, state))})"
    return f"{state.dtype} {state.shape}" if hasattr(state, "dtype") else repr(state)
