"""Checks of symbols in the manner of ``mx.test_utils``: expected values, numeric derivatives, several devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...context import Context, current_context
from ...errors import ArgumentError, BindError, near_miss
from .array import unwrap
from .functions import array
from .tolerances import get_atol, get_rtol, mismatch, on_host

_rng = np.random.RandomState(4321)


def _named(names: Sequence[str], given: Any, who: str, ctx: Context, dtype: Any) -> dict[str, Any]:
    """NDArrays by name from a list in order or a dict; floating ones as ``dtype``."""
    if given is None:
        return {}
    if isinstance(given, Mapping):
        unknown = next((name for name in given if name not in names), None)
        if unknown is not None:
            raise BindError(f"{who}: the symbol has no '{unknown}'{near_miss(unknown, names)}")
    elif len(given) != len(names):
        raise BindError(f"{who}: {len(given)} arrays for {len(names)} names: {', '.join(names)}")
    found = {}
    for name, value in (given if isinstance(given, Mapping) else dict(zip(names, given, strict=True))).items():
        host = on_host(value)
        found[name] = array(host, ctx, host.dtype if host.dtype.kind in "iub" else dtype)
    return found


def _states(sym: Any, given: Any, arguments: Mapping[str, Any], who: str, ctx: Context) -> dict[str, Any]:
    """Auxiliary states by name, in the types that follow from those of the arguments."""
    names = sym.list_auxiliary_states()
    found = _named(names, given, who, ctx, np.float64)
    kinds = sym.infer_type(**{name: unwrap(value).dtype for name, value in arguments.items()})[2]
    types = dict(zip(names, kinds or (), strict=False))
    return {name: value.astype(types.get(name, np.float32)) for name, value in found.items()}


def _compare(found: Any, expected: Any, rtol: Any, atol: Any, equal_nan: bool, names: tuple[str, str]) -> None:
    text = mismatch(on_host(found), on_host(expected), rtol, atol, equal_nan, names)
    if text:
        raise AssertionError(text)


def simple_forward(sym: Any, ctx: Context | None = None, is_train: bool = False, **inputs: Any) -> Any:
    """Outputs of a symbol for NumPy arrays by name, as NumPy arrays; one array for one output."""
    context = ctx or current_context()
    arrays = {name: array(value, context) for name, value in inputs.items()}
    executor = sym.bind(context, args=arrays, grad_req="null")
    found = [out.asnumpy() for out in executor.forward(is_train)]
    return found[0] if len(found) == 1 else found


def check_symbolic_forward(
    sym: Any, location: Any, expected: Any, rtol: Any = None, atol: Any = None, aux_states: Any = None,
    ctx: Context | None = None, equal_nan: bool = False, dtype: Any = np.float32,
) -> list[Any]:  # fmt: skip
    """Compare the outputs of a symbol with those ``expected`` (a list, or a dict by name); gives them."""
    context, who = ctx or current_context(), "check_symbolic_forward"
    arguments = _named(sym.list_arguments(), location, who, context, dtype)
    states = _states(sym, aux_states, arguments, who, context)
    outputs: list[Any] = sym.bind(context, args=arguments, aux_states=states, grad_req="null").forward(is_train=False)
    wanted = [expected[name] for name in sym.list_outputs()] if isinstance(expected, Mapping) else expected
    for name, value, out in zip(sym.list_outputs(), wanted, outputs, strict=True):
        _compare(value, out, rtol, atol, equal_nan, (f"EXPECTED_{name}", f"FORWARD_{name}"))
    return outputs


def check_symbolic_backward(
    sym: Any, location: Any, out_grads: Any, expected: Any, rtol: Any = None, atol: Any = None, aux_states: Any = None,
    grad_req: Any = "write", ctx: Context | None = None, grad_stypes: Any = None, equal_nan: bool = False,
    dtype: Any = np.float32,
) -> dict[str, Any]:  # fmt: skip
    """Compare the gradients of a symbol with those ``expected`` (a list, or a dict by argument); gives them.

    With grad_req 'add' they are added to random arrays, with 'null' these must stay.
    """
    context, who = ctx or current_context(), "check_symbolic_backward"
    names = sym.list_arguments()
    arguments = _named(names, location, who, context, dtype)
    states = _states(sym, aux_states, arguments, who, context)
    wanted = _named(names, expected, who, context, dtype)
    before = {name: _rng.normal(size=value.shape) for name, value in wanted.items()}
    gradients = {name: array(value, context, dtype) for name, value in before.items()}
    asked = dict.fromkeys(names, grad_req) if isinstance(grad_req, str) else grad_req
    requests = asked if isinstance(asked, Mapping) else dict(zip(names, asked, strict=True))
    requests = {name: requests.get(name, "null") if name in wanted else "null" for name in names}
    executor = sym.bind(context, arguments, gradients, requests, states)
    executor.forward(is_train=True)
    heads = [out_grads[name] for name in sym.list_outputs()] if isinstance(out_grads, Mapping) else out_grads
    if heads is not None:
        heads = [array(on_host(head), context, dtype) for head in heads]
    executor.backward(heads)
    for name, value in wanted.items():
        start = before[name].astype(dtype)
        request = requests[name]
        right = start if request == "null" else start + value.asnumpy() if request == "add" else value
        _compare(right, gradients[name], rtol, atol, equal_nan, (f"EXPECTED_{name}", f"BACKWARD_{name}"))
    return gradients


def numeric_grad(
    executor: Any, location: Mapping[str, Any], aux_states: Any = None, eps: float = 1e-4,
    use_forward_train: bool = True, dtype: Any = np.float32,
) -> dict[str, np.ndarray[Any, Any]]:  # fmt: skip
    """Numeric derivatives of the sum of an executor's first output for the arrays at ``location``."""
    return _numeric(executor, location, [1.0], eps, use_forward_train)


