"""Updates of many parameters at once: the same numbers as one by one, however they lie; clipping by a common length."""

from __future__ import annotations

import tracemalloc

import numpy
import pytest

import arrayexec as ax
from arrayexec.context import asnumpy, copyto
from arrayexec.errors import AttributeValueError, CheckpointError, ShapeError
from arrayexec.executor import allocate_segment, span
from arrayexec.train import lr_scheduler, optimizer
from tests.strict_device import strict
from tests.train.formulas import RULES

SHAPES = {
    "a_weight": (33, 7), "a_bias": (33,), "b_gamma": (5,), "b_beta": (5,), "c_weight": (300, 300), "c_bias": (300,),
    "d_weight": (7, 9), "d_bias": (9,), "e_weight": (17,), "f_weight": (1,), "g_weight": (0, 3), "h_weight": (3, 3),
}  # fmt: skip
MORE = [pytest.param("sgld", None, {}, id="sgld"), pytest.param("test", None, {}, id="test")]


def segments(dtype="float32", context=None):
    """Parameters and gradients as executors lay them: behind each other, each at a multiple of 64 bytes."""
    specs = {name: (shape, dtype) for name, shape in SHAPES.items()}
    return [allocate_segment(context or ax.cpu(), role, specs)[1] for role in ("parameter", "gradient")]


def loose(dtype="float32"):
    """The same, each with memory of its own."""
    return [{name: numpy.zeros(shape, dtype) for name, shape in SHAPES.items()} for _ in range(2)]


def filled(arrays, draw):
    for array in arrays.values():
        copyto(array, draw.normal(size=array.shape))


def trained(updater, make, steps=4, at_once=True, dtype="float32", names=None, **more):
    """Parameters after some steps, as NumPy arrays."""
    ax.random.seed(7)
    weights, grads = make(dtype, **more)
    names = list(SHAPES if names is None else names)
    filled(weights, numpy.random.default_rng(1))
    for step in range(steps):
        filled(grads, numpy.random.default_rng(step + 2))
        if at_once:
            assert updater.update_all(names, [grads[name] for name in names], [weights[name] for name in names])
        else:
            for name in names:
                updater(name, grads[name], weights[name])
    return {name: numpy.array(asnumpy(array)) for name, array in weights.items()}


def make(name, **options):
    rule = optimizer.create(name, rescale_grad=0.5, **options)
    rule.set_lr_mult({"d_weight": 0.3, "c_bias": 2.0})
    return optimizer.get_updater(rule)


def same(one, other):
    for name, array in one.items():
        numpy.testing.assert_array_equal(array, other[name], err_msg=name)
        assert numpy.isfinite(array).all()


