"""Elementwise operators against Python's own mathematics, one number at a time."""

from __future__ import annotations

import ast
import copy
import itertools
import math
import pickle
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from arrayexec import registry, sym
from arrayexec.dims import from_user
from arrayexec.errors import ArgumentError, ShapeError, TypeInferenceError
from arrayexec.ops import broadcast, elemwise
from arrayexec.ops.expression import FUNCTIONS, Pointwise, Row, Table, compile_row
from arrayexec.ops.special import SPECIAL
from arrayexec.registry import get_op, make_op
from tests.ops import special_reference
from tests.ops.runs import run, shapes_of, types_of

INF, NAN = math.inf, math.nan


def forward(name: str, arrays: dict[str, Any], **attributes: Any) -> np.ndarray:
    return run(name, arrays, **attributes).out


def gradients(name: str, arrays: dict[str, Any], head: Any = None, **attributes: Any) -> dict[str, Any]:
    """Gradients of all inputs; ``head`` (default: ones) arrives at the output."""
    out = forward(name, arrays, **attributes)
    return run(name, arrays, [np.ones_like(out) if head is None else head], **attributes).gradients


UNARY: dict[str, Callable[[float], float]] = {
    "_copy": float,
    "negative": lambda x: -x,
    "abs": abs,
    "sign": lambda x: float((x > 0) - (x < 0)),
    "ceil": math.ceil,
    "floor": math.floor,
    "trunc": math.trunc,
    "fix": math.trunc,
    "round": lambda x: math.copysign(math.floor(abs(x) + 0.5), x),
    "rint": lambda x: math.ceil(x - 0.5),
    "exp": math.exp,
    "expm1": math.expm1,
    "log": math.log,
    "log2": math.log2,
    "log10": math.log10,
    "log1p": math.log1p,
    "sqrt": math.sqrt,
    "rsqrt": lambda x: 1 / math.sqrt(x),
    "cbrt": lambda x: math.copysign(math.exp(math.log(abs(x)) / 3), x),
    "rcbrt": lambda x: 1 / math.copysign(math.exp(math.log(abs(x)) / 3), x),
    "square": lambda x: x * x,
    "reciprocal": lambda x: 1 / x,
    "sin": math.sin,
    "cos": math.cos,
    "tan": math.tan,
    "arcsin": math.asin,
    "arccos": math.acos,
    "arctan": math.atan,
    "sinh": math.sinh,
    "cosh": math.cosh,
    "tanh": math.tanh,
    "arcsinh": math.asinh,
    "arccosh": math.acosh,
    "arctanh": math.atanh,
    "degrees": math.degrees,
    "radians": math.radians,
    "sigmoid": lambda x: 1 / (1 + math.exp(-x)),
    "relu": lambda x: max(x, 0.0),
    "softsign": lambda x: x / (1 + abs(x)),
    "hard_sigmoid": lambda x: min(max(0.2 * x + 0.5, 0.0), 1.0),
    "erf": math.erf,
    "gamma": math.gamma,
    "gammaln": math.lgamma,
    "digamma": special_reference.digamma,
    "trigamma": special_reference.trigamma,
    "erfinv": special_reference.erfinv,
    "log_sigmoid": lambda x: -math.log1p(math.exp(-x)),
    "mish": lambda x: x * math.tanh(math.log1p(math.exp(x))),
    "_contrib_quadratic": lambda x: 0.0,  # its three numbers are 0; test_bodies_are_their_formulas gives others
    "_contrib_gradientmultiplier": lambda x: x,
    "_contrib_round_ste": lambda x: math.copysign(math.floor(abs(x) + 0.5), x),
    "_contrib_sign_ste": lambda x: (x > 0) - (x < 0),
    "logical_not": lambda x: float(x == 0),
    "smooth_l1": lambda x: 0.5 * x * x if abs(x) < 1 else abs(x) - 0.5,
}
PAIRS: dict[str, Callable[[float, float], float]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "mod": lambda a, b: a - math.floor(a / b) * b if b else 0.0,
    "power": lambda a, b: a**b,
    "maximum": max,
    "minimum": min,
    "hypot": math.hypot,
    "equal": lambda a, b: a == b,
    "not_equal": lambda a, b: a != b,
    "greater": lambda a, b: a > b,
    "greater_equal": lambda a, b: a >= b,
    "lesser": lambda a, b: a < b,
    "lesser_equal": lambda a, b: a <= b,
    "logical_and": lambda a, b: bool(a) and bool(b),
    "logical_or": lambda a, b: bool(a) or bool(b),
    "logical_xor": lambda a, b: bool(a) != bool(b),
}
ARRAY_NAMES = {"add": "elemwise_add", "sub": "elemwise_sub", "mul": "elemwise_mul", "div": "elemwise_div"}
NUMBER_NAMES = {"add": "plus", "sub": "minus"}
REVERSED = {"_rminus_scalar": "sub", "_rdiv_scalar": "div", "_rpower_scalar": "power", "_rmod_scalar": "mod"}


