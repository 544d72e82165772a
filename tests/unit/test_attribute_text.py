"""Attribute texts: what MXNet's files hold is read, everything else is refused with what is allowed."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Literal

import numpy as np
import pytest

from arrayexec.attribute_text import MAX_TEXT, Attribute, attributes_of, read_dtype, read_shape, to_text
from arrayexec.errors import AttributeValueError, OperatorDefinitionError
from arrayexec.registry import get_op

FLOAT = np.dtype("float32")


@dataclasses.dataclass(frozen=True)
class Fields:
    count: int
    flag: bool = False
    rate: float = 0.5
    mode: Literal["mean", "sum", "max"] = "mean"
    level: Literal[1, 2] = 1
    kind: np.dtype[Any] = FLOAT
    kernel: tuple[int, ...] = ()
    ratios: tuple[float, ...] = ()
    axis: int | None = None
    shape: tuple[int, ...] | None = None
    word: str = ""


FIELDS = attributes_of(Fields, "Fields")


def read(name: str, value: Any) -> Any:
    return FIELDS[name].parse(value, "Fields 'f'")


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("count", "16", 16),
        ("count", " -3 ", -3),
        ("count", np.int64(4), 4),
        ("flag", "True", True),
        ("flag", "false", False),
        ("flag", "1", True),
        ("flag", 0, False),
        ("flag", np.bool_(True), True),
        ("rate", "1e-05", 1e-5),
        ("rate", "0.1f", 0.1),
        ("rate", "inf", math.inf),
        ("rate", "-inf", -math.inf),
        ("rate", 2, 2.0),
        ("rate", np.float32(0.5), 0.5),
        ("mode", "sum", "sum"),
        ("level", "2", 2),
        ("kind", "float16", np.dtype("float16")),
        ("kind", "1", np.dtype("float64")),
        ("kind", np.int32, np.dtype("int32")),
        ("kernel", "(2, 2)", (2, 2)),
        ("kernel", "[2,2]", (2, 2)),
        ("kernel", "(3L, 3L)", (3, 3)),
        ("kernel", "(3,)", (3,)),
        ("kernel", "()", ()),
        ("kernel", "5", (5,)),
        ("kernel", 5, (5,)),
        ("kernel", [1, 2], (1, 2)),
        ("kernel", np.array([1, 2]), (1, 2)),
        ("ratios", "(0.5, 1, 2)", (0.5, 1.0, 2.0)),
        ("axis", "None", None),
        ("axis", None, None),
        ("axis", "-1", -1),
        ("shape", "(2, 0)", (2, 0)),
        ("shape", "None", None),
        ("word", "None", "None"),
        ("word", "a b", "a b"),
    ],
)
def test_reads(name: str, value: Any, expected: Any) -> None:
    found = read(name, value)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("count", "2.0", "attribute 'count' must be a whole number, but it is '2.0'"),
        ("count", True, "attribute 'count' must be a whole number, but it is True"),
        ("count", "9" * 21, f"attribute 'count' must be a whole number, but it is '{'9' * 21}'"),
        ("flag", "yes", "attribute 'flag' must be a bool, but it is 'yes'"),
        ("rate", "much", "attribute 'rate' must be a number, but it is 'much'"),
        ("rate", True, "attribute 'rate' must be a number, but it is True"),
        ("mode", "summ", "attribute 'mode' must be one of mean, sum, max, but it is 'summ'; did you mean 'sum'?"),
        ("mode", "zzzzz", "attribute 'mode' must be one of mean, sum, max, but it is 'zzzzz'"),
        ("kind", "float17", "attribute 'kind' must be an element type of real numbers in native byte order, but it is 'float17'"),
        ("kernel", "(2, x)", "attribute 'kernel' must be a tuple, each item a whole number, but it is '(2, x)'"),
        (
            "kernel",
            "(2, (3, 4))",
            "attribute 'kernel' must be a tuple, each item a whole number, but it is '(2, (3, 4))'",
        ),
        (
            "kernel",
            "__import__('os')",
            "attribute 'kernel' must be a tuple, each item a whole number, but it is \"__import__('os')\"",
        ),
        ("axis", "none", "attribute 'axis' must be a whole number or None, but it is 'none'"),
        ("word", 3, "attribute 'word' must be a text, but it is 3"),
    ],
)
def test_refuses(name: str, value: Any, text: str) -> None:
    with pytest.raises(AttributeValueError) as caught:
        read(name, value)
    assert str(caught.value) == f"Fields 'f': {text}"
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, TypeError)


def test_a_text_that_is_too_long_is_refused_and_shown_in_part() -> None:
    with pytest.raises(AttributeValueError) as caught:
        read("kernel", "(" + "1," * MAX_TEXT + ")")
    assert len(str(caught.value)) < 250


def test_defaults_and_required_attributes() -> None:
    assert FIELDS["count"].required
    assert FIELDS["count"].default is None
    assert [name for name, attribute in FIELDS.items() if attribute.required] == ["count"]
    assert FIELDS["rate"].default == 0.5
    assert list(FIELDS) == [field.name for field in dataclasses.fields(Fields)]


def test_an_attribute_of_another_type_is_refused_where_it_is_defined() -> None:
    @dataclasses.dataclass
    class Odd:
        table: dict = dataclasses.field(default_factory=dict)  # type: ignore[type-arg]

    with pytest.raises(
        OperatorDefinitionError, match="operator Odd: type <class 'dict'> of an attribute is not one of"
    ):
        attributes_of(Odd, "Odd")


def test_a_class_without_fields_has_no_attributes() -> None:
    assert attributes_of(dataclasses.dataclass(type("Empty", (), {})), "Empty") == {}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "True"),
        (16, "16"),
        (np.int32(16), "16"),
        (1e-5, "1e-05"),
        ((2, 2), "(2, 2)"),
        ([2, 2], "(2, 2)"),
        ((3,), "(3,)"),
        (None, "None"),
        ("mean", "mean"),
        (np.float32, "float32"),
        (np.dtype("int8"), "int8"),
    ],
)
def test_writes(value: Any, text: str) -> None:
    assert to_text(value) == text


@pytest.mark.parametrize("value", [True, 16, 1e-5, math.inf, (2, 2), (3,), (), None])
def test_what_is_written_reads_back(value: Any) -> None:
    name = {bool: "flag", int: "count", float: "rate", tuple: "kernel", type(None): "axis"}[type(value)]
    assert read(name, to_text(value)) == value


def test_shapes_and_types_of_variables() -> None:
    assert read_shape("(3, 4)") == (3, 4)
    assert read_shape([3]) == (3,)
    assert read_dtype("0") == np.dtype("float32")
    assert read_dtype("float64") == np.dtype("float64")
    with pytest.raises(AttributeValueError, match="variable: attribute 'shape' must be a tuple of whole numbers"):
        read_shape("three")
    with pytest.raises(AttributeValueError, match="variable: attribute 'dtype' must be an element type"):
        read_dtype("9")
    assert isinstance(FIELDS["count"], Attribute)


def test_none_for_a_tuple_is_its_default() -> None:
    assert read("kernel", None) == read("kernel", "None") == read("kernel", " None ") == ()
    assert read("shape", "None") is None
    step = attributes_of(get_op("slice"), "slice")["step"]
    assert step.parse("None", "slice") == ()
    with pytest.raises(AttributeValueError, match="must be a tuple"):
        attributes_of(get_op("tile"), "tile")["reps"].parse("None", "tile")
