"""Batches drawn ahead: what is ready when, faults, leaving early, forks, states, and time that overlaps."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
import traceback
import weakref

import numpy
import pytest

from arrayexec.errors import AttributeValueError, CheckpointError
from arrayexec.train import io, random


@pytest.fixture(autouse=True)
def one_seed():
    random.seed(0)


class Counting(io.DataIter):
    """``count`` batches of one number, each after ``seconds``; keeps what has been drawn."""

    def __init__(self, count=5, seconds=0.0, fail_at=None):
        super().__init__(1)
        self.provide_data, self.provide_label = [io.DataDesc("data", (1,))], []
        self.count, self.seconds, self.fail_at = count, seconds, fail_at
        self.drawn, self.resets = 0, 0

    def next(self):
        if self.drawn >= self.count:
            raise StopIteration
        time.sleep(self.seconds)
        self.drawn += 1
        if self.drawn == self.fail_at:
            broken_decoder(self.drawn)
        return io.DataBatch([numpy.full(1, self.drawn)], [], 0)

    def reset(self):
        self.drawn, self.resets = 0, self.resets + 1


def broken_decoder(number):
    raise OSError(f"batch {number} cannot be decoded")


def values(iterator):
    return [int(batch.data[0][0]) for batch in iterator]


def settled(iterator):
    """How many have been drawn, once the thread has nothing to do."""
    deadline = time.monotonic() + 10
    while any(a._more and len(a._ready) < a.depth for a in iterator._ahead) and time.monotonic() < deadline:
        time.sleep(0.001)
    return [inner.drawn for inner in iterator.iters]


@pytest.mark.parametrize("depth", [0, 1, 2, 4, 9])
def test_as_many_are_ready_as_were_asked_for(depth):
    ahead = io.PrefetchingIter(Counting(6), depth=depth)
    assert settled(ahead) == [0]
    for step in range(1, 7):
        assert int(next(ahead).data[0][0]) == step
        assert settled(ahead) == [min(step + depth, 6)]
    assert values(ahead) == []
    ahead.reset()
    assert values(ahead) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("depth", [-1, 1.5, True])
def test_depth_is_a_count(depth):
    with pytest.raises(AttributeValueError, match="depth must be an integer >= 0"):
        io.PrefetchingIter(Counting(), depth=depth)


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_a_fault_arrives_in_its_place_with_the_place_where_it_arose(depth):
    ahead = io.PrefetchingIter(Counting(4, fail_at=3), depth=depth)
    assert [int(next(ahead).data[0][0]) for _ in range(2)] == [1, 2]
    with pytest.raises(OSError, match="batch 3 cannot be decoded") as caught:
        next(ahead)
    assert "broken_decoder" in [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert values(ahead) == [4]


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_whatever_is_raised_arrives(error):
    class Raising(Counting):
        def next(self):
            raise error

    with pytest.raises(error):
        next(io.PrefetchingIter(Raising()))


def test_a_fault_in_one_of_several_keeps_them_in_step():
    ahead = io.PrefetchingIter([Counting(4, fail_at=2), Counting(4)])
    next(ahead)
    with pytest.raises(OSError):
        next(ahead)
    assert [int(array[0]) for array in next(ahead).data] == [3, 3]


def test_several_iterators_are_drawn_at_the_same_time():
    ahead = io.PrefetchingIter([Counting(3, 0.3) for _ in range(4)])
    start = time.perf_counter()
    next(ahead)
    assert time.perf_counter() - start < 0.9  # one after the other: 1.2


def test_names_of_one_iterator_are_changed_in_its_batches():
    inner = io.NDArrayIter(numpy.zeros((4, 2)), numpy.zeros(4), batch_size=2)
    ahead = io.PrefetchingIter(inner, [{"data": "left"}], [{"softmax_label": "right"}])
    batch = next(ahead)
    assert [desc.name for desc in batch.provide_data + batch.provide_label] == ["left", "right"]


def test_names_of_buckets_are_changed_with_the_shapes_of_the_bucket():
    sentences = [[1] * length for length in (2, 2, 3, 3)]
    inner = io.BucketSentenceIter(sentences, 2)
    ahead = io.PrefetchingIter(inner, [{"data": "words"}])
    assert (ahead.buckets, ahead.default_bucket_key) == ([2, 3], 3)
    for batch in ahead:
        assert tuple(batch.provide_data[0]) == ("words", (2, batch.bucket_key))


def test_a_loop_that_is_left_leaves_no_thread_and_no_iterator():
    before = threading.active_count()
    inner = Counting(1000, 0.001)
    kept = weakref.ref(inner)
    for batch in io.PrefetchingIter(inner, depth=3):
        if int(batch.data[0][0]) == 5:
            break
    del inner, batch
    deadline = time.monotonic() + 10
    while (threading.active_count() > before or kept() is not None) and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.005)
    assert threading.active_count() <= before
    assert kept() is None


def test_reset_in_the_middle_waits_for_one_batch_at_most():
    ahead = io.PrefetchingIter(Counting(100, 0.02), depth=50)
    next(ahead)
    start = time.perf_counter()
    ahead.reset()
    assert time.perf_counter() - start < 0.5  # all 50: 1 s
    assert (values(io.ResizeIter(ahead, 3)), ahead.iters[0].resets) == ([1, 2, 3], 1)


@pytest.mark.parametrize("how", ["return", "raise", "exit"])
def test_the_program_ends_while_a_batch_is_drawn(how):
    last = {"return": "pass", "raise": "raise RuntimeError('x')", "exit": "import sys; sys.exit(3)"}[how]
    program = f"""
