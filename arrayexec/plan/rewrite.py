"""For rewrites of a draft (fusion, layouts, shards): an operator's step from values under the names of its body."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..registry import SPECIAL, Known, Op, signature_of
from .record import Binding, Draft, Step


def operator_step(
    draft: Draft, op: Op, body: str, values: Mapping[str, int | tuple[int | None, ...] | None], name: str, *,
    phase: str = "", node: int = -1, lane: int = -1,
) -> Step:  # fmt: skip
    """A step that runs ``op``'s ``body`` on ``values`` (by parameter name; absent ones are None); scratch is added.

    The step is not appended: a rewrite puts it where it belongs. ``body`` is forward, update or backward.
    """
    form = getattr(op.form, body)
    signature = signature_of(op)
    shapes: list[Any] = [None] * (1 + max((i for slot in signature.frame.values() for i in _places(slot)), default=0))
    types = list(shapes)
    for parameter, slot in signature.frame.items():
        bound = values.get(parameter)
        if bound is None:  # a value that this body does not read is as large as its gradient
            bound = values.get("d" + parameter)
        for place, number in zip(_places(slot), bound if isinstance(bound, tuple) else (bound,), strict=False):
            if isinstance(number, int):
                shapes[place], types[place] = draft.values[number].shape, draft.values[number].dtype
    scratch = op.temps(Known(signature, shapes, types)) if form.temps else {}
    writes_of = {
        "forward": {*signature.outputs, *signature.hidden, "out", "hidden"},
        "update": set(signature.aux),
        "backward": {"d" + name for name in (*signature.inputs, op.form.variadic or "")},
    }
    bindings: list[Binding] = []
    reads: dict[int, None] = {}
    writes: dict[int, None] = {}
    for parameter in form.parameters:
        if parameter in SPECIAL:
            bindings.append(parameter)
            continue
        if parameter in form.temps:
            shape, dtype = scratch[parameter]
            binding: Binding = draft.add(f"{name}: {parameter}", shape, dtype, "scratch")
            written = True
        else:
            binding = values.get(parameter)
            written = parameter in writes_of[body]
        bindings.append(binding)
        numbers = binding if isinstance(binding, tuple) else (binding,)
        (writes if written else reads).update((number, None) for number in numbers if isinstance(number, int))
    reads_only = tuple(number for number in reads if number not in writes)
    return Step(body, phase or body, name, op, tuple(bindings), reads_only, tuple(writes), node, lane)


def _places(slot: Any) -> tuple[int, ...]:
    return slot if isinstance(slot, tuple) else () if slot is None else (slot,)
