"""Optimizers against their formulas in float64; rates, multipliers, states, other devices."""

from __future__ import annotations

import tracemalloc
from types import SimpleNamespace

import numpy
import pytest

from arrayexec.context import asnumpy, copyto
from arrayexec.errors import AttributeValueError, CheckpointError, ShapeError
from arrayexec.train import lr_scheduler, optimizer
from arrayexec.train.optimizer_base import descend
from tests.strict_device import strict
from tests.train.formulas import RULES


@pytest.mark.parametrize(("name", "formula", "options"), RULES)
@pytest.mark.parametrize("wd", [0.0, 0.03])
@pytest.mark.parametrize("clip", [None, 0.4])
@pytest.mark.parametrize("size", [5, 40_000])  # one piece, several pieces with a rest
def test_rule_is_its_formula(name, formula, options, wd, clip, size):
    draw = numpy.random.default_rng(3)
    weight = draw.normal(size=(size,))
    wanted, state = weight.copy(), {}
    updater = optimizer.get_updater(
        optimizer.create(name, learning_rate=0.2, wd=wd, clip_gradient=clip, rescale_grad=0.25, **options)
    )
    for t in range(1, 5):
        grad = draw.normal(size=(size,)) * 3
        before = grad.copy()
        wanted = formula(wanted, 0.25 * grad, state, t, 0.2, wd, clip, **options)
        updater("some_weight", grad, weight)
        numpy.testing.assert_array_equal(grad, before)
        numpy.testing.assert_allclose(weight, wanted, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(("name", "formula", "options"), RULES)
def test_other_layouts_are_updated_in_place(name, formula, options):
    draw = numpy.random.default_rng(5)
    whole = draw.normal(size=(300, 400))
    weight = whole[::2, 1:].T
    untouched = whole[1::2].copy()
    wanted, state = weight.copy(), {}
    updater = optimizer.Updater(optimizer.create(name, learning_rate=0.1, **options))
    for t in (1, 2):
        grad = numpy.asfortranarray(draw.normal(size=weight.shape))
        wanted = formula(wanted, grad, state, t, 0.1, 0.0, None, **options)
        updater(0, grad, weight)
    numpy.testing.assert_allclose(weight, wanted, rtol=1e-12, atol=1e-13)
    numpy.testing.assert_array_equal(whole[1::2], untouched)


@pytest.mark.parametrize("shape", [(), (0, 3), (1,)])
def test_odd_shapes(shape):
    weight, grad = numpy.ones(shape), numpy.ones(shape)
    optimizer.Updater(optimizer.create("adam", learning_rate=0.5))(0, grad, weight)
    numpy.testing.assert_allclose(weight, numpy.full(shape, 0.5), rtol=1e-6)


@pytest.mark.parametrize(("name", "formula", "options"), RULES)
def test_half_precision_with_a_float32_master(name, formula, options):
    # 1 − 1e-4 is no float16: without the master the weight would never move
    weight = numpy.ones(20_000, numpy.float16)
    grad = numpy.full(20_000, 1e-3, numpy.float16)
    wanted, state = numpy.ones(20_000), {}
    rule = optimizer.create(name, learning_rate=1e-3, rescale_grad=0.1, multi_precision=True, **options)
    updater = optimizer.Updater(rule)
    for t in range(1, 6):
        updater(0, grad, weight)
        wanted = formula(wanted, 0.1 * grad.astype(float), state, t, 1e-3, 0.0, None, **options)
    master = updater.states[0]["master"]
    assert master.dtype == numpy.float32
    numpy.testing.assert_allclose(master, wanted, rtol=1e-6)
    numpy.testing.assert_array_equal(weight, master.astype(numpy.float16))


def test_gradient_of_another_type_is_computed_in_that_of_the_parameter():
    weight = numpy.zeros(3, numpy.float32)
    optimizer.Updater(optimizer.create("sgd", learning_rate=1.0, rescale_grad=1e-4))(
        0, numpy.full(3, 1e-4, numpy.float16), weight
    )
    numpy.testing.assert_allclose(weight, -1e-8, rtol=1e-3)


@pytest.mark.parametrize(("name", "formula", "options"), RULES)
def test_nothing_is_allocated_after_the_first_update(name, formula, options):
    size = 300_000
    weight, grad = numpy.ones(size, numpy.float32), numpy.ones(size, numpy.float32)
    updater = optimizer.Updater(optimizer.create(name, wd=0.1, clip_gradient=0.5, **options))
    for _ in range(2):
        updater.update_all([0], [grad], [weight])
    tracemalloc.start()
    try:
        updater.update_all([0], [grad], [weight])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 32 << 10


@pytest.mark.parametrize(("name", "formula", "options"), RULES)
@pytest.mark.parametrize("multi_precision", [False, True])
def test_works_on_a_device_that_refuses_the_host(name, formula, options, multi_precision):
    context = strict(0)
    draw = numpy.random.default_rng(7)
    dtype = numpy.float16 if multi_precision else numpy.float32
    start, grads = draw.normal(size=(6, 5)).astype(dtype), draw.normal(size=(3, 6, 5)).astype(dtype)
    results = []
    for on_device in (False, True):
        options_here = dict(options, wd=0.02, clip_gradient=0.3, multi_precision=multi_precision)
        updater = optimizer.Updater(optimizer.create(name, learning_rate=0.1, **options_here))
        weight = start.copy()
        grad = numpy.empty_like(weight)
        if on_device:
            weight, grad = (context.zeros((6, 5), dtype, role) for role in ("parameter", "gradient"))
            copyto(weight, start)
        for values in grads:
            copyto(grad, values)
            before = len(context.device.log)
            updater("fc_weight", grad, weight)
        if on_device:
            kinds = {entry[0] for entry in context.device.log[before:]}
            if updater.optimizer.elementwise:  # else it asks for lengths
                assert not kinds & {"allocate", "temporary", "to_host", "from_host"}
        results.append((asnumpy(weight).copy(), updater.get_states()["states"]["fc_weight"]))
    (host, host_state), (device, device_state) = results
    numpy.testing.assert_array_equal(device, host)
    assert sorted(host_state) == sorted(device_state)
    for key, values in host_state.items():
        numpy.testing.assert_array_equal(device_state[key], values)


def rates(rule, keys):
    """(learning rate, weight decay) that every key is updated with."""
    return {key: (pytest.approx(rule._get_lr(key)), pytest.approx(rule._get_wd(key))) for key in keys}


def test_decay_is_for_weights_and_gammas():
    rule = optimizer.create("sgd", learning_rate=0.5, wd=0.1, param_idx2name={0: "fc_weight", 1: "fc_bias"})
    wanted = {
        0: (0.5, 0.1),
        1: (0.5, 0.0),
        2: (0.5, 0.1),  # an index without a name
        "bn_gamma": (0.5, 0.1),
        "bn_beta": (0.5, 0.0),
        "fc_weight": (0.5, 0.1),
    }
    assert rates(rule, wanted) == wanted


def test_multipliers_by_index_name_symbol_and_parameter():
    attributes = {
        "a_weight": {"__lr_mult__": "0.1", "__wd_mult__": "3"},
        "b_bias": {"__wd_mult__": "2.0"},
        "c_weight": {"__lr_mult__": "0.1"},
    }
    rule = optimizer.create(
        "sgd",
        learning_rate=1.0,
        wd=1.0,
        sym=SimpleNamespace(attr_dict=lambda: attributes),
        param_idx2name={0: "a_weight", 1: "b_bias", 2: "c_weight", 3: "d_weight"},
        param_dict={3: SimpleNamespace(lr_mult=7.0, wd_mult=8.0)},
    )
    assert rates(rule, range(4)) == {0: (0.1, 3.0), 1: (1.0, 2.0), 2: (0.1, 1.0), 3: (7.0, 8.0)}
    rule.set_lr_mult({"a_weight": 0.2, 2: 0.3, "d_weight": 0.4})
    rule.set_wd_mult({"b_bias": 0.0})
    assert rates(rule, range(4)) == {0: (0.2, 3.0), 1: (1.0, 0.0), 2: (0.3, 1.0), 3: (7.0, 8.0)}
    rule.set_lr_mult({})
    assert rates(rule, ["a_weight", "c_weight"]) == {"a_weight": (0.1, 3.0), "c_weight": (0.1, 1.0)}


def test_multipliers_reach_the_update():
    rule = optimizer.create("sgd", learning_rate=1.0, wd=0.5)
    rule.set_lr_mult({"x_weight": 0.25})
    weight = numpy.full(2, 4.0)
    optimizer.Updater(rule)("x_weight", numpy.ones(2), weight)
    numpy.testing.assert_allclose(weight, 4.0 - 0.25 * (1.0 + 0.5 * 4.0))


def test_counts_are_kept_for_every_key():
    rule = optimizer.create("adam", begin_num_update=10)
    updater = optimizer.Updater(rule)
    weight, grad = numpy.zeros(2), numpy.ones(2)
    for key in ("a", "b", "a", "a"):
        updater(key, grad, weight)
    assert rule.update_counts == {"a": 13, "b": 11}
    assert rule.num_update == 13


def test_learning_rate_may_be_changed_at_any_time():
    rule = optimizer.create("sgd", learning_rate=1.0)
    updater, weight = optimizer.Updater(rule), numpy.zeros(1)
    updater(0, numpy.ones(1), weight)
    rule.lr *= 0.1
    updater(0, numpy.ones(1), weight)
    rule.set_learning_rate(0.01)
    updater(0, numpy.ones(1), weight)
    numpy.testing.assert_allclose(weight, -1.11)


@pytest.mark.parametrize("kind", ["PolyScheduler", "CosineScheduler"])
def test_learning_rate_sets_the_base_of_a_schedule(kind):
    scheduler = getattr(lr_scheduler, kind)(max_update=10)
    rule = optimizer.create("sgd", learning_rate=0.4, lr_scheduler=scheduler)
    assert rule.learning_rate == pytest.approx(0.4)
    given = getattr(lr_scheduler, kind)(max_update=10, base_lr=0.3)
    assert optimizer.create("sgd", learning_rate=0.4, lr_scheduler=given).learning_rate == pytest.approx(0.3)
    alone = getattr(lr_scheduler, kind)(max_update=10)
    assert optimizer.create("adam", lr_scheduler=alone).learning_rate == pytest.approx(0.001)  # its default
    set_by_hand = getattr(lr_scheduler, kind)(max_update=10)
    set_by_hand.base_lr = 0.2
    assert optimizer.create("adam", lr_scheduler=set_by_hand).learning_rate == pytest.approx(0.2)
    with pytest.raises(AttributeValueError, match="cannot be set"):
        rule.set_learning_rate(1.0)


def test_schedule_follows_the_largest_count():
    scheduler = lr_scheduler.MultiFactorScheduler([1, 2], 0.5)
    updater = optimizer.Updater(optimizer.create("sgd", learning_rate=1.0, lr_scheduler=scheduler))
    a, b = numpy.zeros(1), numpy.zeros(1)
    for _ in range(3):
        updater("a", numpy.ones(1), a)
    updater("b", numpy.ones(1), b)
    numpy.testing.assert_allclose((a[0], b[0]), (-1.75, -0.25))


@pytest.mark.parametrize(
    ("mode", "wanted"), [("linear", [0.1, 0.325, 0.55, 0.775, 1.0]), ("constant", [0.1, 0.1, 0.1, 0.1, 1.0])]
)
def test_warm_up(mode, wanted):
    scheduler = lr_scheduler.PolyScheduler(
        12, base_lr=1.0, pwr=1, warmup_steps=4, warmup_begin_lr=0.1, warmup_mode=mode
    )
    numpy.testing.assert_allclose([scheduler(step) for step in range(5)], wanted)
    assert scheduler(8) == pytest.approx(0.5)
    assert scheduler(12) == scheduler(99) == 0.0


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: lr_scheduler.FactorScheduler(0), "step must be an integer >= 1"),
        (lambda: lr_scheduler.FactorScheduler(5, 1.5), "factor must be at most 1"),
        (lambda: lr_scheduler.MultiFactorScheduler([5, 5]), "step must rise"),
        (lambda: lr_scheduler.MultiFactorScheduler([]), "list of updates"),
        (lambda: lr_scheduler.PolyScheduler(3, warmup_steps=3), "max_update must be an integer >= 4"),
        (lambda: lr_scheduler.CosineScheduler(3, warmup_mode="step"), "one of linear, constant"),
        (lambda: lr_scheduler.CosineScheduler(9, 0.1, warmup_steps=2, warmup_begin_lr=0.2), "must not exceed"),
        (lambda: optimizer.create("adamm"), "there is none called 'adamm'; did you mean 'adam'"),
        (lambda: optimizer.create("sgd", momentumm=0.9), "no option 'momentumm'; did you mean 'momentum'"),
    ],
)
def test_refusals(make, text):
    with pytest.raises(AttributeValueError, match=text):
        make()


