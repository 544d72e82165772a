"""One symbol bound for training on one device, beside the other buckets of that device."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from typing import Any

from ..context import Context
from ..errors import BindError, UnknownNameError, format_shape, near_miss
from ..executor import Arena, Executor, assemble, inferred, placed, pool_of

Array = Any


@dataclasses.dataclass
class DeviceStore:
    """What all buckets of one device share, by name."""

    context: Context
    inputs: MutableMapping[str, Array] = dataclasses.field(default_factory=dict)
    parameters: dict[str, Array] = dataclasses.field(default_factory=dict)
    gradients: dict[str, Array] = dataclasses.field(default_factory=dict)
    aux: dict[str, Array] = dataclasses.field(default_factory=dict)
    arena: Arena | None = None
    grown: set[str] = dataclasses.field(default_factory=set)
    """Inputs whose growth was warned of."""

    @classmethod
    def of(cls, executor: Executor) -> DeviceStore:
        """The store that an executor's own arrays make."""
        gradients = {name: array for name, array in executor.grad_dict.items() if array is not None}
        own, aux = executor.own_arguments, executor.aux_dict
        return cls(executor.context, parameters=own, gradients=gradients, aux=aux, arena=executor.arena)


def check_arguments(symbol: Any) -> None:
    """ValueError if two variables of one name disagree in shape, type or initialiser; equal ones are one argument."""
    symbol.list_arguments()


def ignored_parameters(symbol: Any) -> set[str]:
    """Parameters whose values count for nothing wherever they are used (a fixed gamma): no update, no decay."""
    found: set[str] = set()
    used: set[str] = set()
    for node in symbol.graph.nodes:
        if node.op is None or node.signature is None:
            continue
        ignored = node.op.ignored() if callable(node.op.ignored) else node.op.ignored
        for argument, (source, _) in zip(node.signature.inputs, node.inputs, strict=False):
            if source.op is None:
                (found if argument in ignored else used).add(source.name)
    return found - used


def bind_exec(
    sym: Any, ctx: Context, input_shapes: Mapping[str, Sequence[int]], param_names: Sequence[str],
    need_grad: bool | Iterable[str] = False, base_exec: Executor | None = None,
    shared_data_arrays: MutableMapping[str, Array] | None = None, input_types: Mapping[str, Any] | None = None,
    logger: Any = logging, *, store: DeviceStore | None = None, grad_req: str | Mapping[str, str] = "write",
    group2ctx: Mapping[str, Context] | None = None,
) -> Executor:  # fmt: skip
    """Bind a symbol for training on one device.

    Inputs lie in ``shared_data_arrays``, created or grown there (with a warning that advises a larger default bucket);
    parameters, gradients and auxiliary states are those of ``base_exec`` where it has them, else new. ``need_grad``:
    True for all parameters, or names. ``grad_req``: one request for all of these, or one by name. ``group2ctx``: as for
    ``Symbol.bind``. Raises BindError, UnknownNameError, ShapeError and TypeInferenceError.
    """
    if store is None:
        store = DeviceStore.of(base_exec) if base_exec is not None else DeviceStore(ctx)
    names, aux_names = sym.list_arguments(), sym.list_auxiliary_states()
    unknown = next((n for n in (*input_shapes, *(input_types or ())) if n not in names), None)
    if unknown is not None:
        raise UnknownNameError(f"bind: the symbol has no argument '{unknown}'{near_miss(unknown, names)}")
    if isinstance(need_grad, bool):
        wanted = {n for n in param_names if n in names and n not in input_shapes} if need_grad else set()
    elif isinstance(need_grad, str) or not isinstance(need_grad, Iterable):
        raise BindError(f"bind: need_grad must be True, False or a set of argument names, but it is {need_grad!r}")
    else:
        wanted = set(need_grad)
        stranger = next((n for n in sorted(wanted) if n not in names), None)
        if stranger is not None:
            raise UnknownNameError(f"bind: need_grad: there is no argument '{stranger}'{near_miss(stranger, names)}")
    found = inferred(sym, {n: tuple(s) for n, s in input_shapes.items()}, input_types or {}, "bind")
    specs = found.specs
    inputs, parameters = [n for n in names if n not in param_names], [n for n in names if n in param_names]
    pool = None
    if shared_data_arrays is not None:
        pool = pool_of(shared_data_arrays, ctx)
        for name in inputs:
            held = shared_data_arrays.get(name)
            if held is not None and name not in store.grown and not pool.fits(name, *specs[name]):
                store.grown.add(name)
                logger.warning(
                    "input '%s' needs %s, more than the %s allocated: it grows; "
                    "let the default bucket be the largest one",
                    name, format_shape(specs[name][0]), format_shape(held.shape),
                )  # fmt: skip
    for name in (*parameters, *aux_names):
        held = store.parameters.get(name, store.aux.get(name))
        if held is not None and (tuple(held.shape), held.dtype) != specs[name]:
            raise BindError(
                f"bind: parameter '{name}' must be {format_shape(specs[name][0])} {specs[name][1].name}, "
                f"but the one shared with the other buckets is {format_shape(held.shape)} {held.dtype.name}"
            )
    requests = grad_req.__getitem__ if isinstance(grad_req, Mapping) else lambda _: grad_req
    executor = assemble(
        found, placed(sym, ctx, group2ctx, "bind"), {n: requests(n) if n in wanted else "null" for n in names},
        {n: store.parameters[n] for n in parameters if n in store.parameters},
        {n: store.gradients[n] for n in parameters if n in wanted and n in store.gradients},
        {n: store.aux[n] for n in aux_names if n in store.aux}, inputs, pool, store.arena,
    )  # fmt: skip
    own = DeviceStore.of(executor)
    store.arena = own.arena
    store.aux |= own.aux
    store.parameters |= {n: a for n, a in own.parameters.items() if n in param_names}
    store.gradients |= {n: g for n, g in own.gradients.items() if n in param_names}
    return executor
