"""CSV, LibSVM and idx files: what MXNet 1.9.1 reads from them, and what is no such file."""

from __future__ import annotations

import gzip
import struct
import tracemalloc

import numpy
import pytest

from arrayexec.errors import AttributeValueError, FileFormatError, ShapeError
from arrayexec.train import io, random


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    random.seed(0)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read(iterator):
    """(first value of each row, labels, pad) of every batch of an epoch."""
    return [(b.data[0].reshape(len(b.data[0]), -1)[:, 0].tolist(), b.label[0].tolist(), b.pad) for b in iterator]


# --- CSV -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def tables(folder):
    numpy.savetxt("d.csv", numpy.arange(21).reshape(7, 3), delimiter=",", fmt="%g")
    numpy.savetxt("l.csv", numpy.arange(7), fmt="%g")


def test_csv_batches_are_those_of_mxnet_in_the_first_epoch_and_in_every_other(tables):
    iterator = io.CSVIter(data_csv="d.csv", data_shape=(3,), label_csv="l.csv", batch_size=3)
    assert [tuple(desc) for desc in iterator.provide_data + iterator.provide_label] == [
        ("data", (3, 3)),
        ("softmax_label", (3,)),
    ]
    wanted = [([0, 3, 6], [0, 1, 2], 0), ([9, 12, 15], [3, 4, 5], 0), ([18, 0, 3], [6, 0, 1], 2)]
    assert read(iterator) == wanted
    iterator.reset()
    assert read(iterator) == wanted


def test_csv_shapes_types_and_missing_labels(tables):
    iterator = io.CSVIter("d.csv", (3, 1), 7, dtype="int32")
    batch = next(iterator)
    assert (batch.data[0].shape, batch.data[0].dtype, batch.data[0].ravel().tolist()) == (
        (7, 3, 1),
        numpy.int32,
        list(range(21)),
    )
    assert batch.label[0].tolist() == [0] * 7
    wide = next(io.CSVIter("l.csv", (1,), 2, label_csv="d.csv", label_shape=(3,)))
    assert wide.label[0].tolist() == [[0, 1, 2], [3, 4, 5]]


def test_csv_folder_blank_lines_and_spellings(folder):
    (folder / "parts").mkdir()
    (folder / "parts" / "b.csv").write_text("\n 3 ,-4e0\r\n\n")
    (folder / "parts" / "a.csv").write_text("1,.5\nnan,inf")
    (folder / "parts" / "c.csv").write_text("")
    batch = next(io.CSVIter(folder / "parts", (2,), 3))
    numpy.testing.assert_array_equal(batch.data[0], numpy.array([[1, 0.5], [numpy.nan, numpy.inf], [3, -4]], "f4"))


@pytest.mark.parametrize("shuffle", [False, True])
def test_csv_parts_are_the_whole(tables, shuffle):
    whole = io.CSVIter("d.csv", (3,), 6, "l.csv", shuffle=shuffle)
    parts = [io.CSVIter("d.csv", (3,), 2, "l.csv", shuffle=shuffle, num_parts=3, part_index=i) for i in range(3)]
    for _ in range(2):
        for batch in whole:
            pieces = [next(part) for part in parts]
            numpy.testing.assert_array_equal(numpy.concatenate([p.data[0] for p in pieces]), batch.data[0])
            assert sum(piece.pad for piece in pieces) == batch.pad
        for each in (whole, *parts):
            assert next(each, None) is None
            each.reset()


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("1,2,3\n4,5\n6,7,8\n", r"line 2 \(byte 6\): the count of numbers in a row must be 3, but it is 2"),
        ("1,2,3\n\n4,x,5\n", r"line 3 \(byte 7\): value 2 must be of float32, but it is b'x'"),
        ("1,2\n3,4\n", r"line 1 \(byte 0\): the count of numbers in a row must be 3, but it is 2"),
        ("1,2,3,\n", r"line 1 \(byte 0\): the count of numbers in a row must be 3, but it is 4"),
        ("1,2,\n", r"line 1 \(byte 0\): value 3 must be of float32, but it is b''"),
        ("<html>\n", r"line 1 \(byte 0\): the count of numbers in a row must be 3, but it is 1"),
        ("1,2,3\n1,\xff,3\n", r"line 2 \(byte 6\): value 2 must be of float32"),
        ("\n \n", "there must be at least one row of numbers"),
        ("", "there must be at least one row of numbers"),
    ],
)
def test_damaged_csv(folder, text, where):
    (folder / "bad.csv").write_bytes(text.encode("latin-1"))
    with pytest.raises(FileFormatError, match=where):
        io.CSVIter("bad.csv", (3,), 1)


