"""Elementwise operators: arithmetic of equal shapes and with a number, comparisons, unary mathematics.

Each is a row of :data:`ROWS`, in the language that :mod:`.expression` explains. Numbers are what IEEE arithmetic
gives (``log`` of a negative is NaN); where a formula has a choice, the row's note says it. Arrays of whole numbers keep
their type: the result is computed exactly or in float64, then cut towards zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ..errors import AttributeValueError
from ..registry import Many, Op, Sample, register_op, signature_of
from .expression import Row, Table
from .precision import cast

_NUMBER = {"scalar": (float, 1.0)}
_TYPED = {**_NUMBER, "is_int": (bool, True)}  # the newest files say whether the number was written as a whole one
_HINTS = ("is_int",)
_TO_LHS = "Of equal values the left one gets the gradient."
_ZERO = "The gradient is zero."
_HALVES = "Halves go away from zero."
# An infinity minus itself is no number; such values, NaN among them, are whole already.
_ROUND = "where(data - data != 0, data, trunc(data) + trunc(2 * (data - trunc(data))))"
_SOFTPLUS = "(maximum(data, 0) + log1p(exp(-abs(data))))"

# name, formula, gradients, aliases, note, example ranges: two arrays of one shape, shared with the broadcasting family
ARITHMETIC: tuple[tuple[str, str, tuple[str, ...], str, dict[str, Any]], ...] = (
    ("add", "lhs + rhs", ("dout", "dout"), "", {}),
    ("sub", "lhs - rhs", ("dout", "-dout"), "", {}),
    ("mul", "lhs * rhs", ("dout * rhs", "dout * lhs"), "", {}),
    ("div", "lhs / rhs", ("dout / rhs", "-(dout / rhs * out)"), "", {"low": 0.5}),
    ("mod", "where(rhs == 0, 0, lhs % rhs)", ("dout", "-(dout * floor(lhs / rhs))"),
     "The sign is the divisor's; x mod 0 is 0.", {"whole": True}),
    ("power", "lhs ** rhs", ("dout * (rhs * lhs ** (rhs - 1))", "dout * (out * log(lhs))"),
     "Whole numbers have no negative powers.", {"low": 0.5}),
    ("maximum", "maximum(lhs, rhs)", ("dout * (lhs >= rhs)", "dout * (lhs < rhs)"), _TO_LHS, {}),
    ("minimum", "minimum(lhs, rhs)", ("dout * (lhs <= rhs)", "dout * (lhs > rhs)"), _TO_LHS, {}),
    ("hypot", "hypot(lhs, rhs)", ("dout * lhs / out", "dout * rhs / out"), "At (0, 0) the gradient is NaN.", {}),
)  # fmt: skip
COMPARISONS = (
    ("equal", "lhs == rhs"), ("not_equal", "lhs != rhs"), ("greater", "lhs > rhs"), ("greater_equal", "lhs >= rhs"),
    ("lesser", "lhs < rhs"), ("lesser_equal", "lhs <= rhs"), ("logical_and", "logical_and(lhs, rhs)"),
    ("logical_or", "logical_or(lhs, rhs)"), ("logical_xor", "logical_xor(lhs, rhs)"),
)  # fmt: skip
MOD_RANGES = (2.2, 2.8), (1.0, 1.05)  # no jump of the quotient inside
_NAMES = {
    "add": ("elemwise_add", "_add _plus _Plus _grad_add"), "sub": ("elemwise_sub", "_sub _minus _Minus"),
    "mul": ("elemwise_mul", "_mul _Mul"), "div": ("elemwise_div", "_div _Div _scatter_elemwise_div"),
}  # fmt: skip


def camel(name: str) -> str:
    """MXNet's old spelling of a name: ``greater_equal_scalar`` is ``GreaterEqualScalar``."""
    return "".join(part.capitalize() for part in name.split("_"))


def mod_samples(other: tuple[int, ...]) -> dict[str, Sample]:
    """Inputs of an example of mod, away from its jumps."""
    return {"lhs": Sample((2, 3), *MOD_RANGES[0]), "rhs": Sample(other, *MOD_RANGES[1])}


