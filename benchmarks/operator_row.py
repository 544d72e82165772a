"""A row of the operator benchmark: an operator at the size of a use, and what stands against it."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from arrayexec.ops.expression import FUNCTIONS, Pointwise
from arrayexec.registry import Op, Sample, get_op
from arrayexec.testing.naive import poisoned
from arrayexec.testing.trial import Trial

ACT = (8, 64, 56, 56)  # ResNet-50, inside a block of stage 1
WORDS = (320, 10000)  # LSTM-200, logits of 10 steps of 32 sentences
BOXES = 8732  # anchors of SSD-300


class R(NamedTuple):
    """``example`` holds inputs (shape, Sample or array) and attributes, as operators' own examples do.

    ``numpy`` and ``back`` are Python expressions over the inputs, ``out``, ``dout`` and ``np``, ``rng``, ``windows``,
    ``peers``; ``torch`` is one over tensors and ``torch``, ``F``, or a function of a dict of tensors. What they give is
    compared with the operator before anything is timed, unless ``same`` is False.
    """

    op: str
    use: str
    example: Mapping[str, Any]
    numpy: str = ""
    back: str = ""
    torch: str | Callable[[Any, Mapping[str, Any]], Any] = ""
    setup: str = ""
    same: bool = True


_BINARY_TORCH = {"add": "lhs + rhs", "sub": "lhs - rhs", "mul": "lhs * rhs", "div": "lhs / rhs", "power": "lhs ** rhs",
                 "maximum": "torch.maximum(lhs, rhs)", "minimum": "torch.minimum(lhs, rhs)",
                 "hypot": "torch.hypot(lhs, rhs)"}  # fmt: skip
_UNARY_TORCH = {"gammaln": "torch.lgamma(data)", "relu": "torch.relu(data)", "softsign": "F.softsign(data)",
                "log_sigmoid": "F.logsigmoid(data)", "mish": "F.mish(data)", "rint": "torch.round(data)",
                "degrees": "torch.rad2deg(data)", "radians": "torch.deg2rad(data)",
                "_copy": "data.clone()"}  # fmt: skip
_TORCH = frozenset(
    "abs sign ceil floor trunc exp expm1 log log2 log10 log1p sqrt rsqrt square reciprocal sin cos tan arcsin arccos "
    "arctan sinh cosh tanh arcsinh arccosh arctanh erf erfinv digamma sigmoid negative".split()
)


class _Spelled(ast.NodeTransformer):
    """A formula of an elementwise operator as an expression of NumPy."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name):
            node.func = ast.Attribute(ast.Name("np", ast.Load()), node.func.id, ast.Load())
        return node


def _numpy_text(tree: ast.expr) -> str:
    """The formula on NumPy; empty where it calls something that NumPy does not have (erf, gamma)."""
    names = {n.func.id for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}
    if not all(hasattr(np, name) for name in names & FUNCTIONS):
        return ""
    return ast.unparse(_Spelled().visit(ast.parse(ast.unparse(tree), mode="eval").body))


def pointwise_row(name: str) -> R:
    """The row of an elementwise operator, from its own formulas, on a ResNet-50 activation."""
    cls: Any = get_op(name)
    expression, example = cls.expression, cls.examples[0]
    values = {key: value for key, value in example.items() if not isinstance(value, Sample)}
    shapes = {n: (1, 64, 1, 1) if cls.broadcasts and n == "rhs" else ACT for n in expression.inputs}
    inputs = {n: example[n]._replace(shape=shape) for n, shape in shapes.items()}
    forward = _numpy_text(expression.forward)
    forward = f"{forward}.copy()" if forward == "data" else forward
    if is_mask(expression.forward):
        forward = f"({forward}).astype(np.float32)"  # 1 and 0 in the type of the data, as the operator gives them
    gradients = [] if not forward else [_gradient(cls, n, tree) for n, tree in expression.backward.items()]
    back = ", ".join(text for text in gradients if text) if all(gradients) or not cls.broadcasts else ""
    torch = f"torch.{name}(data)" if name in _TORCH else _UNARY_TORCH.get(name, "")
    torch = torch or _BINARY_TORCH.get(name.removeprefix("broadcast_").removeprefix("elemwise_").removeprefix("_"), "")
    use = "ResNet-50 stage 1" + (" by channel" if cls.broadcasts else "")
    return R(name, use, {**inputs, **values}, forward, back, torch)


