"""From a symbol and the user's arrays (or shapes) to an executor: checks, inference, allocation."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np

from ..context import Context
from ..dims import from_user
from ..errors import BindError, ShapeError, UnknownNameError, format_shape, near_miss
from ..plan import Rewrite
from ..symbol.graph import Graph
from .arena import Arena, InputPool, allocate_segment, pool_of
from .checks import check_context, check_gradient, check_overlap, context_for
from .executor import Executor
from .parts import Binding, Inferred, Placement, Spec, inferred, placed

Array = Any
REQUESTS = ("write", "add", "null")


def grad_requests(names: Sequence[str], grad_req: Any) -> dict[str, str]:
    """Request of every argument from a word, a list in the arguments' order, or a dict (absent names: null)."""
    if isinstance(grad_req, str):
        found = dict.fromkeys(names, grad_req)
    elif isinstance(grad_req, Mapping):
        members = set(names)
        unknown = next((name for name in grad_req if name not in members), None)
        if unknown is not None:
            raise UnknownNameError(f"grad_req: there is no argument '{unknown}'{near_miss(unknown, names)}")
        found = {name: grad_req.get(name, "null") for name in names}
    else:
        found = dict(_in_order(names, grad_req, "grad_req"))
    for name, request in found.items():
        if request not in REQUESTS:
            raise BindError(f"grad_req of '{name}' must be write, add or null, but it is {request!r}")
    return found


def _in_order(names: Sequence[str], given: Iterable[Any], title: str) -> list[tuple[str, Any]]:
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise BindError(f"{title} must be a dict by name or a list in order, but it is {given!r}")
    items = list(given)
    if len(items) != len(names):
        raise BindError(f"{title}: {len(items)} items for {len(names)} names: {', '.join(names)}")
    return list(zip(names, items, strict=True))


def _by_name(names: Sequence[str], given: Any, title: str, needed: bool) -> dict[str, Array]:
    """Arrays by name from a list in order or a dict; names the first missing one. Extra names of a dict are ignored."""
    if given is None:
        given = {}
    by_name = given if isinstance(given, Mapping) else dict(_in_order(names, given, f"bind: {title}"))
    missing = next((name for name in names if by_name.get(name) is None), None)
    if needed and missing is not None:
        near = near_miss(missing, given) if isinstance(given, Mapping) else ""
        raise BindError(f"bind: '{missing}' is missing in {title}{near}")
    return {name: by_name[name] for name in names if by_name.get(name) is not None}


def _check_lender(shared_exec: Any, context: Context, call: str) -> None:
    """Refuse to share the memory of what is no executor, or one on another context."""
    if shared_exec is None:
        return
    if not isinstance(shared_exec, Executor):
        raise BindError(f"{call}: shared_exec must be an executor, but it is a {type(shared_exec).__name__}")
    if shared_exec.context != context:
        raise BindError(f"{call}: shared_exec must run on {context}, but it is {shared_exec.title}")


def bind(
    symbol: Any, ctx: Context | None, args: Any, args_grad: Any = None, grad_req: Any = "write", aux_states: Any = None,
    group2ctx: Mapping[str, Context] | None = None, shared_exec: Executor | None = None, *,
    rewrites: Sequence[Rewrite] = (), tier: str = "reference", threads: Any = None,
) -> Executor:  # fmt: skip
    """Bind a symbol to the user's arrays, which are used where they lie.

    ``args``, ``args_grad``, ``aux_states``: lists in the symbol's order or dicts. No gradient array means request null.
    ``group2ctx``: the context on which the nodes of a ``ctx_group`` run and their variables lie; all others on ``ctx``.
    Raises BindError for missing arrays, arrays of another device, written arrays that overlap others; ShapeError and
    TypeInferenceError for arrays that do not fit the graph.
    """
    context = context_for(ctx, "bind")
    placement = placed(symbol, context, group2ctx, "bind")
    _check_lender(shared_exec, context, "bind")
    names = symbol.list_arguments()
    arguments = _by_name(names, args, "args", needed=True)
    aux = _by_name(symbol.list_auxiliary_states(), aux_states, "aux_states", needed=True)
    asked = grad_requests(names, grad_req)
    gradients = _by_name(names, args_grad, "args_grad", needed=False)
    requests = {name: asked[name] if name in gradients else "null" for name in names}
    gradients = {name: array for name, array in gradients.items() if requests[name] != "null"}
    for title, arrays in (("argument", arguments), ("gradient", gradients), ("auxiliary state", aux)):
        check_context(placement.of, arrays, title)
    given = {**arguments, **aux}
    types = {name: array.dtype for name, array in given.items()}
    found = inferred(symbol, {name: tuple(array.shape) for name, array in given.items()}, types, "bind")
    for name, gradient in gradients.items():
        check_gradient(name, gradient, arguments[name])
    written = {f"the gradient of '{name}'": array for name, array in gradients.items()}
    check_overlap(arguments, written | {f"'{name}'": array for name, array in aux.items()})
    arena = shared_exec.arena if shared_exec is not None else Arena(context)
    return _with_memory(
        Executor(
            Binding(found, placement, requests, arguments, gradients, aux, arena, rewrites=tuple(rewrites), tier=tier,
                    threads=threads)
        )
    )  # fmt: skip


