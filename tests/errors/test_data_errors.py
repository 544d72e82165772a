"""Every refusal of iterators, their files, records and images: its whole text.

The texts stand in ``texts_data.txt``; how they are recorded: ``recorder.py``.
"""

from __future__ import annotations

import gzip
import pickle
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from arrayexec import image, io, recordio
from arrayexec.train import image_codec
from arrayexec.train.batch import Shard
from tests.errors.recorder import PACKAGE, Recorder, checks_of

pytest.importorskip("PIL", reason="what Pillow says is part of the texts")

TRAIN = PACKAGE / "train"
NAMES = "batch io_buckets io sampler recordio image augment record_augment image_codec"
RECORDER = Recorder(
    Path(__file__).parent / "texts_data.txt",
    sorted({TRAIN / f"{name}.py" for name in NAMES.split()} | set(TRAIN.glob("io_*.py"))),
    internal={"StopIteration", "one.error"},
    elsewhere={
        "train/recordio.py": {"the file has shrunk": "needs a file that shrinks while it is read"},
    },
)
case, cases = RECORDER.case, RECORDER.cases

MAGIC = struct.pack("<I", 0xCED7230A)


def zeros(*dims: int) -> np.ndarray:
    return np.zeros(dims, np.float32)


# --- batches and iterators -------------------------------------------------------------------------------------------


class Stopped(io.DataIter):
    """Says that there is a batch, but not which."""

    def iter_next(self) -> bool:
        return True


class Ended(io.DataIter):
    """Never has a batch."""

    provide_data = provide_label = []

    def iter_next(self) -> bool:
        return False


class Broken(Ended):
    """Its disk is gone."""

    def iter_next(self) -> bool:
        raise OSError("disk gone")


def iterator(rows: int = 4, batch_size: int = 2, **options: Any) -> io.NDArrayIter:
    return io.NDArrayIter(zeros(rows, 3), zeros(rows), batch_size, **options)


def sentences(*lengths: int, **options: Any) -> io.BucketSentenceIter:
    return io.BucketSentenceIter([[1] * length for length in lengths], **{"batch_size": 2, **options})


def state(**changed: Any) -> Callable[[], Any]:
    """A case: go on from a state that does not fit."""
    return lambda: iterator().set_state({**iterator().get_state(), **changed})


cases(
    batch_no_list=lambda: io.DataBatch(zeros(2), [zeros(2)]),
    iterator_no_batches=lambda: next(io.DataIter()),
    iterator_no_data=lambda: next(Stopped()),
    iterator_no_state=lambda: Ended().get_state(),
    iterator_sets_no_state=lambda: Ended().set_state({}),
    shard_rows=lambda: Shard("NDArrayIter", 0, 1, 0),
    shard_count=lambda: iterator(num_shards=3),
    shard_number=lambda: iterator(num_shards=2, shard_id=2),
    sampler_no_rows=lambda: io.ShardedSampler(0, 2),
    state_incomplete=lambda: iterator().set_state({"epoch": 0}),
    state_other_rows=state(num_rows=5),
    state_held=state(held=[7]),
    array_iter_nothing=lambda: io.NDArrayIter([]),
    array_iter_none=lambda: io.NDArrayIter([zeros(2), None]),
    array_iter_texts=lambda: io.NDArrayIter(np.array(["a"])),
    array_iter_names=lambda: io.NDArrayIter({"a": zeros(2)}, {"a": zeros(2)}),
    array_iter_rows=lambda: io.NDArrayIter(zeros(2, 3), zeros(3)),
    array_iter_no_rows=lambda: io.NDArrayIter(zeros(0, 3)),
    array_iter_last_batch=lambda: iterator(last_batch_handle="rollover"),
    batch_size_text=lambda: iterator(batch_size="2"),
    resize_array=lambda: io.ResizeIter(zeros(2), 3),
    prefetching_array=lambda: io.PrefetchingIter([zeros(2)]),
    resize_ended=lambda: io.ResizeIter(Ended(), 3).iter_next(),
    prefetching_nothing=lambda: io.PrefetchingIter([]),
    prefetching_depth=lambda: io.PrefetchingIter(iterator(), depth=-1),
    prefetching_lengths=lambda: list(io.PrefetchingIter([iterator(4), iterator(2)])),
    prefetching_pads=lambda: list(io.PrefetchingIter([iterator(4), iterator(3)])),
    prefetching_names_count=lambda: io.PrefetchingIter([iterator(), iterator()], rename_data=[{"data": "left"}]),
    prefetching_names=lambda: io.PrefetchingIter(iterator(), rename_data=[{"dta": "left"}]),
    prefetching_states=lambda: io.PrefetchingIter(iterator()).set_state({"iters": []}),
    prefetching_fault=lambda: next(io.PrefetchingIter(Broken())),
    sentences_no_bucket=lambda: sentences(3, 4, 5),
    sentences_no_batch=lambda: sentences(3, buckets=[3, 5]),
    sentences_lengths=lambda: sentences(3, 3, buckets=[0, 3]),
    sentences_layout=lambda: sentences(3, 3, layout="NTC"),
)


