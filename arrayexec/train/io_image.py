"""Iterators over images: in RecordIO files, as MXNet packs them, or in files of their own."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy

from ..context import Array
from ..errors import AttributeValueError, FileFormatError, ShapeError
from . import random
from .augment import Aug, CreateAugmenter, SequentialAug, drawing_from
from .image_codec import Image, decode
from .io_prefetch import PrefetchingIter
from .io_rows import RowIter
from .record_augment import RecordAugment
from .recordio import RecordFile, read_index, unpack
from .sampler import Rows, sampler_of_part

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

Path = str | os.PathLike[str]
_ENCODED = (b"\xff\xd8", b"\x89PNG", b"BM", b"RIFF", b"\x93NUMPY", b"P6", b"GIF8", b"II*\0", b"MM\0*")


class _Source(Protocol):
    """Labels and bytes of images by their number."""

    def __len__(self) -> int: ...

    def get(self, row: int) -> tuple[Any, bytes, str]:
        """Label (a number or several), bytes, and where they stand."""


class _Records:
    """The images of a RecordIO file; of a list, labels by the id in the record's header."""

    def __init__(self, path: Path, index: Path = "", labels: dict[int, Any] | None = None) -> None:
        self.file = RecordFile(path)
        self.labels = labels
        if index:
            places = read_index(index, str, self.file.size).values()
            self.offsets = numpy.sort(numpy.fromiter(places, numpy.int64, len(places)))
        else:
            self.offsets = self.file.offsets()

    def __len__(self) -> int:
        return len(self.offsets)

    def get(self, row: int) -> tuple[Any, bytes, str]:
        """Label, bytes, and where they stand."""
        offset = int(self.offsets[row])
        where = f"{self.file.path!r}, byte {offset}"
        header, data = unpack(self.file.read(offset)[0], where)
        if self.labels is None:
            return header.label, data, where
        if header.id not in self.labels:
            raise FileFormatError(f"{where}: the list must have the image {header.id}, but it has not")
        return self.labels[header.id], data, where


class _Files:
    """Images in files of their own."""

    def __init__(self, listed: Sequence[tuple[Any, str]], root: str) -> None:
        self.listed, self.root = listed, root

    def __len__(self) -> int:
        return len(self.listed)

    def get(self, row: int) -> tuple[Any, bytes, str]:
        """Label, bytes, and where they stand."""
        label, name = self.listed[row]
        path = os.path.join(self.root, name)
        with open(path, "rb") as file:
            return label, file.read(), repr(path)


def read_list(path: Path) -> list[tuple[int, list[float], str]]:
    """Id, labels and path of every line ``id<TAB>label…<TAB>path``; FileFormatError, with the line, for another."""
    found, at = [], 0
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            try:
                key, *labels, name = line.decode().rstrip("\r\n").split("\t")
                found.append((int(key), [float(label) for label in labels], name))
            except ValueError as error:
                raise FileFormatError(
                    f"{os.fspath(path)!r}, line {number} (byte {at}): there must be an id, labels and a path with tabs "
                    f"between them, but there is {line[:60]!r}"
                ) from error
            at += len(line)
    return found