def _with_memory(executor: Executor) -> Executor:
    """The executor; if it can be trained, its arena is there from now on: what binding allocates is what was stated."""
    if any(request != "null" for request in executor.grad_req.values()):
        executor.arena.reserve(executor.arena_needs())
    return executor


def _user_shapes(symbol: Any, given: Mapping[str, Any], call: str) -> dict[str, Any]:
    names, found = dict.fromkeys(symbol.list_inputs()), {}
    for name, shape in given.items():
        if name not in names:
            raise UnknownNameError(f"{call}: there is no argument '{name}'{near_miss(name, names)}")
        if isinstance(shape, str) or not isinstance(shape, Sequence):
            raise BindError(
                f"{call}: '{name}' must be a shape (a tuple of whole numbers), but it is a {type(shape).__name__}"
            )
        if any(isinstance(dim, bool) or not isinstance(dim, int | np.integer) or dim < 0 for dim in shape):
            raise BindError(
                f"{call}: dims of '{name}' must be whole numbers >= 0 (0: unknown), but the shape is {shape}"
            )
        found[name] = from_user(shape)
    return found


def simple_bind(
    symbol: Any, ctx: Context | None = None, grad_req: Any = "write", type_dict: Mapping[str, Any] | None = None,
    stype_dict: Mapping[str, str] | None = None, group2ctx: Mapping[str, Context] | None = None,
    shared_arg_names: Sequence[str] | None = None, shared_exec: Executor | None = None,
    shared_data_arrays: MutableMapping[str, Array] | None = None,
    shared_buffer: MutableMapping[str, Array] | None = None, **shapes: Any,
) -> Executor:  # fmt: skip
    """Bind a symbol to new arrays of zeros, from the shapes of its inputs.

    Parameters (arguments whose shape is not given) lie in one flat segment, their gradients in another in the order in
    which backward finishes them (on every context; ``group2ctx`` as in ``bind``). ``shared_exec`` lends its memory, and
    with ``shared_arg_names`` those arguments with their gradients and states; inputs lie in ``shared_data_arrays``.
    Raises ShapeError, BindError, UnknownNameError.
    """
    context = context_for(ctx, "simple_bind")
    placement = placed(symbol, context, group2ctx, "simple_bind")
    _check_lender(shared_exec, context, "simple_bind")
    for name, kind in (stype_dict or {}).items():
        if kind != "default":
            raise BindError(f"simple_bind: '{name}' must be dense (stype 'default'), but stype_dict asks for {kind!r}")
    names, aux_names = symbol.list_arguments(), symbol.list_auxiliary_states()
    given = _user_shapes(symbol, shapes, "simple_bind")
    for name in type_dict or {}:
        if name not in names and name not in aux_names:
            raise UnknownNameError(f"simple_bind: type_dict: there is no argument '{name}'{near_miss(name, names)}")
    found = inferred(symbol, given, type_dict or {}, "simple_bind")
    requests = grad_requests(names, grad_req)
    if isinstance(shared_arg_names, str):
        fact = "simple_bind: shared_arg_names must be a list of names"
        raise BindError(f"{fact}, but it is the text {shared_arg_names!r}")
    lent = set(shared_arg_names or ()).intersection(names)
    pool, pooled = None, shared_data_arrays if shared_data_arrays is not None else shared_buffer
    if pooled is not None:
        mapping: Any = pooled
        if not isinstance(mapping, MutableMapping):
            what = type(mapping).__name__
            raise BindError(f"simple_bind: shared_data_arrays must be a dict of arrays by name, but it is a {what}")
        held = {n: pooled[n] for n in names if n in given and n not in lent and pooled.get(n) is not None}
        check_context(placement.of, held, "shared input")
        pool = pool_of(pooled, context)
    arguments, gradients, aux = {}, {}, {}
    if lent:
        if shared_exec is None:
            raise BindError("simple_bind: shared_arg_names needs shared_exec, an executor that lends them")
        arguments = _borrow(shared_exec, (n for n in names if n in lent), found.specs)
        aux = _borrow(shared_exec, (n for n in shared_exec.aux_dict if n in aux_names), found.specs)
        gradients = {
            n: g for n, g in shared_exec.grad_dict.items() if n in lent and g is not None and requests[n] != "null"
        }  # fmt: skip
    arena = shared_exec.arena if shared_exec is not None else None
    for title, lent_arrays in (("argument", arguments), ("gradient", gradients), ("auxiliary state", aux)):
        check_context(placement.of, lent_arrays, f"shared {title}")
    return assemble(found, placement, requests, arguments, gradients, aux, list(given), pool, arena)


