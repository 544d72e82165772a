"""Loss scale: gradients of 16-bit networks are carried multiplied, so that small ones are not lost.

A float16 is zero below 6e-8. What flows back is multiplied by a scale right behind the loss and divided by it in the
update. The scale is as large as can be: it doubles while all gradients are finite, and halves where one is not.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy

from ..context import Array, asnumpy, context_of, copyto
from ..errors import ArgumentError, AttributeValueError, UnknownNameError
from ..registry import gradient_positions, make_op
from ..symbol import Symbol
from ..symbol.graph import Entry, Node, post_order, variable

NAME = "loss_scale"


def scale_loss(symbol: Symbol, name: str = NAME) -> Symbol:
    """``symbol`` with all its gradients multiplied by the auxiliary state ``name`` (1,), float32; outputs are the same.

    Right under every loss head, and behind every other output that has a gradient (which is then called
    ``<node>_scaled_output``), stands an operator that hands data on and multiplies what flows back. A state of 0, which
    is what arrays start with, counts as 1.
    """
    scale = variable(name, __init__='["one", {}]')
    made: dict[int, Node] = {}

    def scaled(entry: Entry, title: str) -> Entry:
        group = {k: v for k, v in entry[0].attributes.items() if k == "__ctx_group__"}
        return Node(make_op("_scale_gradient", {}), title, group, [entry, (scale, 0)]), 0

    for node in post_order(symbol.heads):
        inputs = [(made[id(source)], i) for source, i in node.inputs]
        if node.op is not None and node.signature is not None and _is_loss(node):
            for place in gradient_positions(node.op):
                inputs[place] = scaled(inputs[place], f"{node.name}_scaled_{node.signature.inputs[place]}")
        made[id(node)] = copy = Node(node.op, node.name, node.attributes, inputs, node.source)
        copy.versions = node.versions
    heads: list[Entry] = []
    for node, i in symbol.heads:
        head = (made[id(node)], i)
        carries = node.op is not None and bool(gradient_positions(node.op)) and not _is_loss(node)
        heads.append(scaled(head, f"{node.name}_scaled") if carries else head)
    return Symbol(tuple(heads))


def _is_loss(node: Node) -> bool:
    """Whether backward of a node starts a gradient: it has one and reads none."""
    if node.op is None or node.signature is None:
        return False
    return bool(gradient_positions(node.op)) and not node.signature.head_gradient


class DynamicLossScale:
    """The scale of `scale_loss`, doubled after ``window`` good steps in a row, halved where a gradient is not finite.

    Attach it to what trains a scaled symbol (an executor, group or manager), and give it to the updater:
    ``get_updater(optimizer, loss_scale)``. ``update_all`` of the updater, or ``update`` of a manager, skips a step with
    NaN or infinity in a gradient. A manager asks after the sum over devices and ranks, so that all skip together. The
    scale stays within ``least`` and ``most``. Powers of two change no bit of a gradient that is neither too small nor
    too large. Raises AttributeValueError for numbers that are no scale or no window.
    """

    def __init__(
        self, init: float = 2.0**16, window: int = 2000, least: float = 2.0**-14, most: float = 2.0**24,
        name: str = NAME,
    ) -> None:  # fmt: skip
        if not 0 < least <= init <= most < math.inf:
            raise AttributeValueError(
                f"DynamicLossScale: 0 < least <= init <= most must hold, but they are {least}, {init}, {most}"
            )
        if window < 1:
            raise AttributeValueError(f"DynamicLossScale: window must be at least 1, but it is {window}")
        self.scale = self.used = float(init)
        """The scale of the next backward, and of the gradients that were last looked at."""
        self.window, self.least, self.most, self.name = window, least, most, name
        self.good_steps = 0
        """Steps since the scale last moved."""
        self.skipped = 0
        """Steps that were left out."""
        self._targets: list[Any] = []

    def attach(self, target: Any) -> None:
        """Keep the state of an executor, a group or a manager at the scale.

        UnknownNameError where it has no such state: its symbol did not go through `scale_loss`.
        """
        if not list(_states(target, self.name)):
            raise UnknownNameError(
                f"DynamicLossScale: there is no auxiliary state '{self.name}'; bind scale_loss(symbol), not symbol"
            )
        self._targets.append(target)
        self._write()

    def accepts(self, gradients: Iterable[Array]) -> bool:
        """Whether all ``gradients`` of a step are finite; moves the scale. ArgumentError if nothing is attached."""
        if not self._targets:
            raise ArgumentError("DynamicLossScale: attach(executor, group or manager) comes before the first update")
        self.used = float(asnumpy(next(_states(self._targets[0], self.name)))[0]) or 1.0  # set_params may have set it
        good = all_finite(gradients)
        self.good_steps = self.good_steps + 1 if good else 0
        self.skipped += not good
        if not good:
            self.scale = max(self.scale / 2, self.least)
        elif self.good_steps == self.window:
            self.scale, self.good_steps = min(self.scale * 2, self.most), 0
        self._write()
        return good

    def get_state(self) -> dict[str, float]:
        """What resuming needs."""
        return {"scale": self.scale, "good_steps": self.good_steps, "skipped": self.skipped}

    def set_state(self, saved: Mapping[str, float]) -> None:
        """Go on from what `get_state` gave."""
        self.scale, self.good_steps, self.skipped = saved["scale"], int(saved["good_steps"]), int(saved["skipped"])
        self._write()

    def _write(self) -> None:
        value = numpy.full(1, self.scale, numpy.float32)
        for target in self._targets:
            for array in _states(target, self.name):
                copyto(array, value)


def _states(target: Any, name: str) -> Iterator[Array]:
    """The arrays of one auxiliary state on all devices of an executor, group or manager."""
    if hasattr(target, "stores"):
        held = [store.aux for store in target.stores]
    else:
        held = [executor.aux_dict for executor in getattr(target, "train_execs", [target])]
    return (aux[name] for aux in held if name in aux)


def all_finite(arrays: Iterable[Array]) -> bool:
    """Whether no value is NaN or infinite, told by their sums, for which nothing is allocated.

    Sums of 16-bit values run in float32. Finite values whose sum is beyond the type count as infinite, too.
    """
    for array in arrays:
        if array.dtype.kind not in "fV":
            continue
        context = context_of(array)
        with context.enter(), numpy.errstate(all="ignore"):
            total = context.xp.sum(array, dtype=numpy.float32 if array.dtype.itemsize == 2 else None)
        if not math.isfinite(total):
            return False
    return True
