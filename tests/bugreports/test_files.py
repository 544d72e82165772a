"""Reports about files: what programs met in saved models, and what happens here. Numbers are those of the reports."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import arrayexec as ax
from arrayexec.files import load, save

MXNET = Path(__file__).parents[1] / "conformance" / "mxnet_files"
V1, V2, V3 = 0xF993FAC8, 0xF993FAC9, 0xF993FACA


def layer(key: str, version: int | None, **attributes: str) -> str:
    """A fully connected layer whose attributes stand under ``key``."""
    names = ["data", "f_weight", "f_bias"]
    nodes: list[dict[str, Any]] = [{"op": "null", "name": name, "inputs": []} for name in names]
    nodes.append({"op": "FullyConnected", "name": "f", key: {"num_hidden": "3", **attributes}, "inputs": [[0, 0], [1, 0], [2, 0]]})
    top = {} if version is None else {"attrs": {"mxnet_version": ["int", version]}}
    return json.dumps({"nodes": nodes, "arg_nodes": [0, 1, 2], "heads": [[3, 0]], **top})


@pytest.mark.parametrize(("key", "version"), [("param", None), ("attr", 905), ("attrs", 10000), ("attrs", 10901)])
def test_bug_10884_10516_97_14_attributes_under_every_key(key: str, version: int | None) -> None:
    net = ax.sym.load_json(layer(key, version))
    assert net.infer_shape(data=(2, 5))[1] == [(2, 3)]
    assert net.list_attr() == {"num_hidden": "3"}


def test_bug_6507_9094_old_pairs_without_auxiliary_states() -> None:
    net = ax.sym.load(MXNET / "old/bn_noaux.json")
    assert net.list_auxiliary_states() == ["bn_moving_mean", "bn_moving_var"]
    executor = net.simple_bind(ax.cpu(), data=(2, 1, 9, 9))
    executor.aux_dict["bn_moving_var"][:] = 1
    (out,) = executor.forward(is_train=False, data=np.ones((2, 1, 9, 9), np.float32))
    np.testing.assert_allclose(out, np.full((2, 3), 1 / 3), rtol=1e-6)


def test_bug_8862_unknown_parameters() -> None:
    with pytest.warns(UserWarning, match=r"FullyConnected 'f' in the JSON text: the hint cudnn_tune=off is left out"):
        net = ax.sym.load_json(layer("attrs", 10901, cudnn_tune="off"))
    assert net.list_attr() == {"num_hidden": "3"}
    with pytest.warns(UserWarning) as caught:
        assert ax.sym.load_json(layer("attrs", 20000, mode="fast")).list_attr() == {"num_hidden": "3"}
    assert "mode=fast is not known and is left out" in str(caught[-1].message)
    with pytest.raises(ax.AttributeValueError, match=r"FullyConnected 'f' in the JSON text \(MXNet 10000\) has no attribute"):
        ax.sym.load_json(layer("attrs", 10000, num_hiddn="3"))


def test_bug_15337_what_files_leave_out_is_inferred() -> None:
    net = ax.sym.load(MXNET / "old/hidden.json")
    assert net.infer_shape(data=(2, 5)) == ([(2, 5), (3, 5), (3,)], [(2, 3)], [])
    text = layer("attrs", 10000).replace('"num_hidden": "3"', '"num_hidden": "3", "flatten": "False"')
    assert ax.sym.load_json(text).infer_shape(data=(4, 2, 5))[1] == [(4, 2, 3)]


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "byte 0: the file is empty"),
        (b"<!DOCTYPE html><title>Not found</title>", "looks like a web page"),
        (b"version https://git-lfs.github.com/spec/v1\n", "looks like a git-lfs pointer"),
        (b"\x1f\x8b\x08" + bytes(30), "looks like a gzip archive"),
        (struct.pack("<QQQI", 0x112, 0, 1, 0xF993FACB), "but here is 0xf993facb (is the file of a later MXNet?)"),
        (struct.pack("<QQQI", 0x112, 0, 1, V2), "byte 28 (array 0): 4 bytes must follow for the storage type, but the file ends"),
    ],
)
def test_bug_16224_1534_6265_98_342_67_what_is_wrong_is_said(data: bytes, text: str, tmp_path: Path) -> None:
    path = tmp_path / "a.params"
    path.write_bytes(data)
    with pytest.raises(ax.FileFormatError) as caught:
        ax.nd.load(path)
    assert text in str(caught.value) and str(path) in str(caught.value)


def test_bug_16224_a_file_that_is_cut_says_where(tmp_path: Path) -> None:
    whole = (MXNET / "gluon-0007.params").read_bytes()
    path = tmp_path / "a.params"
    for length in range(8, len(whole), 7):
        path.write_bytes(whole[:length])
        with pytest.raises(ax.FileFormatError, match=r"byte \d+.*(truncated\?|bytes follow)"):
            load(path)


def test_bug_10338_the_layout_of_older_readers(tmp_path: Path) -> None:
    values = np.arange(3, dtype=np.float32)
    save(tmp_path / "a.params", {"x": values}, version=1)
    expected = struct.pack("<QQQ", 0x112, 0, 1) + struct.pack("<IiqIII", V1, 1, 3, 1, 0, 0) + values.tobytes()
    expected += struct.pack("<QQ", 1, 1) + b"x"
    assert (tmp_path / "a.params").read_bytes() == expected
    assert np.array_equal(load(tmp_path / "a.params")["x"], values)  # type: ignore[call-overload]


def test_bug_15090_14954_18271_12672_scalars_and_arrays_of_nothing(tmp_path: Path) -> None:
    given = {"s": np.array(2.5, np.float32), "z": np.zeros((2, 0, 3), np.float32), "v": np.ones(2, np.int64)}
    save(tmp_path / "a.params", given)
    assert (tmp_path / "a.params").read_bytes()[24:28] == struct.pack("<I", V3)
    found: Any = load(tmp_path / "a.params")
    for name, array in given.items():
        assert (found[name].shape, found[name].dtype, found[name].tolist()) == (array.shape, array.dtype, array.tolist())


def test_bug_18121_sparse_parameters_are_read_dense() -> None:
    found: Any = load(MXNET / "sparse.params")
    assert found["rs"].tolist() == [[1, 2], [0, 0], [0, 0], [3, 4], [0, 0]]


def test_bug_17488_an_empty_dict(tmp_path: Path) -> None:
    ax.nd.save(tmp_path / "a.params", {})
    assert ax.nd.load(tmp_path / "a.params") == {}
    for ending in ("npz", "safetensors"):
        ax.nd.save(tmp_path / f"a.{ending}", {})
        assert ax.nd.load(tmp_path / f"a.{ending}") == {}


def test_bug_11091_names_without_a_prefix(tmp_path: Path) -> None:
    prefix = str(tmp_path / "net")
    net = ax.sym.BatchNorm(ax.sym.FullyConnected(ax.sym.Variable("data"), num_hidden=2, name="fc"), name="bn")
    net.save(f"{prefix}-symbol.json")
    names = [*net.list_arguments()[1:], *net.list_auxiliary_states()]
    save(f"{prefix}-0003.params", {name: np.ones(2, np.float32) for name in names})
    symbol, arguments, auxiliary = ax.model.load_checkpoint(prefix, 3)
    assert symbol.tojson() == net.tojson()
    assert list(arguments) == ["fc_weight", "fc_bias", "bn_gamma", "bn_beta"]
    assert list(auxiliary) == ["bn_moving_mean", "bn_moving_var"]


def test_bug_11091_an_exported_gluon_pair(tmp_path: Path) -> None:
    for name in ("gluon-symbol.json", "gluon-0007.params"):
        (tmp_path / name).write_bytes((MXNET / name).read_bytes())
    prefix = str(tmp_path / "gluon")
    symbol, arguments, auxiliary = ax.model.load_checkpoint(prefix, 7)
    assert set(arguments) == set(symbol.list_arguments()) - {"data"}
    assert set(auxiliary) == set(symbol.list_auxiliary_states())
    ax.model.save_checkpoint(str(tmp_path / "again"), 7, symbol, arguments, auxiliary)
    assert ax.model.load_checkpoint(str(tmp_path / "again"), 7)[0].tojson() == symbol.tojson()
    with np.load(MXNET / "gluon_io.npz") as pair:
        executor = symbol.simple_bind(ax.cpu(), grad_req="null", data=pair["x"].shape)
        executor.copy_params_from(arguments, auxiliary)
        np.testing.assert_allclose(executor.forward(data=pair["x"])[0], pair["y"], rtol=1e-5, atol=1e-6)


def test_bug_12795_12486_13751_outputs_of_one_name() -> None:
    weight = ax.sym.Variable("w")
    twice = [ax.sym.Embedding(ax.sym.Variable(name), weight, input_dim=5, output_dim=2, name="embed") for name in "ab"]
    net = ax.sym.load_json(ax.sym.Group(twice).tojson())
    assert net.list_outputs() == ["embed_output"] * 2
    assert net[1].list_arguments() == ["b", "w"]
    with pytest.raises(ax.CompositionError, match=r"has 2 outputs named 'embed_output' \(numbers \[0, 1\]\); take one by number"):
        net["embed_output"]


def test_bug_4995_2803_target_shape_keeps_its_old_meaning() -> None:
    old = ax.sym.load(MXNET / "old/reshape_old.json")
    assert old.infer_shape(data=(2, 3, 4))[1] == [(12, 2)]
    data = ax.sym.Variable("data")
    assert ax.sym.Reshape(data, target_shape=(0,)).infer_shape(data=(2, 3, 4))[1] == [(24,)]
    assert ax.sym.Reshape(data, shape=(0, -1)).infer_shape(data=(2, 3, 4))[1] == [(2, 12)]


@pytest.mark.parametrize("at_load", [False, True])
@pytest.mark.parametrize("devices", [1, 2])
def test_a_module_goes_on_from_files_of_mxnet(devices: int, at_load: bool) -> None:
    """M14: what an old program saved is gone on with, not only read."""
    folder = MXNET / "module"
    asked = "mxnet-pickle" if at_load else False
    with np.load(folder / "after.npz") as told:
        contexts = [ax.cpu(i) for i in range(devices)]
        module = ax.mod.Module.load(str(folder / "net"), 3, load_optimizer_states=asked, context=contexts)
        module.bind([("data", told["X"].shape)], [("softmax_label", told["Y"].shape)])
        module.init_optimizer(optimizer="adam", optimizer_params={"learning_rate": 0.05})
        if not at_load:
            module.load_optimizer_states(str(folder / "net-0003.states"), format="mxnet-pickle")
        for _ in range(2):
            module.forward_backward(ax.io.DataBatch([told["X"]], [told["Y"]]))
            module.update()
        for name, array in module.get_params()[0].items():
            np.testing.assert_allclose(array, told[name], rtol=1e-5, atol=1e-6)


def test_a_pickle_in_place_of_states_says_how_it_is_read() -> None:
    """M15: MXNet's states are a pickle, which could run anything."""
    folder = MXNET / "module"
    symbol, arguments, auxiliary = ax.model.load_checkpoint(str(folder / "net"), 3)
    module = ax.mod.Module(symbol)
    module.bind([("data", (8, 5))], [("softmax_label", (8,))])
    module.set_params(arguments, auxiliary)
    module.init_optimizer(optimizer="adam")
    with pytest.raises(ax.CheckpointError, match="mxnet-pickle"):
        module.load_optimizer_states(str(folder / "net-0003.states"))
