"""The strict device of the tests itself: it refuses, it is late, it sees races. Else what it guards is not guarded."""

from __future__ import annotations

import numpy as np
import pytest

from arrayexec.context import Context, asnumpy, context_of, copyto, namespace
from tests.strict_device import HostMixingError, RaceError, Stream, StrictArray, UnsupportedError, strict


@pytest.fixture
def context() -> Context:
    return strict(0)


def put(context: Context, values: object) -> StrictArray:
    host = np.asarray(values, np.float32)
    array = context.empty(host.shape, host.dtype, "input")
    copyto(array, host)
    return array


def test_work_is_late_and_right(context: Context) -> None:
    device, xp = context.device, context.xp
    first, second = put(context, np.arange(12).reshape(3, 4)), put(context, np.ones((4, 3)))
    out = context.empty((3, 3), np.float32, "output")
    with context.enter():
        xp.matmul(first, second, out=out)
        xp.add(out, 1, out=out)
        rows = (out * 2).sum(axis=1, keepdims=True)
        out[1:2] *= 10
        xp.copyto(out, 0, where=out > 200)
    assert np.isnan(out._values).all(), "nothing has run yet"
    assert device.pending == 10  # two uploads, eight operations
    expected = np.arange(12.0).reshape(3, 4) @ np.ones((4, 3)) + 1
    assert asnumpy(rows).tolist() == (expected * 2).sum(axis=1, keepdims=True).tolist()
    expected[1] *= 10
    expected[expected > 200] = 0
    assert asnumpy(out).tolist() == expected.tolist()
    assert device.pending == 0


def test_views_share_storage(context: Context) -> None:
    buffer = context.allocate(96, "arena", zero=True)
    whole = context.view(buffer, 0, (4, 6), np.float32)
    whole[...] = 1
    whole.transpose()[1:3, ::2] = 5
    whole.reshape(2, 2, 6)[1, 1] = 7
    whole[0, 0] = -1
    assert asnumpy(whole[1]).tolist() == [1, 1, 1, 1, 1, 1]
    expected = np.ones((4, 6))
    expected.T[1:3, ::2] = 5
    expected.reshape(2, 2, 6)[1, 1] = 7
    expected[0, 0] = -1
    assert asnumpy(context.view(buffer, 0, (24,), np.float32)).tolist() == expected.ravel().tolist()
    copied = whole.T.reshape(24)  # this order needs a copy, which is late as well
    whole[...] = 0
    assert asnumpy(copied).tolist() == expected.T.ravel().tolist()


@pytest.mark.parametrize(
    "use",
    [
        lambda a, xp: np.add(a, 1),
        lambda a, xp: np.sum(a),
        lambda a, xp: np.asarray(a),
        lambda a, xp: np.ones(2, np.float32) + a,
        lambda a, xp: a + np.ones(2, np.float32),
        lambda a, xp: np.add(np.ones(2), np.ones(2), out=a),
        lambda a, xp: xp.add(a, np.ones(2)),
        lambda a, xp: xp.concatenate([a, np.ones(2)]),
        lambda a, xp: a.__setitem__(0, np.ones(1)),
        lambda a, xp: a.__setitem__(..., [1, 2]),
        lambda a, xp: a[np.array([0, 1])],
        lambda a, xp: float(a[0]),
        lambda a, xp: int(a[0]),
        lambda a, xp: bool(a[0] > 1),
        lambda a, xp: [1, 2][a[0]],
        lambda a, xp: list(a),
        lambda a, xp: 1.0 in a,
        lambda a, xp: a.tolist(),
    ],
)
def test_refuses_to_mix_with_the_host(context: Context, use: object) -> None:
    with pytest.raises(HostMixingError):
        use(put(context, [1, 2]), context.xp)  # type: ignore[operator]


@pytest.mark.parametrize(
    "use",
    [
        lambda a, xp: xp.sum(a, where=a > 0),
        lambda a, xp: xp.maximum.reduce(a),
        lambda a, xp: xp.add(a, 1, order="C"),
        lambda a, xp: xp.matmul(a, a, where=a > 0),
        lambda a, xp: xp.einsum("i,i->i", a, a, out=a),
        lambda a, xp: xp.take(a, [0], mode="clip"),
        lambda a, xp: xp.errstate(),
        lambda a, xp: xp.random.rand(2),
        lambda a, xp: xp.nonzero(a),
        lambda a, xp: xp.where(a > 0),
        lambda a, xp: a[a > 0],
    ],
)
def test_refuses_what_cupy_lacks(context: Context, use: object) -> None:
    with pytest.raises(UnsupportedError):
        use(put(context, [1, 2]), context.xp)  # type: ignore[operator]


