"""Metrics against closed forms; sums over ranks; names; refusals."""

from __future__ import annotations

import math

import numpy
import pytest

from arrayexec.context import copyto
from arrayexec.errors import AttributeValueError, ShapeError, UnknownNameError
from arrayexec.train import callback, metric
from tests.strict_device import strict


def batches(count=4, classes=3):
    """(label, scores) of batches of different sizes."""
    draw = numpy.random.default_rng(2)
    for rows in range(3, 3 + count):
        scores = draw.random((rows, classes), numpy.float32)
        yield draw.integers(0, classes, rows).astype(numpy.float32), scores / scores.sum(1, keepdims=True)


ALL = [
    ("acc", 3),
    ("top_k_accuracy", 3),
    ("f1", 2),
    ("mcc", 2),
    ("perplexity", 3),
    ("ce", 3),
    ("nll_loss", 3),
    ("loss", 3),
]
MICRO = [(metric.F1, 2), (metric.MCC, 2)]


def make(name):
    if callable(name):
        return name(average="micro")
    return metric.create(name, 2) if name == "top_k_accuracy" else metric.create(name)


def values(one):
    return [value for _, value in one.get_name_value()]


@pytest.mark.parametrize(("name", "classes"), ALL + MICRO)
def test_sums_of_ranks_add_up(name, classes):
    whole, first, second = make(name), make(name), make(name)
    for i, (label, pred) in enumerate(batches(classes=classes)):
        whole.update([label], [pred])
        (first, second)[i % 2].update([label], [pred])
    merged = make(name)
    merged.merge([first.state(), second.state()])
    assert values(merged) == pytest.approx(values(whole), rel=1e-12)
    assert not math.isnan(values(whole)[0])
    merged.merge([first.state() + second.state()])  # as an all-reduce gives them
    assert values(merged) == pytest.approx(values(whole), rel=1e-12)
    whole.reset()
    assert math.isnan(values(whole)[0])


@pytest.mark.parametrize("name", ["mae", "mse", "rmse", "pearsonr", metric.PearsonCorrelation])
def test_sums_of_ranks_add_up_for_regressions(name):
    draw = numpy.random.default_rng(4)
    whole, first, second = make(name), make(name), make(name)
    for i in range(4):
        label, pred = draw.normal(size=(2, i + 3))
        whole.update([label], [pred])
        (first, second)[i % 2].update([label], [pred])
    merged = make(name)
    merged.merge([first.state(), second.state()])
    assert values(merged) == pytest.approx(values(whole), rel=1e-12)


def test_accuracy_of_scores_classes_and_columns():
    acc = metric.Accuracy()
    acc.update([numpy.array([[1], [0], [2]])], [numpy.eye(3)[[1, 0, 1]]])
    assert acc.get() == ("accuracy", pytest.approx(2 / 3))
    acc.reset()
    acc.update([numpy.array([1, 0])], [numpy.array([1, 1])])
    assert acc.get()[1] == 0.5


def test_labels_with_a_column_count_as_without():
    label, pred = numpy.array([0, 1, 1, 0]), numpy.eye(2)[[0, 1, 0, 1]]
    for make_one in (metric.F1, metric.MCC):
        flat, column = make_one(), make_one()
        flat.update([label], [pred])
        column.update([label[:, None]], [pred])
        assert flat.get() == column.get()
    f1 = metric.F1()
    f1.update([label[:, None]], [pred])
    assert f1.get()[1] == pytest.approx(0.5)


def test_micro_pearson_is_that_of_all_samples():
    draw = numpy.random.default_rng(0)
    one = metric.PearsonCorrelation(average="micro")
    label, pred = draw.normal(size=(2, 30))
    for rows in (slice(0, 7), slice(7, 30)):
        one.update([label[rows]], [pred[rows]])
    assert one.get()[1] == pytest.approx(numpy.corrcoef(label, pred)[0, 1], rel=1e-9)
    constant = metric.PearsonCorrelation()
    constant.update([numpy.ones(3)], [numpy.arange(3.0)])
    assert math.isnan(constant.get()[1])


