"""Operators with mistakes in them: each is refused in words, at registration where it can be seen there."""

from __future__ import annotations

import subprocess
import sys
import threading
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import arrayexec as ax
from arrayexec import operator, registry, sym
from arrayexec.errors import CompositionError, OperatorDefinitionError, TypeInferenceError

INFER = "def infer(self, s): s.out, s.data = s.data, s.out\n"
FORWARD = "def forward(self, xp, data, out): xp.copyto(out, data)\n"
BACKWARD = "def backward(self, xp, dout, ddata): xp.copyto(ddata, dout)\n"
REST = INFER + FORWARD + BACKWARD
MANY = "def forward(self, xp, data: Many, out): pass\n"


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    before = dict(registry._OPERATORS)
    yield
    for name in set(registry._OPERATORS) - set(before):
        if registry._OPERATORS[name].__module__ == "odd_operators":
            del registry._OPERATORS[name]


def register(text: str, **options: Any) -> Any:
    """Register the operator ``Odd`` whose class body is ``text``."""
    body = "".join(f"    {line}\n" for line in text.splitlines())
    module = types.ModuleType("odd_operators")
    sys.modules[module.__name__] = module
    source = f"from __future__ import annotations\nfrom arrayexec.registry import *\nclass Odd(Op):\n{body}"
    exec(compile(source, "odd_operators.py", "exec"), module.__dict__)
    return registry.register_op(**options)(module.__dict__["Odd"])


def use(**attributes: Any) -> Any:
    executor = sym.Odd(sym.Variable("data"), name="n", **attributes).simple_bind(ax.cpu(), data=(2, 3))
    output = executor.forward(True, data=np.ones((2, 3), np.float32))[0]
    executor.backward(np.ones_like(output))
    return output


def test_a_right_one() -> None:
    register(REST)
    assert (use() == 1).all()


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (INFER + "forward = 5", "operator Odd: forward(self, xp, …) is missing or does not begin with xp"),
        (INFER + "def forward(self, xp, *args): pass", "operator Odd: parameters of forward are bound by name, one each, so '*args' cannot be bound"),
        (INFER + "def forward(self, xp, data, out, **k): pass", "operator Odd: parameters of forward are bound by name, one each, so '**k' cannot be bound"),
        (INFER + "def forward(self, xp, *, data, out): pass", "operator Odd: parameters of forward are bound by name, one each, so 'data' cannot be bound"),
        ("no_gradient = ('dat',)\n" + REST, "operator Odd: no_gradient speaks of 'dat', which is not there; did you mean 'data' or 'ddata'?"),
        ("inplace = {'out': 'dat'}\n" + REST, "operator Odd: inplace speaks of 'dat', which is not there; did you mean 'data' or 'ddata'?"),
        ("inplace = ('out', 'data')\n" + REST, "operator Odd: inplace must be a dict {written: read}, but it is ('out', 'data')"),
        ("rest = 'others'\n" + REST, "operator Odd: rest speaks of 'others', which is not there"),
        ("rows = 'paralel'\n" + REST, "operator Odd: rows speaks of 'paralel', which is not there; did you mean 'parallel'?"),
        ("name: str = ''\n" + REST, "operator Odd: attribute 'name' bears a name that the operator form or every symbol has; choose another"),
        ("k: dict = {}\n" + REST, "operator Odd: its fields cannot be attributes: mutable default <class 'dict'> for field k is not allowed: use default_factory"),
        ("k: Missing = 3\n" + REST, "operator Odd: the types of its attributes are unclear: name 'Missing' is not defined"),
        ("k: int = 'x'\n" + REST, "operator Odd: the default of attribute 'k' must be a whole number, but it is 'x'"),
        ("import dataclasses\nk: tuple[int, ...] = dataclasses.field(default_factory=tuple)\n" + REST, "operator Odd: the default of attribute 'k' must be a tuple, each item a whole number, but it is made by a factory"),
        (INFER + MANY, "operator Odd: 'data' takes any number of inputs; count them in a field num_args: int, or say inputs = …"),
    ],
)  # fmt: skip
def test_refused_at_registration(body: str, text: str) -> None:
    with pytest.raises(OperatorDefinitionError) as caught:
        register(body)
    assert str(caught.value) == text


