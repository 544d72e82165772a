"""Linear maps of images that treat every axis for itself: an output line is a weighted sum of a few source lines.

A ``Lines`` map holds, for one axis, which source lines make up every output line; ``turned`` is its adjoint, so a
gradient runs through the same code. Images are gone through in blocks that stay in the cache.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from .precision import wide

Array = Any
BLOCK = 1 << 15  # values of a block


class Lines(NamedTuple):
    """Source lines and their weights, one row a term; a line of fewer terms has ``size``, a line of zeros, with 0."""

    size: int
    sources: tuple[tuple[int, ...], ...]
    weights: tuple[tuple[float, ...], ...]

    @classmethod
    def of(cls, size: int, sums: list[list[tuple[int, float]]]) -> Lines:
        """From the terms (source line, weight) of every output line."""
        terms = max(map(len, sums), default=0)
        filled = [terms_of + [(size, 0.0)] * (terms - len(terms_of)) for terms_of in sums]
        sources = tuple(tuple(line[t][0] for line in filled) for t in range(terms))
        return cls(size, sources, tuple(tuple(line[t][1] for line in filled) for t in range(terms)))

    @property
    def length(self) -> int:
        """Output lines."""
        return len(self.sources[0])


@functools.lru_cache(maxsize=256)
def turned(lines: Lines) -> Lines:
    """The adjoint: what the source lines get from the output lines."""
    sums: list[list[tuple[int, float]]] = [[] for _ in range(lines.size)]
    for sources, weights in zip(lines.sources, lines.weights, strict=True):
        for place, (source, factor) in enumerate(zip(sources, weights, strict=True)):
            if source < lines.size:
                sums[source].append((place, factor))
    return Lines.of(lines.length, [terms or [(lines.length, 0.0)] for terms in sums])


@functools.lru_cache(maxsize=256)
def interpolation(size: int, count: int, corners: bool) -> Lines:
    """Bilinear interpolation of ``size`` lines at ``count`` places; ``corners``: the first and last are kept."""
    if count == 1:  # one place is the first line, whatever corners say
        return Lines.of(size, [[(0, 1.0)]])
    step = (size - 1) / (count - 1) if corners else size / count
    sums = []
    for place in range(count):
        position = place * step if corners else max(0.0, (place + 0.5) * step - 0.5)
        first = min(int(position), size - 1)
        rest = position - first if first < size - 1 else 0.0  # nothing lies behind the last line
        sums.append([(first, 1 - rest), (first + 1, rest)] if rest else [(first, 1.0)])
    return Lines.of(size, sums)


@functools.lru_cache(maxsize=256)
def averages(size: int, count: int) -> Lines:
    """Means of ``count`` runs of lines, from ``i·size // count`` to before ``⌈(i + 1)·size / count⌉``."""
    runs = [range(i * size // count, -(-(i + 1) * size // count)) for i in range(count)]
    return Lines.of(size, [[(line, 1 / len(run)) for line in run] for run in runs])


class Chunk(NamedTuple):
    """Some output rows: which, the source rows that they read, and their terms counted from the first of these."""

    rows: slice
    source: slice
    sources: tuple[tuple[int, ...], ...]
    weights: tuple[tuple[float, ...], ...]
    zeros: bool  # whether a term is the row of zeros, which is counted as the one after the last


@functools.lru_cache(maxsize=256)
def _chunks(rows: Lines, columns: Lines) -> tuple[int, tuple[Chunk, ...]]:
    """Planes (a channel of an image) that are gone through at once, and the chunks of rows."""
    width = max(columns.size + 1, columns.length)
    length = max(1, min(rows.length, BLOCK // width))
    chunks = []
    for start in range(0, rows.length, length):
        part = slice(start, min(start + length, rows.length))
        sources = [line[part] for line in rows.sources]
        read = [place for line in sources for place in line if place < rows.size] or [0]
        first, last = min(read), max(read)
        local = tuple(tuple(min(place, last + 1) - first for place in line) for line in sources)
        zeros = any(place == rows.size for line in sources for place in line)
        weights = tuple(line[part] for line in rows.weights)
        chunks.append(Chunk(part, slice(first, last + 1), local, weights, zeros))
    return max(1, BLOCK // (length * width)), tuple(chunks)


def scratch(planes: int, rows: Lines, columns: Lines, kind: Any) -> Mapping[str, tuple[tuple[int, ...], Any]]:
    """Shape and type of the scratch arrays of ``apply``."""
    count, chunks = _chunks(rows, columns)
    count = min(count, planes)
    most = max(chunk.rows.stop - chunk.rows.start for chunk in chunks)
    span = max((chunk.source.stop - chunk.source.start + 1) * chunk.zeros for chunk in chunks)
    values = count * most * max(columns.size + 1, columns.length)
    return {
        "source": ((count * span * columns.size,), kind),
        "lines": ((values,), wide(kind)),
        "item": ((values,), wide(kind)),
        "total": ((values,), wide(kind)),
    }


def most(first: Mapping[str, Any], second: Mapping[str, Any]) -> Mapping[str, Any]:
    """Scratch that is enough for either."""
    return {name: (max(shape, second[name][0]), kind) for name, (shape, kind) in first.items()}


def apply(
    xp: Any, data: Array, out: Array, maps: tuple[Lines, Lines],
    source: Array, lines: Array, item: Array, total: Array,
) -> None:  # fmt: skip
    """``out`` (n, c, …) = rows and columns of ``data`` (n, c, h, w) through the two maps."""
    rows, columns = maps
    count, chunks = _chunks(rows, columns)
    along = [(xp.array(i), xp.array(w, lines.dtype)) for i, w in zip(columns.sources, columns.weights, strict=True)]
    for chunk in chunks:
        down = [
            (xp.array(i), xp.array(w, lines.dtype)[:, None]) for i, w in zip(chunk.sources, chunk.weights, strict=True)
        ]
        for images, channels in _blocks(data.shape, count):
            x, y = data[images, channels, chunk.source], out[images, channels, chunk.rows]
            if chunk.zeros:
                x = _beside_zeros(xp, x, source)
            shape = (*y.shape[:3], columns.size + 1)
            middle = lines[: math.prod(shape)].reshape(shape)
            middle[..., -1] = 0
            _sum(xp, x, 2, down, middle[..., :-1], item)
            _sum(xp, middle, 3, along, total[: y.size].reshape(y.shape), item)
            xp.copyto(y, total[: y.size].reshape(y.shape))


def _blocks(shape: tuple[int, ...], count: int) -> Iterator[tuple[slice, slice]]:
    """Images and channels of ``count`` planes at most."""
    part = max(1, min(shape[1], count))
    images = count // part
    for image in range(0, shape[0], images):
        for channel in range(0, shape[1], part):
            yield slice(image, image + images), slice(channel, channel + part)


def _beside_zeros(xp: Any, x: Array, source: Array) -> Array:
    """A copy of ``x`` (n, c, h, w) with one row of zeros behind its last."""
    shape = (*x.shape[:2], x.shape[2] + 1, x.shape[3])
    filled = source[: math.prod(shape)].reshape(shape)
    xp.copyto(filled[:, :, :-1], x)
    filled[:, :, -1] = 0
    return filled


def _sum(xp: Any, x: Array, axis: int, terms: list[tuple[Array, Array]], out: Array, item: Array) -> None:
    """``out`` = sum over the terms of the lines of ``x`` times their weights."""
    product = item[: out.size].reshape(out.shape)
    for number, (index, weight) in enumerate(terms):
        xp.multiply(xp.take(x, index, axis=axis), weight, out=product if number else out)
        if number:
            xp.add(out, product, out=out)