def points(name: str, count: int = 41) -> np.ndarray:
    """Points of an operator's range, halves and whole numbers among them where it has some."""
    sample = get_op(name).examples[0]["data"]
    return np.append(np.linspace(sample.low, sample.high, count), [sample.low, sample.high])


@pytest.mark.parametrize("name", UNARY)
@pytest.mark.parametrize(("kind", "tolerance"), [("float64", 1e-13), ("float32", 1e-6)])
def test_unary_is_pythons_own(name: str, kind: str, tolerance: float) -> None:
    data = points(name).astype(kind)
    data = data[data != 0] if name in {"cbrt", "rcbrt"} else data
    want = [float(UNARY[name](float(x))) for x in data]
    np.testing.assert_allclose(forward(name, {"data": data}), np.array(want, kind), tolerance, tolerance)


def test_every_row_of_one_array_is_tested() -> None:
    bases = {f"{form}{name}" for form in ("_", "broadcast_") for name in PAIRS} | set(ARRAY_NAMES.values())
    names = {row.name for row in (*elemwise.ROWS.rows(), *broadcast.ROWS.rows())}
    assert names - bases - set(UNARY) - {name for name in names if name.endswith("_scalar")} == {"clip"}
    numbers = {f"_{NUMBER_NAMES.get(name, name)}_scalar" for name in PAIRS} | set(REVERSED)
    assert {name for name in names if name.endswith("_scalar")} == numbers


@pytest.mark.parametrize("name", PAIRS)
def test_two_arrays_and_a_number(name: str) -> None:
    positive = [0.25, 0.5, 1.0, 1.75, 2.0]
    values = positive if name == "power" else [-2.0, -1.5, *positive, -0.75]
    pairs = [(a, b) for a, b in itertools.product(values, values)]
    lhs, rhs = np.array(pairs).T.copy()
    want = np.array([float(PAIRS[name](a, b)) for a, b in pairs])
    for title in (ARRAY_NAMES.get(name, f"_{name}"), f"broadcast_{name}"):
        np.testing.assert_allclose(forward(title, {"lhs": lhs, "rhs": rhs}), want, 1e-14, 1e-14)
    for scalar in values:
        want = np.array([float(PAIRS[name](a, scalar)) for a in values])
        got = forward(f"_{NUMBER_NAMES.get(name, name)}_scalar", {"data": np.array(values)}, scalar=scalar)
        np.testing.assert_allclose(got, want, 1e-14, 1e-14)


@pytest.mark.parametrize("name", REVERSED)
def test_number_on_the_left(name: str) -> None:
    values = np.array([0.5, 1.0, 2.5, 4.0])
    want = [PAIRS[REVERSED[name]](3.0, float(x)) for x in values]
    np.testing.assert_allclose(forward(name, {"data": values}, scalar=3.0), want, 1e-14)


# A formula evaluated by Python, number by number, knows nothing of registers, scratch and overwriting.


def number(function: Any) -> Callable[..., Any]:
    """A function of numbers that gives float64, 0 and 1 for false and true."""
    return lambda *values: np.float64(function(*values))


PLAIN: dict[str, Any] = {name: number(getattr(np, name)) for name in FUNCTIONS - {"erf", "where", *SPECIAL}}
PLAIN |= {name: number(getattr(special_reference, name)) for name in ("digamma", "trigamma", "tetragamma", "erfinv")}
PLAIN |= {"erf": number(math.erf), "gamma": number(math.gamma), "gammaln": number(math.lgamma)}
PLAIN |= {"where": lambda condition, a, b: a if condition else b, "number": np.float64}
ROWS = [row.name for row in (*elemwise.ROWS.rows(), *broadcast.ROWS.rows())]


