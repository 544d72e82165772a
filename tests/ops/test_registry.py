"""Operators are found by every name; a family is imported when one of its names is first used."""

from __future__ import annotations

import subprocess
import sys

import pytest

from arrayexec import ops, sym
from arrayexec.errors import UnknownOperatorError
from arrayexec.registry import get_op


def test_a_family_is_imported_on_first_use(subprocess_env: dict[str, str]) -> None:
    code = (
        "import sys; from arrayexec import ops; from arrayexec.registry import get_op\n"
        "loaded = lambda: sorted(n.rpartition('.')[2] for n in sys.modules if n.startswith('arrayexec.ops.'))\n"
        "names = set(ops.FAMILIES)\n"
        "assert not names & set(loaded()), loaded()\n"
        "get_op('Embedding')\n"
        "assert 'embed' in loaded() and not {'conv', 'pool', 'norm', 'reduce'} & set(loaded()), loaded()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=subprocess_env, timeout=60)


def test_every_name_is_listed_once() -> None:
    names = [name for family in ops.FAMILIES.values() for name in family.split()]
    assert len(names) == len(set(names))
    assert set(names) <= set(ops.list())
    assert ops.list() == sorted(ops.list())


def test_aliases_are_the_same_operator() -> None:
    assert get_op("Concat") is get_op("concat")
    assert get_op("SliceChannel") is get_op("split")
    assert get_op("elemwise_add") is get_op("_Plus")


def test_an_unknown_name_says_what_is_near() -> None:
    with pytest.raises(UnknownOperatorError) as caught:
        get_op("Convolutoin")
    assert str(caught.value) == "operator 'Convolutoin' is not registered; did you mean 'Convolution' or 'Convolution_v1'?"


def test_operators_that_are_made_on_demand_are_not_listed() -> None:
    before = ops.list()
    weight = sym.FullyConnected(sym.Variable("x"), num_hidden=2, name="fc").gradient("fc_weight")
    assert '"op": "_gradient_FullyConnected_weight"' in weight.tojson()
    assert ops.list() == before
    assert sym.load_json(weight.tojson()).list_arguments() == weight.list_arguments()
