"""Products, triangles, factors, inverses and determinants of matrices against plain NumPy and numeric gradients."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from arrayexec.dims import UNKNOWN
from arrayexec.errors import ArgumentError
from arrayexec.ops import linalg_factor
from tests.ops.runs import Result, close, run, shapes_of, uniform

LEADS: list[tuple[int, ...]] = [(), (3,), (2, 2), (0,)]
FLAGS = list(itertools.product((False, True), repeat=3))


def positive(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Symmetric positive definite matrices."""
    half = uniform(shape, seed)
    return half @ half.swapaxes(-1, -2) + np.eye(shape[-1])


def triangular(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Matrices with large diagonals, and NaN beside neither triangle: what is not read may be anything finite."""
    return uniform(shape, seed) + 3 * np.eye(shape[-1])


def numeric(name: str, arrays: dict[str, Any], heads: list[Any], wrt: str, direction: Any, **given: Any) -> float:
    """Derivative of the outputs' sum, weighed by ``heads``, along a direction of one input."""
    step, values = 1e-6, []
    for sign in (1, -1):
        moved = {**arrays, wrt: arrays[wrt] + sign * step * direction}
        outputs = run(name, moved, **given).outputs
        values.append(sum(float(np.vdot(head, out)) for head, out in zip(heads, outputs, strict=True)))
    return (values[0] - values[1]) / (2 * step)


def heads_of(found: Result) -> list[np.ndarray]:
    return [uniform(out.shape, 9 + i) for i, out in enumerate(found.outputs)]


@pytest.mark.parametrize("lead", LEADS)
@pytest.mark.parametrize(("ta", "tb"), list(itertools.product((False, True), repeat=2)))
def test_gemm_and_gemm2(lead: tuple[int, ...], ta: bool, tb: bool) -> None:
    a = uniform((*lead, *((4, 2) if ta else (2, 4))))
    b = uniform((*lead, *((3, 4) if tb else (4, 3))), 1)
    c, head = uniform((*lead, 2, 3), 2), uniform((*lead, 2, 3), 3)
    first, second = "...ki" if ta else "...ik", "...jk" if tb else "...kj"
    product = np.einsum(f"{first},{second}->...ij", a, b)
    got = run("_linalg_gemm", {"A": a, "B": b, "C": c}, head, transpose_a=ta, transpose_b=tb, alpha=0.5, beta=-2)
    close(got.out, 0.5 * product - 2 * c)
    close(got.gradients["A"], 0.5 * np.einsum(f"...ij,{second}->{first}", head, b))
    close(got.gradients["B"], 0.5 * np.einsum(f"...ij,{first}->{second}", head, a))
    close(got.gradients["C"], -2 * head)
    two = run("linalg_gemm2", {"A": a, "B": b}, head, transpose_a=ta, transpose_b=tb, alpha=0.5)
    close(two.out, 0.5 * product)
    close(two.gradients["A"], got.gradients["A"])
    close(two.gradients["B"], got.gradients["B"])


@pytest.mark.parametrize("axis", [0, 1, -3])
def test_rows_may_lie_in_another_axis(axis: int) -> None:
    a, b, c, head = uniform((2, 3, 4, 5)), uniform((2, 3, 4, 5), 1), uniform((2, 3, 4, 4), 2), uniform((2, 3, 4, 4), 3)
    place = axis % 4
    b = uniform(tuple(5 if i == place else d for i, d in enumerate((2, 3, 4, 6))), 1)
    shape = tuple(a.shape[i] if i < 3 else 6 for i in range(4))
    c, head = uniform(shape, 2), uniform(shape, 3)
    got = run("_linalg_gemm", {"A": a, "B": b, "C": c}, head, axis=axis)
    move = [np.moveaxis(x, place, -2) for x in (a, b, c, head)]
    close(np.moveaxis(got.out, place, -2), move[0] @ move[1] + move[2])
    close(np.moveaxis(got.gradients["A"], place, -2), move[3] @ move[1].swapaxes(-1, -2))
    close(np.moveaxis(got.gradients["B"], place, -2), move[0].swapaxes(-1, -2) @ move[3])


@pytest.mark.parametrize("lead", LEADS)
@pytest.mark.parametrize("transpose", [False, True])
def test_syrk(lead: tuple[int, ...], transpose: bool) -> None:
    a = uniform((*lead, 2, 3))
    other = a.swapaxes(-1, -2)
    want = 0.5 * (other @ a if transpose else a @ other)
    head = uniform(want.shape, 1)
    got = run("_linalg_syrk", {"A": a}, head, transpose=transpose, alpha=0.5)
    close(got.out, want)
    both = head + head.swapaxes(-1, -2)
    close(got.gradients["A"], 0.5 * (a @ both if transpose else both @ a))


@pytest.mark.parametrize("lead", LEADS)
@pytest.mark.parametrize(("transpose", "rightside", "lower"), FLAGS)
def test_trmm_and_trsm(lead: tuple[int, ...], transpose: bool, rightside: bool, lower: bool) -> None:
    a, b = triangular((*lead, 4, 4)), uniform((*lead, *((3, 4) if rightside else (4, 3))), 1)
    given: dict[str, Any] = dict(transpose=transpose, rightside=rightside, lower=lower, alpha=1.5)
    triangle = np.tril(a) if lower else np.triu(a)
    matrix = triangle.swapaxes(-1, -2) if transpose else triangle
    inverse = np.linalg.inv(matrix)
    arrays = {"A": a, "B": b}
    for name, other in (("_linalg_trmm", matrix), ("_linalg_trsm", inverse)):
        head = uniform(b.shape, 2)
        got = run(name, arrays, head, **given)
        close(got.out, 1.5 * (b @ other if rightside else other @ b), 12)
        if 0 in lead:
            continue
        for wrt in arrays:
            direction = uniform(arrays[wrt].shape, 5)
            want = numeric(name, arrays, [head], wrt, direction, **given)
            assert float(np.vdot(got.gradients[wrt], direction)) == pytest.approx(want, rel=1e-7, abs=1e-7)
        beside = np.triu(got.gradients["A"], 1) if lower else np.tril(got.gradients["A"], -1)
        assert not beside.any()


@pytest.mark.parametrize("lower", [False, True])
def test_what_is_beside_the_triangle_is_not_read(lower: bool) -> None:
    a, b = triangular((5, 5)), uniform((5, 2), 1)
    spoilt = np.where(np.tri(5, dtype=bool) if lower else np.tri(5, dtype=bool).T, a, np.nan)
    head = uniform((5, 2), 2)
    for name in ("_linalg_trmm", "_linalg_trsm"):
        clean, got = (run(name, {"A": x, "B": b}, head, lower=lower) for x in (a, spoilt))
        for found, want in ((got.out, clean.out), *((got.gradients[k], clean.gradients[k]) for k in "AB")):
            np.testing.assert_array_equal(found, want)
    square = positive((5, 5))
    spoilt = np.where(np.tri(5, dtype=bool) if lower else np.tri(5, dtype=bool).T, square, np.nan)
    np.testing.assert_array_equal(run("_linalg_potrf", {"A": spoilt}, lower=lower).out,
                                  run("_linalg_potrf", {"A": square}, lower=lower).out)  # fmt: skip


@pytest.mark.parametrize("size", [1, 31, 32, 33, 150])
@pytest.mark.parametrize("lower", [False, True])
def test_substitution_goes_block_by_block(size: int, lower: bool) -> None:
    a, b = uniform((size, size)) / size + 2 * np.eye(size), uniform((size, 7), 1)
    got = run("_linalg_trsm", {"A": a, "B": b}, lower=lower)
    close((np.tril(a) if lower else np.triu(a)) @ got.out, b, 12)


@pytest.mark.parametrize("name", ["_linalg_potrf", "_linalg_syevd"])
@pytest.mark.parametrize("lead", LEADS)
def test_gradients_of_symmetric_matrices(name: str, lead: tuple[int, ...]) -> None:
    a = positive((*lead, 4, 4))
    heads = heads_of(run(name, {"A": a}))
    gradient = run(name, {"A": a}, heads).gradients["A"]
    np.testing.assert_allclose(gradient, gradient.swapaxes(-1, -2), 1e-12, 1e-12)
    for seed in range(3 if 0 not in lead else 0):
        direction = uniform(a.shape, 20 + seed)
        direction = direction + direction.swapaxes(-1, -2)
        want = numeric(name, {"A": a}, heads, "A", direction)
        assert float(np.vdot(gradient, direction)) == pytest.approx(want, rel=1e-6, abs=1e-7)


@pytest.mark.parametrize("lead", LEADS)
@pytest.mark.parametrize("lower", [False, True])
def test_cholesky(lead: tuple[int, ...], lower: bool) -> None:
    a = positive((*lead, 5, 5))
    got = run("_linalg_potrf", {"A": a}, uniform(a.shape, 3), lower=lower)
    other = got.out.swapaxes(-1, -2)
    close(got.out @ other if lower else other @ got.out, a, 12)
    assert not (np.triu(got.out, 1) if lower else np.tril(got.out, -1)).any()
    mirrored = run("_linalg_potrf", {"A": a}, uniform(a.shape, 3).swapaxes(-1, -2), lower=not lower)
    close(mirrored.gradients["A"], got.gradients["A"], 12)
    back = run("_linalg_potri", {"A": got.out}, lower=lower)
    close(back.out @ a, np.broadcast_to(np.eye(5), a.shape), 11)


@pytest.mark.parametrize("name", ["_linalg_potri", "_linalg_inverse", "_linalg_det", "_linalg_slogdet", "_linalg_gelqf"])
@pytest.mark.parametrize("lead", [(), (2,)])
def test_numeric_gradients(name: str, lead: tuple[int, ...]) -> None:
    arrays = {"A": triangular((*lead, 4, 4))}
    heads = heads_of(run(name, arrays))
    gradient = run(name, arrays, heads).gradients["A"]
    for seed in range(3):
        direction = uniform(arrays["A"].shape, 20 + seed)
        want = numeric(name, arrays, heads, "A", direction)
        assert float(np.vdot(gradient, direction)) == pytest.approx(want, rel=1e-6, abs=1e-8)


@pytest.mark.parametrize("lead", LEADS)
def test_numbers_of_matrices(lead: tuple[int, ...]) -> None:
    a = positive((*lead, 4, 4))
    shape = lead or (1,)
    close(run("_linalg_det", {"A": a}).out, np.linalg.det(a).reshape(shape), 12)
    sign, logarithm = run("_linalg_slogdet", {"A": a}).outputs
    close(sign, np.ones(shape))
    close(logarithm, np.log(np.linalg.det(a)).reshape(shape), 12)
    lower = np.linalg.cholesky(a)
    got = run("_linalg_sumlogdiag", {"A": lower}, np.ones(shape))
    close(got.out, logarithm / 2, 12)
    inverse_diagonal = 1 / np.diagonal(lower, 0, -2, -1)
    close(got.gradients["A"], np.eye(4) * inverse_diagonal[..., None])
    close(run("_linalg_inverse", {"A": a}).out, np.linalg.inv(a) if a.size else a)


def test_singular_matrices_have_determinants_and_cofactors() -> None:
    a = np.array([[[1.0, 2.0], [2.0, 4.0]], [[1.0, 2.0], [4.0, 3.0]], [[0.0, 0.0], [0.0, 0.0]]])
    got = run("_linalg_det", {"A": a}, np.ones(3))
    close(got.out, [0, -5, 0], 12)
    close(got.gradients["A"], [[[4, -2], [-2, 1]], [[3, -4], [-2, 1]], [[0, 0], [0, 0]]], 12)
    sign, logarithm = run("_linalg_slogdet", {"A": a}).outputs
    np.testing.assert_array_equal(sign, [0, -1, 0])
    np.testing.assert_allclose(logarithm, [-np.inf, np.log(5), -np.inf], 1e-13)


def test_recorded_factors() -> None:
    q, lower = run("_linalg_gelqf", {"A": np.array([[1.0, 2, 3], [4, 5, 6]])}).outputs
    np.testing.assert_allclose(q, [[-0.26726124, -0.53452248, -0.80178373], [0.87287156, 0.21821789, -0.43643578]], 1e-7)
    np.testing.assert_allclose(lower, [[-3.74165739, 0], [-8.55235974, 1.96396101]], 1e-7, 1e-14)
    vectors, values = run("_linalg_syevd", {"A": np.array([[[1.0, 2], [2, 4]], [[1, 2], [2, 5]]])}).outputs
    want = [[[0.89442719, -0.4472136], [0.4472136, 0.89442719]], [[0.92387953, -0.38268343], [0.38268343, 0.92387953]]]
    np.testing.assert_allclose(vectors, want, 1e-7)
    np.testing.assert_allclose(values, [[0, 5], [0.17157288, 5.82842712]], 1e-7, 1e-7)


@pytest.mark.parametrize("lead", [(), (2,), (300,)])
def test_factors_give_the_matrix_back(lead: tuple[int, ...]) -> None:
    a = uniform((*lead, 3, 5))
    q, lower = run("_linalg_gelqf", {"A": a}).outputs
    close(lower @ q, a, 12)
    close(q @ q.swapaxes(-1, -2), np.broadcast_to(np.eye(3), (*lead, 3, 3)), 12)
    a = positive((*lead, 4, 4))
    u, values = run("_linalg_syevd", {"A": a}).outputs
    close(u @ a, values[..., None] * u, 11)
    assert (np.diff(values) >= 0).all()
    assert (np.take_along_axis(u, np.abs(u).argmax(-1)[..., None], -1) > 0).all()


def test_equal_eigenvalues_do_not_spoil_the_gradient() -> None:
    gradient = run("_linalg_syevd", {"A": np.eye(3)}, [np.zeros((3, 3)), np.ones(3)]).gradients["A"]
    close(gradient, np.eye(3))  # of the trace


@pytest.mark.parametrize("offset", [-2, -1, 0, 1, 2])
@pytest.mark.parametrize("lead", LEADS)
def test_diagonals(lead: tuple[int, ...], offset: int) -> None:
    a = uniform((*lead, 4, 4))
    want = np.diagonal(a, offset, -2, -1)
    head = uniform(want.shape, 1)
    got = run("_linalg_extractdiag", {"A": a}, head, offset=offset)
    np.testing.assert_array_equal(got.out, want)
    built = run("_linalg_makediag", {"A": want}, a, offset=offset)
    for found, values in ((got.gradients["A"], head), (built.out, want)):
        np.testing.assert_array_equal(np.diagonal(found, offset, -2, -1), values)
        assert np.count_nonzero(found) == np.count_nonzero(values)
    np.testing.assert_array_equal(built.gradients["A"], want)


@pytest.mark.parametrize(("offset", "lower"), [(0, True), (0, False), (1, True), (2, False), (-1, False), (-2, True)])
@pytest.mark.parametrize("lead", LEADS)
def test_triangles(lead: tuple[int, ...], offset: int, lower: bool) -> None:
    a = uniform((*lead, 4, 4))
    below = offset < 0 or (offset == 0 and lower)
    rows, columns = np.tril_indices(4, offset) if below else np.tril_indices(4, -offset)[::-1]
    want = a[..., rows, columns]
    head = uniform(want.shape, 1)
    got = run("_linalg_extracttrian", {"A": a}, head, offset=offset, lower=lower)
    np.testing.assert_array_equal(got.out, want)
    built = run("_linalg_maketrian", {"A": want}, a, offset=offset, lower=lower)
    for found, values in ((got.gradients["A"], head), (built.out, want)):
        np.testing.assert_array_equal(found[..., rows, columns], values)
        assert np.count_nonzero(found) == np.count_nonzero(values)
    np.testing.assert_array_equal(built.gradients["A"], want)


@pytest.mark.parametrize("rows", [(2,), (2, 3), (2, 3, 4), (0, 3)])
def test_khatri_rao(rows: tuple[int, ...]) -> None:
    arrays = {f"arg{i}": uniform((count, 3), i) for i, count in enumerate(rows)}
    letters = "abcd"[: len(rows)]
    inputs = [f"{letter}k" for letter in letters]
    full = np.einsum(f"{','.join(inputs)}->{letters}k", *arrays.values())
    head = uniform((int(np.prod(rows)), 3), 9)
    got = run("khatri_rao", arrays, head, num_args=len(rows))
    close(got.out, full.reshape(-1, 3))
    for i, name in enumerate(arrays):
        others = [text for j, text in enumerate(inputs) if j != i]
        values = [array for j, array in enumerate(arrays.values()) if j != i]
        want = np.einsum(f"{','.join([letters + 'k', *others])}->{inputs[i]}", head.reshape(full.shape), *values)
        close(got.gradients[name], want)


@pytest.mark.parametrize(
    ("name", "given", "attributes", "wanted"),
    [
        ("_linalg_gemm", {"A": (2, 3, UNKNOWN), "B": (UNKNOWN, 4, 5)}, {}, {"A": (2, 3, 4), "C": (2, 3, 5)}),
        ("_linalg_gemm", {"A": (2, 3), "C": (2, 5)}, {}, {"B": (3, 5), "node_output": (2, 5)}),
        ("_linalg_gemm2", {"A": (3, 2, 4), "B": (4, 2, 5)}, {"axis": 0}, {"node_output": (3, 2, 5)}),
        ("_linalg_syrk", {"A": (UNKNOWN, 3)}, {"transpose": True}, {"node_output": (3, 3)}),
        ("_linalg_trsm", {"B": (2, 3, 4)}, {}, {"A": (2, 3, 3), "node_output": (2, 3, 4)}),
        ("_linalg_trmm", {"A": (UNKNOWN, 4), "B": (5, UNKNOWN)}, {"rightside": True}, {"A": (4, 4), "B": (5, 4)}),
        ("_linalg_potrf", {"A": (5, UNKNOWN, 3)}, {}, {"node_output": (5, 3, 3)}),
        ("_linalg_maketrian", {"A": (5, 6)}, {"offset": -1}, {"node_output": (5, 4, 4)}),
        ("_linalg_extractdiag", {"A": (5, UNKNOWN, 3)}, {"offset": 1}, {"node_output": (5, 2)}),
        ("_linalg_gelqf", {"A": (5, 3, 4)}, {}, {"node_output0": (5, 3, 4), "node_output1": (5, 3, 3)}),
        ("_linalg_gemm2", {"A": (1 << 20, 1 << 20), "B": (1 << 20, 1 << 20)}, {}, {"node_output": (1 << 20, 1 << 20)}),
        ("khatri_rao", {"arg0": (1 << 20, 2), "arg1": (1 << 20, 2)}, {"num_args": 2}, {"node_output": (1 << 40, 2)}),
        ("_linalg_extracttrian", {"A": (1 << 20, 1 << 20)}, {}, {"node_output": ((1 << 19) * ((1 << 20) + 1),)}),
    ],
)
def test_what_shapes_say(name: str, given: dict, attributes: dict, wanted: dict) -> None:
    found = shapes_of(name, given, **attributes)
    for key, shape in wanted.items():
        assert str(found[key]) == str(shape), key


@pytest.mark.parametrize(
    ("name", "arrays", "text"),
    [
        ("_linalg_potrf", {"A": np.array([np.eye(2), -np.eye(2)])}, "matrix 1 of its input must be positive definite"),
        ("_linalg_inverse", {"A": np.array([np.eye(2)] * 2000 + [np.ones((2, 2))])}, "matrix 2000 of its input must have"),
        ("_linalg_trsm", {"A": np.zeros((2, 2)), "B": np.ones((2, 1))}, "matrix 0 of its input must have no zero on"),
        ("_linalg_potri", {"A": np.zeros((2, 2))}, "matrix 0 of its input must have no zero on its diagonal"),
    ],
)
def test_what_has_no_answer_is_refused(name: str, arrays: dict[str, Any], text: str) -> None:
    with pytest.raises(ArgumentError, match=f"{name}: {text}"):
        run(name, arrays)


@pytest.mark.parametrize(("name", "shape"), [("_linalg_slogdet", (2, 2)), ("_linalg_gelqf", (2, 3))])
def test_gradients_that_are_not_there_are_refused(name: str, shape: tuple[int, int]) -> None:
    heads: Callable[..., Any] = np.ones
    found = run(name, {"A": np.zeros(shape)})
    with pytest.raises(ArgumentError, match="if a gradient is wanted"):
        run(name, {"A": np.zeros(shape)}, [heads(out.shape) for out in found.outputs])


def test_nan_stays_nan() -> None:
    a = np.array([np.eye(2), np.full((2, 2), np.nan)])
    for name in ("_linalg_det", "_linalg_sumlogdiag"):
        got = run(name, {"A": a}).out
        assert np.isfinite(got[0])
        assert np.isnan(got[1])


def test_many_matrices_go_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    a, head = positive((50, 4, 4)), uniform((50, 4, 4), 1)
    whole = run("_linalg_potrf", {"A": a}, head)
    monkeypatch.setattr(linalg_factor, "PIECE", 40)
    got = run("_linalg_potrf", {"A": a}, head)
    np.testing.assert_array_equal(got.out, whole.out)
    np.testing.assert_allclose(got.gradients["A"], whole.gradients["A"], 1e-12)
