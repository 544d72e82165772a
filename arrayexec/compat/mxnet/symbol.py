"""``mx.sym``: symbols whose executors hand out NDArrays, and every operator as a function of symbols."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ... import executor as _engine
from ... import symbol as _core
from ...context import current_context as _current_context
from ...errors import ArgumentError as _ArgumentError
from ...errors import UnknownOperatorError as _UnknownOperatorError
from .array import _METHODS, unwrap
from .executor import Executor
from .refused import REFUSED as _REFUSED

__path__: list[str] = []  # programs import from modules inside this one
__all__ = ["Group", "Symbol", "Variable", "contrib", "linalg", "load", "load_json", "op", "random", "var"]


class Symbol(_core.Symbol):
    """Outputs of a graph; composing it gives such symbols again. Operators are its methods, too."""

    __slots__ = ()

    def bind(
        self, ctx: Any, args: Any, args_grad: Any = None, grad_req: Any = "write", aux_states: Any = None,
        group2ctx: Any = None, shared_exec: Any = None,
    ) -> Executor:  # fmt: skip
        """Executor over the memory of the given NDArrays. Raises BindError for what does not fit."""
        arrays = unwrap(args), unwrap(args_grad), grad_req, unwrap(aux_states)
        return Executor(_engine.bind(self, ctx, *arrays, group2ctx, _plain(shared_exec)))

    def simple_bind(
        self, ctx: Any, grad_req: Any = "write", type_dict: Any = None, stype_dict: Any = None,
        group2ctx: Any = None, shared_arg_names: Any = None, shared_exec: Any = None,
        shared_data_arrays: Any = None, shared_buffer: Any = None, **shapes: Any,
    ) -> Executor:  # fmt: skip
        """Executor over new arrays (zeros) of the shapes that follow from ``shapes``. Raises BindError, ShapeError.

        Names that the symbol has not are passed over, as those of labels of a net that is cut before its loss.
        """
        names = {*self.list_inputs()}
        requests, types = (_among(names, given) for given in (grad_req, type_dict))
        return Executor(
            _engine.simple_bind(
                self, ctx, requests, types, stype_dict, group2ctx, shared_arg_names, _plain(shared_exec),
                _kept(shared_data_arrays), _kept(shared_buffer), **_among(names, shapes),
            )
        )  # fmt: skip

    def eval(self, ctx: Any = None, **kwargs: Any) -> list[Any]:
        """Outputs for the given NDArrays: bind without gradients and run forward once."""
        states = {name: kwargs.pop(name) for name in self.list_auxiliary_states() if name in kwargs}
        context = ctx or next((array.context for array in kwargs.values()), None) or _current_context()
        return self.bind(context, kwargs, grad_req="null", aux_states=states).forward()

    def __reduce__(self) -> Any:
        return _restored, (self.tojson(),)


def _among(names: set[str], given: Any) -> Any:
    """The items of a dict whose names are among these; what is no dict as it is."""
    return {name: item for name, item in given.items() if name in names} if isinstance(given, dict) else given


def _plain(executor: Any) -> Any:
    return executor.core if isinstance(executor, Executor) else executor


def _kept(arrays: Any) -> Any:
    """A mapping of shared arrays that the engine may fill, with plain arrays in it."""
    for name, array in (arrays or {}).items():
        arrays[name] = unwrap(array)
    return arrays


def own(found: Any) -> Any:
    """A symbol of the engine as one of this namespace; anything else as it is."""
    return Symbol(found.heads) if isinstance(found, _core.Symbol) and not isinstance(found, Symbol) else found


def _restored(text: str) -> Any:
    return own(_core.load_json(text))


def _giving(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of the engine that gives symbols of this namespace."""

    @functools.wraps(function)
    def call(*args: Any, **keywords: Any) -> Any:
        return own(function(*args, **keywords))

    return call


class _Group:
    """A group of functions of the engine, such as ``sym.contrib``."""

    def __init__(self, functions: Any) -> None:
        self._functions = functions

    def __getattr__(self, name: str) -> Any:
        if f"contrib.{name}" in _REFUSED:
            raise _UnknownOperatorError(f"sym.contrib.{name} is not here: {_REFUSED[f'contrib.{name}']}")
        return _giving(getattr(self._functions, name))

    def __dir__(self) -> list[str]:
        return list(dir(self._functions))


def _method(name: str) -> Callable[..., Any]:
    def method(self: Symbol, *args: Any, **keywords: Any) -> Any:
        return getattr(_core, name)(self, *args, **keywords)

    method.__name__, method.__doc__ = name, f"Operator ``{name}`` of this symbol."
    return method


def _reshape(self: Symbol, *shape: Any, **keywords: Any) -> Any:
    """Operator ``reshape`` of this symbol; the shape as one tuple or dim by dim."""
    if shape:
        keywords["shape"] = shape[0] if len(shape) == 1 and isinstance(shape[0], list | tuple) else shape
    return _core.reshape(self, **keywords)


def _astype(self: Symbol, dtype: Any, **_: Any) -> Any:
    """This symbol as another type."""
    return _core.cast(self, dtype=dtype)


for _name in (*_METHODS, "transpose", "broadcast_to", "split_v2", "dot"):
    if not hasattr(Symbol, _name):
        setattr(Symbol, _name, _method(_name))
Symbol.reshape, Symbol.astype = _reshape, _astype  # type: ignore[attr-defined]

def Variable(
    name: str, attr: Any = None, shape: Any = None, lr_mult: float | None = None, wd_mult: float | None = None,
    dtype: Any = None, init: Any = None, stype: Any = None, **kwargs: str,
) -> Any:  # fmt: skip
    """A named input of graphs, with the defaults of its shape and type, its multipliers and its initialiser."""
    if stype not in (None, "default"):
        raise _ArgumentError(f"Variable '{name}': arrays are dense (stype 'default'), but {stype!r} was asked for")
    return own(_core.Variable(name, shape, dtype, init, lr_mult, wd_mult, attr, **kwargs))


var = Variable
Group, load, load_json = _giving(_core.Group), _giving(_core.load), _giving(_core.load_json)
random, linalg, contrib, op = _Group(_core.random), _Group(_core.linalg), _Group(_core.contrib), _Group(_core)
_internal, sparse = op, op


def __getattr__(name: str) -> Any:
    return _giving(getattr(_core, name))


def __dir__() -> list[str]:
    return sorted({*__all__, *dir(_core)})
