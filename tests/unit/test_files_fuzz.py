"""Damaged files by the thousand: each loads or is refused by name, in little time and in memory of the file's own size.

The mutations follow from a fixed seed; ``ARRAYEXEC_FULL=1`` makes many more of them.
"""

from __future__ import annotations

import io
import os
import pickle
import random
import struct
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from arrayexec import errors, sym
from arrayexec.files import load, load_mxnet_states, save
from arrayexec.train import initializer
from tests.unit.test_files import GOOD, V1, csr, params, rows, shape

CONFORMANCE = Path(__file__).parents[1] / "conformance"
MXNET = CONFORMANCE / "mxnet_files"
SYMBOLS = CONFORMANCE / "mxnet" / "symbols"
ROUNDS = 4000 if os.environ.get("ARRAYEXEC_FULL") else 60
LIMIT = 1 << 20  # of what is unpacked
SECONDS = 5.0
ODD = (0, 1, 2, 32, 33, 0x7F, 0xFF, 0x112, -1, -2, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 40, 1 << 62, (1 << 63) - 1)
TOKENS = (
    b"[", b"]", b"{", b"}", b'"', b",", b":", b"-1", b"0", b"1e999", b"NaN", b"Infinity", b"null", b"true", b"\\u0000",
    b"\\ud800", b"9" * 30, b"9" * 5000, b"[" * 2000, b'"nodes": [], ', b'"a": 1, "a": 1, ', b"\xff\xfe", b"(1L, 2L)",
)  # fmt: skip

Read = Callable[[Path], Any]


def written(suffix: str, **options: Any) -> bytes:
    """A small file of this format, as ``save`` writes it."""
    path = Path(f"fuzz.{suffix}")
    arrays = {"arg:w": np.arange(6, dtype=np.float32).reshape(2, 3), "aux:n": np.array([1, 2], np.int8), "s": np.zeros(())}
    save(path, arrays, **options)
    return path.read_bytes()


def packed() -> bytes:
    out = io.BytesIO()
    np.savez_compressed(out, a=np.asfortranarray(np.ones((3, 4))), b=np.zeros(2000), c=np.array("text"))
    return out.getvalue()


def seeds() -> Iterator[tuple[str, bytes, Read]]:
    def arrays(path: Path) -> Any:
        return load(path, limit=LIMIT)

    def states(path: Path) -> Any:
        return load_mxnet_states(path, limit=LIMIT)

    for name in ("dict", "sparse", "np_shape", "names", "empty"):
        yield f"{name}.params", (MXNET / f"{name}.params").read_bytes(), arrays
    old = struct.pack("<3I2ii2f", 2, 1, 2, 1, 0, 0, 1, 2)
    first = struct.pack("<I", V1) + shape(2) + struct.pack("<3i2f", 1, 0, 0, 1, 2)
    sparse = (rows([3, 1]), csr([0, 1, 1, 1], [3], [1]))
    yield "old.params", params(old, first, GOOD, *sparse, names=(b"a", b"b", b"c", b"d", b"e")), arrays
    yield "stored.npz", written("npz", metadata={"epoch": "3"}), arrays
    yield "packed.npz", packed(), arrays
    yield "a.safetensors", written("safetensors", metadata={"epoch": "3"}), arrays
    for name in ("adam_with_optimizer", "adam_protocol0", "adam_protocol2", "sgd_multi_precision"):
        yield f"{name}.states", (MXNET / f"{name}.states").read_bytes(), states
    for protocol in (0, 2, 5):
        yield f"numpy{protocol}.states", pickle.dumps({0: np.ones((2, 3)), "w": (np.float64(2), None)}, protocol), states
    for name in ("sload_bn_08", "sload_mlp_09", "sload_hidden_keys_09", "list_bn_mean_var"):
        yield f"{name}.json", (SYMBOLS / f"{name}.json").read_bytes(), sym.load


def mutated(data: bytes, source: random.Random, others: list[bytes]) -> bytes:
    """``data`` with one to four changes."""
    out = bytearray(data)
    for _ in range(source.choice((1, 1, 1, 2, 4))):
        at = source.randrange(len(out) + 1)
        end = min(len(out), at + source.choice((1, 4, 8, 64)))
        match source.randrange(9):
            case 0:
                out = out[:at]
            case 1 if at < len(out):
                out[at] ^= 1 << source.randrange(8)
            case 2 if at < len(out):
                out[at] = source.choice((0, 1, 0x7F, 0x80, 0xFF, source.randrange(256)))
            case 3:
                width, form = source.choice(((4, "<I"), (8, "<Q")))
                at -= at % 4
                out[at : at + width] = struct.pack(form, source.choice(ODD) % (1 << 8 * width))
            case 4:
                out[at:at] = out[at:end]
            case 5:
                del out[at:end]
            case 6:
                out[at:at] = source.choice(TOKENS)
            case 7:
                other = source.choice(others)
                begin = source.randrange(len(other) + 1)
                out[at:end] = other[begin : begin + end - at]
            case _:
                out[at:end] = source.randbytes(end - at)
    return bytes(out)