def test_perplexity_ignores_a_label_that_is_no_class():
    one = metric.Perplexity(ignore_label=-1)
    pred = numpy.array([[0.5, 0.5], [0.25, 0.75], [0.1, 0.9]])
    one.update([numpy.array([0, -1, 1])], [pred])
    assert one.get()[1] == pytest.approx(math.exp(-(math.log(0.5) + math.log(0.9)) / 2))


def test_perplexity_along_another_axis():
    pred = numpy.random.default_rng(0).random((2, 5, 4))
    label = numpy.random.default_rng(1).integers(0, 5, (2, 4))
    one = metric.Perplexity(axis=1)
    one.update([label], [pred])
    picked = numpy.take_along_axis(pred, label[:, None], 1)
    assert one.get()[1] == pytest.approx(math.exp(-numpy.log(picked).mean()))


def test_cross_entropy_of_sequences():
    pred = numpy.random.default_rng(0).random((2, 4, 5))
    label = numpy.random.default_rng(1).integers(0, 5, (2, 4))
    one = metric.CrossEntropy()
    one.update(label, pred)
    assert one.get()[1] == pytest.approx(-numpy.log(numpy.take_along_axis(pred, label[..., None], 2)).mean())


def test_composite():
    both = metric.create(["acc", metric.create("ce")])
    for label, pred in batches():
        both.update([label], [pred])
    names, numbers = both.get()
    assert names == ["accuracy", "cross-entropy"]
    assert numbers == both.evaluate(both.state())
    assert isinstance(both.get_metric(1), metric.CrossEntropy)
    twice = metric.CompositeEvalMetric()
    assert twice.get() == ([], [])
    twice.add("acc")
    twice.add("ce")
    twice.merge([both.state(), both.state()])
    assert twice.get()[1] == pytest.approx(numbers)
    both.reset()
    assert all(math.isnan(value) for value in both.get()[1])
    with pytest.raises(AttributeValueError, match="has 2 metrics, so there is no number 2"):
        both.get_metric(2)


def test_functions():
    def wrong(label, pred):
        return float((label != pred.argmax(1)).mean())

    one = metric.create(wrong)
    assert one.name == "wrong"
    one.update([numpy.array([0, 1])], [numpy.array([[0.9, 0.1], [0.8, 0.2]])])
    assert one.get() == ("wrong", 0.5)
    pair = metric.np(lambda label, pred: (float(pred.sum()), pred.size), allow_extra_outputs=True)
    assert pair.name == "custom(<lambda>)"
    pair.update([numpy.zeros(4)], [numpy.arange(4.0), numpy.ones(9)])
    assert pair.get()[1] == 1.5
    with pytest.raises(ShapeError, match="but there are 1 and 2"):
        one.update([numpy.zeros(4)], [numpy.arange(4.0), numpy.ones(9)])


def test_arrays_by_name():
    one = metric.create("acc", output_names=["softmax_output"], label_names=["y"])
    scores = numpy.eye(3)
    arrays = {"softmax_output": scores, "aux_output": numpy.zeros(3)}
    one.update_dict({"x": numpy.zeros(3), "y": numpy.arange(3)}, arrays)
    assert one.get()[1] == 1.0
    with pytest.raises(UnknownNameError, match="there is no label 'y'"):
        one.update_dict({"yy": numpy.arange(3)}, arrays)
    both = metric.CompositeEvalMetric([one, metric.Loss(output_names=["aux_output"])])
    both.update_dict({"y": numpy.arange(3)}, arrays)
    assert both.get()[1] == [1.0, 0.0]


def test_configuration_makes_the_same_metric():
    one = metric.TopKAccuracy(3, name="mine")
    config = one.get_config()
    again = metric.create(config.pop("metric"), **config)
    assert (again.name, again.top_k) == (one.name, 3)
    assert str(metric.Accuracy()) == "Accuracy: {'accuracy': nan}"
    assert metric.create(one) is one


