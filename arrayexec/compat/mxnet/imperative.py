"""Operators called on arrays at once: the operator's own forward, ready to run for inputs of known shapes and types.

What a call needs (the operator with its attributes, shapes and types of its values, what it prepares) is found once
and kept for the next call of the same kind.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy

from ...context import Context, context_of, copyto, current_context
from ...errors import ArgumentError, CompositionError, ContextError, ShapeError, near_miss
from ...executor import inferred
from ...registry import Form, Op, find_body, get_op, make_op, scratch_of, signature_of
from ...streams import RunPosition, Stream
from ...symbol import Symbol, Variable
from ...symbol.compose import user_source
from ...symbol.graph import Node, place

Raw = Any
"""A plain array: numpy.ndarray, cupy.ndarray or that of a registered device."""

_MANY_CALLS = 2048
_calls: dict[Any, Call] = {}
_draws = itertools.count()
_QUIET = contextlib.nullcontext()


def restart_draws() -> None:
    """Let operators that draw random numbers begin at the start of their streams again (after a new seed)."""
    global _draws
    _draws = itertools.count()


class Call:
    """One operator with its attributes, for inputs of certain shapes and types on one context."""

    def __init__(self, op: Op, name: str, arrays: Sequence[Raw], context: Context) -> None:
        self.op, self.name, self.context = op, name, context
        signature = signature_of(op)
        source = user_source()
        missing = signature.arguments[len(arrays) :]
        where = f"{op.form.name}{place(f'nd.{name}', source)}"
        if missing:
            raise CompositionError(f"{where} needs the input '{missing[0]}'")
        if len(arrays) > len(signature.arguments):
            names = ", ".join(signature.arguments) or "none"
            raise CompositionError(f"{where} was given {len(arrays)} inputs, but it takes {names}")
        variables = [Variable(argument).heads[0] for argument in signature.arguments]
        node = Node(op, f"nd.{name}", {}, tuple(variables), source)
        symbol = Symbol(tuple((node, i) for i in range(len(signature.outputs))))
        shapes = {argument: tuple(array.shape) for argument, array in zip(signature.arguments, arrays, strict=True)}
        types = {argument: array.dtype for argument, array in zip(signature.arguments, arrays, strict=True)}
        found = inferred(symbol, shapes, types, f"nd.{name}")
        graph = found.graph
        number = next(i for i, other in enumerate(graph.nodes) if other.op is not None)
        entries = graph.values(number)
        specs = [(found.shapes[entry], found.types[entry]) for entry in entries]
        made = specs[len(signature.arguments) :]
        self.known = found.known(number)
        self.outputs, self.hidden = made[: len(signature.outputs)], made[len(signature.outputs) :]
        self.scratch = scratch_of(op, self.known)
        self.own_state = bool(type(op).rest)  # what is prepared belongs to one call, as a custom operator's object
        self.prepared = None if self.own_state else op.prepare(self.known, context)
        self.inputs = len(signature.inputs)
        self.body = find_body(op, "forward", "reference")
        self.on_host = context.xp is numpy
        constants = {"xp": context.xp, "is_train": False, "prepared": self.prepared}
        varies = {"input", "aux", "output", "hidden", "temp", "rng"} | ({"prepared"} if self.own_state else set())
        self.constants = [constants.get(kind) for kind, _ in signature.forward]
        self.slots = [(i, kind, place) for i, (kind, place) in enumerate(signature.forward) if kind in varies]
        inplace: Any = op.inplace
        self.overwrites = {signature.outputs.index(w): signature.inputs.index(r)
                           for w, r in dict(inplace).items()
                           if w in signature.outputs and r in signature.inputs}  # fmt: skip

    def new(self, spec: tuple[tuple[int, ...], Any]) -> Raw:
        """A new array with arbitrary values."""
        return numpy.empty(*spec) if self.on_host else self.context.empty(*spec, "output")

    def run(self, arrays: Sequence[Raw], outputs: Sequence[Raw | None]) -> list[Raw]:
        """Compute into ``outputs`` where there is one, else into new arrays; gives those computed."""
        made = [self.new(spec) if out is None else out for spec, out in zip(self.outputs, outputs, strict=True)]
        bound = self.constants.copy()
        for i, kind, position in self.slots:
            if kind == "input" and not isinstance(position, tuple):
                bound[i] = arrays[position]
            elif kind == "output" and not isinstance(position, tuple):
                bound[i] = made[position]
            else:
                bound[i] = self._bound(kind, position, arrays, made)
        with self.context.enter() if not self.on_host else _QUIET, numpy.errstate(all="ignore"):
            self.body(*bound)
        return made

    def _bound(self, kind: str, position: Any, arrays: Sequence[Raw], made: Sequence[Raw]) -> Any:
        if kind == "temp":
            return self.new(self.scratch[position])
        if kind == "prepared":
            return self.op.prepare(self.known, self.context)
        if kind == "rng":
            return Stream(f"nd.{self.name}", RunPosition(step=next(_draws)))
        if kind == "hidden":
            members: Sequence[Raw] = [self.new(spec) for spec in self.hidden]
        else:
            members = {"input": arrays, "output": made, "aux": arrays[self.inputs :]}[kind]
        return tuple(members[i] for i in position) if isinstance(position, tuple) else members[position]

    def direct(self, out: Raw, number: int, arrays: Sequence[Raw]) -> bool:
        """Whether ``out`` can be what the operator writes: of its type, in one piece, apart from what it reads."""
        kind = self.outputs[number][1]
        if out.dtype != kind or not out.flags.c_contiguous:
            return False
        if not self.on_host:
            return not arrays  # whether they share memory is not asked of a device
        same = self.overwrites.get(number)
        for position, array in enumerate(arrays):
            if numpy.may_share_memory(out, array) and not (position == same and _is_same(out, array)):
                return False
        return True


def _is_same(one: Any, other: Any) -> bool:
    return (one.ctypes.data, one.shape, one.strides) == (other.ctypes.data, other.shape, other.strides)


def call_of(name: str, arrays: Sequence[Raw], attributes: Mapping[str, Any], context: Context) -> Call:
    """The ready call of operator ``name`` with these attributes on inputs as ``arrays`` are."""
    key: Any = [name, context.device_type, context.device_id, *attributes.items()]
    for array in arrays:
        key += (array.shape, array.dtype)
    key = tuple(key)
    try:
        found = _calls.get(key)
    except TypeError:  # a list among the attributes
        key, found = None, None
    if found is None:
        cls = get_op(name)
        where = place(f"nd.{name}", user_source())
        found = Call(make_op(name, attributes, where), name, arrays, context)
        if key is not None and not cls.rest:
            if len(_calls) >= _MANY_CALLS:
                _calls.clear()
            _calls[key] = found
    return found


def compute(
    name: str, arrays: Sequence[Raw], attributes: Mapping[str, Any], context: Context, outputs: Sequence[Raw] = ()
) -> list[Raw]:
    """Outputs of an operator on plain arrays of ``context``, in ``outputs`` where given (types are cast).

    Raises ContextError for arrays of another device, ShapeError and TypeInferenceError for what does not fit.
    """
    for array in arrays:
        if not context.owns(array):
            raise ContextError(
                f"nd.{name}: all arrays must lie on {context}, but one lies on {context_of(array)}; "
                "as_in_context(…) copies"
            )
    call = call_of(name, arrays, attributes, context)
    if not outputs:
        return call.run(arrays, [None] * len(call.outputs))
    if len(outputs) != len(call.outputs):
        raise ArgumentError(
            f"nd.{name}: out must be {len(call.outputs)} arrays, as many as there are outputs, but it is {len(outputs)}"
        )
    targets = []
    for number, (out, (shape, _)) in enumerate(zip(outputs, call.outputs, strict=True)):
        if tuple(out.shape) != shape:
            raise ShapeError(f"nd.{name}: out must have the shape {shape}, but it has {tuple(out.shape)}")
        targets.append(out if call.direct(out, number, arrays) else None)
    made = call.run(arrays, targets)
    for out, array in zip(outputs, made, strict=True):
        if out is not array:
            copyto(out, array)
    return list(outputs)


def sorted_out(
    name: str, positional: Sequence[Any], keywords: Mapping[str, Any], is_array: Any
) -> tuple[list[Any], dict[str, Any]]:
    """Inputs in the operator's order, and its attributes by name, from what a caller gave.

    Attributes may follow the arrays by position, in the order of the operator's fields.
    """
    form = get_op(name).form
    given = {key: value for key, value in keywords.items() if key not in ("name", "attr")}
    if form.variadic is not None and len(positional) == 1 and isinstance(positional[0], list | tuple):
        positional = tuple(positional[0])
    count = next((i for i, value in enumerate(positional) if value is not None and not is_array(value)), None)
    inputs = list(positional[:count])
    for key, value in zip(_attributes_after(name, form, positional, count), positional[len(inputs) :], strict=False):
        if key in given:
            raise CompositionError(f"nd.{name}: attribute '{key}' is given by position and by keyword")
        given[key] = value
    named = {key: given.pop(key) for key, value in keywords.items() if is_array(value)}
    for key, value in list(given.items()):
        if value is None and key in form.forward.parameters and key not in form.attributes:
            del given[key]  # an input that is left out
    if form.variadic is not None and "num_args" in form.attributes and "num_args" not in given:
        given["num_args"] = len(inputs) + len(named)
    while inputs and inputs[-1] is None:
        inputs.pop()
    if named:
        arguments = signature_of(make_op(name, given)).arguments
        for key in named:
            if key not in arguments:
                raise CompositionError(f"nd.{name} has no input '{key}'{near_miss(key, arguments)}")
        for argument in arguments[len(inputs) :]:
            if argument in named:
                inputs.append(named.pop(argument))
        if named:
            twice = next(iter(named))
            raise CompositionError(f"nd.{name}: input '{twice}' is given twice, or one before it is missing")
    return inputs, {key: tuple(value) if isinstance(value, list) else value for key, value in given.items()}


def _attributes_after(name: str, form: Form, positional: Sequence[Any], count: int | None) -> list[str]:
    names = list(form.attributes)
    extra = 0 if count is None else len(positional) - count
    if extra > len(names):
        raise CompositionError(f"nd.{name} was given {extra} values after its arrays, but its attributes are {names}")
    return names


def context_for(arrays: Sequence[Any], ctx: Context | None) -> Context:
    """Where a call runs: ``ctx``, else where its first array lies, else the current context."""
    if ctx is not None:
        return Context(ctx)
    for array in arrays:
        return getattr(array, "context", None) or context_of(array)
    return current_context()