def test_indices_and_scatter(context: Context) -> None:
    array = put(context, [[1, 2], [3, 4], [5, 6]])
    index = context.empty((3,), np.int64, "input")
    copyto(index, [2, 0, 2])
    assert asnumpy(array[index]).tolist() == [[5, 6], [1, 2], [5, 6]]
    assert asnumpy(array[[1, 1]]).tolist() == [[3, 4], [3, 4]]
    context.xp.add.at(array, index, 1)
    assert asnumpy(array).tolist() == [[2, 3], [3, 4], [7, 8]]
    taken = context.empty((3, 2), np.float32, "output")
    context.xp.take(array, index, axis=0, out=taken)
    assert asnumpy(taken).tolist() == [[7, 8], [2, 3], [7, 8]]


def test_log_of_copies_waits_and_temporaries(context: Context) -> None:
    array = put(context, [1, 2])
    _ = array + 1
    other = context.zeros((2,), np.float16, "output")
    copyto(other, array)
    context.synchronize()
    assert context.device.log == [
        ("allocate", 8),
        ("wait", "context for caller"),
        ("from_host", (2,)),
        ("wait", "caller for context"),
        ("temporary", "add", (2,), 8),
        ("allocate", 4),
        ("wait", "context for caller"),
        ("copy", (2,)),
        ("wait", "caller for context"),
        ("synchronize",),
    ]
    assert context.device.count("wait") == 4
    assert asnumpy(other).tolist() == [1, 2]


def test_races_are_seen(context: Context) -> None:
    device, xp = context.device, context.xp
    array, out = put(context, [1, 2]), context.zeros((2,), np.float32, "output")
    side = Stream("side")
    with device.use(side), pytest.raises(RaceError, match="add on stream 'side' touches an array that"):
        xp.add(array, 1, out=out)  # written by the context's stream, for which this one does not wait
    side.wait(device.stream.record())
    with device.use(side):
        xp.add(array, 1, out=out)
    with pytest.raises(RaceError):
        xp.multiply(out, 2, out=out)  # the default stream does not wait for side
    with pytest.raises(RaceError), device.use(device.default_stream):
        array[...] = 0  # side may still be reading it
    with pytest.raises(RaceError), context.enter():
        xp.add(out, 1, out=out)  # enter() waits for the caller's stream, not for side
    device.default_stream.wait(side.record())
    with context.enter():
        xp.add(out, 1, out=out)
    assert asnumpy(out).tolist() == [3, 4]


def test_waiting_host_ends_all_races(context: Context) -> None:
    device = context.device
    array = put(context, [1, 2])
    context.synchronize()
    with device.use(Stream("side")):
        array *= 2
    assert array._values.tolist() == [1, 2]
    context.synchronize()
    assert array._values.tolist() == [2, 4]


def test_devices_do_not_mix() -> None:
    first, second = strict(0), strict(1)
    here, there = put(first, [1, 2]), put(second, [3, 4])
    with pytest.raises(HostMixingError, match=r"arrays of strict\(0\) and strict\(1\) are mixed"):
        first.xp.add(here, there, out=here)
    copyto(here, there)
    assert asnumpy(here).tolist() == [3, 4]
    assert context_of(here) == first
    assert context_of(there) == second
    assert namespace(there) is second.xp


def test_an_error_says_where_it_was_queued(context: Context) -> None:
    out = context.zeros((3,), np.float32, "output")
    context.xp.add(put(context, [1, 2]), 1, out=out)
    with pytest.raises(ValueError, match="broadcast") as caught:
        context.synchronize()
    assert "add, queued at" in caught.value.__notes__[0]
    assert "test_strict_device.py" in caught.value.__notes__[0]


def test_memory_is_poison_until_written(context: Context) -> None:
    assert np.isnan(asnumpy(context.empty((3,), np.float32, "arena"))).all()
    assert asnumpy(context.zeros((3,), np.float32, "arena")).tolist() == [0, 0, 0]
    assert context.allocate(100, "arena")._values.ctypes.data % 256 == 0
