"""``parallelize`` on GPUs that are strict devices of the tests: the numbers of the processor, with and without NCCL."""

from __future__ import annotations

from typing import Any

import pytest

import arrayexec as ax
from arrayexec.context import asnumpy
from tests.parallel import fake_nccl
from tests.parallel.parallelized import MODELS, alike, batches

NAMES = [name for name, (_, _, options) in MODELS.items() if not options.get("shared_model")]  # refused on GPUs


def train(name: str, make: Any, **more: Any) -> dict[str, Any]:
    ax.random.seed(7)
    net, _, options = MODELS[name]
    model = make(ax.ModelHelper(name), None, net, devices=[2, 0], **{**options, **more}).init()
    for data, label in batches(name):
        model.feed("data", data)
        model.feed("label", label)
        model.run()
    replicas = [{**device.params, **device.computed} for device in model.devices]
    found = [{key: asnumpy(value).copy() for key, value in replica.items()} for replica in replicas]
    for key in model.master.params:
        assert (found[0][key] == found[1][key]).all(), key
    return found[0]


@pytest.mark.parametrize("name", NAMES)
def test_gpus_train_as_processors_do_and_nccl_joins_them(name: str) -> None:
    remove = fake_nccl.install(3)
    try:
        wanted = train(name, ax.parallelize_cpu)
        alike(train(name, ax.parallelize_gpu), wanted, name)
        assert fake_nccl.log == []
        alike(train(name, ax.parallelize_gpu, use_nccl=True), wanted, name)
    finally:
        remove()
    meeting, *calls = fake_nccl.log
    assert meeting == ("meet all", 2, 0)
    assert {(entry[0], entry[3]) for entry in calls} == {("allReduce", 2), ("allReduce", 0)}
    assert all(entry[2] == "float32" for entry in calls)


def test_auto_takes_nccl_where_it_is() -> None:
    for available in (True, False):
        remove = fake_nccl.install(3, available)
        try:
            train("sgd", ax.parallelize_gpu, use_nccl="auto")
        finally:
            remove()
        assert bool(fake_nccl.log) == available
