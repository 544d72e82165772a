"""How a plan guesses the size of its products from what operators declare, by which it chooses threads."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

import arrayexec as ax
from arrayexec import registry
from arrayexec.executor import bound
from arrayexec.registry import Op, register_op


@pytest.fixture
def guesses(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    seen: list[float] = []

    def one_thread_for(operations: float) -> contextlib.AbstractContextManager[object]:
        seen.append(operations)
        return contextlib.nullcontext()

    monkeypatch.setattr(bound, "one_thread_for", one_thread_for)
    yield seen
    for name in [name for name, cls in registry._OPERATORS.items() if cls.__module__ == __name__]:
        del registry._OPERATORS[name]


def product(title: str, **declared: Any) -> None:
    """Register an operator with two inputs of its data's shape."""

    class Product(Op):
        def infer(self, s: Any) -> None:
            s.out = s.other = s.data

        def forward(self, xp: Any, data: Any, other: Any, out: Any) -> None:
            xp.multiply(data, other, out=out)

        def backward(self, xp: Any, dout: Any, data: Any, other: Any, ddata: Any, dother: Any) -> None: ...

    for name, value in declared.items():
        setattr(Product, name, value)
    register_op(name=title)(Product)


def guess(title: str, shape: tuple[int, ...], guesses: list[float]) -> float:
    net = getattr(ax.sym, title)(ax.sym.Variable("data"))
    net.simple_bind(ax.cpu(), grad_req="null", data=shape).forward()
    return guesses[-1]


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        ({}, 0.0),
        ({"linear": ("data",)}, 0.0),
        ({"linear": ("data", "other")}, 2 * 16.0**3),  # m = k = n = 16
        ({"linear": ("data", "other"), "multiplies": False}, 0.0),
        ({"multiplies": True}, 2 * 16.0**3),
        ({"multiplies": True, "tile": 100}, 2 * 16.0**3),  # two dims: no windows
    ],
)
def test_products_of_matrices(guesses: list[float], declared: dict[str, Any], expected: float) -> None:
    product("Guessed", **declared)
    assert guess("Guessed", (16, 16), guesses) == pytest.approx(expected)


def test_a_tile_bounds_what_windows_come_to(guesses: list[float]) -> None:
    """Filters by channels by places: of 4 channels, 2 operations for every value of the tile and filter."""
    product("Untiled", multiplies=True)
    product("Tiled", multiplies=True, tile=100)
    assert guess("Untiled", (2, 4, 8), guesses) == pytest.approx(2 * 64**1.5)
    assert guess("Tiled", (2, 4, 8), guesses) == 2 * 100 * 4