@pytest.mark.parametrize(
    ("body", "text", "note"),
    [
        ("outputs = 3\n" + REST, "operator Odd: outputs must be a tuple of names, but it is 3", ""),
        ("def inputs(self): return None\n" + REST, "operator Odd: inputs must be a tuple of names, but it is None", ""),
        ("inputs = ('data', 'data')\n" + REST, "operator Odd: there must be an output, and all names must differ, but inputs, auxiliary states, outputs and hidden outputs are ('data', 'data'), (), ('out',), ()", ""),
        ("outputs = ()\n" + REST, "operator Odd: there must be an output, and all names must differ, but inputs, auxiliary states, outputs and hidden outputs are ('data',), (), (), ()", ""),
        ("def infer(self, s): s.out = 3\n" + FORWARD, "a rule of shapes gives 3, which are no whole numbers >= 0", "shapes"),
        ("def infer(self, s): s.out = None\n" + FORWARD, "a rule of shapes gives None, which are no whole numbers >= 0", "shapes"),
        ("def infer(self, s): s.out = (s.data[0] / 4, 3)\n" + FORWARD, "a rule of shapes gives (0.5, 3), which are no whole numbers >= 0", "shapes"),
        ("def infer(self, s): s.out = (-1, 3)\n" + FORWARD, "a rule of shapes gives (-1, 3), which are no whole numbers >= 0", "shapes"),
        ("def types(self, t): t.out = 'flot'\n" + REST, "a rule of types gives 'flot', which is no element type", "types"),
    ],
)  # fmt: skip
def test_refused_in_use(body: str, text: str, note: str) -> None:
    register(body)
    with pytest.raises(OperatorDefinitionError) as caught:
        use()
    assert str(caught.value) == text
    notes = getattr(caught.value, "__notes__", [])
    assert [line.partition(" (")[0] for line in notes] == ([f"in the rule of {note} of Odd 'n'"] if note else [])


def test_types_that_nobody_says() -> None:
    register("def types(self, t): pass\n" + REST)
    with pytest.raises(TypeInferenceError, match="^simple_bind: nothing says the element type of 'n_output'$"):
        use()


def test_names_that_are_taken() -> None:
    """Also by operators whose family nobody has used yet; a refused registration leaves no name behind."""
    for options in (dict(name="InstanceNormalisation", aliases=("Convolution",)), dict(name="Convolution")):
        with pytest.raises(
            OperatorDefinitionError, match="^operator name 'Convolution' is taken by arrayexec.ops.conv"
        ):
            register(REST, **options)
    assert registry.find_op("InstanceNormalisation") is None
    for bad in (dict(name=5), dict(name="Odd", aliases="abc")):
        with pytest.raises(OperatorDefinitionError, match="name and aliases must be texts, but they are"):
            register(REST, **bad)
    for thing in (5, len, object):
        with pytest.raises(OperatorDefinitionError, match="^register_op takes a subclass of Op, but it was given"):
            registry.register_op(thing)


