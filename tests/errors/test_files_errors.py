"""Every refusal of a file of arrays or of optimizer states: its whole text.

The texts stand in ``texts_files.txt``; how they are recorded: ``recorder.py``.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from arrayexec import files
from arrayexec.cli.convert import convert
from arrayexec.train.optimizer import create
from arrayexec.train.states_from_mxnet import from_mxnet
from tests.errors.recorder import PACKAGE, Recorder, checks_of
from tests.unit.test_files import V2, dense, params, shape

RECORDER = Recorder(
    Path(__file__).parent / "texts_files.txt",
    [*sorted((PACKAGE / "files").rglob("*.py")), PACKAGE / "train" / "states_from_mxnet.py", PACKAGE / "cli" / "convert.py"],
    internal={"ValueError"},
    elsewhere={
        "files/source.py": {
            "could be read": "a file that shrinks while it is read: tests/unit/test_files.py::test_a_file_that_shrinks",
        },
    },
)
case, cases = RECORDER.case, RECORDER.cases


def zeros(*dims: int) -> np.ndarray:
    return np.zeros(dims, np.float32)


# --- files: .params --------------------------------------------------------------------------------------------------


def loads(data: bytes, name: str = "a.params") -> Callable[[], Any]:
    """A case: load a file of these bytes."""

    def call() -> Any:
        Path(name).write_bytes(data)
        return files.load(name)

    return call


def sparse(kind: int, stored: tuple[int, ...], dims: tuple[int, ...], *indices: np.ndarray) -> bytes:
    """The record of a sparse float32 array with zeros as values."""
    head = struct.pack("<Ii", V2, kind) + shape(*stored) + shape(*dims) + struct.pack("<iii", 1, 0, 0)
    codes = {"<i8": 6, "<f4": 0}
    for index in indices:
        head += struct.pack("<i", codes[index.dtype.str]) + shape(*index.shape)
    return head + bytes(4 * int(np.prod(stored))) + b"".join(index.tobytes() for index in indices)


def longs(*values: int) -> np.ndarray:
    return np.array(values, "<i8")


ONE = dense((1,), 0, bytes(4))

cases(
    params_magic=loads(struct.pack("<Q", 7)),
    params_short=loads(struct.pack("<Q", 0x112)),
    params_count=loads(params(ONE, count=1 << 40)),
    params_array_magic=loads(params(struct.pack("<I", 99))),
    params_storage=loads(params(struct.pack("<Ii", V2, 5))),
    params_rank=loads(params(struct.pack("<Iii", V2, 0, 40))),
    params_dims=loads(params(struct.pack("<Iiiq", V2, 0, 1, -2))),
    params_type=loads(params(dense((1,), 8, bytes(4)))),
    params_values=loads(params(dense((1 << 20,), 0, b""))),
    params_impossible_dims=loads(params(dense((1 << 62, 1 << 62, 0), 0, b""))),
    params_names_count=loads(params(ONE, ONE, names=(b"a",))),
    params_names_length=loads(params(ONE)[:-8] + struct.pack("<QQ", 1, 1 << 40)),
    params_names_text=loads(params(ONE, names=(b"\xff",))),
    params_names_twice=loads(params(ONE, ONE, names=(b"a", b"a"))),
    params_rest=loads(params(ONE) + b"more"),
    sparse_shape=loads(params(sparse(2, (1,), (2, 2, 2), longs(0, 1), longs(0)))),
    sparse_size=loads(params(sparse(1, (0, 1 << 40), (4, 1 << 40), longs()))),
    sparse_index_type=loads(params(sparse(1, (1, 2), (3, 2), np.zeros(1, "<f4")))),
    sparse_index=loads(params(sparse(1, (1, 2), (3, 2), longs(3)))),
    sparse_rows=loads(params(sparse(1, (1, 3), (3, 2), longs(0)))),
    sparse_csr=loads(params(sparse(2, (1,), (2, 2), longs(0, 1), longs(0)))),
    sparse_csr_rows=loads(params(sparse(2, (1,), (2, 2), longs(0, 2, 1), longs(0)))),
    sparse_impossible_dims=loads(params(sparse(1, (0,), (0, 1 << 62, 4), longs()))),
    load_number=lambda: files.load(5),
    load_format=lambda: files.load("a.params", format="pickle"),
    save_array=lambda: files.save("a.params", zeros(2, 3)),
    save_name=lambda: files.save("a.params", {5: zeros(2)}),
    save_type=lambda: files.save("a.params", {"a": np.zeros(2, complex)}),
    save_number=lambda: files.save("a.params", [zeros()], version=2),
)

# --- files: npz ------------------------------------------------------------------------------------------------------


def npy(array: Any, version: tuple[int, int] = (1, 0)) -> bytes:
    out = io.BytesIO()
    np.lib.format.write_array(out, np.asanyarray(array), version)
    return out.getvalue()


def packed(*members: tuple[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, data in members:
            archive.writestr(zipfile.ZipInfo(name), data)
    return out.getvalue()


@case
def npz_bomb() -> None:
    large = npy(zeros(1 << 18))
    head = large[: -(4 << 18)]
    data = bytearray(packed(("a.npy", head)))
    entry = data.rindex(b"PK\x01\x02")  # the central directory, which says how much there is
    data[entry + 24 : entry + 28] = struct.pack("<I", len(large))
    loads(data, "a.npz")()


@case
def npz_names_twice() -> None:
    loads(packed(("a.npy", npy(zeros(1))), ("a", npy(zeros(1)))), "a.npz")()


@case
def npz_packed_sizes() -> None:
    data = bytearray(packed(("a.npy", npy(zeros(1)))))
    entry = data.rindex(b"PK\x01\x02")
    data[entry + 20 : entry + 28] = struct.pack("<II", 5000, 5000)
    loads(data, "a.npz")()


@case
def npz_method() -> None:
    data = bytearray(packed(("a.npy", npy(zeros(1)))))
    data[data.rindex(b"PK\x01\x02") + 10] = zipfile.ZIP_LZMA
    loads(data, "a.npz")()


@case
def npz_deflated_bomb() -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(zipfile.ZipInfo("a.npy"), npy(zeros(20 << 20)), zipfile.ZIP_DEFLATED)
    loads(out.getvalue(), "a.npz")()


def with_header(text: bytes) -> Callable[[], Any]:
    return loads(packed(("a.npy", b"\x93NUMPY\x01\0" + struct.pack("<H", len(text)) + text + bytes(8))), "a.npz")


cases(
    npz_metadata=loads(packed(("__metadata__.json", b"[1]")), "a.npz"),
    npz_text=loads(packed(("a.npy", b"a text and no array")), "a.npz"),
    npz_header_length=loads(packed(("a.npy", b"\x93NUMPY\x02\0" + struct.pack("<I", 1 << 31))), "a.npz"),
    npz_header=with_header(b"{'descr': '<f8', 'fortran_order': False, 'shape': (-1,)}"),
    npz_header_code=with_header(b"{'descr': __import__('os'), 'fortran_order': False, 'shape': ()}"),
    npz_header_deep=with_header(b"{'descr': '<f8', 'fortran_order': False, 'shape': " + b"(" * 5000),
    npz_header_record=with_header(b"{'descr': [('a', '<f8')], 'fortran_order': False, 'shape': ()}"),
    npz_header_keys=with_header(b"{'descr': '<f8', 'fortran_order': 0, 'shape': ()}"),
    npz_header_empty_type=with_header(b"{'descr': '|S0', 'fortran_order': False, 'shape': (9999999,)}"),
    npz_cut=loads(packed(("a.npy", npy(zeros(1))))[:40], "a.npz"),
    npz_version=loads(packed(("a.npy", npy(zeros(1), (3, 0)))), "a.npz"),
    npz_objects=loads(packed(("a.npy", npy(np.array([None])))), "a.npz"),
    npz_size=loads(packed(("a.npy", npy(zeros(2))[:-4])), "a.npz"),
    save_npz_none=lambda: files.save("a.npz", {"a": None}),
    save_npz_objects=lambda: files.save("a.npz", {"a": np.array([None])}),
)

# --- files: any format -----------------------------------------------------------------------------------------------


@case
def load_folder() -> None:
    os.mkdir("a.params")
    files.load("a.params")


@case
def load_loop_of_links() -> None:
    os.symlink("b.params", "a.params")
    os.symlink("a.params", "b.params")
    files.load("a.params")


@case
def load_pipe() -> None:
    os.mkfifo("a.params")
    files.load("a.params")


cases(
    load_empty=loads(b""),
    load_zero_byte=lambda: files.load("a\0b"),
    load_page=loads(b"<!DOCTYPE html><html><body>404</body></html>"),
    load_lfs=loads(b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"),
    load_lfs_npz=loads(b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n", "a.npz"),
    load_pickle=loads(pickle.dumps({0: "state"})),
    load_symbol=loads(b'{\n  "nodes": []}'),
    load_reversed=loads(struct.pack(">QQQ", 0x112, 0, 0)),
    save_version=lambda: files.save("a.params", [zeros(1)], version=4),
    save_version_npz=lambda: files.save("a.npz", [zeros(1)], version=1),
    save_version_type=lambda: files.save("a.params", [np.zeros(1, bool)], version=1),
    save_metadata=lambda: files.save("a.params", [zeros(1)], metadata={"epoch": "3"}),
    save_metadata_number=lambda: files.save("a.npz", [zeros(1)], metadata={"epoch": 3}),  # type: ignore[dict-item]
    save_half_a_letter=lambda: files.save("a.params", {"\ud800": zeros(1)}),
)

# --- files: safetensors ----------------------------------------------------------------------------------------------


def safe(header: Any, data: bytes = b"") -> Callable[[], Any]:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return loads(struct.pack("<Q", len(text)) + text + data, "a.safetensors")


def entry(dtype: Any = "F32", dims: Any = (1,), offsets: Any = (0, 4)) -> dict[str, Any]:
    return {"a": {"dtype": dtype, "shape": dims, "data_offsets": offsets}}


cases(
    safe_page=loads(b"<!DOCTYPE html><html><body>404</body></html>", "a.safetensors"),
    safe_json=safe(b"{'a': 1}"),
    safe_key_twice=safe(b'{"a": 1, "a": 2}'),
    safe_deep=safe(b'{"a":' + b"[" * 100_000),
    safe_list=safe(b"[]"),
    safe_metadata=safe({"__metadata__": {"epoch": 3}}),
    safe_fields=safe({"a": {"dtype": "F32"}}),
    safe_dtype=safe(entry("F8_E4M3")),
    safe_dims=safe(entry(dims=(-1,))),
    safe_offsets=safe(entry(offsets=(0, 8))),
    safe_hole=safe(entry(offsets=(4, 8)), bytes(8)),
    safe_cut=safe(entry(), bytes(3)),
    safe_impossible_dims=safe(entry(dims=(0, 1 << 62, 4), offsets=(0, 0))),
    save_safe_type=lambda: files.save("a.safetensors", {"a": np.zeros(1, complex)}),
    save_safe_name=lambda: files.save("a.safetensors", {"__metadata__": zeros(1)}),
)

# --- files: optimizer states -----------------------------------------------------------------------------------------


def states(data: Any) -> Callable[[], Any]:
    def call() -> Any:
        Path("a.states").write_bytes(data if isinstance(data, bytes) else pickle.dumps(data))
        return files.load_mxnet_states("a.states")

    return call


def nested(depth: int) -> Any:
    return (nested(depth - 1),) if depth else 1


def optimizer(body: bytes) -> bytes:
    """States and an Adam with these attributes: what a pickle of protocol 0 says."""
    made = b"cmxnet.optimizer\nAdam\n(tR(d" + body + b"b"
    return b"(d" + made + b"\x86."


cases(
    states_path=lambda: files.load_mxnet_states(5),  # type: ignore[arg-type]
    states_page=states(b"<!DOCTYPE html>"),
    states_code=states(b"cos\nsystem\n(S'echo'\ntR."),
    states_code_by_text=states(b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x04echo\x85R."),
    states_instruction=states(b"(d2."),
    states_cut=states(pickle.dumps({0: 1.0})[:-1]),
    states_no_dict=states([1, 2]),
    states_key=states({(1, 2): 1.0}),
    states_set=states({0: "text"}),
    states_deep=states({0: nested(6)}),
    states_behind=states(({}, 5)),
    states_wrong_call=states(b"(dI5\n)R."),
    states_wrong_build=states(b"(d}b."),
    states_append=states(b"(dI5\na."),
    states_bytes=states(b"cbuiltins\nbytearray\n(I5\ntR."),
    states_objects=states(b"cnumpy\ndtype\n(S'O8'\ntR."),
    states_untyped=states(b"cnumpy.core.multiarray\nscalar\n(I5\nI5\ntR."),
    states_optimizer_holds=states(optimizer(b"S'a'\nC\x01bs")),
    states_optimizer_names=states(optimizer(b"S'a'\ncmxnet.optimizer\nSGD\ns")),
    states_optimizer_deep=states(optimizer(b"S'a'\n" + b"(" * 10 + b"l" * 10 + b"s")),
    states_record=states(b"(dI0\ncmxnet.ndarray\nNDArray\n(NtR(dS'handle'\nC\x04\x21\0\0\0sbs."),
)



def fitted(found: dict[str, Any]) -> Callable[[], Any]:
    return lambda: from_mxnet(found, create("sgd", momentum=0.9, param_idx2name={0: "a", 1: "b"}), "a.states")


cases(
    fit_optimizer=fitted({"states": {}, "optimizer": {"class": "Adam"}}),
    fit_parameters=fitted({"states": {5: zeros(1)}, "optimizer": {"class": "SGD"}}),
    fit_names=fitted({"states": {}, "optimizer": {"class": "SGD", "idx2name": "abc"}}),
    fit_arrays=fitted({"states": {0: (zeros(1), zeros(1))}, "optimizer": {"class": "SGD"}}),
)

# --- files: the command line ------------------------------------------------------------------------------------------


def converted(target: str, text: str = "") -> Callable[[], Any]:
    """A case: turn a symbol file of this text, or one of arrays, into another file, which exists if it is ``there``."""

    def call() -> Any:
        Path("there.npz").touch()
        if text:
            Path("a").write_text(text)
        else:
            files.save("a", [zeros(1)])
        return list(convert("a", target))

    return call


cases(
    convert_to_what_exists=converted("there.npz"),
    convert_symbol_to_arrays=converted("b.params", "{}"),
    convert_arrays_to_symbol=converted("b.json"),
)

# --- the tests -------------------------------------------------------------------------------------------------------


(
    found, test_text, test_no_text_is_left_over, test_every_refusal_is_reached,
    test_what_is_held_elsewhere_is_there,
) = checks_of(RECORDER)  # fmt: skip