def test_device_arrays():
    context = strict(0)
    label, pred = next(batches())
    device_label, device_pred = (context.empty(a.shape, a.dtype, "output") for a in (label, pred))
    copyto(device_label, label)
    copyto(device_pred, pred)
    for name in ("acc", "ce", "perplexity", "loss"):
        host, device = metric.create(name), metric.create(name)
        host.update([label], [pred])
        device.update([device_label], [device_pred])
        assert host.get() == device.get()


@pytest.mark.parametrize("name", ["acc", "ce", "perplexity", "mse", "top_k_accuracy", "f1", "pearsonr"])
def test_sizes_that_do_not_fit(name):
    with pytest.raises(ShapeError, match="must belong to the same samples"):
        make(name).update([numpy.zeros(5)], [numpy.ones((4, 2))])


@pytest.mark.parametrize(
    ("do", "text"),
    [
        (lambda: metric.create("accurracy"), "there is none called 'accurracy'; did you mean 'accuracy'"),
        (lambda: metric.TopKAccuracy(1), "at least 2"),
        (lambda: metric.F1(average="mean"), "one of macro, micro"),
        (lambda: metric.PearsonCorrelation(average="mean"), "one of macro, micro"),
        (lambda: metric.F1().update([numpy.array([0, 2])], [numpy.eye(2)]), "in 0..1, but one is 2"),
        (lambda: metric.CrossEntropy().update([numpy.array([0, 5])], [numpy.eye(2)]), r"in 0\.\.1, but one is 5"),
        (lambda: metric.Perplexity().update([numpy.array([0, -1])], [numpy.eye(2)]), "but one is -1"),
        (lambda: metric.EvalMetric("x").update([], []), r"must define update\(\)"),
    ],
)
def test_refusals(do, text):
    with pytest.raises(AttributeValueError, match=text):
        do()


def confusion(count=4):
    """Random classes of several updates: labels, predicted classes, scores that give these."""
    draw = numpy.random.default_rng(8)
    for rows in (7, 12, 5):
        truth = draw.integers(0, count, rows)
        predicted = numpy.where(draw.random(rows) < 0.6, truth, draw.integers(0, count, rows))
        scores = draw.random((rows, count), numpy.float32)
        scores[numpy.arange(rows), predicted] = 2
        yield truth.astype(numpy.float32), predicted.astype(numpy.float32), scores


def by_definition(average):
    """F1 of all samples, class by class."""
    truth, predicted = (numpy.concatenate([step[i] for step in confusion()]) for i in (0, 1))
    if average == "micro":
        return float((truth == predicted).mean())  # every error is a false positive and a false negative
    scores, weights = [], []
    for one in sorted({*truth, *predicted}):
        hits = float(((truth == one) & (predicted == one)).sum())
        precision, recall = hits / max((predicted == one).sum(), 1), hits / max((truth == one).sum(), 1)
        scores.append(2 * precision * recall / (precision + recall) if hits else 0.0)
        weights.append(float((truth == one).sum()))
    return float(numpy.average(scores, weights=weights if average == "weighted" else None))


@pytest.mark.parametrize("average", ["macro", "micro", "weighted"])
@pytest.mark.parametrize("room", [2, 32])
def test_f1_of_many_classes(average, room):
    one = metric.create("f1", average=average, class_type="multiclass", num_classes=room)
    parts = [metric.create("f1", average=average, class_type="multiclass", num_classes=room) for _ in range(2)]
    for i, (truth, _, scores) in enumerate(confusion()):
        one.update([truth], [scores])
        parts[i % 2].update([truth[:, None]], [scores])
    assert one.get()[1] == pytest.approx(by_definition(average))
    parts[0].merge([part.state() for part in parts])
    assert parts[0].get()[1] == pytest.approx(by_definition(average))
    parts[0].reset()
    parts[0].merge([])
    assert math.isnan(parts[0].get()[1])