class Numbers(ast.NodeTransformer):
    """Comparisons become the numbers 0 and 1."""

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        return ast.Call(ast.Name("number", ast.Load()), [node], [])


def evaluate(tree: ast.expr, names: dict[str, Any]) -> float:
    """A formula of numbers."""
    program = ast.fix_missing_locations(ast.Expression(Numbers().visit(copy.deepcopy(tree))))
    return float(eval(compile(program, "formula", "eval"), {"__builtins__": {}, **PLAIN, **names}))


@pytest.mark.parametrize("name", ROWS)
def test_bodies_are_their_formulas(name: str) -> None:
    cls: Any = get_op(name)
    random, example = np.random.default_rng(5), cls.examples[0]
    fields = {key: value for key, value in example.items() if key in cls.form.attributes}
    arrays = {}
    for key in cls.expression.inputs:
        sample = example[key]
        arrays[key] = random.uniform(sample.low, sample.high, 24).round(2)
    head = random.uniform(0.5, 1.5, 24)
    out = forward(name, arrays, **fields)
    rows = [{key: np.float64(array[i]) for key, array in arrays.items()} for i in range(24)]
    with np.errstate(all="ignore"):
        want = [evaluate(cls.expression.forward, {**fields, **row}) for row in rows]
        np.testing.assert_allclose(out, want, 1e-13, 1e-13)
        found = gradients(name, arrays, head, **fields)
        for key in cls.expression.inputs:
            formula = cls.expression.backward.get(key)
            values = [{**fields, **row, "dout": head[i], "out": out[i]} for i, row in enumerate(rows)]
            want = [evaluate(formula, value) if formula is not None else 0.0 for value in values]
            np.testing.assert_allclose(found[key], want, 1e-13, 1e-13, err_msg=key)


# Corners


@pytest.mark.parametrize(
    ("name", "given", "want"),
    [
        ("round", [0.5, 1.5, -0.5, 2.5, -2.5, 0.49999997, INF, -INF, NAN], [1, 2, -1, 3, -3, 0, INF, -INF, NAN]),
        ("rint", [0.5, 1.5, -0.5, 2.5, -1.5, 0.7, -0.7, 0.49999997, -0.49999997, 8388609, INF, NAN],
         [0, 1, -1, 2, -2, 1, -1, 0, 0, 8388609, INF, NAN]),
        ("fix", [1.7, -1.7, NAN, -INF], [1, -1, NAN, -INF]),
        ("relu", [-1, 0, NAN, INF], [0, 0, NAN, INF]),
        ("sigmoid", [-80, 100, -INF, INF, NAN], [1.8048513e-35, 1, 0, 1, NAN]),
        ("erf", [0, 1e-30, -1e-30, 9, -9, INF, -INF, NAN], [0, 1.1283792e-30, -1.1283792e-30, 1, -1, 1, -1, NAN]),
        ("sign", [-3, 0, 2, NAN], [-1, 0, 1, NAN]),
        ("log", [0, -1], [-INF, NAN]),
        ("sqrt", [-1, 0], [NAN, 0]),
        ("reciprocal", [0, INF], [INF, 0]),
        ("softsign", [-1e30, 1e30], [-1, 1]),
    ],
)
def test_corners(name: str, given: list[float], want: list[float]) -> None:
    got = forward(name, {"data": np.array(given, np.float32)})
    np.testing.assert_allclose(got, np.array(want, np.float32), 3e-7)


@pytest.mark.parametrize(
    ("name", "given", "want"),
    [
        ("abs", [-2, 0, 2], [-1, 0, 1]),
        ("relu", [-1, 0, 1], [0, 0, 1]),
        ("sqrt", [0, 4], [INF, 0.25]),
        ("sign", [-1, 0, 1], [0, 0, 0]),
        ("floor", [-1.5, 0.5], [0, 0]),
        ("smooth_l1", [-3, -1, -0.5, 0, 0.5, 1, 3], [-1, -1, -0.5, 0, 0.5, 1, 1]),
        ("hard_sigmoid", [-3, -2.5, 0, 2.5, 3], [0, 0, 0.2, 0, 0]),
    ],
)
def test_corners_of_gradients(name: str, given: list[float], want: list[float]) -> None:
    got = gradients(name, {"data": np.array(given, np.float64)})["data"]
    np.testing.assert_allclose(got, want, 1e-15)