import time
from arrayexec.train import io
import numpy
class Endless(io.DataIter):
    provide_data, provide_label = [], []
    def next(self):
        time.sleep(0.01)
        return io.DataBatch([numpy.zeros(1)])
kept = io.PrefetchingIter(Endless(1), depth=1000)
next(kept)
{last}
"""
    done = subprocess.run([sys.executable, "-c", program], timeout=60, capture_output=True, text=True, check=False)
    assert done.returncode == {"return": 0, "raise": 1, "exit": 3}[how]
    assert "Fatal" not in done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_the_child_of_a_fork_draws_for_itself():
    ahead = io.PrefetchingIter(Counting(3))
    next(ahead)
    settled(ahead)
    child = os.fork()
    if child == 0:
        os._exit(0 if values(ahead) == [2, 3] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert values(ahead) == [2, 3]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.parametrize("depth", [1, 3])
def test_a_batch_that_was_drawn_at_the_time_of_the_fork_is_drawn_again(depth):
    class Slow(io.NDArrayIter):
        def read(self, rows):
            time.sleep(0.1)
            return super().read(rows)

    ahead = io.PrefetchingIter(Slow(numpy.arange(6.0)), depth=depth)
    next(ahead)
    time.sleep(0.05)
    child = os.fork()
    if child == 0:
        os._exit(0 if values(ahead) == [1, 2, 3, 4, 5] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert values(ahead) == [1, 2, 3, 4, 5]


def test_error_handling_of_numpy_is_that_of_the_caller():
    class Dividing(Counting):
        def next(self):
            return io.DataBatch([numpy.ones(1) / numpy.zeros(1)], [], 0)

    with numpy.errstate(divide="raise"), pytest.raises(FloatingPointError):
        next(io.PrefetchingIter(Dividing()))
    with numpy.errstate(divide="ignore"):
        assert numpy.isinf(next(io.PrefetchingIter(Dividing())).data[0][0])


def test_loading_overlaps_with_the_step():
    """Serial it is 1.8 of a step; the margin is wide for machines that are busy."""
    step, steps = 0.03, 10

    def seconds(iterator):
        next(iterator)
        start = time.perf_counter()
        for _ in range(steps):
            time.sleep(step)
            next(iterator)
        return (time.perf_counter() - start) / steps

    assert seconds(Counting(20, 0.8 * step)) > 1.7 * step
    assert min(seconds(io.PrefetchingIter(Counting(20, 0.8 * step))) for _ in range(3)) < 1.5 * step


# --- states ----------------------------------------------------------------------------------------------------------


def rows(iterator):
    return [numpy.asarray(batch.index).tolist() for batch in iterator]


@pytest.mark.parametrize("depth", [0, 1, 5])
@pytest.mark.parametrize("taken", [0, 1, 3, 5])
def test_a_state_is_that_of_the_batch_in_hand_not_of_those_drawn_ahead(depth, taken):
    def made():
        inner = io.NDArrayIter(numpy.arange(17.0), batch_size=4, shuffle=True)
        return io.PrefetchingIter(io.ResizeIter(inner, 6), depth=depth)

    ahead, other = made(), made()
    list(ahead)
    ahead.reset()
    for _ in range(taken):
        next(ahead)
    other.set_state(ahead.get_state())
    for _ in range(2):
        assert rows(other) == rows(ahead) != []
        other.reset(), ahead.reset()


def test_state_of_sentences_in_several_iterators():
    sentences = [[1] * (2 + i % 3) for i in range(40)]

    def made():
        return io.PrefetchingIter([io.BucketSentenceIter(sentences, 3) for _ in range(2)])

    ahead, other = made(), made()
    for _ in range(4):
        next(ahead)
    state = ahead.get_state()
    random.seed(8)
    other.set_state(state)
    random.seed(0)
    for _ in range(2):
        pairs = list(zip(ahead, other, strict=True))
        assert pairs
        for one, two in pairs:
            assert (one.bucket_key, one.index.tolist()) == (two.bucket_key, two.index.tolist())
        ahead.reset(), other.reset()


def test_a_state_that_is_not_there_is_only_missed_by_who_asks():
    ahead = io.PrefetchingIter(Counting(3))
    assert values(ahead) == [1, 2, 3]
    with pytest.raises(CheckpointError, match=r"Counting: the class must define get_state\(\)"):
        ahead.get_state()
    with pytest.raises(CheckpointError, match="must be of 1 iterators, but it is of 2"):
        ahead.set_state({"iters": [{}, {}]})
    with pytest.raises(CheckpointError, match=r"Counting: the class must define set_state\(\)"):
        ahead.set_state({"iters": [{}]})