class _ImageRows(RowIter):
    """Batches (rows, channels, h, w) of the images of a source, each changed by ``augment``."""

    def __init__(
        self,
        who: str,
        source: _Source,
        augment: Callable[[Image], Any],
        data_shape: Sequence[int],
        batch_size: int,
        label_width: int,
        shuffle: bool,
        num_parts: int,
        part_index: int,
        last_batch_handle: str,
        dtype: Any,
        threads: int,
        seed: int | None,
        names: tuple[str, str],
    ) -> None:
        self.who, self.source, self.augment, self.threads = who, source, augment, threads
        self.data_shape = check_data_shape(who, data_shape)
        self.label_width = label_width
        self._workers: tuple[int, ThreadPoolExecutor] | None = None
        if len(source) == 0:
            raise FileFormatError(f"{who}: there must be at least one image, but there is none")
        sampler = sampler_of_part(
            who, len(source), batch_size, num_parts, part_index, shuffle, last_batch_handle, seed
        )
        label_shape = () if label_width == 1 else (label_width,)
        super().__init__(sampler, [(names[0], self.data_shape, dtype)], [(names[1], label_shape, numpy.float32)])

    def _pool(self) -> ThreadPoolExecutor:
        if self._workers is None or self._workers[0] != os.getpid():  # the child of a fork has no threads
            from concurrent.futures import ThreadPoolExecutor

            self._workers = os.getpid(), ThreadPoolExecutor(self.threads, "images")
        return self._workers[1]

    def read(self, rows: Rows) -> tuple[list[Array], list[Array]]:
        """The images of these rows, read, decoded and changed by several threads, and their labels."""
        data = numpy.empty((rows.size, *self.data_shape), self.provide_data[0].dtype)
        label = numpy.empty((rows.size, self.label_width), numpy.float32)
        epoch, seed = self.sampler.epoch, self.sampler.epoch_seed

        def one(place: int) -> None:
            row = int(rows[place])
            values, encoded, where = self.source.get(row)
            width = numpy.size(values)
            if width != self.label_width:
                raise ShapeError(f"{where}: with label_width={self.label_width} the image must have as many labels, "
                                 f"but it has {width}")  # fmt: skip
            label[place] = values
            # One stream an image and epoch: threads, ranks and the place in the batch change nothing.
            with drawing_from(random.generator("image", epoch, row, seed=seed)):
                changed = self.augment(self._decoded(encoded, where))
            if changed.shape != data.shape[2:] + data.shape[1:2]:
                c, h, w = self.data_shape
                raise ShapeError(f"{where}: augmented, the image must be {(h, w, c)}, but it is {changed.shape}")
            data[place] = changed.transpose(2, 0, 1)

        if self.threads > 1 and rows.size > 1:
            list(self._pool().map(one, range(rows.size)))
        else:
            for place in range(rows.size):
                one(place)
        return [data], [label[:, 0] if self.label_width == 1 else label]

    def _decoded(self, data: bytes, where: str) -> Image:
        channels, height, width = self.data_shape
        if len(data) == channels * height * width and not data.startswith(_ENCODED):
            return numpy.frombuffer(data, numpy.uint8).reshape(height, width, channels)
        image = decode(data, channels == 3, where)
        if image.shape[2] != channels:
            raise ShapeError(f"{where}: the image must have {channels} channels, but it has {image.shape[2]}")
        return image


def check_data_shape(who: str, shape: Any) -> tuple[int, int, int]:
    """``(channels, height, width)`` of images; AttributeValueError for anything else."""
    good = isinstance(shape, (list, tuple)) and len(shape) == 3 and shape[0] in (1, 3)
    if not good or not all(isinstance(dim, (int, numpy.integer)) and dim > 0 for dim in shape):
        raise AttributeValueError(
            f"{who}: data_shape must be (channels, height, width) with 1 or 3 channels, but it is {shape!r}"
        )
    return int(shape[0]), int(shape[1]), int(shape[2])


class ImageRecordIter(PrefetchingIter):
    """Batches of the images of a RecordIO file, decoded by ``preprocess_threads`` and drawn ahead.

    Records are JPEG, PNG and what else Pillow decodes, a ``.npy`` of uint8, or as many bytes as ``data_shape``
    has pixels: those are the pixels (h, w, channels) themselves. ``path_imgidx`` saves the walk through the
    file at the beginning; ``path_imglist`` gives other labels by the ids of the images. The last batch is
    filled up with rows from the beginning, which `pad` counts; every epoch begins at the first row, whatever
    ``round_batch`` says. Part ``part_index`` of ``num_parts`` takes ``batch_size`` rows of every
    ``num_parts · batch_size``; all parts have the same number of batches. ``seed=None``: the one seed;
    the bits depend on seed, epoch and image alone. What is drawn and done to every image: `RecordAugment`.

    Raises FileFormatError, with the offset, for damaged files and AttributeValueError for unknown options.
    """

    def __init__(
        self,
        path_imgrec: Path,
        data_shape: Sequence[int],
        batch_size: int,
        label_width: int = 1,
        path_imgidx: Path = "",
        path_imglist: Path = "",
        shuffle: bool = False,
        num_parts: int = 1,
        part_index: int = 0,
        round_batch: bool = True,
        preprocess_threads: int = 4,
        prefetch_buffer: int = 4,
        dtype: Any = "float32",
        seed: int | None = None,
        mean_img: Path = "",
        data_name: str = "data",
        label_name: str = "softmax_label",
        **augmentation: Any,
    ) -> None:
        who = type(self).__name__
        shape = check_data_shape(who, data_shape)
        kind = numpy.dtype(dtype or "float32")
        augment = RecordAugment(who, shape, kind, **augmentation)
        labels = {key: values for key, values, _ in read_list(path_imglist)} if path_imglist else None
        rows = _ImageRows(
            who, _Records(path_imgrec, path_imgidx, labels), augment, shape, batch_size, label_width, shuffle,
            num_parts, part_index, "pad", kind, max(1, preprocess_threads), seed, (data_name, label_name),
        )  # fmt: skip
        if mean_img:
            augment.needs_float(who)
            augment.mean = _mean_image(mean_img, rows)
        super().__init__(rows, depth=prefetch_buffer)


