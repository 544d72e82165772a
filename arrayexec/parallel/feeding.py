"""Where the inputs of a step come from: rows of global batches that were fed, and readers that devices share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import ArgumentError, NotBoundError, ShapeError, UnknownNameError, near_miss
from ..train.model_helper import Input, Reader
from .device_net import DeviceNet

Array = Any
_FED = Input(None, "float32")


def part(rows: int, parts: int, number: int) -> slice:
    """The rows of one of several parts; the first have one more where they do not divide evenly."""
    size, more = divmod(rows, parts)
    start = number * size + min(number, more)
    return slice(start, start + size + (number < more))


class Feeder:
    """Inputs of all devices of a rank. ``comm``: the ranks, if there are several."""

    def __init__(self, title: str, devices: Sequence[DeviceNet], comm: Any) -> None:
        self._title, self._devices, self._comm = title, devices, comm
        self._fed: dict[str, Array] = {}
        self._start: int | None = None
        self._length = 0
        self._rows: dict[str, object] = {}  # of the global batches that were fed
        self._agreed: dict[str, object] = {}
        self.last: list[dict[str, Array]] = []
        """The inputs of the last step."""

    @staticmethod
    def input(device: DeviceNet, name: str) -> Input:
        """What is known of an input of a device."""
        return device.net.inputs.get(name, _FED)

    def feed(self, name: str, array: Any, local: bool) -> None:
        """See `ParallelModel.feed`."""
        if name not in self._devices[0].wanted or self.input(self._devices[0], name).source is not None:
            near = near_miss(name, self._devices[0].wanted)
            raise UnknownNameError(f"feed: the model '{self._title}' has no input '{name}' that is fed{near}")
        if not hasattr(array, "shape") or not array.shape:
            raise ArgumentError(f"feed: '{name}' must be an array with rows, but it is {array!r}")
        ranks, rank = (1, 0) if local or self._comm is None else (self._comm.size, self._comm.rank)
        if len(array) < ranks * len(self._devices):
            raise ShapeError(
                f"feed: '{name}' must have a row for each of {ranks * len(self._devices)} devices, "
                f"but its shape is {tuple(array.shape)}"
            )
        rows = part(len(array), ranks, rank)
        self._fed[name], self._start, self._length = array[rows], None if local else rows.start, len(array)
        self._rows[f"rows of '{name}'"] = "each its own" if local else len(array)

    def agree(self) -> None:
        """See to it that all ranks were fed as many rows; collective where that has changed.

        Raises PlanMismatchError.
        """
        if self._comm is not None and self._rows != self._agreed:
            self._comm.agree(self._rows, f"what was fed to '{self._title}'")
            self._agreed = dict(self._rows)

    def first_row(self, rows: int) -> int:
        """Place of this rank's first row in the global batch; where nobody says, ranks are taken to have ``rows``."""
        return self._start if self._start is not None else rows * (self._comm.rank if self._comm is not None else 0)

    def global_rows(self, rows: int) -> int:
        """Rows of the global batch; where nobody says, ranks are taken to have ``rows``."""
        return self._length if self._start is not None else rows * (self._comm.size if self._comm is not None else 1)

    def batches(self) -> list[dict[str, Array]]:
        """The inputs of every device for the next step: rows of what was fed, and what readers give."""
        found: list[dict[str, Array]] = [{} for _ in self._devices]
        for name, array in self._fed.items():
            for i, inputs in enumerate(found):
                inputs[name] = array[part(len(array), len(self._devices), i)]
        for device, inputs in zip(self._devices, found, strict=True):
            batches: dict[Reader, Sequence[Any]] = {}
            for name in device.wanted:
                one = self.input(device, name)
                if one.source is not None:
                    reader, place = one.source
                    if reader not in batches:
                        batches[reader] = reader.next()
                    inputs[name] = np.asarray(batches[reader][place])
                elif name not in inputs:
                    raise NotBoundError(f"run: the input '{name}' of '{self._title}' has no values: feed it")
        self.last = found
        return found

    def known(self, device: DeviceNet) -> dict[str, Any] | None:
        """Shapes and types of the inputs of a device, if they are all said before the first batch."""
        given = {name: self.input(device, name) for name in device.wanted}
        if any(one.shape is None for one in given.values()):
            return None
        return {name: (one.shape, one.dtype) for name, one in given.items()}