def test_clip_passes_the_gradient_at_both_bounds() -> None:
    data = np.array([-2.0, -1.0, 0.0, 0.5, 0.6, NAN])
    np.testing.assert_array_equal(forward("clip", {"data": data}, a_min=-1, a_max=0.5), [-1, -1, 0, 0.5, 0.5, NAN])
    got = gradients("clip", {"data": data}, a_min=-1, a_max=0.5)["data"]
    np.testing.assert_array_equal(got, [0, 1, 1, 1, 0, 0])


def test_mod_has_the_divisors_sign_and_zero_for_zero() -> None:
    lhs, rhs = np.array([5.5, -5.5, 5.5, -5.5, 3.0]), np.array([2.0, 2.0, -2.0, -2.0, 0.0])
    np.testing.assert_array_equal(forward("_mod", {"lhs": lhs, "rhs": rhs}), [1.5, 0.5, -0.5, -1.5, 0])
    found = gradients("_mod", {"lhs": lhs[:4], "rhs": rhs[:4]})
    np.testing.assert_array_equal(found["lhs"], [1, 1, 1, 1])
    np.testing.assert_array_equal(found["rhs"], [-2, 3, 3, -2])
    np.testing.assert_array_equal(forward("_mod_scalar", {"data": lhs}, scalar=0.0), [0, 0, 0, 0, 0])
    np.testing.assert_array_equal(forward("_rmod_scalar", {"data": rhs}, scalar=-3.0), [1, 1, -1, -1, 0])
    whole = {"lhs": np.array([7, -7, 7], np.int32), "rhs": np.array([3, 3, 0], np.int32)}
    np.testing.assert_array_equal(forward("_mod", whole), [1, 2, 0])


def test_equal_values_give_the_gradient_to_the_left() -> None:
    arrays = {"lhs": np.array([1.0, 2.0, 3.0]), "rhs": np.array([2.0, 2.0, 2.0])}
    found = gradients("_maximum", arrays)
    assert (found["lhs"].tolist(), found["rhs"].tolist()) == ([0, 1, 1], [1, 0, 0])
    found = gradients("_minimum", arrays)
    assert (found["lhs"].tolist(), found["rhs"].tolist()) == ([1, 1, 0], [0, 0, 1])


def test_powers_at_zero() -> None:
    zero = np.zeros(1)
    assert math.isnan(gradients("_power", {"lhs": zero, "rhs": zero})["lhs"][0])
    assert gradients("_power_scalar", {"data": zero}, scalar=0.5)["data"][0] == INF
    assert gradients("_power_scalar", {"data": zero}, scalar=2.0)["data"][0] == 0
    assert gradients("_power_scalar", {"data": zero}, scalar=1.0)["data"][0] == 1
    assert math.isnan(gradients("_hypot", {"lhs": zero, "rhs": zero})["lhs"][0])


@pytest.mark.parametrize(("kind", "bound"), [("float64", 2e-14), ("float32", 3e-7), ("float16", 6e-3)])
def test_erf_is_as_good_as_it_says(kind: str, bound: float) -> None:
    data = np.concatenate([np.linspace(1e-3, 6.5, 4001), np.logspace(-4, 0, 400)]).astype(kind)
    data = np.concatenate([data, -data])
    want = np.array([math.erf(float(x)) for x in data])
    error = np.abs(forward("erf", {"data": data}).astype(np.float64) - want) / np.abs(want)
    assert error.max() <= bound


def test_sigmoid_keeps_its_small_values() -> None:
    data = np.array([-700.0, -36.0, -1.0])
    np.testing.assert_allclose(forward("sigmoid", {"data": data}), np.exp(data) / (1 + np.exp(data)), 1e-14)


# Types


