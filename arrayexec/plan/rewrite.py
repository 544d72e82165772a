"""An operator's step from values under the names of its operator: for the builder, and for rewrites of a draft."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..registry import SPECIAL, Known, Op, scratch_of, signature_of
from .record import Binding, Draft, Step

WRITTEN = {"forward": ("output", "hidden"), "update": ("aux",), "backward": ("dinput",)}


def operator_step(
    draft: Draft, op: Op, body: str, values: Mapping[str, int | None], name: str, *, phase: str = "", node: int = -1,
    lane: int = -1,
) -> Step:  # fmt: skip
    """A step that runs ``op``'s ``body`` (forward, update or backward); its scratch is added to ``draft``.

    ``values`` stand under the names of inputs, states, outputs and hidden outputs, gradients under ``d<name>``; absent
    ones are None. The step is not appended: a rewrite puts it where it belongs.
    """
    signature, form = signature_of(op), getattr(op.form, body)
    names, written = signature.names, WRITTEN[body]
    scratch: Mapping[str, Any] = {}
    if form.temps:  # a value that this body does not read is as large as its gradient
        frame = (*signature.arguments, *signature.outputs, *signature.hidden)
        like = [values.get(n, values.get("d" + n)) for n in frame]
        known = [None if number is None else draft.values[number] for number in like]
        scratch = scratch_of(op, Known(signature, [v and v.shape for v in known], [v and v.dtype for v in known]))
    kept = None
    if body == "backward":
        kept = set(op.keeps(frozenset(n for n in signature.inputs if values.get("d" + n) is not None)))
    bindings: dict[str, Binding] = {}
    bound: list[int] = []
    writes: list[int] = []
    for parameter, (kind, place) in zip(form.parameters, getattr(signature, body), strict=True):
        binding: Binding = None
        if kind in SPECIAL:
            binding = kind
        elif kind == "temp":
            shape, dtype = scratch[parameter]
            binding = draft.add(f"{name}: {parameter}", shape, dtype, "scratch")
        elif kind == "absent" or (kept is not None and kind[0] != "d" and parameter not in kept):
            pass
        elif isinstance(place, tuple):
            binding = tuple(values.get(names[kind][p]) for p in place)
        else:
            binding = values.get(names[kind][place])
        bindings[parameter] = binding
        numbers = numbers_of(binding)
        bound += numbers
        if kind == "temp" or kind in written:
            writes += numbers
    done = set(writes)
    reads = tuple(dict.fromkeys(number for number in bound if number not in done))
    pairs = ((bindings.get(target), bindings.get(source)) for target, source in op.inplace.items())
    inplace = tuple((w, r) for w, r in pairs if isinstance(w, int) and isinstance(r, int) and bound.count(r) == 1)
    return Step(body, phase or body, name, op, tuple(bindings.values()), reads, tuple(writes), node, lane, (), inplace)


def numbers_of(binding: Binding) -> tuple[int, ...]:
    """The values among a binding."""
    if isinstance(binding, tuple):
        return tuple(number for number in binding if number is not None)
    return (binding,) if isinstance(binding, int) else ()