@pytest.mark.parametrize(("name", "formula", "options"), RULES + MORE)
@pytest.mark.parametrize("more", [{}, {"wd": 0.1, "clip_gradient": 0.4}], ids=["plain", "decay-and-clip"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_at_once_is_one_by_one(name, formula, options, more, dtype):
    given = {**options, **more, "multi_precision": dtype == "float16"}
    at_once = make(name, **given)
    wanted = trained(make(name, **given), segments, at_once=False, dtype=dtype)
    same(trained(at_once, segments, dtype=dtype), wanted)
    same(trained(make(name, **given), loose, dtype=dtype), wanted)


@pytest.mark.parametrize("name", ["sgd", "adam", "lamb"])
def test_without_masters(name):
    wanted = trained(make(name, wd=0.1), segments, at_once=False, dtype="float16")
    same(trained(make(name, wd=0.1), segments, dtype="float16"), wanted)


@pytest.mark.parametrize("name", ["sgd", "adam"])
@pytest.mark.parametrize("multi_precision", [False, True])
def test_bfloat16(name, multi_precision):
    types = pytest.importorskip("ml_dtypes", reason="there is no bfloat16 without ml_dtypes")
    given = {"wd": 0.1, "multi_precision": multi_precision}
    wanted = trained(make(name, **given), segments, at_once=False, dtype=types.bfloat16)
    found = trained(make(name, **given), segments, dtype=types.bfloat16)
    same({key: array.astype("f4") for key, array in found.items()}, {k: a.astype("f4") for k, a in wanted.items()})
    exact = trained(make(name, wd=0.1), segments)
    for key, array in found.items():
        numpy.testing.assert_allclose(array.astype("f4"), exact[key], rtol=0.02, atol=0.1)


def counted(updater):
    """How often the rule is called in each step from now on."""
    calls = []
    rule = updater.optimizer.rule

    def counting(*arguments, **factors):
        calls[-1] += 1
        rule(*arguments, **factors)

    def begin():
        calls.append(0)

    updater.optimizer.rule = counting
    return calls, begin


def test_how_often_a_rule_runs():
    names = [f"fc{i}_{what}" for i in range(80) for what in ("weight", "bias")]
    specs = dict.fromkeys(names, ((64,), "float32"))
    weights, grads = (allocate_segment(ax.cpu(), role, specs)[1] for role in ("parameter", "gradient"))
    updater = make("sgd", momentum=0.9, wd=0.1)
    calls, begin = counted(updater)
    for _ in range(2):
        begin()
        updater.update_all(list(specs), list(grads.values()), list(weights.values()))
    assert calls == [1, 1]  # one piece, although every other parameter decays
    big = {name: ((70_000,) if "weight" in name else (64,), "float32") for name in list(specs)[:4]}
    weights, grads = (allocate_segment(ax.cpu(), role, big)[1] for role in ("parameter", "gradient"))
    updater = make("sgd", momentum=0.9, wd=0.1)
    calls, begin = counted(updater)
    begin()
    updater.update_all(list(big), list(grads.values()), list(weights.values()))
    assert calls == [3 + 1 + 3 + 1]  # three pieces for each large one


def test_states_lie_as_the_parameters_do():
    updater = make("adam")
    trained(updater, segments)
    states = updater.states
    assert states["a_bias"]["mean"].shape == (33,)
    base = states["a_weight"]["mean"].base
    assert base is not None and base is states["e_weight"]["mean"].base
    assert base is not states["a_weight"]["var"].base


def test_parts_of_a_parameter_are_no_neighbours_across_what_lies_between():
    weights, grads = segments()
    weight, grad = weights["c_weight"].reshape(-1), grads["c_weight"].reshape(-1)
    weight[:], grad[:] = 1.0, 1.0
    updater = optimizer.get_updater(optimizer.create("sgd", learning_rate=1.0))
    pieces = [slice(0, 10), slice(16, 40)]  # 10 numbers, then 6 that are not to move
    updater.update_all([0, 1], [grad[one] for one in pieces], [weight[one] for one in pieces])
    assert weight[:41].tolist() == [0.0] * 10 + [1.0] * 6 + [0.0] * 24 + [1.0]


def test_what_a_program_lays_out_itself():
    block, grad = numpy.ones(32, numpy.float32), numpy.ones(32, numpy.float32)
    updater = optimizer.get_updater(optimizer.create("sgd", learning_rate=1.0))
    parts = [slice(0, 8), slice(8, 12), slice(16, 32)]
    updater.update_all([0, 1, 2], [grad[one] for one in parts], [block[one] for one in parts])
    assert block.tolist() == [0.0] * 12 + [1.0] * 4 + [0.0] * 16


def test_spans_of_segments():
    weights, _ = segments()
    bias, next_one = span(weights["a_bias"]), span(weights["b_gamma"])
    assert (bias.stop, bias.padded) == (bias.start + 132, bias.start + 192)
    assert next_one.start == bias.padded and next_one.owner == bias.owner
    alone = span(numpy.zeros(33, numpy.float32))
    assert alone.stop == alone.padded


def test_arrays_that_change():
    updater, twin = make("sgd", momentum=0.9), make("sgd", momentum=0.9)
    for number in range(7):
        made = [segments() for _ in range(2)]
        for (weights, grads), one in zip(made, (updater, twin), strict=True):
            filled(weights, numpy.random.default_rng(number))
            filled(grads, numpy.random.default_rng(number + 9))
            if one is updater:
                one.update_all(list(SHAPES), list(grads.values()), list(weights.values()))
            else:
                for name in SHAPES:
                    one(name, grads[name], weights[name])
        same(made[0][0], made[1][0])


def test_gradients_that_are_new_each_time_and_then_stay():
    """After some changes nobody looks for runs any more, until the same arrays come again."""
    updater, twin = make("adam", wd=0.1), make("adam", wd=0.1)
    calls, begin = counted(updater)
    weights, grads = segments()
    others, _ = segments()
    for step in range(10):
        filled(grads, numpy.random.default_rng(step))
        given = {name: array.copy() for name, array in grads.items()} if 1 <= step < 6 else grads
        begin()
        updater.update_all(list(SHAPES), list(given.values()), list(weights.values()))
        for name in SHAPES:
            twin(name, grads[name], others[name])
        same(weights, others)
    assert calls[0] == calls[-1] < calls[5]


def test_sets_of_parameters_that_change():
    """Buckets of a model use some of the parameters; states stay with their names."""
    order = [list(SHAPES), ["c_weight", "c_bias", "d_weight"], ["a_weight", "h_weight"], list(SHAPES)[::-1]]
    found = []
    for at_once in (True, False):
        updater = make("adam", wd=0.1)
        weights, grads = segments()
        filled(weights, numpy.random.default_rng(3))
        for step, names in enumerate(order * 2):
            filled(grads, numpy.random.default_rng(step))
            if at_once:
                updater.update_all(names, [grads[name] for name in names], [weights[name] for name in names])
            else:
                for name in names:
                    updater(name, grads[name], weights[name])
        found.append((weights, updater.optimizer.update_counts))
    same(found[0][0], found[1][0])
    assert found[0][1] == found[1][1]


@pytest.mark.parametrize("name", ["adam", "nadam", "dcasgd", "lamb"])
@pytest.mark.parametrize("at_once", [True, False])
def test_states_go_from_one_way_to_the_other(name, at_once):
    weights, grads = segments("float16")
    straight, _ = segments("float16")
    for arrays in (weights, straight):
        filled(arrays, numpy.random.default_rng(0))
    filled(grads, numpy.random.default_rng(1))
    names, gs = list(SHAPES), list(grads.values())
    one, other = make(name, multi_precision=True), make(name, multi_precision=True)
    for _ in range(4):
        one.update_all(names, gs, list(straight.values()))
    first = make(name, multi_precision=True)
    for _ in range(2):
        first.update_all(names, gs, list(weights.values()))
    other.set_states(first.get_states())
    for _ in range(2):
        if at_once:
            other.update_all(names, gs, list(weights.values()))
        else:
            for key in names:
                other(key, grads[key], weights[key])
    same(weights, straight)
    assert other.get_states()["states"].keys() == one.get_states()["states"].keys()


def test_a_schedule_and_counts_that_differ():
    """A parameter that has had more updates moves the schedule for those behind it."""
    found = []
    for at_once in (True, False):
        updater = optimizer.get_updater(
            optimizer.create("adam", learning_rate=0.1, lr_scheduler=lr_scheduler.FactorScheduler(1, 0.5))
        )
        weights, grads = segments()
        filled(grads, numpy.random.default_rng(0))
        for names in (["c_bias"], ["c_bias", "a_bias"], ["a_bias", "c_bias", "d_bias"]):
            if at_once:
                updater.update_all(names, [grads[name] for name in names], [weights[name] for name in names])
            else:
                for name in names:
                    updater(name, grads[name], weights[name])
        found.append(weights)
    same(*found)


@pytest.mark.parametrize(("name", "formula", "options"), RULES)
def test_a_device_that_refuses_the_host(name, formula, options):
    context = strict(0)
    given = {**options, "wd": 0.1, "clip_gradient": 0.4}
    wanted = trained(make(name, **given), segments, at_once=False)
    found = trained(make(name, **given), segments, context=context)
    same(found, wanted)


@pytest.mark.parametrize("name", ["sgd", "adam", "lamb", "lars"])
def test_nothing_large_is_allocated_after_the_first_update(name):
    weights, grads = segments()
    updater = make(name, wd=0.1)
    names, held, given = list(SHAPES), list(weights.values()), list(grads.values())
    for _ in range(2):
        updater.update_all(names, given, held)
    tracemalloc.start()
    try:
        updater.update_all(names, given, held)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 64 << 10


def test_a_wrong_gradient_stops_all():
    weights, grads = segments()
    filled(grads, numpy.random.default_rng(0))
    updater = make("sgd")
    names = ["a_weight", "a_bias"]
    with pytest.raises(ShapeError, match=r"gradient of 'a_bias' must have the shape \(33,\)"):
        updater.update_all(names, [grads["a_weight"], grads["b_beta"]], [weights[name] for name in names])
    assert not weights["a_weight"].any() and not updater.optimizer.update_counts


def test_states_that_do_not_fit_are_refused_again_and_again():
    updater, other = make("adam"), make("adam")
    updater.update_all(["w"], [numpy.ones(3)], [numpy.ones(3)])
    other.set_states(updater.get_states())
    for _ in range(2):
        with pytest.raises(CheckpointError, match="saved mean of 'w'"):
            other.update_all(["w"], [numpy.ones(4)], [numpy.ones(4)])


def test_no_parameters():
    assert make("sgd").update_all([], [], [])
    assert make("sgd", clip_global_norm=1.0).update_all([], [], [])


@pytest.mark.parametrize("name", ["sgd", "adam", "adadelta", "ftml", "ftrl"])
@pytest.mark.parametrize("at_once", [True, False])
def test_a_rate_times_zero_freezes(name, at_once):
    """Neither decay nor momentum nor a rule without a rate moves it."""
    updater = make(name, wd=0.1, **({"momentum": 0.9} if name == "sgd" else {}))
    weights, grads = segments()
    filled(weights, numpy.random.default_rng(0))
    filled(grads, numpy.random.default_rng(1))
    for frozen in ({}, {"a_weight": 0.0, "c_bias": 0.0}):
        updater.optimizer.set_lr_mult(frozen)
        before = {key: array.copy() for key, array in weights.items()}
        if at_once:
            updater.update_all(list(SHAPES), list(grads.values()), list(weights.values()))
        else:
            for key in SHAPES:
                updater(key, grads[key], weights[key])
        still = {key for key, array in weights.items() if array.size and numpy.array_equal(array, before[key])}
        assert still == set(frozen)


# --- clipping by the common length --------------------------------------------------------------------------------------


def length(arrays):
    return float(numpy.sqrt(sum(numpy.square(array.astype(float)).sum() for array in arrays)))


@pytest.mark.parametrize("make_arrays", [segments, loose])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_clip_global_norm(make_arrays, dtype):
    weights, grads = make_arrays(dtype)
    filled(grads, numpy.random.default_rng(0))
    given = {"learning_rate": 1.0, "rescale_grad": 0.5, "clip_global_norm": 3.0, "multi_precision": True}
    updater = optimizer.get_updater(optimizer.create("sgd", **given))
    updater.update_all(list(SHAPES), list(grads.values()), list(weights.values()))
    assert length(weights.values()) == pytest.approx(3.0, rel=1e-3 if dtype == "float16" else 1e-5)
    ratio = 3.0 / length(grads.values())
    tolerance = 2e-3 if dtype == "float16" else 1e-5
    numpy.testing.assert_allclose(weights["c_weight"], -ratio * grads["c_weight"], rtol=tolerance, atol=1e-6)
    assert updater.optimizer.rescale_grad == 0.5


def test_clip_global_norm_of_several_devices():
    updater = optimizer.get_updater(optimizer.create("sgd", learning_rate=1.0, clip_global_norm=5.0))
    device = strict(0)
    here, slope = numpy.zeros(2), numpy.array([30.0, 0.0])
    there, other = (device.zeros((2,), numpy.float64, role) for role in ("parameter", "gradient"))
    copyto(other, [0.0, 40.0])
    updater.update_all(["a", "b"], [slope, other], [here, there])
    numpy.testing.assert_allclose([*here, *asnumpy(there)], [-3.0, 0.0, 0.0, -4.0], atol=1e-12)


def test_a_short_gradient_is_not_clipped():
    weights, grads = segments()
    filled(grads, numpy.random.default_rng(0))
    updater = optimizer.get_updater(optimizer.create("sgd", learning_rate=1.0, clip_global_norm=1e6))
    updater.update_all(list(SHAPES), list(grads.values()), list(weights.values()))
    same(weights, {name: -array for name, array in grads.items()})


def test_clip_global_norm_with_a_loss_scale():
    class Scale:
        used = 8.0

        def accepts(self, grads):
            return True

    weights, grads = segments()
    filled(grads, numpy.random.default_rng(0))
    rule = optimizer.create("sgd", learning_rate=1.0, clip_global_norm=3.0)
    optimizer.Updater(rule, Scale()).update_all(list(SHAPES), list(grads.values()), list(weights.values()))
    assert length(weights.values()) == pytest.approx(3.0)
    assert rule.rescale_grad == 1.0


def test_one_parameter_alone_has_no_common_length():
    updater = optimizer.get_updater(optimizer.create("sgd", clip_global_norm=1.0))
    with pytest.raises(AttributeValueError, match="clip_global_norm needs all gradients"):
        updater(0, numpy.ones(2), numpy.ones(2))
    with pytest.raises(AttributeValueError, match="must be a length above 0"):
        optimizer.create("sgd", clip_global_norm=0.0)


def test_torch_clips_alike():
    torch = pytest.importorskip("torch", reason="PyTorch is not there")
    weights, grads = segments()
    filled(grads, numpy.random.default_rng(4))
    held = [torch.nn.Parameter(torch.zeros(array.shape)) for array in grads.values()]
    for one, array in zip(held, grads.values(), strict=True):
        one.grad = torch.from_numpy(array.copy())
    torch.nn.utils.clip_grad_norm_(held, 2.0)
    updater = optimizer.get_updater(optimizer.create("sgd", learning_rate=1.0, clip_global_norm=2.0))
    updater.update_all(list(SHAPES), list(grads.values()), list(weights.values()))
    for one, array in zip(held, weights.values(), strict=True):
        numpy.testing.assert_allclose(array, -one.grad.numpy(), rtol=1e-4, atol=1e-7)


# --- optimizers in MXNet's way ------------------------------------------------------------------------------------------


class Own(optimizer.Optimizer):
    """Momentum as a program of MXNet writes it: states are arrays or tuples, `update` does all."""

    def create_state(self, index, weight):
        return (numpy.zeros_like(weight), numpy.zeros(1)) if weight.ndim > 1 else numpy.zeros_like(weight)

    def update(self, index, weight, grad, state):
        self._update_count(index)
        momentum = state[0] if isinstance(state, tuple) else state
        momentum[:] = 0.9 * momentum - self._get_lr(index) * (grad + self._get_wd(index) * weight)
        if isinstance(state, tuple):
            state[1][:] += 1
        weight[:] += momentum


def test_an_optimizer_of_a_program():
    def made():
        return optimizer.get_updater(Own(learning_rate=0.1, wd=0.01))

    wanted = trained(optimizer.get_updater(optimizer.create("sgd", learning_rate=0.1, wd=0.01, momentum=0.9)), segments)
    for at_once in (True, False):
        found = trained(made(), segments, at_once=at_once)
        for name, array in found.items():
            numpy.testing.assert_allclose(array, wanted[name], rtol=1e-5, atol=1e-6)
    first, second = made(), made()
    weights, grads = segments()
    filled(grads, numpy.random.default_rng(0))
    first.update_all(list(SHAPES), list(grads.values()), list(weights.values()))
    second.set_states(first.get_states())
    second.update_all(list(SHAPES), list(grads.values()), list(weights.values()))
    assert second.states["a_weight"][1] == 2.0
    assert second.optimizer.update_counts["a_bias"] == 2


def test_factors_of_a_program_may_depend_on_the_key():
    class Slower(optimizer.SGD):
        def factors(self, key, lr, wd):
            return super().factors(key, lr * (0.5 if key == "a_bias" else 1.0), wd)

    weights, grads = segments()
    for array in grads.values():
        array.fill(1.0)
    updater = optimizer.get_updater(Slower(learning_rate=1.0))
    updater.update_all(list(SHAPES), list(grads.values()), list(weights.values()))
    assert set(weights["a_bias"]) == {-0.5} and set(weights["a_weight"].ravel()) == {-1.0}


# --- noise, rows, rules of their own --------------------------------------------------------------------------------------


def test_langevin_noise():
    """Mean half a gradient step, variance the rate; other for every name and update, the same for every program."""
    weight, grad = numpy.zeros(100_000, numpy.float32), numpy.ones(100_000, numpy.float32)
    runs = []
    for key in ("a", "a", "b"):
        ax.random.seed(3)
        updater = optimizer.get_updater(optimizer.create("sgld", learning_rate=0.04))
        values = [weight.copy(), weight.copy()]
        for value in values:
            updater(key, grad, value)
        runs.append(values)
    assert runs[0][0].mean() == pytest.approx(-0.02, abs=0.003)
    assert runs[0][0].std() == pytest.approx(0.2, rel=0.01)
    numpy.testing.assert_array_equal(runs[0], runs[1])
    for other in (runs[0][1], runs[2][0]):
        assert abs(numpy.corrcoef(runs[0][0], other)[0, 1]) < 0.02


def test_rows_of_a_table():
    draw = numpy.random.default_rng(0)
    weight, grad = draw.normal(size=(4, 3)), draw.normal(size=(4, 3))
    wanted, history = weight.copy(), numpy.zeros((4, 1))
    updater = optimizer.get_updater(optimizer.create("groupadagrad", learning_rate=0.1, clip_gradient=0.5))
    for _ in range(3):
        g = numpy.clip(grad, -0.5, 0.5)
        history += (g * g).mean(1, keepdims=True)
        wanted -= 0.1 * g / numpy.sqrt(history + 1e-5)
        updater.update_all(["table_weight"], [grad], [weight])
    numpy.testing.assert_allclose(weight, wanted, rtol=1e-12)
    assert updater.states["table_weight"]["history"].shape == (4, 1)
    with pytest.raises(ShapeError, match="must be a table of two axes"):
        updater("bias", numpy.ones(3), numpy.ones(3))
    decaying = optimizer.get_updater(optimizer.create("groupadagrad", wd=0.1))
    with pytest.raises(AttributeValueError, match="weight decay must be 0, but that of 'table_weight'"):
        decaying("table_weight", grad, weight)


def test_half_a_table():
    weight = numpy.ones((4, 3), numpy.float16)
    updater = optimizer.get_updater(optimizer.create("groupadagrad", learning_rate=0.1, multi_precision=True))
    updater("t_weight", numpy.ones((4, 3), numpy.float16), weight)
    numpy.testing.assert_allclose(weight, 0.9, rtol=1e-3)
    assert {array.dtype for array in updater.states["t_weight"].values()} == {numpy.dtype(numpy.float32)}


@pytest.mark.parametrize(("name", "options"), [("adamax", {}), ("rmsprop", {"centered": True}), ("adagrad", {})])
def test_zero_gradients_move_nothing(name, options):
    weight = numpy.ones(5, numpy.float32)
    updater = make(name, **options)
    for _ in range(3):
        updater.update_all(["w"], [numpy.zeros(5, numpy.float32)], [weight])
    assert weight.tolist() == [1.0] * 5


def test_a_gradient_that_does_not_change_has_no_variance():
    """Rounding must not make it negative."""
    weight, grad = numpy.zeros(1000, numpy.float32), numpy.full(1000, 1234.567, numpy.float32)
    updater = optimizer.get_updater(optimizer.create("rmsprop", centered=True))
    for _ in range(300):
        updater("w", grad, weight)
    assert numpy.isfinite(weight).all()


def test_lars_momentum_follows_a_schedule():
    """Momentum is corrected by the rate over that of the step before."""
    rates = [0.4, 0.4, 0.2, 0.2]
    w, m = numpy.array([3.0, 4.0]), 0.0
    weight = w.copy()
    schedule = lr_scheduler.MultiFactorScheduler([2], 0.5)
    updater = optimizer.get_updater(
        optimizer.create("lars", learning_rate=0.4, momentum=0.9, eta=0.1, lr_scheduler=schedule)
    )
    for step, rate in enumerate(rates):
        g = numpy.array([1.0, 0.0])
        before = rates[step - 1] if step else rate
        m = 0.9 * rate / before * m - rate * 0.1 * numpy.linalg.norm(w) * g
        w = w + m
        updater("x_weight", g, weight)
        numpy.testing.assert_allclose(weight, w, rtol=1e-12)


def test_lars_leaves_biases_alone():
    weight = numpy.ones(3)
    updater = optimizer.get_updater(optimizer.create("lars", learning_rate=0.5, wd=0.1))
    updater.update_all(["x_bias", "x_gamma"], [numpy.ones(3)] * 2, [weight, weight.copy()])
    assert weight.tolist() == [0.5] * 3


def test_large_batches_in_parts():
    """Three gradients make a step of their mean; until then nothing moves."""
    weight = numpy.zeros(2)
    rule = optimizer.create("lbsgd", learning_rate=1.0, batch_scale=3, warmup_epochs=0)
    updater = optimizer.get_updater(rule)
    for value in (1.0, 2.0):
        updater("x_weight", numpy.full(2, value), weight)
        assert not weight.any()
    updater("x_weight", numpy.full(2, 6.0), weight)
    assert weight.tolist() == [-9.0, -9.0]  # the mean is 3, and after the warm-up the rate is times batch_scale


def test_parameters_of_an_executor_are_one_run():
    data = ax.sym.Variable("data")
    for i in range(4):
        data = ax.sym.Activation(ax.sym.FullyConnected(data, num_hidden=10 + i, name=f"fc{i}"), act_type="tanh")
    net = ax.sym.SoftmaxOutput(data, name="softmax")
    wants = {name: "null" if name in ("data", "softmax_label") else "write" for name in net.list_arguments()}
    executor = net.simple_bind(ax.cpu(), data=(8, 7), grad_req=wants)
    names = [name for name, kind in wants.items() if kind == "write"]
    updater = make("sgd", momentum=0.9, wd=0.1)
    calls, begin = counted(updater)
    for step in range(2):
        begin()
        executor.forward(is_train=True, data=numpy.full((8, 7), step + 1.0))
        executor.backward()
        weights, grads = ([held[name] for name in names] for held in (executor.arg_dict, executor.grad_dict))
        updater.update_all(names, grads, weights)
    assert calls == [1, 1]