def test_wrong_gradient_shape():
    updater = optimizer.Updater(optimizer.create("sgd", param_idx2name={0: "fc_weight"}))
    with pytest.raises(ShapeError, match=r"gradient of 'fc_weight' must have the shape \(2, 3\)"):
        updater(0, numpy.zeros((3, 2)), numpy.zeros((2, 3)))


def run(updater, weights, grads):
    for step in grads:
        updater.update_all(list(weights), list(step), list(weights.values()))


@pytest.mark.parametrize(("name", "formula", "options"), RULES)
def test_states_resume_to_the_bit(name, formula, options):
    def make():
        scheduler = lr_scheduler.FactorScheduler(3, 0.5)
        return optimizer.Updater(optimizer.create(name, learning_rate=0.1, lr_scheduler=scheduler, **options))

    grads = numpy.random.default_rng(1).normal(size=(8, 2, 4)).astype(numpy.float32)
    straight = {"a_weight": numpy.ones(4, numpy.float32), "b_bias": numpy.zeros(4, numpy.float32)}
    run(make(), straight, grads)
    resumed = {"a_weight": numpy.ones(4, numpy.float32), "b_bias": numpy.zeros(4, numpy.float32)}
    first = make()
    run(first, resumed, grads[:4])
    saved = first.get_states()
    run(first, {key: value.copy() for key, value in resumed.items()}, grads[:2])  # must not change what was saved
    second = make()
    second.set_states(saved)
    again = second.get_states()
    assert again["counts"] == saved["counts"] == {"a_weight": 4, "b_bias": 4}
    assert sorted(again["states"]) == ["a_weight", "b_bias"]  # also those that no update has asked for
    run(second, resumed, grads[4:])
    for key, wanted in straight.items():
        numpy.testing.assert_array_equal(resumed[key], wanted)