@case
def iterable_used_up() -> None:
    one = io.IterableIter(zeros(1, 1) for _ in range(2))
    one.reset()
    next(one)
    one.reset()
    next(one)


cases(
    iterable_no_source=lambda: io.IterableIter(3),
    iterable_batch_size=lambda: io.IterableIter([], 0),
    iterable_nothing=lambda: io.IterableIter([]),
    iterable_texts=lambda: io.IterableIter([np.array(["a"])]),
    iterable_rows=lambda: io.IterableIter([zeros(2), zeros(3)], 2),
    bucket_words=lambda: io.BucketSentenceIter([["a", "b"]] * 2, 2, buckets=[3]),
    iterable_without_rows=lambda: io.IterableIter([(zeros(2), 1.0)]),
    iterable_names=lambda: list(io.IterableIter([{"a": zeros(1)}, {"b": zeros(1)}])),
    iterable_other_batch=lambda: list(io.IterableIter([(zeros(2, 3), zeros(2)), (zeros(2, 4), zeros(2))])),
    iterable_state=lambda: io.IterableIter([zeros(2)]).set_state({"epoch": 1, "batch": 2, "batch_size": 2}),
)

# --- tables and idx files --------------------------------------------------------------------------------------------


def reads(make: Callable[..., Any], data: bytes | str, *values: Any, **options: Any) -> Callable[[], Any]:
    """A case: an iterator over a file ``a`` of these bytes."""

    def call() -> Any:
        Path("a").write_bytes(data if isinstance(data, bytes) else data.encode())
        return make("a", *values, **options)

    return call


def idx(code: int, *dims: int) -> bytes:
    return struct.pack(f">HBB{len(dims)}I", 0, code, len(dims), *dims)


@case
def csv_two_files() -> None:
    Path("b").write_text("1\n")
    reads(io.CSVIter, "1\n2\n", (1,), 1, "b")()


@case
def libsvm_two_files() -> None:
    Path("b").write_text("1\n")
    reads(io.LibSVMIter, "1 0:1\n2\n", (1,), 1, "b", (1,))()


@case
def mnist_two_files() -> None:
    Path("b").write_bytes(idx(8, 3) + bytes(3))
    reads(io.MNISTIter, idx(8, 2, 1, 1) + bytes(2), "b")()


@case
def mnist_input_shape() -> None:
    Path("b").write_bytes(idx(8, 2) + bytes(2))
    reads(io.MNISTIter, idx(8, 2, 1, 1) + bytes(2), "b", input_shape=(2,))()


cases(
    csv_row=reads(io.CSVIter, "1,2\n3\n", (2,), 1),
    csv_columns=reads(io.CSVIter, "1,2\n", (3,), 1),
    csv_value=reads(io.CSVIter, "1,x\n", (2,), 1),
    csv_other=reads(io.CSVIter, "1_0\n", (1,), 1),
    csv_nothing=reads(io.CSVIter, "\n", (2,), 1),
    csv_part=reads(io.CSVIter, "1\n", (1,), 1, num_parts=2, part_index=2),
    csv_shape=reads(io.CSVIter, "1\n", (0,), 1),
    libsvm_row=reads(io.LibSVMIter, "1 0:1\n2 x\n", (2,), 1),
    libsvm_index=reads(io.LibSVMIter, "1 2:1\n", (2,), 1),
    libsvm_nothing=reads(io.LibSVMIter, "", (2,), 1),
    libsvm_shape=reads(io.LibSVMIter, "1\n", (2, 2), 1),
    idx_magic=reads(io.read_idx, "<html>"),
    idx_dims=reads(io.read_idx, idx(8, 2, 2)[:9]),
    idx_short=reads(io.read_idx, idx(8, 2, 2) + bytes(3)),
    idx_long=reads(io.read_idx, gzip.compress(idx(8, 2) + bytes(5), mtime=0)),
    idx_bomb=reads(io.read_idx, gzip.compress(idx(8, 1 << 30), mtime=0)),
    idx_gzip=reads(io.read_idx, gzip.compress(idx(8, 2) + bytes(2), mtime=0)[:-4]),
)

# --- records ---------------------------------------------------------------------------------------------------------


def record(data: bytes) -> Callable[[], Any]:
    """A case: read the first record of a file of these bytes."""

    def call() -> Any:
        Path("a.rec").write_bytes(data)
        with recordio.MXRecordIO("a.rec", "r") as file:
            return file.read()

    return call


def written(method: Callable[[recordio.MXRecordIO], Any], closed: bool = False) -> Callable[[], Any]:
    def call() -> Any:
        with recordio.MXRecordIO("a.rec", "w") as file:
            if closed:
                file.close()
            method(file)

    return call


@case
def index_line() -> None:
    record(b"")()
    Path("a.idx").write_text("0\t0\nx\n")
    recordio.MXIndexedRecordIO("a.idx", "a.rec", "r")


