"""check_op finds what it is there to find: one broken operator a check, and a whole one that passes."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import pytest

from arrayexec import registry
from arrayexec.errors import OperatorContractError, OperatorDefinitionError
from arrayexec.registry import Op, Temp, register_op, signature_of
from arrayexec.testing import check_op


@pytest.fixture(autouse=True)
def forget_operators_of_the_tests() -> Iterator[None]:
    yield
    for name in [name for name, cls in registry._OPERATORS.items() if cls.__module__ == __name__]:
        del registry._OPERATORS[name]
    signature_of.cache_clear()


plain = dataclasses.dataclass(frozen=True, kw_only=True)


def made(cls: type[Op]) -> type[Op]:
    """An operator of its own with the bodies of ``cls``."""
    return register_op(type(cls.__name__, (cls,), {"__module__": __name__}))


@plain
class Whole(Op):
    """``out = factor · data``."""

    factor: float = 2.0
    rows = "parallel"
    inplace: ClassVar[dict[str, str]] = {"out": "data", "ddata": "dout"}
    examples = ({"data": (4, 3), "factor": 3.0}, {"data": (2,)})

    def infer(self, s: Any) -> None:
        s.out = s.data
        s.data = s.out

    def forward(self, xp: Any, data: Any, out: Any) -> None:
        xp.multiply(data, self.factor, out=out)

    def backward(self, xp: Any, dout: Any, ddata: Any) -> None:
        xp.multiply(dout, self.factor, out=ddata)


class Square(Whole):
    """``out = factor · data²``."""

    inplace: ClassVar[dict[str, str]] = {}

    def forward(self, xp: Any, data: Any, out: Any) -> None:
        xp.multiply(data, data, out=out)
        xp.multiply(out, self.factor, out=out)

    def backward(self, xp: Any, dout: Any, data: Any, ddata: Any) -> None:
        xp.multiply(dout, data, out=ddata)
        xp.multiply(ddata, 2.0 * self.factor, out=ddata)


@pytest.mark.parametrize("cls", [Whole, Square])
def test_a_whole_operator_passes(cls: type[Op]) -> None:
    check_op(made(cls))
    check_op(cls.__name__, {"data": (3, 2, 2), "factor": 0.5})


def faults(cls: type[Op], **options: Any) -> str:
    with pytest.raises(OperatorContractError) as caught:
        check_op(made(cls), **options)
    assert isinstance(caught.value, AssertionError)
    return str(caught.value)


class WrongGradient(Whole):
    def backward(self, xp: Any, dout: Any, ddata: Any) -> None:
        xp.multiply(dout, 1.001 * self.factor, out=ddata)


class HalfWritten(Whole):
    def forward(self, xp: Any, data: Any, out: Any) -> None:
        xp.multiply(data[:1], self.factor, out=out[:1])


class Accumulates(Whole):
    def backward(self, xp: Any, dout: Any, ddata: Any) -> None:
        ddata += dout * self.factor


class WritesItsInput(Whole):
    def forward(self, xp: Any, data: Any, out: Any) -> None:
        data *= self.factor
        xp.copyto(out, data)


class KeepsTooLittle(Square):
    def keeps(self, want: frozenset[str]) -> tuple[str, ...]:
        return ()


class UnsafeInPlace(Square):
    inplace: ClassVar[dict[str, str]] = {"out": "data"}

    def forward(self, xp: Any, data: Any, out: Any) -> None:
        xp.multiply(data, self.factor, out=out)
        xp.multiply(data, out, out=out)


class NoView(Whole):
    def is_view(self, train: bool) -> bool:
        return True


class RowsMeet(Whole):
    inplace: ClassVar[dict[str, str]] = {}

    def forward(self, xp: Any, data: Any, out: Any) -> None:
        xp.subtract(data, data.sum(axis=0), out=out)
        xp.multiply(out, self.factor, out=out)

    def backward(self, xp: Any, dout: Any, ddata: Any) -> None:
        xp.subtract(dout, dout.sum(axis=0), out=ddata)
        xp.multiply(ddata, self.factor, out=ddata)


class Allocates(Whole):
    def backward(self, xp: Any, dout: Any, ddata: Any) -> None:
        xp.copyto(ddata, dout * self.factor)


@plain
class IdleAttribute(Whole):
    idle: int = 3
    examples = ({"data": (4, 3), "factor": 3.0, "idle": 4},)


@plain
class UntriedAttribute(Whole):
    untried: int = 3


class NoExample(Whole):
    examples = ()


class AcceptsTooMuch(Whole):
    def infer(self, s: Any) -> None:
        s.out = (*s.data[:1], 3)

    examples = ({"data": (4, 3), "factor": 3.0},)


class Guesses(Whole):
    def infer(self, s: Any) -> None:
        s.data = s.out = (7,)
        s.out = s.data


class BreaksOnNothing(Whole):
    def forward(self, xp: Any, data: Any, out: Any) -> None:
        xp.multiply(data, self.factor * (len(data) // len(data)), out=out)


class MindsLayout(Whole):
    inplace: ClassVar[dict[str, str]] = {}

    def forward(self, xp: Any, data: Any, out: Any) -> None:
        xp.multiply(data.ravel("K"), self.factor, out=out.reshape(-1))


class MindsNone(Whole):
    inplace: ClassVar[dict[str, str]] = {}
    rows = None
    examples = ({"lhs": (2, 3), "rhs": (2, 3), "factor": 3.0},)

    def infer(self, s: Any) -> None:
        s.out = s.lhs
        s.rhs = s.lhs = s.out
        s.lhs = s.rhs

    def forward(self, xp: Any, lhs: Any, rhs: Any, out: Any) -> None:
        xp.add(lhs, rhs, out=out)
        xp.multiply(out, self.factor, out=out)

    def backward(self, xp: Any, dout: Any, dlhs: Any, drhs: Any) -> None:
        xp.multiply(dout, self.factor, out=dlhs)
        xp.copyto(drhs, dlhs)


class Forgets(MindsNone):
    def backward(self, xp: Any, dout: Any, dlhs: Any) -> None:
        xp.multiply(dout, self.factor, out=dlhs)


class Single(Whole):
    def forward(self, xp: Any, data: Any, out: Any) -> None:
        xp.copyto(out, (data * np.float64(self.factor)).astype("float32"))


class Half(Whole):
    inplace: ClassVar[dict[str, str]] = {}

    def temps(self, s: Any) -> Any:
        return {"small": (s.data, "float16")}

    def forward(self, xp: Any, data: Any, out: Any, small: Temp) -> None:
        xp.copyto(small, data, casting="unsafe")
        xp.multiply(small, self.factor + data * 0, out=out)


class SumsInHalf(Op):
    examples: ClassVar[Any] = ({"data": (4, 3), "bias": (3,)},)

    def infer(self, s: Any) -> None:
        s.out = s.data
        s.data = s.out
        s.bias = s.data[1:]

    def forward(self, xp: Any, data: Any, bias: Any, out: Any) -> None:
        xp.add(data, bias, out=out)

    def backward(self, xp: Any, dout: Any, ddata: Any, dbias: Any) -> None:
        if ddata is not None:
            xp.copyto(ddata, dout)
        if dbias is not None:
            xp.sum(dout, axis=0, out=dbias)


class SumsOverRows(SumsInHalf):
    rows = "parallel"


class ForgetsScratch(Half):
    def temps(self, s: Any) -> Any:
        return {"smal": (s.data, "float16")}


class Hints(Whole):
    hints = ("speed",)


class NoDims(Whole):
    rows = None
    inplace: ClassVar[dict[str, str]] = {}

    def infer(self, s: Any) -> None:
        s.out = ()

    def forward(self, xp: Any, data: Any, out: Any) -> None:
        xp.sum(data * self.factor, out=out)

    def backward(self, xp: Any, dout: Any, ddata: Any) -> None:
        ddata[...] = dout * self.factor


@pytest.mark.parametrize(
    ("cls", "words"),
    [
        (WrongGradient, r"gradient of data\[.*\] is .*, numerically"),
        (HalfWritten, "what memory held before shows in the result"),
        (Accumulates, "what memory held before shows in the result"),
        (WritesItsInput, "read-only"),
        (KeepsTooLittle, r"keeps\(data\) leaves out what backward reads"),
        (UnsafeInPlace, "inplace out over data is not safe"),
        (NoView, r"is_view\(True\) holds, but the output is not the bytes of data"),
        (RowsMeet, "rows = 'parallel' does not hold"),
        (Allocates, r"backward allocates \d+ KiB of its own \(training\); at most 256 KiB may"),
        (IdleAttribute, "attribute 'idle' changes nothing in any example"),
        (UntriedAttribute, "attribute 'untried' is set in no example"),
        (NoExample, "has no examples"),
        (AcceptsTooMuch, r"inference accepts data \(.*\) beside .*, but running it fails"),
        (Guesses, "the example does not run: ShapeError"),
        (BreaksOnNothing, "a batch of zero rows: ZeroDivisionError"),
        (MindsLayout, "Fortran-ordered inputs give other numbers"),
        (MindsNone, "check_wants: TypeError|d[lr]hs asked for alone differs"),
        (Forgets, "backward gives no drhs; name it in no_gradient"),
        (Single, r"gradient of data\[.*\] is .*, numerically"),
        (Half, "numerically"),
        (SumsInHalf, "sums over 4096 rows in float16 lose precision: gradient of bias"),
        (SumsOverRows, "the gradient of bias is a sum over the rows; say rows = 'sum'"),
        (ForgetsScratch, r"temps\(self, s\) gives no shape and type of the Temp 'small'"),
        (Hints, "hint 'speed' is no attribute"),
        (NoDims, r"out is 0-d; the least is \(1,\)"),
    ],
)
def test_a_broken_operator_is_found(cls: type[Op], words: str) -> None:
    text = faults(cls)
    assert re.search(words, text), text
    assert text.startswith(f"operator {cls.__name__} breaks the contract in ")


def test_inference_that_says_something_false_is_found() -> None:
    class GuessesRows(Whole):
        def infer(self, s: Any) -> None:
            s.out = s.data
            s.data = s.out
            if repr(s.data) == "(?, 3)":
                s.data = (5, 3)

    assert "inference says that data is (5, 3), but it is (4, 3)" in faults(GuessesRows)


def test_no_derivative_leaves_the_numeric_gradient_out() -> None:
    check_op(made(WrongGradient), derivative=False)


def test_an_example_with_an_unknown_name_is_refused() -> None:
    made(Whole)
    with pytest.raises(
        OperatorContractError, match=r"'dta' is neither an input nor an attribute; did you mean 'data'\?"
    ):
        check_op("Whole", {"dta": (2, 3)})


def test_the_whole_text() -> None:
    class Text(Whole):
        examples: ClassVar[Any] = ({"data": (2,), "factor": 3.0},)

        def backward(self, xp: Any, dout: Any, ddata: Any) -> None:
            xp.copyto(ddata, dout)

    first = "operator Text breaks the contract in 1 points\n  (data=(2,), factor=3.0): gradient of data[0] is "
    assert re.fullmatch(re.escape(first) + r"-?[\d.]+, numerically -?[\d.]+ \(training\)", faults(Text))


def test_a_class_that_is_not_registered_is_refused() -> None:
    with pytest.raises(
        OperatorDefinitionError, match="check_op: Loose is not registered; decorate it with @register_op"
    ):
        check_op(type("Loose", (Op,), {}))
