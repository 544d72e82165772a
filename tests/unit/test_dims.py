"""Partly known shapes: unknown dims absorb, comparing them defers, rules for moving dims let both through."""

from __future__ import annotations

import operator
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from arrayexec.dims import (
    ANY,
    UNKNOWN,
    Deferred,
    drop,
    from_user,
    insert,
    known,
    permute,
    product,
    replace,
    swap,
    through,
    to_user,
)


@pytest.mark.parametrize(
    "do",
    [operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod, operator.pow],
)
def test_arithmetic_with_the_unknown_dim_is_unknown(do: Callable[[Any, Any], Any]) -> None:
    assert do(UNKNOWN, 3) is UNKNOWN
    assert do(3, UNKNOWN) is UNKNOWN
    assert do(UNKNOWN, UNKNOWN) is UNKNOWN
    assert -UNKNOWN is UNKNOWN


@pytest.mark.parametrize("do", [operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge])
def test_comparing_the_unknown_dim_defers(do: Callable[[Any, Any], Any]) -> None:
    for pair in ((UNKNOWN, 3), (3, UNKNOWN), (UNKNOWN, UNKNOWN)):
        with pytest.raises(Deferred):
            do(*pair)


@pytest.mark.parametrize("do", [bool, int, range, lambda dim: [1, 2][dim]])
def test_the_unknown_dim_is_no_number(do: Callable[[Any], Any]) -> None:
    with pytest.raises(Deferred):
        do(UNKNOWN)


def test_the_unknown_shape_gives_itself_and_unknown_dims() -> None:
    assert ANY[0] is UNKNOWN
    assert ANY[-1] is UNKNOWN
    assert ANY[1:] is ANY
    tail = (3, 4)
    assert ANY + tail is ANY
    assert tail + ANY is ANY


@pytest.mark.parametrize("do", [len, list, bool, lambda shape: shape == (), lambda shape: shape != ()])
def test_counting_the_unknown_shape_defers(do: Callable[[Any], Any]) -> None:
    with pytest.raises(Deferred):
        do(ANY)


def test_both_are_single_and_stay_so_when_pickled() -> None:
    assert pickle.loads(pickle.dumps((UNKNOWN, ANY))) == (UNKNOWN, ANY)
    again = pickle.loads(pickle.dumps([UNKNOWN, ANY]))
    assert again[0] is UNKNOWN
    assert again[1] is ANY
    assert (repr(UNKNOWN), repr(ANY)) == ("?", "?")
    assert len({UNKNOWN, ANY}) == 2


def test_known() -> None:
    assert known(())
    assert known((0, 3))
    assert not known((3, UNKNOWN))
    assert not known(ANY)


def test_product() -> None:
    assert product(()) == 1
    assert product((2, 3, 4)) == 24
    assert product((2, UNKNOWN)) is UNKNOWN
    assert product((0, UNKNOWN)) is UNKNOWN
    assert product(ANY) is UNKNOWN


def test_rules_move_dims_and_let_unknown_ones_through() -> None:
    shape = (2, UNKNOWN, 4)
    assert swap(shape, 0, 2) == (4, shape[1], 2)
    assert permute((2, 3, 4), (2, 0, 1)) == (4, 2, 3)
    assert replace((2, 3), -1, 7) == (2, 7)
    assert replace((2, 3), 0, UNKNOWN)[0] is UNKNOWN
    assert drop((2, 3, 4), 1) == (2, 4)
    assert insert((2, 3), 0, 9) == (9, 2, 3)
    assert insert((2, 3), -1, 9) == (2, 3, 9)
    assert insert((2, 3), -2, 9) == (2, 9, 3)
    for found in (swap(ANY, 0, 1), permute(ANY, (0,)), replace(ANY, 0, 1), drop(ANY, 0), insert(ANY, 0, 1)):
        assert found is ANY


def test_through_gives_the_unknown_shape_where_a_rule_defers() -> None:
    @through
    def rule(shape: Any) -> Any:
        return (1,) if shape[0] > 1 else (2,)

    assert rule((3,)) == (1,)
    assert rule((UNKNOWN,)) is ANY
    assert rule(ANY) is ANY


def test_the_edge_of_the_api_spells_unknown_as_zero() -> None:
    assert from_user(None) is ANY
    assert from_user(()) is ANY
    shape = from_user((0, 3))
    assert shape[0] is UNKNOWN
    assert shape[1] == 3
    assert to_user(ANY) == ()
    assert to_user((UNKNOWN, 3)) == (0, 3)
    assert to_user(from_user((0, 3, 0))) == (0, 3, 0)
