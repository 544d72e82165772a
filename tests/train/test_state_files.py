"""Files of states: what goes in comes out, damage anywhere is found, and half a file never takes a name."""

from __future__ import annotations

import io
import math
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from arrayexec.errors import CheckpointError
from arrayexec.train.state_files import load_states, save_states

KINDS = ("b1", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "c8", "c16", ">f4", ">i8")
STATES: dict[Any, Any] = {
    "optimizer": "adam", 1: {"mean": np.arange(6.0).reshape(2, 3)}, "1": -0.0, (3, "a", None): [1, 2.5, None, True, (1, 2)],
    "long": 7**200, "longer": -(1 << 63) - 1, "least": -(1 << 63), "nan": math.nan, "inf": -math.inf, "ä/ö\0": "ü\n\0",
    "empty": [{}, [], (), "", np.empty((2, 0), np.int8)], "scalar": np.array(3, np.float16), 2.5: False,
    "column": np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3)), "strided": np.arange(10)[::3],
}  # fmt: skip


def same(a: Any, b: Any) -> bool:
    """Equal in values, types and order."""
    if isinstance(b, np.ndarray):
        return bool(a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes())
    if type(a) is not type(b):
        return False
    if isinstance(b, dict):
        return list(map(repr, a)) == list(map(repr, b)) and all(same(a[key], b[key]) for key in b)
    if isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return repr(a) == repr(b)


def test_what_goes_in_comes_out(tmp_path: Path) -> None:
    save_states(tmp_path / "a.states", STATES)
    assert same(load_states(tmp_path / "a.states"), STATES)
    assert os.listdir(tmp_path) == ["a.states"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_type(tmp_path: Path, kind: str) -> None:
    array = np.random.default_rng(0).integers(0, 2, (3, 2)).astype(kind)
    save_states(tmp_path / "a", [array])
    assert same(load_states(tmp_path / "a"), [array])


def test_numbers_of_numpy_become_plain_ones(tmp_path: Path) -> None:
    save_states(tmp_path / "a", [np.int64(3), np.float32(0.1), np.float64(0.1), np.bool_(True), np.complex64(1j)])
    found = load_states(tmp_path / "a")
    assert found[:4] == [3, float(np.float32(0.1)), 0.1, True] and list(map(type, found[:4])) == [int, float, float, bool]
    assert same(found[4], np.array(1j, np.complex64))


def test_bfloat16(tmp_path: Path) -> None:
    kinds = pytest.importorskip("ml_dtypes")
    array = np.array([1.0, -2.5, 3e38, math.inf], kinds.bfloat16)
    save_states(tmp_path / "a", {"w": array})
    assert same(load_states(tmp_path / "a")["w"], array)


def test_a_member_can_be_read_by_numpy(tmp_path: Path) -> None:
    save_states(tmp_path / "a", {"w": {"mean": np.arange(3)}})
    with np.load(tmp_path / "a") as found:
        assert found.files == ["0 w.mean", "tree"] and found["0 w.mean"].tolist() == [0, 1, 2]


def test_every_changed_bit_is_found_or_means_nothing(tmp_path: Path) -> None:
    path, rng = tmp_path / "a", np.random.default_rng(1)
    save_states(path, STATES)
    raw, refused = path.read_bytes(), 0
    for place in range(len(raw)):
        damaged = bytearray(raw)
        damaged[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged)
        try:
            assert same(load_states(path), STATES), f"byte {place}"
        except CheckpointError as error:
            assert repr(str(path)) in str(error)
            refused += 1
    assert refused > len(raw) / 2


def test_every_cut_is_found(tmp_path: Path) -> None:
    path = tmp_path / "a"
    save_states(path, STATES)
    raw = path.read_bytes()
    for length in range(len(raw)):
        path.write_bytes(raw[:length])
        with pytest.raises(CheckpointError):
            load_states(path)


class Bomb:
    def __reduce__(self) -> Any:
        return (os.mkdir, ("ran",))


def test_nothing_is_unpickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(CheckpointError, match="a Python pickle, which is not read"):
        load_states("a")
    member = io.BytesIO()
    np.lib.format.write_array(member, np.array([Bomb()], object), allow_pickle=True)
    with zipfile.ZipFile("b", "w") as archive:
        archive.writestr("tree.npy", member.getvalue())
    with pytest.raises(CheckpointError, match="pickle"):
        load_states("b")
    assert not Path("ran").exists()


def test_what_cannot_be_written_leaves_the_old_file(tmp_path: Path) -> None:
    save_states(tmp_path / "a", {"x": 1})
    for states, where in (({"w": {"m": object()}}, "w.m"), ({"w": np.array(["a"])}, "w"), ({b"w": 1}, "the value")):
        with pytest.raises(CheckpointError, match=where):
            save_states(tmp_path / "a", states)
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(CheckpointError, match="nested too deeply"):
        save_states(tmp_path / "a", endless)
    assert load_states(tmp_path / "a") == {"x": 1} and os.listdir(tmp_path) == ["a"]
