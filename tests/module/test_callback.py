"""What training calls: checkpoints, logs with windows of their own, an early end."""

from __future__ import annotations

import io
import logging

import numpy
import pytest

import arrayexec as ax
from arrayexec.errors import AttributeValueError, UnknownNameError

ROWS = numpy.random.default_rng(0).normal(size=(12, 4)).astype(numpy.float32)
LABELS = (ROWS[:, 0] > 0).astype(numpy.float32)


def module() -> ax.mod.Module:
    net = ax.sym.FullyConnected(ax.sym.Variable("data"), num_hidden=2, name="fc")
    return ax.mod.Module(ax.sym.SoftmaxOutput(net, name="softmax"))


def batches() -> ax.io.NDArrayIter:
    return ax.io.NDArrayIter(ROWS, LABELS, batch_size=4)


def metric_of(values: list[float], name: str = "acc") -> ax.metric.EvalMetric:
    found = ax.metric.create(name)
    found.sum_metric, found.num_inst = float(sum(values)), len(values)
    return found


def test_checkpoints_of_parameters(tmp_path):
    made = module()
    made.fit(batches(), num_epoch=4, epoch_end_callback=ax.callback.do_checkpoint(f"{tmp_path}/net", period=2))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["net-0002.params", "net-0004.params", "net-symbol.json"]
    symbol, params, states = ax.model.load_checkpoint(f"{tmp_path}/net", 4)
    assert symbol.list_arguments() == made.symbol.list_arguments() and states == {}
    for name, array in made.get_params()[0].items():
        assert numpy.array_equal(params[name], array)


def test_bug_4638_2735_4124_checkpoints_of_modules_hold_optimizer_states(tmp_path):
    made = module()
    keep = ax.callback.module_checkpoint(made, f"{tmp_path}/net", save_optimizer_states=True)
    options = {"optimizer": "adam", "optimizer_params": {"learning_rate": 0.1}}
    made.fit(batches(), num_epoch=1, epoch_end_callback=keep, **options)
    assert (tmp_path / "net-0001.states").exists()
    again = ax.mod.Module.load(f"{tmp_path}/net", 1, load_optimizer_states=True)
    for each in (made, again):
        each.fit(batches(), begin_epoch=1, num_epoch=3, **options)
    for name, array in made.get_params()[0].items():
        assert numpy.array_equal(again.get_params()[0][name], array), name


@pytest.mark.parametrize("made", [
    lambda: ax.callback.do_checkpoint("net", 0), lambda: ax.callback.module_checkpoint(None, "net", 0),
    lambda: ax.callback.log_train_metric(0), lambda: ax.callback.EarlyStopping(patience=0),
    lambda: ax.callback.EarlyStopping(mode="most"), lambda: ax.callback.Speedometer(8, 0), lambda: ax.callback.ProgressBar(0),
])  # fmt: skip
def test_options(made):
    with pytest.raises(AttributeValueError, match="must be"):
        made()


def test_log_of_the_metric_has_a_window_of_its_own(caplog):
    seen, whole, window = ax.metric.create("acc"), *(ax.callback.log_train_metric(2, reset) for reset in (False, True))
    with caplog.at_level(logging.INFO):
        for number, right in enumerate([1, 1, 0, 0, 0]):
            seen.update([numpy.array([0.0])], [numpy.array([[right, 0.5]])])
            whole(ax.callback.BatchEndParam(0, number, seen))
            window(ax.callback.BatchEndParam(0, number, seen))
    lines = [record.message for record in caplog.records]
    assert lines[::2] == [f"Iter[0] Batch[{n}] Train-accuracy={value:f}" for n, value in ((0, 1), (2, 2 / 3), (4, 0.4))]
    assert lines[1::2] == [f"Iter[0] Batch[{n}] Train-accuracy={value:f}" for n, value in ((0, 1), (2, 0.5), (4, 0))]
    assert seen.get()[1] == pytest.approx(0.4)


