"""Recorded trainings through Module and BucketingModule: losses, metrics and parameters of every run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import arrayexec as ax
from arrayexec.symbol import load_json
from arrayexec.train.io import DataBatch, DataDesc
from tests.conformance.golden import DATA, Case, array, arrays, assert_close, cases, load_symbol
from tests.conformance.test_manager import cross_entropy


def optimizer_options(case: Case) -> tuple[str, dict[str, Any]]:
    spec = case["optimizer"]
    options = dict(spec["params"])
    if spec["lr_scheduler"] is not None:
        options["lr_scheduler"] = getattr(ax.lr_scheduler, spec["lr_scheduler"]["type"])(**spec["lr_scheduler"]["args"])
    return spec["name"], options


def loss_of(case: Case, output: Any, label: Any) -> float:
    if case.get("loss") == "mse":
        return float(np.mean((np.asarray(output, np.float64) - label.reshape(output.shape)) ** 2))
    return cross_entropy(output, label)


def assert_final(module: Any, case: Case) -> None:
    got = module.get_params()
    for field, mine in zip(("final_args", "final_aux"), got, strict=True):
        for name, key in case["expect"].get(field, {}).items():
            assert_close(case, name, mine[name], array(case, key))


@pytest.mark.parametrize("case", cases("train_module"), ids=lambda case: case["name"])
def test_train_module(case: Case) -> None:
    data, label, size = arrays(case, "data"), arrays(case, "label"), case["batch_size"]
    module = ax.mod.Module(
        load_symbol(case), list(data), list(label), context=[ax.cpu(i) for i in range(case["num_devices"])],
        work_load_list=case["work_load_list"], fixed_param_names=case["fixed_param_names"],
    )  # fmt: skip
    module.bind([(n, (size, *v.shape[1:])) for n, v in data.items()], [(n, (size, *v.shape[1:])) for n, v in label.items()])
    module.init_params(None, arrays(case, "init_args"), arrays(case, "init_aux"))
    name, options = optimizer_options(case)
    module.init_optimizer("local", name, options)
    counted, losses, values, outputs = ax.metric.create(case["metric"]), [], [], []
    rows = len(next(iter(data.values())))
    for number in range(case["iterations"]):
        at = number % (rows // size) * size
        batch = DataBatch([v[at : at + size] for v in data.values()], [v[at : at + size] for v in label.values()])
        module.forward(batch, is_train=True)
        module.backward()
        outputs.append(module.get_outputs()[0])
        losses.append(loss_of(case, outputs[-1], batch.label[0]))
        module.update_metric(counted, batch.label)
        values.append(counted.get()[1])
        module.update()
    expect = case["expect"]
    np.testing.assert_allclose(losses, array(case, expect["loss"]), case["rtol"], case["atol"])
    np.testing.assert_allclose(values, array(case, expect["metric"]), case["rtol"], case["atol"])
    assert_close(case, "first output", outputs[0], array(case, expect["first_output"]))
    assert_close(case, "last output", outputs[-1], array(case, expect["last_output"]))
    assert_final(module, case)


@pytest.mark.parametrize("case", cases("train_bucketing"), ids=lambda case: case["name"])
def test_train_bucketing(case: Case) -> None:
    def sym_gen(key: Any) -> Any:
        symbol = load_json((DATA / case["bucket_symbols"][str(key)]).read_text())
        return symbol, case["data_names"], case["label_names"]

    steps = [(s["bucket_key"], array(case, s["data"]), array(case, s["label"])) for s in case["steps"]]
    default, size = case["default_bucket_key"], case["batch_size"]
    module = ax.mod.BucketingModule(
        sym_gen, default, context=[ax.cpu(i) for i in range(case["num_devices"])],
        work_load_list=case["work_load_list"],
    )  # fmt: skip
    module.bind([(case["data_names"][0], (size, default))], [(case["label_names"][0], (size, default))])
    module.init_params(None, arrays(case, "init_args"))
    name, options = optimizer_options(case)
    module.init_optimizer("local", name, options)
    counted = ax.metric.Perplexity(ignore_label=case["ignore_label"])
    losses, values = [], []
    for key, data, label in steps:
        described = [DataDesc(n, a.shape) for n, a in ((case["data_names"][0], data), (case["label_names"][0], label))]
        batch = DataBatch([data], [label], bucket_key=key, provide_data=described[:1], provide_label=described[1:])
        module.forward(batch, is_train=True)
        module.backward()
        losses.append(cross_entropy(module.get_outputs()[0], label))
        module.update_metric(counted, [label])
        values.append(counted.get()[1])
        module.update()
    np.testing.assert_allclose(losses, array(case, case["expect"]["loss"]), case["rtol"], case["atol"])
    np.testing.assert_allclose(values, array(case, case["expect"]["metric"]), case["rtol"], case["atol"])
    assert_final(module, case)