def test_whole_numbers_are_computed_before_they_are_cut() -> None:
    data = np.array([-3, 2, 5], np.int32)
    assert forward("_mul_scalar", {"data": data}, scalar=1.5).tolist() == [-4, 3, 7]
    assert forward("_plus_scalar", {"data": data}, scalar=0.75).tolist() == [-2, 2, 5]
    assert forward("_rdiv_scalar", {"data": data}, scalar=7).tolist() == [-2, 3, 1]
    assert forward("_power_scalar", {"data": data}, scalar=2).tolist() == [9, 4, 25]
    assert forward("elemwise_div", {"lhs": data, "rhs": np.array([2, 2, 2], np.int32)}).tolist() == [-1, 1, 2]
    assert forward("sqrt", {"data": np.array([15, 16], np.int64)}).tolist() == [3, 4]
    assert forward("_mul_scalar", {"data": data}, scalar=1.5).dtype == np.int32


def test_whole_numbers_are_refused_where_they_would_be_cut_on_the_way() -> None:
    with pytest.raises(TypeInferenceError) as caught:
        types_of("sigmoid", {"data": np.int32})
    assert str(caught.value) == (
        "sigmoid 'node': data 'data' must be of a floating type, but it is int32\n"
        "  inputs:\n"
        "    data  = data  int32  fixed by infer_type(data=int32)"
    )


@pytest.mark.parametrize("kind", ["float16", "float32", "float64", "int32", "uint8"])
def test_comparisons_are_of_the_inputs_type(kind: str) -> None:
    lhs, rhs = np.array([1, 2, 3]).astype(kind), np.array([3, 2, 1]).astype(kind)
    got = forward("_greater_equal", {"lhs": lhs, "rhs": rhs})
    assert (got.dtype, got.tolist()) == (np.dtype(kind), [0, 1, 1])
    got = forward("_lesser_scalar", {"data": lhs}, scalar=2.5)
    assert (got.dtype, got.tolist()) == (np.dtype(kind), [1, 1, 0])


def test_cast_cuts_towards_zero_and_back() -> None:
    data = np.array([-1.7, 2.9], np.float32)
    assert forward("Cast", {"data": data}, dtype="int32").tolist() == [-1, 2]
    assert types_of("Cast", {"data": np.float16}, dtype="float64") == {"data": np.float16, "node_output": np.float64}
    found = gradients("cast", {"data": data}, np.array([1.5, -2.5]), dtype="float64")["data"]
    assert (found.dtype, found.tolist()) == (np.float32, [1.5, -2.5])


def test_add_n_sums_from_left_to_right() -> None:
    values = [np.array([1e16]), np.array([1.0]), np.array([-1e16])]
    arrays = {f"arg{i}": value for i, value in enumerate(values)}
    assert forward("add_n", arrays, num_args=3).tolist() == [(1e16 + 1.0) - 1e16]
    found = gradients("ElementWiseSum", arrays, np.array([2.5]), num_args=3)
    assert [gradient.tolist() for gradient in found.values()] == [[2.5]] * 3


# Shapes


def test_shapes_go_both_ways_and_merge() -> None:
    both = shapes_of("elemwise_mul", {"lhs": from_user((0, 4)), "rhs": from_user((3, 0))})
    assert both == {"lhs": (3, 4), "rhs": (3, 4), "node_output": (3, 4)}
    assert shapes_of("add_n", {"arg1": (2, 5)}, num_args=3)["arg2"] == (2, 5)


def test_unequal_shapes_name_both_sides() -> None:
    with pytest.raises(ShapeError) as caught:
        shapes_of("elemwise_add", {"lhs": (2, 3), "rhs": (3, 2)})
    assert str(caught.value) == (
        "elemwise_add 'node': rhs 'rhs' must be (2, 3), but it is (3, 2) (differs in dim 0, 1)\n"
        "  inputs:\n"
        "    lhs  = lhs  (2, 3)  fixed by infer_shape(lhs=(2, 3))\n"
        "    rhs  = rhs  (3, 2)  fixed by infer_shape(rhs=(3, 2))"
    )


# The compiler


@pytest.fixture
def forgotten() -> Iterator[None]:
    """Operators that a test registers are gone after it."""
    yield
    for name in [name for name, cls in registry._OPERATORS.items() if cls.__module__ == __name__]:
        del registry._OPERATORS[name]


def row(forward_text: str, *backward: str, **options: Any) -> type[Pointwise]:
    return compile_row(Row("TestRow", forward_text, backward, **options), __name__)


