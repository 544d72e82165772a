"""Optimizer states that MXNet pickled (``.states``), read without Python's unpickler: nothing is imported or called.

A pickle is a program for a stack machine. This one knows the instructions that build numbers, texts, containers and
arrays; a name of a class only says which of these is meant, and every other name is refused.
"""

from __future__ import annotations

import io
import pickletools
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy

from ..errors import FileFormatError
from . import params
from .source import Array, Path, Source, opened, path_text, what_it_is

_MARK = object()
_OPTIMIZER = ("mxnet.optimizer", "mxnet.lr_scheduler")
_NDARRAY = {("mxnet.ndarray.ndarray", "NDArray"), ("mxnet.ndarray", "NDArray"), ("mxnet.numpy.multiarray", "ndarray")}
_BASES = {("numpy", "ndarray"), ("builtins", "object"), ("__builtin__", "object")}
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "MARK": _MARK}
_LITERALS = frozenset(
    "INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT UNICODE BINUNICODE SHORT_BINUNICODE BINUNICODE8 "
    "STRING BINSTRING SHORT_BINSTRING BINBYTES SHORT_BINBYTES BINBYTES8 BYTEARRAY8".split()
)
_NUMBERS = re.compile(r"[<>|=]?[biufc]\d\d?")


class _Name(NamedTuple):
    """A class or function that the file names: never looked up."""

    module: str
    name: str


class _Object:
    """An object that is being built: what the file calls it, and its attributes or, of an array, its value."""

    def __init__(self, name: _Name, value: Any = None) -> None:
        self.name, self.value = name, value


def load_mxnet_states(path: Path, *, limit: int | None = None) -> dict[str, Any]:
    """``{"states": …, "optimizer": …}`` of a ``.states`` file that MXNet wrote.

    States are by index or name of a parameter: None, an array or a tuple of these, nested as the optimizer keeps them
    (with multiple precision its state and the float32 weight). The optimizer, where the file has it, is a dict of its
    attributes with its class under ``"class"``, schedulers likewise; None where it has not. ``limit``: as of ``load``.
    Raises FileFormatError for anything else, which is never run.
    """
    text = path_text("load_mxnet_states", path)
    with opened(text, limit) as source:
        start = source.start(40)
        data = source.take(source.size, "the pickle")
        source.at = 0
        found = _Machine(source, data, start).run()
        states, optimizer = found if isinstance(found, tuple) and len(found) == 2 else (found, None)
        if not isinstance(states, dict) or not all(isinstance(key, (int, str)) for key in states):
            source.fail("it must hold states by index or name, with or without an optimizer")
        checked = {key: _state(source, key, value, 0) for key, value in states.items()}
        if optimizer is None:
            return {"states": checked, "optimizer": None}
        if not isinstance(optimizer, _Object) or not optimizer.name.module.startswith(_OPTIMIZER):
            source.fail("behind the states an optimizer must stand")
        return {"states": checked, "optimizer": _attributes(source, optimizer, 0)}


def _state(source: Source, key: Any, value: Any, depth: int) -> Any:
    source.unpack(64, "the states")  # a tuple that stands in many places is many here
    if isinstance(value, _Object):
        value = value.value
    if value is None or isinstance(value, (int, float, numpy.ndarray)):
        return value
    if type(value) in (tuple, list) and depth < 4 and len(value) < 16:
        return tuple(_state(source, key, part, depth + 1) for part in value)
    source.fail(f"the state of {key!r} must be arrays and numbers, but part of it is {type(value).__name__}")


def _attributes(source: Source, given: _Object, depth: int) -> dict[str, Any]:
    held = given.value if isinstance(given.value, dict) else {}
    return {"class": given.name.name, **{str(key): _plain(source, value, depth + 1) for key, value in held.items()}}


def _plain(source: Source, value: Any, depth: int) -> Any:
    """A value of an optimizer without the objects of the machine."""
    if depth > 8:
        source.fail("the optimizer's attributes are nested too deeply")
    source.unpack(64, "the optimizer")
    if isinstance(value, _Object):
        return _attributes(source, value, depth) if value.name.module.startswith(_OPTIMIZER) else value.value
    if isinstance(value, dict):
        return {key: _plain(source, item, depth + 1) for key, item in value.items()}
    if type(value) in (tuple, list):
        return type(value)(_plain(source, item, depth + 1) for item in value)
    if value is None or isinstance(value, (bool, int, float, str, numpy.ndarray)):
        return value
    source.fail(f"the optimizer must hold numbers, texts and arrays, but part of it is {type(value).__name__}")