def _borrow(lender: Executor, names: Iterable[str], specs: Mapping[str, Spec]) -> dict[str, Array]:
    """Arguments and states of another executor by name; BindError naming what is missing or does not fit."""
    held, found = {**lender.arg_dict, **lender.aux_dict}, {}
    for name in names:
        if name not in held:
            near = near_miss(name, held)
            raise BindError(f"simple_bind: '{name}' is to be shared, but {lender.title} has none{near}")
        shape, dtype = specs[name]
        if tuple(held[name].shape) != shape or held[name].dtype != dtype:
            raise BindError(
                f"simple_bind: '{name}' must be {format_shape(shape)} {np.dtype(dtype).name}, but {lender.title} holds "
                f"{format_shape(held[name].shape)} {held[name].dtype.name}"
            )
        found[name] = held[name]
    return found


def _as_finished(graph: Graph, names: Sequence[str]) -> list[str]:
    """Arguments as backward finishes their gradients: the last node's first. Updates run over both segments at once."""
    first: dict[str, int] = {}
    for number, node in enumerate(graph.nodes):
        for source, _ in node.inputs:
            first.setdefault(source.name, number)
    return sorted(names, key=lambda name: -first.get(name, 0))


def assemble(
    found: Inferred, place: Context | Placement, requests: Mapping[str, str], arguments: Mapping[str, Array],
    gradients: Mapping[str, Array], aux: Mapping[str, Array], inputs: Sequence[str], pool: InputPool | None = None,
    arena: Arena | None = None,
) -> Executor:  # fmt: skip
    """Allocate what is not given, by role and in flat segments (inputs in the ``pool``), and make the executor."""

    def new(role: str, names: Iterable[str]) -> dict[str, Array]:
        made: dict[str, Array] = dict.fromkeys(names)
        for context in placement.contexts:
            specs = {name: found.specs[name] for name in made if placement.of(name) == context}
            made |= allocate_segment(context, role, specs)[1] if specs else {}
        return made

    placement = place if isinstance(place, Placement) else Placement((place,))
    names = found.symbol.list_arguments()
    missing = [n for n in names if n not in arguments]
    pooled = tuple(n for n in missing if n in inputs) if pool is not None else ()
    held = dict(arguments) | new("input", (n for n in missing if n in inputs and n not in pooled))
    held |= new("parameter", _as_finished(found.graph, [n for n in missing if n not in inputs]))
    states = {**aux, **new("aux", (n for n in found.symbol.list_auxiliary_states() if n not in aux))}
    grads = dict(gradients)
    arena = arena or Arena(placement.contexts[0])
    binding = Binding(found, placement, requests, held, grads, states, arena, pool, pooled)
    executor = Executor(binding)
    wanted = [n for n in names if requests[n] != "null" and n not in gradients]
    if wanted:  # the plan says in which order they are finished
        order = [n for n in executor.plan().gradient_order() if n not in gradients]
        order = list(dict.fromkeys([*order, *wanted]))
        for of_inputs in (False, True):
            grads |= new("gradient", (n for n in order if (n in inputs) == of_inputs))
    executor.bind_inputs()  # so that the mapping of shared inputs has them from the start
    return _with_memory(executor)


def reshaped(executor: Executor, partial_shaping: bool, allow_up_sizing: bool, shapes: Mapping[str, Any]) -> Executor:
    """See ``Executor.reshape``."""
    binding = executor._binding
    held, symbol = executor.arg_dict, executor.symbol
    given = _user_shapes(symbol, shapes, "reshape")
    found = inferred(symbol, given, {n: a.dtype for n, a in {**held, **binding.aux}.items()}, "reshape")

    def fitted(name: str, array: Array) -> Array:
        shape = found.specs[name][0]
        if tuple(array.shape) == shape:
            return array
        if name not in given and not partial_shaping:
            raise ShapeError(
                f"reshape: '{name}' changes from {format_shape(array.shape)} to {format_shape(shape)}; "
                "give its shape, or partial_shaping=True to let such changes follow"
            )
        if math.prod(shape) > math.prod(array.shape):
            if not allow_up_sizing:
                raise ShapeError(
                    f"reshape: '{name}' grows from {format_shape(array.shape)} to {format_shape(shape)}; give "
                    "allow_up_sizing=True to let it have new memory"
                )
            return binding.placement.of(name).zeros(shape, array.dtype, "input")
        return array.reshape(-1)[: math.prod(shape)].reshape(shape)

    arrays: dict[str, Any] = {
        field: {name: fitted(name, array) for name, array in mapping.items()}
        for field, mapping in (("arguments", held), ("gradients", binding.gradients), ("aux", binding.aux))
    }
    return Executor(dataclasses.replace(binding, inferred=found, pool=None, pooled=(), **arrays))
