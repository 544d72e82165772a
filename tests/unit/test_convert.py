"""``python -m arrayexec convert`` and ``inspect``: every way between the formats, and what is refused."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from arrayexec.cli import main
from arrayexec.files import load, read, save

DATA = Path(__file__).parents[1] / "conformance" / "mxnet"
ENDINGS = ["params", "npz", "safetensors"]
ARRAYS = {"arg:w": np.arange(6, dtype=np.float32).reshape(2, 3), "aux:n": np.array([1, 2], np.int64), "arg:s": np.float16(2)}


def run(*arguments: object) -> int:
    return main([str(argument) for argument in arguments])


@pytest.mark.parametrize(("first", "second"), list(itertools.product(ENDINGS, ENDINGS)))
def test_arrays(first: str, second: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target = tmp_path / f"a.{first}", tmp_path / f"b.{second}"
    save(source, ARRAYS, metadata=None if first == "params" else {"epoch": "7"})
    assert run("convert", source, target) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "arg:w float32 (2, 3)" in lines and lines[-1] == "3 arrays, 42 bytes"
    found = read(target)
    assert found.format == second and isinstance(found.arrays, dict)
    for (name, array), (wanted, value) in zip(found.arrays.items(), ARRAYS.items(), strict=True):
        assert name == wanted and array is not None
        assert array.dtype == value.dtype and np.array_equal(array, value)
    if first != "params" and second != "params":
        assert found.metadata == {"epoch": "7"}
    elif first != "params":
        assert "left out, as .params holds no metadata: epoch" in lines


def test_existing_files_are_kept_without_force(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target = tmp_path / "a.params", tmp_path / "b.npz"
    save(source, ARRAYS)
    target.write_text("mine")
    assert run("convert", source, target) == 1
    assert "exists already; --force replaces it" in capsys.readouterr().err
    assert target.read_text() == "mine"
    (tmp_path / "c.npz").symlink_to(tmp_path / "nowhere.npz")
    assert run("convert", source, tmp_path / "c.npz") == 1
    assert run("convert", source, target, "--force") == 0
    assert len(load(target)) == 3
    assert run("convert", source, source, "--force") == 0


def test_old_generation(tmp_path: Path) -> None:
    source, target = tmp_path / "a.npz", tmp_path / "b.params"
    save(source, {"w": np.ones(2, np.float32)})
    assert run("convert", source, target, "--version", 1) == 0
    assert target.read_bytes()[24:28] == b"\xc8\xfa\x93\xf9"


def test_symbol(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = json.loads((DATA / "manifest.json").read_text())["cases"]
    case = next(case for case in manifest if case["name"] == "sload_bn_08")
    target = tmp_path / "new-symbol.json"
    assert run("convert", DATA / case["symbol"], target) == 0
    assert json.loads(target.read_text()) == json.loads((DATA / case["resaved"]).read_text())
    listed = capsys.readouterr().out.splitlines()
    assert [line.rpartition(" ")[2] for line in listed if line.startswith("output ")] == case["expect"]["outputs"]
    assert run("inspect", target) == 0
    assert capsys.readouterr().out.splitlines() == listed


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("convert", "net.json", "b.npz"), "'net.json' is a symbol file, so 'b.npz' must end in .json"),
        (("convert", "a.params", "b.json"), "'b.json' must end in .params, .npz, .safetensors to hold arrays"),
        (("convert", "page.params", "b.npz"), "it looks like a web page"),
        (("convert", "none.params", "b.npz"), "No such file"),
        (("convert", "a.params", "b.npz", "--version", "1"), "version must be 1, 2 or 3, of .params alone"),
        (("inspect", "a.params", "--mxnet-pickle"), "the pickle is damaged"),
        (("inspect", "."), "cannot be read: Is a directory"),
    ],
)
def test_refusals(
    arguments: tuple[str, ...], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    save("a.params", ARRAYS)
    Path("page.params").write_text("<html>404</html>")
    Path("net.json").write_text((DATA / "symbols/sload_mlp_10.json").read_text())
    assert run(*arguments) == 1
    assert text in capsys.readouterr().err
    assert not Path("b.npz").exists()