class _Machine:
    """Runs the instructions of one pickle as far as they build data."""

    def __init__(self, source: Source, data: bytes, start: bytes) -> None:
        self.source, self.data, self.begin = source, data, start
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def run(self) -> Any:
        steps: dict[str, Callable[[Any], None]] = {
            name.removeprefix("do_").upper(): getattr(self, name) for name in dir(self) if name.startswith("do_")
        }
        try:
            for op, argument, position in pickletools.genops(io.BytesIO(self.data)):
                self.source.at = position or 0
                if op.name in _LITERALS:
                    self.stack.append(argument)
                elif op.name in _CONSTANTS:
                    self.stack.append(_CONSTANTS[op.name])
                elif op.name == "STOP":
                    break
                elif op.name in steps:
                    steps[op.name](argument)
                elif op.name not in ("PROTO", "FRAME"):
                    self.source.fail(f"the instruction {op.name} is none that states need")
            (found,) = self.stack
        except FileFormatError:
            raise
        except (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError, Warning) as error:
            other = "" if self.begin[:1] in b"\x80(" else what_it_is(self.begin)
            self.source.fail(f"the pickle is damaged: {error}{other}")
        return found

    # Each instruction by its name in pickletools.

    def do_put(self, argument: int) -> None:
        self.memo[argument] = self.stack[-1]

    do_binput = do_long_binput = do_put

    def do_memoize(self, _: Any) -> None:
        self.memo[len(self.memo)] = self.stack[-1]

    def do_get(self, argument: int) -> None:
        self.stack.append(self.memo[argument])

    do_binget = do_long_binget = do_get

    def do_empty_dict(self, _: Any) -> None:
        self.stack.append({})

    def do_empty_list(self, _: Any) -> None:
        self.stack.append([])

    def do_empty_tuple(self, _: Any) -> None:
        self.stack.append(())

    def do_tuple1(self, _: Any) -> None:
        self.stack[-1:] = [(self.stack[-1],)]

    def do_tuple2(self, _: Any) -> None:
        self.stack[-2:] = [(self.stack[-2], self.stack[-1])]

    def do_tuple3(self, _: Any) -> None:
        self.stack[-3:] = [(self.stack[-3], self.stack[-2], self.stack[-1])]

    def marked(self) -> list[Any]:
        """Take everything above the last mark, and the mark."""
        at = len(self.stack) - 1
        while self.stack[at] is not _MARK:
            at -= 1
        taken = self.stack[at + 1 :]
        del self.stack[at:]
        return taken

    def do_tuple(self, _: Any) -> None:
        self.stack.append(tuple(self.marked()))

    def do_list(self, _: Any) -> None:
        self.stack.append(self.marked())

    def do_dict(self, _: Any) -> None:
        given = self.marked()
        self.stack.append({})
        self.put_items(given)

    def do_append(self, _: Any) -> None:
        value = self.stack.pop()
        self.top(list).append(value)

    def do_appends(self, _: Any) -> None:
        values = self.marked()
        self.top(list).extend(values)

    def do_setitem(self, _: Any) -> None:
        given = self.stack[-2:]
        del self.stack[-2:]
        self.put_items(given)

    def do_setitems(self, _: Any) -> None:
        self.put_items(self.marked())

    def put_items(self, given: list[Any]) -> None:
        held = self.top(dict)
        for key, value in zip(given[::2], given[1::2], strict=True):
            if not isinstance(key, (int, str)):
                self.source.fail(f"keys must be numbers or texts, but one is {type(key).__name__}")
            held[key] = value

    def top(self, kind: type) -> Any:
        found = self.stack[-1]
        if type(found) is not kind:
            raise ValueError(f"a {kind.__name__} must be on top of the stack, but there is {type(found).__name__}")
        return found

    def do_global(self, argument: str) -> None:
        self.stack.append(self.admitted(*argument.split(" ", 1)))

    def do_stack_global(self, _: Any) -> None:
        name, module = self.stack.pop(), self.stack.pop()
        self.stack.append(self.admitted(module, name))

    def admitted(self, module: Any, name: Any) -> _Name:
        texts = isinstance(module, str) and isinstance(name, str)
        if not texts or not (module.startswith(_OPTIMIZER) or (module, name) in _ADMITTED):
            told = f"{str(module)[:80]}.{str(name)[:80]}"
            self.source.fail(f"it names {told}, but only arrays and numbers are admitted; nothing was run")
        return _Name(module, name)

    def do_reduce(self, _: Any) -> None:
        arguments, name = self.stack.pop(), self.stack.pop()
        if type(name) is not _Name or type(arguments) is not tuple:
            raise ValueError("a name and a tuple must be on top of the stack")
        if (name.module, name.name) in _CALLS:
            self.stack.append(_CALLS[name.module, name.name](self.source, *arguments))
        else:
            self.stack.append(_Object(name))

    def do_newobj(self, _: Any) -> None:
        self.do_reduce(None)

    def do_build(self, _: Any) -> None:
        state, made = self.stack.pop(), self.stack[-1]
        if type(made) is not _Object:
            raise ValueError("an object must be on top of the stack")
        if (made.name.module, made.name.name) in _NDARRAY:
            raw = state["handle"]
            made.value = None if raw is None else _record(self.source, bytes(raw))
        elif made.name.module.startswith(_OPTIMIZER):
            made.value = state
        else:
            made.value = _build_numpy(self.source, made, state)