def test_families_imported_from_two_threads() -> None:
    """One thread imports a family as a module, another through its operators: neither waits for the other for ever."""
    script = (
        "import threading, importlib\nfrom arrayexec import sym\n"
        "go = threading.Barrier(2)\n"
        "def one(): go.wait(); [importlib.import_module('arrayexec.ops.' + f) for f in ('conv', 'norm', 'shape')]\n"
        "def two(): go.wait(); [getattr(sym, n) for n in ('Reshape', 'BatchNorm', 'Convolution')]\n"
        "threads = [threading.Thread(target=f, daemon=True) for f in (one, two)]\n"
        "[t.start() for t in threads]; [t.join(20) for t in threads]\n"
        "assert not any(t.is_alive() for t in threads)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_arrays_where_symbols_belong() -> None:
    array = np.ones((2, 2), np.float32)
    with pytest.raises(
        CompositionError, match="^FullyConnected: input 0 must be a symbol, but it is an array; make it"
    ):
        sym.FullyConnected(array, num_hidden=3)
    with pytest.raises(
        CompositionError, match="input 'data' must be a symbol, but it is a ndarray; make it a Variable"
    ):
        sym.FullyConnected(data=array, num_hidden=3)


# --- custom operators ------------------------------------------------------------------------------------------------


def custom(forward: Any = None, backward: Any = None, **prop: Any) -> Any:
    class Body(operator.CustomOp):
        def forward(self, is_train: Any, req: Any, in_data: Any, out_data: Any, aux: Any) -> None:
            (forward or self.copy)(req, in_data, out_data)

        def backward(self, req: Any, out_grad: Any, in_data: Any, out_data: Any, in_grad: Any, aux: Any) -> None:
            (backward or self.copy)(req, out_grad, in_grad)

        def copy(self, req: Any, source: Any, target: Any) -> None:
            self.assign(target[0], req[0], source[0])

    members = {"create_operator": lambda self, *a: Body(), **prop}
    operator.register("odd")(type("OddProp", (operator.CustomOpProp,), members))
    executor = sym.Custom(sym.Variable("a"), op_type="odd", name="c").simple_bind(ax.cpu(), a=(2, 3))
    output = executor.forward(True, a=np.ones((2, 3), np.float32))[0]
    executor.backward(np.ones_like(output))
    return output, executor.grad_dict["a"]


def test_a_right_custom_operator() -> None:
    output, gradient = custom()
    assert (output == 1).all() and (gradient == 1).all()


def replace(req: Any, source: Any, target: Any) -> None:
    target[0] = source[0] * 2


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (dict(forward=replace), "Custom 'odd': forward must write into out_data[0], but it put another array in its place; use self.assign(out_data[0], req[0], value)"),
        (dict(backward=replace), "Custom 'odd': backward must write into in_grad[0], but it put another array in its place; use self.assign(in_grad[0], req[0], value)"),
        (dict(infer_shape=lambda self, shapes: None), "Custom 'odd': infer_shape must return lists for inputs (1), outputs (1) and auxiliary states (0), but it returned None"),
        (dict(infer_shape=lambda self, shapes: ([shapes[0]], 5, [])), "Custom 'odd': infer_shape must return lists for inputs (1), outputs (1) and auxiliary states (0), but it returned ([[2, 3]], 5, [])"),
        (dict(create_operator=lambda self, *a: None), "Custom 'odd': create_operator must return a CustomOp, but it returned None"),
    ],
)  # fmt: skip
def test_custom_operators_with_mistakes(options: dict[str, Any], text: str) -> None:
    with pytest.raises(OperatorDefinitionError) as caught:
        custom(**options)
    assert str(caught.value) == text


def test_exceptions_of_custom_operators_keep_type_and_text() -> None:
    def fail(*arguments: Any) -> None:
        raise KeyError("mine")

    for which in ("forward", "backward"):
        with pytest.raises(KeyError, match="mine") as caught:
            custom(**{which: fail})
        assert caught.value.__notes__[0].startswith(f"while running {which} of Custom 'c' (test_odd_operators.py:")
    wrong = lambda req, source, target: target[0].__setitem__(slice(None), np.ones((5, 5)))  # noqa: E731
    with pytest.raises(ValueError, match="could not broadcast"):
        custom(forward=wrong)


def test_executors_of_their_own_in_threads() -> None:
    net = sym.FullyConnected(sym.Variable("data"), num_hidden=4, name="fc")
    wrong: list[BaseException] = []

    def work() -> None:
        try:
            executor = net.simple_bind(ax.cpu(), data=(2, 4))
            for number in range(20):
                executor.forward(True, data=np.full((2, 4), number, np.float32))
                executor.backward(np.ones((2, 4), np.float32))
                assert (executor.grad_dict["fc_weight"] == 2 * number).all()
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not wrong