def _two_arrays() -> Iterator[Row]:
    for name, forward, backward, note, options in ARITHMETIC:
        title, aliases = _NAMES.get(name, (f"_{name}", f"_{camel(name)}"))
        values = mod_samples((2, 3)) if name == "mod" else {}
        yield Row(title, forward, backward, aliases, note, values=values, **options)
    for name, forward in COMPARISONS:
        old = dict.fromkeys((camel(name), name.title()))  # both were in use: _GreaterEqual and _Greater_Equal
        aliases = " ".join(f"_{word}" for word in old)
        yield Row(f"_{name}", forward, (), aliases, f"{_ZERO} True is 1, of the inputs' type.")


def _with_number() -> Iterator[Row]:
    def row(name: str, forward: str, *backward: str, note: str = "", **options: Any) -> Row:
        reverse, plain = name[0] == "r", name.removeprefix("r")
        alias = f"_{'R' if reverse else ''}{camel(plain)}Scalar"
        alias += f" _scatter_{name}_scalar" if name in ("plus", "minus") else ""
        values = {"scalar": 2.5}
        return Row(f"_{name}_scalar", forward, backward, alias, note, _TYPED, values, hints=_HINTS, **options)

    yield row("plus", "data + scalar", "dout")
    yield row("minus", "data - scalar", "dout")
    yield row("rminus", "scalar - data", "-dout")
    yield row("mul", "data * scalar", "dout * scalar", factor="scalar")
    yield row("div", "data / scalar", "dout / scalar", factor="scalar")
    yield row("rdiv", "scalar / data", "-(dout * out / data)", low=0.5, factor="scalar")
    yield row("power", "data ** scalar", "dout * (scalar * data ** (scalar - 1))", low=0.5)
    yield row("rpower", "scalar ** data", "dout * (log(scalar) * out)", factor="scalar")
    yield row("mod", "where(scalar == 0, 0, data % scalar)", "dout", low=2.6, high=4.9, whole=True,
              note="The sign is the divisor's; x mod 0 is 0.")  # fmt: skip
    yield row("rmod", "where(data == 0, 0, scalar % data)", "-(dout * floor(scalar / data))", low=1.0, high=1.2,
              whole=True, note="The sign is the divisor's; x mod 0 is 0.")  # fmt: skip
    yield row("maximum", "maximum(data, scalar)", "dout * (data >= scalar)", low=1.0, high=4.0)
    yield row("minimum", "minimum(data, scalar)", "dout * (data <= scalar)", low=1.0, high=4.0)
    yield row("hypot", "hypot(data, scalar)", "dout * data / out")
    for name, forward in COMPARISONS:
        forward = forward.replace("lhs", "data").replace("rhs", "scalar")
        scalar = {"scalar": 0.0 if name.startswith("logical") else 2.0}
        alias = f"_{camel(name)}Scalar"
        yield Row(f"_{name}_scalar", forward, (), alias, _ZERO, _TYPED, scalar, low=0.0, high=3.0, hints=_HINTS)
    yield Row(
        "smooth_l1",
        "0.5 * (scalar * scalar) * square(minimum(abs(data), 1 / (scalar * scalar)))"
        " + (abs(data) - minimum(abs(data), 1 / (scalar * scalar)))",  # no masked copy: it takes five times as long
        ("dout * maximum(minimum(data * (scalar * scalar), 1), -1)",),
        note="That is 0.5 (scalar · x)² where |x| < 1 / scalar², else |x| - 0.5 / scalar².",
        fields=_NUMBER, values={"scalar": 1.5},
    )  # fmt: skip


def _check_bounds(op: Any) -> None:
    """MXNet takes bounds in the wrong order and gives one or the other of them, never the data."""
    if op.a_min > op.a_max:
        raise AttributeValueError(f"clip: attribute 'a_min' must be at most a_max={op.a_max}, but it is {op.a_min}")


