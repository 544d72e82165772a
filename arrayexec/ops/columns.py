"""Windows of a batch laid out as columns of a matrix, tile by tile, and columns added back to where they came from.

A *tile* is some images, or some lines of one image, of the output: its columns stay in the cache and scratch is
bounded whatever the batch. Both layouts run through the same code: arrays are looked at as (N, C, …), only the
order in which columns lie in memory follows the layout.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product as combinations
from typing import Any, NamedTuple

from .precision import narrow, widen
from .windows import channels_first, join, split

Array = Any
TILE = 1 << 19  # values that the columns of one tile may take


class Axis(NamedTuple):
    """One spatial axis: size of the kernel, what it reaches over when dilated, stride, dilation, padding."""

    kernel: int
    reach: int
    stride: int
    dilate: int
    pad: int


class Tile(NamedTuple):
    """A piece of the output: some images, and some lines (places of the first spatial axis) of each."""

    images: slice
    lines: slice

    @property
    def counts(self) -> tuple[int, int]:
        """Images and lines of each."""
        return self.images.stop - self.images.start, self.lines.stop - self.lines.start


class Columns(NamedTuple):
    """Sizes of one convolution, and the views and copies between its arrays and the matrices that are multiplied.

    Matrices are (groups, …): columns (groups, depth, places), outputs (groups, filters, places). ``narrow`` data
    are copied into scratch of a wider type; other scratch is used only where no view will do.
    """

    images: int
    groups: int
    channels: int
    filters: int
    axes: tuple[Axis, ...]
    size: tuple[int, ...]
    padded: tuple[int, ...]
    out: tuple[int, ...]
    last: bool
    narrow: bool
    tile_images: int
    tile_lines: int

    @classmethod
    def of(
        cls, shape: Sequence[int], axes: Sequence[Axis], filters: int, groups: int, last: bool, narrow: bool,
        out: Sequence[int] = (),
    ) -> Columns:  # fmt: skip
        """Columns for data of ``shape``, tiled.

        ``out`` sets how many windows an axis has: padding at the end is then as long as they reach.
        """
        images, channels, size = split(shape, last)
        padded = tuple(length + 2 * axis.pad for length, axis in zip(size, axes, strict=True))
        if out:
            reaches = ((count - 1) * axis.stride + axis.reach for count, axis in zip(out, axes, strict=True))
            padded = tuple(
                max(length + axis.pad, reach) for length, axis, reach in zip(size, axes, reaches, strict=True)
            )
        else:
            out = tuple((length - axis.reach) // axis.stride + 1 for length, axis in zip(padded, axes, strict=True))
        image = max(1, channels * math.prod(axis.kernel for axis in axes) * math.prod(out))
        return cls(
            images, groups, channels // groups, filters // groups, tuple(axes), tuple(size), padded, tuple(out), last,
            narrow,
            tile_images=max(1, min(images, TILE // image)),
            tile_lines=-(-out[0] // -(-image // TILE)),
        )  # fmt: skip

    @property
    def kernel(self) -> tuple[int, ...]:
        """Size of the kernel on each spatial axis."""
        return tuple(axis.kernel for axis in self.axes)

    @property
    def depth(self) -> int:
        """Values that one output value sums: channels a group times kernel."""
        return self.channels * math.prod(self.kernel)

    @property
    def pads(self) -> bool:
        """True if windows are taken from a padded copy."""
        return self.padded != self.size

    @property
    def gathers(self) -> bool:
        """True if a tile of the output is no matrix, so that it passes through scratch."""
        return self.narrow or (self.tile_images > 1 and not self.last)

    @property
    def pointwise(self) -> bool:
        """True if a window is one place and every place has one: the data are the columns."""
        return not self.narrow and all((axis.reach, axis.stride, axis.pad) == (1, 1, 0) for axis in self.axes)

    def scratch(self) -> dict[str, int]:
        """Values of the scratch arrays ``columns``, ``padded`` and ``product``."""
        places = self.tile_images * self.tile_lines * math.prod(self.out[1:])
        image = self.groups * self.channels * math.prod(self.padded)
        return {
            "columns": self.groups * self.depth * places,
            "padded": self.tile_images * image * (self.narrow or self.pads),
            "product": self.groups * self.filters * places * self.gathers,
        }

    def tiles(self) -> Iterator[Tile]:
        """All tiles; those of one image come one after the other, from its first line to its last."""
        for image in range(0, self.images, self.tile_images):
            for line in range(0, self.out[0], self.tile_lines):
                yield Tile(
                    slice(image, min(image + self.tile_images, self.images)),
                    slice(line, min(line + self.tile_lines, self.out[0])),
                )

    def points(self, array: Array, channels: int) -> Array:
        """A whole array as matrices (…, groups, channels, places), for pointwise convolutions."""
        if self.last:
            return array.reshape(-1, self.groups, channels).transpose(1, 2, 0)
        return array.reshape(self.images, self.groups, channels, math.prod(self.out))

    def piece(self, array: Array, tile: Tile) -> Array:
        """The part of an output array that is ``tile``, as (images, filters, lines, …)."""
        return channels_first(array, self.last)[tile.images, :, tile.lines]

    def block(self, array: Array, tile: Tile, product: Array) -> tuple[Array, Array | None]:
        """Matrix (groups, filters, places) for one tile of an output array.

        It is a view of ``array``, or lies in ``product``; then the second value is ``product`` seen as the piece.
        """
        shape = (*tile.counts, *self.out[1:])
        places, filters = math.prod(shape), self.groups * self.filters
        if self.gathers:
            flat = product[: filters * places]
            if self.last:
                stored = channels_first(flat.reshape(*shape, filters), True)
                return flat.reshape(places, self.groups, self.filters).transpose(1, 2, 0), stored
            return flat.reshape(self.groups, self.filters, places), flat.reshape(filters, *shape).swapaxes(0, 1)
        inner = math.prod(self.out[1:])
        if self.last:
            start = (tile.images.start * self.out[0] + tile.lines.start) * inner
            return array.reshape(-1, self.groups, self.filters)[start : start + places].transpose(1, 2, 0), None
        image = array[tile.images.start].reshape(self.groups, self.filters, -1)
        return image[..., tile.lines.start * inner : tile.lines.stop * inner], None

    def arriving(self, xp: Any, dout: Array, tile: Tile, product: Array) -> Array:
        """One tile of the gradient of the output: (groups, filters, places)."""
        matrix, stored = self.block(dout, tile, product)
        if stored is not None:
            widen(xp, self.piece(dout, tile), stored)
        return matrix

    def cells(self, tile: Tile, columns: Array) -> tuple[Array, Array]:
        """Columns of one tile: as (images, groups, channels, *kernel, lines, …), and as (groups, depth, places)."""
        images, lines = tile.counts
        out, count = (lines, *self.out[1:]), len(self.axes)
        places = images * math.prod(out)
        flat = columns[: self.groups * self.depth * places]
        if self.last:
            cells = flat.reshape(self.groups, images, *out, *self.kernel, self.channels)
            order = (1, 0, 2 + 2 * count, *range(2 + count, 2 + 2 * count), *range(2, 2 + count))
            return cells.transpose(order), flat.reshape(self.groups, places, self.depth).swapaxes(1, 2)
        cells = flat.reshape(self.groups, self.channels, *self.kernel, images, *out)
        order = (2 + count, *range(2 + count), *range(3 + count, 3 + 2 * count))
        return cells.transpose(order), flat.reshape(self.groups, self.depth, places)

    def room(self, padded: Array, images: int) -> tuple[Array, Array]:
        """Scratch for padded images, as (images, channels, …), and the part of it that is not padding."""
        shape = join(images, self.groups * self.channels, self.padded, self.last)
        room = channels_first(padded[: math.prod(shape)].reshape(shape), self.last)
        inside = (slice(axis.pad, axis.pad + size) for axis, size in zip(self.axes, self.size, strict=True))
        return room, room[(..., *inside)]

    def gather(self, xp: Any, data: Array, tile: Tile, columns: Array, padded: Array) -> Array:
        """Lay the windows of one tile out as columns (groups, depth, places).

        ``padded`` must be zero before the first tile; only its inside is written.
        """
        source = channels_first(data, self.last)[tile.images]
        if self.pads:
            room, inside = self.room(padded, source.shape[0])
            if tile.lines.start == 0:
                widen(xp, source, inside)
            source = room
        images, channels, *places = source.strides
        windows = xp.lib.stride_tricks.as_strided(
            source,
            (source.shape[0], self.groups, self.channels, *self.kernel, *self.out),
            (
                *(images, channels * self.channels, channels),
                *(step * axis.dilate for step, axis in zip(places, self.axes, strict=True)),
                *(step * axis.stride for step, axis in zip(places, self.axes, strict=True)),
            ),
        )
        cells, matrix = self.cells(tile, columns)
        xp.copyto(cells, windows[(slice(None),) * (3 + len(self.axes)) + (tile.lines,)])
        return matrix

    def scatter(self, xp: Any, target: Array, tile: Tile, columns: Array, padded: Array) -> None:
        """Add the columns of one tile to the places of ``target`` that they came from; the first tile sets them."""
        sums = whole = channels_first(target, self.last)[tile.images]
        through = self.pads or self.narrow
        if through:
            sums, inside = self.room(padded, whole.shape[0])
        if tile.lines.start == 0:
            sums.fill(0)
        cells, _ = self.cells(tile, columns)
        grouped = sums.reshape(sums.shape[0], self.groups, self.channels, *self.padded)
        starts = (tile.lines.start, *(0,) * (len(self.out) - 1))
        for offset in combinations(*(range(axis.kernel) for axis in self.axes)):
            column = cells[(slice(None),) * 3 + offset]
            firsts = [k * a.dilate + start * a.stride for k, start, a in zip(offset, starts, self.axes, strict=True)]
            spans = (
                slice(first, first + (count - 1) * axis.stride + 1, axis.stride)
                for first, count, axis in zip(firsts, column.shape[3:], self.axes, strict=True)
            )
            place = grouped[(..., *spans)]
            xp.add(place, column, out=place)
        if through and tile.lines.stop == self.out[0]:
            narrow(xp, inside, whole)
