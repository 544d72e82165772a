"""Optimizers against numbers of MXNet 1.9.1; options of optimizers, metrics, initialisers and schedulers against its."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import numpy
import pytest

from arrayexec.train import initializer, lr_scheduler, metric, metric_base, optimizer
from arrayexec.train.options import options_of

FOLDER = Path(__file__).parent / "recorded"
CASES = json.loads((FOLDER / "optimizers.json").read_text())
TABLES = json.loads((FOLDER / "tables.json").read_text())
SHAPES = ((4, 3), (5,))
STEPS = 5


@pytest.fixture(scope="module")
def recorded() -> dict[str, Any]:
    with numpy.load(FOLDER / "optimizers.npz", allow_pickle=False) as archive:
        arrays = dict(archive)
    values, place = arrays.pop("values"), 0
    for case in CASES:
        for i in case["parameters"]:
            size = STEPS * int(numpy.prod(SHAPES[i]))
            arrays[f"{case['name']}/{i}"] = values[place : place + size].reshape(STEPS, *SHAPES[i])
            place += size
    assert place == values.size
    return arrays


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
@pytest.mark.parametrize("at_once", [False, True], ids=["each", "all"])
def test_optimizer(case, at_once, recorded):
    options = dict(case["options"])
    if case["way"] == "schedule":
        options["lr_scheduler"] = lr_scheduler.FactorScheduler(2, 0.5)
    half = case["way"] == "half"
    rule = optimizer.create(case["optimizer"], param_idx2name={0: "fc_weight", 1: "fc_bias"}, **options)
    updater = optimizer.get_updater(rule)
    keys = case["parameters"]
    weights = {i: recorded[f"start/{i}"].astype("float16" if half else "float32") for i in keys}
    for step in range(STEPS):
        grads = {i: recorded[f"grad/{i}"][step].astype("float16" if half else "float32") for i in keys}
        if at_once:
            updater.update_all(keys, list(grads.values()), list(weights.values()))
        else:
            for i in keys:
                updater(i, grads[i], weights[i])
        for i in keys:
            wanted = recorded[f"{case['name']}/{i}"][step]
            tolerance = {"rtol": 1e-3, "atol": 1e-3} if half else {"rtol": 2e-5, "atol": 2e-6}
            numpy.testing.assert_allclose(weights[i].astype(float), wanted, **tolerance)


SCHEDULES = json.loads((FOLDER / "schedules.json").read_text())


@pytest.mark.parametrize("case", SCHEDULES, ids=[f"{i}-{case['scheduler']}" for i, case in enumerate(SCHEDULES)])
def test_scheduler(case):
    scheduler = getattr(lr_scheduler, case["scheduler"])(**case["options"])
    rates = [scheduler(step) for step in range(len(case["rates"]))]
    numpy.testing.assert_allclose(rates, case["rates"], rtol=1e-12, atol=1e-15)
    backwards = [scheduler(step) for step in reversed(range(len(rates)))]  # nothing is remembered
    assert backwards[::-1] == rates


METRICS = json.loads((FOLDER / "metrics.json").read_text())


@pytest.mark.parametrize("case", METRICS, ids=[f"{i}-{case['metric']}" for i, case in enumerate(METRICS)])
def test_metric(case):
    one = metric.create(case["metric"], **case["options"])
    with numpy.load(FOLDER / "metrics.npz", allow_pickle=False) as archive:
        for step, wanted in enumerate(case["values"]):
            one.update([archive[f"{case['labels']}/{step}"]], [archive[f"{case['outputs']}/{step}"]])
            wanted = numpy.nan if wanted is None else wanted
            assert one.get() == (case["name"], pytest.approx(wanted, rel=1e-5, nan_ok=True))


def test_every_metric_is_recorded():
    recorded = {metric.create(case["metric"], **case["options"]).__class__.__name__ for case in METRICS}
    composed = {"compositeevalmetric", "composite", "custommetric"}
    assert {metric_base._registry[name].__name__ for name in set(TABLES["metric"]) - composed} == recorded


def test_every_optimizer_is_recorded():
    assert {case["optimizer"] for case in CASES} == set(TABLES["optimizer"]) - {"sgld"} | {"adamw"}
    registered = optimizer.Optimizer.opt_registry.items()
    ours = {name for name, cls in registered if cls.__module__.startswith("arrayexec.")}  # not those of other tests
    assert ours == set(TABLES["optimizer"]) | {"adamw"}


@pytest.mark.parametrize("name", TABLES["optimizer"])
def test_options_of_optimizers(name):
    cls = optimizer.Optimizer.opt_registry[name]
    theirs, mine = TABLES["optimizer"][name], options_of(cls)
    assert set(mine) - {"lazy_update"} == set(theirs) - {"lazy_update"} | {"clip_global_norm"}
    assert theirs.keys() <= mine.keys()
    rate = 0.01 if theirs["learning_rate"] is None else theirs["learning_rate"]
    assert cls().lr == rate
    assert cls(lr_scheduler=lr_scheduler.FactorScheduler(5)).learning_rate == rate
    for option, default in theirs.items():
        if option != "learning_rate":
            assert mine[option] == default, option


@pytest.mark.parametrize("name", TABLES["metric"])
def test_options_of_metrics(name):
    cls = metric_base._registry[name]
    theirs, mine = TABLES["metric"][name], options_of(cls)
    assert set(theirs) - {"has_global_stats"} <= set(mine)
    for option, default in theirs.items():
        if option == "name" and default is not None:
            assert default in (mine[option], cls.default_name)
        elif option != "has_global_stats" and default != "required":
            assert mine[option] == default, option


@pytest.mark.parametrize("name", TABLES["initializer"])
def test_options_of_initializers(name):
    cls = initializer._registry.get(name) or getattr(initializer, name)
    theirs, mine = TABLES["initializer"][name], options_of(cls)
    assert set(theirs) == set(mine)
    for option, default in theirs.items():
        assert (mine[option] is inspect.Parameter.empty) if default == "required" else mine[option] == default, option


@pytest.mark.parametrize("name", TABLES["lr_scheduler"])
def test_options_of_schedulers(name):
    theirs, mine = TABLES["lr_scheduler"][name], options_of(getattr(lr_scheduler, name))
    assert set(theirs) == set(mine)
    for option, default in theirs.items():
        if default == "required":
            assert mine[option] is inspect.Parameter.empty
        elif option == "base_lr":
            assert mine[option] is None  # 0.01, or that of the optimizer (D14)
        else:
            assert mine[option] == default, option