_ONE_ARRAY = (
    Row("_copy", "data", ("dout",), "identity _copyto"),
    Row("negative", "-data", ("-dout",)),
    Row("abs", "abs(data)", ("dout * sign(data)",), note="At 0 the gradient is 0, at NaN NaN."),
    Row("sign", "sign(data)", note=f"NaN stays NaN. {_ZERO}"),
    Row("round", _ROUND, note=f"{_HALVES} {_ZERO}", whole=True),
    Row("rint", "ceil(data) - (ceil(data) - data >= 0.5)",
        note=f"Halves go down. {_ZERO}", whole=True),
    Row("ceil", "ceil(data)", note=_ZERO),
    Row("floor", "floor(data)", note=_ZERO),
    Row("trunc", "trunc(data)", note=_ZERO),
    Row("fix", "trunc(data)", note=_ZERO),
    Row("exp", "exp(data)", ("dout * out",)),
    Row("expm1", "expm1(data)", ("dout * (out + 1)",)),
    Row("log", "log(data)", ("dout / data",), low=0.3),
    Row("log2", "log2(data)", ("dout / (data * 0.6931471805599453)",), low=0.3),
    Row("log10", "log10(data)", ("dout / (data * 2.302585092994046)",), low=0.3),
    Row("log1p", "log1p(data)", ("dout / (data + 1)",), low=-0.6),
    Row("sqrt", "sqrt(data)", ("dout * 0.5 / out",), low=0.3, note="At 0 the gradient is infinite."),
    Row("rsqrt", "reciprocal(sqrt(data))", ("dout * out * -0.5 * square(out)",), low=0.3),
    Row("cbrt", "cbrt(data)", ("dout / (square(out) * 3)",), low=0.3),
    Row("rcbrt", "reciprocal(cbrt(data))", ("dout * square(out) * -0.3333333333333333 * square(out)",), low=0.3),
    Row("square", "square(data)", ("dout * (data * 2)",)),
    Row("reciprocal", "reciprocal(data)", ("-(dout * out * out)",), low=0.3),
    Row("sin", "sin(data)", ("dout * cos(data)",)),
    Row("cos", "cos(data)", ("-(dout * sin(data))",)),
    Row("tan", "tan(data)", ("dout * (square(out) + 1)",), low=-1.2, high=1.2),
    Row("arcsin", "arcsin(data)", ("dout / sqrt(1 - square(data))",), low=-0.9, high=0.9),
    Row("arccos", "arccos(data)", ("-(dout / sqrt(1 - square(data)))",), low=-0.9, high=0.9),
    Row("arctan", "arctan(data)", ("dout / (square(data) + 1)",)),
    Row("sinh", "sinh(data)", ("dout * cosh(data)",)),
    Row("cosh", "cosh(data)", ("dout * sinh(data)",)),
    Row("tanh", "tanh(data)", ("dout * (1 - square(out))",)),
    Row("arcsinh", "arcsinh(data)", ("dout / hypot(data, 1)",)),
    Row("arccosh", "arccosh(data)", ("dout / (sqrt(data - 1) * sqrt(data + 1))",), low=1.2, high=3.0),
    Row("arctanh", "arctanh(data)", ("dout / (1 - square(data))",), low=-0.9, high=0.9),
    Row("degrees", "data * 57.29577951308232", ("dout * 57.29577951308232",)),
    Row("radians", "data * 0.017453292519943295", ("dout * 0.017453292519943295",)),
    Row("sigmoid", "reciprocal(exp(-data) + 1)", ("dout * (out * (1 - out))",)),
    Row("relu", "maximum(data, 0)", ("dout * (out > 0)",), note="NaN stays NaN; at 0 and at NaN the gradient is 0."),
    Row("softsign", "data / (abs(data) + 1)", ("dout / square(abs(data) + 1)",)),
    Row("hard_sigmoid", "minimum(maximum(data * alpha + beta, 0), 1)", ("dout * alpha * (out > 0) * (out < 1)",),
        fields={"alpha": (float, 0.2), "beta": (float, 0.5)}, values={"alpha": 0.3, "beta": 0.4}),
    Row("erf", "erf(data)", ("dout * (exp(-square(data)) * 1.1283791670955126)",)),
    Row("erfinv", "erfinv(data)", ("dout * (exp(square(out)) * 0.886226925452758)",), low=-0.9, high=0.9,
        note="At -1 and 1 it is infinite, beyond NaN."),
    Row("gamma", "gamma(data)", ("dout * (out * digamma(data))",), low=0.3, high=4.0,
        note="NaN at -1, -2, …; infinite at 0, with its sign."),
    Row("gammaln", "gammaln(data)", ("dout * digamma(data)",), low=0.3, high=4.0,
        note="Logarithm of the absolute value of gamma; infinite at 0, -1, -2, …"),
    Row("digamma", "digamma(data)", ("dout * trigamma(data)",), low=0.3, high=4.0,
        note="Derivative of gammaln; NaN at -1, -2, …"),
    Row("trigamma", "trigamma(data)", ("dout * tetragamma(data)",), low=0.3, high=4.0,
        note="Derivative of digamma; infinite at 0, -1, -2, …"),
    Row("log_sigmoid", "minimum(data, 0) - log1p(exp(-abs(data)))", ("-(dout * expm1(out))",)),
    Row("mish", f"data * tanh({_SOFTPLUS})",
        (f"dout * (tanh({_SOFTPLUS}) + data * (1 - square(tanh({_SOFTPLUS}))) / (exp(-data) + 1))",)),
    Row("_contrib_quadratic", "a * square(data) + b * data + c", ("dout * (2 * a * data + b)",), "quadratic",
        fields={"a": (float, 0.0), "b": (float, 0.0), "c": (float, 0.0)}, values={"a": 1.5, "b": -0.5, "c": 0.25}),
    Row("_contrib_round_ste", _ROUND, ("dout",), note=f"{_HALVES} The gradient passes as it is.", whole=True),
    Row("_contrib_sign_ste", "sign(data)", ("dout",), note="The gradient passes as it is."),
    Row("_contrib_gradientmultiplier", "data", ("dout * scalar",), fields=_TYPED, values={"scalar": -0.5},
        hints=_HINTS),
    Row("logical_not", "data == 0", note=_ZERO),
    Row("clip", "minimum(maximum(data, a_min), a_max)", ("dout * (data >= a_min) * (data <= a_max)",),
        note="At a bound the gradient passes; NaN stays NaN.", fields={"a_min": (float, ...), "a_max": (float, ...)},
        values={"a_min": -0.7, "a_max": 1.1}, whole=True, check=_check_bounds),
)  # fmt: skip

