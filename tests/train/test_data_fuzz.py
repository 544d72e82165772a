"""Files damaged at random: a reader reads, or refuses with one of our errors, and takes no memory for what is not there."""

from __future__ import annotations

import gzip
import os
import struct
import tracemalloc

import numpy
import pytest

from arrayexec import io, recordio
from arrayexec.errors import ArrayExecError

CASES = 2000 if os.environ.get("ARRAYEXEC_FULL") else 250


def records():
    pixels = numpy.arange(48, dtype=numpy.uint8).reshape(4, 4, 3)
    with recordio.MXRecordIO("good.rec", "w") as file:
        for i, kind in enumerate((".npy", ".png", ".npy", ".jpg")):
            try:
                file.write(recordio.pack_img((0, [i, i], i, 0), pixels, 9, kind))
            except ArrayExecError:  # no Pillow here
                file.write(recordio.pack((0, [i, i], i, 0), pixels.tobytes()))
    with open("good.rec", "rb") as file:
        return file.read()


def read_records(path):
    list(io.ImageRecordIter(path, (3, 4, 4), 2, label_width=2, preprocess_threads=1, prefetch_buffer=0))


def read_index(path):
    with open("a.rec", "wb") as file:
        file.write(bytes(1000))
    recordio.MXIndexedRecordIO(path, "a.rec", "r").close()


def read_list(path):
    records()
    list(io.ImageRecordIter("good.rec", (3, 4, 4), 2, path_imglist=path, prefetch_buffer=0, label_width=2))


def plain_idx():
    return struct.pack(">HBB3I", 0, 8, 3, 3, 2, 2) + bytes(range(12))


READERS = {
    "records": (records, read_records),
    "index": (lambda: b"0\t0\n1\t12\n22\t240\n", read_index),
    "list": (lambda: b"0\t1\t2\ta.png\n1\t2\t3\tb.png\n2\t3\t4\tc.png\n3\t4\t5\td\n", read_list),
    "csv": (lambda: b"1,2,3\n4,-5.5e1,6\n\n7,8,nan\n", lambda path: list(io.CSVIter(path, (3,), 2))),
    "libsvm": (lambda: b"1 0:.5 2:1e3\n-1\n0 1:2\n", lambda path: list(io.LibSVMIter(path, (3,), 2))),
    "idx": (plain_idx, io.read_idx),
    "idx.gz": (lambda: gzip.compress(plain_idx(), mtime=0), io.read_idx),
}


def damaged(data, draw):
    """The bytes after one to three changes."""
    found = bytearray(data)
    for _ in range(draw.integers(1, 4)):
        at = int(draw.integers(len(found) + 1))
        kind = draw.integers(5)
        if kind == 0:
            found[at : at + 1] = bytes([draw.integers(256)])
        elif kind == 1:
            del found[at : at + int(draw.integers(1, 9))]
        elif kind == 2:
            found[at:at] = bytes(draw.integers(256, size=draw.integers(1, 9), dtype=numpy.uint8))
        elif kind == 3:
            found[at : at + 4] = draw.choice([b"\xff\xff\xff\xff", b"\0\0\0\0", b"\x7f\xff\xff\xff", b"\0\0\0\x20"])
        else:
            del found[at:]
    return bytes(found)


@pytest.mark.parametrize("kind", READERS)
def test_damaged_files(tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    make, read = READERS[kind]
    good = make()
    draw = numpy.random.default_rng(11)
    (tmp_path / "a").write_bytes(good)
    read("a")
    refused = taken = 0
    tracemalloc.start()
    for _ in range(CASES):
        (tmp_path / "a").write_bytes(damaged(good, draw))
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        try:
            read("a")
        except ArrayExecError:
            refused += 1
        taken = max(taken, tracemalloc.get_traced_memory()[1] - before)
    tracemalloc.stop()
    assert refused > CASES // 4
    assert taken < 2 << 20
