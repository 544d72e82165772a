"""Elementwise operators as rows of text: one formula forward, one for the gradient of each input.

A row ``Row("tanh", "tanh(data)", ("dout * (1 - out * out)",))`` is compiled to an operator class when its name is first
used. Its bodies are straight lines of ``xp.<ufunc>(…, out=…)`` on the outputs and on as little scratch as the formula
needs; backward reads, and so keeps alive, what its formulas name and nothing else.

The language of the formulas, all of it:

* names: inputs (``data``, or ``lhs`` and ``rhs``), ``out``, ``dout``, and attributes such as ``scalar``;
* numbers, ``+ - * / % **``, unary ``-``, one comparison at a time, and calls of the names in ``FUNCTIONS``;
* ``where(condition, a, b)``; ``%`` is Python's (the sign of the divisor), ``/`` a true division;
* formulas of several inputs broadcast if the operator does; the gradient is then summed over the axes that were.

A compiled class keeps its formulas parsed, as ``cls.expression``: ``expression.forward`` is an ``ast.expr``,
``expression.backward`` maps each input that has a gradient to one. Other targets (links of a fused loop, Symbols, CUDA)
walk these trees; nodes of the kinds above are all they meet.
"""

from __future__ import annotations

import ast
import linecache
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ..errors import ArgumentError
from ..registry import Op, Sample, Temp, get_op, register_op
from .bounds import at_least, at_most
from .checks import check_floating, check_numbers
from .error_function import erf
from .precision import wide
from .special import SPECIAL

_OPERATORS: dict[type[ast.AST], str] = {
    ast.Add: "add", ast.Sub: "subtract", ast.Mult: "multiply", ast.Div: "divide", ast.Mod: "remainder",
    ast.Pow: "power", ast.USub: "negative", ast.Eq: "equal", ast.NotEq: "not_equal", ast.Gt: "greater",
    ast.GtE: "greater_equal", ast.Lt: "less", ast.LtE: "less_equal",
}  # fmt: skip
_LOGICAL = frozenset({"logical_and", "logical_or", "logical_xor", "logical_not", "isnan"})
_MASKS = _LOGICAL | {"equal", "not_equal", "greater", "greater_equal", "less", "less_equal"}
FUNCTIONS = _LOGICAL | SPECIAL.keys() | frozenset(
    "abs sign ceil floor trunc exp expm1 log log2 log10 log1p sqrt cbrt square reciprocal sin cos tan arcsin arccos "
    "arctan sinh cosh tanh arcsinh arccosh arctanh maximum minimum hypot erf where".split()
)
"""Functions that a formula may call: ufuncs of NumPy and CuPy, and ``where``, ``erf`` and those of :mod:`.special`."""
_INFIX = {"add": " + ", "subtract": " - ", "multiply": " * ", "negative": "-"}  # what Python does as well with numbers
_BOUNDS = {"maximum": "at_least", "minimum": "at_most"}  # of an array and a number
_SCRATCH = {"erf": 2} | dict.fromkeys(SPECIAL, 0)  # functions of this package: arrays of scratch beside the result


class Row(NamedTuple):
    """One elementwise operator. ``backward`` has a formula for each input, in order; none: the gradient is zero.

    ``fields`` are the attributes, each a type and a default (``...``: it must be given).
    """

    name: str
    forward: str
    backward: tuple[str, ...] = ()
    aliases: str = ""
    note: str = ""
    fields: Mapping[str, tuple[type, Any]] = {}
    values: Mapping[str, Any] = {}
    """Values of the attributes in the operator's example."""
    low: float = -2.0
    high: float = 2.0
    """Range of the example's inputs: where the formula is defined and has a gradient."""
    whole: bool = False
    """True if whole numbers go through all intermediate values unharmed."""
    hints: tuple[str, ...] = ()
    """Attributes that change no number."""
    factor: str = ""
    """An attribute that is 0 or infinite where it ought not to be, if the data's type is too narrow for it."""
    check: Callable[[Any], None] | None = None
    """What refuses attributes."""


class Expression(NamedTuple):
    """Formulas of one operator, parsed; the module's text says which nodes they consist of."""

    forward: ast.expr
    backward: Mapping[str, ast.expr]
    inputs: tuple[str, ...]


