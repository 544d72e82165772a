"""Monitor on a stand-in for an executor; speedometer and progress bar."""

from __future__ import annotations

import io
import logging
import re

import numpy
import pytest

from arrayexec.errors import AttributeValueError
from arrayexec.train import metric
from arrayexec.train.callback import BatchEndParam, ProgressBar, Speedometer
from arrayexec.train.monitor import Monitor, root_mean_square


class Executor:
    """Tells the monitor one output with every run, and its inputs if asked."""

    def __init__(self, value):
        self.arg_dict = {"fc_weight": numpy.full(4, 2.0 * value)}
        self.aux_dict = {"bn_moving_mean": numpy.full(4, 3.0 * value)}
        self.output = numpy.full((2, 2), value)

    def set_monitor_callback(self, callback, monitor_all=False):
        self.callback, self.monitor_all = callback, monitor_all

    def run(self):
        if self.monitor_all:
            self.callback("fc_data", self.output)
        self.callback("fc_output", self.output)


def test_every_second_batch():
    executor, monitor = Executor(1.0), Monitor(2)
    monitor.install(executor)
    seen = []
    for _ in range(4):
        monitor.tic()
        executor.run()
        seen.append(monitor.toc())
    names = [("fc_output", "1.0\t"), ("fc_weight", "2.0\t"), ("bn_moving_mean", "3.0\t")]
    assert seen == [
        [(1, *entry) for entry in names],
        [],
        [(3, *entry) for entry in names],
        [],
    ]
    executor.run()  # outside of tic and toc nothing is noted
    assert monitor.toc() == []


def test_pattern_order_and_inputs():
    executor = Executor(1.0)
    monitor = Monitor(1, pattern="fc.*", sort=True, monitor_all=True)
    monitor.install(executor)
    monitor.tic()
    executor.run()
    assert [name for _, name, _ in monitor.toc()] == ["fc_data", "fc_output", "fc_weight"]


def test_own_statistics():
    executor = Executor(1.0)
    monitor = Monitor(1, lambda array: [array.min(), array[:1]], pattern="fc_output")
    monitor.install(executor)
    monitor.tic()
    executor.output = numpy.array([[4.0, 5.0]])
    executor.run()
    assert monitor.toc() == [(1, "fc_output", "4.0\t[[4. 5.]]\t")]


def test_tag_only_where_several_are_watched():
    executors = [Executor(1.0), Executor(2.0)]
    monitor = Monitor(1, pattern="fc_output")
    for i, executor in enumerate(executors):
        monitor.install(executor, f"cpu({i})")
    monitor.tic()
    for executor in executors:
        executor.run()
    assert [(name, text) for _, name, text in monitor.toc()] == [
        ("fc_output[cpu(0)]", "1.0\t"),
        ("fc_output[cpu(1)]", "2.0\t"),
    ]


def test_buckets_of_one_device_need_no_tag_and_only_those_that_ran_are_read():
    executors = [Executor(1.0), Executor(2.0)]
    monitor = Monitor(1)
    for executor in executors:
        monitor.install(executor, "cpu(0)")
    monitor.tic()
    executors[1].run()
    assert [(name, text) for _, name, text in monitor.toc()] == [
        ("fc_output", "2.0\t"),
        ("fc_weight", "4.0\t"),
        ("bn_moving_mean", "6.0\t"),
    ]
    monitor.tic()
    for executor in executors:
        executor.run()
    assert [name for _, name, _ in monitor.toc()].count("fc_weight") == 1


def test_printed_to_the_log(caplog):
    executor, monitor = Executor(1.0), Monitor(1, pattern="fc_output")
    monitor.install(executor)
    monitor.tic()
    executor.run()
    with caplog.at_level(logging.INFO):
        monitor.toc_print()
    assert re.search(r"Batch: +1 +fc_output +1\.0", caplog.text)


def test_root_mean_square_and_interval():
    assert root_mean_square(numpy.array([[3, 4]], numpy.int32)) == pytest.approx((25 / 2) ** 0.5)
    assert root_mean_square(numpy.zeros((0, 2))) == 0.0
    with pytest.raises(AttributeValueError, match="at least 1"):
        Monitor(0)


def train(callback, right, epochs=1, reset=True):
    """Batches of four samples; ``right`` tells how many of them are right in each."""
    acc = metric.Accuracy()
    for epoch in range(epochs):
        if reset:
            acc.reset()
        for nbatch, count in enumerate(right):
            acc.update([numpy.zeros(4)], [numpy.arange(4) >= count])
            callback(BatchEndParam(epoch, nbatch, acc, {}))
    return acc


def lines(caplog):
    return [re.search(r"Epoch\[(\d+)\] Batch \[(\d+)-(\d+)\]\tSpeed: \S+ samples/sec(?:\taccuracy=(\S+))?", m).groups()
            for m in caplog.messages]  # fmt: skip


def test_speedometer_has_its_own_window(caplog):
    with caplog.at_level(logging.INFO):
        acc = train(Speedometer(4, frequent=2), [4, 4, 4, 0, 0, 2])
    # batches 0–2, then 3–4; the metric goes on counting
    assert lines(caplog) == [("0", "0", "2", "1.000000"), ("0", "2", "4", "0.000000")]
    assert acc.get()[1] == pytest.approx(14 / 24)


@pytest.mark.parametrize("reset", [True, False])
def test_speedometer_over_epochs(caplog, reset):
    with caplog.at_level(logging.INFO):
        train(Speedometer(4, frequent=2), [4, 0, 4], epochs=2, reset=reset)
    assert [line[3] for line in lines(caplog)] == ["0.666667", "0.666667"]


def test_speedometer_of_everything(caplog):
    with caplog.at_level(logging.INFO):
        train(Speedometer(4, frequent=2, auto_reset=False), [4, 4, 4, 0, 0])
    assert [line[3] for line in lines(caplog)] == ["1.000000", "0.600000"]


def test_speedometer_measures(caplog, monkeypatch):
    times = iter([10.0, 10.5, 12.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(times))
    callback = Speedometer(batch_size=8, frequent=2)
    with caplog.at_level(logging.INFO):
        for nbatch in range(3):
            callback(BatchEndParam(0, nbatch, None))
    assert caplog.messages == ["Epoch[0] Batch [0-2]\tSpeed: 8.00 samples/sec"]


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress_on_a_terminal():
    file = Terminal()
    bar = ProgressBar(4, length=8, file=file)
    for nbatch in (1, 2, 4):
        bar(BatchEndParam(0, nbatch, None))
    assert file.getvalue() == "\r[==------] 25%\r[====----] 50%\r[========] 100%\n"


def test_progress_elsewhere_is_plain_lines():
    file = io.StringIO()
    bar = ProgressBar(100, file=file)
    for epoch in range(2):
        for nbatch in range(1, 101):
            bar(BatchEndParam(epoch, nbatch, None))
    written = file.getvalue().splitlines()
    assert len(written) == 20
    assert written[0] == "Epoch[0] 10/100 (10%)"
    assert written[-1] == "Epoch[1] 100/100 (100%)"


def test_progress_goes_to_standard_output(capsys):
    ProgressBar(1)(BatchEndParam(3, 1, None))
    assert capsys.readouterr().out == "Epoch[3] 1/1 (100%)\n"