@pytest.mark.filterwarnings("ignore")
def test_damaged_files_load_or_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    samples = list(seeds())
    counts: dict[str, list[int]] = {}
    highest = slowest = 0.0
    tracemalloc.start()
    try:
        for name, data, read in samples:
            source = random.Random(name)
            kind = name.rpartition(".")[2]
            others = [other for title, other, _ in samples if title.endswith(kind)]
            path = tmp_path / name
            path.write_bytes(data)
            read(path)  # whole
            found = counts.setdefault(kind, [0, 0])
            for number in range(ROUNDS):
                broken = mutated(data, source, others)
                path.write_bytes(broken)
                tracemalloc.reset_peak()
                before, begin = tracemalloc.get_traced_memory()[0], time.perf_counter()
                try:
                    read(path)
                    found[0] += 1
                except errors.ArrayExecError as error:
                    assert str(error)
                    found[1] += 1
                except Exception as error:
                    raise AssertionError(f"mutation {number} of {name}: {error!r}") from error
                taken, peak = time.perf_counter() - begin, tracemalloc.get_traced_memory()[1] - before
                assert taken < SECONDS, f"mutation {number} of {name} took {taken:.1f} s"
                assert peak < 2 * LIMIT + 64 * len(broken), f"mutation {number} of {name} ({len(broken)} bytes): {peak} bytes"
                highest, slowest = max(highest, peak), max(slowest, taken)
    finally:
        tracemalloc.stop()
    with capsys.disabled():
        told = ", ".join(f"{kind} {good} loaded and {bad} refused" for kind, (good, bad) in counts.items())
        print(f"\n  damaged files: {told}; at most {highest / 2**20:.1f} MiB and {slowest:.2f} s each")
    assert all(bad > ROUNDS // 2 for _, bad in counts.values())


@pytest.mark.parametrize("name", ["dict.params", "np_shape.params", "sparse.params", "adam_with_optimizer.states"])
def test_cut_at_every_byte(name: str, tmp_path: Path) -> None:
    data = (MXNET / name).read_bytes()
    path = tmp_path / name
    read: Read = load_mxnet_states if name.endswith("states") else load
    for length in range(len(data)):
        path.write_bytes(data[:length])
        with pytest.raises(errors.FileFormatError, match="byte"):
            read(path)


@pytest.mark.parametrize("suffix", ["npz", "safetensors", "json"])
def test_other_formats_cut_at_every_byte(suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    data = (SYMBOLS / "sload_bn_08.json").read_bytes().rstrip() if suffix == "json" else written(suffix)
    path = tmp_path / f"cut.{suffix}"
    read: Read = sym.load if suffix == "json" else load
    for length in range(len(data)):
        path.write_bytes(data[:length])
        with pytest.raises(errors.FileFormatError):
            read(path)


def test_a_pickle_runs_nothing(tmp_path: Path) -> None:
    class Bad:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "made"),)

    path = tmp_path / "a.states"
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        path.write_bytes(pickle.dumps({0: Bad()}, protocol))
        with pytest.raises(errors.FileFormatError, match=r"it names (posix|nt)\.mkdir, .*nothing was run"):
            load_mxnet_states(path)
        with pytest.raises(errors.FileFormatError):
            load(path)
    assert not (tmp_path / "made").exists()


def doubled(levels: int) -> bytes:
    """States whose one value is a tuple of 15 tuples of 15 … of one number, each named 15 times: a small file."""
    parts = [b"(I1\ntp0\n0"] + [b"(" + b"g%d\n" % i * 15 + b"tp%d\n0" % (i + 1) for i in range(levels)]
    return b"(d" + b"".join(b"I%d\n" % key + b"".join(parts) + b"g%d\ns" % levels for key in range(50)) + b"."


HOSTILE = {
    "bytes longer than the file": b"\x80\x04\x8e" + struct.pack("<Q", 1 << 40),
    "a place of the memo far away": b"\x80\x02]r" + struct.pack("<I", 0xFFFFFFFF) + b".",
    "a list in itself": b"\x80\x02}K\0]q\0h\0as.",
    "a dict in itself": b"\x80\x02}q\0K\0h\0s.",
    "tuples that multiply": doubled(3),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_pickles(name: str, tmp_path: Path) -> None:
    path = tmp_path / "a.states"
    path.write_bytes(HOSTILE[name])
    tracemalloc.start()
    try:
        with pytest.raises(errors.FileFormatError):
            load_mxnet_states(path, limit=LIMIT)
        assert tracemalloc.get_traced_memory()[1] < 2 * LIMIT
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "text",
    [
        '["os.system", {"command": "echo"}]',
        '["load", {"param": "/etc/passwd"}]',
        '["__import__", {"name": "os"}]',
        '["xavier", {"rnd_type": "uniform", "registry": 1}]',
        '["fusedrnn", {"init": "[\\"os.system\\", {}]", "num_hidden": 2, "num_layers": 1, "mode": "lstm"}]',
        '["zero", ' + "[" * 100_000,
        "[]",
    ],
)
def test_initialisers_in_files_come_from_the_registry_alone(text: str) -> None:
    with pytest.raises(errors.AttributeValueError, match="^initializer"):
        initializer.Uniform()(initializer.InitDesc("w_weight", {"__init__": text}), np.zeros((2, 3), np.float32))
