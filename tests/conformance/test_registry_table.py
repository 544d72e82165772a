"""Names, aliases, inputs, attributes and defaults of the operators, against what MXNet 1.9.1 registers.

``mxnet/registry.json`` holds, by operator: aliases, names of inputs and states in order, and attributes, each with the
text of its default (null: required), followed by its legal values where these are listed.
"""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from arrayexec import symbol  # noqa: F401  the operators
from arrayexec.registry import find_op, make_op, signature_of
from tests.conformance.golden import DATA

TABLE: dict[str, dict[str, Any]] = json.loads((DATA / "registry.json").read_text())

# What is different, and why. Attributes that only this project has:
MORE = {
    "BatchNorm": {"unbiased"},  # D21
    "BatchNorm_v1": {"axis", "unbiased", "cudnn_off", "min_calib_range", "max_calib_range"},  # it is BatchNorm
    "_contrib_SyncBatchNorm": {"axis", "unbiased", "cudnn_off", "min_calib_range", "max_calib_range"},
    "Custom": {"keywords"},  # every attribute that the program declares
    "_contrib_SparseEmbedding": {"deterministic"},  # of older files
    "_linalg_potrf": {"lower"},  # of newer files
    "_linalg_potri": {"lower"},
    "_linspace": {"num", "endpoint"},  # what its files hold; the table describes _arange there
}
# Attributes that must be given here, where MXNet has a default that it then refuses or that means nothing.
MUST_BE_GIVEN = {
    "Custom": {"op_type"}, "_linspace": {"stop"}, "_ravel_multi_index": {"shape"}, "_unravel_index": {"shape"},
    "broadcast_to": {"shape"},
}  # fmt: skip
# Attributes that need not be given here.
NEED_NOT = {"_contrib_SyncBatchNorm": {"key"}, "_split_v2": {"indices"}, "smooth_l1": {"scalar"}}
# Defaults with another text and the same meaning: None is float32, int32 is what None means there.
SAME = {("_full", "dtype"), ("_ones", "dtype"), ("_zeros", "dtype"), ("_random_randint", "dtype")}
MISSING = {("_linspace", name) for name in ("step", "repeat", "infer_range")}
UNREADABLE = {"bfloat16", "None"}  # types that need another package, and one that is the default's name


def as_one(value: Any) -> Any:
    return () if value is None else value


@pytest.mark.parametrize("name", TABLE)
def test_names_attributes_and_defaults(name: str) -> None:
    row, cls = TABLE[name], find_op(name)
    assert cls is not None
    for alias in row.get("aliases", ()):
        assert find_op(alias) is cls, alias
    attributes, theirs = cls.form.attributes, row.get("attributes", {})
    assert set(theirs) - set(attributes) <= {key for operator, key in MISSING if operator == name}
    assert set(attributes) - set(theirs) - {"num_args"} == MORE.get(name, set()) - set(theirs)
    for key, entry in theirs.items():
        default, legal = entry if isinstance(entry, list) else (entry, ())
        if (name, key) in MISSING:
            continue
        ours = attributes[key]
        for value in set(legal) - UNREADABLE:
            ours.parse(value, name)
        if key in MUST_BE_GIVEN.get(name, ()) or (default is None and key not in NEED_NOT.get(name, ())):
            assert ours.required, key
            continue
        assert not ours.required, key
        if default is None or (name, key) in SAME:
            continue
        wanted, found = () if default == "None" else as_one(ours.parse(default, name)), as_one(ours.default)
        if isinstance(wanted, float) and isinstance(found, float):
            assert math.isclose(wanted, found, rel_tol=1e-6) or (wanted != wanted and found != found), key
        else:
            assert wanted == found, key


COUNTED = {"amp_multicast", "multi_all_finite"}  # their inputs are data_0, data_1, …, and array_0, array_1, …


@pytest.mark.parametrize("name", [name for name, row in TABLE.items() if "counted_by" not in row and name not in COUNTED])
def test_inputs_have_their_names_and_order(name: str) -> None:
    cls: Any = find_op(name)
    declared = TABLE[name].get("arguments", [])
    for example in cls.examples:
        op = make_op(name, {key: value for key, value in example.items() if key in cls.form.attributes})
        inputs = [argument for argument in signature_of(op).inputs if (name, argument) != ("softmin", "length")]
        assert inputs == [argument for argument in declared if argument in inputs]
