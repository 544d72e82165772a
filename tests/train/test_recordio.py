"""RecordIO: bytes as MXNet 1.9.1 writes them, random records, damaged files."""

from __future__ import annotations

import itertools
import pickle
import struct
import threading
import tracemalloc

import numpy
import pytest

import arrayexec as ax
from arrayexec import recordio
from arrayexec.errors import ArgumentError, FileFormatError, NotBoundError, UnknownNameError

MAGIC = struct.pack("<I", 0xCED7230A)

# Recorded from MXNet 1.9.1.
WRITTEN = [
    ([b"abc"], "0a23d7ce0300000061626300"),
    ([b""], "0a23d7ce00000000"),
    ([b"abcd" + MAGIC + b"ef"], "0a23d7ce04000020616263640a23d7ce0200006065660000"),
    ([MAGIC], "0a23d7ce000000200a23d7ce00000060"),
    ([MAGIC + MAGIC], "0a23d7ce000000200a23d7ce000000400a23d7ce00000060"),
    ([b"a" + MAGIC], "0a23d7ce05000000610a23d7ce000000"),
    ([b"abcd" + MAGIC], "0a23d7ce04000020616263640a23d7ce00000060"),
    ([MAGIC + b"x", b"y"], "0a23d7ce000000200a23d7ce01000060780000000a23d7ce0100000079000000"),
    (
        [b"abcd" + MAGIC + b"efgh" + MAGIC + b"i"],
        "0a23d7ce04000020616263640a23d7ce04000040656667680a23d7ce0100006069000000",
    ),
]


def write(path, records):
    with recordio.MXRecordIO(path, "w") as file:
        for record in records:
            file.write(record)
    return path.read_bytes()


def read(path):
    with recordio.MXRecordIO(path, "r") as file:
        return list(iter(file.read, None))


@pytest.mark.parametrize(("records", "wanted"), WRITTEN)
def test_bytes_are_those_of_mxnet(tmp_path, records, wanted):
    assert write(tmp_path / "a.rec", records).hex() == wanted
    assert read(tmp_path / "a.rec") == records


def test_index_is_that_of_mxnet(tmp_path):
    with recordio.MXIndexedRecordIO(tmp_path / "b.idx", tmp_path / "b.rec", "w") as file:
        for i in range(4):
            file.write_idx(i * 10, bytes([65 + i]) * (i + 1))
    assert (tmp_path / "b.idx").read_bytes() == b"0\t0\n10\t12\n20\t24\n30\t36\n"
    assert (tmp_path / "b.rec").read_bytes().hex() == (
        "0a23d7ce01000000410000000a23d7ce02000000424200000a23d7ce03000000434343000a23d7ce0400000044444444"
    )
    with recordio.MXIndexedRecordIO(tmp_path / "b.idx", tmp_path / "b.rec", "r") as file:
        assert (file.keys, file.idx) == ([0, 10, 20, 30], {0: 0, 10: 12, 20: 24, 30: 36})
        assert file.read_idx(20) == b"CCC"
        assert (file.read(), file.read()) == (b"DDDD", None)
        file.seek(10)
        assert file.tell() == 12
        with pytest.raises(UnknownNameError, match="must have the key 99") as caught:
            file.read_idx(99)
        assert isinstance(caught.value, KeyError)
        file.reset()
        assert file.read() == b"A"


def test_keys_may_be_texts(tmp_path):
    with recordio.MXIndexedRecordIO(tmp_path / "b.idx", tmp_path / "b.rec", "w", str) as file:
        file.write_idx("left", b"1")
    with recordio.MXIndexedRecordIO(tmp_path / "b.idx", tmp_path / "b.rec", "r", str) as file:
        assert file.read_idx("left") == b"1"


@pytest.mark.parametrize(
    ("header", "wanted"),
    [
        ((0, 3.0, 7, 0), "000000000000404007000000000000000000000000000000"),
        ((5, [1, 2, 3], 7, 9), "0300000000000000070000000000000009000000000000000000803f0000004000004040"),
        ((5, numpy.array([1.5, 2]), 7, 9), "0200000000000000070000000000000009000000000000000000c03f00000040"),
    ],
)
def test_headers_are_those_of_mxnet(header, wanted):
    packed = recordio.pack(recordio.IRHeader(*header), b"xyz")
    assert packed.hex() == wanted + b"xyz".hex()
    found, data = recordio.unpack(packed)
    assert data == b"xyz"
    numpy.testing.assert_array_equal(found.label, numpy.asarray(header[1], numpy.float32))
    assert (found.id, found.id2) == header[2:]
    assert found.flag == (0 if numpy.isscalar(header[1]) else len(header[1]))


def test_random_records_come_back(tmp_path):
    draw = numpy.random.default_rng(0)
    pieces = [b"", b"\0", MAGIC, MAGIC[:2], MAGIC[2:], b"abc", b"abcd"]
    records = [b"".join(pieces[i] for i in draw.integers(len(pieces), size=draw.integers(9))) for _ in range(500)]
    write(tmp_path / "a.rec", records)
    assert read(tmp_path / "a.rec") == records
    file = recordio.RecordFile(tmp_path / "a.rec")
    assert [file.read(int(offset))[0] for offset in file.offsets()] == records
    file.close()