class Pointwise(Op):
    """Base of the compiled operators whose inputs and output have one shape."""

    rows = "parallel"
    expression: ClassVar[Expression]
    reads: ClassVar[Mapping[str, tuple[str, ...]]]
    """What the gradient of each input reads."""
    scratch: ClassVar[tuple[str, ...]] = ()
    """The bodies' scratch: ``t0 …`` of the data's type, ``m0 …`` masks, ``full total again`` if it broadcasts."""
    floating: ClassVar[bool] = False
    signed: ClassVar[bool] = False
    """True if a formula takes a difference or a sign, which truth values do not have."""
    broadcasts: ClassVar[bool] = False
    factor: ClassVar[str] = ""

    def infer(self, s: Any) -> None:
        first, *others = self.expression.inputs
        for name in (*others, "out"):  # the first input is compared with each other one, so an error names the culprit
            setattr(s, name, getattr(s, first))
            setattr(s, first, getattr(s, name))
        for name in others:
            setattr(s, name, getattr(s, first))

    def types(self, t: Any) -> None:
        t.same()
        if self.floating:
            check_floating(t, self.expression.inputs[0])
        elif self.signed:
            check_numbers(t, self.expression.inputs[0])
        if self.factor and t.data is not None and t.data.kind == "f":
            number = getattr(self, self.factor)
            with np.errstate(all="ignore"):
                held = float(t.data.type(number))
            if held != number and (held == 0 or np.isinf(held)):
                t.fail("data", f"must be of a type that holds {self.factor}={number}, but it is {t.data.name}; Cast it")

    def temps(self, s: Any) -> Mapping[str, tuple[tuple[int, ...], Any]]:
        kind = s.dtype("out")
        return {name: (s.out, bool if name[0] == "m" else kind) for name in self.scratch}

    def is_view(self, train: bool) -> bool:
        return isinstance(self.expression.forward, ast.Name) and bool(self.passes)

    def keeps(self, want: frozenset[str]) -> Iterable[str]:
        return {name for wanted in want for name in self.reads.get(wanted, ())}

    def gradient(self, sym: Any, dout: Any, **values: Any) -> Mapping[str, Any] | None:
        """The formulas of the gradients, on Symbols."""
        from .symbolic import gradients  # loaded when a graph is first differentiated

        return gradients(self, sym, {"dout": dout, **values})


def _is_signed(formula: ast.expr) -> bool:
    return any(
        isinstance(node, ast.Sub | ast.USub) or (isinstance(node, ast.Name) and node.id == "sign")
        for node in ast.walk(formula)
    )


def _call(node: ast.expr) -> tuple[str, list[ast.expr]]:
    """Function of a node and its arguments; a row that breaks the language fails when it is compiled."""
    if isinstance(node, ast.BinOp):
        return _OPERATORS[type(node.op)], [node.left, node.right]
    if isinstance(node, ast.UnaryOp):
        return _OPERATORS[type(node.op)], [node.operand]
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        return _OPERATORS[type(node.ops[0])], [node.left, node.comparators[0]]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in FUNCTIONS:
        return node.func.id, node.args
    raise SyntaxError(f"'{ast.unparse(node)}' is not in the language of elementwise formulas")


def names_in(node: ast.AST) -> set[str]:
    """Names of values and attributes in a formula."""
    called = {id(n.func) for n in ast.walk(node) if isinstance(n, ast.Call)}
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and id(n) not in called}