@case
def index_key() -> None:
    with recordio.MXIndexedRecordIO("a.idx", "a.rec", "w") as file:
        file.write_idx(1, b"")
    with recordio.MXIndexedRecordIO("a.idx", "a.rec", "r") as file:
        file.read_idx(2)


@case
def record_too_long() -> None:
    with mock.patch.object(recordio, "_LONGEST", 3), recordio.MXRecordIO("a.rec", "w") as file:
        file.write(b"abcd")


cases(
    record_head=record(MAGIC),
    record_magic=record(b"<html></html>"),
    record_length=record(MAGIC + struct.pack("<I", 1000)),
    record_part=record(MAGIC + struct.pack("<I", 2 << 29)),
    record_kind=record(MAGIC + struct.pack("<I", 7 << 29)),
    record_unfinished=record(MAGIC + struct.pack("<I", 1 << 29) + MAGIC + struct.pack("<I", 0)),
    record_flag=lambda: recordio.MXRecordIO("a.rec", "a"),
    record_closed=written(lambda file: file.write(b""), closed=True),
    record_direction=written(lambda file: file.read()),
    record_pickled=written(pickle.dumps),
    unpack_short=lambda: recordio.unpack(b"abc"),
    unpack_labels=lambda: recordio.unpack(struct.pack("<IfQQ", 1 << 31, 0, 0, 0) + b"abcd"),
    pack_ids=lambda: recordio.pack((0, 1.0, -1, 0), b""),
)

# --- images ----------------------------------------------------------------------------------------------------------

SHAPE = (3, 2, 2)
PIXELS = np.zeros((2, 2, 3), np.uint8)


def npy(shape: tuple[int, ...], size: int, version: int = 1) -> bytes:
    head = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<H", len(head)) + head + bytes(size)


def images(data: bytes = b"", label: Any = 1.0, shape: Any = SHAPE, count: int = 1, **options: Any) -> Callable[[], Any]:
    """A case: the first batch of a file of such a record."""

    def call() -> Any:
        with recordio.MXRecordIO("a.rec", "w") as file:
            for _ in range(count):
                file.write(recordio.pack((0, label, 7, 0), data or PIXELS.tobytes()))
        return next(io.ImageRecordIter("a.rec", shape, 1, preprocess_threads=1, prefetch_buffer=0, **options))

    return call


@case
def image_list_line() -> None:
    Path("a.lst").write_text("1\ttwo\ta.png\n")
    images(path_imglist="a.lst")()


@case
def image_not_in_list() -> None:
    Path("a.lst").write_text("1\t2\ta.png\n")
    images(path_imglist="a.lst")()


@case
def image_mean() -> None:
    from arrayexec import files

    files.save("mean", {"mean_img": zeros(2)})
    images(mean_img="mean")()


@case
def image_no_pillow() -> None:
    image_codec._pillow.cache_clear()
    with mock.patch.dict(sys.modules, {"PIL": None, "PIL.Image": None}):
        image.imdecode(b"")


@case
def image_too_large() -> None:
    with mock.patch.object(image_codec, "MAX_PIXELS", 3):
        image.imdecode(image_codec.encode(PIXELS, ".png", 9))


cases(
    image_damaged=lambda: image.imdecode(b"abc"),
    image_cut=lambda: image.imdecode(image_codec.encode(PIXELS, ".png", 9)[:30]),
    image_npy_header=images(npy((2, 2, 3), 12, version=9)),
    image_npy_size=images(npy((2, 2, 3), 11)),
    image_channels=images(npy((2, 2), 4)),
    image_encode=lambda: recordio.pack_img((0, 1, 0, 0), zeros(2, 2)),
    image_format=lambda: recordio.pack_img((0, 1, 0, 0), PIXELS, img_fmt=".exe"),
    image_resize_size=lambda: image.imresize(PIXELS, 0, 3),
    image_resize_method=lambda: image.imresize(PIXELS, 3, 3, 7),
    image_crop=lambda: image.fixed_crop(PIXELS, 1, 1, 2, 2),
    image_augmenter=lambda: image.Augmenter()(PIXELS),
    image_rand_resize=lambda: image.CreateAugmenter(SHAPE, rand_resize=True),
    image_data_shape=images(shape=(2, 2)),
    image_none=images(count=0),
    image_labels=images(label=[1, 2]),
    image_option=images(rand_corp=True),
    image_dtype=images(dtype="int32"),
    image_std=images(std_g=0),
    image_normalised=images(dtype="uint8", scale=2),
    image_iter_source=lambda: image.ImageIter(1, SHAPE),
    image_iter_options=lambda: image.ImageIter(1, SHAPE, imglist=[[1, "a"]], aug_list=[], resize=3),
)


@case
def image_augmented() -> None:
    Path("a.npy").write_bytes(npy((2, 2, 3), 12))
    next(image.ImageIter(1, (3, 1, 1), imglist=[[1, "a.npy"]], aug_list=[]))


(
    found, test_text, test_no_text_is_left_over, test_every_refusal_is_reached,
    test_what_is_held_elsewhere_is_there,
) = checks_of(RECORDER)  # fmt: skip