def test_csv_refusals(tables):
    with pytest.raises(ShapeError, match="data_csv has 7 and label_csv 21"):
        numpy.savetxt("long.csv", numpy.arange(21), fmt="%g")
        io.CSVIter("d.csv", (3,), 2, "long.csv")
    with pytest.raises(AttributeValueError, match="data_shape must be a shape of dims >= 1"):
        io.CSVIter("d.csv", (0,), 2)
    with pytest.raises(FileFormatError, match="value 1 must be of int32, but it is b'0.5'"):
        numpy.savetxt("half.csv", [0.5], fmt="%g")
        io.CSVIter("half.csv", (1,), 1, dtype="int32")


# --- LibSVM ----------------------------------------------------------------------------------------------------------

SPARSE = "1.0 0:0.5 2:1.2\n-2.0\n-3.0 0:0.6 1:2.4 2:1.2\n4 2:-1.2\n"
DENSE = [[0.5, 0, 1.2], [0, 0, 0], [0.6, 2.4, 1.2], [0, 0, -1.2]]


def test_libsvm_rows_are_those_of_mxnet(folder):
    (folder / "d.svm").write_text(SPARSE)
    iterator = io.LibSVMIter(data_libsvm="d.svm", data_shape=(3,), batch_size=3)
    first, second = iterator
    numpy.testing.assert_allclose(first.data[0], DENSE[:3], rtol=1e-6)
    numpy.testing.assert_allclose(second.data[0], [DENSE[3], *DENSE[:2]], rtol=1e-6)
    assert (first.label[0].tolist(), second.label[0].tolist(), second.pad) == ([1, -2, -3], [4, 1, -2], 2)
    assert tuple(iterator.provide_label[0]) == ("softmax_label", (3,))


def test_libsvm_labels_in_a_file(folder):
    (folder / "d.svm").write_text(SPARSE)
    (folder / "l.svm").write_text("1.0\n-2.0 0:0.125\n-3.0 2:1.2\n4 1:1.0 2:-1.2\n")
    batch = next(io.LibSVMIter("d.svm", (3,), 4, "l.svm", (3,)))
    numpy.testing.assert_allclose(batch.label[0], [[0, 0, 0], [0.125, 0, 0], [0, 0, 1.2], [0, 1, -1.2]], rtol=1e-6)


def test_libsvm_against_dense_at_random(folder):
    draw = numpy.random.default_rng(0)
    dense = draw.integers(-3, 4, (40, 9)) * (draw.random((40, 9)) < 0.3) * 0.5
    lines = [" ".join([str(i), *(f"{j}:{v:g}" for j, v in enumerate(row) if v)]) for i, row in enumerate(dense)]
    (folder / "d.svm").write_text("\n".join(lines))
    for batch in io.LibSVMIter("d.svm", (9,), 7, shuffle=True):
        numpy.testing.assert_array_equal(batch.data[0], dense[batch.index])
        numpy.testing.assert_array_equal(batch.label[0], batch.index)


@pytest.mark.parametrize("line", ["1 0", "x 0:1", "1 0:1:2", "1 -1:2", "1 0:1,2", "1 0: 1", "<html>", "1 1e0:2", ""])
def test_damaged_libsvm(folder, line):
    (folder / "d.svm").write_text("1 0:1\n" + line + "  \n" if line else "\n")
    with pytest.raises(FileFormatError, match=r"line 2 \(byte 6\): a row must be" if line else "at least one row"):
        io.LibSVMIter("d.svm", (3,), 1)


def test_libsvm_refusals(folder):
    (folder / "d.svm").write_text("1 3:1\n")
    with pytest.raises(FileFormatError, match=r"an index must be in 0\.\.2, but one is 3"):
        io.LibSVMIter("d.svm", (3,), 1)
    (folder / "l.svm").write_text("1\n2\n")
    with pytest.raises(ShapeError, match="data_libsvm has 1 and label_libsvm 2"):
        io.LibSVMIter("d.svm", (4,), 1, "l.svm", (1,))
    with pytest.raises(AttributeValueError, match="must have one dim"):
        io.LibSVMIter("d.svm", (2, 2), 1)


# --- idx -------------------------------------------------------------------------------------------------------------

CODES = {"u1": 8, "i1": 9, ">i2": 0x0B, ">i4": 0x0C, ">f4": 0x0D, ">f8": 0x0E}


