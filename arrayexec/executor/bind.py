"""From a symbol and the user's arrays (or shapes) to an executor: checks, inference, allocation."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np

from ..context import Context
from ..dims import from_user, known
from ..errors import BindError, ShapeError, TypeInferenceError, UnknownNameError, format_shape, message, near_miss
from ..plan import Rewrite
from ..symbol.graph import Graph
from ..symbol.infer import infer_shapes, infer_types
from .arena import Arena, InputPool, allocate_segment, pool_of
from .checks import check_context, check_gradient, check_lender, check_overlap, context_for, element_type, same_context
from .executor import Binding, Executor

Array = Any
MAX_DIMS, MAX_BYTES = 64, 2**62  # what an array can have at all
REQUESTS = ("write", "add", "null")



def _names(graph: Graph, numbers: Sequence[int]) -> list[str]:
    return [graph.nodes[i].name for i in numbers]


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


def inferred(
    graph: Graph, shapes: Mapping[str, Any], types: Mapping[str, Any], call: str
) -> tuple[list[Any], list[np.dtype[Any]]]:
    """Complete shapes and types of all entries; ShapeError lists the variables whose shape does not follow."""
    found = infer_shapes(graph, shapes, call)
    numbers = {name: element_type(name, kind, call) for name, kind in types.items() if kind is not None}
    unknown = [
        (node.name, format_shape(None if not _ranked(found[graph.first[i]]) else found[graph.first[i]]))
        for i, node in enumerate(graph.nodes)
        if node.op is None and not known(found[graph.first[i]])
    ]
    hidden = next((i for i, shape in enumerate(found) if not known(shape)), None)
    if unknown or hidden is not None:
        names = ", ".join(f"'{name}'" for name, _ in unknown[:3]) or f"'{graph.entry_name(hidden or 0)}'"
        raise ShapeError(
            message(f"{call}: the shapes given do not say the shape of {names}", unknown[:12], "unknown shapes",
                    "give their shapes by keyword, or by Variable(shape=…)")
        )  # fmt: skip
    kinds = infer_types(graph, numbers, call, np.float32)
    for entry, (shape, kind) in enumerate(zip(found, kinds, strict=True)):
        if kind is None:
            raise TypeInferenceError(f"{call}: nothing says the element type of '{graph.entry_name(entry)}'")
        if len(shape) > MAX_DIMS or math.prod(shape) * kind.itemsize > MAX_BYTES:
            raise ShapeError(
                f"{call}: '{graph.entry_name(entry)}' must have at most {MAX_DIMS} dims and {MAX_BYTES} bytes, "
                f"but it is {kind.name} {format_shape(shape)}"
            )
    return found, kinds  # type: ignore[return-value]



def _ranked(shape: Any) -> bool:
    return isinstance(shape, tuple)








def bind(
    symbol: Any, ctx: Context | None, args: Any, args_grad: Any = None, grad_req: Any = "write", aux_states: Any = None,
    group2ctx: Mapping[str, Context] | None = None, shared_exec: Executor | None = None, *,
    rewrites: Sequence[Rewrite] = (), tier: str = "reference", threads: Any = None,
) -> Executor:  # fmt: skip
    """Bind a symbol to the user's arrays, which are used where they lie.

    ``args``, ``args_grad``, ``aux_states``: lists in the symbol's order or dicts. No gradient array means request null.
    Raises BindError for missing arrays, arrays of another device, written arrays that overlap others; ShapeError and
    TypeInferenceError for arrays that do not fit the graph.
    """
    context = context_for(ctx, "bind")
    same_context(context, group2ctx)
    check_lender(shared_exec, context, "bind")
    graph = Graph(symbol.heads)
    names, aux_names = _names(graph, graph.arguments), _names(graph, graph.auxiliary)
    arguments = _by_name(names, args, "args", needed=True)
    aux = _by_name(aux_names, aux_states, "aux_states", needed=True)
    requests = grad_requests(names, grad_req)
    gradients = _by_name(names, args_grad, "args_grad", needed=False)
    requests = {name: requests[name] if name in gradients else "null" for name in names}
    gradients = {name: array for name, array in gradients.items() if requests[name] != "null"}
    for title, arrays in (("argument", arguments), ("gradient", gradients), ("auxiliary state", aux)):
        check_context(context, arrays, title)
    given = {**arguments, **aux}
    given_types = {n: a.dtype for n, a in given.items()}
    shapes, types = inferred(graph, {n: tuple(a.shape) for n, a in given.items()}, given_types, "bind")
    for name, gradient in gradients.items():
        check_gradient(name, gradient, arguments[name])
    check_overlap(
        arguments,
        {**{f"the gradient of '{n}'": a for n, a in gradients.items()}, **{f"'{n}'": a for n, a in aux.items()}},
    )
    arena = shared_exec.arena if shared_exec is not None else Arena(context)
    return Executor(
        Binding(symbol, graph, context, shapes, types, requests, arguments, gradients, aux, arena,
                rewrites=tuple(rewrites), tier=tier, threads=threads)
    )  # fmt: skip


def _user_shapes(graph: Graph, given: Mapping[str, Any], call: str) -> dict[str, Any]:
    names = {node.name: None for node in graph.nodes if node.op is None}
    found = {}
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
    which backward finishes them. ``shared_exec`` lends its memory, and with ``shared_arg_names`` those arguments with
    their gradients and states; inputs lie in ``shared_data_arrays``. Raises ShapeError, BindError, UnknownNameError.
    """
    context = context_for(ctx, "simple_bind")
    same_context(context, group2ctx)
    check_lender(shared_exec, context, "simple_bind")
    for name, kind in (stype_dict or {}).items():
        if kind != "default":
            raise BindError(f"simple_bind: '{name}' must be dense (stype 'default'), but stype_dict asks for {kind!r}")
    graph = Graph(symbol.heads)
    names, aux_names = _names(graph, graph.arguments), _names(graph, graph.auxiliary)
    given = _user_shapes(graph, shapes, "simple_bind")
    for name in type_dict or {}:
        if name not in names and name not in aux_names:
            raise UnknownNameError(f"simple_bind: type_dict: there is no argument '{name}'{near_miss(name, names)}")
    found, types = inferred(graph, given, type_dict or {}, "simple_bind")
    requests = grad_requests(names, grad_req)
    first = {graph.nodes[i].name: graph.first[i] for i in (*graph.arguments, *graph.auxiliary)}
    specs = {name: (tuple(found[entry]), types[entry]) for name, entry in first.items()}
    pool = None
    if shared_data_arrays is None:
        shared_data_arrays = shared_buffer
    pooled: tuple[str, ...] = ()
    if isinstance(shared_arg_names, str):
        what = repr(shared_arg_names)
        raise BindError(f"simple_bind: shared_arg_names must be a list of names, but it is the text {what}")
    lent = set(shared_arg_names or ())
    shared = [n for n in names if n in lent]
    if shared_data_arrays is not None:
        arrays: Any = shared_data_arrays
        if not isinstance(arrays, MutableMapping):
            what = type(arrays).__name__
            raise BindError(f"simple_bind: shared_data_arrays must be a dict of arrays by name, but it is a {what}")
        pooled = tuple(name for name in names if name in given and name not in lent)
        held = {name: shared_data_arrays.get(name) for name in pooled}
        check_context(context, {name: array for name, array in held.items() if array is not None}, "shared input")
        pool = pool_of(shared_data_arrays, context)
    arguments = borrow(shared_exec, shared, specs) if shared else {}
    aux = {}
    if shared and shared_exec is not None:
        aux = borrow(shared_exec, [n for n in shared_exec.aux_dict if n in set(aux_names)], specs)
    gradients = {}
    if shared and shared_exec is not None:
        gradients = {
            n: g for n, g in shared_exec.grad_dict.items()
            if n in lent and g is not None and requests.get(n, "null") != "null"
        }  # fmt: skip
    return assemble(
        symbol, graph, context, found, types, requests, specs, arguments, gradients, aux, inputs=list(given), pool=pool,
        pooled=pooled, arena=shared_exec.arena if shared_exec is not None else None,
    )  # fmt: skip


