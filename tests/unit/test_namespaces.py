"""sym.random, sym.linalg and sym.contrib find the operators that MXNet's modules of these names do."""

from __future__ import annotations

import json

import pytest

from arrayexec import sym
from arrayexec.errors import CompositionError, UnknownOperatorError

A, B = sym.Variable("a"), sym.Variable("b")


def last(symbol: sym.Symbol) -> tuple[str, dict[str, str]]:
    """Operator and attributes of the head."""
    node = json.loads(symbol.tojson())["nodes"][-1]
    return node["op"], node.get("attrs", {})


def test_operators_without_their_prefix() -> None:
    assert last(sym.linalg.gemm2(A, B, transpose_a=True)) == ("_linalg_gemm2", {"transpose_a": "True"})
    assert last(sym.contrib.quadratic(A, a=2))[0] == "_contrib_quadratic"
    assert last(sym.random.randint(low=0, high=5, shape=(2,)))[0] == "_random_randint"
    assert last(sym.random.normal_like(A))[0] == "_random_normal_like"
    assert {"gemm", "potrf", "trsm"} <= set(dir(sym.linalg))
    assert {"uniform", "shuffle", "randint"} <= set(dir(sym.random))


def test_numbers_and_symbols_choose_the_operator() -> None:
    assert last(sym.random.normal(0, 2, (3,))) == ("_random_normal", {"loc": "0", "scale": "2", "shape": "(3,)"})
    assert last(sym.random.normal(A, B, shape=3))[0] == "_sample_normal"
    assert last(sym.random.normal(scale=B, loc=A))[0] == "_sample_normal"
    assert sym.random.normal(scale=B, loc=A).list_arguments() == ["a", "b"]
    assert last(sym.random.exponential(scale=4.0, shape=2)) == ("_random_exponential", {"lam": "0.25", "shape": "2"})
    assert last(sym.random.exponential(A))[0] == "_sample_exponential"
    assert last(sym.random.uniform(shape=(2,)))[0] == "_random_uniform"
    assert last(sym.random.multinomial(A, get_prob=True))[0] == "_sample_multinomial"
    assert last(sym.random.shuffle(A))[0] == "_shuffle"


def test_what_is_not_there_is_refused() -> None:
    with pytest.raises(UnknownOperatorError, match="there is no operator 'gem' in sym.linalg.*gemm"):
        _ = sym.linalg.gem
    with pytest.raises(CompositionError, match="sym.random.normal: either all or none of loc, scale are symbols"):
        sym.random.normal(A, 1.0)