def formula(random: np.random.Generator, names: Sequence[str], depth: int) -> str:
    """A formula by chance: anything that the language can say and that has a value everywhere."""

    def deeper() -> str:
        return formula(random, names, depth - 1)

    if depth == 0:
        return str(random.choice(names))
    kind = random.integers(8)
    if kind == 0:
        return f"{random.choice(['sin', 'abs', 'tanh', 'square', 'erf', 'floor'])}({deeper()})"
    if kind == 1:
        return f"where({deeper()} {random.choice(['<', '>=', '!='])} {deeper()}, {deeper()}, {deeper()})"
    if kind == 2:
        return f"({deeper()} {random.choice(['<', '>=', '=='])} {deeper()})"
    if kind == 3:
        return f"{random.choice(['logical_and', 'logical_or', 'maximum', 'minimum', 'hypot'])}({deeper()}, {deeper()})"
    if kind == 4:
        return f"-({deeper()})"
    if kind == 5:
        return f"({random.choice(['scalar', '0.5', '2 * scalar'])} {random.choice(['+', '-', '*'])} {deeper()})"
    return f"({deeper()} {random.choice(['+', '-', '*', '*'])} {deeper()})"


@pytest.mark.usefixtures("forgotten")
@pytest.mark.parametrize("seed", range(80))
def test_random_formulas(seed: int) -> None:
    """Written to scratch and read again, a value is still what Python makes of the formula."""
    random = np.random.default_rng(seed)
    text = f"sin(lhs) + cos(rhs) * 0 + {formula(random, ('lhs', 'rhs'), 4)}"
    backward = [f"dout * {formula(random, ('lhs', 'rhs', 'out'), 3)} + dout * 0" for _ in range(2)]
    cls: Any = row(text, *backward, fields={"scalar": (float, 1.0)}, whole=True)
    op = cls(scalar=0.75)
    names = {"lhs": random.normal(size=7), "rhs": random.normal(size=7), "dout": random.normal(size=7)}

    def scratch() -> list[np.ndarray]:
        return [
            np.full(7, True) if name[0] == "m" else np.full(7, np.nan) for name in body.parameters if name in body.temps
        ]

    def wanted(tree: ast.expr) -> list[float]:
        each = ({key: value[i] for key, value in names.items()} for i in range(7))
        return [evaluate(tree, {"scalar": 0.75, **values}) for values in each]

    body = cls.form.forward
    want = wanted(cls.expression.forward)
    over = cls.inplace.get("out")
    for shared in (False, True):
        given = {key: names[key].copy() for key in ("lhs", "rhs")}
        out = given[over] if shared and over else np.full(7, np.nan)
        op.forward(np, given["lhs"], given["rhs"], out, *scratch())
        np.testing.assert_allclose(out, want, 1e-12, 1e-12)
    names["out"], body = out, cls.form.backward
    for shared in (False, True):
        given = {key: value.copy() for key, value in names.items()}
        found = {"dlhs": np.full(7, np.nan), "drhs": np.full(7, np.nan)}
        found |= {key: given["dout"] for key, value in cls.inplace.items() if shared and value == "dout"}
        read = [name for name in body.parameters if name in given]
        op.backward(np, *(given[name] for name in read), found["dlhs"], found["drhs"], *scratch())
        for key in ("lhs", "rhs"):
            np.testing.assert_allclose(found["d" + key], wanted(cls.expression.backward[key]), 1e-12, 1e-12)


@pytest.mark.usefixtures("forgotten")
def test_registers_are_used_again() -> None:
    assert row("tanh(data) + exp(data) * sin(data)").scratch == ("t0",)
    assert row("exp(sin(cos(data)))").scratch == ()
    assert row("(data > 0) * data", "dout * (out > 0)").scratch == ("m0",)


def test_backward_keeps_what_its_formulas_name() -> None:
    op = make_op("elemwise_mul", {})
    assert set(op.keeps(frozenset({"lhs"}))) == {"dout", "rhs"}
    assert set(op.keeps(frozenset({"lhs", "rhs"}))) == {"dout", "lhs", "rhs"}
    assert set(make_op("tanh", {}).keeps(frozenset({"data"}))) == {"dout", "out"}
    assert set(make_op("elemwise_add", {}).keeps(frozenset({"lhs"}))) == {"dout"}