def _mean_image(path: Path, images: _ImageRows) -> Any:
    """The mean of all images (h, w, channels): of the file or, where there is none, found now and written there."""
    from .. import files

    shape = images.data_shape
    if os.path.exists(path):
        found = files.load(path)
        mean = found.get("mean_img") if isinstance(found, dict) else (found or [None])[0]
        if mean is None or mean.shape != shape:
            is_there = "nothing of that name" if mean is None else mean.shape
            raise FileFormatError(f"{os.fspath(path)!r}: mean_img must be there as {shape}, but it is {is_there}")
        return mean.transpose(1, 2, 0).astype(numpy.float32)
    total = numpy.zeros(shape)
    for start in range(0, images.num_data, 64):
        (batch,), _ = images.read(numpy.arange(start, min(start + 64, images.num_data)))
        total += batch.sum(axis=0, dtype=numpy.float64)
    files.save(path, {"mean_img": (total / images.num_data).astype(numpy.float32)})
    return (total / images.num_data).transpose(1, 2, 0).astype(numpy.float32)


class ImageIter(_ImageRows):
    """Batches of images from a RecordIO file (``path_imgrec``) or files of their own, changed by ``aug_list``.

    Files: ``imglist`` (pairs of label and path) or ``path_imglist`` (lines ``id<TAB>label…<TAB>path``), under
    ``path_root``. Without ``aug_list`` the further options go to `CreateAugmenter`.
    """

    def __init__(
        self,
        batch_size: int,
        data_shape: Sequence[int],
        label_width: int = 1,
        path_imgrec: Path = "",
        path_imglist: Path = "",
        path_root: Path = "",
        path_imgidx: Path = "",
        shuffle: bool = False,
        part_index: int = 0,
        num_parts: int = 1,
        aug_list: Sequence[Aug] | None = None,
        imglist: Sequence[Sequence[Any]] | None = None,
        data_name: str = "data",
        label_name: str = "softmax_label",
        dtype: Any = "float32",
        last_batch_handle: str = "pad",
        seed: int | None = None,
        preprocess_threads: int = 1,
        **kwargs: Any,
    ) -> None:
        who = type(self).__name__
        shape = check_data_shape(who, data_shape)
        listed = read_list(path_imglist) if path_imglist else []
        source: _Source
        if path_imgrec:
            source = _Records(path_imgrec, path_imgidx, {key: values for key, values, _ in listed} or None)
        elif path_imglist or imglist is not None:
            pairs = [(values, name) for _, values, name in listed] or [(one[0], one[-1]) for one in imglist or ()]
            source = _Files(pairs, os.fspath(path_root))
        else:
            raise AttributeValueError(f"{who}: path_imgrec, path_imglist or imglist must be given, but none is")
        if aug_list is None:
            aug_list = CreateAugmenter(shape, **kwargs)
        elif kwargs:
            raise AttributeValueError(
                f"{who}: with aug_list there must be no further options, but there is {next(iter(kwargs))!r}"
            )
        super().__init__(
            who, source, SequentialAug(aug_list), shape, batch_size, label_width, shuffle, num_parts, part_index,
            last_batch_handle, dtype, preprocess_threads, seed, (data_name, label_name),
        )  # fmt: skip


class ImageRecordUInt8Iter(ImageRecordIter):
    """`ImageRecordIter` of uint8: the pixels as they are."""

    def __init__(self, path_imgrec: Path, data_shape: Sequence[int], batch_size: int, **options: Any) -> None:
        super().__init__(path_imgrec, data_shape, batch_size, **{"dtype": "uint8", **options})


class ImageRecordInt8Iter(ImageRecordIter):
    """`ImageRecordIter` of int8: the pixels less 128."""

    def __init__(self, path_imgrec: Path, data_shape: Sequence[int], batch_size: int, **options: Any) -> None:
        super().__init__(path_imgrec, data_shape, batch_size, **{"dtype": "int8", **options})
