"""Files of arrays as MNIST is published in them (idx, also gzip-compressed), and an iterator over them."""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Sequence
from typing import Any

import numpy

from ..context import Array
from ..errors import FileFormatError, ShapeError
from .io_rows import RowIter
from .sampler import Rows, sampler_of_part

Path = str | os.PathLike[str]

_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_DEFLATE_RATIO = 1032  # no deflate stream grows by more


def read_idx(path: Path) -> Array:
    """The array of an idx file, gzip-compressed or not.

    Raises FileFormatError, with the offset, for anything that is not such a file in whole.
    """
    import gzip
    import zlib

    name = os.fspath(path)
    with open(name, "rb") as plain:
        stored = os.fstat(plain.fileno()).st_size
        packed = plain.read(2) == b"\x1f\x8b"
        plain.seek(0)
        if not packed:
            return _read(plain, name, stored, stored)
        with gzip.GzipFile(fileobj=plain) as file:
            try:
                return _read(file, name, stored * _DEFLATE_RATIO, None)
            except (OSError, EOFError, zlib.error) as error:
                raise FileFormatError(f"{name!r} must be a whole gzip file, but: {error}") from error


def _read(file: Any, name: str, most: int, size: int | None) -> Array:
    head = file.read(4)
    if len(head) < 4 or head[:2] != b"\0\0" or head[2] not in _TYPES or not 1 <= head[3] <= 8:
        raise FileFormatError(
            f"{name!r}, byte 0: an idx file begins with 00 00, a type and a rank, but this one with "
            f"{head.hex(' ') or 'nothing'}"
        )
    rank, kind = head[3], numpy.dtype(_TYPES[head[2]])
    dims = file.read(4 * rank)
    if len(dims) < 4 * rank:
        raise FileFormatError(f"{name!r}, byte 4: {rank} dims must follow, but the file ends after {len(dims)} bytes")
    shape = struct.unpack(f">{rank}I", dims)
    begin, wanted = 4 + 4 * rank, math.prod(shape) * kind.itemsize
    found = None if size is None else size - begin
    values = b""
    if wanted <= most:
        values = file.read(wanted + 1)  # one more, to see that the file ends
        found = len(values) if found is None else found
    if found != wanted:
        there = "more follow" if found is not None and found > wanted else f"there are {found}"
        there = "the packed bytes cannot hold so many" if found is None else there
        raise FileFormatError(f"{name!r}, byte {begin}: {wanted} bytes must follow for {kind} {shape}, but {there}")
    return numpy.frombuffer(values, kind).reshape(shape).astype(kind.newbyteorder("="), copy=False)


class MNISTIter(RowIter):
    """Batches of images and labels from idx files: float32 in [0, 1), of (1, h, w) or, ``flat``, of (h · w,).

    ``shuffle`` draws a new order for every epoch from ``seed`` (None: the one seed). The last batch is
    dropped where it is not full, as MXNet does, or treated as ``last_batch_handle`` says (see `NDArrayIter`).
    ``num_parts`` and ``part_index``: see `ImageRecordIter`. ``input_shape``: another shape of an image.
    ``silent`` and ``prefetch_buffer`` change nothing.

    Raises FileFormatError for what is no idx file, ShapeError for files that do not belong together.
    """

    def __init__(
        self,
        image: Path = "./train-images-idx3-ubyte",
        label: Path = "./train-labels-idx1-ubyte",
        batch_size: int = 128,
        shuffle: bool = True,
        flat: bool = False,
        seed: int | None = None,
        silent: bool = False,
        num_parts: int = 1,
        part_index: int = 0,
        input_shape: Sequence[int] | None = None,
        data_name: str = "data",
        label_name: str = "softmax_label",
        last_batch_handle: str = "discard",
        prefetch_buffer: int = 4,
    ) -> None:
        who = type(self).__name__
        self.images, self.labels = read_idx(image), read_idx(label)
        if self.images.ndim != 3 or self.labels.ndim != 1 or len(self.images) != len(self.labels):
            raise ShapeError(
                f"{who}: there must be images (n, h, w) and labels (n,), but they are {self.images.shape} and "
                f"{self.labels.shape}"
            )
        height, width = self.images.shape[1:]
        shape: tuple[int, ...] = (height * width,) if flat else (1, height, width)
        if input_shape is not None:
            if math.prod(input_shape) != height * width:
                raise ShapeError(
                    f"{who}: input_shape must have {height * width} pixels, but it is {tuple(input_shape)}"
                )
            shape = tuple(input_shape)
        sampler = sampler_of_part(
            who, len(self.images), batch_size, num_parts, part_index, shuffle, last_batch_handle, seed
        )
        super().__init__(sampler, [(data_name, shape, numpy.float32)], [(label_name, (), numpy.float32)])

    def read(self, rows: Rows) -> tuple[list[Array], list[Array]]:
        """The images of these rows, divided by 256, and their labels."""
        data = numpy.multiply(self.images[rows], numpy.float32(1 / 256), dtype=numpy.float32)
        return [data.reshape(self.provide_data[0].shape)], [self.labels[rows].astype(numpy.float32)]
