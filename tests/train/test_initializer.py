"""Initialisers: names, attributes, streams of random numbers, the pieces of fused RNNs, loading."""

from __future__ import annotations

import logging

import numpy
import pytest

from arrayexec.context import asnumpy
from arrayexec.errors import AttributeValueError, ShapeError, UnknownNameError
from arrayexec.train import initializer, random
from arrayexec.train.initializer import InitDesc
from arrayexec.train.rnn_layout import rnn_pieces
from tests.strict_device import strict


@pytest.fixture(autouse=True)
def one_seed():
    random.seed(5)
    yield
    random.seed(0)


def filled(init, name, shape=(6, 4), described=True):
    array = numpy.full(shape, numpy.nan, numpy.float32)
    init(InitDesc(name) if described else name, array)
    return array


RANDOM = [
    initializer.Uniform(0.3),
    initializer.Normal(0.2),
    initializer.Orthogonal(),
    initializer.Orthogonal(2.0, "normal"),
    initializer.Xavier(),
    initializer.Xavier("gaussian", "in", 2),
    initializer.MSRAPrelu(),
]


@pytest.mark.parametrize("init", RANDOM, ids=repr)
def test_values_depend_on_seed_and_name_alone(init):
    first = filled(init, "a_weight")
    filled(init, "b_weight")
    numpy.testing.assert_array_equal(filled(init, "a_weight"), first)
    assert not numpy.array_equal(filled(init, "b_weight"), first)
    random.seed(6)
    assert not numpy.array_equal(filled(init, "a_weight"), first)


def test_streams_of_different_kinds_differ():
    draws = [random.generator(*path).random() for path in (("parameter", "a"), ("iterator", "a"), ("parameter", "b"))]
    assert len(set(draws)) == 3
    assert random.generator("parameter", "a").random() == draws[0]
    assert random.current_seed() == 5


def test_orthogonal_rows_or_columns():
    wide = filled(initializer.Orthogonal(1.5), "w_weight", (4, 3, 3)).reshape(4, 9).astype(float)
    numpy.testing.assert_allclose(wide @ wide.T, 2.25 * numpy.eye(4), atol=1e-6)
    tall = filled(initializer.Orthogonal(1.5, "normal"), "w_weight", (9, 4)).astype(float)
    numpy.testing.assert_allclose(tall.T @ tall, 2.25 * numpy.eye(4), atol=1e-6)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("fc_bias", 0),
        ("bn_gamma", 1),
        ("bn_beta", 0),
        ("q_min", 0),
        ("q_max", 1),
    ],
)
@pytest.mark.parametrize("described", [False, True])
def test_endings(name, value, described):
    assert (filled(initializer.Constant(7), name, described=described) == value).all()


@pytest.mark.parametrize(
    ("name", "value"),
    [("bn_moving_mean", 0), ("bn_moving_var", 1), ("bn_moving_inv_var", 0), ("x_moving_avg", 0), ("stn_loc_weight", 0)],
)
def test_endings_of_plain_names(name, value):
    assert (filled(initializer.Constant(7), name, described=False) == value).all()


def test_plain_names_of_spatial_transformers_and_upsampling():
    stn = filled(initializer.Constant(7), "stn_loc_bias", (6,), described=False)
    assert stn.tolist() == [1, 0, 0, 0, 1, 0]
    up = filled(initializer.Constant(7), "upsampling0_weight", (1, 1, 4, 4), described=False)
    numpy.testing.assert_array_equal(up, filled(initializer.Bilinear(), "x_weight", (1, 1, 4, 4)))


def test_name_without_a_rule():
    with pytest.raises(AttributeValueError, match="no rule for the name 'embedding'"):
        filled(initializer.Uniform(), "embedding")


def test_attribute_wins_over_name_and_caller():
    desc = InitDesc("bn_moving_var", {"__init__": initializer.One().dumps()})
    array = numpy.zeros(3)
    initializer.Xavier()(desc, array)
    assert (array == 1).all()
    named = InitDesc("x", {"__init__": "zeros"})
    initializer.Xavier()(named, array)
    assert (array == 0).all()