def _numeric(
    executor: Any, location: Mapping[str, Any], heads: Sequence[Any], eps: float, is_train: bool
) -> dict[str, np.ndarray[Any, Any]]:
    """Central differences of the sum of outputs times ``heads``, element by element."""
    states = {name: value.copy() for name, value in executor.aux_dict.items()}
    step, found = executor.core.step, {}

    def total() -> float:
        executor.core.step = step  # the same random numbers in every forward
        for name, value in states.items():
            executor.aux_dict[name][:] = value
        outputs = executor.forward(is_train=is_train)
        pairs = zip(outputs, heads, strict=False)
        return sum(float((out.asnumpy().astype(np.float64) * head).sum()) for out, head in pairs)

    for name, value in location.items():
        target, here = executor.arg_dict[name], np.array(on_host(value))
        if here.dtype.kind != "f":
            continue
        gradient = np.zeros(here.shape, np.float64)
        for place in np.ndindex(here.shape):
            sums = []
            for sign in (1.0, -1.0):
                moved = here.copy()
                moved[place] += sign * eps / 2.0
                target[:] = moved
                sums.append(total())
            gradient[place] = (sums[0] - sums[1]) / eps
        target[:] = here
        found[name] = gradient
    return found


def check_numeric_gradient(
    sym: Any, location: Any, aux_states: Any = None, numeric_eps: float | None = None, rtol: Any = None,
    atol: Any = None, grad_nodes: Any = None, use_forward_train: bool = True, ctx: Context | None = None,
    grad_stype_dict: Any = None, dtype: Any = np.float32,
) -> None:  # fmt: skip
    """Compare the gradients of a random combination of a symbol's outputs with numeric ones.

    ``grad_nodes``: arguments to look at, or a dict of their grad_req. AssertionError where they differ.
    """
    context, who = ctx or current_context(), "check_numeric_gradient"
    kind = np.dtype(dtype)
    if kind not in (np.float16, np.float32, np.float64):
        raise ArgumentError(f"{who}: dtype must be a type of real numbers, but it is {kind}")
    names = sym.list_arguments()
    arguments = _named(names, location, who, context, kind)
    states = _states(sym, aux_states, arguments, who, context)
    floats = [name for name in arguments if unwrap(arguments[name]).dtype.kind == "f"]
    asked = dict.fromkeys(floats if grad_nodes is None else grad_nodes, "write")
    asked |= grad_nodes if isinstance(grad_nodes, Mapping) else {}
    unknown = next((name for name in asked if name not in names), None)
    if unknown is not None:
        raise BindError(f"{who}: the symbol has no argument '{unknown}'{near_miss(unknown, names)}")
    before = {name: _rng.normal(size=arguments[name].shape) for name in asked}
    gradients = {name: array(value, context, kind) for name, value in before.items()}
    executor = sym.bind(context, arguments, gradients, {n: asked.get(n, "null") for n in names}, states)
    outputs = executor.forward(is_train=True)
    heads = [_rng.uniform(0.5, 1.5, out.shape) for out in outputs]
    executor.backward([array(head, context, unwrap(out).dtype) for head, out in zip(heads, outputs, strict=True)])
    eps = numeric_eps or {"float16": 2.0**-6, "float32": 2.0**-9, "float64": 2.0**-14}[kind.name]
    relative, absolute = rtol or get_rtol(None, kind) * 10, get_atol(atol, kind)
    numeric = _numeric(executor, {n: arguments[n] for n in asked}, heads, eps, use_forward_train)
    for name, request in asked.items():
        start = before[name].astype(kind)
        right = {"write": numeric.get(name), "add": numeric.get(name, 0.0) + start, "null": start}[request]
        names_shown = (f"NUMERICAL_{name}", f"BACKWARD_{name}")
        _compare(right, gradients[name], relative, max(absolute, relative), False, names_shown)


