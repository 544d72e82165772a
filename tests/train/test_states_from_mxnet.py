"""MXNet's optimizer states in our updater: training goes on as MXNet's does (recorded)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from arrayexec.errors import CheckpointError
from arrayexec.files import load_mxnet_states
from arrayexec.train import optimizer
from arrayexec.train.states_from_mxnet import from_mxnet

DATA = Path(__file__).parents[1] / "conformance" / "mxnet_files" / "resume"
OPTIONS: dict[str, dict[str, Any]] = {"sgd": {"momentum": 0.9}, "nag": {"momentum": 0.9}, "lars": {"momentum": 0.9}}
NAMES = {0: "a_weight", 1: "b_bias"}


def made(case: str, **more: Any) -> optimizer.Updater:
    name, _, what = case.partition("_")
    options = {**OPTIONS.get(name, {}), "multi_precision": what == "mp", **({"centered": True} if what == "centered" else {})}
    return optimizer.get_updater(optimizer.create(name, learning_rate=0.05, wd=0.01, param_idx2name=NAMES, **options, **more))


@pytest.mark.parametrize("case", sorted(path.stem for path in DATA.glob("*.states")))
def test_goes_on_as_mxnet_does(case: str) -> None:
    updater = made(case)
    updater.set_states(from_mxnet(load_mxnet_states(DATA / f"{case}.states"), updater.optimizer))
    assert (updater.optimizer.num_update, updater.optimizer.update_counts) == (3, {"a_weight": 3, "b_bias": 3})
    weights = {}
    with np.load(DATA / "resume.npz") as told:
        for i, name in NAMES.items():
            weight = told[f"{case}/w{i}"].copy()
            weights[name] = weight
        for step in range(2):
            for i, name in NAMES.items():
                updater(name, told[f"{case}/g{i}/{step}"], weights[name])
        for i, name in NAMES.items():
            close = 2e-6 if weights[name].itemsize > 2 else 1e-3
            np.testing.assert_allclose(weights[name], told[f"{case}/end{i}"], rtol=close, atol=1e-7)


def test_every_case_is_there() -> None:
    assert len(list(DATA.glob("*.states"))) == 19


ONE = np.ones(2, np.float32)
LONE: dict[str, Any] = {"states": {0: ONE, 1: 2 * ONE}, "optimizer": None}


def test_without_counts_there_is_a_warning() -> None:
    updater = made("sgd")
    with pytest.warns(UserWarning, match=r"a\.states holds no counts of updates .*: they go on from 0; give begin_num_update="):
        states = from_mxnet(LONE, updater.optimizer, "a.states")
    assert {name: state["momentum"].tolist() for name, state in states["states"].items()} == {"a_weight": [1, 1], "b_bias": [2, 2]}
    assert states["counts"] == {}


@pytest.mark.filterwarnings("ignore:.*holds no counts")
def test_states_of_two_devices_and_of_names() -> None:
    states = {0: ONE, 1: 7 * ONE, 2: 2 * ONE, 3: 8 * ONE}
    found = from_mxnet({"states": states, "optimizer": None}, made("sgd").optimizer)["states"]
    assert {name: state["momentum"][0] for name, state in found.items()} == {"a_weight": 1, "b_bias": 2}
    dumped = {"class": "SGD", "num_update": 5, "_index_update_count": {0: 5, 2: 5}, "idx2name": {0: "a", 1: "a", 2: "b", 3: "b"}}
    found = from_mxnet({"states": states, "optimizer": dumped}, made("sgd").optimizer)
    assert {name: state["momentum"][0] for name, state in found["states"].items()} == {"a": 1, "b": 2}
    assert (found["num_update"], found["counts"]) == (5, {"a": 5, "b": 5})
    found = from_mxnet({"states": {"w": ONE}, "optimizer": None}, made("sgd").optimizer)["states"]
    assert list(found) == ["w"]


@pytest.mark.filterwarnings("ignore:.*holds no counts")
@pytest.mark.parametrize(
    ("found", "text"),
    [
        (load_mxnet_states(DATA / "adam.states"), "the states must be of the optimizer 'sgd', but they are of 'adam'"),
        ({"states": {0: ONE, 3: ONE}, "optimizer": None}, "there is a state of parameter 3, but the optimizer names 2 of them"),
        ({"states": {0: (ONE, ONE)}, "optimizer": None}, "the state of 'a_weight' must be momentum, but 2 arrays are saved"),
        ({"states": {0: None}, "optimizer": None}, "the state of 'a_weight' must be momentum, but 0 arrays are saved"),
    ],
)
def test_states_that_do_not_fit(found: dict[str, Any], text: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        from_mxnet(found, made("sgd").optimizer)
    assert text in str(caught.value)