def borrow(
    lender: Executor | None, names: Iterable[str], specs: Mapping[str, tuple[tuple[int, ...], Any]]
) -> dict[str, Array]:
    """Arguments and states of another executor by name; BindError naming what is missing or does not fit."""
    if lender is None:
        raise BindError("bind: shared_exec is needed to share arguments by name")
    held = {**lender.arg_dict, **lender.aux_dict}
    found = {}
    for name in names:
        if name not in held:
            raise BindError(
                f"bind: '{name}' is to be shared, but {lender.title} has none{near_miss(name, held)}"
            )
        shape, dtype = specs[name]
        if tuple(held[name].shape) != shape or held[name].dtype != dtype:
            raise BindError(
                f"bind: '{name}' must be {format_shape(shape)} {np.dtype(dtype).name}, but {lender.title} holds "
                f"{format_shape(held[name].shape)} {held[name].dtype.name}"
            )
        found[name] = held[name]
    return found


def assemble(
    symbol: Any, graph: Graph, context: Context, shapes: Sequence[Any], types: Sequence[Any],
    requests: Mapping[str, str], specs: Mapping[str, tuple[tuple[int, ...], Any]], arguments: dict[str, Array],
    gradients: dict[str, Array],
    aux: dict[str, Array], *, inputs: Sequence[str] = (), pool: InputPool | None = None, pooled: tuple[str, ...] = (),
    arena: Arena | None = None, rewrites: Sequence[Rewrite] = (),
) -> Executor:  # fmt: skip
    """Allocate what is not given, by role and in flat segments, and make the executor."""
    names, aux_names = _names(graph, graph.arguments), _names(graph, graph.auxiliary)
    new = [n for n in names if n not in arguments and n not in pooled]
    arguments = dict(arguments)
    for role, members in (
        ("input", [n for n in new if n in inputs]),
        ("parameter", [n for n in new if n not in inputs]),
    ):
        if members:
            arguments |= allocate_segment(context, role, {n: specs[n] for n in members})[1]
    missing = [n for n in aux_names if n not in aux]
    if missing:
        aux = {**aux, **allocate_segment(context, "aux", {n: specs[n] for n in missing})[1]}
    gradients = dict(gradients)
    executor = Executor(
        Binding(symbol, graph, context, shapes, types, requests, arguments, gradients, aux, arena or Arena(context),
                pool, pooled, rewrites=tuple(rewrites))
    )  # fmt: skip
    wanted = [n for n in names if requests[n] != "null" and n not in gradients]
    if wanted:  # the plan says in which order they are finished
        order = [n for n in executor.plan().gradient_order() if n in set(wanted)]
        order += [n for n in wanted if n not in order]
        for members in ([n for n in order if n not in inputs], [n for n in order if n in inputs]):
            if members:
                gradients |= allocate_segment(context, "gradient", {n: specs[n] for n in members})[1]
    executor.bind_inputs()  # so that the mapping of shared inputs has them from the start
    return executor


def reshaped(executor: Executor, partial_shaping: bool, allow_up_sizing: bool, shapes: Mapping[str, Any]) -> Executor:
    """See ``Executor.reshape``."""
    binding = executor._binding
    graph, held = binding.graph, executor.arg_dict
    given = _user_shapes(graph, shapes, "reshape")
    found, types = inferred(graph, given, {n: a.dtype for n, a in {**held, **binding.aux}.items()}, "reshape")
    first = {graph.nodes[i].name: graph.first[i] for i in (*graph.arguments, *graph.auxiliary)}

    def fitted(name: str, array: Array) -> Array:
        shape = tuple(found[first[name]])
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
            return binding.context.zeros(shape, array.dtype, "input")
        return array.reshape(-1)[: math.prod(shape)].reshape(shape)

    return Executor(
        Binding(
            binding.symbol, graph, binding.context, found, types, binding.grad_req,
            {n: fitted(n, a) for n, a in held.items()}, {n: fitted(n, g) for n, g in binding.gradients.items()},
            {n: fitted(n, a) for n, a in binding.aux.items()}, binding.arena, rewrites=binding.rewrites,
            tier=binding.tier, threads=binding.threads,
        )
    )  # fmt: skip
