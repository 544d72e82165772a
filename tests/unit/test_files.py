"""Files: round trips, and files that lie about themselves."""

from __future__ import annotations

import io
import struct
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest

from arrayexec.errors import FileFormatError
from arrayexec.files import load, read, save
from arrayexec.files.params import read as read_params
from arrayexec.files.source import Source

V1, V2, V3 = 0xF993FAC8, 0xF993FAC9, 0xF993FACA


def params(*arrays: bytes, names: tuple[bytes, ...] = (), count: int | None = None) -> bytes:
    """A .params file of these array records, put together by hand from the layout's description."""
    head = struct.pack("<QQQ", 0x112, 0, len(arrays) if count is None else count)
    tail = struct.pack("<Q", len(names)) + b"".join(struct.pack("<Q", len(name)) + name for name in names)
    return head + b"".join(arrays) + tail


def shape(*dims: int) -> bytes:
    return struct.pack(f"<i{len(dims)}q", len(dims), *dims)


def dense(dims: tuple[int, ...], code: int, raw: bytes, magic: int = V2) -> bytes:
    return struct.pack("<Ii", magic, 0) + shape(*dims) + struct.pack("<iii", 2, 3, code) + raw


def write(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "file.params"
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("suffix", ["params", "npz", "safetensors"])
def test_round_trip(tmp_path: Path, suffix: str) -> None:
    arrays = {
        "arg:w": np.arange(12, dtype=np.float32).reshape(3, 4).T,
        "arg:ü": np.arange(5, dtype=">f8"),
        "file": np.array([[True, False]]),
        "aux:none": np.zeros((3, 0), np.int8),
        **{kind: np.arange(3).astype(kind) for kind in ("float16", "uint8", "int32", "int64")},
    }
    path = tmp_path / f"model.{suffix}"
    save(path, arrays)
    loaded = load(path)
    assert isinstance(loaded, dict)
    assert list(loaded) == list(arrays)
    for name, array in arrays.items():
        value = loaded[name]
        assert value is not None
        assert value.dtype.newbyteorder("=") == array.dtype.newbyteorder("=")
        assert np.array_equal(value, array)
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_list_and_none(tmp_path: Path) -> None:
    save(tmp_path / "a", [np.ones(2), None])
    loaded = load(tmp_path / "a")
    assert isinstance(loaded, list)
    assert loaded[1] is None
    assert np.array_equal(loaded[0], [1, 1])  # type: ignore[arg-type]
    save(tmp_path / "b", [])
    assert load(tmp_path / "b") == {}
    save(tmp_path / "c", {})
    assert load(tmp_path / "c") == {}


@pytest.mark.parametrize("suffix", ["npz", "safetensors"])
def test_metadata(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.{suffix}"
    save(path, {"w": np.ones(2)}, metadata={"epoch": "3", "größe": "x\n"})
    found = read(path)
    assert (found.format, found.metadata) == (suffix, {"epoch": "3", "größe": "x\n"})
    assert list(found.arrays) == ["w"]
    save(path, [np.ones(2), np.zeros(())])
    assert (list(load(path)), read(path).metadata) == (["arr_0", "arr_1"], {})


def test_limit_of_what_is_unpacked(tmp_path: Path) -> None:
    path = write(tmp_path, params(rows([1], (3 << 20, 2))))
    with pytest.raises(FileFormatError, match="takes 25165824 bytes when unpacked, more than the 1048576 that are left"):
        load(path, limit=1 << 20)
    packed = tmp_path / "a.npz"
    np.savez_compressed(packed, x=np.zeros(5000, np.float32), y=np.zeros(5000, np.float32))
    assert list(load(packed)) == ["x", "y"]
    with pytest.raises(FileFormatError, match="the member takes .* bytes when unpacked"):
        load(packed, limit=30_000)


def test_numpy_shapes_of_version_3(tmp_path: Path) -> None:
    scalar = dense((), 0, struct.pack("<f", 2.5), V3)
    empty = dense((2, 0), 1, b"", V3)
    unknown = struct.pack("<Iii", V3, 0, -1)
    first, second, third = load(write(tmp_path, params(scalar, empty, unknown)))
    assert (first, first.shape) == (2.5, ())
    assert (second.shape, second.dtype) == ((2, 0), np.float64)
    assert third is None


def test_bfloat16_is_read_exactly(tmp_path: Path) -> None:
    raw = struct.pack("<4H", 0x3F80, 0xC000, 0x7F80, 0x0001)
    (array,) = load(write(tmp_path, params(dense((4,), 12, raw))))
    assert array.dtype == np.float32
    assert array.tolist() == [1.0, -2.0, float("inf"), 2.0**-133]


def csr(starts: list[int], columns: list[int], values: list[float], dims: tuple[int, int] = (3, 4)) -> bytes:
    return (
        struct.pack("<Ii", V2, 2)
        + shape(len(values))
        + shape(*dims)
        + struct.pack("<iii", 1, 0, 0)
        + struct.pack("<i", 6)
        + shape(len(starts))
        + struct.pack("<i", 4)
        + shape(len(columns))
        + np.array(values, "<f4").tobytes()
        + np.array(starts, "<i8").tobytes()
        + np.array(columns, "<i4").tobytes()
    )


def rows(index: list[int], dims: tuple[int, ...] = (4, 2)) -> bytes:
    values = np.arange(len(index) * 2, dtype="<f4").tobytes()
    head = struct.pack("<Ii", V2, 1) + shape(len(index), 2) + shape(*dims) + struct.pack("<iii", 1, 0, 0)
    return head + struct.pack("<i", 6) + shape(len(index)) + values + np.array(index, "<i8").tobytes()


def test_sparse_arrays_come_dense(tmp_path: Path) -> None:
    first, second = load(write(tmp_path, params(csr([0, 2, 2, 3], [1, 3, 0], [5, 6, 7]), rows([3, 1]))))
    assert first.tolist() == [[0, 5, 0, 6], [0, 0, 0, 0], [7, 0, 0, 0]]
    assert second.tolist() == [[0, 0], [2, 3], [0, 0], [0, 1]]


GOOD = dense((2,), 0, b"\0" * 8)
HOSTILE = {
    "an empty file": (b"", 0, "the file is empty"),
    "a file of 7 bytes": (
        b"\x12\x01" + bytes(5),
        0,
        "8 bytes must follow for the magic number, but the file ends after 7 (truncated?)",
    ),
    "another format": (
        b"\x89PNG\r\n\x1a\n" * 4,
        0,
        "a .params file begins with 0x112, but this one with 0xa1a0a0d474e5089; it looks like a picture (PNG)",
    ),
    "too many arrays": (
        params(GOOD, count=2**40),
        16,
        "the number of arrays is 1099511627776, but only 48 bytes follow",
    ),
    "an array larger than the file": (
        params(dense((2**40, 2**20), 0, b"")),
        64,
        "4611686018427387904 bytes must follow for the values (float32 (1099511627776, 1048576)), "
        "but the file ends after 8 (truncated?)",
    ),
    "a product of dims past 64 bits": (
        params(dense((2**62, 2**62), 0, b"")),
        64,
        f"{2**126} bytes must follow for the values (float32 ({2**62}, {2**62})), but the file ends after 8 (truncated?)",
    ),
    "no elements, impossible dims": (
        params(dense((0, 2**62, 4), 1, b"")),
        72,
        f"the values cannot have the shape (0, {2**62}, 4)",
    ),
    "a negative dim": (params(dense((-4,), 0, b"")), 36, "the dims of the shape must be >= 0, but they are (-4,)"),
    "a rank of 33": (
        params(struct.pack("<Iii", V2, 0, 33)),
        32,
        "the rank of the shape must be 0 to 32, but it is 33",
    ),
    "an unknown rank before version 3": (
        params(struct.pack("<Iii", V2, 0, -1)),
        32,
        "the rank of the shape must be 0 to 32, but it is -1",
    ),
    "an unknown magic number": (
        params(b"\x21\0\0\0" + b"\0" * 40),
        24,
        "an array begins with a rank up to 32 or 0xf993fac8 to 0xf993faca, but here is 0x21 (is the file of a later MXNet?)",
    ),
    "an unknown storage": (params(struct.pack("<Ii", V2, 3)), 28, "the storage type must be 0 (dense), 1 (row-sparse) or 2 (CSR), but it is 3"),
    "an unknown type": (
        params(dense((2,), 8, b"")),
        52,
        "the element type must be one of the codes 0 to 7 and 12, but it is 8",
    ),
    "names for some": (
        params(GOOD, GOOD, names=(b"a",)),
        104,
        "there must be 0 or 2 names, one for each array, but there are 1",
    ),
    "a name twice": (params(GOOD, GOOD, names=(b"a", b"a")), 129, "names must differ, but 'a' occurs twice"),
    "a name longer than the file": (
        params(GOOD, names=(b"a",))[:-9] + struct.pack("<Q", 2**50) + b"a",
        72,
        "the length of the name is 1125899906842624, but only 1 bytes follow",
    ),
    "a name that is no text": (
        params(GOOD, names=(b"\xff\xfe",)),
        80,
        r"names must be UTF-8 text, but this one is b'\xff\xfe'",
    ),
    "bytes after the end": (params(GOOD) + b"xyz", 72, "the file must end here, but 3 bytes follow"),
    "rows past the end": (params(rows([0, 4])), 24, "indices must be 0 to 3, but they are 0 to 4"),
    "rows below zero": (params(rows([-1, 2])), 24, "indices must be 0 to 3, but they are -1 to 2"),
    "rows of another width": (params(rows([1], (4, 3))), 24, "1 rows of (4, 3) cannot be stored as (1, 2)"),
    "a sparse bomb": (
        params(rows([1], (2**40, 2))),
        24,
        "a sparse array (1099511627776, 2) takes 8796093022208 bytes when unpacked, more than the 67108864 that are left of limit=",
    ),
    "columns past the end": (params(csr([0, 1, 1, 1], [4], [1])), 24, "indices must be 0 to 3, but they are 4 to 4"),
    "falling row starts": (
        params(csr([0, 2, 1, 2], [0, 1], [1, 2])),
        24,
        "row starts must rise from 0 to 2, but they are [0 2 1 2]",
    ),
    "too few row starts": (
        params(csr([0, 1], [0], [1])),
        24,
        "2 row starts, 1 columns and values (1,) do not make a CSR array (3, 4)",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_file(tmp_path: Path, name: str) -> None:
    data, offset, text = HOSTILE[name]
    path = write(tmp_path, data)
    tracemalloc.start()
    with pytest.raises(FileFormatError) as caught:
        load(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    message = str(caught.value)
    assert message.removeprefix(f"{str(path)!r}, byte ").startswith((f"{offset}:", f"{offset} ("))
    assert message.endswith(text)
    assert peak < 1 << 20


def test_a_file_that_shrinks() -> None:
    source = Source(io.BytesIO(params(GOOD)[:60]), len(params(GOOD)), "a.params")
    with pytest.raises(FileFormatError) as caught:
        read_params(source)
    assert str(caught.value) == (
        "'a.params', byte 56 (array 0): 8 bytes were there for the values, but 4 could be read: is the file being written?"
    )


def test_truncation_at_every_byte(tmp_path: Path) -> None:
    sparse = struct.pack("<2I2iif", 1, 1, 1, 0, 0, 1.0)  # the oldest layout
    whole = params(GOOD, csr([0, 1, 1, 1], [3], [1]), sparse, names=(b"a", b"b", b"c"))
    assert list(load(write(tmp_path, whole))) == ["a", "b", "c"]
    for length in range(len(whole)):
        with pytest.raises(FileFormatError):
            load(write(tmp_path, whole[:length]))


def test_a_changed_byte_never_raises_anything_else(tmp_path: Path) -> None:
    whole = bytearray(params(GOOD, rows([3, 1]), csr([0, 2, 2, 3], [1, 3, 0], [5, 6, 7]), names=(b"a", b"b", b"c")))
    for position in range(len(whole)):
        for value in (0, 1, 0x7F, 0xFF):
            changed = bytes(whole[:position]) + bytes([value]) + bytes(whole[position + 1 :])
            path = write(tmp_path, changed)
            try:
                load(path)
            except FileFormatError:
                continue


def npz(members: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array, allow_pickle=True)
    return buffer.getvalue()


def test_npz_that_numpy_wrote(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez_compressed(path, x=np.asfortranarray(np.arange(6.0).reshape(2, 3)), y=np.float32(3))
    loaded = load(path)
    assert isinstance(loaded, dict)
    assert np.array_equal(loaded["x"], np.arange(6.0).reshape(2, 3))  # type: ignore[arg-type]
    assert loaded["y"] == np.float32(3)


def test_hostile_npz(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    honest = npy(np.ones((4, 4), np.float32))
    cases = {
        "it holds Python objects (a pickle), which are not read": npz({"a.npy": npy(np.array([{}], object))}),
        "float32 (400000000, 4) needs 6400000000 bytes, but there are 64": npz(
            {"a.npy": honest.replace(b"(4, 4), }         ", b"(400000000, 4), } ")}
        ),
        "names must differ, but 'a' occurs twice": npz({"a.npy": honest, "a": honest}),
        "is not a whole npz file": npz({"a.npy": honest})[:-30],
        "an array begins with b'\\x93NUMPY', but this one with b'text, '": npz({"a.npy": b"text, not an array"}),
    }
    for text, data in cases.items():
        path.write_bytes(data)
        with pytest.raises(FileFormatError) as caught:
            load(path)
        assert text in str(caught.value)
    whole = npz({"a.npy": honest}, zipfile.ZIP_DEFLATED)
    for length in range(4, len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(FileFormatError):
            load(path)


def test_what_cannot_be_written(tmp_path: Path) -> None:
    path = tmp_path / "a.params"
    save(path, [np.ones(3)])
    before = path.read_bytes()
    cases = [
        (
            [np.ones(2, np.complex64)],
            FileFormatError,
            "array 0 must be one of float32, float64, float16, uint8, int32, int8, int64, bool, but it is complex64; .npz has more",
        ),
        ({1: np.ones(2)}, FileFormatError, "names must be texts without zero bytes, but one is 1"),
    ]
    for arrays, kind, text in cases:
        with pytest.raises(kind) as caught:
            save(path, arrays)
        assert str(caught.value) == f"save {str(path)!r}: {text}"
    with pytest.raises(FileFormatError) as caught:
        save(tmp_path / "b.npz", [None])
    assert str(caught.value).endswith("array 'arr_0' must be of numbers, but it is None")
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.params"]