def _parse(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


class _Writer:
    """Writes one body: formulas become calls, intermediate values go through registers that are used again."""

    def __init__(self, fields: Iterable[str]) -> None:
        self.fields = frozenset(fields)
        self.lines: list[str] = []
        self.indent = "    "
        self.steps: list[tuple[frozenset[str], str]] = []  # (arrays read, array written), in order
        self.scratch: dict[str, None] = {}
        self.free: dict[str, list[str]] = {"t": [], "m": []}
        self.wider = ""  # how calls are told to reckon in a wider type than their operands'

    def line(self, text: str) -> None:
        self.lines.append(self.indent + text)

    def take(self, kind: str) -> str:
        if self.free[kind]:
            return self.free[kind].pop()
        name = f"{kind}{sum(n[0] == kind for n in self.scratch)}"
        self.scratch[name] = None
        return name

    def constant(self, node: ast.expr) -> bool:
        return names_in(node) <= self.fields

    def text(self, node: ast.expr) -> str | None:
        """A node that needs no call: an array's name, or a number computed in Python; else None."""
        if isinstance(node, ast.Name):
            return f"self.{node.id}" if node.id in self.fields else node.id
        if isinstance(node, ast.Constant):
            return repr(node.value)
        if not self.constant(node):
            return None
        function, arguments = _call(node)
        texts = [str(self.text(argument)) for argument in arguments]
        if function in _INFIX:
            return f"({_INFIX[function].join(texts if len(texts) > 1 else ('', *texts))})"
        return f"float(np.{function}({', '.join(texts)}))"

    def step(self, text: str, reads: Iterable[str], written: str) -> None:
        self.line(text)
        self.steps.append((frozenset(reads), written))

    def write(self, node: ast.expr, target: str) -> None:
        """Code that leaves the value of ``node`` in the array ``target``."""
        text = self.text(node)
        if text is not None:
            self.step(f'xp.copyto({target}, {text}, casting="unsafe")', [text], target)
            return
        function, arguments = _call(node)
        if function == "where":
            self.where(arguments, target)
            return
        operands, taken = self.operands(function, arguments, target)
        if function == "power":
            self.step(f"power(xp, {operands[0]}, {operands[1]}, {target}{self.wider})", operands, target)
        elif function in _BOUNDS and self.constant(arguments[1]):
            self.step(f"{_BOUNDS[function]}(xp, {operands[0]}, {operands[1]}, {target})", operands, target)
        elif function in _SCRATCH:
            extra = [self.take("t") for _ in range(_SCRATCH[function])]
            self.step(f"{function}(xp, {', '.join((*operands, target, *extra))})", operands, target)
            self.steps.append((frozenset(operands), target))  # it reads its operands again after writing
            taken += extra
        else:
            wider = "" if function in _MASKS else self.wider
            self.step(f'xp.{function}({", ".join(operands)}, out={target}, casting="unsafe"{wider})', operands, target)
        for name in taken:
            self.free[name[0]].append(name)

    def operands(self, function: str, arguments: Sequence[ast.expr], target: str) -> tuple[list[str], list[str]]:
        """Texts of the arguments, after code that computes them: the largest in ``target``, others in registers."""
        texts = [self.text(argument) for argument in arguments]
        masks = [text is None and _call(a)[0] in _MASKS for text, a in zip(texts, arguments, strict=True)]
        # A mask is a number's factor or goes into logic; sums of masks count, so they are of numbers 0 and 1.
        boolean = function in _LOGICAL or (function == "multiply" and not all(masks))
        place = "" if function in _SCRATCH else "m" if target[0] == "m" else "t"
        taken: list[str] = []
        for i in sorted(range(len(texts)), key=lambda i: -sum(1 for _ in ast.walk(arguments[i]))):
            if texts[i] is not None:
                continue
            kind = "m" if masks[i] and boolean else "t"
            if kind == place:
                register, place = target, ""
            else:
                register = self.take(kind)
                taken.append(register)
            self.write(arguments[i], register)
            texts[i] = register
        return [str(text) for text in texts], taken

    def where(self, arguments: Sequence[ast.expr], target: str) -> None:
        condition, value, other = arguments
        if self.constant(condition):
            self.line(f"if {self.text(condition)}:")
            outer, self.indent = self.indent, self.indent + "    "
            self.write(value, target)
            self.indent = outer
            self.line("else:")
            self.indent = outer + "    "
            self.write(other, target)
            self.indent = outer
            return
        mask, text = self.take("m"), self.text(value)
        self.write(other, target)
        source = text or self.take("t")
        if text is None:
            self.write(value, source)
        self.write(condition, mask)
        self.step(f'xp.copyto({target}, {source}, casting="unsafe", where={mask})', [source, mask], target)
        self.free["m"].append(mask)
        if text is None:
            self.free["t"].append(source)

    def overwrites(self, name: str, target: str, start: int = 0) -> bool:
        """True if ``target`` may be the memory of ``name``, which nobody reads after the first write to ``target``."""
        first = next(i for i in range(start, len(self.steps)) if self.steps[i][1] == target)
        return not any(name in reads for reads, _ in self.steps[first + 1 :])


def power(xp: Any, base: Any, exponent: Any, out: Any, dtype: Any = None) -> None:
    """``out = base ** exponent``; whole small exponents without the general power, which is 20 times slower."""
    if isinstance(exponent, float) and exponent == 1.0:
        xp.copyto(out, base)
    elif isinstance(exponent, float) and exponent == 2.0:
        xp.square(base, out=out, dtype=dtype)
    else:
        try:
            xp.power(base, exponent, out=out, casting="unsafe", dtype=dtype)
        except ValueError as error:
            raise ArgumentError(f"whole numbers have no negative powers; Cast to a floating type ({error})") from None


def sum_to(xp: Any, source: Any, target: Any, total: Any) -> None:
    """``target`` = ``source`` summed over the axes along which target's shape was broadcast to source's.

    ``total`` is scratch as :func:`total_for` gives it.
    """
    shape = (1,) * (source.ndim - target.ndim) + target.shape
    axes = tuple(i for i, (mine, its) in enumerate(zip(shape, source.shape, strict=True)) if mine != its)
    if not axes:
        xp.copyto(target.reshape(shape), source)
        return
    place = target if total.dtype == target.dtype else total[: target.size]
    xp.sum(source, axis=axes, dtype=total.dtype, out=place.reshape(shape), keepdims=True)
    if place is not target:
        xp.copyto(target, place.reshape(target.shape), casting="same_kind")


def total_for(kind: Any, result: tuple[int, ...], *targets: tuple[int, ...]) -> tuple[tuple[int, ...], Any]:
    """Scratch of :func:`sum_to` for targets stretched to ``result``: 16-bit numbers are summed in 32 bits."""
    if wide(kind) == kind:
        return (0,), kind
    return (max(math.prod(shape) if shape != result else 0 for shape in targets),), wide(kind)


def _gradients(gradients: Mapping[str, ast.expr], broadcasts: bool, writer: _Writer) -> tuple[list[str], str]:
    """Code of backward in order of execution, and the input whose gradient may overwrite ``dout`` ("" if none)."""
    sections: list[tuple[bool, str, list[str]]] = []
    writer.wider = ", dtype=wider" if broadcasts else ""  # terms of a sum are rounded to 16 bits when they are summed
    for name, tree in gradients.items():
        writer.lines, start = [], len(writer.steps)
        writer.indent = "        "
        bare, sign = tree, isinstance(tree, ast.UnaryOp)
        if broadcasts and isinstance(bare, ast.UnaryOp):
            bare = bare.operand  # the sum first, then its sign: no scratch
        if broadcasts:
            writer.scratch["total"] = None
        if broadcasts and isinstance(bare, ast.Name):
            writer.step(f"sum_to(xp, {bare.id}, d{name}, total)", [bare.id], f"d{name}")
            if sign:
                writer.step(f"xp.negative(d{name}, out=d{name})", [f"d{name}"], f"d{name}")
        elif broadcasts:
            writer.line(f"whole = d{name} if d{name}.shape == dout.shape else full")
            writer.scratch["full"] = None
            writer.write(tree, "whole")
            writer.line(f"if whole is full: sum_to(xp, full, d{name}, total)")
        else:
            writer.write(tree, f"d{name}")
        target = "whole" if any(written == "whole" for _, written in writer.steps[start:]) else f"d{name}"
        sections.append((writer.overwrites("dout", target, start), name, writer.lines))
    sections.sort(key=lambda section: section[0])  # stable: one that may overwrite dout comes last
    code = [line for _, name, lines in sections for line in (f"    if d{name} is not None:", *lines)]
    if any("dtype=wider" in line for line in code):
        code.insert(0, "    wider = None if total.dtype == dout.dtype else total.dtype")
    return code, sections[-1][1] if sections and sections[-1][0] else ""


def _again(forward: ast.expr, writer: _Writer) -> list[str]:
    """Code that puts the result, not rounded to 16 bits, for ``out`` if gradients are to be summed."""
    writer.lines, writer.indent, writer.wider = [], "        ", ", dtype=again.dtype"
    writer.scratch["again"] = None
    writer.write(forward, "again")
    return ["    if again.size:", *writer.lines, "        out = again"]


class _Bodies(NamedTuple):
    """What a row's formulas become."""

    functions: Mapping[str, Any]
    scratch: tuple[str, ...]
    inplace: Mapping[str, str]
    floating: bool


def _bodies(row: Row, expression: Expression, reads: Mapping[str, set[str]], broadcasts: bool) -> _Bodies:
    """Write, compile and look through the bodies of a row."""
    inputs = expression.inputs
    forward, backward = _Writer(row.fields), _Writer(row.fields)
    forward.write(expression.forward, "out")
    source = [_header("forward", (*inputs, "out"), forward.scratch), *forward.lines, ""]
    kept = {name for names in reads.values() for name in names}
    spare = [name for name in inputs if name not in kept and forward.overwrites(name, "out")]
    inplace = {"out": spare[0]} if spare else {}
    if expression.backward:
        lines, last = _gradients(expression.backward, broadcasts, backward)
        if broadcasts and "out" in kept:
            lines = [*_again(expression.forward, backward), *lines]
        inplace |= {f"d{last}": "dout"} if last else {}
        parameters = ["dout", *(name for name in (*inputs, "out") if name in kept), *(f"d{name}" for name in inputs)]
        source += [_header("backward", parameters, backward.scratch), *lines, ""]
    filename, text = f"<elementwise operator {row.name}>", "\n".join(source)
    space: dict[str, Any] = {"np": np, "Temp": Temp, "erf": erf, "power": power, "sum_to": sum_to, **SPECIAL}
    space |= {"at_least": at_least, "at_most": at_most}
    exec(compile(text, filename, "exec", dont_inherit=True), space)  # text made from this package's own tables
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)  # for tracebacks
    # A value that is computed on the way would be cut to a whole number in an integer array.
    floating = not row.whole and sum(written[0] != "m" for _, written in forward.steps) > 1
    functions: dict[str, Any] = {name: space[name] for name in ("forward", "backward") if name in space}
    return _Bodies(functions, tuple(dict.fromkeys((*forward.scratch, *backward.scratch))), inplace, floating)