def test_states_that_do_not_fit():
    updater = optimizer.Updater(optimizer.create("adam"))
    updater("w", numpy.ones(3), numpy.ones(3))
    saved = updater.get_states()
    with pytest.raises(CheckpointError, match="must be of the optimizer 'sgd', but they are of 'adam'"):
        optimizer.Updater(optimizer.create("sgd")).set_states(saved)
    with pytest.raises(CheckpointError, match="must have 'counts'"):
        updater.set_states({"optimizer": "adam", "num_update": 1})
    other = optimizer.Updater(optimizer.create("adam"))
    other.set_states(saved)
    with pytest.raises(CheckpointError, match=r"saved mean of 'w' must have the shape \(4,\), but it has \(3,\)"):
        other("w", numpy.ones(4), numpy.ones(4))
    other.set_states(saved | {"states": {"w": {"mean": numpy.ones(3)}}})
    with pytest.raises(CheckpointError, match=r"must have \['mean', 'var'\], but it has \['mean'\]"):
        other("w", numpy.ones(3), numpy.ones(3))


def test_own_optimizer():
    @optimizer.register
    class Halving(optimizer.Optimizer):
        def rule(self, xp, w, g, state, a, b, **factors):
            xp.multiply(w, 0.5, out=w)

    try:
        weight = numpy.ones(2)
        optimizer.Updater(optimizer.create("halving"))(0, numpy.ones(2), weight)
        numpy.testing.assert_array_equal(weight, 0.5)
    finally:
        del optimizer.Optimizer.opt_registry["halving"]
    rule = optimizer.create("sgd")
    assert optimizer.create(rule) is rule
    with pytest.raises(AttributeValueError, match=r"must define rule\(\)"):
        optimizer.Updater(optimizer.Optimizer())(0, numpy.ones(2), numpy.ones(2))


