"""``mx.test_utils``: comparisons with tolerances of their types, random shapes and arrays, checks of symbols."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from ...context import Context, current_context, num_gpus
from ...errors import BackendUnavailableError
from .array import unwrap
from .functions import array
from .io import DataIter
from .symbol_checks import (
    check_consistency,
    check_numeric_gradient,
    check_symbolic_backward,
    check_symbolic_forward,
    numeric_grad,
    simple_forward,
)
from .tolerances import (
    default_atols,
    default_numeric_eps,
    default_rtols,
    get_atol,
    get_rtol,
    get_tols,
    mismatch,
    on_host,
)

__all__ = [
    "almost_equal", "almost_equal_ignore_nan", "assert_allclose", "assert_almost_equal",
    "assert_almost_equal_ignore_nan", "assert_exception", "assign_each", "check_consistency", "check_numeric_gradient",
    "check_symbolic_backward", "check_symbolic_forward", "create_2d_tensor", "default_atols", "default_context",
    "default_dtype", "default_numeric_eps", "default_rtols", "download", "DummyIter", "environment", "get_atol",
    "get_cifar10", "get_mnist", "get_rtol", "get_tols", "list_gpus", "np_reduce", "numeric_grad", "rand_coord_2d",
    "rand_ndarray", "rand_shape_2d", "rand_shape_3d", "rand_shape_nd", "random_arrays", "random_sample", "retry",
    "same", "same_array", "set_default_context", "simple_forward",
]  # fmt: skip

_rng = np.random.RandomState(1234)
_default: list[Context] = []


def default_context() -> Context:
    """The context that arrays are made on."""
    return current_context()


def set_default_context(ctx: Context) -> None:
    """Make arrays on ``ctx`` from now on."""
    if _default:
        _default.pop().__exit__()
    _default.append(Context(ctx).__enter__())


def default_dtype() -> Any:
    """float32."""
    return np.float32


def list_gpus() -> range:
    """Numbers of the GPUs that can be used."""
    return range(num_gpus())


def same(a: Any, b: Any) -> bool:
    """Whether two arrays have equal shapes and values."""
    return bool(np.array_equal(on_host(a), on_host(b)))


def same_array(array1: Any, array2: Any) -> bool:
    """Whether two NDArrays share their memory."""
    one, other = unwrap(array1), unwrap(array2)
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return one.shape == other.shape and one.ctypes.data == other.ctypes.data
    return one is other


def almost_equal(
    a: Any, b: Any, rtol: float | None = None, atol: float | None = None, equal_nan: bool = False,
    use_broadcast: bool = True,
) -> bool:  # fmt: skip
    """Whether two arrays are equal within ``atol + rtol · |b|``; the tolerances are those of their types by default."""
    return not mismatch(on_host(a), on_host(b), rtol, atol, equal_nan)


def assert_almost_equal(
    a: Any, b: Any, rtol: float | None = None, atol: float | None = None, names: Sequence[str] = ("a", "b"),
    equal_nan: bool = False, use_broadcast: bool = True, mismatches: Sequence[int] = (10, 10),
) -> None:  # fmt: skip
    """As `almost_equal`, but AssertionError that names the largest difference."""
    text = mismatch(on_host(a), on_host(b), rtol, atol, equal_nan, names)
    if text:
        raise AssertionError(text)


def assert_allclose(a: Any, b: Any, rtol: float = 1e-07, atol: float = 0, equal_nan: bool = True) -> None:
    """As `assert_almost_equal` with tolerances of its own."""
    assert_almost_equal(a, b, rtol=rtol, atol=atol, equal_nan=equal_nan)


def _without_nan(a: Any, b: Any) -> tuple[Any, Any]:
    one, other = np.array(on_host(a)), np.array(on_host(b))
    missing = np.isnan(one) | np.isnan(other)
    one[missing] = other[missing] = 0
    return one, other


def almost_equal_ignore_nan(a: Any, b: Any, rtol: float | None = None, atol: float | None = None) -> bool:
    """As `almost_equal` where neither is NaN."""
    return almost_equal(*_without_nan(a, b), rtol, atol)


def assert_almost_equal_ignore_nan(
    a: Any, b: Any, rtol: float | None = None, atol: float | None = None, names: Sequence[str] = ("a", "b")
) -> None:
    """As `assert_almost_equal` where neither is NaN."""
    assert_almost_equal(*_without_nan(a, b), rtol, atol, names)


def assert_exception(f: Callable[..., Any], exception_type: type[BaseException], *args: Any, **kwargs: Any) -> None:
    """AssertionError unless ``f(*args, **kwargs)`` raises an exception of that type."""
    try:
        f(*args, **kwargs)
    except exception_type:
        return
    raise AssertionError(f"{getattr(f, '__name__', f)} must raise {exception_type.__name__}, but it raises nothing")


# --- random arrays ----------------------------------------------------------------------------------------------


def rand_shape_2d(dim0: int = 10, dim1: int = 10) -> tuple[int, int]:
    """Two dims from 1 to ``dim0`` and ``dim1``."""
    return int(_rng.randint(1, dim0 + 1)), int(_rng.randint(1, dim1 + 1))


def rand_shape_3d(dim0: int = 10, dim1: int = 10, dim2: int = 10) -> tuple[int, int, int]:
    """Three dims from 1 to ``dim0``, ``dim1`` and ``dim2``."""
    return (*rand_shape_2d(dim0, dim1), int(_rng.randint(1, dim2 + 1)))


def rand_shape_nd(num_dim: int, dim: int = 10) -> tuple[int, ...]:
    """``num_dim`` dims from 1 to ``dim``."""
    return tuple(int(one) for one in _rng.randint(1, dim + 1, size=num_dim))


def rand_coord_2d(x_low: int, x_high: int, y_low: int, y_high: int) -> tuple[int, int]:
    """Two whole numbers in ranges that leave out their ends."""
    return int(_rng.randint(x_low, x_high)), int(_rng.randint(y_low, y_high))


def random_arrays(*shapes: Any) -> Any:
    """NumPy arrays of normal numbers in the default type; one array for one shape."""
    found = [np.asarray(_rng.randn(*((shape,) if isinstance(shape, int) else shape)), np.float32) for shape in shapes]
    return found[0] if len(found) == 1 else found


def random_sample(population: Sequence[Any], k: int) -> list[Any]:
    """``k`` members of a sequence in their order."""
    return [population[i] for i in sorted(_rng.permutation(len(population))[:k])]


def rand_ndarray(
    shape: Sequence[int], stype: str = "default", density: Any = None, dtype: Any = None, modifier_func: Any = None,
    shuffle_csr_indices: bool = False, distribution: Any = None, ctx: Any = None,
) -> Any:  # fmt: skip
    """An NDArray of uniform numbers in [-1, 1)."""
    found = array(_rng.uniform(-1.0, 1.0, tuple(shape)), ctx, dtype)
    return found.tostype(stype)


def create_2d_tensor(rows: int, columns: int, dtype: Any = np.int64) -> Any:
    """A tensor whose rows count up from 0."""
    return array(np.repeat(np.arange(rows).reshape(rows, 1), columns, axis=1), dtype=dtype)


def assign_each(the_input: np.ndarray[Any, Any], function: Callable[[Any], Any] | None) -> np.ndarray[Any, Any]:
    """The function of every element."""
    return np.array(the_input) if function is None else np.vectorize(function)(the_input)


def np_reduce(dat: np.ndarray[Any, Any], axis: Any, keepdims: bool, numpy_reduce_func: Callable[..., Any]) -> Any:
    """A reduction of NumPy along several axes, one after the other."""
    axes = range(dat.ndim) if axis is None else [axis] if isinstance(axis, int) else axis
    found = dat
    for one in sorted((one % dat.ndim for one in axes), reverse=True):
        found = numpy_reduce_func(found, axis=one, keepdims=keepdims)
    return found


# --- programs ---------------------------------------------------------------------------------------------------


class DummyIter(DataIter):
    """The first batch of an iterator, for ever: what a step costs without the loading of data."""

    def __init__(self, real_iter: Any) -> None:
        super().__init__(real_iter.batch_size)
        self.real_iter = real_iter
        self.provide_data, self.provide_label = real_iter.provide_data, real_iter.provide_label
        self.the_batch = next(real_iter)

    def next(self) -> Any:
        """The one batch."""
        return self.the_batch


@contextmanager
def environment(*args: Any) -> Iterator[None]:
    """A block in which environment variables (a name and a value, or a dict) are set, None: not set."""
    wanted = dict(args[0]) if len(args) == 1 else {args[0]: args[1]}
    former = {name: os.environ.get(name) for name in wanted}

    def put(values: dict[str, str | None]) -> None:
        for name, value in values.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value

    put(wanted)
    try:
        yield
    finally:
        put(former)


def retry(n: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: call a function up to ``n`` times until it raises no AssertionError."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            for _ in range(n - 1):
                try:
                    return function(*args, **kwargs)
                except AssertionError:
                    continue
            return function(*args, **kwargs)

        return call

    return decorate


def download(url: str, *_: Any, **__: Any) -> str:
    """Refused: nothing is fetched from the network. Raises BackendUnavailableError."""
    raise BackendUnavailableError(
        f"test_utils.download: nothing is fetched from the network; fetch {url!r} yourself and open the file"
    )


def get_mnist(*_: Any, **__: Any) -> Any:
    """Refused: no data set is fetched. Raises BackendUnavailableError."""
    raise BackendUnavailableError(
        "test_utils.get_mnist: no data set is fetched from the network; mx.io.MNISTIter reads the four files of MNIST "
        "from a folder of yours"
    )


get_cifar10 = get_mnist
