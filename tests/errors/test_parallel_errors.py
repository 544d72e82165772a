"""Every message of groups and managers, whole. Those that only ranks see: tests/parallel/test_ranks_train_failures.py."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import arrayexec as ax
from arrayexec import errors
from arrayexec.parallel.executor_manager import (
    DataParallelExecutorGroup,
    DataParallelExecutorManager,
    _bind_exec,
    _load_general,
    split_input_slice,
)
from arrayexec.train.io import DataBatch
from tests.errors.recorder import PACKAGE, Recorder
from tests.errors.test_parallelize_errors import MODULES
from tests.parallel.networks import Described, lstm, mlp

FLAT = Described({"data": (8, 6)}, {"softmax_label": (8,)})
WORDS = Described({"data": (4, 5)}, {"softmax_label": (4, 5)}, default_bucket_key=5)
PARAMETERS = ["fc1_weight", "fc1_bias", "fc2_weight", "fc2_bias"]
ONE = ax.cpu()


def manager(symbol: Any = None, ctx: Any = ONE, described: Any = FLAT, **options: Any) -> DataParallelExecutorManager:
    return DataParallelExecutorManager(mlp() if symbol is None else symbol, ctx, described, **options)


def buckets(described: Any = WORDS, build: Any = None, **options: Any) -> DataParallelExecutorManager:
    return DataParallelExecutorManager(None, ONE, described, sym_gen=build or lstm(1, 4, 9, own=(3,)), **options)


def arrays(*shapes: tuple[int, ...]) -> list[Any]:
    return [np.zeros(shape, np.float32) for shape in shapes]


def batch(rows: int = 8, **options: Any) -> DataBatch:
    return DataBatch(arrays((rows, 6)), arrays((rows,)), **options)


def loaded(ran: bool = True, count: int = 1, **options: Any) -> DataParallelExecutorManager:
    one = manager(ctx=[ax.cpu(i) for i in range(count)], **options)
    one.load_data_batch(batch())
    if ran:
        one.forward(is_train=True)
    return one


def bind(**options: Any) -> Any:
    return _bind_exec(mlp(), ONE, {"data": (4, 6)}, PARAMETERS, **options)


def group(described: Any) -> DataParallelExecutorGroup:
    return DataParallelExecutorGroup(mlp(), mlp().list_arguments(), PARAMETERS, [ONE], [slice(0, 8)], described)


def valued_buckets(**more: Any) -> DataParallelExecutorManager:
    one = buckets()
    one.set_params({"own3_bias": np.zeros(4), **more})
    return one


def added() -> None:
    one = loaded(count=2, grad_req="add")
    one.backward()
    one.update(lambda name, gradient, parameter: None)
    one.backward()


def kept_shape() -> None:
    one = buckets()
    one.set_params({"own3_bias": np.zeros(5), "own3_weight": np.zeros((4, 4))})
    one.load_data_batch(DataBatch(arrays((4, 3)), arrays((4, 3)), bucket_key=3))


THERE = "; there are: data, fc1_weight, fc1_bias, fc2_weight, fc2_bias, softmax_label"

CASES: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    # binding one executor
    "unknown input": (
        lambda: _bind_exec(mlp(), ONE, {"dta": (4, 6)}, PARAMETERS),
        errors.UnknownNameError,
        "bind: the symbol has no argument 'dta'; did you mean 'data'?",
    ),
    "unknown input type": (
        lambda: bind(input_types={"dta": np.float64}),
        errors.UnknownNameError,
        "bind: the symbol has no argument 'dta'; did you mean 'data'?",
    ),
    "need_grad": (
        lambda: bind(need_grad="fc1_weight"),
        errors.BindError,
        "bind: need_grad must be True, False or a set of argument names, but it is 'fc1_weight'",
    ),
    "need_grad of a stranger": (
        lambda: bind(need_grad={"zzz"}),
        errors.UnknownNameError,
        f"bind: need_grad: there is no argument 'zzz'{THERE}",
    ),
    "shared shape": (
        lambda: _bind_exec(mlp(), ONE, {"data": (4, 7)}, PARAMETERS, False, bind()),
        errors.BindError,
        "bind: parameter 'fc1_weight' must be (8, 7) float32, but the one shared with the other buckets is (8, 6) float32",
    ),
    "shared type": (
        lambda: _bind_exec(mlp(), ONE, {"data": (4, 6)}, PARAMETERS, False, bind(), None, {"data": np.float64}),
        errors.BindError,
        "bind: parameter 'fc1_weight' must be (8, 6) float64, but the one shared with the other buckets is (8, 6) float32",
    ),
    # groups
    "rows": (
        lambda: group(Described({"data": (8, 6)}, {"softmax_label": (7,)})),
        errors.ShapeError,
        "input 'softmax_label' (7,) must have the 8 rows of the batch on axis 0 (its layout is None)",
    ),
    "axis": (
        lambda: group(Described({"data": (8, 6)}, {"softmax_label": (8,)}, layout="TNC")),
        errors.ShapeError,
        "input 'data' (8, 6) must have the 8 rows of the batch on axis 1 (its layout is 'TNC')",
    ),
    "an input that is not described": (
        lambda: group(SimpleNamespace(provide_data=["data"], provide_label=None)),
        errors.ShapeError,
        "an input is described by its name and shape, ('data', (32, 10)), but not by 'data'",
    ),
    "no data": (
        lambda: group(SimpleNamespace(provide_data=[], provide_label=None)),
        errors.ShapeError,
        "a batch must have at least one data array, but none is described",
    ),
    "backward of a group that has not run": (
        lambda: group(FLAT).backward(),
        errors.NotBoundError,
        "backward: run forward first",
    ),
    "outputs of a group that has not run": (
        lambda: group(FLAT).get_outputs(),
        errors.NotBoundError,
        "outputs: run forward first",
    ),
    "metric of a group that has not run": (
        lambda: group(FLAT).update_metric(ax.metric.create("acc"), arrays((8,))),
        errors.NotBoundError,
        "update_metric: run forward first",
    ),
    "rows of a head gradient": (
        lambda: loaded(count=2).backward([np.zeros((7, 3))]),
        errors.ShapeError,
        "backward: head gradient 0 must have the 8 rows of all devices, but its shape is (7, 3)",
    ),
    "a head gradient of text": (
        lambda: loaded().backward("ones"),
        errors.BindError,
        "backward: head gradient 0 must be an array, but it is a str",
    ),
    "a number as head gradient": (
        lambda: loaded(count=2).backward(1),
        errors.BindError,
        "backward: head gradient 0 must be an array, but it is a int",
    ),
    "a dict of head gradients": (
        lambda: loaded(count=2).backward([{"softmax_output": np.zeros((8, 3))}]),
        errors.BindError,
        "backward: head gradient 0 must be an array, but it is a dict",
    ),
    "too many head gradients": (
        lambda: loaded().backward([None, np.zeros((8, 3))]),
        errors.BindError,
        "the executor of 'softmax' on cpu(0): backward: 2 head gradients for 1 outputs",
    ),
    # loading
    "count of arrays": (
        lambda: _load_general(arrays((2,)), arrays((2,), (2,))),
        errors.ShapeError,
        "a batch must have 2 arrays (0, 1), but it has 1",
    ),
    "no array": (
        lambda: _load_general([[1, 2]], arrays((2,)), ["data"]),
        errors.BindError,
        "'data' of the batch must be an array, but it is a list",
    ),
    "rows of an array": (
        lambda: _load_general(arrays((5, 2)), [[(slice(0, 4), np.zeros((4, 2)))]]),
        errors.ShapeError,
        "array 0 of the batch must have 4 rows on axis 0, but its shape is (5, 2)",
    ),
    "shape of an array": (
        lambda: _load_general(arrays((4, 3)), [[(slice(0, 4), np.zeros((4, 2)))]], ["data"]),
        errors.ShapeError,
        "'data' of the batch must be (4, 2) for this device, but it is (4, 3)",
    ),
    "too few data arrays": (
        lambda: manager().load_data_batch(DataBatch([], arrays((8,)))),
        errors.ShapeError,
        "a batch must have 1 data arrays (data), but it has 0",
    ),
    "too many labels": (
        lambda: manager().load_data_batch(DataBatch(arrays((8, 6)), arrays((8,), (8,)))),
        errors.ShapeError,
        "a batch must have 1 label arrays (softmax_label), but it has 2",
    ),
    "a list as data": (
        lambda: manager().load_data_batch(DataBatch([[1.0]], arrays((8,)))),
        errors.BindError,
        "'data' of the batch must be an array, but it is a list",
    ),
    # managers
    "no device": (
        lambda: manager(ctx=[]),
        errors.DeviceError,
        "ctx must name devices, each once, but it is []",
    ),
    "a device twice": (
        lambda: manager(ctx=[ax.cpu(), ax.cpu()]),
        errors.DeviceError,
        "ctx must name devices, each once, but it is [cpu(0), cpu(0)]",
    ),
    "no context": (
        lambda: manager(ctx=["cpu"]),
        errors.DeviceError,
        "ctx must name devices, each once, but it is ['cpu']",
    ),
    "loads": (
        lambda: manager(work_load_list=[1, 2]),
        errors.DeviceError,
        "work_load_list has 2 loads for 1 devices",
    ),
    "grad_req": (
        lambda: manager(grad_req="null"),
        errors.ArgumentError,
        "grad_req must be 'write' or 'add', but it is 'null'",
    ),
    "max_groups": (
        lambda: manager(max_groups=0),
        errors.ArgumentError,
        "max_groups must be at least 1, or None for all, but it is 0",
    ),
    "no symbol": (
        lambda: DataParallelExecutorManager(None, ONE, FLAT),
        errors.ArgumentError,
        "a manager needs a symbol, or sym_gen to make one for every bucket",
    ),
    "param_names": (
        lambda: manager(param_names=["fc1_wieght"]),
        errors.UnknownNameError,
        "param_names: the symbol has no 'fc1_wieght'; did you mean 'fc1_weight' or 'fc2_weight'?",
    ),
    "aux_names": (
        lambda: manager(aux_names=["mean"]),
        errors.UnknownNameError,
        "aux_names: the symbol has no 'mean'",
    ),
    "fewer rows than devices": (
        lambda: manager(ctx=[ax.cpu(i) for i in range(9)]),
        errors.DeviceError,
        "split of 8 rows over 9 devices with loads [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]: every device needs a row, "
        "so the batch must have at least 9 rows",
    ),
    "labels of a metric": (
        lambda: loaded(count=2).update_metric(ax.metric.create("acc"), arrays((24,))),
        errors.ShapeError,
        "update_metric: label 'softmax_label' must have the 8 rows of the batch on axis 0, but it is (24,)",
    ),
    "no devices": (
        lambda: split_input_slice(8, []),
        errors.DeviceError,
        "split of 8 rows over 0 devices with loads []: there must be at least one device",
    ),
    "negative loads": (
        lambda: split_input_slice(8, [2, -1]),
        errors.DeviceError,
        "split of 8 rows over 2 devices with loads [2.0, -1.0]: loads must be finite, not negative and not all zero",
    ),
    "set_params of a stranger": (
        lambda: manager().set_params({"fc1_wieght": np.zeros(3)}),
        errors.UnknownNameError,
        "set_params: there is no 'fc1_wieght' among the parameters; did you mean 'fc1_weight' or 'fc2_weight'?",
    ),
    "set_params shape": (
        lambda: manager().set_params({"fc1_bias": np.zeros(3)}),
        errors.ShapeError,
        "set_params: 'fc1_bias' must be (8,), but the array given is (3,)",
    ),
    "set_params shape, kept for a bucket": (
        kept_shape,
        errors.ShapeError,
        "set_params: 'own3_bias' must be (4,), but the array given is (5,)",
    ),
    "copy_to of a stranger": (
        lambda: manager().copy_to({"fc1_wieght": np.zeros(3)}),
        errors.UnknownNameError,
        "copy_to: there is no 'fc1_wieght' among the parameters; did you mean 'fc1_weight' or 'fc2_weight'?",
    ),
    "forward before a batch": (
        lambda: manager().forward(),
        errors.NotBoundError,
        "forward: load a batch first (load_data_batch)",
    ),
    "backward before a batch": (
        lambda: manager().backward(),
        errors.NotBoundError,
        "backward: load a batch first (load_data_batch)",
    ),
    "update before a batch": (
        lambda: manager().update(print),
        errors.NotBoundError,
        "update: run backward first",
    ),
    "backward before forward": (
        lambda: loaded(ran=False).backward(),
        errors.NotBoundError,
        "backward: run forward first",
    ),
    "update before backward": (
        lambda: loaded().update(print),
        errors.NotBoundError,
        "update: run backward first",
    ),
    "backward into sums": (
        added,
        errors.NotBoundError,
        "backward would add to gradients that are summed over devices and ranks already: call zero_grad() after the update",
    ),
    # buckets
    "no default key": (
        lambda: buckets(FLAT),
        errors.BucketError,
        "with sym_gen a Described must have a default_bucket_key, but it has none",
    ),
    "no key": (
        lambda: buckets().load_data_batch(DataBatch(arrays((4, 5)), arrays((4, 5)))),
        errors.BucketError,
        "with sym_gen a DataBatch must have a bucket_key, but it has none",
    ),
    "key": (
        lambda: buckets().load_data_batch(DataBatch(arrays((4, 5)), arrays((4, 5)), bucket_key={5})),
        errors.BucketError,
        "a bucket key must be hashable (a number, a text, a tuple), but it is {5}",
    ),
    "no value": (
        lambda: valued_buckets().load_data_batch(DataBatch(arrays((4, 3)), arrays((4, 3)), bucket_key=3)),
        errors.BucketError,
        "bucket 3 brings 'own3_weight', which has no value: give it to set_params together with those of the other buckets",
    ),
    "a value under a name that is nearly that": (
        lambda: valued_buckets(own3_wieght=np.zeros((4, 4))).load_data_batch(
            DataBatch(arrays((4, 3)), arrays((4, 3)), bucket_key=3)
        ),
        errors.BucketError,
        "bucket 3 brings 'own3_weight', which has no value: give it to set_params together with those of the other buckets; "
        "did you mean 'own3_wieght'?",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_message(case: str) -> None:
    call, kind, text = CASES[case]
    with pytest.raises(errors.ArrayExecError) as caught:
        call()
    assert type(caught.value) is kind
    assert str(caught.value) == text


RANKS = "tests/parallel/test_ranks_train_failures.py::test_refusals_are_told_on_all_ranks"
UPDATES = "tests/parallel/test_shared_sums.py::test_updates_in_parts_and_local_steps_end_where_whole_ones_do"
ELSEWHERE = ("parallel/training_manager.py",)  # test_module_errors.py
RECORDER = Recorder(
    None,
    sorted({*(PACKAGE / "parallel").glob("*.py")} - {PACKAGE / name for name in (*MODULES, *ELSEWHERE)}),
    internal={"error"},  # what a thread of one device raised
    elsewhere={
        "parallel/executor_manager.py": {
            "buckets under ranks must be announced": RANKS,
            "was not announced; announced are": RANKS,
        },
        "parallel/consistency.py": {
            "something wrote to one of them": "tests/parallel/test_consistency.py::test_devices_of_one_process",
        },
        "parallel/uneven.py": {
            "uneven must be one of": "tests/parallel/test_uneven.py::test_other_words_are_refused",
            "batches so far": "tests/parallel/test_uneven.py::test_what_is_refused_is_told_on_all_ranks",
        },
        "parallel/gradient_sync.py": {
            "does not follow from the default bucket": RANKS,
            "must lie in a shared segment": UPDATES,
            "must move each element by its own gradient": UPDATES,
        },
    },
)


def test_every_refusal_is_reached() -> None:
    assert RECORDER.without_test() == []
    RECORDER.cases(**{name: call for name, (call, _, _) in CASES.items()})
    assert RECORDER.missing(RECORDER.run()) == []