def check_consistency(
    sym: Any, ctx_list: Sequence[Mapping[str, Any]], scale: float = 1.0, grad_req: Any = "write",
    arg_params: Mapping[str, Any] | None = None, aux_params: Mapping[str, Any] | None = None, rtol: Any = None,
    atol: Any = None, raise_on_err: bool = True, ground_truth: Any = None, equal_nan: bool = False,
    use_uniform: bool = False, rand_type: Any = np.float64, tol: Any = None,
) -> dict[str, np.ndarray[Any, Any]]:  # fmt: skip
    """Outputs and gradients of a symbol on several contexts and in several types, against the most precise one.

    ``ctx_list``: for each ``{'ctx': …, 'type_dict': {…}, <input>: shape, …}``. Gives the outputs of the most precise.
    """
    symbols = sym if isinstance(sym, list | tuple) else [sym] * len(ctx_list)
    executors = [one.simple_bind(grad_req=grad_req, **dict(way)) for one, way in zip(symbols, ctx_list, strict=True)]
    first = executors[0]
    values = {}
    for name, value in first.arg_dict.items():
        draw = _rng.uniform(-scale, scale, value.shape) if use_uniform else _rng.normal(0.0, scale, value.shape)
        values[name] = on_host((arg_params or {}).get(name, draw))
    states = {name: on_host((aux_params or {}).get(name, 0.0)) for name in first.aux_dict}
    for executor in executors:
        for name, value in values.items():
            executor.arg_dict[name][:] = value
        for name, value in states.items():
            executor.aux_dict[name][:] = value
        executor.forward(is_train=grad_req != "null")
    sizes = [unwrap(executor.outputs[0]).dtype.itemsize for executor in executors]
    best = executors[int(np.argmax(sizes))]
    heads = [np.array(out.asnumpy(), np.float64) for out in best.outputs]
    truth = {name: out.asnumpy() for name, out in best.output_dict.items()} | dict(ground_truth or {})
    right = list(truth.values())
    if grad_req != "null":
        _backward(executors, heads)
        right += [gradient.asnumpy() for gradient in best.grad_arrays if gradient is not None]
    for executor in executors:
        found = {name: out.asnumpy() for name, out in executor.output_dict.items()}
        if grad_req != "null":
            found |= {f"grad of {n}": g.asnumpy() for n, g in executor.grad_dict.items() if g is not None}
        for (name, value), wanted in zip(found.items(), right, strict=True):
            wide = rtol if rtol is not None else tol if isinstance(tol, float) else get_rtol(None, value.dtype) * 10
            words = f"{name} on {executor.context}", "the most precise"
            near = atol if atol is not None else wide
            text = mismatch(value, np.asarray(wanted, value.dtype), wide, near, equal_nan, words)
            if text and raise_on_err:
                raise AssertionError(text)
    return truth


def _backward(executors: Sequence[Any], heads: Sequence[Any]) -> None:
    for executor in executors:
        kinds = [unwrap(out).dtype for out in executor.outputs]
        executor.backward([array(h, executor.context, kind) for h, kind in zip(heads, kinds, strict=True)])