def test_f1_against_another_implementation():
    sklearn = pytest.importorskip("sklearn.metrics", reason="scikit-learn is not there")
    truth, predicted = (numpy.concatenate([step[i] for step in confusion()]) for i in (0, 1))
    for average in ("macro", "micro", "weighted"):
        wanted = sklearn.f1_score(truth, predicted, average=average)
        one = metric.F1(average=average, class_type="multiclass")
        one.update([truth], [predicted])  # classes, not scores
        assert one.get()[1] == pytest.approx(wanted)
    both = metric.PCC()
    both.update([truth], [predicted])
    assert both.get()[1] == pytest.approx(sklearn.matthews_corrcoef(truth, predicted))


@pytest.mark.parametrize("room", [2, 32])
def test_pcc_is_the_correlation_of_one_hot_classes(room):
    one, merged = metric.create("pcc", num_classes=room), metric.PCC(num_classes=room)
    parts = [metric.PCC(num_classes=room) for _ in range(2)]
    for i, (truth, _, scores) in enumerate(confusion()):
        one.update([truth], [scores])
        parts[i % 2].update([truth], [scores])
    truth, predicted = (numpy.concatenate([step[i] for step in confusion()]) for i in (0, 1))
    hot = [(values[:, None] == numpy.arange(4)).astype(float) for values in (truth, predicted)]
    x, y = (values - values.mean(0) for values in hot)
    wanted = (x * y).sum() / math.sqrt((x * x).sum() * (y * y).sum())
    assert one.get() == ("pcc", pytest.approx(wanted))
    merged.merge([part.state() for part in parts])
    assert merged.get()[1] == pytest.approx(wanted)
    merged.merge([])
    assert math.isnan(merged.get()[1])


def test_pcc_of_two_classes_is_mcc():
    pairs = list(confusion(2))
    one, other = metric.PCC(), metric.MCC(average="micro")
    for truth, _, scores in pairs:
        one.update([truth], [scores])
        other.update([truth], [scores])
    assert one.get()[1] == pytest.approx(other.get()[1])


@pytest.mark.parametrize("name", ["torch", "caffe"])
def test_losses_of_other_names(name):
    one = metric.create(name)
    one.update([], [numpy.array([1.0, 2.0, 6.0])])
    assert one.get() == (name, 3.0)


@pytest.mark.parametrize(("name", "classes"), ALL)
def test_value_since_a_local_reset(name, classes):
    whole, late = make(name), make(name)
    pairs = list(batches(classes=classes))
    for label, pred in pairs[:2]:
        whole.update([label], [pred])
    whole.reset_local()
    assert math.isnan(values(whole)[0])
    for label, pred in pairs[2:]:
        whole.update([label], [pred])
        late.update([label], [pred])
    assert values(whole) == pytest.approx(values(late), rel=1e-12)
    everything = make(name)
    for label, pred in pairs:
        everything.update([label], [pred])
    assert whole.get_global() == everything.get()
    assert whole.get_global_name_value() == everything.get_name_value()
    whole.reset()
    assert math.isnan(values(whole)[0])


def test_local_reset_of_several():
    both = metric.create(["acc", "ce"])
    (a, b), (c, d) = list(batches(2))
    both.update([a], [b])
    before = both.get()
    both.reset_local()
    both.update([c], [d])
    alone = metric.create(["acc", "ce"])
    alone.update([c], [d])
    assert both.get()[1] == pytest.approx(alone.get()[1])
    assert both.get_global()[0] == before[0]
    alone.update([a], [b])
    assert both.get_global()[1] == pytest.approx(alone.get()[1])


def test_names_of_labels_that_do_not_fit():
    label, outputs = {"softmax_label": numpy.zeros(2)}, {"a_output": numpy.eye(2), "b_output": numpy.eye(2)}
    with pytest.raises(ShapeError, match=r"1 and 2: labels 'softmax_label'; outputs 'a_output', 'b_output'\n  choose"):
        metric.create("acc").update_dict(label, outputs)
    one = metric.Accuracy(output_names=["b_output"])
    one.update_dict(label, outputs)
    assert one.get()[1] == 0.5


