"""Larger and smaller images: up-sampling, and exchanging channels with places."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping
from itertools import product as combinations
from typing import Any, Literal

from ..dims import UNKNOWN, distinct
from ..errors import format_shape
from ..registry import Many, Op, Temp, register_op
from .checks import check_least
from .deconv import Deconvolution
from .joins import pieces
from .precision import wide
from .windows import check_filled, is_known

Array = Any
FOUR = (UNKNOWN,) * 4


@register_op
class UpSampling(Op):
    """``nearest``: every value of the inputs repeated; ``bilinear``: a deconvolution of each channel by its weight.

    nearest: ``arg0`` (n, c, h, w) is made ``scale`` times as high and wide, the other inputs are made as large as
    that, by a whole factor an axis; their channels stand one behind the other in out, or are added (``sum``).
    bilinear: data (n, c, h, w), weight (c, 1, k, k) with ``k = 2·scale - scale % 2``, stride scale, out
    (n, c, scale·h, scale·w); the weight starts as bilinear interpolation. ``num_filter`` is c, or 0 for what data have.
    """

    scale: int
    sample_type: Literal["nearest", "bilinear"]
    num_args: int
    num_filter: int = 0
    multi_input_mode: Literal["concat", "sum"] = "concat"
    workspace: int = 512
    hints = ("workspace",)
    examples = (
        {"arg0": (2, 2, 2, 3), "scale": 2, "sample_type": "nearest", "num_args": 1},
        {"arg0": (2, 2, 2, 2), "arg1": (2, 1, 4, 2), "scale": 2, "sample_type": "nearest", "num_args": 2},
        {"arg0": (1, 2, 1, 2), "arg1": (1, 2, 3, 6), "scale": 3, "sample_type": "nearest", "num_args": 2,
         "multi_input_mode": "sum"},
        {"data": (2, 2, 3, 2), "scale": 2, "sample_type": "bilinear", "num_filter": 2, "num_args": 2},
        {"data": (1, 2, 2, 2), "scale": 3, "sample_type": "bilinear", "num_args": 1},
    )  # fmt: skip

    def __post_init__(self) -> None:
        check_least(self, "scale", "num_args")
        check_least(self, "num_filter", least=0)

    @property
    def _nearest(self) -> bool:
        return self.sample_type == "nearest"

    @property
    def rows(self) -> str | None:  # type: ignore[override]
        return "parallel" if self._nearest else "sum"

    def inputs(self) -> tuple[str, ...]:
        return tuple(f"arg{i}" for i in range(self.num_args)) if self._nearest else ("data", "weight")

    def variable_attributes(self, argument: str) -> Mapping[str, str]:
        return {"__init__": '["bilinear", {}]'} if argument == "weight" else {}

    def infer(self, s: Any) -> None:
        s.out = FOUR
        if self._nearest:
            self._infer_nearest(s)
            return
        channels, kernel = self.num_filter or UNKNOWN, 2 * self.scale - self.scale % 2
        s.weight = (channels, 1, kernel, kernel)
        s.data = (UNKNOWN, s.weight[0], UNKNOWN, UNKNOWN)
        check_filled(s, "data")
        batch, channels, height, width = s.data
        s.out = (batch, channels, height * self.scale, width * self.scale)
        batch, channels, height, width = s.out
        s.data = (batch, channels, height // self.scale, width // self.scale)
        s.weight = (channels, 1, kernel, kernel)

    def _infer_nearest(self, s: Any) -> None:
        s.args = (FOUR,) * self.num_args
        adds = self.multi_input_mode == "sum"
        for batch, channels, _, _ in distinct((*s.args, s.out)):
            same = (batch, channels if adds else UNKNOWN, UNKNOWN, UNKNOWN)
            s.args, s.out = (same,) * self.num_args, same
        _, _, height, width = s.args[0]
        s.out = (UNKNOWN, UNKNOWN, height * self.scale, width * self.scale)
        _, total, height, width = s.out
        first = (UNKNOWN, UNKNOWN, height // self.scale, width // self.scale)
        s.args = (first, *(FOUR,) * (self.num_args - 1))
        if not adds:
            counts = [shape[1] for shape in s.args]
            s.out = (UNKNOWN, sum(counts), UNKNOWN, UNKNOWN)
            missing = [i for i, count in enumerate(counts) if not is_known(count)]
            if len(missing) == 1 and is_known(total):
                rest = total - sum(count for count in counts if is_known(count))
                if rest < 1:
                    s.fail("out", f"must have more than {total - rest} channels, but it has {total}")
                s.args = tuple((UNKNOWN, rest, *FOUR[2:]) if i in missing else FOUR for i in range(self.num_args))
        for i, shape in enumerate(s.args):
            if any(is_known(dim) and dim == 0 for dim in shape[1:]):
                s.fail(f"arg{i}", f"must have no dim of 0 but the batch, but it is {format_shape(shape)}")
            for axis, length in ((2, height), (3, width)):
                if is_known(shape[axis]) and is_known(length) and length % shape[axis]:
                    s.fail(f"arg{i}", f"must have a dim {axis} that divides {length}, but it is {shape[axis]}")

    def prepare(self, known: Any, context: Any) -> Any:
        """The channels of out that each input makes; the deconvolution that ``bilinear`` is."""
        if not self._nearest:
            return _deconvolution(self.scale, known.data[1])
        if self.multi_input_mode == "sum":
            return [slice(None)] * self.num_args
        return pieces(shape[1] for shape in known.args)

    def temps(self, s: Any) -> Mapping[str, tuple[tuple[int, ...], Any]]:
        if not self._nearest:
            return {**_deconvolution(self.scale, s.data[1]).temps(s), "sums": ((0,), s.dtype("data"))}
        kind = s.dtype("out")
        narrow, most = wide(kind) != kind, max(math.prod(shape) for shape in s.args)
        names = ("columns", "padded", "product", "matrix", "turned", "part", "total")
        return {**dict.fromkeys(names, ((0,), kind)), "sums": ((most * narrow,), wide(kind))}

    def keeps(self, want: frozenset[str]) -> Iterable[str]:
        return [name for name, user in (("weight", "data"), ("data", "weight")) if user in want]

    def forward(
        self, xp: Any, prepared: Any, data: Array, weight: Array, args: Many, out: Array,
        columns: Temp, padded: Temp, product: Temp, matrix: Temp, turned: Temp,
    ) -> None:  # fmt: skip
        if not self._nearest:
            prepared.forward(xp, data, weight, None, out, columns, padded, product, matrix, turned)
            return
        for i, (x, channels) in enumerate(zip(args, prepared, strict=True)):
            cells, item = _cells(out[:, channels], x.shape), x[:, :, :, None]
            for column in range(cells.shape[-1]):  # lines of values: the last axis alone would be short
                if i and self.multi_input_mode == "sum":
                    xp.add(cells[..., column], item, out=cells[..., column])
                else:
                    xp.copyto(cells[..., column], item)

    def backward(
        self, xp: Any, prepared: Any, dout: Array, data: Array, weight: Array,
        ddata: Array, dweight: Array, dargs: Many, sums: Temp,
        columns: Temp, padded: Temp, product: Temp, part: Temp, total: Temp, matrix: Temp,
    ) -> None:  # fmt: skip
        if not self._nearest:
            rooms = columns, padded, product, part, total, matrix
            prepared.backward(xp, dout, data, weight, ddata, dweight, None, *rooms)
            return
        for dx, channels in zip(dargs, prepared, strict=True):
            if dx is None:
                continue
            cells = _cells(dout[:, channels], dx.shape)
            target = sums[: dx.size].reshape(dx.shape) if sums.size else dx
            for row, column in combinations(range(cells.shape[3]), range(cells.shape[5])):
                cell = cells[:, :, :, row, :, column]
                if row or column:
                    xp.add(target, cell, out=target)
                else:
                    xp.copyto(target, cell)
            if target is not dx:
                xp.copyto(dx, target)


@functools.lru_cache(maxsize=256)
def _deconvolution(scale: int, channels: int) -> Deconvolution:
    """What ``bilinear`` up-sampling of so many channels is."""
    kernel, pad = 2 * scale - scale % 2, scale // 2
    return Deconvolution(
        kernel=(kernel, kernel), stride=(scale, scale), pad=(pad, pad), num_filter=channels, num_group=channels
    )


def _cells(array: Array, shape: tuple[int, ...]) -> Array:
    """``array`` (n, c, H, W) as (n, c, h, H / h, w, W / w) for the smaller ``shape`` (n, c, h, w)."""
    n, c, height, width = array.shape
    return array.reshape(n, c, shape[2], height // shape[2], shape[3], width // shape[3])


@register_op
class depth_to_space(Op):
    """``out[n, c, h·b + i, w·b + j] = data[n, (i·b + j)·C + c, h, w]`` for ``b = block_size`` and out (n, C, …).

    data (n, C·b², h, w), out (n, C, h·b, w·b).
    """

    block_size: int
    linear = ("data",)
    rows = "parallel"
    examples = ({"data": (2, 8, 2, 3), "block_size": 2}, {"data": (1, 9, 1, 2), "block_size": 3})

    def __post_init__(self) -> None:
        check_least(self, "block_size")

    def infer(self, s: Any) -> None:
        _infer_exchange(s, self.block_size, "data", "out")

    def forward(self, xp: Any, data: Array, out: Array) -> None:
        _exchange(xp, out, data, self.block_size, back=False)

    def backward(self, xp: Any, dout: Array, ddata: Array) -> None:
        _exchange(xp, dout, ddata, self.block_size, back=True)


@register_op
class space_to_depth(Op):
    """``out[n, (i·b + j)·C + c, h, w] = data[n, c, h·b + i, w·b + j]`` for ``b = block_size`` and data (n, C, …).

    data (n, C, h·b, w·b), out (n, C·b², h, w): the inverse of depth_to_space.
    """

    block_size: int
    linear = ("data",)
    rows = "parallel"
    examples = ({"data": (2, 2, 4, 2), "block_size": 2}, {"data": (1, 1, 3, 6), "block_size": 3})

    def __post_init__(self) -> None:
        check_least(self, "block_size")

    def infer(self, s: Any) -> None:
        _infer_exchange(s, self.block_size, "out", "data")

    def forward(self, xp: Any, data: Array, out: Array) -> None:
        _exchange(xp, data, out, self.block_size, back=True)

    def backward(self, xp: Any, dout: Array, ddata: Array) -> None:
        _exchange(xp, ddata, dout, self.block_size, back=False)


def _infer_exchange(s: Any, block: int, deep: str, large: str) -> None:
    """``deep`` (n, C·b², h, w) and ``large`` (n, C, h·b, w·b)."""
    setattr(s, deep, FOUR)
    setattr(s, large, FOUR)
    check_filled(s, deep)
    check_filled(s, large)
    n, channels, height, width = getattr(s, deep)
    if is_known(channels) and channels % block**2:
        s.fail(deep, f"must have channels that block_size² = {block**2} divides, but it has {channels}")
    setattr(s, large, (n, channels // block**2, height * block, width * block))
    n, channels, height, width = getattr(s, large)
    for axis, length in ((2, height), (3, width)):
        if is_known(length) and length % block:
            s.fail(large, f"must have a dim {axis} that block_size={block} divides, but it is {length}")
    setattr(s, deep, (n, channels * block**2, height // block, width // block))


def _exchange(xp: Any, large: Array, deep: Array, block: int, back: bool) -> None:
    """Copy ``deep`` (n, b·b·C, h, w) into ``large`` (n, C, h·b, w·b), or the other way (``back``)."""
    n, channels, height, width = deep.shape
    parts = deep.reshape(n, block, block, channels // block**2, height, width)
    cells = _cells(large, (n, channels // block**2, height, width))
    for row, column in combinations(range(block), range(block)):
        place, part = cells[:, :, :, row, :, column], parts[:, row, column]
        xp.copyto(*(part, place) if back else (place, part))