def is_mask(tree: ast.expr) -> bool:
    """Whether a formula is a comparison or logic."""
    logic = isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and tree.func.id.startswith("logical")
    return logic or isinstance(tree, ast.Compare)


def _gradient(cls: Any, name: str, tree: ast.expr) -> str:
    """Text of the gradient of one input; empty for one that a plan hands on without a step."""
    if name in cls.passes:
        return ""
    text = _numpy_text(ast.parse(ast.unparse(tree), mode="eval").body)
    text = f"({text}).sum((0, 2, 3), keepdims=True)" if cls.broadcasts and name == "rhs" else text
    return f"{text}.copy()" if text == "dout" else text


class Bound:
    """An operator with all that its bodies read and write, as an executor binds it: made once, used every step."""

    def __init__(self, row: R) -> None:
        cls: type[Op] = get_op(row.op)
        given = {key: value for key, value in row.example.items() if isinstance(value, np.ndarray)}
        self.trial = Trial(cls, {**row.example, **{k: Sample(a.shape) for k, a in given.items()}}, np.float32)
        random = np.random.default_rng(0)
        signature = self.trial.signature
        self.values: dict[str, Any] = {}
        for name in signature.arguments:
            low, high = (0.5, 1.5) if name in signature.aux else (-1.0, 1.0)
            sample, shape = self.trial.samples.get(name, Sample((), low, high)), self.trial.shape(name)
            values = (
                given[name] if name in given
                else random.integers(int(sample.low), int(sample.high) + 1, shape) if sample.integer
                else random.uniform(sample.low, sample.high, shape)
            )  # fmt: skip
            self.values[name] = _aligned(np.asarray(values, self.trial.type(name)))
        run, number, op = self.trial.start(self.values), self.trial.number, self.trial.op
        run.forward()
        first = run.graph.first[number]
        self.outputs = [_aligned(array) for array in run.values[first : first + len(signature.outputs)]]
        if not op.is_view(True):
            run.values[first : first + len(signature.outputs)] = self.outputs
        self.forward = None if op.is_view(True) else _call(op.forward, run.bind(number, "forward"))
        gives = [name for name in self.trial.differentiable() if name not in op.passes]
        self.leaving = {n: _aligned(poisoned(self.trial.shape(n), self.trial.type(n))) for n in gives}
        self.arriving = [_aligned(random.uniform(-1, 1, out.shape).astype(out.dtype)) for out in self.outputs]
        self.backward = None
        if gives and cls.form.backward and not op.is_view(True):
            leaving = [self.leaving.get(name) for name in signature.inputs]
            self.backward = _call(op.backward, run.bind(number, "backward", self.arriving, leaving))

    def names(self) -> dict[str, Any]:
        """What a NumPy expression of the row may read."""
        attributes = {key: getattr(self.trial.op, key) for key in self.trial.cls.form.attributes}
        return {**attributes, **self.values, "out": self.outputs[0], "dout": self.arriving[0]}


def _aligned(array: np.ndarray) -> np.ndarray:
    """A copy that begins at a multiple of 64 bytes, as a plan places values."""
    room = np.empty(array.nbytes + 64, np.uint8)
    start = -room.ctypes.data % 64
    copy = room[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    np.copyto(copy, array)
    return copy


def _call(body: Callable[..., None], arguments: list[Any]) -> Callable[[], None]:
    """A body with its arguments. What the plain run forbids to write is writable in an executor: NumPy may look."""
    bound = [_writable(argument) for argument in arguments]
    return lambda: body(*bound)


def _writable(argument: Any) -> Any:
    if isinstance(argument, tuple):
        return tuple(_writable(one) for one in argument)
    if isinstance(argument, np.ndarray) and argument.base is not None:
        argument.setflags(write=True)
    return argument


def is_pointwise(name: str) -> bool:
    """Whether the operator's row is made from its formulas."""
    return issubclass(get_op(name), Pointwise)