def test_log_of_an_evaluation(caplog):
    with caplog.at_level(logging.INFO):
        ax.callback.LogValidationMetricsCallback()(ax.callback.BatchEndParam(3, 2, metric_of([0, 1])))
        ax.callback.LogValidationMetricsCallback()(ax.callback.BatchEndParam(3, 2, None))
    assert [record.message for record in caplog.records] == ["Epoch[3] Validation-accuracy=0.500000"]


@pytest.mark.parametrize("first", [0, 1])
def test_progress_reaches_its_end_wherever_batches_are_counted_from(first):
    file = io.StringIO()
    bar = ax.callback.ProgressBar(5, file=file)
    for epoch in range(2):
        for batch in range(5):
            bar(ax.callback.BatchEndParam(epoch, batch + first, None))
    lines = file.getvalue().splitlines()
    assert lines == [f"Epoch[{epoch}] {n}/5 ({20 * n}%)" for epoch in range(2) for n in range(1, 6)]


def test_early_stopping_by_a_metric():
    stop = ax.callback.EarlyStopping(patience=2, min_delta=0.05)
    values = [0.5, 0.6, 0.62, float("nan"), 0.9]
    for epoch, value in enumerate(values[:3]):
        stop(ax.callback.BatchEndParam(epoch, 1, metric_of([value])))
    assert (stop.best, stop.best_epoch) == (0.6, 1)
    with pytest.raises(ax.callback.StopTraining, match=r"not got better than 0\.6 since epoch 1"):
        stop(ax.callback.BatchEndParam(3, 1, metric_of([values[3]])))
    low = ax.callback.EarlyStopping(patience=1, mode="min")
    low(ax.callback.BatchEndParam(0, 1, metric_of([0.5])))
    low(ax.callback.BatchEndParam(1, 1, metric_of([0.4])))
    assert low.best == 0.4


def test_a_metric_that_is_never_a_number_ends_training_too():
    stop, nan = ax.callback.EarlyStopping(patience=2), float("nan")
    for epoch in range(2):
        stop(ax.callback.BatchEndParam(epoch, 1, metric_of([nan])))
    with pytest.raises(ax.callback.StopTraining, match="not got better than nan since epoch 0"):
        stop(ax.callback.BatchEndParam(2, 1, metric_of([nan])))
    stop = ax.callback.EarlyStopping(patience=2)
    for epoch, value in enumerate([nan, 0.5, nan]):
        stop(ax.callback.BatchEndParam(epoch, 1, metric_of([value])))
    assert (stop.best, stop.best_epoch) == (0.5, 1)


def test_early_stopping_needs_one_metric():
    both = ax.metric.create(["acc", "mse"])
    with pytest.raises(UnknownNameError, match="metric must name one of several.*accuracy, mse"):
        ax.callback.EarlyStopping()(ax.callback.BatchEndParam(0, 1, both))
    with pytest.raises(UnknownNameError, match="there is no metric 'accuracies'.*did you mean 'accuracy'"):
        ax.callback.EarlyStopping(metric="accuracies")(ax.callback.BatchEndParam(0, 1, both))
    ax.callback.EarlyStopping(metric="mse")(ax.callback.BatchEndParam(0, 1, both))


def test_fit_ends_early_and_keeps_that_epoch(caplog, tmp_path):
    made, train, epochs = module(), batches(), []
    with caplog.at_level(logging.INFO):
        made.fit(
            train, eval_data=batches(), num_epoch=50, optimizer_params={"learning_rate": 0.0},
            eval_end_callback=ax.callback.EarlyStopping(patience=2), checkpoint=tmp_path,
            epoch_end_callback=lambda epoch, *rest: epochs.append(epoch),
        )  # fmt: skip
    assert epochs == [0, 1, 2]
    assert "Epoch[2] Training ends: the metric has not got better" in caplog.text
    assert len(list(train)) == 3  # the iterator stands at a beginning
    again = module()
    again.fit(batches(), num_epoch=3, checkpoint=tmp_path, resume=True, epoch_end_callback=lambda *_: epochs.append(-1))
    assert epochs == [0, 1, 2]
