"""Every operator at once on NDArrays gives what its graph gives, for all its examples."""

from __future__ import annotations

import numpy as np
import pytest

import arrayexec as ax
import arrayexec.compat.mxnet as mx
from arrayexec.registry import Op, get_op
from arrayexec.testing.trial import Trial

OWN = {cls.form.name: cls for cls in map(get_op, ax.ops.list()) if cls.__module__.startswith("arrayexec.")}
MEET = {"_joined_moments"}  # needs other devices


@pytest.mark.parametrize("name", sorted(OWN.keys() - MEET))
def test_operator(name: str) -> None:
    cls: type[Op] = OWN[name]
    for example in cls.examples:
        trial = Trial(cls, example)
        arrays = trial.arrays()
        attributes = {key: value for key, value in example.items() if key in cls.form.attributes}
        given = {key: mx.nd.array(value, dtype=value.dtype) for key, value in arrays.items()}
        function = getattr(mx.nd, name)
        with np.errstate(all="ignore"):
            wanted = trial.start(is_train=False).forward()
        outputs = function(*given.values(), **attributes)
        found = outputs if isinstance(outputs, list) else [outputs]
        draws = "rng" in cls.form.forward.parameters
        assert [out.shape for out in found] == [out.shape for out in wanted]
        assert [np.dtype(out.dtype) for out in found] == [out.dtype for out in wanted]
        for out, value in zip(found, wanted, strict=True):
            if not draws:
                np.testing.assert_array_equal(out.asnumpy(), value)
        for key, value in given.items():
            np.testing.assert_array_equal(value.asnumpy(), arrays[key], err_msg=f"{name} has changed its input {key}")
        if cls.form.variadic is None and given and not draws:
            by_name = function(**given, **attributes)
            first = by_name[0] if isinstance(by_name, list) else by_name
            np.testing.assert_array_equal(first.asnumpy(), wanted[0])
            target = [mx.nd.array(np.full(out.shape, 7), dtype=out.dtype) for out in wanted]
            assert function(*given.values(), **attributes, out=target if len(target) > 1 else target[0]) is not None
            np.testing.assert_array_equal(target[0].asnumpy(), wanted[0])


def test_into_its_own_input() -> None:
    """``out`` may be an input, whole or in part, whatever the operator does."""
    for call, wanted in (
        (lambda a: mx.nd.transpose(a, out=a), [[1, 3], [2, 4]]),
        (lambda a: mx.nd.dot(a, a, out=a), [[7, 10], [15, 22]]),
        (lambda a: mx.nd.elemwise_add(a, a, out=a), [[2, 4], [6, 8]]),
        (lambda a: mx.nd.flip(a, axis=0, out=a), [[3, 4], [1, 2]]),
        (lambda a: mx.nd.broadcast_add(a, a[0:1], out=a), [[2, 4], [4, 6]]),
        (lambda a: mx.nd.softmax(a * 0, out=a), [[0.5, 0.5], [0.5, 0.5]]),
        (lambda a: mx.nd.cumsum(a, axis=0, out=a), [[1, 2], [4, 6]]),
    ):
        array = mx.nd.array([[1, 2], [3, 4]])
        call(array)
        assert array.asnumpy().tolist() == wanted


def test_an_array_of_another_type_as_out_is_cast() -> None:
    out = mx.nd.zeros((2,), dtype="int32")
    mx.nd.exp(mx.nd.array([0, 1]), out=out)
    assert out.asnumpy().tolist() == [1, 2]


def test_an_operator_of_the_program_is_there_at_once() -> None:
    @ax.register_op(name="compat_doubled")
    class Doubled(Op):
        """``out = factor · data``."""

        factor: float = 2.0
        examples = ({"data": (2, 3)},)

        def infer(self, s):  # type: ignore[no-untyped-def]
            s.out = s.data
            s.data = s.out

        def forward(self, xp, data, out):  # type: ignore[no-untyped-def]
            xp.multiply(data, self.factor, out=out)

    assert mx.nd.compat_doubled(mx.nd.ones((2,)), factor=3).asnumpy().tolist() == [3, 3]
    assert mx.nd.op.compat_doubled(mx.nd.ones((2,)), 4).asnumpy().tolist() == [4, 4]