# What a file may call, and what is done instead.


def _record(source: Source, raw: bytes) -> Array | None:
    """The array of a record of ``.params``."""
    inner = Source(io.BytesIO(raw), len(raw), source.path, source.left)
    inner.item = f" (of the array at byte {source.at} of the pickle)"
    found = params.record(inner)
    source.left = inner.left
    return found


def _bytes(source: Source, text: Any, coding: Any = None) -> bytes:
    """Bytes, as protocol 2 writes them: a text of Latin letters."""
    if isinstance(text, (bytes, bytearray)):
        return bytes(text)
    if not isinstance(text, str) or coding not in (None, "latin1", "latin-1"):
        source.fail("bytes must be a text in Latin 1")
    return text.encode("latin-1")


def _dtype(source: Source, text: Any, *_: Any) -> _Object:
    if not isinstance(text, str) or not _NUMBERS.fullmatch(text):
        source.fail(f"the element type of an array must be of numbers, but it is {str(text)[:40]!r}")
    return _Object(_Name("numpy", "dtype"), numpy.dtype(text))


def _build_numpy(source: Source, made: _Object, state: Any) -> Any:
    if made.name.name == "dtype":  # (version, byte order, …)
        return made.value.newbyteorder(state[1])
    _, shape, kind, fortran, raw = state
    return _numpy(source, shape, kind, raw, "F" if fortran else "C")


def _numpy(source: Source, shape: Any, kind: Any, raw: Any, order: Any) -> Array:
    if not isinstance(kind, _Object) or not isinstance(kind.value, numpy.dtype):
        raise ValueError("an array must have an element type")
    raw = _bytes(source, raw)
    return numpy.frombuffer(raw, kind.value).reshape(shape, order=order).astype(kind.value.newbyteorder("="))


_CALLS: dict[tuple[str, str], Callable[..., Any]] = {
    ("builtins", "bytearray"): _bytes,
    ("__builtin__", "bytearray"): _bytes,
    ("builtins", "bytes"): _bytes,
    ("_codecs", "encode"): _bytes,
    ("copy_reg", "_reconstructor"): lambda _, name, *__: _Object(name),
    ("copyreg", "_reconstructor"): lambda _, name, *__: _Object(name),
    ("numpy", "dtype"): _dtype,
}
for _module in ("numpy.core.multiarray", "numpy._core.multiarray"):
    _CALLS[_module.replace("multiarray", "numeric"), "_frombuffer"] = lambda source, raw, kind, shape, order: _numpy(
        source, shape, kind, raw, order
    )
    _CALLS[_module, "_reconstruct"] = lambda *_: _Object(_Name("numpy", "ndarray"))
    _CALLS[_module, "scalar"] = lambda source, kind, raw: _numpy(source, (), kind, raw, "C").item()
_ADMITTED = _CALLS.keys() | _NDARRAY | _BASES