@pytest.mark.usefixtures("forgotten")
def test_overwriting_is_allowed_where_nothing_is_read_afterwards() -> None:
    assert get_op("tanh").inplace == {"out": "data"}
    assert get_op("sin").inplace == {}  # backward needs data
    assert get_op("elemwise_add").inplace == {"out": "lhs", "drhs": "dout"}
    assert get_op("softsign").inplace == {}  # data is read again by forward, and by backward
    assert row("data / (abs(data) + 1)").inplace == {}
    assert row("(abs(data) + 1) * 2").inplace == {"out": "data"}


@pytest.mark.parametrize("text", ["zeta(data)", "data @ data", "data if data else data", "0 < data < 1", "data[0]"])
def test_what_is_not_in_the_language_is_refused(text: str) -> None:
    with pytest.raises((SyntaxError, KeyError)):
        row(text)


@pytest.mark.parametrize("name", ["_plus_scalar", "_rpower_scalar", "_lesser_equal_scalar"])
def test_files_may_say_how_the_number_was_written(name: str) -> None:
    given = {"scalar": "1.5", "is_int": "False"}
    data = np.array([0.5, 2.0])
    np.testing.assert_array_equal(forward(name, {"data": data}, **given), forward(name, {"data": data}, scalar=1.5))


def test_operators_pickle_by_name() -> None:
    program = "import pickle, sys; print(pickle.loads(bytes.fromhex(sys.argv[1])))"
    op = make_op("_plus_scalar", {"scalar": 2.5})
    run = subprocess.run(
        [sys.executable, "-c", program, pickle.dumps(op).hex()], capture_output=True, text=True, timeout=60, check=True
    )
    assert run.stdout.strip() == "_plus_scalar(scalar=2.5, is_int=True)"
    with pytest.raises(AttributeError):
        _ = elemwise.no_such_operator  # type: ignore[attr-defined]


@pytest.mark.usefixtures("forgotten")
def test_rows_are_compiled_when_their_names_are_used() -> None:
    table = Table(__name__, [Row("TestRow", "exp(data)", aliases="test_row"), Row("OtherRow", "nonsense(data)")])
    assert sorted(table) == ["OtherRow", "TestRow", "test_row"]  # nobody has looked at the nonsense yet
    assert table["test_row"] is table["TestRow"] is get_op("test_row")
    with pytest.raises(SyntaxError, match=re.escape("'nonsense(data)' is not in the language of elementwise formulas")):
        table["OtherRow"]


def test_old_names_mean_the_same() -> None:
    pairs = {"_Plus": "elemwise_add", "_minus": "elemwise_sub", "_RDivScalar": "_rdiv_scalar", "identity": "_copy"}
    pairs |= {"_GreaterEqualScalar": "_greater_equal_scalar", "_Power": "_power", "broadcast_plus": "broadcast_add"}
    for old, new in pairs.items():
        assert get_op(old) is get_op(new), old


def test_whole_numbers_have_no_negative_powers() -> None:
    base, exponent = np.array([2, 3], "int32"), np.array([2, -1], "int32")
    symbol = sym.Variable("a") ** sym.Variable("b")
    with pytest.raises(ArgumentError, match="whole numbers have no negative powers") as caught:
        symbol.eval(a=base, b=exponent)
    assert "_power" in "".join(caught.value.__notes__)
    assert symbol.eval(a=base, b=abs(exponent))[0].tolist() == [4, 3]


@pytest.mark.parametrize(
    ("name", "x", "head", "slope"),
    [
        ("rsqrt", 1e-4, 0.01, lambda x: -0.5 * x**-1.5),
        ("rcbrt", 1e-4, 0.01, lambda x: -(x ** (-4 / 3)) / 3),
        ("reciprocal", 0.003, 0.01, lambda x: -(x**-2)),
        ("arcsinh", 300.0, 1.0, lambda x: (x * x + 1) ** -0.5),
        ("arccosh", 300.0, 1.0, lambda x: (x * x - 1) ** -0.5),
    ],
)
def test_gradients_that_float16_holds_do_not_overflow_on_the_way(
    name: str, x: float, head: float, slope: Callable[[float], float]
) -> None:
    data, arriving = np.array([x], np.float16), np.array([head], np.float16)
    found = float(gradients(name, {"data": data}, arriving)["data"][0])
    exact = float(arriving[0]) * slope(float(data[0]))
    assert abs(found - exact) <= 2.0**-9 * abs(exact)