def idx(array, kind="u1"):
    head = struct.pack(">HBB", 0, CODES[kind], array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    return head + array.astype(kind).tobytes()


@pytest.mark.parametrize("kind", CODES)
@pytest.mark.parametrize("packed", [False, True])
def test_idx_of_every_type(folder, kind, packed):
    array = numpy.arange(24).reshape(2, 3, 4)
    (folder / "a").write_bytes(gzip.compress(idx(array, kind)) if packed else idx(array, kind))
    found = io.read_idx("a")
    numpy.testing.assert_array_equal(found, array)
    assert found.dtype == numpy.dtype(kind).newbyteorder("=") and found.dtype.isnative


@pytest.fixture
def digits(folder):
    images = (numpy.arange(7 * 4 * 4) % 256).reshape(7, 4, 4)
    (folder / "im").write_bytes(idx(images))
    (folder / "la.gz").write_bytes(gzip.compress(idx(numpy.arange(7))))
    return images


def test_mnist_batches_are_those_of_mxnet(digits):
    iterator = io.MNISTIter(image="im", label="la.gz", batch_size=3, shuffle=False, silent=True)
    assert [tuple(desc) for desc in iterator.provide_data + iterator.provide_label] == [
        ("data", (3, 1, 4, 4)),
        ("softmax_label", (3,)),
    ]
    batches = list(iterator)
    assert [batch.label[0].tolist() for batch in batches] == [[0, 1, 2], [3, 4, 5]]
    assert batches[1].data[0][0, 0, 0, :3].tolist() == [0.1875, 0.19140625, 0.1953125]
    assert batches[0].data[0].dtype == numpy.float32
    flat = next(io.MNISTIter("im", "la.gz", 3, shuffle=False, flat=True))
    numpy.testing.assert_array_equal(flat.data[0], digits[:3].reshape(3, 16) / 256)
    shaped = next(io.MNISTIter("im", "la.gz", 3, shuffle=False, input_shape=(2, 8)))
    assert shaped.data[0].shape == (3, 2, 8)


def test_mnist_shuffles_every_epoch_anew_and_keeps_rows_together(digits):
    iterator = io.MNISTIter("im", "la.gz", 7, seed=3)
    orders = []
    for _ in range(3):
        (batch,) = iterator
        numpy.testing.assert_array_equal(batch.data[0][:, 0], digits[batch.index] / 256)
        numpy.testing.assert_array_equal(batch.label[0], batch.index)
        orders.append(tuple(batch.index.tolist()))
        iterator.reset()
    assert len(set(orders)) == 3


@pytest.mark.parametrize("packed", [False, True])
def test_every_cut_of_an_idx_file_is_noticed(folder, packed):
    whole = idx(numpy.arange(6).reshape(2, 3))
    whole = gzip.compress(whole) if packed else whole
    for end in range(len(whole)):
        (folder / "cut").write_bytes(whole[:end])
        with pytest.raises(FileFormatError):
            io.read_idx("cut")
    (folder / "cut").write_bytes(whole + b"\0" if not packed else gzip.compress(idx(numpy.arange(6)) + b"\0"))
    with pytest.raises(FileFormatError, match="bytes must follow for uint8"):
        io.read_idx("cut")


def test_absurd_dims_allocate_nothing(folder):
    head = struct.pack(">HBB", 0, 8, 3) + struct.pack(">3I", 2**32 - 1, 2**32 - 1, 2**32 - 1)
    (folder / "plain").write_bytes(head + bytes(100))
    (folder / "packed").write_bytes(gzip.compress(head + bytes(100)))
    tracemalloc.start()
    with pytest.raises(FileFormatError, match=r"byte 16: .* bytes must follow for uint8 .*, but there are 100"):
        io.read_idx("plain")
    with pytest.raises(FileFormatError, match="the packed bytes cannot hold so many"):
        io.read_idx("packed")
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


@pytest.mark.parametrize("data", [b"<html></html>", struct.pack(">HBB", 0, 7, 1), struct.pack(">HBB", 0, 8, 0), b""])
def test_what_is_no_idx_file(folder, data):
    (folder / "a").write_bytes(data)
    with pytest.raises(FileFormatError, match="byte 0: an idx file begins with 00 00"):
        io.read_idx("a")


def test_mnist_refusals(digits, folder):
    with pytest.raises(ShapeError, match=r"images \(n, h, w\) and labels \(n,\)"):
        io.MNISTIter("la.gz", "im")
    with pytest.raises(ShapeError, match="input_shape must have 16 pixels"):
        io.MNISTIter("im", "la.gz", input_shape=(15,))


# --- states ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["csv", "svm", "idx"])
def test_reading_goes_on_from_a_state(tables, digits, folder, kind):
    (folder / "d.svm").write_text(SPARSE)
    make = {
        "csv": lambda: io.CSVIter("d.csv", (3,), 2, "l.csv", shuffle=True),
        "svm": lambda: io.LibSVMIter("d.svm", (3,), 2, shuffle=True),
        "idx": lambda: io.MNISTIter("im", "la.gz", 2),
    }[kind]
    iterator, other = make(), make()
    list(iterator)
    iterator.reset()
    next(iterator)
    other.set_state(iterator.get_state())
    for _ in range(2):
        assert read(other) == read(iterator) != []
        other.reset(), iterator.reset()