ROWS = Table(__name__, (*_two_arrays(), *_with_number(), *_ONE_ARRAY))
__getattr__ = ROWS.attribute


@register_op(aliases=("cast",))
class Cast(Op):
    """``out = data`` in the element type ``dtype``; whole numbers are cut towards zero. out has data's shape.

    What a type of whole numbers cannot hold (NaN, too large) becomes what the processor makes of it.
    """

    dtype: np.dtype[Any]
    rows = "parallel"
    linear = ("data",)
    examples = ({"data": (2, 3), "dtype": "float64"}, {"data": Sample((2, 3), -3.0, 3.0), "dtype": "int32"})

    def infer(self, s: Any) -> None:
        s.out = s.data
        s.data = s.out

    def types(self, t: Any) -> None:
        t.out = self.dtype

    def forward(self, xp: Any, data: Any, out: Any) -> None:
        cast(xp, data, out)

    def backward(self, xp: Any, dout: Any, ddata: Any) -> None:
        cast(xp, dout, ddata)


@register_op(aliases=("ElementWiseSum",))
class add_n(Op):
    """``out = arg0 + arg1 + …``, summed from left to right; all of one shape."""

    num_args: int
    rows = "parallel"
    examples = ({"arg0": (2, 3), "arg1": (2, 3), "arg2": (2, 3), "num_args": 3}, {"arg0": (2, 3), "num_args": 1})

    def infer(self, s: Any) -> None:
        for shape in s.args:
            s.out = shape
        s.args = (s.out,) * len(s.args)

    @property
    def passes(self) -> tuple[str, ...]:
        return signature_of(self).inputs

    def forward(self, xp: Any, args: Many, out: Any) -> None:
        if len(args) == 1:
            xp.copyto(out, args[0])
        else:
            xp.add(args[0], args[1], out=out)
        for array in args[2:]:
            xp.add(out, array, out=out)

    def backward(self, xp: Any, dout: Any, dargs: Many) -> None:
        for gradient in dargs:
            if gradient is not None:
                xp.copyto(gradient, dout)

    def gradient(self, sym: Any, dout: Any) -> Mapping[str, Any]:
        return {"args": [dout] * self.num_args}