def test_a_reader_is_pickled_and_threads_share_a_file(tmp_path):
    records = [bytes([i]) * i for i in range(200)]
    write(tmp_path / "a.rec", records)
    with recordio.MXRecordIO(tmp_path / "a.rec", "r") as file:
        file.read()
        other = pickle.loads(pickle.dumps(file))
        assert (other.read(), file.read()) == (records[1], records[1])
        other.close()
    shared = recordio.RecordFile(tmp_path / "a.rec")
    offsets, found = shared.offsets().tolist(), {}

    def run(part):
        found[part] = [shared.read(offset)[0] for offset in offsets[part::4]]

    threads = [threading.Thread(target=run, args=(part,)) for part in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[i % 4][i // 4] for i in range(200)] == records
    shared.close()


def test_a_file_that_is_closed_or_of_the_other_kind(tmp_path):
    file = recordio.MXRecordIO(tmp_path / "a.rec", "w")
    with pytest.raises(ArgumentError, match="must be opened with flag 'r'"):
        file.read()
    with pytest.raises(ArgumentError, match="cannot be pickled"):
        pickle.dumps(file)
    file.close()
    file.close()
    with pytest.raises(NotBoundError, match="closed"):
        file.write(b"")
    with pytest.raises(ArgumentError, match="flag must be"):
        recordio.MXRecordIO(tmp_path / "a.rec", "a")


def test_every_cut_of_a_file_is_noticed(tmp_path):
    records = [b"abcd" + MAGIC + b"efghi", b"xyz"]
    whole = write(tmp_path / "a.rec", records)
    first = len(whole) - 12
    for end in range(len(whole)):
        (tmp_path / "cut.rec").write_bytes(whole[:end])
        if end in (0, first):
            assert read(tmp_path / "cut.rec") == records[: end and 1]
        else:
            with pytest.raises(FileFormatError, match=r"byte \d+: .* the file ends after \d+ \(truncated\?\)"):
                read(tmp_path / "cut.rec")


def test_damaged_bytes_give_one_error_and_no_allocation(tmp_path):
    whole = write(tmp_path / "a.rec", [b"abcd" + MAGIC + b"efghi", bytes(100), MAGIC * 3])
    heads = [i for i in range(0, len(whole), 4) if whole[i : i + 4] == MAGIC]
    refused = 0
    tracemalloc.start()
    for at, value in itertools.product([h + i for h in heads for i in range(8)], (0, 0x1F, 0x20, 0x7F, 0xFF)):
        damaged = bytearray(whole)
        damaged[at] = value
        (tmp_path / "bad.rec").write_bytes(damaged)
        try:
            read(tmp_path / "bad.rec")
        except FileFormatError as error:
            refused += 1
            assert "byte " in str(error)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert refused > 150
    assert peak < 1 << 20


@pytest.mark.parametrize("line", [b"1 2\n", b"x\t0\n", b"1\tx\n", b"1\t-4\n", b"1\t999\n", b"\xff\t0\n", b"<html>\n"])
def test_a_damaged_index_names_the_line(tmp_path, line):
    write(tmp_path / "a.rec", [b"abc"])
    (tmp_path / "a.idx").write_bytes(b"0\t0\n" + line)
    with pytest.raises(FileFormatError, match=r"line 2 \(byte 4\): there must be a key, a tab and an offset below 12"):
        recordio.MXIndexedRecordIO(tmp_path / "a.idx", tmp_path / "a.rec", "r")


def test_raw_images_need_no_other_package():
    image = numpy.arange(24, dtype=numpy.uint8).reshape(2, 4, 3)
    record = ax.recordio.pack_img((0, 4.0, 1, 0), image, img_fmt=".npy")
    header, found = ax.recordio.unpack_img(record)
    numpy.testing.assert_array_equal(found, image)
    assert header.label == 4.0
    assert ax.image.imdecode(recordio.unpack(record)[1])[0, 0].tolist() == [2, 1, 0]  # red first


def test_encoded_images():
    pytest.importorskip("PIL", reason="images are encoded by Pillow")
    image = numpy.arange(24, dtype=numpy.uint8).reshape(2, 4, 3)
    for kind in (".png", ".bmp"):
        numpy.testing.assert_array_equal(recordio.unpack_img(recordio.pack_img((0, 1, 0, 0), image, 9, kind))[1], image)
    grey = recordio.unpack_img(recordio.pack_img((0, 1, 0, 0), image[:, :, 0], 9, ".png"), iscolor=0)[1]
    numpy.testing.assert_array_equal(grey, image[:, :, 0])
    flat = numpy.full((8, 8, 3), 100, numpy.uint8)
    assert abs(recordio.unpack_img(recordio.pack_img((0, 1, 0, 0), flat, 95))[1].astype(int) - 100).max() <= 2