def test_init_array_applies_the_rule_whatever_the_name():
    bias = numpy.full(8, numpy.nan)
    initializer.LSTMBias(3.0)(InitDesc("lstm_i2h_bias"), bias)
    assert (bias == 0).all()
    initializer.LSTMBias(3.0).init_array(bias, "lstm_i2h_bias")
    assert bias.tolist() == [0, 0, 3, 3, 0, 0, 0, 0]
    initializer.One().init_array(bias)
    assert (bias == 1).all()


def test_constant_array():
    value = numpy.arange(3.0)
    assert filled(initializer.Constant(value), "x_weight", (3,)).tolist() == [0, 1, 2]
    again = initializer.create(initializer.Constant(value).dumps())
    assert filled(again, "x_weight", (3,)).tolist() == [0, 1, 2]
    with pytest.raises(ShapeError):
        filled(initializer.Constant(value), "x_weight", (4,))


@pytest.mark.parametrize("init", [*RANDOM, initializer.Zero(), initializer.LSTMBias(2.0), initializer.Bilinear()])
def test_text_makes_the_same_initialiser(init):
    again = initializer.create(init.dumps())
    assert type(again) is type(init)
    assert again == init
    assert hash(again) == hash(init)
    assert again != initializer.Uniform(0.123)


def test_by_name():
    assert initializer.create("zeros") == initializer.Zero()
    assert initializer.create("Ones") == initializer.One()
    assert initializer.create("gaussian", sigma=2.0) == initializer.Normal(2.0)
    init = initializer.Uniform()
    assert initializer.create(init) is init


def test_own_initialiser():
    @initializer.register
    class Sevens(initializer.Initializer):
        def _init_weight(self, desc, array):
            array.fill(7)

    try:
        assert (filled(initializer.create("sevens"), "x_weight") == 7).all()
    finally:
        del initializer._registry["sevens"]


def test_mixed_takes_the_first_pattern():
    init = initializer.Mixed(["fc1", ".*"], [initializer.Constant(1), initializer.Constant(2)])
    assert (filled(init, "fc1_weight") == 1).all()
    assert (filled(init, "my_fc1_weight") == 2).all()
    with pytest.raises(AttributeValueError, match="a pattern must match the name 'fc2_weight'"):
        filled(initializer.Mixed(["fc1"], [initializer.Zero()]), "fc2_weight")


def test_load(tmp_path, caplog):
    values = {"arg:fc_weight": numpy.ones((2, 2), numpy.float32), "aux:mean": numpy.full(3, 4, numpy.float32)}
    init = initializer.Load(values, initializer.Zero(), verbose=True)
    with caplog.at_level(logging.INFO):
        assert (filled(init, "fc_weight", (2, 2)) == 1).all()
    assert "fc_weight: initialised from the values given" in caplog.text
    assert (filled(init, "mean", (3,)) == 4).all()
    assert (filled(init, "other_weight", (3,)) == 0).all()
    with pytest.raises(ShapeError, match=r"'fc_weight' must have the shape \(3, 3\), but it has \(2, 2\)"):
        filled(init, "fc_weight", (3, 3))
    with pytest.raises(UnknownNameError, match="'fc_wieght'; did you mean 'fc_weight'"):
        filled(initializer.Load(values), "fc_wieght", (2, 2))
    from arrayexec import files

    files.save(tmp_path / "x.params", values)
    assert (filled(initializer.Load(str(tmp_path / "x.params")), "mean", (3,)) == 4).all()
    files.save(tmp_path / "list.params", list(values.values()))
    with pytest.raises(AttributeValueError, match="must have names"):
        initializer.Load(str(tmp_path / "list.params"))


