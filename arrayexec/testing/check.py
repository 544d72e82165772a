"""The contract that every operator keeps, as one function: what it does not keep is listed line by line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..errors import ArrayExecError, OperatorContractError, OperatorDefinitionError
from ..registry import Op, get_op
from . import bodies, inference, numbers, planned, symbolic
from .naive import gradient_inputs
from .trial import Trial

CHECKS = (
    bodies.check_written,
    inference.check_partial,
    inference.check_refused,
    inference.check_wrong,
    bodies.check_wants,
    bodies.check_keeps,
    bodies.check_inplace,
    bodies.check_view,
    bodies.check_rows,
    bodies.check_layout,
    bodies.check_twice,
    numbers.check_types,
    numbers.check_sums,
    bodies.check_empty,
    bodies.check_scratch,
    planned.check_planned,
    planned.check_json,
    symbolic.check_symbol,
)


def check_op(operator: str | type[Op], example: Mapping[str, Any] | None = None, *, derivative: bool = True) -> None:
    """Check a registered operator (class or name) against the whole contract, on ``example`` or on all of its own.

    An example maps inputs to shapes (or to a ``Sample``: shape and range of values) and attributes to values; inputs
    that it leaves out follow by inference. ``derivative=False`` leaves out the comparison with numeric gradients, for
    an operator whose gradient is by definition not the derivative of its output. Raises OperatorContractError that
    lists every fault, OperatorDefinitionError for a class that is not registered.
    """
    if isinstance(operator, type) and not hasattr(operator, "form"):
        raise OperatorDefinitionError(f"check_op: {operator.__name__} is not registered; decorate it with @register_op")
    cls: type[Op] = get_op(operator) if isinstance(operator, str) else operator
    examples = list(cls.examples) if example is None else [example]
    faults = [] if examples else ["has no examples"]
    for one in examples:
        shown = ", ".join(f"{key}={_brief(value)}" for key, value in one.items())
        faults += [f"({shown}): {fault}" for fault in _faults(cls, one, derivative)]
    if example is None and not faults:
        faults += _attributes(cls)
    if faults:
        lines = "".join(f"\n  {line}" for line in faults)
        raise OperatorContractError(f"operator {cls.form.name} breaks the contract in {len(faults)} points{lines}")


def _brief(value: Any) -> str:
    return str(tuple(value.shape)) if hasattr(value, "shape") else repr(value)


def _faults(cls: type[Op], example: Mapping[str, Any], derivative: bool) -> Iterator[str]:
    try:
        trial = Trial(cls, example)
        for name in (*trial.signature.outputs, *trial.signature.hidden):
            if not trial.shape(name):
                yield f"{name} is 0-d; the least is (1,)"
        trial.outcome()
    except Exception as error:
        yield _raised("the example does not run", error)
        return
    if cls.form.backward is not None:
        silent = set(range(len(trial.signature.inputs))) - gradient_inputs(trial.node)
        for name in (trial.signature.inputs[i] for i in sorted(silent)):
            if name not in trial.op.no_gradient:
                yield f"backward gives no d{name}; name it in no_gradient if that is meant"
    for check in (*CHECKS, *((bodies.check_gradient,) if derivative else ())):
        try:
            yield from check(trial)
        except Exception as error:
            yield _raised(check.__name__, error)


def _raised(what: str, error: Exception) -> str:
    tb, place = error.__traceback__, ""
    while tb is not None:
        if "/testing/" not in tb.tb_frame.f_code.co_filename:
            place = f" at {tb.tb_frame.f_code.co_filename.rpartition('/')[2]}:{tb.tb_lineno}"
        tb = tb.tb_next
    return f"{what}: {type(error).__name__}{place}: {str(error).partition(chr(10))[0]}"


def _attributes(cls: type[Op]) -> Iterator[str]:
    """Each attribute changes something in some example, or is declared a hint."""
    for name in cls.hints:
        if name not in cls.form.attributes:
            yield f"hint '{name}' is no attribute"
    for name, attribute in cls.form.attributes.items():
        if name in cls.hints:
            continue
        users = [example for example in cls.examples if name in example]
        if not users:
            yield f"attribute '{name}' is set in no example"
        elif not any(_matters(cls, example, name, attribute, users) for example in users):
            yield f"attribute '{name}' changes nothing in any example; if that is meant, name it in hints"


def _matters(cls: type[Op], example: Mapping[str, Any], name: str, attribute: Any, users: Any) -> bool:
    others = [user[name] for user in users if user[name] != example[name]]
    if not attribute.required:
        others.append(attribute.default)
    if isinstance(example[name], int | float) and not isinstance(example[name], bool):
        others += [example[name] + 1, example[name] - 1]
    print_here = _print(cls, example)
    for value in others:
        try:
            if _print(cls, {**example, name: value}) != print_here:
                return True
        except ArrayExecError:
            return True  # refused with the other value: it means something
    return False


def _print(cls: type[Op], example: Mapping[str, Any]) -> list[Any]:
    """Everything that an example gives, for comparison to the bit."""
    trial = Trial(cls, example)
    return [
        (name, array.dtype.str, array.shape, array.tobytes())
        for is_train in (True, False)
        for name, array in trial.outcome(is_train=is_train).named().items()
    ]