class Shares(metric.EvalMetric):
    """As programs write them: sums of its own, several values."""

    def __init__(self):
        super().__init__("shares")

    def reset(self):
        self.right, self.seen = [0, 0], 0

    def update(self, labels, preds):
        for number in range(2):
            self.right[number] += int((preds[0] == number + labels[0]).sum())
        self.seen += len(labels[0])

    def get(self):
        return ["same", "next"], [right / max(self.seen, 1) for right in self.right]


def test_metric_with_sums_of_its_own(caplog):
    shares, everything = Shares(), metric.create([Shares(), "mae"])
    label, pred = numpy.array([1.0, 2.0, 3.0, 4.0]), numpy.array([1.0, 3.0, 3.0, 4.0])
    wanted = [("same", 0.75), ("next", 0.25)]
    for each in (shares, everything):
        each.update([label], [pred])
        assert each.get_name_value()[:2] == each.get_global_name_value()[:2] == wanted
    assert everything.get() == (["same", "next", "mae"], [0.75, 0.25, 0.25])
    everything.merge([everything.state()])
    assert everything.get_name_value() == [*wanted, ("mae", 0.25)]
    speedometer = callback.Speedometer(4, 1)
    with caplog.at_level("INFO"):
        for batch in (1, 2):
            speedometer(callback.BatchEndParam(0, batch, everything, None))
    assert "same=0.750000\tnext=0.250000\tmae=0.250000" in caplog.text
    shares.reset()
    assert shares.get_name_value() == [("same", 0), ("next", 0)]


@pytest.mark.parametrize(
    "one",
    [
        metric.PCC(num_classes=3, name="x"),
        metric.F1(average="weighted", class_type="multiclass"),
        metric.F1(average="micro", label_names=["a"]),
        metric.TopKAccuracy(top_k=2),
        metric.Torch(),
        metric.Perplexity(ignore_label=1),
    ],
    ids=lambda one: type(one).__name__,
)
def test_configurations_of_options(one):
    other = metric.create(**one.get_config())
    assert type(other) is type(one)
    assert other.get_config() == one.get_config()
    assert other.name == one.name


def test_check_label_shapes():
    label, pred = numpy.zeros(3), numpy.zeros(3)
    assert metric.check_label_shapes(label, pred)[1] is pred
    wrapped = metric.check_label_shapes(label, pred, wrap=True)
    assert [type(one) for one in wrapped] == [list, list] and wrapped[0][0] is label
    assert metric.check_label_shapes([label], [pred], wrap=True) == ([label], [pred])
    with pytest.raises(ShapeError, match="must be as many as predictions, but they are 1 and 2"):
        metric.check_label_shapes([label], [pred, pred])


@pytest.mark.parametrize("name", ["acc", "top_k_acc", "f1", "mcc", "pcc", "perplexity", "mae", "rmse", "ce", "pearsonr"])
def test_batches_without_rows_count_nowhere(name):
    options = {"top_k_acc": {"top_k": 2}, "perplexity": {"ignore_label": None}}.get(name, {})
    one, other = (metric.create(name, **options) for _ in range(2))
    plain = name in ("mae", "rmse", "pearsonr")
    label = numpy.array([0.0, 1.0, 1.0])
    pred = numpy.array([0.2, 0.9, 0.4]) if plain else numpy.array([[0.9, 0.1], [0.2, 0.8], [0.7, 0.3]])
    one.update([label], [pred])
    for part in (slice(0, 0), slice(None), slice(3, 3)):
        other.update([label[part]], [pred[part]])
    assert one.get() == other.get()


def test_what_a_function_gives_must_be_numbers():
    for value in (None, "much", (1, 2, 3), numpy.zeros(2)):
        with pytest.raises(AttributeValueError, match=r"metric 'own': its function must give a number, or a sum and a count"):
            metric.np(lambda label, pred, value=value: value, name="own").update([numpy.zeros(2)], [numpy.zeros(2)])
