"""Devices of one process and one rank alone on a fake NCCL; that the fake sees what it is there to see."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest

import arrayexec as ax
from arrayexec.comm import nccl
from arrayexec.comm.nccl import DeviceGroup
from arrayexec.context import asnumpy
from arrayexec.errors import BackendUnavailableError, CollectiveError, CollectiveTimeoutError
from tests.parallel import fake_nccl
from tests.parallel.fake_nccl import LifetimeError
from tests.strict_device import RaceError


@pytest.fixture
def gpus() -> Iterator[list[ax.Context]]:
    remove = fake_nccl.install(3)
    yield [ax.gpu(i) for i in range(3)]
    remove()


def filled(where: ax.Context, values: Any, dtype: Any = numpy.float32) -> Any:
    host = numpy.asarray(values, dtype)
    array = where.empty(host.shape, host.dtype, "gradient")
    where.from_host(host, array)
    return array


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i1", "u1", "i4", "u4", "i8", "u8", "c8", "c16"])
def test_a_sum_over_devices_is_one_grouped_call_in_place(gpus: list[ax.Context], dtype: str) -> None:
    group = DeviceGroup(gpus)
    arrays = [filled(where, numpy.arange(6).reshape(2, 3) * (i + 1), dtype) for i, where in enumerate(gpus)]
    group.allreduce(arrays)
    for array in arrays:
        assert (asnumpy(array) == numpy.arange(6).reshape(2, 3) * 6).all()
    real, count = {"c8": ("float32", 12), "c16": ("float64", 12)}.get(dtype, (str(numpy.dtype(dtype)), 6))
    assert fake_nccl.log == [("meet all", 0, 1, 2), *(("allReduce", count, real, i) for i in range(3))]


def test_a_copy_comes_from_the_root_whatever_the_type(gpus: list[ax.Context]) -> None:
    group = DeviceGroup(gpus[1:])
    for root in range(2):
        arrays = [filled(where, numpy.arange(4) + i, numpy.int16) for i, where in enumerate(gpus[1:])]
        group.broadcast(arrays, root)
        assert all((asnumpy(array) == numpy.arange(4) + root).all() for array in arrays)
    assert fake_nccl.log[-1] == ("broadcast", 8, "uint8", 2)


def test_the_host_waits_for_nothing(gpus: list[ax.Context]) -> None:
    group = DeviceGroup(gpus[:2])
    arrays = [filled(where, [1, 2]) for where in gpus[:2]]
    for where in gpus[:2]:
        where.synchronize()
        where.device.log.clear()
    for _ in range(3):
        for where, array in zip(gpus, arrays, strict=False):
            with where.enter():
                array *= 2
        group.allreduce(arrays)
    for where in gpus[:2]:
        assert (where.device.count("synchronize"), where.device.count("to_host")) == (0, 0)
        assert where.device.pending > 0
    group.wait()
    assert [asnumpy(array).tolist() for array in arrays] == [[64, 128]] * 2


def broken(monkeypatch: pytest.MonkeyPatch, cls: type, name: str, instead: Callable[..., Any]) -> None:
    monkeypatch.setattr(cls, name, instead)


def test_the_fake_sees_a_stream_that_does_not_wait(gpus: list[ax.Context], monkeypatch: pytest.MonkeyPatch) -> None:
    group = DeviceGroup(gpus)
    arrays = [filled(where, [1]) for where in gpus]
    with monkeypatch.context() as patch:
        broken(patch, nccl._Channel, "follow", lambda self: None)
        with pytest.raises(RaceError, match=r"allReduce on stream 'gpu\(0\) NCCL' touches an array that 'gpu\(0\)"):
            group.allreduce(arrays)


def test_the_fake_sees_a_context_that_does_not_wait(gpus: list[ax.Context], monkeypatch: pytest.MonkeyPatch) -> None:
    group = DeviceGroup(gpus)
    arrays = [filled(where, [1]) for where in gpus]
    broken(monkeypatch, nccl._Flight, "settle", lambda self: None)
    group.allreduce(arrays)
    with pytest.raises(RaceError, match=r"multiply on stream 'gpu\(0\)' touches an array that 'gpu\(0\) NCCL'"), gpus[0].enter():
        arrays[0] *= 2


def test_the_fake_sees_memory_that_is_given_back(gpus: list[ax.Context], monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(self: Any, what: str, array: Any) -> Any:
        return kept(self, what, object())

    kept = nccl._Channel.launched
    group = DeviceGroup(gpus[:2])
    group.allreduce([filled(where, [1]) for where in gpus[:2]])
    group.wait()
    broken(monkeypatch, nccl._Channel, "launched", forgetful)
    group.allreduce([filled(where, [1]) for where in gpus[:2]])
    with pytest.raises(LifetimeError):
        group.wait()


def test_the_fake_sees_calls_that_are_not_grouped(gpus: list[ax.Context]) -> None:
    group = DeviceGroup(gpus)
    channel = group._channels[0]
    array = filled(gpus[0], [1])
    channel.follow()
    with pytest.raises(AssertionError, match="must be grouped"):
        channel.queue(array, None)


def test_a_group_that_is_stuck_ends_at_the_deadline(gpus: list[ax.Context]) -> None:
    group = DeviceGroup(gpus[:2])
    arrays = [filled(where, [1]) for where in gpus[:2]]
    fake_nccl.faults.stuck = True
    group.allreduce(arrays)
    with pytest.raises(CollectiveTimeoutError) as caught:
        group.wait(0.05)
    assert str(caught.value) == "DeviceGroup: the collectives of gpu(0), gpu(1) did not end in 0.05 s"
    assert sorted(fake_nccl.log[-2:]) == [("abort", 0), ("abort", 1)]
    with pytest.raises(CollectiveError) as after:
        group.allreduce(arrays)
    assert str(after.value) == (
        "DeviceGroup: no allreduce can follow what failed: DeviceGroup: the collectives of gpu(0), gpu(1) did not end in 0.05 s"
    )


def test_an_error_that_nccl_reports_later_is_raised_by_whatever_comes_next(gpus: list[ax.Context]) -> None:
    group = DeviceGroup(gpus[:2])
    arrays = [filled(where, [1]) for where in gpus[:2]]
    fake_nccl.faults.late_error = True
    group.allreduce(arrays)
    with pytest.raises(CollectiveError) as caught:
        group.allreduce(arrays)
    assert str(caught.value) == (
        "NCCL failed in allreduce of a group of devices on gpu(0): "
        "NCCL_ERROR_REMOTE_ERROR: remote process exited or there was a network error\n"
        "  what NCCL itself says about it: run again with NCCL_DEBUG=WARN"
    )
    assert fake_nccl.log[-2:] == [("abort", 0), ("abort", 1)]


def test_a_group_is_joined_where_the_option_says_so(gpus: list[ax.Context]) -> None:
    assert nccl.join(gpus, False) is None
    assert nccl.join(gpus[:1], True) is None
    assert nccl.join([ax.cpu(0), ax.cpu(1)], "auto") is None
    for use_nccl in (True, "auto"):
        joined = nccl.join(gpus, use_nccl)
        assert joined is not None
        assert joined.contexts == tuple(gpus)


def test_auto_is_without_nccl_where_there_is_no_library() -> None:
    remove = fake_nccl.install(2, available=False)
    try:
        assert nccl.join([ax.gpu(0), ax.gpu(1)], "auto") is None
        with pytest.raises(BackendUnavailableError):
            nccl.join([ax.gpu(0), ax.gpu(1)], True)
    finally:
        remove()


def test_settings_of_nccl_that_the_user_has_made_stay(gpus: list[ax.Context], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_ALGO", "Tree")
    for name in ("NCCL_NVLS_ENABLE", "NCCL_RUNTIME_CONNECT"):
        monkeypatch.delenv(name, raising=False)
    fake_nccl.forget()
    DeviceGroup(gpus[:1])
    import os

    assert [os.environ[name] for name in ("NCCL_ALGO", "NCCL_NVLS_ENABLE", "NCCL_RUNTIME_CONNECT")] == ["Tree", "0", "0"]