@pytest.mark.parametrize("name", ["lars", "lamb", "lbsgd", "sgd", "adam"])
def test_a_parameter_without_dims_moves_as_one_with_one_number(name: str) -> None:
    found = []
    for shape in ((), (1,)):
        updater = optimizer.get_updater(optimizer.create(name, learning_rate=0.1))
        weight, slope = numpy.full(shape, 2.0, numpy.float32), numpy.full(shape, 0.5, numpy.float32)
        updater.update_all(["a_weight"], [slope], [weight])
        updater("a_weight", slope, weight)
        found.append(float(weight.reshape(())))
    assert found[0] == found[1] != 2.0


@pytest.mark.parametrize("name", ["sgd", "nag", "lars", "lbsgd"])
def test_momentum_may_become_0_but_not_begin_later(name: str) -> None:
    def run(momenta: list[float], wd: float = 0.1) -> numpy.ndarray:
        rule = optimizer.create(name, learning_rate=0.1, momentum=momenta[0], wd=wd)
        updater = optimizer.get_updater(rule)
        weights = [numpy.full(3, value, numpy.float32) for value in (1.0, 2.0)]
        for momentum in momenta:
            rule.momentum = momentum
            updater.update_all(["a_weight", "a_bias"], [numpy.full(3, 0.5, numpy.float32)] * 2, weights)
        return numpy.array(weights)

    plain, kept = run([0.0, 0.0]), run([0.9, 0.0])
    if name == "sgd":  # the first step of both is the plain one, and so is a second without momentum
        numpy.testing.assert_allclose(kept, plain, 1e-6)
    assert numpy.isfinite(kept).all()
    if name != "nag":
        with pytest.raises(AttributeValueError, match=r"momentum must stay 0, .* but it is 0\.9: begin with a small one"):
            run([0.0, 0.9])


@pytest.mark.parametrize("scratch", ["its own", "the direction", "the length"])
@pytest.mark.parametrize("keep", [1.0, 0.75, numpy.array([0.5, 0.25])])
def test_descend(scratch, keep):
    w, direction, length = numpy.array([1.0, -2.0]), numpy.array([3.0, 4.0]), numpy.array([2.0, -8.0])
    a = {"its own": numpy.empty(2), "the direction": direction, "the length": length}[scratch]
    descend(numpy, w, 0.5, direction, length, a, keep)
    assert w.tolist() == (numpy.array([1.0, -2.0]) * keep - numpy.array([0.75, -0.25])).tolist()
