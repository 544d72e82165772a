"""Random streams: the numbers of a row depend on seed, name, step and place in the global batch, on nothing else."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import numpy as np
import pytest

from arrayexec import streams
from arrayexec.streams import BLOCK, RunPosition, Stream, current_seed, seed, width


@pytest.fixture(autouse=True)
def seed_as_before() -> Iterator[None]:
    before = current_seed()
    yield
    seed(before)


def draw(
    name: str, rows: int, columns: int, step: int = 0, first: int = 0, shared: bool = False, kind: int = 0
) -> np.ndarray:
    out = np.full((rows, columns), np.nan, np.float32)
    Stream(name, RunPosition(step, first), kind).uniform(out, shared)
    return out


def test_rows_are_those_of_the_whole_batch_wherever_they_are_drawn() -> None:
    whole = draw("drop", 12, 24)
    for start, stop in ((0, 5), (5, 12), (3, 4)):
        np.testing.assert_array_equal(draw("drop", stop - start, 24, first=start), whole[start:stop])


def test_numbers_are_those_of_philox_with_the_stated_key_and_counter() -> None:
    seed(7)
    key = [7, zlib.crc32(b"drop") | 2 << 32]
    expected = np.random.Generator(np.random.Philox(key=key, counter=[3 * 2, 0, 5, 0])).random((4, 16), np.float32)
    np.testing.assert_array_equal(draw("drop", 4, 16, step=5, first=3, kind=2), expected)


def test_everything_that_names_a_stream_changes_it() -> None:
    base = draw("a", 4, 8)
    np.testing.assert_array_equal(base, draw("a", 4, 8))
    others = [draw("b", 4, 8), draw("a", 4, 8, step=1), draw("a", 4, 8, first=4), draw("a", 4, 8, kind=1)]
    seed(current_seed() + 1)
    others.append(draw("a", 4, 8))
    for i, other in enumerate(others):
        for earlier in (base, *others[:i]):
            assert not (earlier == other).any()


def test_a_shared_draw_is_the_same_for_every_part_of_the_batch() -> None:
    np.testing.assert_array_equal(draw("a", 3, 8, first=5, shared=True), draw("a", 3, 8))


def test_values_are_uniform_in_the_half_open_unit_interval() -> None:
    values = draw("a", 500, 200)
    assert values.min() >= 0.0
    assert values.max() < 1.0
    assert abs(values.mean() - 0.5) < 0.003
    assert abs(values.var() - 1 / 12) < 0.001
    counts = np.histogram(values, 10, (0, 1))[0]
    assert np.abs(counts - 10_000).max() < 500


def test_width_fills_whole_blocks() -> None:
    assert [width(count) for count in (0, 1, BLOCK - 1, BLOCK, BLOCK + 1)] == [0, BLOCK, BLOCK, BLOCK, 2 * BLOCK]


def test_seed_is_one_for_the_program() -> None:
    seed(np.int64(11))  # type: ignore[arg-type]
    assert current_seed() == 11
    assert streams._seed == 11


def test_a_row_has_a_generator_of_its_own() -> None:
    stream = Stream("gamma", RunPosition(5, 3), 2)
    drawn = [stream.row(number).integers(0, 2**63, 4) for number in (0, 1, 0)]
    np.testing.assert_array_equal(drawn[0], drawn[2])
    assert not (drawn[0] == drawn[1]).any()
    key = [current_seed(), zlib.crc32(b"gamma") | 2 << 32]
    expected = np.random.Generator(np.random.Philox(key=key, counter=[0, 3 + 1 + 1, 5, 0]))
    np.testing.assert_array_equal(drawn[1], expected.integers(0, 2**63, 4))


def test_float64_rows_are_those_of_the_whole_batch_too() -> None:
    whole, part = np.empty((6, 8)), np.empty((2, 8))
    Stream("a", RunPosition()).uniform(whole)
    Stream("a", RunPosition(0, 3)).uniform(part)
    np.testing.assert_array_equal(part, whole[3:5])