@pytest.mark.parametrize(
    ("mode", "hidden", "layers", "both", "inputs", "size"),
    [("lstm", 5, 2, True, 3, 1080), ("gru", 5, 2, False, 3, 330), ("lstm", 4, 1, False, 5, 176)],
)
def test_pieces_of_a_fused_rnn(mode, hidden, layers, both, inputs, size):
    pieces = list(rnn_pieces(size, hidden, layers, mode, both))
    ends = [0, *(where.stop for _, where, _ in pieces)]
    assert [where.start for _, where, _ in pieces] == ends[:-1]  # one after the other
    assert ends[-1] == size
    names = [name for name, _, _ in pieces]
    assert len(set(names)) == len(names)
    first_gate = {"lstm": "i", "gru": "r"}[mode]
    assert names[0] == f"l0_i2h_{first_gate}_weight"
    shapes = {name: shape for name, _, shape in pieces}
    assert shapes[names[0]] == (hidden, inputs)
    if layers == 2:
        assert shapes[f"l1_i2h_{first_gate}_weight"] == (hidden, hidden * (2 if both else 1))
    assert all(name.endswith("_bias") for name in names[len(names) // 2 :])


def test_fused_rnn_fills_every_piece_by_its_name():
    init = initializer.FusedRNN(initializer.Uniform(0.5), 5, 2, "lstm", True, forget_bias=2.0)
    vector = numpy.full(1080, numpy.nan, numpy.float32)
    desc = InitDesc("rnn_parameters", {"__init__": init.dumps()})
    initializer.Zero()(desc, vector)
    for name, where, shape in rnn_pieces(1080, 5, 2, "lstm", True):
        if name.endswith("_f_bias"):
            assert (vector[where] == 2.0).all()
        elif name.endswith("_bias"):
            assert (vector[where] == 0.0).all()
        else:
            numpy.testing.assert_array_equal(
                vector[where].reshape(shape), filled(initializer.Uniform(0.5), "rnn_" + name, shape)
            )


def test_fused_rnn_falls_back_on_the_overall_initialiser():
    init = initializer.FusedRNN(None, 4, 1, "gru")
    vector = numpy.zeros(3 * 4 * (2 + 4 + 2))
    initializer.Constant(9)(InitDesc("parameters", {"__init__": init.dumps()}), vector)
    assert (vector[: 3 * 4 * 6] == 9).all()
    assert (vector[3 * 4 * 6 :] == 0).all()
    with pytest.raises(AttributeValueError, match="must be given as init="):
        init.init_array(vector)


def test_on_a_device_that_refuses_the_host():
    for init in (*RANDOM, initializer.Zero(), initializer.Constant(3)):
        array = strict(0).empty((6, 4), numpy.float32, "parameter")
        init(InitDesc("x_weight"), array)
        numpy.testing.assert_array_equal(asnumpy(array), filled(init, "x_weight"))
    bias = strict(0).empty((8,), numpy.float32, "parameter")
    initializer.LSTMBias(3.0).init_array(bias)
    assert asnumpy(bias).tolist() == [0, 0, 3, 3, 0, 0, 0, 0]


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: initializer.create("xavir"), AttributeValueError, "none called 'xavir'; did you mean 'xavier'"),
        (lambda: initializer.create('["zero"'), AttributeValueError, "the text must be like"),
        (lambda: initializer.Xavier("gauss"), AttributeValueError, "did you mean 'gaussian'"),
        (lambda: initializer.Xavier(factor_type="sum"), AttributeValueError, "one of in, out, avg"),
        (lambda: initializer.Orthogonal(rand_type="x"), AttributeValueError, "one of uniform, normal"),
        (lambda: initializer.Mixed(["a"], []), AttributeValueError, "one initialiser for each pattern"),
        (lambda: filled(initializer.Orthogonal(), "x_weight", (3,)), ShapeError, "at least 2 axes"),
        (lambda: initializer.LSTMBias().init_array(numpy.zeros(6)), ShapeError, "a vector of four gates"),
        (lambda: list(rnn_pieces(100, 5, 1, "lstn")), AttributeValueError, "did you mean 'lstm'"),
        (lambda: list(rnn_pieces(1081, 5, 2, "lstm", True)), ShapeError, "it has 1081"),
        (lambda: filled(initializer.Initializer(), "x_weight"), AttributeValueError, "must define _init_weight"),
    ],
)
def test_refusals(make, error, text):
    with pytest.raises(error, match=text):
        make()