def _header(name: str, parameters: Iterable[str], scratch: Iterable[str]) -> str:
    return f"def {name}({', '.join(('self', 'xp', *parameters, *(f'{temp}: Temp' for temp in scratch)))}):"


def _example(row: Row, expression: Expression, broadcasts: bool) -> Mapping[str, Any]:
    """The row's example: a broadcasting right side has one row; a comparison gets numbers that can be equal."""
    compares = not expression.backward and _call(expression.forward)[0] in _MASKS
    shapes = {name: (1, 3) if broadcasts and name == "rhs" else (2, 3) for name in expression.inputs}
    samples = {name: Sample(shape, row.low, row.high, compares) for name, shape in shapes.items()}
    return {**samples, **row.values}


def compile_row(row: Row, module: str, base: type[Pointwise] = Pointwise) -> type[Pointwise]:
    """Make and register the operator class of ``row``; it says that it lives in ``module``."""
    tree = _parse(row.forward)
    inputs = tuple(sorted(names_in(tree) - set(row.fields)))
    gradients = dict(zip(inputs, map(_parse, row.backward), strict=True)) if row.backward else {}
    expression = Expression(tree, gradients, inputs)
    reads = {name: names_in(g) - set(row.fields) for name, g in gradients.items()}
    if base.broadcasts:  # what reads out may have to compute it again
        reads = {name: names | set(inputs) if "out" in names else names for name, names in reads.items()}
    bodies = _bodies(row, expression, reads, base.broadcasts)
    space = {
        "__doc__": f"``out = {row.forward}``, element by element." + (f" {row.note}" if row.note else ""),
        "__module__": module,
        "__qualname__": row.name,
        "__annotations__": {name: kind for name, (kind, _) in row.fields.items()},
        **{name: default for name, (_, default) in row.fields.items() if default is not ...},
        **bodies.functions,
        "expression": expression,
        "reads": {name: tuple(sorted(names)) for name, names in reads.items()},
        "scratch": bodies.scratch,
        "inplace": bodies.inplace,
        "passes": () if base.broadcasts else tuple(n for n, g in gradients.items() if ast.unparse(g) == "dout"),
        "floating": bodies.floating,
        "signed": any(map(_is_signed, (tree, *gradients.values()))),
        "hints": row.hints,
        "factor": row.factor,
        **({"__post_init__": row.check} if row.check else {}),
        "examples": [_example(row, expression, base.broadcasts)],
    }
    cls: type[Pointwise] = register_op(type(row.name, (base,), space), name=row.name, aliases=row.aliases.split())
    return cls


class Table:
    """Rows of one module under their names and aliases, each compiled when it is first asked for."""

    def __init__(self, module: str, rows: Iterable[Row], base: type[Pointwise] = Pointwise) -> None:
        self._module, self._base = module, base
        self._rows = {name: row for row in rows for name in (row.name, *row.aliases.split())}
        self._classes: dict[str, type[Pointwise]] = {}

    def __contains__(self, name: object) -> bool:
        return name in self._rows

    def __getitem__(self, name: str) -> type[Pointwise]:
        row = self._rows[name]
        if row.name not in self._classes:
            self._classes[row.name] = compile_row(row, self._module, self._base)
        return self._classes[row.name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def rows(self) -> tuple[Row, ...]:
        """Every row once."""
        return tuple(row for name, row in self._rows.items() if name == row.name)

    def attribute(self, name: str) -> type[Op]:
        """``__getattr__`` of the module: a class is found under its name there, as unpickling wants it."""
        if name not in self._rows:
            raise AttributeError(f"module '{self._module}' has no attribute '{name}'")
        return get_op(name)
