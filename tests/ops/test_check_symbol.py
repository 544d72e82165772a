"""``check_op`` finds an operator whose gradient as a Symbol is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from arrayexec import registry
from arrayexec.errors import OperatorContractError
from arrayexec.registry import Op, register_op
from arrayexec.testing import check_op


class Cubed(Op):
    """``out = data ** 3``."""

    rows = "parallel"
    examples = ({"data": (2, 3)},)

    def infer(self, s: Any) -> None:
        s.out = s.data
        s.data = s.out

    def forward(self, xp: Any, data: Any, out: Any) -> None:
        xp.multiply(data, data, out=out)
        xp.multiply(out, data, out=out)

    def backward(self, xp: Any, dout: Any, data: Any, ddata: Any) -> None:
        xp.multiply(data, data, out=ddata)
        xp.multiply(ddata, 3, out=ddata)
        xp.multiply(ddata, dout, out=ddata)


class Right(Cubed):
    def gradient(self, sym: Any, dout: Any, data: Any) -> Any:
        return {"data": dout * (sym.square(data) * 3)}


class Forgotten(Cubed):
    def gradient(self, sym: Any, dout: Any, data: Any) -> Any:
        return {"data": dout * sym.square(data)}


class Cut(Cubed):
    def gradient(self, sym: Any, dout: Any, data: Any) -> Any:
        return {"data": dout * (sym.BlockGrad(sym.square(data)) * 3)}


class NotLinear(Cubed):
    linear = ("data",)


@pytest.fixture(autouse=True)
def unregistered() -> Iterator[None]:
    before = dict(registry._OPERATORS)
    yield
    for name in registry._OPERATORS.keys() - before.keys():
        del registry._OPERATORS[name]


def test_a_right_one_passes() -> None:
    check_op(register_op(Right))


@pytest.mark.parametrize(
    ("cls", "words"),
    [
        (Forgotten, "the gradient as a Symbol is not what backward gives"),
        (Cut, "the second derivative for data"),
        (NotLinear, "the gradient as a Symbol is not what backward gives"),
    ],
)
def test_a_wrong_one_is_found(cls: type[Op], words: str) -> None:
    with pytest.raises(OperatorContractError, match=words):
        check_op(register_op(cls))
