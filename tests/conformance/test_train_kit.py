"""Recorded numbers of metrics, optimizers, schedules and initialisers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy
import pytest

from arrayexec.errors import ArrayExecError
from arrayexec.train import initializer, lr_scheduler, metric, optimizer, random

RECORDED = Path(__file__).parent / "mxnet"
CASES = json.loads((RECORDED / "manifest.json").read_text())["cases"]
_archives = {}


def cases(kind):
    return [pytest.param(case, id=case["name"]) for case in CASES if case["kind"] == kind]


def array(case, key):
    archive = _archives.get(case["npz"])
    if archive is None:
        archive = _archives[case["npz"]] = numpy.load(RECORDED / case["npz"], allow_pickle=False)
    return archive[key]


def make_metric(spec):
    if "children" in spec:
        return metric.CompositeEvalMetric([make_metric(child) for child in spec["children"]])
    return metric.create(spec["type"], **spec["args"])


@pytest.mark.parametrize("case", cases("metric"))
def test_metric(case):
    one = make_metric(case["metric"])
    tolerance = {"rtol": case["rtol"], "atol": case["atol"], "equal_nan": True}

    def check(expected):
        got = one.get_name_value()
        assert [name for name, _ in got] == [name for name, _ in expected]
        wanted = [numpy.nan if value is None else value for _, value in expected]
        numpy.testing.assert_allclose([value for _, value in got], wanted, **tolerance)

    check(case["expect"][0])
    for i, (step, expected) in enumerate(zip(case["updates"], case["expect"][1:], strict=True)):
        if i in case["reset_before"]:
            one.reset()
        one.update(*([array(case, key) for key in step[role]] for role in ("labels", "preds")))
        check(expected)


@pytest.mark.parametrize("case", cases("optimizer"))
@pytest.mark.parametrize("fused", [False, True], ids=["each", "all"])
def test_optimizer(case, fused):
    spec = case["optimizer"]
    options = dict(spec["params"])
    if "param_idx2name" in options:
        options["param_idx2name"] = {int(key): name for key, name in options["param_idx2name"].items()}
    if spec["lr_scheduler"]:
        scheduler = getattr(lr_scheduler, spec["lr_scheduler"]["type"])
        options["lr_scheduler"] = scheduler(**spec["lr_scheduler"]["args"])
    rule = optimizer.create(spec["name"], **options)
    if "lr_mult" in spec:
        rule.set_lr_mult(spec["lr_mult"])
    if "wd_mult" in spec:
        rule.set_wd_mult(spec["wd_mult"])
    updater = optimizer.get_updater(rule)
    weights = [array(case, key).copy() for key in case["weights"]]
    grads = [array(case, key) for key in case["grads"]]
    for step in range(case["num_steps"]):
        if fused:
            updater.update_all(range(len(weights)), [grad[step] for grad in grads], weights)
        else:
            for i, weight in enumerate(weights):
                updater(i, grads[i][step], weight)
        for weight, key in zip(weights, case["expect"], strict=True):
            numpy.testing.assert_allclose(
                weight, array(case, key)[step], rtol=case["rtol"], atol=case["atol"]
            )


@pytest.mark.parametrize("case", cases("lr_scheduler"))
def test_lr_scheduler(case):
    scheduler = getattr(lr_scheduler, case["scheduler"]["type"])(**case["scheduler"]["args"])
    if case["base_lr"] is not None:
        scheduler.base_lr = case["base_lr"]
    got = [scheduler(step) for step in case["steps"]]
    numpy.testing.assert_allclose(got, case["expect"], rtol=1e-12, atol=1e-15)


def make_initializer(spec):
    if "children" in spec:
        return initializer.Mixed(spec["patterns"], [make_initializer(child) for child in spec["children"]])
    return getattr(initializer, spec["type"])(**spec["args"])


@pytest.mark.parametrize("case", cases("initializer"))
def test_initializer(case):
    random.seed(11)
    init = make_initializer(case["initializer"])
    desc = initializer.InitDesc(case["var_name"], case["attrs"])
    out = numpy.full(case["shape"], numpy.nan, numpy.float32)
    expect = case["expect"]
    if expect["result"] == "error":
        with pytest.raises(ValueError, match=case["var_name"]) as caught:
            init(desc, out)
        assert isinstance(caught.value, ArrayExecError)
        return
    init(desc, out)
    if "values" in expect:
        numpy.testing.assert_array_equal(out, array(case, expect["values"]))
        return
    values = out.astype(numpy.float64)
    if expect["distribution"] == "uniform":
        bound = expect["bound"]
        assert 0.98 * bound < abs(values).max() <= bound * (1 + 1e-6)
        assert values.std() == pytest.approx(bound / 3**0.5, rel=0.05)
        assert abs(values.mean()) < 0.1 * bound
    elif expect["distribution"] == "gaussian":
        assert values.std() == pytest.approx(expect["std"], rel=0.05)
        assert abs(values.mean()) < 0.1 * expect["std"]
        # the share outside of two deviations tells a normal distribution from a uniform one
        assert 0.03 < (abs(values) > 2 * expect["std"]).mean() < 0.065
    else:
        matrix = values.reshape(len(values), -1)
        product = matrix @ matrix.T if matrix.shape[0] <= matrix.shape[1] else matrix.T @ matrix
        numpy.testing.assert_allclose(product, expect["scale"] ** 2 * numpy.eye(len(product)), atol=1e-5)


@pytest.mark.parametrize("case", cases("initializer_dumps"))
def test_initializer_dumps(case):
    assert make_initializer(case["initializer"]).dumps() == case["expect"]
